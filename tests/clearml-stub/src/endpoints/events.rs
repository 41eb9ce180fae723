//! Events: what tasks' programs and agents say.

use serde_json::{Value, json};

use super::Answer;
use crate::json::{Fields, string};
use crate::refusal::Refusal;
use crate::schema;
use crate::world::World;

/// Fields of a line of a log. Other events are the SDK's, which sends what its plots need.
const LOG: &str = "type!:string task!:string timestamp:number worker:string level:string msg!:string ~model_event:boolean \
                   ~metric:string ~variant:string ~iter:integer";

const TYPES: [&str; 5] = [
    "log",
    "training_stats_scalar",
    "training_stats_vector",
    "training_debug_image",
    "plot",
];

pub(super) fn add_batch(world: &mut World, lines: &str) -> Answer {
    let mut events = Vec::new();
    for (index, line) in lines
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
    {
        let event = serde_json::from_str::<Fields>(line);
        // The real server answers with its parser's words and a 500.
        let event = event
            .map_err(|error| Refusal::new(500, 0, format!("{error} in batch item #{index}")))?;
        if string(&event, "type") == "log" {
            schema::check(LOG, &event)?;
        }
        events.push(event);
    }
    if events.is_empty() {
        return Err(Refusal::new(400, 17, "Batch request contains no items"));
    }
    let (mut added, mut errors) = (0, serde_json::Map::new());
    for mut event in events {
        let wrong = if !TYPES.contains(&string(&event, "type")) {
            format!("Invalid event type {}", string(&event, "type"))
        } else if !world.tasks.contains_key(string(&event, "task")) {
            "Invalid task id".to_owned()
        } else {
            let now = json!(world.now().as_millisecond());
            event.entry("timestamp").or_insert(now);
            world.events.push(event);
            added += 1;
            continue;
        };
        let count = errors.get(&wrong).and_then(Value::as_u64).unwrap_or(0);
        errors.insert(wrong, json!(count + 1));
    }
    let failed: u64 = errors.values().filter_map(Value::as_u64).sum();
    match added {
        0 => Err(Refusal::new(
            400,
            131,
            format!("Events not added: {}", Value::Object(errors)),
        )),
        _ => Ok(json!({ "added": added, "errors": failed, "errors_info": errors })),
    }
}

pub(super) fn get_task_log(world: &mut World, body: &Fields) -> Answer {
    let task = string(body, "task");
    if !world.tasks.contains_key(task) {
        return Err(Refusal::no_task(task));
    }
    let logged = world
        .events
        .iter()
        .filter(|event| string(event, "type") == "log" && string(event, "task") == task);
    let events: Vec<&Fields> = logged.collect();
    Ok(json!({ "events": events, "returned": events.len(), "total": events.len() }))
}
