//! Other memory allocators, which tests preload next to the limiter: unpacked from Debian's packages, not installed. If
//! the download fails, these tests are skipped and report it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo::target;
use crate::steps::{answer, run};

/// A library, and the packages that have it, by the name they have in one release or another.
const ALLOCATORS: [(&str, &[&str]); 2] = [
    ("libjemalloc.so", &["libjemalloc2"]),
    ("libmimalloc.so", &["libmimalloc2.0", "libmimalloc3"]),
];

/// Makes `target/allocators`, if it is not there.
pub fn fetch() -> Result<()> {
    let folder = target().join("allocators");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    for (library, packages) in ALLOCATORS {
        let there = || find(&folder, library).is_some();
        let had = there()
            || packages
                .iter()
                .any(|package| unpack(&folder, library, package));
        if had && there() {
            eprintln!("   {library}: found")
        } else {
            eprintln!("   {library}: not available; its tests are skipped")
        }
    }
    Ok(())
}

/// Downloads a package and copies its library into the folder. `false` when something fails.
fn unpack(folder: &Path, library: &str, package: &str) -> bool {
    let unpacked = folder.join(package);
    let download = || {
        let mut apt = Command::new("apt-get");
        run(apt.args(["download", "-qq", package]).current_dir(folder))
    };
    let update = || run(Command::new("apt-get").args(["update", "-qq"]));
    let known = answer(Command::new("apt-cache").args(["show", "--no-all-versions", package]));
    let fetched = match known {
        Some(_) => download().or_else(|_| update().and_then(|()| download())),
        None => update().and_then(|()| download()),
    };
    let Some(file) = fetched.ok().and_then(|()| find(folder, package)) else {
        return false;
    };
    let extracted = run(Command::new("dpkg").arg("-x").arg(&file).arg(&unpacked));
    let copied = extracted.is_ok() && {
        let found = find(&unpacked.join("usr/lib/x86_64-linux-gnu"), library);
        // A link names the file beside it; copying follows it.
        found.is_some_and(|from| {
            let name = from.file_name().unwrap_or_default();
            fs::copy(&from, folder.join(name)).is_ok()
        })
    };
    // A leftover file does no harm.
    let _ = fs::remove_file(file);
    let _ = fs::remove_dir_all(unpacked);
    copied
}

/// The first file of a folder with a name that begins so.
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let begins = |path: &PathBuf| {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        file.starts_with(name) && path.is_file()
    };
    let entries = fs::read_dir(folder).ok()?;
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(begins)
}
