//! `cargo xtask kube`: tests the chart, the controller and the drivers of simulated nodes in the cluster of KUBECONFIG.
//!
//! The suite itself is the program `kube` of `tests/e2e`. It needs Helm and kubectl, which this command downloads.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cargo::{cargo, root, target};
use crate::steps::{run, shown, step};
use crate::{cargo as crates, helm, tools};

#[derive(clap::Args)]
pub struct Args {
    /// Address of this machine for the API server, which calls the webhook
    #[arg(long, default_value = "127.0.0.1")]
    address: String,
    /// Image with Python, pip and clearml-agent, in which tasks of a ClearML server run on the cluster's nodes
    #[arg(long, value_name = "IMAGE")]
    task_image: Option<String>,
    /// Program of a stock kube-scheduler, for the cases of the extender
    #[arg(long, value_name = "PROGRAM")]
    kube_scheduler: Option<String>,
    /// Build the extender as it is released, for the time of a call
    #[arg(long, requires = "kube_scheduler")]
    release: bool,
    /// Instead of the suite: update and drain this installed release, while pods with fractions run
    #[arg(long, value_name = "RELEASE", requires = "pod_image")]
    installed: Option<String>,
    /// Namespace of the installed release
    #[arg(long, default_value = "divvy-system")]
    system: String,
    /// Image with sh and sleep, for pods on the nodes of the installed release
    #[arg(long, value_name = "IMAGE")]
    pod_image: Option<String>,
    /// Node of the installed release that may be drained
    #[arg(long, value_name = "NODE")]
    drain: Option<String>,
    /// Run only cases with names that begin with one of these
    #[arg(long, value_name = "NAME", num_args = 1..)]
    only: Vec<String>,
    /// Format of the report: text or json
    #[arg(short, long, default_value = "text")]
    output: String,
}

/// Builds, and runs the suite; without KUBECONFIG it reports that and returns.
pub fn accept(args: &Args) -> Result<()> {
    let Some(config) = std::env::var_os("KUBECONFIG").map(PathBuf::from) else {
        eprintln!("NOT CHECKED: KUBECONFIG is not set, so no cluster was tested");
        return Ok(());
    };
    crates::prepare(tools::compiler)?;
    let helm = step(
        "helm",
        "Helm installs the chart, kubectl queries the cluster",
        || helm::make().context("helm and kubectl are missing"),
    )?;
    step("build", "the programs that serve the cluster", || {
        build(args.release)
    })?;
    step("kube", "all cases that need only a control plane", || {
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
        let options = [
            ("--task-image", &args.task_image),
            ("--kube-scheduler", &args.kube_scheduler),
            ("--installed", &args.installed),
            ("--pod-image", &args.pod_image),
            ("--drain", &args.drain),
        ];
        for (option, value) in options {
            if let Some(value) = value {
                suite.args([option, value]);
            }
        }
        suite.args(["--system", &args.system]);
        if args.release {
            suite
                .arg("--extender")
                .arg(target().join("release/divvy-k8s"));
        }
        if !args.only.is_empty() {
            suite.arg("--only").args(&args.only);
        }
        eprintln!("   $ {}", shown(&suite));
        ensure!(suite.status()?.success(), "cases failed");
        Ok(())
    })
}

fn build(release: bool) -> Result<()> {
    if release {
        let words = ["build", "--locked", "--offline", "--quiet", "--release"];
        run(cargo(&words).args(["--package", "divvy-k8s"]))?;
    }
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
