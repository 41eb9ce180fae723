//! The simulated driver's own word on what lies on the GPUs, and somebody else who changes it.
//!
//! The simulator reads its environment once in a process, so each question is asked by this test program, run once more.

use std::ffi::c_void;
use std::mem::transmute;
use std::path::Path;
use std::process::{Command, Stdio};
use std::ptr::null_mut;

use divvy_driver::nvml::Nvml;
use divvy_driver::nvml::mig::{GpuInstance, Placement};
use divvy_testkit::{Bounded as _, Home};

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

/// An administrator turns MIG mode on by hand.
pub fn turn_on(home: &Home, gpu: usize) {
    ask(home, &format!("on {gpu}"));
}

/// An administrator destroys one by hand.
pub fn destroy(home: &Home, gpu: usize, profile: u32, start: u32) {
    ask(home, &format!("destroy {gpu} {profile} {start}"));
}

/// An administrator empties one by hand, and makes so many compute instances of one slice in it.
pub fn divide(home: &Home, gpu: usize, profile: u32, start: u32, parts: u32) {
    ask(home, &format!("divide {gpu} {profile} {start} {parts}"));
}

/// The compute slices of each compute instance in an instance.
pub fn parts(home: &Home, gpu: usize, profile: u32, start: u32) -> Vec<u32> {
    let text = ask(home, &format!("parts {gpu} {profile} {start}"));
    let parts = text.lines().filter_map(|line| line.strip_prefix("part "));
    parts.map(|part| part.parse().unwrap()).collect()
}

/// Something happens to the machine: `hold:0/1/0`, `release:0`, `lose:1`, `sick:0=214`, `reboot`.
#[track_caller]
pub fn happen(home: &Home, what: &str) {
    divvy_testkit::sim::control(&state(home), &[what]);
}

/// Which GPUs are in MIG mode.
pub fn modes(home: &Home) -> Vec<bool> {
    let text = ask(home, "modes");
    let modes = text.lines().filter_map(|line| line.strip_prefix("mode "));
    modes.map(|mode| mode == "true").collect()
}

/// The state of the machine: that of `--sim`, or the one of a machine that a test made.
fn state(home: &Home) -> std::path::PathBuf {
    if home.path().join("driver").is_dir() {
        home.path().join("sim-state")
    } else {
        home.path().join("sim/state")
    }
}

fn ask(home: &Home, question: &str) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "mig::driver::answers", "--nocapture"])
        .env(QUESTION, question)
        .env("DIVVY_SIM", home.get("DIVVY_TEST_GPUS"))
        .env("DIVVY_SIM_STATE", state(home))
        .env_remove("DIVVY_SIM_CONFIG")
        .stdin(Stdio::null())
        .output_bounded()
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
    let library = divvy_testkit::programs::folder().join("libdivvy_sim.so");
    let words: Vec<&str> = question.split_whitespace().collect();
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
        "on" => {
            let gpu = devices.remove(number(1) as usize).unwrap();
            gpu.set_mig_mode(true).unwrap();
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
        "destroy" | "divide" | "parts" => {
            let gpu = devices.remove(number(1) as usize).unwrap();
            let all = gpu.gpu_instances().unwrap();
            let there = all
                .iter()
                .find(|(_, info)| info.profile == number(2) && info.placement.start == number(3));
            let (instance, info) = there.unwrap();
            if words[0] == "parts" {
                for (_, info) in instance.compute_instances().unwrap() {
                    println!("part {}", info.placement.size);
                }
                return;
            }
            empty(instance);
            match words[0] {
                "divide" => add_parts(&library, number(1), info.id, number(4)),
                _ => instance.destroy().unwrap(),
            }
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

fn empty(instance: &GpuInstance<'_>) {
    for (compute, _) in instance.compute_instances().unwrap() {
        compute.destroy().unwrap();
    }
}

/// Makes compute instances of the smallest profile. What the product is made of makes none but whole ones, so the library itself is asked.
fn add_parts(library: &Path, gpu: u32, instance: u32, parts: u32) {
    use divvy_driver::load::Library;
    use divvy_driver::sys::nvml::{nvmlReturn_t, pfn};
    let library = Library::open(Some(library), "libdivvy_sim.so").unwrap();
    let at = |name| library.address(name).unwrap();
    // SAFETY: the simulator exports them with these signatures.
    let (gpu_of, instance_of, make) = unsafe {
        (
            transmute::<*mut c_void, pfn::nvmlDeviceGetHandleByIndex_v2>(at(
                c"nvmlDeviceGetHandleByIndex_v2",
            )),
            transmute::<*mut c_void, pfn::nvmlDeviceGetGpuInstanceById>(at(
                c"nvmlDeviceGetGpuInstanceById",
            )),
            transmute::<*mut c_void, pfn::nvmlGpuInstanceCreateComputeInstance>(at(
                c"nvmlGpuInstanceCreateComputeInstance",
            )),
        )
    };
    let (mut device, mut within, mut made) = (null_mut(), null_mut(), null_mut());
    // SAFETY: NVML is initialised; each writes a handle.
    unsafe {
        assert_eq!(gpu_of(gpu, &raw mut device), nvmlReturn_t::SUCCESS);
        let found = instance_of(device, instance, &raw mut within);
        assert_eq!(found, nvmlReturn_t::SUCCESS);
    }
    for _ in 0..parts {
        // SAFETY: the handle of an instance that is there; writes a handle. Profile 0 has one slice (data/mig.toml).
        let done = unsafe { make(within, 0, &raw mut made) };
        assert_eq!(done, nvmlReturn_t::SUCCESS);
    }
}
