//! One machine, one ledger: where the system's daemon is installed, no command starts another unless it is told to.
//!
//! Everything happens in a mount namespace with folders of its own in place of `/run` and `/var/lib`.

use std::process::Command;
use std::time::{Duration, Instant};

use divvy_e2e::{CommandOutput, Home};
use divvy_testkit::Bounded as _;

/// A shell in the namespace, with a home of its user's own; says what each line of `script` came to. As a user other than root it is root of
/// a user namespace.
fn in_namespace(home: &Home, script: &str) -> Option<CommandOutput> {
    let own = home.scratch().join("own");
    std::fs::create_dir(&own).expect("the folder is new");
    let is_root = rustix::process::geteuid().is_root();
    let unshare = |home: &Home| -> Command {
        let mut command = home.command("unshare");
        command.args(if is_root {
            &["--mount"][..]
        } else {
            &["--user", "--map-root-user", "--mount"]
        });
        command
    };
    let mut can = unshare(home);
    can.args(["mount", "-t", "tmpfs", "tmpfs", "/run"]);
    if !can
        .output_bounded()
        .is_ok_and(|output| output.status.success())
    {
        eprintln!("SKIPPED: no mount namespace; the rule itself is tested in divvy-api");
        return None;
    }
    let script = format!(
        "set -e; mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /var/lib; chmod 755 /run /var/lib\n\
         did() {{ echo \"$ $*\" >&2; \"$@\" || echo \"exit code $?\" >&2; }}\n{script}"
    );
    let output = unshare(home)
        .args(["sh", "-c", &script])
        .env_remove("DIVVY_HOME")
        .env_remove("DIVVY_SIM")
        .env("XDG_RUNTIME_DIR", &own)
        .env("XDG_STATE_HOME", &own)
        .env("PATH", path_with(home))
        .output_bounded()
        .expect("unshare starts");
    Some(CommandOutput::new("the script".to_owned(), &output))
}

fn path_with(home: &Home) -> String {
    let divvy = home.program("divvy");
    let folder = divvy.rsplit_once('/').map_or("", |(folder, _)| folder);
    format!("{folder}:{}", std::env::var("PATH").unwrap_or_default())
}

#[test]
fn where_the_systems_daemon_is_installed_no_command_starts_another_unless_told_to() {
    let home = Home::new("a100-80gb:1");
    let begun = Instant::now();
    let Some(said) = in_namespace(
        &home,
        "did divvy submit -g 0.25 -- true
        rm -r $XDG_STATE_HOME/divvy
        divvy daemon --system --sim a100-80gb:1 --detached
        did divvy submit -g 0.25 --name system -- sleep 1000
        did divvy daemon
        did divvy run --no-daemon -g 0.25 -- true
        pid=$(head -1 /var/lib/divvy/daemon.lock)
        kill -9 $pid; tail --pid=$pid -f /dev/null
        did divvy ps
        did divvy run -g 0.25 -- true
        [ ! -e $XDG_STATE_HOME/divvy/state.db ] || echo 'a second ledger' >&2
        did divvy run --own-daemon --sim a100-80gb:1 -g 0.25 --name own -- echo hello
        did divvy ps -a
        divvy daemon --stop
        divvy daemon --system --sim a100-80gb:1 --detached
        did divvy ps
        divvy cancel system; divvy daemon --stop",
    ) else {
        return;
    };
    let said = said.ok();
    let part = |line: &str| -> String {
        let all = said.stderr.split("$ ");
        let found: Vec<&str> = all
            .filter(|part| part.lines().next() == Some(line))
            .collect();
        found.join("$ ")
    };
    let has = |line: &str, wanted: &[&str]| {
        let part = part(line);
        assert!(
            wanted.iter().all(|wanted| part.contains(wanted)),
            "{line}: {part}\n{}",
            said.stderr
        );
    };
    // None is installed, so that one is started; without a GPU it ends.
    has(
        "divvy submit -g 0.25 -- true",
        &["no daemon is running, and a new one ended at once"],
    );
    has(
        "divvy daemon",
        &[
            "the system's daemon (pid ",
            "--set",
            "listen.beside-system=true",
            "exit code 8",
        ],
    );
    has(
        "divvy run --no-daemon -g 0.25 -- true",
        &["the system's daemon (pid ", "exit code 8"],
    );
    has(
        "divvy run -g 0.25 -- true",
        &[
            "divvy: the system's daemon does not respond; waiting up to 5 s for its restart",
            "error: the system's daemon does not respond on /run/divvy/divvy.sock after 5 s",
            "hint: systemctl status divvy",
            "`--own-daemon` starts a daemon of your own",
            "exit code 7",
        ],
    );
    assert!(begun.elapsed() > Duration::from_secs(5));
    assert!(!said.stderr.contains("a second ledger"), "{}", said.stderr);
    has(
        "divvy ps",
        &[
            "/run/divvy/divvy.sock",
            "systemctl status divvy",
            "exit code 7",
        ],
    );
    has("divvy ps -a", &["using your own daemon, not the system's"]);
    assert!(said.stdout.contains("hello\n"), "{}", said.stdout);
    // The system's daemon is back, and its job with it.
    assert!(said.stdout.contains("system"), "{}", said.stdout);
}

#[test]
fn a_user_waits_for_the_daemon_of_a_home_that_another_user_starts() {
    let home = Home::new("a100-80gb:1");
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: it takes root to be two users");
        return;
    }
    let mut command = home.command("setpriv");
    home.daemon(&["--system"]).crash();
    let output = command
        .args([
            "--reuid=60105",
            "--regid=60105",
            "--clear-groups",
            "--no-new-privs",
        ])
        .arg(home.program("divvy"))
        .args(["submit", "-g", "0.25", "--", "true"])
        .output_bounded()
        .expect("setpriv starts");
    let said = CommandOutput::new("submit".to_owned(), &output).exits(7);
    let state = home.path().display().to_string();
    for wanted in [
        &format!("divvy: the daemon of {state} (uid 0) does not respond; waiting up to 5 s"),
        &format!(
            "error: the daemon of {state} (uid 0) does not respond on {state}/divvy.sock after 5 s"
        ),
        "hint: uid 0 starts it",
    ] {
        assert!(said.stderr.contains(wanted), "{wanted}\n{}", said.stderr);
    }
}
