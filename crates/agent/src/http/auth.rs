//! The auth middleware: authenticates the caller and checks its role in front of every route, so that no handler can
//! forget it.
//!
//! A job is named by its number from here on, or by its array's number and index: what `last` or a name means is
//! decided once, for the check and for the call.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::uri::{PathAndQuery, Uri};
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use divvy_api::v1::{Error, ErrorCode};
use divvy_web::connections::MOST;

use super::body::ApiError;
use super::budget::{Bound, until_read};
use super::redact::{AlreadyRedacted, Redactor, Visibility};
use super::token::Token;
use super::upload::Uploads;
use super::{Api, Peer, internal};
use crate::auth::{Caller, JobRelation, verb};
use crate::host::account::{self, UserAccount};
use crate::host::error::error_chain;
use crate::model::validate::limits;

/// Lets a call through that its caller may make.
pub async fn authorize_request(
    State((api, uploads)): State<(Api, Arc<Uploads>)>,
    Extension(peer): Extension<Peer>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let token = api.token.as_ref();
    let shown = token.filter(|token| token.is_shown(request.headers()));
    let caller = authenticate(&api, &peer, shown).await?;
    let api = api.of(caller.account.uid);
    limits::target(request.uri().path(), request.uri().query())?;
    // What the request brings is its user's until it is answered.
    let upload = uploads.of(caller.account.uid);
    request.extensions_mut().insert(upload.clone());
    let path = request.uri().path().to_owned();
    let verb = verb::for_request(request.method().as_str(), &path);
    let Some(of) = verb::job(&path) else {
        // Most readable things name jobs; a request without one concerns no user's data.
        caller.authorize(verb, JobRelation::None)?;
        return forward(&api, request, caller, None, next).await;
    };
    if api.rules.get().is_private() {
        // There is one user, who owns everything.
        return forward(&api, request, caller, None, next).await;
    }
    let reference = decoded(of.reference)?;
    let asked_by = caller.account.uid;
    let (meant, owner) = api
        .mailbox
        .query(move |queries| queries.resolve_for_caller(&reference, asked_by))
        .await?;
    caller.authorize(verb, caller.whose(owner))?;
    rename(&mut request, &format!("/v1/jobs/{meant}{}", of.rest))?;
    forward(&api, request, caller, Some(owner), next).await
}

/// By the kernel's word, or by a token that was given.
async fn authenticate(api: &Api, peer: &Peer, shown: Option<&Token>) -> Result<Caller, ApiError> {
    match *peer {
        Peer::Local { uid, .. } if api.rules.get().is_private() => {
            let me = || api.me.clone();
            // Root acts for the daemon's user: the real user is unknown.
            let account = match uid == 0 || uid == api.me.uid {
                true => me(),
                false => UserAccount { uid, ..me() },
            };
            Ok(api.rules.get().caller(account)?)
        }
        Peer::Local { uid, gid, .. } => {
            // With unknown groups, an account could have a lower role.
            let account = account::recent(uid, gid).await.map_err(|error| {
                Error::new(ErrorCode::Internal, error_chain(&error))
                    .hint("check `getent passwd` and `id`; the daemon refuses all calls of this user until the user \
                           database responds")
            })?;
            Ok(api.rules.get().caller(account)?)
        }
        Peer::Token(ref conn) => {
            let Some(token) = shown else {
                let why = "calls over TCP require the daemon's token";
                let hint = "send `Authorization: Bearer TOKEN` with the token from the daemon's listen.token-file";
                return Err(Error::new(ErrorCode::NotAllowed, why).hint(hint).into());
            };
            if !conn.mark_authenticated() {
                let why = format!(
                    "too many connections with the token: {MOST} are open, which is the limit"
                );
                let hint = "close unused connections, or use one connection for several calls";
                return Err(Error::new(ErrorCode::TooMany, why).hint(hint).into());
            }
            Ok(token.caller.clone())
        }
        Peer::Unknown => Err(Error::new(
            ErrorCode::NotAllowed,
            "the kernel does not report the user of this connection",
        )
        .into()),
    }
}

/// `owner` is the owner of the job that the call is about, if it is about one.
async fn forward(
    api: &Api,
    mut request: Request,
    caller: Caller,
    owner: Option<u32>,
    next: Next,
) -> Result<Response, ApiError> {
    let veiled = Redactor::of(&request, &caller, owner);
    request.extensions_mut().insert(Visibility::of(&caller));
    request.extensions_mut().insert(caller);
    let uri = request.uri();
    let bound = Bound::of_call(request.method().as_str(), uri.path(), uri.query());
    let permit = match bound {
        Some(bound) => Some(api.budget.take(bound).await?),
        None => None,
    };
    let response = next.run(request).await;
    let is_drawn = response.extensions().get::<AlreadyRedacted>().is_some();
    let response = match veiled {
        Some(veil) if is_json(&response) && !is_drawn => veil.redact_response(response).await?,
        _ => response,
    };
    Ok(match permit {
        Some(permit) => until_read(permit, response),
        None => response,
    })
}

fn decoded(text: &str) -> Result<String, ApiError> {
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

fn unreadable(text: &str) -> ApiError {
    Error::new(
        ErrorCode::Usage,
        format!("{text} is not a valid percent-encoded name"),
    )
    .into()
}

fn rename(request: &mut Request, path: &str) -> Result<(), ApiError> {
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

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

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
