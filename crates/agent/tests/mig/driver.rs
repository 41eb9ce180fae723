//! The simulated driver's own word on what lies on the GPUs, and somebody else who changes it.
//!
//! The simulator reads its environment once in a process, so each question is asked by this test program, run once more.

use std::process::{Command, Stdio};

use divvy_driver::nvml::Nvml;
use divvy_driver::nvml::mig::{GpuInstance, Placement};

use crate::harness::Home;

/// Set in the process that asks, with the question.
const QUESTION: &str = "DIVVY_TEST_QUESTION";

/// A GPU instance: its profile, where it begins, its MIG device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct There {
    pub profile: u32,
    pub start: u32,
    pub device: Option<String>,
}

/// What lies on a GPU, by profile and start.
pub fn layout(home: &Home, gpu: usize) -> Vec<There> {
    let text = ask(home, &format!("list {gpu}"));
    let mut all: Vec<There> = text
        .lines()
        .filter_map(|line| line.strip_prefix("there "))
        .map(|line| {
            let mut words = line.split_whitespace();
            let mut number = || words.next().unwrap().parse().unwrap();
            There {
                profile: number(),
                start: number(),
                device: words.next().map(str::to_owned),
            }
        })
        .collect();
    all.sort();
    all
}

/// The same without devices: (profile, start).
pub fn places(home: &Home, gpu: usize) -> Vec<(u32, u32)> {
    let there = layout(home, gpu);
    there.iter().map(|one| (one.profile, one.start)).collect()
}

/// An administrator makes an instance by hand; `whole` with its device.
pub fn make(home: &Home, gpu: usize, profile: u32, start: u32, size: u32, whole: bool) {
    ask(
        home,
        &format!("make {gpu} {profile} {start} {size} {whole}"),
    );
}

/// An administrator destroys one by hand.
pub fn destroy(home: &Home, gpu: usize, profile: u32, start: u32) {
    ask(home, &format!("destroy {gpu} {profile} {start}"));
}

/// Something happens to the machine: `hold:0/1/0`, `release:0`, `lose:1`, `reboot`.
pub fn happen(home: &Home, what: &str) {
    ask(home, &format!("happen {what}"));
}

/// Which GPUs are in MIG mode.
pub fn modes(home: &Home) -> Vec<bool> {
    let text = ask(home, "modes");
    let modes = text.lines().filter_map(|line| line.strip_prefix("mode "));
    modes.map(|mode| mode == "true").collect()
}

fn ask(home: &Home, question: &str) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "driver::answers", "--nocapture"])
        .env(QUESTION, question)
        .env("DIVVY_SIM", &home.env["DIVVY_TEST_GPUS"])
        .env("DIVVY_SIM_STATE", home.path().join("sim/state"))
        .env_remove("DIVVY_SIM_CONFIG")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{question}: {text}{errors}");
    text
}

/// Answers a question of another process; run by itself it has nothing to say.
#[test]
fn answers() {
    let Ok(question) = std::env::var(QUESTION) else {
        return;
    };
    let test = std::env::current_exe().unwrap();
    let library = test.ancestors().nth(2).unwrap().join("libdivvy_sim.so");
    let words: Vec<&str> = question.split_whitespace().collect();
    if let ["happen", what] = words[..] {
        return control(&library, what);
    }
    let nvml = Nvml::load(Some(&library)).unwrap();
    let mut devices = nvml.devices().unwrap();
    println!();
    let number = |at: usize| words[at].parse::<u32>().unwrap();
    match words[0] {
        "list" => {
            let gpu = devices.remove(number(1) as usize).unwrap();
            for (instance, info) in gpu.gpu_instances().unwrap() {
                let device = instance.compute_instances().unwrap();
                let device = device.first().map(|(_, info)| info.uuid.clone());
                let (profile, start) = (info.profile, info.placement.start);
                println!("there {profile} {start} {}", device.unwrap_or_default());
            }
        }
        "make" => {
            let gpu = devices.remove(number(1) as usize).unwrap();
            let at = Placement {
                start: number(3),
                size: number(4),
            };
            let made = gpu.create_gpu_instance(number(2), at).unwrap();
            if words[5] == "true" {
                made.create_full_compute_instance().unwrap();
            }
        }
        "destroy" => {
            let gpu = devices.remove(number(1) as usize).unwrap();
            let all = gpu.gpu_instances().unwrap();
            let there = all
                .iter()
                .find(|(_, info)| info.profile == number(2) && info.placement.start == number(3));
            clear(&there.unwrap().0);
        }
        "modes" => {
            for gpu in devices {
                let mode = gpu.unwrap().mig_mode().unwrap();
                println!("mode {}", mode.is_some_and(|mode| mode.current));
            }
        }
        other => panic!("{other}?"),
    }
}

fn clear(instance: &GpuInstance<'_>) {
    for (compute, _) in instance.compute_instances().unwrap() {
        compute.destroy().unwrap();
    }
    instance.destroy().unwrap();
}

fn control(library: &std::path::Path, order: &str) {
    use divvy_driver::load::Library;
    let library = Library::open(Some(library), "libdivvy_sim.so").unwrap();
    let address = library.address(c"divvy_sim_control").unwrap();
    let order = std::ffi::CString::new(order).unwrap();
    // SAFETY: the simulator exports it with this signature.
    let control = unsafe {
        std::mem::transmute::<
            *mut std::ffi::c_void,
            unsafe extern "C" fn(*const std::ffi::c_char) -> u32,
        >(address)
    };
    // SAFETY: a NUL-terminated string.
    assert_eq!(unsafe { control(order.as_ptr()) }, 0);
}
