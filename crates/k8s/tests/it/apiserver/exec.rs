//! Commands in pods (`pods/exec`) over a WebSocket, with the subprotocol `v5.channel.k8s.io` that kube speaks: each message begins with
//! its channel (`k8s.io/apimachinery` `remotecommand`).

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header;
use axum::response::Response;
use futures_util::SinkExt as _;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::Shared;
use super::store::Fail;

pub type Hook = Arc<dyn Fn(&str, &[String]) -> Ran + Send + Sync>;

const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;

/// What a command comes to.
#[derive(Clone, Debug, Default)]
pub struct Ran {
    pub code: u8,
    pub stdout: String,
    pub stderr: String,
    /// It never ends.
    pub hangs: bool,
    /// The API server answers with this status instead of running it.
    pub refused: Option<u16>,
}

impl Ran {
    pub fn printed(stdout: impl Into<String>) -> Self {
        Self {
            stdout: stdout.into(),
            ..Self::default()
        }
    }
}

/// A request that becomes a WebSocket.
pub struct Upgrade {
    key: String,
    on: OnUpgrade,
}

impl Upgrade {
    pub fn of(request: &mut Request) -> Option<Self> {
        let key = request.headers().get("sec-websocket-key")?;
        Some(Self {
            key: key.to_str().ok()?.to_owned(),
            on: hyper::upgrade::on(request),
        })
    }
}

/// The words of the command in a query, in their order.
pub fn words(query: &str) -> Vec<String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let words = pairs.filter(|(name, _)| *name == "command");
    words.map(|(_, word)| decoded(word)).collect()
}

fn decoded(word: &str) -> String {
    let bytes = word.replace('+', " ").into_bytes();
    let (mut out, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let hex = bytes
            .get(at + 1..at + 3)
            .filter(|_| bytes[at] == b'%')
            .and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        out.push(hex.unwrap_or(bytes[at]));
        at += if hex.is_some() { 3 } else { 1 };
    }
    String::from_utf8(out).unwrap()
}

pub(super) async fn answer(
    shared: &Arc<Shared>,
    path: &str,
    words: Vec<String>,
    upgrade: Upgrade,
) -> Result<Response, Fail> {
    let pod = path.rsplit('/').next().unwrap_or_default().to_owned();
    let hook = shared.state.lock().unwrap().on_exec.clone();
    let hook = hook.ok_or_else(|| Fail::not_found("no pod runs here".to_owned()))?;
    let key = derive_accept_key(upgrade.key.as_bytes());
    let ran = tokio::task::spawn_blocking(move || hook(&pod, &words));
    let ran = ran.await.unwrap();
    if let Some(code) = ran.refused {
        return Err(Fail {
            code,
            reason: "Refused",
            message: "the test wants it so".to_owned(),
        });
    }
    let switched = Response::builder()
        .status(101)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header("sec-websocket-accept", key)
        .header("sec-websocket-protocol", "v5.channel.k8s.io");
    tokio::spawn(async move {
        let Ok(upgraded) = upgrade.on.await else {
            return;
        };
        let stream = TokioIo::new(upgraded);
        let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
        if ran.hangs {
            std::future::pending::<()>().await;
        }
        for (channel, text) in [
            (STDOUT, ran.stdout.as_str()),
            (STDERR, ran.stderr.as_str()),
            (STATUS, &ended(&ran).to_string()),
        ] {
            for part in text.as_bytes().chunks(32 << 10) {
                let message = [&[channel], part].concat();
                if socket.send(Message::Binary(message.into())).await.is_err() {
                    return;
                }
            }
        }
        let _ = socket.close(None).await;
    });
    Ok(switched.body(Body::empty()).unwrap())
}

/// The status as kubelet 1.36 sends it.
fn ended(ran: &Ran) -> Value {
    match ran.code {
        0 => json!({ "metadata": {}, "status": "Success" }),
        code => json!({
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": format!("command terminated with non-zero exit code: exit status {code}"),
            "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
        }),
    }
}
