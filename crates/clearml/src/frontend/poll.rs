//! One poll of the server: the first tasks and the tags of each queue, running tasks, and other daemons' slots.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::context::Context;
use super::task_runner::TaskSnapshot;
use crate::facts::Facts;
use crate::server::{QueueFacts, ServerError, Worker};
use crate::slot::is_slot_of;

/// The request of one poll.
#[derive(Clone, Debug)]
pub struct PollRequest {
    /// Queues with how many of their tasks are wanted.
    pub queues: Vec<(String, usize)>,
    /// Tasks whose names are known.
    pub named: BTreeSet<String>,
    /// The node's projects too.
    pub projects: bool,
    /// Tasks that run.
    pub tasks: Vec<String>,
    /// The list of workers too.
    pub workers: bool,
    /// When it was asked, on the desk's count of changes.
    pub epoch: u64,
}

/// The result of a poll; `None` if the server did not answer.
#[derive(Clone, Debug)]
pub struct PollResult {
    pub epoch: u64,
    pub queues: Vec<Option<QueueFacts>>,
    /// Names of tasks that were not known.
    pub names: BTreeMap<String, Facts>,
    /// Names of the node's projects.
    pub projects: Option<BTreeSet<String>>,
    pub tasks: Option<Arc<TaskSnapshot>>,
    pub workers: Option<Vec<Worker>>,
    /// Why something was not said: then the rest was not asked for.
    pub trouble: Option<String>,
}

/// Tasks whose names one call asks for.
const MOST_NAMED: usize = 200;

/// How many seconds a worker may be unheard and still counts.
const LAST_SEEN: u64 = 600;

/// Looks once. What fails ends the look: a server that does not answer is not asked three things.
pub async fn poll_server(context: Arc<Context>, ask: PollRequest) -> PollResult {
    let mut seen = PollResult {
        epoch: ask.epoch,
        queues: vec![None; ask.queues.len()],
        names: BTreeMap::new(),
        projects: None,
        tasks: None,
        workers: None,
        trouble: None,
    };
    if let Err(error) = fill(&context, ask, &mut seen).await {
        seen.trouble = Some(error.to_string());
    }
    seen
}

async fn fill(
    context: &Context,
    ask: PollRequest,
    seen: &mut PollResult,
) -> Result<(), ServerError> {
    for ((queue, most), place) in ask.queues.iter().zip(&mut seen.queues) {
        match context.server.head(queue, *most).await {
            Ok(queue) => *place = Some(queue),
            Err(error) if error.passes() => return Err(error),
            // One that was deleted says nothing about the others.
            Err(error) => seen.trouble = Some(error.to_string()),
        }
    }
    let entries = seen
        .queues
        .iter()
        .flatten()
        .flat_map(|queue| &queue.entries);
    let unnamed = entries.map(|entry| &entry.task);
    let unnamed: Vec<String> = unnamed
        .filter(|task| !ask.named.contains(*task) && !ask.tasks.contains(task))
        .cloned()
        .collect();
    for some in unnamed.chunks(MOST_NAMED) {
        match context.server.names(some).await {
            Ok(names) => seen.names.extend(names),
            Err(error) if error.passes() => {
                // A task whose project is not known is not placed.
                seen.queues.iter_mut().for_each(|queue| *queue = None);
                return Err(error);
            }
            Err(error) => seen.trouble = Some(error.to_string()),
        }
    }
    if ask.projects {
        let projects = context.client.projects().await.ok();
        seen.projects = projects.map(|all| all.into_iter().map(|project| project.name).collect());
    }
    if !ask.tasks.is_empty() {
        let begun = context.elapsed();
        let found = context.server.tasks(&ask.tasks).await?;
        let mut tasks: BTreeMap<_, _> = ask.tasks.into_iter().map(|id| (id, None)).collect();
        tasks.extend(found.into_iter().map(|task| (task.id.clone(), Some(task))));
        seen.tasks = Some(Arc::new(TaskSnapshot { begun, tasks }));
    }
    if ask.workers {
        seen.workers = Some(
            context
                .server
                .slots(&context.settings.worker_name, LAST_SEEN)
                .await?,
        );
    }
    Ok(())
}

/// GPUs that slots of another daemon of our name are on. A worker's id says which: `node1:gpu2.25a`, `node1:gpu0,1`.
pub fn foreign(name: &str, workers: &[Worker], ours: impl Fn(&str) -> bool) -> Vec<u32> {
    let theirs = workers
        .iter()
        .filter(|worker| is_slot_of(name, &worker.id) && !ours(&worker.id));
    let mut gpus: Vec<u32> = theirs
        .flat_map(|worker| {
            let list = &worker.id[name.len() + ":gpu".len()..];
            list.split(',')
                .filter_map(|one| one.split('.').next()?.parse().ok())
        })
        .collect();
    gpus.sort_unstable();
    gpus.dedup();
    gpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_daemons_slots_are_known_by_name_and_gpu() {
        let workers: Vec<Worker> = [
            "node1:gpu2.25a",
            "node1:gpu0,1",
            "node1:dgpu0-3",
            "node2:gpu3",
            "node1:gpu2.5b",
        ]
        .map(|id| Worker { id: id.into() })
        .into();
        assert_eq!(foreign("node1", &workers, |_| false), [0, 1, 2]);
        assert_eq!(foreign("node1", &workers, |id| id == "node1:gpu0,1"), [2]);
    }
}
