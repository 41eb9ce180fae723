//! The configuration that DIVVY_SIM_CONFIG names: faults, kernel durations and the clock, from a TOML file read once
//! per process. docs/simulator.md is its reference.

use crate::model::mig::GpuProfile;
use divvy_driver::sys::cuda::CUDA_VERSION;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Which clock the machine has. Decided by the process that creates the state file.
    pub clock: Clock,
    /// MiB a context costs, instead of the model's figure.
    pub context_mib: Option<u64>,
    /// NVML does not say how much memory a process holds, as on WSL and some virtual GPUs.
    pub hide_process_memory: bool,
    /// NVML lists managed memory for no process, as the real driver (H200, driver 580: docs/hardware.md).
    pub hide_managed_memory: bool,
    /// NVML shows memory imported from another process for the importer as well, not for its maker alone. The GPU's
    /// total counts it once either way.
    pub charge_imports: bool,
    /// GPUs are integrated: pinned host memory is their memory.
    pub integrated: bool,
    /// Managed memory of more than a whole GPU is granted, and takes nothing of the GPU.
    pub oversubscribes: bool,
    /// This process may change nothing that only root may change, whatever its user.
    pub unprivileged: bool,
    pub mig: MigConfig,
    pub checkpoint: CheckpointConfig,
    /// The driver is a 615 that limits the memory of control groups; without it, it does not know how.
    pub memory_limits: Option<MemoryLimitsConfig>,
    /// Durations of kernels by name; the first match counts.
    #[serde(rename = "kernel")]
    pub kernels: Vec<KernelTime>,
    #[serde(rename = "fault")]
    pub faults: Vec<Fault>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// Simulated time is the machine's monotonic clock.
    #[default]
    Real,
    /// Time stands still until every process with a context waits for its GPU, then jumps to the next event.
    Virtual,
}

/// Which half of a GPU has instance 1. Boards differ: on some A100 a 4g at the left is 1, on others 2.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdMap {
    /// The left half, as in the MIG user guide.
    #[default]
    A,
    /// The right half.
    B,
}

/// How the driver chooses a placement where the caller names none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// What leaves most placements possible, at the lowest start (inferred from transcripts of A100, H100 and GH200).
    #[default]
    Likely,
    /// What leaves fewest: legal too, so no program may rely on the other.
    Adversarial,
}

/// How GPUs that can be divided behave.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MigConfig {
    /// Indices of GPUs that begin divided. Decided by the process that makes the state file.
    pub enabled: Vec<usize>,
    /// Which half of the boards has GPU instance 1. Decided by the process that makes the state file.
    pub ids: IdMap,
    /// Where the driver puts an instance when the caller names no place.
    pub placement: Choice,
    /// MiB that instances have beyond what their profile says.
    pub extra_memory_mib: u64,
    /// Profiles and placements cannot be asked for while the mode is off, as on drivers before 535.
    pub old_driver: bool,
    /// A handle of what was destroyed means what is in its place now, instead of nothing.
    pub reuse_handles: bool,
    /// Whether a mode waits for a reset: on Ampere by default.
    pub needs_reset: Option<bool>,
    /// Whether the mode outlasts a reboot and a reload of the driver: on Ampere by default.
    pub mode_is_kept: Option<bool>,
    /// A compute instance's info names its MIG device, and not the GPU as nvml.h has it: what some users of NVML have
    /// relied on.
    pub info_names_mig_device: bool,
    /// Handles of a GPU are invalid after its mode was changed.
    pub rebinds: bool,
    /// The device files of new instances' rights are not made: nvidia-modprobe has not run for them.
    pub without_modprobe: bool,
    /// Instances that are there from the beginning. Decided by the process that makes the state file.
    #[serde(rename = "instance")]
    pub instances: Vec<InstanceConfig>,
    /// Profiles that this driver has otherwise, or beside those of data/mig.toml: rows as there.
    #[serde(rename = "profile")]
    pub profiles: Vec<GpuProfile>,
}

/// How the driver puts processes aside.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointConfig {
    /// The driver does not know how, as before 570: its functions are not found, and not supported where they are
    /// called all the same.
    pub unknown: bool,
    /// A restore that was out of memory was the last: every later one fails too.
    pub failed_restore_is_final: bool,
    /// A lock ends the process, as with a fault of the driver's.
    pub lock_kills: bool,
}

/// How the driver limits the memory of control groups.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryLimitsConfig {
    pub backend: Backend,
    /// The folder of the hierarchy of version 2, without symbolic links.
    #[serde(default = "group_root")]
    pub root: PathBuf,
}

/// The store of the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// The kernel's DMEM controller, whose limits nest.
    Dmem,
    /// A table in the driver, in which they do not.
    Misc,
}

fn group_root() -> PathBuf {
    "/sys/fs/cgroup".into()
}

/// A GPU instance, with one compute instance that has all of it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstanceConfig {
    /// The index of a GPU that is `enabled`.
    pub gpu: usize,
    /// The profile's name in data/mig.toml.
    pub profile: String,
    /// Its first memory slice.
    pub start: u32,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelTime {
    pub name: Pattern,
    pub ns: u64,
}

/// Makes calls fail: the `call`-th call (counted from 1) of the functions matched, and the `times - 1` following ones;
/// `times = 0` is for ever.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    pub function: Pattern,
    #[serde(default = "one")]
    pub call: u64,
    #[serde(default = "one")]
    pub times: u64,
    /// The CUresult or nvmlReturn_t to answer instead of doing the call. Without it the call goes on.
    pub code: Option<u32>,
    /// The index of a GPU that falls off the bus, for all processes, when the fault strikes.
    pub lose_gpu: Option<usize>,
    /// Milliseconds that pass before the call: of simulated time where the clock is virtual.
    #[serde(default)]
    pub delay_ms: u64,
    /// The process is killed.
    pub kill: Option<Moment>,
}

/// When a process dies: with the call not done, or done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Moment {
    Before,
    After,
}

fn one() -> u64 {
    1
}

/// A name in which `*` stands for any text.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Pattern(String);

impl Pattern {
    pub fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
            return false;
        };
        let Some(last) = self
            .0
            .contains('*')
            .then(|| parts.next_back().unwrap_or_default())
        else {
            return rest.is_empty();
        };
        for part in parts {
            let Some(at) = rest.find(part) else {
                return false;
            };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(last)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {0}, named by DIVVY_SIM_CONFIG: {1}")]
    Read(PathBuf, std::io::Error),
    #[error("{0}, named by DIVVY_SIM_CONFIG: {1}")]
    Parse(PathBuf, String),
}

impl Config {
    /// The file named by DIVVY_SIM_CONFIG; the defaults when the variable is unset or empty.
    pub fn from_env() -> Result<Config, ConfigError> {
        match std::env::var_os("DIVVY_SIM_CONFIG").filter(|path| !path.is_empty()) {
            Some(path) => Config::read(Path::new(&path)),
            None => Ok(Config::default()),
        }
    }

    /// The versions of the driver and of its CUDA, for calls that need no machine; no release is claimed. A bad file is
    /// reported where the machine is opened.
    pub fn versions() -> (&'static str, i32) {
        static HAS_LIMITS: OnceLock<bool> = OnceLock::new();
        let read = || Config::from_env().unwrap_or_default().memory_limits;
        match HAS_LIMITS.get_or_init(|| read().is_some()) {
            true => ("615.34.05", 13040),
            false => ("620.10.01", CUDA_VERSION),
        }
    }

    fn read(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::Read(path.to_owned(), error))?;
        toml::from_str(&text).map_err(|error| {
            ConfigError::Parse(
                path.to_owned(),
                error.to_string().trim_end().replace('\n', " "),
            )
        })
    }

    /// The duration the file gives to a kernel of this name, in nanoseconds.
    pub fn kernel_ns(&self, name: &str) -> Option<u64> {
        self.kernels
            .iter()
            .find(|kernel| kernel.name.matches(name))
            .map(|kernel| kernel.ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        let matches = |pattern: &str, name| Pattern(pattern.to_owned()).matches(name);
        assert!(
            matches("cuMemAlloc_v2", "cuMemAlloc_v2") && !matches("cuMemAlloc", "cuMemAlloc_v2")
        );
        assert!(
            matches("cuMem*", "cuMemAlloc_v2")
                && matches("*gemm*", "sm90_gemm_f16")
                && matches("*", "")
        );
        assert!(
            matches("a*b*c", "a-b-b-c") && !matches("a*b*c", "a-c-b") && !matches("ab*ba", "aba")
        );
    }

    #[test]
    fn the_examples_of_the_reference_parse() {
        let reference = include_str!("../../../docs/simulator.md");
        let blocks = reference.split("```toml\n").skip(1);
        let examples: String = blocks
            .filter_map(|block| block.split("```").next())
            .collect();
        let config: Config = toml::from_str(&examples).expect("valid");
        assert_eq!(config.kernel_ns("my_gemm_1"), Some(250_000));
        let limits = config.memory_limits.as_ref().expect("a table");
        assert_eq!(
            (limits.backend, &limits.root),
            (Backend::Dmem, &group_root())
        );
        let mig = &config.mig;
        assert_eq!((mig.enabled.as_slice(), mig.ids), (&[0][..], IdMap::B));
        assert_eq!((mig.instances.len(), mig.profiles.len()), (1, 1));
        assert_eq!(
            (
                config.faults[0].call,
                config.faults[0].times,
                config.faults.last().and_then(|fault| fault.lose_gpu)
            ),
            (3, 2, Some(1))
        );
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_it() {
        let error = toml::from_str::<Config>("cloc = 'real'")
            .expect_err("a typo")
            .to_string();
        assert!(error.contains("cloc"), "{error}");
    }
}
