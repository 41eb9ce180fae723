//! Output of `simulate`: one row for each placement policy.

use divvy_core::simulate::{Estimate, Exact};
use serde::{Serialize, Serializer};

use super::{Item, View};
use crate::table::{self, Column};

/// Results of one placement policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Simulation {
    pub policy: &'static str,
    pub scene: Scene,
    /// Of all requests, those that got no instance at once.
    pub refused: Figure,
    /// Of all requests, those refused that would have fitted on a GPU had its instances lain otherwise. Absent for `free-repack`.
    pub by_layout: Option<Figure>,
    /// Of the compute slices, those in use, over time.
    pub in_use: Figure,
    /// Refused less what the first policy in the list refused of the same requests. Absent for the first.
    pub difference: Option<Figure>,
    /// Of all requests that got an instance, those that got an idle one as it was. Absent where none are kept.
    pub reused: Option<Figure>,
    /// Of the time, that in which some request would be refused because of the layout alone. With `--exact`.
    pub blocked: Option<Figure>,
    /// How often the first refusal on a GPU that fills up is because of the layout alone. With `--exact`.
    pub first_by_layout: Option<Figure>,
    pub profiles: Vec<ProfileFigures>,
}

/// The simulated scene. Equal scenes give equal figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scene {
    pub model: String,
    pub gpus: u32,
    pub method: Method,
    /// Sizes and how often each is asked for, or the name of the trace.
    pub requests: String,
    /// Work that comes, as a part of all compute slices.
    pub load: Ratio,
    /// Of each run, those that warm up included.
    pub arrivals: Option<u64>,
    pub runs: Option<u32>,
    /// Of the first run; each further one has the next.
    pub seed: Option<u64>,
}

/// How figures come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Requests drawn at random, event by event.
    Events,
    /// Requests of a trace, event by event.
    Trace,
    /// A Markov chain, solved.
    Exact,
}

/// Requests for one profile.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProfileFigures {
    pub profile: String,
    /// Of all requests, those for it.
    pub asked: Ratio,
    /// Of those, the refused.
    pub refused: Ratio,
}

/// A part of 1 with its 95 % confidence interval, where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    pub ratio: Ratio,
    /// Half the interval's width.
    pub ci95: Option<Ratio>,
}

/// A part of 1; in JSON with six decimals.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ratio(pub f64);

impl Serialize for Ratio {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // A difference that rounds to nothing has no sign.
        serializer.serialize_f64((self.0 * 1e6).round() / 1e6 + 0.0)
    }
}

impl From<f64> for Figure {
    fn from(ratio: f64) -> Self {
        Self {
            ratio: Ratio(ratio),
            ci95: None,
        }
    }
}

impl From<Estimate> for Figure {
    fn from(estimate: Estimate) -> Self {
        Self {
            ratio: Ratio(estimate.mean),
            ci95: estimate.within.map(Ratio),
        }
    }
}

impl Simulation {
    /// Of an exact solution; `asked` are the profiles of the demand with their parts, `first` is the first policy's refusals.
    pub fn exact(
        policy: divvy_core::simulate::Policy,
        scene: Scene,
        exact: &Exact,
        asked: &[(String, f64)],
        first: Option<f64>,
    ) -> Self {
        let is_placed = policy != divvy_core::simulate::Policy::FreeRepack;
        let if_placed = |part: f64| is_placed.then(|| Figure::from(part));
        let profile = |((profile, asked), refused): (&(String, f64), &f64)| ProfileFigures {
            profile: profile.clone(),
            asked: Ratio(*asked),
            refused: Ratio(*refused),
        };
        Self {
            policy: policy.name(),
            scene,
            refused: exact.refused.into(),
            by_layout: if_placed(exact.by_layout),
            in_use: exact.in_use.into(),
            difference: first.map(|first| (exact.refused - first).into()),
            reused: None,
            blocked: if_placed(exact.blocked),
            first_by_layout: if_placed(exact.first_by_layout),
            profiles: asked.iter().zip(&exact.refused_of).map(profile).collect(),
        }
    }
}

impl Item for Simulation {
    const KIND: &'static str = "SimulationList";

    fn name(&self) -> String {
        self.policy.to_owned()
    }
}

/// One row a policy, in percent; wide, also what became of each profile.
pub fn simulations(all: &[Simulation], view: View) -> String {
    let Some(first) = all.first() else {
        return String::new();
    };
    let exact = first.scene.method == Method::Exact;
    let mut columns = vec![
        Column::Fixed("POLICY"),
        Column::Right("REFUSED %"),
        Column::Right("BY LAYOUT %"),
        Column::Right("IN USE %"),
        Column::Right(if exact { "BLOCKED %" } else { "REUSED %" }),
    ];
    if view.wide && exact {
        columns.push(Column::Right("FIRST BY LAYOUT %"));
    }
    columns.push(Column::Fixed("DIFFERENCE"));
    if view.wide {
        columns.push(Column::Text("REFUSED OF EACH %"));
    }
    let row = |one: &Simulation| {
        // Where it is tight, a reused part goes without its interval.
        let reused = one.reused.map(|figure| Figure {
            ci95: figure.ci95.filter(|_| view.wide),
            ..figure
        });
        let mut cells = vec![
            one.policy.to_owned(),
            percent(&one.refused),
            or_none(one.by_layout),
            percent(&one.in_use),
            or_none(if exact { one.blocked } else { reused }),
        ];
        if view.wide && exact {
            cells.push(or_none(one.first_by_layout));
        }
        cells.push(one.difference.map_or_else(String::new, signed));
        if view.wide {
            let each = one.profiles.iter().map(of_profile);
            cells.push(each.collect::<Vec<_>>().join(", "));
        }
        cells
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    table::render(&columns, &rows, view.fit())
}

/// The simulated scene in one sentence.
pub fn scene(scene: &Scene) -> String {
    let gpus = match scene.gpus {
        1 => format!("one {}", scene.model),
        gpus => format!("{gpus} × {}", scene.model),
    };
    let load = format!("load {:.2}", scene.load.0);
    let how = match (scene.method, scene.arrivals, scene.runs) {
        (Method::Events, Some(arrivals), Some(1)) => {
            format!("{arrivals} requests, the first tenth not counted")
        }
        (Method::Events, Some(arrivals), Some(runs)) => format!(
            "{runs} runs of {arrivals} requests, the first tenth of each not counted; ± is the 95 % interval"
        ),
        (Method::Trace, Some(arrivals), _) => format!("{arrivals} requests, each once"),
        _ => "exact".to_owned(),
    };
    format!(
        "{gpus}, {}, {load}: {how}; refused requests do not wait",
        crate::text::clean(&scene.requests)
    )
}

pub(super) fn percent(figure: &Figure) -> String {
    match figure.ci95 {
        Some(within) => format!("{:.2} ±{:.2}", figure.ratio.0 * 100.0, within.0 * 100.0),
        None => format!("{:.2}", figure.ratio.0 * 100.0),
    }
}

fn or_none(figure: Option<Figure>) -> String {
    figure.as_ref().map_or_else(|| "-".to_owned(), percent)
}

/// With its sign, also where it is above 0.
pub(super) fn signed(figure: Figure) -> String {
    let text = percent(&figure);
    if figure.ratio.0 < 0.0 || text.starts_with("0.00") {
        text
    } else {
        format!("+{text}")
    }
}

fn of_profile(profile: &ProfileFigures) -> String {
    format!("{} {:.2}", profile.profile, profile.refused.0 * 100.0)
}
