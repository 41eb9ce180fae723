//! Check of the driver's memory figures against a limit and against the known usage of this process.

use std::path::Path;

use super::{Session, linear};
use crate::Error;
use crate::nvml::Nvml;

/// One thing that the driver tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// `cuMemGetInfo total`
    pub name: &'static str,
    /// Whether it is what a program with that limit should see; an error where it cannot be asked.
    pub agrees: Result<bool, Error>,
    /// The reported and the expected figure.
    pub detail: String,
}

/// The allocation that precedes the check. Larger than what the driver adds by itself, so that it shows in each view,
/// and a small part of any limit.
const TAKEN: u64 = 64 << 20;
/// The granularity of a further allocation (inferred, as in `exceed`).
const PIECE: u64 = 2 << 20;

/// Takes some memory and holds every view to it: totals are the limit, what is in use is at least what was taken, what is
/// called free can be had, and the process list names this process alone.
///
/// Nothing else of the slice may run meanwhile.
///
/// # Errors
/// When not even the memory can be taken.
pub fn views(session: &Session, nvml: Option<&Path>, limit: u64) -> Result<Vec<View>, Error> {
    let held = linear::alloc(session, TAKEN)?;
    let mut views = Vec::new();
    let mut add = |name, looked: Result<(bool, String), Error>| {
        let (agrees, detail) = match looked {
            Ok((agrees, detail)) => (Ok(agrees), detail),
            Err(error) => (Err(error.clone()), error.to_string()),
        };
        views.push(View {
            name,
            agrees,
            detail,
        });
    };
    let total = |total: u64| (total == limit, format!("{total} bytes, limit {limit}"));
    let most = limit.saturating_sub(TAKEN);
    let free = |free: u64| {
        (
            free <= most,
            format!("{free} bytes, expected at most {most}"),
        )
    };
    let used = |used: u64| {
        let right = (TAKEN..=limit).contains(&used);
        (right, format!("{used} bytes, expected at least {TAKEN}"))
    };

    let info = session.info();
    add(
        "cuMemGetInfo total",
        info.clone().map(|info| total(info.total)),
    );
    add(
        "cuMemGetInfo free",
        info.clone().map(|info| free(info.free)),
    );
    add(
        "cuMemGetInfo free, allocated",
        info.and_then(|info| can_be_had(session, info.free)),
    );
    add("cuDeviceTotalMem", session.device_total().map(total));

    let library = Nvml::load(nvml);
    let uuid = session.uuid()?;
    let device = library
        .as_ref()
        .map_err(Clone::clone)
        .and_then(|library| library.device_by_uuid(uuid));
    let memory = device
        .as_ref()
        .map_err(Clone::clone)
        .and_then(|device| device.memory());
    add(
        "NVML total",
        memory.clone().map(|memory| total(memory.total)),
    );
    add("NVML used", memory.clone().map(|memory| used(memory.used)));
    add("NVML free", memory.map(|memory| free(memory.free)));
    let processes = device
        .as_ref()
        .map_err(Clone::clone)
        .and_then(|device| device.processes());
    add(
        "NVML process list",
        processes.map(|processes| {
            let me = std::process::id();
            let alone = processes.len() == 1
                && processes.iter().all(|process| {
                    process.pid == me && process.used.is_none_or(|used| used >= TAKEN)
                });
            let listed: Vec<String> = processes
                .iter()
                .map(|process| match process.used {
                    Some(used) => format!("{} with {used} bytes", process.pid),
                    None => process.pid.to_string(),
                })
                .collect();
            (alone, format!("{}; own PID {me}", listed.join(", ")))
        }),
    );
    drop(held);
    Ok(views)
}

/// Takes what is called free, down to whole pieces.
fn can_be_had(session: &Session, free: u64) -> Result<(bool, String), Error> {
    let bytes = free / PIECE * PIECE;
    let taken = (bytes > 0).then(|| linear::alloc(session, bytes));
    Ok(match taken {
        None => (true, "nothing is free".to_owned()),
        Some(Ok(_)) => (true, format!("allocated {bytes} bytes")),
        Some(Err(error)) => (false, format!("cannot allocate {bytes} bytes: {error}")),
    })
}
