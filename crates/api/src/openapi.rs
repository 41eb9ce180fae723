//! The OpenAPI 3.1 document of version 1, generated from the route table and the types of the bodies.

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::route::{Answer, Body, Kind, Parameter, ROUTES, Route};
use crate::v1::{self, ErrorCode};

/// The whole document; equal builds give equal text.
pub fn document() -> Value {
    // OpenAPI 3.1 takes JSON Schema 2020-12 as it is; only the place of the definitions is its own.
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut schemas = settings.into_generator();
    for add in [
        add::<v1::Node>,
        add::<v1::Gpu>,
        add::<v1::Queue>,
        add::<v1::Job>,
        add::<v1::Brief<'_>>,
        add::<v1::Why>,
        add::<v1::Event>,
        add::<v1::Submit>,
        add::<v1::Resize>,
        add::<v1::JobChange>,
        add::<v1::Suspend>,
        add::<v1::CancelJob>,
        add::<v1::JobsChange>,
        add::<v1::JobsChanged>,
        add::<v1::Confirm>,
        add::<v1::Exec>,
        add::<v1::SignalJob>,
        add::<v1::Oom>,
        add::<v1::Advice>,
        add::<v1::Drain>,
        add::<v1::Undrain>,
        add::<v1::GpuChange>,
        add::<v1::GpuChanged>,
        add::<v1::MigInstance>,
        add::<v1::MigWanted>,
        add::<v1::MigPlanned>,
        add::<v1::MigGc>,
        add::<v1::Project>,
        add::<v1::ProjectChange>,
        add::<v1::Usage>,
        add::<v1::Board>,
        add::<v1::BoardChange>,
        add::<v1::ConfigValue>,
        add::<v1::ConfigReload>,
        add::<v1::DockerArgs>,
        add::<v1::Claim>,
        add::<v1::HeldClaim>,
        add::<v1::MigPlacement>,
        add::<v1::ErrorBody>,
        // No call answers with these three: the command line prints them in the same envelope.
        add::<v1::Selftest>,
        add::<v1::Finding>,
    ] {
        add(&mut schemas);
    }
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES {
        let methods = paths.entry(route.path).or_insert_with(|| json!({}));
        methods[route.method.to_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Divvy node agent",
            "version": "1",
            "description": "HTTP/1.1 and JSON over the agent's unix socket. Memory is integer bytes, shares are thousandths of \
                one GPU, times are RFC 3339 UTC, ids are strings. Fields are only ever added.",
        },
        "paths": paths,
        "components": { "schemas": schemas.take_definitions(true) },
    })
}

fn add<T: schemars::JsonSchema>(schemas: &mut SchemaGenerator) {
    schemas.subschema_for::<T>();
}

fn operation(route: &Route) -> Value {
    let mut parameters: Vec<Value> = route.query.iter().map(query).collect();
    for (name, about) in [
        ("job", "A number, a name that one job has, or `last`"),
        ("gpu", "An index or a UUID"),
        ("project", "A name"),
        ("uid", "The claim's uid"),
    ] {
        if route.path.contains(&format!("{{{name}}}")) {
            parameters.insert(
                0,
                json!({ "name": name, "in": "path", "required": true, "description": about,
                "schema": { "type": "string" } }),
            );
        }
    }
    let mut operation = json!({
        "summary": route.summary,
        "responses": { success(route.answer): answer(route.answer), "default": failure() },
    });
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Body::Json(name) = route.body {
        operation["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": schema(name) } } });
    }
    operation
}

fn query(parameter: &Parameter) -> Value {
    let schema = match parameter.kind {
        Kind::Flag => json!({ "type": "boolean", "default": false }),
        Kind::Number { default } => json!({ "type": "integer", "minimum": 0, "default": default }),
        Kind::Text => json!({ "type": "string" }),
        Kind::Default(default) => json!({ "type": "string", "default": default }),
        Kind::OneOf { words, default } => {
            json!({ "type": "string", "enum": words, "default": default })
        }
    };
    json!({ "name": parameter.name, "in": "query", "description": parameter.about, "schema": schema })
}

fn success(answer: Answer) -> &'static str {
    match answer {
        Answer::Frames => "101",
        _ => "200",
    }
}

fn answer(answer: Answer) -> Value {
    let bytes = json!({ "type": "string", "format": "binary" });
    match answer {
        Answer::List { of, kind } => {
            json!({ "description": kind, "content": { "application/json": { "schema": list(of, kind) } } })
        }
        Answer::Events => json!({
            "description": "EventList; with `follow`, one event a message",
            "content": {
                "application/json": { "schema": list("Event", "EventList") },
                "text/event-stream": { "schema": bytes },
            },
        }),
        Answer::Board => json!({
            "description": "Board; with `follow`, messages: a Board, then each a BoardChange. With `If-None-Match` and the ETag of the \
                newest board, the status is 304",
            "content": {
                "application/json": { "schema": list("Board", "Board") },
                "text/event-stream": { "schema": bytes },
            },
        }),
        Answer::Jobs => json!({
            "description": "JobList; with `brief`, one Brief a line",
            "content": {
                "application/json": { "schema": list("Job", "JobList") },
                "application/x-ndjson": { "schema": bytes },
            },
        }),
        Answer::Frames => json!({
            "description": "With `Connection: Upgrade` and `Upgrade: divvy-exec`: frames follow in both directions. A frame is its kind \
                (a byte), the length of its content (4 bytes, the highest first), its content (at most 65536 bytes). To the program: 0 \
                input, 1 end of input, 2 size of the terminal (rows, columns: 2 bytes each), 3 a signal's number (a byte). From it: 4 \
                output, 5 errors, 6 its end, the last: {\"exit_code\": 0, \"message\": …}",
        }),
        Answer::Bytes => {
            json!({ "description": "The bytes", "content": { "application/octet-stream": { "schema": bytes } } })
        }
    }
}

fn list(of: &str, kind: &str) -> Value {
    json!({
        "type": "object",
        "required": ["schema", "kind", "items"],
        "properties": {
            "schema": { "const": v1::SCHEMA },
            "kind": { "const": kind },
            "items": { "type": "array", "items": schema(of) },
        },
    })
}

fn failure() -> Value {
    let mut statuses: Vec<u16> = ErrorCode::ALL
        .iter()
        .map(|code| code.http_status())
        .collect();
    statuses.sort_unstable();
    statuses.dedup();
    let statuses = statuses
        .iter()
        .map(u16::to_string)
        .collect::<Vec<_>>()
        .join(", ");
    json!({
        "description": format!("Error; the status is one of {statuses}"),
        "content": { "application/json": { "schema": schema("ErrorBody") } },
    })
}

fn schema(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}
