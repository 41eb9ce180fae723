//! Conversion of the flags of `daemon` into settings of the file's keys.

mod clearml;

use divvy_api::daemon::{DaemonOptions, ListenOptions, Setting, Source};
use divvy_api::v1::{Container, Error, ErrorCode};
use divvy_core::{QueueWords, parse_gpus, parse_queues};
use serde::Serialize;

use crate::args;
use crate::container;
use crate::error_output::{Result, shortened, usage};

pub use clearml::PASSWORD_FLAG;

/// The keys that flags set, in the order of the flags.
#[derive(Default)]
struct Settings(Vec<Setting>);

impl Settings {
    fn add(&mut self, flag: &str, key: &str, value: impl Serialize) -> Result<()> {
        self.0.extend(Setting::of_flag(flag, key, value)?);
        Ok(())
    }
}

/// Returns the settings of the flags, and the place of the configuration file over which they take precedence.
///
/// # Errors
/// [`divvy_api::v1::ErrorCode::Usage`] with the wrong word and a correct one.
pub fn source(args: &args::Daemon) -> Result<Source> {
    let mut settings = Settings::default();
    if !args.gpus.is_empty() {
        let gpus =
            parse_gpus(&args.gpus).map_err(|error| usage(error.to_string(), error.hint()))?;
        settings.add("--gpus", "gpus", gpus.to_string())?;
    }
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
    if !queues.is_empty() {
        let options = DaemonOptions {
            queues,
            ..DaemonOptions::default()
        };
        let written = serde_json::to_value(&options)
            .map_err(|error| Error::new(ErrorCode::Internal, error.to_string()))?;
        settings.add("--queue", "queues", &written["queues"])?;
    }
    if args.order_fairness {
        settings.add("--order-fairness", "order", "fairness")?;
    }
    if let Some(models) = &args.sim {
        settings.add("--sim", "sim", models)?;
    }
    let clearml = clearml::clearml(args, &mut settings)?;
    if let Some(words) = &args.docker {
        settings.add("--docker", "containers.docker", true)?;
        // With --clearml, --docker names the image of tasks. Submitted jobs name their own image.
        let words = words.as_slice();
        let image = if clearml.is_none() { words } else { &[] };
        if let Some(container) = default_container(image)? {
            settings.add("--docker", "containers.default", container)?;
        }
    }
    for text in &args.set {
        let set = Setting::parse(text).map_err(|mut error| {
            error.message = shortened(&error.message);
            error
        });
        settings.0.extend(set?);
    }
    let start = DaemonOptions {
        detached: args.detached,
        standby: args.standby,
        node_pod: args.node_pod.clone(),
        listen: ListenOptions {
            system: args.system,
            ..ListenOptions::default()
        },
        clearml,
        ..DaemonOptions::default()
    };
    Ok(Source::new(start, settings.0, args.config.clone()))
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ffi::OsString;

    use divvy_api::daemon::DeviceNodes;
    use divvy_api::daemon::file::Parsed;
    use divvy_api::daemon::keys::KEYS;
    use divvy_core::reconcile::BypassPolicy;
    use divvy_core::{GpuSelection, Order, QueueSpec};

    use super::*;
    use crate::args::{Verb, parse};
    use crate::rejection::from_clap;

    /// The options of these words, split as a shell would, without a file.
    pub(super) fn parsed(line: &str) -> Result<DaemonOptions> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        match parse(&words)
            .map_err(|error| from_clap(&error, &words))?
            .verb
        {
            Verb::Daemon(args) => {
                let configured = source(&args)?.merge(Parsed::default());
                configured
                    .map(|configured| configured.options)
                    .map_err(|error| (&error).into())
            }
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
        "log-level",
        "node-pod",
        "optimize",
        "services-mode",
        "set",
        "standalone-mode",
        "standby",
        "status",
        "stop",
        "system",
        "use-owner-token",
    ];

    #[test]
    fn every_flag_of_the_daemon_is_one_of_a_key_or_of_one_start() {
        let command = crate::args::command();
        let daemon = command.find_subcommand("daemon").unwrap();
        let flags: BTreeSet<String> = daemon
            .get_arguments()
            .map(|flag| flag.get_id().as_str().replace('_', "-"))
            .collect();
        let of_keys = KEYS.iter().flat_map(|key| key.flags).copied();
        let known = of_keys.chain(OF_ONE_START.iter().copied());
        assert_eq!(flags, known.map(str::to_owned).collect());
    }

    #[test]
    fn the_error_of_a_key_with_a_long_value_is_bounded() {
        let error = parsed(&format!("divvy daemon --set grace={}", "x".repeat(100_000)));
        let error = error.unwrap_err();
        assert!(error.message.starts_with("--set grace=xxx"));
        assert!(error.message.ends_with("is not a duration"), "{error:?}");
        assert!(error.message.len() < 700, "{}", error.message.len());
    }

    #[test]
    fn each_flag_of_a_former_version_names_its_key() {
        let mut tried = 0;
        for key in KEYS {
            for flag in key.former {
                for line in [format!("--{flag} 1"), format!("--gpus 0 --{flag}=1")] {
                    let error = parsed(&format!("divvy daemon {line}")).unwrap_err();
                    assert_eq!(error.code.exit_code(), 2, "{line}");
                    let named = format!("--{flag} is the key {} of the file", key.name);
                    assert_eq!(error.message, named);
                    let hint = error.hint.unwrap();
                    assert!(hint.contains(&format!("--set {}=", key.name)), "{hint}");
                    tried += 1;
                }
            }
        }
        assert_eq!(tried, 2 * 30);
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
            "divvy daemon --queue urgent rest --order-fairness --set backfill=true --sim a100-80gb:3",
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
        let given = daemon(" --set limits.max-texts=128M --set retention.max-log-bytes=none");
        assert_eq!(
            (given.limits.max_texts, given.retention.max_log_bytes),
            (Some(128 << 20), None)
        );
    }

    #[test]
    fn a_systems_daemon_kills_what_goes_past_the_limiter_unless_told_otherwise() {
        for (line, policy) in [
            ("", BypassPolicy::Warn),
            (" --set on-bypass=deny", BypassPolicy::Deny),
            (" --system", BypassPolicy::Kill),
            (" --system --set on-bypass=warn", BypassPolicy::Warn),
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
            (" --system --set refuse-user-namespaces=true", true),
        ] {
            let daemon = parsed(&format!("divvy daemon{line}")).unwrap();
            assert_eq!(daemon.refuse_user_namespaces, refused, "{line}");
        }
    }

    #[test]
    fn device_nodes_are_open_unless_the_systems_daemon_restricts_them() {
        for (line, nodes) in [
            ("", DeviceNodes::Open),
            (" --system --set device-nodes=jobs", DeviceNodes::Jobs),
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
            ("--set grace=10", "--set grace=10"),
            ("--set limits.max-texts=1K", "--set limits.max-texts"),
            ("--set sim=l4", "--set sim"),
            ("--sim a100-80gb", "'a100-80gb'"),
            ("--sim a100-80gb:0", "'a100-80gb:0'"),
            ("--sim a100-80gb:1,l4", "'a100-80gb:1,l4'"),
            ("--sim :", "':'"),
            ("--gpus 0-x", "0-x"),
            ("--gpus 2-0", "2-0"),
            ("--gpus 0,0", "twice"),
            ("--foreground --detached", "cannot be used with"),
            ("--set refuse-user-namespaces=true", "the system's daemon"),
            ("--set device-nodes=jobs", "the system's daemon"),
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
