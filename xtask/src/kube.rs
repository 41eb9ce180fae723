//! `cargo xtask kube`: the chart, the controller and the drivers of simulated nodes, tried in the cluster that KUBECONFIG names.
//!
//! The suite itself is the program `kube` of `tests/e2e`. It needs Helm and kubectl, which are fetched.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cargo::{cargo, root, target};
use crate::steps::{run, shown, step};
use crate::{cargo as crates, helm, tools};

#[derive(clap::Args)]
pub struct Args {
    /// Where the API server finds this machine, for the webhook
    #[arg(long, default_value = "127.0.0.1")]
    address: String,
    /// Only cases whose names begin with one of these
    #[arg(long, value_name = "NAME", num_args = 1..)]
    only: Vec<String>,
    /// text or json
    #[arg(short, long, default_value = "text")]
    output: String,
}

/// Builds, and runs; without a cluster it says so and is done.
pub fn accept(args: &Args) -> Result<()> {
    let Some(config) = std::env::var_os("KUBECONFIG").map(PathBuf::from) else {
        eprintln!("NOT CHECKED: KUBECONFIG names no cluster, so nothing was tried in one");
        return Ok(());
    };
    step("tools", "what the machine has to bring", tools::compiler)?;
    step(
        "crates",
        "the Rust libraries that Cargo.lock names",
        crates::fetch,
    )?;
    let helm = step(
        "helm",
        "installs the chart; kubectl asks the cluster",
        || helm::make().context("without helm and kubectl nothing can be tried"),
    )?;
    step("build", "the programs that run for the cluster", build)?;
    step("kube", "everything that a control plane can show", || {
        let mut suite = Command::new(target().join("debug/kube"));
        suite
            .arg("--kubectl")
            .arg(&helm.kubectl)
            .arg("--helm")
            .arg(&helm.helm)
            .arg("--chart")
            .arg(root().join("deploy/helm/divvy"))
            .args(["--address", &args.address, "--output", &args.output])
            .env("KUBECONFIG", &config)
            .stdin(Stdio::null());
        if !args.only.is_empty() {
            suite.arg("--only").args(&args.only);
        }
        eprintln!("   $ {}", shown(&suite));
        ensure!(suite.status()?.success(), "cases failed");
        Ok(())
    })
}

fn build() -> Result<()> {
    let packages = [
        "divvy",
        "divvy-k8s",
        "divvy-sim",
        "divvy-preload",
        "divvy-wrapper-cuda",
        "divvy-wrapper-nvml",
    ];
    let packages = packages.iter().flat_map(|package| ["--package", package]);
    run(cargo(&["build", "--locked", "--offline", "--quiet"]).args(packages))?;
    run(&mut cargo(&[
        "build",
        "--locked",
        "--offline",
        "--quiet",
        "--package",
        "divvy-e2e",
        "--bin",
        "kube",
    ]))
}
