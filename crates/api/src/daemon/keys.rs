//! The keys of a configuration file: the flags that stand for each, and whether a reload applies a change.

use super::DaemonOptions;

/// When a changed value takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applies {
    /// With `divvy config reload`.
    Reload,
    /// With the next start of the daemon.
    Restart,
}

impl Applies {
    pub fn name(self) -> &'static str {
        match self {
            Self::Reload => "reload",
            Self::Restart => "restart",
        }
    }
}

/// One key of the file.
#[derive(Debug)]
pub struct Key {
    /// With the names of its tables: `limits.max-jobs`. A part `*` is any name.
    pub name: &'static str,
    /// Flags of `divvy daemon` whose value takes precedence, without the dashes.
    pub flags: &'static [&'static str],
    pub applies: Applies,
    copy: fn(&mut DaemonOptions, &DaemonOptions),
}

impl Key {
    /// Copies the value of this key.
    pub fn copy(&self, to: &mut DaemonOptions, from: &DaemonOptions) {
        (self.copy)(to, from);
    }

    /// Whether `path` is this key.
    pub fn is(&self, path: &[String]) -> bool {
        let mut parts = self.name.split('.');
        path.iter()
            .all(|name| parts.next().is_some_and(|part| part == "*" || part == name))
            && parts.next().is_none()
    }

    /// The key's part below the table `path`, if the key is in that table.
    pub fn below(&self, path: &[String]) -> Option<&'static str> {
        let mut parts = self.name.split('.');
        path.iter()
            .all(|name| parts.next().is_some_and(|part| part == "*" || part == name))
            .then(|| parts.next())?
    }
}

/// The entry of a key.
pub fn find(path: &[String]) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.is(path))
}

macro_rules! key {
    ($name:literal, $flags:expr, $applies:ident, $($field:ident).+) => {
        Key {
            name: $name,
            flags: &$flags,
            applies: Applies::$applies,
            copy: |to, from| to.$($field).+.clone_from(&from.$($field).+),
        }
    };
}

macro_rules! clearml {
    ($name:literal, $flags:expr, $field:ident) => {
        Key {
            name: $name,
            flags: &$flags,
            applies: Applies::Restart,
            copy: |to, from| {
                if let Some(from) = &from.clearml {
                    let to = to.clearml.get_or_insert_default();
                    to.$field.clone_from(&from.$field);
                }
            },
        }
    };
}

/// A key without a flag.
macro_rules! file_only {
    ($name:literal) => {
        Key {
            name: $name,
            flags: &[],
            applies: Applies::Reload,
            copy: |_, _| {},
        }
    };
}

/// Every key, in the order of the documentation.
pub const KEYS: &[Key] = &[
    key!("gpus", ["gpus"], Restart, gpus),
    key!("strict-start", ["strict-start"], Restart, strict_start),
    key!("queues", ["queue"], Reload, queues),
    key!("order", ["order-fairness"], Reload, order),
    key!("backfill", ["backfill"], Reload, backfill),
    key!("preemption", ["no-preemption"], Reload, preemption),
    key!("sim", ["sim"], Restart, sim),
    key!("grace", ["grace"], Reload, grace),
    key!("idle", ["idle-timeout"], Reload, idle),
    key!("on-bypass", ["on-bypass"], Reload, on_bypass),
    key!("device-nodes", ["device-nodes"], Restart, device_nodes),
    key!("claims-only", ["claims-only"], Reload, claims_only),
    key!(
        "refuse-user-namespaces",
        ["user-namespaces"],
        Reload,
        refuse_user_namespaces
    ),
    key!(
        "listen.beside-system",
        ["beside-system"],
        Restart,
        listen.beside_system
    ),
    key!("listen.access", ["access"], Reload, listen.access),
    key!("listen.listen", ["listen"], Restart, listen.listen),
    key!(
        "listen.token-file",
        ["token-file"],
        Restart,
        listen.token_file
    ),
    key!("listen.web-hosts", ["web-host"], Restart, listen.web_hosts),
    key!("limits.max-jobs", ["max-jobs"], Reload, limits.max_jobs),
    key!("limits.max-texts", ["max-texts"], Reload, limits.max_texts),
    key!("limits.log-size", ["log-size"], Reload, limits.log_size),
    key!(
        "project-rules.require-project",
        ["require-project"],
        Reload,
        project_rules.require_project
    ),
    key!(
        "project-rules.default-project",
        ["default-project"],
        Reload,
        project_rules.default_project
    ),
    key!(
        "project-rules.max-gpus",
        ["max-gpus-per-user"],
        Reload,
        project_rules.max_gpus
    ),
    key!("retention.jobs-for", ["keep"], Reload, retention.jobs_for),
    key!(
        "retention.max-jobs",
        ["keep-jobs"],
        Reload,
        retention.max_jobs
    ),
    key!(
        "retention.max-log-bytes",
        ["keep-logs"],
        Reload,
        retention.max_log_bytes
    ),
    key!(
        "retention.usage-for",
        ["keep-usage"],
        Reload,
        retention.usage_for
    ),
    key!(
        "containers.docker",
        ["docker", "podman"],
        Reload,
        containers.docker
    ),
    key!("containers.default", ["docker"], Reload, containers.default),
    key!(
        "containers.deny-unlimited",
        ["on-unlimited-image"],
        Reload,
        containers.deny_unlimited
    ),
    key!(
        "containers.cdi-dir",
        ["cdi-dir"],
        Reload,
        containers.cdi_dir
    ),
    clearml!("clearml.config-file", ["config-file"], config_file),
    clearml!("clearml.create-queue", ["create-queue"], create_queue),
    clearml!("clearml.dynamic", ["dynamic-gpus"], dynamic),
    clearml!("clearml.docker", ["docker", "podman"], docker),
    clearml!("clearml.uptime", ["uptime"], uptime),
    clearml!("clearml.downtime", ["downtime"], downtime),
    clearml!(
        "clearml.polling-interval",
        ["polling-interval"],
        polling_interval
    ),
    clearml!("clearml.slot-tags", ["child-report-tags"], slot_tags),
    clearml!("clearml.keep-children", ["keep-children"], keep_children),
    clearml!("clearml.agent", ["clearml-agent"], agent),
    clearml!("clearml.project-by", ["clearml-project-by"], project_by),
    clearml!(
        "clearml.current-version",
        ["force-current-version"],
        current_version
    ),
    clearml!("clearml.podman", ["podman"], podman),
    file_only!("roles.admin"),
    file_only!("roles.operator"),
    file_only!("roles.user"),
    file_only!("roles.viewer"),
    file_only!("roles.engine"),
    file_only!("roles.others"),
    file_only!("roles.commands"),
    file_only!("roles.containers"),
    file_only!("projects.*.quota"),
    file_only!("projects.*.quota-memory"),
    file_only!("projects.*.weight"),
    file_only!("projects.*.limit"),
    file_only!("projects.*.limit-memory"),
    file_only!("projects.*.priority"),
    file_only!("projects.*.min-runtime"),
    file_only!("projects.*.members"),
];

/// The path of a key as the file writes it: parts that are no bare keys have quotes.
pub fn written(path: &[String]) -> String {
    let is_bare = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let parts: Vec<String> = path
        .iter()
        .map(|part| match is_bare(part) {
            true => part.clone(),
            false => format!("{part:?}"),
        })
        .collect();
    parts.join(".")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use divvy_core::reconcile::BypassPolicy;
    use divvy_core::{GpuSelection, Order, Preemption};

    use super::*;
    use crate::daemon::{
        ClearMlOptions, Commands, ContainerOptions, Containers, DeviceNodes, LimitOptions,
        ListenOptions, Others, PerUser, ProjectOptions, ProjectRules, RetentionPolicy, Role,
        RoleOptions,
    };
    use crate::v1::{Container, Idle, IdleAction};

    /// Options in which every field has a value: a new field does not compile until it is here.
    pub fn full() -> DaemonOptions {
        DaemonOptions {
            gpus: GpuSelection::Indices(vec![0]),
            strict_start: true,
            queues: vec!["half=0.5".parse().unwrap()],
            order: Order::Fairness,
            backfill: true,
            preemption: Preemption::Off,
            detached: true,
            standby: true,
            node_pod: Some("0f9a3c1e-5d0b-4a53-9a2e-2f1f6f0d7c11".into()),
            sim: Some("l4:1".into()),
            grace: Duration::from_secs(1),
            idle: Some(Idle {
                after_s: 60,
                action: IdleAction::Cancel,
            }),
            on_bypass: Some(BypassPolicy::Deny),
            refuse_user_namespaces: true,
            device_nodes: DeviceNodes::Jobs,
            claims_only: true,
            listen: ListenOptions {
                system: true,
                beside_system: true,
                access: Some("/a".into()),
                listen: Some(([127, 0, 0, 1], 1).into()),
                token_file: Some("/t".into()),
                web_hosts: vec!["lab1.example".into()],
            },
            limits: LimitOptions {
                max_jobs: 1,
                max_texts: None,
                log_size: None,
            },
            project_rules: ProjectRules {
                require_project: true,
                default_project: PerUser::from_words(&["lab"]).unwrap(),
                max_gpus: PerUser::from_words(&["2"]).unwrap(),
            },
            retention: RetentionPolicy {
                jobs_for: Duration::from_secs(1),
                max_jobs: 1,
                max_log_bytes: None,
                usage_for: Duration::from_secs(1),
            },
            containers: ContainerOptions {
                docker: true,
                default: Some(Container {
                    image: "a".into(),
                    arguments: Vec::new(),
                    starter: None,
                    as_submitter: false,
                }),
                deny_unlimited: false,
                cdi_dir: Some("/c".into()),
            },
            clearml: Some(ClearMlOptions {
                config_file: Some("/f".into()),
                create_queue: true,
                queues: vec!["q".into()],
                gpus: Some("0".into()),
                dynamic: true,
                docker: Some(vec!["a".into()]),
                uptime: vec!["u".into()],
                downtime: vec!["d".into()],
                polling_interval: Some(9),
                slot_tags: vec!["t".into()],
                keep_children: true,
                agent: Some(vec!["a".into()]),
                project_by: Some("user".into()),
                variables: Vec::new(),
                current_version: true,
                podman: true,
                ignored: Vec::new(),
            }),
            roles: Some(RoleOptions {
                admin: Vec::new(),
                operator: Vec::new(),
                user: Vec::new(),
                viewer: Vec::new(),
                engine: Vec::new(),
                others: Others::None,
                commands: Commands::All,
                containers: Containers::Any(Role::User),
            }),
            projects: [(
                "p".parse().unwrap(),
                ProjectOptions {
                    weight: Some(1),
                    ..ProjectOptions::default()
                },
            )]
            .into(),
        }
    }

    /// Paths of the leaves.
    fn leaves(table: &toml::Table, path: &[String], found: &mut BTreeSet<String>) {
        for (name, value) in table {
            let path = [path, std::slice::from_ref(name)].concat();
            match (find(&path), value) {
                (None, toml::Value::Table(table)) => leaves(table, &path, found),
                (known, _) => {
                    found.insert(known.map_or_else(|| path.join("."), |key| key.name.to_owned()));
                }
            }
        }
    }

    #[test]
    fn the_list_has_every_field_and_nothing_else() {
        let table = toml::Table::try_from(full()).unwrap();
        let mut found = BTreeSet::new();
        leaves(&table, &[], &mut found);
        let listed: BTreeSet<String> = KEYS.iter().map(|key| key.name.to_owned()).collect();
        assert_eq!(listed, found);
        assert_eq!(listed.len(), KEYS.len(), "a key is listed twice");
    }

    /// A row of docs/config.md for each key: when a change applies, its flags, and its default.
    #[test]
    fn the_documentation_has_a_row_for_each_key() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.md");
        let text = std::fs::read_to_string(path).unwrap();
        let rows: Vec<Vec<&str>> = text
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |"))
            .map(|line| line.split(" | ").map(str::trim).collect())
            .filter(|row: &Vec<&str>| row.len() == 6)
            .collect();
        let defaults = DaemonOptions {
            clearml: Some(ClearMlOptions::default()),
            roles: Some(RoleOptions::default()),
            projects: [("*".parse().unwrap(), ProjectOptions::default())].into(),
            ..DaemonOptions::default()
        };
        let defaults = crate::daemon::source::flat(&defaults);
        let mut described = Vec::new();
        for row in &rows {
            let name = row[0].trim_end_matches('`');
            described.push(name);
            let key = KEYS.iter().find(|key| key.name == name);
            let key = key.unwrap_or_else(|| panic!("{name} is not a key"));
            let flags: Vec<String> = key.flags.iter().map(|flag| format!("`--{flag}`")).collect();
            let default = defaults.get(&name.replace('.', "\u{0}"));
            let default = default
                .map(|value| format!("`{value}`"))
                .unwrap_or_default();
            let expected = [default, key.applies.name().to_owned(), flags.join(", ")];
            assert_eq!(row[2..5], expected, "{name}");
        }
        let listed: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
        assert_eq!(described, listed);
    }

    #[test]
    fn each_entry_with_a_flag_copies_its_own_value_alone() {
        let from = full();
        for key in KEYS.iter().filter(|key| !key.flags.is_empty()) {
            let mut to = DaemonOptions::default();
            key.copy(&mut to, &from);
            let mut found = BTreeSet::new();
            let (before, after) = (DaemonOptions::default(), to);
            let flat = |options: &DaemonOptions| {
                crate::daemon::source::flat(options)
                    .into_iter()
                    .collect::<Vec<_>>()
            };
            for entry in flat(&after) {
                if !flat(&before).contains(&entry) {
                    found.insert(entry.0.replace('\u{0}', "."));
                }
            }
            // The table appears with its defaults.
            let is_own = |path: &String| path == key.name || path.starts_with("clearml.");
            assert!(found.contains(key.name), "{}: {found:?}", key.name);
            assert!(found.iter().all(is_own), "{}: {found:?}", key.name);
        }
    }
}
