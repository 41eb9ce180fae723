//! A node of another scheduler: only its slices get GPUs, whichever command a user tries, and its slices are its own.

use std::fs;

use divvy_e2e::{CommandOutput, Home};
use divvy_testkit::{Bounded as _, can_be_users};
use serde_json::{Value, json};

/// Users that no user database has: the engine's own, and two that run tasks of it.
const ENGINE: &str = "60141";
const ANA: &str = "60142";
const LEE: &str = "60143";

/// The system's daemon with this configuration file.
fn system(file: &str) -> Option<(Home, divvy_e2e::Daemon)> {
    if !can_be_users("nothing of a node of another scheduler is tested here") {
        return None;
    }
    let home = Home::new("a100-80gb:1");
    write(&home, file);
    let daemon = home.daemon(&["--system"]);
    Some((home, daemon))
}

fn write(home: &Home, file: &str) {
    fs::create_dir_all(home.path()).expect("the folder is ours");
    fs::write(home.path().join("config.toml"), file).expect("the folder is ours");
}

fn divvy(home: &Home, user: &str, words: &[&str]) -> CommandOutput {
    let output = home.divvy_as(user).args(words).output_bounded();
    CommandOutput::new(words.join(" "), &output.expect("setpriv starts"))
}

const MODE: &str = "claims-only = true\n[roles]\nengine = [60141]\n";

#[test]
fn only_slices_of_the_engine_get_gpus_on_its_node() {
    let Some((home, _daemon)) = system(MODE) else {
        return;
    };
    // Users, and the engine's own user too: a task of Ray runs as Ray.
    for user in [ANA, ENGINE] {
        for words in [
            &["run", "-g", "1", "--", "true"][..],
            &["submit", "-g", "0.5", "--", "true"],
            &["submit", "--dry-run", "-g", "0.5", "--", "true"],
        ] {
            let said = divvy(&home, user, words).exits(4);
            for expected in ["claims-only", "another scheduler", "hint: request the GPU"] {
                assert!(said.stderr.contains(expected), "{}", said.stderr);
            }
        }
    }
    let said = divvy(
        &home,
        ANA,
        &["submit", "-g", "1", "-o", "json", "--", "true"],
    )
    .exits(4);
    let error: Value = serde_json::from_str(&said.stderr).expect("the error is JSON");
    assert_eq!(error["error"]["code"], "not_allowed", "{error}");
    let create = |name| ["slice", "create", name, "--gpus-on", "0", "-g", "0.25"];
    let said = divvy(&home, ANA, &create("mine")).exits(4);
    assert!(said.stderr.contains("queues"), "{}", said.stderr);
    let owned = [&create("task-7")[..], &["--user", ANA]].concat();
    let _ = divvy(&home, ENGINE, &owned).ok();
    let task = ["slice", "enter", "task-7", "--"];
    let probe = home.program("cudarc_probe");
    let said = divvy(&home, ANA, &[&task[..], &[&probe, "fill"]].concat()).ok();
    assert_eq!(said.json()["error"], "CUDA_ERROR_OUT_OF_MEMORY");
    // The administrator's own jobs run: `divvy selftest` is one.
    let _ = home.divvy(&["run", "-g", "0.25", "--", "true"]).ok();
    assert_eq!(home.items(&["gpus"])[0]["slices"][0]["job"], json!("1"));
}

#[test]
fn a_slice_of_an_engine_is_released_by_the_engine_and_not_by_its_owner() {
    let Some((home, _daemon)) = system(MODE) else {
        return;
    };
    let slices = |user: &str| {
        let said = divvy(&home, user, &["slice", "ls", "-o", "name"]).ok();
        said.stdout.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let create = |name, user| {
        let words = ["slice", "create", name, "--gpus-on", "0", "-g", "0.25"];
        let _ = divvy(&home, ENGINE, &[&words[..], &["--user", user]].concat()).ok();
    };
    create("task-1", ANA);
    create("task-2", LEE);
    create("task-3", LEE);
    assert_eq!(slices(ANA), ["task-1"]);
    assert_eq!(slices(ENGINE), ["task-1", "task-2", "task-3"]);
    let said = divvy(&home, ANA, &["slice", "rm", "task-1"]).exits(4);
    for expected in ["created by uid 60141", "operators"] {
        assert!(said.stderr.contains(expected), "{}", said.stderr);
    }
    let _ = divvy(&home, LEE, &["slice", "rm", "task-1"]).exits(4);
    let _ = divvy(&home, ANA, &["slice", "enter", "task-1", "--", "true"]).ok();
    let _ = divvy(&home, ENGINE, &["slice", "rm", "task-1"]).ok();
    let _ = home.divvy(&["slice", "rm", "task-2"]).ok();
    assert_eq!(slices(ENGINE), ["task-3"]);
}

#[test]
fn a_job_of_a_program_in_an_engines_slice_is_refused_with_the_way() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let create = ["slice", "create", "task-7", "--gpus-on", "0", "-g", "0.25"];
    let _ = home.divvy(&create).ok();
    let divvy = home.program("divvy");
    let enter = ["slice", "enter", "task-7", "--"];
    for verb in ["run", "submit"] {
        let nested = [&enter[..], &[&divvy, verb, "-g", "1", "--", "true"]].concat();
        let said = home.divvy(&nested).exits(4);
        for expected in [
            "in the slice task-7",
            "without `divvy run`",
            "19.8 GiB of GPU 0",
        ] {
            assert!(said.stderr.contains(expected), "{}", said.stderr);
        }
    }
    // A job of Divvy's own queues may start others. The client ignores a number of another daemon.
    let _ = home
        .divvy(&[
            "run", "-g", "0.25", "--", &divvy, "run", "-g", "0.25", "--", "true",
        ])
        .ok();
}

#[test]
fn the_registry_keeps_other_users_daemons_from_the_gpus_of_an_engine() {
    let Some((home, _daemon)) = system("") else {
        return;
    };
    let own = home.scratch().join("own");
    let other = || {
        let mut command = home.outside(&home.program("divvy"));
        command.env_remove("DIVVY_SIM").env("DIVVY_HOME", &own);
        command.args(["run", "--no-daemon", "-g", "0.5", "--", "true"]);
        let output = command.output_bounded().expect("divvy starts");
        CommandOutput::new("run --no-daemon".to_owned(), &output)
    };
    let _ = other().ok();
    write(&home, MODE);
    let _ = home.divvy(&["config", "reload"]).ok();
    let said = other().exits(6);
    assert!(said.stderr.contains("held by"), "{}", said.stderr);
    // The amount that is kept from others is the engine's.
    let create = ["slice", "create", "task-8", "--gpus-on", "0", "-g", "1"];
    let _ = home.divvy(&create).ok();
    let _ = home.divvy(&["slice", "rm", "task-8"]).ok();
    write(&home, "");
    let _ = home.divvy(&["config", "reload"]).ok();
    let _ = other().ok();
}
