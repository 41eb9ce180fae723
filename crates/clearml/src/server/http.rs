//! The HTTP layer of an API call: token, headers, size limits, retry.

use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use divvy_api::error_chain::causes;
use divvy_api::sync::lock;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Method as Verb, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::error::{ServerError, backoff};
use super::token::Token;
use crate::config::{Api, Credentials, Method, Verify};

/// The stock agent's time for a connection and for an answer, seconds. The same as its, so that a server that serves it
/// serves Divvy as well.
const CONNECT: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(30);

/// Codes of a temporary failure: too many requests, bad gateway, maintenance, bandwidth.
const LATER: [u16; 4] = [429, 502, 503, 509];

const JSON: &str = "application/json";
pub(super) const JSON_LINES: &str = "application/json-lines";

/// A ClearML API server and our session with it.
#[derive(Debug)]
pub struct Server {
    http: reqwest::Client,
    api: Api,
    /// The value of `X-ClearML-Worker`: the machine.
    worker: String,
    token: Mutex<Option<Token>>,
    /// One login at a time.
    logging_in: tokio::sync::Mutex<()>,
}

#[derive(Deserialize)]
struct Envelope {
    meta: Meta,
    #[serde(default)]
    data: Value,
}

#[derive(Deserialize)]
struct Meta {
    #[serde(default)]
    result_code: u16,
    #[serde(default)]
    result_subcode: u32,
    #[serde(default)]
    result_msg: String,
}

/// A call without its body.
pub(super) struct Request {
    pub endpoint: &'static str,
    pub verb: Verb,
    /// Type of the body.
    pub kind: &'static str,
    /// How often it is tried again.
    pub retries: u32,
}

/// How one attempt went.
enum Attempt {
    Answered(Value),
    Later(u16, String),
    Failed(ServerError),
}

impl Server {
    /// Connects with the first call. `worker` is the machine's name.
    ///
    /// # Errors
    /// A bundle of certificates that cannot be read.
    pub fn new(api: &Api, worker: &str) -> Result<Self, ServerError> {
        // An error means that this process has a provider already; either one works here.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder()
            .connect_timeout(CONNECT)
            .timeout(ANSWER)
            .user_agent(concat!("divvy/", env!("CARGO_PKG_VERSION")));
        match &api.verify {
            Verify::System => {}
            Verify::No => builder = builder.tls_danger_accept_invalid_certs(true),
            Verify::Bundle(path) => builder = builder.tls_certs_only(bundle(path)?),
        }
        let http = builder
            .build()
            .map_err(|error| ServerError::Client(chain(&error)))?;
        let token = match &api.credentials {
            Credentials::Token(token) => Some(Token::new(token.expose())),
            Credentials::Keys { .. } => None,
        };
        Ok(Self {
            http,
            api: api.clone(),
            worker: worker.to_owned(),
            token: Mutex::new(token),
            logging_in: tokio::sync::Mutex::new(()),
        })
    }

    /// Gets a token if there is none that lasts.
    ///
    /// # Errors
    /// Keys that the server refuses, and no server.
    pub async fn login(&self) -> Result<(), ServerError> {
        self.bearer().await.map(|_| ())
    }

    pub fn address(&self) -> &str {
        &self.api.server
    }

    /// The server's properties from its login answer.
    pub fn facts(&self) -> super::token::Facts {
        let token = self.lock();
        token
            .as_ref()
            .map(|token| token.facts.clone())
            .unwrap_or_default()
    }

    pub(super) fn retries(&self) -> u32 {
        self.api.http.retries
    }

    pub(super) fn most(&self) -> usize {
        self.api.http.max_request
    }

    /// A call with a JSON body, tried again as the configuration says.
    pub(super) async fn call<T: DeserializeOwned>(
        &self,
        endpoint: &'static str,
        body: Value,
    ) -> Result<T, ServerError> {
        self.call_with(endpoint, body, self.api.http.retries).await
    }

    /// The same, tried once: for what must not be done twice, and for what is asked again anyway.
    pub(super) async fn call_once<T: DeserializeOwned>(
        &self,
        endpoint: &'static str,
        body: Value,
    ) -> Result<T, ServerError> {
        self.call_with(endpoint, body, 0).await
    }

    async fn call_with<T: DeserializeOwned>(
        &self,
        endpoint: &'static str,
        body: Value,
        retries: u32,
    ) -> Result<T, ServerError> {
        let verb = match self.api.http.method {
            Method::Get => Verb::GET,
            Method::Post => Verb::POST,
            Method::Put => Verb::PUT,
        };
        let what = Request {
            endpoint,
            verb,
            kind: JSON,
            retries,
        };
        self.send(&what, body.to_string()).await
    }

    /// A call with this body.
    pub(super) async fn send<T: DeserializeOwned>(
        &self,
        what: &Request,
        body: String,
    ) -> Result<T, ServerError> {
        let endpoint = what.endpoint;
        if body.len() > self.most() {
            return Err(ServerError::TooLarge {
                endpoint,
                bytes: body.len(),
                most: self.most(),
            });
        }
        let mut renewed = false;
        loop {
            let bearer = self.bearer().await?;
            let answer = self
                .repeat(endpoint, what.retries, || {
                    self.http
                        .request(what.verb.clone(), format!("{}/{endpoint}", self.api.server))
                        .header(AUTHORIZATION, bearer.clone())
                        .header(CONTENT_TYPE, what.kind)
                        .body(body.clone())
                })
                .await;
            match answer {
                Err(ServerError::Refused { code: 401, .. }) if !renewed => {
                    renewed = true;
                    self.forget(&bearer);
                }
                Err(error) => return Err(error),
                Ok(data) => {
                    return serde_json::from_value(data)
                        .map_err(|error| self.not_clearml(endpoint, error.to_string()));
                }
            }
        }
    }

    async fn bearer(&self) -> Result<HeaderValue, ServerError> {
        if let Some(bearer) = self.lasting() {
            return Ok(bearer);
        }
        let _one = self.logging_in.lock().await;
        if let Some(bearer) = self.lasting() {
            return Ok(bearer);
        }
        let endpoint = "auth.login";
        let mut body = json!({});
        if let Some(asked) = self.api.token_expiration {
            body["expiration_sec"] = json!(asked.as_secs());
        }
        let given = self.lock().as_ref().map(|token| token.text.clone());
        let data = self
            .repeat(endpoint, self.api.http.retries, || {
                let request = self
                    .http
                    .post(format!("{}/{endpoint}", self.api.server))
                    .header(CONTENT_TYPE, JSON)
                    .body(body.to_string());
                match (&self.api.credentials, &given) {
                    (Credentials::Keys { access, secret }, _) => {
                        request.basic_auth(access, Some(secret.expose()))
                    }
                    (Credentials::Token(_), Some(token)) => request.bearer_auth(token.expose()),
                    (Credentials::Token(token), None) => request.bearer_auth(token.expose()),
                }
            })
            .await?;
        let Some(text) = data.get("token").and_then(Value::as_str) else {
            return Err(self.not_clearml(endpoint, "the answer has no token".to_owned()));
        };
        let token = Token::new(text);
        let bearer = header(&token);
        *self.lock() = Some(token);
        Ok(bearer)
    }

    /// The token, unless it is about to end.
    fn lasting(&self) -> Option<HeaderValue> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let token = self.lock();
        token
            .as_ref()
            .filter(|token| token.lasts(now, self.threshold()))
            .map(header)
    }

    /// Half the time that was asked for at most: a token that is asked to last for less than the configured threshold would be
    /// renewed with every call.
    fn threshold(&self) -> Duration {
        let half = self.api.token_expiration.map(|asked| asked / 2);
        half.unwrap_or(Duration::MAX).min(self.api.token_threshold)
    }

    /// The server refused this token.
    fn forget(&self, bearer: &HeaderValue) {
        let mut token = self.lock();
        if token.as_ref().map(header).as_ref() == Some(bearer) {
            *token = None;
        }
    }

    /// Makes a request until it is answered for good.
    async fn repeat(
        &self,
        endpoint: &'static str,
        retries: u32,
        request: impl Fn() -> reqwest::RequestBuilder,
    ) -> Result<Value, ServerError> {
        let http = &self.api.http;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let why = match self.attempt(endpoint, request()).await {
                Attempt::Answered(data) => return Ok(data),
                Attempt::Failed(error) => return Err(error),
                Attempt::Later(code, why) => {
                    let for_ever = code == 503 && http.wait_on_maintenance && retries > 0;
                    if attempt > retries && !for_ever {
                        return Err(ServerError::Unreachable {
                            endpoint,
                            server: self.api.server.clone(),
                            why,
                        });
                    }
                    why
                }
            };
            let wait = backoff(attempt, http.backoff_factor, http.backoff_max);
            // Said at once and then each time that waiting has doubled.
            if attempt.is_power_of_two() {
                tracing::warn!(server = %self.api.server, endpoint, %why, ?wait, "the ClearML server does not respond; retrying");
            }
            tokio::time::sleep(wait).await;
        }
    }

    async fn attempt(&self, endpoint: &'static str, request: reqwest::RequestBuilder) -> Attempt {
        let request = request.header("X-ClearML-Worker", &self.worker).header(
            "X-ClearML-Agent",
            concat!("divvy-", env!("CARGO_PKG_VERSION")),
        );
        let answer = match request.send().await {
            Ok(answer) => answer,
            Err(error) => {
                let why = chain(&error);
                return match other_scheme(&why) {
                    Some(why) => Attempt::Failed(self.not_clearml(endpoint, why.to_owned())),
                    None => Attempt::Later(0, why),
                };
            }
        };
        let status = answer.status();
        let text = match answer.text().await {
            Ok(text) => text,
            Err(error) => return Attempt::Later(0, chain(&error)),
        };
        if LATER.contains(&status.as_u16()) {
            return Attempt::Later(status.as_u16(), status.to_string());
        }
        match serde_json::from_str::<Envelope>(&text) {
            Ok(Envelope { meta, data }) if status == StatusCode::OK && meta.result_code == 200 => {
                Attempt::Answered(data)
            }
            Ok(Envelope { meta, .. }) => Attempt::Failed(ServerError::Refused {
                endpoint,
                code: if meta.result_code == 0 {
                    status.as_u16()
                } else {
                    meta.result_code
                },
                subcode: meta.result_subcode,
                message: meta.result_msg,
            }),
            // Of nginx: "The plain HTTP request was sent to HTTPS port".
            Err(_) if status == StatusCode::BAD_REQUEST && text.contains("HTTPS") => {
                Attempt::Failed(self.not_clearml(endpoint, NEEDS_HTTPS.to_owned()))
            }
            Err(_) => Attempt::Failed(self.not_clearml(endpoint, status.to_string())),
        }
    }

    fn not_clearml(&self, endpoint: &'static str, why: String) -> ServerError {
        ServerError::NotClearml {
            endpoint,
            server: self.api.server.clone(),
            why,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Token>> {
        lock(&self.token)
    }
}

fn header(token: &Token) -> HeaderValue {
    let text = format!("Bearer {}", token.text.expose());
    let mut value =
        HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static("Bearer"));
    value.set_sensitive(true);
    value
}

const NEEDS_HTTP: &str = "it answers without TLS; write http:// in place of https://";
const NEEDS_HTTPS: &str = "it answers with TLS only; write https:// in place of http://";

/// The mistake in the server's address that an error shows. Trying again would not mend it.
fn other_scheme(why: &str) -> Option<&'static str> {
    // In the words of rustls and of hyper.
    if why.contains("InvalidContentType") {
        return Some(NEEDS_HTTP);
    }
    why.contains("invalid HTTP version").then_some(NEEDS_HTTPS)
}

fn bundle(path: &Path) -> Result<Vec<reqwest::Certificate>, ServerError> {
    let refuse = |why: String| ServerError::Bundle {
        path: path.to_owned(),
        why,
    };
    let pem = std::fs::read(path).map_err(|error| refuse(error.to_string()))?;
    let certificates =
        reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| refuse(chain(&error)))?;
    if certificates.is_empty() {
        return Err(refuse("the file contains no certificate".to_owned()));
    }
    Ok(certificates)
}

/// An error and what caused it, without the URL, which may hold a password.
fn chain(error: &reqwest::Error) -> String {
    let mut text: Vec<String> = causes(error).map(ToString::to_string).collect();
    if text.is_empty() {
        return if error.is_timeout() {
            "timed out".to_owned()
        } else {
            "the request failed".to_owned()
        };
    }
    text.dedup();
    text.join(": ")
}
