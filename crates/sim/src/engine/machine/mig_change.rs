//! Creating and destroying MIG instances. NVML has no transactions, and neither has this: each call stands alone, under
//! the lock.

use crate::config::Choice;
use crate::engine::machine::state::Locked;
use crate::engine::mig::identity::gpu_instance_id;
use crate::engine::mig::partition::{COMPUTE_INSTANCES, of_instance};
use crate::engine::mig::placement::{choose, legal_starts};
use crate::engine::mig::{ComputeInstance, GpuInstance, Mig, MigInstanceId};
use crate::model::mig::{ComputeProfile, GpuProfile, Table};
use std::sync::atomic::Ordering::SeqCst;

/// Why nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigError {
    /// The GPU cannot be divided, or is not.
    Off,
    /// There is no such profile, or it never lies there.
    Invalid,
    /// Overlap, no room, or there are as many as there may be.
    NoRoom,
    InUse,
    /// It is gone.
    NotFound,
}

impl Locked<'_> {
    pub fn mig(&self, gpu: usize) -> &Mig {
        &self.gpus()[gpu].mig
    }

    /// Notifies the watchers, and updates the capability files.
    pub fn changed(&self, gpu: usize) {
        self.mig(gpu).count_change();
        self.publish_capabilities();
    }

    /// Whether a process has the partition among its CUDA devices, and is not put aside. The dead must have been
    /// collected.
    pub fn is_occupied(&self, partition: usize) -> bool {
        let mut live = self.slots().iter().filter(|slot| slot.is_live());
        live.any(|slot| {
            slot.entered(partition).is_some() && !slot.checkpoint_state.is_checkpointed()
        })
    }

    fn anyone_at(&self, partition: usize, compute_instance: u32) -> bool {
        let mut live = self.slots().iter().filter(|slot| slot.is_live());
        live.any(|slot| slot.entered(partition) == Some(compute_instance))
    }

    /// The table of a GPU that is divided.
    fn divided(&self, gpu: usize) -> Result<&Table, MigError> {
        let table = self.mig_table(gpu).ok_or(MigError::Off)?;
        if self.mig(gpu).is_on() {
            Ok(table)
        } else {
            Err(MigError::Off)
        }
    }

    /// Whether anyone uses the GPU as a whole.
    pub fn is_used_whole(&self, gpu: usize) -> bool {
        self.reap();
        self.mig(gpu).held.load(SeqCst) != 0 || self.is_occupied(gpu)
    }

    /// Makes a GPU instance at `start` (and of `size`), or where the driver wants it.
    pub fn make_gpu_instance(
        &self,
        gpu: usize,
        profile: u32,
        at: Result<(u32, u32), Choice>,
    ) -> Result<GpuInstance, MigError> {
        let table = self.divided(gpu)?;
        let profile = table.profile(profile).ok_or(MigError::Invalid)?;
        let mig = self.mig(gpu);
        let placed = mig.placed();
        let start = match at {
            Ok((start, size)) => {
                if size != profile.size || !profile.starts.contains(&start) {
                    return Err(MigError::Invalid);
                }
                let legal = legal_starts(table, &placed, profile);
                legal.contains(&start).then_some(start)
            }
            Err(choice) => choose(table, &placed, profile, choice),
        };
        if mig.is_empty() && self.is_used_whole(gpu) {
            return Err(MigError::InUse);
        }
        let start = start.ok_or(MigError::NoRoom)?;
        let id = gpu_instance_id(table.memory_slices, start, profile.size, mig.id_map());
        let record = mig.record(id);
        record.profile.store(profile.id, SeqCst);
        record.start.store(start, SeqCst);
        record.size.store(profile.size, SeqCst);
        record.generation.store(mig.next_generation(), SeqCst);
        record.used.store(1, SeqCst);
        self.changed(gpu);
        mig.gpu_instance(id).ok_or(MigError::NotFound)
    }

    pub fn destroy_gpu_instance(&self, gpu: usize, id: u32) -> Result<(), MigError> {
        self.divided(gpu)?;
        let mig = self.mig(gpu);
        mig.gpu_instance(id).ok_or(MigError::NotFound)?;
        self.reap();
        let entered = self.is_occupied(of_instance(gpu, id));
        if entered || mig.compute_instances_of(id).next().is_some() {
            return Err(MigError::InUse);
        }
        mig.record(id).used.store(0, SeqCst);
        self.changed(gpu);
        Ok(())
    }

    /// The kinds of compute instances that a GPU instance can have.
    pub fn compute_profiles_of(
        &self,
        gpu: usize,
        id: u32,
    ) -> Result<Vec<ComputeProfile>, MigError> {
        let table = self.divided(gpu)?;
        let within = self.gpu_profile_of(gpu, id)?;
        Ok(table.compute_profiles(within))
    }

    fn gpu_profile_of(&self, gpu: usize, id: u32) -> Result<&GpuProfile, MigError> {
        let instance = self.mig(gpu).gpu_instance(id).ok_or(MigError::NotFound)?;
        let profile = self.gpu_profile(gpu, instance.profile);
        profile.ok_or(MigError::Invalid)
    }

    /// Starts at which a further compute instance may lie.
    fn free_compute_starts(&self, gpu: usize, id: u32, profile: &ComputeProfile) -> Vec<u32> {
        let mig = self.mig(gpu);
        let same = |own: &ComputeInstance| own.profile == profile.id;
        if mig.compute_instances_of(id).filter(same).count() >= profile.most as usize {
            return Vec::new();
        }
        let (size, starts) = (profile.compute_slices, profile.starts.iter().copied());
        let apart = |own: ComputeInstance, start: u32| {
            own.start + own.size <= start || start + size <= own.start
        };
        let free = |start: &u32| mig.compute_instances_of(id).all(|own| apart(own, *start));
        starts.filter(free).collect()
    }

    /// How many more compute instances of a profile there could be.
    pub fn remaining_compute(&self, gpu: usize, id: u32, profile: &ComputeProfile) -> usize {
        let same = |own: &ComputeInstance| own.profile == profile.id;
        let made = self.mig(gpu).compute_instances_of(id).filter(same).count();
        let free = self.free_compute_starts(gpu, id, profile).len();
        free.min((profile.most as usize).saturating_sub(made))
    }

    /// Makes a compute instance at `start` (and of `size`), or at the first place there is.
    pub fn make_compute_instance(
        &self,
        gpu: usize,
        id: u32,
        profile: u32,
        at: Option<(u32, u32)>,
    ) -> Result<ComputeInstance, MigError> {
        let profiles = self.compute_profiles_of(gpu, id)?;
        let wanted = profiles.iter().find(|known| known.id == profile);
        let wanted = wanted.ok_or(MigError::Invalid)?;
        let free = self.free_compute_starts(gpu, id, wanted);
        let start = match at {
            Some((start, size)) => {
                if size != wanted.compute_slices || !wanted.starts.contains(&start) {
                    return Err(MigError::Invalid);
                }
                free.contains(&start).then_some(start)
            }
            None => free.first().copied(),
        };
        let start = start.ok_or(MigError::NoRoom)?;
        let mig = self.mig(gpu);
        let places = (0..COMPUTE_INSTANCES as u32).map(|compute_instance| MigInstanceId {
            gpu_instance: id,
            compute_instance,
        });
        let place = places
            .into_iter()
            .find(|place| mig.compute_instance(*place).is_none())
            .ok_or(MigError::NoRoom)?;
        let record = mig.compute_record(place);
        record.profile.store(wanted.id, SeqCst);
        record.start.store(start, SeqCst);
        record.size.store(wanted.compute_slices, SeqCst);
        record.index.store(mig.lowest_index(), SeqCst);
        record.leaked.store(0, SeqCst);
        record.generation.store(mig.next_generation(), SeqCst);
        record.used.store(1, SeqCst);
        self.changed(gpu);
        mig.compute_instance(place).ok_or(MigError::NotFound)
    }

    /// Makes a GPU instance of this name at `start`, and the compute instance that has all of it.
    pub fn make_whole_instance(&self, gpu: usize, name: &str, start: u32) -> Result<(), MigError> {
        if gpu >= self.gpu_count() {
            return Err(MigError::Invalid);
        }
        let mut profiles = self.divided(gpu)?.profiles.iter();
        let profile = profiles.find(|profile| profile.name == name);
        let profile = profile.ok_or(MigError::Invalid)?;
        let made = self.make_gpu_instance(gpu, profile.id, Ok((start, profile.size)))?;
        let all = self.compute_profiles_of(gpu, made.id)?;
        let whole = all
            .iter()
            .find(|own| own.compute_slices == profile.compute_slices);
        let whole = whole.ok_or(MigError::Invalid)?;
        self.make_compute_instance(gpu, made.id, whole.id, None)?;
        Ok(())
    }

    pub fn destroy_compute_instance(
        &self,
        gpu: usize,
        place: MigInstanceId,
    ) -> Result<(), MigError> {
        self.divided(gpu)?;
        let mig = self.mig(gpu);
        mig.compute_instance(place).ok_or(MigError::NotFound)?;
        self.reap();
        let leaked = mig.compute_record(place).leaked.load(SeqCst) != 0;
        let partition = of_instance(gpu, place.gpu_instance);
        if leaked || self.anyone_at(partition, place.compute_instance) {
            return Err(MigError::InUse);
        }
        mig.compute_record(place).used.store(0, SeqCst);
        self.changed(gpu);
        Ok(())
    }
}
