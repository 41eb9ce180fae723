//! Divvy's part in Kubernetes, tried in the cluster that KUBECONFIG names; started by `cargo xtask kube`.
//!
//! ```text
//! cluster.rs     the cluster, through kubectl
//! stage.rs       the chart installed, and its pieces as processes of this machine, each with the rights of its own service account
//! node.rs        nodes that are none: a Node object, a daemon over simulated GPUs, the driver that publishes them
//! admission.rs   what becomes of pods
//! workloads.rs   what becomes of Jobs, Deployments and the like, and of their updates
//! attacks.rs     what pods with claims may not have
//! schedule.rs    where they go
//! rights.rs      what nobody may do; what happens while a piece is away
//! glue.rs        tasks of a ClearML server of the cluster's owner
//! seeds.rs       what the guides of ClearML and Run:ai print, typed
//! teams.rs       quotas with Kueue, where it is installed
//! views.rs       what divvy-k8s lists of them
//! operations.rs  an update and a drain of a release that is installed, on nodes with kubelet; instead of all others
//! burst.rs       many pods at once, and their latency; front.rs is the address of two controllers, api.rs a fast client
//! extender.rs    a stock scheduler with the extender, if one is given; extender/ has its nodes, its pods and its processes
//! report.rs      what came of it
//! ```
//! A control plane is enough: the suite brings its nodes, and where there are others it keeps off them. No container runs, so what a
//! container gets is not tried here.
#![forbid(unsafe_code)]

mod admission;
mod api;
mod attacks;
mod burst;
mod cluster;
mod extender;
mod front;
mod glue;
mod node;
mod operations;
mod report;
mod rights;
mod schedule;
mod seeds;
mod stage;
mod teams;
mod views;
mod workloads;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use divvy_e2e::Programs;
use serde_json::{Value, json};

use cluster::{Cluster, until};
use node::{DYNAMIC_MIG, Machine};
use report::{CaseOutcome, Report};
use stage::{Means, Stage};

#[derive(Parser)]
#[command(
    about = "Tries Divvy in the cluster that KUBECONFIG names; started by `cargo xtask kube`"
)]
struct Cli {
    #[arg(long, value_name = "PROGRAM")]
    kubectl: PathBuf,
    #[arg(long, value_name = "PROGRAM")]
    helm: PathBuf,
    /// The chart's folder
    #[arg(long, value_name = "DIR")]
    chart: PathBuf,
    /// Where the API server finds this machine
    #[arg(long, default_value = "127.0.0.1")]
    address: String,
    /// Image with Python, pip and clearml-agent, in which tasks of a ClearML server run on the cluster's own nodes
    #[arg(long, value_name = "IMAGE")]
    task_image: Option<String>,
    /// Program of a stock kube-scheduler, for the cases of the extender
    #[arg(long, value_name = "PROGRAM")]
    kube_scheduler: Option<PathBuf>,
    /// Program divvy-k8s for the cases of the extender, which judge the time of a call [default: the tests' build]
    #[arg(long, value_name = "PROGRAM")]
    extender: Option<PathBuf>,
    /// Instead of all other cases: tries the update and the drain of this installed release
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
    /// Only cases whose names begin with one of these
    #[arg(long, value_name = "NAME", num_args = 1..)]
    only: Vec<String>,
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    #[default]
    Text,
    Json,
}

fn main() -> ExitCode {
    match try_it(Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn try_it(cli: Cli) -> Result<bool> {
    let config = std::env::var_os("KUBECONFIG").context("KUBECONFIG is not set")?;
    let cluster = Cluster::new(cli.kubectl, PathBuf::from(config));
    let facts = facts(&cluster)?;
    eprintln!("   cluster: {facts}");
    let mut report = Report::new(&cli.only);
    if let (Some(release), Some(image)) = (cli.installed, cli.pod_image) {
        let installed = operations::Installed {
            cluster,
            release,
            system: cli.system,
            image,
            drain: cli.drain,
        };
        operations::all(&mut report, &installed);
        print_report(&report, cli.output, &facts);
        return Ok(report.good());
    }
    let test = std::env::current_exe()?;
    let programs = Programs::at(
        test.parent()
            .context("a program lies somewhere")?
            .to_owned(),
    );
    let stage = Stage::set(Means {
        cluster: cluster.clone(),
        programs,
        extender: cli.extender,
        helm: cli.helm,
        chart: cli.chart,
        address: cli.address,
    })?;
    let leftover = play(
        &mut report,
        &stage,
        cli.task_image.as_deref(),
        cli.kube_scheduler.as_deref(),
    );
    let (pods, system, aside) = (
        stage.pods.clone(),
        stage.system.clone(),
        stage.aside.clone(),
    );
    drop(stage);
    leftover?;
    report.case("leave", "nothing of the run is left in the cluster", || {
        until("the namespaces are gone", || {
            let all = cluster.list("namespaces", "", "")?;
            let ours = |namespace: &&Value| {
                [&pods, &system, &aside]
                    .iter()
                    .any(|name| namespace["metadata"]["name"] == ***name)
            };
            Ok(all.iter().find(ours).is_none().then_some(()))
        })?;
        Ok(CaseOutcome::Held(Value::Null))
    });
    print_report(&report, cli.output, &facts);
    Ok(report.good())
}

#[expect(clippy::print_stdout, reason = "the report is the program's data")]
fn print_report(report: &Report, output: Output, facts: &Value) {
    match output {
        Output::Text => print!("{}", report.closing()),
        Output::Json => println!("{:#}", report.summary(facts)),
    }
}

/// What decides what can be tried.
fn facts(cluster: &Cluster) -> Result<Value> {
    let version = cluster.call(&["version", "-o", "json"], "")?;
    let version = version.object().context("the cluster does not answer")?;
    let nodes = cluster.list("nodes", "", "")?;
    Ok(json!({ "version": version["serverVersion"]["gitVersion"], "nodes": nodes.len() }))
}

/// Whether the API server keeps what our slices say; without its gates it drops the fields.
fn takes_shares(stage: &Stage) -> Result<()> {
    let slice = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": { "name": format!("{}-probe", stage.release) },
        "spec": { "driver": "suite.divvy.dev", "nodeName": "nowhere", "pool": { "name": "suite", "generation": 1, "resourceSliceCount": 1 },
                  "devices": [{ "name": "a", "allowMultipleAllocations": true, "capacity": { "memory": { "value": "1Gi" } } }] },
    });
    let kept = stage.cluster.create(&slice, true)?.object()?;
    ensure!(
        kept["spec"]["devices"][0]["allowMultipleAllocations"] == true,
        "this API server drops `allowMultipleAllocations`: the gate DRAConsumableCapacity is off, or it is older than 1.36; carrier mode is for those"
    );
    Ok(())
}

fn play(
    report: &mut Report,
    stage: &Stage,
    task_image: Option<&str>,
    kube_scheduler: Option<&Path>,
) -> Result<()> {
    takes_shares(stage)?;
    stage.serve()?;
    let machine = |name, gpus, carved, labels| Machine {
        name,
        gpus,
        carved,
        labels,
    };
    let carve = json!({ DYNAMIC_MIG: "true" });
    let pair = stage.node(&machine("pair", "a100-80gb:2", false, json!({})))?;
    // While all GPUs are of one size, as the page has it.
    teams::all(report, stage);
    stage.node(&machine("small", "l4-24gb:1", false, json!({})))?;
    stage.node(&machine("middle", "a100-40gb:1", false, json!({})))?;
    stage.node(&machine("carved", "a100-80gb:1", true, carve))?;
    let product = json!({ DYNAMIC_MIG: "true", "nvidia.com/gpu.product": "A100-SXM4-40GB" });
    stage.node(&machine("product", "a100-40gb:1", true, product))?;
    let bare = stage.node(&machine("bare", "a100-80gb:1", true, json!({})))?;
    until("the controller has seen every kind of device", || {
        let classes = stage.cluster.list("deviceclasses", "", "")?;
        let named = |name: &str| {
            classes
                .iter()
                .any(|class| class["metadata"]["name"] == name)
        };
        Ok((named("fraction.gpu.divvy.dev")
            && named("memory.gpu.divvy.dev")
            && named("mig-1g-10gb.gpu.divvy.dev")
            && named("mig-3g-20gb.gpu.divvy.dev"))
        .then_some(()))
    })
    .with_context(|| stage.controller_said())?;
    admission::all(report, stage);
    report.case("clear", "pods and claims go when they are deleted", || {
        stage.clear().map(|()| CaseOutcome::Held(Value::Null))
    });
    workloads::all(report, stage);
    report.case("clear.workloads", "what workloads left goes", || {
        stage.clear().map(|()| CaseOutcome::Held(Value::Null))
    });
    schedule::all(report, stage);
    views::all(report, stage);
    rights::all(report, stage, &pair);
    attacks::all(report, stage);
    seeds::all(report, stage, &bare);
    glue::all(report, stage, task_image);
    burst::all(report, stage);
    extender::all(report, stage, kube_scheduler);
    report.case("unchecked.node", "what a container gets of a claim", || {
        Ok(CaseOutcome::NotChecked(
            "no kubelet runs here; the tests of divvy-k8s have one, and a Docker container"
                .to_owned(),
        ))
    });
    report.case(
        "uninstall",
        "helm uninstall takes everything out that was made for the release",
        || uninstalled(stage),
    );
    Ok(())
}

fn uninstalled(stage: &Stage) -> Result<CaseOutcome> {
    // Before the controller, as its pods would be: the last that it makes goes too.
    stage.uninstall()?;
    stage.strike();
    // Pods of nodes without a kubelet are ended by nobody else.
    let words = [
        "delete",
        "pods",
        "--all",
        "-n",
        &stage.system,
        "--force",
        "--grace-period=0",
    ];
    stage.cluster.call(&words, "")?;
    let kinds = "all,secrets,configmaps,leases,roles,rolebindings,clusterroles,clusterrolebindings,mutatingwebhookconfigurations,\
                 validatingadmissionpolicies,validatingadmissionpolicybindings,serviceaccounts,poddisruptionbudgets";
    let release = format!("app.kubernetes.io/instance={}", stage.release);
    let left = RefCell::new(Vec::new());
    let gone = until("nothing of ours is left", || {
        let mut found = stage.cluster.list(kinds, "", &release)?;
        let made = "deviceclasses,resourceclaimtemplates,resourceclaims";
        found.extend(
            stage
                .cluster
                .list(made, "", "app.kubernetes.io/managed-by=divvy")?,
        );
        let slices = stage.cluster.list("resourceslices", "", "")?;
        let ours = |slice: &Value| slice["spec"]["driver"] == "gpu.divvy.dev";
        found.extend(slices.into_iter().filter(ours));
        let called = |one: &Value| format!("{} {}", one["kind"], one["metadata"]["name"]);
        *left.borrow_mut() = found.iter().map(called).collect();
        Ok(found.is_empty().then_some(()))
    });
    gone.with_context(|| left.borrow().join(", "))?;
    Ok(CaseOutcome::Held(Value::Null))
}
