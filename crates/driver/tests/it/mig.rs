//! The safe layer over MIG, on simulated GPUs. It loads the built simulator.
//!
//! The simulator reads its environment once in a process, so each test runs itself in a process of its own.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use divvy_driver::nvml::mig::{Activation, GpuInstance, MigMode, MigRefusal, Placement};
use divvy_driver::nvml::{Device, Nvml};
use divvy_testkit::Bounded as _;

const ENABLED: &str = "[mig]\nenabled = [0]\n";

/// Set in the process that is a machine's only user.
const INSIDE: &str = "DIVVY_TEST_MIG";

fn simulator() -> PathBuf {
    divvy_testkit::programs::folder().join("libdivvy_sim.so")
}

/// Runs `body` on the first GPU of a machine with one of this model; `test` is the name of the test that asks for it.
#[track_caller]
fn on(model: &str, config: &str, test: &str, body: impl FnOnce(Device<'_>)) {
    let library = simulator();
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        eprintln!("skipped: only root divides a GPU");
        return;
    }
    if std::env::var_os(INSIDE).is_some() {
        let nvml = Nvml::load(Some(&library)).unwrap();
        let mut devices = nvml.devices().unwrap();
        body(devices.remove(0).unwrap());
        return;
    }
    let folder = Folder::new(test);
    let file = folder.0.join("config.toml");
    std::fs::write(&file, config).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("mig::{test}"), "--nocapture"])
        .env(INSIDE, "1")
        .env("DIVVY_SIM", format!("{model}:1"))
        .env("DIVVY_SIM_STATE", folder.0.join("state"))
        .env("DIVVY_SIM_CONFIG", file)
        .output_bounded()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let folder =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn at(start: u32, size: u32) -> Placement {
    Placement { start, size }
}

/// What lies there, as (profile, start).
fn layout(gpu: &Device<'_>) -> Vec<(u32, u32)> {
    let mut all: Vec<(u32, u32)> = gpu
        .gpu_instances()
        .unwrap()
        .iter()
        .map(|(_, info)| (info.profile, info.placement.start))
        .collect();
    all.sort_unstable();
    all
}

fn clear(instance: &GpuInstance<'_>) {
    for (compute, _) in instance.compute_instances().unwrap() {
        compute.destroy().unwrap();
    }
    instance.destroy().unwrap();
}

#[test]
fn an_instance_lies_where_it_was_told_to_and_is_found_again() {
    let test = "an_instance_lies_where_it_was_told_to_and_is_found_again";
    on("a100-40gb", ENABLED, test, made_and_found);
}

#[test]
fn a_driver_that_names_the_device_of_a_compute_instance_is_understood_too() {
    let config = format!("{ENABLED}info_names_mig_device = true\n");
    let test = "a_driver_that_names_the_device_of_a_compute_instance_is_understood_too";
    on("a100-40gb", &config, test, made_and_found);
}

fn made_and_found(gpu: Device<'_>) {
    // Another's device comes first in every list.
    let other = gpu.create_gpu_instance(19, at(0, 1)).unwrap();
    other.create_full_compute_instance().unwrap();

    let made = gpu.create_gpu_instance(9, at(4, 4)).unwrap();
    assert_eq!(layout(&gpu), [(9, 4), (19, 0)]);
    let compute = made.create_full_compute_instance().unwrap();
    let info = compute.info().unwrap();
    assert_eq!(info.placement, at(0, 3));
    let device = compute.device().unwrap();
    assert_eq!(device.uuid().unwrap(), info.uuid);
    assert!(device.name().unwrap().ends_with("MIG 3g.20gb"));
    assert_eq!(device.compute_instance_id().unwrap(), info.id);
    assert_eq!(device.gpu_instance_id().unwrap(), made.info().unwrap().id);
    assert_eq!(device.memory().unwrap().total, 19_968 << 20);
    assert_eq!(device.processes().unwrap(), []);
    let again = made.create_full_compute_instance();
    assert_eq!(again.err().unwrap().refusal(), Some(MigRefusal::NoRoom));
    assert_eq!(
        made.destroy().unwrap_err().refusal(),
        Some(MigRefusal::InUse)
    );
    clear(&made);
    assert_eq!(made.info().unwrap_err().refusal(), Some(MigRefusal::Gone));
    assert_eq!(layout(&gpu), [(19, 0)]);
}

#[test]
fn a_place_that_is_taken_or_not_listed_is_no_room_and_nothing_changes() {
    on(
        "a100-40gb",
        ENABLED,
        "a_place_that_is_taken_or_not_listed_is_no_room_and_nothing_changes",
        |gpu| {
            gpu.create_gpu_instance(9, at(0, 4)).unwrap();
            // What would fit elsewhere, what lies over it, what may not begin there, what there is no such profile of.
            for (profile, place) in [
                (5, at(0, 4)),
                (19, at(3, 1)),
                (14, at(5, 2)),
                (77, at(4, 1)),
            ] {
                let error = gpu.create_gpu_instance(profile, place).err().unwrap();
                assert_eq!(
                    error.refusal(),
                    Some(MigRefusal::NoRoom),
                    "{profile} {place:?}: {error}"
                );
            }
            assert_eq!(layout(&gpu), [(9, 0)]);
            assert_eq!(gpu.remaining_capacity(9).unwrap(), 1);
            assert_eq!(gpu.remaining_capacity(5).unwrap(), 0);
        },
    );
}

#[test]
fn an_instance_without_a_device_is_found() {
    on(
        "a100-40gb",
        ENABLED,
        "an_instance_without_a_device_is_found",
        |gpu| {
            gpu.create_gpu_instance(19, at(3, 1)).unwrap();
            let (orphan, info) = gpu.gpu_instances().unwrap().remove(0);
            assert_eq!((info.profile, info.placement), (19, at(3, 1)));
            assert!(orphan.compute_instances().unwrap().is_empty());
            orphan.destroy().unwrap();
            assert_eq!(layout(&gpu), []);
        },
    );
}

#[test]
fn profiles_are_listed_by_number_with_all_of_their_places() {
    on(
        "rtxpro6000-96gb",
        ENABLED,
        "profiles_are_listed_by_number_with_all_of_their_places",
        |gpu| {
            let profiles = gpu.gpu_instance_profiles().unwrap();
            let places = |id: u32| {
                let (_, places) = profiles.iter().find(|(one, _)| one.id == id).unwrap();
                places.clone()
            };
            assert_eq!(places(14), [at(0, 3), at(3, 3), at(6, 3), at(9, 3)]);
            assert_eq!(places(5), [at(0, 6), at(6, 6)]);
            assert_eq!(places(0), [at(0, 12)]);
            let numbers: Vec<u32> = profiles.iter().map(|(one, _)| one.number).collect();
            assert!(numbers.is_sorted());
            assert!(profiles.iter().all(|(one, _)| one.name.is_some()));
        },
    );
}

#[test]
fn a_profile_that_fails_hides_neither_the_others_nor_its_instances() {
    let numbers = "[[fault]]\nfunction = 'nvmlDeviceGetGpuInstanceProfileInfo*'\ncall = 1\ntimes = 2\ncode = 999\n";
    on(
        "a100-40gb",
        &format!("{ENABLED}{numbers}"),
        "a_profile_that_fails_hides_neither_the_others_nor_its_instances",
        |gpu| {
            // Both ways of asking for the first number fail.
            let profiles = gpu.gpu_instance_profiles().unwrap();
            assert!(profiles.iter().all(|(one, _)| one.number != 0));
            let known: Vec<u32> = profiles.iter().map(|(one, _)| one.id).collect();
            assert!(known.contains(&14) && known.contains(&0) && !known.contains(&19));
            gpu.create_gpu_instance(19, at(6, 1)).unwrap();
            let found = gpu.gpu_instances_of(&known).unwrap();
            let (_, info) = &found[0];
            assert_eq!((info.profile, info.placement.start), (19, 6));
        },
    );
}

#[test]
fn hoppers_instance_with_double_memory_gets_the_compute_profile_that_it_has() {
    on(
        "h100-80gb",
        ENABLED,
        "hoppers_instance_with_double_memory_gets_the_compute_profile_that_it_has",
        |gpu| {
            let made = gpu.create_gpu_instance(15, at(0, 2)).unwrap();
            let compute = made.create_full_compute_instance().unwrap();
            assert_eq!(compute.info().unwrap().profile, 7);
        },
    );
}

#[test]
fn the_same_slot_has_the_same_device_when_it_is_made_again() {
    on(
        "a100-40gb",
        ENABLED,
        "the_same_slot_has_the_same_device_when_it_is_made_again",
        |gpu| {
            let make = || {
                let made = gpu.create_gpu_instance(19, at(3, 1)).unwrap();
                let compute = made.create_full_compute_instance().unwrap();
                let uuid = compute.info().unwrap().uuid;
                (made, uuid)
            };
            let (first, uuid) = make();
            clear(&first);
            let (second, again) = make();
            assert_eq!(uuid, again);
            assert_eq!(second.info().unwrap().id, {
                let (_, info) = gpu.gpu_instances().unwrap().remove(0);
                info.id
            });
        },
    );
}

#[test]
fn a_mode_is_set_or_waits_and_is_never_an_error_for_that() {
    on(
        "h100-80gb",
        "",
        "a_mode_is_set_or_waits_and_is_never_an_error_for_that",
        |gpu| {
            let mode = |current, pending| Some(MigMode { current, pending });
            assert_eq!(gpu.mig_mode().unwrap(), mode(false, false));
            let error = gpu.gpu_instances_of(&[19]).err().unwrap();
            assert_eq!(error.refusal(), Some(MigRefusal::NotSupported));
            assert_eq!(gpu.set_mig_mode(true).unwrap(), Activation::Done);
            assert_eq!(gpu.mig_mode().unwrap(), mode(true, true));
            gpu.create_gpu_instance(19, at(0, 1)).unwrap();
            assert_eq!(gpu.set_mig_mode(false).unwrap(), Activation::InUse);
        },
    );
}

#[test]
fn ampere_wants_a_reset() {
    on("a100-40gb", "", "ampere_wants_a_reset", |gpu| {
        assert_eq!(gpu.set_mig_mode(true).unwrap(), Activation::ResetRequired);
        let mode = gpu.mig_mode().unwrap().unwrap();
        assert_eq!((mode.current, mode.pending), (false, true));
    });
}

#[test]
fn a_gpu_without_mig_has_no_mode() {
    on("l4-24gb", "", "a_gpu_without_mig_has_no_mode", |gpu| {
        assert_eq!(gpu.mig_mode().unwrap(), None);
        let error = gpu.set_mig_mode(true).unwrap_err();
        assert_eq!(error.refusal(), Some(MigRefusal::NotSupported));
    });
}

#[test]
fn a_user_without_a_right_is_told_which_role_has_it() {
    let config = format!("unprivileged = true\n{ENABLED}");
    on(
        "a100-40gb",
        &config,
        "a_user_without_a_right_is_told_which_role_has_it",
        |gpu| {
            let error = gpu.create_gpu_instance(19, at(0, 1)).err().unwrap();
            let refusal = error.refusal().unwrap();
            assert_eq!(refusal, MigRefusal::NoPermission);
            assert!(refusal.hint().contains("root"));
            // Whoever may not change instances may not see them either.
            let error = gpu.gpu_instances().err().unwrap();
            assert_eq!(error.refusal(), Some(MigRefusal::NoPermission));
        },
    );
}
