//! Checks for conflicts with the limiter: other preloads, other limiters, MPS, environment variables.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use divvy_api::v1::Finding;
use divvy_core::units::gpus;

use super::{fail, ok, warn};
use crate::registry::entry::Amount;

/// The file names under which other limiters are preloaded, with the name of each limiter.
const LIMITERS: [(&str, &str); 6] = [
    ("libvgpu.so", "HAMi"),
    ("libcuda-control.so", "vCUDA"),
    ("libvgpu-control.so", "vgpu-manager"),
    ("libnvshare.so", "nvshare"),
    ("libgemhook.so", "Gemini"),
    ("libcuda_limiter.so", "TensorFusion"),
];

/// The facts that the checks read.
#[derive(Debug, Default)]
pub struct HostEnvironment {
    /// Each variable that matters and is set.
    pub variables: Vec<(&'static str, String)>,
    /// Contents of `/etc/ld.so.preload`.
    pub preload_file: String,
    /// Whether an MPS control daemon or server runs.
    pub mps: bool,
}

const VARIABLES: [&str; 6] = [
    "LD_PRELOAD",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "DIVVY_SHIM",
    "DIVVY_SLICE",
];

impl HostEnvironment {
    /// Those of this process.
    pub fn here() -> Self {
        let value = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            variables: VARIABLES
                .into_iter()
                .filter_map(|name| Some((name, value(name)?)))
                .collect(),
            preload_file: fs::read_to_string("/etc/ld.so.preload").unwrap_or_default(),
            mps: processes_named("nvidia-cuda-mps"),
        }
    }

    fn variable(&self, name: &str) -> Option<&str> {
        let found = self.variables.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// Whether a process has a name that begins so; the kernel keeps 15 letters of it.
fn processes_named(beginning: &str) -> bool {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| fs::read_to_string(entry.path().join("comm")).ok())
        .any(|name| name.starts_with(beginning))
}

pub fn findings(around: &HostEnvironment) -> Vec<Finding> {
    let found = [
        switched_off(around),
        in_a_slice(around),
        preloads(
            "conflicts.preload",
            "LD_PRELOAD",
            around.variable("LD_PRELOAD").unwrap_or_default(),
        ),
        preloads(
            "conflicts.preload_file",
            "/etc/ld.so.preload",
            &around.preload_file,
        ),
        mps(around),
        pinned(around),
        hidden(around),
    ];
    let found: Vec<Finding> = found.into_iter().flatten().collect();
    if found.is_empty() {
        return vec![ok(
            "conflicts",
            "no other limiter, no MPS daemon and no variable that hides GPUs",
        )];
    }
    found
}

/// Daemons of other users on the same GPUs.
pub fn daemons(others: &BTreeMap<String, Amount>) -> Option<Finding> {
    let held: Vec<String> = others
        .iter()
        .map(|(holder, amount)| {
            let (gpus, memory) = (gpus(amount.share), amount.memory.human());
            format!("{holder} holds {gpus} of this machine's GPUs ({memory})")
        })
        .collect();
    (!held.is_empty()).then(|| {
        warn(
            "conflicts.daemons",
            held.join(", "),
            "each daemon has a queue of its own, so no daemon orders the jobs of all users",
            "start one daemon for all users: sudo divvy daemon --system",
        )
    })
}

fn switched_off(around: &HostEnvironment) -> Option<Finding> {
    (around.variable("DIVVY_SHIM") == Some("off")).then(|| {
        fail(
            "conflicts.off",
            "DIVVY_SHIM=off is set in this environment",
            "jobs inherit it, and run without limits if their user may change the limits of the slice",
            "unset DIVVY_SHIM",
        )
    })
}

fn in_a_slice(around: &HostEnvironment) -> Option<Finding> {
    let slice = around.variable("DIVVY_SLICE")?;
    Some(warn(
        "conflicts.slice",
        format!("`divvy doctor` runs inside slice {slice}"),
        "the findings describe the slice, not the machine",
        "run `divvy doctor` outside of `divvy run`",
    ))
}

fn preloads(check: &str, place: &str, list: &str) -> Option<Finding> {
    let files: Vec<&str> = list
        .split([':', ' ', '\n', '\t'])
        .filter(|file| !file.is_empty())
        .filter(|file| !file.ends_with("/libdivvy_preload.so"))
        .collect();
    let name = |file: &str| {
        Path::new(file)
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
    };
    let limiter = files.iter().find_map(|file| {
        let name = name(file)?;
        LIMITERS
            .iter()
            .find(|(limiter, _)| name.starts_with(limiter))
    });
    if let Some((file, whose)) = limiter {
        return Some(fail(
            check,
            format!("{place} contains {file}, the limiter of {whose}"),
            "two limiters in one program interfere, and neither enforces its limit reliably",
            &format!("remove it from {place} for Divvy's jobs"),
        ));
    }
    (!files.is_empty()).then(|| {
        warn(
            check,
            format!("{place} contains {}", files.join(", ")),
            "it is loaded into jobs after the limiter; if it overrides dlsym, programs may find the wrong functions",
            "divvy selftest (with the library still preloaded)",
        )
    })
}

fn mps(around: &HostEnvironment) -> Option<Finding> {
    let pipe = around.variable("CUDA_MPS_PIPE_DIRECTORY");
    let found = match (around.mps, pipe) {
        (false, None) => return None,
        (true, _) => "an MPS daemon is running".to_owned(),
        (false, Some(pipe)) => format!("CUDA_MPS_PIPE_DIRECTORY is set ({pipe})"),
    };
    Some(warn(
        "conflicts.mps",
        found,
        "programs share one context on the GPU: a fault in one ends all, and the driver may not report memory per process",
        "echo quit | nvidia-cuda-mps-control, unless you need MPS",
    ))
}

fn pinned(around: &HostEnvironment) -> Option<Finding> {
    let name = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
    let pinned = around.variable(name)?;
    Some(warn(
        "conflicts.pinned",
        format!("{name}={pinned} is set in this environment"),
        "a client of MPS with an entry for a GPU that it does not see has no pinned limit at all, without a message",
        &format!("unset {name}: Divvy limits its jobs without MPS"),
    ))
}

fn hidden(around: &HostEnvironment) -> Option<Finding> {
    let visible = around.variable("CUDA_VISIBLE_DEVICES")?;
    Some(warn(
        "conflicts.visible",
        format!("CUDA_VISIBLE_DEVICES={visible} is set in this environment"),
        "programs outside Divvy see only these GPUs; Divvy serves all GPUs and sets the variable for each job",
        "select GPUs with --gpus or --gpus-on instead",
    ))
}

#[cfg(test)]
mod tests {
    use divvy_api::v1::FindingStatus;

    use super::*;

    fn statuses(around: &HostEnvironment) -> Vec<(String, FindingStatus)> {
        let findings = findings(around).into_iter();
        findings
            .map(|finding| (finding.check, finding.status))
            .collect()
    }

    #[test]
    fn a_plain_shell_has_no_conflicts() {
        assert_eq!(
            statuses(&HostEnvironment::default()),
            [("conflicts".to_owned(), FindingStatus::Ok)]
        );
    }

    #[test]
    fn what_unlimits_jobs_is_a_failure_and_what_may_confuse_them_a_warning() {
        let around = HostEnvironment {
            variables: vec![
                (
                    "LD_PRELOAD",
                    "/opt/divvy/libdivvy_preload.so:/usr/lib/libjemalloc.so.2".into(),
                ),
                ("CUDA_VISIBLE_DEVICES", "1".into()),
                ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=2G".into()),
                ("DIVVY_SHIM", "off".into()),
            ],
            preload_file: "/usr/local/vgpu/libvgpu.so\n".into(),
            mps: true,
        };
        let (warn, fail) = (FindingStatus::Warn, FindingStatus::Fail);
        let expected = [
            ("conflicts.off", fail),
            ("conflicts.preload", warn),
            ("conflicts.preload_file", fail),
            ("conflicts.mps", warn),
            ("conflicts.pinned", warn),
            ("conflicts.visible", warn),
        ];
        assert_eq!(
            statuses(&around),
            expected.map(|(name, status)| (name.to_owned(), status))
        );
    }

    #[test]
    fn the_limiter_itself_is_no_conflict() {
        assert_eq!(
            preloads("x", "LD_PRELOAD", "/opt/libdivvy_preload.so"),
            None
        );
    }
}
