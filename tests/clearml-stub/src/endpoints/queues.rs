//! Queues: lists of tasks, and nothing that decides.

use regex::Regex;
use serde_json::{Value, json};

use super::{Answer, updated};
use crate::json::{Fields, flag, projected, put, string, strings, take};
use crate::refusal::Refusal;
use crate::status::Status;
use crate::world::{COMPANY, Queue, World, stamp};

/// The server refuses shorter names.
const SHORTEST_NAME: usize = 3;

pub(super) fn get_all(world: &mut World, body: &Fields) -> Answer {
    let name = pattern(body)?;
    let (ids, only) = (strings(body, "id"), strings(body, "only_fields"));
    let named = body.contains_key("id") || name.is_some();
    let shown = |queue: &&Queue| {
        let hidden = strings(&queue.fields, "system_tags").contains(&"k8s-glue");
        (!hidden || named || flag(body, "search_hidden"))
            && (ids.is_empty() || ids.contains(&string(&queue.fields, "id")))
            && name
                .as_ref()
                .is_none_or(|name| name.is_match(string(&queue.fields, "name")))
    };
    let limit = entries_limit(body);
    let found = world
        .queues
        .values()
        .filter(shown)
        .map(|queue| projected(&whole(queue, limit), &only));
    Ok(json!({ "queues": found.collect::<Vec<_>>() }))
}

pub(super) fn get_by_id(world: &mut World, body: &Fields) -> Answer {
    Ok(json!({ "queue": whole(find(world, body)?, entries_limit(body)) }))
}

pub(super) fn get_default(world: &mut World, _: &Fields) -> Answer {
    let mut defaults = world
        .queues
        .values()
        .filter(|queue| strings(&queue.fields, "system_tags").contains(&"default"));
    match defaults.next() {
        Some(queue) => Ok(projected(&queue.fields, &["name"])),
        None => Err(Refusal::new(
            400,
            707,
            "No queue is tagged as the default queue for this company",
        )),
    }
}

pub(super) fn create(world: &mut World, body: &Fields) -> Answer {
    let name = string(body, "name");
    if name.chars().count() < SHORTEST_NAME {
        return Err(Refusal::short("name"));
    }
    if world.queue_named(name).is_some() {
        return Err(Refusal::taken(name));
    }
    let (id, mut fields) = world.made(body);
    fields.insert("last_update".to_owned(), world.stamp());
    for tags in ["tags", "system_tags"] {
        fields.entry(tags).or_insert_with(|| json!([]));
    }
    world.queues.insert(
        id.clone(),
        Queue {
            fields,
            entries: Vec::new(),
        },
    );
    Ok(json!({ "id": id }))
}

pub(super) fn update(world: &mut World, body: &Fields) -> Answer {
    let id = string(body, "queue");
    let queue = world
        .queues
        .get_mut(id)
        .ok_or_else(|| Refusal::no_queue(id))?;
    let mut fields = body.clone();
    fields.remove("queue");
    queue.fields.extend(fields.clone());
    Ok(updated(Value::Object(fields)))
}

pub(super) fn delete(world: &mut World, body: &Fields) -> Answer {
    let queue = find(world, body)?;
    if !queue.entries.is_empty() && !flag(body, "force") {
        return Err(Refusal::new(
            400,
            702,
            "Queue is not empty: use force=true to delete",
        ));
    }
    let waiting: Vec<String> = queue.entries.iter().map(|(task, _)| task.clone()).collect();
    for task in &waiting {
        draft_again(world, task);
    }
    world.queues.remove(string(body, "queue"));
    Ok(json!({ "deleted": 1 }))
}

pub(super) fn peek_task(world: &mut World, body: &Fields) -> Answer {
    Ok(json!({ "task": find(world, body)?.entries.first().map(|(task, _)| task) }))
}

pub(super) fn get_num_entries(world: &mut World, body: &Fields) -> Answer {
    Ok(json!({ "num": find(world, body)?.entries.len() }))
}

/// Pops the first task, should it be the one that `task` names; an old server does not ask.
pub(super) fn get_next_task(world: &mut World, body: &Fields) -> Answer {
    let queue = find(world, body)?;
    let wanted = body
        .get("task")
        .and_then(Value::as_str)
        .filter(|_| !world.is_old);
    let first = queue
        .entries
        .first()
        .filter(|(task, _)| wanted.is_none_or(|wanted| wanted == task));
    let Some((task, added)) = first.cloned() else {
        return Ok(json!({}));
    };
    if let Some(queue) = world.queues.get_mut(string(body, "queue")) {
        queue.entries.remove(0);
    }
    let mut answer = json!({ "entry": { "task": task, "added": stamp(added) } });
    // The status stays `queued`; one that was stopped meanwhile goes back to it.
    if world.status(&task) == Some(Status::Stopped) {
        world.set(&task, "status", json!(Status::Queued.name()));
    }
    if flag(body, "get_task_info")
        && let Some(fields) = world.tasks.get(&task)
    {
        answer["task_info"] = json!({ "company": COMPANY, "user": fields.get("user") });
    }
    Ok(answer)
}

pub(super) fn add_task(world: &mut World, body: &Fields) -> Answer {
    let (queue, task) = (string(body, "queue"), string(body, "task"));
    push(world, queue, task)?;
    if flag(body, "update_execution_queue") && world.tasks.contains_key(task) {
        world.set(task, "execution.queue", json!(queue));
    }
    Ok(json!({ "added": 1 }))
}

pub(super) fn remove_task(world: &mut World, body: &Fields) -> Answer {
    let (queue, task) = (string(body, "queue"), string(body, "task"));
    let at = position(world, queue, task)?;
    if let Some(queue) = world.queues.get_mut(queue) {
        queue.entries.remove(at);
    }
    if flag(body, "update_task_status") {
        draft_again(world, task);
    }
    Ok(json!({ "removed": 1 }))
}

pub(super) fn move_to_front(world: &mut World, body: &Fields) -> Answer {
    reposition(world, body, |_| 0)
}

pub(super) fn move_to_back(world: &mut World, body: &Fields) -> Answer {
    reposition(world, body, |last| last)
}

fn reposition(world: &mut World, body: &Fields, to: fn(usize) -> usize) -> Answer {
    let (queue, task) = (string(body, "queue"), string(body, "task"));
    let at = position(world, queue, task)?;
    let queue = world
        .queues
        .get_mut(queue)
        .ok_or_else(|| Refusal::no_queue(queue))?;
    let entry = queue.entries.remove(at);
    let to = to(queue.entries.len());
    queue.entries.insert(to, entry);
    Ok(json!({ "position": to }))
}

/// Puts a task at the end of a queue.
pub(super) fn push(world: &mut World, queue: &str, task: &str) -> Result<(), Refusal> {
    let now = world.now();
    let found = world
        .queues
        .get_mut(queue)
        .ok_or_else(|| Refusal::no_queue(queue))?;
    if found.entries.iter().any(|(queued, _)| queued == task) {
        let text = format!("Failed adding task to queue since task is already queued: task={task}");
        return Err(Refusal::new(400, 706, text));
    }
    found.entries.push((task.to_owned(), now));
    Ok(())
}

/// Takes a task out of every queue but one.
pub(super) fn remove_from_all(world: &mut World, task: &str, but: &str) {
    for (id, queue) in &mut world.queues {
        queue
            .entries
            .retain(|(queued, _)| id == but || queued != task);
    }
}

fn find<'a>(world: &'a World, body: &Fields) -> Result<&'a Queue, Refusal> {
    let id = string(body, "queue");
    world.queues.get(id).ok_or_else(|| Refusal::no_queue(id))
}

fn position(world: &World, queue: &str, task: &str) -> Result<usize, Refusal> {
    let entries = world
        .queues
        .get(queue)
        .map(|queue| &queue.entries[..])
        .unwrap_or_default();
    let at = entries.iter().position(|(queued, _)| queued == task);
    at.ok_or_else(|| Refusal::not_queued(queue, task))
}

/// Gives a task that leaves a queue the status it had before.
fn draft_again(world: &mut World, task: &str) {
    let Some(fields) = world.tasks.get_mut(task) else {
        return;
    };
    let before = match string(fields, "enqueue_status") {
        "" => Status::Created.name(),
        before => before,
    };
    let before = json!(before);
    put(fields, "status", before);
    take(fields, "enqueue_status");
    take(fields, "execution.queue");
}

fn whole(queue: &Queue, limit: usize) -> Fields {
    let entries = queue.entries.iter().take(limit);
    let entries = entries.map(|(task, added)| json!({ "task": task, "added": stamp(*added) }));
    let mut fields = queue.fields.clone();
    fields.insert("entries".to_owned(), entries.collect());
    fields
}

fn entries_limit(body: &Fields) -> usize {
    let limit = body.get("max_task_entries").and_then(Value::as_u64);
    limit
        .and_then(|limit| usize::try_from(limit).ok())
        .unwrap_or(usize::MAX)
}

/// The name in a body, which is a regular expression.
pub(super) fn pattern(body: &Fields) -> Result<Option<Regex>, Refusal> {
    let Some(name) = body.get("name").and_then(Value::as_str) else {
        return Ok(None);
    };
    let pattern = Regex::new(name);
    let pattern = pattern
        .map_err(|error| Refusal::new(400, 21, format!("Malformed regular expression: {error}")))?;
    Ok(Some(pattern))
}
