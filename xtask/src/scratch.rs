//! The temporary folder of the tests: a tmpfs, where this process may mount one.
//!
//! More than a thousand daemons of the tests each make a journal, fill its reserve and sync it. On a disk that is a third
//! of a daemon's start.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::steps::answer;

/// Part of a folder's name before the process that made it.
const NAME: &str = "divvy-tests-";

/// Memory that the machine has to have available. The tests take 2 GiB of the folder at most; half of the rest stays
/// theirs.
const NEEDED_KIB: u64 = 6 << 20;

/// Unmounted when dropped. The next run unmounts that of a run that was killed.
pub struct Scratch {
    folder: PathBuf,
}

impl Scratch {
    /// Mounts the folder; `None`, with the reason on stderr, where the tests use the usual one.
    pub fn mount() -> Result<Option<Self>> {
        if let Some(reason) = unavailable() {
            eprintln!("   {}: {reason}", std::env::temp_dir().display());
            return Ok(None);
        }
        remove_those_of_ended_processes();
        let folder = Path::new("/tmp").join(format!("{NAME}{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let mount = ["-t", "tmpfs", "-o", "mode=1777,size=4g", "divvy-tests"];
        if answer(Command::new("mount").args(mount).arg(&folder)).is_none() {
            fs::remove_dir(&folder)?;
            eprintln!("   the usual folder: no tmpfs can be mounted here");
            return Ok(None);
        }
        eprintln!("   {}", folder.display());
        Ok(Some(Self { folder }))
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        unmount(&self.folder);
    }
}

/// Why there is none.
fn unavailable() -> Option<&'static str> {
    if answer(Command::new("id").arg("-u")).as_deref() != Some("0") {
        return Some("only root mounts a tmpfs");
    }
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    (available_kib(&memory) < NEEDED_KIB).then_some("less than 6 GiB of memory are available")
}

/// By what proc(5) says of `/proc/meminfo`.
fn available_kib(memory: &str) -> u64 {
    let line = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.unwrap_or(0)
}

fn remove_those_of_ended_processes() {
    for entry in fs::read_dir("/tmp").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(NAME));
        let process = process.and_then(|number| number.parse::<u32>().ok());
        if process.is_some_and(|number| !Path::new(&format!("/proc/{number}")).exists()) {
            unmount(&entry.path());
        }
    }
}

/// Lazily: a process that a test left may still use it.
fn unmount(folder: &Path) {
    let _ = answer(Command::new("umount").arg("--lazy").arg(folder));
    let _ = fs::remove_dir(folder);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_from_the_kernel() {
        let memory = "MemTotal:       24684084 kB\nMemAvailable:   22000000 kB\n";
        assert_eq!(available_kib(memory), 22_000_000);
        assert_eq!(available_kib("MemTotal: 1 kB\n"), 0);
    }
}
