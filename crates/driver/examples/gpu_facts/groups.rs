//! NVML's memory limit of a control group (cgroup): whether it can be set here, where it refuses, what it counts and
//! shows.

use std::fs;
use std::path::{Path, PathBuf};

use divvy_driver::nvml::memory_limits::MemoryLimits;
use divvy_driver::sys::cuda::*;
use serde_json::{Value, json};

use crate::Answer;
use crate::gpu::{Failure, Gpu, NotAvailable, cu};

/// Several times a context, so that most of it is allocations; half of it is tried as a lower limit. Double would not
/// fit on small GPUs.
const LIMIT: u64 = 4 << 30;

/// What the driver is asked for at a time: its large page (2 MiB). A larger step would not show where exactly it
/// refuses.
const STEP: u64 = 2 << 20;

/// A group below that of this process, removed with this value.
struct Group {
    own: PathBuf,
    folder: PathBuf,
}

impl Group {
    fn below_own() -> Result<Self, Failure> {
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        let own = groups.lines().find_map(|line| line.strip_prefix("0::"));
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let root = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (folder, kind) = (fields.next()?, fields.next()?);
            (kind == "cgroup2").then(|| PathBuf::from(folder))
        });
        let (Some(own), Some(root)) = (own, root) else {
            return Err(NotAvailable("this machine has no cgroup v2".to_owned()).into());
        };
        let own = root.join(own.trim_start_matches('/'));
        let folder = own.join(format!("divvy-fact-{}", std::process::id()));
        fs::create_dir(&folder).map_err(|error| {
            NotAvailable(format!(
                "cannot create a group in {}: {error}",
                own.display()
            ))
        })?;
        Ok(Self { own, folder })
    }

    fn enter(folder: &Path) -> Result<(), Failure> {
        let procs = folder.join("cgroup.procs");
        fs::write(&procs, "0")
            .map_err(|error| NotAvailable(format!("{}: {error}", procs.display())).into())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.own.join("cgroup.procs"), "0");
        let _ = fs::remove_dir(&self.folder);
    }
}

pub fn memory_limits() -> Answer {
    let gpu = Gpu::open()?;
    let group = Group::below_own()?;
    let device = gpu.nvml_device()?;
    let set = |limits| device.set_memory_limits(&group.folder, limits);
    set(MemoryLimits::exactly(LIMIT)).map_err(|error| NotAvailable(error.to_string()))?;
    let (read, _) = device.memory_limits(&group.folder)?;
    Group::enter(&group.folder)?;
    gpu.retain()?;
    let (mut free, mut total) = (0, 0);
    cu!(gpu, cuMemGetInfo_v2(&raw mut free, &raw mut total))?;
    let mut blocks = Vec::new();
    let refusal = loop {
        let mut block = 0;
        match cu!(gpu, cuMemAlloc_v2(&raw mut block, STEP as usize)) {
            Ok(()) => blocks.push(block),
            Err(error) => break error.to_string(),
        }
    };
    let used = device.memory_limits(&group.folder)?.1;
    let mut managed = 0;
    let attach = CUmemAttach_flags::GLOBAL.0;
    let managed = cu!(
        gpu,
        cuMemAllocManaged(&raw mut managed, STEP as usize, attach)
    );
    let lowered = set(MemoryLimits::exactly(LIMIT / 2));
    let after_lowering = device.memory_limits(&group.folder)?.0;
    for block in blocks.iter().copied() {
        cu!(gpu, cuMemFree_v2(block))?;
    }
    set(MemoryLimits::NONE)?;
    let cleared = device.memory_limits(&group.folder)?.0;
    let shown = |limits: MemoryLimits| json!({"soft": limits.soft, "hard": limits.hard});
    Ok(json!({
        "files": fs::read_dir(&group.folder)?.flatten().filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            name.starts_with("dmem.").then_some(name)
        }).collect::<Vec<String>>(),
        "set": LIMIT,
        "read": shown(read),
        "shown_free": free,
        "shown_total": total,
        "allocated": blocks.len() as u64 * STEP,
        "refusal": refusal,
        "used_at_refusal": used,
        "managed_beyond_it": managed.map_or_else(|error| error.to_string(), |()| "granted".to_owned()),
        "lowered_below_use": lowered.map_or_else(|error| Value::from(error.to_string()), |()| shown(after_lowering)),
        "cleared": shown(cleared),
    }))
}
