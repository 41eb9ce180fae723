//! From the words of `daemon` to what the agent serves.

mod clearml;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use divvy_api::v1::{Container, Idle};
use divvy_core::reconcile::BypassPolicy;
use divvy_core::{
    Bytes, GpuSelection, Order, Preemption, QueueName, QueueSpec, parse_gpus, parse_queues,
};

use crate::args::{self, OnUnlimitedImage, UserNamespaces};
use crate::ask::terms::{idle, seconds};
use crate::container;
use crate::error_output::{Result, usage};
use crate::output;
use crate::text;

pub use clearml::{ClearMl, PASSWORD_FLAG};

/// What a daemon serves, and how.
#[derive(Clone, Debug)]
pub struct Daemon {
    pub gpus: GpuSelection,
    /// In the order they are served.
    pub queues: Vec<QueueSpec>,
    pub order: Order,
    pub backfill: bool,
    /// Whether jobs that are over quota give way to jobs that are within theirs.
    pub preemption: Preemption,
    /// So many jobs of one user that have not ended.
    pub max_jobs: Option<u32>,
    /// So many bytes of their texts.
    pub max_texts: Option<u64>,
    /// Jobs run in containers.
    pub docker: bool,
    /// The container of submitted jobs that name none.
    pub container: Option<Container>,
    /// Images that the limiter cannot hold are not started.
    pub deny_unlimited: bool,
    /// Where the engine looks for CDI devices, if slices are to be some.
    pub cdi_dir: Option<PathBuf>,
    /// Return once it answers, and leave it running.
    pub detached: bool,
    /// Simulated GPUs: `a100-80gb:3`.
    pub sim: Option<String>,
    /// Time a job has to end when it is stopped, before it is killed.
    pub grace: Option<Duration>,
    /// What is done with jobs that do nothing with their GPUs.
    pub idle: Option<Idle>,
    /// For how long ended jobs are kept, how many of them at most, and for how long what was used.
    pub keep: (Duration, u32, Duration),
    /// Bytes of the logs of each user's ended jobs.
    pub keep_logs: Option<u64>,
    /// Bytes that a job's log may hold; the outer `None`: as many as is usual, the inner: as many as come.
    pub log_size: Option<Option<u64>>,
    /// What is done about memory held past the limiter.
    pub on_bypass: BypassPolicy,
    /// Jobs of other users get no user namespaces.
    pub refuse_user_namespaces: bool,
    /// Serve every user of the machine.
    pub system: bool,
    /// Serve the machine's GPUs although the system's daemon serves them too.
    pub beside_system: bool,
    /// The file that gives roles.
    pub access: Option<PathBuf>,
    pub listen: Option<SocketAddr>,
    pub token_file: Option<PathBuf>,
    /// Jobs of queues that name no amount get all GPUs.
    pub all_to_one: bool,
    /// Whose tasks are run besides.
    pub clearml: Option<ClearMl>,
}

/// What these words ask to serve.
///
/// # Errors
/// [`divvy_api::v1::ErrorCode::Usage`] with the word that is wrong and what would be right.
pub fn daemon(args: &args::Daemon) -> Result<Daemon> {
    let gpus = match args.gpus.as_slice() {
        [] => GpuSelection::All,
        words => parse_gpus(words).map_err(|error| usage(error.to_string(), error.hint()))?,
    };
    let queues = parse_queues(&args.queue, args.dynamic_gpus, args.services_mode.is_some())
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
    if !args.dynamic_gpus && !args.clearml.clearml {
        warn_of_equals(&queues);
    }
    let clearml = clearml::clearml(args, &gpus, &queues)?;
    // The words are for tasks then, and jobs that are submitted here say for themselves.
    let image = args.docker.as_deref().filter(|_| clearml.is_none());
    let all_to_one = clearml.as_ref().is_some_and(|clearml| !clearml.dynamic);
    Ok(Daemon {
        gpus,
        queues: match queues.is_empty() && all_to_one {
            true => vec![QueueSpec::open(QueueName::default_queue())],
            false => queues,
        },
        order: if args.order_fairness {
            Order::Fairness
        } else {
            Order::Strict
        },
        backfill: args.backfill,
        max_jobs: args.max_jobs,
        max_texts: budget("--max-texts", args.max_texts.as_deref())?,
        preemption: match args.no_preemption {
            true => Preemption::Off,
            false => Preemption::On,
        },
        docker: args.docker.is_some() || args.clearml.stock.podman.is_some(),
        container: default_container(image.unwrap_or_default())?,
        deny_unlimited: args.on_unlimited_image == OnUnlimitedImage::Deny,
        cdi_dir: args.cdi_dir.clone(),
        detached: args.detached,
        sim: args.sim.clone(),
        grace: args.grace.as_deref().map(grace).transpose()?,
        idle: idle(args.idle_timeout.as_deref(), args.idle_action)?,
        keep: (
            Duration::from_secs(seconds("--keep", &args.keep)?),
            args.keep_jobs,
            Duration::from_secs(seconds("--keep-usage", &args.keep_usage)?),
        ),
        keep_logs: budget("--keep-logs", args.keep_logs.as_deref())?,
        log_size: args.log_size.as_deref().map(log_size).transpose()?,
        on_bypass: on_bypass(args),
        refuse_user_namespaces: args.user_namespaces == Some(UserNamespaces::Refuse),
        system: args.system,
        beside_system: args.beside_system,
        access: args.access.clone(),
        listen: args.listen,
        token_file: args.token_file.clone(),
        all_to_one,
        clearml,
    })
}

/// What was said; else a system's daemon kills, since its users share the GPUs with others, and a user's own daemon warns.
fn on_bypass(args: &args::Daemon) -> BypassPolicy {
    match (args.on_bypass, args.system) {
        (Some(said), _) => said.into(),
        (None, true) => BypassPolicy::Kill,
        (None, false) => BypassPolicy::Warn,
    }
}

/// `--docker IMAGE FLAGS…`, in several words or in one.
fn default_container(words: &[String]) -> Result<Option<Container>> {
    match container::unpacked(words)?.split_first() {
        None => Ok(None),
        Some((image, arguments)) => {
            let asked = container::asked(image, arguments)?;
            let mut container = asked.container;
            // Here they belong to the container: each job gets them.
            let variables = asked.env.into_iter();
            let variables = variables.map(|(name, value)| format!("--env={name}={value}"));
            container.arguments.extend(variables);
            Ok(Some(container))
        }
    }
}

/// `64M`, or `none`.
fn log_size(text: &str) -> Result<Option<u64>> {
    size("--log-size", text, "too small for a log")
}

/// What each user has of something, in bytes: any number of them where there is no bound.
fn budget(flag: &str, text: Option<&str>) -> Result<Option<u64>> {
    let Some(text) = text else { return Ok(None) };
    let size = size(flag, text, "too small for a user")?;
    Ok(Some(size.unwrap_or(u64::MAX)))
}

/// `64M`; nothing for `none`.
fn size(flag: &str, text: &str, too_little: &str) -> Result<Option<u64>> {
    const LEAST: Bytes = Bytes::mib(1);
    if text == "none" {
        return Ok(None);
    }
    let wrong = |why: &str| {
        let hint = "use 64M or 1G, at least 1M, or none for no limit";
        usage(format!("{flag} {text}: {why}"), hint)
    };
    let size = text.parse::<Bytes>();
    let size = size.map_err(|error| wrong(&error.to_string()))?;
    match size < LEAST {
        true => Err(wrong(too_little)),
        false => Ok(Some(size.get())),
    }
}

fn grace(text: &str) -> Result<Duration> {
    text::parse_time(text).ok_or_else(|| {
        usage(
            format!("--grace {text}: not a duration"),
            "use 10s, 90s or 5m",
        )
    })
}

/// `half=0.5` without `--dynamic-gpus` is a name, as the stock agent has it, and seldom what was meant.
fn warn_of_equals(queues: &[QueueSpec]) {
    // A daemon of simulated GPUs reads its words twice: it starts itself again with this variable set.
    if std::env::var_os("DIVVY_SIM_STATE").is_some() {
        return;
    }
    for name in queues
        .iter()
        .map(|queue| queue.name.to_string())
        .filter(|name| name.parse::<QueueSpec>().is_ok())
    {
        output::say(&format!(
            "amounts in --queue require --dynamic-gpus; `{name}` is taken as the name of a queue"
        ));
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::args::{Verb, parse};
    use crate::error_output::from_clap;

    /// The words as a shell would split them.
    pub(super) fn parsed(line: &str) -> Result<Daemon> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        match parse(&words)
            .map_err(|error| from_clap(&error, &words))?
            .verb
        {
            Verb::Daemon(args) => daemon(&args),
            verb => panic!("not the daemon: {verb:?}"),
        }
    }

    fn queues(daemon: &Daemon) -> Vec<String> {
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
    fn without_dynamic_gpus_jobs_ask_for_themselves() {
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
        assert_eq!((plain.max_texts, plain.keep_logs), (None, None));
        let given = daemon(" --max-texts 128M --keep-logs none");
        assert_eq!(
            (given.max_texts, given.keep_logs),
            (Some(128 << 20), Some(u64::MAX))
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
            assert_eq!(daemon.on_bypass, policy, "{line}");
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
    fn wrong_lines_are_refused_with_the_word_and_a_hint() {
        let lines = [
            ("--dynamic-gpus --queue half=0.3", "half=0.3"),
            ("--dynamic-gpus --queue half=1.25", "half=1.25"),
            ("--dynamic-gpus --queue half=0", "half=0"),
            (
                "--dynamic-gpus --queue half",
                "queue must be in format <queue_name>=<num_gpus>",
            ),
            ("--dynamic-gpus --queue half=half", "half=half"),
            ("--dynamic-gpus --queue a=1 a=0.5", "twice"),
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
