//! Build script: links the debug build at a fixed address (`-no-pie`).

fn main() {
    // 250,000 relocations are half of the 10 ms of the processor that an unoptimised `divvy` takes to start, and the
    // tests start it thousands of times. A release stays position-independent: its addresses are random.
    if std::env::var("PROFILE").as_deref() == Ok("debug") {
        println!("cargo:rustc-link-arg-bins=-no-pie");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
