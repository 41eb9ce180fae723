//! What a node's agent says of its GPUs, as what can be given out of them.

use divvy_api::v1;
use divvy_core::mig::{MigProfileError, Placement, Profile, Table, TableError};
use divvy_core::units::Bytes;

use super::counters;

/// What parts of a GPU's memory are multiples of, on the node too: so the scheduler's sums are the agent's. The driver gives
/// memory out in no smaller pieces than this.
pub(super) const STEP: Bytes = Bytes::mib(2);

/// A GPU, as far as it is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    pub uuid: String,
    /// The driver's number of it.
    pub index: u32,
    pub model: String,
    /// What can be given out of it: usable memory, in whole steps of 2 MiB.
    pub memory: Bytes,
    pub offer: Offer,
    pub health: Health,
}

/// How a GPU can be given out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offer {
    /// In parts and whole, held by the limiter. Where it can be cut too, instances come while nobody has a part.
    Parts(Option<Carving>),
    /// In MIG instances alone: a GPU in MIG mode runs nothing outside of one.
    Instances(Carving),
    /// Whole alone.
    Whole,
    /// Not at all.
    Nothing(Withheld),
}

/// What a GPU can be cut into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carving {
    pub table: Table,
    /// What lies there for good, as far as this node is concerned: others' instances, and those that are given to nobody.
    pub taken: Vec<Placement>,
}

/// Whether a GPU can do what it is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Well,
    /// Something keeps it from being given out as it was told to be: a reset that is to come, instances that cannot be read.
    Troubled,
    /// It does not answer. It may again.
    Silent,
    /// It has fallen off the bus or needs a reset: what was on it is lost.
    Lost,
}

/// Why nothing of a GPU is published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Withheld {
    #[error(
        "it is unmanaged: seen, and never given out; `divvy admin gpu {0} --mode shared` makes it Divvy's"
    )]
    Unmanaged(u32),
    #[error("its mode `{0}` is none that is known here")]
    UnknownMode(String),
    #[error("it is in MIG mode, and no label of the node says that its GPUs may be cut")]
    NoRole,
    #[error("it is in MIG mode, and what it can be cut into is not known yet")]
    NoTable,
    #[error("a profile of it has no name that is understood")]
    Name(#[source] MigProfileError),
    #[error("what it can be cut into makes no sense")]
    Table(#[source] TableError),
    #[error("its places would take {0} counters, and a counter set has at most {most}", most = counters::MOST_COUNTERS)]
    Counters(usize),
    #[error("its UUID `{0}` is no name for a device")]
    NoName(String),
    #[error("it has less than 2 MiB")]
    NoMemory,
}

/// What the agent lists, in its order.
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
            None if listed.trouble.is_some() => Health::Troubled,
            None => Health::Well,
        },
    }
}

fn offer(listed: &v1::Gpu) -> Result<Offer, Withheld> {
    let carving = listed.mig.as_ref().map(carving).transpose()?;
    // One that does not answer is given out no more, and shown so; what it was stays published, and is marked.
    let mode = match &listed.lost {
        Some(lost) => lost.mode.as_str(),
        None => listed.mode.as_str(),
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
    let table = Table::new(profiles.map_err(Withheld::Name)?).map_err(Withheld::Table)?;
    let count = counters::of(&table).len();
    if count > counters::MOST_COUNTERS {
        return Err(Withheld::Counters(count));
    }
    let kept = |instance: &&v1::MigInstance| {
        matches!(
            instance.state,
            v1::MigState::Foreign | v1::MigState::Quarantined
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
        most: listed.most,
        starts: listed.starts.clone(),
    })
}
