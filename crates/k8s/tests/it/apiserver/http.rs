//! The calls: paths, queries and bodies in, objects and statuses out.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Query, Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::Response;
use serde_json::{Value, json};

use super::kinds::Target;
use super::selector::Selector;
use super::store::{Fail, PatchKind, api_version};
use super::watch::{Wish, body as watch_body};
use super::{Call, Cut, Shared, admission, exec, logs};

type Queries = BTreeMap<String, String>;

pub async fn answer(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<Queries>,
    mut request: Request,
) -> Response {
    let words = exec::words(request.uri().query().unwrap_or_default());
    let upgrade = exec::Upgrade::of(&mut request);
    let path = request.uri().path().to_owned();
    let method = request.method().clone();
    let kind = request.headers().get(header::CONTENT_TYPE);
    let kind = kind
        .and_then(|kind| kind.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    let whole = to_bytes(request.into_body(), usize::MAX)
        .await
        .unwrap_or_default();
    // What clients apply may be YAML, of which JSON is a part.
    let body: Value = if whole.is_empty() {
        Value::Null
    } else {
        yaml_serde::from_slice(&whole).unwrap_or_default()
    };
    let writes = !matches!(method, Method::GET);
    let exec = path.strip_suffix("/exec").map(str::to_owned);
    let call = Call {
        method: method.to_string(),
        path: path.clone(),
        query: query.clone(),
        body: body.clone(),
    };
    let cut = shared.called(call, writes);
    if cut == Some(Cut::Before) {
        shared.hold().await;
    }
    let answered = match shared.fault(&method, &path) {
        Some(fail) => Err(fail),
        None => match (exec, upgrade) {
            (Some(pod), Some(upgrade)) => exec::answer(&shared, &pod, words, upgrade).await,
            _ => serve(&shared, &method, &path, &query, &kind, body).await,
        },
    };
    if cut == Some(Cut::After) {
        shared.hold().await;
    }
    answered.unwrap_or_else(|fail| json_response(fail.code, &status(&fail)))
}

async fn serve(
    shared: &Arc<Shared>,
    method: &Method,
    path: &str,
    query: &Queries,
    content_type: &str,
    body: Value,
) -> Result<Response, Fail> {
    if path == "/version" {
        let version = shared.state.lock().unwrap().release.clone();
        return Ok(json_response(200, &version_of(&version)));
    }
    if let Some(group) = path
        .strip_prefix("/apis/")
        .filter(|rest| !rest.contains('/'))
    {
        return group_of(shared, group);
    }
    let at = {
        let state = shared.state.lock().unwrap();
        Target::of(path, &state.store.kinds)?
    };
    if let Some(fail) = denied(shared, method, &at) {
        return Err(fail);
    }
    let dry = query.get("dryRun").is_some_and(|value| value == "All");
    let selector = Selector::new(query.get("labelSelector"), query.get("fieldSelector"));
    let done = |object: &Value| Ok(json_response(200, object));
    match (method.as_str(), &at.name, at.subresource.as_deref()) {
        ("GET", Some(_), Some("log")) => logs::answer(shared, &at, query),
        ("GET", Some(_), _) => done(shared.state.lock().unwrap().store.get(&at)?),
        ("GET", None, _)
            if query
                .get("watch")
                .is_some_and(|value| value == "true" || value == "1") =>
        {
            let from = query.get("resourceVersion").map(String::as_str);
            let wish = Wish {
                from: if query
                    .get("sendInitialEvents")
                    .is_some_and(|value| value == "true")
                {
                    None
                } else {
                    from.and_then(|from| from.parse().ok())
                        .filter(|from| *from > 0)
                },
                marks_the_beginning: query.contains_key("sendInitialEvents"),
                seconds: query
                    .get("timeoutSeconds")
                    .and_then(|text| text.parse().ok()),
            };
            let body = watch_body(shared, at, selector, &wish);
            let response = Response::builder().header(header::CONTENT_TYPE, "application/json");
            Ok(response.body(body).unwrap())
        }
        ("GET", None, _) => done(&list(shared, &at, &selector, query)),
        ("POST", None, _) => {
            let object = admission::admit(shared, &at, body, dry).await?;
            let mut object = shared.change(|store| store.create(&at, object, dry))?;
            if at.kind.kind == "SelfSubjectAccessReview" {
                let wish = object["spec"]["resourceAttributes"].take();
                let forbidden = &shared.state.lock().unwrap().forbidden;
                let no = |(verb, resource): &(String, String)| {
                    wish["verb"] == verb.as_str() && wish["resource"] == resource.as_str()
                };
                object["status"] = json!({ "allowed": !forbidden.iter().any(no) });
            }
            Ok(json_response(201, &object))
        }
        ("PUT", Some(_), _) => done(&shared.change(|store| store.update(&at, body, dry))?),
        ("PATCH", Some(_), _) => {
            let kind = match content_type {
                "application/json-patch+json" => PatchKind::Json,
                "application/apply-patch+yaml" => PatchKind::Apply {
                    manager: query.get("fieldManager").cloned().unwrap_or_default(),
                },
                "application/strategic-merge-patch+json" => PatchKind::Strategic,
                _ => PatchKind::Merge,
            };
            done(&shared.change(|store| store.patch(&at, &kind, &body, dry))?)
        }
        ("DELETE", Some(_), _) => {
            let mut options = body;
            if let Some(grace) = query
                .get("gracePeriodSeconds")
                .and_then(|text| text.parse::<u64>().ok())
            {
                options["gracePeriodSeconds"] = json!(grace);
            }
            done(&shared.change(|store| store.delete(&at, &options, dry))?)
        }
        ("DELETE", None, _) => {
            shared.change(|store| {
                for object in store.list(&at, &selector) {
                    let mut one = at.clone();
                    one.name = object["metadata"]["name"].as_str().map(str::to_owned);
                    one.namespace = object["metadata"]["namespace"]
                        .as_str()
                        .unwrap_or_default()
                        .to_owned();
                    store.delete(&one, &body, dry)?;
                }
                Ok(Value::Null)
            })?;
            done(&json!({ "apiVersion": "v1", "kind": "Status", "status": "Success" }))
        }
        _ => Err(Fail {
            code: 405,
            reason: "MethodNotAllowed",
            message: format!("{method} {path}"),
        }),
    }
}

/// Which versions of a group are served, in the order in which they were defined.
fn group_of(shared: &Arc<Shared>, group: &str) -> Result<Response, Fail> {
    let state = shared.state.lock().unwrap();
    let mut versions: Vec<&str> = Vec::new();
    for kind in state.store.kinds.iter().filter(|kind| kind.group == group) {
        if !versions.contains(&kind.version.as_str()) {
            versions.push(&kind.version);
        }
    }
    let named =
        |version: &str| json!({ "groupVersion": format!("{group}/{version}"), "version": version });
    let Some(preferred) = versions.first().copied() else {
        return Err(Fail::not_found(
            "the server could not find the requested resource".to_owned(),
        ));
    };
    let all: Vec<Value> = versions.iter().copied().map(named).collect();
    let body = json!({
        "apiVersion": "v1", "kind": "APIGroup", "name": group, "versions": all, "preferredVersion": named(preferred),
    });
    Ok(json_response(200, &body))
}

/// The refusal of a call that the caller has no right to.
fn denied(shared: &Arc<Shared>, method: &Method, at: &Target) -> Option<Fail> {
    let verb = match (method, &at.name) {
        (&Method::GET, None) => "list",
        (&Method::GET, Some(_)) => "get",
        (&Method::POST, _) => "create",
        _ => return None,
    };
    let resource = at.kind.plural.as_str();
    let of = |(denied, what): &(String, String)| denied == verb && what == resource;
    let state = shared.state.lock().unwrap();
    state.denied.iter().any(of).then(|| Fail {
        code: 403,
        reason: "Forbidden",
        message: format!(
            "{resource} is forbidden: User \"test\" cannot {verb} resource \"{resource}\""
        ),
    })
}

/// As the API has lists: the objects in them do not say what they are. `limit` and `continue` ask for a part; the token is the
/// number of items before it.
fn list(shared: &Arc<Shared>, at: &Target, selector: &Selector, query: &Queries) -> Value {
    let number = |key: &str| query.get(key).and_then(|text| text.parse::<usize>().ok());
    let (from, limit) = (number("continue").unwrap_or(0), number("limit"));
    let state = shared.state.lock().unwrap();
    let mut left = state.store.matching(at, selector).skip(from);
    let page = left.by_ref().take(limit.unwrap_or(usize::MAX));
    let mut items: Vec<Value> = page.cloned().collect();
    for item in &mut items {
        if let Some(fields) = item.as_object_mut() {
            fields.remove("apiVersion");
            fields.remove("kind");
        }
    }
    let mut metadata = json!({ "resourceVersion": state.store.version.to_string() });
    if left.next().is_some() {
        metadata["continue"] = json!((from + items.len()).to_string());
    }
    json!({
        "apiVersion": api_version(&at.kind),
        "kind": format!("{}List", at.kind.kind),
        "metadata": metadata,
        "items": items,
    })
}

pub fn status(fail: &Fail) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "code": fail.code, "reason": fail.reason, "message": fail.message,
    })
}

fn version_of(release: &str) -> Value {
    let mut parts = release.trim_start_matches('v').split('.');
    let mut next = || parts.next().unwrap_or("0").to_owned();
    let (major, minor) = (next(), next());
    json!({
        "major": major, "minor": minor, "gitVersion": release, "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "2026-01-01T00:00:00Z", "goVersion": "go1", "compiler": "gc", "platform": "linux/amd64",
    })
}

pub fn json_response(code: u16, body: &Value) -> Response {
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let response = Response::builder().status(code);
    let response = response.header(header::CONTENT_TYPE, "application/json");
    response.body(Body::from(body.to_string())).unwrap()
}
