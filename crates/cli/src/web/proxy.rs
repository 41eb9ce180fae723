//! Answers to the browser: the page's files, and the daemon's API as this user calls it.
//!
//! Each request passes the gate, then the token, then the rule for actions. The daemon decides the rest by the user's role.

use std::sync::Arc;
use std::time::Duration;

use divvy_api::client::Client;
use divvy_api::daemon::Role;
use divvy_api::v1::{Error, ErrorBody, ErrorCode, WebServer, WebSession};
use divvy_web::connections::TcpConn;
use divvy_web::gate::Gate;
use divvy_web::token::Token;
use divvy_web::{files, gzip, headers};
use http_body_util::{BodyExt as _, Either, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT, CONNECTION, CONTENT_TYPE, HOST, HeaderName, HeaderValue, IF_NONE_MATCH, RETRY_AFTER,
    TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;

use super::tools::Tool;

/// Bytes of a request's body: the page sends changes of a job.
const MOST_BODY: usize = 1 << 20;

/// How long a body may take.
const BODY_TIME: Duration = Duration::from_secs(30);

/// Headers of a request that the daemon gets. The token is not one of them.
const PASSED: [HeaderName; 3] = [ACCEPT, CONTENT_TYPE, IF_NONE_MATCH];

/// Headers of an answer that are about one connection (RFC 9110, section 7.6.1).
const HOP_BY_HOP: [HeaderName; 5] = [CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE];

/// An answer: whole, or as the daemon writes it.
type Answer = Response<Either<Full<Bytes>, Incoming>>;

/// The body of what the browser gets.
pub type Body = gzip::Answer<Either<Full<Bytes>, Incoming>>;

/// The page's side of this process.
pub struct Proxy {
    client: Arc<Client>,
    gate: Gate,
    token: Token,
    allows_actions: bool,
    doctor: Tool,
    selftest: Tool,
}

impl Proxy {
    pub fn new(client: Arc<Client>, gate: Gate, token: Token, allows_actions: bool) -> Self {
        Self {
            client,
            gate,
            token,
            allows_actions,
            doctor: Tool::doctor(),
            selftest: Tool::selftest(),
        }
    }

    /// Answers one request of this connection.
    pub async fn answer(&self, request: Request<Incoming>, conn: &TcpConn) -> Response<Body> {
        // The length of an answer to HEAD is that of a body which does not follow.
        let accepts = request.method() != Method::HEAD && gzip::accepts_gzip(request.headers());
        let answer = self.route(request, conn).await;
        let answer = answer.unwrap_or_else(|error| failure(&error));
        let mut answer = gzip::compress(accepts, answer);
        headers::secure(answer.headers_mut());
        answer
    }

    async fn route(&self, request: Request<Incoming>, conn: &TcpConn) -> Result<Answer, Error> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let passed = self.gate.check(&method, request.uri(), request.headers());
        passed.map_err(|refusal| not_allowed(refusal.why).hint(refusal.hint))?;
        let reads = matches!(method, Method::GET | Method::HEAD);
        if reads && files::is_static(&path) {
            let file = files::answer(&path, request.headers());
            let missing =
                || Error::new(ErrorCode::NotFound, format!("the page has no file {path}"));
            let file = file.ok_or_else(missing)?;
            return Ok(file.map(|bytes| Either::Left(Full::new(bytes))));
        }
        if !self.token.is_shown(request.headers()) {
            return Err(
                not_allowed("the request does not show the token of this `divvy web`")
                    .hint("open the address that `divvy web` printed; a new start has a new token"),
            );
        }
        if !conn.mark_authenticated() {
            return Err(Error::new(
                ErrorCode::TooMany,
                "too many open connections with the token",
            )
            .hint("close other windows of the page"));
        }
        if !reads && !self.allows_actions {
            return Err(not_allowed(format!(
                "{method} {path} changes something, and this page only shows"
            ))
            .hint("stop it, and start `divvy web --allow-actions`"));
        }
        match (&method, &*path) {
            (_, "/web/session") if reads => self.session().await,
            (_, "/web/doctor") if reads => self.doctor.run().await.map(json_text),
            (&Method::POST, "/web/selftest") => self.selftest.run().await.map(json_text),
            (_, path) if path.starts_with("/v1/") => self.forward(request).await,
            _ => Err(
                Error::new(ErrorCode::NotFound, format!("unknown path {path}"))
                    .hint("the page is at /, and the daemon's API below /v1/"),
            ),
        }
    }

    async fn session(&self) -> Result<Answer, Error> {
        let node = self.client.node().await?;
        let caller = node.caller.unwrap_or_else(|| divvy_api::v1::NodeCaller {
            user: String::new(),
            role: String::new(),
        });
        let role = Role::ALL
            .into_iter()
            .find(|role| role.name() == caller.role);
        let off = (!self.allows_actions)
            .then(|| "this page only shows: start `divvy web --allow-actions`".to_owned());
        let session = WebSession::new(WebServer::Proxy, (&caller.user, role), off);
        Ok(json(StatusCode::OK, &session))
    }

    /// The daemon's answer, as it comes.
    async fn forward(&self, request: Request<Incoming>) -> Result<Answer, Error> {
        let (parts, body) = request.into_parts();
        if parts.headers.contains_key(UPGRADE) {
            return Err(
                not_allowed("`divvy web` passes on no other protocol than HTTP")
                    .hint("use `divvy exec` on this machine"),
            );
        }
        let body = Limited::new(body, MOST_BODY).collect();
        let body = match tokio::time::timeout(BODY_TIME, body).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) => {
                let why = format!(
                    "the request's body cannot be read (at most {MOST_BODY} bytes): {error}"
                );
                return Err(Error::new(ErrorCode::Usage, why));
            }
            Err(_) => {
                let why = format!(
                    "the request's body did not arrive within {} s",
                    BODY_TIME.as_secs()
                );
                return Err(Error::new(ErrorCode::TimedOut, why));
            }
        };
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut call = Request::new(Full::new(body));
        *call.method_mut() = parts.method;
        *call.uri_mut() = path.parse().map_err(|error| {
            Error::new(ErrorCode::Usage, format!("{path} is not a path: {error}"))
        })?;
        call.headers_mut()
            .insert(HOST, HeaderValue::from_static("divvy"));
        for name in PASSED {
            if let Some(value) = parts.headers.get(&name) {
                call.headers_mut().insert(name, value.clone());
            }
        }
        let mut answer = self.client.forward(call).await?;
        for name in HOP_BY_HOP {
            answer.headers_mut().remove(name);
        }
        Ok(answer.map(Either::Right))
    }
}

fn not_allowed(why: impl Into<String>) -> Error {
    Error::new(ErrorCode::NotAllowed, why)
}

fn failure(error: &Error) -> Answer {
    let status = StatusCode::from_u16(error.code.http_status());
    let body = ErrorBody {
        error: error.clone(),
    };
    let mut answer = json(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), &body);
    if answer.status() == StatusCode::TOO_MANY_REQUESTS {
        answer
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    answer
}

fn json(status: StatusCode, body: &impl Serialize) -> Answer {
    let mut answer = json_text(serde_json::to_vec(body).unwrap_or_default().into());
    *answer.status_mut() = status;
    answer
}

fn json_text(text: Bytes) -> Answer {
    let mut answer = Response::new(Either::Left(Full::new(text)));
    let kind = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}
