//! Auto-start of a per-user daemon: `run` and `submit` start one if none answers, as tmux starts its server.
//!
//! If the system's daemon is installed, or the home belongs to another user, the command starts none: a second daemon would
//! allocate GPUs that jobs of the first still hold. The command waits for the installed daemon, then fails. `--own-daemon`
//! and simulated GPUs request a private daemon.
//!
//! If two commands start a daemon at the same time, the daemon's lock admits one. The other command connects to it.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use divvy_api::client::Client;
use divvy_api::home::{Home, HomeError, session};
use divvy_api::v1::{Error, ErrorCode, Node};

use crate::args::JobArgs;
use crate::error_output::Result;
use crate::{call, output, text};

/// Time for a daemon that another process starts to answer. Measuring contexts on a cold machine takes seconds.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long the lock may name a process that is gone: its new holder writes its own id right after taking it. Taking
/// the lock and writing are microseconds apart, so a second later the holder is gone.
const UNHELD: Duration = Duration::from_secs(1);
/// A daemon starts within tenths of a second: ten looks in each keep the wait short, and each is one read.
const PAUSE: Duration = Duration::from_millis(10);
/// The command reports a longer wait: a daemon's start takes less where the GPUs respond.
const SILENCE: Duration = Duration::from_secs(3);
/// How long a daemon that this user does not start may be away: systemd starts one again after 2 s (`RestartSec`). So
/// one restart and a slow start fit; a longer wait would hold up a user whose administrator stopped it.
const RESTART: Duration = Duration::from_secs(5);

/// Which daemon a job is for.
#[derive(Clone, Copy, Debug, Default)]
pub struct DaemonWanted<'a> {
    /// Value of `--sim`.
    pub sim: Option<&'a str>,
    /// `--own-daemon`.
    pub own: bool,
}

impl<'a> From<&'a JobArgs> for DaemonWanted<'a> {
    fn from(args: &'a JobArgs) -> Self {
        Self {
            sim: args.sim.as_deref(),
            own: args.own_daemon,
        }
    }
}

impl DaemonWanted<'_> {
    /// The simulated GPUs that `--sim` or `DIVVY_SIM` asks for.
    fn models(self) -> Option<String> {
        let variable = || std::env::var("DIVVY_SIM").ok();
        let models = self.sim.map(str::to_owned).or_else(variable);
        models.filter(|models| !models.is_empty())
    }

    /// A client of that daemon, running or not.
    ///
    /// # Errors
    /// As [`Home::to_call`].
    pub fn client(self) -> Result<Client> {
        let other = |error: HomeError| Error::from(&error);
        let called = Home::to_call().map_err(other)?;
        // Simulated GPUs are no other daemon's.
        let is_own =
            self.own || (called.is_systems() && !called.answers() && self.models().is_some());
        if is_own {
            Ok(call::client_of(&Home::from_env().map_err(other)?.found()))
        } else {
            Ok(call::client_called(&called))
        }
    }
}

/// The node's agent, after starting it if need be.
///
/// # Errors
/// The daemon's own error when it does not start; [`ErrorCode::NoDaemon`] when it is not this user's to start and stays away;
/// [`ErrorCode::Conflict`] when one runs and its GPUs are not the ones that `--sim` or `DIVVY_SIM` asks for.
pub async fn agent(client: &Client, wanted: DaemonWanted<'_>) -> Result<Node> {
    let node = match client.node().await {
        Err(error) if error.code == ErrorCode::NoDaemon => match another_starts(client) {
            Some((who, instead)) => back(client, &who, instead).await?,
            None => match start(wanted.sim)? {
                Started::Here => {
                    recommend_one_daemon(client).await;
                    recommend_lingering();
                    client.node().await?
                }
                Started::Elsewhere(refusal) => answered(client, refusal).await?,
            },
        },
        answer => answer?,
    };
    match wanted.models() {
        Some(models) if node.simulated.as_ref() != Some(&models) => Err(other_gpus(&models, &node)),
        _ => Ok(node),
    }
}

/// Says once, at the start of a user's own daemon, that other users have daemons on the same GPUs.
async fn recommend_one_daemon(client: &Client) {
    // The message helps; without an answer there is none.
    let gpus = client.gpus().await.unwrap_or_default();
    let mut holders: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for held in gpus.iter().flat_map(|gpu| &gpu.held_elsewhere) {
        let (share, memory) = holders.entry(&held.holder).or_default();
        *share += u64::from(held.share);
        *memory += held.memory_bytes;
    }
    let held: Vec<String> = holders
        .iter()
        .map(|(holder, (share, memory))| {
            let (gpus, memory) = (divvy_core::units::gpus(*share), text::memory(*memory));
            format!(
                "{} holds {gpus} of the GPUs ({memory})",
                text::clean(holder)
            )
        })
        .collect();
    if !held.is_empty() {
        output::say(&format!(
            "{}; a daemon for all users queues their jobs together: sudo divvy daemon --system",
            held.join(", ")
        ));
    }
}

/// Says at the start of a user's own daemon that a logout may end it.
fn recommend_lingering() {
    if session::ends_at_logout(rustix::process::getuid().as_raw()) {
        output::say(
            "this machine may end your daemon and its jobs at your last logout; to keep them: loginctl enable-linger",
        );
    }
}

/// Which daemon it is, and what to do without it, where it is not this user's to start.
fn another_starts(client: &Client) -> Option<(String, &'static str)> {
    const OWN: &str = "`--own-daemon` starts a daemon of your own, which does not count the jobs of the system's daemon";
    const HOME: &str = "unset DIVVY_HOME to use another daemon";
    let home = Home::from_env().ok()?.found();
    if home.socket() != client.socket() {
        return Some(("the system's daemon".to_owned(), OWN));
    }
    let owner = home.others()?;
    let state = home.state().display();
    Some((format!("the daemon of {state} (uid {owner})"), HOME))
}

/// Waits until the daemon is back.
///
/// # Errors
/// [`ErrorCode::NoDaemon`] after [`RESTART`].
async fn back(client: &Client, daemon: &str, instead: &str) -> Result<Node> {
    let seconds = RESTART.as_secs();
    output::say(&format!(
        "{daemon} does not respond; waiting up to {seconds} s for its restart"
    ));
    let start = Instant::now();
    loop {
        let error = match client.node().await {
            Err(error) if error.code == ErrorCode::NoDaemon => error,
            answer => return answer,
        };
        if start.elapsed() > RESTART {
            let socket = client.socket().display();
            let why = format!("{daemon} does not respond on {socket} after {seconds} s");
            let hint = error.hint.unwrap_or_default();
            return Err(Error::new(ErrorCode::NoDaemon, why).hint(format!("{hint}; {instead}")));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Result of the start of a daemon.
enum Started {
    /// It answers.
    Here,
    /// Another has the instance; this is how ours was refused.
    Elsewhere(Error),
}

/// Runs `divvy daemon --detached` to its end: it serves from then on, or another does.
fn start(sim: Option<&str>) -> Result<Started> {
    let failed = |error: std::io::Error| {
        Error::new(
            ErrorCode::NoDaemon,
            format!("no daemon is running and starting one failed: {error}"),
        )
    };
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command
        .args(["daemon", "--detached"])
        .args(sim.map(|sim| format!("--sim={sim}")));
    let output = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(failed)?;
    if output.status.success() {
        output::progress("started a daemon; `divvy gpus` lists its GPUs");
        return Ok(Started::Here);
    }
    let refusal = retold(&String::from_utf8_lossy(&output.stderr), output.status);
    match refusal.code {
        ErrorCode::Conflict => Ok(Started::Elsewhere(refusal)),
        _ => Err(refusal),
    }
}

/// The daemon's refusal as this command's: what it said, with the code that its exit code stands for.
fn retold(told: &str, status: std::process::ExitStatus) -> Error {
    let passed = [
        ErrorCode::Usage,
        ErrorCode::NotAllowed,
        ErrorCode::NeverFits,
        ErrorCode::Conflict,
    ];
    let code = passed
        .into_iter()
        .find(|code| status.code() == Some(i32::from(code.exit_code())));
    let line = |prefix| {
        told.lines()
            .filter_map(move |line: &str| line.strip_prefix(prefix))
            .next_back()
    };
    let why = line("error: ").map_or_else(|| format!("{status}: {}", told.trim()), str::to_owned);
    Error::new(
        code.unwrap_or(ErrorCode::NoDaemon),
        format!("no daemon is running, and a new one ended at once: {why}"),
    )
    .hint(line("hint: ").unwrap_or("run it in the foreground to see its log: divvy daemon"))
}

/// Waits for the daemon that another process starts, while that process runs on this machine. Tells once that it waits.
///
/// # Errors
/// `refusal`, when the instance's lock names no living process, or the process has not answered in [`PATIENCE`].
async fn answered(client: &Client, refusal: Error) -> Result<Node> {
    let start = Instant::now();
    let mut unheld = None;
    let mut has_told = false;
    while start.elapsed() < PATIENCE {
        match client.node().await {
            Err(error) if error.code == ErrorCode::NoDaemon => {}
            answer => return answer,
        }
        if start.elapsed() > SILENCE && !std::mem::replace(&mut has_told, true) {
            let seconds = PATIENCE.as_secs();
            output::say(&format!(
                "another daemon of this home has its lock and does not answer yet; waiting up to {seconds} s"
            ));
        }
        match lock_is_held() {
            true => unheld = None,
            false if unheld.get_or_insert_with(Instant::now).elapsed() > UNHELD => break,
            false => {}
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(refusal)
}

/// Whether the process in the lock file is alive, on this machine. It does not try the lock, since a successful attempt
/// takes it.
fn lock_is_held() -> bool {
    let lock = Home::from_env().map(|home| home.lock_file().ok().flatten());
    lock.is_ok_and(|lock| lock.is_some_and(|lock| lock.is_alive()))
}

fn other_gpus(wanted: &str, node: &Node) -> Error {
    let serves = match &node.simulated {
        Some(models) => format!("simulated GPUs ({models})"),
        None => "this machine's own GPUs".to_owned(),
    };
    let message = format!("the running daemon serves {serves}, not the simulated {wanted}");
    // No user stops the daemon of all users.
    let stop = if node.system {
        ""
    } else {
        "stop it with `divvy daemon --stop`, "
    };
    Error::new(ErrorCode::Conflict, message).hint(format!(
        "omit --sim and DIVVY_SIM to use that daemon, {stop}or set DIVVY_HOME for another daemon"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_user_is_told_to_stop_the_daemon_of_all_users() {
        for is_system in [true, false] {
            let node = serde_json::json!({
                "hostname": "h", "version": "1", "pid": 7, "driver_version": "1", "simulated": "l4-24gb:1",
                "order": "strict", "backfill": false, "home": "/h", "system": is_system,
            });
            let node: Node = serde_json::from_value(node).unwrap();
            let hint = other_gpus("a100-80gb:1", &node).hint.unwrap();
            assert_eq!(hint.contains("--stop"), !is_system, "{hint}");
            assert!(hint.contains("DIVVY_HOME"), "{hint}");
        }
    }
}
