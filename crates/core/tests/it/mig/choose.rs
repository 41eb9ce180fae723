//! Which profile a request gets.

use divvy_core::mig::{Attribute, InstanceRequirement, InstanceSize, ProfileTable, smallest};
use divvy_core::{Bytes, Share};

use crate::mig::rules::table;

fn chosen(model: &str, need: impl Into<InstanceRequirement>) -> Option<(String, u64)> {
    let table = table(model);
    let profile = smallest(&table, need)?;
    Some((profile.name.to_string(), profile.memory.get() >> 20))
}

fn named(model: &str, need: impl Into<InstanceRequirement>) -> String {
    chosen(model, need).map_or("none".to_owned(), |(name, _)| name)
}

#[test]
fn ten_gigabytes_by_name_are_a_little_less_in_fact_and_exactly_that_much_is_the_next_profile() {
    // Case C22.
    let ten = Bytes::gib(10);
    assert_eq!(
        chosen("a100-40gb", InstanceSize::Memory(ten)),
        Some(("1g.10gb".to_owned(), 9856))
    );
    assert_eq!(
        chosen("a100-40gb", InstanceSize::Exact(ten)),
        Some(("3g.20gb".to_owned(), 19968))
    );
}

#[test]
fn a_name_that_promises_more_than_there_is_does_not_count_when_memory_is_exact() {
    // Case C23.
    let wanted = Bytes::mib(22 * 1024 + 512);
    assert_eq!(named("b200-180gb", InstanceSize::Exact(wanted)), "1g.45gb");
    assert_eq!(named("b200-180gb", InstanceSize::Memory(wanted)), "1g.23gb");
}

#[test]
fn a_share_gets_the_smallest_profile_with_that_part_of_the_memory() {
    let share = |text: &str| InstanceSize::Share(text.parse::<Share>().unwrap());
    assert_eq!(named("a100-40gb", share("0.25")), "1g.10gb");
    assert_eq!(named("a30-24gb", share("0.25")), "1g.6gb");
    assert_eq!(named("rtxpro6000-96gb", share("0.25")), "1g.24gb");
    assert_eq!(named("a100-40gb", share("0.125")), "1g.5gb");
    assert_eq!(named("a100-40gb", share("0.126")), "1g.10gb");
    assert_eq!(named("a100-40gb", share("0.5")), "3g.20gb");
    assert_eq!(named("a100-40gb", share("0.501")), "7g.40gb");
    assert_eq!(named("h200-141gb", share("1")), "7g.141gb");
}

#[test]
fn the_share_that_comes_with_a_profile_is_its_part_of_the_memory_slices() {
    let share = |model: &str, id: u32| {
        let table = table(model);
        table.share(table.profile(id).unwrap()).thousandths()
    };
    assert_eq!(
        [19, 15, 9, 0].map(|id| share("a100-40gb", id)),
        [125, 250, 500, 1000]
    );
    assert_eq!(
        [14, 5, 0].map(|id| share("rtxpro6000-96gb", id)),
        [250, 500, 1000]
    );
}

#[test]
fn multiprocessors_may_be_asked_for_beside_memory() {
    let need = |multiprocessors| InstanceRequirement {
        multiprocessors,
        ..InstanceRequirement::from(InstanceSize::Memory(Bytes::gib(10)))
    };
    assert_eq!(named("a100-40gb", need(14)), "1g.10gb");
    assert_eq!(named("a100-40gb", need(15)), "2g.10gb");
    assert_eq!(named("a100-40gb", need(98)), "7g.40gb");
    assert_eq!(named("a100-40gb", need(99)), "none");
    // Those of a 3g.90gb are not known.
    assert_eq!(named("b200-180gb", need(40)), "none");
}

#[test]
fn profiles_with_an_attribute_are_for_requests_that_name_it() {
    let need = |attribute| InstanceRequirement {
        attribute,
        ..InstanceRequirement::from(InstanceSize::Memory(Bytes::gib(30)))
    };
    let rtx = |attribute| named("rtxpro6000-96gb", need(attribute));
    assert_eq!(rtx(Attribute::None), "2g.48gb");
    assert_eq!(rtx(Attribute::Graphics), "2g.48gb+gfx");
    assert_eq!(rtx(Attribute::NoMedia), "2g.48gb-me");
    assert_eq!(rtx(Attribute::AllMedia), "2g.48gb+me.all");
    assert_eq!(rtx(Attribute::Media), "none");
}

#[test]
fn a_name_gets_that_profile_and_no_other() {
    let size = |name: &str| InstanceSize::Named(name.parse().unwrap());
    assert_eq!(named("a100-40gb", size("2g.10gb")), "2g.10gb");
    assert_eq!(named("a100-40gb", size("1g.5gb+me")), "1g.5gb+me");
    assert_eq!(named("a100-40gb", size("1g.6gb")), "none");
}

/// The table of a model under a driver that rounds the gigabytes of a profile's name down.
fn renamed(model: &str, names: &[(&str, &str)]) -> ProfileTable {
    let mut profiles = ProfileTable::of_model(model).unwrap().profiles.clone();
    for profile in &mut profiles {
        let name = profile.name.to_string();
        if let Some((_, new)) = names.iter().find(|(old, _)| *old == name) {
            profile.name = new.parse().unwrap();
        }
    }
    ProfileTable::new(profiles).unwrap()
}

#[test]
fn a_profile_is_known_by_its_slices_where_a_driver_calls_it_otherwise() {
    let new = [
        ("3g.40gb", "3g.39gb"),
        ("4g.40gb", "4g.39gb"),
        ("7g.80gb", "7g.79gb"),
    ];
    let table = renamed("h100-80gb", &new);
    let chosen = |need| smallest(&table, need).map(|profile| profile.name.to_string());
    let size = |name: &str| InstanceSize::Named(name.parse().unwrap());
    for (old, new) in new {
        assert_eq!(chosen(size(old)).as_deref(), Some(new));
        assert_eq!(chosen(size(new)).as_deref(), Some(new));
    }
    assert_eq!(
        chosen(size("3g.38gb")).as_deref(),
        Some("3g.39gb"),
        "known to no model"
    );
    assert_eq!(chosen(size("3g.41gb")), None);
    assert_eq!(chosen(size("3g.40gb+me")), None);
    // By memory the same profile serves as before.
    let half = InstanceSize::Memory(Bytes::gib(40));
    assert_eq!(chosen(half).as_deref(), Some("3g.39gb"));
    // A name of 1 GB more or less may be that of other slices: a quarter of an A30, two eighths of an H100 NVL.
    assert_eq!(named("a30-24gb", size("1g.5gb")), "none");
    assert_eq!(named("b200-180gb", size("1g.24gb")), "none");
}

#[test]
fn what_no_profile_has_is_not_given() {
    assert_eq!(
        named("a100-40gb", InstanceSize::Memory(Bytes::gib(40))),
        "7g.40gb"
    );
    assert_eq!(
        named("a100-40gb", InstanceSize::Exact(Bytes::gib(40))),
        "none"
    );
    assert_eq!(
        named("a100-40gb", InstanceSize::Memory(Bytes::gib(41))),
        "none"
    );
}
