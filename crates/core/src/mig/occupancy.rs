//! A GPU in MIG mode on the board: what lies on it, where one more instance could go, and what is in the way.
//!
//! Which placements are legal and which are best is [`mig`](crate::mig)'s to say; here it is kept who lies where. Idle
//! instances are room: the next job takes them over or has them removed.

use crate::mig::{
    Blocker, BlockerOwner, Candidate, Layout, MigGpu, MigInventory, MigProfile, Obstacle,
    Placement, PlacementPolicy, Profile, ProfileTable, UnallocatedInstance, UnallocatedState, fits,
    pool_fits,
};
use crate::units::JobId;

/// More instances of one profile than this of which any may go, and backfill leaves a GPU alone. No GPU known has more than eight
/// (data/mig.toml).
const MOST_ALIKE: usize = 10;

/// What lies on a GPU.
#[derive(Clone)]
pub(crate) struct MigOccupancy<'a> {
    table: &'a ProfileTable,
    held: Vec<(JobId, Placement)>,
    idle: Vec<Placement>,
    /// Neither a job's nor to be had.
    unavailable: Vec<UnallocatedInstance>,
}

impl<'a> MigOccupancy<'a> {
    /// Nothing lies there.
    pub(crate) fn empty(carving: &'a MigInventory) -> Self {
        Self {
            table: &carving.table,
            held: Vec::new(),
            idle: Vec::new(),
            unavailable: Vec::new(),
        }
    }

    /// What lies there as observed, less what jobs hold.
    pub(crate) fn of(carving: &'a MigInventory) -> Self {
        let is_idle = |instance: &&UnallocatedInstance| instance.standing == UnallocatedState::Idle;
        Self {
            idle: carving.idle(),
            unavailable: carving
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
        self.unavailable
            .retain(|other| other.placement != placement);
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

    pub(crate) fn table(&self) -> &'a ProfileTable {
        self.table
    }

    /// Where an instance of this profile could go now, the best first.
    pub(crate) fn candidates(&self, profile: u32) -> Vec<Candidate> {
        self.site().candidates(profile, PlacementPolicy::LeastLoss)
    }

    /// The GPU as [`mig`](crate::mig) sees it.
    pub(crate) fn site(&self) -> MigGpu<'_> {
        MigGpu::new(self.table, self.taken(), &self.idle)
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
        let jobs = self
            .held
            .iter()
            .map(|(job, at)| (BlockerOwner::Job(*job), *at));
        let nobodys = |other: &UnallocatedInstance| {
            (BlockerOwner::Unallocated(other.standing), other.placement)
        };
        let mut there: Vec<_> = jobs.chain(self.unavailable.iter().map(nobodys)).collect();
        there.sort_by_key(|(_, at)| (at.start, at.profile));
        let is_blocked = |start: &u8| there.iter().any(|(_, at)| reaches(*at, *start));
        let blockers = there
            .iter()
            .filter(|_| profile.starts.iter().all(is_blocked))
            .filter(|(_, at)| profile.starts.iter().any(|start| reaches(*at, *start)));
        let blocker = |(who, at): &(BlockerOwner, Placement)| Blocker {
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
            is_fragmentation: self.fits_after_repack(profile.id),
        }
    }

    /// Whether jobs' instances and one more of this profile would fit if they lay otherwise, around what is not ours.
    fn fits_after_repack(&self, profile: u32) -> bool {
        let others = self.unavailable.iter().map(|other| other.placement);
        let held = self.held.iter().map(|(_, at)| at.profile);
        let wanted: Vec<u32> = held.chain([profile]).collect();
        fits(self.table, Layout::of(self.table, others), &wanted)
    }

    /// Whether a new instance there could ever keep one of the profile `ahead` off this GPU: whether for some set of
    /// instances that may be gone one day there would be a place for it without the new one and none with it.
    ///
    /// The more stay, the less room there is beside the new one. So of all that may stay while a place is open, the most are
    /// looked at, place by place, and not every set there is.
    pub(crate) fn may_block(&self, new: Placement, ahead: u32) -> bool {
        let there = self.taken();
        let Some(wanted) = self.table.profile(ahead) else {
            return false;
        };
        wanted.starts.iter().any(|start| {
            let place = Placement {
                profile: ahead,
                start: *start,
            };
            let leaves_open = |layout: Layout| layout.allows(self.table, place);
            let mut stay: Vec<Placement> = there
                .iter()
                .copied()
                .filter(|at| leaves_open(Layout::of(self.table, [*at])))
                .collect();
            if leaves_open(Layout::of(self.table, stay.iter().copied())) {
                return self.closes(stay, new, ahead);
            }
            // Too many of its own kind, whose number has a limit: any of them may be the ones that go.
            let alike: Vec<Placement> = stay.extract_if(.., |at| at.profile == ahead).collect();
            if alike.len() > MOST_ALIKE {
                return true;
            }
            (0..1_u32 << alike.len()).any(|set| {
                let chosen = (0..).zip(&alike).filter(|(nth, _)| set >> nth & 1 == 1);
                let mut stay = stay.clone();
                stay.extend(chosen.map(|(_, at)| *at));
                leaves_open(Layout::of(self.table, stay.iter().copied()))
                    && self.closes(stay, new, ahead)
            })
        })
    }

    /// Whether the profile has no place beside these and the new one.
    fn closes(&self, stay: Vec<Placement>, new: Placement, ahead: u32) -> bool {
        let with = Layout::of(self.table, stay.into_iter().chain([new]));
        with.starts(self.table, ahead).next().is_none()
    }

    fn layout(&self) -> Layout {
        Layout::of(self.table, self.taken())
    }

    /// What is not to be had now, whoever's it is.
    fn taken(&self) -> Vec<Placement> {
        let held = self.held.iter().map(|(_, at)| *at);
        let others = self.unavailable.iter().map(|other| other.placement);
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
pub(crate) fn fit_anew_together(all: &[&MigOccupancy<'_>], profile: MigProfile) -> bool {
    let site = |seats: &&MigOccupancy<'_>| {
        let others = seats.unavailable.iter().map(|other| other.placement);
        MigGpu::new(all[0].table, others, &[])
    };
    let held = |seats: &&MigOccupancy<'_>| -> Vec<Option<MigProfile>> {
        let name = |at: &Placement| Some(seats.table.profile(at.profile)?.name);
        seats.held.iter().map(|(_, at)| name(at)).collect()
    };
    let wanted: Option<Vec<MigProfile>> =
        all.iter().flat_map(held).chain([Some(profile)]).collect();
    let sites: Vec<MigGpu<'_>> = all.iter().map(site).collect();
    let alike = all.iter().all(|seats| seats.table == all[0].table);
    alike && wanted.is_some_and(|wanted| pool_fits(&sites, &wanted) == Some(true))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;

    /// What [`MigOccupancy::may_block`] says, by trying every set of instances that may be gone.
    fn spoils_by_trying(seats: &MigOccupancy<'_>, new: Placement, ahead: u32) -> bool {
        let there = seats.taken();
        let has_room = |layout: Layout| layout.starts(seats.table, ahead).next().is_some();
        (0..1_u32 << there.len()).any(|gone| {
            let stays = |(nth, at): (usize, &Placement)| (gone >> nth & 1 == 0).then_some(*at);
            let left = there.iter().enumerate().filter_map(stays);
            let with = left.clone().chain([new]);
            has_room(Layout::of(seats.table, left)) && !has_room(Layout::of(seats.table, with))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn a_new_instance_spoils_what_it_spoils_for_some_set_of_those_that_stay(
            model in prop::sample::select(vec!["a30-24gb", "a100-40gb", "h200-141gb", "b200-180gb", "rtxpro6000-96gb"]),
            wishes in prop::collection::vec((any::<Index>(), any::<Index>()), 0..12),
            new in (any::<Index>(), any::<Index>()),
            stranger in any::<bool>(),
        ) {
            let table = ProfileTable::of_model(model).expect("a model of data/mig.toml");
            let placement = |(profile, start): &(Index, Index)| {
                let profile = profile.get(&table.profiles);
                Placement { profile: profile.id, start: *start.get(&profile.starts) }
            };
            let carving = MigInventory { table: table.clone(), instances: Vec::new() };
            let mut seats = MigOccupancy::empty(&carving);
            if stranger {
                // Of a profile that the table does not have: it is taken to cover everything.
                seats.hold(JobId(99), Placement { profile: u32::MAX, start: 0 });
            }
            let mut layout = Layout::EMPTY;
            for (job, wish) in (1..).zip(&wishes) {
                if let Some(with) = layout.with(&table, placement(wish)) {
                    layout = with;
                    seats.hold(JobId(job), placement(wish));
                }
            }
            for ahead in &table.profiles {
                prop_assert_eq!(
                    seats.may_block(placement(&new), ahead.id),
                    spoils_by_trying(&seats, placement(&new), ahead.id),
                    "{} ahead, {:?} there", ahead.name, seats.taken()
                );
            }
        }
    }
}
