//! Jobs as shapes of a cluster: amounts, and GPU models by index.

use std::collections::BTreeSet;

use crate::engine::workload::Pod;
use divvy_core::{Amount, Bytes, Share};
use divvy_packing::{ModelSet, NodeSpec, Shape};

use super::input::Job;
use divvy_cli::error_output::{Result, usage};

/// Whether jobs' CPU and main memory count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    pub cpu: bool,
    pub memory: bool,
}

/// Shapes of jobs, and the number of jobs that ask for memory of GPUs whose memory is unknown.
#[derive(Clone, Debug, Default)]
pub struct Shapes {
    pub pods: Vec<Pod>,
    /// For each pod, the index of its job.
    pub jobs: Vec<usize>,
    pub unknown_memory: usize,
}

/// The jobs' shapes on these nodes.
///
/// # Errors
/// A job that accepts only models which no node has.
pub fn shapes(
    jobs: &[Job],
    nodes: &[NodeSpec],
    models: &[String],
    counted: Counted,
) -> Result<Shapes> {
    let knows_memory = nodes.iter().any(|node| node.gpu_memory.is_some());
    let mut shapes = Shapes::default();
    for (nth, job) in jobs.iter().enumerate() {
        let accepted = accepted(job, models)?;
        let shape = shape(job, accepted, counted);
        if shape.gpus > 0 && shape.share.is_none() && !knows_memory {
            shapes.unknown_memory += 1;
            continue;
        }
        shapes.jobs.push(nth);
        shapes.pods.push(Pod {
            // Names of jobs repeat in some lists, and orders are drawn from names.
            name: format!("{}\u{0}{nth:09}", job.name),
            shape,
        });
    }
    Ok(shapes)
}

fn shape(job: &Job, models: ModelSet, counted: Counted) -> Shape {
    // Whole MiB, as lists of nodes and jobs have their memory: so the shares that follow stay as published.
    let whole_mib = |memory: Bytes| Some(memory.round_up(Bytes::MIB));
    let (gpus, share, gpu_memory) = match job.amount.map(Amount::plain) {
        None => (0, None, None),
        Some(Amount::Share(share)) => (1, Some(share), None),
        Some(Amount::Shares { count, share }) => (count.get(), Some(share), None),
        Some(Amount::Whole(count)) => (count.get(), Some(Share::FULL), None),
        Some(Amount::Range { min, .. }) => (min.get(), Some(Share::FULL), None),
        Some(Amount::Memory(memory)) => (1, None, whole_mib(memory)),
        Some(Amount::Mig(profile)) => (1, None, whole_mib(profile.nominal())),
    };
    let memory = Bytes::mib(job.memory_mib);
    Shape {
        cpu_milli: if counted.cpu { job.cpu_milli } else { 0 },
        memory: if counted.memory { memory } else { Bytes::ZERO },
        gpus,
        share,
        gpu_memory,
        models,
    }
}

/// Whether a node's model is the one that a job names: `a100` means each `a100-…`.
pub fn is_model(node: &str, named: &str) -> bool {
    let rest = node
        .get(..named.len())
        .filter(|start| start.eq_ignore_ascii_case(named))
        .map(|_| &node[named.len()..]);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// Numbers the models in the order of their names, and returns the names by index.
///
/// A name that one job repeats (`V100M16|V100M32|V100M32`) is a further model, which no node has: the published figures of
/// FGD count such a job as a shape of its own, and break ties by name.
pub fn number_models(nodes: &mut [NodeSpec], models: &[String], jobs: &[Job]) -> Vec<String> {
    let repeated = jobs.iter().flat_map(|job| numbered(&job.models));
    let repeated = repeated.filter(|name| name.ends_with(REPEATED));
    let all: BTreeSet<String> = models.iter().cloned().chain(repeated).collect();
    if all.len() > ModelSet::MOST {
        return models.to_vec();
    }
    let all: Vec<String> = all.into_iter().collect();
    for node in nodes.iter_mut().filter(|node| node.gpus > 0) {
        let at = all.iter().position(|name| *name == models[node.model]);
        node.model = at.unwrap_or(node.model);
    }
    all
}

/// Ends the name of a model that one job repeats.
const REPEATED: char = '+';

/// The names, and each repeated one with a mark for each time before.
fn numbered(names: &[String]) -> impl Iterator<Item = String> + '_ {
    names.iter().enumerate().map(|(at, name)| {
        let before = names[..at].iter().filter(|other| *other == name).count();
        format!("{name}{}", REPEATED.to_string().repeat(before))
    })
}

fn accepted(job: &Job, models: &[String]) -> Result<ModelSet> {
    if job.models.is_empty() {
        return Ok(ModelSet::ANY);
    }
    let mut set = ModelSet::ANY;
    for named in numbered(&job.models) {
        let indices = (0..)
            .zip(models)
            .filter(|(_, model)| is_model(model, &named));
        set = indices.fold(set, |set, (index, _)| set.with(index));
    }
    if set.is_bound() {
        return Ok(set);
    }
    let place = match job.line {
        0 => String::new(),
        line => format!("line {line}, "),
    };
    let named = job.models.join("|");
    let of_nodes = models.iter().filter(|name| !name.ends_with(REPEATED));
    let of_nodes: Vec<&str> = of_nodes.map(String::as_str).collect();
    Err(usage(
        format!(
            "{place}job {}: unknown model `{named}`: no node has it",
            job.name
        ),
        format!("the nodes have {}", of_nodes.join(", ")),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Counted = Counted {
        cpu: true,
        memory: true,
    };

    fn node(gpu_memory: Option<Bytes>) -> NodeSpec {
        NodeSpec {
            name: "n".to_owned(),
            cpu_milli: 8000,
            memory: Bytes::gib(16),
            gpus: 8,
            model: 0,
            gpu_memory,
        }
    }

    #[test]
    fn a_model_is_named_in_full_or_up_to_a_dash() {
        assert!(is_model("a100-80gb", "a100") && is_model("V100M16", "V100M16"));
        assert!(!is_model("a100-80gb", "a10") && !is_model("a100", "a100-80gb"));
    }

    #[test]
    fn amounts_become_shapes_and_unknown_models_errors() {
        let models = ["a100-80gb".to_owned(), "t4-16gb".to_owned()];
        let job = |amount| Job {
            name: "j".to_owned(),
            amount: Some(amount),
            cpu_milli: 500,
            ..Job::default()
        };
        let memory = job(Amount::Memory(Bytes::new((4 << 30) + 1)));
        let mig = job(Amount::Mig("2g.10gb".parse().unwrap()));
        let mut bound = job(Amount::ONE_GPU);
        bound.models = vec!["t4".to_owned()];
        let read = shapes(
            &[memory.clone(), mig, bound.clone()],
            &[node(Some(Bytes::gib(80)))],
            &models,
            BOTH,
        );
        let read = read.unwrap();
        let all: Vec<_> = read.pods.iter().map(|pod| pod.shape).collect();
        assert_eq!(
            (all[0].share, all[0].gpu_memory),
            (None, Some(Bytes::mib(4097)))
        );
        assert_eq!(all[1].gpu_memory, Some(Bytes::gib(10)));
        assert_eq!(
            (all[2].share, all[2].models),
            (Some(Share::FULL), ModelSet::ANY.with(1))
        );
        let without = shapes(&[memory], &[node(None)], &models, BOTH).unwrap();
        assert_eq!((without.pods.len(), without.unknown_memory), (0, 1));
        bound.models = vec!["G9".to_owned()];
        let error = shapes(&[bound], &[node(None)], &models, BOTH).unwrap_err();
        assert_eq!(error.message, "job j: unknown model `G9`: no node has it");
    }

    #[test]
    fn models_are_numbered_by_name_and_a_repeated_name_is_a_further_one() {
        let mut nodes = [node(None), node(None)];
        nodes[0].model = 0;
        nodes[1].model = 1;
        let job = |models: &[&str]| Job {
            models: models.iter().map(|name| (*name).to_owned()).collect(),
            ..Job::default()
        };
        let jobs = [job(&["T4", "P100", "P100"]), job(&["P100"])];
        let names = ["T4".to_owned(), "P100".to_owned()];
        let models = number_models(&mut nodes, &names, &jobs);
        assert_eq!(models, ["P100", "P100+", "T4"]);
        assert_eq!(nodes.each_ref().map(|node| node.model), [2, 0]);
        let sets = jobs.each_ref().map(|job| accepted(job, &models).unwrap());
        assert_eq!(sets[0], ModelSet::ANY.with(0).with(1).with(2));
        assert_eq!(sets[1], ModelSet::ANY.with(0));
        let error = accepted(&job(&["H100"]), &models).unwrap_err();
        assert_eq!(error.hint.as_deref(), Some("the nodes have P100, T4"));
    }
}
