//! An extender and a scheduler as processes of this machine, and what the extender says.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::api::ask;
use crate::cluster::until;
use crate::stage::{Process, Stage, answers, file, free_port};

/// Nanoseconds that a thread ran, and that it was ready and waited for a core.
#[derive(Clone, Copy, Debug)]
pub struct CoreTime {
    pub computed: u64,
    pub waited: u64,
}

/// A running extender.
pub struct Extender {
    process: Process,
    log: PathBuf,
    pub port: u16,
    health: u16,
}

impl Extender {
    /// Starts it with the token of the chart's account, and waits until it has read the cluster. The log has this name.
    pub fn start(stage: &Stage, name: &str, more: &[String]) -> Result<Self> {
        let (port, health) = (free_port()?, free_port()?);
        let account = stage.account("extender", None)?;
        let log = stage.scratch.path().join(format!("{name}.log"));
        let mut command = Command::new(stage.extender());
        command
            .arg("extender")
            .arg(format!("--listen=127.0.0.1:{port}"))
            .arg(format!("--health-listen=127.0.0.1:{health}"))
            .arg("--metrics")
            .arg(format!("--history={}-extender", stage.release))
            .arg(format!("--namespace={}", stage.system))
            .args(more)
            .env("DIVVY_LOG", "info,divvy_k8s=debug")
            .env("NO_COLOR", "1")
            .env("KUBECONFIG", account);
        let mut process = Process::start(&mut command, log.clone())?;
        let ready = until("the extender is ready", || {
            process.lives()?;
            Ok(answers(health, "/readyz").then_some(()))
        });
        ready.with_context(|| process.said())?;
        Ok(Self {
            process,
            log,
            port,
            health,
        })
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

    /// Bytes that it has logged.
    pub fn logged(&self) -> Result<usize> {
        Ok(fs::read_to_string(&self.log)?.len())
    }

    /// The node that it chose last for each pod, by what it logged after so many bytes.
    pub fn chosen(&self, after: usize) -> Result<BTreeMap<String, String>> {
        let text = fs::read_to_string(&self.log)?;
        let text = text.get(after..).unwrap_or_default();
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

    /// What the kernel counts of the thread that answers.
    pub fn core_time(&self) -> Result<CoreTime> {
        let tasks = format!("/proc/{}/task", self.process.pid());
        for task in fs::read_dir(&tasks).with_context(|| tasks.clone())? {
            let task = task?.path();
            if fs::read_to_string(task.join("comm"))?.trim() != "answers" {
                continue;
            }
            let text = fs::read_to_string(task.join("schedstat"))?;
            let mut fields = text.split_whitespace().map(str::parse);
            let mut next = || {
                fields
                    .next()
                    .context("schedstat has two times")?
                    .context(text.clone())
            };
            return Ok(CoreTime {
                computed: next()?,
                waited: next()?,
            });
        }
        bail!("the extender has no thread `answers`")
    }

    /// Waits for a line of its log at this level.
    pub fn logs(&mut self, level: &str, words: &str) -> Result<String> {
        let found = until(&format!("the extender logs {words:?}"), || {
            self.process.lives()?;
            let text = fs::read_to_string(&self.log)?;
            let mut lines = text.lines();
            let line = lines.find(|line| line.contains(level) && line.contains(words));
            Ok(line.map(str::to_owned))
        });
        found.with_context(|| self.process.said())
    }
}

/// Starts a scheduler with this configuration, and waits until it serves.
pub fn scheduler(stage: &Stage, program: &Path, name: &str, config: &Value) -> Result<Process> {
    let config = file(
        stage.scratch.path(),
        &format!("{name}.yaml"),
        &config.to_string(),
    )?;
    let mut command = Command::new(program);
    command
        .arg(format!("--config={}", config.display()))
        .arg(format!("--secure-port={}", free_port()?))
        .args(["--bind-address=127.0.0.1", "--v=2"]);
    let log = stage.scratch.path().join(format!("{name}.log"));
    Process::start(&mut command, log)
}
