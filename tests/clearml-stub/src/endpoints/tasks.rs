//! Tasks: their fields, and their way from state to state.

use serde_json::{Value, json};

use super::{Answer, queues, updated};
use crate::json::{Fields, at, flag, projected, put, string, strings, take};
use crate::refusal::Refusal;
use crate::status::Status;
use crate::world::{COMPANY, USER, World};

/// Fields that an edit adds to; it replaces others whole, `container` and `runtime` among them.
const MERGED: [&str; 3] = ["execution", "script", "models"];
/// For so long after its worker's last sign a task counts as somebody's, who will stop it.
const RUN_BY_SOMEBODY_MS: i64 = 600_000;

pub(super) fn create(world: &mut World, body: &Fields) -> Answer {
    let id = world.id();
    let mut fields = body.clone();
    let now = world.stamp();
    for (field, value) in [
        ("id", json!(id)),
        ("company", json!(COMPANY)),
        ("user", json!(USER)),
        ("status", json!(Status::Created.name())),
        ("status_message", json!("")),
        ("status_reason", json!("")),
        ("created", now.clone()),
        ("last_update", now.clone()),
        ("last_change", now.clone()),
        ("status_changed", now),
    ] {
        fields.insert(field.to_owned(), value);
    }
    for (field, value) in [
        ("tags", json!([])),
        ("system_tags", json!([])),
        ("runtime", json!({})),
    ] {
        fields.entry(field).or_insert(value);
    }
    world.tasks.insert(id.clone(), fields);
    Ok(json!({ "id": id }))
}

pub(super) fn edit(world: &mut World, body: &Fields) -> Answer {
    let status = existing(world, body)?;
    if !flag(body, "force") && status != Status::Created {
        return Err(Refusal::status(status, Status::Created));
    }
    let mut edits = body.clone();
    edits.remove("task");
    edits.remove("force");
    let now = world.stamp();
    let fields = fields(world, body)?;
    for (name, value) in &edits {
        match (fields.get_mut(name), value) {
            (Some(Value::Object(old)), Value::Object(new)) if MERGED.contains(&name.as_str()) => {
                old.extend(new.clone())
            }
            _ => put(fields, name, value.clone()),
        }
    }
    put(fields, "last_update", now.clone());
    put(fields, "last_change", now);
    Ok(updated(Value::Object(edits)))
}

/// An edit of few fields that asks for no status and changes none.
pub(super) fn update(world: &mut World, body: &Fields) -> Answer {
    existing(world, body)?;
    let mut updates = body.clone();
    updates.remove("task");
    let now = world.stamp();
    let fields = fields(world, body)?;
    fields.extend(updates.clone());
    put(fields, "last_change", now);
    Ok(updated(Value::Object(updates)))
}

pub(super) fn edit_runtime(world: &mut World, body: &Fields) -> Answer {
    existing(world, body)?;
    let fields = fields(world, body)?;
    for name in strings(body, "remove") {
        take(fields, &format!("runtime.{name}"));
    }
    let added = body.get("add_or_update").and_then(Value::as_object);
    for (name, value) in added.into_iter().flatten() {
        put(fields, &format!("runtime.{name}"), value.clone());
    }
    Ok(json!({ "updated": 1 }))
}

pub(super) fn set_requirements(world: &mut World, body: &Fields) -> Answer {
    existing(world, body)?;
    let requirements = body.get("requirements").cloned().unwrap_or_default();
    put(
        fields(world, body)?,
        "script.requirements",
        requirements.clone(),
    );
    Ok(updated(json!({ "script.requirements": requirements })))
}

/// `max_page_size` of the server (`config/default/services/_mongo.conf`).
const PAGE: usize = 500;

pub(super) fn get_all(world: &mut World, body: &Fields) -> Answer {
    let name = queues::pattern(body)?;
    let only = strings(body, "only_fields");
    let named = body.contains_key("id") || flag(body, "search_hidden");
    let is = |task: &Fields, field: &str| {
        let wanted = strings(body, field);
        wanted.is_empty() || wanted.contains(&string(task, field))
    };
    let found = world.tasks.values().filter(|task| {
        ["id", "status", "project", "type", "user"]
            .iter()
            .all(|field| is(task, field))
            && name
                .as_ref()
                .is_none_or(|name| name.is_match(string(task, "name")))
            && (named || !strings(task, "system_tags").contains(&"hidden"))
    });
    // It leaves out the rest without a word.
    let found = found.take(world.page_size.unwrap_or(PAGE));
    Ok(json!({ "tasks": found.map(|task| projected(task, &only)).collect::<Vec<_>>() }))
}

/// The same with the names of users and projects beside their ids. As recorded with apiserver 2.3.0: `user.name` brings `user.id`
/// too, and what a task does not have is left out.
pub(super) fn get_all_ex(world: &mut World, body: &Fields) -> Answer {
    let only: Vec<String> = (strings(body, "only_fields").iter())
        .map(|field| (*field).to_owned())
        .collect();
    let mut all = body.clone();
    all.remove("only_fields");
    let mut found = get_all(world, &all)?;
    let tasks = found["tasks"].as_array_mut().into_iter().flatten();
    for task in tasks {
        for (field, name_of) in [
            (
                "user",
                World::user_name as fn(&World, &str) -> Option<String>,
            ),
            ("project", World::project_name),
        ] {
            let Some(id) = task[field].as_str().map(str::to_owned) else {
                continue;
            };
            let joined = only.is_empty() || only.contains(&format!("{field}.name"));
            task[field] = match name_of(world, &id).filter(|_| joined) {
                Some(name) => json!({ "id": id, "name": name }),
                None => json!({ "id": id }),
            };
        }
        if let (Value::Object(fields), false) = (&*task, only.is_empty()) {
            let paths: Vec<&str> = only
                .iter()
                .map(|field| field.strip_suffix(".name").unwrap_or(field))
                .collect();
            *task = projected(fields, &paths);
        }
    }
    Ok(found)
}

pub(super) fn get_by_id(world: &mut World, body: &Fields) -> Answer {
    existing(world, body)?;
    Ok(json!({ "task": fields(world, body)? }))
}

pub(super) fn started(world: &mut World, body: &Fields) -> Answer {
    let was = existing(world, body).map_err(|_| Refusal::no_object())?;
    let mut answer = change(world, body, Status::InProgress)?;
    let now = world.stamp();
    let fields = fields(world, body)?;
    if was != Status::InProgress || at(fields, "started").is_none() {
        put(fields, "started", now);
        take(fields, "completed");
    }
    answer["started"] = json!(1);
    Ok(answer)
}

pub(super) fn stopped(world: &mut World, body: &Fields) -> Answer {
    ended(world, body, Status::Stopped)
}

pub(super) fn failed(world: &mut World, body: &Fields) -> Answer {
    ended(world, body, Status::Failed)
}

pub(super) fn completed(world: &mut World, body: &Fields) -> Answer {
    let mut answer = ended(world, body, Status::Completed)?;
    answer["published"] = json!(0);
    if flag(body, "publish") {
        change(world, body, Status::Published)?;
        answer["published"] = json!(1);
    }
    Ok(answer)
}

/// The user's wish that a task stops: at once where nobody runs it, else by a message that its agent is to see.
pub(super) fn stop(world: &mut World, body: &Fields) -> Answer {
    let status = existing(world, body)?;
    let now = world.now().as_millisecond();
    let fields = fields(world, body)?;
    let updated = string(fields, "last_update").parse::<jiff::Timestamp>();
    let is_recent = updated.is_ok_and(|at| now - at.as_millisecond() < RUN_BY_SOMEBODY_MS);
    let is_run = !string(fields, "last_worker").is_empty() && is_recent;
    let is_development = strings(fields, "system_tags").contains(&"development");
    let mut body = body.clone();
    if status != Status::Queued && !is_development && is_run {
        body.insert("status_message".to_owned(), json!("stopping"));
        return change(world, &body, status);
    }
    if status == Status::Queued {
        leave_queue(world, &body)?;
    }
    body.insert(
        "status_message".to_owned(),
        json!(format!("Stopped by {USER}")),
    );
    change(world, &body, Status::Stopped)
}

pub(super) fn enqueue(world: &mut World, body: &Fields) -> Answer {
    let was = existing(world, body)?;
    let queue = match (string(body, "queue"), string(body, "queue_name")) {
        ("", "") => {
            let queue = queues::get_default(world, &Fields::new())?;
            queue["id"].as_str().unwrap_or_default().to_owned()
        }
        (id, "") => id.to_owned(),
        ("", name) => match world.queue_named(name) {
            Some(id) => id,
            None => {
                let made = queues::create(
                    world,
                    &Fields::from_iter([("name".to_owned(), json!(name))]),
                )?;
                made["id"].as_str().unwrap_or_default().to_owned()
            }
        },
        _ => {
            return Err(Refusal::invalid(
                "Either queue id or queue name should be provided",
            ));
        }
    };
    let task = string(body, "task");
    let mut answer = change(world, body, Status::Queued)?;
    if let Err(refusal) = queues::push(world, &queue, task) {
        world.set(task, "status", json!(was.name()));
        return Err(refusal);
    }
    if was != Status::Queued {
        world.set(task, "enqueue_status", json!(was.name()));
    }
    world.set(task, "execution.queue", json!(queue));
    queues::remove_from_all(world, task, &queue);
    answer["queued"] = json!(1);
    if flag(body, "verify_watched_queue") {
        answer["queue_watched"] =
            json!(world.workers().any(|worker| worker.queues.contains(&queue)));
    }
    answer["fields"]["execution.queue"] = json!(queue);
    Ok(answer)
}

/// Takes a task out of its queue and gives it a status, forced; one that is in no queue and does not run is left as it is.
pub(super) fn dequeue(world: &mut World, body: &Fields) -> Answer {
    let new = match string(body, "new_status") {
        "" => None,
        name => Some(
            Status::named(name)
                .ok_or_else(|| Refusal::invalid(format!("Invalid task status: {name}")))?,
        ),
    };
    let status = existing(world, body)?;
    if status == Status::Queued {
        leave_queue(world, body)?;
    }
    if flag(body, "remove_from_all_queues") {
        queues::remove_from_all(world, string(body, "task"), "");
    }
    if !matches!(status, Status::Queued | Status::InProgress) {
        return Ok(json!({ "dequeued": 1, "updated": 0 }));
    }
    let before = Status::named(string(fields(world, body)?, "enqueue_status"));
    let mut forced = body.clone();
    forced.insert("force".to_owned(), json!(true));
    let mut answer = change(world, &forced, new.or(before).unwrap_or(Status::Created))?;
    take(fields(world, body)?, "enqueue_status");
    answer["dequeued"] = json!(1);
    Ok(answer)
}

pub(super) fn ping(world: &mut World, body: &Fields) -> Answer {
    // The server updates whatever matches and does not say that nothing did.
    let now = world.stamp();
    if let Ok(fields) = fields(world, body) {
        put(fields, "last_update", now);
    }
    Ok(json!({}))
}

pub(super) fn reset(world: &mut World, body: &Fields) -> Answer {
    let status = existing(world, body)?;
    if status == Status::Published && !flag(body, "force") {
        return Err(Refusal::status(status, Status::Created));
    }
    let task = string(body, "task");
    let mut body = body.clone();
    for field in ["status_reason", "status_message"] {
        body.insert(field.to_owned(), json!("reset"));
    }
    let mut answer = change(world, &body, Status::Created)?;
    queues::remove_from_all(world, task, "");
    world.events.retain(|event| string(event, "task") != task);
    let fields = fields(world, &body)?;
    for path in [
        "last_worker",
        "last_worker_report",
        "started",
        "completed",
        "enqueue_status",
        "execution.queue",
    ] {
        take(fields, path);
    }
    put(fields, "runtime", json!({}));
    answer["dequeued"] = json!({});
    Ok(answer)
}

pub(super) fn delete(world: &mut World, body: &Fields) -> Answer {
    let status = existing(world, body)?;
    let task = string(body, "task");
    if status != Status::Created && !flag(body, "force") {
        let text = format!(
            "Task cannot be deleted (due to status, use force=True): task={task}, current={status}"
        );
        return Err(Refusal::new(400, 123, text));
    }
    queues::remove_from_all(world, task, "");
    world.tasks.remove(task);
    world.events.retain(|event| string(event, "task") != task);
    Ok(json!({ "deleted": true }))
}

fn ended(world: &mut World, body: &Fields, status: Status) -> Answer {
    let answer = change(world, body, status)?;
    let now = world.stamp();
    put(fields(world, body)?, "completed", now);
    Ok(answer)
}

/// Changes a task's status, with the caller's reason and message or none: what was said before is gone, "stopping" as well.
fn change(world: &mut World, body: &Fields, to: Status) -> Answer {
    let was = existing(world, body)?;
    if !was.may_become(to) && !flag(body, "force") {
        return Err(Refusal::status(was, to));
    }
    let now = world.stamp();
    let said = Fields::from_iter([
        ("status".to_owned(), json!(to.name())),
        (
            "status_reason".to_owned(),
            json!(string(body, "status_reason")),
        ),
        (
            "status_message".to_owned(),
            json!(string(body, "status_message")),
        ),
        ("status_changed".to_owned(), now.clone()),
        ("last_update".to_owned(), now.clone()),
        ("last_change".to_owned(), now),
        ("last_changed_by".to_owned(), json!(USER)),
    ]);
    let fields = fields(world, body)?;
    fields.extend(said.clone());
    // What is queued is no longer in development.
    if let Some(Value::Array(tags)) = fields
        .get_mut("system_tags")
        .filter(|_| to == Status::Queued)
    {
        tags.retain(|tag| tag != "development");
    }
    Ok(updated(Value::Object(said)))
}

fn leave_queue(world: &mut World, body: &Fields) -> Result<(), Refusal> {
    let queue = at(fields(world, body)?, "execution.queue")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    if let Some(queue) = world.queues.get_mut(&queue) {
        queue
            .entries
            .retain(|(task, _)| task != string(body, "task"));
    }
    Ok(())
}

fn existing(world: &World, body: &Fields) -> Result<Status, Refusal> {
    let task = string(body, "task");
    world.status(task).ok_or_else(|| Refusal::no_task(task))
}

fn fields<'a>(world: &'a mut World, body: &Fields) -> Result<&'a mut Fields, Refusal> {
    let task = string(body, "task");
    world
        .tasks
        .get_mut(task)
        .ok_or_else(|| Refusal::no_task(task))
}
