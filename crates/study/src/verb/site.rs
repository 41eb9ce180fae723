//! Nodes of a simulation: from a list in a file, or from `--gpus a100-80gb:8,4xh100-80gb:4,+2xa100-80gb`.

use crate::engine::waits::scene::{SceneGpu, SceneNode};
use divvy_core::Bytes;
use divvy_core::Mode as GpuMode;
use divvy_core::mig::{ProfileTable, models};
use divvy_packing::{ModelSet, NodeSpec};

use super::input::MOST_NODES;
use divvy_cli::args;
use divvy_cli::error_output::{Result, usage};

/// GPUs that a node may have. More than any machine has, so that a typing error is found.
const MOST_GPUS: u32 = 1024;
/// Thousandths of a core and GiB beside each GPU, where neither is counted: policies weigh them all the same.
const UNCOUNTED: (u64, u64) = (16_000, 128);

/// Equal nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub nodes: u32,
    pub model: String,
    pub gpus: u32,
    /// Behind `+`: the nodes that a question adds.
    pub added: bool,
}

/// Nodes as `--gpus` names them, with what each has beside its GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    pub groups: Vec<Group>,
    /// `None`: not counted.
    pub cpu_milli: Option<u64>,
    pub memory: Option<Bytes>,
}

impl Groups {
    /// Reads `--gpus`, `--node-cpu` and `--node-memory`; `None` without `--gpus`.
    ///
    /// # Errors
    /// A word that names no nodes, an unknown model, too many nodes.
    pub fn of(args: &args::Simulate) -> Result<Option<Self>> {
        let Some(text) = &args.gpus else {
            return Ok(None);
        };
        let groups: Vec<Group> = text.split(',').map(group).collect::<Result<_>>()?;
        let nodes: u64 = groups.iter().map(|group| u64::from(group.nodes)).sum();
        if nodes > MOST_NODES as u64 {
            return Err(usage(
                format!("--gpus: {nodes} nodes, at most {MOST_NODES} can be simulated"),
                "name fewer nodes",
            ));
        }
        let memory = args.node_memory.as_deref().map(|text| {
            text.parse::<Bytes>()
                .map_err(|error| usage(format!("--node-memory {text}: {error}"), error.hint()))
        });
        Ok(Some(Self {
            groups,
            cpu_milli: args.node_cpu.map(|cores| u64::from(cores) * 1000),
            memory: memory.transpose()?,
        }))
    }

    /// The nodes that are there, or those that a question adds.
    fn nodes(&self, added: bool) -> impl Iterator<Item = &Group> {
        let groups = self.groups.iter().filter(move |group| group.added == added);
        groups.flat_map(|group| (0..group.nodes).map(move |_| group))
    }

    /// Whether there are nodes before any question.
    pub fn has_nodes(&self) -> bool {
        self.nodes(false).next().is_some()
    }

    /// As nodes of a cluster, and the names of the models by index.
    ///
    /// # Errors
    /// A question, which a cluster does not answer, and more models than a cluster can have.
    pub fn specs(&self) -> Result<(Vec<NodeSpec>, Vec<String>)> {
        if self.groups.iter().any(|group| group.added) {
            return Err(usage(
                "--gpus: + asks what more GPUs would change, which needs queues",
                "use --mode waits, or compare two runs with and without the nodes",
            ));
        }
        let mut models: Vec<String> = Vec::new();
        let mut specs = Vec::new();
        for (nth, group) in self.nodes(false).enumerate() {
            let model = models.iter().position(|known| *known == group.model);
            let model = model.unwrap_or_else(|| {
                models.push(group.model.clone());
                models.len() - 1
            });
            let gpus = u64::from(group.gpus);
            specs.push(NodeSpec {
                name: format!("node-{nth:04}"),
                cpu_milli: self.cpu_milli.unwrap_or(UNCOUNTED.0 * gpus),
                memory: match self.memory {
                    Some(memory) => memory.round_down(Bytes::MIB),
                    None => Bytes::gib(UNCOUNTED.1 * gpus),
                },
                gpus: group.gpus,
                model,
                gpu_memory: memory_of(&group.model).map(|memory| memory.round_down(Bytes::MIB)),
            });
        }
        if models.len() > ModelSet::MOST {
            return Err(usage(
                format!(
                    "--gpus: {} models, at most {}",
                    models.len(),
                    ModelSet::MOST
                ),
                "simulate them separately",
            ));
        }
        Ok((specs, models))
    }

    /// As nodes under queues: those that are there, or those that a question adds.
    pub fn scene(&self, added: bool) -> Vec<SceneNode> {
        let name = |nth: usize| {
            if added {
                format!("added-{nth}")
            } else {
                format!("node-{nth}")
            }
        };
        let node = |(nth, group): (usize, &Group)| SceneNode {
            name: name(nth),
            gpus: (0..group.gpus).map(|_| scene_gpu(&group.model)).collect(),
            cpu_milli: self.cpu_milli,
            memory: self.memory,
        };
        self.nodes(added).enumerate().map(node).collect()
    }
}

fn scene_gpu(model: &str) -> SceneGpu {
    SceneGpu {
        model: model.to_owned(),
        mode: GpuMode::Shared,
        memory: memory_of(model).unwrap_or(Bytes::ZERO),
        table: ProfileTable::of_model(model),
    }
}

/// Memory of a GPU by its model, which ends in it: `a100-80gb`.
pub fn memory_of(model: &str) -> Option<Bytes> {
    let (_, size) = model.rsplit_once('-')?;
    let gib: u64 = size.strip_suffix("gb")?.parse().ok()?;
    (1..=4096).contains(&gib).then(|| Bytes::gib(gib))
}

/// One word: `a100-80gb`, `a100-80gb:8`, `4xa100-80gb:8`, `+2xa100-80gb`.
fn group(text: &str) -> Result<Group> {
    let wrong = |why: String| {
        usage(
            format!("--gpus {text}: {why}"),
            "write MODEL:GPUS for one node, NODESxMODEL:GPUS for several, +GPUSxMODEL for more of them",
        )
    };
    let (added, rest) = match text.trim().strip_prefix('+') {
        Some(rest) => (true, rest),
        None => (false, text.trim()),
    };
    let number = |text: &str, what: &str, most: u32| match text.parse() {
        Ok(count) if (1..=most).contains(&count) => Ok(count),
        _ => Err(wrong(format!(
            "{text} is not a number of {what} from 1 to {most}"
        ))),
    };
    let (times, rest) = match rest.split_once('x') {
        Some((times, rest))
            if !times.is_empty() && times.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            (Some(times), rest)
        }
        _ => (None, rest),
    };
    let (model, gpus) = match rest.rsplit_once(':') {
        Some((model, gpus)) => (model, Some(number(gpus, "GPUs", MOST_GPUS)?)),
        None => (rest, None),
    };
    // Without a colon the number counts GPUs, which then are of one node.
    let (nodes, gpus) = match (times, gpus) {
        (Some(times), Some(gpus)) => (number(times, "nodes", MOST_NODES as u32)?, gpus),
        (Some(times), None) => (1, number(times, "GPUs", MOST_GPUS)?),
        (None, gpus) => (1, gpus.unwrap_or(1)),
    };
    if memory_of(model).is_none() {
        let known: Vec<&str> = models().iter().map(|model| model.key.as_str()).collect();
        return Err(usage(
            format!("--gpus {text}: unknown model `{model}`"),
            format!(
                "use {}, or a name that ends in the memory: t4-16gb",
                known.join(", ")
            ),
        ));
    }
    Ok(Group {
        nodes,
        model: model.to_owned(),
        gpus,
        added,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_nodes() {
        for (text, nodes, gpus, added) in [
            ("a100-80gb", 1, 1, false),
            ("a100-80gb:8", 1, 8, false),
            ("4xa100-80gb:8", 4, 8, false),
            ("2xa100-80gb", 1, 2, false),
            ("+2xa100-80gb", 1, 2, true),
            ("+a100-80gb:2", 1, 2, true),
            ("rtxpro6000-96gb:1", 1, 1, false),
        ] {
            let read = group(text).unwrap();
            assert_eq!(
                (read.nodes, read.gpus, read.added),
                (nodes, gpus, added),
                "{text}"
            );
        }
    }

    #[test]
    fn words_that_name_no_nodes_are_refused_with_the_reason() {
        for (text, why) in [
            ("v100:8", "--gpus v100:8: unknown model `v100`"),
            (
                "a100-80gb:0",
                "--gpus a100-80gb:0: 0 is not a number of GPUs from 1 to 1024",
            ),
            ("a100-80gb:1025", "1025 is not a number of GPUs"),
            (
                "0xa100-80gb:8",
                "0 is not a number of nodes from 1 to 100000",
            ),
            ("100001xa100-80gb:8", "100001 is not a number of nodes"),
            ("", "unknown model ``"),
        ] {
            let error = group(text).unwrap_err();
            assert!(error.message.contains(why), "{text}: {}", error.message);
        }
    }

    #[test]
    fn uncounted_cpu_grows_with_the_gpus() {
        let groups = Groups {
            groups: vec![group("2xh100-80gb:4").unwrap()],
            ..Groups::default()
        };
        let (specs, models) = groups.specs().unwrap();
        assert_eq!((specs.len(), models), (2, vec!["h100-80gb".to_owned()]));
        assert_eq!(
            (specs[1].cpu_milli, specs[1].gpu_memory),
            (64_000, Some(Bytes::gib(80)))
        );
    }
}
