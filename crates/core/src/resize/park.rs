//! Parking victims: the idle jobs whose GPU memory moves to host memory, so that another job gets the room.
//!
//! A victim has been idle for as long as its rule says. The fewest jobs that make room go; of equal sets the one with
//! the jobs that have been idle longest, then the one with the fewest bytes to copy.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use crate::model::snapshot::Snapshot;
use crate::plan::starts_now;
use crate::resize::resume::plan_resume;
use crate::units::{Bytes, JobId};

/// A job stays awake for so many times its copy, so that copies take a tenth of its time at most.
const AWAKE_PER_COPY: u32 = 10;

/// Of more jobs than this the sets are not compared, since their number doubles with each: the longest idle ones go,
/// and then those of them that are not needed stay. Ten have 1023 sets.
const MOST_COMPARED: usize = 10;

/// A job that has been idle for as long as its rule says, and can be parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parkable {
    pub job: JobId,
    pub idle: Duration,
    /// What is to be copied.
    pub bytes: Bytes,
    /// Since its memory came back; `None` for a job that was not parked before.
    pub awake: Option<Duration>,
    /// For how long it keeps its memory then ([`min_awake`]).
    pub stays: Duration,
}

impl Parkable {
    /// How long it still stays awake.
    pub fn stays_for(&self) -> Duration {
        self.awake
            .map_or(Duration::ZERO, |awake| self.stays.saturating_sub(awake))
    }
}

/// How long a woken job stays awake: for `least`, and for several times its copies there and back.
pub fn min_awake(least: Duration, copy: Duration) -> Duration {
    least.max(copy.saturating_mul(AWAKE_PER_COPY))
}

/// What the choice of victims starts from.
#[derive(Clone, Copy, Debug)]
pub struct ParkInput<'a> {
    pub snapshot: &'a Snapshot,
    /// Jobs that are being parked: their room comes without a further victim.
    pub leaving: &'a BTreeSet<JobId>,
    pub candidates: &'a [Parkable],
    /// Jobs that are promised their room once they are parked ([`ParkRule`](crate::model::snapshot::ParkRule)).
    pub promised: &'a BTreeSet<JobId>,
}

impl ParkInput<'_> {
    /// The victims for a pending job that found no room. Empty where the jobs that are being parked make it.
    pub fn victims_for_start(&self, job: JobId) -> Option<Vec<JobId>> {
        self.victims(job, self.candidates.to_vec(), |gone| {
            starts_now(&self.without(gone), job)
        })
    }

    /// The same for a job that is to resume, with the bytes of its memory by index of its grants. A job that does not
    /// give way takes no room that would then be promised.
    pub fn victims_for_resume(&self, job: JobId, uses: &[Bytes]) -> Option<Vec<JobId>> {
        let gives_way = self.snapshot.parking.gives_way.contains(&job);
        let takes = |one: &&Parkable| gives_way || !self.promised.contains(&one.job);
        let takes = self.candidates.iter().filter(takes).copied().collect();
        self.victims(job, takes, |gone| {
            plan_resume(&self.without(gone), job, uses).is_ok()
        })
    }

    fn victims(
        &self,
        job: JobId,
        mut candidates: Vec<Parkable>,
        makes_room: impl Fn(&BTreeSet<JobId>) -> bool,
    ) -> Option<Vec<JobId>> {
        if makes_room(self.leaving) {
            return Some(Vec::new());
        }
        candidates.retain(|one| one.job != job && !self.leaving.contains(&one.job));
        choose_victims(&candidates, |gone| makes_room(&(gone | self.leaving)))
    }

    /// The snapshot once these jobs are parked.
    fn without(&self, gone: &BTreeSet<JobId>) -> Snapshot {
        let mut after = self.snapshot.clone();
        let left = after.held.extract_if(.., |held| gone.contains(&held.job));
        let left: Vec<_> = left.map(|held| (held.job, held.grants)).collect();
        let left = left
            .into_iter()
            .filter(|(job, _)| self.promised.contains(job));
        after.parking.promised.extend(left);
        after
    }
}

/// Chooses the victims; `None` if all candidates together make no room. `makes_room` stays true for a larger set.
pub fn choose_victims(
    candidates: &[Parkable],
    makes_room: impl Fn(&BTreeSet<JobId>) -> bool,
) -> Option<Vec<JobId>> {
    let mut order: Vec<&Parkable> = candidates
        .iter()
        .filter(|one| one.stays_for() == Duration::ZERO)
        .collect();
    order.sort_by_key(|one| (Reverse(one.idle), one.bytes, one.job));
    let jobs: Vec<JobId> = order.iter().map(|one| one.job).collect();
    let set = |chosen: &[JobId]| chosen.iter().copied().collect::<BTreeSet<JobId>>();
    if !makes_room(&set(&jobs)) {
        return None;
    }
    if jobs.len() <= MOST_COMPARED {
        let sets = (1..1_usize << jobs.len()).map(|mask| subset(&order, mask));
        let mut sets: Vec<Vec<&Parkable>> = sets.collect();
        sets.sort_by_cached_key(|chosen| {
            let idle: Vec<Duration> = chosen.iter().map(|one| one.idle).collect();
            let bytes: Bytes = chosen.iter().map(|one| one.bytes).sum();
            (chosen.len(), Reverse(idle), bytes)
        });
        let mut sets = sets
            .into_iter()
            .map(|chosen| chosen.iter().map(|one| one.job).collect::<Vec<_>>());
        return sets.find(|chosen| makes_room(&set(chosen)));
    }
    let enough = (1..=jobs.len()).find(|count| makes_room(&set(&jobs[..*count])))?;
    let mut chosen = jobs[..enough].to_vec();
    for at in (0..chosen.len()).rev() {
        let spared = chosen.remove(at);
        if !makes_room(&set(&chosen)) {
            chosen.insert(at, spared);
        }
    }
    Some(chosen)
}

/// The jobs whose bits are set in `mask`, in their order.
fn subset<'a>(jobs: &[&'a Parkable], mask: usize) -> Vec<&'a Parkable> {
    let is_in = |at: &usize| mask >> at & 1 == 1;
    (0..jobs.len()).filter(is_in).map(|at| jobs[at]).collect()
}
