//! Runtime power management: which GPUs are powered down, by sysfs. To read it wakes no GPU; almost any call of NVML does.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use super::ObservedGpu;

/// Where the kernel shows its devices.
#[derive(Clone, Debug)]
pub struct PowerStates {
    /// `/sys`, or a folder in its place; `None` for GPUs that no kernel shows.
    sysfs: Option<PathBuf>,
}

impl PowerStates {
    pub fn below(sysfs: Option<PathBuf>) -> Self {
        Self { sysfs }
    }

    /// Those of these GPUs that are powered down, by index.
    pub fn asleep<'a>(&self, gpus: impl Iterator<Item = &'a ObservedGpu>) -> BTreeSet<u32> {
        gpus.filter(|gpu| self.is_asleep(&gpu.bus))
            .map(|gpu| gpu.index)
            .collect()
    }

    /// What cannot be read is taken to be awake, and the driver is asked.
    fn is_asleep(&self, bus: &str) -> bool {
        let (Some(sysfs), Some(device)) = (&self.sysfs, device_name(bus)) else {
            return false;
        };
        let file = sysfs.join("bus/pci/devices").join(device);
        let state = fs::read_to_string(file.join("power/runtime_status"));
        // Documentation/ABI/testing/sysfs-devices-power: suspended, suspending, resuming, active, error or unsupported.
        state.is_ok_and(|state| state.trim() == "suspended")
    }
}

/// The kernel's name of a PCI device (`0000:07:00.0`) from NVML's (`00000000:07:00.0`, as nvml.h describes
/// `nvmlPciInfo_t::busId`).
fn device_name(bus: &str) -> Option<String> {
    let (domain, rest) = bus.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    let is_plain = |byte: u8| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.');
    // It becomes a part of a path.
    (rest.bytes().all(is_plain) && !rest.contains(".."))
        .then(|| format!("{domain:04x}:{}", rest.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_the_kernels() {
        let name = |bus| device_name(bus);
        assert_eq!(name("00000000:07:00.0").as_deref(), Some("0000:07:00.0"));
        assert_eq!(name("00000001:AF:00.0").as_deref(), Some("0001:af:00.0"));
        assert_eq!(name("00010000:3B:00.0").as_deref(), Some("10000:3b:00.0"));
        for wrong in ["", "07", "x:07:00.0", "0:../../etc", "0:07/00"] {
            assert_eq!(name(wrong), None, "{wrong}");
        }
    }
}
