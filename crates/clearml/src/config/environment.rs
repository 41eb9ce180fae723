//! Environment variables that override keys of the configuration.

use std::collections::BTreeMap;

/// Key → the variables that set it, the first that is there and not empty. The stock agent's table, as far as we read it.
pub(super) const KEYS: [(&str, &[&str]); 13] = [
    ("api.api_server", &["CLEARML_API_HOST", "TRAINS_API_HOST"]),
    (
        "api.files_server",
        &["CLEARML_FILES_HOST", "TRAINS_FILES_HOST"],
    ),
    ("api.web_server", &["CLEARML_WEB_HOST", "TRAINS_WEB_HOST"]),
    (
        "api.credentials.access_key",
        &["CLEARML_API_ACCESS_KEY", "TRAINS_API_ACCESS_KEY"],
    ),
    (
        "api.credentials.secret_key",
        &["CLEARML_API_SECRET_KEY", "TRAINS_API_SECRET_KEY"],
    ),
    (
        "api.verify_certificate",
        &[
            "CLEARML_API_HOST_VERIFY_CERT",
            "TRAINS_API_HOST_VERIFY_CERT",
        ],
    ),
    (
        "api.http.default_method",
        &["CLEARML_API_DEFAULT_REQ_METHOD"],
    ),
    (
        "agent.worker_name",
        &["CLEARML_WORKER_NAME", "TRAINS_WORKER_NAME"],
    ),
    (
        "agent.worker_id",
        &["CLEARML_WORKER_ID", "TRAINS_WORKER_ID"],
    ),
    (
        "agent.git_user",
        &["CLEARML_AGENT_GIT_USER", "TRAINS_AGENT_GIT_USER"],
    ),
    (
        "agent.git_pass",
        &["CLEARML_AGENT_GIT_PASS", "TRAINS_AGENT_GIT_PASS"],
    ),
    (
        "agent.cpu_only",
        &["CLEARML_CPU_ONLY", "TRAINS_CPU_ONLY", "CPU_ONLY"],
    ),
    (
        "agent.crash_on_exception",
        &["CLEARML_AGENT_CRASH_ON_EXCEPTION"],
    ),
];

/// The prefix of variables such as `CLEARML_AGENT__AGENT__WORKER_NAME`; the rest is a key, two underscores for a dot.
const ANY_KEY: &str = "CLEARML_AGENT__";

/// An environment.
#[derive(Clone, Debug, Default)]
pub struct Variables(BTreeMap<String, String>);

impl Variables {
    pub fn new(vars: BTreeMap<String, String>) -> Self {
        Self(vars)
    }

    /// The first of these that is set to something, with its name.
    pub fn first<'a>(&'a self, names: &[&'a str]) -> Option<(&'a str, &'a str)> {
        names.iter().find_map(|name| {
            let value = self.0.get(*name).filter(|value| !value.is_empty())?;
            Some((*name, value.as_str()))
        })
    }

    /// Variables that set any key, with the key, in the order of their names.
    pub(super) fn any_key(&self) -> impl Iterator<Item = (&str, String, &str)> {
        self.0.iter().filter_map(|(name, value)| {
            let key = name.strip_prefix(ANY_KEY)?;
            let key = key.replace("__", ".").to_lowercase();
            Some((name.as_str(), key, value.as_str()))
        })
    }

    /// The variable of this name, also one that is empty.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        self.0.get(name).cloned()
    }
}
