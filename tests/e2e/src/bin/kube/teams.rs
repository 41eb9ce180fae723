//! Two teams with Kueue: the commands of docs/kubernetes-teams.md as the page shows them, and what they come to.
//!
//! The installations are the stage's and the cluster owner's. The page's names get the run's prefix, so that a cluster's own
//! projects stay as they are.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::cluster::until;
use crate::report::{CaseOutcome, Report};
use crate::stage::{IMAGE, RUN, Stage};

const PAGE: &str = include_str!("../../../../../docs/kubernetes-teams.md");
/// The heading above the commands.
const HEADING: &str = "## From nothing to two teams";
/// The teams of the page.
const TEAMS: [&str; 2] = ["vision", "nlp"];

/// The commands of the page, in their order.
pub fn commands() -> Vec<&'static str> {
    let below = PAGE.split_once(HEADING).map_or("", |(_, below)| below);
    let block = below
        .split_once("```console\n")
        .map_or("", |(_, block)| block);
    let block = block.split_once("```").map_or("", |(block, _)| block);
    block
        .lines()
        .filter_map(|line| line.strip_prefix("$ "))
        .collect()
}

/// Whether the stage, or the owner of the cluster, has done this already.
pub fn is_installation(command: &str) -> bool {
    command.starts_with("helm ") || command.contains(" divvy-system")
}

/// Tries it all; without Kueue nothing of it.
pub fn all(report: &mut Report, stage: &Stage) {
    let teams = TEAMS.map(|team| format!("{}-{team}", stage.release));
    let mut case = |name, what, run: &dyn Fn() -> Result<CaseOutcome>| {
        report.case(name, what, || match missing(stage)? {
            Some(why) => Ok(CaseOutcome::NotChecked(why)),
            None => run(),
        });
    };
    case(
        "teams.path",
        "the page's commands make two teams, whose jobs count",
        &|| path(stage, &teams),
    );
    case(
        "teams.reclaim",
        "a team borrows, and the other one reclaims its quota",
        &|| reclaim(stage, &teams),
    );
    case(
        "teams.share",
        "idle GPUs go to teams by their weights, and a request beyond a limit is refused",
        &|| share(stage, &teams),
    );
    case(
        "teams.leave",
        "projects go, and leave nothing of Kueue behind",
        &|| leave(stage, &teams),
    );
    // After a failure too.
    for team in &teams {
        let _ = divvy(stage, &["project", "rm", team, "--force"]);
        let _ = stage.cluster.delete("namespace", "", team);
    }
}

/// Why there can be no teams here.
fn missing(stage: &Stage) -> Result<Option<String>> {
    let found = stage
        .cluster
        .call(&["get", "--raw", "/apis/kueue.x-k8s.io"], "")?;
    if !found.done {
        return Ok(Some("Kueue is not installed in this cluster".to_owned()));
    }
    let all: Value = serde_json::from_str(&found.stdout).context("an API group is JSON")?;
    let versions = all["versions"].as_array().into_iter().flatten();
    if versions
        .into_iter()
        .any(|version| version["version"] == "v1beta2")
    {
        Ok(None)
    } else {
        Ok(Some("this Kueue serves no v1beta2".to_owned()))
    }
}

fn path(stage: &Stage, teams: &[String; 2]) -> Result<CaseOutcome> {
    until("the controller has seen the GPUs", || {
        stage
            .cluster
            .get("deviceclasses", "", "fraction.gpu.divvy.dev")
            .map(|found| found.map(drop))
    })?;
    let folder = stage.scratch.path().join("path");
    fs::create_dir_all(&folder)?;
    program(&folder, "divvy-k8s", &stage.program(), "")?;
    let config = format!("--kubeconfig '{}'", stage.cluster.config().display());
    program(&folder, "kubectl", stage.cluster.kubectl(), &config)?;
    let mut run = 0;
    for command in commands() {
        if is_installation(command) {
            continue;
        }
        let mut line = command.replace(
            "kueue-values.yaml",
            &folder.join("kueue-values.yaml").display().to_string(),
        );
        for (name, own) in TEAMS.iter().zip(teams) {
            line = line
                .split(' ')
                .map(|word| if word == *name { own.as_str() } else { word })
                .collect::<Vec<_>>()
                .join(" ");
        }
        let path = env::var_os("PATH").unwrap_or_default();
        let paths = std::iter::once(folder.clone()).chain(env::split_paths(&path));
        let output = Command::new("sh")
            .args(["-ec", &line])
            .env("KUBECONFIG", stage.cluster.config())
            .env("PATH", env::join_paths(paths)?)
            .output()
            .context("start sh")?;
        // The doctor misses node pods that run, which the suite's nodes do not have.
        let may_fail = command.starts_with("divvy-k8s doctor");
        ensure!(
            output.status.success() || may_fail,
            "{line}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        run += 1;
    }
    let used = until("Kueue has counted half a GPU for the job", || {
        let row = project(stage, &teams[0])?;
        Ok((row["used"] == 500).then_some(row))
    });
    let used = used.with_context(|| why(stage, &teams[0], "train"))?;
    let answer = stage.cluster.call(
        &["delete", "job", "train", "-n", &teams[0], "--wait=false"],
        "",
    )?;
    ensure!(answer.done, "{}", answer.stderr);
    Ok(CaseOutcome::Held(
        json!({ "commands": commands().len(), "run": run, "used": used["used"] }),
    ))
}

/// Holds both teams' quotas with one team, then has the other one ask for its own.
fn reclaim(stage: &Stage, teams: &[String; 2]) -> Result<CaseOutcome> {
    idle(stage, &teams[0])?;
    for name in ["first", "second"] {
        job(stage, &teams[0], name, "1.000")?;
    }
    let started = Instant::now();
    until("the first team holds both GPUs", || {
        let row = project(stage, &teams[0])?;
        Ok((row["used"] == 2000 && row["over_quota"] == 1000).then_some(()))
    })
    .with_context(|| why(stage, &teams[0], "second"))?;
    let borrowed = started.elapsed().as_secs_f64();
    job(stage, &teams[0], "third", "1.000")?;
    let waits = until("a job beyond all quotas waits", || {
        let said = why(stage, &teams[0], "third");
        Ok(said.contains("has no quota left").then_some(said))
    })?;
    let started = Instant::now();
    job(stage, &teams[1], "own", "1.000")?;
    until("the other team has its quota back", || {
        let (first, other) = (project(stage, &teams[0])?, project(stage, &teams[1])?);
        Ok((other["used"] == 1000 && first["used"] == 1000).then_some(()))
    })
    .with_context(|| why(stage, &teams[1], "own"))?;
    let reclaimed = started.elapsed().as_secs_f64();
    Ok(CaseOutcome::Held(
        json!({ "borrowed_s": borrowed, "reclaimed_s": reclaimed, "why": waits }),
    ))
}

/// Run:ai's figure: a fair share is the quota, and the idle GPUs by weight. Four idle GPUs at 3 to 1 are 3 and 1.
fn share(stage: &Stage, teams: &[String; 2]) -> Result<CaseOutcome> {
    let spare = format!("{}-spare", stage.release);
    stage.namespace(&spare, &json!({}))?;
    let shared = (|| {
        for team in teams {
            let answer = stage.cluster.call(
                &["delete", "jobs", "--all", "-n", team, "--timeout=60s"],
                "",
            )?;
            ensure!(answer.done, "{}", answer.stderr);
            idle(stage, team)?;
        }
        for (team, weight) in teams.iter().zip(["3", "1"]) {
            done(stage, &["project", "set", team, "--weight", weight])?;
        }
        done(
            stage,
            &[
                "project",
                "add",
                &spare,
                "--quota",
                "4",
                "--namespace",
                &spare,
            ],
        )?;
        for number in 0..6 {
            job(stage, &teams[1], &format!("n{number}"), "1.000")?;
        }
        until("one team holds all idle GPUs", || {
            Ok((project(stage, &teams[1])?["used"] == 6000).then_some(()))
        })?;
        for number in 0..6 {
            job(stage, &teams[0], &format!("v{number}"), "1.000")?;
        }
        until("the teams have their fair shares", || {
            let (first, other) = (project(stage, &teams[0])?, project(stage, &teams[1])?);
            Ok((first["used"] == 4000 && other["used"] == 2000).then_some(()))
        })?;
        done(stage, &["project", "set", &teams[0], "--limit", "1"])?;
        job(stage, &teams[0], "large", "2")?;
        until("a job beyond the limit is refused", || {
            Ok(why(stage, &teams[0], "large")
                .contains("as it is")
                .then_some(()))
        })
        .with_context(|| why(stage, &teams[0], "large"))?;
        Ok(CaseOutcome::Held(json!({ "shares": [4, 2] })))
    })();
    for name in [&spare, &teams[0]] {
        let _ = divvy(stage, &["project", "rm", name, "--force"]);
    }
    let _ = stage.cluster.delete("namespace", "", &spare);
    // The last case removes both.
    done(
        stage,
        &[
            "project",
            "add",
            &teams[0],
            "--quota",
            "1",
            "--namespace",
            &teams[0],
        ],
    )?;
    shared
}

fn done(stage: &Stage, words: &[&str]) -> Result<()> {
    let (code, said) = divvy(stage, words)?;
    ensure!(code == Some(0), "divvy-k8s {}: {said}", words.join(" "));
    Ok(())
}

fn leave(stage: &Stage, teams: &[String; 2]) -> Result<CaseOutcome> {
    let refused = divvy(stage, &["project", "rm", &teams[0]])?;
    ensure!(refused.0 == Some(8), "a project with jobs: {refused:?}");
    for team in teams {
        let answer = stage.cluster.call(
            &["delete", "jobs", "--all", "-n", team, "--timeout=60s"],
            "",
        )?;
        ensure!(answer.done, "{}", answer.stderr);
        idle(stage, team)?;
        let removed = divvy(stage, &["project", "rm", team])?;
        ensure!(removed.0 == Some(0), "{removed:?}");
    }
    for team in teams {
        ensure!(
            stage.cluster.get("clusterqueues", "", team)?.is_none(),
            "the ClusterQueue of {team} is left"
        );
        ensure!(
            stage.cluster.list("localqueues", team, "")?.is_empty(),
            "a LocalQueue of {team} is left"
        );
        let namespace = stage
            .cluster
            .get("namespace", "", team)?
            .unwrap_or_default();
        ensure!(
            namespace["metadata"]["labels"]["divvy.dev/inject"].is_null(),
            "the label of {team} is left"
        );
    }
    Ok(CaseOutcome::Held(Value::Null))
}

/// Waits until nothing of a team holds or waits for quota.
fn idle(stage: &Stage, team: &str) -> Result<()> {
    until("the team has no workloads", || {
        let left = stage.cluster.list("workloads", team, "")?;
        Ok(left.is_empty().then_some(()))
    })
}

/// A Job whose pod no node takes: Kueue counts it all the same.
fn job(stage: &Stage, team: &str, name: &str, fraction: &str) -> Result<()> {
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": name, "namespace": team },
        "spec": { "backoffLimit": 0, "template": {
            "metadata": { "labels": { "clearml-injector/fraction": fraction } },
            "spec": {
                "restartPolicy": "Never", "nodeSelector": { RUN: "nowhere" },
                "containers": [{ "name": "main", "image": IMAGE, "resources": { "requests": { "cpu": "1" } } }],
            },
        } },
    });
    stage.cluster.create(&job, false)?.object().map(drop)
}

fn project(stage: &Stage, name: &str) -> Result<Value> {
    let (code, out) = divvy(stage, &["project", "ls", "-o", "json"])?;
    ensure!(code == Some(0), "project ls: {out}");
    let rows: Value = serde_json::from_str(&out)?;
    let rows = rows["items"].as_array().cloned().unwrap_or_default();
    match rows.into_iter().find(|row| row["name"] == name) {
        Some(row) => Ok(row),
        None => bail!("project ls does not list {name}"),
    }
}

fn why(stage: &Stage, team: &str, job: &str) -> String {
    let name = format!("job/{job}");
    divvy(stage, &["why", &name, "-n", team]).map_or_else(|error| error.to_string(), |(_, out)| out)
}

/// The exit code, and what it said.
fn divvy(stage: &Stage, words: &[&str]) -> Result<(Option<i32>, String)> {
    let output = Command::new(stage.program())
        .args(words)
        .env("KUBECONFIG", stage.cluster.config())
        .output();
    let output = output.context("start divvy-k8s")?;
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = if out.is_empty() {
        String::from_utf8_lossy(&output.stderr).into_owned()
    } else {
        out
    };
    Ok((output.status.code(), said))
}

/// A program of this name that starts another one.
fn program(folder: &Path, name: &str, target: &Path, words: &str) -> Result<()> {
    let file = folder.join(name);
    fs::write(
        &file,
        format!("#!/bin/sh\nexec '{}' {words} \"$@\"\n", target.display()),
    )?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).context("make it a program")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_needs_twelve_commands_and_the_suite_runs_all_but_the_installations() {
        let all = commands();
        assert!((8..=12).contains(&all.len()), "{all:#?}");
        let installations: Vec<_> = all
            .iter()
            .filter(|command| is_installation(command))
            .collect();
        assert_eq!(installations.len(), 4, "{installations:#?}");
        for team in TEAMS {
            assert!(
                all.iter()
                    .any(|command| command.contains(&format!("project add {team} ")))
            );
            assert!(
                all.iter()
                    .any(|command| *command == format!("kubectl create namespace {team}"))
            );
        }
    }
}
