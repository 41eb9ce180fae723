//! How a Kubernetes node's agent comes from its image onto the node: whole or not at all, and once.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use divvy_e2e::write_program;
use divvy_testkit::Bounded as _;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// An image with the script and programs that say how they were called, a node's folder, and an `nsenter` that stays here.
struct Node {
    folder: TempDir,
}

impl Node {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let node = Self { folder };
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/images/kubernetes/node-agent");
        let script = fs::read_to_string(script).expect("the script is there");
        write_program(&node.at("image/lib/divvy/node-agent"), script);
        write_program(&node.at("image/bin/divvy"), "#!/bin/sh\necho \"$0 $*\"\n");
        write_program(
            &node.at("path/nsenter"),
            format!(
                "#!/bin/sh\n[ \"$1 $2 $3 $4\" = \"--target 1 --mount --\" ] || exit 9\nshift 4\n\
                 [ \"$1\" != grep ] || exec grep \"$2\" \"$3\" {}\nexec \"$@\"\n",
                node.at("cdi").display()
            ),
        );
        fs::write(node.at("image/lib/divvy/limiter.so"), "one").expect("written");
        node
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn command(&self) -> Command {
        let path = std::env::var("PATH").expect("there is a PATH");
        let mut command = Command::new(self.at("image/lib/divvy/node-agent"));
        command
            .arg(self.at("state"))
            .args(["--set", "on-bypass=kill"])
            .env("PATH", format!("{}:{path}", self.at("path").display()));
        command
    }

    fn run(&self) -> Output {
        self.command().output_bounded().expect("sh is there")
    }

    /// Where the daemon was run from.
    #[track_caller]
    fn place(&self) -> PathBuf {
        let output = self.run();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let program = said
            .strip_suffix(" daemon --system --standby --set on-bypass=kill\n")
            .unwrap_or_else(|| panic!("{said}{}", String::from_utf8_lossy(&output.stderr)));
        let place = Path::new(program).ancestors().nth(2).expect("bin/divvy");
        assert!(place.starts_with(self.at("state/node")), "{said}");
        place.to_owned()
    }

    fn places(&self) -> usize {
        fs::read_dir(self.at("state/node"))
            .expect("it is made")
            .count()
    }
}

#[test]
fn the_daemon_runs_from_the_nodes_disk_with_its_libraries_beside_it() {
    let node = Node::new();
    let place = node.place();
    let library = fs::read_to_string(place.join("lib/divvy/limiter.so"));
    assert_eq!(library.expect("copied"), "one");
    // The library's place is the script's too, and of that the node has no use.
    assert!(!place.join("lib/divvy/node-agent").exists());
}

/// Kubelet's probe and `kubectl exec` enter the namespaces of the first process, which has to be in the image.
#[test]
fn the_first_process_stays_passes_a_signal_on_and_ends_as_the_daemon_does() {
    let node = Node::new();
    let daemon = "#!/bin/sh\ntrap 'exit 5' TERM\necho started\nwhile :; do sleep 0.05; done\n";
    write_program(&node.at("image/bin/divvy"), daemon);
    let mut script = node
        .command()
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh is there");
    let mut line = String::new();
    let stdout = script.stdout.take().expect("it is a pipe");
    BufReader::new(stdout)
        .read_line(&mut line)
        .expect("the daemon starts");
    assert_eq!(line, "started\n");
    let name = fs::read_to_string(format!("/proc/{}/comm", script.id())).expect("it lives");
    assert_eq!(name, "node-agent\n", "the first process is another program");
    kill_process(Pid::from_child(&script), Signal::TERM).expect("it lives");
    let status = script.wait_bounded().expect("it ends");
    assert_eq!(status.code(), Some(5));
}

#[test]
fn the_same_programs_are_copied_once_and_others_beside_them() {
    let node = Node::new();
    let first = node.place();
    fs::write(first.join("lib/divvy/limiter.so"), "still mounted").expect("written");
    assert_eq!(node.place(), first);
    let kept = fs::read_to_string(first.join("lib/divvy/limiter.so"));
    assert_eq!(kept.expect("there"), "still mounted");
    fs::write(node.at("image/lib/divvy/limiter.so"), "two").expect("written");
    assert_ne!(node.place(), first);
    assert_eq!(
        node.places(),
        2,
        "a daemon may be about to run the first one"
    );
}

/// Versions of the programs that no node pod has started for an hour.
fn old_versions<const N: usize>(node: &Node) -> [PathBuf; N] {
    let old = std::array::from_fn(|version| {
        let text = format!("limiter {version}");
        fs::write(node.at("image/lib/divvy/limiter.so"), text).expect("written");
        node.place()
    });
    for place in &old {
        let touched = Command::new("touch")
            .args(["-d", "1 hour ago"])
            .arg(place)
            .wait_bounded();
        assert!(touched.expect("touch is there").success());
    }
    fs::write(node.at("image/lib/divvy/limiter.so"), "new").expect("written");
    old
}

#[test]
fn versions_that_no_claim_names_and_no_process_runs_are_removed() {
    let node = Node::new();
    let [unused, named, run, mounted] = old_versions(&node);
    // As kubelet restarts a container of a prepared claim.
    let cdi = format!(
        "{{\"hostPath\": \"{}/lib/divvy/limiter.so\"}}",
        named.display()
    );
    fs::create_dir(node.at("cdi")).expect("made");
    fs::write(node.at("cdi/claim.json"), cdi).expect("written");
    fs::copy("/bin/sleep", run.join("bin/sleep")).expect("copied");
    let mut daemon = Command::new(run.join("bin/sleep"))
        .arg("60")
        .spawn()
        .expect("it runs");
    let mut container = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c"])
        .arg("mount --bind \"$0\" \"$0\" && echo mounted && exec sleep 60")
        .arg(mounted.join("lib"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare is there");
    let mut line = String::new();
    let stdout = container.stdout.take().expect("it is a pipe");
    BufReader::new(stdout)
        .read_line(&mut line)
        .expect("it says so");
    let has_mounted = line == "mounted\n";
    let new = node.place();
    for child in [&mut daemon, &mut container] {
        child.kill().expect("it is ours");
        child.wait_bounded().expect("it ends");
    }
    assert!(!unused.exists());
    assert!(named.exists() && run.exists() && new.exists());
    // A machine may refuse new user namespaces.
    assert!(mounted.exists() || !has_mounted);
    // Later no process and no claim has one of them.
    fs::remove_file(node.at("cdi/claim.json")).expect("it is there");
    assert_eq!(node.place(), new);
    assert_eq!(node.places(), 1);
}

#[test]
fn a_removal_that_was_cut_off_leaves_no_version_for_a_daemon_to_run() {
    let node = Node::new();
    let [old] = old_versions(&node);
    fs::create_dir_all(node.at("state/node/.old/bin")).expect("made");
    node.place();
    assert!(!old.exists() && !node.at("state/node/.old").exists());
}

#[test]
fn what_a_copy_that_was_cut_off_left_is_never_run() {
    let node = Node::new();
    fs::create_dir_all(node.at("state/node/.draft/bin")).expect("made");
    fs::write(node.at("state/node/.draft/bin/divvy"), "half").expect("written");
    node.place();
    assert_eq!(node.places(), 1, "the draft is gone");
}
