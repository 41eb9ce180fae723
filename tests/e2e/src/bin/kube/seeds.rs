//! What guides of ClearML and Run:ai tell people to type, typed: every manifest as it is printed there.

use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::cluster::until;
use crate::node::slices;
use crate::report::{CaseOutcome, Report};
use crate::stage::{RUN, Stage, file};

const TRAIN_POD: &str = include_str!("../../../../../crates/k8s/tests/seeds/train-pod.yaml");
const MIXED: &str = include_str!("../../../../../crates/k8s/tests/seeds/tf-benchmarks-mixed.yaml");
const MIXED_WORKING: &str =
    include_str!("../../../../../crates/k8s/tests/seeds/tf-benchmarks-mixed.working.yaml");
const STATIC_MIG: &str =
    include_str!("../../../../../crates/k8s/tests/seeds/static-mig.values.yaml");
const DYNAMIC_MIG: &str =
    include_str!("../../../../../crates/k8s/tests/seeds/dynamic-mig.values.yaml");
const INJECTOR: &str = include_str!("../../../../../crates/k8s/tests/seeds/injector.values.yaml");

/// `product` is a carved 40 GB node with NVIDIA's label of its model; `bare` has a GPU in MIG mode and no role.
pub fn all(report: &mut Report, stage: &Stage, bare: &str) {
    report.case(
        "seed.train-pod",
        "the pod of a container with a fixed part of a GPU",
        || {
            let answer = stage.cluster.call(
                &["create", "-n", &stage.pods, "-o", "json", "-f", "-"],
                TRAIN_POD,
            )?;
            let pod = answer.object()?;
            let claim = &pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"];
            let claim = claim.as_str().with_context(|| format!("no claim: {pod}"))?;
            let made = stage
                .cluster
                .get("resourceclaimtemplate", &stage.pods, claim)?;
            let request = &made.unwrap_or_default()["spec"]["spec"]["devices"]["requests"][0];
            ensure!(
                request["exactly"]["capacity"]["requests"]["memory"] == "8Gi",
                "{request}"
            );
            ensure!(pod["spec"]["hostPID"] == true, "{pod}");
            for word in ["hostPID", "8.0 GiB"] {
                ensure!(answer.stderr.contains(word), "{}", answer.stderr);
            }
            stage.clear()?;
            Ok(CaseOutcome::Held(json!(answer.stderr.trim())))
        },
    );
    report.case(
        "seed.static-mig-pod",
        "the pod of a static MIG slice: not YAML as printed; its working form has an instance",
        || mixed(stage),
    );
    report.case(
        "seed.static-mig-queue",
        "a queue whose pods run on 1g.5gb slices",
        || {
            let (pods, _) = glue(stage, STATIC_MIG)?;
            ensure!(pods.len() == 1, "{} pods", pods.len());
            let pod = &pods[0];
            ensure!(
                pod["spec"]["nodeSelector"]["nvidia.com/gpu.product"]
                    == "A100-SXM4-40GB-MIG-1g.5gb",
                "{pod}"
            );
            ensure!(
                pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
                    .to_string()
                    .contains('1'),
                "{pod}"
            );
            // Nodes of that label are sliced by hand, and NVIDIA's plugin calls a slice nvidia.com/gpu there.
            made(stage, pod).map(|pod| CaseOutcome::Held(pod["spec"]["nodeSelector"].clone()))
        },
    );
    report.case(
        "seed.dynamic-mig",
        "the label for carving, then queues of MIG instances",
        || carved(stage, bare),
    );
    report.case("seed.injector", "queues of halves and quarters", || {
        injected(stage)
    });
    for (case, words) in [
        (
            "seed.runai-label",
            "node-role.kubernetes.io/runai-mig-enabled=true",
        ),
        ("seed.cdmo-label", "cdmo.clear.ml/gpu-partitioning=mig"),
    ] {
        report.case(case, "a node label of others that allows carving", || {
            label(stage, bare, words)
        });
    }
    report.case(
        "seed.runai-role",
        "set node-role --dynamic-mig-enabled, and remove",
        || role(stage, bare),
    );
    report.case(
        "seed.submit",
        "submit --gpu, --gpu-memory, --mig-profile",
        || submitted(stage),
    );
}

/// Makes a pod for nodes of the run.
fn made(stage: &Stage, pod: &Value) -> Result<Value> {
    let mut pod = pod.clone();
    pod["metadata"]["namespace"] = json!(stage.pods);
    if pod["spec"]["serviceAccountName"].is_string() {
        pod["spec"]["serviceAccountName"] = json!("default");
    }
    // Other nodes are none of the suite's business.
    if !stage.alone {
        pod["spec"]["nodeSelector"][RUN] = json!(stage.run);
        pod["spec"]["tolerations"] = json!([{ "key": RUN, "operator": "Exists" }]);
    }
    stage.cluster.create(&pod, false)?.object()
}

/// The glue prints the same task for each queue; here they are two.
fn called(pod: &Value, at: usize) -> Value {
    let mut pod = pod.clone();
    pod["metadata"]["name"] = json!(format!("task-{at}"));
    pod
}

/// Waits until a pod of the suite's namespace has a node, and says which devices it was given.
fn placed(stage: &Stage, name: &str) -> Result<Vec<String>> {
    until(&format!("{name} has a node"), || {
        let pod = stage
            .cluster
            .get("pod", &stage.pods, name)?
            .context("the pod is there")?;
        if !pod["spec"]["nodeName"].is_string() {
            return Ok(None);
        }
        let status = &pod["status"];
        let extended = &status["extendedResourceClaimStatus"]["resourceClaimName"];
        let claim = extended
            .as_str()
            .or(status["resourceClaimStatuses"][0]["resourceClaimName"].as_str());
        let Some(claim) = claim else { return Ok(None) };
        let claim = stage
            .cluster
            .get("resourceclaim", &stage.pods, claim)?
            .context("its claim is there")?;
        let results = claim["status"]["allocation"]["devices"]["results"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        Ok(Some(
            results
                .iter()
                .map(|result| result["device"].as_str().unwrap_or_default().to_owned())
                .collect(),
        ))
    })
}

fn mixed(stage: &Stage) -> Result<CaseOutcome> {
    let refused = stage
        .cluster
        .call(&["create", "-n", &stage.pods, "-f", "-"], MIXED)?;
    ensure!(
        !refused.done && refused.stderr.contains("yaml"),
        "{}",
        refused.stderr
    );
    let answer = stage.cluster.call(
        &[
            "create",
            "-n",
            &stage.pods,
            "-o",
            "json",
            "--dry-run=client",
            "-f",
            "-",
        ],
        MIXED_WORKING,
    )?;
    made(stage, &answer.object()?)?;
    let devices = placed(stage, "tf-benchmarks-mixed")?;
    stage.clear()?;
    ensure!(
        devices.len() == 1 && devices[0].contains("-mig-3g-20gb-"),
        "{devices:?}"
    );
    Ok(CaseOutcome::Held(
        json!({ "as_printed": refused.stderr.trim(), "working": devices }),
    ))
}

/// The pods that the glue makes of a values file, and what it says.
fn glue(stage: &Stage, values: &str) -> Result<(Vec<Value>, String)> {
    let path = file(stage.scratch.path(), "values.yaml", values)?;
    let output = ours(stage)
        .args(["glue", "--print", "--values"])
        .arg(path)
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{said}");
    let text = String::from_utf8(output.stdout).context("YAML is text")?;
    let mut pods = Vec::new();
    for document in text
        .split("\n---\n")
        .map(|document| document.trim_start_matches("---\n"))
    {
        if document.trim().is_empty() {
            continue;
        }
        let read = stage.cluster.call(
            &[
                "create",
                "--dry-run=client",
                "--validate=false",
                "-o",
                "json",
                "-f",
                "-",
            ],
            document,
        )?;
        pods.push(read.object()?);
    }
    Ok((pods, said))
}

fn ours(stage: &Stage) -> Command {
    let mut command = Command::new(stage.program());
    command.env("KUBECONFIG", stage.cluster.config());
    command
}

fn run(command: &mut Command) -> Result<Output> {
    let output = command.output()?;
    ensure!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output)
}

/// Whether a node publishes instances.
fn instances(stage: &Stage, node: &str) -> Result<bool> {
    let slices = slices(&stage.cluster, node)?;
    let mut devices = slices
        .iter()
        .flat_map(|slice| slice["spec"]["devices"].as_array().into_iter().flatten());
    Ok(devices.any(|device| {
        device["name"]
            .as_str()
            .is_some_and(|name| name.contains("-mig-"))
    }))
}

fn until_carved(stage: &Stage, node: &str, carved: bool) -> Result<()> {
    let what = if carved {
        "the node offers instances"
    } else {
        "the node offers none"
    };
    until(what, || {
        Ok((instances(stage, node)? == carved).then_some(()))
    })
}

fn set_label(stage: &Stage, node: &str, words: &str) -> Result<()> {
    let answer = stage.cluster.call(&["label", "nodes", node, words], "")?;
    ensure!(answer.done, "{}", answer.stderr);
    Ok(())
}

fn label(stage: &Stage, node: &str, words: &str) -> Result<CaseOutcome> {
    until_carved(stage, node, false)?;
    set_label(stage, node, words)?;
    let carved = until_carved(stage, node, true);
    let key = words.split('=').next().unwrap_or_default();
    set_label(stage, node, &format!("{key}-"))?;
    carved?;
    until_carved(stage, node, false)?;
    Ok(CaseOutcome::Held(Value::Null))
}

fn role(stage: &Stage, node: &str) -> Result<CaseOutcome> {
    run(ours(stage).args(["admin", "set", "node-role", "--dynamic-mig-enabled", node]))?;
    until_carved(stage, node, true)?;
    run(ours(stage).args([
        "admin",
        "remove",
        "node-role",
        "--dynamic-mig-enabled",
        node,
    ]))?;
    until_carved(stage, node, false)?;
    Ok(CaseOutcome::Held(Value::Null))
}

fn carved(stage: &Stage, node: &str) -> Result<CaseOutcome> {
    set_label(stage, node, "cdmo.clear.ml/gpu-partitioning=mig")?;
    let came = carved_queues(stage, node);
    stage.clear()?;
    set_label(stage, node, "cdmo.clear.ml/gpu-partitioning-")?;
    until_carved(stage, node, false)?;
    came
}

fn carved_queues(stage: &Stage, node: &str) -> Result<CaseOutcome> {
    until_carved(stage, node, true)?;
    let (pods, said) = glue(stage, DYNAMIC_MIG)?;
    ensure!(pods.len() == 2, "{} pods: {said}", pods.len());
    let mut found = Vec::new();
    for (at, pod) in pods.iter().enumerate() {
        let made = made(stage, &called(pod, at))?;
        let name = made["metadata"]["name"]
            .as_str()
            .context("a pod has a name")?;
        ensure!(
            made["metadata"]["labels"]["required-resources"].is_string(),
            "{made}"
        );
        let devices = placed(stage, name)?;
        ensure!(
            devices.len() == 1 && devices[0].contains("-mig-1g-10gb-"),
            "{devices:?}"
        );
        found.extend(devices);
    }
    Ok(CaseOutcome::Held(
        json!({ "said": said.trim(), "devices": found }),
    ))
}

fn injected(stage: &Stage) -> Result<CaseOutcome> {
    let (pods, said) = glue(stage, INJECTOR)?;
    ensure!(pods.len() == 2, "{} pods: {said}", pods.len());
    let mut found = Vec::new();
    for (at, pod) in pods.iter().enumerate() {
        let made = made(stage, &called(pod, at))?;
        let name = made["metadata"]["name"]
            .as_str()
            .context("a pod has a name")?;
        ensure!(
            made["spec"]["resourceClaims"][0]["name"] == "fraction-gpu",
            "{made}"
        );
        found.extend(placed(stage, name)?);
    }
    stage.clear()?;
    ensure!(found.len() == 2, "{found:?}");
    Ok(CaseOutcome::Held(json!(found)))
}

fn submitted(stage: &Stage) -> Result<CaseOutcome> {
    let mut found = Vec::new();
    for (name, flags) in [
        ("fraction", &["--gpu", "0.25"][..]),
        ("memory", &["--gpu-memory", "4G"]),
        ("instance", &["--mig-profile", "1g.10gb"]),
    ] {
        if !stage.alone {
            return Ok(CaseOutcome::NotChecked(
                "pods of `submit` name no nodes, and there are others here".to_owned(),
            ));
        }
        run(ours(stage).arg("submit").args(flags).args([
            "--name",
            name,
            "--namespace",
            &stage.pods,
            "divvy.invalid/none",
            "--",
            "true",
        ]))?;
        let devices = placed(stage, name)?;
        ensure!(devices.len() == 1, "{name}: {devices:?}");
        found.push(devices[0].clone());
    }
    stage.clear()?;
    ensure!(found[2].contains("-mig-1g-10gb-"), "{found:?}");
    Ok(CaseOutcome::Held(json!(found)))
}
