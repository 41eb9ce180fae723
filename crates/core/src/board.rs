//! The GPUs of a snapshot with what is held of each: the planner's working state.

use crate::gpu::Gpu;
use crate::ids::{JobId, QueueName};
use crate::placement::Offer;
use crate::slice::{Grant, label};
use crate::snapshot::{Held, Snapshot};
use crate::units::Bytes;

/// Every GPU, by index.
#[derive(Clone)]
pub(crate) struct Board<'a> {
    pub(crate) tiles: Vec<Tile<'a>>,
}

/// One GPU and who holds it.
#[derive(Clone)]
pub(crate) struct Tile<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) foreign: Bytes,
    pub(crate) holders: Vec<Holder>,
    /// Sums over the holders.
    used_share: u64,
    used_memory: Bytes,
}

/// A job's hold on one GPU.
#[derive(Clone)]
pub(crate) struct Holder {
    pub(crate) job: JobId,
    pub(crate) queue: QueueName,
    pub(crate) grant: Grant,
}

impl<'a> Board<'a> {
    /// Nobody holds anything, and no foreign process runs: what there will ever be at most.
    pub(crate) fn empty(gpus: &'a [Gpu]) -> Self {
        let tile = |gpu| Tile {
            gpu,
            foreign: Bytes::ZERO,
            holders: Vec::new(),
            used_share: 0,
            used_memory: Bytes::ZERO,
        };
        let mut tiles: Vec<Tile<'a>> = gpus.iter().map(tile).collect();
        tiles.sort_by(|a, b| (a.gpu.index, &a.gpu.uuid).cmp(&(b.gpu.index, &b.gpu.uuid)));
        Self { tiles }
    }

    /// As observed. What is held of GPUs that are not there any more counts nowhere.
    pub(crate) fn of(snapshot: &'a Snapshot) -> Self {
        let mut board = Self::empty(&snapshot.gpus);
        for tile in &mut board.tiles {
            tile.foreign = tile.gpu.foreign;
        }
        for Held { job, queue, grants } in &snapshot.held {
            for grant in grants {
                board.hold(*job, queue, grant.clone());
            }
        }
        board
    }

    /// Gives a job what was offered, with labels.
    pub(crate) fn give(&mut self, job: JobId, queue: &QueueName, offers: &[Offer]) -> Vec<Grant> {
        let grants = offers.iter().map(|offer| {
            let Tile { gpu, holders, .. } = &self.tiles[offer.tile];
            let taken = |label: &str| holders.iter().any(|holder| holder.grant.label == label);
            Grant {
                gpu: gpu.uuid.clone(),
                index: gpu.index,
                memory: offer.memory,
                share: offer.share,
                label: label(gpu.index, offer.share, taken),
                mig: None,
            }
        });
        let grants: Vec<Grant> = grants.collect();
        for grant in &grants {
            self.hold(job, queue, grant.clone());
        }
        grants
    }

    fn hold(&mut self, job: JobId, queue: &QueueName, grant: Grant) {
        if let Some(tile) = self
            .tiles
            .iter_mut()
            .find(|tile| tile.gpu.uuid == grant.gpu)
        {
            tile.used_share += u64::from(grant.share.thousandths());
            tile.used_memory = tile.used_memory.saturating_add(grant.memory);
            tile.holders.push(Holder {
                job,
                queue: queue.clone(),
                grant,
            });
        }
    }
}

impl Tile<'_> {
    /// Thousandths of the GPU that are held.
    pub(crate) fn used_share(&self) -> u64 {
        self.used_share
    }

    /// Thousandths of the GPU that nobody holds.
    pub(crate) fn free_share(&self) -> u64 {
        1000_u64.saturating_sub(self.used_share)
    }

    /// Memory that nobody holds, slice or foreign process.
    pub(crate) fn free_memory(&self) -> Bytes {
        self.unheld_memory().saturating_sub(self.foreign)
    }

    /// Memory that no slice holds.
    pub(crate) fn unheld_memory(&self) -> Bytes {
        self.gpu.usable().saturating_sub(self.used_memory)
    }
}
