//! HTTP: paths, who is calling, faults, and the envelope around every answer.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::fault::{What, When, due};
use crate::refusal::Refusal;
use crate::world::{ACCESS_KEY, Call, SECRET_KEY, World};
use crate::{Shared, endpoints, token};

/// Names a role that may read only, in a second pair of keys: `GUESTKEY` and the user's secret.
const GUEST_KEY: &str = "GUESTKEY";

/// Why a connection ends without an answer: a test wanted it so.
#[derive(Debug)]
struct Dropped;

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("dropped, as a test wanted")
    }
}

impl std::error::Error for Dropped {}

/// Serves in a thread of its own until `stop` says so. The port, and the thread.
///
/// # Errors
/// When the port cannot be had.
pub(crate) fn serve(
    shared: Arc<Shared>,
    port: u16,
    stop: oneshot::Receiver<()>,
) -> io::Result<(u16, JoinHandle<()>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let thread = thread::Builder::new()
        .name("clearml-stub".to_owned())
        .spawn(move || {
            // What still runs when this returns ends with the runtime.
            runtime.block_on(async {
                tokio::select! {
                    _ = stop => {}
                    _ = accept(shared, listener) => {}
                }
            });
        })?;
    Ok((port, thread))
}

async fn accept(shared: Arc<Shared>, listener: TcpListener) -> Option<Infallible> {
    let listener = tokio::net::TcpListener::from_std(listener).ok()?;
    loop {
        let (stream, _) = listener.accept().await.ok()?;
        let shared = Arc::clone(&shared);
        let service = service_fn(move |request| answer(Arc::clone(&shared), request));
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

async fn answer(
    shared: Arc<Shared>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Dropped> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Dropped)?.to_bytes();
    let path = parts.uri.path().trim_start_matches('/').to_owned();
    let (version, endpoint) = split_version(&path);
    let refused = strike(&shared, endpoint, &body, When::Before).await?;
    let is_done = refused.is_none();
    let result = {
        // Whoever sees what a call has done sees the call.
        let mut world = shared.world();
        let result = match refused {
            Some(refusal) => Err(refusal),
            None => perform(&mut world, &parts.headers, endpoint, &body),
        };
        note(
            &mut world,
            &parts.headers,
            parts.method.as_str(),
            endpoint,
            &body,
            &result,
        );
        result
    };
    if is_done {
        strike(&shared, endpoint, &body, When::After).await?;
    }
    Ok(envelope(&mut shared.world(), version, endpoint, result))
}

/// Does to a call what a test wants done to it.
async fn strike(
    shared: &Shared,
    endpoint: &str,
    body: &[u8],
    when: When,
) -> Result<Option<Refusal>, Dropped> {
    let what = due(&mut shared.faults(), endpoint, body, when);
    match what {
        None => Ok(None),
        Some(What::Drop) => Err(Dropped),
        Some(What::Answer { code, message }) => Ok(Some(Refusal::new(code, 0, message))),
        Some(What::Wait(by)) => {
            tokio::time::sleep(by).await;
            Ok(None)
        }
        Some(What::Hold {
            reached,
            mut released,
        }) => {
            reached.send_replace(true);
            // An error says that the test has let go of it.
            let _ = released.wait_for(|released| *released).await;
            Ok(None)
        }
    }
}

fn perform(
    world: &mut World,
    headers: &HeaderMap,
    endpoint: &str,
    body: &[u8],
) -> Result<Value, Refusal> {
    let guest = role(world, headers)? == "guest";
    if endpoint == endpoints::ADD_BATCH && !guest {
        return endpoints::add_batch(world, &String::from_utf8_lossy(body));
    }
    let action = endpoint.split_once('.').map_or("", |(_, action)| action);
    let only_reads = action.starts_with("get_") && action != "get_next_task";
    if guest && !only_reads && action != "login" && action != "peek_task" {
        return Err(Refusal::new(403, 20, "Forbidden (not allowed for role)"));
    }
    let body: Value = match body {
        [] => Value::Null,
        body => serde_json::from_slice(body)
            .map_err(|error| Refusal::invalid(format!("malformed body: {error}")))?,
    };
    endpoints::perform(world, endpoint, &body)
}

/// The role of whoever is calling, by key and secret or by token.
fn role(world: &World, headers: &HeaderMap) -> Result<String, Refusal> {
    let header = headers
        .get(AUTHORIZATION)
        .and_then(|header| header.to_str().ok());
    let Some((kind, value)) = header.and_then(|header| header.split_once(' ')) else {
        return Err(Refusal::new(401, 20, "Unauthorized (missing credentials)"));
    };
    match kind {
        "Basic" => {
            let keys = STANDARD
                .decode(value)
                .ok()
                .and_then(|keys| String::from_utf8(keys).ok());
            match keys.as_deref().and_then(|keys| keys.split_once(':')) {
                None => Err(Refusal::new(
                    401,
                    21,
                    "Unauthorized (malformed credentials)",
                )),
                Some((ACCESS_KEY, SECRET_KEY)) => Ok("user".to_owned()),
                Some((GUEST_KEY, SECRET_KEY)) => Ok("guest".to_owned()),
                Some(_) => Err(Refusal::new(
                    401,
                    22,
                    "Unauthorized (invalid credentials) (failed to locate provided credentials)",
                )),
            }
        }
        "Bearer" => {
            let invalid = || Refusal::new(401, 30, "Invalid token");
            let claims = token::claims(value).ok_or_else(invalid)?;
            let alive = claims["exp"]
                .as_i64()
                .is_some_and(|exp| exp > world.now().as_second());
            let issued = claims["iat_us"].as_i64();
            let counts = world
                .tokens_from
                .is_none_or(|from| issued.is_some_and(|at| at >= from.as_microsecond()));
            if !alive || !counts {
                return Err(invalid());
            }
            Ok(claims["identity"]["role"]
                .as_str()
                .unwrap_or_default()
                .to_owned())
        }
        _ => Err(Refusal::new(
            401,
            10,
            "Unauthorized (bad authentication header type)",
        )),
    }
}

/// `v2.34/tasks.ping` → `2.34` and `tasks.ping`. Any version is served.
fn split_version(path: &str) -> (&str, &str) {
    let versioned = path.strip_prefix('v').and_then(|rest| rest.split_once('/'));
    versioned.unwrap_or(("", path))
}

fn note(
    world: &mut World,
    headers: &HeaderMap,
    method: &str,
    endpoint: &str,
    body: &[u8],
    result: &Result<Value, Refusal>,
) {
    let header = |name: &str| {
        let value = headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    let client = match header("X-ClearML-Agent") {
        none if none.is_empty() => header("X-ClearML-Client"),
        agent => agent,
    };
    let refusal = result.as_ref().err();
    let call = Call {
        endpoint: endpoint.to_owned(),
        method: method.to_owned(),
        worker: header("X-ClearML-Worker"),
        client,
        body: readable(endpoint, body),
        code: refusal.map_or(200, |refusal| refusal.code),
        subcode: refusal.map_or(0, |refusal| refusal.subcode),
        complaint: refusal
            .filter(|refusal| refusal.complaint)
            .map(|refusal| refusal.message.clone()),
        at: world.now(),
    };
    world.calls.push(call);
}

fn readable(endpoint: &str, body: &[u8]) -> Value {
    let text = String::from_utf8_lossy(body);
    if endpoint == endpoints::ADD_BATCH {
        return text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .collect();
    }
    serde_json::from_str(&text).unwrap_or(Value::Null)
}

fn envelope(
    world: &mut World,
    version: &str,
    endpoint: &str,
    result: Result<Value, Refusal>,
) -> Response<Full<Bytes>> {
    let (code, subcode, message, data) = match result {
        Ok(data) => (200, 0, "OK".to_owned(), data),
        Err(refusal) => (refusal.code, refusal.subcode, refusal.message, json!({})),
    };
    let actual = world.api_version();
    let requested = if version.is_empty() { actual } else { version };
    let id = world.id();
    let body = json!({
        "meta": {
            "id": id, "trx": id,
            "endpoint": { "name": endpoint, "requested_version": requested, "actual_version": actual },
            "result_code": code, "result_subcode": subcode, "result_msg": message, "error_stack": null, "error_data": {},
        },
        "data": data,
    });
    let mut response = Response::new(Full::from(body.to_string()));
    *response.status_mut() =
        StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
