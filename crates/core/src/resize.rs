//! Resizing of running jobs: another size on the same GPUs, by the same arithmetic as a placement.
//!
//! ```text
//! resize ──► for each GPU: the grant from now on, and, where that is more than requested, the target
//! ```
//! A larger size is granted at once, if there is room. A smaller size is a target: memory in use cannot be taken away,
//! so the job keeps its grant until it uses no more than the target ([`grant_at_target`]). A running job keeps its
//! GPUs.
//!
//! [`memory`] is the state of an offloaded job's memory, [`resume`] decides when it gets its GPUs back, [`park`] which
//! idle jobs make room.
//!
//! May use: `units`, `model`, `placement`, `plan`, `project`.
//! Used by: `explain`.

pub mod memory;
pub mod park;
pub mod resume;

use crate::model::gpu::{Gpu, Mode};
use crate::model::request::{Amount, Request};
use crate::model::slice::{Grant, label};
use crate::model::snapshot::Snapshot;
use crate::placement::fit::{
    GrantSize, UnmetConstraint, fit, fraction_constraints, park_constraint, size,
};
use crate::placement::occupancy::{FreePart, GpuUsage, NodeUsage};
use crate::units::{Bytes, JobId, Share};

/// What a job holds of one GPU after a resize.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resized {
    /// What it holds from now on.
    pub grant: Grant,
    /// What it holds once it uses no more than this; `None` where that equals the grant.
    pub target: Option<ResizeTarget>,
}

/// The requested size of a job on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResizeTarget {
    pub memory: Bytes,
    pub share: Share,
}

/// Why a job cannot be resized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResizeError {
    /// A running job keeps its GPUs, and another number of GPUs was requested.
    OtherCount {
        has: u32,
        asked: u32,
    },
    /// A running job has a fixed number of GPUs, and a range was requested.
    Range,
    /// A MIG instance keeps its size while a job holds it.
    Instance,
    /// A running job on a slice of a shared GPU cannot move to a MIG instance.
    IntoInstance,
    NotServed {
        index: u32,
    },
    /// The GPU cannot give so much, even without any other holder.
    Never {
        gpu: Box<Gpu>,
        requested: Amount,
        unmet: Vec<UnmetConstraint>,
    },
    NoRoom(Box<NoRoom>),
}

/// A GPU that has no room now for a job's new size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoRoom {
    pub gpu: Gpu,
    pub requested: Amount,
    /// What the job holds of the GPU.
    pub held: ResizeTarget,
    /// What is free beside the other jobs; the job's own part is in it.
    pub free: FreePart,
    pub unmet: Vec<UnmetConstraint>,
    /// The other jobs on the GPU.
    pub holders: Vec<JobId>,
}

/// The new size of a job on each of its GPUs; all GPUs change or none.
///
/// `-g 0.5` and `--gpu-memory 12G` mean each of its GPUs, `-g 2x0.5` and `-g 2` all of its two.
///
/// # Errors
/// [`ResizeError`]. The result is empty for a job without GPUs.
pub fn resize(
    snapshot: &Snapshot,
    job: JobId,
    amount: Amount,
) -> Result<Vec<Resized>, ResizeError> {
    let held = snapshot.held.iter().find(|held| held.job == job);
    let grants = held.map_or(&[][..], |held| &held.grants);
    if grants.iter().any(|grant| grant.mig.is_some()) {
        return Err(ResizeError::Instance);
    }
    let each = each(amount, u32::try_from(grants.len()).unwrap_or(u32::MAX))?;
    let others = without(snapshot, job);
    let gives_way = snapshot.parking.gives_way.contains(&job);
    let node = NodeUsage::of(&others);
    grants
        .iter()
        .map(|grant| {
            let index = grant.index;
            let mut gpus = node.gpus.iter();
            let usage = gpus.find(|usage| usage.gpu.uuid == grant.gpu);
            one(
                usage.ok_or(ResizeError::NotServed { index })?,
                grant,
                each,
                gives_way,
            )
        })
        .collect()
}

/// The grant of a job on a GPU once it has reached its target.
pub fn grant_at_target(
    snapshot: &Snapshot,
    job: JobId,
    grant: &Grant,
    target: ResizeTarget,
) -> Grant {
    let others = without(snapshot, job);
    let node = NodeUsage::of(&others);
    let usage = node.gpus.iter().find(|usage| usage.gpu.uuid == grant.gpu);
    granted(usage, grant, target)
}

fn without(snapshot: &Snapshot, job: JobId) -> Snapshot {
    let mut others = snapshot.clone();
    others.held.retain(|held| held.job != job);
    others
}

/// The request for each single GPU.
fn each(amount: Amount, has: u32) -> Result<Amount, ResizeError> {
    let all = |asked: u32, of_each| {
        if asked == has {
            Ok(of_each)
        } else {
            Err(ResizeError::OtherCount { has, asked })
        }
    };
    match amount {
        Amount::Share(Share::FULL) => Ok(Amount::ONE_GPU),
        Amount::Share(_) | Amount::Memory(_) => Ok(amount),
        Amount::Whole(asked) => all(asked.get(), Amount::ONE_GPU),
        Amount::Shares {
            count,
            share: Share::FULL,
        } => all(count.get(), Amount::ONE_GPU),
        Amount::Shares { count, share } => all(count.get(), Amount::Share(share)),
        Amount::Range { .. } => Err(ResizeError::Range),
        Amount::Mig(_) => Err(ResizeError::IntoInstance),
    }
}

fn one(
    usage: &GpuUsage<'_>,
    grant: &Grant,
    each: Amount,
    gives_way: bool,
) -> Result<Resized, ResizeError> {
    let index = grant.index;
    if matches!(usage.gpu.mode, Mode::Unmanaged | Mode::Mig) {
        return Err(ResizeError::NotServed { index });
    }
    let request = Request {
        gives_way,
        ..Request::from(each)
    };
    if each == Amount::ONE_GPU && grant.share == Share::FULL {
        return Ok(Resized {
            grant: grant.clone(),
            target: None,
        });
    }
    let wanted = size(usage, &request).map_err(|unmet| ResizeError::Never {
        gpu: Box::new(usage.gpu.clone()),
        requested: each,
        unmet,
    })?;
    let wanted = match each {
        // The whole GPU, less the memory of processes outside Divvy.
        Amount::ONE_GPU => {
            fit(usage, &request).map_err(|unmet| no_room(usage, grant, each, unmet))?
        }
        _ => wanted,
    };
    let from_now = GrantSize {
        share: wanted.share.max(grant.share),
        memory: wanted.memory.max(grant.memory),
        profile: None,
    };
    let grows = from_now.share > grant.share || from_now.memory > grant.memory;
    if grows && each != Amount::ONE_GPU {
        let mut unmet = fraction_constraints(usage, from_now);
        unmet.extend(park_constraint(usage, gives_way, from_now));
        if !unmet.is_empty() {
            return Err(no_room(usage, grant, each, unmet));
        }
    }
    let target = ResizeTarget {
        memory: wanted.memory,
        share: wanted.share,
    };
    let now = ResizeTarget {
        memory: from_now.memory,
        share: from_now.share,
    };
    Ok(Resized {
        grant: granted(Some(usage), grant, now),
        target: (target != now).then_some(target),
    })
}

/// The grant with another size and the label of that size.
fn granted(usage: Option<&GpuUsage<'_>>, grant: &Grant, size: ResizeTarget) -> Grant {
    let taken = |label: &str| {
        let holders = usage.map_or(&[][..], |usage| &usage.holders);
        holders.iter().any(|holder| holder.grant.label == label)
    };
    let label = if size.share == grant.share {
        grant.label.clone()
    } else {
        label(grant.index, size.share, taken)
    };
    Grant {
        memory: size.memory,
        share: size.share,
        label,
        ..grant.clone()
    }
}

/// `usage`: the GPU with the other jobs on it.
fn no_room(
    usage: &GpuUsage<'_>,
    grant: &Grant,
    requested: Amount,
    unmet: Vec<UnmetConstraint>,
) -> ResizeError {
    ResizeError::NoRoom(Box::new(NoRoom {
        gpu: usage.gpu.clone(),
        requested,
        held: ResizeTarget {
            memory: grant.memory,
            share: grant.share,
        },
        free: usage.free(),
        unmet,
        holders: usage.holders.iter().map(|holder| holder.job).collect(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::gpu::Gpu;
    use crate::model::snapshot::AllocatedJob;
    use crate::units::QueueName;

    /// GPUs of 80 GiB and one job for each text, `GPU:SHARE` or several joined by commas.
    fn node(gpus: u8, jobs: &[&str]) -> Snapshot {
        let gpu = |index: u8| Gpu::sample(index, Bytes::gib(80));
        let gpus: Vec<Gpu> = (0..gpus).map(gpu).collect();
        let mut letters = b'a'..;
        let mut grant = |text: &str| {
            let (index, share) = text.split_once(':').unwrap();
            let gpu = &gpus[index.parse::<usize>().unwrap()];
            let share: Share = share.parse().unwrap();
            Grant {
                gpu: gpu.uuid.clone(),
                index: gpu.index,
                memory: gpu.memory_of(share),
                share,
                label: match share {
                    Share::FULL => format!("gpu{index}"),
                    _ => format!("gpu{index}{share}{}", char::from(letters.next().unwrap())),
                },
                mig: None,
            }
        };
        let held = jobs.iter().zip(1..).map(|(grants, job)| {
            let grants = grants.split(',').map(&mut grant).collect();
            AllocatedJob::new(JobId(job), QueueName::default_queue(), grants)
        });
        Snapshot {
            held: held.collect(),
            gpus: gpus.clone(),
            ..Snapshot::default()
        }
    }

    fn amount(text: &str) -> Amount {
        Amount::from_memory_flag(text)
            .or_else(|_| Amount::from_gpu_flag(text))
            .unwrap()
    }

    /// Job 1 resized, as `memory share label` with the goal behind an arrow.
    fn resized(snapshot: &Snapshot, text: &str) -> Vec<String> {
        let all = resize(snapshot, JobId(1), amount(text)).unwrap();
        all.iter()
            .map(|one| {
                let Grant {
                    memory,
                    share,
                    label,
                    ..
                } = &one.grant;
                let target = one
                    .target
                    .map(|target| format!(" -> {} {}", target.memory, target.share));
                format!("{memory} {share} {label}{}", target.unwrap_or_default())
            })
            .collect()
    }

    fn refused(snapshot: &Snapshot, text: &str) -> (String, String) {
        let error = resize(snapshot, JobId(1), amount(text)).unwrap_err();
        (error.to_string(), error.hint())
    }

    #[test]
    fn more_is_held_at_once() {
        let node = node(1, &["0:0.25", "0:0.5"]);
        assert_eq!(resized(&node, "30G"), ["30GiB 0.375 gpu0.375a"]);
        assert_eq!(resized(&node, "0.5"), ["40GiB 0.5 gpu0.5a"]);
    }

    #[test]
    fn less_than_a_context_takes_is_refused_with_the_size_that_works() {
        let mut node = node(1, &["0:0.5"]);
        node.gpus[0].context = Bytes::mib(415);
        for (text, hint) in [("1M", "--gpu-memory 512MiB"), ("0.001", "-g 0.007")] {
            let (message, told) = refused(&node, text);
            assert!(message.contains("takes 415.0 MiB"), "{message}");
            assert_eq!(told, format!("the nearest request that fits is {hint}"));
        }
        assert_eq!(resized(&node, "416M").len(), 1);
    }

    #[test]
    fn less_is_a_goal() {
        let node = node(1, &["0:0.5", "0:0.25"]);
        assert_eq!(resized(&node, "10G"), ["40GiB 0.5 gpu00.5a -> 10GiB 0.125"]);
        let target = ResizeTarget {
            memory: Bytes::gib(20),
            share: "0.25".parse().unwrap(),
        };
        let grant = &node.held[0].grants[0];
        let after = grant_at_target(&node, JobId(1), grant, target);
        assert_eq!(
            (after.memory, after.label.as_str()),
            (Bytes::gib(20), "gpu0.25a")
        );
    }

    #[test]
    fn the_same_again_changes_nothing() {
        let node = node(1, &["0:0.25"]);
        for text in ["0.25", "20G", "1x0.25"] {
            assert_eq!(resized(&node, text), ["20GiB 0.25 gpu00.25a"], "{text}");
        }
    }

    #[test]
    fn a_part_becomes_a_whole_gpu_without_other_jobs_and_back() {
        let alone = node(1, &["0:0.5"]);
        assert_eq!(resized(&alone, "1"), ["80GiB 1 gpu0"]);
        let whole = node(1, &["0:1"]);
        assert_eq!(resized(&whole, "1"), ["80GiB 1 gpu0"]);
        assert_eq!(resized(&whole, "0.5"), ["80GiB 1 gpu0 -> 40GiB 0.5"]);
        let (message, hint) = refused(&node(1, &["0:0.5", "0:0.25"]), "1");
        assert_eq!(
            message,
            "1 whole GPU (GPU 0) is not possible now: 0.25 in use, a whole GPU needed"
        );
        assert_eq!(hint, "the largest size with room now is -g 0.75");
    }

    #[test]
    fn every_gpu_of_a_job_gets_the_same_or_none_gets_any() {
        let pair = node(2, &["0:0.25,1:0.25", "1:0.5"]);
        let both = ["40GiB 0.5 gpu0.5a", "40GiB 0.5 gpu1.5a"];
        for text in ["0.5", "2x0.5", "40G"] {
            assert_eq!(resized(&pair, text), both, "{text}");
        }
        let (message, hint) = refused(&pair, "60G");
        assert_eq!(
            message,
            "60 GiB on one GPU (GPU 1) requested: 0.5 more of the GPU needed, 0.25 free; 40.0 GiB more needed, 20.0 GiB free"
        );
        assert_eq!(hint, "the largest size with room now is --gpu-memory 40GiB");
    }

    #[test]
    fn a_running_job_keeps_its_gpus() {
        let node = node(3, &["0:0.25"]);
        let (message, hint) = refused(&node, "2");
        assert_eq!(
            message,
            "a running job keeps its GPUs: it has 1 GPU, and 2 were requested"
        );
        assert_eq!(hint, "use a part of it: --gpu-memory 12G or -g 0.5");
        assert!(matches!(
            resize(&node, JobId(1), amount("1-3")),
            Err(ResizeError::Range)
        ));
    }

    #[test]
    fn what_can_never_be_is_told_from_what_cannot_be_now() {
        let (message, hint) = refused(&node(1, &["0:0.25"]), "81G");
        assert_eq!(
            message,
            "81 GiB on one GPU requested, but GPU 0 is too small: 80.0 GiB in total, 81.0 GiB needed"
        );
        assert_eq!(hint, "the largest possible size is --gpu-memory 80GiB");
        let full = node(1, &["0:0.5", "0:0.5"]);
        let (message, hint) = refused(&full, "41G");
        assert_eq!(
            message,
            "41 GiB on one GPU (GPU 0) requested: 0.013 more of the GPU needed, 0 free; 1.0 GiB more needed, 0 B free"
        );
        assert_eq!(hint, "the rest is held by #2");
    }

    #[test]
    fn memory_of_strangers_is_in_the_way_of_more_and_not_of_less() {
        let mut node = node(1, &["0:0.5"]);
        node.gpus[0].unmanaged = Bytes::gib(50);
        assert!(matches!(
            resize(&node, JobId(1), amount("50G")),
            Err(ResizeError::NoRoom { .. })
        ));
        assert_eq!(resized(&node, "10G"), ["40GiB 0.5 gpu00.5a -> 10GiB 0.125"]);
    }

    #[test]
    fn an_instance_keeps_its_size_and_a_part_becomes_none() {
        let mut node = node(1, &["0:0.25"]);
        let instance = "1g.10gb".parse().unwrap();
        let error = resize(&node, JobId(1), Amount::Mig(instance)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a running job on a slice of a shared GPU cannot move to a MIG instance"
        );
        node.held[0].grants[0].mig = Some(crate::model::slice::MigGrant {
            profile: instance,
            placement: crate::mig::Placement {
                profile: 15,
                start: 0,
            },
        });
        for text in ["0.5", "1", "10G"] {
            assert_eq!(
                refused(&node, text).0,
                "a MIG instance keeps its size while a job holds it",
                "{text}"
            );
        }
    }

    #[test]
    fn a_gpu_that_is_lost_or_not_served_keeps_what_is_held_of_it() {
        let mut lost = node(1, &["0:0.5"]);
        lost.gpus[0].mode = Mode::Unmanaged;
        assert_eq!(
            refused(&lost, "10G").0,
            "GPU 0 is no longer available to jobs"
        );
        lost.gpus.clear();
        assert_eq!(
            refused(&lost, "10G").0,
            "GPU 0 is no longer available to jobs"
        );
    }
}
