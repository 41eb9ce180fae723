//! The chart's extender and its scheduler, as processes of this machine.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::mix;
use crate::api::ask;
use crate::cluster::until;
use crate::stage::{Process, Stage, file, free_port};

/// The name of the chart's scheduler.
pub const SCHEDULER: &str = "divvy-scheduler";

/// The chart's manifests of the extender and its scheduler.
const TEMPLATES: [&str; 3] = [
    "templates/extender/rbac.yaml",
    "templates/extender/deployment.yaml",
    "templates/extender/scheduler.yaml",
];

pub struct Rig<'s> {
    stage: &'s Stage,
    manifests: String,
    extender: Option<Process>,
    _scheduler: Option<Process>,
    pub port: u16,
    health: u16,
}

impl<'s> Rig<'s> {
    pub fn start(stage: &'s Stage, scheduler: &Path) -> Result<Self> {
        let mut words = vec![
            "--set",
            "extender.enabled=true,extender.scheduler.enabled=true,extender.nodeSelector.divvy\\.dev/suite=none",
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
        let mut rig = Self {
            stage,
            manifests,
            extender: None,
            _scheduler: None,
            port: free_port()?,
            health: free_port()?,
        };
        rig.start_extender()?;
        rig.start_scheduler(scheduler)?;
        Ok(rig)
    }

    fn start_extender(&mut self) -> Result<()> {
        let name = format!("{}-extender", self.stage.release);
        let history = json!({ "data": { "history.json": mix::history() } });
        let filled = self
            .stage
            .cluster
            .patch("configmap", &self.stage.system, &name, &history)?;
        ensure!(filled.done, "{}", filled.stderr);
        let config = self.stage.account("extender", None)?;
        let mut command = Command::new(self.stage.program());
        command
            .arg("extender")
            .arg(format!("--listen=127.0.0.1:{}", self.port))
            .arg(format!("--health-listen=127.0.0.1:{}", self.health))
            .arg("--metrics")
            .arg(format!("--history={name}"))
            .arg(format!("--namespace={}", self.stage.system))
            .env("DIVVY_LOG", "info,divvy_k8s=debug")
            .env("NO_COLOR", "1")
            .env("KUBECONFIG", config);
        let mut process = Process::start(&mut command, self.log())?;
        let ready = until("the extender is ready", || {
            process.lives()?;
            Ok(crate::stage::answers(self.health, "/readyz").then_some(()))
        });
        ready.with_context(|| process.said())?;
        self.extender = Some(process);
        Ok(())
    }

    /// The chart's scheduler, with this machine's addresses in its configuration.
    fn start_scheduler(&mut self, program: &Path) -> Result<()> {
        let (stage, name) = (self.stage, format!("{}-scheduler", self.stage.release));
        let map = stage.cluster.get("configmap", &stage.system, &name)?;
        let map = map.context("the chart has the scheduler's configuration")?;
        let text = map["data"]["config.yaml"].as_str().unwrap_or_default();
        let mut config: Value = yaml_serde::from_str(text)?;
        config["clientConnection"]["kubeconfig"] = json!(stage.account("extender", None)?);
        config["extenders"][0]["urlPrefix"] = json!(format!("http://127.0.0.1:{}", self.port));
        let config = file(stage.scratch.path(), "scheduler.yaml", &config.to_string())?;
        let port = free_port()?;
        let mut command = Command::new(program);
        command
            .arg(format!("--config={}", config.display()))
            .arg(format!("--secure-port={port}"))
            .args(["--bind-address=127.0.0.1", "--v=2"]);
        let mut process = Process::start(&mut command, stage.scratch.path().join("scheduler.log"))?;
        let lease = || stage.cluster.get("lease", &stage.system, &name);
        let leads = until("the scheduler leads", || {
            process.lives()?;
            let holder = lease()?.map(|lease| lease["spec"]["holderIdentity"].is_string());
            Ok(holder.filter(|is| *is))
        });
        leads.with_context(|| process.said())?;
        self._scheduler = Some(process);
        Ok(())
    }

    fn log(&self) -> std::path::PathBuf {
        self.stage.scratch.path().join("extender.log")
    }

    fn page(&self, path: &str) -> Result<String> {
        let answer = ask(self.health, "GET", path, "")?;
        ensure!(answer.status == 200, "{path}: {}", answer.body);
        Ok(answer.body)
    }

    pub fn status(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.page("/status")?)?)
    }

    pub fn metrics(&self) -> Result<String> {
        self.page("/metrics")
    }

    /// Waits until the training is over. Returns the status.
    pub fn learned(&self) -> Result<Value> {
        crate::burst::within("the table is trained", || {
            let status = self.status()?;
            let reason = status["reason"].as_str().unwrap_or_default();
            let is_over = !reason.contains("being trained") && !reason.contains("the check needs");
            Ok(is_over.then_some(status))
        })
    }

    /// The node that the extender chose last for each pod, by its log.
    pub fn chosen(&self) -> Result<BTreeMap<String, String>> {
        let text = fs::read_to_string(self.log())?;
        let between = |line: &str, before: &str| {
            let (_, rest) = line.split_once(before)?;
            Some(rest.split_once('"')?.0.to_owned())
        };
        let lines = text
            .lines()
            .filter(|line| line.contains("outcome=\"chosen\""));
        let pairs = lines
            .filter_map(|line| Some((between(line, "pod=Some(\"")?, between(line, "node=\"")?)));
        Ok(pairs.collect())
    }

    /// A question as the scheduler asks it, about a pod that does not exist.
    pub fn question(&self) -> Result<String> {
        let names: Vec<Value> = self
            .stage
            .cluster
            .list("nodes", "", super::nodes::PACKING)?
            .iter()
            .map(|node| node["metadata"]["name"].clone())
            .collect();
        let claims = self
            .stage
            .cluster
            .list("resourceclaims", &self.stage.aside, "")?;
        let waiting = claims
            .iter()
            .find(|claim| claim["status"]["allocation"].is_null());
        let claim = waiting.context("a pod waits")?["metadata"]["name"].as_str();
        let pod = self
            .stage
            .cluster
            .get("pod", &self.stage.aside, claim.unwrap_or_default())?;
        Ok(json!({ "Pod": pod, "Nodes": null, "NodeNames": names }).to_string())
    }

    pub fn kill_extender(&mut self) {
        self.extender = None;
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

/// The part of the calls that took at most so long, in percent, by the histogram on the page.
pub fn within(page: &str, seconds: f64) -> Result<f64> {
    let value = |start: &str| {
        let line = page.lines().find(|line| line.starts_with(start));
        let number = line.and_then(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
        number.with_context(|| format!("no {start}"))
    };
    let name = "divvy_extender_request_duration_seconds";
    let some = value(&format!("{name}_bucket{{le=\"{seconds}\"}}"))?;
    Ok(100.0 * some / value(&format!("{name}_count"))?)
}
