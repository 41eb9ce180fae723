//! Event simulation of a pool of GPUs, one arrival or departure after another.
//!
//! A request gets an instance at once or is lost. Under the planner's policy an ended job leaves an idle instance, as
//! on a real node. It counts as free, a request for its profile takes it over, and it goes when its slices are needed.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::layouts::{Fitting, Layouts};
use super::mix::Demand;
use super::policy::{Placer, Policy};
use crate::mig::{Candidate, Layout, MigGpu, Placement, ProfileTable, Repack};

/// One request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrival {
    /// When it comes. Not before the one before it.
    pub at: f64,
    /// The id of the profile it asks for.
    pub profile: u32,
    /// How long it holds the instance.
    pub holding: f64,
}

/// What came of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunResult {
    /// By profile, in the order of the demand.
    pub profiles: Vec<Tally>,
    /// Of the requests refused, those that would have fitted on some GPU had its instances lain otherwise.
    pub by_layout: u64,
    /// Of those that got an instance, those that got one which was there already.
    pub reused: u64,
    /// Idle instances that were destroyed because their slices were needed.
    pub destroyed: u64,
    /// Idle instances that were destroyed and created anew elsewhere, before a request needed either place.
    pub relaid: u64,
    /// Of all compute slices, those in use, over the time that was counted.
    pub in_use: f64,
}

/// Requests of one profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub arrived: u64,
    pub refused: u64,
}

impl RunResult {
    pub fn arrived(&self) -> u64 {
        self.profiles.iter().map(|tally| tally.arrived).sum()
    }

    pub fn refused(&self) -> u64 {
        self.profiles.iter().map(|tally| tally.refused).sum()
    }

    /// Of all requests, those refused; 0 where none came.
    pub fn refused_part(&self) -> f64 {
        part(self.refused(), self.arrived())
    }

    /// Of all requests, those refused because of the layout alone.
    pub fn by_layout_part(&self) -> f64 {
        part(self.by_layout, self.arrived())
    }

    /// Of all that got an instance, those that got one which was there already.
    pub fn reused_part(&self) -> f64 {
        part(self.reused, self.arrived() - self.refused())
    }
}

fn part(some: u64, all: u64) -> f64 {
    if all == 0 {
        0.0
    } else {
        some as f64 / all as f64
    }
}

/// A pool of equal GPUs under one policy.
pub struct Pool<'a> {
    table: &'a ProfileTable,
    gpus: u32,
    wanted: Vec<(u32, f64)>,
    fitting: Fitting,
    how: How,
    keeps_idle: bool,
    repacks_idle: bool,
}

enum How {
    Place(Placer),
    /// Accepts a request that would fit after a repack of all instances.
    Repack(Repack),
}

/// One GPU of the pool.
#[derive(Clone, Debug)]
struct Gpu {
    /// What jobs hold.
    jobs: Vec<Placement>,
    /// The same as a layout, which decides what is legal beside it.
    held: Layout,
    /// Instances that no job holds.
    idle: Vec<Placement>,
    /// Jobs of each wanted profile.
    counts: Vec<u8>,
}

/// The pool cannot be simulated under this policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    #[error("{0} is known for a single GPU only")]
    OneGpu(Policy),
    #[error(
        "{0} is not known for these profiles: they exclude each other, or lie where others may not"
    )]
    NoBound(Policy),
}

impl<'a> Pool<'a> {
    /// # Errors
    /// When the policy is not known for pools, or for such profiles.
    pub fn new(
        table: &'a ProfileTable,
        gpus: u32,
        demand: &Demand,
        policy: Policy,
    ) -> Result<Self, PoolError> {
        let how = match Placer::of(policy, demand) {
            Some(placer) => How::Place(placer),
            None if policy == Policy::Optimal => return Err(PoolError::OneGpu(policy)),
            None => {
                let wanted = demand.parts.iter().map(|(id, _)| *id);
                How::Repack(Repack::of(table, wanted).ok_or(PoolError::NoBound(policy))?)
            }
        };
        Ok(Self {
            table,
            gpus,
            wanted: demand.parts.clone(),
            fitting: Layouts::of(table, demand).fitting().clone(),
            how,
            keeps_idle: policy.keeps_idle(),
            repacks_idle: policy.repacks_idle(),
        })
    }

    /// Lets the arrivals come, the first `skip` of them to warm up: they are served and not counted. All must ask for
    /// profiles of the demand.
    pub fn run(&self, arrivals: impl IntoIterator<Item = Arrival>, skip: u64) -> RunResult {
        let empty = Gpu {
            jobs: Vec::new(),
            held: Layout::EMPTY,
            idle: Vec::new(),
            counts: vec![0; self.wanted.len()],
        };
        let mut state = State {
            pool: self,
            gpus: vec![empty; usize::try_from(self.gpus).expect("a pool fits in memory")],
            counts: vec![0; self.wanted.len()],
            leaving: BinaryHeap::new(),
            slices: 0,
            now: 0.0,
            area: 0.0,
            run: RunResult {
                profiles: vec![Tally::default(); self.wanted.len()],
                by_layout: 0,
                reused: 0,
                destroyed: 0,
                relaid: 0,
                in_use: 0.0,
            },
        };
        let mut counted_from = 0.0;
        for (nth, arrival) in (0..).zip(arrivals) {
            if nth == skip {
                counted_from = arrival.at;
            }
            state.pass_to(arrival.at, nth > skip);
            if self.repacks_idle {
                state.repack_idle(nth >= skip);
            }
            state.arrive(arrival, nth, nth >= skip);
        }
        let all = f64::from(self.gpus) * f64::from(self.table.compute_slices);
        let span = state.now - counted_from;
        state.run.in_use = if span > 0.0 {
            state.area / span / all
        } else {
            0.0
        };
        state.run
    }

    fn slices(&self, profile: u32) -> u64 {
        let profile = self.table.profile(profile);
        u64::from(profile.expect("it is of this table").compute_slices)
    }

    /// Whether one more instance would fit on some GPU in another layout.
    fn some_could_fit(&self, gpus: &mut [Gpu], wanted: usize) -> bool {
        gpus.iter_mut().any(|gpu| {
            gpu.counts[wanted] += 1;
            let fits = self.fitting.fits(&gpu.counts);
            gpu.counts[wanted] -= 1;
            fits
        })
    }
}

/// A pool in the middle of a run.
struct State<'a> {
    pool: &'a Pool<'a>,
    gpus: Vec<Gpu>,
    /// Jobs of each wanted profile, on all GPUs.
    counts: Vec<u64>,
    leaving: BinaryHeap<Leaving>,
    /// Compute slices in use now.
    slices: u64,
    now: f64,
    /// Compute slices in use times time, since counting began.
    area: f64,
    run: RunResult,
}

/// A job that will end.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    at: f64,
    /// Which arrival it was: of two that leave together the first goes first.
    nth: u64,
    wanted: usize,
    place: Option<(usize, Placement)>,
}

impl State<'_> {
    /// Ends all jobs with a holding time that is over by then.
    fn pass_to(&mut self, at: f64, counted: bool) {
        while let Some(next) = self.leaving.peek().filter(|next| next.at <= at).copied() {
            self.leaving.pop();
            self.advance(next.at, counted);
            self.leave(next);
        }
        self.advance(at, counted);
    }

    fn advance(&mut self, at: f64, counted: bool) {
        if counted {
            self.area += self.slices as f64 * (at - self.now);
        }
        self.now = at;
    }

    fn leave(&mut self, job: Leaving) {
        self.counts[job.wanted] -= 1;
        self.slices -= self.pool.slices(self.pool.wanted[job.wanted].0);
        if let Some((gpu, placement)) = job.place {
            let gpu = &mut self.gpus[gpu];
            gpu.jobs.retain(|held| *held != placement);
            gpu.held = Layout::of(self.pool.table, gpu.jobs.iter().copied());
            gpu.counts[job.wanted] -= 1;
            if self.pool.keeps_idle {
                gpu.idle.push(placement);
                gpu.idle.sort_unstable();
            }
        }
    }

    fn arrive(&mut self, arrival: Arrival, nth: u64, counted: bool) {
        let of_profile = |(id, _): &(u32, f64)| *id == arrival.profile;
        let wanted = self.pool.wanted.iter().position(of_profile);
        let wanted = wanted.expect("an arrival asks for a profile of the demand");
        let counted_as = u64::from(counted);
        self.run.profiles[wanted].arrived += counted_as;
        let place = match &self.pool.how {
            How::Place(placer) => placer.place(&self.sites(), arrival.profile).map(Some),
            How::Repack(repack) => {
                self.counts[wanted] += 1;
                let fits = repack.fits(&self.counts, u64::from(self.pool.gpus));
                self.counts[wanted] -= 1;
                fits.then_some(None)
            }
        };
        let Some(chosen) = place else {
            self.run.profiles[wanted].refused += counted_as;
            let repacked = matches!(self.pool.how, How::Repack(_));
            if counted && !repacked && self.pool.some_could_fit(&mut self.gpus, wanted) {
                self.run.by_layout += 1;
            }
            return;
        };
        if let Some((gpu, chosen)) = &chosen {
            self.take(*gpu, chosen, wanted, counted_as);
        }
        self.counts[wanted] += 1;
        self.slices += self.pool.slices(arrival.profile);
        self.leaving.push(Leaving {
            at: arrival.at + arrival.holding,
            nth,
            wanted,
            place: chosen.map(|(gpu, chosen)| (gpu, chosen.placement)),
        });
    }

    /// Creates each idle instance anew where the next request for its profile goes. Of several with one profile the first
    /// goes there, and the next where a second request would go. An instance that already lies there stays.
    ///
    /// The repack comes between two arrivals, as if destroying and creating took no time: a bound for what a daemon gains.
    fn repack_idle(&mut self, counted: bool) {
        let How::Place(placer) = &self.pool.how else {
            return;
        };
        let mut idle: Vec<(u32, usize, Placement)> = Vec::new();
        for (gpu, site) in self.gpus.iter_mut().enumerate() {
            let taken = site.idle.drain(..);
            idle.extend(taken.map(|placement| (placement.profile, gpu, placement)));
        }
        idle.sort_unstable();
        let mut layouts: Vec<Layout> = self.gpus.iter().map(|gpu| gpu.held).collect();
        let mut laid = Vec::new();
        // The larger first: it has fewer places.
        let order = |id: &(u32, usize, Placement)| std::cmp::Reverse(self.pool.slices(id.0));
        let mut waiting = idle.clone();
        waiting.sort_by_key(order);
        for (profile, ..) in waiting {
            let sites: Vec<MigGpu<'_>> = layouts
                .iter()
                .map(|held| MigGpu {
                    table: self.pool.table,
                    held: *held,
                    idle: &[],
                })
                .collect();
            let Some((gpu, chosen)) = placer.place(&sites, profile) else {
                continue;
            };
            let placement = chosen.placement;
            if let Some(with) = layouts[gpu].with(self.pool.table, placement) {
                layouts[gpu] = with;
                laid.push((profile, gpu, placement));
            }
        }
        for (_, gpu, placement) in &laid {
            self.gpus[*gpu].idle.push(*placement);
        }
        let moved = laid.iter().filter(|place| !idle.contains(place)).count() as u64;
        self.run.relaid += if counted { moved } else { 0 };
        for gpu in &mut self.gpus {
            gpu.idle.sort_unstable();
        }
    }

    fn sites(&self) -> Vec<MigGpu<'_>> {
        let sites = self.gpus.iter().map(|gpu| MigGpu {
            table: self.pool.table,
            held: gpu.held,
            idle: &gpu.idle,
        });
        sites.collect()
    }

    fn take(&mut self, gpu: usize, chosen: &Candidate, wanted: usize, counted_as: u64) {
        let gpu = &mut self.gpus[gpu];
        self.run.reused += counted_as * u64::from(chosen.reuse);
        self.run.destroyed += counted_as * chosen.reclaim.len() as u64;
        let goes = |idle: &Placement| *idle == chosen.placement || chosen.reclaim.contains(idle);
        gpu.idle.retain(|idle| !goes(idle));
        gpu.held = gpu
            .held
            .with(self.pool.table, chosen.placement)
            .expect("a policy chooses a legal place");
        gpu.jobs.push(chosen.placement);
        gpu.counts[wanted] += 1;
    }
}

/// Reversed, since the heap yields its greatest: the earliest departure.
impl Ord for Leaving {
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at).then(other.nth.cmp(&self.nth))
    }
}

impl PartialOrd for Leaving {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Leaving {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Leaving {}
