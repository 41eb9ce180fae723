//! The nodes of a scene as the planner sees them: GPUs in one row, and the hosts that they are on.

use super::scene::{MOST_GPUS, MOST_MODELS, MOST_NODES, Scene, SceneError, SceneGpu};
use super::work::Submission;
use crate::mig::MigInventory;
use crate::model::gpu::{Gpu, Mode};
use crate::model::request::Amount;
use crate::placement::hosts::{Host, HostNeed};
use crate::units::{Bytes, GpuUuid};

/// Stands for the memory of a GPU where it is unknown.
const UNKNOWN: Bytes = Bytes::gib(1 << 10);

/// The bit of a model that no GPU has.
const ABSENT: u64 = 1 << MOST_MODELS;

/// GPUs and hosts, without any job.
pub(super) struct Ground {
    /// Positions are indices.
    pub gpus: Vec<Gpu>,
    pub hosts: Vec<Host>,
    /// Of each GPU, the bit of its kind.
    pub models: Vec<u64>,
    kinds: Vec<Kind>,
}

/// GPUs that jobs can tell apart.
#[derive(Clone, PartialEq, Eq)]
struct Kind {
    model: String,
    has_known_memory: bool,
}

impl Ground {
    pub fn of(scene: &Scene) -> Result<Self, SceneError> {
        let too_many = |what, count, most| match count > most {
            true => Err(SceneError::TooMany { what, count, most }),
            false => Ok(()),
        };
        too_many("nodes", scene.nodes.len(), MOST_NODES)?;
        too_many("GPUs", scene.gpus(), MOST_GPUS)?;
        if scene.gpus() == 0 {
            return Err(SceneError::Nothing("GPUs"));
        }
        let mut ground = Self {
            gpus: Vec::new(),
            hosts: Vec::new(),
            models: Vec::new(),
            kinds: Vec::new(),
        };
        for node in &scene.nodes {
            let first = ground.gpus.len();
            for gpu in &node.gpus {
                ground.add(gpu)?;
            }
            ground.hosts.push(Host {
                gpus: first..ground.gpus.len(),
                cpu_milli: node.cpu_milli.unwrap_or(u64::MAX),
                memory: node.memory.unwrap_or(Bytes::new(u64::MAX)),
            });
        }
        too_many("kinds of GPUs", ground.kinds.len(), MOST_MODELS)?;
        Ok(ground)
    }

    fn add(&mut self, gpu: &SceneGpu) -> Result<(), SceneError> {
        let index = u32::try_from(self.gpus.len()).unwrap_or(u32::MAX);
        let inventory = gpu.table.clone().map(|table| MigInventory {
            table,
            instances: Vec::new(),
        });
        if gpu.mode == Mode::Mig && inventory.is_none() {
            return Err(SceneError::NoProfiles(index));
        }
        let has_known_memory = gpu.memory > Bytes::ZERO;
        let kind = Kind {
            model: gpu.model.clone(),
            has_known_memory,
        };
        let known = self.kinds.iter().position(|known| *known == kind);
        let at = known.unwrap_or_else(|| {
            self.kinds.push(kind);
            self.kinds.len() - 1
        });
        self.models.push(1 << at.min(MOST_MODELS));
        let mut uuid = [0; 16];
        uuid[12..].copy_from_slice(&index.to_be_bytes());
        self.gpus.push(Gpu {
            uuid: GpuUuid::from_bytes(uuid),
            index,
            model: gpu.model.clone(),
            mode: gpu.mode,
            away: false,
            out_of_service: None,
            total: match has_known_memory {
                true => gpu.memory,
                false => UNKNOWN,
            },
            reserved: Bytes::ZERO,
            unmanaged: Bytes::ZERO,
            unlisted: Bytes::ZERO,
            context: Bytes::ZERO,
            mig: inventory,
            elsewhere: Vec::new(),
        });
        Ok(())
    }

    /// What a job takes of its host. A job that asks for memory takes no GPU of unknown memory.
    pub fn need(&self, job: &Submission) -> HostNeed {
        let by_memory = matches!(job.request.amount, Amount::Memory(_));
        let accepts = |kind: &Kind| {
            (job.models.is_empty() || job.models.contains(&kind.model))
                && (kind.has_known_memory || !by_memory)
        };
        let accepted = self.kinds.iter().map(accepts);
        let models = match accepted.clone().all(|accepted| accepted) {
            true => 0,
            false => (0..)
                .zip(accepted)
                .filter(|(_, accepted)| *accepted)
                .fold(ABSENT, |bits, (at, _)| bits | 1_u64 << at),
        };
        HostNeed {
            cpu_milli: job.cpu_milli,
            memory: job.memory,
            models,
        }
    }
}
