//! A slice whose files hold anything at all, on any toolchain: the body that `fuzz/` drives by coverage, here at random.

#[path = "../../../../fuzz/bodies/input.rs"]
mod input;
#[path = "../../../../fuzz/bodies/region.rs"]
mod region;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_process_is_harmed_by_the_contents_of_a_ledger(data in prop::collection::vec(any::<u8>(), 0..1500)) {
        region::run(&data);
    }
}
