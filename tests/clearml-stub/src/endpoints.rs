//! One table of endpoints, and what each takes.

mod auth;
mod events;
mod projects;
mod queues;
mod tasks;
mod workers;

use serde_json::{Value, json};

use crate::json::Fields;
use crate::refusal::Refusal;
use crate::schema;
use crate::world::World;

type Answer = Result<Value, Refusal>;

struct Endpoint {
    name: &'static str,
    /// Fields, see [`schema::check`].
    takes: &'static str,
    perform: fn(&mut World, &Fields) -> Answer,
}

const CHANGE: &str = "task!:string force:boolean status_reason:string status_message:string";
const EDIT: &str = "task!:string force:boolean name:string tags:strings system_tags:strings type:string comment:string \
                    parent:string project:string output_dest:string execution:object script:object hyperparams:object \
                    configuration:object models:object container:object runtime:object ~input:object ~output:object";
/// `status_message` is not in the server's schema; it takes it all the same, and the stock agent's glue sends it.
const UPDATE: &str = "task!:string name:string tags:strings system_tags:strings comment:string project:string ~status_message:string";
const CREATE: &str = "name!:string type!:string tags:strings system_tags:strings comment:string parent:string project:string \
                      output_dest:string execution:object script:object hyperparams:object configuration:object \
                      models:object container:object ~input:object";
const TASKS: &str = "id:strings name:string user:strings project:strings type:strings tags:strings system_tags:strings \
                     status:strings parent:string only_fields:strings order_by:strings page:integer page_size:integer \
                     search_hidden:boolean search_text:string size:integer scroll_id:string _all_:object _any_:object";
const STOPPING: &str = "task!:string force:boolean status_reason:string status_message:string include_pipeline_steps:boolean";
const DELETE: &str = "task!:string force:boolean status_reason:string status_message:string move_to_trash:boolean \
                      return_file_urls:boolean delete_output_models:boolean delete_external_artifacts:boolean \
                      include_pipeline_steps:boolean";
const RESET: &str = "task!:string force:boolean status_reason:string status_message:string clear_all:boolean \
                     return_file_urls:boolean delete_output_models:boolean delete_external_artifacts:boolean";

macro_rules! endpoints {
    ($($name:literal ($takes:expr) => $perform:path;)*) => {
        const ENDPOINTS: &[Endpoint] = &[$(Endpoint { name: $name, takes: $takes, perform: $perform }),*];
    };
}

endpoints! {
    "auth.login" ("expiration_sec:integer") => auth::login;
    "users.get_current_user" ("") => auth::current_user;
    "users.get_all" ("id:strings name:string only_fields:strings") => auth::users;

    "queues.get_all" ("name:string id:strings tags:strings system_tags:strings only_fields:strings max_task_entries:integer \
                       order_by:strings page:integer page_size:integer search_hidden:boolean") => queues::get_all;
    "queues.get_by_id" ("queue!:string max_task_entries:integer") => queues::get_by_id;
    "queues.get_default" ("") => queues::get_default;
    "queues.create" ("name!:string display_name:string tags:strings system_tags:strings metadata:object") => queues::create;
    "queues.update" ("queue!:string name:string display_name:string tags:strings system_tags:strings metadata:object")
        => queues::update;
    "queues.delete" ("queue!:string force:boolean") => queues::delete;
    "queues.peek_task" ("queue!:string") => queues::peek_task;
    "queues.get_num_entries" ("queue!:string") => queues::get_num_entries;
    "queues.get_next_task" ("queue!:string task:string get_task_info:boolean") => queues::get_next_task;
    "queues.add_task" ("queue!:string task!:string update_execution_queue:boolean") => queues::add_task;
    "queues.remove_task" ("queue!:string task!:string update_task_status:boolean") => queues::remove_task;
    "queues.move_task_to_front" ("queue!:string task!:string") => queues::move_to_front;
    "queues.move_task_to_back" ("queue!:string task!:string") => queues::move_to_back;

    "workers.register" ("worker!:string timeout:integer queues:strings tags:strings system_tags:strings resources:object")
        => workers::register;
    "workers.unregister" ("worker!:string tags:strings system_tags:strings ~queues:strings") => workers::unregister;
    "workers.status_report" ("worker!:string timestamp!:integer task:string queue:string queues:strings tags:strings \
                              system_tags:strings machine_stats:object is_daemon:boolean") => workers::status_report;
    "workers.get_all" ("last_seen:integer tags:strings system_tags:strings worker_pattern:string") => workers::get_all;

    "tasks.create" (CREATE) => tasks::create;
    "tasks.edit" (EDIT) => tasks::edit;
    "tasks.update" (UPDATE) => tasks::update;
    "tasks.edit_runtime" ("task!:string force:boolean add_or_update:object remove:strings") => tasks::edit_runtime;
    "tasks.set_requirements" ("task!:string requirements!:object") => tasks::set_requirements;
    "tasks.get_all" (TASKS) => tasks::get_all;
    "tasks.get_all_ex" (TASKS) => tasks::get_all_ex;
    "tasks.get_by_id" ("task!:string ~only_fields:strings") => tasks::get_by_id;
    "tasks.started" (CHANGE) => tasks::started;
    "tasks.stop" (STOPPING) => tasks::stop;
    "tasks.stopped" (CHANGE) => tasks::stopped;
    "tasks.failed" (CHANGE) => tasks::failed;
    "tasks.completed" ("task!:string force:boolean status_reason:string status_message:string publish:boolean")
        => tasks::completed;
    "tasks.enqueue" ("task!:string force:boolean queue:string queue_name:string status_reason:string status_message:string \
                      verify_watched_queue:boolean update_execution_queue:boolean") => tasks::enqueue;
    "tasks.dequeue" ("task!:string force:boolean status_reason:string status_message:string remove_from_all_queues:boolean \
                      new_status:string") => tasks::dequeue;
    "tasks.ping" ("task!:string") => tasks::ping;
    "tasks.reset" (RESET) => tasks::reset;
    "tasks.delete" (DELETE) => tasks::delete;

    "events.get_task_log" ("task!:string order:string batch_size:integer scroll_id:string from:string from_timestamp:number \
                            navigate_earlier:boolean") => events::get_task_log;

    "projects.get_all" ("id:strings name:string only_fields:strings order_by:strings search_hidden:boolean page:integer \
                         page_size:integer shallow_search:boolean _any_:object") => projects::get_all;
    "projects.get_by_id" ("project!:string") => projects::get_by_id;
    "projects.create" ("name!:string description:string tags:strings system_tags:strings \
                        default_output_destination:string") => projects::create;
}

/// Takes lines of JSON and not an object.
pub(crate) const ADD_BATCH: &str = "events.add_batch";

/// Performs a call whose caller is known.
///
/// # Errors
/// The server's refusal.
pub(crate) fn perform(world: &mut World, name: &str, body: &Value) -> Answer {
    let endpoint = ENDPOINTS.iter().find(|endpoint| endpoint.name == name);
    let endpoint = endpoint.ok_or_else(|| Refusal::no_endpoint(name))?;
    let empty = Fields::new();
    let body = match body {
        Value::Object(body) => body,
        Value::Null => &empty,
        other => {
            return Err(Refusal::invalid(format!(
                "the body must be an object, not {other}"
            )));
        }
    };
    schema::check(endpoint.takes, body)?;
    world.forget();
    (endpoint.perform)(world, body)
}

/// Adds events that came as lines of JSON.
///
/// # Errors
/// The server's refusal.
pub(crate) fn add_batch(world: &mut World, lines: &str) -> Answer {
    events::add_batch(world, lines)
}

fn updated(fields: Value) -> Value {
    json!({ "updated": 1, "fields": fields })
}

#[cfg(test)]
mod tests;
