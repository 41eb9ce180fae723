//! The study of MIG placement: requests for instances, drawn from a mix or of a trace, on simulated GPUs.

use std::path::Path;
use std::sync::Arc;

use divvy_core::mig::{ProfileTable, models};
use divvy_core::simulate::{Demand, Mix, MixError, OneGpu, Policy, PolicyError, Pool};

use super::report::{Report, refuse_chart};
use super::trace::{self, Trace};
use super::{Outcome, name, pool, text};
use crate::args;
use crate::error_output::{Result, usage};
use crate::output::say;
use crate::render::{self, Method, Ratio, Scene, Simulation};

/// Policies by default: the baselines, the policy of the daemon, and the optimum.
const EVENTS: [Policy; 6] = [
    Policy::FirstFit,
    Policy::DriverDefault,
    Policy::LeastLoss,
    Policy::Planner,
    Policy::IdleRepack,
    Policy::FreeRepack,
];
const EXACT: [Policy; 5] = [
    Policy::FirstFit,
    Policy::DriverDefault,
    Policy::LeastLoss,
    Policy::Optimal,
    Policy::FreeRepack,
];

/// The default load.
const LOAD: f64 = 0.7;
/// The more GPUs, the longer a request takes; no machine has as many.
const MOST_GPUS: u32 = 10_000;

/// GPUs of MIG placement by default.
const GPUS: &str = "a100-40gb:8";
/// Requests, runs and first seed of MIG placement by default.
const ARRIVALS: u64 = 20_000;
const RUNS: u32 = 8;
const SEED: u64 = 1;

/// The study of MIG placement.
pub fn place_instances(args: &args::Simulate) -> Outcome {
    refuse_others(args)?;
    let place = GpuSet::of(args.gpus.as_deref().unwrap_or(GPUS))?;
    let simulations = match &args.trace {
        Some(path) => replay(args, &place, path)?,
        None => draw(args, &place)?,
    };
    let scene = simulations.first().map(|first| &first.scene);
    let report = Report {
        items: &simulations,
        table: render::simulations,
        notes: scene.map(render::scene).into_iter().collect(),
    };
    report.print(args, String::new)
}

/// The GPUs that are placed on.
pub struct GpuSet {
    pub model: String,
    pub gpus: u32,
    pub table: Arc<ProfileTable>,
}

impl GpuSet {
    /// `a100-40gb:8`
    fn of(text: &str) -> Result<Self> {
        let known = || {
            let keys: Vec<&str> = models().iter().map(|model| model.key.as_str()).collect();
            format!("use one of {}", keys.join(", "))
        };
        if text.contains(',') {
            return Err(usage(
                format!("--gpus {text}: only one model is possible"),
                "simulate each model separately",
            ));
        }
        let (model, count) = text.rsplit_once(':').unwrap_or((text, "1"));
        let table = ProfileTable::of_model(model).ok_or_else(|| {
            usage(
                format!("--gpus {text}: unknown MIG model `{model}`"),
                known(),
            )
        })?;
        match count.parse() {
            Ok(gpus @ 1..=MOST_GPUS) => Ok(Self {
                model: model.to_owned(),
                gpus,
                table,
            }),
            _ => Err(usage(
                format!("--gpus {text}: {count} is not a number of GPUs from 1 to {MOST_GPUS}"),
                "use --gpus MODEL:N, for example a100-40gb:8",
            )),
        }
    }
}

/// The policies that are asked for, each once, in the order they were named; none are to be those that are usual.
fn requested_policies(args: &args::Simulate) -> Result<Option<Vec<Policy>>> {
    let mut policies = Vec::new();
    for text in &args.policy {
        let policy: Policy = text.parse().map_err(|error: PolicyError| {
            let names: Vec<&str> = Policy::ALL.into_iter().map(Policy::name).collect();
            usage(
                format!("--policy {text}: {error}"),
                format!("use {}", names.join(", ")),
            )
        })?;
        if !policies.contains(&policy) {
            policies.push(policy);
        }
    }
    Ok((!policies.is_empty()).then_some(policies))
}

/// Refuses flags of the other studies, which would change nothing here.
fn refuse_others(args: &args::Simulate) -> Result<()> {
    refuse_chart(args, "MIG placement")?;
    let wrong = [
        (args.nodes.is_some(), "--nodes"),
        (args.input.is_some(), "--input"),
        (args.node_cpu.is_some(), "--node-cpu"),
        (args.node_memory.is_some(), "--node-memory"),
        (args.shards.is_some(), "--shards"),
        (args.order.is_some(), "--order"),
        (!args.at.is_empty(), "--at"),
        (args.oldest.is_some(), "--oldest"),
        (args.train.is_some(), "--train"),
        (args.timing, "--timing"),
        (args.question.is_asked(), "a question"),
        (!args.queues.is_empty(), "--queues"),
        (!args.rules.is_empty(), "--rules"),
        (!args.projects.is_empty(), "--projects"),
        (
            args.trace.is_some() && args.arrivals.is_some(),
            "--arrivals with a trace",
        ),
        (
            args.trace.is_some() && args.runs.is_some(),
            "--runs with a trace",
        ),
        (
            args.trace.is_some() && args.seed.is_some(),
            "--seed with a trace",
        ),
    ];
    match wrong.into_iter().find(|(given, _)| *given) {
        Some((_, flag)) => Err(usage(
            format!("MIG placement does not use {flag}"),
            "omit it, or add --mode fill, departures or waits",
        )),
        None => Ok(()),
    }
}

/// The policies for a pool: those asked for, or the usual ones as far as they are known for such a demand.
fn policies(args: &args::Simulate, place: &GpuSet, demand: &Demand) -> Result<Vec<Policy>> {
    Ok(requested_policies(args)?.unwrap_or_else(|| {
        let known = |policy: &Policy| {
            let pool = Pool::new(&place.table, place.gpus, demand, *policy);
            if let Err(error) = &pool {
                say(&format!("skipped: {error}"));
            }
            pool.is_ok()
        };
        EVENTS.into_iter().filter(known).collect()
    }))
}

/// Requests drawn from a mix, event by event or exactly.
fn draw(args: &args::Simulate, place: &GpuSet) -> Result<Vec<Simulation>> {
    let refused = |error: MixError| usage(format!("--mix {}: {error}", args.mix), error.hint());
    let mix: Mix = args.mix.parse().map_err(refused)?;
    let demand = mix.on(&place.table).map_err(refused)?;
    let load = args.load.unwrap_or(LOAD);
    let scene = Scene {
        model: place.model.clone(),
        gpus: place.gpus,
        method: Method::Events,
        requests: mix.to_string(),
        load: Ratio(load),
        arrivals: Some(args.arrivals.unwrap_or(ARRIVALS)),
        runs: Some(args.runs.unwrap_or(RUNS)),
        seed: Some(args.seed.unwrap_or(SEED)),
    };
    if !args.exact {
        let policies = policies(args, place, &demand)?;
        return pool::compare(place, &demand, &policies, &pool::Requests::Drawn, scene);
    }
    if place.gpus != 1 {
        return Err(usage(
            format!("--exact solves one GPU, not {}", place.gpus),
            format!("use --gpus {}:1, or omit --exact", place.model),
        ));
    }
    let scene = Scene {
        method: Method::Exact,
        arrivals: None,
        runs: None,
        seed: None,
        ..scene
    };
    let policies = requested_policies(args)?.unwrap_or_else(|| EXACT.to_vec());
    solve(place, &demand, load, &policies, &scene)
}

fn solve(
    place: &GpuSet,
    demand: &Demand,
    load: f64,
    policies: &[Policy],
    scene: &Scene,
) -> Result<Vec<Simulation>> {
    if let Some(policy) = policies.iter().find(|policy| policy.keeps_idle()) {
        return Err(usage(
            format!("--exact does not support {policy}: its model has no idle instances"),
            "use least-loss: without idle instances it places as planner does",
        ));
    }
    let gpu = OneGpu::new(&place.table, demand, load);
    let asked: Vec<(String, f64)> = demand
        .parts(&place.table)
        .map(|(profile, part)| (profile.name.to_string(), part))
        .collect();
    let mut first = None;
    let solve = |policy: &Policy| {
        let exact = gpu.solve(*policy);
        let simulation = Simulation::exact(*policy, scene.clone(), &exact, &asked, first);
        first = first.or(Some(exact.refused));
        simulation
    };
    Ok(policies.iter().map(solve).collect())
}

/// Requests of a trace, as they came, or closer together or further apart so that they bring the load asked for.
fn replay(args: &args::Simulate, place: &GpuSet, path: &Path) -> Result<Vec<Simulation>> {
    let Trace {
        mut arrivals,
        left_out,
    } = trace::read(&text(path)?, &place.table)
        .map_err(|error| usage(format!("{}: {error}", name(path)), &error.hint))?;
    let asked = arrivals.iter().map(|arrival| arrival.profile);
    let Some(demand) = Demand::of(&place.table, asked) else {
        let left = match left_out {
            0 => String::new(),
            jobs => {
                format!(": {jobs} jobs never ran, are still running, or requested several GPUs")
            }
        };
        return Err(usage(
            format!("{}: no requests found{left}", name(path)),
            "use CSV with the header arrival,profile,duration, or one JSON object per line",
        ));
    };
    if left_out > 0 {
        say(&format!(
            "skipped {left_out} jobs that never ran, are still running, or requested several GPUs"
        ));
    }
    let brought = pool::load(place, &arrivals);
    let load = match (args.load, brought) {
        (None, brought) => brought.unwrap_or(0.0),
        (Some(_), None) => {
            return Err(usage(
                "--load is not possible: all requests arrive at once or have duration 0",
                "omit --load",
            ));
        }
        (Some(load), Some(brought)) => {
            let start = arrivals[0].at;
            for arrival in &mut arrivals {
                arrival.at = (arrival.at - start) * brought / load;
            }
            load
        }
    };
    let scene = Scene {
        model: place.model.clone(),
        gpus: place.gpus,
        method: Method::Trace,
        requests: name(path),
        load: Ratio(load),
        arrivals: Some(arrivals.len() as u64),
        runs: None,
        seed: None,
    };
    let policies = policies(args, place, &demand)?;
    let requests = pool::Requests::Given(&arrivals);
    pool::compare(place, &demand, &policies, &requests, scene)
}
