//! A GPU in MIG mode on the board: what lies on it, where one more instance could go, and what is in the way.
//!
//! Which placements are legal and which are best is [`mig`](crate::mig)'s to say; here it is kept who lies where. Idle
//! instances are room: the next job takes them over or has them removed.

use crate::fit::Part;
use crate::ids::JobId;
use crate::mig::{
    Candidate, Carving, Instance, Layout, MigProfile, Placement, Policy, Profile, Site, Size,
    Standing, Table, fits, pool_fits, smallest,
};
use crate::obstacle::{Blocker, Obstacle, Who};

/// More instances than this that may go one by one, and backfill leaves a GPU alone. No GPU known has more than eight.
const MOST_LEAVERS: usize = 12;

/// What lies on a GPU.
#[derive(Clone)]
pub(crate) struct Seats<'a> {
    table: &'a Table,
    held: Vec<(JobId, Placement)>,
    idle: Vec<Placement>,
    /// Neither a job's nor to be had.
    others: Vec<Instance>,
}

impl<'a> Seats<'a> {
    /// Nothing lies there.
    pub(crate) fn empty(carving: &'a Carving) -> Self {
        Self {
            table: &carving.table,
            held: Vec::new(),
            idle: Vec::new(),
            others: Vec::new(),
        }
    }

    /// What lies there as observed, less what jobs hold.
    pub(crate) fn of(carving: &'a Carving) -> Self {
        let is_idle = |instance: &&Instance| instance.standing == Standing::Idle;
        Self {
            idle: carving.idle(),
            others: carving
                .instances
                .iter()
                .filter(|instance| !is_idle(instance))
                .copied()
                .collect(),
            ..Self::empty(carving)
        }
    }

    /// A job's instance, new or taken over.
    pub(crate) fn hold(&mut self, job: JobId, placement: Placement) {
        self.idle.retain(|idle| *idle != placement);
        self.others.retain(|other| other.placement != placement);
        self.held.push((job, placement));
    }

    /// An idle instance that is removed.
    pub(crate) fn remove(&mut self, placement: Placement) {
        self.idle.retain(|idle| *idle != placement);
    }

    /// No job holds any more of it: what they held is room.
    pub(crate) fn vacate(&mut self) {
        self.held.clear();
    }

    pub(crate) fn table(&self) -> &'a Table {
        self.table
    }

    /// The smallest profile that gives so much; `exact` takes memory by what an instance has.
    pub(crate) fn profile(&self, part: Part, exact: bool) -> Option<&'a Profile> {
        let size = match part {
            Part::Share(share) => Size::Share(share),
            Part::Memory(memory) if exact => Size::Exact(memory),
            Part::Memory(memory) => Size::Memory(memory),
            Part::Profile(name) => Size::Named(name),
        };
        smallest(self.table, size)
    }

    /// Where an instance of this profile could go now, the best first.
    pub(crate) fn candidates(&self, profile: u32) -> Vec<Candidate> {
        self.site().candidates(profile, Policy::LeastLoss)
    }

    /// The GPU as [`mig`](crate::mig) sees it.
    pub(crate) fn site(&self) -> Site<'_> {
        Site::new(self.table, self.taken(), &self.idle)
    }

    /// Whether there is a place for one of this profile now.
    pub(crate) fn has_room(&self, profile: u32) -> bool {
        let mut starts = self.layout().starts(self.table, profile);
        starts.next().is_some()
    }

    /// Why an instance of this profile finds no place.
    pub(crate) fn obstacle(&self, profile: &Profile) -> Obstacle {
        let reaches = |instance: Placement, start: u8| {
            instance.start < start + profile.memory_slices
                && start < instance.start + self.slices(instance)
        };
        let jobs = self.held.iter().map(|(job, at)| (Who::Job(*job), *at));
        let nobodys = |other: &Instance| (Who::Nobody(other.standing), other.placement);
        let mut there: Vec<_> = jobs.chain(self.others.iter().map(nobodys)).collect();
        there.sort_by_key(|(_, at)| (at.start, at.profile));
        let is_blocked = |start: &u8| there.iter().any(|(_, at)| reaches(*at, *start));
        let blockers = there
            .iter()
            .filter(|_| profile.starts.iter().all(is_blocked))
            .filter(|(_, at)| profile.starts.iter().any(|start| reaches(*at, *start)));
        let blocker = |(who, at): &(Who, Placement)| Blocker {
            who: *who,
            profile: self.table.profile(at.profile).map_or_else(
                || at.profile.to_string(),
                |profile| profile.name.to_string(),
            ),
            start: at.start,
            slices: self.slices(*at),
        };
        Obstacle {
            profile: profile.name,
            slices: profile.memory_slices,
            starts: profile.starts.clone(),
            blockers: blockers.map(blocker).collect(),
            by_layout: self.fits_anew(profile.id),
        }
    }

    /// Whether jobs' instances and one more of this profile would fit if they lay otherwise, around what is not ours.
    fn fits_anew(&self, profile: u32) -> bool {
        let others = self.others.iter().map(|other| other.placement);
        let held = self.held.iter().map(|(_, at)| at.profile);
        let wanted: Vec<u32> = held.chain([profile]).collect();
        fits(self.table, Layout::of(self.table, others), &wanted)
    }

    /// Whether a new instance there could ever keep one of the profile `ahead` off this GPU: whether for some set of
    /// instances that may be gone one day there would be a place for it without the new one and none with it.
    pub(crate) fn spoils(&self, new: Placement, ahead: u32) -> bool {
        let there = self.taken();
        if there.len() > MOST_LEAVERS {
            return true;
        }
        let has_room = |layout: Layout| layout.starts(self.table, ahead).next().is_some();
        (0..1_u32 << there.len()).any(|gone| {
            let stays = |(nth, at): (usize, &Placement)| (gone >> nth & 1 == 0).then_some(*at);
            let left = there.iter().enumerate().filter_map(stays);
            let with = left.clone().chain([new]);
            has_room(Layout::of(self.table, left)) && !has_room(Layout::of(self.table, with))
        })
    }

    fn layout(&self) -> Layout {
        Layout::of(self.table, self.taken())
    }

    /// What is not to be had now, whoever's it is.
    fn taken(&self) -> Vec<Placement> {
        let held = self.held.iter().map(|(_, at)| *at);
        let others = self.others.iter().map(|other| other.placement);
        let mut taken: Vec<Placement> = held.chain(others).collect();
        taken.sort_unstable();
        taken.dedup();
        taken
    }

    fn slices(&self, placement: Placement) -> u8 {
        self.table
            .profile(placement.profile)
            .map_or(1, |profile| profile.memory_slices)
    }
}

/// Whether what jobs hold on these GPUs of one kind and one more instance of this profile would fit if all of it could be laid
/// anew, on whichever of them, around what is not ours. Not so where that is too much to try.
pub(crate) fn fit_anew_together(all: &[&Seats<'_>], profile: MigProfile) -> bool {
    let site = |seats: &&Seats<'_>| {
        let others = seats.others.iter().map(|other| other.placement);
        Site::new(all[0].table, others, &[])
    };
    let held = |seats: &&Seats<'_>| -> Vec<Option<MigProfile>> {
        let name = |at: &Placement| Some(seats.table.profile(at.profile)?.name);
        seats.held.iter().map(|(_, at)| name(at)).collect()
    };
    let wanted: Option<Vec<MigProfile>> =
        all.iter().flat_map(held).chain([Some(profile)]).collect();
    let sites: Vec<Site<'_>> = all.iter().map(site).collect();
    let alike = all.iter().all(|seats| seats.table == all[0].table);
    alike && wanted.is_some_and(|wanted| pool_fits(&sites, &wanted) == Some(true))
}
