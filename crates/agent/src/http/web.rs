//! The page on the TCP listener: its files without the token, the gate in front of all paths, and the headers of all answers.
//!
//! The Unix socket has none of it: no browser reaches it, and its callers are known by the kernel's word.

use std::sync::Arc;

use axum::Extension;
use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use divvy_api::v1::{Error, ErrorCode, WebServer, WebSession};
use divvy_web::gate::{Gate, Refusal};
use divvy_web::{files, gzip, headers};

use super::Peer;
use super::body::ApiError;
use crate::auth::Caller;

/// Answers what needs no token, and passes on the rest.
pub async fn guard(
    State(gate): State<Arc<Gate>>,
    Extension(peer): Extension<Peer>,
    request: Request,
    next: Next,
) -> Response {
    if !matches!(peer, Peer::Token(_)) {
        return next.run(request).await;
    }
    let accepted = gzip::Accepted::of(&request);
    let answer = match answer_without_token(&gate, &request) {
        Some(answer) => answer,
        None => next.run(request).await,
    };
    let mut answer = gzip::compress(accepted, answer).await.map(Body::new);
    headers::secure(answer.headers_mut());
    answer
}

fn answer_without_token(gate: &Gate, request: &Request) -> Option<Response> {
    let (method, uri) = (request.method(), request.uri());
    if let Err(refusal) = gate.check(method, uri, request.headers()) {
        return Some(refused(refusal).into_response());
    }
    if *method != Method::GET || !files::is_static(uri.path()) {
        return None;
    }
    let file = files::answer(uri.path(), request.headers());
    Some(match file {
        Some(file) => file.map(Body::from),
        None => {
            let why = format!("the page has no file {}", uri.path());
            ApiError::from(Error::new(ErrorCode::NotFound, why)).into_response()
        }
    })
}

fn refused(Refusal { why, hint }: Refusal) -> ApiError {
    Error::new(ErrorCode::NotAllowed, why).hint(hint).into()
}

/// The caller, and what it may change.
pub async fn session(Extension(caller): Extension<Caller>) -> Json<WebSession> {
    // On the system's daemon the token stands for no user.
    let user = match caller.account.uid {
        u32::MAX => "token",
        _ => &caller.account.name,
    };
    let role = Some(caller.role);
    Json(WebSession::new(WebServer::Listener, (user, role), None))
}

/// The daemon starts no program for a browser.
pub async fn of_command_line(request: Request) -> ApiError {
    let verb = request.uri().path().trim_start_matches("/web/");
    let why = format!("the daemon does not run `divvy {verb}` for a browser");
    Error::new(ErrorCode::NotFound, why)
        .hint(format!(
            "type `divvy {verb}` on this machine, or open the page with `divvy web`"
        ))
        .into()
}

#[cfg(test)]
mod tests {
    use divvy_api::v1::web::WEB_VERBS;

    use crate::auth::{JobRelation, required_role, verb};

    #[test]
    fn what_the_page_offers_a_role_is_what_the_daemon_allows_it() {
        for (name, own, others) in WEB_VERBS {
            let call = match *name {
                "submit" | "selftest" => ("POST", "/v1/jobs".to_owned()),
                "mig-gc" => ("POST", "/v1/mig/gc".to_owned()),
                "projects" => ("POST", "/v1/projects/vision".to_owned()),
                "move" => ("POST", "/v1/jobs/7/change".to_owned()),
                verb => ("POST", format!("/v1/jobs/7/{verb}")),
            };
            let verb = verb::known(call.0, &call.1).unwrap();
            assert_eq!(required_role(verb, JobRelation::Own), *own, "{name}");
            assert_eq!(required_role(verb, JobRelation::Others), *others, "{name}");
        }
    }
}
