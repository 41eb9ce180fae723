//! Commands that the documentation shows are run: each ```console block in one shell a page, over simulated GPUs, and every
//! `divvy` command of the pages for users. First tier.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use divvy_e2e::Home;
use divvy_testkit::Bounded as _;

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Programs that a test cannot run: they build, need root's rights, or speak to a cluster, an engine or the network.
const ELSEWHERE: [&str; 14] = [
    "cargo",
    "clearml-agent",
    "cp",
    "curl",
    "docker",
    "git",
    "helm",
    "journalctl",
    "kubectl",
    "pip",
    "podman",
    "sudo",
    "systemctl",
    "tar",
];
/// Pages whose commands need a cluster, an engine, a server or a GPU; their flags are looked up in the help all the same.
const OTHER_MACHINES: [&str; 11] = [
    "clearml.md",
    "containers.md",
    "hardware.md",
    "jupyterhub.md",
    "kuberay.md",
    "kubernetes.md",
    "kubernetes-gpu-operator.md",
    "kubernetes-monitoring.md",
    "kubernetes-packing.md",
    "kubernetes-teams.md",
    "ray.md",
];

/// A command of a page, and the lines that the page shows below it.
#[derive(Debug)]
pub struct Shown {
    pub command: String,
    pub output: Vec<String>,
}

/// The commands of a page's ```console blocks.
pub fn shown(page: &str) -> Vec<Shown> {
    let mut all: Vec<Shown> = Vec::new();
    let (mut inside, mut goes_on) = (false, false);
    for line in page.lines() {
        if let Some(fence) = line.trim_start().strip_prefix("```") {
            inside = fence == "console";
            goes_on = false;
        } else if inside && goes_on {
            let command = &mut all.last_mut().expect("a command goes on").command;
            command.push('\n');
            command.push_str(line);
            goes_on = line.ends_with('\\');
        } else if inside && let Some(command) = line.strip_prefix("$ ") {
            goes_on = command.ends_with('\\');
            all.push(Shown {
                command: command.to_owned(),
                output: Vec::new(),
            });
        } else if inside && let Some(last) = all.last_mut() {
            last.output.push(line.to_owned());
        }
    }
    all.retain(|shown| {
        let first = shown.command.split_whitespace().next();
        first.is_some_and(|word| !ELSEWHERE.contains(&word))
    });
    all
}

/// A line without what differs from run to run: numbers and the width of columns.
fn plain(line: &str) -> String {
    let mut plain = String::new();
    for word in line.split_whitespace() {
        let mut number = false;
        for letter in word.chars() {
            if !letter.is_ascii_digit() {
                plain.push(letter);
            } else if !number {
                plain.push('0');
            }
            number = letter.is_ascii_digit();
        }
        plain.push(' ');
    }
    plain.trim_end().to_owned()
}

/// A folder in which the commands of the pages find what they name.
pub fn place(home: &Home) -> PathBuf {
    let folder = home.scratch().join("place");
    fs::create_dir_all(folder.join("bin")).expect("the folder is new");
    for data in ["examples", "tests"] {
        symlink(root().join(data), folder.join(data)).expect("the folder is new");
    }
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).expect("the folder can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("the file is ours");
    };
    for script in ["train.py", "eval.py", "sweep.py"] {
        write(script, "print('done')\n");
    }
    let install = fs::read_to_string(root().join("docs/install.md")).expect("a page");
    let program = install.split("```python\n").nth(1);
    let program = program.and_then(|rest| rest.split("```").next());
    write("fill.py", program.expect("the page has a program"));
    write("bin/python", "#!/bin/sh\nexec python3 \"$@\"\n");
    write("bin/torchrun", "#!/bin/sh\nexec true\n");
    write("part.sh", "#!/bin/sh\ntrue\n");
    write("train.sh", "#!/bin/sh\n#DIVVY -g 0.25\ntrue\n");
    folder
}

pub fn path_with(home: &Home, folder: &Path) -> String {
    let programs = PathBuf::from(home.program("divvy"));
    let programs = programs.parent().expect("a program lies in a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    format!(
        "{}:{}:{path}",
        folder.join("bin").display(),
        programs.display()
    )
}

/// Runs a page's commands in one shell; complains of each that fails or prints something else than the page shows.
fn run_page(name: &str, commands: &[Shown], wrong: &mut Vec<String>) {
    let home = Home::new("a100-80gb:3");
    let folder = place(&home);
    let mut script = String::from("exec 2>&1\n");
    for (at, shown) in commands.iter().enumerate() {
        script += &format!("echo '==> {at}'\n{}\necho \"==< $?\"\n", shown.command);
    }
    let mut shell = home.command("bash");
    shell.args(["-c", &script]).current_dir(&folder);
    shell
        .env("PATH", path_with(&home, &folder))
        .env("USER", "tester");
    let output = shell.output_bounded().expect("the shell runs");
    let text = String::from_utf8_lossy(&output.stdout);
    for (at, shown) in commands.iter().enumerate() {
        let start = format!("==> {at}\n");
        let piece = text.split_once(&start).map_or("", |(_, rest)| rest);
        let (said, code) = piece.split_once("==< ").unwrap_or((piece, "none"));
        let code = code.split_whitespace().next().unwrap_or("none");
        if code != "0" {
            wrong.push(format!(
                "{name}: `{}` ended with {code}:\n{said}",
                shown.command
            ));
            continue;
        }
        let mut lines = said.lines().map(plain);
        for expected in shown.output.iter().filter(|line| !line.trim().is_empty()) {
            if !lines.any(|line| line == plain(expected)) {
                wrong.push(format!(
                    "{name}: `{}` does not print {expected:?}, but:\n{said}",
                    shown.command
                ));
                break;
            }
        }
    }
}

#[test]
fn the_commands_of_every_page_run_and_print_what_the_page_shows() {
    let mut pages = vec![root().join("README.md")];
    let docs = fs::read_dir(root().join("docs")).expect("docs is a folder");
    pages.extend(docs.map(|entry| entry.expect("readable").path()));
    pages.sort();
    let (mut ran, mut wrong) = (0, Vec::new());
    for path in pages
        .iter()
        .filter(|path| path.extension().is_some_and(|ending| ending == "md"))
    {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a readable name");
        let page = fs::read_to_string(path).expect("a page can be read");
        let commands = shown(&page);
        if commands.is_empty() || OTHER_MACHINES.contains(&name) {
            continue;
        }
        ran += commands.len();
        run_page(name, &commands, &mut wrong);
    }
    assert!(
        ran > 8,
        "only {ran} commands ran; were the pages read at all?"
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// The `divvy` commands in code spans and shell blocks of a page.
fn spans(page: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut fence: Option<&str> = None;
    for line in page.lines() {
        if let Some(kind) = line.trim_start().strip_prefix("```") {
            fence = if fence.is_some() { None } else { Some(kind) };
        } else if fence == Some("sh") {
            all.push(line.split("  #").next().unwrap_or(line).trim().to_owned());
        } else if fence.is_none() {
            all.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    all.retain(|span| span.starts_with("divvy "));
    all
}

#[test]
fn no_command_of_the_pages_for_users_is_misuse() {
    let home = Home::new("a100-80gb:3");
    let folder = place(&home);
    let mut ran = 0;
    let mut wrong = Vec::new();
    let _daemon = home.daemon(&[]);
    let _train = home.submit(&["-g", "0.25", "--name", "train"], &["sleep", "60"]);
    for page in ["README.md", "docs/users.md", "docs/troubleshooting.md"] {
        let text = fs::read_to_string(root().join(page)).expect("a page can be read");
        for span in spans(&text) {
            // Words in capitals stand for what a user puts in; an ellipsis for more of it.
            let command = span
                .replace("JOB…", "train")
                .replace("JOB", "train")
                .replace("FILE", "out.txt")
                .replace(" …", " -- true");
            let is_general = command.contains(['…', '|']) || command.contains("VERB");
            let needs_more =
                command.contains("docker") || command.contains("shell") || command.contains("-f ");
            if is_general || needs_more || matches!(command.as_str(), "divvy run" | "divvy daemon")
            {
                continue;
            }
            let mut shell = home.command("timeout");
            shell.args(["--kill-after=2", "2", "sh", "-c", &command]);
            shell
                .current_dir(&folder)
                .env("PATH", path_with(&home, &folder));
            let output = shell.output_bounded().expect("the shell runs");
            ran += 1;
            if matches!(output.status.code(), Some(2 | 101) | None) {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                wrong.push(format!("{page}: `{span}` ({:?}): {said}", output.status));
            }
        }
    }
    assert!(
        ran > 25,
        "only {ran} commands ran; were the pages read at all?"
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
