//! Path policy: the host and container paths that a job's mounts may touch.

use std::path::{Component, Path, PathBuf};

/// The paths of the limiter and the driver in a container. No mount of a job may be on, below or above them.
const KEPT_TARGETS: &[&str] = &[
    "/run/divvy-job",
    "/etc/ld.so.preload",
    "/etc/ld.so.cache",
    "/dev",
    "/proc",
    "/sys",
];

/// Folders of libraries, of every architecture that Divvy runs on: files may be put into them, and nothing over them.
const LIBRARY_FOLDERS: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/lib64",
];

/// How names of libraries begin that decide which driver a program gets.
const KEPT_LIBRARIES: &[&str] = &[
    "libcuda.so",
    "libnvidia-ml.so",
    "libnvidia-",
    "libcuda_real",
    "libdivvy_",
    "ld-linux",
    "ld-musl",
    "libc.so",
];

/// Folders of the host from which one reaches the container engine, the kernel, or other people's processes.
const KEPT_SOURCES: &[&str] = &[
    "/run",
    "/dev",
    "/proc",
    "/sys",
    "/boot",
    "/var/lib/docker",
    "/var/lib/containerd",
    "/var/lib/containers",
];

/// Why a path may not be mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    pub why: &'static str,
    pub hint: &'static str,
}

const OVER: Kept = Kept {
    why: "it would hide the limiter or the driver",
    hint: "mount it somewhere else in the container",
};
const FROM: Kept = Kept {
    why: "it gives access to the container engine, the host's devices or Divvy's files",
    hint: "mount the folder that holds your data",
};
const RELATIVE: Kept = Kept {
    why: "the target in a container must be an absolute path",
    hint: "write it from the root: /data",
};

/// The path without `.`, `..` and double slashes, as text alone.
pub fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::Normal(name) => plain.push(name),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    plain
}

/// The same where `/var/run` is `/run`, as it is nearly everywhere.
pub fn normal(path: &Path) -> PathBuf {
    let plain = plain(path);
    match plain.strip_prefix("/var/run") {
        Ok(rest) => Path::new("/run").join(rest),
        Err(_) => plain,
    }
}

/// Whether one of them is, or is below, the other.
fn touch(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

/// Whether a mount of the job may be at this path in the container.
///
/// # Errors
/// What is in the way.
pub fn target(path: &str) -> Result<(), Kept> {
    if !path.starts_with('/') {
        return Err(RELATIVE);
    }
    let plain = normal(Path::new(path));
    let over = |kept: &&str| touch(&plain, Path::new(kept));
    let hides = |folder: &&str| Path::new(folder).starts_with(&plain);
    let name = plain.file_name().and_then(|name| name.to_str());
    let is_library = |kept: &&str| name.is_some_and(|name| name.starts_with(kept));
    // Shared memory is a job's own, unlike the devices around it.
    let shared_memory = plain == Path::new("/dev/shm");
    let kept = (KEPT_TARGETS.iter().any(over) && !shared_memory)
        || LIBRARY_FOLDERS.iter().any(hides)
        || KEPT_LIBRARIES.iter().any(is_library);
    if kept { Err(OVER) } else { Ok(()) }
}

/// The folders of the host that no job may mount, on every machine.
pub fn kept_sources() -> impl Iterator<Item = &'static str> {
    KEPT_SOURCES.iter().copied()
}

/// Whether that of the host may be mounted. `kept`: what this instance keeps to itself besides.
///
/// # Errors
/// What is in the way.
pub fn source(path: &Path, kept: &[PathBuf]) -> Result<(), Kept> {
    let plain = normal(path);
    let fixed = KEPT_SOURCES.iter().map(Path::new);
    let mut all = fixed.chain(kept.iter().map(PathBuf::as_path));
    // Sockets are also reached through names that no list has.
    let is_engine = plain
        .file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| matches!(name, "docker.sock" | "podman.sock" | "containerd.sock"));
    match is_engine || all.any(|kept| touch(&plain, kept)) {
        true => Err(FROM),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_alone_decides_what_a_path_is() {
        for (path, plain) in [
            ("/a//b/./c/../d", "/a/b/d"),
            ("/../..", "/"),
            ("/var/run/x", "/run/x"),
            ("/var/../var/run", "/run"),
            ("/var/runner", "/var/runner"),
        ] {
            assert_eq!(normal(Path::new(path)), Path::new(plain), "{path}");
        }
        let unlinked = plain(Path::new("/var//run/../run/x"));
        assert_eq!(unlinked, Path::new("/var/run/x"));
    }

    #[test]
    fn nothing_lies_over_the_limiter_or_the_driver() {
        for kept in [
            "/",
            "/run",
            "/run/divvy-job",
            "/run/divvy-job/slice/control",
            "/var/run/divvy-job",
            "/x/../run/divvy-job",
            "/etc",
            "/etc/ld.so.preload",
            "/usr",
            "/usr/lib",
            "/usr/lib/x86_64-linux-gnu",
            "/lib64",
            "/usr/lib64/libcuda.so.1",
            "/opt/libcuda.so",
            "/opt/libnvidia-ml.so.1",
            "/lib64/ld-linux-x86-64.so.2",
            "/dev/nvidia0",
            "/proc/sys",
            "relative",
        ] {
            assert!(target(kept).is_err(), "{kept}");
        }
        for free in [
            "/data",
            "/home/u",
            "/usr/local/share",
            "/etc/hosts.d",
            "/run/mine",
            "/dev/shm",
            "/usr/lib/x86_64-linux-gnu/libmine.so",
        ] {
            assert_eq!(target(free), Ok(()), "{free}");
        }
    }

    #[test]
    fn nothing_comes_from_where_the_engine_and_the_devices_are() {
        let kept = [PathBuf::from("/home/u/.local/state/divvy")];
        for bad in [
            "/",
            "/run",
            "/run/docker.sock",
            "/var/run/docker.sock",
            "/dev",
            "/dev/nvidia0",
            "/proc",
            "/sys/kernel",
            "/home",
            "/home/u/.local/state/divvy/jobs/1",
            "/srv/docker.sock",
            "/var/lib",
        ] {
            assert!(source(Path::new(bad), &kept).is_err(), "{bad}");
        }
        for good in ["/data", "/home/u/data", "/home/v", "/var/tmp"] {
            assert_eq!(source(Path::new(good), &kept), Ok(()), "{good}");
        }
    }
}
