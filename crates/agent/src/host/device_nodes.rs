//! GPU device nodes for jobs only: device filters on the control groups of all programs that are no jobs.
//!
//! ```text
//! cgroup root
//!   divvy.slice      no filter: jobs and their containers open the nodes
//!   user.slice       filter: logins, and what they start
//!   system.slice     filter: services, cron, containers of others
//!   init.scope …     filter
//! ```
//! The filter refuses users from [`FIRST_USER`] on, by their real uid; root and system accounts (the daemon,
//! nvidia-persistenced, a display manager) open the nodes as before. The nodes keep their modes, since `nvidia-modprobe`
//! sets a changed mode back, and since neither a group nor a mode keeps a user out: a job could leave a set-group-ID
//! program behind, or a path below `/proc/PID/root`. The kernel asks a filter at each open(2), in whatever way the program
//! has found the node.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

use divvy_fork::{DeviceRule, attach_device_filter, detach_device_filter, has_device_filter};

use super::cgroup;

/// The slice of the fork server's unit and of jobs' containers.
pub const SLICE: &str = "divvy.slice";

/// First uid of people (`UID_MIN` of login.defs(5)); smaller ones are those of root and of services.
pub const FIRST_USER: u32 = 1000;

/// Major number of `/dev/nvidiaN` and `/dev/nvidiactl` (Linux' devices.txt). All others are assigned when the module is
/// loaded.
pub const NVIDIA: u32 = 195;

/// Majors that have drivers now.
const DEVICES: &str = "/proc/devices";

/// Which programs can open the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceAccess {
    EveryUser,
    JobsOnly,
    /// These groups lack the filter, or have an older one.
    Partly(Vec<PathBuf>),
}

/// The control groups beside the jobs' slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceGroups {
    root: PathBuf,
}

impl DeviceGroups {
    /// Those beside the slice that this process is in: the fork server's.
    ///
    /// # Errors
    /// Why the kernel cannot distinguish jobs from other programs, in words.
    pub fn beside_own_slice() -> Result<Self, String> {
        let own = cgroup::own().ok_or("this machine has no cgroup v2")?;
        let root = cgroup::mount_point().filter(|root| own.starts_with(root.join(SLICE)));
        let root = root.ok_or_else(|| {
            format!(
                "the fork server's control group {} is not below {SLICE}",
                own.display()
            )
        })?;
        Ok(Self { root })
    }

    /// Whether users' programs outside the jobs' slice are kept from the nodes, and this process is in the slice.
    pub fn are_restricted() -> bool {
        Self::beside_own_slice()
            .and_then(|groups| groups.access())
            .is_ok_and(|access| access != DeviceAccess::EveryUser)
    }

    /// Those of this machine.
    pub fn here() -> Option<Self> {
        cgroup::mount_point().map(|root| Self { root })
    }

    /// Keeps users' programs outside jobs from the nodes.
    ///
    /// # Errors
    /// The group, and why not, in words.
    pub fn restrict(&self) -> Result<(), String> {
        let rule = rule();
        self.for_each(|group| attach_device_filter(group.as_fd(), &rule))
    }

    /// Lets every user open the nodes.
    ///
    /// # Errors
    /// As [`Self::restrict`].
    pub fn open(&self) -> Result<(), String> {
        self.for_each(|group| detach_device_filter(group.as_fd()))
    }

    /// Which programs can open the nodes.
    ///
    /// # Errors
    /// As [`Self::restrict`]; only root may ask.
    pub fn access(&self) -> Result<DeviceAccess, String> {
        let rule = rule();
        let (mut open, mut filtered) = (Vec::new(), 0);
        for path in self.groups()? {
            let has = File::open(&path).and_then(|group| has_device_filter(group.as_fd(), &rule));
            match has.map_err(|error| failed(&path, &error))? {
                true => filtered += 1,
                false => open.push(path),
            }
        }
        Ok(match (filtered, open.is_empty()) {
            (0, _) => DeviceAccess::EveryUser,
            (_, true) => DeviceAccess::JobsOnly,
            _ => DeviceAccess::Partly(open),
        })
    }

    fn for_each(&self, act: impl Fn(&File) -> io::Result<()>) -> Result<(), String> {
        for path in self.groups()? {
            match File::open(&path).and_then(|group| act(&group)) {
                // It ended meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                done => done.map_err(|error| failed(&path, &error))?,
            }
        }
        Ok(())
    }

    fn groups(&self) -> Result<Vec<PathBuf>, String> {
        let entries = fs::read_dir(&self.root).map_err(|error| failed(&self.root, &error))?;
        let folders = entries.flatten().map(|entry| entry.path());
        let mut groups: Vec<PathBuf> = folders
            .filter(|path| path.is_dir() && !path.ends_with(SLICE))
            .collect();
        groups.sort();
        Ok(groups)
    }
}

fn failed(group: &Path, error: &io::Error) -> String {
    format!("cannot filter the devices of {}: {error}", group.display())
}

fn rule() -> DeviceRule {
    DeviceRule {
        majors: driver_majors(),
        first_uid: FIRST_USER,
    }
}

/// Keeps all processes of this control group, root's too, from the nodes.
///
/// # Errors
/// Those of bpf(2): only root may, and a container's root may not.
pub fn refuse_all_in(group: BorrowedFd<'_>) -> io::Result<()> {
    let rule = DeviceRule {
        first_uid: 0,
        ..rule()
    };
    match rule.majors.is_empty() {
        true => Ok(()),
        false => attach_device_filter(group, &rule),
    }
}

/// The major numbers of the driver's device nodes. A module that is loaded later adds one.
pub fn driver_majors() -> Vec<u32> {
    majors(&fs::read_to_string(DEVICES).unwrap_or_default())
}

/// NVIDIA's character devices (proc(5), `/proc/devices`).
fn majors(devices: &str) -> Vec<u32> {
    let of_line = |line: &str| {
        let (major, name) = line.trim().split_once(' ')?;
        name.starts_with("nvidia").then(|| major.parse().ok())?
    };
    let characters = devices.split("Block devices:").next().unwrap_or_default();
    let mut majors: Vec<u32> = characters.lines().filter_map(of_line).collect();
    majors.push(NVIDIA);
    majors.sort_unstable();
    majors.dedup();
    majors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn majors_of_the_driver_are_found_among_others() {
        // H200, driver 570; the block device is made up.
        let devices = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n238 nvidia-uvm\n239 nvidia-nvswitch\n\
                       241 nvidia-caps\n254 rtc\n\nBlock devices:\n  7 loop\n259 nvidia-like\n";
        assert_eq!(majors(devices), [195, 238, 239, 241]);
        assert_eq!(majors(""), [195]);
    }

    #[test]
    fn every_group_beside_the_slice_is_restricted_and_opened_again() {
        let Some(root) = DeviceGroups::here().map(|here| here.root) else {
            eprintln!("SKIPPED: this machine has no cgroup v2");
            return;
        };
        let test = root.join(format!("divvy-test-nodes-{}", std::process::id()));
        let made = [test.clone()]
            .into_iter()
            .chain(["user.slice", "system.slice", SLICE].map(|name| test.join(name)));
        for path in made {
            if let Err(error) = fs::create_dir(&path) {
                eprintln!("SKIPPED: cannot create {}: {error}", path.display());
                return;
            }
        }
        let groups = DeviceGroups { root: test.clone() };
        match groups.restrict() {
            Err(error) => eprintln!("SKIPPED: no device filters here: {error}"),
            Ok(()) => {
                assert_eq!(groups.access(), Ok(DeviceAccess::JobsOnly));
                let slice = File::open(test.join(SLICE)).unwrap();
                assert!(!has_device_filter(slice.as_fd(), &rule()).unwrap());
                // Made later, until the next look.
                let later = test.join("machine.slice");
                fs::create_dir(&later).unwrap();
                assert_eq!(
                    groups.access(),
                    Ok(DeviceAccess::Partly(vec![later.clone()]))
                );
                groups.restrict().unwrap();
                assert_eq!(groups.access(), Ok(DeviceAccess::JobsOnly));
                groups.open().unwrap();
                assert_eq!(groups.access(), Ok(DeviceAccess::EveryUser));
                fs::remove_dir(later).unwrap();
            }
        }
        for name in ["user.slice", "system.slice", SLICE, ""] {
            let _ = fs::remove_dir(test.join(name));
        }
    }
}
