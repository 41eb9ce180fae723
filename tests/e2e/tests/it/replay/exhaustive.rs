//! The other form, a daemon, an instance and NVIDIA's own program. Second tier.

use std::path::{Path, PathBuf};

use super::*;

/// The wrapper needs root.
#[test]
fn every_program_finds_what_it_expects_with_the_wrapper() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: the wrapper needs root");
        return;
    }
    let home = Home::new("a100-80gb:2").variable("DIVVY_FORM", "wrapper");
    all_pass(&replays(&home, &["--no-daemon"], &all()));
}

#[test]
fn in_slices_of_a_daemon_every_program_finds_what_it_expects() {
    let home = Home::new("a100-80gb:2");
    let _daemon = home.daemon(&[]);
    all_pass(&replays(&home, &[], &all()));
    assert!(home.divvy(&["ps", "-o", "json"]).ok().items().is_empty());
}

/// SGLang's first step, with NVIDIA's own program where there is one.
#[test]
fn the_genuine_nvidia_smi_shows_the_limit_and_without_the_limiter_the_gpu() {
    let program = std::env::var_os("DIVVY_TEST_NVIDIA_SMI").map(PathBuf::from);
    let folder = program.as_deref().and_then(Path::parent);
    let Some(folder) = folder.and_then(Path::to_str) else {
        eprintln!("skipped: DIVVY_TEST_NVIDIA_SMI does not name NVIDIA's nvidia-smi");
        return;
    };
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
    let home = || {
        let home = Home::new("a100-80gb:2").variable("PATH", &path);
        home.variable("DIVVY_FORM", "preload")
    };
    let first = |home: &Home| {
        let mut replays = replays(home, &["--no-daemon"], &["sglang"]);
        replays
            .remove("sglang")
            .expect("it was played")
            .remove(0)
            .seen
    };
    assert_eq!(first(&home()), "4096 MiB; limit 4096 MiB");
    let off = home().variable("DIVVY_SHIM", "off");
    assert_eq!(first(&off), "81920 MiB; limit 4096 MiB");
}

#[test]
fn on_an_instance_the_limit_is_the_instances() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root may divide a GPU");
        return;
    }
    let home = Home::new("a100-40gb:1");
    let config = home.scratch().join("sim.toml");
    std::fs::write(&config, "[mig]\nenabled = [0]\n").expect("the folder can be written");
    let home = home.variable("DIVVY_SIM_CONFIG", config.to_str().expect("a path"));
    let _daemon = home.daemon(&[]);
    let replays = replays(&home, &[], &["jax", "nccl"]);
    for (program, steps) in &replays {
        let failed = steps.iter().find(|step| step.result == StepResult::Failed);
        assert!(failed.is_none(), "{program}: {failed:#?}");
    }
    let step = step(&replays, "jax", "two that start at once");
    assert_eq!(step.result, StepResult::Ok, "{step:#?}");
}
