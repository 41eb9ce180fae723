//! The scene of a study of waits: nodes, queues, projects and rules, from flags or from the daemon.

use crate::engine::waits::scene::{Scene, SceneNode};
use divvy_core::queue::{Order, QueueSpec};
use divvy_core::units::{ProjectName, QueueName};
use divvy_core::{PendingJob, Project};

use crate::verb::input::{self, Job};
use crate::verb::site::{Groups, memory_of};
use crate::verb::{name, source};
use divvy_cli::args::{self, Rule};
use divvy_cli::error_output::{Result, usage};

/// Queues that a scene may have. More than the daemon takes by hand; so a wrong column is found.
const MOST_QUEUES: usize = 1000;

/// The scene that the flags describe.
///
/// # Errors
/// No nodes, and words that mean none.
pub fn of_flags(args: &args::Simulate) -> Result<Scene> {
    let nodes = nodes(args)?.ok_or_else(|| {
        usage(
            "this study needs GPUs",
            "add --gpus a100-80gb:8, or --nodes FILE; without jobs the daemon's GPUs are used",
        )
    })?;
    with_rules(
        args,
        Scene {
            nodes,
            ..Scene::default()
        },
    )
}

/// The daemon's scene, changed by the flags.
///
/// # Errors
/// As [`of_flags`].
pub fn of_live(args: &args::Simulate, live: Scene) -> Result<Scene> {
    let scene = match nodes(args)? {
        Some(nodes) => Scene { nodes, ..live },
        None => live,
    };
    with_rules(args, scene)
}

fn with_rules(args: &args::Simulate, mut scene: Scene) -> Result<Scene> {
    scene.yields_for_ms = u64::try_from(PendingJob::YIELDS_FOR.as_millis()).ok();
    if !args.rules.is_empty() {
        scene.backfill = args.rules.contains(&Rule::Backfill);
        scene.order = if args.rules.contains(&Rule::Fairness) {
            Order::Fairness
        } else {
            Order::Strict
        };
    }
    for (project, gpus) in &args.projects {
        let project = project_name("--projects", project)?;
        let known = scene
            .projects
            .iter()
            .position(|known| known.name == project);
        let known = known.unwrap_or_else(|| {
            scene.projects.push(Project::new(project));
            scene.projects.len() - 1
        });
        scene.projects[known].quota.gpus = *gpus;
    }
    Ok(scene)
}

/// The nodes of `--nodes` or `--gpus`; `None` where neither names one.
fn nodes(args: &args::Simulate) -> Result<Option<Vec<SceneNode>>> {
    if let Some(path) = &args.nodes {
        let (specs, models) = input::nodes(&source::bytes(path)?)
            .map_err(|error| usage(format!("{}: {error}", name(path)), &error.hint))?;
        let step = usize::try_from(args.part.unwrap_or(1)).unwrap_or(1);
        let workload = crate::engine::workload::Workload {
            nodes: specs,
            pods: Vec::new(),
        };
        let nodes = workload.on_every(step).nodes;
        return Ok(Some(
            nodes
                .into_iter()
                .map(|node| of_spec(node, &models))
                .collect(),
        ));
    }
    let groups = Groups::of(args)?;
    Ok(groups
        .filter(Groups::has_nodes)
        .map(|groups| groups.scene(false)))
}

fn of_spec(node: divvy_packing::NodeSpec, models: &[String]) -> SceneNode {
    let model = models.get(node.model).cloned().unwrap_or_default();
    let memory = node.gpu_memory.or_else(|| memory_of(&model));
    let memory = memory.unwrap_or(divvy_core::Bytes::ZERO);
    let gpu = crate::engine::waits::scene::SceneGpu {
        mode: divvy_core::Mode::Shared,
        memory,
        table: divvy_core::mig::ProfileTable::of_model(&model),
        model,
    };
    SceneNode {
        name: node.name,
        gpus: (0..node.gpus).map(|_| gpu.clone()).collect(),
        cpu_milli: Some(node.cpu_milli),
        memory: Some(node.memory),
    }
}

/// The nodes that the question adds.
///
/// # Errors
/// As [`Groups::of`].
pub fn added(args: &args::Simulate) -> Result<Vec<SceneNode>> {
    Ok(Groups::of(args)?.map_or_else(Vec::new, |groups| groups.scene(true)))
}

/// The scene with every queue of the jobs: those of `--queues` first, then the scene's own, then the rest by name.
///
/// # Errors
/// A word that is no queue, a queue listed twice, too many queues.
pub fn with_queues(args: &args::Simulate, mut scene: Scene, jobs: &[Job]) -> Result<Scene> {
    let mut queues: Vec<QueueSpec> = Vec::new();
    for text in &args.queues {
        let spec = source::queue(text)?;
        if queues.iter().any(|known| known.name == spec.name) {
            return Err(usage(
                format!("--queues: {} is listed twice", spec.name),
                "list each queue once, in priority order",
            ));
        }
        queues.push(spec);
    }
    let mut names: Vec<QueueName> = Vec::new();
    for job in jobs {
        names.push(queue_of(job)?);
    }
    names.sort();
    names.dedup();
    let rest = scene
        .queues
        .into_iter()
        .chain(names.into_iter().map(QueueSpec::open));
    for spec in rest {
        if !queues.iter().any(|known| known.name == spec.name) {
            queues.push(spec);
        }
    }
    if queues.len() > MOST_QUEUES {
        return Err(usage(
            format!(
                "{} queues, at most {MOST_QUEUES} can be simulated",
                queues.len()
            ),
            "select the jobs of fewer queues",
        ));
    }
    scene.queues = queues;
    Ok(scene)
}

/// The queue of a job.
///
/// # Errors
/// A name that no queue may have.
pub fn queue_of(job: &Job) -> Result<QueueName> {
    match &job.queue {
        None => Ok(QueueName::default_queue()),
        Some(queue) => queue.parse().map_err(|error| {
            usage(
                format!("job {}: {error}", job.name),
                "rename the queue in the list",
            )
        }),
    }
}

/// A project by its name.
///
/// # Errors
/// A name that no project may have.
pub fn project_name(flag: &str, text: &str) -> Result<ProjectName> {
    text.parse().map_err(|error: divvy_core::units::IdError| {
        usage(format!("{flag} {text}: {error}"), error.hint())
    })
}
