//! Getting into running jobs by the command line: `exec`, `shell`, `attach`, and completion of what is there.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::Stdio;

use divvy_api::v1::JobState;
use divvy_e2e::{CommandOutput, GIB, Home, help, until};
use divvy_testkit::{Bounded as _, can_be_users};
use rustix::process::{Pid, Signal, kill_process};

/// A user that no user database has.
const UID: &str = "60106";

/// `divvy WORDS…` as the other user.
fn as_other(home: &Home, words: &[&str]) -> CommandOutput {
    let mut command = home.divvy_as(UID);
    let output = command
        .args(words)
        .stdin(Stdio::null())
        .output_bounded()
        .expect("setpriv starts");
    CommandOutput::new(words.join(" "), &output)
}

fn holder(home: &Home, flags: &[&str]) -> String {
    let id = home.submit(flags, &["sleep", "1000"]);
    home.running(&id);
    id
}

#[test]
fn what_exec_starts_is_held_to_the_jobs_slice_together_with_its_program() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let id = home.submit_holder(&["--gpu-memory", "4G"], GIB, "open");
    let held = home.first_words(&id);
    assert_eq!(held["held_bytes"], GIB, "{held}");
    let probe = home.program("cudarc_probe");
    let report = home.divvy(&["exec", &id, "--", &probe, "fill"]).ok().json();
    assert_eq!(report["error"], "CUDA_ERROR_OUT_OF_MEMORY", "{report}");
    let got = report["got_bytes"].as_u64().expect("a figure");
    assert!(
        got > GIB && got < 3 * GIB,
        "what the program holds counts: {report}"
    );
    assert_eq!(report["before"]["total_bytes"], 4 * GIB, "{report}");
    let smi = home.divvy(&[
        "exec",
        "last",
        "--",
        "sh",
        "-c",
        "echo $NVIDIA_VISIBLE_DEVICES; exit 9",
    ]);
    assert_eq!(smi.code, 9, "{smi:?}");
    let gpus = home.items(&["gpus"]);
    assert_eq!(smi.stdout.trim(), gpus[0]["uuid"].as_str().expect("a UUID"));
}

#[test]
fn on_the_systems_daemon_only_the_owner_and_admins_come_in_and_as_its_user() {
    if !can_be_users("nothing of the system's daemon is tested here") {
        return;
    }
    let home = Home::new("a100-80gb:1");
    let roles = home.scratch().join("roles.toml");
    std::fs::write(&roles, "others = \"operator\"").expect("written");
    let _daemon = home.daemon(&[
        "--system",
        "--set",
        &format!("listen.access={}", roles.display()),
    ]);
    let roots = holder(&home, &["-g", "0.25"]);
    let theirs = as_other(
        &home,
        &["submit", "--parsable", "-g", "0.25", "--", "sleep", "1000"],
    )
    .ok();
    let theirs = theirs.stdout.trim();
    home.running(theirs);
    // An operator may stop it, and not be its user.
    let said = as_other(&home, &["exec", &roots, "--", "true"]).exits(4);
    assert!(said.stderr.contains("admin"), "{}", said.stderr);
    let script = "id -u; grep NoNewPrivs /proc/self/status | tr -dc 01";
    for said in [
        as_other(&home, &["exec", theirs, "--", "sh", "-c", script]).ok(),
        home.divvy(&["exec", theirs, "--", "sh", "-c", script]).ok(),
    ] {
        assert_eq!(said.stdout, format!("{UID}\n1"), "{said:?}");
    }
    // On a terminal, too: script(1) gives it one.
    let divvy = home.program("divvy");
    let typed = format!("{divvy} exec {theirs} -- sh -c 'tty; id -u; test -w $(tty) && echo mine'");
    let output = home
        .command("script")
        .args(["-qec", &typed, "/dev/null"])
        .stdin(Stdio::null())
        .output_bounded();
    if let Ok(output) = output {
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            said.contains("/dev/pts/") && said.contains(UID) && said.contains("mine"),
            "{said}"
        );
    } else {
        eprintln!("SKIPPED: no script(1)");
    }
    // A shell of its own is opened inside of a job that holds the slice, and the slice is free with it.
    let mut shell = home.command("setpriv");
    shell.args([format!("--reuid={UID}"), format!("--regid={UID}")]);
    shell
        .args(["--clear-groups", "--no-new-privs"])
        .arg(home.program("divvy"));
    let mut shell = shell
        .args(["shell", "-g", "0.25"])
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut keys = shell.stdin.take().expect("piped");
    writeln!(keys, "id -u; echo in $DIVVY_JOB_ID; exit 6").expect("it listens");
    drop(keys);
    let mut said = String::new();
    shell
        .stdout
        .take()
        .expect("piped")
        .read_to_string(&mut said)
        .expect("text");
    assert!(said.contains(UID) && said.contains("in 3"), "{said}");
    assert_eq!(shell.wait_bounded().expect("it ends").code(), Some(6));
    home.ended("3");
}

#[test]
fn a_shell_has_a_slice_of_its_own_or_the_jobs_and_passes_its_code() {
    let home = Home::new("a100-80gb:1").variable("SHELL", "/bin/sh");
    let _daemon = home.daemon(&[]);
    let typed = |words: &[&str], keys: &str| {
        let mut shell = home
            .divvy_command(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        shell
            .stdin
            .take()
            .expect("piped")
            .write_all(keys.as_bytes())
            .expect("it listens");
        let output = shell.output_bounded().expect("it ends");
        CommandOutput::new(words.join(" "), &output)
    };
    let said = typed(&["shell", "-g", "0.25"], "echo job $DIVVY_JOB_ID\nexit 4\n").exits(4);
    assert!(said.stdout.contains("job 1"), "{said:?}");
    assert_eq!(home.ended("1").name, "shell");
    let id = holder(&home, &["-g", "0.25", "--name", "train"]);
    let said = typed(&["shell", "train"], "echo job $DIVVY_JOB_ID\nexit 5\n").exits(5);
    assert!(said.stdout.contains(&format!("job {id}")), "{said:?}");
    let _ = home.divvy(&["shell", "-g", "0.25", "train"]).exits(2);
    assert_eq!(home.job(&id).state, JobState::Running);
}

#[test]
fn attach_says_what_comes_passes_signals_and_the_code_and_outlives_the_daemon() {
    let home = Home::new("a100-80gb:1");
    let daemon = home.daemon(&[]);
    let gate = home.gate("go");
    let said = format!(
        "trap 'echo caught; exit 7' INT; echo early; until test -e {gate}; do sleep 0.05; done; echo late; while :; do sleep 0.05; done"
    );
    let id = home.submit(&["-g", "0.25", "--name", "train"], &["sh", "-c", &said]);
    home.running(&id);
    let mut attached = home
        .divvy_command(&["attach", "--from-start", "train"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(attached.stdout.take().expect("piped")).lines();
    let mut next = || lines.next().expect("a line").expect("text");
    assert_eq!(next(), "early");
    daemon.crash();
    let _daemon = home.daemon(&[]);
    home.open("go");
    assert_eq!(next(), "late");
    let pid = Pid::from_raw(i32::try_from(attached.id()).expect("a pid")).expect("a pid");
    kill_process(pid, Signal::INT).expect("it is there");
    assert_eq!(next(), "caught");
    assert_eq!(attached.wait_bounded().expect("it ends").code(), Some(7));
    assert_eq!(home.ended(&id).exit_code, Some(7));
    let said = home.divvy(&["attach", &id]).exits(8);
    assert!(said.stderr.contains("divvy logs"), "{}", said.stderr);
}

#[test]
fn a_shell_completes_what_is_there_and_starts_no_daemon_for_it() {
    let home = Home::new("a100-80gb:1");
    let complete = |typed: &[&str]| {
        let mut words = vec!["--", "divvy"];
        words.extend(typed);
        let output = home
            .divvy_command(&words)
            .env("DIVVY_COMPLETE", "bash")
            .env("_CLAP_COMPLETE_INDEX", typed.len().to_string())
            .env("_CLAP_COMPLETE_COMP_TYPE", "9")
            .env("_CLAP_COMPLETE_SPACE", "true")
            .env("_CLAP_IFS", "\n")
            .output_bounded()
            .expect("it starts");
        let said = CommandOutput::new(words.join(" "), &output).ok();
        assert!(said.stderr.is_empty(), "{}", said.stderr);
        said.stdout
            .lines()
            .map(|line| line.trim().to_owned())
            .collect::<Vec<_>>()
    };
    assert!(complete(&["de"]).contains(&"describe".to_owned()));
    assert!(!complete(&["cancel", ""]).contains(&"1".to_owned()));
    for (typed, word) in [
        (&["run", "--isolation", ""][..], "hardware"),
        (&["run", "--compute", ""], "strict"),
        (&["submit", "--idle-action", ""], "suspend"),
        (&["submit", "--mig-profile", "2g"], "2g.10gb"),
        (&["run", "--sim", "l4"], "l4-24gb:1"),
        (&["usage", "--by", "user,"], "user,project"),
        (&["run", "-g", "0.5", "--", "sleep"], "sleep"),
        (&["submit", "--", "sleep"], "sleep"),
    ] {
        let offered = complete(typed);
        assert!(offered.contains(&word.to_owned()), "{typed:?}: {offered:?}");
    }
    let _ = home.divvy(&["ps"]).exits(7);

    let _daemon = home.daemon(&["--dynamic-gpus", "--queue", "half=0.5"]);
    let ended = home.submit(&["-q", "half", "--name", "old"], &["true"]);
    home.ended(&ended);
    let id = holder(&home, &["-q", "half", "--name", "train"]);
    // A daemon that takes its time is not waited for: then nothing is offered, and one asks again.
    let offered = |typed: &[&str]| {
        until("the daemon answers in time", || {
            let offered = complete(typed);
            let is_from_the_daemon = |word: &String| !word.starts_with('-');
            offered.iter().any(is_from_the_daemon).then_some(offered)
        })
    };
    let living = offered(&["cancel", ""]);
    for word in [&id, "train", "last"] {
        assert!(living.contains(&word.to_owned()), "{word}: {living:?}");
    }
    assert!(!living.contains(&ended), "{living:?}");
    assert!(offered(&["logs", ""]).contains(&"old".to_owned()));
    let waits = home.submit(&["-q", "half", "--hold", "--name", "late"], &["true"]);
    assert_eq!(offered(&["why", ""])[0], waits);
    assert_eq!(offered(&["logs", ""])[0], id);
    assert!(offered(&["submit", "-q", ""]).contains(&"half".to_owned()));
    assert!(offered(&["admin", "gpu", ""]).contains(&"0".to_owned()));
    let _ = home.divvy(&["completion", "tcsh"]).exits(2);
}

#[test]
fn bash_offers_what_is_there_by_the_script_that_it_is_given() {
    let home = Home::new("a100-80gb:1");
    let program = home.program("divvy");
    let folder = Path::new(&program).parent().expect("a file");
    let path = format!(
        "{}:{}",
        folder.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let home = home.variable("PATH", &path);
    let _daemon = home.daemon(&[]);
    let id = holder(&home, &["-g", "0.25", "--name", "train"]);
    // What bash does when somebody types this and the key.
    let offered = |typed: &str| {
        let script = format!(
            "source <(divvy completion bash)\nCOMP_WORDS=(divvy {typed} '') COMP_CWORD=2 COMP_TYPE=9\n\
             _clap_complete_divvy\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let mut bash = home.command("bash");
        let output = bash.args(["--norc", "-c", &script]).output_bounded();
        let output = output.expect("bash is there");
        let offered = String::from_utf8_lossy(&output.stdout).into_owned();
        let words = offered.lines().map(|word| word.trim().to_owned());
        words.collect::<Vec<_>>()
    };
    let offers = |typed: &str, word: &str| {
        until(format!("bash offers {word} for {typed}"), || {
            let offered = offered(typed);
            offered.contains(&word.to_owned()).then_some(())
        });
    };
    for verb in ["attach", "cancel", "exec", "logs", "why"] {
        offers(verb, &id);
        offers(verb, "train");
    }
    offers("docker", "slice");
}

#[test]
fn manual_pages_are_written_where_one_says() {
    let home = Home::new("a100-80gb:1");
    let folder = home.scratch().join("man1");
    let said = home.divvy(&["manual", &folder.display().to_string()]).ok();
    assert!(said.stdout.lines().count() > 30, "{}", said.stdout);
    for verb in help::verbs(&home) {
        let name = format!("divvy-{}.1", verb.replace(' ', "-"));
        let page = std::fs::read_to_string(folder.join(&name));
        let page = page.unwrap_or_else(|error| panic!("{name}: {error}"));
        let page = page.replace("\\-", "-");
        for (flag, _) in help::flags(&home, &verb) {
            assert!(page.contains(&flag), "{name} has no {flag}");
        }
    }
    let _ = home.divvy(&["manual", "/proc/no"]).exits(1);
}
