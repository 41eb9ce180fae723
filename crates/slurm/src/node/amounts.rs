//! The part of each GPU that a job has: shards of the job ÷ shards of the GPU, or `--gpu-memory` within them.

use divvy_core::Bytes;

use super::allocation::{Gres, Kind};
use super::gres::Layout;

/// A job's part of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Slurm's number of the GPU.
    pub gpu: u32,
    /// Number of its device file; Slurm's number where that is not known.
    pub minor: u32,
    /// Shards of the job on the GPU, and of the GPU; `None` for a whole GPU.
    pub shards: Option<(u64, u64)>,
    /// `--gpu-memory`.
    pub memory: Option<Bytes>,
}

impl Part {
    /// Thousandths of the GPU, rounded down so that all jobs of a GPU fit; 1000 for a whole one.
    pub fn thousandths(&self) -> u16 {
        match self.shards {
            None => 1000,
            Some((of_job, of_gpu)) => {
                let thousandths = u128::from(of_job) * 1000 / u128::from(of_gpu.max(1));
                u16::try_from(thousandths).unwrap_or(1000).min(1000)
            }
        }
    }

    /// Whether the job has more memory than its shards; then why, for a GPU with this much memory to give out.
    pub fn excess(&self, usable: Bytes) -> Option<String> {
        let memory = self.memory?;
        let most = Bytes::new(
            u64::try_from(u128::from(usable.get()) * u128::from(self.thousandths()) / 1000)
                .unwrap_or(u64::MAX),
        );
        let (of_job, of_gpu) = self.shards.unwrap_or((1, 1));
        (memory > most).then(|| {
            let [asked, most] = memory.human_beside(most);
            format!(
                "--gpu-memory {asked} is more than the job's {of_job} of {of_gpu} shards of GPU {}, which are {most}: \
                 Slurm places jobs by shards, so ask for more of them",
                self.gpu
            )
        })
    }
}

/// The parts of a job, by Slurm's number of the GPU. Empty where Slurm itself hands out instances of MIG.
///
/// # Errors
/// In words, when Slurm's amounts cannot be a part of each GPU.
pub fn parts(gres: &[Gres], layout: &Layout, memory: Option<u64>) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    for gres in gres {
        let mut left = gres.count;
        for (at, &gpu) in gres.gpus.iter().enumerate() {
            let place = layout.get(&gpu).cloned().unwrap_or_default();
            let shards = match gres.kind {
                Kind::Gpu if place.is_instance && memory.is_none() => continue,
                Kind::Gpu if place.is_instance => {
                    return Err(format!(
                        "--gpu-memory: GPU {gpu} of Slurm is an instance of MIG, which the hardware limits: leave the option out"
                    ));
                }
                Kind::Gpu => None,
                Kind::Shard => {
                    let told = (gres.shards.as_ref()).and_then(|shards| shards.get(at).copied());
                    let of_gpu = told.map(|(_, of_gpu)| of_gpu).or(place.shards);
                    let of_gpu = of_gpu.filter(|&shards| shards > 0).ok_or_else(|| {
                        format!(
                            "Slurm does not say how many shards GPU {gpu} has, so {} shards are no part of it: list \
                             them in gres.conf, or set shards_per_gpu in /etc/divvy/slurm.toml",
                            gres.count
                        )
                    })?;
                    let others = gres.gpus.len() - at - 1;
                    let here = match told {
                        Some((of_job, _)) => of_job,
                        // Older releases name one number for all GPUs of the job, which is clear if it fills them all.
                        None if others > 0 => of_gpu,
                        None => left,
                    };
                    let differ = place.shards.is_some_and(|shards| shards != of_gpu);
                    if here == 0 || here > of_gpu || here > left || differ {
                        return Err(format!(
                            "the job has {} shards on GPUs {:?}, and GPU {gpu} has {of_gpu}: Slurm and its gres.conf \
                             disagree on this node",
                            gres.count, gres.gpus
                        ));
                    }
                    left = left.saturating_sub(here);
                    Some((here, of_gpu))
                }
            };
            parts.push(Part {
                gpu,
                minor: place.minor.unwrap_or(gpu),
                shards,
                memory: memory.map(Bytes::new),
            });
        }
        let is_unclear = gres.shards.is_none() && gres.gpus.len() > 1 && !fills(gres, layout);
        if gres.kind == Kind::Shard && is_unclear {
            return Err(format!(
                "the job has {} shards on GPUs {:?}, and Slurm does not say how many on each: ask for shards of one GPU",
                gres.count, gres.gpus
            ));
        }
    }
    if let Some(part) = parts.iter().find(|part| part.thousandths() == 0) {
        let (of_job, of_gpu) = part.shards.unwrap_or_default();
        return Err(format!(
            "{of_job} of {of_gpu} shards is less than a thousandth of GPU {}, Divvy's smallest part",
            part.gpu
        ));
    }
    Ok(parts)
}

fn fills(gres: &Gres, layout: &Layout) -> bool {
    let all = gres.gpus.iter().map(|gpu| layout.get(gpu)?.shards);
    all.sum::<Option<u64>>() == Some(gres.count)
}

/// Whether the job has nothing but whole GPUs, without `--gpu-memory`.
pub fn is_all_whole(parts: &[Part]) -> bool {
    parts
        .iter()
        .all(|part| part.shards.is_none() && part.memory.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::gres::Place;

    fn layout(shards: &[Option<u64>]) -> Layout {
        let place = |(at, &shards): (usize, &Option<u64>)| {
            let number = u32::try_from(at).unwrap();
            let place = Place {
                shards,
                minor: Some(number + 4),
                is_instance: false,
            };
            (number, place)
        };
        shards.iter().enumerate().map(place).collect()
    }

    fn of(kind: Kind, count: u64, gpus: &[u32]) -> [Gres; 1] {
        [Gres {
            kind,
            count,
            gpus: gpus.to_vec(),
            shards: None,
        }]
    }

    /// As Slurm tells since 23.11.
    fn told(count: u64, shards: &[(u64, u64)]) -> [Gres; 1] {
        let gpus: Vec<u32> = (0..).take(shards.len()).collect();
        let [gres] = of(Kind::Shard, count, &gpus);
        [Gres {
            shards: Some(shards.to_vec()),
            ..gres
        }]
    }

    #[test]
    fn shards_of_each_gpu_are_taken_where_slurm_tells_them() {
        let two = parts(&told(11, &[(3, 8), (8, 8)]), &layout(&[None, None]), None).unwrap();
        let thousandths: Vec<u16> = two.iter().map(Part::thousandths).collect();
        assert_eq!(thousandths, [375, 1000]);
        for shards in [(9, 8), (3, 0), (4, 8), (3, 4)] {
            let error = parts(&told(3, &[shards]), &layout(&[Some(8)]), None).unwrap_err();
            assert!(error.contains("GPU 0 has"), "{error}");
        }
    }

    #[test]
    fn shards_are_a_part_of_their_gpu_rounded_down() {
        for (of_job, of_gpu, expected) in [(2, 8, 250), (1, 3, 333), (8, 8, 1000), (1, 1000, 1)] {
            let parts = parts(
                &of(Kind::Shard, of_job, &[1]),
                &layout(&[None, Some(of_gpu)]),
                None,
            );
            let part = &parts.unwrap()[0];
            assert_eq!((part.thousandths(), part.minor), (expected, 5));
        }
    }

    #[test]
    fn amounts_on_which_slurm_and_divvy_disagree_are_refused_with_the_numbers() {
        let eight = layout(&[Some(8), Some(8)]);
        for (gres, layout, part) in [
            (
                of(Kind::Shard, 2, &[0]),
                &layout(&[None]),
                "how many shards GPU 0 has",
            ),
            (
                of(Kind::Shard, 2, &[0]),
                &layout(&[Some(0)]),
                "how many shards GPU 0 has",
            ),
            (
                of(Kind::Shard, 9, &[0]),
                &eight,
                "9 shards on GPUs [0], and GPU 0 has 8",
            ),
            (
                of(Kind::Shard, 12, &[0, 1]),
                &eight,
                "does not say how many on each",
            ),
            (
                of(Kind::Shard, 1, &[0]),
                &layout(&[Some(1001)]),
                "1 of 1001 shards is less than",
            ),
        ] {
            let error = parts(&gres, layout, None).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        let all = parts(&of(Kind::Shard, 16, &[0, 1]), &eight, None).unwrap();
        assert!(all.iter().all(|part| part.thousandths() == 1000));
    }

    #[test]
    fn memory_beyond_the_shards_is_refused_because_slurm_packs_by_shards() {
        let memory = Some(8 << 30);
        let two = parts(&of(Kind::Shard, 2, &[0]), &layout(&[Some(8)]), memory).unwrap();
        assert_eq!(two[0].excess(Bytes::gib(32)), None);
        let error = two[0].excess(Bytes::gib(31)).unwrap();
        assert!(
            error.contains("8.0 GiB is more than the job's 2 of 8 shards"),
            "{error}"
        );
        assert!(
            error.contains("7.8 GiB") || error.contains("7.7 GiB"),
            "{error}"
        );
        let whole = parts(&of(Kind::Gpu, 1, &[0]), &layout(&[None]), memory).unwrap();
        assert_eq!(whole[0].excess(Bytes::gib(8)), None);
        assert!(!is_all_whole(&whole));
    }

    #[test]
    fn instances_of_mig_that_slurm_hands_out_are_left_to_the_hardware() {
        let mut layout = layout(&[None]);
        layout.get_mut(&0).unwrap().is_instance = true;
        let one = of(Kind::Gpu, 1, &[0]);
        assert_eq!(parts(&one, &layout, None).unwrap(), []);
        let error = parts(&one, &layout, Some(1 << 30)).unwrap_err();
        assert!(error.contains("instance of MIG"), "{error}");
    }
}
