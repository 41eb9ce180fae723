//! MIG device nodes: the files in `/dev` that a container needs for an instance, and that a device cgroup has to allow.
//!
//! The driver opens `/dev/nvidiactl`, `/dev/nvidia-uvm[-tools]`, the GPU's `/dev/nvidiaN`, and the two capability files
//! of the instance. Their numbers stand under `/proc/driver/nvidia/capabilities` (MIG User Guide, "Device Nodes and
//! Capabilities"). The files of `mig/config` and `mig/monitor` are never among them: they are rights over the whole
//! machine.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Where the driver tells of its capabilities, and where their files are.
const CAPABILITIES: &str = "proc/driver/nvidia/capabilities";
const FILES: &str = "dev/nvidia-caps";

/// In each GPU's numbers: 15 GPU instances, each with itself and 8 compute instances (nv-caps.c). Three come before
/// all. So NVIDIA's kernel modules number them.
const OF_A_GPU: u32 = 135;
const OF_AN_INSTANCE: u32 = 9;
const BEFORE_ALL: u32 = 3;

/// Which instance: the GPU's minor number, the ids of the GPU instance and of the compute instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputeInstanceId {
    pub minor: u32,
    pub instance: u32,
    pub compute: u32,
}

/// The files of one instance, as a container is given them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceDeviceNodes {
    /// What every program on this GPU needs.
    pub common: Vec<PathBuf>,
    /// The rights to this instance.
    pub capabilities: Vec<PathBuf>,
}

/// A device in a CDI specification (`containerEdits.deviceNodes`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNode {
    pub path: PathBuf,
    /// Reading is the right; nothing is ever written to a capability file.
    pub permissions: String,
}

/// The driver's capability files do not say what they should.
#[derive(Debug, thiserror::Error)]
pub enum DeviceNodeError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} does not name a device file")]
    NotADevice { path: PathBuf },
    #[error("{path} has the number {found}, but nv-caps.c defines {expected}")]
    UnexpectedMinor {
        path: PathBuf,
        found: u32,
        expected: u32,
    },
}

impl ComputeInstanceId {
    /// The number of the GPU instance's capability file.
    pub fn instance_minor(self) -> u32 {
        BEFORE_ALL + self.minor * OF_A_GPU + self.instance * OF_AN_INSTANCE
    }

    /// The number of the compute instance's.
    pub fn compute_minor(self) -> u32 {
        self.instance_minor() + 1 + self.compute
    }

    /// The files, as the driver under `root` (`/`, but for simulated drivers) says.
    ///
    /// # Errors
    /// The driver has no such instance, or numbers it otherwise than documented: then no job gets a file that may
    /// belong to another one.
    pub fn find_nodes(self, root: &Path) -> Result<InstanceDeviceNodes, DeviceNodeError> {
        let folder = root
            .join(CAPABILITIES)
            .join(format!("gpu{}/mig/gi{}", self.minor, self.instance));
        let compute = folder.join(format!("ci{}/access", self.compute));
        let rights = [
            (folder.join("access"), self.instance_minor()),
            (compute, self.compute_minor()),
        ];
        let mut capabilities = Vec::new();
        for (path, expected) in rights {
            let found = minor(&path)?;
            if found != expected {
                return Err(DeviceNodeError::UnexpectedMinor {
                    path,
                    found,
                    expected,
                });
            }
            capabilities.push(root.join(FILES).join(format!("nvidia-cap{found}")));
        }
        let common = [
            "nvidiactl".to_owned(),
            "nvidia-uvm".to_owned(),
            "nvidia-uvm-tools".to_owned(),
            format!("nvidia{}", self.minor),
        ];
        Ok(InstanceDeviceNodes {
            common: common
                .iter()
                .map(|name| root.join("dev").join(name))
                .collect(),
            capabilities,
        })
    }
}

impl InstanceDeviceNodes {
    /// As a CDI specification has them.
    pub fn device_nodes(&self) -> Vec<DeviceNode> {
        let node = |permissions: &'static str| {
            move |path: &PathBuf| DeviceNode {
                path: path.clone(),
                permissions: permissions.to_owned(),
            }
        };
        let common = self.common.iter().map(node("rw"));
        common
            .chain(self.capabilities.iter().map(node("r")))
            .collect()
    }
}

/// `DeviceFileMinor: 12`
fn minor(path: &Path) -> Result<u32, DeviceNodeError> {
    let text = fs::read_to_string(path).map_err(|source| DeviceNodeError::Read {
        path: path.to_owned(),
        source,
    })?;
    let number = text
        .lines()
        .find_map(|line| line.strip_prefix("DeviceFileMinor:")?.trim().parse().ok());
    number.ok_or_else(|| DeviceNodeError::NotADevice {
        path: path.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn which(minor: u32, instance: u32, compute: u32) -> ComputeInstanceId {
        ComputeInstanceId {
            minor,
            instance,
            compute,
        }
    }

    fn driver(which: ComputeInstanceId, minors: [u32; 2]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join(CAPABILITIES);
        let folder = folder.join(format!("gpu{}/mig/gi{}", which.minor, which.instance));
        let compute = folder.join(format!("ci{}", which.compute));
        fs::create_dir_all(&compute).unwrap();
        for (folder, minor) in [folder, compute].iter().zip(minors) {
            let text =
                format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
            fs::write(folder.join("access"), text).unwrap();
        }
        root
    }

    #[test]
    fn numbers_are_those_of_the_user_guide() {
        assert_eq!(which(0, 1, 0).instance_minor(), 12);
        let computes = [0, 1, 2].map(|compute| which(0, 1, compute).compute_minor());
        assert_eq!(computes, [13, 14, 15]);
        assert_eq!(which(31, 14, 7).compute_minor(), 4322);
    }

    #[test]
    fn an_instance_has_the_gpus_files_and_its_own_two_rights() {
        let which = which(0, 1, 0);
        let root = driver(which, [12, 13]);
        let nodes = which.find_nodes(root.path()).unwrap().device_nodes();
        let names: Vec<(&str, &str)> = nodes
            .iter()
            .map(|node| {
                let path = node.path.strip_prefix(root.path()).unwrap();
                (path.to_str().unwrap(), node.permissions.as_str())
            })
            .collect();
        assert_eq!(
            names,
            [
                ("dev/nvidiactl", "rw"),
                ("dev/nvidia-uvm", "rw"),
                ("dev/nvidia-uvm-tools", "rw"),
                ("dev/nvidia0", "rw"),
                ("dev/nvidia-caps/nvidia-cap12", "r"),
                ("dev/nvidia-caps/nvidia-cap13", "r"),
            ]
        );
    }

    #[test]
    fn a_number_that_may_be_anothers_right_is_given_to_nobody() {
        let which = which(0, 1, 0);
        let root = driver(which, [12, 22]);
        let error = which.find_nodes(root.path()).unwrap_err();
        assert!(matches!(
            error,
            DeviceNodeError::UnexpectedMinor {
                found: 22,
                expected: 13,
                ..
            }
        ));
        let other = ComputeInstanceId {
            instance: 2,
            ..which
        };
        let missing = other.find_nodes(root.path()).unwrap_err();
        assert!(matches!(missing, DeviceNodeError::Read { .. }));
    }
}
