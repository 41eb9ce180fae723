//! The study of packing: which node each job goes to, with jobs that stay (fill) or that come and go (departures).

mod policies;
mod runs;
mod timed;

use std::path::Path;

use crate::engine::fill::AT;
use crate::engine::policy_name::PolicyName;
use crate::engine::workload::{Order, Workload};
use divvy_api::v1::{Error, ErrorCode};

use super::progress::Progress;
use super::report::Report;
use super::shape::{Counted, Shapes, number_models, shapes};
use super::site::Groups;
use divvy_cli::Outcome;

use super::{chart, count_of, input, name, source};
use crate::render::{self, Packing, PackingScene};
use divvy_cli::args::{self, Mode};
use divvy_cli::error_output::{Result, usage};
use divvy_cli::output::say;

/// Policies by default.
const USUAL: [PolicyName; 3] = [PolicyName::BestFit, PolicyName::Fgd, PolicyName::Learned];
/// So are those of the published comparison, whose orders are not drawn here.
const SEED: u64 = 42;
const RUNS: u32 = 10;
const LOAD: f64 = 0.9;
/// Arrivals of a run with departures: for each GPU, and at least.
const ARRIVALS: (u64, u64) = (10, 20_000);

/// What is simulated.
struct Study {
    mode: Mode,
    workload: Workload,
    /// Jobs with their times, for departures in the given order.
    timed: Vec<crate::engine::departures::Timed>,
    policies: Vec<PolicyName>,
    order: Order,
    at: Vec<u32>,
    seed: u64,
    runs: u32,
    load: f64,
    arrivals: u64,
    /// For the policy `queue`: jobs that have asked for this part of the GPUs first must start.
    oldest: f64,
    timing: bool,
}

pub fn packing(args: &args::Simulate, mode: Mode) -> Outcome {
    refuse_others(args, mode)?;
    let Some(path) = &args.trace else {
        return Err(usage(
            "this study needs jobs",
            "name a list of jobs, such as openb's pods, `divvy ps -a -o ndjson` or sacct's",
        )
        .into());
    };
    let mut place = Place::of(args)?;
    let jobs = source::jobs(args, path)?;
    report_skipped(&jobs);
    place.models = number_models(&mut place.nodes, &place.models, &jobs.jobs);
    let counted = place.counted;
    let read = |jobs: &input::Jobs| -> Result<Shapes> {
        let shapes = shapes(&jobs.jobs, &place.nodes, &place.models, counted);
        shapes.map_err(|error| located(&error, path))
    };
    let shapes = read(&jobs)?;
    if shapes.unknown_memory > 0 {
        let jobs = count_of(shapes.unknown_memory, "job");
        say(&format!(
            "skipped {jobs} with a GPU memory: the memory of the nodes' GPUs is unknown"
        ));
    }
    let mut workload = Workload {
        nodes: place.nodes.clone(),
        pods: shapes.pods,
    };
    if let Some(part) = args.part {
        workload = workload.on_every(usize::try_from(part).unwrap_or(1));
    }
    let mix = match &args.train {
        Some(path) => {
            let shapes = read(&source::jobs(args, path)?)?;
            let pods = shapes.pods;
            Workload {
                nodes: Vec::new(),
                pods,
            }
            .mix()
        }
        None => workload.mix(),
    };
    let with_shapes: Vec<&input::Job> = shapes.jobs.iter().map(|nth| &jobs.jobs[*nth]).collect();
    let study = Study::of(args, mode, workload, &with_shapes)?;
    let progress = Progress::start(args.quiet);
    let trained = policies::prepare(&study, &mix, &progress)?;
    let (results, curves) = runs::compare(&study, &trained, study.scene(path), &progress)?;
    progress.finish();
    finish(args, &results, &curves)
}

fn finish(args: &args::Simulate, results: &[Packing], curves: &[chart::Curve]) -> Outcome {
    let scene = results.first().map(|first| &first.scene);
    let mut notes: Vec<String> = scene.map(render::packing_scene).into_iter().collect();
    let checks = results.iter().filter_map(|one| one.check.as_ref());
    notes.extend(checks.map(|check| format!("--policy learned uses {check}")));
    let report = Report {
        items: results,
        table: render::packings,
        notes,
    };
    report.print(args, || match scene.map(|scene| scene.mode) {
        Some("fill") => chart::fill(results, curves),
        _ => chart::departures(results),
    })
}

/// Refuses flags of the other studies, which would change nothing here.
fn refuse_others(args: &args::Simulate, mode: Mode) -> Result<()> {
    let fill = mode == Mode::Fill;
    let wrong = [
        (args.question.is_asked(), "a question"),
        (!args.rules.is_empty(), "--rules"),
        (!args.projects.is_empty(), "--projects"),
        (fill && args.load.is_some(), "--load"),
        (fill && args.arrivals.is_some(), "--arrivals"),
        (!fill && !args.at.is_empty(), "--at"),
        (!fill && args.oldest.is_some(), "--oldest"),
        (
            order(args) == Order::Given && args.runs.is_some(),
            "--runs with --order given",
        ),
    ];
    match wrong.into_iter().find(|(given, _)| *given) {
        Some((_, flag)) => Err(usage(
            format!("--mode {} does not use {flag}", mode.name()),
            "omit it, or choose another --mode",
        )),
        None => Ok(()),
    }
}

pub(super) fn report_skipped(jobs: &input::Jobs) {
    if jobs.several_nodes > 0 {
        let count = count_of(jobs.several_nodes, "job");
        say(&format!("skipped {count} on several nodes"));
    }
    if jobs.several_instances > 0 {
        let count = count_of(jobs.several_instances, "job");
        say(&format!("skipped {count} with several MIG instances"));
    }
    if jobs.over_clock_change > 0 {
        let count = count_of(jobs.over_clock_change, "job");
        say(&format!(
            "skipped {count} that ended up to an hour before the start, as at the end of summer time; TZ=UTC sacct \
             prints times without such jobs"
        ));
    }
    if jobs.assumed_whole > 0 {
        let count = count_of(jobs.assumed_whole, "job");
        say(&format!(
            "{count} without an amount: one GPU each; --queues NAME=AMOUNT gives another"
        ));
    }
}

fn located(error: &Error, path: &Path) -> Error {
    let mut located = Error::new(
        ErrorCode::Usage,
        format!("{}: {}", name(path), error.message),
    );
    located.hint.clone_from(&error.hint);
    located
}

/// The nodes, and whether jobs' CPU and main memory count there.
struct Place {
    nodes: Vec<divvy_packing::NodeSpec>,
    models: Vec<String>,
    counted: Counted,
}

impl Place {
    fn of(args: &args::Simulate) -> Result<Self> {
        if let Some(path) = &args.nodes {
            let bytes = source::bytes(path)?;
            let (nodes, models) = input::nodes(&bytes)
                .map_err(|error| usage(format!("{}: {error}", name(path)), &error.hint))?;
            return Ok(Self {
                nodes,
                models,
                counted: Counted {
                    cpu: true,
                    memory: true,
                },
            });
        }
        let groups = Groups::of(args)?.ok_or_else(|| {
            usage(
                "this study needs nodes",
                "add --nodes FILE, or --gpus 4xa100-80gb:8",
            )
        })?;
        let (nodes, models) = groups.specs()?;
        Ok(Self {
            nodes,
            models,
            counted: Counted {
                cpu: groups.cpu_milli.is_some(),
                memory: groups.memory.is_some(),
            },
        })
    }
}

impl Study {
    fn of(
        args: &args::Simulate,
        mode: Mode,
        workload: Workload,
        jobs: &[&input::Job],
    ) -> Result<Self> {
        let order = order(args);
        let timed = match (mode, order) {
            (Mode::Departures, Order::Given) => timed::timed(jobs, &workload, args.load)?,
            _ => Vec::new(),
        };
        let gpus: u64 = workload.nodes.iter().map(|node| u64::from(node.gpus)).sum();
        let mut at = if args.at.is_empty() {
            AT.to_vec()
        } else {
            args.at.clone()
        };
        at.sort_unstable();
        at.dedup();
        let arrivals = args
            .arrivals
            .unwrap_or_else(|| (gpus * ARRIVALS.0).max(ARRIVALS.1));
        Ok(Self {
            mode,
            policies: requested(args, mode)?,
            order,
            at,
            seed: args.seed.unwrap_or(SEED),
            runs: match order {
                Order::Given => 1,
                _ => args.runs.unwrap_or(RUNS),
            },
            load: args.load.unwrap_or(LOAD),
            arrivals: match timed.len() {
                0 => arrivals,
                jobs => jobs as u64,
            },
            timed,
            oldest: args.oldest.unwrap_or(0.0),
            timing: args.timing,
            workload,
        })
    }

    fn scene(&self, path: &Path) -> PackingScene {
        let nodes = &self.workload.nodes;
        let is_drawn = self.order != Order::Given;
        PackingScene {
            mode: self.mode.name(),
            nodes: nodes.len(),
            gpus: nodes.iter().map(|node| u64::from(node.gpus)).sum(),
            requests: name(path),
            order: self.order.name(),
            load: (self.mode == Mode::Departures && is_drawn).then_some(render::Ratio(self.load)),
            arrivals: (self.mode == Mode::Departures).then_some(self.arrivals),
            runs: self.runs,
            seed: is_drawn.then_some(self.seed),
        }
    }
}

/// The policies that are asked for, each once, or the usual ones.
fn requested(args: &args::Simulate, mode: Mode) -> Result<Vec<PolicyName>> {
    let mut policies = Vec::new();
    for text in &args.policy {
        let policy: PolicyName = text
            .parse()
            .map_err(|_| usage(format!("--policy {text}: unknown policy of nodes"), hint()))?;
        if policy == PolicyName::QueueVisible && mode != Mode::Fill {
            return Err(usage(
                "--policy queue: jobs that come and go do not wait in this study",
                "omit queue, or use --mode fill; --mode waits simulates queues",
            ));
        }
        if !policies.contains(&policy) {
            policies.push(policy);
        }
    }
    if policies.is_empty() {
        Ok(USUAL.to_vec())
    } else {
        Ok(policies)
    }
}

/// The order of the arrivals.
fn order(args: &args::Simulate) -> Order {
    match args.order {
        Some(args::Arrivals::Given) => Order::Given,
        Some(args::Arrivals::Seeded) | None => Order::Seeded,
    }
}

fn hint() -> String {
    let names: Vec<&str> = PolicyName::ALL.into_iter().map(PolicyName::name).collect();
    format!("use {}", names.join(", "))
}
