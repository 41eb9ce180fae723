//! Policies of nodes, built for each run; the learned policy is trained once.

use std::time::{Duration, Instant};

use divvy_packing::learned::{Form, Guarded, Learned, Mix, Training};
use divvy_packing::{BestFit, Choice, Cluster, NodePolicy, Shape};

use super::Study;
use crate::engine::fgd::Fgd;
use crate::engine::policy_name::PolicyName;
use crate::verb::progress::Progress;
use divvy_cli::args::Mode;
use divvy_cli::error_output::{Result, usage};

/// What policies need before the first run.
pub struct Trained {
    mix: Vec<(Shape, u64)>,
    learned: Option<Ready>,
    /// How long the training took.
    pub took: Option<Duration>,
}

/// The learned policy as a run uses it.
enum Ready {
    /// For the comparison with published fills.
    Fill(Learned),
    /// As the product uses it: best fit takes over where the check on the jobs fails.
    Departures(Guarded),
}

/// Trains what is asked for.
///
/// # Errors
/// Jobs that the learned policy cannot be trained on.
pub fn prepare(study: &Study, mix: &[(Shape, u64)], progress: &Progress) -> Result<Trained> {
    let started = Instant::now();
    let learned = if study.policies.contains(&PolicyName::Learned) {
        Some(ready(study, train(study, mix, progress)?))
    } else {
        None
    };
    Ok(Trained {
        mix: mix.to_vec(),
        took: learned.as_ref().map(|_| started.elapsed()),
        learned,
    })
}

fn ready(study: &Study, learned: Learned) -> Ready {
    if study.mode == Mode::Fill {
        return Ready::Fill(learned);
    }
    let recent: Mix = study.workload.mix().into_iter().collect();
    Ready::Departures(Guarded::new(
        learned,
        &recent,
        &study.workload.nodes,
        study.seed,
    ))
}

fn train(study: &Study, mix: &[(Shape, u64)], progress: &Progress) -> Result<Learned> {
    let mix: Mix = mix.iter().copied().collect();
    let training = Training {
        form: match study.mode {
            Mode::Fill => Form::Fill,
            _ => Form::Departures,
        },
        seed: study.seed,
    };
    progress.task("training the learned policy", 1);
    let mut total = 0;
    let mut report = |at: divvy_packing::learned::Progress| {
        if total != at.of {
            total = at.of;
            progress.task("training the learned policy", at.of as u64);
        }
        progress.at(at.done as u64);
    };
    Learned::train(&mix, &study.workload.nodes, training, &mut report).map_err(|error| {
        usage(
            format!("--policy learned: {error}"),
            "omit learned from --policy, or check the nodes and jobs",
        )
    })
}

impl Trained {
    /// Why best fit takes the place of the learned policy, or how the two compare; `None` where no check is made.
    pub fn verdict(&self) -> Option<String> {
        match &self.learned {
            Some(Ready::Departures(guarded)) => Some(guarded.verdict().to_string()),
            _ => None,
        }
    }

    /// A policy for one run.
    pub fn policy(&self, policy: PolicyName) -> Box<dyn NodePolicy> {
        match (policy, &self.learned) {
            (PolicyName::Learned, Some(Ready::Fill(learned))) => Box::new(learned.fresh()),
            (PolicyName::Learned, Some(Ready::Departures(guarded))) => Box::new(guarded.clone()),
            (PolicyName::BestFit | PolicyName::Learned | PolicyName::QueueVisible, _) => {
                Box::new(BestFit::default())
            }
            (PolicyName::Fgd, _) => Box::new(Fgd::new(&self.mix)),
        }
    }
}

/// A policy, and how long each of its decisions takes.
pub struct Timed {
    pub policy: Box<dyn NodePolicy>,
    /// In nanoseconds; `None` where they are not wanted.
    pub took: Option<Vec<u64>>,
}

impl NodePolicy for Timed {
    fn choose(&mut self, cluster: &Cluster, shape: &Shape) -> Option<Choice> {
        let Some(took) = &mut self.took else {
            return self.policy.choose(cluster, shape);
        };
        let started = Instant::now();
        let choice = self.policy.choose(cluster, shape);
        took.push(u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX));
        choice
    }

    fn arrived(&mut self, cluster: &Cluster, shape: &Shape) {
        self.policy.arrived(cluster, shape);
    }
}
