//! The driver's own memory limit of a control group (cgroup; NVML, r615): whether a GPU offers it here, and setting it.
//!
//! ```text
//! start of the daemon   probe: a group of our own ─► set ─► read ─► clear ─► remove     enforcement of the GPU
//! start of a job        journal ─► worker: group ─► set ─► read ─► supervisor starts the program in it
//! resize                journal ─► less: slice's limit, then the driver's; more: the driver's, then the slice's
//! end                   journal ─► worker: clear ─► group removed
//! ```
//! Soft and hard limit are equal, so that no group borrows and no client is ended for another's sake. Clearing sets the
//! soft limit to 0 before the group goes: the driver leaves the soft limit of a removed group on the groups above it.
//! Not verified on hardware (decision 059).

use std::path::{Path, PathBuf};

use divvy_core::{Bytes, EnforcementPolicy, GpuUuid, JobId};
use divvy_driver::Error;
use divvy_driver::nvml::memory_limits::MemoryLimits;
use divvy_driver::sys::nvml::nvmlReturn_t;

use super::mig::driver::Gpu;
use super::source::Source;
use crate::host::cgroup::{self, Cgroup};
use crate::host::error::error_chain;
use crate::host::failpoint::reach;

/// Why the driver does not limit jobs on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoDriverLimit {
    #[error("the configuration says enforcement = \"limiter\"")]
    Configured,
    #[error("only root may set the driver's limit, and this daemon is a user's own")]
    NotRoot,
    #[error("jobs have no control groups: {0}")]
    NoGroups(String),
    #[error("the GPU was in MIG mode when the daemon started")]
    Mig,
    #[error("driver {0} has no memory limits; r615 was the first with them")]
    OldDriver(String),
    #[error("the driver does not offer memory limits on this GPU or kernel (NOT_SUPPORTED)")]
    NotSupported,
    /// By the folder of the groups, and whether they lie below the folder in which the driver looks.
    #[error(
        "the driver finds no limit for control groups in {0} (NOT_FOUND): {why}",
        why = if *.1 { "their dmem controller is off, as where a group above them has processes of its own" }
              else { "it looks below /sys/fs/cgroup, where this machine has control groups of version 1" }
    )]
    NotFound(PathBuf, bool),
    #[error("the driver refused to set a limit (NO_PERMISSION)")]
    NoPermission,
    #[error("the driver set {set} and read back {read}")]
    ReadBack { set: String, read: String },
    #[error("{0}")]
    Failed(String),
}

impl NoDriverLimit {
    /// What the driver's error means for a group.
    fn of(error: &Error, group: &Path) -> Self {
        let Error::Nvml { code, .. } = error else {
            return Self::Failed(error.to_string());
        };
        match *code {
            nvmlReturn_t::NOT_SUPPORTED => Self::NotSupported,
            nvmlReturn_t::NOT_FOUND => Self::NotFound(
                group.parent().unwrap_or(group).to_owned(),
                cgroup::mount_point().is_some_and(|at| at == Path::new("/sys/fs/cgroup")),
            ),
            nvmlReturn_t::NO_PERMISSION => Self::NoPermission,
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// What the daemon knows before it asks the driver.
#[derive(Debug)]
pub struct ProbeConditions<'a> {
    pub policy: EnforcementPolicy,
    pub is_root: bool,
    /// As [`JobCgroups::prefix`](cgroup::JobCgroups).
    pub groups: &'a Result<PathBuf, String>,
    pub driver_version: &'a str,
}

/// Asks whether the driver limits control groups on a GPU: sets, reads and clears a limit of a group of our own.
///
/// # Errors
/// Why it does not.
pub fn probe(
    source: &Source,
    gpu: &GpuUuid,
    is_mig: bool,
    conditions: &ProbeConditions<'_>,
) -> Result<(), NoDriverLimit> {
    if conditions.policy == EnforcementPolicy::Limiter {
        return Err(NoDriverLimit::Configured);
    }
    if !conditions.is_root {
        return Err(NoDriverLimit::NotRoot);
    }
    if is_mig {
        return Err(NoDriverLimit::Mig);
    }
    let groups = conditions.groups.as_ref();
    let mut group = groups
        .map_err(|why| NoDriverLimit::NoGroups(why.clone()))?
        .as_os_str()
        .to_owned();
    group.push("probe");
    let device = source.device(gpu);
    let device = device.map_err(|error| NoDriverLimit::Failed(error_chain(&error)))?;
    try_on(&*device, Path::new(&group), conditions.driver_version)
}

/// The size of a probe's limit: one large page of the driver (2 MiB), the smallest limit of any slice. No job can have
/// half of it.
const PROBE: Bytes = Bytes::mib(2);

fn try_on(gpu: &dyn Gpu, group: &Path, driver_version: &str) -> Result<(), NoDriverLimit> {
    let made = Cgroup::at(group);
    made.make().map_err(|error| cannot_make(group, &error))?;
    let tried = set(gpu, group, Some(PROBE)).and_then(|_| set(gpu, group, None));
    made.remove_if_empty();
    match tried {
        Err(NoDriverLimit::Failed(_) | NoDriverLimit::NotSupported)
            if !knows_limits(driver_version) =>
        {
            Err(NoDriverLimit::OldDriver(driver_version.to_owned()))
        }
        tried => tried.map(drop),
    }
}

fn cannot_make(group: &Path, error: &std::io::Error) -> NoDriverLimit {
    NoDriverLimit::NoGroups(format!("cannot make {}: {error}", group.display()))
}

/// Whether a driver of this version has the calls (NVML's change log, v610 to v615).
fn knows_limits(version: &str) -> bool {
    let major = version
        .split('.')
        .next()
        .and_then(|major| major.parse().ok());
    major.is_none_or(|major: u32| major >= 615)
}

/// Sets the limit of a group, or takes it off, and reads it back: kernels before 7.3 ignore a limit below the use and
/// report success. Answers with what was set before.
///
/// # Errors
/// Why it could not be set.
pub fn set(
    gpu: &dyn Gpu,
    group: &Path,
    memory: Option<Bytes>,
) -> Result<MemoryLimits, NoDriverLimit> {
    let failed = |error: Error| NoDriverLimit::of(&error, group);
    let wanted = match memory {
        Some(memory) => MemoryLimits::exactly(memory.get()),
        None => {
            // The soft limit goes first: the driver adds it to the groups above.
            let before = gpu.memory_limits(group).map_err(failed)?;
            let soft_gone = MemoryLimits { soft: 0, ..before };
            gpu.set_memory_limits(group, soft_gone).map_err(failed)?;
            MemoryLimits::NONE
        }
    };
    let before = gpu.memory_limits(group).map_err(failed)?;
    gpu.set_memory_limits(group, wanted).map_err(failed)?;
    let read = gpu.memory_limits(group).map_err(failed)?;
    if read != wanted {
        return Err(NoDriverLimit::ReadBack {
            set: describe(wanted),
            read: describe(read),
        });
    }
    Ok(before)
}

fn describe(limits: MemoryLimits) -> String {
    match limits.hard {
        Some(hard) => format!("{} (soft {})", Bytes::new(hard), Bytes::new(limits.soft)),
        None => format!("no limit (soft {})", Bytes::new(limits.soft)),
    }
}

/// Sets a limit for a job, or takes it off: the work of the GPU's thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitTask {
    pub job: JobId,
    pub group: PathBuf,
    /// `None` takes it off.
    pub memory: Option<Bytes>,
    /// The group is the daemon's to make.
    pub makes_group: bool,
}

impl LimitTask {
    /// Carries it out.
    ///
    /// # Errors
    /// As [`set`].
    pub fn run(&self, gpu: &dyn Gpu) -> Result<MemoryLimits, NoDriverLimit> {
        reach("limit.begin");
        if self.makes_group && self.memory.is_some() {
            let made = Cgroup::at(&self.group).make();
            made.map_err(|error| cannot_make(&self.group, &error))?;
        }
        reach("limit.group");
        let before = match set(gpu, &self.group, self.memory) {
            // What is gone has no limit.
            Err(NoDriverLimit::NotFound(..)) if self.memory.is_none() => MemoryLimits::NONE,
            done => done?,
        };
        reach("limit.set");
        Ok(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_of_the_driver_has_its_own_sentence() {
        let answer = |code| Error::Nvml {
            function: "nvmlDeviceSetMemoryLimits_v1",
            device: Some("GPU 0".to_owned()),
            code,
            text: "text".to_owned(),
        };
        let group = Path::new("/sys/fs/cgroup/divvy/job-7");
        let mut said: Vec<String> = [
            nvmlReturn_t::NOT_SUPPORTED,
            nvmlReturn_t::NOT_FOUND,
            nvmlReturn_t::NO_PERMISSION,
            nvmlReturn_t::UNKNOWN,
        ]
        .map(|code| NoDriverLimit::of(&answer(code), group).to_string())
        .into();
        said.extend(
            [
                NoDriverLimit::Configured,
                NoDriverLimit::NotRoot,
                NoDriverLimit::NoGroups("this machine has no cgroup v2".to_owned()),
                NoDriverLimit::Mig,
                NoDriverLimit::OldDriver("580.95".to_owned()),
                NoDriverLimit::NotFound("/sys/fs/cgroup".into(), true),
                NoDriverLimit::NotFound("/sys/fs/cgroup".into(), false),
            ]
            .map(|why| why.to_string()),
        );
        let different: std::collections::BTreeSet<&String> = said.iter().collect();
        assert!(different.len() + 1 >= said.len(), "{said:#?}");
        assert!(said.iter().all(|text| !text.is_empty() && text.len() < 250));
    }

    #[test]
    fn a_driver_before_r615_has_no_memory_limits() {
        let known = [
            "580.95.05",
            "610.1",
            "614.99",
            "615.34.05",
            "620.1",
            "nonsense",
        ];
        assert_eq!(
            known.map(knows_limits),
            [false, false, false, true, true, true]
        );
    }
}
