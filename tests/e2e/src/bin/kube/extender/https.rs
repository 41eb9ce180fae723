//! The extender over HTTPS, with a certificate of its own, for a scheduler that the chart does not run.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::mix::Request;
use super::pods::{cleared, place};
use super::processes::{Extender, scheduler};
use crate::report::{CaseOutcome, Report};
use crate::stage::{Process, Stage, file};

/// The profile of the scheduler here.
const SCHEDULER: &str = "suite-scheduler";
/// Pods of a case.
const PODS: usize = 24;
/// The chart's manifests of the extender.
const TEMPLATES: [&str; 2] = [
    "templates/extender/rbac.yaml",
    "templates/extender/deployment.yaml",
];
const SMALL: Request = Request {
    gpus: 1,
    share: 250,
    cores: 1,
    gib: 1,
};

pub fn all(report: &mut Report, stage: &Stage, program: &Path) {
    let mut rig = None;
    report.case(
        "extender.https.start",
        "the extender makes its certificate in the chart's Secret",
        || {
            let ready = Rig::start(stage, program)?;
            let names = ready.names.clone();
            rig = Some(ready);
            Ok(CaseOutcome::Held(json!(names)))
        },
    );
    let Some(mut rig) = rig else { return };
    report.case(
        "extender.rights",
        "the extender's token reads what it needs, and changes only its own two objects",
        || rights(stage),
    );
    report.case(
        "extender.https",
        "a scheduler calls it over HTTPS, and takes the chosen nodes",
        || {
            let (placed, chosen) = rig.run(&rig.https(&rig.authority()?), "https")?;
            ensure!(chosen == PODS, "{chosen} of {PODS} are on the chosen node");
            Ok(CaseOutcome::Held(placed))
        },
    );
    report.case(
        "extender.https.ca",
        "a scheduler with another CA goes on without the extender, which logs the reason",
        || {
            let other = file(
                stage.scratch.path(),
                "other-ca.pem",
                &cluster_authority(stage)?,
            )?;
            let (placed, chosen) = rig.run(&rig.https(&other), "https-ca")?;
            ensure!(chosen == 0, "{chosen} pods were scored");
            let line = rig.extender.logs("WARN", "refused the certificate")?;
            Ok(CaseOutcome::Held(json!({ "placed": placed, "line": line })))
        },
    );
    report.case(
        "extender.https.plain",
        "a scheduler that calls the HTTPS port by HTTP goes on without the extender, which logs the reason",
        || {
            let plain = rig.entry("http", Value::Null);
            let (placed, chosen) = rig.run(&plain, "https-plain")?;
            ensure!(chosen == 0, "{chosen} pods were scored");
            let line = rig.extender.logs("WARN", "sent plain HTTP")?;
            Ok(CaseOutcome::Held(json!({ "placed": placed, "line": line })))
        },
    );
}

/// The extender with a certificate.
struct Rig<'s> {
    stage: &'s Stage,
    program: &'s Path,
    manifests: String,
    extender: Extender,
    /// Flags of the chart about the certificate.
    names: Vec<String>,
}

impl<'s> Rig<'s> {
    fn start(stage: &'s Stage, program: &'s Path) -> Result<Self> {
        let mut words = vec![
            "--set",
            "extender.enabled=true,extender.tls.mode=self,extender.nodeSelector.divvy\\.dev/suite=none",
            "--set",
            "image.repository=divvy.invalid/kubernetes",
        ];
        for template in TEMPLATES {
            words.extend(["-s", template]);
        }
        let manifests = stage.template(&words)?;
        let applied = stage.cluster.call(
            &["apply", "--server-side", "-n", &stage.system, "-f", "-"],
            &manifests,
        )?;
        ensure!(applied.done, "{}", applied.stderr);
        let name = format!("{}-extender", stage.release);
        let deployment = stage.cluster.get("deployment", &stage.system, &name)?;
        let deployment = deployment.context("the chart has the extender")?;
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        let args = container["args"].as_array().into_iter().flatten();
        let args = args.filter_map(Value::as_str).map(str::to_owned);
        let mut names: Vec<String> = args.filter(|arg| arg.starts_with("--tls-")).collect();
        // As a fixed address of the Service would be.
        names.push("--tls-name=127.0.0.1".to_owned());
        let mut extender = Extender::start(stage, "extender-https", &names)?;
        extender.logs("INFO", "serving HTTPS")?;
        Ok(Self {
            stage,
            program,
            manifests,
            extender,
            names,
        })
    }

    /// The CA file for the scheduler, from the Secret.
    fn authority(&self) -> Result<PathBuf> {
        let name = format!("{}-extender-tls", self.stage.release);
        let template = r#"go-template={{index .data "ca.crt" | base64decode}}"#;
        let words = [
            "get",
            "secret",
            &name,
            "-n",
            &self.stage.system,
            "-o",
            template,
        ];
        let answer = self.stage.cluster.call(&words, "")?;
        ensure!(answer.done, "{}", answer.stderr);
        file(self.stage.scratch.path(), "extender-ca.pem", &answer.stdout)
    }

    fn https(&self, authority: &Path) -> Value {
        self.entry("https", json!({ "caFile": authority }))
    }

    /// The extender in a scheduler's configuration.
    fn entry(&self, scheme: &str, tls: Value) -> Value {
        let mut entry = json!({
            "urlPrefix": format!("{scheme}://127.0.0.1:{}", self.extender.port), "prioritizeVerb": "prioritize",
            "weight": 100, "nodeCacheCapable": true, "ignorable": true, "httpTimeout": "1s",
        });
        if !tls.is_null() {
            entry["enableHTTPS"] = json!(true);
            entry["tlsConfig"] = tls;
        }
        entry
    }

    /// Runs a scheduler with that extender, and pods through it. Returns where they went, and how many of them went to the
    /// node that the extender chose.
    fn run(&self, entry: &Value, name: &str) -> Result<(Value, usize)> {
        let config = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "leaderElection": { "leaderElect": false },
            "clientConnection": { "kubeconfig": self.stage.cluster.config() },
            "profiles": [{ "schedulerName": SCHEDULER, "percentageOfNodesToScore": 100 }],
            "extenders": [entry],
        });
        let before = self.extender.logged()?;
        let mut process: Process = scheduler(self.stage, self.program, name, &config)?;
        let placed = place(self.stage, SCHEDULER, &[SMALL; PODS]);
        process.lives()?;
        let placed = placed.with_context(|| process.said())?;
        let chosen = self.extender.chosen(before)?;
        let is_chosen = |(pod, node): &(&String, &String)| chosen.get(*pod) == Some(node);
        let count = placed.nodes.iter().filter(is_chosen).count();
        let bound = placed.nodes.len();
        cleared(self.stage)?;
        ensure!(bound == PODS, "{bound} of {PODS} pods are bound");
        Ok((placed.summary(), count))
    }
}

impl Drop for Rig<'_> {
    fn drop(&mut self) {
        let words = [
            "delete",
            "-n",
            &self.stage.system,
            "--wait=false",
            "-f",
            "-",
        ];
        let _ = self.stage.cluster.call(&words, &self.manifests);
    }
}

/// The CA of the API server, which did not sign the extender's certificate.
fn cluster_authority(stage: &Stage) -> Result<String> {
    let words = [
        "get",
        "configmap",
        "kube-root-ca.crt",
        "-n",
        &stage.system,
        "-o",
        "json",
    ];
    let map = stage.cluster.call(&words, "")?.object()?;
    let text = map["data"]["ca.crt"].as_str();
    Ok(text
        .context("the namespace has the cluster's CA")?
        .to_owned())
}

fn rights(stage: &Stage) -> Result<CaseOutcome> {
    let account = stage.cluster.with_config(&stage.account("extender", None)?);
    let may = |words: &[&str]| -> Result<bool> {
        let answer = account.call(&[&["auth", "can-i"], words].concat(), "")?;
        Ok(answer.stdout.trim() == "yes")
    };
    let own = format!("configmap/{}-extender", stage.release);
    let secret = format!("secret/{}-extender-tls", stage.release);
    let system = ["-n", stage.system.as_str()];
    for words in [
        &["list", "pods", "-A"][..],
        &["watch", "nodes"],
        &["watch", "resourceclaims", "-A"],
        &["list", "resourceslices"],
        &["patch", &own, system[0], system[1]],
        &["update", &secret, system[0], system[1]],
    ] {
        ensure!(may(words)?, "the extender may not {}", words.join(" "));
    }
    let webhook = format!("secret/{}-webhook-tls", stage.release);
    for words in [
        &["get", &webhook, system[0], system[1]][..],
        &["list", "secrets", system[0], system[1]],
        &["create", "secrets", system[0], system[1]],
        &["create", "configmaps", system[0], system[1]],
        &[
            "create",
            "pods",
            "--subresource=binding",
            "-n",
            &stage.aside,
        ],
        &["update", "pods", "--subresource=status", "-n", &stage.aside],
        &["delete", "pods", "-n", &stage.aside],
        &["update", "nodes"],
        &[
            "update",
            "resourceclaims",
            "--subresource=status",
            "-n",
            &stage.aside,
        ],
        &["create", "resourceslices"],
        &["create", "clusterrolebindings"],
    ] {
        ensure!(!may(words)?, "the extender may {}", words.join(" "));
    }
    // A call, as `can-i` asks the authoriser alone.
    let refused = account.call(&["get", &webhook, system[0], system[1]], "")?;
    ensure!(
        !refused.done && refused.stderr.contains("forbidden"),
        "{}",
        refused.stderr
    );
    Ok(CaseOutcome::Held(Value::Null))
}
