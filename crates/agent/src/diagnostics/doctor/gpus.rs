//! Checks of each GPU: health, compute mode, and the means that hold a limit on it.

use std::path::Path;

use divvy_api::v1::Finding;
use divvy_core::Bytes;

use super::machine::{Compute, Gpu, Machine, Memory};
use super::{fail, ok, warn};
use crate::job_dir::injection::InjectionMode;

/// `form`: the one in which the limiter stands between programs and the driver; `None` where it does not.
pub fn findings(machine: &Machine, form: Option<InjectionMode>, simulated: bool) -> Vec<Finding> {
    let gpus = machine.nvml.iter().flat_map(|nvml| &nvml.gpus).enumerate();
    gpus.flat_map(|(index, gpu)| match gpu {
        Ok(gpu) => one(gpu, form, simulated),
        Err(error) => vec![fail(
            &format!("gpu.{index}"),
            error,
            "Divvy starts no jobs on this GPU",
            "nvidia-smi -q; a GPU that has fallen off the bus needs a reset or a reboot",
        )],
    })
    .collect()
}

fn one(gpu: &Gpu, form: Option<InjectionMode>, simulated: bool) -> Vec<Finding> {
    let memory = match gpu.memory {
        Some(Memory { usable, used }) => format!(
            "{} for jobs, {} in use",
            Bytes::new(usable).human(),
            Bytes::new(used).human()
        ),
        None => "memory use not readable by this user".to_owned(),
    };
    let divided = gpu.mig.as_ref().is_some_and(|mig| mig.on);
    let mut findings = vec![ok(
        &format!("gpu.{}", gpu.index),
        format!(
            "{}{}, {memory}, {}",
            gpu.name,
            if divided { ", in MIG mode" } else { "" },
            gpu.uuid
        ),
    )];
    if !divided {
        findings.push(enforcement(gpu, form));
    }
    if let Some(mig) = &gpu.mig {
        let may_divide = rustix::process::geteuid().is_root();
        let root = (!simulated).then(|| Path::new("/"));
        findings.extend(super::mig::findings(gpu, mig, may_divide, root));
    }
    findings.extend(compute_mode(gpu));
    findings.extend(persistence(gpu));
    if !simulated {
        findings.extend(node(gpu));
    }
    findings
}

/// What will hold a limit there, or that nothing will.
fn enforcement(gpu: &Gpu, form: Option<InjectionMode>) -> Finding {
    let check = format!("gpu.{}.enforcement", gpu.index);
    let form = match form {
        Some(InjectionMode::Preload) => "preload",
        Some(InjectionMode::Wrapper) => "wrapper",
        None => {
            return fail(
                &check,
                "limits cannot be enforced",
                "the limiter does not receive the calls of programs to the driver",
                "first follow the advice of the findings limiter.*",
            );
        }
    };
    ok(
        &check,
        format!("the limiter ({form}) enforces memory limits; slices get compute time in turns"),
    )
}

fn compute_mode(gpu: &Gpu) -> Option<Finding> {
    let check = format!("gpu.{}.compute_mode", gpu.index);
    let fix = format!("sudo nvidia-smi -i {} -c DEFAULT", gpu.index);
    match gpu.compute {
        Compute::Anybody => None,
        Compute::OneProcess => Some(fail(
            &check,
            "the compute mode allows one process at a time",
            "a second job on this GPU fails when it creates a CUDA context",
            &fix,
        )),
        Compute::Nobody => Some(fail(
            &check,
            "the compute mode allows no process",
            "every job on this GPU fails when it creates a CUDA context",
            &fix,
        )),
    }
}

fn persistence(gpu: &Gpu) -> Option<Finding> {
    (gpu.persistence == Some(false)).then(|| {
        warn(
            &format!("gpu.{}.persistence", gpu.index),
            "persistence mode is off",
            "the driver shuts an unused GPU down, and the next job waits seconds until it is ready",
            &format!(
                "sudo nvidia-smi -i {} -pm 1, or run nvidia-persistenced",
                gpu.index
            ),
        )
    })
}

/// Whether this user may use it.
fn node(gpu: &Gpu) -> Option<Finding> {
    let path = format!("/dev/nvidia{}", gpu.minor?);
    super::system::device_node(&format!("gpu.{}.node", gpu.index), &path)
}

#[cfg(test)]
mod tests {
    use divvy_api::v1::FindingStatus;

    use super::*;

    fn gpu() -> Gpu {
        Gpu {
            index: 0,
            uuid: "GPU-0".into(),
            name: "NVIDIA A100".into(),
            minor: None,
            memory: Some(Memory {
                usable: 80 << 30,
                used: 0,
            }),
            mig: None,
            compute: Compute::Anybody,
            persistence: Some(true),
        }
    }

    fn worst(gpu: &Gpu, works: bool) -> Option<(String, FindingStatus)> {
        let findings = one(gpu, works.then_some(InjectionMode::Preload), true);
        let worst = findings.iter().max_by_key(|finding| finding.status)?;
        (worst.status != FindingStatus::Ok).then(|| (worst.check.clone(), worst.status))
    }

    #[test]
    fn a_gpu_that_several_jobs_can_share_has_nothing_wrong() {
        assert_eq!(worst(&gpu(), true), None);
    }

    #[test]
    fn what_keeps_jobs_from_sharing_is_a_failure_and_a_slow_start_a_warning() {
        let expect = |gpu: Gpu, works, check: &str, status| {
            assert_eq!(worst(&gpu, works), Some((check.to_owned(), status)));
        };
        let fail = FindingStatus::Fail;
        expect(gpu(), false, "gpu.0.enforcement", fail);
        for compute in [Compute::OneProcess, Compute::Nobody] {
            expect(Gpu { compute, ..gpu() }, true, "gpu.0.compute_mode", fail);
        }
        let asleep = Gpu {
            persistence: Some(false),
            ..gpu()
        };
        expect(asleep, true, "gpu.0.persistence", FindingStatus::Warn);
    }
}
