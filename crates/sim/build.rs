//! Makes what cannot be written by hand without forgetting something: an export for every name that NVIDIA's libraries
//! have and we do not implement, and the table of all CUDA functions' addresses. What we implement is read from the
//! tables in `src/exports/`; a row this misses would be defined twice and fail to link, a row it invents would be
//! missing and fail a test.

use divvy_driver::sys::symbols;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

fn main() {
    let implemented = implemented(Path::new("src/exports"));
    let mut generated = String::new();
    for (answer, names) in [("CUresult", symbols::CUDA), ("nvmlReturn_t", symbols::NVML)] {
        let missing: Vec<&str> = names
            .iter()
            .copied()
            .filter(|name| !implemented.contains(*name))
            .collect();
        writeln!(generated, "stubs! {{ {answer}: {} }}", missing.join(" "))
            .expect("a String takes everything");
    }
    writeln!(generated, "addresses! {{ {} }}", symbols::CUDA.join(" "))
        .expect("a String takes everything");
    let out = env::var("OUT_DIR").expect("set by Cargo");
    fs::write(Path::new(&out).join("exports.rs"), generated).expect("OUT_DIR is writable");

    println!("cargo:rerun-if-changed=src/exports");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // The real library binds its own references to itself; an interposer must not catch them.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Fork handlers and threads outlive a dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

/// Names in the rows `name, name: (parameters) => handler;` of the tables below `folder`, and those of functions
/// exported without a row.
fn implemented(folder: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder)
        .expect("the sources are there")
        .map(|entry| entry.expect("readable").path())
    {
        if entry.is_dir() {
            names.extend(implemented(&entry));
            continue;
        }
        let text = fs::read_to_string(&entry).expect("a source file");
        let rows = text
            .split(';')
            .filter_map(|row| row.split_once("=>"))
            .map(|(left, _)| left);
        let heads = rows.filter_map(|left| {
            Some(
                left[..left.find(": (")?]
                    .rsplit(['{', '\n'])
                    .next()?
                    .to_owned(),
            )
        });
        let by_hand = text
            .split("extern \"C\" fn ")
            .skip(1)
            .filter_map(|rest| rest.split('(').next());
        names.extend(
            by_hand
                .filter(|name| name.starts_with("nvml"))
                .map(str::to_owned),
        );
        let is_name = |word: &&str| {
            (word.starts_with("cu") || word.starts_with("nvml"))
                && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        for head in heads {
            names.extend(
                head.split(',')
                    .map(str::trim)
                    .filter(is_name)
                    .map(str::to_owned),
            );
        }
    }
    names
}
