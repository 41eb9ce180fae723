//! Who calls, and whether they may: in front of every route, so that no handler can forget it.
//!
//! A job is named by its number from here on: what `last` or a name means is decided once, for the check and for the call.

use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::uri::{PathAndQuery, Uri};
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use divvy_api::v1::{Error, ErrorCode};
use serde_json::Value;

use super::body::Failure;
use super::{Api, Peer, internal};
use crate::access::{Caller, Whose, verb};
use crate::account::Account;
use crate::supervise::chain;

/// Answers about jobs are lists of them, whose commands take most of it.
const ANSWER_LIMIT: usize = 1 << 30;

/// Lets a call through that its caller may make.
pub async fn gate(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Result<Response, Failure> {
    let caller = {
        let given = request.headers().get(header::AUTHORIZATION).cloned();
        caller(&api, &peer, given.as_ref()).await?
    };
    let path = request.uri().path().to_owned();
    let verb = verb::of(request.method().as_str(), &path);
    let Some(of) = verb::job(&path) else {
        // Most of what there is to look at names jobs; without one it is about nobody's.
        caller.may(verb, Whose::None)?;
        return pass(request, caller, None, next).await;
    };
    if api.rules.is_private() {
        // There is one user, whose everything is.
        return pass(request, caller, None, next).await;
    }
    let reference = decoded(of.reference)?;
    let asked_by = caller.account.uid;
    let (id, owner) = api
        .mailbox
        .read(move |cycle| cycle.job_of(&reference, asked_by))
        .await?;
    caller.may(verb, caller.whose(owner))?;
    rename(&mut request, &format!("/v1/jobs/{id}{}", of.rest))?;
    pass(request, caller, Some(owner), next).await
}

/// By the kernel's word, or by a token that was given.
async fn caller(api: &Api, peer: &Peer, given: Option<&HeaderValue>) -> Result<Caller, Failure> {
    match *peer {
        Peer::Local { uid, .. } if api.rules.is_private() => {
            let me = || api.me.clone();
            // Root acts for the daemon's user: it could be anybody.
            let account = match uid == 0 || uid == api.me.uid {
                true => me(),
                false => Account { uid, ..me() },
            };
            Ok(api.rules.caller(account)?)
        }
        Peer::Local { uid, gid } => {
            // The user database may be on the network.
            let account = tokio::task::spawn_blocking(move || Account::of(uid, gid)).await;
            // Whose groups are not known could be somebody whose role is less.
            let account = account.map_err(|error| internal(&error))?.map_err(|error| {
                Error::new(ErrorCode::Internal, chain(&error))
                    .hint("`getent passwd` and `id` say what is wrong; nothing is allowed until it answers")
            })?;
            Ok(api.rules.caller(account)?)
        }
        Peer::Token => {
            let token = api.token.as_ref().filter(|token| token.is(given));
            token.map(|token| token.caller.clone()).ok_or_else(|| {
                Error::new(
                    ErrorCode::NotAllowed,
                    "over TCP a call takes the daemon's token",
                )
                .hint("send `Authorization: Bearer TOKEN`, with the token of the daemon's --token-file")
                .into()
            })
        }
        Peer::Unknown => Err(Error::new(
            ErrorCode::NotAllowed,
            "the kernel does not say who is calling",
        )
        .into()),
    }
}

/// `owner` is whose job the call is about, where it is about one.
async fn pass(
    mut request: Request,
    caller: Caller,
    owner: Option<u32>,
    next: Next,
) -> Result<Response, Failure> {
    let veiled = Veil::of(&request, &caller, owner);
    request.extensions_mut().insert(caller);
    let response = next.run(request).await;
    match veiled {
        Some(veil) if is_json(&response) => veil.over(response).await,
        _ => Ok(response),
    }
}

fn decoded(text: &str) -> Result<String, Failure> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err(unreadable(text));
        };
        bytes.push(u8::try_from(high * 16 + low).unwrap_or(0));
    }
    String::from_utf8(bytes).map_err(|_| unreadable(text))
}

fn unreadable(text: &str) -> Failure {
    Error::new(ErrorCode::Usage, format!("{text} is not an encoded name")).into()
}

fn rename(request: &mut Request, path: &str) -> Result<(), Failure> {
    let text = match request.uri().query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let renamed = PathAndQuery::try_from(text).map_err(|error| internal(&error))?;
    let mut parts = request.uri().clone().into_parts();
    parts.path_and_query = Some(renamed);
    *request.uri_mut() = Uri::from_parts(parts).map_err(|error| internal(&error))?;
    Ok(())
}

fn is_json(response: &Response) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE);
    kind == Some(&HeaderValue::from_static("application/json"))
}

/// Takes out of answers about jobs what is only their owners' to see.
struct Veil {
    caller: Caller,
    /// Whose job the call is about.
    owner: Option<u32>,
}

impl Veil {
    fn of(request: &Request, caller: &Caller, owner: Option<u32>) -> Option<Self> {
        let is_job = request.uri().path().starts_with("/v1/jobs");
        (is_job && !caller.sees_everybody()).then(|| Self {
            caller: caller.clone(),
            owner,
        })
    }

    async fn over(&self, response: Response) -> Result<Response, Failure> {
        let (mut parts, body) = response.into_parts();
        let body = to_bytes(body, ANSWER_LIMIT)
            .await
            .map_err(|error| internal(&error))?;
        let mut answer: Value = serde_json::from_slice(&body).map_err(|error| internal(&error))?;
        let draw: fn(&Self, &mut Value) = match answer["kind"].as_str() {
            Some("JobList") => Self::draw,
            Some("Why") => Self::mute,
            _ => |_, _| {},
        };
        if let Some(items) = answer["items"].as_array_mut() {
            items.iter_mut().for_each(|item| draw(self, item));
        }
        let body = serde_json::to_vec(&answer).map_err(|error| internal(&error))?;
        parts.headers.remove(header::CONTENT_LENGTH);
        Ok(Response::from_parts(parts, Body::from(body)))
    }

    /// Why one waits is everybody's business; what went wrong in a program is its owner's.
    fn mute(&self, why: &mut Value) {
        if self.owner.is_none_or(|owner| !self.caller.sees(owner)) && why["state"] == "ended" {
            why["summary"] = "it has ended".into();
        }
    }

    fn draw(&self, job: &mut Value) {
        let owner = job["uid"].as_u64().and_then(|uid| u32::try_from(uid).ok());
        if owner.is_some_and(|owner| self.caller.sees(owner)) {
            return;
        }
        let Some(job) = job.as_object_mut() else {
            return;
        };
        for (field, nothing) in [
            ("command", Value::Array(Vec::new())),
            ("secrets", Value::Array(Vec::new())),
            ("labels", Value::Object(serde_json::Map::new())),
            ("container", Value::Null),
            ("claim", Value::Null),
            ("cwd", Value::String(String::new())),
            ("directory", Value::String(String::new())),
            ("slice_directory", Value::Null),
            // How they came about names files.
            ("limiter", Value::Null),
            ("group", Value::Null),
        ] {
            if let Some(value) = job.get_mut(field) {
                *value = nothing;
            }
        }
        // As in [`Self::mute`].
        if job.get("state").is_some_and(|state| state == "ended") {
            job.insert("reason".into(), Value::Null);
        }
        job.insert("redacted".into(), Value::Bool(true));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Role;

    fn veil() -> Veil {
        Veil {
            caller: Caller {
                account: Account {
                    uid: 1000,
                    gid: 1000,
                    name: "ana".into(),
                    groups: Vec::new(),
                },
                role: Role::User,
                sees_all: false,
            },
            owner: None,
        }
    }

    #[test]
    fn of_anothers_job_nothing_is_left_of_what_it_runs() {
        let job = serde_json::json!({
            "id": "7", "uid": 1001, "name": "train", "state": "ended", "reason": "cannot start /secret/x",
            "command": ["/secret/x"], "cwd": "/secret", "directory": "/secret/7", "slice_directory": "/secret/s",
            "container": {"image": "secret"}, "secrets": ["SECRET"], "labels": {"task": "secret"},
            "limiter": {"form": "preload", "reason": "cannot open /secret/libcuda.so.1"}, "group": {"path": "/secret/g"},
        });
        let mut shown = job.clone();
        veil().draw(&mut shown);
        let text = shown.to_string().to_lowercase().replace("\"secrets\"", "");
        assert!(!text.contains("secret"), "{text}");
        assert_eq!(shown["name"], "train");
        assert_eq!(shown["redacted"], true);
        let mut own = job.clone();
        own["uid"] = 1000.into();
        let before = own.clone();
        veil().draw(&mut own);
        assert_eq!(own, before);
        // A job of which it is not said whose it is, is not shown.
        let mut stray = job;
        stray.as_object_mut().unwrap().remove("uid");
        veil().draw(&mut stray);
        assert_eq!(stray["command"], Value::Array(Vec::new()));
    }

    #[test]
    fn why_anothers_job_ended_is_not_told_and_why_it_waits_is() {
        let told = |owner, state: &str| {
            let mut why = serde_json::json!({"state": state, "summary": "cannot start /secret/x"});
            Veil { owner, ..veil() }.mute(&mut why);
            why["summary"].to_string().contains("secret")
        };
        assert!(told(Some(1000), "ended"), "one's own");
        assert!(!told(Some(1001), "ended"));
        assert!(!told(None, "ended"));
        assert!(told(Some(1001), "queued"));
    }

    #[test]
    fn encoded_references_are_read_as_clients_write_them() {
        assert_eq!(decoded("a%20b").unwrap(), "a b");
        assert_eq!(decoded("gr%C3%B6%C3%9Fe").unwrap(), "größe");
        for wrong in ["%", "%2", "%zz", "%ff"] {
            assert!(decoded(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_renamed_call_keeps_its_query() {
        let mut request = Request::builder()
            .uri("/v1/jobs/last/log?offset=3&follow=true")
            .body(Body::empty())
            .unwrap();
        rename(&mut request, "/v1/jobs/7/log").unwrap();
        assert_eq!(request.uri(), "/v1/jobs/7/log?offset=3&follow=true");
    }
}
