//! The keys of a configuration file: one table for the parser, `--set`, the documentation and the commented file.

use std::collections::BTreeMap;

use super::{ClearMlOptions, DaemonOptions, ProjectOptions, RoleOptions};

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
    pub applies: Applies,
    /// Flags of `divvy daemon` that set it besides `--set`, without the dashes.
    pub flags: &'static [&'static str],
    /// Flags of former versions, which name the key now.
    pub former: &'static [&'static str],
    /// The form of its value, in Markdown.
    pub form: &'static str,
    /// A value as the file writes it; empty for a key whose default shows one.
    pub example: &'static str,
    /// What it does, in Markdown with links from docs/.
    pub meaning: &'static str,
}

impl Key {
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

    /// The meaning without the addresses of its links.
    pub fn words(&self) -> String {
        let mut words = String::new();
        let mut rest = self.meaning;
        while let Some((text, link)) = rest.split_once("](") {
            let (before, label) = text.rsplit_once('[').unwrap_or((text, ""));
            words = words + before + label;
            rest = link.split_once(')').map_or("", |(_, rest)| rest);
        }
        words + rest
    }
}

/// The entry of a key.
pub fn find(path: &[String]) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.is(path))
}

/// The key that the flag of a former version set.
pub fn of_former(flag: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.former.contains(&flag))
}

/// The keys with their defaults, as the file writes them; `None` for a key that is off.
pub fn defaults() -> impl Iterator<Item = (&'static Key, Option<String>)> {
    let options = DaemonOptions {
        clearml: Some(ClearMlOptions::default()),
        roles: Some(RoleOptions::default()),
        projects: "*".parse().map_or_else(
            |_| BTreeMap::new(),
            |any| [(any, ProjectOptions::default())].into(),
        ),
        ..DaemonOptions::default()
    };
    let values = super::source::flat(&options);
    KEYS.iter().map(move |key| {
        let value = values.iter().find(|(path, _)| key.is(path));
        (key, value.map(|(_, value)| value.to_string()))
    })
}

macro_rules! keys {
    ($($name:literal $applies:ident [$($flag:literal)*] [$($former:literal)*] $form:literal, $example:literal, $meaning:literal;)+) => {
        /// Every key, in the order of the documentation.
        pub const KEYS: &[Key] = &[$(Key {
            name: $name,
            applies: Applies::$applies,
            flags: &[$($flag),*],
            former: &[$($former),*],
            form: $form,
            example: $example,
            meaning: $meaning,
        }),+];
    };
}

keys! {
    "gpus" Restart ["gpus"] [] r#"`"all"`, or a list: `"0,2"`, `"0-3"`, UUIDs"#, "",
        "GPUs to serve. Indices mean the GPUs that had them when the list was [first used](admin.md#other-gpus-after-a-boot).";
    "strict-start" Restart [] ["strict-start"] "`true`, `false`", "",
        "Refuse to start without each of these GPUs, or with a queue that no GPU here can serve.";
    "queues" Reload ["queue"] [] r#"array of `"NAME"` and `"NAME=AMOUNT"`"#, r#"["half=0.5", "whole=1"]"#,
        "Queues in the order in which the daemon serves them. With an amount, each job of the queue gets it: `0.25`, `2`, `1-4`, `2g.10gb`. The daemon appends the queue `default`.";
    "order" Reload ["order-fairness"] [] r#"`"strict"`, `"fairness"`"#, "",
        "Order in which the daemon takes jobs from queues. `fairness`: one job from each queue in turn.";
    "backfill" Reload [] ["backfill"] "`true`, `false`", "",
        "Start a later job early if that cannot delay the first pending one; [jobs that fill a GPU](decisions/018-backfill-never-delays-the-head.md) go first.";
    "preemption" Reload [] ["no-preemption"] r#"`"on"`, `"off"`"#, "",
        "Whether jobs over quota give way to jobs within quota.";
    "sim" Restart ["sim"] [] r#"`"MODEL:N"`"#, r#""a100-80gb:1""#,
        "Simulated GPUs in place of real ones.";
    "grace" Reload [] ["grace"] "duration", "",
        "Time from SIGTERM to SIGKILL when the daemon stops a job.";
    "idle" Reload [] ["idle-timeout" "idle-action"] "`{ after = DURATION, action = ACTION }`", r#"{ after = "2h", action = "notify" }"#,
        r#"Rule for jobs that do not use their GPUs; the action is `"notify"` (default), `"park"`, `"suspend"` or `"cancel"`."#;
    "enforcement" Restart [] [] r#"`"auto"`, `"driver"`, `"limiter"`"#, "",
        "[Wall](enforcement.md#three-walls) on shared GPUs besides the limiter: the driver's own limit where it works (`auto`), always (`driver`), or none (`limiter`).";
    "on-bypass" Reload [] ["on-bypass"] r#"`"warn"`, `"deny"`, `"kill"`"#, r#""kill""#,
        "Action for a job that bypasses the limiter. Without the key, the system's daemon kills, and a user's daemon warns.";
    "device-nodes" Restart [] ["device-nodes"] r#"`"open"`, `"jobs"`"#, "",
        "Users' programs that may open the GPUs' [device nodes](admin.md#device-nodes): all, or those of jobs only. Only the system's daemon can restrict them.";
    "claims-only" Reload [] ["claims-only"] "`true`, `false`", "",
        "[Another scheduler](integrators.md#a-node-of-an-engine) assigns the GPUs: only its slices get them, and `run` and `submit` need the role admin. Only the system's daemon can.";
    "refuse-user-namespaces" Reload [] ["user-namespaces"] "`true`, `false`", "",
        "Refuse user namespaces in jobs. Only the system's daemon can.";
    "listen.beside-system" Restart [] ["beside-system"] "`true`, `false`", "",
        "Serve the machine's GPUs although the system's daemon serves them too.";
    "listen.access" Reload [] ["access"] "absolute path", r#""/etc/divvy/access.toml""#,
        "A file of roles, in place of the table `[roles]`.";
    "listen.listen" Restart [] ["listen"] r#"`"ADDRESS:PORT"`"#, r#""127.0.0.1:7070""#,
        "Address of the TCP listener, on a loopback interface.";
    "listen.token-file" Restart [] ["token-file"] "absolute path", r#""/etc/divvy/token""#,
        "File with the token of TCP clients.";
    "listen.web-hosts" Restart [] ["web-host"] r#"array of `"NAME"` or `"NAME:PORT"`"#, r#"["lab1.example"]"#,
        "Names under which browsers and proxies reach the TCP listener, besides [addresses in numbers](web.md#which-requests-pass).";
    "park.when" Reload [] [] r#"`"need"`, `"idle"`"#, "",
        "When a job with the idle action `park` is [parked](park.md): when another job needs its room, or as soon as it is idle.";
    "park.wake" Reload [] [] r#"duration, or `"whenever"`"#, "",
        "The room of such a parked job goes only to jobs that can [give it back](park.md#room-of-parked-jobs) within this time; with `whenever`, to any job.";
    "park.min-awake" Reload [] [] "duration", "",
        "A woken job keeps its memory for so long, and for ten times its copy.";
    "park.host-memory" Reload [] [] r#"part: `"50%"`, or size"#, "",
        "Host memory for all parked jobs together.";
    "latency.share" Reload [] [] "part of a GPU up to 1", "",
        "The most of a GPU's compute time that [jobs with a latency goal](compute.md#latency-goals) have together. Another such job waits.";
    "latency.queues" Reload [] [] "table of times from 1ms to 10s", r#"{ chat = "20ms" }"#,
        "Latency goal of jobs in these queues that name none.";
    "latency.projects" Reload [] [] "table of times from 1ms to 10s", r#"{ serving = "20ms" }"#,
        "The same of jobs in these projects. The queue's goal goes first.";
    "limits.max-jobs" Reload [] ["max-jobs"] "number from 1", "",
        "Jobs of one user that have not ended.";
    "limits.max-texts" Reload [] ["max-texts"] r#"size from 1M, or `"none"`"#, "",
        "Texts of these jobs: commands, environments, secrets.";
    "limits.log-size" Reload [] ["log-size"] r#"size from 1M, or `"none"`"#, "",
        "Log of one job; it keeps the end of the output. A change holds for jobs that start later.";
    "project-rules.require-project" Reload [] ["require-project"] "`true`, `false`", "",
        "Refuse a job without a project.";
    "project-rules.default-project" Reload [] ["default-project"] "name, or a table of names", r#"{ others = "lab", ana = "vision", "@nlp" = "nlp" }"#,
        "Project of jobs that name none.";
    "project-rules.max-gpus" Reload [] ["max-gpus-per-user"] r#"number or `"none"`, or a table of them"#, "{ others = 2, ana = 4 }",
        "The most GPUs that the jobs of one user hold together.";
    "retention.jobs-for" Reload [] ["keep"] "duration", "",
        "Age at which the daemon deletes ended jobs, their folders and events.";
    "retention.max-jobs" Reload [] ["keep-jobs"] "number", "",
        "Ended jobs of each user, the newest first.";
    "retention.max-log-bytes" Reload [] ["keep-logs"] r#"size from 1M, or `"none"`"#, "",
        "Files of each user's ended jobs; beyond it the oldest logs go.";
    "retention.usage-for" Reload [] ["keep-usage"] "duration", "",
        "Age at which the daemon deletes usage records.";
    "containers.docker" Reload ["docker" "podman"] [] "`true`, `false`", "",
        "Run submitted jobs in containers.";
    "containers.default" Reload ["docker"] [] "`{ image = IMAGE, arguments = [FLAGS] }`", r#"{ image = "nvidia/cuda:12.3.2-base-ubuntu22.04", arguments = ["--shm-size=8g"] }"#,
        "The container of jobs that name none, with flags of `docker run`, one word each.";
    "containers.deny-unlimited" Reload [] ["on-unlimited-image"] "`true`, `false`", "",
        "Refuse to start images with programs that the limiter cannot limit.";
    "containers.cdi-dir" Reload [] ["cdi-dir"] "absolute path", r#""/etc/cdi""#,
        "Folder of CDI files; with it, slices become CDI devices.";
    "clearml.config-file" Restart ["config-file"] [] "absolute path", r#""/home/ana/clearml.conf""#,
        "A file with the server's address and keys.";
    "clearml.create-queue" Restart ["create-queue"] [] "`true`, `false`", "",
        "Create queues that the server does not have.";
    "clearml.dynamic" Restart ["dynamic-gpus"] [] "`true`, `false`", "",
        "Each task has a slot of its own. Otherwise one task runs at a time, on all GPUs.";
    "clearml.docker" Restart ["docker" "podman"] [] "array of an image and flags", r#"["nvidia/cuda:12.3.2-base-ubuntu22.04"]"#,
        "Image of tasks that name none. Without it, tasks run as processes.";
    "clearml.uptime" Restart ["uptime"] [] r#"array of hours: `"17-20 TUE"`"#, r#"["17-20 TUE"]"#,
        "Hours in which the daemon takes tasks.";
    "clearml.downtime" Restart ["downtime"] [] "array of hours", "",
        "Hours in which it takes none.";
    "clearml.polling-interval" Restart ["polling-interval"] [] "number of seconds from 5", "5",
        "Time between polls of the server's queues; 5 without the key.";
    "clearml.slot-tags" Restart ["child-report-tags"] [] "array of tags", "",
        "Tags of the workers that run tasks.";
    "clearml.keep-children" Restart [] ["keep-children"] "`true`, `false`", "",
        "Keep tasks running when the daemon stops.";
    "clearml.agent" Restart [] ["clearml-agent"] "array of a program and arguments", r#"["clearml-agent"]"#,
        "Program that runs tasks without containers; `clearml-agent` without the key.";
    "clearml.project-by" Restart [] ["clearml-project-by"] r#"`"user"`, `"project"`, `"none"`, or an absolute path"#, r#""none""#,
        "How a task gets its Divvy project.";
    "clearml.current-version" Restart ["force-current-version"] [] "`true`, `false`", "",
        "Containers install this machine's version of the stock agent.";
    "clearml.podman" Restart ["podman"] [] "`true`, `false`", "",
        "Use Podman as container engine.";
    "roles.admin" Reload [] [] r#"array of users and `"@groups"`"#, r#"["ana", "@wheel"]"#,
        "Users by name or number, groups with `@`. The highest role of a user counts.";
    "roles.operator" Reload [] [] "array of users and groups", "[1004]",
        "Users who see and change the jobs of all users.";
    "roles.user" Reload [] [] "array of users and groups", "",
        "Users who submit jobs, and see and change their own.";
    "roles.viewer" Reload [] [] "array of users and groups", r#"["@students"]"#,
        "Users who see, and change nothing.";
    "roles.engine" Reload [] [] "array of users and groups", r#"["ray"]"#,
        "Users of another scheduler, which hold slices for all users, and release those that they created. They have the role user at least.";
    "roles.others" Reload [] [] r#"`"none"`, `"viewer"`, `"user"`, `"operator"`, `"admin"`"#, "",
        "Role of users that no list names; with `none` the daemon refuses them.";
    "roles.commands" Reload [] [] r#"`"owner"`, `"all"`"#, "",
        "Users who see the commands of jobs: owner and operators, or all.";
    "roles.containers" Reload [] [] r#"a role, or `{ role = ROLE, as = "submitter", mounts = [FOLDERS] }`"#, "",
        "The least role that may run containers. With the table, users below `admin` run them [as themselves](containers.md#containers-for-ordinary-users).";
    "projects.*.quota" Reload [] [] "number of GPUs: `2.5`", "2.5",
        "Guaranteed GPUs. Every project of the file needs this key.";
    "projects.*.quota-memory" Reload [] [] r#"size, or `"none"`"#, "",
        "Guaranteed GPU memory.";
    "projects.*.weight" Reload [] [] "number", "2",
        "Weight for the GPUs beyond all quotas; without the key, as its quota.";
    "projects.*.limit" Reload [] [] r#"number of GPUs, or `"none"`"#, "4",
        "Most GPUs at once.";
    "projects.*.limit-memory" Reload [] [] r#"size, or `"none"`"#, "",
        "Most GPU memory at once.";
    "projects.*.priority" Reload [] [] "number", "",
        "Projects of higher priority are served first.";
    "projects.*.min-runtime" Reload [] [] "duration", r#""10m""#,
        "The daemon preempts its jobs only after this time.";
    "projects.*.members" Reload [] [] r#"array of users and `"@groups"`"#, r#"["ana", "@vision"]"#,
        "Users who may submit to it; empty: every user.";
}

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
        .map(|part| {
            if is_bare(part) {
                part.clone()
            } else {
                format!("{part:?}")
            }
        })
        .collect();
    parts.join(".")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use divvy_core::EnforcementPolicy;
    use divvy_core::reconcile::BypassPolicy;
    use divvy_core::{GpuSelection, Order, Preemption};

    use super::*;
    use crate::daemon::{
        ClearMlOptions, Commands, ContainerOptions, Containers, DeviceNodes, HostMemory,
        LatencyOptions, LimitOptions, ListenOptions, Others, ParkOptions, ParkWhen, PerUser,
        ProjectOptions, ProjectRules, RetentionPolicy, Role, RoleOptions, Setting, Source,
    };
    use crate::v1::{Container, Idle, IdleAction};

    fn for_all<T>(value: T) -> PerUser<T> {
        let mut rule = PerUser::default();
        rule.insert("others", value).unwrap();
        rule
    }

    /// Options in which every field has a value: a new field does not compile until it is here.
    pub fn full() -> DaemonOptions {
        DaemonOptions {
            gpus: GpuSelection::Indices(vec![0]),
            strict_start: true,
            queues: vec!["half=0.5".parse().unwrap()],
            order: Order::Fairness,
            backfill: true,
            preemption: Preemption::Off,
            latency: LatencyOptions {
                share: divvy_core::Share::FULL,
                queues: [("q".parse().unwrap(), "20ms".parse().unwrap())].into(),
                projects: [("p".parse().unwrap(), "1s".parse().unwrap())].into(),
            },
            detached: true,
            standby: true,
            node_pod: Some("0f9a3c1e-5d0b-4a53-9a2e-2f1f6f0d7c11".into()),
            sim: Some("l4:1".into()),
            grace: Duration::from_secs(1),
            idle: Some(Idle {
                after_s: 60,
                action: IdleAction::Cancel,
            }),
            park: ParkOptions {
                when: ParkWhen::Idle,
                wake: None,
                min_awake: Duration::from_secs(1),
                host_memory: HostMemory::Size(divvy_core::Bytes::gib(1)),
            },
            on_bypass: Some(BypassPolicy::Deny),
            enforcement: EnforcementPolicy::Limiter,
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
                default_project: for_all("lab".parse().unwrap()),
                max_gpus: for_all("2".parse().unwrap()),
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

    /// A row of docs/config.md for each key. With `DIVVY_RECORD=1` the page gets the rows of the table.
    #[test]
    fn the_page_of_the_configuration_file_has_the_row_of_each_key() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.md");
        let page = std::fs::read_to_string(path).unwrap();
        let mut described = Vec::new();
        let mut expected = String::new();
        for line in page.lines() {
            let name = line
                .strip_prefix("| `")
                .and_then(|rest| rest.split_once('`'));
            let of_name = name.and_then(|(name, _)| defaults().find(|(key, _)| key.name == name));
            match of_name {
                Some((key, default)) => {
                    described.push(key.name);
                    let code = |text: String| format!("`{text}`");
                    let flags = key.flags.iter().map(|flag| code(format!("--{flag}")));
                    let cells = [
                        code(key.name.to_owned()),
                        key.form.to_owned(),
                        default.map(code).unwrap_or_default(),
                        key.applies.name().to_owned(),
                        flags.collect::<Vec<_>>().join(", "),
                        key.meaning.to_owned(),
                    ];
                    expected += &format!("| {} |\n", cells.join(" | "));
                }
                None => expected += &format!("{line}\n"),
            }
        }
        let listed: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
        assert_eq!(described, listed);
        if std::env::var_os("DIVVY_RECORD").is_some() {
            std::fs::write(path, &expected).unwrap();
        } else {
            assert_eq!(page, expected, "DIVVY_RECORD=1 writes the rows anew");
        }
    }

    #[test]
    fn a_meaning_without_its_links_is_plain_text() {
        for key in KEYS {
            let words = key.words();
            assert!(!words.contains("](") && !words.contains(".md"), "{words}");
        }
        let words = |name: &str| KEYS.iter().find(|key| key.name == name).unwrap().words();
        assert!(words("device-nodes").contains("the GPUs' device nodes: all"));
        assert!(words("claims-only").starts_with("Another scheduler assigns"));
    }

    /// The value of each key of [`full`], as a file and as `--set` write it.
    #[test]
    fn a_value_of_the_command_line_gives_the_options_that_the_file_gives() {
        let values = crate::daemon::source::flat(&full());
        for (path, value) in &values {
            let key = written(path);
            let merged = |settings| {
                let source = Source::new(DaemonOptions::default(), settings, None);
                source.merged(DaemonOptions::default()).unwrap()
            };
            let set = Setting::parse(&format!("{key}={value}")).unwrap();
            assert_eq!(set.len(), 1, "{key}");
            let by_set = merged(set);
            let file: DaemonOptions = toml::from_str(&format!("{key} = {value}")).unwrap();
            assert_eq!(by_set, file, "{key}");
            assert_ne!(by_set, DaemonOptions::default(), "{key}");
            // A word without quotes is text.
            if let toml::Value::String(word) = value {
                let bare = Setting::parse(&format!("{key}={word}")).unwrap();
                assert_eq!(merged(bare), file, "{key}");
            }
        }
    }
}
