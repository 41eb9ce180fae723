//! The capability files of MIG, under the folder that DIVVY_SIM_ROOT names, which stands for `/`.
//!
//! ```text
//! proc/driver/nvidia/capabilities/mig/{config,monitor}              the minor and mode of each right's device file
//! proc/driver/nvidia/capabilities/gpuN/mig/giG/{access,ciC/access}  the same of each instance that there is
//! proc/driver/nvidia-caps/mig-minors                                all minors there could be
//! dev/nvidia-caps/nvidia-capM                               the device files: a process that can open one has the right
//! ```
//! As on a real machine the files under `proc` are the driver's word and come and go with the instances, and
//! nvidia-modprobe makes the device files, which stay. Here the process that changes instances makes them too, unless
//! the configuration says `without_modprobe`; they are plain files. Shapes and modes: nv-caps.c of NVIDIA's open kernel
//! modules, and the MIG user guide, "Device Nodes and Capabilities".

use crate::engine::mig::identity::{compute_instance_minor, gpu_instance_minor};
use crate::engine::mig::partition::{COMPUTE_INSTANCES, GPU_INSTANCES};
use crate::engine::mig::{Mig, MigInstanceId};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The minors of the rights to change instances and to watch all of them (nv-caps.c of NVIDIA's open kernel modules).
const CONFIG: u32 = 1;

/// Of the same file of NVIDIA's kernel modules.
const MONITOR: u32 = 2;

/// Modes of their device files, and of those of instances.
const OWNER_READS: u32 = 0o400;

const ALL_READ: u32 = 0o444;

/// GPUs that mig-minors has room for.
const NUMBERED_GPUS: u32 = 32;

/// The folder that stands for `/`.
pub struct Root(PathBuf);

/// Where capability files are kept, if they are.
pub fn root() -> Option<Root> {
    let folder = std::env::var_os("DIVVY_SIM_ROOT").filter(|folder| !folder.is_empty())?;
    Some(Root(PathBuf::from(folder)))
}

/// Has the files follow the instances of all GPUs, if there are any files. With `makes_devices` the files of new rights
/// are made too.
pub fn follow(gpus: &[&Mig], makes_devices: bool) {
    if let Some(root) = root() {
        // A process without the right to write there is not the driver, and leaves the files as they are.
        let _ = root.refresh(gpus, makes_devices);
    }
}

/// Whether this process has the right to watch all instances.
pub fn may_watch() -> bool {
    root().is_none_or(|root| File::open(root.device_file(MONITOR)).is_ok())
}

impl Root {
    fn device_file(&self, minor: u32) -> PathBuf {
        self.0.join(format!("dev/nvidia-caps/nvidia-cap{minor}"))
    }

    fn capabilities(&self) -> PathBuf {
        self.0.join("proc/driver/nvidia/capabilities")
    }

    /// Whether this process has the rights to a compute instance: its own file and that of its GPU instance can be
    /// opened.
    pub fn may_use(&self, gpu: usize, place: MigInstanceId) -> bool {
        let gpu = gpu as u32;
        let minors = [
            gpu_instance_minor(gpu, place.gpu_instance),
            compute_instance_minor(gpu, place),
        ];
        let opens = |minor| File::open(self.device_file(minor)).is_ok();
        minors.into_iter().all(opens)
    }

    /// Makes the files say what instances there are.
    fn refresh(&self, gpus: &[&Mig], makes_devices: bool) -> io::Result<()> {
        let minors = self.0.join("proc/driver/nvidia-caps/mig-minors");
        if !minors.exists() {
            write(&minors, &all_minors())?;
        }
        let mut rights = BTreeSet::from([
            (PathBuf::from("mig/config"), CONFIG, OWNER_READS),
            (PathBuf::from("mig/monitor"), MONITOR, ALL_READ),
        ]);
        for (gpu, mig) in gpus.iter().enumerate() {
            rights.extend(instances(mig, gpu));
        }
        self.remove_stale(gpus.len(), &rights)?;
        for (name, minor, mode) in &rights {
            let text =
                format!("DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n");
            write(&self.capabilities().join(name), &text)?;
            if makes_devices {
                self.make_device_file(*minor, *mode)?;
            }
        }
        Ok(())
    }

    /// Removes the files of instances that are gone.
    fn remove_stale(&self, gpus: usize, rights: &BTreeSet<Right>) -> io::Result<()> {
        let there = |folder: &Path| rights.iter().any(|(name, ..)| name.starts_with(folder));
        for gpu in 0..gpus {
            for instance in 0..GPU_INSTANCES {
                let own = PathBuf::from(format!("gpu{gpu}/mig/gi{instance}"));
                let parts = (0..COMPUTE_INSTANCES).map(|compute| own.join(format!("ci{compute}")));
                for folder in std::iter::once(own.clone()).chain(parts) {
                    let full = self.capabilities().join(&folder);
                    if !there(&folder) && full.exists() {
                        fs::remove_dir_all(full)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn make_device_file(&self, minor: u32, mode: u32) -> io::Result<()> {
        let path = self.device_file(minor);
        if path.exists() {
            return Ok(());
        }
        folder_of(&path)?;
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(mode))
    }
}

/// The file under `capabilities`, and the minor and mode of its device file.
type Right = (PathBuf, u32, u32);

fn instances(mig: &Mig, gpu: usize) -> Vec<Right> {
    let mut rights = Vec::new();
    for instance in mig.gpu_instances().map(|instance| instance.id) {
        let folder = PathBuf::from(format!("gpu{gpu}/mig/gi{instance}"));
        let minor = gpu_instance_minor(gpu as u32, instance);
        rights.push((folder.join("access"), minor, ALL_READ));
        for own in mig.compute_instances_of(instance) {
            let minor = compute_instance_minor(gpu as u32, own.place);
            let file = format!("ci{}/access", own.place.compute_instance);
            rights.push((folder.join(file), minor, ALL_READ));
        }
    }
    rights
}

/// As `mig-minors` lists them: of every instance that any of the most GPUs could have.
fn all_minors() -> String {
    let mut text = format!("config {CONFIG}\nmonitor {MONITOR}\n");
    for gpu in 0..NUMBERED_GPUS {
        for gpu_instance in 0..GPU_INSTANCES as u32 {
            let minor = gpu_instance_minor(gpu, gpu_instance);
            text.push_str(&format!("gpu{gpu}/gi{gpu_instance}/access {minor}\n"));
            for compute_instance in 0..COMPUTE_INSTANCES as u32 {
                let place = MigInstanceId {
                    gpu_instance,
                    compute_instance,
                };
                let minor = compute_instance_minor(gpu, place);
                text.push_str(&format!(
                    "gpu{gpu}/gi{gpu_instance}/ci{compute_instance}/access {minor}\n"
                ));
            }
        }
    }
    text
}

fn folder_of(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

/// Puts a file in place as a whole, so that no process reads half of one. A file with the same text stays.
fn write(path: &Path, text: &str) -> io::Result<()> {
    if fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    folder_of(path)?;
    let unfinished = path.with_extension("new");
    let mut file = File::create(&unfinished)?;
    file.write_all(text.as_bytes())?;
    file.set_permissions(Permissions::from_mode(ALL_READ))?;
    fs::rename(unfinished, path)
}
