//! Slurm's GPUs of the node: their device files and the number of shards on each.
//!
//! ```text
//! slurmd: Gres Name=shard Type=a100 Count=8 Index=0 ID=1918986455 File=/dev/nvidia0 (null)
//! slurmd: Gres Name=gpu Type=a100 Count=1 Index=0 ID=7696487 File=/dev/nvidia0 (null)
//! ```

use std::collections::BTreeMap;

use super::allocation::{Gres, Kind};
use super::config::Config;
use super::programs::Programs;

/// A GPU as Slurm has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Shards of the GPU; `None` if Slurm does not say.
    pub shards: Option<u64>,
    /// Number in the name of the device file, `/dev/nvidia3`; `None` if Slurm does not say.
    pub minor: Option<u32>,
    /// Whether the device is an instance of MIG, which Slurm hands out itself.
    pub is_instance: bool,
}

/// The GPUs of the node by Slurm's number: the place in its list of GPUs.
pub type Layout = BTreeMap<u32, Place>;

/// The layout that `slurmd -G` shows. A job of whole GPUs goes on without it where `slurmd` does not answer.
pub fn layout(programs: &Programs, config: &Config, asked: &[Gres], node: &str) -> Layout {
    let shown = programs.run("slurmd", &["-G"]).or_else(|_| {
        // A build with several slurmd on a machine asks for the node.
        programs.run("slurmd", &["-N", node, "-G"])
    });
    let mut layout = parse(&shown.unwrap_or_default());
    for gpu in asked.iter().flat_map(|gres| &gres.gpus) {
        let place = layout.entry(*gpu).or_default();
        if asked.iter().any(|gres| gres.kind == Kind::Shard) {
            place.shards = place.shards.or(config.shards_per_gpu.map(u64::from));
        }
    }
    layout
}

/// Slurm numbers GPUs by their place among its GPUs, and `Index` is the number of the device file.
fn parse(text: &str) -> Layout {
    let (mut gpus, mut shards) = (Vec::new(), BTreeMap::<&str, u64>::new());
    for line in text.lines() {
        let Some((_, rest)) = line.split_once("Gres Name=") else {
            continue;
        };
        let field = |key: &str| {
            let mut words = rest.split_whitespace();
            words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
        };
        let Some(file) = field("File") else {
            continue;
        };
        match rest.split_whitespace().next() {
            Some("gpu") => gpus.push(file),
            Some("shard") => {
                let count = field("Count").and_then(|count| count.parse().ok());
                let sum = shards.entry(file).or_default();
                *sum = sum.saturating_add(count.unwrap_or(0));
            }
            _ => {}
        }
    }
    let place = |(number, file): (u32, &str)| {
        let place = Place {
            shards: shards.get(file).copied(),
            minor: minor(file),
            is_instance: file.contains("nvidia-cap"),
        };
        (number, place)
    };
    (0..).zip(gpus).map(place).collect()
}

/// The number at the end of the first device file's name.
fn minor(file: &str) -> Option<u32> {
    let first = file.split(',').next()?;
    let digits = first.len()
        - first
            .trim_end_matches(|letter: char| letter.is_ascii_digit())
            .len();
    first[first.len() - digits..].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: &str = include_str!("../../tests/it/data/slurmd-gres.txt");
    const SHOWN_BY_26_05: &str = include_str!("../../tests/it/data/slurmd-gres-26.05.txt");

    #[test]
    fn what_slurmd_shows_has_the_shards_and_the_file_of_each_gpu() {
        let layout = parse(SHOWN);
        let eight = |minor| Place {
            shards: Some(8),
            minor: Some(minor),
            is_instance: false,
        };
        assert_eq!(layout, Layout::from([(0, eight(0)), (1, eight(1))]));
        assert_eq!(parse(SHOWN_BY_26_05), layout);
        assert_eq!(parse("slurmd: error: no gres"), Layout::new());
    }

    #[test]
    fn a_gpu_has_slurms_number_by_its_place_and_not_by_its_file() {
        let second = SHOWN.lines().filter(|line| line.contains("nvidia1"));
        let second: Vec<&str> = second.collect();
        let layout = parse(&second.join("\n"));
        assert_eq!(layout.keys().collect::<Vec<_>>(), [&0]);
        assert_eq!((layout[&0].minor, layout[&0].shards), (Some(1), Some(8)));
    }

    #[test]
    fn an_instance_of_mig_is_known_by_its_files() {
        let text = "slurmd: Gres Name=gpu Type=1g Count=1 Index=0 ID=1 \
                    File=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21,/dev/nvidia-caps/nvidia-cap22 Links=(null)";
        let place = &parse(text)[&0];
        assert!(place.is_instance);
        assert_eq!(place.minor, Some(0));
    }
}
