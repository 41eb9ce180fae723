//! The submitter's container: the judgement of flags and mounts for users whose containers run as themselves.
//!
//! The roles say `containers = { role = "user", as = "submitter", mounts = [...] }`. The supervisor then forces the
//! submitter's ids, no capabilities and `no-new-privileges` on the container. What is judged here is the rest: rights
//! that the engine, as root, would use for the user.
//!
//! ```text
//! flag ──► column `users` of the table ──► allowed │ judged by its value │ for administrators │ refused for all
//! ```
//! Paths are judged as text; the supervisor opens a mount's source with the user's rights and judges what it opened.

use std::path::{Path, PathBuf};

use super::values::{self, ValueError};
use super::{ContainerOptionError, Mount, paths};

/// The engine's default weight of CPU time (`--cpu-shares`). Docker's and the kernel's: another figure would change the
/// weight of jobs without the option.
const DEFAULT_CPU_SHARES: i64 = 1024;

/// Limits that give no scheduling priority and that no administrator bounds for each user.
const ULIMITS: &[&str] = &[
    "as", "core", "cpu", "data", "fsize", "locks", "memlock", "nofile", "rss", "stack",
];

/// Options of a tmpfs that change neither its owner nor its flags towards more rights.
const TMPFS_OPTIONS: &[&str] = &[
    "rw", "ro", "exec", "noexec", "nosuid", "nodev", "noatime", "relatime",
];
const TMPFS_VALUES: &[&str] = &["size", "mode", "nr_inodes"];

/// Files of the container that Divvy provides, so that programs find the submitter's name.
pub const PASSWD: &str = "/etc/passwd";
pub const GROUP: &str = "/etc/group";

/// A user whose containers run as themselves.
#[derive(Clone, Copy, Debug)]
pub struct Submitter<'a> {
    pub uid: u32,
    pub gid: u32,
    pub name: &'a str,
    /// All groups: number and name.
    pub groups: &'a [(u32, String)],
    /// Absolute folders that the administrator has opened for mounts; the submitter's home is one of them if
    /// `~` is in the list.
    pub folders: &'a [PathBuf],
    /// Folder of the submission, from which relative sources of mounts count.
    pub cwd: &'a Path,
}

fn refused(why: impl Into<String>, hint: impl Into<String>) -> ValueError {
    ValueError::Submitter {
        why: why.into(),
        hint: hint.into(),
    }
}

/// `--user`: the submitter, by number or name.
pub fn user(submitter: &Submitter<'_>, text: &str) -> Result<(), ValueError> {
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let is_user = is_number(user, submitter.uid) || user == submitter.name;
    let is_group = |group: &str| {
        let named = submitter.groups.iter();
        let mut named = named.filter(|(gid, _)| *gid == submitter.gid);
        is_number(group, submitter.gid) || named.any(|(_, name)| name == group)
    };
    if is_user && group.is_none_or(is_group) {
        return Ok(());
    }
    let Submitter { uid, gid, .. } = submitter;
    Err(refused(
        format!("the container runs as its submitter, {uid}:{gid}"),
        "leave it out",
    ))
}

/// `--group-add`: a group of the submitter's.
pub fn group_add(submitter: &Submitter<'_>, text: &str) -> Result<(), ValueError> {
    let mut groups = submitter.groups.iter();
    if is_number(text, submitter.gid)
        || groups.any(|(gid, name)| is_number(text, *gid) || name == text)
    {
        return Ok(());
    }
    Err(refused(
        "the submitter is not in this group",
        "leave it out: the container has all groups of its submitter",
    ))
}

/// Decimal, as the number itself is written: other spellings could be names.
fn is_number(text: &str, number: u32) -> bool {
    text == number.to_string()
}

pub fn cpu_shares(_: &Submitter<'_>, text: &str) -> Result<(), ValueError> {
    if values::number(text)? <= DEFAULT_CPU_SHARES {
        return Ok(());
    }
    Err(refused(
        format!("a weight above {DEFAULT_CPU_SHARES} takes CPU time from other users"),
        "leave it out",
    ))
}

pub fn ipc(_: &Submitter<'_>, text: &str) -> Result<(), ValueError> {
    match text {
        "" | "private" | "none" => Ok(()),
        _ => Err(refused(
            "other containers could share the memory of this one",
            "leave it out: --shm-size enlarges the container's own shared memory",
        )),
    }
}

/// A mode of the engine's. With the host's network a process of the container reaches what each process of the
/// submitter reaches; networks by name belong to other containers.
pub fn network(_: &Submitter<'_>, text: &str) -> Result<(), ValueError> {
    match text {
        "default" | "bridge" | "host" | "none" => Ok(()),
        _ => Err(refused(
            "the networks of the container engine belong to its administrator",
            "use --network bridge, host or none",
        )),
    }
}

/// A port on the host's loopback address, from 1024 on.
pub fn publish(_: &Submitter<'_>, text: &str) -> Result<(), ValueError> {
    let port = values::port(text)?;
    let is_loopback = |ip: &str| {
        ip.parse()
            .is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
    };
    if !port.host_ip.as_deref().is_some_and(is_loopback) {
        return Err(refused(
            "the container engine opens ports past the host's firewall",
            "publish it on the host's own address (-p 127.0.0.1:8888:8888), or use --network host",
        ));
    }
    let number = port.host_port.as_deref().map(str::parse::<u16>);
    if number.is_some_and(|port| port.is_ok_and(|port| port > 0 && port < 1024)) {
        return Err(refused(
            "ports below 1024 are for administrators",
            "use a port from 1024 on: -p 127.0.0.1:8888:8888",
        ));
    }
    Ok(())
}

pub fn ulimit(_: &Submitter<'_>, text: &str) -> Result<(), ValueError> {
    let limit = values::ulimit(text)?;
    if ULIMITS.contains(&limit.name.as_str()) {
        return Ok(());
    }
    Err(refused(
        "only administrators change this limit",
        format!("leave it out; users may set {}", ULIMITS.join(", ")),
    ))
}

/// A working folder in `/proc` could be one of the engine's open files (CVE-2024-21626).
pub fn workdir(_: &Submitter<'_>, text: &str) -> Result<(), ValueError> {
    match is_working_folder(Path::new(text)) {
        true => Ok(()),
        false => Err(refused(
            "a program cannot work in this folder",
            "name a folder of the image or of a mount",
        )),
    }
}

/// Whether a program of a container may start in this folder: none of the kernel's file systems, and absolute.
#[must_use]
pub fn is_working_folder(path: &Path) -> bool {
    let plain = paths::normal(path);
    let kernels = ["/proc", "/sys", "/dev"];
    path.is_absolute() && !kernels.iter().any(|folder| plain.starts_with(folder))
}

pub fn tmpfs(_: &Submitter<'_>, text: &str) -> Result<(), ValueError> {
    match values::tmpfs(text)? {
        Mount::Tmpfs { options, .. } => tmpfs_options(&options),
        Mount::Bind { .. } | Mount::Volume { .. } => Ok(()),
    }
}

fn tmpfs_options(options: &str) -> Result<(), ValueError> {
    for option in options.split(',').filter(|option| !option.is_empty()) {
        let is_known = match option.split_once('=') {
            Some((name, _)) => TMPFS_VALUES.contains(&name),
            None => TMPFS_OPTIONS.contains(&option),
        };
        if !is_known {
            return Err(refused(
                format!("the option {option} of a tmpfs is for administrators"),
                "leave it out; size=, mode=, nr_inodes=, exec, noexec, ro and rw are allowed",
            ));
        }
    }
    Ok(())
}

/// `--volume`.
pub fn volume(submitter: &Submitter<'_>, text: &str) -> Result<(), ValueError> {
    let options = text.splitn(3, ':').nth(2).unwrap_or_default();
    if options.split(',').any(|option| matches!(option, "z" | "Z")) {
        return Err(refused(
            "only administrators change the security labels of files",
            "leave :z and :Z out",
        ));
    }
    mounted(submitter, &values::volume(text)?)
}

/// `--mount`.
pub fn mount(submitter: &Submitter<'_>, text: &str) -> Result<(), ValueError> {
    mounted(submitter, &values::mount(text)?)
}

fn mounted(submitter: &Submitter<'_>, mount: &Mount) -> Result<(), ValueError> {
    match mount {
        Mount::Bind { source, .. } => source_folder(submitter, source),
        Mount::Volume { name: Some(_), .. } => Err(refused(
            "named volumes of the container engine are not separated by user",
            "mount a folder, or a volume without a name: -v /scratch",
        )),
        Mount::Volume { name: None, .. } => Ok(()),
        Mount::Tmpfs { options, .. } => tmpfs_options(options),
    }
}

fn source_folder(submitter: &Submitter<'_>, source: &str) -> Result<(), ValueError> {
    let path = paths::plain(&submitter.cwd.join(source));
    if folder_of(submitter.folders, &path).is_some() {
        return Ok(());
    }
    Err(not_opened(&path, submitter.folders))
}

/// The first of the folders that holds the path, by text.
#[must_use]
pub fn folder_of<'a>(folders: &'a [PathBuf], path: &Path) -> Option<&'a PathBuf> {
    folders.iter().find(|folder| path.starts_with(folder))
}

fn not_opened(path: &Path, folders: &[PathBuf]) -> ValueError {
    let names: Vec<String> = folders
        .iter()
        .map(|folder| folder.display().to_string())
        .collect();
    let hint = match names.is_empty() {
        true => "the administrator has opened no folder for mounts (`mounts` in the roles)".into(),
        false => format!("mount a folder below {}", names.join(", ")),
    };
    refused(
        format!("{} is below no folder for mounts", path.display()),
        hint,
    )
}

/// Refuses a mount inside a folder of the host that is mounted too: the engine, as root, would make its mount point
/// there.
pub(super) fn check_targets(mounts: &[Mount]) -> Result<(), ContainerOptionError> {
    let all = mounts
        .iter()
        .map(|mount| paths::plain(Path::new(mount.target())));
    for target in all {
        let found = |why: String, hint: &str| ContainerOptionError::Submitter {
            flag: format!("the mount at {}", target.display()),
            why,
            hint: hint.to_owned(),
        };
        if [PASSWD, GROUP].map(Path::new).contains(&target.as_path()) {
            return Err(found(
                "Divvy provides this file".to_owned(),
                "leave it out: the submitter's name and groups are in it",
            ));
        }
        if let Some(outer) = bind_around(mounts, &target) {
            return Err(found(
                format!("it is inside the mount at {}", outer.display()),
                "mount the two folders beside each other",
            ));
        }
    }
    Ok(())
}

/// The target of a bind mount that the path is strictly below.
#[must_use]
pub fn bind_around(mounts: &[Mount], path: &Path) -> Option<PathBuf> {
    let binds = mounts
        .iter()
        .filter(|mount| matches!(mount, Mount::Bind { .. }));
    let mut targets = binds.map(|bind| paths::plain(Path::new(bind.target())));
    targets.find(|target| path != target && path.starts_with(target))
}

#[cfg(test)]
mod tests;
