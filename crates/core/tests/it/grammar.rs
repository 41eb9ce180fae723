//! The grammars of sizes and queues on random text, on any toolchain: the bodies that `fuzz/` drives by coverage, here by seeds.

#[allow(dead_code, reason = "shared with the other bodies")]
#[path = "../../../../fuzz/bodies/input.rs"]
mod input;
#[path = "../../../../fuzz/bodies/queues.rs"]
mod queues;
#[path = "../../../../fuzz/bodies/sizes.rs"]
mod sizes;
#[path = "../../../../fuzz/bodies/text.rs"]
mod text;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn sizes_are_read_as_they_are_written_and_no_text_does_harm(data in prop::collection::vec(any::<u8>(), 0..300)) {
        sizes::run(&data);
    }

    #[test]
    fn queues_are_read_as_they_are_written_and_no_text_does_harm(data in prop::collection::vec(any::<u8>(), 0..300)) {
        queues::run(&data);
    }
}
