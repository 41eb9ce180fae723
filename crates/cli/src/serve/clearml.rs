//! Conversion of the ClearML flags of `daemon` into settings of the table `[clearml]`.

use divvy_api::daemon::ClearMlOptions;

use super::Settings;
use crate::args;
use crate::container;
use crate::error_output::{Result, usage};

/// Flag with a password, which no list of processes may show; its variable is among [`ClearMlOptions::variables`].
pub const PASSWORD_FLAG: &str = "--git-pass";

/// Adds the settings of the front end, and returns what no file contains; `None` without `--clearml`.
///
/// # Errors
/// [`divvy_api::v1::ErrorCode::Usage`] with the wrong word.
pub fn clearml(args: &args::Daemon, settings: &mut Settings) -> Result<Option<ClearMlOptions>> {
    let asked = &args.clearml;
    let stock = &asked.stock;
    refuse_stock(stock)?;
    if !asked.clearml {
        return Ok(None);
    }
    if args.system {
        return Err(usage(
            "--clearml and --system cannot be combined",
            "omit --system: tasks run as the user of this daemon",
        ));
    }
    if args.dynamic_gpus && args.gpus.is_empty() {
        return Err(usage(
            "--dynamic-gpus with --clearml requires --gpus: the names of workers contain it",
            "use --gpus 0-3, --gpus 0,1 or --gpus all",
        ));
    }
    if let Some(file) = &asked.config_file {
        let path = std::path::absolute(file)
            .map_err(|error| usage(format!("--config-file: {error}"), "name a file"))?;
        settings.add("--config-file", "clearml.config-file", path)?;
    }
    if let Some(seconds) = asked.polling_interval {
        settings.add("--polling-interval", "clearml.polling-interval", seconds)?;
    }
    for (flag, key, is_given) in [
        ("--create-queue", "clearml.create-queue", asked.create_queue),
        ("--dynamic-gpus", "clearml.dynamic", args.dynamic_gpus),
        (
            "--force-current-version",
            "clearml.current-version",
            stock.force_current_version,
        ),
        ("--podman", "clearml.podman", stock.podman.is_some()),
        ("--podman", "containers.docker", stock.podman.is_some()),
    ] {
        if is_given {
            settings.add(flag, key, true)?;
        }
    }
    for (flag, key, words) in [
        ("--uptime", "clearml.uptime", &asked.uptime),
        ("--downtime", "clearml.downtime", &asked.downtime),
        (
            "--child-report-tags",
            "clearml.slot-tags",
            &asked.child_report_tags,
        ),
    ] {
        if !words.is_empty() {
            settings.add(flag, key, words)?;
        }
    }
    for (flag, image) in [("--docker", &args.docker), ("--podman", &stock.podman)] {
        if let Some(words) = image {
            settings.add(flag, "clearml.docker", container::unpacked(words)?)?;
        }
    }
    Ok(Some(ClearMlOptions {
        gpus: written(&args.gpus),
        variables: variables(args),
        ignored: ignored(stock),
        ..ClearMlOptions::default()
    }))
}

/// Refuses flags of the stock agent that Divvy does not support.
fn refuse_stock(stock: &args::Stock) -> Result<()> {
    let (flag, hint) = if stock.cpu_only {
        (
            "--cpu-only: not supported, each task here gets a slice of a GPU",
            "for queues without GPUs, also run `clearml-agent daemon --cpu-only --queue NAME`",
        )
    } else if stock.use_owner_token {
        (
            "--use-owner-token: not supported, it needs the paid ClearML server",
            "omit it: tasks run with the keys of this daemon's clearml.conf",
        )
    } else {
        return Ok(());
    };
    Err(usage(flag, hint))
}

fn ignored(stock: &args::Stock) -> Vec<&'static str> {
    [
        ("-O", stock.optimize > 0),
        ("--check-bootstrap", stock.check_bootstrap),
        ("--force-docker", stock.force_docker),
    ]
    .into_iter()
    .filter_map(|(flag, is_given)| is_given.then_some(flag))
    .collect()
}

/// Returns the environment variables of the stock agent, its SDK or this daemon that mean the same as these flags.
fn variables(args: &args::Daemon) -> Vec<(&'static str, String)> {
    let stock = &args.clearml.stock;
    [
        ("CLEARML_AGENT_GIT_USER", stock.git_user.clone()),
        ("CLEARML_AGENT_GIT_PASS", stock.git_pass.clone()),
        (
            "CLEARML_LOG_LEVEL",
            stock.log_level.as_ref().map(|level| level.to_uppercase()),
        ),
        (
            "CLEARML_AGENT__AGENT__STANDALONE_MODE",
            stock.standalone_mode.then(|| "true".to_owned()),
        ),
        ("DIVVY_LOG", args.debug.then(|| "debug".to_owned())),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
    .collect()
}

/// Joins the words of `--gpus`: `0,1` from the two words `0, 1`; `0-2` is unchanged.
fn written(words: &[String]) -> Option<String> {
    let items = words.iter().flat_map(|word| word.split([',', ' ']));
    let items: Vec<&str> = items.filter(|item| !item.is_empty()).collect();
    (!items.is_empty()).then(|| items.join(","))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::super::tests::parsed;
    use super::*;

    fn parse_options(line: &str) -> ClearMlOptions {
        parsed(&format!("divvy daemon {line}"))
            .unwrap()
            .clearml
            .unwrap()
    }

    #[test]
    fn the_documented_lines_are_taken_with_the_server_behind_them() {
        let asked_for = parse_options(
            "--dynamic-gpus --gpus 0, 1 --queue half_gpu=0.5 quarter=0.25 --docker --clearml --config-file /c --create-queue",
        );
        assert_eq!(asked_for.queues, ["half_gpu", "quarter"]);
        assert_eq!(asked_for.gpus.as_deref(), Some("0,1"));
        assert_eq!(asked_for.docker, Some(Vec::new()));
        assert!(asked_for.dynamic && asked_for.create_queue);
        let plain = parse_options(
            "--clearml --queue default --docker clearml/fractional-gpu:u22-cu12.3-8gb",
        );
        assert_eq!(
            (plain.queues.len(), plain.dynamic, plain.gpus),
            (1, false, None)
        );
        assert_eq!(
            plain.docker.unwrap(),
            ["clearml/fractional-gpu:u22-cu12.3-8gb"]
        );
        // Without --dynamic-gpus `=` is part of a name, and without --queue there is the server's own default.
        assert_eq!(
            parse_options("--clearml --queue half=0.5").queues,
            ["half=0.5"]
        );
        assert_eq!(parse_options("--clearml").queues, Vec::<String>::new());
    }

    #[test]
    fn flags_of_docker_are_quoted_values_as_for_the_stock_agent() {
        let words = |line: &[&str]| -> Vec<OsString> {
            let before = ["divvy", "daemon", "--clearml"];
            before.iter().chain(line).map(OsString::from).collect()
        };
        for line in [
            &["--docker", "img -v /data:/data", "--queue", "a"][..],
            &["--docker", "img", "-v /data:/data", "--queue", "a"],
            &[
                "--queue",
                "a",
                "--podman",
                "img",
                "-v /data:/data",
                "--detached",
            ],
        ] {
            let words = words(line);
            let args::Verb::Daemon(args) = args::parse(&words).unwrap().verb else {
                panic!("not the daemon");
            };
            let asked = args.docker.or(args.clearml.stock.podman).unwrap();
            let taken = container::unpacked(&asked).unwrap();
            assert_eq!(taken, ["img", "-v", "/data:/data"], "{line:?}");
            assert_eq!(args.queue, ["a"], "{line:?}");
        }
        // Words of other verbs are as they were typed, and flags of the agent may stand before the verb.
        let run = "divvy|run|--|tool|daemon|--docker|img|-v /data:/data";
        let run: Vec<OsString> = run.split('|').map(OsString::from).collect();
        let args::Verb::Run(run) = args::parse(&run).unwrap().verb else {
            panic!("not a run");
        };
        assert_eq!(run.job.command.last().unwrap(), "-v /data:/data");
        let before = "divvy|--config-file|f|-d|daemon|--clearml|--docker|img|-v /data:/data";
        let before: Vec<OsString> = before.split('|').map(OsString::from).collect();
        assert!(args::parse(&before).is_ok());
        // As for the stock agent, a flag of docker in a word of its own is a flag of the daemon.
        for line in [
            &["--docker", "img", "-v", "/data:/data"][..],
            &["--docker", "img", "--ipc=host"],
            &["--docker", "img", "--shm-size", "8g", "--queue", "a"],
            &["--podman", "img", "-e A=1"],
        ] {
            let words = words(line);
            let error = args::parse(&words).unwrap_err();
            let hint = crate::rejection::from_clap(&error, &words).hint.unwrap();
            assert!(
                hint.contains("--docker 'IMAGE -v /data:/data'"),
                "{line:?}: {hint}"
            );
        }
        for line in [
            &["--docker", "img", "--no-such"][..],
            &["-v", "--docker", "img"],
            &["--ipc=host"],
        ] {
            let words = words(line);
            let error = args::parse(&words).unwrap_err();
            let hint = crate::rejection::from_clap(&error, &words).hint.unwrap();
            assert!(!hint.contains("IMAGE -v"), "{line:?}: {hint}");
        }
        assert_eq!(
            parse_options("--clearml --polling-interval 1").polling_interval,
            Some(1)
        );
    }

    #[test]
    fn in_plain_form_one_task_has_all_gpus() {
        let daemon = parsed("divvy daemon --clearml --gpus 0-1 --queue a b").unwrap();
        assert!(daemon.gives_all_gpus_to_one_job());
        let daemon =
            parsed("divvy daemon --clearml --dynamic-gpus --gpus 0-1 --queue a=1").unwrap();
        assert!(!daemon.gives_all_gpus_to_one_job());
        let daemon = parsed("divvy daemon --queue a b").unwrap();
        assert!(!daemon.gives_all_gpus_to_one_job());
    }

    #[test]
    fn tasks_have_containers_of_their_own_and_submitted_jobs_none_by_that() {
        let daemon = parsed("divvy daemon --clearml --docker img --queue a").unwrap();
        assert_eq!(daemon.containers.default, None);
    }

    #[test]
    fn flags_of_the_stock_agent_become_the_variables_that_mean_the_same() {
        let stock = parse_options(
            "--clearml --queue a --docker img --git-user octo --git-pass t0ken --log-level debug --standalone-mode --force-current-version -OO --check-bootstrap --force-docker",
        );
        assert_eq!(
            stock.variables,
            [
                ("CLEARML_AGENT_GIT_USER", "octo".to_owned()),
                ("CLEARML_AGENT_GIT_PASS", "t0ken".to_owned()),
                ("CLEARML_LOG_LEVEL", "DEBUG".to_owned()),
                ("CLEARML_AGENT__AGENT__STANDALONE_MODE", "true".to_owned()),
            ]
        );
        assert!(stock.current_version && !stock.podman);
        assert_eq!(stock.ignored, ["-O", "--check-bootstrap", "--force-docker"]);
        let podman = parse_options("--clearml --podman img --queue a");
        assert_eq!(podman.docker.unwrap(), ["img"]);
        assert!(podman.podman && podman.variables.is_empty());
    }

    #[test]
    fn what_cannot_be_is_refused_before_anything_is_registered() {
        let lines = [
            ("--config-file /c", "--clearml"),
            ("--create-queue", "--clearml"),
            (
                "--clearml --set clearml.project-by=rules",
                "--set clearml.project-by",
            ),
            ("--clearml --system", "--system"),
            ("--clearml --dynamic-gpus --queue a=1", "requires --gpus"),
            (
                "--clearml --dynamic-gpus --gpus 0 --queue a",
                "queue must be in format <queue_name>=<num_gpus>",
            ),
            (
                "--clearml --dynamic-gpus --gpus 0 --queue a=0",
                "<= 0 is not allowed",
            ),
            (
                "--clearml --dynamic-gpus --gpus 0-3 --queue a=2.5",
                "fractional gpu cannot be > 1",
            ),
            ("--clearml --dynamic-gpus --gpus 0 --queue a=0.3", "a=0.3"),
            ("--clearml --gpus 0:0", "0:0"),
            ("--clearml --services-mode", "--services-mode"),
            ("--clearml --polling-interval soon", "soon"),
            ("--clearml --cpu-only", "gets a slice of a GPU"),
            ("--clearml --use-owner-token", "paid ClearML server"),
            ("--clearml --log-level LOUD", "LOUD"),
            ("--clearml --podman a --docker b", "cannot be used with"),
            ("--git-user octo", "--clearml"),
            ("--clearml --set clearml.agent=a", "--set clearml.agent=a"),
        ];
        for (line, named) in lines {
            let error = parsed(&format!("divvy daemon {line}")).unwrap_err();
            assert_eq!(error.code.exit_code(), 2, "{line}");
            assert!(error.message.contains(named), "{line}: {}", error.message);
        }
    }
}
