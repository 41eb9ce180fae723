//! The driver's own choice of place, against what people saw and published.

use divvy_core::mig::{MigGpu, PlacementPolicy, place};

use crate::mig::rules::{PLAIN, table};

/// Creates these profiles one after the other on an empty GPU, and says where each came to lie; the last may be refused.
fn created(model: &str, profiles: &[u32]) -> Vec<Option<u8>> {
    let table = table(model);
    let mut held = Vec::new();
    let mut create = |id: &u32| {
        let site = MigGpu::new(&table, held.iter().copied(), &[]);
        let (_, chosen) = place(&[site], |_| Some(*id), PlacementPolicy::DriverDefault)?;
        held.push(chosen.placement);
        Some(chosen.placement.start)
    };
    profiles.iter().map(&mut create).collect()
}

fn all(starts: &[u8]) -> Vec<Option<u8>> {
    starts.iter().copied().map(Some).collect()
}

#[test]
fn the_drivers_own_choice_is_as_in_public_transcripts() {
    // C4: A100 40GB; C5: User Guide and A100 80GB; C7: User Guide and A100 on ESXi.
    assert_eq!(created("a100-40gb", &[5, 14, 19]), all(&[0, 4, 6]));
    assert_eq!(created("a100-40gb", &[19, 14, 5]), all(&[6, 4, 0]));
    assert_eq!(created("a100-40gb", &[9, 9]), all(&[4, 0]));
    assert_eq!(created("a100-80gb", &[9, 9]), all(&[4, 0]));
    assert_eq!(created("a100-40gb", &[9, 19, 14, 19]), all(&[4, 0, 2, 1]));
    // C6: the User Guide's list that fails at its last and leaves three.
    let four = created("a100-40gb", &[19, 19, 14, 9]);
    assert_eq!(four, [Some(6), Some(4), Some(0), None]);
}

#[test]
fn a_1g_with_double_memory_goes_last_where_only_it_fits() {
    // The transcript of a GH200 has ids only; that the last start is used last was fitted to it.
    assert_eq!(created("gh200-96gb", &[15, 15, 15, 15])[3], Some(6));
    // H100 NVL, ids only: all three fit.
    assert!(
        created("h100-nvl-94gb", &[9, 15, 19])
            .iter()
            .all(Option::is_some)
    );
}

#[test]
fn on_an_empty_gpu_least_loss_goes_where_the_driver_does() {
    let table = table("a100-40gb");
    for id in PLAIN {
        let site = MigGpu::new(&table, [], &[]);
        let by = |policy| place(&[site], |_| Some(id), policy).unwrap().1.placement;
        assert_eq!(
            by(PlacementPolicy::LeastLoss),
            by(PlacementPolicy::DriverDefault),
            "{id}"
        );
    }
}
