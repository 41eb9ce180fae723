//! Checks of a GPU in MIG mode: its instances, whether jobs can get one, and the obstacles.

use std::path::Path;

use divvy_api::v1::Finding;
use divvy_core::Bytes;

use super::machine::{Gpu, Instance, Mig};
use super::{ok, warn};
use crate::host::mig_device_nodes::{ComputeInstanceId, DeviceNodeError};

/// `root` is where the driver's capability files are, where that can be known.
pub fn findings(gpu: &Gpu, mig: &Mig, may_divide: bool, root: Option<&Path>) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(mode(gpu, mig));
    if !mig.on {
        return findings;
    }
    findings.push(enforcement(gpu, may_divide));
    match &mig.instances {
        Err(error) => findings.push(warn(
            &check(gpu, "instances"),
            format!("the MIG instances cannot be listed: {error}"),
            "`divvy doctor` cannot check the instances of this GPU",
            "sudo divvy doctor",
        )),
        Ok(instances) => {
            findings.push(listed(gpu, instances));
            findings.extend(instances.iter().flat_map(|own| broken(gpu, own)));
            let files = root.and_then(|root| missing(gpu, instances, root));
            findings.extend(files);
        }
    }
    findings
}

fn check(gpu: &Gpu, what: &str) -> String {
    format!("gpu.{}.{what}", gpu.index)
}

/// A mode that was set and is not in force.
fn mode(gpu: &Gpu, mig: &Mig) -> Option<Finding> {
    let (found, means) = match (mig.on, mig.pending) {
        (false, true) => (
            "MIG mode was enabled, but the GPU was not reset yet",
            "until the reset, jobs share it as one GPU",
        ),
        (true, false) => (
            "MIG mode was disabled, but the GPU was not reset yet",
            "until the reset, jobs can use only its MIG instances",
        ),
        _ => return None,
    };
    let fix = format!(
        "sudo nvidia-smi --gpu-reset -i {}, when no process uses the GPU",
        gpu.index
    );
    Some(warn(&check(gpu, "mig_mode"), found, means, &fix))
}

/// What holds a limit on its instances.
fn enforcement(gpu: &Gpu, may_divide: bool) -> Finding {
    let check = check(gpu, "enforcement");
    if may_divide {
        return ok(
            &check,
            "the daemon creates a MIG instance for each job, and the driver enforces its limits",
        );
    }
    warn(
        &check,
        "the GPU is in MIG mode, but this user may not create instances",
        "a daemon of this user cannot start jobs on this GPU",
        &format!(
            "start the daemon as root; or leave MIG mode, when no process uses the GPU: sudo nvidia-smi -i {} -mig 0",
            gpu.index
        ),
    )
}

/// All that is on it, in one line.
fn listed(gpu: &Gpu, instances: &[Instance]) -> Finding {
    let check = check(gpu, "instances");
    if instances.is_empty() {
        return ok(&check, "no MIG instances yet");
    }
    let each: Vec<String> = instances.iter().map(described).collect();
    ok(&check, each.join("; "))
}

fn described(instance: &Instance) -> String {
    let Ok(devices) = &instance.devices else {
        return instance.label.clone();
    };
    let each: Vec<String> = devices
        .iter()
        .map(|device| {
            let used = Bytes::new(device.used).human();
            match device.processes {
                0 if device.used == 0 => format!("{} idle", device.uuid),
                1 => format!("{} {used} in use by 1 process", device.uuid),
                count => format!("{} {used} in use by {count} processes", device.uuid),
            }
        })
        .collect();
    format!("{} {}", instance.label, each.join(", "))
        .trim_end()
        .to_owned()
}

/// An instance that is no device, or cannot be inspected.
fn broken(gpu: &Gpu, instance: &Instance) -> Option<Finding> {
    let Instance { id, label, devices } = instance;
    let check = check(gpu, &format!("instance.{id}"));
    match devices {
        Err(error) => Some(warn(
            &check,
            format!("GPU instance {id} ({label}) cannot be inspected: {error}"),
            "its memory use and its processes are unknown",
            "",
        )),
        Ok(devices) if devices.is_empty() => Some(warn(
            &check,
            format!("GPU instance {id} ({label}) has no compute instance"),
            "it occupies memory of the GPU, but no program can use it",
            &format!(
                "sudo nvidia-smi mig -i {} -gi {id} -dgi, unless another program is setting it up",
                gpu.index
            ),
        )),
        Ok(_) => None,
    }
}

/// Device files of rights that are not there: programs and containers need them, and nvidia-modprobe makes them.
fn missing(gpu: &Gpu, instances: &[Instance], root: &Path) -> Option<Finding> {
    let minor = gpu.minor?;
    let devices = instances.iter().flat_map(|instance| {
        let devices = instance.devices.iter().flatten();
        devices.map(move |device| ComputeInstanceId {
            minor,
            instance: instance.id,
            compute: device.id,
        })
    });
    let nodes: Vec<Result<_, DeviceNodeError>> =
        devices.map(|which| which.find_nodes(root)).collect();
    let check = check(gpu, "capabilities");
    let means = "programs and containers cannot use the instances of these device files";
    if let Some(error) = nodes.iter().find_map(|nodes| nodes.as_ref().err()) {
        return Some(warn(
            &check,
            crate::host::error::error_chain(error),
            means,
            "in containers, mount /proc/driver/nvidia/capabilities; elsewhere, sudo dmesg | grep NVRM",
        ));
    }
    let files = nodes.iter().flatten().flat_map(|nodes| &nodes.capabilities);
    let missing: Vec<String> = files
        .filter(|file| !file.exists())
        .map(|file| file.display().to_string())
        .collect();
    (!missing.is_empty()).then(|| {
        let fix = "sudo nvidia-modprobe -f ACCESS, where ACCESS is the file with this minor number under /proc/driver/nvidia/capabilities";
        warn(&check, format!("{} missing", are(&missing)), means, fix)
    })
}

fn are(names: &[String]) -> String {
    let verb = if names.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use divvy_api::v1::FindingStatus;

    use super::super::machine::{Compute, MigDevice};
    use super::*;

    fn gpu() -> Gpu {
        Gpu {
            index: 2,
            uuid: "GPU-2".into(),
            name: "NVIDIA A100".into(),
            minor: Some(2),
            memory: None,
            mig: None,
            compute: Compute::Anybody,
            persistence: Some(true),
        }
    }

    fn instance(id: u32, label: &str, devices: Vec<MigDevice>) -> Instance {
        Instance {
            id,
            label: label.into(),
            devices: Ok(devices),
        }
    }

    fn device(used: u64, processes: usize) -> MigDevice {
        MigDevice {
            id: 0,
            uuid: "MIG-1".into(),
            used,
            processes,
        }
    }

    fn on(instances: Vec<Instance>) -> Mig {
        Mig {
            on: true,
            pending: true,
            instances: Ok(instances),
        }
    }

    fn statuses(mig: &Mig, may_divide: bool) -> Vec<(String, FindingStatus, String)> {
        let all = findings(&gpu(), mig, may_divide, None);
        let short = |finding: Finding| (finding.check, finding.status, finding.found);
        all.into_iter().map(short).collect()
    }

    #[test]
    fn instances_are_told_with_what_is_in_them() {
        let mig = on(vec![
            instance(7, "1g.5gb@0", vec![device(0, 0)]),
            instance(2, "3g.20gb@4", vec![device(3 << 30, 2)]),
        ]);
        let told = statuses(&mig, true);
        assert_eq!(told.len(), 2);
        assert!(
            told.iter()
                .all(|(_, status, _)| *status == FindingStatus::Ok)
        );
        assert_eq!(
            (told[1].0.as_str(), told[1].2.as_str()),
            (
                "gpu.2.instances",
                "1g.5gb@0 MIG-1 idle; 3g.20gb@4 MIG-1 3.0 GiB in use by 2 processes"
            )
        );
        assert_eq!(statuses(&on(Vec::new()), true)[1].2, "no MIG instances yet");
    }

    #[test]
    fn what_keeps_jobs_from_instances_is_a_warning() {
        let warned = |mig: &Mig, may_divide| {
            let told = statuses(mig, may_divide).into_iter();
            let bad = told.filter(|(_, status, _)| *status == FindingStatus::Warn);
            bad.map(|(check, ..)| check).collect::<Vec<_>>()
        };
        assert_eq!(warned(&on(Vec::new()), false), ["gpu.2.enforcement"]);
        let orphan = on(vec![instance(9, "1g.5gb@2", Vec::new())]);
        assert_eq!(warned(&orphan, true), ["gpu.2.instance.9"]);
        let hidden = Mig {
            instances: Err("no permission".into()),
            ..on(Vec::new())
        };
        assert_eq!(warned(&hidden, true), ["gpu.2.instances"]);
        let waiting = Mig {
            on: false,
            ..on(Vec::new())
        };
        assert_eq!(warned(&waiting, true), ["gpu.2.mig_mode"]);
    }

    #[test]
    fn rights_without_a_device_file_are_told() {
        let root = tempfile::tempdir().expect("a folder");
        let own = root
            .path()
            .join("proc/driver/nvidia/capabilities/gpu2/mig/gi7");
        std::fs::create_dir_all(own.join("ci0")).expect("new");
        let which = ComputeInstanceId {
            minor: 2,
            instance: 7,
            compute: 0,
        };
        let write = |name: &str, minor: u32| {
            let text = format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\n");
            std::fs::write(own.join(name), text).expect("new");
        };
        write("access", which.instance_minor());
        write("ci0/access", which.compute_minor());
        let mig = on(vec![instance(7, "1g.5gb@0", vec![device(0, 0)])]);
        let told = || {
            let all = findings(&gpu(), &mig, true, Some(root.path()));
            let mut own = all
                .into_iter()
                .filter(|finding| finding.check == "gpu.2.capabilities");
            own.next().map(|finding| finding.found)
        };
        let file = |minor: u32| {
            root.path()
                .join(format!("dev/nvidia-caps/nvidia-cap{minor}"))
        };
        assert!(
            told().is_some_and(
                |told| told.contains(&file(which.compute_minor()).display().to_string())
            )
        );
        std::fs::create_dir_all(file(0).parent().expect("a folder")).expect("new");
        for minor in [which.instance_minor(), which.compute_minor()] {
            std::fs::write(file(minor), "").expect("new");
        }
        assert_eq!(told(), None);
    }
}
