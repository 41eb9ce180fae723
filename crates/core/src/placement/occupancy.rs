//! The GPUs of a snapshot with what is held of each: the planner's working state.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use crate::mig::Placement;
use crate::mig::occupancy::MigOccupancy;
use crate::model::gpu::{Gpu, Mode};
use crate::model::slice::{Grant, label};
use crate::model::snapshot::{AllocatedJob, Snapshot};
use crate::placement::{MigPlacementChoice, Offer};
use crate::units::{Bytes, GpuUuid, JobId, QueueName};

/// Every GPU, by index.
#[derive(Clone)]
pub(crate) struct NodeUsage<'a> {
    pub(crate) gpus: Vec<GpuUsage<'a>>,
}

/// One GPU and who holds it.
#[derive(Clone)]
pub(crate) struct GpuUsage<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) unmanaged: Bytes,
    pub(crate) holders: Vec<Holder>,
    /// What lies where, in MIG mode; `None` also where the driver does not say what it can be cut into.
    pub(crate) mig: Option<MigOccupancy<'a>>,
    /// Sums over the holders, those who are to go on among them: they may come to more than there is.
    used_share: u64,
    used_memory: Bytes,
    /// What the holders could give back, once somebody has asked.
    releases: OnceCell<Option<Releases>>,
}

/// The free part of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreePart {
    /// Thousandths of the GPU.
    pub share: u64,
    pub memory: Bytes,
}

/// Sums of share and memory that some of a GPU's holders could give back.
pub(crate) type Releases = BTreeSet<(u64, Bytes)>;

/// A job's hold on one GPU.
#[derive(Clone)]
pub(crate) struct Holder {
    pub(crate) job: JobId,
    pub(crate) queue: QueueName,
    pub(crate) grant: Grant,
    /// It is kept for the job, which is to go on.
    pub(crate) is_reserved: bool,
}

/// What a job gets, and the idle MIG instances that are removed for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Assignment {
    pub(crate) grants: Vec<Grant>,
    pub(crate) reclaim: Vec<(GpuUuid, Placement)>,
}

impl<'a> NodeUsage<'a> {
    /// Nobody holds anything, and no foreign process runs: what there will ever be at most.
    pub(crate) fn empty(gpus: &'a [Gpu]) -> Self {
        let tile = |gpu: &'a Gpu| GpuUsage {
            gpu,
            unmanaged: Bytes::ZERO,
            holders: Vec::new(),
            mig: (gpu.mig.as_ref())
                .filter(|_| gpu.mode == Mode::Mig)
                .map(MigOccupancy::empty),
            used_share: 0,
            used_memory: Bytes::ZERO,
            releases: OnceCell::new(),
        };
        let mut tiles: Vec<GpuUsage<'a>> = gpus.iter().map(tile).collect();
        tiles.sort_by(|a, b| (a.gpu.index, &a.gpu.uuid).cmp(&(b.gpu.index, &b.gpu.uuid)));
        Self { gpus: tiles }
    }

    /// As observed. What is held of GPUs that are not there any more counts nowhere.
    pub(crate) fn of(snapshot: &'a Snapshot) -> Self {
        let mut board = Self::empty(&snapshot.gpus);
        for tile in &mut board.gpus {
            tile.unmanaged = tile.gpu.foreign;
            if let (Some(seats), Some(carving)) = (&mut tile.mig, &tile.gpu.mig) {
                *seats = MigOccupancy::of(carving);
            }
        }
        for AllocatedJob {
            job,
            queue,
            grants,
            due,
            ..
        } in &snapshot.held
        {
            for grant in grants {
                board.add_holder(*job, queue, grant.clone(), due.is_some());
            }
        }
        board
    }

    /// Gives a job what was offered, with labels.
    pub(crate) fn assign(&mut self, job: JobId, queue: &QueueName, offers: &[Offer]) -> Assignment {
        let mut given = Assignment::default();
        for Offer {
            position: tile,
            size,
            mig: seat,
        } in offers
        {
            let tile = &mut self.gpus[*tile];
            let taken = |label: &str| {
                let mut holders = tile.holders.iter();
                holders.any(|holder| holder.grant.label == label)
            };
            let index = tile.gpu.index;
            let grant = Grant {
                gpu: tile.gpu.uuid.clone(),
                index,
                memory: size.memory,
                share: size.share,
                label: match seat {
                    Some(seat) => seat.grant.label(index),
                    None => label(index, size.share, taken),
                },
                mig: seat.as_ref().map(|seat| seat.grant),
            };
            if let Some(MigPlacementChoice { candidate, .. }) = seat {
                let reclaim = candidate.reclaim.iter();
                given
                    .reclaim
                    .extend(reclaim.map(|idle| (grant.gpu.clone(), *idle)));
            }
            given.grants.push(grant);
        }
        self.allocate(job, queue, &given.grants, &given.reclaim);
        given
    }

    /// Gives a job these grants; the idle MIG instances of `reclaim` are removed.
    pub(crate) fn allocate(
        &mut self,
        job: JobId,
        queue: &QueueName,
        grants: &[Grant],
        reclaim: &[(GpuUuid, Placement)],
    ) {
        for (gpu, idle) in reclaim {
            let usage = self.gpus.iter_mut().find(|usage| usage.gpu.uuid == *gpu);
            if let Some(mig) = usage.and_then(|usage| usage.mig.as_mut()) {
                mig.remove(*idle);
            }
        }
        for grant in grants {
            self.add_holder(job, queue, grant.clone(), false);
        }
    }

    /// The board once these jobs are gone.
    pub(crate) fn without(&self, gone: &BTreeSet<JobId>) -> Self {
        let mut board = self.clone();
        let mut stay = Vec::new();
        for tile in &mut board.gpus {
            (tile.used_share, tile.used_memory) = (0, Bytes::ZERO);
            tile.releases.take();
            if let Some(seats) = &mut tile.mig {
                seats.vacate();
            }
            stay.append(&mut tile.holders);
        }
        for Holder {
            job,
            queue,
            grant,
            is_reserved: due,
        } in stay
        {
            if !gone.contains(&job) {
                board.add_holder(job, &queue, grant, due);
            }
        }
        board
    }

    /// What a job holds.
    pub(crate) fn held_by(&self, job: JobId) -> Vec<Grant> {
        let holders = self.gpus.iter().flat_map(|tile| &tile.holders);
        let its = holders.filter(|holder| holder.job == job);
        its.map(|holder| holder.grant.clone()).collect()
    }

    fn add_holder(&mut self, job: JobId, queue: &QueueName, grant: Grant, due: bool) {
        if let Some(tile) = self.gpus.iter_mut().find(|tile| tile.gpu.uuid == grant.gpu) {
            tile.releases.take();
            tile.used_share += u64::from(grant.share.thousandths());
            tile.used_memory = tile.used_memory.saturating_add(grant.memory);
            if let (Some(seats), Some(mig)) = (&mut tile.mig, grant.mig) {
                seats.hold(job, mig.placement);
            }
            tile.holders.push(Holder {
                job,
                queue: queue.clone(),
                grant,
                is_reserved: due,
            });
        }
    }
}

impl GpuUsage<'_> {
    /// Thousandths of the GPU that are held, or kept for who is to go on.
    pub(crate) fn used_share(&self) -> u64 {
        self.used_share.min(1000)
    }

    /// Thousandths that are held.
    pub(crate) fn held_share(&self) -> u64 {
        let held = self.holders.iter().filter(|holder| !holder.is_reserved);
        held.map(|holder| u64::from(holder.grant.share.thousandths()))
            .sum()
    }

    /// For whom room is kept.
    pub(crate) fn reserved_for(&self) -> impl Iterator<Item = JobId> {
        let due = self.holders.iter().filter(|holder| holder.is_reserved);
        due.map(|holder| holder.job)
    }

    /// Thousandths of the GPU that nobody holds.
    pub(crate) fn free_share(&self) -> u64 {
        1000_u64.saturating_sub(self.used_share)
    }

    /// Share and memory that no job and no unmanaged process holds.
    pub(crate) fn free(&self) -> FreePart {
        FreePart {
            share: self.free_share(),
            memory: self.free_memory(),
        }
    }

    /// Memory that nobody holds, slice or foreign process.
    pub(crate) fn free_memory(&self) -> Bytes {
        self.unallocated_memory().saturating_sub(self.unmanaged)
    }

    /// Memory that no slice holds.
    pub(crate) fn unallocated_memory(&self) -> Bytes {
        self.gpu.usable().saturating_sub(self.used_memory)
    }

    /// What its holders could give back, found once and kept until somebody else holds something.
    pub(crate) fn releases(
        &self,
        find: impl FnOnce(&Self) -> Option<Releases>,
    ) -> Option<&Releases> {
        self.releases.get_or_init(|| find(self)).as_ref()
    }

    /// In MIG mode, a job whose slice is no instance.
    pub(crate) fn slice_before_mig(&self) -> Option<JobId> {
        let mut holders = self.holders.iter();
        self.mig.as_ref()?;
        let old = holders.find(|holder| holder.grant.mig.is_none())?;
        Some(old.job)
    }
}
