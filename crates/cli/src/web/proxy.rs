//! Answers to the browser: the page's files, and the daemon's API as this user calls it.
//!
//! Each request passes the gate, then the token, then the rule for actions. The daemon decides the rest by the user's role.

use std::sync::Arc;

use divvy_api::client::Client;
use divvy_api::daemon::Role;
use divvy_api::v1::{Error, ErrorBody, ErrorCode, WebServer, WebSession};
use divvy_web::connections::TcpConn;
use divvy_web::gate::Gate;
use divvy_web::gzip::{self, CompressionBody};
use divvy_web::token::Token;
use divvy_web::{files, headers};
use http_body_util::{Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, TE, TRAILER, TRANSFER_ENCODING,
    UPGRADE,
};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;

use super::call;
use super::tools::Tool;

/// Headers of an answer that are about one connection (RFC 9110, section 7.6.1).
const HOP_BY_HOP: [HeaderName; 5] = [CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE];

/// An answer: whole, or as the daemon writes it.
type Answer = Response<Either<Full<Bytes>, Incoming>>;

/// The body of what the browser gets.
pub type Body = CompressionBody<Either<Full<Bytes>, Incoming>>;

/// The call with a body that changes and reserves nothing.
const QUESTION: &str = "/v1/mig/plan";

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
        let accepted = gzip::Accepted::of(&request);
        let answer = self.route(request, conn).await;
        let answer = answer.unwrap_or_else(|error| failure(&error));
        let mut answer = gzip::compress(accepted, answer).await;
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
        let asks = reads || (method == Method::POST && path == QUESTION);
        if !asks && !self.allows_actions {
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
        let call = call::call(request, call::WITHIN).await?;
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
