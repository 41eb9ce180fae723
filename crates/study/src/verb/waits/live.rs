//! The daemon's present state: its GPUs, queues, projects and jobs.

use crate::engine::waits::scene::{Scene, SceneGpu, SceneNode};
use divvy_api::client::Client;
use divvy_api::v1::{self, Error, ErrorCode};
use divvy_core::mig::{ProfileTable, models};
use divvy_core::project::{Limit, Quota};
use divvy_core::queue::{Order, QueueSpec};
use divvy_core::units::Gpus;
use divvy_core::{Amount, Bytes, Mode, Preemption, Project};

use crate::verb::input::{self, Format, Job, Reading};
use divvy_cli::error_output::Result;
use divvy_cli::{block_on, client};

/// What the daemon has.
pub struct Live {
    pub scene: Scene,
    pub jobs: Vec<Job>,
}

/// Asks the daemon.
///
/// # Errors
/// No daemon, or an answer that this version cannot read.
pub fn read() -> Result<Live> {
    let client = client()?;
    let read = async || -> Result<Live> {
        let jobs = client.jobs(true).await?;
        Ok(Live {
            scene: scene(&client).await?,
            jobs: records(&jobs)?,
        })
    };
    let read = block_on(async { Ok(read().await) });
    let result = read.unwrap_or_else(|_| {
        Err(Error::new(
            ErrorCode::Internal,
            "cannot wait for input and output",
        ))
    });
    result.map_err(|error| match error.code {
        ErrorCode::NoDaemon => error.hint("name a list of jobs, or start a daemon: `divvy daemon`"),
        _ => error,
    })
}

/// The jobs through the reader of their list, so that both mean the same.
fn records(jobs: &[v1::Job]) -> Result<Vec<Job>> {
    let mut text = Vec::new();
    for job in jobs {
        serde_json::to_writer(&mut text, job).map_err(|error| {
            Error::new(ErrorCode::Internal, format!("a job is no JSON: {error}"))
        })?;
        text.push(b'\n');
    }
    let read = input::jobs(&text, Format::History, Reading::default());
    let read = read.map_err(|error| Error::new(ErrorCode::Internal, error.to_string()))?;
    Ok(read.jobs)
}

async fn scene(client: &Client) -> Result<Scene> {
    let gpus = client.gpus().await?;
    let queues = client.queues().await?;
    let projects = client.projects().await?;
    let node = client.node().await?;
    let spec = |queue: v1::Queue| -> Result<QueueSpec> {
        Ok(QueueSpec {
            name: queue.name.parse().map_err(unreadable)?,
            amount: queue.amount.map(Amount::try_from).transpose()?,
        })
    };
    Ok(Scene {
        order: match node.order.as_str() {
            "strict" => Order::Strict,
            "fairness" => Order::Fairness,
            other => return Err(unreadable(format!("unknown order {other}"))),
        },
        backfill: node.backfill,
        preemption: match node.preemption.as_str() {
            "off" => Preemption::Off,
            _ => Preemption::On,
        },
        nodes: vec![SceneNode {
            name: "this machine".to_owned(),
            gpus: gpus.iter().map(gpu).collect::<Result<_>>()?,
            cpu_milli: None,
            memory: None,
        }],
        queues: queues.into_iter().map(spec).collect::<Result<_>>()?,
        projects: projects.into_iter().map(project).collect::<Result<_>>()?,
        ..Scene::default()
    })
}

fn unreadable(error: impl std::fmt::Display) -> Error {
    Error::new(
        ErrorCode::Internal,
        format!("unexpected answer of the daemon: {error}"),
    )
}

fn gpu(gpu: &v1::Gpu) -> Result<SceneGpu> {
    let known = models()
        .iter()
        .find(|model| model.names.contains(&gpu.model));
    let mode: Mode = gpu.mode.parse().map_err(unreadable)?;
    Ok(SceneGpu {
        model: gpu.model.clone(),
        mode,
        memory: Bytes::new(gpu.memory_usable_bytes),
        table: known.and_then(|model| ProfileTable::of_model(&model.key)),
    })
}

fn project(project: v1::Project) -> Result<Project> {
    Ok(Project {
        quota: Quota {
            gpus: Gpus::from_thousandths(project.quota),
            memory: project.quota_memory_bytes.map(Bytes::new),
        },
        weight: project.weight,
        limit: Limit {
            gpus: project.limit.map(Gpus::from_thousandths),
            memory: project.limit_memory_bytes.map(Bytes::new),
        },
        priority: project.priority,
        min_runtime_s: project.min_runtime_s,
        members: project.members,
        ..Project::new(project.name.parse().map_err(unreadable)?)
    })
}
