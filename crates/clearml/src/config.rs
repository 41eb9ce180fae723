//! The configuration of a ClearML agent: clearml.conf and the environment, read as the stock agent reads them.
//!
//! ```text
//! ~/trains.conf < ~/clearml.conf < CLEARML_AGENT__A__B < CLEARML_API_HOST and the like
//!        └── or one file: --config-file, CLEARML_CONFIG_FILE ──┘
//! ```
//! [`Tree`] is the whole configuration, for callers that need a value of their own; [`Settings`] are the values that
//! the front end reads, typed.

mod environment;
mod hocon;
mod tree;
mod window;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use divvy_api::home::machine;

use crate::secret::Secret;

pub use environment::Variables;
pub use tree::Tree;
pub use window::{Hours, WindowError};

/// The settings that the front end reads from the configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    pub tree: Tree,
    pub api: Api,
    /// `agent.worker_name`: the machine's name unless it says otherwise.
    pub worker_name: String,
    /// `agent.worker_id`: the daemon's whole worker id, in place of one made from name and GPUs.
    pub worker_id: Option<String>,
    /// `CLEARML_WORKER_TAGS`, as shell words.
    pub worker_tags: Vec<String>,
    /// How often the server's queues are looked at while nothing happens; stock: 5 s.
    pub poll: Duration,
    /// How often the machine's figures are sent; stock: 30 s.
    pub report: Duration,
    /// `agent.task_ping_interval_sec`; zero: never.
    pub ping: Duration,
    /// `agent.abort_callback_max_timeout`: how long a task that registered an abort callback may take over it.
    pub abort_callback_max: Duration,
    /// `agent.uptime` and `agent.downtime`.
    pub uptime: Vec<String>,
    pub downtime: Vec<String>,
}

/// The `api` section.
#[derive(Clone, Debug)]
pub struct Api {
    /// Without a slash at its end: `https://api.clear.ml`.
    pub server: String,
    pub credentials: Credentials,
    pub verify: Verify,
    pub http: Http,
    /// A token is renewed once it is valid for less than this.
    pub token_threshold: Duration,
    /// How long a token is asked to be valid; the server's own idea if absent.
    pub token_expiration: Option<Duration>,
}

/// The credentials of the daemon.
#[derive(Clone, Debug)]
pub enum Credentials {
    Keys {
        access: String,
        secret: Secret,
    },
    /// `CLEARML_AUTH_TOKEN`.
    Token(Secret),
}

/// The trust anchors for the server's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verify {
    /// The machine's trust store.
    System,
    /// Certificates in a PEM file: `REQUESTS_CA_BUNDLE`, or a path in `api.verify_certificate`.
    Bundle(PathBuf),
    /// Nothing.
    No,
}

/// The `api.http` section.
#[derive(Clone, Debug, PartialEq)]
pub struct Http {
    /// Bytes of one request at most.
    pub max_request: usize,
    /// How often a request is tried again.
    pub retries: u32,
    pub backoff_factor: f64,
    pub backoff_max: Duration,
    /// 503 is waited out however long it takes.
    pub wait_on_maintenance: bool,
    pub method: Method,
}

/// With which method requests are made, if `api.http.default_method` names one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    Get,
    #[default]
    Post,
    Put,
}

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path}: {why}")]
    Syntax { path: PathBuf, why: String },
    /// `from` is the file, or the variable that the value came from.
    #[error("{from}: {key} = {value}: {wanted}")]
    Value {
        from: String,
        key: String,
        value: String,
        wanted: String,
    },
    #[error("{flag} {value:?}: {wanted}")]
    Flag {
        flag: &'static str,
        value: String,
        wanted: &'static str,
    },
    #[error("{key} is set neither in {file} nor by {variable}")]
    Missing {
        key: &'static str,
        variable: &'static str,
        file: String,
    },
}

impl ConfigError {
    /// The remedy.
    pub fn hint(&self) -> String {
        match self {
            Self::Read { .. } => "name another file with --config-file or CLEARML_CONFIG_FILE".into(),
            Self::Syntax { .. } => {
                "correct that line; `clearml-agent config` reads the same file".into()
            }
            Self::Value { .. } => "correct the value, or remove the key".into(),
            Self::Flag { .. } => "correct the value, or omit the flag".into(),
            Self::Missing { .. } => {
                "run `clearml-agent init`, or create API keys in the server's web UI under Settings > Workspace".into()
            }
        }
    }
}

impl Settings {
    /// Reads this process's configuration; `file` is what `--config-file` names.
    ///
    /// # Errors
    /// [`ConfigError`], which names the file, the key and its value, unless that is a secret.
    pub fn read(file: Option<&Path>) -> Result<Self, ConfigError> {
        // Other variables cannot be ClearML's, whose values are text.
        let vars = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Self::read_with(file, vars)
    }

    /// The same with another environment.
    ///
    /// # Errors
    /// As above.
    pub fn read_with(
        file: Option<&Path>,
        vars: BTreeMap<String, String>,
    ) -> Result<Self, ConfigError> {
        let vars = Variables::new(vars);
        let tree = Tree::read(file, &vars)?;
        let host = machine::host();
        let seconds = |name: &'static str, default: f64, least: f64| {
            let Some((var, text)) = vars.first(&[name]) else {
                return Ok(Duration::from_secs_f64(default));
            };
            let value = text
                .trim()
                .parse::<f64>()
                .ok()
                .filter(|s| s.is_finite() && *s > 0.0);
            value
                .map(|s| Duration::from_secs_f64(s.clamp(least, tree::LONGEST)))
                .ok_or_else(|| ConfigError::Value {
                    from: "the environment".to_owned(),
                    key: var.to_owned(),
                    value: text.to_owned(),
                    wanted: "expected a number of seconds".to_owned(),
                })
        };
        Ok(Self {
            api: Api::of(&tree, &vars)?,
            worker_name: tree
                .text("agent.worker_name")?
                .filter(|name| !name.is_empty())
                .unwrap_or(host),
            worker_id: tree.text("agent.worker_id")?.filter(|id| !id.is_empty()),
            worker_tags: vars
                .first(&["CLEARML_WORKER_TAGS"])
                .map(|(_, text)| text.split_whitespace().map(str::to_owned).collect())
                .unwrap_or_default(),
            poll: seconds("CLEARML_AGENT_QUEUE_POLL_FREQ_SEC", 5.0, 0.05)?,
            report: seconds("CLEARML_AGENT_STATUS_REPORT_FREQ_SEC", 30.0, 0.05)?,
            ping: tree.seconds("agent.task_ping_interval_sec", 60.0)?,
            abort_callback_max: tree.seconds("agent.abort_callback_max_timeout", 1800.0)?,
            uptime: tree.strings("agent.uptime")?.unwrap_or_default(),
            downtime: tree.strings("agent.downtime")?.unwrap_or_default(),
            tree,
        })
    }
}

impl Api {
    fn of(tree: &Tree, vars: &Variables) -> Result<Self, ConfigError> {
        let missing = |key, variable| ConfigError::Missing {
            key,
            variable,
            file: tree.place(),
        };
        let nonempty =
            |key| Ok::<_, ConfigError>(tree.text(key)?.filter(|text| !text.trim().is_empty()));
        let server = match nonempty("api.api_server")? {
            Some(server) => server,
            None => nonempty("api.host")?
                .ok_or_else(|| missing("api.api_server", "CLEARML_API_HOST"))?,
        };
        if !is_web_url(&server) {
            return Err(tree.refuse(
                "api.api_server",
                "expected a URL such as https://api.clear.ml",
            ));
        }
        for key in ADDRESSES {
            let address = nonempty(key)?.filter(|address| address.starts_with("http"));
            if address.is_some_and(|address| !is_web_url(&address)) {
                return Err(tree.refuse(key, "the URL has no host; write https://HOST:PORT"));
            }
        }
        let credentials = match vars.first(&["CLEARML_AUTH_TOKEN"]) {
            Some((_, token)) => Credentials::Token(Secret::new(token)),
            None => Credentials::Keys {
                access: nonempty("api.credentials.access_key")?.ok_or_else(|| {
                    missing("api.credentials.access_key", "CLEARML_API_ACCESS_KEY")
                })?,
                secret: nonempty("api.credentials.secret_key")?
                    .map(Secret::new)
                    .ok_or_else(|| {
                        missing("api.credentials.secret_key", "CLEARML_API_SECRET_KEY")
                    })?,
            },
        };
        Ok(Self {
            server: server.trim().trim_end_matches('/').to_owned(),
            credentials,
            verify: verify(tree, vars)?,
            http: Http::of(tree)?,
            token_threshold: tree.seconds("api.auth.token_expiration_threshold_sec", 43_200.0)?,
            token_expiration: match tree.get("api.auth.request_token_expiration_sec") {
                None => None,
                Some(_) => Some(tree.seconds("api.auth.request_token_expiration_sec", 0.0)?),
            },
        })
    }
}

/// Addresses that go on to tasks; other schemes than HTTP are for the task's SDK to judge: `s3://bucket`, `/mnt/share`.
const ADDRESSES: [&str; 3] = [
    "api.web_server",
    "api.files_server",
    "sdk.development.default_output_uri",
];

/// Whether a text is a URL of HTTP that names a host.
fn is_web_url(text: &str) -> bool {
    let text = text.trim();
    let rest = ["http://", "https://"]
        .iter()
        .find_map(|scheme| text.strip_prefix(scheme));
    rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['/', ':', '?', '#']))
}

impl Http {
    fn of(tree: &Tree) -> Result<Self, ConfigError> {
        let whole = |key, default: f64| Ok::<_, ConfigError>(tree.number(key)?.unwrap_or(default));
        let method = match tree.text("api.http.default_method")? {
            None => Method::default(),
            Some(text) => match text.trim().to_ascii_uppercase().as_str() {
                "GET" => Method::Get,
                "POST" => Method::Post,
                "PUT" => Method::Put,
                _ => {
                    return Err(tree.refuse("api.http.default_method", "expected get, post or put"));
                }
            },
        };
        // Figures below zero were refused; what is beyond the type is as good as its end.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        Ok(Self {
            max_request: whole("api.http.max_req_size", 15_728_640.0)? as usize,
            retries: whole("api.http.retries.total", 240.0)? as u32,
            backoff_factor: whole("api.http.retries.backoff_factor", 1.0)?,
            backoff_max: tree.seconds("api.http.retries.backoff_max", 120.0)?,
            wait_on_maintenance: tree
                .flag("api.http.wait_on_maintenance_forever")?
                .unwrap_or(true),
            method,
        })
    }
}

/// `CLEARML_API_HOST_VERIFY_CERT` and `api.verify_certificate` say whether; a path in the second, or the variables that the stock
/// agent's HTTP library reads, say with what.
fn verify(tree: &Tree, vars: &Variables) -> Result<Verify, ConfigError> {
    let key = "api.verify_certificate";
    match tree.text(key)? {
        Some(text) if text.contains('/') => return Ok(Verify::Bundle(PathBuf::from(text))),
        _ => {}
    }
    if tree.flag(key)? == Some(false) {
        return Ok(Verify::No);
    }
    let bundle = vars.first(&["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"]);
    Ok(bundle.map_or(Verify::System, |(_, path)| Verify::Bundle(path.into())))
}

#[cfg(test)]
mod tests;
