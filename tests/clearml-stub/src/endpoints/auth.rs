//! Who is calling.

use serde_json::{Value, json};

use super::Answer;
use crate::json::{Fields, strings};
use crate::token;
use crate::world::{USER, World};

pub(super) fn login(world: &mut World, body: &Fields) -> Answer {
    let life = body.get("expiration_sec").and_then(Value::as_i64);
    Ok(json!({ "token": token::issue(&world.token_claims(USER, "user", life)) }))
}

pub(super) fn current_user(_: &mut World, _: &Fields) -> Answer {
    Ok(json!({ "user": { "id": USER, "name": USER, "role": "user" } }))
}

/// Users and their names. As recorded with apiserver 2.3.0, an unknown id is left out.
pub(super) fn users(world: &mut World, body: &Fields) -> Answer {
    let asked = strings(body, "id");
    let users = world.users.iter();
    let users = users.filter(|(id, _)| asked.is_empty() || asked.contains(&id.as_str()));
    let users: Vec<Value> = users
        .map(|(id, name)| json!({ "id": id, "name": name }))
        .collect();
    Ok(json!({ "users": users }))
}
