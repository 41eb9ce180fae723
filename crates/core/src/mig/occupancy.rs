//! MIG occupancy of one GPU: the instances of jobs, the idle ones and the unavailable ones, and the room beside them.
//!
//! The rest of [`mig`](crate::mig) decides which placements are legal and which are best; this module knows the
//! holders. Idle instances count as room: the next job takes them over, or the daemon removes them.

use crate::mig::{
    Blocker, BlockerOwner, Candidate, Layout, MigGpu, MigInventory, MigProfile, Obstacle,
    Placement, PlacementPolicy, Profile, ProfileTable, UnallocatedInstance, UnallocatedState, fits,
    pool_fits,
};
use crate::units::JobId;

/// With more instances of one profile than this, any of which may end, backfill leaves the GPU alone. No known GPU has
/// more than eight (data/mig.toml).
const MOST_ALIKE: usize = 10;

/// The instances on a GPU.
#[derive(Clone)]
pub(crate) struct MigOccupancy<'a> {
    table: &'a ProfileTable,
    held: Vec<(JobId, Placement)>,
    idle: Vec<Placement>,
    /// Foreign or quarantined instances, or those being created or destroyed.
    unavailable: Vec<UnallocatedInstance>,
}

impl<'a> MigOccupancy<'a> {
    /// A GPU without instances.
    pub(crate) fn empty(inventory: &'a MigInventory) -> Self {
        Self {
            table: &inventory.table,
            held: Vec::new(),
            idle: Vec::new(),
            unavailable: Vec::new(),
        }
    }

    /// The observed instances, without those of jobs.
    pub(crate) fn of(inventory: &'a MigInventory) -> Self {
        let is_idle = |instance: &&UnallocatedInstance| instance.standing == UnallocatedState::Idle;
        Self {
            idle: inventory.idle(),
            unavailable: inventory
                .instances
                .iter()
                .filter(|instance| !is_idle(instance))
                .copied()
                .collect(),
            ..Self::empty(inventory)
        }
    }

    /// Adds a job's instance, new or taken over.
    pub(crate) fn hold(&mut self, job: JobId, placement: Placement) {
        self.idle.retain(|idle| *idle != placement);
        self.unavailable
            .retain(|other| other.placement != placement);
        self.held.push((job, placement));
    }

    /// A job has ended: its instance stays, idle.
    pub(crate) fn release(&mut self, job: JobId, placement: Placement) {
        self.held.retain(|held| *held != (job, placement));
        self.idle.push(placement);
    }

    /// Removes an idle instance.
    pub(crate) fn remove(&mut self, placement: Placement) {
        self.idle.retain(|idle| *idle != placement);
    }

    /// Removes the instances of all jobs.
    pub(crate) fn vacate(&mut self) {
        self.held.clear();
    }

    pub(crate) fn table(&self) -> &'a ProfileTable {
        self.table
    }

    /// The free placements of this profile, the best first.
    pub(crate) fn candidates(&self, profile: u32) -> Vec<Candidate> {
        self.site().candidates(profile, PlacementPolicy::LeastLoss)
    }

    /// The GPU for the placement functions.
    pub(crate) fn site(&self) -> MigGpu<'_> {
        MigGpu::new(self.table, self.taken(), &self.idle)
    }

    /// Whether this profile has a free placement.
    pub(crate) fn has_room(&self, profile: u32) -> bool {
        let mut starts = self.layout().starts(self.table, profile);
        starts.next().is_some()
    }

    /// The obstacle to an instance of this profile.
    pub(crate) fn obstacle(&self, profile: &Profile) -> Obstacle {
        let reaches = |instance: Placement, start: u8| {
            instance.start < start + profile.memory_slices
                && start < instance.start + self.slices(instance)
        };
        let jobs = self
            .held
            .iter()
            .map(|(job, at)| (BlockerOwner::Job(*job), *at));
        let unallocated = |other: &UnallocatedInstance| {
            (BlockerOwner::Unallocated(other.standing), other.placement)
        };
        let mut there: Vec<_> = jobs
            .chain(self.unavailable.iter().map(unallocated))
            .collect();
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

    /// Whether the instances of jobs and one more of this profile would fit in another layout beside the unavailable
    /// ones.
    fn fits_after_repack(&self, profile: u32) -> bool {
        let others = self.unavailable.iter().map(|other| other.placement);
        let held = self.held.iter().map(|(_, at)| at.profile);
        let wanted: Vec<u32> = held.chain([profile]).collect();
        fits(self.table, Layout::of(self.table, others), &wanted)
    }

    /// Whether a new instance could ever block one of the profile `ahead`: whether for some set of instances that may
    /// have ended, there is a free placement without the new instance and none with it.
    ///
    /// More remaining instances leave less room beside the new one. So for each placement only the largest sets that
    /// leave it open are tried, and not every set.
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
            // Too many instances of its own profile, and their number is limited: any of them may be the ones that end.
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

    /// Whether the profile has no placement beside these instances and the new one.
    fn closes(&self, stay: Vec<Placement>, new: Placement, ahead: u32) -> bool {
        let with = Layout::of(self.table, stay.into_iter().chain([new]));
        with.starts(self.table, ahead).next().is_none()
    }

    fn layout(&self) -> Layout {
        Layout::of(self.table, self.taken())
    }

    /// The placements of all instances that are not idle.
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

/// Whether the instances of jobs on these GPUs of one model and one more of this profile would fit if all were placed
/// anew. `false` where the search would be too large.
pub(crate) fn fit_after_pool_repack(all: &[&MigOccupancy<'_>], profile: MigProfile) -> bool {
    let site = |occupancy: &&MigOccupancy<'_>| {
        let others = occupancy.unavailable.iter().map(|other| other.placement);
        MigGpu::new(all[0].table, others, &[])
    };
    let held = |occupancy: &&MigOccupancy<'_>| -> Vec<Option<MigProfile>> {
        let name = |at: &Placement| Some(occupancy.table.profile(at.profile)?.name);
        occupancy.held.iter().map(|(_, at)| name(at)).collect()
    };
    let wanted: Option<Vec<MigProfile>> =
        all.iter().flat_map(held).chain([Some(profile)]).collect();
    let sites: Vec<MigGpu<'_>> = all.iter().map(site).collect();
    let alike = all.iter().all(|occupancy| occupancy.table == all[0].table);
    alike && wanted.is_some_and(|wanted| pool_fits(&sites, &wanted) == Some(true))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;

    /// [`MigOccupancy::may_block`] by trying every set of instances that may have ended.
    fn blocks_by_trying(occupancy: &MigOccupancy<'_>, new: Placement, ahead: u32) -> bool {
        let there = occupancy.taken();
        let has_room = |layout: Layout| layout.starts(occupancy.table, ahead).next().is_some();
        (0..1_u32 << there.len()).any(|gone| {
            let stays = |(nth, at): (usize, &Placement)| (gone >> nth & 1 == 0).then_some(*at);
            let left = there.iter().enumerate().filter_map(stays);
            let with = left.clone().chain([new]);
            has_room(Layout::of(occupancy.table, left))
                && !has_room(Layout::of(occupancy.table, with))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn a_new_instance_blocks_a_profile_exactly_if_it_does_for_some_set_of_remaining_instances(
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
            let inventory = MigInventory { table: table.clone(), instances: Vec::new() };
            let mut occupancy = MigOccupancy::empty(&inventory);
            if stranger {
                // A profile outside the table counts as covering everything.
                occupancy.hold(JobId(99), Placement { profile: u32::MAX, start: 0 });
            }
            let mut layout = Layout::EMPTY;
            for (job, wish) in (1..).zip(&wishes) {
                if let Some(with) = layout.with(&table, placement(wish)) {
                    layout = with;
                    occupancy.hold(JobId(job), placement(wish));
                }
            }
            for ahead in &table.profiles {
                prop_assert_eq!(
                    occupancy.may_block(placement(&new), ahead.id),
                    blocks_by_trying(&occupancy, placement(&new), ahead.id),
                    "{} ahead, {:?} there", ahead.name, occupancy.taken()
                );
            }
        }
    }
}
