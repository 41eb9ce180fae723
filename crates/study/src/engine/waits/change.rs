//! Changes of a scene: the questions that begin with "what if".

use std::fmt;

use divvy_core::Mode;
use divvy_core::queue::Order;
use divvy_core::request::Amount;
use divvy_core::units::{Bytes, Gpus, ProjectName, QueueName, Share};

use super::scene::{Scene, SceneError, SceneNode};
use super::work::Submission;

/// What would be different.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// This node as well.
    AddNode(SceneNode),
    /// The queue is served before all others.
    QueueFirst(QueueName),
    /// Parts of GPUs are rounded up to eighths.
    Eighths,
    /// A job for one whole GPU whose use of memory is known gets the smallest eighth that has that memory.
    FractionsForWhole,
    /// A GPU, counted over all nodes, is in another mode.
    GpuMode {
        gpu: u32,
        mode: Mode,
    },
    /// The project has this quota of GPUs.
    Quota {
        project: ProjectName,
        gpus: Gpus,
    },
    Backfill(bool),
    Order(Order),
}

impl Change {
    /// Makes the change. The scene names every queue of the submissions.
    pub(super) fn apply(
        &self,
        scene: &mut Scene,
        submissions: &mut [Submission],
    ) -> Result<(), SceneError> {
        match self {
            Self::AddNode(node) => scene.nodes.push(node.clone()),
            Self::QueueFirst(name) => {
                let place = scene.queues.iter().position(|queue| queue.name == *name);
                let place = place.ok_or_else(|| SceneError::NoQueue(name.clone()))?;
                scene.queues[..=place].rotate_right(1);
            }
            Self::Eighths => {
                for job in submissions {
                    job.request.amount = in_eighths(job.request.amount);
                }
            }
            Self::FractionsForWhole => {
                let smallest = smallest_memory(scene);
                for job in submissions {
                    if let (Amount::ONE_GPU, Some(used)) = (job.request.amount.plain(), job.used) {
                        job.request.amount = eighth_with(used, smallest);
                    }
                }
            }
            Self::GpuMode { gpu, mode } => {
                let count = scene.gpus();
                let gpus = scene.nodes.iter_mut().flat_map(|node| &mut node.gpus);
                let nth = usize::try_from(*gpu).ok();
                let wanted = nth.and_then(|nth| gpus.into_iter().nth(nth));
                wanted.ok_or(SceneError::NoGpu { gpu: *gpu, count })?.mode = *mode;
            }
            Self::Quota { project, gpus } => {
                let mut projects = scene.projects.iter_mut();
                let found = projects.find(|one| one.name == *project);
                let found = found.ok_or_else(|| SceneError::NoProject(project.clone()))?;
                found.quota.gpus = *gpus;
            }
            Self::Backfill(backfill) => scene.backfill = *backfill,
            Self::Order(order) => scene.order = *order,
        }
        Ok(())
    }
}

/// An eighth of a GPU, in thousandths. It must be that, as the reports name it so.
const EIGHTH: u16 = 125;

/// The least multiple of an eighth that is as much.
fn in_eighths(amount: Amount) -> Amount {
    let up = |share: Share| {
        let thousandths = share.thousandths().next_multiple_of(EIGHTH);
        Share::from_thousandths(thousandths).unwrap_or(Share::FULL)
    };
    match amount {
        Amount::Share(share) => Amount::Share(up(share)),
        Amount::Shares { count, share } => Amount::Shares {
            count,
            share: up(share),
        },
        Amount::Memory(_) | Amount::Whole(_) | Amount::Range { .. } | Amount::Mig(_) => amount,
    }
    .plain()
}

/// The memory of the smallest GPU.
fn smallest_memory(scene: &Scene) -> Bytes {
    let gpus = scene.nodes.iter().flat_map(|node| &node.gpus);
    let known = gpus
        .map(|gpu| gpu.memory)
        .filter(|memory| *memory > Bytes::ZERO);
    known.min().unwrap_or(Bytes::ZERO)
}

/// The least eighths of the smallest GPU that have so much memory.
fn eighth_with(used: Bytes, gpu: Bytes) -> Amount {
    let eighths = u128::from(used.get()) * 8;
    let eighths = eighths.div_ceil(u128::from(gpu.get()).max(1)).clamp(1, 8);
    let thousandths = u16::try_from(eighths).unwrap_or(8) * EIGHTH;
    Amount::Share(Share::from_thousandths(thousandths).unwrap_or(Share::FULL)).plain()
}

impl fmt::Display for Change {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddNode(node) => {
                let models = node.gpus.iter().map(|gpu| gpu.model.as_str());
                let mut counts: Vec<(&str, u32)> = Vec::new();
                for model in models {
                    match counts.iter_mut().find(|(known, _)| *known == model) {
                        Some((_, count)) => *count += 1,
                        None => counts.push((model, 1)),
                    }
                }
                let counts = counts
                    .iter()
                    .map(|(model, count)| format!("{count}x{model}"));
                write!(out, "+{}", counts.collect::<Vec<_>>().join("+"))
            }
            Self::QueueFirst(queue) => write!(out, "queue {queue} first"),
            Self::Eighths => out.write_str("parts in eighths"),
            Self::FractionsForWhole => out.write_str("eighths in place of whole GPUs"),
            Self::GpuMode { gpu, mode } => write!(out, "GPU {gpu} in mode {mode}"),
            Self::Quota { project, gpus } => write!(out, "quota of {project}: {gpus}"),
            Self::Backfill(true) => out.write_str("with backfill"),
            Self::Backfill(false) => out.write_str("without backfill"),
            Self::Order(Order::Strict) => out.write_str("order strict"),
            Self::Order(Order::Fairness) => out.write_str("order fairness"),
        }
    }
}
