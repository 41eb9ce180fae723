//! Conversion of the flags of `daemon` into [`DaemonOptions`].

mod clearml;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use divvy_api::daemon::{
    ContainerOptions, DaemonOptions, DeviceNodes, LimitOptions, ListenOptions, PerUser,
    ProjectRules, RetentionPolicy, Source, parse_duration,
};
use divvy_api::v1::Container;
use divvy_core::reconcile::BypassPolicy;
use divvy_core::{Bytes, GpuSelection, Order, Preemption, QueueWords, parse_gpus, parse_queues};

use crate::args::{self, DeviceNodesFor, OnUnlimitedImage, UserNamespaces};
use crate::ask::terms::{idle, seconds};
use crate::container;
use crate::error_output::{Result, usage};

pub use clearml::PASSWORD_FLAG;

/// Returns the flags, and the place of the configuration file over which they take precedence.
///
/// # Errors
/// As [`flags`].
pub fn source(args: &args::Daemon) -> Result<Source> {
    let given: Vec<&str> = args.given.iter().map(String::as_str).collect();
    Ok(Source::new(flags(args)?, &given, args.config.clone()))
}

/// Returns the options that these flags describe.
///
/// # Errors
/// [`divvy_api::v1::ErrorCode::Usage`] with the wrong word and a correct one.
fn flags(args: &args::Daemon) -> Result<DaemonOptions> {
    let gpus = match args.gpus.as_slice() {
        [] => GpuSelection::All,
        words => parse_gpus(words).map_err(|error| usage(error.to_string(), error.hint()))?,
    };
    let words = match (args.clearml.clearml, args.dynamic_gpus) {
        (false, _) => QueueWords::Any,
        (true, true) => QueueWords::Amounts,
        (true, false) => QueueWords::Names,
    };
    let queues = parse_queues(&args.queue, words, args.services_mode.is_some())
        .map_err(|error| usage(format!("--queue: {error}"), error.hint()))?;
    if args.services_mode.is_some() {
        return Err(usage(
            "--services-mode: not supported, each task here gets a slice of a GPU",
            "for tasks without GPUs, also run `clearml-agent daemon --services-mode --queue services`",
        ));
    }
    if args.dynamic_gpus && queues.is_empty() {
        return Err(usage(
            "--dynamic-gpus requires --queue",
            "add queues in the order to serve: --queue half_gpu=0.5 single_gpu=1",
        ));
    }
    let clearml = clearml::clearml(args, &gpus, &queues)?;
    // With --clearml, --docker names the image of tasks. Submitted jobs name their own image.
    let image = args.docker.as_deref().filter(|_| clearml.is_none());
    let defaults = DaemonOptions::default();
    let (limits, retention) = (defaults.limits, defaults.retention);
    Ok(DaemonOptions {
        gpus,
        strict_start: args.strict_start,
        queues,
        order: match args.order_fairness {
            true => Order::Fairness,
            false => Order::Strict,
        },
        backfill: args.backfill,
        preemption: match args.no_preemption {
            true => Preemption::Off,
            false => Preemption::On,
        },
        detached: args.detached,
        standby: args.standby,
        node_pod: args.node_pod.clone(),
        sim: args.sim.clone(),
        grace: match args.grace.as_deref() {
            Some(text) => grace(text)?,
            None => defaults.grace,
        },
        idle: idle(args.idle_timeout.as_deref(), args.idle_action)?,
        on_bypass: args.on_bypass.map(BypassPolicy::from),
        refuse_user_namespaces: args.user_namespaces == Some(UserNamespaces::Refuse),
        device_nodes: match args.device_nodes {
            Some(DeviceNodesFor::Jobs) => DeviceNodes::Jobs,
            Some(DeviceNodesFor::Open) | None => DeviceNodes::Open,
        },
        claims_only: args.claims_only,
        listen: ListenOptions {
            system: args.system,
            beside_system: args.beside_system,
            access: args.access.clone(),
            listen: args.listen,
            token_file: args.token_file.clone(),
            web_hosts: args.web_host.clone(),
        },
        limits: LimitOptions {
            max_jobs: args.max_jobs.unwrap_or(limits.max_jobs),
            max_texts: size("--max-texts", args.max_texts.as_deref(), "a user")?
                .unwrap_or(limits.max_texts),
            log_size: size("--log-size", args.log_size.as_deref(), "a log")?
                .unwrap_or(limits.log_size),
        },
        project_rules: ProjectRules {
            require_project: args.require_project,
            default_project: per_user("--default-project", &args.default_project)?,
            max_gpus: per_user("--max-gpus-per-user", &args.max_gpus_per_user)?,
        },
        retention: RetentionPolicy {
            jobs_for: Duration::from_secs(seconds("--keep", &args.keep)?),
            max_jobs: args.keep_jobs,
            max_log_bytes: size("--keep-logs", args.keep_logs.as_deref(), "a user")?
                .unwrap_or(retention.max_log_bytes),
            usage_for: Duration::from_secs(seconds("--keep-usage", &args.keep_usage)?),
        },
        containers: ContainerOptions {
            docker: args.docker.is_some() || args.clearml.stock.podman.is_some(),
            default: default_container(image.unwrap_or_default())?,
            deny_unlimited: args.on_unlimited_image == OnUnlimitedImage::Deny,
            cdi_dir: args.cdi_dir.clone(),
        },
        clearml,
        roles: None,
        projects: BTreeMap::new(),
    })
}

/// Parses the words of a rule for users: `2`, `ana=4`, `@staff=8`.
fn per_user<T: FromStr<Err: Display>>(flag: &str, words: &[String]) -> Result<PerUser<T>> {
    PerUser::from_words(words).map_err(|error| {
        usage(
            format!("{flag}: {error}"),
            "give one value for all users, and USER=VALUE or @GROUP=VALUE for exceptions",
        )
    })
}

/// `--docker IMAGE FLAGS…`, in several words or in one.
fn default_container(words: &[String]) -> Result<Option<Container>> {
    match container::unpacked(words)?.split_first() {
        None => Ok(None),
        Some((image, arguments)) => {
            let asked = container::parse_container(image, arguments)?;
            let mut container = asked.container;
            // Variables of the default container: each job gets them.
            let variables = asked.env.into_iter();
            let variables = variables.map(|(name, value)| format!("--env={name}={value}"));
            container.arguments.extend(variables);
            Ok(Some(container))
        }
    }
}

/// Parses a size such as `64M`. The outer `None`: the flag is absent; the inner: `none`, no limit.
fn size(flag: &str, text: Option<&str>, owner: &str) -> Result<Option<Option<u64>>> {
    const LEAST: Bytes = Bytes::mib(1);
    let Some(text) = text else { return Ok(None) };
    if text == "none" {
        return Ok(Some(None));
    }
    let wrong = |why: &str| {
        let hint = "use 64M or 1G, at least 1M, or none for no limit";
        usage(format!("{flag} {text}: {why}"), hint)
    };
    let size = text.parse::<Bytes>();
    let size = size.map_err(|error| wrong(&error.to_string()))?;
    match size < LEAST {
        true => Err(wrong(&format!("too small for {owner}"))),
        false => Ok(Some(Some(size.get()))),
    }
}

fn grace(text: &str) -> Result<Duration> {
    parse_duration(text).ok_or_else(|| {
        usage(
            format!("--grace {text}: not a duration"),
            "use 10s, 90s or 5m",
        )
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use divvy_api::daemon::keys::KEYS;
    use divvy_core::QueueSpec;

    use super::*;
    use crate::args::{Verb, parse};
    use crate::rejection::from_clap;

    /// The words as a shell would split them.
    pub(super) fn parsed(line: &str) -> Result<DaemonOptions> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        match parse(&words)
            .map_err(|error| from_clap(&error, &words))?
            .verb
        {
            Verb::Daemon(args) => flags(&args),
            verb => panic!("not the daemon: {verb:?}"),
        }
    }

    /// Flags that describe one start or its words, and no value of a file.
    const OF_ONE_START: &[&str] = &[
        "check-bootstrap",
        "clearml",
        "config",
        "cpu-only",
        "detached",
        "force-docker",
        "foreground",
        "git-pass",
        "git-user",
        "help",
        "idle-action",
        "log-level",
        "node-pod",
        "optimize",
        "services-mode",
        "standalone-mode",
        "standby",
        "status",
        "stop",
        "system",
        "use-owner-token",
    ];

    #[test]
    fn every_flag_of_the_daemon_wins_over_its_key() {
        let command = crate::args::command();
        let daemon = command.find_subcommand("daemon").unwrap();
        let mut flags: Vec<String> = daemon
            .get_arguments()
            .map(|flag| flag.get_id().as_str().replace('_', "-"))
            .collect();
        let of_keys = KEYS.iter().flat_map(|key| key.flags).copied();
        let mut known: Vec<String> = of_keys
            .chain(OF_ONE_START.iter().copied())
            .map(str::to_owned)
            .collect();
        flags.sort();
        flags.dedup();
        known.sort();
        known.dedup();
        flags.push("help".to_owned());
        flags.sort();
        flags.dedup();
        assert_eq!(flags, known);
    }

    #[test]
    fn the_flags_on_the_command_line_are_known() {
        let words = "divvy daemon --keep 90d --docker --max-jobs=5 --order-fairness";
        let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        let Verb::Daemon(args) = parse(&words).unwrap().verb else {
            panic!("not the daemon");
        };
        // A flag with its default value is given too.
        let mut given = args.given;
        given.sort();
        assert_eq!(given, ["docker", "keep", "max-jobs", "order-fairness"]);
    }

    fn queues(daemon: &DaemonOptions) -> Vec<String> {
        let shown = |queue: &QueueSpec| {
            let amount = queue.amount.map(|amount| amount.to_string());
            format!(
                "{} gets {}",
                queue.name,
                amount.as_deref().unwrap_or("its request")
            )
        };
        daemon.queues.iter().map(shown).collect()
    }

    #[test]
    fn the_documented_line_with_a_space_between_gpus_and_an_empty_docker_is_taken() {
        let daemon =
            parsed("divvy daemon --dynamic-gpus --gpus 0, 1 --queue half_gpu=0.5 --docker")
                .unwrap();
        assert_eq!(daemon.gpus, GpuSelection::Indices(vec![0, 1]));
        assert_eq!(queues(&daemon), ["half_gpu gets 0.5"]);
        assert_eq!((daemon.order, daemon.detached), (Order::Strict, false));
    }

    #[test]
    fn the_documented_line_with_four_queues_keeps_their_order() {
        let line = "divvy daemon --dynamic-gpus --gpus 0-2 --queue dual_gpus=2 quarter_gpu=0.25 half_gpu=0.5 single_gpu=1";
        for line in [
            line.to_owned(),
            format!("{line} --docker"),
            format!("{line} --docker nvidia/cuda:12.3 --detached"),
        ] {
            let daemon = parsed(&line).unwrap();
            assert_eq!(daemon.gpus, GpuSelection::Indices(vec![0, 1, 2]), "{line}");
            let expected = [
                "dual_gpus gets 2",
                "quarter_gpu gets 0.25",
                "half_gpu gets 0.5",
                "single_gpu gets 1",
            ];
            assert_eq!(queues(&daemon), expected, "{line}");
        }
    }

    #[test]
    fn a_queue_has_the_amount_that_its_word_names() {
        for flag in ["", " --dynamic-gpus"] {
            let daemon = parsed(&format!(
                "divvy daemon{flag} --queue half=0.5 open wide=2-4"
            ));
            let expected = ["half gets 0.5", "open gets its request", "wide gets 2-4"];
            assert_eq!(queues(&daemon.unwrap()), expected, "{flag}");
        }
        let daemon = parsed(
            "divvy daemon --queue urgent rest --order-fairness --backfill --sim a100-80gb:3",
        )
        .unwrap();
        assert_eq!(daemon.gpus, GpuSelection::All);
        assert_eq!(
            queues(&daemon),
            ["urgent gets its request", "rest gets its request"]
        );
        assert_eq!((daemon.order, daemon.backfill), (Order::Fairness, true));
        assert_eq!(daemon.sim.as_deref(), Some("a100-80gb:3"));
    }

    #[test]
    fn budgets_of_users_are_bytes_or_none() {
        let daemon = |line: &str| parsed(&format!("divvy daemon{line}")).unwrap();
        let plain = daemon("");
        assert_eq!(plain, DaemonOptions::default());
        let given = daemon(" --max-texts 128M --keep-logs none");
        assert_eq!(
            (given.limits.max_texts, given.retention.max_log_bytes),
            (Some(128 << 20), None)
        );
    }

    #[test]
    fn a_systems_daemon_kills_what_goes_past_the_limiter_unless_told_otherwise() {
        for (line, policy) in [
            ("", BypassPolicy::Warn),
            (" --on-bypass deny", BypassPolicy::Deny),
            (" --system", BypassPolicy::Kill),
            (" --system --on-bypass warn", BypassPolicy::Warn),
        ] {
            let daemon = parsed(&format!("divvy daemon{line}")).unwrap();
            assert_eq!(daemon.bypass_policy(), policy, "{line}");
        }
    }

    #[test]
    fn jobs_get_user_namespaces_unless_the_systems_daemon_refuses_them() {
        for (line, refused) in [
            ("", false),
            (" --system", false),
            (" --system --user-namespaces allow", false),
            (" --system --user-namespaces refuse", true),
        ] {
            let daemon = parsed(&format!("divvy daemon{line}")).unwrap();
            assert_eq!(daemon.refuse_user_namespaces, refused, "{line}");
        }
    }

    #[test]
    fn device_nodes_are_open_unless_the_systems_daemon_restricts_them() {
        for (line, nodes) in [
            ("", DeviceNodes::Open),
            (" --system --device-nodes open", DeviceNodes::Open),
            (" --system --device-nodes jobs", DeviceNodes::Jobs),
        ] {
            let daemon = parsed(&format!("divvy daemon{line}")).unwrap();
            assert_eq!(daemon.device_nodes, nodes, "{line}");
        }
    }

    #[test]
    fn wrong_lines_are_refused_with_the_word_and_a_hint() {
        let lines = [
            ("--queue half=0.3", "half=0.3"),
            ("--queue half=1.25", "half=1.25"),
            ("--queue half=0", "half=0"),
            ("--queue half=half", "half=half"),
            ("--queue a=1 a", "twice"),
            ("--dynamic-gpus", "requires --queue"),
            (
                "--dynamic-gpus --queue a=1 --services-mode",
                "--services-mode",
            ),
            ("--grace 10", "--grace 10"),
            ("--max-texts 1K", "--max-texts 1K"),
            ("--keep-logs much", "--keep-logs much"),
            ("--sim a100-80gb", "'a100-80gb'"),
            ("--sim a100-80gb:0", "'a100-80gb:0'"),
            ("--sim a100-80gb:1,l4", "'a100-80gb:1,l4'"),
            ("--sim :", "':'"),
            ("--gpus 0-x", "0-x"),
            ("--gpus 2-0", "2-0"),
            ("--gpus 0,0", "twice"),
            ("--foreground --detached", "cannot be used with"),
            ("--user-namespaces refuse", "--system"),
            ("--device-nodes jobs", "--system"),
            ("--gpus", "a value is required"),
        ];
        for (line, named) in lines {
            let error = parsed(&format!("divvy daemon {line}")).unwrap_err();
            assert_eq!(error.code.exit_code(), 2, "{line}");
            assert!(error.message.contains(named), "{line}: {}", error.message);
            assert!(error.hint.is_some(), "{line}");
        }
    }
}
