//! A per-user daemon for `run` and `submit`, started when none answers, as tmux starts its server.
//!
//! Two that start one at once both end up with the same: the daemon's lock lets one in, and the other's refusal is
//! followed by connecting to the one that got in.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use divvy_api::client::Client;
use divvy_api::v1::{Error, ErrorCode, Node};

use crate::failure::Result;
use crate::output;

/// How long a daemon that somebody else is starting may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The node's agent, after starting it if need be; `sim` is what `--sim` said.
///
/// # Errors
/// The daemon's own error when it does not start; [`ErrorCode::Conflict`] when one runs and its GPUs are not the ones
/// that `--sim` or `DIVVY_SIM` asks for.
pub async fn agent(client: &Client, sim: Option<&str>) -> Result<Node> {
    let node = match client.node().await {
        Err(error) if error.code == ErrorCode::NoDaemon => {
            start(sim)?;
            answered(client, error).await?
        }
        answer => answer?,
    };
    let wanted = sim
        .map(str::to_owned)
        .or_else(|| std::env::var("DIVVY_SIM").ok())
        .filter(|wanted| !wanted.is_empty());
    match wanted {
        Some(wanted) if node.simulated.as_ref() != Some(&wanted) => Err(other_gpus(&wanted, &node)),
        _ => Ok(node),
    }
}

/// Runs `divvy daemon --detached` to its end: it serves from then on, or another does.
fn start(sim: Option<&str>) -> Result<()> {
    let failed = |error: std::io::Error| {
        Error::new(
            ErrorCode::NoDaemon,
            format!("no daemon runs and none can be started: {error}"),
        )
    };
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args(["daemon", "--detached"]);
    command.args(sim.map(|sim| format!("--sim={sim}")));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let status = child.wait().map_err(failed)?;
    if status.success() {
        output::progress(
            "no daemon was running, so one was started; `divvy gpus` shows what it serves",
        );
        return Ok(());
    }
    if status.code() == Some(i32::from(ErrorCode::Conflict.exit_code())) {
        return Ok(());
    }
    let mut told = String::new();
    // The failed daemon is gone, and with it the last writer of the pipe.
    if let Some(mut stderr) = child.stderr.take() {
        std::io::Read::read_to_string(&mut stderr, &mut told).map_err(failed)?;
    }
    Err(retold(&told, status))
}

/// The daemon's refusal as this command's.
fn retold(told: &str, status: std::process::ExitStatus) -> Error {
    let code = match status.code() {
        Some(code) if code == i32::from(ErrorCode::Usage.exit_code()) => ErrorCode::Usage,
        _ => ErrorCode::NoDaemon,
    };
    let line = |prefix| {
        told.lines()
            .filter_map(move |line: &str| line.strip_prefix(prefix))
            .next_back()
    };
    let why = line("error: ").map_or_else(|| format!("{status}: {}", told.trim()), str::to_owned);
    let error = Error::new(
        code,
        format!("no daemon runs, and the one started here ended: {why}"),
    );
    match line("hint: ") {
        Some(hint) => error.hint(hint),
        None => error.hint("start it by hand to see more: divvy daemon"),
    }
}

async fn answered(client: &Client, mut error: Error) -> Result<Node> {
    let start = Instant::now();
    while error.code == ErrorCode::NoDaemon && start.elapsed() < PATIENCE {
        match client.node().await {
            Ok(node) => return Ok(node),
            Err(again) => error = again,
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Err(error)
}

fn other_gpus(wanted: &str, node: &Node) -> Error {
    let serves = match &node.simulated {
        Some(models) => format!("simulated GPUs ({models})"),
        None => "this machine's own GPUs".to_owned(),
    };
    let message = format!("the daemon that runs here serves {serves}, not the simulated {wanted}");
    Error::new(ErrorCode::Conflict, message)
        .hint("leave --sim and DIVVY_SIM out to use that daemon, or set DIVVY_HOME to a folder of its own for another")
}
