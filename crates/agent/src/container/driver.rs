//! Driver files of a container: libraries, programs and devices of the host, or the simulated driver, as bind mounts.
//!
//! All of it is mounted from the host, so that nothing has to be installed for containers, neither in the image nor on
//! the host. NVIDIA's packages give an installation's libraries names that end in the driver's version (driver README,
//! "Installed Components"); not verified on hardware.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use divvy_core::GpuUuid;
use divvy_driver::load::{CUDA, NVML};

use crate::host::mig_device_nodes::{ComputeInstanceId, DeviceNodeError};
use crate::job_dir::container_spec::{Device, Driver, Library};
use crate::supervisor::ldso;

/// Where the driver tells of its GPUs (driver README, "The /proc/driver/nvidia Interface").
const GPUS: &str = "/proc/driver/nvidia/gpus";

/// Programs of the driver that a job may want.
const PROGRAMS: [&str; 2] = ["/usr/bin/nvidia-smi", "/usr/bin/nvidia-debugdump"];

/// Devices that belong to no GPU.
const COMMON: [&str; 3] = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"];

/// A GPU that a container is to have, or an instance of it: the ids of its GPU instance and its compute instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuDevice {
    pub gpu: GpuUuid,
    pub instance: Option<(u32, u32)>,
}

/// The host's driver cannot be given to a container.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    #[error("the dynamic loader does not find {CUDA} on this machine")]
    NoCuda,
    #[error("{GPUS} does not list the device file of GPU {0}")]
    NoDevice(GpuUuid),
    #[error(transparent)]
    Rights(#[from] DeviceNodeError),
}

impl Driver {
    /// The driver that is installed here, with the devices of these GPUs or instances. `version`: the driver's.
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn installed(version: &str, parts: &[GpuDevice]) -> Result<Self, DriverError> {
        let first = |name| ldso::find_library(name, None).into_iter().next();
        let cuda = first(CUDA).ok_or(DriverError::NoCuda)?;
        let known = minors(Path::new(GPUS));
        Ok(Self::Installed {
            cuda,
            nvml: first(NVML),
            others: others(version, ldso::all_entries()),
            programs: PROGRAMS
                .iter()
                .map(PathBuf::from)
                .filter(|path| path.is_file())
                .collect(),
            devices: devices(parts, &known, Path::new("/"))?,
        })
    }
}

/// The driver's own libraries among those that the loader knows, without the two that are wrapped.
fn others(version: &str, all: impl IntoIterator<Item = (String, PathBuf)>) -> Vec<Library> {
    let ending = format!(".so.{version}");
    let mut found: Vec<Library> = Vec::new();
    for (name, path) in all {
        let Ok(file) = fs::canonicalize(path) else {
            continue;
        };
        let is_drivers = file
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.ends_with(&ending));
        let is_wrapped = [CUDA, NVML, "libcuda.so"].contains(&name.as_str());
        if is_drivers && !is_wrapped && !found.iter().any(|other| other.name == name) {
            found.push(Library { name, file });
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found
}

/// UUIDs and minor numbers.
fn minors(folder: &Path) -> Vec<(String, u32)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let texts =
        entries.filter_map(|entry| fs::read_to_string(entry.path().join("information")).ok());
    texts.filter_map(|text| minor(&text)).collect()
}

/// `GPU UUID: …` and `Device Minor: …` of one GPU.
fn minor(information: &str) -> Option<(String, u32)> {
    let field = |name: &str| {
        let mut lines = information.lines().filter_map(|line| line.split_once(':'));
        lines
            .find(|(key, _)| key.trim() == name)
            .map(|(_, value)| value.trim().to_owned())
    };
    Some((field("GPU UUID")?, field("Device Minor")?.parse().ok()?))
}

/// `root`: `/`, but for tests.
fn devices(
    parts: &[GpuDevice],
    known: &[(String, u32)],
    root: &Path,
) -> Result<Vec<Device>, DriverError> {
    let below = |path: &str| root.join(path.trim_start_matches('/'));
    let common = COMMON.iter().filter(|path| below(path).exists());
    let mut devices: Vec<Device> = common.map(|path| Device::new(*path, "rw")).collect();
    for part in parts {
        let minor = known
            .iter()
            .find(|(uuid, _)| uuid.eq_ignore_ascii_case(part.gpu.as_str()))
            .map(|(_, minor)| *minor)
            .ok_or_else(|| DriverError::NoDevice(part.gpu.clone()))?;
        devices.push(Device::new(format!("/dev/nvidia{minor}"), "rw"));
        if let Some((instance, compute)) = part.instance {
            let which = ComputeInstanceId {
                minor,
                instance,
                compute,
            };
            for node in which.find_nodes(root)?.device_nodes() {
                devices.push(Device::new(node.path, &node.permissions));
            }
        }
    }
    let mut seen = BTreeSet::new();
    devices.retain(|device| seen.insert(device.path.clone()));
    Ok(devices)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFORMATION: &str = "Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ:   \t\t 35\nGPU UUID: \t GPU-01010101-0101-0101-0101-010101010101\nVideo BIOS: \t 92\nBus Location: \t 0000:07:00.0\nDevice Minor: \t 3\nGPU Excluded:\t No\n";

    fn part(byte: u8, instance: Option<(u32, u32)>) -> GpuDevice {
        GpuDevice {
            gpu: GpuUuid::from_bytes([byte; 16]),
            instance,
        }
    }

    #[test]
    fn a_gpus_device_is_told_by_its_minor_number() {
        let known = [minor(INFORMATION).unwrap()];
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("dev")).unwrap();
        for name in ["nvidiactl", "nvidia-uvm"] {
            fs::write(root.path().join("dev").join(name), "").unwrap();
        }
        let devices = |byte| devices(&[part(byte, None)], &known, root.path());
        let found: Vec<_> = devices(1).unwrap();
        let paths: Vec<_> = found.into_iter().map(|device| device.path).collect();
        assert_eq!(
            paths,
            ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia3"].map(PathBuf::from)
        );
        assert!(matches!(devices(2), Err(DriverError::NoDevice(_))));
        assert_eq!(minor("Model: x\n"), None);
    }

    #[test]
    fn an_instance_comes_with_its_rights_and_no_others() {
        let known = [("GPU-01010101-0101-0101-0101-010101010101".to_owned(), 0)];
        let root = tempfile::tempdir().unwrap();
        let folder = root
            .path()
            .join("proc/driver/nvidia/capabilities/gpu0/mig/gi1");
        fs::create_dir_all(folder.join("ci0")).unwrap();
        fs::write(folder.join("access"), "DeviceFileMinor: 12\n").unwrap();
        fs::write(folder.join("ci0/access"), "DeviceFileMinor: 13\n").unwrap();
        let found = devices(&[part(1, Some((1, 0)))], &known, root.path()).unwrap();
        let names = |permissions: &str| -> Vec<String> {
            let of = found
                .iter()
                .filter(|device| device.permissions == permissions);
            of.filter_map(|device| Some(device.path.file_name()?.to_str()?.to_owned()))
                .collect()
        };
        assert_eq!(names("r"), ["nvidia-cap12", "nvidia-cap13"]);
        assert!(names("rw").contains(&"nvidia0".to_owned()));
        assert!(devices(&[part(1, Some((2, 0)))], &known, root.path()).is_err());
    }

    #[test]
    fn a_drivers_libraries_are_those_of_its_version() {
        let dir = tempfile::tempdir().unwrap();
        let lay = |file: &str, link: &str| {
            fs::write(dir.path().join(file), "").unwrap();
            std::os::unix::fs::symlink(file, dir.path().join(link)).unwrap();
            (link.to_owned(), dir.path().join(link))
        };
        let all = [
            lay(
                "libnvidia-ptxjitcompiler.so.580.65",
                "libnvidia-ptxjitcompiler.so.1",
            ),
            lay("libcuda.so.580.65", "libcuda.so.1"),
            lay("libnvidia-ml.so.580.65", "libnvidia-ml.so.1"),
            lay("libnvcuvid.so.550.1", "libnvcuvid.so.1"),
            lay("libm.so.6.0", "libm.so.6"),
            ("libgone.so.1".to_owned(), dir.path().join("gone")),
        ];
        let found = others("580.65", all);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, "libnvidia-ptxjitcompiler.so.1");
        assert!(
            found[0]
                .file
                .ends_with("libnvidia-ptxjitcompiler.so.580.65")
        );
    }
}
