//! The node pods: the pods of a cluster that may call the daemon of their node.
//!
//! ```text
//! process in a node pod of Divvy       its plugin, its probe, `kubectl exec`   ─► served
//! process in no pod                    root's shell on the node, a service     ─► served, by its user's role
//! process in another pod               also as root, also with a host path     ─► refused
//! ```
//! A control group names the pod of a process, and no process of a pod can leave it. Root in a container is root for
//! the socket's credentials, so the user does not tell a container from the node.
//!
//! In a rolling update the old and the new node pod run side by side, and each plugin calls the daemon that serves. So
//! a daemon writes the uid of its pod into a folder of root's before it waits for its predecessor.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use super::cgroup::groups_of;
use super::process::{Process, ticks};
use crate::host::clock::boot_ns;

/// Most files in the folder; the oldest one goes first. An update has two node pods at a time, and a node that is
/// updated each hour has this many in a day and a half. A reboot empties the folder.
const MOST: usize = 32;

/// The pods that may call this daemon.
#[derive(Clone, Debug)]
pub struct NodePods {
    folder: PathBuf,
}

impl NodePods {
    /// Adds the pod of this daemon, and that of the daemon which serves until this one does: a version before this rule
    /// wrote no file.
    ///
    /// # Errors
    /// Those of the file system, and `InvalidInput` where `own` is not the uid of a pod.
    pub fn register(folder: &Path, own: &str, predecessor: Option<u32>) -> io::Result<Self> {
        let own = uid(own).ok_or_else(|| {
            let why = format!("{own:?} is not the uid of a pod");
            io::Error::new(io::ErrorKind::InvalidInput, why)
        })?;
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        remove_oldest(folder)?;
        let before = predecessor.and_then(|pid| pod_of(&groups_of(pid)?));
        for pod in before.into_iter().chain([own]) {
            fs::write(folder.join(pod), "")?;
        }
        Ok(Self {
            folder: folder.to_owned(),
        })
    }

    /// Why the process that connected may not call the daemon; `None` where it may. `pid`: as the socket's credentials
    /// have it.
    pub fn refusal(&self, socket: impl AsFd, pid: Option<u32>) -> Option<String> {
        let connected = || match divvy_fork::peer_pidfd(socket) {
            Ok(pidfd) => Peer::of_pidfd(pidfd),
            // Before Linux 6.5. A process that got the pid later was started later.
            Err(error)
                if error.raw_os_error() == Some(rustix::io::Errno::NOPROTOOPT.raw_os_error()) =>
            {
                let process = Process::with_pid(pid?)?;
                (process.start_time <= ticks(boot_ns())).then_some(Peer {
                    process,
                    pidfd: None,
                })
            }
            Err(_) => None,
        };
        let read = || {
            let peer = connected()?;
            let groups = groups_of(peer.process.pid)?;
            // The groups are those of the process that connected only if that process still runs.
            peer.runs().then_some(groups)
        };
        let Some(groups) = read() else {
            return Some(
                "the process that connected has ended, so its control group is unknown".to_owned(),
            );
        };
        let pod = pod_of(&groups)?;
        let is_known = self.folder.join(&pod).exists();
        (!is_known)
            .then(|| format!("the caller runs in pod {pod}, which is not the node pod of Divvy"))
    }
}

/// The process at the other end of a socket.
struct Peer {
    process: Process,
    pidfd: Option<std::os::fd::OwnedFd>,
}

impl Peer {
    fn of_pidfd(pidfd: std::os::fd::OwnedFd) -> Option<Self> {
        let process = Process::with_pid(pid_of(&pidfd)?)?;
        Some(Self {
            process,
            pidfd: Some(pidfd),
        })
    }

    /// Whether its first thread runs. The kernel shows a zombie in the root group of control groups of version 1.
    fn runs(&self) -> bool {
        let is_it = self
            .pidfd
            .as_ref()
            .is_none_or(|pidfd| pid_of(pidfd) == Some(self.process.pid));
        is_it && self.process.has_running_leader()
    }
}

/// The pid behind a pidfd (`Pid:` in proc(5), fdinfo); `None` once the process has been reaped.
fn pid_of(pidfd: &impl AsFd) -> Option<u32> {
    let info = format!("/proc/self/fdinfo/{}", pidfd.as_fd().as_raw_fd());
    let info = fs::read_to_string(info).ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    line.trim().parse().ok()
}

/// The pod of a process: the outermost one, as a container may make groups of any name below its own. A container of
/// the reader's own pod shows no pod, as the kernel leaves out what both groups share (cgroup_namespaces(7)).
fn pod_of(groups: &str) -> Option<String> {
    pods_of(groups).next()
}

/// The uids in the control groups of a process, the text of `/proc/PID/cgroup`, from the outermost group on. Kubelet
/// names a pod's group `podUID` (cgroupfs) or `kubepods-burstable-podUID.slice` with `_` for `-` (systemd), and no
/// process of a pod can leave it (`GetPodCgroupNameSuffix` in pkg/kubelet/cm/pod_container_manager_linux.go).
pub fn pods_of(groups: &str) -> impl Iterator<Item = String> {
    let of_part = |part: &str| {
        let of_systemd = || {
            let (_, pod) = part.strip_suffix(".slice")?.rsplit_once("-pod")?;
            uid(pod)
        };
        part.strip_prefix("pod").and_then(uid).or_else(of_systemd)
    };
    groups
        .lines()
        .flat_map(|line| line.split('/'))
        .filter_map(of_part)
}

/// A pod's uid, with `-`. That of a static pod is a hash without them.
fn uid(text: &str) -> Option<String> {
    let text = text.replace('_', "-");
    let is_uid = (32..=36).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_uid.then_some(text)
}

fn remove_oldest(folder: &Path) -> io::Result<()> {
    let mut files = Vec::new();
    for file in fs::read_dir(folder)? {
        let file = file?;
        files.push((file.metadata()?.modified()?, file.path()));
    }
    files.sort();
    // Two are about to be written.
    let over = (files.len() + 2).saturating_sub(MOST);
    files
        .iter()
        .take(over)
        .try_for_each(|(_, path)| fs::remove_file(path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    const POD: &str = "0f9a3c1e-5d0b-4a53-9a2e-2f1f6f0d7c11";
    const OTHER: &str = "1f9a3c1e-5d0b-4a53-9a2e-2f1f6f0d7c12";

    #[test]
    fn the_daemon_finds_the_pod_of_a_caller_by_the_outermost_control_group() {
        let slice = "kubepods-besteffort-pod0f9a3c1e_5d0b_4a53_9a2e_2f1f6f0d7c11.slice";
        let below = format!("0::/kubepods/pod{POD}/4f1d/pod{OTHER}/x");
        for groups in [
            format!("0::/kubepods.slice/kubepods-besteffort.slice/{slice}/cri-containerd-1.scope"),
            format!("0::/../../{slice}/cri-containerd-1.scope"),
            format!("12:memory:/node/kubepods/pod{POD}/4f1d\n1:name=systemd:/"),
            format!("12:cpu:/docker/4f1d/kubelet/kubepods/burstable/pod{POD}/1\n0::/"),
            below,
        ] {
            assert_eq!(pod_of(&groups).as_deref(), Some(POD), "{groups}");
        }
        let of_static = "0::/kubepods/podd41d8cd98f00b204e9800998ecf8427e/1";
        assert!(pod_of(of_static).is_some());
        for groups in [
            "0::/",
            "0::/../cri-containerd-1.scope",
            "0::/user.slice/user-0.slice/session-1.scope",
            "0::/machine.slice/libpod-4f1d.scope\n",
            "0::/user.slice/podman-1234.scope",
            "0::/user/xpod0",
            "",
        ] {
            assert_eq!(pod_of(groups), None, "{groups}");
        }
    }

    #[test]
    fn a_daemon_knows_its_pod_and_other_node_pods_and_their_number_has_a_bound() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("node-pods");
        for pod in 0..100 {
            let uid = format!("0f9a3c1e-5d0b-4a53-9a2e-2f1f6f0d7{pod:03}");
            NodePods::register(&folder, &uid, None).unwrap();
        }
        NodePods::register(&folder, POD, Some(std::process::id())).unwrap();
        assert!(fs::read_dir(&folder).unwrap().count() <= MOST);
        assert!(folder.join(POD).exists());
        for wrong in [
            "",
            "../../../../../../../../../../../x",
            "node",
            &"a".repeat(37),
        ] {
            let error = NodePods::register(&folder, wrong, None).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{wrong}");
        }
    }

    #[test]
    fn the_daemon_serves_a_process_in_no_pod_and_refuses_one_that_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let pods = NodePods::register(&folder.path().join("pods"), POD, None).unwrap();
        let (one, _other) = UnixStream::pair().unwrap();
        let me = std::process::id();
        if pod_of(&groups_of(me).unwrap()).is_none() {
            assert_eq!(pods.refusal(&one, Some(me)), None);
        }
        let peer = Peer {
            process: Process {
                pid: me,
                start_time: 1,
            },
            pidfd: None,
        };
        assert!(!peer.runs(), "another process has its pid");
    }
}
