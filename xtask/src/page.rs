//! The page in the browser: the tests of its modules under Node.js, and the hashes of its vendored libraries.

use std::process::Command;

use anyhow::Result;

use crate::cargo::root;
use crate::steps::{answer, run};

/// The first release of Node.js whose test runner finds the files by itself. An older one would need a list of the
/// files.
const OLDEST_NODE: u32 = 20;

/// Tests the modules that need no browser. Without Node.js, they are skipped.
///
/// # Errors
/// When a test fails.
pub fn test() -> Result<()> {
    let version = answer(Command::new("node").arg("--version"));
    let major = version.as_deref().and_then(major);
    if major.is_none_or(|major| major < OLDEST_NODE) {
        let found = version.unwrap_or_else(|| "not found".to_owned());
        eprintln!(
            "   MISSING: Node.js {OLDEST_NODE} or later ({found}); the page's unit tests are skipped"
        );
        return Ok(());
    }
    let page = root().join("crates/web");
    run(Command::new("node").arg("--test").current_dir(page))
}

/// The major version in `v20.20.2`.
fn major(version: &str) -> Option<u32> {
    version.strip_prefix('v')?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use sha2::{Digest as _, Sha256};

    use super::*;

    #[test]
    fn vendored_libraries_are_those_of_their_releases() {
        let folder = root().join("crates/web/assets/vendor");
        let list = fs::read_to_string(folder.join("README.md")).unwrap();
        let mut listed = Vec::new();
        for row in list.lines().filter(|row| row.contains(" | `sha256:")) {
            let cells: Vec<&str> = row.split('`').collect();
            let (file, wanted) = (cells[1], cells[cells.len() - 2]);
            let bytes = fs::read(folder.join(file)).unwrap();
            let hash = Sha256::digest(&bytes);
            let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(wanted, format!("sha256:{hash}"), "{file}");
            listed.push(file.to_owned());
        }
        let entries = fs::read_dir(&folder).unwrap();
        let mut files: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.ends_with(".md") && !name.starts_with("LICENSE"))
            .collect();
        files.sort();
        listed.sort();
        assert_eq!(listed, files, "every file below vendor is in the table");
    }

    #[test]
    fn a_version_of_node_is_read() {
        assert_eq!(major("v20.20.2"), Some(20));
        assert_eq!(major("v6"), Some(6));
        assert_eq!(major("not found"), None);
    }
}
