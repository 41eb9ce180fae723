//! Output of `simulate` for the packing of nodes: one row for each policy.

use std::sync::LazyLock;

use serde::Serialize;

use divvy_cli::render::{Item, View};

use super::figure::{percent, signed};
use super::{Figure, Ratio};
use divvy_cli::table::{self, Column};

/// Results of one policy of nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Packing {
    pub policy: &'static str,
    pub scene: PackingScene,
    /// Of a fill: what stays unallocated, by how much has been asked for.
    pub points: Vec<PackingPoint>,
    /// Of the GPU volume asked for, the part that was refused.
    pub refused: Spread,
    /// Of runs with departures: refused less what the first policy refused of the same jobs. Absent for the first.
    pub difference: Option<Figure>,
    pub kinds: PackingKinds,
    /// Of the GPUs, the part that jobs held, over time. Absent for a fill.
    pub in_use: Option<Spread>,
    /// Of the learned policy with departures: what its check on the jobs found, and whether best fit takes its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<String>,
    /// With `--timing`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timing: Option<PackingTiming>,
    /// With `--timing`, for the learned policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training_seconds: Option<Ratio>,
}

/// The simulated scene. Equal scenes give equal figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PackingScene {
    pub mode: &'static str,
    pub nodes: usize,
    pub gpus: u64,
    /// The name of the list.
    pub requests: String,
    pub order: &'static str,
    /// Of runs with departures that were drawn.
    pub load: Option<Ratio>,
    /// Of each run with departures.
    pub arrivals: Option<u64>,
    pub runs: u32,
    /// Of the first run; each further one has the next. Absent for a list in its given order.
    pub seed: Option<u64>,
}

/// A fill, read when the arrivals have asked for so much.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PackingPoint {
    pub arrived_percent: u32,
    pub unallocated: Spread,
    pub difference: Option<Figure>,
}

/// Refused parts by kind of job; absent where no job is of that kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PackingKinds {
    /// Parts of one GPU.
    pub fraction: Option<Ratio>,
    /// One whole GPU.
    pub one: Option<Ratio>,
    pub several: Option<Ratio>,
    /// Jobs without GPUs, by number.
    pub cpu_only: Option<Ratio>,
}

/// Decision times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PackingTiming {
    pub decisions: usize,
    pub p50_us: Ratio,
    pub p99_us: Ratio,
    pub max_us: Ratio,
}

/// The mean and the standard deviation over runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub ratio: Ratio,
    /// Absent for one run.
    pub sd: Option<Ratio>,
}

impl Default for Spread {
    fn default() -> Self {
        Self {
            ratio: Ratio(0.0),
            sd: None,
        }
    }
}

impl Spread {
    /// From one value a run; `None` without any.
    pub fn of(values: &[f64]) -> Option<Self> {
        let freedom = values.len().checked_sub(1)?;
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Some(Self {
            ratio: Ratio(mean),
            sd: (freedom > 0).then(|| Ratio((squares / freedom as f64).sqrt())),
        })
    }
}

impl Item for Packing {
    const KIND: &'static str = "PackingList";

    fn name(&self) -> String {
        self.policy.to_owned()
    }
}

/// Titles of the points of a fill, by percent.
static TITLES: LazyLock<Vec<String>> =
    LazyLock::new(|| (0..=130).map(|percent| format!("{percent} %")).collect());

/// Where a narrow table reads the difference of a fill. So where all requests together would just fit.
const AT: u32 = 100;

/// One row a policy, in percent; wide, also deviations and what became of each kind of job.
pub fn packings(all: &[Packing], view: View) -> String {
    let Some(first) = all.first() else {
        return String::new();
    };
    let title = |point: &PackingPoint| {
        let nth = usize::try_from(point.arrived_percent).ok();
        nth.and_then(|nth| TITLES.get(nth))
            .map_or("", String::as_str)
    };
    let is_fill = first.in_use.is_none();
    let is_timed = first.timing.is_some();
    let mut columns = vec![Column::Fixed("POLICY")];
    if is_fill {
        columns.extend(first.points.iter().map(title).map(Column::Right));
        columns.push(Column::Right("REFUSED %"));
    } else {
        columns.push(Column::Right("REFUSED %"));
        columns.push(Column::Right("OF SEVERAL %"));
        columns.push(Column::Right("IN USE %"));
    }
    if is_timed {
        columns.extend(["P50 µs", "P99 µs"].map(Column::Right));
    }
    columns.push(Column::Fixed("DIFFERENCE"));
    if view.wide {
        columns.push(Column::Text("REFUSED OF EACH %"));
    }
    let row = |one: &Packing| {
        let mut cells = vec![one.policy.to_owned()];
        let refused = spread(&one.refused, view.wide);
        if is_fill {
            // A list in its given order may end before a point that another run has.
            cells.extend(first.points.iter().map(|title| {
                let same = |point: &&PackingPoint| point.arrived_percent == title.arrived_percent;
                let point = one.points.iter().find(same);
                point.map_or_else(
                    || "-".to_owned(),
                    |point| spread(&point.unallocated, view.wide),
                )
            }));
            cells.push(refused);
        } else {
            cells.push(spread(&one.refused, true));
            cells.push(one.kinds.several.map_or_else(|| "-".to_owned(), two));
            let in_use = one.in_use.map(|in_use| spread(&in_use, view.wide));
            cells.push(in_use.unwrap_or_else(|| "-".to_owned()));
        }
        if is_timed {
            let times = one.timing.map(|timing| [timing.p50_us, timing.p99_us]);
            cells.extend(
                times
                    .into_iter()
                    .flatten()
                    .map(|time| format!("{:.1}", time.0)),
            );
        }
        let difference = if is_fill {
            at(one).and_then(|point| point.difference)
        } else {
            one.difference
        };
        cells.push(difference.map_or_else(String::new, signed));
        if view.wide {
            cells.push(each(&one.kinds));
        }
        cells
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    table::render(&columns, &rows, view.fit())
}

/// The point at which the difference is shown: 100 %, or the last one.
pub fn at(packing: &Packing) -> Option<&PackingPoint> {
    let points = &packing.points;
    let whole = points.iter().find(|point| point.arrived_percent == AT);
    whole.or_else(|| points.last())
}

fn spread(spread: &Spread, with_sd: bool) -> String {
    let sd = spread.sd.filter(|_| with_sd);
    percent(&Figure {
        ratio: spread.ratio,
        ci95: sd,
    })
}

fn two(ratio: Ratio) -> String {
    format!("{:.2}", ratio.0 * 100.0)
}

fn each(kinds: &PackingKinds) -> String {
    let named = [
        ("fractions", kinds.fraction),
        ("one GPU", kinds.one),
        ("several", kinds.several),
        ("CPU only", kinds.cpu_only),
    ];
    let parts = named
        .into_iter()
        .filter_map(|(name, part)| Some(format!("{name} {}", two(part?))));
    parts.collect::<Vec<_>>().join(", ")
}

/// The simulated scene in one sentence.
pub fn packing_scene(scene: &PackingScene) -> String {
    let nodes = format!("{} nodes, {} GPUs", scene.nodes, scene.gpus);
    let requests = divvy_cli::text::clean(&scene.requests);
    let runs = match scene.runs {
        1 => "one run".to_owned(),
        runs => format!("{runs} runs"),
    };
    let order = match scene.seed {
        Some(seed) => format!("order {}, seed {seed}", scene.order),
        None => "in its own order".to_owned(),
    };
    match (scene.mode, scene.arrivals, scene.load) {
        ("fill", ..) => format!(
            "{nodes}, {requests}: {runs}, {order}; GPUs unallocated, in %, when jobs have asked for so much; no job leaves"
        ),
        (_, Some(arrivals), Some(load)) => format!(
            "{nodes}, {requests}: {runs} of {arrivals} jobs at load {:.2}, {order}, the first 4 tenths not counted; refused jobs do not wait",
            load.0
        ),
        (_, arrivals, _) => format!(
            "{nodes}, {requests}: {} jobs at their own times; refused jobs do not wait",
            arrivals.unwrap_or(0)
        ),
    }
}
