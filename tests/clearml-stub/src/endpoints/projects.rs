//! Projects: names that tasks carry.

use serde_json::json;

use super::{Answer, queues};
use crate::json::{Fields, projected, string, strings};
use crate::refusal::Refusal;
use crate::world::World;

pub(super) fn get_all(world: &mut World, body: &Fields) -> Answer {
    let name = queues::pattern(body)?;
    let (ids, only) = (strings(body, "id"), strings(body, "only_fields"));
    let found = world.projects.values().filter(|project| {
        (ids.is_empty() || ids.contains(&string(project, "id")))
            && name
                .as_ref()
                .is_none_or(|name| name.is_match(string(project, "name")))
    });
    let projects: Vec<_> = found.map(|project| projected(project, &only)).collect();
    Ok(json!({ "projects": projects }))
}

pub(super) fn get_by_id(world: &mut World, body: &Fields) -> Answer {
    let id = string(body, "project");
    match world.projects.get(id) {
        Some(project) => Ok(json!({ "project": project })),
        None => Err(Refusal::new(
            400,
            401,
            format!("Invalid project id: id={id}"),
        )),
    }
}

pub(super) fn create(world: &mut World, body: &Fields) -> Answer {
    let name = string(body, "name");
    if world
        .projects
        .values()
        .any(|project| string(project, "name") == name)
    {
        return Err(Refusal::taken(name));
    }
    let (id, fields) = world.made(body);
    world.projects.insert(id.clone(), fields);
    Ok(json!({ "id": id }))
}
