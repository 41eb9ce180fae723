//! The scheduler extender with a stock kube-scheduler: pods of a real mix on 50 nodes that are objects alone.
//!
//! The scheduler is a process here, with the chart's configuration and the rights of the chart's service account. The cluster's own
//! scheduler goes on: it places the same pods first, for comparison.

mod https;
mod mix;
mod nodes;
mod pods;
mod processes;
mod rig;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::api::{Proxy, ask};
use crate::report::{CaseOutcome, Report};
use crate::stage::{IMAGE, Stage};
use mix::Request;
use nodes::Nodes;
use pods::{cleared, make, place, post, settled};
use processes::Extender;
use rig::Rig;

/// Pods of a run; they ask for about as many GPUs as the nodes have.
const PODS: usize = 1000;
/// Pods that are made while the extender is dead.
const LATER: usize = 20;
/// What a call may take.
const LIMIT_MS: f64 = 5.0;
/// Calls of a round, and rounds: the quietest one is judged, as what else the machine does is no property of the extender.
const CALLS: usize = 200;
const ROUNDS: usize = 5;
/// A machine is busy where a call waits longer for a core: then only what the extender computes is judged.
const QUIET_MS: f64 = 0.5;

pub fn all(report: &mut Report, stage: &Stage, scheduler: Option<&Path>) {
    let Some(scheduler) = scheduler else {
        report.case("extender", "a kube-scheduler with the extender", || {
            Ok(CaseOutcome::NotChecked(
                "no --kube-scheduler names the program of a stock scheduler".to_owned(),
            ))
        });
        return;
    };
    let mut nodes = None;
    report.case("extender.nodes", "50 nodes that are objects alone", || {
        nodes = Some(Nodes::make(stage)?);
        Ok(CaseOutcome::Held(json!({ "gpus": nodes::gpus() })))
    });
    if nodes.is_none() {
        return;
    }
    report.case(
        "extender.stock",
        "1,000 pods of the mix, placed by the cluster's own scheduler",
        || {
            let placed = place(stage, "default-scheduler", &mix::requests(PODS))?;
            cleared(stage)?;
            Ok(CaseOutcome::Held(placed.summary()))
        },
    );
    let mut rig = None;
    report.case(
        "extender.start",
        "the chart's extender and scheduler start with their own rights, and a table is learned",
        || {
            let started = Instant::now();
            let ready = Rig::start(stage, scheduler)?;
            let status = ready.extender()?.learned()?;
            rig = Some(ready);
            let seconds = started.elapsed().as_secs_f64();
            Ok(CaseOutcome::Held(
                json!({ "status": status, "seconds": seconds }),
            ))
        },
    );
    let Some(mut rig) = rig else { return };
    report.case(
        "extender.choice",
        "the same pods with the extender: the scheduler takes the policy's node in 99 % or more",
        || choice(stage, &rig),
    );
    report.case(
        "extender.calls",
        "a call computes at most 5 ms (on a quiet machine 99 of 100 take no longer), 200 at once are answered, garbage is refused",
        || calls(stage, &rig),
    );
    report.case(
        "extender.killed",
        "the extender is killed: the scheduler goes on without it",
        || killed(stage, &mut rig),
    );
    drop(rig);
    https::all(report, stage, scheduler);
    report.case("extender.clear", "what the cases made goes", || {
        cleared(stage)?;
        drop(nodes);
        Ok(CaseOutcome::Held(Value::Null))
    });
}

fn choice(stage: &Stage, rig: &Rig<'_>) -> Result<CaseOutcome> {
    let placed = place(stage, rig::SCHEDULER, &mix::requests(PODS))?;
    let chosen = rig.extender()?.chosen(0)?;
    let (mut same, mut others) = (0, Vec::new());
    for (pod, node) in &placed.nodes {
        match chosen.get(pod) {
            Some(choice) if choice == node => same += 1,
            Some(choice) => others.push(format!("{pod}: {choice} was chosen, it is on {node}")),
            // Only one node was left, or it wants no GPU.
            None => {}
        }
    }
    let scored = same + others.len();
    ensure!(scored > PODS / 2, "only {scored} pods were scored");
    ensure!(
        same * 100 >= scored * 99,
        "{same} of {scored}: {}",
        others.join("; ")
    );
    // Not judged: the whole control plane runs on the same cores. The next case judges calls alone.
    let metrics = rig.extender()?.metrics()?;
    let within = rig::within(&metrics, LIMIT_MS / 1000.0)?;
    let mut seen = placed.summary();
    seen["scored"] = json!(scored);
    seen["on_the_chosen_node"] = json!(same);
    seen["calls_within_5_ms_percent"] = json!(within);
    seen["status"] = rig.extender()?.status()?;
    Ok(CaseOutcome::Held(seen))
}

fn calls(stage: &Stage, rig: &Rig<'_>) -> Result<CaseOutcome> {
    let body = rig.question()?;
    let port = rig.extender()?.port;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push(round(rig.extender()?, &body)?);
    }
    cleared(stage)?;
    let quietest = rounds.iter().min_by(|a, b| a.p99.total_cmp(&b.p99));
    let quietest = quietest.context("there are rounds")?;
    // What the extender computes is its own; how long a core makes it wait is the machine's.
    ensure!(quietest.computes <= LIMIT_MS, "{rounds:?}");
    let is_quiet = quietest.waits <= QUIET_MS;
    ensure!(!is_quiet || quietest.p99 <= LIMIT_MS, "{rounds:?}");
    let all: Vec<Value> = rounds.iter().map(Round::summary).collect();
    let together = std::thread::scope(|scope| {
        let each = || ask(port, "POST", "/prioritize", &body).is_ok_and(|one| one.status == 200);
        let all: Vec<_> = (0..200).map(|_| scope.spawn(each)).collect();
        let all = all.into_iter().map(|one| one.join().unwrap_or(false));
        all.filter(|good| *good).count()
    });
    ensure!(together == 200, "{together} of 200 were answered");
    for garbage in ["", "{}", "[1]", "{\"Pod\":3}", "\u{0}"] {
        let answer = ask(port, "POST", "/prioritize", garbage)?;
        ensure!(answer.status == 400, "{garbage:?}: {}", answer.status);
    }
    let large = format!("{{\"Pod\":\"{}\"}}", "x".repeat(5 << 20));
    let refused = ask(port, "POST", "/prioritize", &large);
    ensure!(
        refused.as_ref().is_ok_and(|answer| answer.status == 413) || refused.is_err(),
        "5 MiB are taken"
    );
    Ok(CaseOutcome::Held(json!({
        "quietest": quietest.summary(), "rounds": all, "together": together, "p99_is_judged": is_quiet,
    })))
}

/// How long the calls of a round took, in milliseconds.
#[derive(Debug)]
struct Round {
    p50: f64,
    p99: f64,
    /// Of each call, on average: how long the thread of the answers computed, and how long it waited for a core.
    computes: f64,
    waits: f64,
}

impl Round {
    fn summary(&self) -> Value {
        json!({
            "p50_ms": self.p50, "p99_ms": self.p99, "computes_ms": self.computes, "waits_for_a_core_ms": self.waits,
        })
    }
}

fn round(extender: &Extender, body: &str) -> Result<Round> {
    let mut took = Vec::new();
    let before = extender.core_time()?;
    for _ in 0..CALLS {
        let asked = Instant::now();
        let answer = ask(extender.port, "POST", "/prioritize", body)?;
        took.push(asked.elapsed());
        ensure!(answer.status == 200, "{}", answer.body);
    }
    took.sort();
    let ms = |part: usize| took[(took.len() * part).div_ceil(100) - 1].as_secs_f64() * 1000.0;
    let after = extender.core_time()?;
    let of_call =
        |after: u64, before: u64| after.saturating_sub(before) as f64 / 1e6 / CALLS as f64;
    Ok(Round {
        p50: ms(50),
        p99: ms(99),
        computes: of_call(after.computed, before.computed),
        waits: of_call(after.waited, before.waited),
    })
}

fn killed(stage: &Stage, rig: &mut Rig<'_>) -> Result<CaseOutcome> {
    cleared(stage)?;
    rig.kill_extender();
    let proxy = Proxy::start(stage)?;
    let small = Request {
        gpus: 1,
        share: 250,
        cores: 1,
        gib: 1,
    };
    let started = Instant::now();
    for at in 0..LATER {
        make(stage, &proxy, at, &small, rig::SCHEDULER)?;
    }
    let pods = settled(stage, &proxy, LATER)?;
    let bound = pods
        .iter()
        .filter(|pod| pod["spec"]["nodeName"].is_string())
        .count();
    ensure!(bound == LATER, "{bound} of {LATER} pods are bound");
    // The scheduler's name comes from the chart's admission policy.
    let mut plain = small.pod(stage, "pack-plain", "default-scheduler");
    plain["spec"]["nodeSelector"] = json!({ "divvy.dev/suite": "nowhere" });
    post(
        &proxy,
        &format!("/api/v1/namespaces/{}/pods", stage.aside),
        &plain,
    )?;
    let made = stage.cluster.get("pod", &stage.aside, "pack-plain")?;
    let made = made.context("the pod is there")?;
    ensure!(
        made["spec"]["schedulerName"] == rig::SCHEDULER,
        "a pod with a claim is for {}",
        made["spec"]["schedulerName"]
    );
    // The webhook gives this pod its claim: the policy has seen it without one before.
    let labelled = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "pack-labelled", "labels": { "clearml-injector/fraction": "0.250" } },
        "spec": { "containers": [{ "name": "main", "image": IMAGE }] },
    });
    let path = format!("/api/v1/namespaces/{}/pods?dryRun=All", stage.pods);
    let answer = ask(proxy.port, "POST", &path, &labelled.to_string())?;
    ensure!(answer.status == 201, "{path}: {}", answer.body);
    let admitted: Value = serde_json::from_str(&answer.body)?;
    let (claims, name) = (
        &admitted["spec"]["resourceClaims"],
        &admitted["spec"]["schedulerName"],
    );
    ensure!(
        claims.is_array() && name == rig::SCHEDULER,
        "a labelled pod with the claims {claims} is for {name}"
    );
    let seconds = started.elapsed().as_secs_f64();
    cleared(stage)?;
    Ok(CaseOutcome::Held(
        json!({ "bound": bound, "seconds": seconds }),
    ))
}
