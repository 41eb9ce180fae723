//! Files that give roles, of anything at all, on any toolchain: the body that `fuzz/` drives by coverage, here by seeds.

#[allow(dead_code, reason = "shared with the other bodies")]
#[path = "../../../../fuzz/bodies/input.rs"]
mod input;
#[path = "../../../../fuzz/bodies/roles.rs"]
mod roles;
#[path = "../../../../fuzz/bodies/text.rs"]
mod text;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    #[test]
    fn a_user_on_a_list_has_its_role_and_no_text_does_harm(data in prop::collection::vec(any::<u8>(), 0..400)) {
        let folder = tempfile::tempdir().expect("a folder can be made");
        roles::run(&data, &folder.path().join("access.toml"));
    }
}
