//! `slice`: slices for programs that other engines start, held by the daemon as claims.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use divvy_api::client::Client;
use divvy_api::home::Home;
use divvy_api::proc::start_time;
use divvy_api::standalone::SliceAccess;
use divvy_api::v1::claim::{LONGEST_UID, is_uid};
use divvy_api::v1::{Claim, ClaimDevice, ClaimEnd, Error, ErrorCode, HeldClaim, JobState};
use divvy_core::{Amount, GpuUuid, Share};

use crate::Backend;
use crate::args::{EnvFormat, Look, SliceCreate, SliceEnter, SliceEnv, SliceRm, SliceVerb};
use crate::ask;
use crate::call::{Outcome, block_on, called, client};
use crate::error_output::{Result, usage};
use crate::output::{print, say, view};
use crate::{error_output, render, text, watch};

/// Pause between two calls of `create --wait`. Not longer, as the engine's own program waits; not shorter, as hundreds
/// of engines may call at once.
const BETWEEN_CALLS: Duration = Duration::from_millis(250);

/// `create --wait` at most, so that a typo blocks no engine for good.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

pub fn slice(verb: SliceVerb, backend: Backend) -> Outcome {
    match verb {
        SliceVerb::Create(args) => block_on(create(args)),
        SliceVerb::Enter(args) => enter(&args, backend),
        SliceVerb::Env(args) => env(&args, backend),
        SliceVerb::Ls(look) => block_on(ls(look)),
        SliceVerb::Rm(args) => block_on(rm(args)),
    }
}

async fn create(args: SliceCreate) -> Outcome {
    check_name(&args.name)?;
    let claim = claim(&args)?;
    let held = hold(&args, &claim).await?;
    match args.output {
        Some(format) => {
            let held = std::slice::from_ref(&held);
            print(render::list(held, format, view(), render::slices)?)?;
        }
        None => say(&format!(
            "slice {} is ready on {} (job #{}); {}",
            held.uid,
            render::held_by(&held),
            held.job,
            ends(&held)
        )),
    }
    Ok(ExitCode::SUCCESS)
}

/// Holds the slice, and repeats a call that has no room within the time of `--wait`.
async fn hold(args: &SliceCreate, claim: &Claim) -> Result<HeldClaim> {
    let wait = args.wait.as_deref().map(wait).transpose()?;
    let client = client()?;
    let begin = Instant::now();
    loop {
        let mut error = match client.put_claim(&args.name, claim).await {
            Ok(held) => return Ok(held),
            Err(error) => error,
        };
        let (Some(wait), ErrorCode::WouldWait) = (wait, error.code) else {
            return Err(error);
        };
        let left = wait.saturating_sub(begin.elapsed());
        if left.is_zero() {
            let _ = write!(error.message, " (waited {} s)", wait.as_secs());
            return Err(error);
        }
        tokio::time::sleep(left.min(BETWEEN_CALLS)).await;
    }
}

/// `--wait`.
fn wait(text: &str) -> Result<Duration> {
    let wait = Duration::from_secs(ask::terms::seconds("--wait", text)?);
    if wait > LONGEST_WAIT {
        return Err(usage(
            format!("--wait {text}: longer than an hour"),
            "use 1h at most; `divvy submit` queues a program without a limit of time",
        ));
    }
    Ok(wait)
}

/// What releases the slice, in a sentence.
fn ends(held: &HeldClaim) -> String {
    match render::end_of(held) {
        Some(end) => format!("it ends with {end}"),
        None => format!("release it with `divvy slice rm {}`", held.uid),
    }
}

fn check_name(name: &str) -> Result<()> {
    if is_uid(name) {
        return Ok(());
    }
    let shown: String = name.chars().take(LONGEST_UID).collect();
    Err(usage(
        format!("{:?} is not a name of a slice", text::clean(&shown)),
        format!(
            "use 1 to {LONGEST_UID} letters, digits and `-._`, with a letter or digit at the end"
        ),
    ))
}

/// The claim that these flags describe.
fn claim(args: &SliceCreate) -> Result<Claim> {
    let amount = match args.mig_profile.as_deref() {
        Some(profile) => Some(ask::mig_profile(profile)?),
        None => ask::amount(args.gpu.as_deref(), args.gpu_memory.as_deref())?,
    };
    let device = |gpu: &String| -> Result<ClaimDevice> {
        let gpu = gpu.trim();
        if gpu.parse::<u32>().is_err() && gpu.parse::<GpuUuid>().is_err() {
            return Err(usage(
                format!("--gpus-on: {gpu:?} is neither the index nor the UUID of a GPU"),
                "use what `divvy gpus -o wide` shows, as in --gpus-on 0,1",
            ));
        }
        match amount {
            Some(Amount::Share(share)) if share < Share::FULL => {
                Ok(ClaimDevice::share(gpu, share.thousandths()))
            }
            Some(Amount::Memory(memory)) => Ok(ClaimDevice::part(gpu, memory.get())),
            Some(Amount::Mig(profile)) => Ok(ClaimDevice::profile(gpu, profile.to_string())),
            Some(amount) if amount.plain() == Amount::ONE_GPU => Ok(ClaimDevice::whole(gpu)),
            other => Err(usage(
                format!(
                    "-g {}: a slice has its amount on each GPU of --gpus-on",
                    other.map_or_else(String::new, |amount| amount.to_string())
                ),
                "use a part of one GPU (0.25), or 1 for whole GPUs",
            )),
        }
    };
    let devices = args.gpus_on.iter().map(device).collect::<Result<_>>()?;
    let is_instance = matches!(amount, Some(Amount::Mig(_)));
    let compute = ask::compute(&args.compute)?;
    let cgroup = args.cgroup.as_deref().map(|folder| {
        let folder = folder.to_str().ok_or_else(|| {
            usage(
                format!("--cgroup {}: the path is not UTF-8", folder.display()),
                "name another control group",
            )
        })?;
        Ok::<_, Error>(ClaimEnd::with_cgroup(folder))
    });
    // With the start time the daemon recognises a pid of another PID namespace.
    let pid = args.pid.map(|pid| {
        let end = ClaimEnd::with_process(pid, start_time(pid));
        Ok(end.cancelling(args.cancel_on_exit))
    });
    Ok(Claim {
        devices,
        // An instance has compute units of its own.
        compute: (!is_instance || args.compute != "fair").then_some(compute),
        owner: args.user.clone(),
        ends: pid.or(cgroup).transpose()?,
        ..Claim::default()
    })
}

fn enter(args: &SliceEnter, backend: Backend) -> Outcome {
    let home = called()?;
    let code = (backend.enter_slice)(&home, &args.name, &args.command)
        .map_err(|error| missing(&home, &args.name, error))?;
    Ok(ExitCode::from(code))
}

fn env(args: &SliceEnv, backend: Backend) -> Outcome {
    let home = called()?;
    let mounts = args.output == EnvFormat::Json;
    let access = (backend.slice_access)(&home, &args.name, mounts)
        .map_err(|error| missing(&home, &args.name, error))?;
    print(match args.output {
        EnvFormat::Shell => exports(&access),
        EnvFormat::Json => {
            let draw = |_: &[SliceAccess], _| String::new();
            render::list(&[access], crate::args::Format::Json, view(), draw)?
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Lines for `eval`; the shell's own libraries stay, after ours.
fn exports(access: &SliceAccess) -> String {
    let mut lines = String::new();
    for (name, value) in &access.environment {
        let value = value.replace('\'', r"'\''");
        let rest = match name.as_str() {
            "LD_PRELOAD" | "LD_LIBRARY_PATH" => format!("\"${{{name}:+:${name}}}\""),
            _ => String::new(),
        };
        let _ = writeln!(lines, "export {name}='{value}'{rest}");
    }
    lines
}

/// A slice that is not there: perhaps no daemon holds any, or those of another user are asked for.
fn missing(home: &Home, name: &str, error: Error) -> Error {
    if error.code != ErrorCode::NotFound {
        return error;
    }
    let folder = home.state().display();
    if let Some(owner) = home.others().filter(|_| !home.is_systems()) {
        return error.hint(format!(
            "only the owner of a slice and uid {owner} may enter a slice of {folder}"
        ));
    }
    if home.answers() {
        return error.hint("list the slices: divvy slice ls");
    }
    let name: String = name.chars().take(LONGEST_UID).collect();
    let why = format!(
        "no daemon serves {folder}, and there is no slice {:?}",
        text::clean(&name)
    );
    Error::new(ErrorCode::NoDaemon, why)
        .hint("start a daemon with `divvy daemon --detached`, then create the slice")
}

async fn ls(look: Look) -> Outcome {
    let client = client()?;
    let format = look.read.output;
    let draw = async || {
        let slices = slices(&client).await?;
        let is_bare = slices.is_empty() && !format.is_json();
        let remark = "no slices; `divvy slice create NAME --gpus-on 0 -g 0.25` holds one";
        Ok(watch::Shown {
            text: render::list(&slices, format, view(), render::slices)?,
            remarks: is_bare.then(|| remark.to_owned()).into_iter().collect(),
        })
    };
    watch::show(look.watch, format, draw).await
}

/// The claims that are slices; those of a cluster have a namespace.
async fn slices(client: &Client) -> Result<Vec<HeldClaim>> {
    let mut claims = client.claims().await?;
    claims.retain(|claim| claim.namespace.is_empty());
    Ok(claims)
}

async fn rm(args: SliceRm) -> Outcome {
    let client = client()?;
    for name in &args.names {
        check_name(name)?;
    }
    let mut code = ExitCode::SUCCESS;
    for name in &args.names {
        match client.delete_claim(name).await {
            Ok(None) => say(&format!("there is no slice {name}")),
            Ok(Some(held)) if held.state == JobState::Ended => {
                say(&format!("slice {name} was released"));
            }
            Ok(Some(held)) => say(&format!(
                "slice {name} is being released; {} of its processes still run",
                held.processes
            )),
            // One slice of another user does not keep the others.
            Err(error) if error.code == ErrorCode::NotAllowed => {
                code = error_output::report(&error, false);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn args(words: &[&str]) -> SliceCreate {
        let words = ["divvy", "slice", "create", "a"].iter().chain(words);
        let words: Vec<_> = words.map(Into::into).collect();
        let cli = crate::args::parse(&words).unwrap();
        match cli.verb {
            crate::args::Verb::Slice(SliceVerb::Create(args)) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_gpu_gets_the_amount_and_a_whole_one_is_whole() {
        let devices = |words: &[&str]| claim(&args(words)).unwrap().devices;
        const UUID: &str = "GPU-01010101-0101-0101-0101-010101010101";
        let both = format!("0,{UUID}");
        let two = ["--gpus-on", both.as_str()];
        assert_eq!(
            devices(&[&two[..], &["-g", "0.5"]].concat()),
            [ClaimDevice::share("0", 500), ClaimDevice::share(UUID, 500)]
        );
        let twice = ["--gpus-on", "0", "--gpus-on", "1", "-g", "1"];
        assert_eq!(
            devices(&twice),
            [ClaimDevice::whole("0"), ClaimDevice::whole("1")]
        );
        assert_eq!(
            devices(&["--gpus-on", "0", "--gpu-memory", "4G"]),
            [ClaimDevice::part("0", 4 << 30)]
        );
        assert_eq!(
            devices(&["--gpus-on", "0", "--mig-profile", "1g.10gb"]),
            [ClaimDevice::profile("0", "1g.10gb")]
        );
        for wrong in ["2", "1-2", "2x0.5", "0", "x"] {
            let error = claim(&args(&["--gpus-on", "0", "-g", wrong])).unwrap_err();
            assert_eq!(error.code, ErrorCode::Usage, "{wrong}");
        }
        assert!(claim(&args(&["--gpus-on", "0,,1", "-g", "1"])).is_err());
    }

    #[test]
    fn the_end_of_a_process_cancels_only_on_request_and_a_wait_has_a_bound() {
        let ends = |words: &[&str]| claim(&args(words)).unwrap().ends.unwrap();
        let base = ["--gpus-on", "0", "-g", "0.5", "--pid", "1"];
        assert!(!ends(&base).cancels);
        assert!(ends(&[&base[..], &["--cancel-on-exit"]].concat()).cancels);
        assert_eq!(wait("90s").unwrap(), Duration::from_secs(90));
        assert_eq!(wait("1h").unwrap(), LONGEST_WAIT);
        for wrong in ["61m", "0.5s", "x", "1000000h"] {
            assert_eq!(wait(wrong).unwrap_err().code, ErrorCode::Usage, "{wrong}");
        }
    }

    #[test]
    fn the_lines_for_a_shell_keep_what_the_shell_has() {
        let environment = BTreeMap::from([
            ("CUDA_VISIBLE_DEVICES".to_owned(), "GPU-1".to_owned()),
            ("LD_PRELOAD".to_owned(), "/a b/it's.so".to_owned()),
        ]);
        let access = SliceAccess {
            name: "a".into(),
            job: "7".into(),
            form: "preload",
            reason: None,
            environment,
            mounts: Vec::new(),
            refuse_user_namespaces: false,
        };
        assert_eq!(
            exports(&access),
            "export CUDA_VISIBLE_DEVICES='GPU-1'\n\
             export LD_PRELOAD='/a b/it'\\''s.so'\"${LD_PRELOAD:+:$LD_PRELOAD}\"\n"
        );
    }

    #[test]
    fn a_name_is_checked_before_the_daemon_is_called() {
        check_name("slurm-123.0").unwrap();
        for wrong in [
            "",
            "a/b",
            "a b",
            "ü",
            "..",
            &"x".repeat(65),
            &"x".repeat(1 << 20),
        ] {
            let error = check_name(wrong).unwrap_err();
            assert_eq!(error.code, ErrorCode::Usage);
            assert!(error.message.len() < 200, "the error repeats the name");
        }
    }
}
