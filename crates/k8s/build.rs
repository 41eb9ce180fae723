//! Compiles what kubelet speaks, without a protoc.

use std::error::Error;

/// In `proto`: only the messages that are used, with the names and numbers of Kubernetes' own.
const PROTOCOLS: [&str; 5] = [
    "registration.proto",
    "dra.proto",
    "health.proto",
    "deviceplugin.proto",
    "podresources.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    let files = protox::compile(PROTOCOLS, ["proto"])?;
    tonic_prost_build::configure().compile_fds(files)?;
    println!("cargo::rerun-if-changed=proto");
    Ok(())
}
