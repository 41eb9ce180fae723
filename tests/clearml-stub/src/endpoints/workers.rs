//! Workers: known for as long as they give signs of life.

use std::time::Duration;

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::Answer;
use crate::json::{Fields, string, strings};
use crate::refusal::Refusal;
use crate::world::{USER, Worker, World, stamp};

/// How long a worker is remembered that does not say: the server's default.
const TIMEOUT: u64 = 600;
/// Fields of machine stats. The server drops others, `gpu_fraction` among them.
const STATS: &str = "cpu_usage:list cpu_temperature:list gpu_usage:list gpu_temperature:list gpu_memory_free:list \
                     gpu_memory_used:list memory_used:number memory_free:number network_tx:number network_rx:number \
                     disk_free_home:number disk_free_temp:number disk_read:number disk_write:number ~gpu_fraction:list";

pub(super) fn register(world: &mut World, body: &Fields) -> Answer {
    let queues = owned(strings(body, "queues"));
    if let Some(unknown) = queues
        .iter()
        .find(|queue| !world.queues.contains_key(*queue))
    {
        return Err(Refusal::no_queue(unknown));
    }
    let timeout = body
        .get("timeout")
        .and_then(Value::as_u64)
        .filter(|timeout| *timeout > 0);
    let worker = Worker {
        queues,
        tags: owned(strings(body, "tags")),
        timeout: Duration::from_secs(timeout.unwrap_or(TIMEOUT)),
        ..fresh(world, string(body, "worker"))
    };
    world.workers.insert(worker.id.clone(), worker);
    Ok(json!({}))
}

pub(super) fn unregister(world: &mut World, body: &Fields) -> Answer {
    // An unknown one counts as unregistered (`apiserver.workers.auto_unregister`).
    world.workers.remove(string(body, "worker"));
    Ok(json!({}))
}

pub(super) fn status_report(world: &mut World, body: &Fields) -> Answer {
    let stats = body.get("machine_stats").and_then(Value::as_object);
    if let Some(stats) = stats {
        crate::schema::check(STATS, stats)?;
    }
    let (now, id) = (world.now(), string(body, "worker"));
    // One that is not known becomes so.
    let mut worker = world.workers.remove(id).unwrap_or_else(|| fresh(world, id));
    worker.seen = now;
    worker.reports += 1;
    for (list, field) in [(&mut worker.queues, "queues"), (&mut worker.tags, "tags")] {
        let said = strings(body, field);
        if !said.is_empty() {
            *list = owned(said);
        }
    }
    if let Some(stats) = stats {
        worker.stats = json!(stats);
    }
    let task = body.get("task").and_then(Value::as_str);
    worker.task = task
        .map(str::to_owned)
        .filter(|task| world.tasks.contains_key(task));
    let (worker_id, stamp) = (worker.id.clone(), world.stamp());
    world.workers.insert(worker_id.clone(), worker);
    if let Some(task) = task {
        if !world.tasks.contains_key(task) {
            return Err(Refusal::no_task(task));
        }
        world.set(task, "last_worker", json!(worker_id));
        for field in ["last_worker_report", "last_update", "last_change"] {
            world.set(task, field, stamp.clone());
        }
    }
    Ok(json!({}))
}

pub(super) fn get_all(world: &mut World, body: &Fields) -> Answer {
    let pattern = string(body, "worker_pattern").trim_end_matches('*');
    let seen = body
        .get("last_seen")
        .and_then(Value::as_i64)
        .unwrap_or(3600)
        .max(1);
    let since = world.now() - SignedDuration::from_secs(seen);
    let shown = world
        .workers()
        .filter(|worker| worker.seen >= since && worker.id.starts_with(pattern));
    Ok(json!({ "workers": shown.map(|worker| entry(world, worker)).collect::<Vec<_>>() }))
}

fn entry(world: &World, worker: &Worker) -> Value {
    let queues = worker.queues.iter().map(|id| {
        let name = world
            .queues
            .get(id)
            .map(|queue| string(&queue.fields, "name"));
        json!({ "id": id, "name": name })
    });
    let task = worker.task.as_ref().map(|id| {
        let name = world.tasks.get(id).map(|task| string(task, "name"));
        json!({ "id": id, "name": name })
    });
    json!({
        "id": worker.id, "user": { "id": USER, "name": USER }, "ip": "127.0.0.1", "task": task,
        "queues": queues.collect::<Vec<_>>(), "tags": worker.tags, "register_timeout": worker.timeout.as_secs(),
        "register_time": stamp(worker.registered), "last_activity_time": stamp(worker.seen),
    })
}

fn fresh(world: &World, id: &str) -> Worker {
    let now = world.now();
    Worker {
        id: id.to_owned(),
        queues: Vec::new(),
        tags: Vec::new(),
        task: None,
        timeout: Duration::from_secs(TIMEOUT),
        registered: now,
        seen: now,
        stats: Value::Null,
        reports: 0,
    }
}

fn owned(list: Vec<&str>) -> Vec<String> {
    list.into_iter().map(str::to_owned).collect()
}
