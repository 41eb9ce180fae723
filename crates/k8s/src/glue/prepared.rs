//! The glue's configuration from its files, checked before any call of the server or the cluster.

use std::io::Write;
use std::path::PathBuf;

use divvy_clearml::facts::Facts;
use serde_json::{Value, json};

use super::record::{Logged, Record, holder};
use super::values::{InvalidValue, Problems, Queue, Values};
use super::{Args, GlueError, pod, task_state};
use crate::base::pod_request::{Steps, parse_pod_request};

/// The content of the files.
pub struct Prepared {
    pub values: Values,
    pub manifest: Value,
}

/// Reads them, and tries each queue's template.
///
/// # Errors
/// A file that cannot be read, and what is wrong in it.
pub fn prepared(args: &Args) -> Result<Prepared, GlueError> {
    let read = |path: &PathBuf| {
        std::fs::read_to_string(path).map_err(|source| GlueError::Read {
            path: path.clone(),
            source,
        })
    };
    let wrong = |path: &PathBuf| {
        let path = path.clone();
        move |wrong| GlueError::Values { path, wrong }
    };
    let values = Values::parse(&read(&args.values)?).map_err(wrong(&args.values))?;
    for note in &values.notes {
        eprintln!("note: {}: {note}", args.values.display());
    }
    let manifest = match &args.pod_template {
        None => json!({}),
        Some(path) => {
            let manifest = pod::manifest(&read(path)?).map_err(Problems::from);
            manifest.map_err(wrong(path))?
        }
    };
    let prepared = Prepared { values, manifest };
    let mut problems = Problems::default();
    for queue in &prepared.values.queues {
        let sample = problems.take(prepared.sample(queue, "divvy-k8s", "IMAGE"));
        // With Divvy's webhook every task of such a queue would fail; without it, another controller may understand it.
        if let Err(refusal) = parse_pod_request(&sample, Steps::Any) {
            eprintln!(
                "warning: queue {}: Divvy's webhook would refuse its pods: {refusal}",
                queue.name
            );
        }
    }
    problems.none_in(prepared).map_err(GlueError::Queues)
}

impl Prepared {
    /// The pod that a task of a queue would have.
    fn sample(&self, queue: &Queue, worker: &str, image: &str) -> Result<Value, InvalidValue> {
        let record = Record {
            task: "TASK".to_owned(),
            queue_id: "QUEUE".to_owned(),
            queue_name: queue.name.clone(),
            mark: task_state::ClaimPhase::Ours,
            was_stopped: false,
            logged: Logged::Nothing,
        };
        let asked = pod::TaskPodSpec {
            record: &record,
            facts: &Facts::default(),
            holder: &holder(worker),
            image: None,
            default_image: self.values.image.as_deref().unwrap_or(image),
            env: &[],
            worker: &format!("{worker}:TASK"),
            files: &self.values.files(queue),
            token: false,
            pull: false,
        };
        let pod = pod::pod(&self.manifest, &self.values.layers(queue), &asked);
        let pod = pod.and_then(|pod| {
            let pod = serde_json::to_value(pod);
            pod.map_err(|error| InvalidValue::new("the pod", &error.to_string()))
        });
        pod.map_err(|wrong| InvalidValue {
            at: format!("queue {}: {}", queue.name, wrong.at),
            ..wrong
        })
    }

    /// Prints the pod of a task of each queue.
    ///
    /// # Errors
    /// Standard output does not take it.
    pub fn print(&self, worker: &str) -> Result<(), GlueError> {
        let mut out = std::io::stdout().lock();
        for queue in &self.values.queues {
            let wrong = |wrong| GlueError::Queues(Problems::from(wrong));
            let pod = self.sample(queue, worker, "IMAGE").map_err(wrong)?;
            let text = yaml_serde::to_string(&pod)
                .map_err(|error| wrong(InvalidValue::new("the pod", &error.to_string())))?;
            write!(out, "---\n# a task of the queue {}\n{text}", queue.name)
                .map_err(GlueError::Write)?;
        }
        Ok(())
    }
}
