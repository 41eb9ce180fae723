//! Links a wrapper: it bears the name of the driver's library, and needs that library under another name.
//!
//! The linker wants to see what it is told to need, so an empty library of that name is made; at run time the loader looks
//! beside the wrapper, and in the folder that a job's mount namespace has for it.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

use divvy_driver::load::{BEHIND, CUDA, CUDA_BEHIND, NVML, NVML_BEHIND};

fn main() {
    let package = env::var("CARGO_PKG_NAME").expect("set by Cargo");
    let (name, behind) = match package.as_str() {
        "divvy-wrapper-cuda" => (CUDA, CUDA_BEHIND),
        "divvy-wrapper-nvml" => (NVML, NVML_BEHIND),
        _ => panic!("{package} is not a wrapper"),
    };
    let out = env::var("OUT_DIR").expect("set by Cargo");
    let (empty, library) = (
        Path::new(&out).join("empty.c"),
        Path::new(&out).join(behind),
    );
    fs::write(&empty, "").expect("OUT_DIR is writable");
    // For another architecture, the compiler by the name that the `cc` crate knows (`CC_aarch64_unknown_linux_gnu`).
    let target = env::var("TARGET").expect("set by Cargo");
    let compiler = env::var(format!("CC_{}", target.replace('-', "_")));
    let made = Command::new(compiler.as_deref().unwrap_or("cc"))
        .args([
            "-shared",
            "-nostdlib",
            &format!("-Wl,-soname,{behind}"),
            "-o",
        ])
        .args([&library, &empty])
        .status();
    assert!(made.expect("a C compiler").success(), "no library {behind}");

    println!("cargo:rerun-if-changed=build.rs");
    for argument in [
        format!("-Wl,-soname,{name}"),
        // Needed although nothing refers to it by name.
        "-Wl,--no-as-needed".into(),
        library.display().to_string(),
        "-Wl,--as-needed".into(),
        format!("-Wl,--enable-new-dtags,-rpath,$ORIGIN:{BEHIND}"),
        // What the process was charged must be remembered when the program closes the library and opens it again.
        "-Wl,-z,nodelete".into(),
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
}
