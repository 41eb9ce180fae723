//! Conversion of the flags of `run` and `submit` into the submission. Each error contains a hint.

pub mod filters;
pub mod program;
pub mod terms;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use divvy_api::v1::{Error, ErrorCode, Runner, Submit};
use divvy_core::isolation::IsolationError;
use divvy_core::request::AmountErrorKind;
use divvy_core::{Amount, Compute, GpuSelection, Isolation, LatencyGoal, parse_gpus};

use crate::args::JobArgs;
use crate::container::ContainerSpec;
use crate::error_output::{Result, usage};
use crate::output;

/// The job these words describe, in this process's folder and environment.
///
/// # Errors
/// [`ErrorCode::Usage`] with the word that is wrong and what would be right.
pub fn submit(args: &JobArgs, runner: Runner) -> Result<Submit> {
    let mut submit = Submit {
        command: command(&args.command, line_of(runner))?,
        ..described(args, runner)?
    };
    terms::add(&args.terms, &mut submit)?;
    Ok(submit)
}

/// As [`submit`], for a container, which has its own variables and may run its image's default command.
///
/// # Errors
/// As [`submit`].
pub fn contained(
    args: &JobArgs,
    asked: ContainerSpec,
    command: Vec<String>,
    runner: Runner,
) -> Result<Submit> {
    let mut submit = Submit {
        command,
        env: asked.env,
        container: Some(asked.container),
        ..described(args, runner)?
    };
    terms::add(&args.terms, &mut submit)?;
    Ok(submit)
}

/// All but the command.
fn described(args: &JobArgs, runner: Runner) -> Result<Submit> {
    let amount = match args.mig_profile.as_deref() {
        Some(profile) => Some(mig_profile(profile)?),
        None => amount(args.gpu.as_deref(), args.gpu_memory.as_deref())?,
    };
    let isolation = isolation(args.isolation.as_deref(), amount)?;
    if amount.is_none() && args.queue.is_none() {
        return Err(usage(
            "the amount of GPU is missing",
            "add -g 0.25 (part of a GPU), -g 1 (a whole GPU), --gpu-memory 4G or --mig-profile 2g.10gb; or -q QUEUE for that queue's amount",
        ));
    }
    Ok(Submit {
        command: Vec::new(),
        name: args.name.clone(),
        queue: args.queue.clone(),
        project: args.project.clone(),
        amount: amount.map(Into::into),
        compute: Some(compute(&args.compute)?),
        latency: latency(args)?,
        gpus_on: gpus_on(args.gpus_on.as_deref())?,
        cwd: working_directory(args.chdir.as_deref())?,
        env: environment(),
        runner,
        isolation: isolation.into(),
        memory_exact: args.gpu_memory_exact,
        no_wait: args.no_wait,
        dry_run: false,
        idempotency_key: None,
        priority: 0,
        preemptible: false,
        time_limit_s: None,
        after: Vec::new(),
        retries: 0,
        secrets: BTreeMap::new(),
        array: None,
        container: None,
        notify: args.notify.clone(),
        ..Submit::default()
    })
}

/// A command line that submits a job with this runner.
pub fn line_of(runner: Runner) -> &'static str {
    match runner {
        Runner::Supervisor => "divvy submit -g 0.25",
        Runner::Client | Runner::Claim => "divvy run -g 0.25",
    }
}

/// The program and its arguments; `line`: the command line before them, for the hint.
///
/// # Errors
/// [`ErrorCode::Usage`](divvy_api::v1::ErrorCode::Usage) without a program, or for an argument that is not UTF-8.
pub fn command(words: &[OsString], line: &str) -> Result<Vec<String>> {
    let hint = || format!("put the program after `--`: {line} -- python train.py");
    match words.first() {
        None => return Err(usage("the program to run is missing", hint())),
        Some(program) if program.is_empty() => {
            return Err(usage("the name of the program is empty", hint()));
        }
        Some(_) => {}
    }
    let text = |word: &OsString| {
        let unreadable = || {
            usage(
                format!("the argument {word:?} is not UTF-8"),
                "Divvy stores commands as UTF-8: rename the file",
            )
        };
        word.to_str().map(str::to_owned).ok_or_else(unreadable)
    };
    words.iter().map(text).collect()
}

/// Parses `-g` or `--gpu-memory`; `None` without either.
///
/// # Errors
/// [`ErrorCode::Usage`] with the word that is wrong and what would be right.
pub fn amount(gpu: Option<&str>, memory: Option<&str>) -> Result<Option<Amount>> {
    let (flag, read) = match (gpu, memory) {
        (Some(text), _) => (format!("-g {text}"), Amount::from_gpu_flag(text)),
        (None, Some(text)) => (
            format!("--gpu-memory {text}"),
            Amount::from_memory_flag(text),
        ),
        (None, None) => return Ok(None),
    };
    read.map(Some).map_err(|error| match error.kind {
        // The daemon's flag has the stock ClearML agent's words for it.
        AmountErrorKind::NotPositive => {
            usage(format!("{flag}: the amount must be above 0"), error.hint())
        }
        _ => usage(format!("{flag}: {}", error.kind), error.hint()),
    })
}

/// Parses `--mig-profile`.
///
/// # Errors
/// As [`amount`].
pub fn mig_profile(text: &str) -> Result<Amount> {
    Amount::from_mig_flag(text)
        .map_err(|error| usage(format!("--mig-profile: {}", error.kind), error.hint()))
}

/// Parses `--isolation`. Cooperative isolation contradicts a MIG profile.
fn isolation(text: Option<&str>, amount: Option<Amount>) -> Result<Isolation> {
    let isolation: Isolation = match text {
        None => Isolation::Any,
        Some(text) => text.parse().map_err(|error: IsolationError| {
            usage(format!("--isolation: {error}"), error.hint())
        })?,
    };
    match amount {
        Some(Amount::Mig(profile)) if !isolation.takes_instances() => Err(usage(
            format!(
                "--mig-profile {profile} implies hardware isolation, but --isolation {isolation} is given"
            ),
            "omit one of the two flags",
        )),
        _ => Ok(isolation),
    }
}

/// Parses `--compute` into the fields of the API.
///
/// # Errors
/// As [`amount`].
pub fn compute(text: &str) -> Result<String> {
    text.parse::<Compute>()
        .map(|compute| compute.to_string())
        .map_err(|error| usage(format!("--compute: {error}"), error.hint()))
}

/// Parses `--latency`, which `--compute` has to allow.
fn latency(args: &JobArgs) -> Result<Option<String>> {
    let Some(text) = args.latency.as_deref() else {
        return Ok(None);
    };
    let goal = text
        .parse::<LatencyGoal>()
        .map_err(|error| usage(format!("--latency: {error}"), error.hint()))?;
    let compute: Compute = args.compute.parse().unwrap_or_default();
    compute
        .or_latency(Some(goal))
        .map_err(|error| usage(format!("--latency: {error}"), error.hint()))?;
    Ok(Some(goal.to_string()))
}

/// Parses `--gpus-on`; empty for any GPU.
///
/// # Errors
/// As [`amount`].
pub fn gpus_on(text: Option<&str>) -> Result<Vec<u32>> {
    let Some(text) = text else {
        return Ok(Vec::new());
    };
    match parse_gpus(&[text]) {
        Ok(GpuSelection::All) => Ok(Vec::new()),
        Ok(GpuSelection::Indices(indices)) => Ok(indices),
        Ok(GpuSelection::Uuids(_)) => Err(usage(
            format!("--gpus-on {text}: a job names GPUs by index"),
            "divvy gpus lists indices; the daemon keeps to the GPU when its index changes",
        )),
        // The daemon's flag of the same form is the one that the error names.
        Err(error) => Err(usage(
            error.to_string().replace("--gpus", "--gpus-on"),
            error.hint(),
        )),
    }
}

/// The folder of `-C`, or the present one.
fn working_directory(folder: Option<&Path>) -> Result<String> {
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        let shown = folder.display();
        let why = if folder.exists() {
            "not a folder"
        } else {
            "the folder does not exist"
        };
        let hint = format!("mkdir -p {shown}");
        return Err(usage(format!("--chdir {shown}: {why}"), hint));
    }
    let here = std::env::current_dir().map_err(|error| {
        Error::new(
            ErrorCode::Internal,
            format!("the working directory cannot be read: {error}"),
        )
    })?;
    let here = folder.map_or(here.clone(), |folder| here.join(folder));
    here.into_os_string().into_string().map_err(|path| {
        usage(
            format!("the working directory {path:?} is not UTF-8"),
            "Divvy stores paths as UTF-8: rename the folder",
        )
    })
}

/// This process's environment, less what is not text; that is said, as the program will miss it.
fn environment() -> BTreeMap<String, String> {
    let mut kept = BTreeMap::new();
    for (name, value) in std::env::vars_os() {
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => {
                kept.insert(name, value);
            }
            (Ok(name), Err(_)) => output::say(&format!(
                "the variable {name} is not UTF-8; the job's environment omits it"
            )),
            (Err(name), _) => output::say(&format!(
                "the variable {name:?} is not UTF-8; the job's environment omits it"
            )),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use divvy_api::v1;

    use super::*;
    use crate::args::{Verb, parse};
    use crate::rejection::from_clap;

    /// What `divvy submit` and these words ask for.
    fn parse_submit(words: &[&str]) -> Result<Submit> {
        let words: Vec<OsString> = ["divvy", "submit"]
            .iter()
            .chain(words)
            .map(OsString::from)
            .collect();
        match parse(&words)
            .map_err(|error| from_clap(&error, &words))?
            .verb
        {
            Verb::Submit(args) => submit(&args.job, Runner::Supervisor),
            verb => panic!("not submit: {verb:?}"),
        }
    }

    #[test]
    fn every_form_of_amount_is_read() {
        let amounts = [
            (["-g", "0.25"], v1::Amount::Share { thousandths: 250 }),
            (["--gpu", "2"], v1::Amount::Whole { count: 2 }),
            (["-g", "1-4"], v1::Amount::Range { min: 1, max: 4 }),
            (
                ["-g", "8x0.5"],
                v1::Amount::Shares {
                    count: 8,
                    thousandths: 500,
                },
            ),
            (
                ["--gpu-memory", "4G"],
                v1::Amount::Memory { bytes: 4 << 30 },
            ),
            (
                ["--gpu-memory", "512MiB"],
                v1::Amount::Memory { bytes: 512 << 20 },
            ),
            (
                ["--mig-profile", "1g.5gb+me"],
                v1::Amount::Mig {
                    profile: "1g.5gb+me".into(),
                },
            ),
        ];
        for (flag, amount) in amounts {
            let submit = parse_submit(&[flag[0], flag[1], "--", "true"]).unwrap();
            assert_eq!(submit.amount, Some(amount), "{flag:?}");
        }
    }

    #[test]
    fn the_program_keeps_its_own_flags_with_and_without_the_dashes() {
        let dashes =
            parse_submit(&["-g", "1", "--", "python", "-c", "pass", "-o", "json"]).unwrap();
        let bare = parse_submit(&["-g", "1", "python", "-c", "pass", "-o", "json"]).unwrap();
        assert_eq!(dashes.command, ["python", "-c", "pass", "-o", "json"]);
        assert_eq!(dashes.command, bare.command);
    }

    #[test]
    fn the_wish_for_isolation_goes_with_the_amount() {
        let words = ["--gpu-memory", "4G", "--gpu-memory-exact", "--isolation"];
        let submit = parse_submit(&[&words[..], &["hardware", "--", "true"]].concat()).unwrap();
        assert_eq!(
            (submit.isolation, submit.memory_exact),
            (v1::Isolation::Hardware, true)
        );
        let plain = parse_submit(&["-g", "1", "--", "true"]).unwrap();
        assert_eq!(
            (plain.isolation, plain.memory_exact),
            (v1::Isolation::Any, false)
        );
    }

    #[test]
    fn what_is_no_profile_or_no_isolation_is_refused_with_what_to_write() {
        for (words, message, hint) in [
            (
                &["--mig-profile", "2G.10GB"][..],
                "--mig-profile: unknown MIG profile `2G.10GB`",
                "write 2g.10gb",
            ),
            (
                &["-g", "0.5", "--isolation", "soft"],
                "--isolation: unknown isolation `soft`",
                "write cooperative (the limiter), driver (its own limit, or MIG) or hardware (MIG); leave it out for any",
            ),
            (
                &["--mig-profile", "1g.5gb", "--isolation", "cooperative"],
                "--mig-profile 1g.5gb implies hardware isolation, but --isolation cooperative is given",
                "omit one of the two flags",
            ),
        ] {
            let error = parse_submit(&[words, &["--", "true"]].concat()).unwrap_err();
            assert_eq!(
                (error.code, error.message.as_str()),
                (ErrorCode::Usage, message)
            );
            assert_eq!(error.hint.as_deref(), Some(hint));
        }
        for words in [
            &["--mig-profile", "1g.5gb", "-g", "0.5"][..],
            &["--mig-profile", "1g.5gb", "--gpu-memory", "4G"],
            &["-g", "0.5", "--gpu-memory-exact"],
        ] {
            let error = parse_submit(&[words, &["--", "true"]].concat()).unwrap_err();
            assert_eq!(error.code, ErrorCode::Usage, "{words:?}");
        }
    }

    #[test]
    fn a_queue_that_is_named_may_say_how_much_also_the_default_queue() {
        for queue in ["half_gpu", "default"] {
            let submit = parse_submit(&["-q", queue, "--", "true"]).unwrap();
            assert_eq!(
                (submit.amount, submit.queue.as_deref()),
                (None, Some(queue))
            );
        }
        let error = parse_submit(&["--", "true"]).unwrap_err();
        assert_eq!(error.code, ErrorCode::Usage);
        let hint = error.hint.unwrap();
        assert!(
            ["-g", "--gpu-memory", "-q"]
                .iter()
                .all(|flag| hint.contains(flag)),
            "{hint}"
        );
    }

    #[test]
    fn the_folder_the_environment_and_the_rest_travel_along() {
        let submit = parse_submit(&[
            "-g",
            "0.5",
            "-p",
            "vision",
            "--name",
            "eval",
            "--gpus-on",
            "0-1,3",
            "--no-wait",
            "x",
        ])
        .unwrap();
        assert_eq!(
            submit.cwd,
            std::env::current_dir().unwrap().to_str().unwrap()
        );
        assert_eq!(submit.env.get("PATH"), std::env::var("PATH").ok().as_ref());
        assert_eq!(
            (submit.project.as_deref(), submit.name.as_deref()),
            (Some("vision"), Some("eval"))
        );
        assert_eq!(
            (submit.gpus_on, submit.no_wait, submit.compute.as_deref()),
            (vec![0, 1, 3], true, Some("fair"))
        );
        assert_eq!(
            parse_submit(&["-g", "0.5", "--gpus-on", "all", "x"])
                .unwrap()
                .gpus_on,
            Vec::<u32>::new()
        );
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_word_and_a_hint() {
        let lines: [(&[&str], &str); 22] = [
            (&["-g", "0.5", "--latency", "20", "x"], "--latency: `20`"),
            (
                &["-g", "0.5", "--latency", "11s", "x"],
                "not between 1 ms and 10 s",
            ),
            (
                &["-g", "0.5", "--latency", "20ms", "--compute", "strict", "x"],
                "only `fair`",
            ),
            (&["-g", "1.25", "--", "x"], "-g 1.25"),
            (&["-g", "0", "--", "x"], "-g 0"),
            (&["-g", "-1", "--", "x"], "-g -1"),
            (&["-g", "half", "--", "x"], "-g half"),
            (&["-g", "0.0001", "--", "x"], "-g 0.0001"),
            (&["-g", "", "--", "x"], "-g"),
            (&["--gpu-memory", "4", "--", "x"], "--gpu-memory 4"),
            (&["--gpu-memory", "0G", "--", "x"], "--gpu-memory 0G"),
            (&["--gpu-memory", "4GB", "--", "x"], "--gpu-memory 4GB"),
            (
                &["--gpu-memory", "4G", "-g", "1", "--", "x"],
                "cannot be used with",
            ),
            (&["-g", "1"], "program to run is missing"),
            (&["-g", "1", "--"], "program to run is missing"),
            (&["-g", "1", "--", ""], "program is empty"),
            (
                &["-g", "1", "--compute", "none=0.5", "x"],
                "--compute: `none=0.5`",
            ),
            (
                &["-g", "1", "--compute", "some", "x"],
                "--compute: unknown compute mode `some`",
            ),
            (&["-g", "1", "--gpus-on", "a", "x"], "--gpus-on"),
            (&["-g", "1", "--gpus-on", "", "x"], "--gpus-on"),
            (
                &["-g", "1", "--parsable", "-o", "json", "x"],
                "cannot be used with",
            ),
            (&["--gpux", "1", "--", "x"], "--gpux"),
        ];
        for (words, named) in lines {
            let error = parse_submit(words).unwrap_err();
            assert_eq!(error.code.exit_code(), 2, "{words:?}");
            assert!(
                error.message.contains(named),
                "{words:?}: {}",
                error.message
            );
            assert!(error.hint.is_some(), "{words:?}");
        }
    }
}
