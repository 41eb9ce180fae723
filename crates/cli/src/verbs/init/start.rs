//! The start of the daemon after `admin init`: by systemd where it runs, else by the commands that it prints.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use divvy_api::client::Client;
use divvy_api::home::Home;
use divvy_api::v1::{Error, ErrorCode, Node};

use crate::call;
use crate::error_output::Result;
use crate::output::say;
use crate::render;

/// Time for the daemon to answer. Measuring contexts on a cold machine takes seconds.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(50);

const UNIT: &str = "divvy.service";

/// A start that fails prints some lines, and systemd about five.
const LOG_LINES: &str = "20";

/// The command that starts the daemon on this machine.
pub fn command(system: bool) -> String {
    match (is_systemd_here(), system) {
        (true, true) => format!("systemctl enable --now {UNIT}"),
        (true, false) => format!("systemctl --user enable --now {UNIT}"),
        (false, true) => "divvy daemon --system".to_owned(),
        (false, false) => "divvy daemon".to_owned(),
    }
}

/// Whether systemd starts this instance: it is not in a private folder, and its unit is installed.
fn is_systemd_here() -> bool {
    let is_private = std::env::var_os("DIVVY_HOME").is_some();
    !is_private && Path::new("/run/systemd/system").is_dir()
}

/// Has a running daemon read the file, or starts one if systemd runs; else prints the command.
///
/// # Errors
/// [`ErrorCode::Internal`] if the unit does not start, [`ErrorCode::TimedOut`] if its daemon does not answer.
pub async fn start(system: bool) -> Result<()> {
    let home = if system {
        Home::of_system()
    } else {
        Home::from_env()
    };
    let client = call::client_of(&home.map_err(|error| Error::from(&error))?);
    match client.node().await {
        Ok(_) => {
            let done = client.reload_config().await?;
            say(render::config_reload(&done).trim_end());
            return Ok(());
        }
        Err(error) if error.code == ErrorCode::NoDaemon => {}
        Err(error) => return Err(error),
    }
    if !is_systemd_here() {
        say(&format!("start the daemon: {}", command(system)));
        return Ok(());
    }
    enable(system)?;
    let node = answered(&client).await?;
    say(&format!("the daemon (pid {}) serves", node.pid));
    Ok(())
}

fn enable(system: bool) -> Result<()> {
    let shown = command(system);
    let mut words = shown.split(' ');
    let program = words.next().unwrap_or("systemctl");
    let status = Command::new(program).args(words).status();
    let why = match status {
        Ok(status) if status.success() => return Ok(()),
        Ok(status) => format!("`{shown}` ended with {status}"),
        Err(error) => format!("cannot run `{shown}`: {error}"),
    };
    let why = match last_error(system) {
        Some(cause) => format!("{why}: {cause}"),
        None => why,
    };
    Err(Error::new(ErrorCode::Internal, why).hint(format!(
        "see `journalctl -u divvy`; the configuration file is written, so after a correction: {shown}"
    )))
}

/// The last error in the unit's log, as the daemon printed it. The log may have none, or not be readable.
fn last_error(system: bool) -> Option<String> {
    let mut log = Command::new("journalctl");
    if !system {
        log.arg("--user");
    }
    log.args([
        "--unit",
        UNIT,
        "--lines",
        LOG_LINES,
        "--output",
        "cat",
        "--no-pager",
    ]);
    let output = log.stderr(Stdio::null()).output().ok()?;
    error_of(&String::from_utf8_lossy(&output.stdout))
}

fn error_of(log: &str) -> Option<String> {
    let mut errors = log.lines().filter_map(|line| line.strip_prefix("error: "));
    errors.next_back().map(str::to_owned)
}

async fn answered(client: &Client) -> Result<Node> {
    let start = Instant::now();
    loop {
        let error = match client.node().await {
            Ok(node) => return Ok(node),
            Err(error) => error,
        };
        if start.elapsed() > PATIENCE {
            let why = format!(
                "the daemon does not respond after {} s: {}",
                PATIENCE.as_secs(),
                error.message
            );
            return Err(Error::new(ErrorCode::TimedOut, why).hint("see `journalctl -u divvy`"));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_of_the_units_log_is_the_cause_of_a_failed_start() {
        let log = "Starting divvy.service\nerror: one\nhint: x\nerror: no GPU responds\nhint: nvidia-smi\n\
            divvy.service: Failed with result 'exit-code'.\n";
        assert_eq!(error_of(log).as_deref(), Some("no GPU responds"));
        assert_eq!(error_of("Starting\n"), None);
    }
}
