//! One poll of the server: the first tasks and the tags of each queue, running tasks, and other daemons' slots.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use divvy_api::front_end::WorkerHold;

use super::context::Context;
use super::task_runner::TaskSnapshot;
use crate::facts::{Facts, one_line};
use crate::server::{QueueFacts, ServerError, Status, Task, Worker};
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
    /// Slots of our name, and the tasks that they run.
    pub workers: Option<(Vec<Worker>, BTreeMap<String, Task>)>,
    /// Why something was not said: then the rest was not asked for.
    pub trouble: Option<String>,
}

/// Tasks whose names one call asks for. More than the slots of eight GPUs as a rule; a larger answer would hold up the
/// server for other agents.
const MOST_NAMED: usize = 200;

/// Slots of our name that the front end looks at: sixteen times as many as eight GPUs have with the smallest fraction.
const MOST_SLOTS: usize = 1024;

/// How many seconds a worker may be unheard and still counts. The stock agent's timeout ([`super::TIMEOUT`]), so that
/// both agree on which workers live.
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
        let name = &context.settings.worker_name;
        let mut workers = context.server.slots(name, LAST_SEEN).await?;
        workers.retain(|worker| is_slot_of(name, &worker.id));
        workers.truncate(MOST_SLOTS);
        let tasks = workers.iter().filter_map(|worker| worker.task.as_ref());
        let tasks: Vec<String> = tasks.map(|task| task.id.clone()).collect();
        let found = if tasks.is_empty() {
            Vec::new()
        } else {
            context.server.tasks(&tasks).await?
        };
        let found = found.into_iter().map(|task| (task.id.clone(), task));
        seen.workers = Some((workers, found.collect()));
    }
    Ok(())
}

/// Whether a slot of our name that no task of ours runs as uses its GPUs. The server lists a worker for ten minutes
/// after its last report, and lists it again with a report that was under way at its end. A slot is listed with its task
/// from its first report on, so one without a task, or whose task runs nowhere or elsewhere, uses nothing.
pub fn uses_its_gpus(
    worker: &Worker,
    running: &BTreeMap<String, Task>,
    is_ours: impl Fn(&str) -> bool,
) -> bool {
    let Some(task) = &worker.task else {
        return false;
    };
    let runs_there = |task: &Task| {
        let runs = task.status == Status::InProgress;
        runs && task.last_worker().is_none_or(|last| last == worker.id)
    };
    !is_ours(&task.id) && running.get(&task.id).is_some_and(runs_there)
}

/// What a slot uses, by its name: `node1:gpu2.25a` a quarter of GPU 2, `node1:gpu0,1` two GPUs.
pub fn holds(name: &str, worker: &Worker) -> Vec<WorkerHold> {
    let list = worker.id.get(name.len() + ":gpu".len()..);
    let list = list.unwrap_or_default().split(',');
    list.filter_map(|one| {
        let (gpu, part) = one
            .split_once('.')
            .map_or((one, None), |(gpu, part)| (gpu, Some(part)));
        let digits = part.map(|part| part.trim_end_matches(|one: char| !one.is_ascii_digit()));
        let share = match digits {
            None => Some(1000),
            Some(digits) => thousandths(digits),
        };
        Some(WorkerHold {
            gpu: gpu.parse().ok()?,
            // What cannot be read is taken for all of it.
            share: share.unwrap_or(1000),
            holder: describe(worker),
        })
    })
    .collect()
}

/// `25` of `gpu2.25a` is 250 thousandths.
fn thousandths(digits: &str) -> Option<u16> {
    let padded = format!("{digits:0<3}");
    let share = padded.get(..3)?.parse().ok()?;
    (share > 0 && padded.len() == 3).then_some(share)
}

/// The worker with its last sign of life and the end of its entry, for messages.
fn describe(worker: &Worker) -> String {
    let mut words = format!(
        "the ClearML worker {}",
        one_line(&worker.id).unwrap_or_default()
    );
    let named = worker.task.as_ref().and_then(|task| {
        let name = task.name.as_deref().and_then(one_line);
        name.or_else(|| one_line(&task.id))
    });
    if let Some(task) = named {
        words += &format!(" with task {task}");
    }
    let seen = worker.last_activity_time.as_deref();
    let seen: Option<jiff::Timestamp> = seen.and_then(|text| text.parse().ok());
    if let Some(seen) = seen {
        let local = |at: jiff::Timestamp| {
            let zoned = at.to_zoned(jiff::tz::TimeZone::system());
            zoned.strftime("%H:%M:%S").to_string()
        };
        words += &format!(", last heard of at {}", local(seen));
        let ends = i64::try_from(worker.register_timeout.unwrap_or(LAST_SEEN)).ok();
        let ends = ends.and_then(|after| {
            seen.checked_add(jiff::SignedDuration::from_secs(after))
                .ok()
        });
        if let Some(ends) = ends {
            words += &format!("; the server lists it until {}", local(ends));
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::server::WorkerTask;

    fn worker(id: &str, task: Option<&str>) -> Worker {
        Worker {
            id: id.into(),
            task: task.map(|id| WorkerTask {
                id: id.into(),
                name: None,
            }),
            ..Worker::default()
        }
    }

    #[test]
    fn a_slot_of_another_daemon_holds_what_its_name_says() {
        for (id, held) in [
            ("node1:gpu2.25a", vec![(2, 250)]),
            ("node1:gpu0,1", vec![(0, 1000), (1, 1000)]),
            ("node1:gpu2.5b", vec![(2, 500)]),
            ("node1:gpu2.125ab", vec![(2, 125)]),
            // Nothing that this daemon can read: all of the GPU.
            ("node1:gpu2.x", vec![(2, 1000)]),
            ("node1:gpu2.0a", vec![(2, 1000)]),
            ("node1:gpu2.33333a", vec![(2, 1000)]),
            ("node1:gpux", vec![]),
        ] {
            let holds = holds("node1", &worker(id, Some("t")));
            let holds: Vec<_> = holds.iter().map(|held| (held.gpu, held.share)).collect();
            assert_eq!(holds, held, "{id}");
        }
    }

    #[test]
    fn a_listed_slot_uses_gpus_only_while_its_task_runs_there() {
        let task = |value| serde_json::from_value::<Task>(value).unwrap();
        let running = BTreeMap::from([
            (
                "t1".to_owned(),
                task(json!({"status": "in_progress", "last_worker": "node1:gpu0"})),
            ),
            (
                "t2".to_owned(),
                task(json!({"status": "completed", "last_worker": "node1:gpu0"})),
            ),
            (
                "t3".to_owned(),
                task(json!({"status": "in_progress", "last_worker": "node1:gpu1"})),
            ),
            ("t4".to_owned(), task(json!({"status": "in_progress"}))),
        ]);
        for (listed, is) in [
            (Some("t1"), true),
            (Some("t2"), false),
            (Some("t3"), false),
            (Some("t4"), true),
            (Some("deleted"), false),
            (Some("own"), false),
            (None, false),
        ] {
            let worker = worker("node1:gpu0", listed);
            let uses = uses_its_gpus(&worker, &running, |task| task == "own");
            assert_eq!(uses, is, "{listed:?}");
        }
    }

    #[test]
    fn a_worker_that_holds_a_gpu_is_named_with_its_last_sign_of_life() {
        let mut worker = worker("node1:gpu0", Some("4f2"));
        assert_eq!(
            describe(&worker),
            "the ClearML worker node1:gpu0 with task 4f2"
        );
        worker.last_activity_time = Some("2026-11-29T12:00:00.123000+00:00".into());
        worker.register_timeout = Some(600);
        let words = describe(&worker);
        assert!(
            words.contains(", last heard of at ") && words.contains("until "),
            "{words}"
        );
        worker.last_activity_time = Some("soon".into());
        assert!(!describe(&worker).contains("heard"));
    }
}
