//! Dependencies: cargo-deny checks licences, sources and wildcards of every dependency against `deny.toml`.
//!
//! Its check of advisories is left out, because it needs the network and is not reproducible. So the result depends only on the
//! manifests, the lockfile and `deny.toml`. `deny.lock` records a hash of these files after a check without findings. cargo-deny is
//! built (90 s) and runs again only when one of them has changed.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::cargo::{root, target};
use crate::steps::{answer, run};
use crate::tools;

const VERSION: &str = "0.20.2";

/// Name of the record, in the root.
const RECORD: &str = "deny.lock";

/// Checks the workspace, unless the record says that it was checked as it is.
pub fn check() -> Result<()> {
    let record = root().join(RECORD);
    let fingerprint = fingerprint()?;
    if fs::read_to_string(&record).is_ok_and(|recorded| recorded == fingerprint) {
        eprintln!(
            "   manifests and Cargo.lock have not changed since cargo-deny {VERSION} passed ({RECORD})"
        );
        return Ok(());
    }
    let program = find().map_or_else(|| tools::install_crate("cargo-deny", VERSION, &[]), Ok)?;
    run(Command::new(program)
        .args([
            "--offline",
            "--log-level",
            "error",
            "check",
            "--hide-inclusion-graph",
            "bans",
            "licenses",
            "sources",
        ])
        .current_dir(root()))?;
    fs::write(&record, fingerprint).with_context(|| format!("write {}", record.display()))?;
    eprintln!("   updated {RECORD}: commit it");
    Ok(())
}

/// The inputs of the result, as text: the version of cargo-deny, and one hash over all files.
fn fingerprint() -> Result<String> {
    let list = ["ls-files", "Cargo.lock", "deny.toml", "*Cargo.toml"];
    let list = answer(Command::new("git").args(list).current_dir(root()));
    let list = list.context("list the manifests with git")?;
    let mut hash = Sha256::new();
    for name in list.lines() {
        let text = fs::read(root().join(name)).with_context(|| format!("read {name}"))?;
        hash.update(name);
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    let hash: String = hash
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Ok(format!("cargo-deny {VERSION}\nsha256 {hash}\n"))
}

fn find() -> Option<PathBuf> {
    let ours = target().join("tools/bin/cargo-deny");
    [ours, PathBuf::from("cargo-deny")]
        .into_iter()
        .find(|path| {
            answer(Command::new(path).arg("--version")).is_some_and(|said| said.contains(VERSION))
        })
}
