//! Whether the host has the memory that a job's GPU memory is to be put into. It is charged to the job's own processes (reported of
//! drivers 580 and 595), so their control groups have to have room for it, too: one that has none kills them in the middle.

use std::fs;
use std::path::Path;

use divvy_core::Bytes;

use crate::process::Process;
use crate::supervise::cgroup;

/// Why so much does not fit, for these processes; `None` where it does, as far as anybody says.
pub fn lacks(need: Bytes, processes: &[Process]) -> Option<String> {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    if let Some(free) = available(&meminfo).filter(|free| *free < need) {
        return Some(format!(
            "the host has {free} of memory available, and {need} is needed"
        ));
    }
    for process in processes {
        let Some(group) = cgroup::of(process.pid) else {
            continue;
        };
        for group in group.ancestors() {
            if let Some(free) = left(group).filter(|free| *free < need) {
                let group = group.display();
                return Some(format!(
                    "the control group {group} has {free} of memory left, and {need} is needed"
                ));
            }
        }
    }
    None
}

/// Of `/proc/meminfo` (proc(5)), in KiB there.
fn available(meminfo: &str) -> Option<Bytes> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes::new(kib.checked_mul(1024)?))
}

/// What a group may have more than it has, less what the kernel gives up first (cgroup-v2: `memory.max`, `memory.current`,
/// `inactive_file`); `None` where there is no limit.
fn left(group: &Path) -> Option<Bytes> {
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
        let meminfo = "MemTotal:       16000000 kB\nMemAvailable:    1048576 kB\n";
        assert_eq!(available(meminfo), Some(Bytes::gib(1)));
        assert_eq!(available("MemTotal: 1 kB\n"), None);
        let stat = "anon 5\ninactive_file 100\nactive_file 7\n";
        assert_eq!(within(1000, 300, stat), Bytes::new(800));
        assert_eq!(within(1000, 1300, ""), Bytes::ZERO);
    }

    #[test]
    fn what_no_machine_has_is_not_there_and_nothing_always_is() {
        let said = lacks(Bytes::gib(1 << 30), &[]).unwrap();
        assert!(said.contains("the host has"), "{said}");
        assert_eq!(lacks(Bytes::ZERO, &[Process::this().unwrap()]), None);
    }
}
