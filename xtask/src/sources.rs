//! The Rust source files of the repository, for the tests that compare documents with the code.
#![cfg(test)]

use std::fs;
use std::path::Path;

use crate::cargo::root;

/// Path from the repository's root, and text, of each Rust file below these folders, sorted by path.
///
/// # Panics
/// If a folder or file cannot be read.
pub fn sources(folders: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for folder in folders {
        below(&root().join(folder), folder, &mut found);
    }
    found.sort();
    found
}

fn below(folder: &Path, name: &str, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).expect("a folder of the repository") {
        let path = entry.expect("the folder can be read").path();
        let last = path.file_name().expect("a name").to_string_lossy();
        let name = format!("{name}/{last}");
        if path.is_dir() {
            if last != "target" {
                below(&path, &name, found);
            }
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            found.push((name, fs::read_to_string(&path).expect("source is text")));
        }
    }
}
