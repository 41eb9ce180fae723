//! Who is calling.

use serde_json::{Value, json};

use super::Answer;
use crate::json::Fields;
use crate::token;
use crate::world::{USER, World};

pub(super) fn login(world: &mut World, body: &Fields) -> Answer {
    let life = body.get("expiration_sec").and_then(Value::as_i64);
    Ok(json!({ "token": token::issue(&world.token_claims(USER, "user", life)) }))
}

pub(super) fn current_user(_: &mut World, _: &Fields) -> Answer {
    Ok(json!({ "user": { "id": USER, "name": USER, "role": "user" } }))
}
