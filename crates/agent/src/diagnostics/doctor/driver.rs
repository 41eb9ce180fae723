//! Checks of the driver: whether there is one, which files are loaded, whether their versions match.

use std::path::Path;

use divvy_api::v1::Finding;

use super::machine::{Cuda, Gpu, Machine, Management};
use super::{fail, ok, warn};

const NO_CUDA: &str = "CUDA programs cannot run on this machine, and jobs cannot either";
const INSTALL: &str = "install NVIDIA's driver; to try Divvy without a GPU, use --sim a100-80gb:3";

pub fn findings(machine: &Machine, simulated: bool) -> Vec<Finding> {
    let said = machine.said.lines();
    let refusal = said
        .filter_map(|line| line.strip_prefix("divvy-sim: "))
        .next();
    if let Some(refusal) = refusal.filter(|_| simulated) {
        return vec![fail(
            "driver.simulated",
            refusal,
            "there are no simulated GPUs, so nothing else of them can be checked",
            "use MODEL:N, for example --sim a100-80gb:3",
        )];
    }
    let mut findings = vec![library(&machine.cuda), initialises(machine)]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>();
    findings.extend(management(&machine.nvml));
    if !simulated {
        let kernel = std::fs::read_to_string("/proc/driver/nvidia/version").ok();
        findings.extend(versions(kernel.as_deref(), &machine.nvml));
    }
    findings
}

/// Which `libcuda.so.1` a program here loads.
fn library(cuda: &Result<Cuda, String>) -> Option<Finding> {
    const CHECK: &str = "driver.library";
    Some(match cuda {
        Err(error) => fail(CHECK, error, NO_CUDA, INSTALL),
        Ok(cuda) => {
            let file = display_path(cuda.file.as_deref());
            if file.contains("/stubs/") {
                fail(
                    CHECK,
                    format!("libcuda.so.1 is {file}, a stub of the CUDA toolkit for linking"),
                    NO_CUDA,
                    "remove the stubs folder from LD_LIBRARY_PATH",
                )
            } else {
                ok(CHECK, format!("libcuda.so.1 is {file}"))
            }
        }
    })
}

/// Whether that library finds GPUs.
fn initialises(machine: &Machine) -> Option<Finding> {
    const CHECK: &str = "driver.cuda";
    let cuda = machine.cuda.as_ref().ok()?;
    Some(match &cuda.devices {
        Ok(0) if all_divided(machine) => ok(
            CHECK,
            "CUDA shows no device: every GPU is in MIG mode, and this user can use no MIG instance",
        ),
        Ok(0) => fail(CHECK, "CUDA shows no GPU", NO_CUDA, INSTALL),
        Ok(1) => ok(CHECK, "CUDA shows 1 GPU"),
        Ok(count) => ok(CHECK, format!("CUDA shows {count} GPUs")),
        Err(error) => fail(
            CHECK,
            error,
            NO_CUDA,
            "sudo dmesg | grep NVRM; after a driver update, reboot",
        ),
    })
}

/// Whether all GPUs are divided: then CUDA shows their instances, and nothing where there are none.
fn all_divided(machine: &Machine) -> bool {
    let gpus = machine.nvml.iter().flat_map(|nvml| &nvml.gpus);
    let divided = |gpu: &Result<Gpu, String>| {
        let mig = gpu.as_ref().ok().and_then(|gpu| gpu.mig.as_ref());
        mig.is_some_and(|mig| mig.on)
    };
    let divided: Vec<bool> = gpus.map(divided).collect();
    !divided.is_empty() && divided.iter().all(|divided| *divided)
}

fn management(nvml: &Result<Management, String>) -> Option<Finding> {
    const CHECK: &str = "driver.nvml";
    Some(match nvml {
        Err(error) => fail(
            CHECK,
            error,
            "Divvy finds GPUs through NVML, so it finds none",
            "install the driver's libnvidia-ml.so.1; in containers, add `utility` to NVIDIA_DRIVER_CAPABILITIES",
        ),
        Ok(nvml) => ok(
            CHECK,
            format!(
                "driver {}, up to CUDA {}; libnvidia-ml.so.1 is {}",
                nvml.driver_version,
                nvml.cuda_version,
                display_path(nvml.file.as_deref())
            ),
        ),
    })
}

/// Whether the kernel's part of the driver is of the same version: after an update it is the old one until a reboot.
/// `kernel` is what `/proc/driver/nvidia/version` says, where it is there.
fn versions(kernel: Option<&str>, nvml: &Result<Management, String>) -> Option<Finding> {
    const CHECK: &str = "driver.kernel";
    let Some(kernel) = kernel else {
        return nvml.is_ok().then(|| {
            warn(
                CHECK,
                "/proc/driver/nvidia/version does not exist",
                "the versions of kernel module and libraries cannot be compared (containers and WSL hide the file)",
                "",
            )
        });
    };
    let loaded = module_version(kernel)?;
    Some(match nvml {
        Ok(nvml) if nvml.driver_version == loaded => {
            ok(CHECK, format!("the kernel module has version {loaded}"))
        }
        Ok(nvml) => fail(
            CHECK,
            format!(
                "the kernel module has version {loaded}, but the libraries have {}",
                nvml.driver_version
            ),
            "programs fail as soon as they use a GPU",
            "reboot, or unload the old kernel module when no process uses it",
        ),
        Err(_) => fail(
            CHECK,
            format!(
                "the kernel module has version {loaded}, and the libraries do not work with it"
            ),
            "programs fail as soon as they use a GPU",
            "after a driver update, reboot; in containers, mount the host's libraries",
        ),
    })
}

/// `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025`, `… Open Kernel Module for
/// x86_64 …`
fn module_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("NVRM version"))?;
    let is_version =
        |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    line.split_whitespace().find(is_version).map(str::to_owned)
}

fn display_path(file: Option<&Path>) -> String {
    file.map_or_else(
        || "a file of unknown path".to_owned(),
        |file| {
            let real = file.canonicalize().unwrap_or_else(|_| file.to_owned());
            real.display().to_string()
        },
    )
}

#[cfg(test)]
mod tests {
    use divvy_api::v1::FindingStatus;

    use super::super::machine::{Compute, Mig};
    use super::*;

    fn nvml(version: &str) -> Result<Management, String> {
        Ok(Management {
            file: None,
            driver_version: version.to_owned(),
            cuda_version: "13.0".to_owned(),
            gpus: Vec::new(),
        })
    }

    fn cuda(file: &str, devices: Result<u32, String>) -> Result<Cuda, String> {
        Ok(Cuda {
            file: Some(file.into()),
            allocations: None,
            devices,
        })
    }

    #[test]
    fn an_updated_driver_whose_old_module_is_still_loaded_is_a_failure() {
        let kernel = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version: 12.2.0\n";
        let status = |version| versions(Some(kernel), &nvml(version)).map(|found| found.status);
        assert_eq!(status("580.95.05"), Some(FindingStatus::Ok));
        assert_eq!(status("590.10"), Some(FindingStatus::Fail));
        assert_eq!(versions(None, &Err("none".into())), None);
    }

    #[test]
    fn no_device_is_no_failure_where_every_gpu_is_divided() {
        let gpu = |on| {
            Ok(Gpu {
                index: 0,
                uuid: "GPU-0".into(),
                name: "NVIDIA A100".into(),
                minor: None,
                memory: None,
                mig: Some(Mig {
                    on,
                    pending: on,
                    instances: Ok(Vec::new()),
                }),
                compute: Compute::Anybody,
                persistence: None,
            })
        };
        let status = |gpus| {
            let found = initialises(&Machine {
                cuda: cuda("/usr/lib/libcuda.so.1", Ok(0)),
                nvml: nvml("580.95.05").map(|nvml| Management { gpus, ..nvml }),
                said: String::new(),
            });
            found.map(|found| found.status)
        };
        assert_eq!(status(vec![gpu(true), gpu(true)]), Some(FindingStatus::Ok));
        assert_eq!(
            status(vec![gpu(true), gpu(false)]),
            Some(FindingStatus::Fail)
        );
        assert_eq!(status(Vec::new()), Some(FindingStatus::Fail));
    }

    #[test]
    fn a_library_that_is_not_there_or_is_a_stub_or_finds_nothing_is_a_failure() {
        let none = Err("cannot load libcuda.so.1: no such file".to_owned());
        assert_eq!(
            library(&none).map(|found| found.status),
            Some(FindingStatus::Fail)
        );
        let initialises = |cuda: &Result<Cuda, String>| {
            super::initialises(&Machine {
                cuda: cuda.clone(),
                nvml: nvml("580.95.05"),
                said: String::new(),
            })
        };
        assert_eq!(initialises(&none), None, "one cause is one finding");
        let stub = cuda("/usr/local/cuda/lib64/stubs/libcuda.so", Ok(1));
        assert_eq!(
            library(&stub).map(|found| found.status),
            Some(FindingStatus::Fail)
        );
        let empty = cuda("/usr/lib/libcuda.so.1", Ok(0));
        assert_eq!(
            initialises(&empty).map(|found| found.status),
            Some(FindingStatus::Fail)
        );
        let well = cuda("/usr/lib/libcuda.so.1", Ok(2));
        assert_eq!(
            initialises(&well).map(|found| found.status),
            Some(FindingStatus::Ok)
        );
    }
}
