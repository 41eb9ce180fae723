//! The views of the cluster: pods and GPUs, by the caller's rights. The nodes of the suite run no pods, so their own figures are not
//! tried here.

use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::cluster::until;
use crate::report::{CaseOutcome, Report};
use crate::stage::Stage;

const FRACTION: &str = "clearml-injector/fraction";
const NODE: &str = "divvy.dev/suite-node";

pub fn all(report: &mut Report, stage: &Stage) {
    let mut case = |name: &str, what: &str, check: &dyn Fn() -> Result<CaseOutcome>| {
        report.case(name, what, || {
            let came = check();
            stage.clear()?;
            came
        });
    };
    case("V1", "a fraction is listed as it was requested", &|| {
        requested(stage)
    });
    case(
        "V2",
        "a pod without room is listed with the reason",
        &|| waiting(stage),
    );
    case("V3", "an unknown node has the exit code 3", &|| {
        let words = ["admin", "gpu", "nowhere.invalid", "0", "--mode", "mig"];
        let output = divvy(stage, stage.cluster.config(), &words)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code() == Some(3), "{said}");
        Ok(CaseOutcome::Held(json!(said.trim())))
    });
    case(
        "V4",
        "without rights the lists are refused with exit code 4",
        &|| {
            // The account of the node driver may read claims by name, and list none.
            let config = stage.account("node", None)?;
            let output = divvy(stage, &config, &["ps", "-n", &stage.pods])?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            ensure!(output.status.code() == Some(4), "{said}");
            Ok(CaseOutcome::Held(json!(said.trim())))
        },
    );
}

fn divvy(stage: &Stage, config: &Path, words: &[&str]) -> Result<Output> {
    let mut command = Command::new(stage.program());
    command.args(words).env("KUBECONFIG", config);
    command.output().context("run divvy-k8s")
}

/// The items of a list.
fn items(stage: &Stage, words: &[&str]) -> Result<Vec<Value>> {
    let words = [words, &["--divvy-namespace", &stage.system, "-o", "json"]].concat();
    let output = divvy(stage, stage.cluster.config(), &words)?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{said}");
    let list: Value = serde_json::from_slice(&output.stdout).context("-o json prints JSON")?;
    let items = list["items"].as_array().context("a list has items")?;
    Ok(items.clone())
}

fn create(stage: &Stage, name: &str, fraction: &str, node: &str) -> Result<()> {
    let mut pod = stage.pod(name, &json!({ FRACTION: fraction }), &json!({}), &json!({}));
    pod["spec"]["nodeSelector"] = json!({ NODE: node });
    let answer = stage.cluster.create(&pod, false)?;
    ensure!(answer.done, "{}", answer.stderr);
    Ok(())
}

fn requested(stage: &Stage) -> Result<CaseOutcome> {
    create(stage, "v1-quarter", "0.250", "pair")?;
    create(stage, "v1-eighth", "0.125", "pair")?;
    let pods = until("both pods have a GPU", || {
        let pods = items(stage, &["ps", "-n", &stage.pods])?;
        let placed = |pod: &&Value| pod["state"] == "starting";
        Ok((pods.iter().filter(placed).count() == 2).then_some(pods))
    })?;
    let listed: Vec<Value> = pods
        .iter()
        .map(|pod| json!([pod["pod"], pod["request"], pod["devices"][0]["part"]]))
        .collect();
    let expected = [
        json!(["v1-eighth", "0.125", "0.125"]),
        json!(["v1-quarter", "0.25", "0.25"]),
    ];
    ensure!(listed == expected, "{listed:?}");
    let gpus = items(stage, &["gpus"])?;
    let allocated: Vec<&Value> = gpus
        .iter()
        .map(|gpu| &gpu["allocated"])
        .filter(|allocated| **allocated == "0.375")
        .collect();
    ensure!(allocated.len() == 1, "{gpus:?}");
    Ok(CaseOutcome::Held(json!(listed)))
}

fn waiting(stage: &Stage) -> Result<CaseOutcome> {
    create(stage, "v2-first", "0.750", "small")?;
    until("the first has a GPU", || {
        let pods = items(stage, &["ps", "-n", &stage.pods])?;
        Ok(pods
            .iter()
            .any(|pod| pod["state"] == "starting")
            .then_some(()))
    })?;
    create(stage, "v2-second", "0.500", "small")?;
    let reason = until("the second waits with a reason", || {
        let pods = items(stage, &["ps", "-n", &stage.pods])?;
        let second = pods.iter().find(|pod| pod["pod"] == "v2-second");
        let reason = second.and_then(|pod| pod["reason"].as_str());
        Ok(reason.map(str::to_owned))
    })?;
    Ok(CaseOutcome::Held(json!(reason)))
}
