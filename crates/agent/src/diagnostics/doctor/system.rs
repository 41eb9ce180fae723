//! Checks of the kernel, and of this user's rights.

use std::fs;
use std::path::{Path, PathBuf};

use divvy_api::home::{Home, session};
use divvy_api::v1::Finding;
use rustix::fs::{Access, Mode, OFlags, access};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, getrlimit, pidfd_open};

use super::{fail, ok, warn};
use crate::host::cgroup;
use crate::host::device_nodes::{DeviceAccess, DeviceGroups};
use crate::host::task_limits;

/// Inode of the first PID namespace (`PROC_PID_INIT_INO`, linux/proc_ns.h).
const FIRST_NAMESPACE: &str = "pid:[4026531836]";

/// A daemon holds a few files for each job and each client. So a hundred of each need half of it.
const FILES: u64 = 1024;

/// Where Podman answers, below a runtime folder.
const PODMAN: &str = "podman/podman.sock";

pub fn findings() -> Vec<Finding> {
    let mut findings = vec![
        kernel(),
        files(),
        pid_namespace(),
        ptrace(),
        cgroups(),
        processes(),
    ];
    findings.extend(logout());
    findings.extend(device_nodes());
    findings.push(containers());
    findings
}

/// Signals go through pidfds, so that they never hit an unmanaged process.
fn kernel() -> Finding {
    const CHECK: &str = "system.kernel";
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    let me = Pid::from_raw(std::process::id().cast_signed());
    match me.map(|me| pidfd_open(me, PidfdFlags::empty())) {
        Some(Ok(_)) => ok(CHECK, format!("Linux {release}, with pidfds")),
        Some(Err(error)) => fail(
            CHECK,
            format!("Linux {release} has no pidfds: {error}"),
            "without pidfds a signal could hit the wrong process, so the daemon does not start",
            "use Linux 5.3 or newer; a container's seccomp profile must allow pidfd_open",
        ),
        None => ok(CHECK, format!("Linux {release}")),
    }
}

fn files() -> Finding {
    const CHECK: &str = "system.limits";
    let files = getrlimit(Resource::Nofile).current;
    let locked = getrlimit(Resource::Memlock).current;
    let shown =
        |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |n| n.to_string());
    let found = format!(
        "open files {}, locked memory {} bytes",
        shown(files),
        shown(locked)
    );
    if files.is_some_and(|files| files < FILES) {
        let means = "a daemon with many jobs and clients runs out of file descriptors";
        return warn(
            CHECK,
            found,
            means,
            "ulimit -n 4096 (before the daemon starts)",
        );
    }
    ok(CHECK, found)
}

/// NVML speaks of processes by the numbers they have in the first namespace.
fn pid_namespace() -> Finding {
    const CHECK: &str = "system.pid_namespace";
    match fs::read_link("/proc/self/ns/pid") {
        Ok(namespace) if namespace == Path::new(FIRST_NAMESPACE) => ok(
            CHECK,
            "the PID namespace is the host's, as the driver expects",
        ),
        _ => warn(
            CHECK,
            "the PID namespace is not the host's, for example in a container",
            "the driver may report other PIDs, so the daemon may miss memory of a job that the limiter does not count",
            "start the daemon's container with --pid=host",
        ),
    }
}

fn ptrace() -> Finding {
    const CHECK: &str = "system.ptrace";
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    let found = match scope.as_deref().map(str::trim) {
        Ok("0") => "processes of one user may inspect each other (ptrace)",
        Ok("1") => "a process may inspect only its children (ptrace)",
        Ok(_) => "only root may inspect processes (ptrace)",
        Err(_) => "no Yama: processes of one user may inspect each other (ptrace)",
    };
    ok(CHECK, found)
}

/// The group below which jobs of a daemon started here would have theirs, found and tried as the daemon does it.
fn groups() -> Result<PathBuf, String> {
    let own = cgroup::delegated_parent()?;
    cgroup::probe_below(&own, &format!("divvy-doctor-{}", std::process::id()))?;
    Ok(own)
}

fn cgroups() -> Finding {
    let found = match groups() {
        Ok(own) => format!("jobs run in control groups below {}", own.display()),
        Err(why) => format!("{why}; not needed: the daemon finds the processes of jobs by session"),
    };
    ok("system.cgroups", found)
}

/// What would bound the processes of jobs, had this user a daemon in this process's control group.
fn processes() -> Finding {
    const CHECK: &str = "system.processes";
    let why = match groups() {
        Err(why) => Some(why),
        Ok(own) => cgroup::pids_unavailable_reason(&own),
    };
    let (of_a_job, of_a_user) = (
        task_limits::max_tasks_per_job(),
        task_limits::max_tasks_per_user(),
    );
    let shown = |most: Option<u64>| most.map_or_else(|| "?".to_owned(), |most| most.to_string());
    let found = match why {
        None => format!(
            "at most {} processes in each job (pids controller)",
            shown(of_a_job)
        ),
        Some(why) => format!(
            "at most {} processes of each user (RLIMIT_NPROC; {why}); jobs of root have no such limit",
            shown(of_a_user)
        ),
    };
    ok(CHECK, found)
}

/// The nodes that every CUDA program opens; those of each GPU are checked with the GPU.
fn device_nodes() -> Vec<Finding> {
    let nodes = ["/dev/nvidiactl", "/dev/nvidia-uvm"];
    let access = DeviceGroups::here().map(|groups| groups.access());
    let restriction = restriction(access.as_ref(), is_refused_by_filter(nodes[0]));
    if restriction.is_some() || !Path::new(nodes[0]).exists() {
        return restriction.into_iter().collect();
    }
    let finding = |path: &&str| device_node(&format!("system{}", path.replace('/', ".")), path);
    nodes.iter().filter_map(finding).collect()
}

/// Whether a device filter refuses this user a node. By its mode it would be `EACCES`.
fn is_refused_by_filter(node: &str) -> bool {
    let opened = rustix::fs::open(node, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    opened.err() == Some(Errno::PERM)
}

/// Whether programs of users can open the nodes outside jobs. The kernel answers root alone; another user tries to open one.
fn restriction(access: Option<&Result<DeviceAccess, String>>, is_refused: bool) -> Option<Finding> {
    const CHECK: &str = "system.device_nodes";
    const JOBS_ONLY: &str = "users' programs can open the GPUs' device nodes in jobs only";
    match access {
        Some(Ok(DeviceAccess::JobsOnly)) => Some(ok(CHECK, JOBS_ONLY)),
        Some(Ok(DeviceAccess::Partly(open))) => {
            let open: Vec<String> = open.iter().map(|path| path.display().to_string()).collect();
            Some(warn(
                CHECK,
                format!("{JOBS_ONLY}, except in {}", open.join(", ")),
                "programs there use GPUs without a limit",
                "systemctl restart divvy",
            ))
        }
        _ if is_refused => Some(warn(
            CHECK,
            JOBS_ONLY,
            "CUDA programs of this user run in jobs of the system's daemon only",
            "divvy run -- PROGRAM",
        )),
        _ => None,
    }
}

/// What is wrong with a device node, if anything is.
pub fn device_node(check: &str, path: &str) -> Option<Finding> {
    let error = access(path, Access::READ_OK | Access::WRITE_OK).err()?;
    Some(fail(
        check,
        format!("{path} cannot be opened: {error}"),
        "CUDA programs of this user cannot run",
        if Path::new(path).exists() {
            "join the group that owns the file (ls -l), often video or render, and log in again"
        } else {
            "sudo nvidia-modprobe -u -c 0; in containers, pass the device to the container"
        },
    ))
}

/// What a user's own daemon meets at the last logout; nothing where the system's daemon serves.
fn logout() -> Option<Finding> {
    const CHECK: &str = "system.logout";
    let me = rustix::process::getuid().as_raw();
    if me == 0 || Home::is_system_installed() {
        return None;
    }
    if !session::ends_at_logout(me) {
        return Some(ok(
            CHECK,
            "a logout ends no process of this user, as far as systemd-logind says",
        ));
    }
    Some(warn(
        CHECK,
        format!("uid {me} does not linger"),
        "at the last logout systemd-logind stops this user's services, and with KillUserProcesses=yes (logind.conf) all \
         processes: a daemon of this user and its jobs",
        "loginctl enable-linger",
    ))
}

/// What containers could be started with, were they asked for.
fn containers() -> Finding {
    let runtime = std::env::var("XDG_RUNTIME_DIR").unwrap_or_default();
    let podman = [format!("{runtime}/{PODMAN}"), format!("/run/{PODMAN}")];
    let can = |path: &str| access(path, Access::READ_OK | Access::WRITE_OK).is_ok();
    let mut found = Vec::new();
    if can("/var/run/docker.sock") {
        found.push("Docker's socket");
    }
    if podman.iter().any(|path| can(path)) {
        found.push("Podman's socket");
    }
    if ["/etc/cdi", "/var/run/cdi"]
        .iter()
        .any(|path| Path::new(path).is_dir())
    {
        found.push("CDI devices");
    }
    let found = match found.as_slice() {
        [] => "no container engine: jobs can run only as processes".to_owned(),
        found => found.join(", "),
    };
    ok("system.containers", found)
}

#[cfg(test)]
mod tests {
    use divvy_api::v1::FindingStatus;

    use super::*;

    #[test]
    fn a_node_that_can_be_opened_is_no_finding_and_one_that_is_not_there_is_a_failure() {
        assert_eq!(device_node("x", "/dev/null"), None);
        let missing = device_node("x", "/dev/nvidia-that-is-not-there").unwrap();
        assert_eq!(missing.status, FindingStatus::Fail);
        assert!(missing.fix.contains("nvidia-modprobe"));
    }
}
