//! Recovery of MIG instances: reconciles the instances on a GPU with our records, after a crash, a reboot, and at any
//! time.
//!
//! ```text
//! create    record `creating` ─► GPU instance ─► compute instance ─► record `ready`
//! destroy   record `destroying` ─► compute instance gone ─► GPU instance gone ─► no record
//! ```
//! A crash can follow each arrow. The record is on disk before the instance is created, so an instance in a slot
//! without a record is foreign, and no action touches it. No instance survives a reboot, so an instance in a recorded
//! slot is foreign then, too. Its UUID proves nothing, since the next instance of a slot has the same UUID.
//!
//! Two cases are indistinguishable, and are taken for ours:
//! - A foreign instance in the slot of a record without ids: while we were about to create one there, or after creating
//!   or half destroying it has failed. A GPU instance with several compute instances is foreign, as we never divide
//!   one.
//! - A foreign instance in the slot of one of ours that another program destroyed between two observations. Ids and
//!   UUIDs belong to the slot, so they are those on record.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{MigUuid, Placement};
use crate::units::JobId;

/// How far an instance of ours has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InstanceState {
    /// About to be made, or partly made.
    Creating,
    /// There, held by a job or kept for the next.
    Ready,
    /// About to be destroyed, or partly destroyed.
    Destroying,
    /// Inconsistent: no job gets it until an operator intervenes, or until it can be destroyed.
    Quarantined,
}

impl InstanceState {
    pub const ALL: [Self; 4] = [
        Self::Creating,
        Self::Ready,
        Self::Destroying,
        Self::Quarantined,
    ];

    /// The word for it in the journal.
    pub fn name(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Ready => "ready",
            Self::Destroying => "destroying",
            Self::Quarantined => "quarantined",
        }
    }
}

/// What we wrote down of one of our instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceRecord {
    pub placement: Placement,
    pub state: InstanceState,
    /// The kernel's id of the boot in which it was written.
    pub boot: String,
    /// Known once it was made.
    pub created: Option<CreatedInstance>,
}

/// What the driver said of an instance that we had made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedInstance {
    /// The GPU instance's id.
    pub id: u32,
    pub uuid: MigUuid,
}

/// A GPU instance on the GPU, ours or foreign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedInstance {
    pub placement: Placement,
    pub id: u32,
    pub compute_instances: ComputeInstances,
}

/// The compute instances of a GPU instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ComputeInstances {
    /// None, so that no MIG device shows it.
    Nothing,
    /// One, that has all of it: what we make.
    Whole(MigUuid),
    /// Several, or one that leaves something over.
    Divided,
}

/// A job that holds a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceHolder {
    pub job: JobId,
    /// Its program was started, and may use the instance.
    pub launched: bool,
}

/// What is to be done about a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is as the record says.
    Adopt,
    /// It is complete, and the record is not: that is to be written down.
    Finish(CreatedInstance),
    /// It is ours, and not of use: to be destroyed.
    Remove,
    /// The instance is gone and no job needs it: delete the record.
    Drop,
    /// It is not there, and the job that holds it has not begun: the record goes, and the job is placed anew.
    Recreate(JobId),
    /// It is not there, and the job's program was started in it: the record goes, and that is told.
    Lost(JobId),
    /// It is there and not what we made: to be left alone.
    Quarantine(Anomaly),
}

/// What is the matter with an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anomaly {
    /// Its compute instance was destroyed, not by us.
    Emptied,
    /// Its compute slices were divided, not by us.
    Divided,
    /// It was in quarantine before.
    Known,
}

impl Anomaly {
    /// In words.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Emptied => "another program destroyed its compute instance",
            Self::Divided => "another program divided its compute slices",
            Self::Known => "it was quarantined before",
        }
    }
}

/// The findings: an action for each record, by placement, and the foreign placements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    pub actions: BTreeMap<Placement, Action>,
    pub unmanaged: Vec<Placement>,
}

/// Compares the records of one GPU with the instances on it, in the boot `boot`. At most one record and one instance
/// may lie at a placement.
pub fn recover(
    records: &[InstanceRecord],
    seen: &[ObservedInstance],
    boot: &str,
    holders: &BTreeMap<Placement, InstanceHolder>,
) -> Recovered {
    let mut recovered = Recovered::default();
    let mut ours = Vec::new();
    for record in records {
        let holder = holders.get(&record.placement).copied();
        let there = seen.iter().find(|seen| seen.placement == record.placement);
        let action = match there.filter(|seen| is_of(record, seen, boot)) {
            Some(seen) => {
                ours.push(record.placement);
                present(record, seen, holder)
            }
            None => absent(holder),
        };
        recovered.actions.insert(record.placement, action);
    }
    let mut foreign: Vec<Placement> = seen.iter().map(|seen| seen.placement).collect();
    foreign.retain(|placement| !ours.contains(placement));
    foreign.sort_unstable();
    recovered.unmanaged = foreign;
    recovered
}

/// Whether the instance in a record's slot can be the recorded one.
fn is_of(record: &InstanceRecord, seen: &ObservedInstance, boot: &str) -> bool {
    if record.boot != boot {
        return false;
    }
    let Some(made) = &record.created else {
        // We never divide a GPU instance, so this one is foreign.
        return seen.compute_instances != ComputeInstances::Divided;
    };
    let same_device = match &seen.compute_instances {
        ComputeInstances::Whole(uuid) => *uuid == made.uuid,
        ComputeInstances::Nothing | ComputeInstances::Divided => true,
    };
    made.id == seen.id && same_device
}

fn present(
    record: &InstanceRecord,
    seen: &ObservedInstance,
    holder: Option<InstanceHolder>,
) -> Action {
    match (record.state, &seen.compute_instances) {
        (InstanceState::Quarantined, _) => Action::Quarantine(Anomaly::Known),
        (_, ComputeInstances::Divided) => Action::Quarantine(Anomaly::Divided),
        (InstanceState::Creating, ComputeInstances::Whole(uuid)) => {
            Action::Finish(CreatedInstance {
                id: seen.id,
                uuid: uuid.clone(),
            })
        }
        (InstanceState::Ready, ComputeInstances::Whole(_)) => Action::Adopt,
        (InstanceState::Ready, ComputeInstances::Nothing)
            if holder.is_some_and(|holder| holder.launched) =>
        {
            Action::Quarantine(Anomaly::Emptied)
        }
        (InstanceState::Creating | InstanceState::Ready, ComputeInstances::Nothing)
        | (InstanceState::Destroying, _) => Action::Remove,
    }
}

fn absent(holder: Option<InstanceHolder>) -> Action {
    match holder {
        None => Action::Drop,
        Some(InstanceHolder {
            job,
            launched: false,
        }) => Action::Recreate(job),
        Some(InstanceHolder {
            job,
            launched: true,
        }) => Action::Lost(job),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Placement = Placement {
        profile: 19,
        start: 3,
    };
    const BOOT: &str = "b1";

    fn uuid(last: u8) -> MigUuid {
        format!("MIG-00000000-0000-5000-8000-0000000000{last:02x}")
            .parse()
            .unwrap()
    }

    fn made() -> CreatedInstance {
        CreatedInstance {
            id: 10,
            uuid: uuid(1),
        }
    }

    fn record(stage: InstanceState) -> InstanceRecord {
        InstanceRecord {
            placement: AT,
            state: stage,
            boot: BOOT.into(),
            created: (stage != InstanceState::Creating).then(made),
        }
    }

    fn seen(inside: ComputeInstances) -> ObservedInstance {
        ObservedInstance {
            placement: AT,
            id: 10,
            compute_instances: inside,
        }
    }

    fn whole() -> ComputeInstances {
        ComputeInstances::Whole(uuid(1))
    }

    fn action(
        record: &InstanceRecord,
        seen: &[ObservedInstance],
        holder: Option<InstanceHolder>,
    ) -> Action {
        let holders = holder.map(|holder| (AT, holder)).into_iter().collect();
        let mut found = recover(std::slice::from_ref(record), seen, BOOT, &holders);
        found.actions.remove(&AT).unwrap()
    }

    fn holder(launched: bool) -> Option<InstanceHolder> {
        Some(InstanceHolder {
            job: JobId(7),
            launched,
        })
    }

    #[test]
    fn an_instance_as_the_record_says_is_adopted() {
        let found = action(
            &record(InstanceState::Ready),
            &[seen(whole())],
            holder(true),
        );
        assert_eq!(found, Action::Adopt);
    }

    #[test]
    fn what_was_made_and_not_written_down_is_finished() {
        let found = action(&record(InstanceState::Creating), &[seen(whole())], None);
        assert_eq!(found, Action::Finish(made()));
    }

    #[test]
    fn a_gpu_instance_of_ours_without_a_compute_instance_is_removed() {
        for stage in [
            InstanceState::Creating,
            InstanceState::Destroying,
            InstanceState::Ready,
        ] {
            for holder in [None, holder(false)] {
                let found = action(&record(stage), &[seen(ComputeInstances::Nothing)], holder);
                assert_eq!(found, Action::Remove, "{stage:?}");
            }
        }
    }

    #[test]
    fn what_was_to_be_destroyed_is_never_handed_out_again() {
        let found = action(&record(InstanceState::Destroying), &[seen(whole())], None);
        assert_eq!(found, Action::Remove);
    }

    #[test]
    fn a_record_without_an_instance_goes_and_its_job_is_told() {
        for stage in InstanceState::ALL {
            let record = record(stage);
            assert_eq!(action(&record, &[], None), Action::Drop);
            let again = Action::Recreate(JobId(7));
            assert_eq!(action(&record, &[], holder(false)), again);
            assert_eq!(action(&record, &[], holder(true)), Action::Lost(JobId(7)));
        }
    }

    #[test]
    fn nothing_of_an_earlier_boot_is_ours() {
        for stage in InstanceState::ALL {
            for inside in [
                whole(),
                ComputeInstances::Nothing,
                ComputeInstances::Divided,
            ] {
                let record = InstanceRecord {
                    boot: "b0".into(),
                    ..record(stage)
                };
                let found = recover(&[record], &[seen(inside)], BOOT, &BTreeMap::new());
                assert_eq!(found.actions[&AT], Action::Drop);
                assert_eq!(found.unmanaged, [AT]);
            }
        }
    }

    #[test]
    fn an_instance_of_another_device_in_our_place_is_unmanaged() {
        let others = [
            ObservedInstance {
                id: 9,
                ..seen(whole())
            },
            seen(ComputeInstances::Whole(uuid(2))),
        ];
        for other in others {
            for stage in [
                InstanceState::Ready,
                InstanceState::Destroying,
                InstanceState::Quarantined,
            ] {
                let found = recover(
                    &[record(stage)],
                    std::slice::from_ref(&other),
                    BOOT,
                    &BTreeMap::new(),
                );
                assert_eq!(found.actions[&AT], Action::Drop);
                assert_eq!(found.unmanaged, [AT]);
            }
        }
    }

    #[test]
    fn an_instance_that_an_administrator_divided_is_left_alone() {
        let divided = [seen(ComputeInstances::Divided)];
        for stage in [InstanceState::Ready, InstanceState::Destroying] {
            let found = action(&record(stage), &divided, None);
            assert_eq!(found, Action::Quarantine(Anomaly::Divided));
        }
    }

    #[test]
    fn a_divided_instance_in_a_place_without_a_record_is_unmanaged() {
        for stage in InstanceState::ALL {
            let record = InstanceRecord {
                created: None,
                ..record(stage)
            };
            let found = recover(
                &[record],
                &[seen(ComputeInstances::Divided)],
                BOOT,
                &BTreeMap::new(),
            );
            assert_eq!(found.actions[&AT], Action::Drop, "{stage:?}");
            assert_eq!(found.unmanaged, [AT]);
        }
    }

    #[test]
    fn a_running_jobs_emptied_instance_is_not_destroyed_under_it() {
        let found = action(
            &record(InstanceState::Ready),
            &[seen(ComputeInstances::Nothing)],
            holder(true),
        );
        assert_eq!(found, Action::Quarantine(Anomaly::Emptied));
    }

    #[test]
    fn quarantine_lasts_while_the_instance_does() {
        for inside in [
            whole(),
            ComputeInstances::Nothing,
            ComputeInstances::Divided,
        ] {
            let found = action(&record(InstanceState::Quarantined), &[seen(inside)], None);
            assert_eq!(found, Action::Quarantine(Anomaly::Known));
        }
    }

    #[test]
    fn instances_without_a_record_are_in_no_action() {
        let elsewhere = ObservedInstance {
            placement: Placement {
                profile: 9,
                start: 4,
            },
            ..seen(ComputeInstances::Nothing)
        };
        let found = recover(
            &[record(InstanceState::Ready)],
            &[elsewhere.clone(), seen(whole())],
            BOOT,
            &BTreeMap::new(),
        );
        assert_eq!(found.actions.keys().copied().collect::<Vec<_>>(), [AT]);
        assert_eq!(found.unmanaged, [elsewhere.placement]);
    }

    use proptest::prelude::*;

    fn insides() -> impl Strategy<Value = ComputeInstances> {
        prop_oneof![
            Just(ComputeInstances::Nothing),
            (1_u8..3).prop_map(|last| ComputeInstances::Whole(uuid(last))),
            Just(ComputeInstances::Divided)
        ]
    }

    /// At most one record and one instance in each of a few places.
    fn gpus() -> impl Strategy<
        Value = (
            Vec<InstanceRecord>,
            Vec<ObservedInstance>,
            BTreeMap<Placement, InstanceHolder>,
        ),
    > {
        let place = |start: u8| Placement { profile: 19, start };
        let record = move |start: u8| {
            let stage = prop::sample::select(InstanceState::ALL.to_vec());
            let made = (0_u32..2, 1_u8..3).prop_map(|(id, last)| CreatedInstance {
                id,
                uuid: uuid(last),
            });
            (stage, any::<bool>(), prop::option::of(made)).prop_map(move |(stage, now, made)| {
                InstanceRecord {
                    placement: place(start),
                    state: stage,
                    boot: if now { BOOT.into() } else { "b0".into() },
                    created: made.filter(|_| stage != InstanceState::Creating),
                }
            })
        };
        let seen = move |start: u8| {
            (0_u32..2, insides()).prop_map(move |(id, inside)| ObservedInstance {
                placement: place(start),
                id,
                compute_instances: inside,
            })
        };
        let one = move |start: u8| {
            let holder = prop::option::of(any::<bool>());
            (
                prop::option::of(record(start)),
                prop::option::of(seen(start)),
                holder,
            )
        };
        (one(0), one(1), one(2)).prop_map(move |all| {
            let (mut records, mut there, mut holders) = (Vec::new(), Vec::new(), BTreeMap::new());
            for (start, (record, seen, holder)) in (0_u8..).zip([all.0, all.1, all.2]) {
                records.extend(record);
                there.extend(seen);
                let holder = holder.map(|launched| InstanceHolder {
                    job: JobId(u64::from(start)),
                    launched,
                });
                holders.extend(holder.map(|holder| (place(start), holder)));
            }
            (records, there, holders)
        })
    }

    /// What the agent makes of the actions, with a driver that does all it is told.
    fn carried_out(
        records: &[InstanceRecord],
        seen: &[ObservedInstance],
        found: &Recovered,
    ) -> (Vec<InstanceRecord>, Vec<ObservedInstance>) {
        let (mut after, mut there) = (Vec::new(), seen.to_vec());
        for record in records {
            let mut record = record.clone();
            match &found.actions[&record.placement] {
                Action::Adopt => after.push(record),
                Action::Finish(made) => {
                    record.state = InstanceState::Ready;
                    record.created = Some(made.clone());
                    after.push(record);
                }
                Action::Quarantine(_) => {
                    record.state = InstanceState::Quarantined;
                    after.push(record);
                }
                Action::Remove => there.retain(|seen| seen.placement != record.placement),
                Action::Drop | Action::Recreate(_) | Action::Lost(_) => {}
            }
        }
        (after, there)
    }

    proptest! {
        #[test]
        fn what_is_not_ours_is_never_destroyed((records, seen, holders) in gpus()) {
            let found = recover(&records, &seen, BOOT, &holders);
            prop_assert_eq!(found.actions.len(), records.len());
            let (_, there) = carried_out(&records, &seen, &found);
            for seen in &seen {
                let ours = records.iter().any(|record| {
                    let same = match (&record.created, &seen.compute_instances) {
                        (None, inside) => *inside != ComputeInstances::Divided,
                        (Some(made), ComputeInstances::Whole(uuid)) => made.id == seen.id && made.uuid == *uuid,
                        (Some(made), ComputeInstances::Nothing | ComputeInstances::Divided) => made.id == seen.id,
                    };
                    record.placement == seen.placement && record.boot == BOOT && same
                });
                let foreign = found.unmanaged.contains(&seen.placement);
                prop_assert_eq!(ours, !foreign);
                let stays = foreign || seen.compute_instances == ComputeInstances::Divided;
                prop_assert!(!stays || there.contains(seen));
            }
        }

        #[test]
        fn once_is_enough((records, seen, holders) in gpus()) {
            let found = recover(&records, &seen, BOOT, &holders);
            let (records, seen) = carried_out(&records, &seen, &found);
            let again = recover(&records, &seen, BOOT, &holders);
            prop_assert_eq!(&again.unmanaged, &found.unmanaged);
            for action in again.actions.values() {
                prop_assert!(matches!(action, Action::Adopt | Action::Quarantine(Anomaly::Known)));
            }
            // Each of our instances has a record, and each record an instance.
            let mut places: Vec<Placement> = records.iter().map(|record| record.placement).collect();
            places.extend(&again.unmanaged);
            places.sort_unstable();
            let mut there: Vec<Placement> = seen.iter().map(|seen| seen.placement).collect();
            there.sort_unstable();
            prop_assert_eq!(places, there);
        }
    }
}
