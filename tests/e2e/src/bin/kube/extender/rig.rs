//! The chart's extender and its scheduler, as processes of this machine.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::mix::{self, Request};
use super::pods::{make, name};
use super::processes::{Extender, scheduler};
use crate::api::Proxy;
use crate::cluster::until;
use crate::stage::{Process, Stage};

/// The name of the chart's scheduler.
pub const SCHEDULER: &str = "divvy-scheduler";

/// The number of the pod that is asked about; the runs have fewer.
const ASKED: usize = 9999;

/// The chart's manifests of the extender and its scheduler.
const TEMPLATES: [&str; 3] = [
    "templates/extender/rbac.yaml",
    "templates/extender/deployment.yaml",
    "templates/extender/scheduler.yaml",
];

pub struct Rig<'s> {
    stage: &'s Stage,
    manifests: String,
    extender: Option<Extender>,
    _scheduler: Option<Process>,
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
        self.extender = Some(Extender::start(self.stage, "extender", &[])?);
        Ok(())
    }

    /// The extender, which lives until it is killed.
    pub fn extender(&self) -> Result<&Extender> {
        self.extender.as_ref().context("the extender was killed")
    }

    /// The chart's scheduler, with this machine's addresses in its configuration.
    fn start_scheduler(&mut self, program: &Path) -> Result<()> {
        let (stage, name) = (self.stage, format!("{}-scheduler", self.stage.release));
        let map = stage.cluster.get("configmap", &stage.system, &name)?;
        let map = map.context("the chart has the scheduler's configuration")?;
        let text = map["data"]["config.yaml"].as_str().unwrap_or_default();
        let mut config: Value = yaml_serde::from_str(text)?;
        config["clientConnection"]["kubeconfig"] = json!(stage.account("extender", None)?);
        let port = self.extender()?.port;
        config["extenders"][0]["urlPrefix"] = json!(format!("http://127.0.0.1:{port}"));
        let mut process = scheduler(stage, program, "scheduler", &config)?;
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

    /// A question as the scheduler asks it, about a pod of no scheduler, which the extender sees waiting.
    pub fn question(&self) -> Result<String> {
        let stage = self.stage;
        let proxy = Proxy::start(stage)?;
        let half = Request {
            gpus: 1,
            share: 500,
            cores: 4,
            gib: 16,
        };
        make(stage, &proxy, ASKED, &half, "nobody")?;
        let name = name(ASKED);
        let pod = stage.cluster.get("pod", &stage.aside, &name)?;
        let nodes = stage.cluster.list("nodes", "", super::nodes::PACKING)?;
        let nodes: Vec<Value> = nodes
            .iter()
            .map(|node| node["metadata"]["name"].clone())
            .collect();
        Ok(json!({ "Pod": pod, "Nodes": null, "NodeNames": nodes }).to_string())
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
