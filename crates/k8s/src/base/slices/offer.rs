//! The offer of a node: the allocatable parts of the agent's GPUs.

use divvy_api::v1;
use divvy_core::mig::{MigProfileError, Placement, Profile, ProfileTable, ProfileTableError};
use divvy_core::units::Bytes;

use super::counters;

/// The granularity of a fraction's memory, on the node too: so the scheduler's sums are the agent's. The driver
/// allocates memory in no smaller pieces.
pub(crate) const STEP: Bytes = Bytes::mib(2);

/// A GPU, as far as it is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    pub uuid: String,
    /// The driver's number of it.
    pub index: u32,
    pub model: String,
    /// Its allocatable memory, in whole steps of 2 MiB.
    pub memory: Bytes,
    pub offer: Offer,
    pub health: Health,
}

/// How a GPU can be given out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offer {
    /// In fractions and whole, held by the limiter. If it can be split too, MIG instances come while no pod has a
    /// fraction.
    Parts(Option<Carving>),
    /// In MIG instances alone: a GPU in MIG mode runs nothing outside of one.
    Instances(Carving),
    /// Whole alone.
    Whole,
    /// Not at all.
    Nothing(Withheld),
}

/// The MIG profiles of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carving {
    pub table: ProfileTable,
    /// Placements that are occupied for this node: foreign instances, and those that are allocated to no claim.
    pub taken: Vec<Placement>,
}

/// Whether a GPU can do what it is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Well,
    /// Something keeps it from being given out as it was told to be: a reset that is to come, instances that cannot be read.
    Troubled,
    /// An administrator took it out of service; what is there goes on.
    Drained,
    /// It does not answer. It may again.
    Silent,
    /// It has fallen off the bus or needs a reset: what was on it is lost.
    Lost,
}

/// Why nothing of a GPU is published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Withheld {
    #[error(
        "its GPU mode is unmanaged; `divvy admin gpu {0} --mode shared` makes it available to pods"
    )]
    Unmanaged(u32),
    #[error("unknown GPU mode `{0}`")]
    UnknownMode(String),
    #[error(
        "it is in MIG mode, but no label of the node allows MIG instances; `divvy-k8s admin set node-role --dynamic-mig-enabled NODE` sets one"
    )]
    NoRole,
    #[error("it is in MIG mode, but its MIG profiles are not known yet")]
    NoTable,
    #[error("cannot parse the name of one of its MIG profiles")]
    Name(#[source] MigProfileError),
    #[error("its table of MIG placements is inconsistent")]
    Table(#[source] ProfileTableError),
    #[error("its MIG placements need {0} counters, but a counter set has at most {most}", most = counters::MOST_COUNTERS)]
    Counters(usize),
    #[error("its UUID `{0}` is not a valid device name")]
    NoName(String),
    #[error("it has less than 2 MiB of memory")]
    NoMemory,
}

/// The agent's GPUs, in its order.
pub fn gpus(listed: &[v1::Gpu]) -> Vec<Gpu> {
    listed.iter().map(gpu).collect()
}

fn gpu(listed: &v1::Gpu) -> Gpu {
    let memory = Bytes::new(listed.memory_usable_bytes).round_down(STEP);
    Gpu {
        uuid: listed.uuid.clone(),
        index: listed.index,
        model: listed.model.clone(),
        memory,
        offer: match offer(listed) {
            Ok(_) if memory == Bytes::ZERO => Offer::Nothing(Withheld::NoMemory),
            Ok(offer) => offer,
            Err(why) => Offer::Nothing(why),
        },
        health: match &listed.lost {
            Some(lost) if lost.for_good => Health::Lost,
            Some(_) => Health::Silent,
            None if listed
                .out_of_service
                .as_ref()
                .is_some_and(|out| out.by.is_some()) =>
            {
                Health::Drained
            }
            None if listed.problem.is_some() => Health::Troubled,
            None => Health::Well,
        },
    }
}

fn offer(listed: &v1::Gpu) -> Result<Offer, Withheld> {
    let carving = listed.mig.as_ref().map(carving).transpose()?;
    // The driver still publishes a GPU that does not respond or is out of service, as what it was, with a taint.
    let mode = match (&listed.lost, &listed.out_of_service) {
        (Some(lost), _) => lost.mode.as_str(),
        (None, Some(out)) => out.mode.as_str(),
        (None, None) => listed.mode.as_str(),
    };
    match mode {
        "shared" => Ok(Offer::Parts(carving)),
        "mig" => carving.map(Offer::Instances).ok_or(Withheld::NoTable),
        "exclusive" => Ok(Offer::Whole),
        "unmanaged" => Err(Withheld::Unmanaged(listed.index)),
        other => Err(Withheld::UnknownMode(other.to_owned())),
    }
}

fn carving(mig: &v1::Mig) -> Result<Carving, Withheld> {
    let profiles = mig.profiles.iter().map(profile);
    let profiles = profiles.collect::<Result<Vec<_>, _>>();
    let table = ProfileTable::new(profiles.map_err(Withheld::Name)?).map_err(Withheld::Table)?;
    let count = counters::of(&table).len();
    if count > counters::MOST_COUNTERS {
        return Err(Withheld::Counters(count));
    }
    let kept = |instance: &&v1::MigInstance| {
        matches!(
            instance.state,
            v1::MigState::Unmanaged | v1::MigState::Quarantined
        )
    };
    let placement = |instance: &v1::MigInstance| {
        let profile = instance
            .profile
            .parse()
            .ok()
            .and_then(|name| table.named(name));
        // One that the table does not have is taken to cover everything, by the layout.
        Placement {
            profile: profile.map_or(u32::MAX, |profile| profile.id),
            start: instance.start,
        }
    };
    let taken = mig.instances.iter().filter(kept).map(placement).collect();
    Ok(Carving { table, taken })
}

fn profile(listed: &v1::MigProfile) -> Result<Profile, MigProfileError> {
    Ok(Profile {
        id: listed.id,
        name: listed.name.parse()?,
        memory: Bytes::new(listed.memory_bytes),
        compute_slices: listed.compute_slices,
        memory_slices: listed.memory_slices,
        multiprocessors: listed.multiprocessors,
        most: listed.max_instances,
        starts: listed.starts.clone(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn listed(mode: &str, more: Value) -> v1::Gpu {
        let mut gpu = json!({
            "uuid": "GPU-0", "index": 3, "model": "m", "mode": mode, "memory_total_bytes": 0,
            "memory_usable_bytes": (5 << 20) + 1, "memory_allocated_bytes": 0, "memory_used_bytes": 0,
            "memory_unmanaged_bytes": 0, "share_allocated": 0, "utilization_percent": null,
            "context_overhead_bytes": 0, "slices": [], "unmanaged_pids": [], "enforcement": "",
        });
        let Value::Object(more) = more else {
            panic!("more fields")
        };
        gpu.as_object_mut().unwrap().extend(more);
        serde_json::from_value(gpu).unwrap()
    }

    fn mig(name: &str, starts: &[u8], instances: &Value) -> Value {
        json!({ "mig": {
            "memory_slices": 4, "compute_slices": 4, "instances": instances,
            "profiles": [{
                "name": name, "id": 14, "memory_bytes": 6_u64 << 30, "memory_slices": 1, "compute_slices": 1,
                "multiprocessors": 14, "max_instances": 4, "starts": starts, "available": 4,
            }],
        } })
    }

    fn one(gpu: v1::Gpu) -> Gpu {
        gpus(&[gpu]).remove(0)
    }

    #[test]
    fn a_gpu_is_given_out_as_its_mode_says() {
        assert_eq!(one(listed("shared", json!({}))).offer, Offer::Parts(None));
        assert_eq!(one(listed("exclusive", json!({}))).offer, Offer::Whole);
        let nothing = |why| Offer::Nothing(why);
        assert_eq!(
            one(listed("mig", json!({}))).offer,
            nothing(Withheld::NoTable)
        );
        let unmanaged = one(listed("unmanaged", json!({}))).offer;
        assert_eq!(unmanaged, nothing(Withheld::Unmanaged(3)));
        let new = one(listed("sliced", json!({}))).offer;
        assert_eq!(new, nothing(Withheld::UnknownMode("sliced".to_owned())));
    }

    #[test]
    fn memory_is_in_whole_steps() {
        assert_eq!(one(listed("shared", json!({}))).memory, Bytes::mib(4));
        let small = one(listed("shared", json!({ "memory_usable_bytes": 1 })));
        assert_eq!(small.offer, Offer::Nothing(Withheld::NoMemory));
    }

    #[test]
    fn foreign_and_unowned_instances_are_in_the_way_and_ours_are_not() {
        let instance = |state: &str, profile: &str, start: u8| {
            json!({
                "gpu_uuid": "GPU-0", "gpu_index": 3, "profile": profile, "start": start, "memory_slices": 1,
                "memory_bytes": 0, "state": state, "job": null, "uuid": null,
            })
        };
        let instances = json!([
            instance("in_use", "1g.6gb", 0),
            instance("idle", "1g.6gb", 1),
            instance("unmanaged", "1g.6gb", 2),
            instance("quarantined", "9g.9gb", 3),
        ]);
        let gpu = one(listed("mig", mig("1g.6gb", &[0, 1, 2, 3], &instances)));
        let Offer::Instances(carving) = gpu.offer else {
            panic!("{gpu:?}")
        };
        let taken: Vec<(u32, u8)> = carving.taken.iter().map(|p| (p.profile, p.start)).collect();
        assert_eq!(taken, [(14, 2), (u32::MAX, 3)]);
    }

    #[test]
    fn what_makes_no_sense_is_withheld_and_named() {
        let offer = |name: &str, starts: &[u8]| {
            let gpu = one(listed("mig", mig(name, starts, &json!([]))));
            match gpu.offer {
                Offer::Nothing(why) => why,
                other => panic!("{other:?}"),
            }
        };
        assert!(matches!(offer("large", &[0]), Withheld::Name(_)));
        assert!(matches!(offer("1g.6gb", &[]), Withheld::Table(_)));
        // 32 memory slices are 33 counters with the compute slices.
        assert_eq!(offer("1g.6gb", &[31]), Withheld::Counters(33));
    }

    #[test]
    fn one_that_does_not_answer_is_still_what_it_was() {
        for (for_good, health) in [(false, Health::Silent), (true, Health::Lost)] {
            let lost = json!({ "lost": { "mode": "shared", "for_good": for_good } });
            let gpu = one(listed("unmanaged", lost));
            assert_eq!((gpu.offer, gpu.health), (Offer::Parts(None), health));
        }
        let troubled = one(listed("shared", json!({ "problem": "a reset" })));
        assert_eq!(troubled.health, Health::Troubled);
        for (by, health) in [
            (json!("ada"), Health::Drained),
            (json!(null), Health::Troubled),
        ] {
            let out = json!({
                "by": by, "since": "2026-11-29T14:20:00Z", "reason": "an update", "mode": "shared",
            });
            let out = json!({ "problem": "out of service", "out_of_service": out });
            let drained = one(listed("unmanaged", out));
            assert_eq!(
                (drained.offer, drained.health),
                (Offer::Parts(None), health)
            );
        }
    }
}
