//! Claims of another scheduler through the daemon: held exactly, idempotent, and taken back whatever dies when.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

mod crash;
use crate::mig::driver;
mod life;
mod slices;

use std::fs;
use std::path::PathBuf;

use divvy_api::client::Client;
use divvy_api::v1::{Claim, ClaimDevice, HeldClaim};
use divvy_testkit::Home;
use serde_json::Value;

const GIB: u64 = 1 << 30;

/// A home whose simulated machine has these GPUs, with CDI files in a folder of its own; no daemon yet.
fn machine(gpus: &str, config: &str) -> Home {
    let mut home = Home::empty();
    home.set("DIVVY_TEST_GPUS", gpus.to_owned());
    let file = home.path().join("sim.toml");
    fs::write(&file, config).unwrap();
    let file = file.to_str().unwrap().to_owned();
    home.set("DIVVY_SIM_CONFIG", file);
    home
}

/// GPU 0 is divided from the beginning.
const ENABLED: &str = "[mig]\nenabled = [0]\n";

/// A daemon over an A100 that is divided; `None` where this test may not divide one, which was said.
fn divided() -> Option<(Home, Client)> {
    let mut home = is_root().then(|| machine("a100-40gb:1", ENABLED))?;
    start(&mut home);
    let client = home.connect();
    Some((home, client))
}

fn start(home: &mut Home) {
    let words = words(home);
    home.start(&words.each_ref().map(String::as_str));
}

fn words(home: &Home) -> [String; 4] {
    let devices = format!("containers.cdi-dir={}", folder(home).display());
    ["--sim", home.get("DIVVY_TEST_GPUS"), "--set", &devices].map(str::to_owned)
}

fn folder(home: &Home) -> PathBuf {
    home.path().join("cdi")
}

/// Names of the CDI files, and their devices.
fn devices(home: &Home) -> Vec<String> {
    let entries = fs::read_dir(folder(home)).into_iter().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| {
            let text = fs::read(entry.unwrap().path()).unwrap();
            let cdi: Value = serde_json::from_slice(&text).unwrap();
            let name = cdi["devices"][0]["name"].as_str().unwrap();
            format!("{}={name}", cdi["kind"].as_str().unwrap())
        })
        .collect();
    names.sort();
    names
}

/// The CDI file of a claim.
fn cdi(home: &Home, held: &HeldClaim) -> Value {
    let (_, name) = held.cdi_device.split_once('=').unwrap();
    let text = fs::read(folder(home).join(format!("{name}.json"))).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Every host path that a claim's CDI file mounts is there.
fn all_mounts_are_there(home: &Home, held: &HeldClaim) {
    let cdi = cdi(home, held);
    let mounts = cdi["devices"][0]["containerEdits"]["mounts"]
        .as_array()
        .unwrap();
    assert!(!mounts.is_empty());
    for mount in mounts {
        let path = mount["hostPath"].as_str().unwrap();
        assert!(std::path::Path::new(path).exists(), "{path}");
    }
}

async fn gpu(client: &Client, index: usize) -> String {
    client.gpus().await.unwrap()[index].uuid.clone()
}

fn claim(devices: Vec<ClaimDevice>) -> Claim {
    Claim {
        namespace: "team".into(),
        name: "train".into(),
        pods: vec!["pod-1".into()],
        devices,
        ..Claim::default()
    }
}

/// Whether this test may divide GPUs: as on real ones, only root may.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: only root divides a GPU");
    }
    root
}
