//! The start of the daemon after `admin init`: by systemd where it runs, else by the commands that it prints.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use divvy_api::client::Client;
use divvy_api::home::Home;
use divvy_api::v1::{Error, ErrorCode, Node};

use crate::error_output::Result;
use crate::output::say;
use crate::render;
use crate::verbs;

/// Time for the daemon to answer. Measuring contexts on a cold machine takes seconds.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(50);

const UNIT: &str = "divvy.service";

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
    let home = match system {
        true => Home::of_system(),
        false => Home::from_env(),
    };
    let client = verbs::client_of(&home.map_err(|error| Error::from(&error))?);
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
    Err(Error::new(ErrorCode::Internal, why).hint(format!(
        "see `systemctl status {UNIT}` and `journalctl -u divvy`; the configuration file is written"
    )))
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
