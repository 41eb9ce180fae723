//! Every verb that is shown, once where it works and once where it does not: what it says on which stream, and its exit code. The text is
//! recorded in `verbs.txt`, with every number as `N`; `cargo xtask bless` writes it anew.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use divvy_api::v1::Job;
use divvy_e2e::engine::{Engine, IMAGE, Kind, MUSL_IMAGE};
use divvy_e2e::page::Page;
use divvy_e2e::{CommandOutput, Home, help, until};
use divvy_testkit::Bounded as _;

/// Says its lines: what came of them, or `None`, and why on stderr, where they cannot be said.
type Scene = fn() -> Option<String>;

/// Where lines are said, by the heading of their text.
const SCENES: [(&str, Scene); 3] = [
    ("One GPU", one_gpu),
    ("A GPU in MIG mode", divided_gpu),
    ("Containers", containers),
];

/// Words, in the order in which they are said to one daemon. Its jobs: `first` has ended, `holder` runs, `waits` runs after it.
const LINES: &[&str] = &[
    "run -g 0.25 -- sh -c 'echo out; echo err >&2; exit 3'",
    "run -g 0.25 -- true",
    "run -g 9 -- true",
    "run -g 0.25 --name taker -- PROBE hold --bytes 64M --until-file /",
    "submit -g 0.25 --name short -- true",
    "submit -g 9 -- true",
    "wait short",
    "wait --timeout 0s holder",
    "ps",
    "ps -o nothing",
    "gpus",
    "gpus -o nothing",
    "top -1",
    "top --interval 1",
    "web",
    "web --port 65536",
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
    "usage --by none --since 30d",
    "usage --by nothing",
    "advise taker",
    "advise nobody",
    "resize waits -g 0.25",
    "resize waits -g 9",
    "move waits --top",
    "move holder -q default",
    "hold waits",
    "hold holder",
    "release waits",
    "release nobody",
    "change waits --time 2h",
    "change waits --priority 2000",
    "exec holder -- echo inside",
    "exec waits -- true",
    "exec holder -- no-such-program",
    "attach first",
    "submit -g 0.25 --name talker -- sh -c 'echo begun; until test -e GATE; do sleep 0.01; done; echo done'",
    "attach --from-start talker",
    "shell nobody",
    "shell holder",
    "docker args holder",
    "docker args nobody",
    "docker run --gpu-memory 1G --privileged image",
    "docker slice -g 0.25 -- podman build .",
    "slice create mine --gpus-on 0 -g 0.125",
    "slice create mine --gpus-on 0 -g 0.25",
    "slice ls",
    "slice ls extra",
    "slice enter mine -- echo inside",
    "slice enter nobody -- true",
    "slice env mine",
    "slice env nobody",
    "slice rm mine",
    "slice rm mine",
    "slice rm a/b",
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
    "admin drain 0 --reason update -o name",
    "admin drain --reason update --until yesterday",
    "admin undrain 0 -o name",
    "admin undrain 9",
    "admin mig ls",
    "admin mig ls extra",
    "admin mig plan 1g.5gb",
    "admin mig gc",
    "admin mig gc --gpus-on x",
    "simulate --job -g 0.25 -o name",
    "simulate --gpus nothing:1",
    "completion bash",
    "completion tcsh",
    "doctor -o name",
    "doctor --sim nothing",
    "selftest",
    "selftest --gpu-memory lots",
    "admin journal copy",
    "admin journal copy -o nothing",
    "admin journal restore COPY",
    "config check",
    "config show -o nothing",
    "config reload -o nothing",
    "config init",
    "config init",
    "admin init --yes --user --no-start --force --queue night=0.25 --project vision=1",
    "admin init --yes --user",
    "config check",
    "config reload",
    "config show",
    "daemon",
    "daemon --status",
    "daemon --stop",
    "daemon --status",
    "admin journal restore COPY",
    "daemon --detached --queue night",
    "daemon --stop",
];

/// The same to a daemon whose GPU is in MIG mode.
const DIVIDED: &[&str] = &[
    "run --mig-profile 1g.5gb -- true",
    "run --mig-profile 7g.5gb -- true",
    "admin mig ls",
    "admin mig plan 1g.5gb 3g.20gb",
    "admin mig plan 7g.40gb 7g.40gb",
    "admin mig gc --dry-run",
    "admin mig gc",
    "admin mig ls",
    "gpus",
];

/// The same to a daemon that has a container engine.
const CONTAINED: &[&str] = &[
    "docker run --gpu-memory 1G --rm IMAGE sh -c 'echo inside; exit 3'",
    "docker run --gpu-memory 1G --rm IMAGE echo inside",
    "docker run --gpu-memory 1G MUSL echo inside",
    "docker slice --gpu-memory 1G -- docker run --rm IMAGE echo inside",
    "docker slice --gpu-memory 1G -- docker run --rm MUSL echo inside",
    "submit --gpu-memory 1G --docker IMAGE --name contained -- echo inside",
    "wait contained",
    "logs contained",
    "describe contained",
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

/// The name of the user that runs the tests, which `id` is asked for once, not for each text.
fn user_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let id = Command::new("id").arg("-un").output_bounded().expect("id");
        String::from_utf8_lossy(&id.stdout).trim().to_owned()
    })
}

/// What is the same every time: figures and lengths of time are not, nor is how wide a column is, nor where things lie.
fn plain(text: &str, home: &Home) -> String {
    let shown = |path: &Path| path.display().to_string();
    let programs = PathBuf::from(home.program("divvy"));
    let text = text
        .replace(&shown(home.path()), "HOME")
        .replace(&shown(home.scratch()), "SCRATCH")
        .replace(&shown(programs.parent().expect("a file")), "PROGRAMS");
    let path = std::env::var("PATH").unwrap_or_default();
    let text = unwatched(&text.replace(&path, "PATH"));
    // Another daemon of this machine may restrict its device nodes meanwhile, as some tests do.
    let text = text.replace("\n system.device_nodes\n", "\n");
    // What holds a job here is root's to choose.
    // Who runs the tests.
    let user = text
        .split_once("held by ")
        .and_then(|(_, rest)| rest.split(';').next());
    let text = match user.map(|user| format!("held by {user};")) {
        Some(held) => text.replace(&held, "held by USER;"),
        None => text,
    };
    let text = text.replace("(wrapper)", "(FORM)");
    let text = without_uuids(&text.replace("(preload)", "(FORM)"));
    let mut plain = String::new();
    let user = user_name();
    let is_row = |line: &str| {
        line.trim_start()
            .starts_with(|first: char| first.is_ascii_digit())
    };
    // Whose tests these are is their own, and so is which of NVIDIA's programs are there.
    let is_own = |line: &&str| {
        // A short job may have ended before a reading of the GPU's energy.
        let is_energy = line.starts_with("used:") && line.trim_end().ends_with("Wh");
        let mut own = ["user:", "nvidia-smi"].iter();
        is_energy || own.any(|own| line.starts_with(own))
    };
    for line in text.lines().filter(|line| !is_own(&line.trim_start())) {
        for word in line.split_whitespace() {
            let mut shown = String::new();
            // A row of a table has the user of each job.
            let word = if is_row(line) && word == user {
                "USER"
            } else {
                word
            };
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
    plain.replace("<N.N Wh", "N.N Wh")
}

/// The text of `divvy top` without the machine, the user, and the last minute's use.
fn unwatched(text: &str) -> String {
    let Some((_, rest)) = text.split_once("divvy top  ") else {
        return text.to_owned();
    };
    let host = rest.split_whitespace().next().unwrap_or_default();
    let text = text.replace(&format!("divvy top  {host}"), "divvy top HOST");
    let text = text.replace(&format!(" {}", user_name()), " USER");
    let is_use = |letter: &char| ('▁'..='▇').contains(letter);
    text.chars().filter(|letter| !is_use(letter)).collect()
}

/// The text with `UUID` for every UUID.
fn without_uuids(text: &str) -> String {
    const LONG: usize = "00000000-0000-0000-0000-000000000000".len();
    let is_uuid = |text: &str| {
        let dashes = text.bytes().filter(|byte| *byte == b'-').count();
        let is_hex = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
        dashes == 4 && text.bytes().all(is_hex)
    };
    let mut parts = text.split("GPU-");
    let mut without = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let _ = match part.split_at_checked(LONG).filter(|(id, _)| is_uuid(id)) {
            Some((_, rest)) => write!(without, "GPU-UUID{rest}"),
            None => write!(without, "GPU-{part}"),
        };
    }
    without
}

/// Runs a line to its end, with what stands for this machine's own filled in.
fn said(home: &Home, line: &str) -> CommandOutput {
    let line = line
        .replace("PROBE", &home.program("cudarc_probe"))
        .replace("GATE", &home.gate("talk"))
        .replace("COPY", &copy(home))
        .replace("IMAGE", IMAGE)
        .replace("MUSL", MUSL_IMAGE);
    let words = words(&line);
    match words[..] {
        ["attach", "--from-start", ..] => attached(home, &words),
        ["web"] => page(home),
        _ => home.divvy(&words),
    }
}

/// The copy of the journal, once there is one.
fn copy(home: &Home) -> String {
    let copies = fs::read_dir(home.path().join("copies"));
    let mut copies = copies.into_iter().flatten().flatten();
    copies
        .next()
        .map_or_else(String::new, |copy| copy.path().display().to_string())
}

/// `attach` ends with its job, and that goes on once its first words have come through.
fn attached(home: &Home, words: &[&str]) -> CommandOutput {
    let mut command = home.divvy_command(words);
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("divvy starts");
    let mut passed_on = BufReader::new(child.stdout.take().expect("piped"));
    let mut stdout = String::new();
    passed_on.read_line(&mut stdout).expect("text");
    home.open("talk");
    passed_on.read_to_string(&mut stdout).expect("text");
    let output = child.output_bounded().expect("it is our child");
    let stdout = stdout.into_bytes();
    CommandOutput::new(words.join(" "), &Output { stdout, ..output })
}

/// `web` serves until Ctrl-C. Its token is new each time, and the names in its second line are this machine's.
fn page(home: &Home) -> CommandOutput {
    let page = Page::open(home, &[]);
    let url = page.url.replace(&page.token, "TOKEN");
    let ssh = page.ssh.rsplit_once(' ').map_or("", |(ssh, _)| ssh);
    let stdout = format!("{url}\n{ssh} USER@HOST\n");
    until("it says how it goes on", || page.said().contains("Ctrl-C"));
    let stderr = page.said();
    CommandOutput {
        words: "web".to_owned(),
        code: page.stop(),
        stdout,
        stderr,
    }
}

/// Where a line leaves something that goes on after it, waits until that is done: what the next lines say is not to depend on how fast
/// the daemon is.
fn settled(home: &Home, line: &str) {
    let is_run = ["run ", "docker run", "docker slice", "attach --from-start"];
    if is_run.iter().any(|run| line.starts_with(run)) {
        until("the job's end is known and its part is free", || {
            let jobs = home.call(home.client().jobs(false)).ok()?;
            let lasts = |job: &Job| ["holder", "waits"].contains(&&*job.name);
            jobs.iter().all(lasts).then_some(())
        });
    }
    if line == "requeue holder" {
        home.running("holder");
    }
    if line == "admin mig gc" {
        until("they are gone", || {
            home.items(&["admin", "mig", "ls"]).is_empty().then_some(())
        });
    }
}

/// Says the lines in turn: what came of each.
fn scene(home: &Home, lines: &[&str]) -> String {
    let mut text = String::new();
    for line in lines {
        if line.starts_with("usage --by none") {
            until("energy of jobs and of idle GPUs is counted", || {
                let rows = home.items(&["usage", "--by", "none"]);
                let drew = |is_idle: bool| {
                    let of_kind = |row: &&serde_json::Value| (row["idle"] == true) == is_idle;
                    let mut rows = rows.iter().filter(of_kind);
                    rows.any(|row| row["energy_joules"] != 0.0)
                };
                (drew(true) && drew(false)).then_some(())
            });
        }
        let CommandOutput {
            code,
            stdout,
            stderr,
            ..
        } = said(home, line);
        settled(home, line);
        let (stdout, stderr) = (plain(&stdout, home), plain(&stderr, home));
        let _ = writeln!(text, "$ divvy {line}\n{stdout}--- {code}\n{stderr}");
    }
    text
}

fn one_gpu() -> Option<String> {
    let home = Home::new("a100-80gb:1")
        .variable("SHELL", "/bin/sh")
        .variable("COLUMNS", "")
        .variable("TZ", "UTC")
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
    Some(scene(&home, LINES))
}

fn divided_gpu() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root divides a GPU");
        return None;
    }
    let home = Home::new("a100-40gb:1")
        .variable("COLUMNS", "")
        .variable("TZ", "UTC");
    let file = home.scratch().join("sim.toml");
    fs::write(&file, "[mig]\nenabled = [0]\n").expect("the folder is ours");
    let home = home.variable("DIVVY_SIM_CONFIG", &file.display().to_string());
    let _daemon = home.daemon(&[]);
    Some(scene(&home, DIVIDED))
}

fn containers() -> Option<String> {
    let engine = Engine::shared(Kind::Docker)?;
    let home = Home::new("a100-80gb:1")
        .variable("COLUMNS", "")
        .variable("TZ", "UTC")
        .variable("DOCKER_HOST", &engine.host())
        .variable("DIVVY_FORM", "");
    let _daemon = home.daemon(&[]);
    Some(scene(&home, CONTAINED))
}

fn recorded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/verbs.txt")
}

/// What was recorded of a scene.
fn recorded_of(text: &str, heading: &str) -> String {
    let text = format!("\n{text}# ");
    let mut scenes = text.split("\n# ").filter_map(|one| one.split_once("\n\n"));
    let found = scenes.find(|(name, _)| *name == heading);
    found.map_or_else(String::new, |(_, lines)| lines.to_owned())
}

#[test]
fn every_verb_says_what_it_did_and_what_it_could_not_do() {
    let mut before = fs::read_to_string(recorded()).unwrap_or_default();
    let mut text = String::new();
    for (heading, say) in SCENES {
        // What cannot be tried here is as it was where it could.
        let now = say().unwrap_or_else(|| recorded_of(&before, heading));
        let _ = write!(text, "# {heading}\n\n{now}\n");
    }

    if std::env::var_os("DIVVY_RECORD").is_some() {
        fs::write(recorded(), &text).expect("the text can be written");
        before.clone_from(&text);
    }

    let all = help::verbs(&Home::new("a100-80gb:1"));
    let (mut done, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for shown in text.split("$ divvy ").skip(1) {
        let verb = all.iter().filter(|verb| shown.starts_with(&***verb));
        let verb = verb.max_by_key(|verb| verb.len()).cloned();
        if shown.contains("\n--- 0\n") {
            done.extend(verb)
        } else {
            refused.extend(verb)
        }
    }
    for verb in &all {
        assert!(done.contains(verb), "`divvy {verb}` is not shown to work");
        assert!(
            refused.contains(verb),
            "`divvy {verb}` is not shown to fail"
        );
    }
    for (now, then) in text.split("$ divvy").zip(before.split("$ divvy")) {
        assert_eq!(now, then, "cargo xtask bless");
    }
    assert_eq!(text.len(), before.len());
}
