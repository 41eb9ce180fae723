//! The host memory check: whether the host has room for a copy of a job's GPU memory. It is charged to the job's own
//! processes (reported of drivers 580 and 595), so their control groups have to have room for it, too: one that has
//! none kills them in the middle.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use divvy_api::daemon::HostMemory;
use divvy_api::sync::lock;
use divvy_core::Bytes;

use crate::host::cgroup;
use crate::host::machine::machine;
use crate::host::process::Process;

/// Bytes that all running operations together are about to copy: the kernel does not know of them yet.
static PENDING: Mutex<Bytes> = Mutex::new(Bytes::ZERO);

/// This part of the host's memory stays free, so that a copy brings no process near the kernel's OOM killer: ours.
const MARGIN: u64 = 16;

/// Room for a copy that no other operation counts on, until it is dropped.
#[derive(Debug)]
pub struct HostReservation(Bytes);

impl Drop for HostReservation {
    fn drop(&mut self) {
        let mut pending = pending();
        *pending = pending.saturating_sub(self.0);
    }
}

fn pending() -> MutexGuard<'static, Bytes> {
    lock(&PENDING)
}

/// Reserves host memory for so much of these processes, if a source reports that there is some.
///
/// # Errors
/// Why it does not fit.
pub fn reserve(need: Bytes, processes: &[Process]) -> Result<HostReservation, String> {
    let mut pending = pending();
    if need > Bytes::ZERO
        && let Some(why) = shortage(need, *pending, processes)
    {
        return Err(why);
    }
    *pending = pending.saturating_add(need);
    Ok(HostReservation(need))
}

fn shortage(need: Bytes, pending: Bytes, processes: &[Process]) -> Option<String> {
    let meminfo = meminfo();
    if let Some(free) = available_memory(&meminfo, pending).filter(|free| *free < need) {
        let [need, free] = need.human_beside(free);
        return Some(format!(
            "{need} of host memory needed, but only {free} is available"
        ));
    }
    for process in processes {
        let Some(group) = cgroup::cgroup_of(process.pid) else {
            continue;
        };
        for group in group.ancestors() {
            if let Some(free) = cgroup_headroom(group).filter(|free| *free < need) {
                let group = group.display();
                let [need, free] = need.human_beside(free);
                return Some(format!(
                    "{need} of host memory needed, but the control group {group} has only {free} left"
                ));
            }
        }
    }
    None
}

fn meminfo() -> String {
    fs::read_to_string(machine().proc().join("meminfo")).unwrap_or_default()
}

/// What all parked jobs together may have in host memory; `None` where the machine does not say what it has.
pub fn park_budget(most: HostMemory) -> Option<Bytes> {
    match most {
        HostMemory::Size(size) => Some(size),
        HostMemory::Percent(percent) => {
            let total = line_of(&meminfo(), "MemTotal:")?;
            Some(Bytes::new(total.get() / 100 * u64::from(percent)))
        }
    }
}

/// What may be copied besides what is about to be.
fn available_memory(meminfo: &str, pending: Bytes) -> Option<Bytes> {
    let total = line_of(meminfo, "MemTotal:").unwrap_or(Bytes::ZERO);
    let margin = Bytes::new(total.get() / MARGIN);
    let available = line_of(meminfo, "MemAvailable:")?;
    Some(available.saturating_sub(margin).saturating_sub(pending))
}

/// Of `/proc/meminfo` (proc(5)), in KiB there.
fn line_of(meminfo: &str, name: &str) -> Option<Bytes> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes::new(kib.checked_mul(1024)?))
}

/// What a group may have more than it has, less what the kernel gives up first (cgroup-v2: `memory.max`,
/// `memory.current`, `inactive_file`); `None` where there is no limit.
fn cgroup_headroom(group: &Path) -> Option<Bytes> {
    let read = |name: &str| fs::read_to_string(group.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let (most, has) = (number("memory.max")?, number("memory.current")?);
    Some(within(most, has, &read("memory.stat").unwrap_or_default()))
}

fn within(most: u64, has: u64, stat: &str) -> Bytes {
    let inactive = stat
        .lines()
        .find_map(|line| line.strip_prefix("inactive_file "))
        .and_then(|number| number.trim().parse::<u64>().ok());
    let has = has.saturating_sub(inactive.unwrap_or_default());
    Bytes::new(most.saturating_sub(has))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_read_in_its_units() {
        let meminfo = "MemTotal:       8388608 kB\nMemAvailable:    2097152 kB\n";
        let half = Bytes::mib(512);
        assert_eq!(
            available_memory(meminfo, Bytes::ZERO),
            Some(Bytes::mib(1536))
        );
        assert_eq!(available_memory(meminfo, half), Some(Bytes::gib(1)));
        assert_eq!(available_memory(meminfo, Bytes::gib(3)), Some(Bytes::ZERO));
        assert_eq!(available_memory("MemTotal: 1 kB\n", half), None);
        let stat = "anon 5\ninactive_file 100\nactive_file 7\n";
        assert_eq!(within(1000, 300, stat), Bytes::new(800));
        assert_eq!(within(1000, 1300, ""), Bytes::ZERO);
    }

    #[test]
    fn the_budget_of_parked_jobs_is_a_part_of_the_machine_or_a_size() {
        let size = Bytes::gib(3);
        assert_eq!(park_budget(HostMemory::Size(size)), Some(size));
        let half = park_budget(HostMemory::Percent(50)).unwrap();
        let all = park_budget(HostMemory::Percent(100)).unwrap();
        assert!(Bytes::ZERO < half && half < all, "{half} of {all}");
        assert_eq!(park_budget(HostMemory::Percent(0)), Some(Bytes::ZERO));
    }

    #[test]
    fn what_no_machine_has_is_not_there_and_nothing_always_is() {
        let said = reserve(Bytes::gib(1 << 30), &[]).unwrap_err();
        assert!(said.contains("host memory needed"), "{said}");
        assert!(reserve(Bytes::ZERO, &[Process::this().unwrap()]).is_ok());
    }

    #[test]
    fn memory_reserved_for_one_copy_is_not_given_to_another() {
        let most =
            available_memory(&fs::read_to_string("/proc/meminfo").unwrap(), Bytes::ZERO).unwrap();
        let most_of_it = Bytes::new(most.get() / 4 * 3);
        let kept = reserve(most_of_it, &[]).unwrap();
        let said = reserve(most_of_it, &[]).unwrap_err();
        assert!(said.contains("is available"), "{said}");
        drop(kept);
        assert!(reserve(most_of_it, &[]).is_ok());
    }
}
