//! Rules for values that the types of the options do not express.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use divvy_core::project::Resources;
use divvy_core::{Bytes, Gpus};

use super::roles::check_mount_folder;
use super::{DaemonOptions, DeviceNodes, ProjectOptions, RoleOptions, is_sim};

/// The least size of a bound: a smaller one refuses every job.
const LEAST_SIZE: Bytes = Bytes::mib(1);

/// Fits the database, and is more than any machine has.
const MOST_GPUS: Gpus = Gpus::from_thousandths(1_000_000_000);

/// The longest minimum runtime. A century is longer than any job, and its nanoseconds still fit into 64 bits.
const LONGEST_S: u64 = 100 * 366 * 24 * 3600;

/// A value that a rule refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The parts of the key.
    pub path: Vec<String>,
    /// The element of the key's array.
    pub index: Option<usize>,
    pub message: String,
    pub hint: String,
}

impl Violation {
    /// The path of the element, as the parser records places.
    pub fn full_path(&self) -> Vec<String> {
        let index = self.index.map(|index| index.to_string());
        self.path.iter().cloned().chain(index).collect()
    }

    fn at(mut self, index: usize) -> Self {
        self.index = Some(index);
        self
    }
}

fn refused(path: &[&str], message: impl Into<String>, hint: impl Into<String>) -> Violation {
    Violation {
        path: path.iter().map(|part| (*part).to_owned()).collect(),
        index: None,
        message: message.into(),
        hint: hint.into(),
    }
}

/// The rules for single values, and for values within a project. `is_set` tells whether a key has a value of its own.
pub fn values(options: &DaemonOptions, is_set: &dyn Fn(&[String]) -> bool) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut names = BTreeSet::new();
    for (index, queue) in options.queues.iter().enumerate() {
        if !names.insert(&queue.name) {
            let twice = refused(
                &["queues"],
                format!("the queue {} is listed twice", queue.name),
                "give each queue one amount, and list it at the place of its priority",
            );
            found.push(twice.at(index));
        }
    }
    if options.sim.as_deref().is_some_and(|text| !is_sim(text)) {
        found.push(refused(
            &["sim"],
            "not a list of simulated GPUs",
            "use MODEL:N, for example a100-80gb:3",
        ));
    }
    if options.limits.max_jobs == 0 {
        found.push(refused(
            &["limits", "max-jobs"],
            "0 jobs: every job would be refused",
            "use a number of at least 1",
        ));
    }
    for (path, size) in [
        (["limits", "max-texts"], options.limits.max_texts),
        (["limits", "log-size"], options.limits.log_size),
        (
            ["retention", "max-log-bytes"],
            options.retention.max_log_bytes,
        ),
    ] {
        if let Some(size) = size.map(Bytes::new).filter(|size| *size < LEAST_SIZE) {
            found.push(refused(
                &path,
                format!("{size} is less than {LEAST_SIZE}"),
                "use a size of at least 1M, or none for no limit",
            ));
        }
    }
    let container = options.containers.default.as_ref();
    if container.is_some_and(|container| container.starter.is_some()) {
        found.push(refused(
            &["containers", "default"],
            "a container with the key `starter` is started by a client",
            "leave out `starter`",
        ));
    }
    for (index, host) in options.listen.web_hosts.iter().enumerate() {
        if !is_web_host(host) {
            let wrong = refused(
                &["listen", "web-hosts"],
                format!("{host:?} is not a name of a host"),
                "use lab1.example, or lab1.example:8443 for one port alone",
            );
            found.push(wrong.at(index));
        }
    }
    paths(options, &mut found);
    if let Some(roles) = &options.roles {
        found.extend(roles_of(roles, &["roles"]));
    }
    for (name, project) in &options.projects {
        project_of(name.as_str(), project, &mut found);
        let quota = ["projects", name.as_str(), "quota"];
        if !is_set(&quota.map(str::to_owned)) {
            found.push(refused(
                &quota[..2],
                "the quota of the project is missing",
                "add quota = 2.5, or quota = 0 for a project without guaranteed GPUs",
            ));
        }
    }
    found
}

/// Whether a text is a host, with at most a port: no scheme, no path, no pattern.
fn is_web_host(text: &str) -> bool {
    let (host, port) = text.split_once(':').unwrap_or((text, "80"));
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_digit = |byte: u8| byte.is_ascii_digit();
    !host.is_empty()
        && host.len() <= 255
        && host.bytes().all(is_of_name)
        && port.bytes().all(is_digit)
        && port.parse::<u16>().is_ok()
}

/// A daemon's working directory is no place that a file can rely on.
fn paths(options: &DaemonOptions, found: &mut Vec<Violation>) {
    let clearml = options.clearml.as_ref();
    let paths = [
        (["listen", "access"], options.listen.access.as_deref()),
        (
            ["listen", "token-file"],
            options.listen.token_file.as_deref(),
        ),
        (
            ["containers", "cdi-dir"],
            options.containers.cdi_dir.as_deref(),
        ),
        (
            ["clearml", "config-file"],
            clearml.and_then(|clearml| clearml.config_file.as_deref()),
        ),
    ];
    for (key, path) in paths {
        if let Some(path) = path.filter(|path| !path.is_absolute()) {
            found.push(refused(&key, relative(path), "write the path from /"));
        }
    }
    let rule = clearml.and_then(|clearml| clearml.project_by.as_deref());
    let words = ["none", "user", "project"];
    if let Some(rule) = rule.filter(|rule| !words.contains(rule) && !rule.starts_with('/')) {
        found.push(refused(
            &["clearml", "project-by"],
            relative(Path::new(rule)),
            "use user, project, none, or the path of a file from /",
        ));
    }
}

fn relative(path: &Path) -> String {
    format!("{} is not an absolute path", path.display())
}

/// The rules for roles, in a table of the file or in a file of their own.
pub fn roles_of(roles: &RoleOptions, table: &[&str]) -> Vec<Violation> {
    let mut found = Vec::new();
    for (role, list) in roles.lists() {
        for (index, _) in (list.iter().enumerate()).filter(|(_, who)| who.is_nameless()) {
            let path = [table, &[role.name()]].concat();
            let nameless = refused(
                &path,
                "an empty name is no user and no group",
                "write users as \"ana\" or 1004, and groups as \"@vision\"",
            );
            found.push(nameless.at(index));
        }
    }
    for folder in roles.containers.folders() {
        if let Err(why) = check_mount_folder(folder) {
            let path = [table, &["containers"]].concat();
            let hint = "name absolute folders, or \"~\" for the home of each user";
            found.push(refused(&path, why, hint));
        }
    }
    found
}

fn project_of(name: &str, project: &ProjectOptions, found: &mut Vec<Violation>) {
    let resources = Resources {
        gpus: project.quota,
        memory: Bytes::new(project.quota_memory.unwrap_or_default()),
    };
    let refusal =
        |key: &str, message: String, hint: &str| refused(&["projects", name, key], message, hint);
    let limit = divvy_core::project::Limit {
        gpus: project.limit,
        memory: project.limit_memory.map(Bytes::new),
    };
    if !limit.holds(resources) {
        let key = if project.limit.is_some_and(|limit| limit < project.quota) {
            "limit"
        } else {
            "limit-memory"
        };
        let message = "the limit is below the quota".to_owned();
        found.push(refusal(key, message, "raise the limit, or lower the quota"));
    }
    for (key, gpus) in [("quota", Some(project.quota)), ("limit", project.limit)] {
        if gpus.is_some_and(|gpus| gpus > MOST_GPUS) {
            let message = format!("more than {MOST_GPUS} GPUs");
            found.push(refusal(
                key,
                message,
                "write the number of GPUs that it may use",
            ));
        }
    }
    if project.min_runtime.as_secs() > LONGEST_S || project.min_runtime.subsec_nanos() > 0 {
        found.push(refusal(
            "min-runtime",
            "not a time in whole seconds, of at most 100 years".to_owned(),
            "use 90s, 30m, 2h or 1h30m",
        ));
    }
    for (index, member) in project.members.iter().enumerate() {
        if !divvy_core::is_account_name(member) {
            let wrong = refusal(
                "members",
                format!("{member:?} is not a valid name of a user or a group"),
                "write users as ana, and groups as @vision",
            );
            found.push(wrong.at(index));
        }
    }
}

/// The rules for values together, of the file and of flags.
pub fn together(options: &DaemonOptions) -> Vec<Violation> {
    let mut found = Vec::new();
    let listen = &options.listen;
    if options.roles.is_some() && listen.access.is_some() {
        found.push(refused(
            &["listen", "access"],
            "roles have two sources, this file and the table [roles]",
            "move the roles into the table [roles], and leave out the file",
        ));
    }
    if !listen.system {
        let mut refuse = |path: &[&str], what: &str| {
            let message =
                format!("{what} require the system's daemon, and this one serves one user");
            let hint = "a file of the system's daemon: `divvy daemon --system` or `divvy config check --system FILE`; else \
                        leave out the key";
            found.push(refused(path, message, hint));
        };
        if options.roles.is_some() {
            refuse(&["roles"], "roles");
        }
        if listen.access.is_some() {
            refuse(&["listen", "access"], "roles");
        }
        if options.refuse_user_namespaces {
            refuse(&["refuse-user-namespaces"], "limits on user namespaces");
        }
        if options.device_nodes == DeviceNodes::Jobs {
            refuse(&["device-nodes"], "limits on device nodes");
        }
        if options.claims_only {
            refuse(&["claims-only"], "claims of an engine alone");
        }
    }
    if let Some(address) = listen.listen {
        if !address.ip().is_loopback() {
            found.push(open_address(address));
        } else if listen.token_file.is_none() {
            found.push(refused(
                &["listen", "listen"],
                format!("the address {address} requires token-file: TCP connections carry no user identity"),
                "create one: (umask 077; head -c 32 /dev/urandom | base64 -w 0 > FILE)",
            ));
        }
    } else if listen.token_file.is_some() {
        found.push(refused(
            &["listen", "token-file"],
            "a token requires the address of a TCP listener",
            "add listen = \"127.0.0.1:PORT\", or leave out token-file",
        ));
    }
    if listen.listen.is_none() && !listen.web_hosts.is_empty() {
        found.push(refused(
            &["listen", "web-hosts"],
            "names of hosts require the address of a TCP listener",
            "add listen = \"127.0.0.1:PORT\", or leave out web-hosts",
        ));
    }
    if options.clearml.is_some() && listen.system {
        found.push(refused(
            &["clearml"],
            "the system's daemon cannot serve a ClearML Server",
            "run a daemon without --system for it: its tasks run as its user",
        ));
    }
    found
}

fn open_address(address: SocketAddr) -> Violation {
    refused(
        &["listen", "listen"],
        format!("{address} is reachable over the network, where others could read the token"),
        "listen on 127.0.0.1 or [::1], behind a proxy with TLS or an SSH tunnel",
    )
}
