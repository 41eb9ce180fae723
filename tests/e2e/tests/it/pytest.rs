//! `pytest-divvy`: GPU tests of pytest-xdist in slices (docs/pytest.md), and the slice of a CI job (docs/engines.md).

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use divvy_e2e::{
    CommandOutput, Home, client_script, kill_all_that_mention, python, until, write_program,
};
use divvy_testkit::{Bounded as _, bounded_for};
use serde_json::Value;

use crate::shown::root;

/// Tests that need no package: the driver alone.
const TESTS: &str = r#"
import ctypes, os, time
import pytest

def take(gib):
    cuda, context, block = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
    cuda.cuInit(0)
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    cuda.cuCtxSetCurrent(context)
    assert cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(gib << 30)) == 0
    cuda.cuMemFree_v2(block)

@pytest.mark.parametrize("gib", [1, 20, 50])
def test_take(gib):
    take(gib)

def test_words():
    assert "DIVVY_SLICE" in os.environ

@pytest.mark.gpu(memory="2G")
def test_mark():
    take(3)
"#;

fn sessions(home: &Home) -> PathBuf {
    let folder = home.scratch().join("sessions");
    fs::create_dir_all(&folder).expect("the folder is ours");
    folder
}

/// Python with the plug-in of this repository.
fn with_plugin(home: &Home) -> Command {
    let mut command = home.command(python());
    command
        .env("PYTHONPATH", root().join("python/pytest-divvy/src"))
        // Beside the environment, not among the sources: a session starts Python ten times, and each compiled pytest.
        .env("PYTHONPYCACHEPREFIX", python().with_file_name("pycache"))
        .env_remove("PYTHONDONTWRITEBYTECODE")
        // Plug-ins of other packages, such as schemathesis, are half of a worker's start.
        .env("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        .env("PYTEST_DIVVY_PROGRAM", home.program("divvy"))
        .env("PYTEST_DIVVY_FOLDER", sessions(home));
    command
}

/// A session of pytest whose private folders lie in one of the test's.
fn session(home: &Home, words: &[&str]) -> Command {
    let mut command = with_plugin(home);
    command.args(["-m", "pytest", "-p", "xdist", "-p", "pytest_divvy.plugin"]);
    command.args(["-p", "no:cacheprovider"]).args(words);
    command
}

fn run(mut command: Command) -> CommandOutput {
    let output = command.output_bounded().expect("Python starts");
    CommandOutput::new(format!("{command:?}"), &output)
}

fn no_slice_is_left(home: &Home) {
    until("no job is left", || {
        home.items(&["ps"]).is_empty().then_some(())
    });
    assert_eq!(home.slices(), Vec::<String>::new());
}

#[test]
fn tests_of_two_workers_have_slices_by_their_marks_and_their_peaks() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    fs::write(home.scratch().join("test_gpu.py"), TESTS).expect("the folder is ours");
    let words = ["-n", "2", "-o", "divvy_peaks=peaks.txt"];
    let first = run(session(&home, &words)).exits(1).stdout;
    for line in [
        "2 workers on 1 x NVIDIA A100-SXM4-80GB, your daemon",
        "peak 415 MiB of its limit of 2.0 GiB (asked for by its mark)",
        "refused once",
        "cuMemAlloc_v2 requested 3.0 GiB with 415 MiB of 2.0 GiB in use (",
        "5 tests measured, 1 repeated alone, because their slice was too small, 1 refused memory",
        "1 failed, 4 passed",
    ] {
        assert!(first.contains(line), "{line}\n{first}");
    }
    let peaks = fs::read_to_string(home.scratch().join("peaks.txt")).expect("the session wrote it");
    let expected = "# peaks of pytest-divvy, in MiB: peak, growth, test\n\
        \x20 1472   1024 test_gpu.py::test_take[1]\n\
        \x2020928  20480 test_gpu.py::test_take[20]\n\
        \x2051648  51200 test_gpu.py::test_take[50]\n\
        \x20    0      0 test_gpu.py::test_words\n";
    assert_eq!(peaks, expected);
    no_slice_is_left(&home);
    let second = run(session(&home, &words)).exits(1).stdout;
    let packed = "5 tests measured, 1 refused memory, no peak changed";
    assert!(second.contains(packed), "{second}");
    no_slice_is_left(&home);
    let left = fs::read_dir(sessions(&home)).expect("the folder is there");
    assert_eq!(left.count(), 0, "a session left its folder");
}

fn kill(child: &mut Child) {
    child.kill().expect("it is our child");
    let _ = child.wait_bounded();
}

/// A folder with `divvy` on its PATH, and the processes of two CI runners in it.
fn ci(home: &Home) -> PathBuf {
    let folder = home.scratch().join("ci");
    fs::create_dir(&folder).expect("the folder is new");
    symlink(home.program("divvy"), folder.join("divvy")).expect("the folder is new");
    let script = root().join("examples/divvy-ci");
    let script = script.display();
    // GitHub's runner: it gives the steps the variables of the file, and runs each in a process of its own.
    let worker = format!(
        "#!/bin/sh\nexport GITHUB_ENV=$PWD/env GITHUB_RUN_ID=7 DIVVY_CI_AMOUNT=0.5\n: >env\n\
         sh -c {script} || exit 1\n\
         (while IFS= read -r line; do export \"$line\"; done <env; echo \"$DIVVY_SLICE\" >step.new; mv step.new step)\n\
         sleep 600\n"
    );
    write_program(&folder.join("Runner.Worker"), worker);
    // GitLab's shell executor: one shell with `pre_build_script` and the job's lines.
    let job = format!(
        "#!/bin/sh\nset -e\nexport CI_JOB_ID=9 DIVVY_CI_WAIT=1s\n. {script}\necho \"$DIVVY_SLICE\" >step.new\n\
         mv step.new step\nsleep 600\n"
    );
    write_program(&folder.join("job"), job);
    write_program(&folder.join("gitlab-runner"), "#!/bin/sh\n./job\ntrue\n");
    folder
}

fn runner(home: &Home, folder: &Path, program: &str) -> Child {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = home.command(folder.join(program));
    command
        .current_dir(folder)
        .env("PATH", format!("{}:{path}", folder.display()))
        .stdout(Stdio::null());
    command.spawn().expect("the runner starts")
}

#[test]
fn the_slice_of_a_ci_job_ends_with_its_killed_runner() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let folder = ci(&home);
    for (program, name) in [
        ("Runner.Worker", "github-7-"),
        ("gitlab-runner", "gitlab-9-"),
    ] {
        let step = folder.join("step");
        let mut runner = runner(&home, &folder, program);
        until("the job's step runs", || step.exists().then_some(()));
        let slices = home.items(&["slice", "ls"]);
        let slice = slices[0]["name"].as_str().expect("a name");
        assert!(slice.starts_with(name) && slices.len() == 1, "{slices:?}");
        let folder_of = fs::read_to_string(&step).expect("the step wrote it");
        let job = slices[0]["job"].as_str().expect("a number");
        assert!(
            folder_of.trim().ends_with(&format!("slices/{job}")),
            "{folder_of}"
        );
        kill(&mut runner);
        no_slice_is_left(&home);
        fs::remove_file(&step).expect("the step wrote it");
    }
    kill_all_that_mention(folder.to_str().expect("a plain path"));
}

mod exhaustive {
    use super::*;

    /// A round takes some seconds on an idle machine; a hundred of them a quarter of an hour on a busy one.
    const PATIENCE: Duration = Duration::from_secs(7200);

    fn ends(mut command: Command) -> CommandOutput {
        #[expect(
            clippy::disallowed_methods,
            reason = "many sessions of pytest, bounded by more than the usual minute"
        )]
        let output = bounded_for(PATIENCE, "the sessions end", || command.output());
        CommandOutput::new(format!("{command:?}"), &output.expect("Python starts"))
    }

    #[test]
    fn a_killed_session_leaves_no_private_daemon_and_no_slice() {
        let home = Home::new("a100-80gb:1");
        let waits = "import pathlib, time\n\
            def test_waits():\n    pathlib.Path('begun').touch()\n    time.sleep(600)\n";
        fs::write(home.scratch().join("test_waits.py"), waits).expect("the folder is ours");
        let mut command = session(&home, &["-n", "1", "--divvy-sim", "a100-80gb:1"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut pytest = command.spawn().expect("Python starts");
        let begun = home.scratch().join("begun");
        until("the test runs", || begun.exists().then_some(()));
        let folder = sessions(&home);
        let count = || fs::read_dir(&folder).expect("it is there").count();
        assert_eq!(count(), 1);
        kill(&mut pytest);
        until("the keeper has removed the session's folder", || {
            (count() == 0).then_some(())
        });
        let text = folder.to_str().expect("a plain path");
        let alive = || {
            let list = Command::new("pgrep").args(["-f", text]).output_bounded();
            list.expect("pgrep is there").stdout
        };
        until("no process of the session is left", || {
            alive().is_empty().then_some(())
        });
    }

    #[test]
    fn sessions_with_random_kills_leave_no_slice() {
        let home = Home::new("a100-80gb:1");
        let rounds = std::env::var("DIVVY_PYTEST_ROUNDS").unwrap_or_else(|_| "12".to_owned());
        let mut command = with_plugin(&home);
        let script = client_script("pytest_kills.py");
        command.args([&script, &rounds, "57", &home.program("divvy")]);
        command.arg(sessions(&home));
        let output = ends(command);
        let saw: Value = serde_json::from_str(&output.ok().stdout).expect("the script prints JSON");
        eprintln!("{saw}");
        for what in ["jobs", "slices", "folders"] {
            assert_eq!(saw["left"][what], 0, "{saw}");
        }
        let _ = home.divvy(&["daemon", "--stop"]).ok();
    }

    #[test]
    fn two_hundred_tests_pass_in_slices_as_one_after_another() {
        let home = Home::new("a100-80gb:1");
        let _daemon = home.daemon(&[]);
        let suite = client_script("pytest_suite");
        let peaks = home.scratch().join("peaks.txt");
        let peaks = format!("divvy_peaks={}", peaks.display());
        for known in ["no peaks known", "200 peaks in"] {
            let mut command = session(&home, &["-n", "8", "-o", &peaks, &suite]);
            command.env("DIVVY_SUITE_TESTS", "200");
            let output = ends(command);
            let said = output.ok().stdout;
            eprintln!("{said}");
            assert!(
                said.contains("200 passed") && said.contains(known),
                "{said}"
            );
            no_slice_is_left(&home);
        }
    }
}
