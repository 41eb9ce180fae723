//! The library exports its hooks and nothing else.

use std::collections::BTreeSet;
use std::process::Command;

use crate::support::{documented_hooks, preload};

fn lines(program: &str, flags: &[&str]) -> Vec<String> {
    let output = Command::new(program)
        .args(flags)
        .arg(preload())
        .output()
        .expect("binutils are there");
    assert!(output.status.success());
    String::from_utf8(output.stdout)
        .expect("names are text")
        .lines()
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_hooks_and_dlsym_are_all_that_is_exported() {
    let exported = lines("nm", &["--dynamic", "--defined-only", "--format=posix"]);
    let exported: BTreeSet<String> = exported
        .iter()
        .filter_map(|line| line.split(' ').next())
        .map(str::to_owned)
        .collect();
    let mut expected = documented_hooks();
    assert!(expected.len() > 40);
    expected.insert("dlsym".into());
    assert_eq!(exported, expected);
}

#[test]
fn nothing_is_needed_but_the_c_library_and_the_unwinder() {
    let needed = lines("readelf", &["--dynamic", "--wide"]);
    let needed: BTreeSet<&str> = needed
        .iter()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split(['[', ']']).nth(1))
        .collect();
    let known = BTreeSet::from(["ld-linux-x86-64.so.2", "libc.so.6", "libgcc_s.so.1"]);
    assert!(needed.is_subset(&known), "{needed:?}");
}
