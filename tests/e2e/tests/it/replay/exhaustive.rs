//! The other form, a daemon, an instance, a full GPU and NVIDIA's own program. Second tier.

use std::path::{Path, PathBuf};

use super::*;

/// The wrapper needs root; the command refuses other users with that reason.
#[test]
fn every_program_finds_what_it_expects_with_the_wrapper() {
    let home = Home::new("a100-80gb:2").variable("DIVVY_FORM", "wrapper");
    let said = home.divvy(&["selftest", "--like", "all", "-o", "json"]);
    if !rustix::process::geteuid().is_root() {
        let _ = said.exits(125);
        return;
    }
    all_pass(&said, "wrapper");
}

#[test]
fn a_gpu_with_room_for_one_slice_lacks_a_neighbour_and_says_so() {
    let home = Home::new("l4-24gb:1").variable("DIVVY_FORM", "preload");
    let words = [
        "selftest",
        "--like",
        "sglang,vllm",
        "--gpu-memory",
        "16G",
        "-o",
        "json",
    ];
    let replays = replays(&home.divvy(&words).ok());
    assert_eq!(step(&replays[1], "initial free")["result"], "not_available");
    let pair = step(&replays[0], "slices of one job");
    assert_eq!(pair["result"], "not_available", "{pair:#}");
    assert!(!pair["seen"].as_str().unwrap_or_default().is_empty());
}

#[test]
fn with_a_daemon_each_gpu_is_tried_and_no_slice_is_left() {
    let home = Home::new("a100-80gb:2");
    let _daemon = home.daemon(&[]);
    let words = [
        "selftest",
        "--like",
        "vllm",
        "--all",
        "--gpu-memory",
        "3G",
        "-o",
        "json",
    ];
    let replays = replays(&home.divvy(&words).ok());
    let indices: Vec<&Value> = replays.iter().map(|replay| &replay["gpu_index"]).collect();
    assert_eq!(indices, [0, 1]);
    assert!(replays.iter().all(|replay| replay["daemon"] == true));
    assert!(home.divvy(&["ps", "-o", "json"]).ok().items().is_empty());
    let table = home
        .divvy(&["selftest", "--like", "vllm", "--gpu", "1"])
        .ok()
        .stdout;
    assert!(table.starts_with("vllm on GPU 1 "), "{table}");
    assert!(
        table.contains(" 0 failed: vllm finds what it expects"),
        "{table}"
    );
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
    let words = ["selftest", "--like", "sglang", "-o", "json"];
    let first = |said: &CommandOutput| steps(&replays(said)[0])[0].clone();
    let limited = first(&home().divvy(&words).ok());
    assert_eq!(limited["seen"], "4096 MiB; limit 4096 MiB");
    let off = home().variable("DIVVY_SHIM", "off");
    let whole = first(&off.divvy(&words).exits(1));
    assert_eq!(whole["seen"], "81920 MiB; limit 4096 MiB");
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
    let words = [
        "selftest",
        "--like",
        "jax,nccl",
        "--gpu-memory",
        "2G",
        "-o",
        "json",
    ];
    let replays = replays(&home.divvy(&words).ok());
    assert!(replays.iter().all(|replay| replay["enforcement"] == "mig"));
    assert_eq!(step(&replays[0], "two that start at once")["result"], "ok");
}
