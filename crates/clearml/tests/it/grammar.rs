//! Configuration files of anything at all, on any toolchain: the body that `fuzz/` drives by coverage, here by seeds.

#[path = "../../../../fuzz/bodies/config.rs"]
mod config;
#[allow(dead_code, reason = "shared with the other bodies")]
#[path = "../../../../fuzz/bodies/input.rs"]
mod input;
#[path = "../../../../fuzz/bodies/text.rs"]
mod text;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_configuration_is_read_or_refused_and_no_text_does_harm(data in prop::collection::vec(any::<u8>(), 0..400)) {
        let folder = tempfile::tempdir().expect("a folder can be made");
        config::run(&data, &folder.path().join("clearml.conf"));
    }
}
