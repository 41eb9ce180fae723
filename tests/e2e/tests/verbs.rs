//! Every verb that is shown, once where it works and once where it does not: what it says on which stream, and its exit code. The text is
//! recorded in `verbs.txt`, with every number as `N`; `DIVVY_RECORD=1 cargo test -p divvy-e2e --test verbs` writes it anew.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use divvy_api::v1::Job;
use divvy_e2e::{Home, Said, until};

/// Words, in the order in which they are said to one daemon. Its jobs: `first` has ended, `holder` runs, `waits` runs after it.
const LINES: &[&str] = &[
    "run -g 0.25 -- sh -c 'echo out; echo err >&2; exit 3'",
    "run -g 0.25 -- true",
    "run -g 9 -- true",
    "submit -g 0.25 --name short -- true",
    "submit -g 9 -- true",
    "wait short",
    "wait --timeout 0s holder",
    "ps",
    "ps -o nothing",
    "gpus",
    "gpus -o nothing",
    "queues",
    "queues extra",
    "projects",
    "projects extra",
    "describe waits",
    "describe nobody",
    "logs first",
    "logs nobody",
    "events -o name --after 999999",
    "events --after x",
    "why waits",
    "why nobody",
    "oom holder",
    "oom nobody",
    "usage --by none --since 1h",
    "usage --by nothing",
    "advise nobody",
    "resize waits -g 0.25",
    "resize waits -g 9",
    "exec holder -- echo inside",
    "exec waits -- true",
    "exec holder -- no-such-program",
    "attach first",
    "shell nobody",
    "shell holder",
    "docker args holder",
    "docker args nobody",
    "docker run --gpu-memory 1G --privileged image",
    "docker slice -g 0.25 -- podman build .",
    "suspend holder",
    "suspend waits",
    "resume holder",
    "resume waits",
    "requeue holder",
    "requeue waits",
    "cancel waits",
    "cancel nobody",
    "admin project add vision --quota 1",
    "admin project add vision --quota 1",
    "admin project set vision --weight 2",
    "admin project set nobody --weight 2",
    "admin project rm vision",
    "admin project rm vision",
    "admin gpu 0 --mode shared --dry-run",
    "admin gpu 9 --mode mig",
    "admin mig ls",
    "admin mig ls extra",
    "admin mig plan 1g.5gb",
    "admin mig gc --dry-run",
    "admin mig gc --gpus-on x",
    "simulate --gpus a100-40gb:1 --arrivals 100 --runs 1 -o name",
    "simulate --gpus nothing:1",
    "completion bash",
    "completion tcsh",
    "doctor --sim nothing",
    "selftest --gpu-memory lots",
    "daemon",
    "daemon --status",
];

/// Verbs whose success is not here, and where it is: it takes an engine, or a machine says much that is its own.
const ELSEWHERE: &[&str] = &[
    "docker run",     // docker.rs
    "docker slice",   // docker.rs
    "doctor",         // doctor.rs
    "selftest",       // selftest.rs
    "advise",         // memory.rs
    "attach",         // inside.rs
    "admin mig plan", // mig.rs
];

/// Words as a shell takes them: blanks part them, but within '…'.
fn words(line: &str) -> Vec<&str> {
    let parts = line.split('\'').enumerate();
    let words = parts.flat_map(|(at, part)| match at % 2 {
        0 => part.split_whitespace().collect(),
        _ => vec![part],
    });
    words.collect()
}

/// What is the same every time: figures and lengths of time are not, nor is how wide a column is.
fn plain(text: &str, home: &Home) -> String {
    let shown = |path: &Path| path.display().to_string();
    let text = text
        .replace(&shown(&home.path()), "HOME")
        .replace(&shown(home.scratch()), "SCRATCH");
    let path = std::env::var("PATH").unwrap_or_default();
    let text = text.replace(&path, "PATH");
    let mut plain = String::new();
    // Whose tests these are is their own.
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("user:"));
    for line in lines {
        for word in line.split_whitespace() {
            let mut shown = String::new();
            for letter in word.chars() {
                match letter.is_ascii_digit() {
                    true if shown.ends_with('N') => {}
                    true => shown.push('N'),
                    false => shown.push(letter),
                }
            }
            // `Ns`, `NmNs`: a machine may be slow.
            let is_time = shown.starts_with('N')
                && shown.len() > 1
                && shown.bytes().all(|byte| b"Ndhmsu".contains(&byte));
            let _ = write!(plain, " {}", if is_time { "TIME" } else { &shown });
        }
        plain.push('\n');
    }
    plain
}

/// Where a line leaves something that goes on after it, waits until that is done: what the next lines say is not to depend on how fast
/// the daemon is.
fn settled(home: &Home, line: &str, holder: &str) {
    if line.starts_with("run ") {
        until("the job's end is known and its part is free", || {
            let jobs = home.call(home.client().jobs(false)).ok()?;
            let lasts = |job: &Job| ["holder", "waits"].contains(&&*job.name);
            jobs.iter().all(lasts).then_some(())
        });
    }
    if line == "requeue holder" {
        home.running(holder);
    }
}

fn recorded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/verbs.txt")
}

/// Every verb below one, as it is typed.
fn verbs_of(home: &Home, path: &str, all: &mut BTreeSet<String>) {
    let mut ask: Vec<&str> = path.split_whitespace().collect();
    ask.push("--help");
    let help = home.divvy(&ask).ok().stdout;
    let below: Vec<&str> = match (path, help.split_once("\nCommands:")) {
        ("", _) => help.lines().skip(3).collect(),
        (_, Some((_, commands))) => commands
            .lines()
            .skip(1)
            .take_while(|line| !line.is_empty())
            .collect(),
        _ => {
            all.insert(path.to_owned());
            return;
        }
    };
    for line in below {
        let name = line.strip_prefix("  ").unwrap_or(" ");
        let verb = name.split(' ').next().unwrap_or_default();
        let is_verb = !verb.is_empty() && verb != "help" && verb != "divvy";
        if is_verb && verb.bytes().all(|byte| byte.is_ascii_lowercase()) {
            verbs_of(home, format!("{path} {verb}").trim(), all);
        }
    }
}

#[test]
fn every_verb_says_what_it_did_and_what_it_could_not_do() {
    let home = Home::new("a100-80gb:1")
        .variable("SHELL", "/bin/sh")
        .variable("COLUMNS", "")
        .variable("DOCKER_HOST", "unix:///no/such/engine.sock");
    let _daemon = home.daemon(&["--dynamic-gpus", "--queue", "half=0.5", "full=1"]);
    let first = home.submit(&["-q", "half", "--name", "first"], &["echo", "said"]);
    home.ended(&first);
    let holder = home.submit(&["-q", "half", "--name", "holder"], &["sleep", "1000"]);
    home.running(&holder);
    let _ = home.submit(
        &["-g", "0.125", "--name", "waits", "--after", &holder],
        &["true"],
    );

    let mut text = String::new();
    let (mut done, mut refused) = (BTreeSet::new(), BTreeSet::new());
    let mut all = BTreeSet::new();
    verbs_of(&home, "", &mut all);
    for line in LINES {
        let Said {
            code,
            stdout,
            stderr,
            ..
        } = home.divvy(&words(line));
        settled(&home, line, &holder);
        let verb = all.iter().filter(|verb| line.starts_with(&***verb));
        let verb = verb.max_by_key(|verb| verb.len()).cloned();
        match code {
            0 => done.extend(verb),
            _ => refused.extend(verb),
        };
        // A script, and what names this machine's folders, are long and held elsewhere.
        let is_long = line.starts_with("completion") || line.starts_with("docker args");
        let stdout = match is_long {
            true => String::new(),
            false => stdout,
        };
        let (stdout, stderr) = (plain(&stdout, &home), plain(&stderr, &home));
        let _ = writeln!(text, "$ divvy {line}\n{stdout}--- {code}\n{stderr}");
    }
    for verb in &all {
        let elsewhere = ELSEWHERE.contains(&&**verb);
        assert!(
            done.contains(verb) || elsewhere,
            "`divvy {verb}` is not shown to work"
        );
        assert!(
            refused.contains(verb),
            "`divvy {verb}` is not shown to fail"
        );
    }
    if std::env::var_os("DIVVY_RECORD").is_some() {
        fs::write(recorded(), &text).expect("the text can be written");
    }
    let before = fs::read_to_string(recorded()).expect("it was recorded");
    for (now, then) in text.split("$ divvy").zip(before.split("$ divvy")) {
        assert_eq!(
            now, then,
            "DIVVY_RECORD=1 cargo test -p divvy-e2e --test verbs"
        );
    }
    assert_eq!(text.len(), before.len());
}
