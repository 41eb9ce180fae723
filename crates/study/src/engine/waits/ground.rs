//! The nodes of a scene as planners see them: the GPUs of each, counted over all nodes, and its CPU and main memory.

use std::ops::Range;

use divvy_core::mig::MigInventory;
use divvy_core::request::{Amount, Request};
use divvy_core::{Bytes, Gpu, GpuUuid, Mode};

use super::scene::{MOST_GPUS, MOST_NODES, Scene, SceneError, SceneGpu};
use super::work::Submission;

/// Stands for the memory of a GPU where it is unknown.
const UNKNOWN: Bytes = Bytes::gib(1 << 10);

/// GPUs and nodes, without any job.
pub(super) struct Ground {
    /// Positions are indices.
    pub gpus: Vec<Gpu>,
    pub nodes: Vec<GroundNode>,
    /// Of each GPU, whether its memory is known.
    has_known_memory: Vec<bool>,
}

/// A node as it is when empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroundNode {
    pub gpus: Range<usize>,
    /// Thousandths of a core; `None`: not counted.
    pub cpu_milli: Option<u64>,
    /// `None`: not counted.
    pub memory: Option<Bytes>,
}

impl GroundNode {
    /// Whether the node, as it is when empty, has the CPU and the memory of the job.
    fn holds(&self, job: &Submission) -> bool {
        self.cpu_milli.is_none_or(|cpu| job.cpu_milli <= cpu)
            && self.memory.is_none_or(|memory| job.memory <= memory)
    }
}

impl Ground {
    pub fn of(scene: &Scene) -> Result<Self, SceneError> {
        let too_many = |what, count, most| {
            if count > most {
                Err(SceneError::TooMany { what, count, most })
            } else {
                Ok(())
            }
        };
        too_many("nodes", scene.nodes.len(), MOST_NODES)?;
        too_many("GPUs", scene.gpus(), MOST_GPUS)?;
        if scene.gpus() == 0 {
            return Err(SceneError::Nothing("GPUs"));
        }
        let mut ground = Self {
            gpus: Vec::new(),
            nodes: Vec::new(),
            has_known_memory: Vec::new(),
        };
        for node in &scene.nodes {
            let first = ground.gpus.len();
            for gpu in &node.gpus {
                ground.add(gpu)?;
            }
            ground.nodes.push(GroundNode {
                gpus: first..ground.gpus.len(),
                cpu_milli: node.cpu_milli,
                memory: node.memory,
            });
        }
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
        self.has_known_memory.push(has_known_memory);
        let mut uuid = [0; 16];
        uuid[12..].copy_from_slice(&index.to_be_bytes());
        self.gpus.push(Gpu {
            uuid: GpuUuid::from_bytes(uuid),
            index,
            model: gpu.model.clone(),
            mode: gpu.mode,
            away: false,
            out_of_service: None,
            total: if has_known_memory {
                gpu.memory
            } else {
                UNKNOWN
            },
            reserved: Bytes::ZERO,
            unmanaged: Bytes::ZERO,
            unlisted: Bytes::ZERO,
            unlisted_holder: None,
            context: Bytes::ZERO,
            mig: inventory,
            enforcement: divvy_core::Enforcement::Limiter,
            elsewhere: Vec::new(),
        });
        Ok(())
    }

    /// The GPUs of a node.
    pub fn gpus_of(&self, node: usize) -> &[Gpu] {
        &self.gpus[self.nodes[node].gpus.clone()]
    }

    /// The job's request on the GPUs of this node that the job accepts; `None` where it can have none of them. A job
    /// that asks for memory takes no GPU of unknown memory.
    pub fn request_on(&self, node: usize, job: &Submission) -> Option<Request> {
        if !self.nodes[node].holds(job) {
            return None;
        }
        let request = &job.request;
        let by_memory = matches!(request.amount, Amount::Memory(_));
        let accepts = |gpu: &&Gpu| {
            let at = usize::try_from(gpu.index).unwrap_or(usize::MAX);
            (job.models.is_empty() || job.models.contains(&gpu.model))
                && (request.on.is_empty() || request.on.contains(&gpu.index))
                && (self.has_known_memory[at] || !by_memory)
        };
        let gpus = self.gpus_of(node);
        let accepted: Vec<u32> = gpus.iter().filter(accepts).map(|gpu| gpu.index).collect();
        if accepted.is_empty() {
            return None;
        }
        let all = request.on.is_empty() && accepted.len() == gpus.len();
        Some(Request {
            on: if all { Vec::new() } else { accepted },
            ..request.clone()
        })
    }
}
