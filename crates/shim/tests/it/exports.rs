//! Each form's libraries export their hooks and nothing else, and bring nothing else into a program.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use divvy_testkit::Bounded as _;

use crate::support::{exported_functions, preload, wrappers};

fn lines(program: &str, flags: &[&str], file: &Path) -> Vec<String> {
    let output = Command::new(program)
        .args(flags)
        .arg(file)
        .output_bounded()
        .expect("binutils are there");
    assert!(output.status.success());
    String::from_utf8(output.stdout)
        .expect("names are text")
        .lines()
        .map(str::to_owned)
        .collect()
}

fn exported(file: &Path) -> BTreeSet<String> {
    let flags = ["--dynamic", "--defined-only", "--format=posix"];
    let names = lines("nm", &flags, file);
    let names = names.iter().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

/// Entries of the dynamic section: tag and what stands in brackets.
fn dynamic(file: &Path) -> Vec<(String, String)> {
    let entries = lines("readelf", &["--dynamic", "--wide"], file);
    let part = |line: &String| {
        let tag = line.split(['(', ')']).nth(1)?.to_owned();
        let value = line.split(['[', ']']).nth(1);
        let number = || line.split_whitespace().nth(2).unwrap_or_default();
        Some((tag, value.unwrap_or_else(number).to_owned()))
    };
    entries.iter().filter_map(part).collect()
}

fn values(file: &Path, tag: &str) -> Vec<String> {
    let entries = dynamic(file).into_iter();
    entries
        .filter(|(found, _)| found == tag)
        .map(|(_, value)| value)
        .collect()
}

#[track_caller]
fn are_the_same(found: &BTreeSet<String>, expected: &BTreeSet<String>, file: &Path) {
    let (more, less): (Vec<_>, Vec<_>) = (
        found.difference(expected).collect(),
        expected.difference(found).collect(),
    );
    assert!(
        more.is_empty() && less.is_empty(),
        "{}: beyond the table {more:?}, missing {less:?}",
        file.display()
    );
}

#[test]
fn the_hooks_stubs_and_dlsym_are_all_that_the_preload_exports() {
    let mut expected = exported_functions();
    assert!(expected.len() > 40);
    expected.insert("dlsym".into());
    are_the_same(&exported(&preload()), &expected, &preload());
}

#[test]
fn the_hooks_and_stubs_of_its_library_are_all_that_a_wrapper_exports() {
    for (file, prefix) in wrappers().iter().zip(["cu", "nvml"]) {
        let mut expected = exported_functions();
        expected.retain(|name| name.starts_with(prefix));
        assert!(expected.len() > 10, "{prefix}");
        are_the_same(&exported(file), &expected, file);
    }
}

#[test]
fn a_wrapper_bears_the_librarys_name_and_needs_the_library_under_another() {
    let names = [
        ("libcuda.so.1", "libcuda_real.so.1"),
        ("libnvidia-ml.so.1", "libnvidia-ml_real.so.1"),
    ];
    for (file, (name, behind)) in wrappers().iter().zip(names) {
        assert_eq!(values(file, "SONAME"), [name]);
        assert!(
            values(file, "NEEDED").contains(&behind.to_owned()),
            "{behind}"
        );
        assert_eq!(values(file, "RUNPATH"), ["$ORIGIN:/run/divvy-job"]);
    }
    // Its own from Rust 1.97 on, none before.
    let own = values(&preload(), "SONAME");
    assert!(
        own.iter().all(|name| name == "libdivvy_preload.so"),
        "{own:?}"
    );
}

#[test]
fn nothing_is_needed_but_the_c_library_the_unwinder_and_the_driver_behind_a_wrapper() {
    let loader = match std::env::consts::ARCH {
        "aarch64" => "ld-linux-aarch64.so.1",
        _ => "ld-linux-x86-64.so.2",
    };
    let known = BTreeSet::from([loader, "libc.so.6", "libgcc_s.so.1"]);
    for file in wrappers().into_iter().chain([preload()]) {
        let needed = values(&file, "NEEDED");
        let needed = needed.iter().map(String::as_str);
        let other: Vec<&str> = needed.filter(|name| !known.contains(name)).collect();
        assert!(
            other.iter().all(|name| name.ends_with("_real.so.1")),
            "{other:?}"
        );
        assert!(
            other.len() <= 1 && (file != preload() || other.is_empty()),
            "{other:?}"
        );
    }
}

/// The compiler's own, which registers unwind tables where those are not found by themselves, and the one by which Rust's
/// library learns of the program's arguments. On arm64 libgcc and Rust's compiler-builtins each ask besides whether the
/// processor has the atomic instructions of Armv8.1 (libgcc's `lse-init.c`).
const CONSTRUCTORS: u64 = if cfg!(target_arch = "aarch64") { 4 } else { 2 };

#[test]
fn no_form_has_a_constructor_of_its_own() {
    for file in wrappers().into_iter().chain([preload()]) {
        let bytes: u64 = values(&file, "INIT_ARRAYSZ")[0].parse().expect("a number");
        assert!(
            bytes <= CONSTRUCTORS * 8,
            "{}: {bytes} bytes",
            file.display()
        );
    }
}
