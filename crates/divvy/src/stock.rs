//! Environment variables for flags of the stock ClearML agent: the program executes itself again with them.
//!
//! The process keeps its pid. Its children inherit the variables, and process lists no longer show a password.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use divvy_api::daemon::ClearMlOptions;
use divvy_api::v1::{Error, ErrorCode};
use divvy_cli::PASSWORD_FLAG;

/// Variable with the package that containers install in place of `clearml-agent`.
const PACKAGE: &str = "FORCE_CLEARML_AGENT_REPO";
const ENGINE: &str = "DOCKER_HOST";

/// Returns if the environment contains all variables of the flags; otherwise this program executes itself with them.
///
/// # Errors
/// [`ErrorCode::Usage`] if this machine has no such agent or engine, [`ErrorCode::Internal`] if exec(2) fails.
pub fn enter(asked: &ClearMlOptions) -> Result<(), Error> {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let mut missing: Vec<(&str, OsString)> = asked
        .variables
        .iter()
        .map(|(name, value)| (*name, OsString::from(value)))
        .filter(|(name, value)| std::env::var_os(name).as_ref() != Some(value))
        .collect();
    if asked.current_version && !is_set(PACKAGE) {
        let agent = asked.agent.clone();
        let agent = agent.unwrap_or_else(|| vec!["clearml-agent".to_owned()]);
        missing.push((
            PACKAGE,
            format!("clearml-agent=={}", version(&agent)?).into(),
        ));
    }
    if asked.podman && !is_set(ENGINE) {
        missing.push((ENGINE, podman(&sockets())?));
    }
    let words: Vec<OsString> = std::env::args_os().collect();
    let shown = without_password(&words);
    if missing.is_empty() && shown.len() == words.len() {
        return Ok(());
    }
    let failed = |error| {
        Error::new(
            ErrorCode::Internal,
            format!("divvy cannot restart itself: {error}"),
        )
    };
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    if let Some(name) = shown.first() {
        command.arg0(name);
    }
    Err(failed(
        command.args(shown.iter().skip(1)).envs(missing).exec(),
    ))
}

/// Removes the password from the words, in both forms of the flag.
fn without_password(words: &[OsString]) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == PASSWORD_FLAG {
            words.next();
        } else if !word
            .as_bytes()
            .starts_with(format!("{PASSWORD_FLAG}=").as_bytes())
        {
            kept.push(word.clone());
        }
    }
    kept
}

/// Returns the version of the agent: `3.0.3` of `CLEARML-AGENT version 3.0.3`.
fn version(agent: &[String]) -> Result<String, Error> {
    let wrong = |why: String| {
        let message = format!(
            "--force-current-version: `{} --version`: {why}",
            agent.join(" ")
        );
        Error::new(ErrorCode::Usage, message)
            .hint("install clearml-agent, set its path with --set clearml.agent=[\"PATH\"], or omit the flag")
    };
    let output = Command::new(&agent[0])
        .args(&agent[1..])
        .arg("--version")
        .output()
        .map_err(|error| wrong(error.to_string()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let version = said.split_whitespace().last().unwrap_or_default();
    let is_version = version.starts_with(|letter: char| letter.is_ascii_digit())
        && version
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || ".+".contains(letter));
    if is_version {
        Ok(version.to_owned())
    } else {
        Err(wrong("it prints no version".to_owned()))
    }
}

/// Paths of Podman's socket, the user's own first.
fn sockets() -> Vec<PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let folders = own.iter().map(PathBuf::as_path).chain([Path::new("/run")]);
    folders
        .map(|folder| folder.join("podman/podman.sock"))
        .collect()
}

/// Returns the URL of the first socket that exists.
fn podman(sockets: &[PathBuf]) -> Result<OsString, Error> {
    if let Some(socket) = sockets.iter().find(|socket| socket.exists()) {
        let mut host = OsString::from("unix://");
        host.push(socket);
        return Ok(host);
    }
    let names: Vec<String> = sockets
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let message = format!(
        "--podman: Podman is not running ({} is missing)",
        names.join(", ")
    );
    Err(Error::new(ErrorCode::Usage, message).hint(
        "start it (`systemctl --user start podman.socket`), or set its socket: DOCKER_HOST=unix:///path",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_is_left_out_in_both_forms_and_nothing_else_is() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        for (line, kept) in [
            (
                "divvy daemon --git-pass x --gpus 0",
                "divvy daemon --gpus 0",
            ),
            (
                "divvy daemon --git-pass=x --git-user y",
                "divvy daemon --git-user y",
            ),
            ("divvy daemon --git-pass", "divvy daemon"),
            (
                "divvy daemon --git-user --docker",
                "divvy daemon --git-user --docker",
            ),
        ] {
            assert_eq!(without_password(&words(line)), words(kept), "{line}");
        }
    }

    #[test]
    fn podman_is_used_where_it_listens() {
        let error = podman(&[PathBuf::from("/nowhere/podman.sock")]).unwrap_err();
        assert!(
            error.message.contains("/nowhere/podman.sock is missing"),
            "{error:?}"
        );
        let here = [PathBuf::from("/nowhere"), PathBuf::from("/dev/null")];
        assert_eq!(podman(&here).unwrap(), "unix:///dev/null");
    }
}
