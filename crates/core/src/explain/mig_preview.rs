//! MIG preview: a dry run that places a batch of instances as the GPUs are now.
//!
//! It allocates nothing, and ignores pending jobs.

use std::collections::BTreeSet;

use crate::mig::{MigGpu, MigProfile, Packing, Placement, pack};
use crate::model::snapshot::Snapshot;
use crate::placement::occupancy::{GpuUsage, NodeUsage};
use crate::units::{Bytes, GpuUuid};

/// The planned placement of one instance of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedInstance {
    pub profile: MigProfile,
    pub gpu: GpuUuid,
    pub index: u32,
    pub placement: Placement,
    /// Memory slices that it covers.
    pub slices: u8,
    pub memory: Bytes,
    /// It takes over an idle instance.
    pub reuse: bool,
    /// Labels of the idle instances that would be removed for it: `2g.10gb@2`.
    pub reclaim: Vec<String>,
}

/// Why a batch does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PreviewError {
    #[error("no GPU here is in MIG mode")]
    NoGpu,
    /// Of these profiles.
    #[error("no GPU here has the profile {}", names(.0))]
    Unknown(Vec<MigProfile>),
    /// Not even on empty GPUs.
    #[error("{} can never coexist{}", listed(.0), beside(.0, *.1))]
    Never(Vec<MigProfile>, usize),
    #[error("no room now for {}{}", listed(.0), beside(.0, *.1))]
    Now(Vec<MigProfile>, usize),
}

/// Plans instances of these profiles on the GPUs with these indices, or on any GPU where none is named. The search is
/// exact for batches that are small enough.
///
/// # Errors
/// [`PreviewError`], with the instances that the best packing leaves over.
pub fn preview(
    snapshot: &Snapshot,
    wanted: &[MigProfile],
    on: &[u32],
) -> Result<Vec<PlannedInstance>, PreviewError> {
    let (node, empty) = (NodeUsage::of(snapshot), NodeUsage::empty(&snapshot.gpus));
    let usages = mig_gpus(&node, on);
    if usages.is_empty() {
        return Err(PreviewError::NoGpu);
    }
    let is_offered = |name: &&MigProfile| {
        let mut tables = usages
            .iter()
            .filter_map(|usage| Some(usage.mig.as_ref()?.table()));
        tables.any(|table| table.named(**name).is_some())
    };
    let unknown: BTreeSet<MigProfile> = wanted
        .iter()
        .filter(|name| !is_offered(name))
        .copied()
        .collect();
    if !unknown.is_empty() {
        return Err(PreviewError::Unknown(unknown.into_iter().collect()));
    }
    let packing = packed(&usages, wanted);
    let left = left_over(&packing, wanted);
    if left.is_empty() {
        return Ok(planned_instances(&usages, wanted, &packing));
    }
    let ever = left_over(&packed(&mig_gpus(&empty, on), wanted), wanted);
    Err(if ever.is_empty() {
        PreviewError::Now(left, wanted.len())
    } else {
        PreviewError::Never(ever, wanted.len())
    })
}

fn mig_gpus<'b, 'a>(node: &'b NodeUsage<'a>, on: &[u32]) -> Vec<&'b GpuUsage<'a>> {
    let asked_for = |usage: &&GpuUsage<'_>| on.is_empty() || on.contains(&usage.gpu.index);
    let usages = node.gpus.iter().filter(asked_for);
    usages
        .filter(|usage| usage.mig.is_some() && usage.slice_before_mig().is_none())
        .collect()
}

fn packed(usages: &[&GpuUsage<'_>], wanted: &[MigProfile]) -> Packing {
    let sites: Vec<MigGpu<'_>> = usages
        .iter()
        .filter_map(|usage| Some(usage.mig.as_ref()?.site()))
        .collect();
    pack(&sites, wanted)
}

fn left_over(packing: &Packing, wanted: &[MigProfile]) -> Vec<MigProfile> {
    let places = wanted.iter().zip(&packing.placed);
    places
        .filter(|(_, placed)| placed.is_none())
        .map(|(profile, _)| *profile)
        .collect()
}

fn planned_instances(
    usages: &[&GpuUsage<'_>],
    wanted: &[MigProfile],
    packing: &Packing,
) -> Vec<PlannedInstance> {
    let mut reclaim = packing.reclaim.clone();
    let one = |(name, placed): (&MigProfile, &Option<crate::mig::PackedInstance>)| {
        let placed = (*placed)?;
        let usage = usages[placed.site];
        let table = usage.mig.as_ref()?.table();
        let profile = table.profile(placed.placement.profile)?;
        let in_the_way = reclaim.extract_if(.., |(site, idle)| {
            let slices = table
                .profile(idle.profile)
                .map_or(1, |one| one.memory_slices);
            let (start, end) = (placed.placement.start, profile.memory_slices);
            *site == placed.site && idle.start < start + end && start < idle.start + slices
        });
        Some(PlannedInstance {
            profile: *name,
            gpu: usage.gpu.uuid.clone(),
            index: usage.gpu.index,
            placement: placed.placement,
            slices: profile.memory_slices,
            memory: profile.memory,
            reuse: placed.reuse,
            reclaim: in_the_way.map(|(_, idle)| table.label(idle)).collect(),
        })
    };
    wanted.iter().zip(&packing.placed).filter_map(one).collect()
}

/// `2 of 1g.5gb and 3g.20gb`.
fn names(profiles: &[MigProfile]) -> String {
    let names: Vec<String> = profiles.iter().map(MigProfile::to_string).collect();
    names.join(", ")
}

fn listed(profiles: &[MigProfile]) -> String {
    let mut kinds: Vec<(MigProfile, usize)> = Vec::new();
    for profile in profiles {
        match kinds.iter_mut().find(|(kind, _)| kind == profile) {
            Some((_, count)) => *count += 1,
            None => kinds.push((*profile, 1)),
        }
    }
    let kinds: Vec<String> = kinds
        .iter()
        .map(|(kind, count)| match count {
            1 => kind.to_string(),
            count => format!("{count} of {kind}"),
        })
        .collect();
    match &kinds[..] {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        kinds => kinds.concat(),
    }
}

/// ` beside the other 3`.
fn beside(left: &[MigProfile], all: usize) -> String {
    match all.saturating_sub(left.len()) {
        0 => String::new(),
        1 => " with the other one".to_owned(),
        others => format!(" with the other {others}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mig::{MigInventory, ProfileTable, UnallocatedInstance, UnallocatedState};
    use crate::model::gpu::{Gpu, Mode};

    /// An A100 40GB in MIG mode with these idle instances.
    fn node(idle: &[(u32, u8)]) -> Snapshot {
        let instance = |(profile, start): &(u32, u8)| UnallocatedInstance {
            placement: Placement {
                profile: *profile,
                start: *start,
            },
            standing: UnallocatedState::Idle,
        };
        let gpu = Gpu {
            mode: Mode::Mig,
            mig: Some(MigInventory {
                table: ProfileTable::of_model("a100-40gb").unwrap(),
                instances: idle.iter().map(instance).collect(),
            }),
            ..Gpu::sample(0, Bytes::gib(40))
        };
        Snapshot {
            gpus: vec![gpu],
            ..Snapshot::default()
        }
    }

    fn laid(node: &Snapshot, names: &[&str]) -> Result<Vec<String>, String> {
        let wanted: Vec<MigProfile> = names.iter().map(|name| name.parse().unwrap()).collect();
        let laid = preview(node, &wanted, &[]).map_err(|error| error.to_string())?;
        let text = |one: &PlannedInstance| {
            let reclaim = one.reclaim.join(" ");
            let how = if one.reuse { "idle" } else { reclaim.as_str() };
            format!("{}@{} {how}", one.profile, one.placement.start)
                .trim_end()
                .to_owned()
        };
        Ok(laid.iter().map(text).collect())
    }

    #[test]
    fn a_batch_that_fits_in_some_order_is_laid_in_every_order() {
        for names in [
            ["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"],
            ["3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb"],
            ["1g.5gb", "3g.20gb", "1g.5gb", "2g.10gb"],
        ] {
            let laid = laid(&node(&[]), &names).unwrap();
            assert!(laid.contains(&"3g.20gb@4".to_owned()), "{laid:?}");
        }
    }

    #[test]
    fn idle_instances_are_reused_or_named_by_the_job_that_they_hinder() {
        // 19 is 1g.5gb, 9 is 3g.20gb.
        let node = node(&[(19, 0), (9, 4)]);
        assert_eq!(
            laid(&node, &["3g.20gb", "4g.20gb"]).unwrap(),
            ["3g.20gb@4 idle", "4g.20gb@0 1g.5gb@0"]
        );
    }

    #[test]
    fn what_can_never_be_there_at_once_is_told_from_what_cannot_now() {
        assert_eq!(
            laid(&node(&[]), &["4g.20gb", "4g.20gb"]).unwrap_err(),
            "4g.20gb can never coexist with the other one"
        );
        let mut held = node(&[]);
        if let Some(inventory) = &mut held.gpus[0].mig {
            inventory.instances.push(UnallocatedInstance {
                placement: Placement {
                    profile: 9,
                    start: 4,
                },
                standing: UnallocatedState::Foreign,
            });
        }
        assert_eq!(
            laid(&held, &["9g.1gb", "1g.5gb"]).unwrap_err(),
            "no GPU here has the profile 9g.1gb"
        );
        assert_eq!(
            laid(&held, &["7g.40gb"]).unwrap_err(),
            "no room now for 7g.40gb"
        );
        held.gpus[0].mode = Mode::Shared;
        assert_eq!(
            laid(&held, &["1g.5gb"]).unwrap_err(),
            "no GPU here is in MIG mode"
        );
    }
}
