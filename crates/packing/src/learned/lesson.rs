//! What one training does: self-play towards each target, then a choice among the tables that it went through.

use super::Form;
use super::episode::{Player, Target, play};
use super::learner::Learner;
use super::mix::Draw;
use super::scarce::Scarce;
use super::state::{Values, Weights};
use super::table::Table;
use super::train::{PART_GPUS, Progress, Training, all_gpus, part};
use super::trial::{refused_with_departures, unused_after_fill};
use crate::node::NodeSpec;
use crate::random::Random;

/// Episodes of an iteration at most, on a cluster that is smaller than such a part.
const MOST_EPISODES: usize = 20;

/// Our choice: a training takes some seconds. Half would end soon after the first candidates, and double takes twice as
/// long.
const ITERATIONS: usize = 40;

/// Tables are candidates from this iteration on, each so many iterations.
const FIRST_CANDIDATE: usize = 16;
const EACH_CANDIDATE: usize = 6;

/// Orders on which each candidate is tried.
const TRIALS: Trials = Trials {
    count: 3,
    holding_times: 8.0,
    salt: 0x00c0_ffee,
};

/// How much a training tries.
#[derive(Clone, Copy, Debug)]
struct Effort {
    /// Independent trainings towards each target. One training scatters; the mean of their tables is a candidate as
    /// well.
    rounds: usize,
    /// The best candidates are tried again on other orders: the best of many on few orders owes part of it to chance.
    finalists: usize,
    final_trials: Trials,
}

impl Effort {
    /// A trial with departures takes several times as long as one of a fill.
    fn of(form: Form) -> Self {
        let (rounds, finalists, count) = match form {
            Form::Fill => (4, 8, 8),
            Form::Departures => (2, 5, 4),
        };
        Self {
            rounds,
            finalists,
            final_trials: Trials {
                count,
                holding_times: 20.0,
                salt: 0x0f1a_17a1,
            },
        }
    }
}

/// Multiples of the price weight that are tried with the best table, on the orders of the finalists. None is lower, for
/// the reason that [`Form::attempts`] gives.
const PRICES: [f32; 2] = [2.0, 4.0];

/// What all episodes and trials of a training share.
pub(super) struct Lesson {
    pub(super) broad: Draw,
    pub(super) own: Draw,
    pub(super) scarce: Vec<Scarce>,
    pub(super) nodes: Vec<NodeSpec>,
    pub(super) training: Training,
    pub(super) many_ask_for_several: bool,
}

impl Lesson {
    pub(super) fn best_table(&self, progress: &mut dyn FnMut(Progress)) -> (Table, Weights) {
        let attempts = self.training.form.attempts(self.many_ask_for_several);
        let each = (ITERATIONS - FIRST_CANDIDATE) / EACH_CANDIDATE + 2;
        let Effort {
            rounds,
            finalists,
            final_trials,
        } = Effort::of(self.training.form);
        let trainings = attempts.len() * rounds;
        let of = trainings * (ITERATIONS + each) + attempts.len() + finalists + PRICES.len();
        let mut done = 0;
        let mut step = || {
            done += 1;
            progress(Progress { done, of });
        };
        let mut random = Random::seeded(self.training.seed);
        let mut candidates = Vec::new();
        for (target, weights) in attempts {
            let mut last = Vec::new();
            for _ in 0..rounds {
                let tables = self.candidates(*target, *weights, random.seed(), &mut step);
                last.extend(tables.last().cloned());
                for table in tables {
                    candidates.push(self.tried(table, *weights, TRIALS));
                    step();
                }
            }
            let mean = last.pop().map(|table| table.averaged(&last));
            candidates.extend(mean.map(|table| self.tried(table, *weights, TRIALS)));
            step();
        }
        candidates.sort_by(|a, b| a.loss.total_cmp(&b.loss));
        candidates.truncate(finalists);
        let mut best = self.tried(self.untrained(), attempts[0].1, final_trials);
        for finalist in candidates {
            let again = self.tried(finalist.table, finalist.weights, final_trials);
            if again.loss < best.loss {
                best = again;
            }
            step();
        }
        let trained = best.weights;
        for multiple in PRICES {
            let other = Weights {
                price: trained.price * multiple,
                ..trained
            };
            let loss = self.loss(&best.table, other, final_trials);
            if loss < best.loss {
                (best.loss, best.weights) = (loss, other);
            }
            step();
        }
        (best.table, best.weights)
    }

    fn tried(&self, table: Table, weights: Weights, trials: Trials) -> Tried {
        Tried {
            loss: self.loss(&table, weights, trials),
            table,
            weights,
        }
    }

    fn untrained(&self) -> Table {
        let models = self.nodes.iter().map(|spec| spec.model + 1).max();
        let two_axes = self.nodes.iter().any(|spec| spec.gpu_memory.is_some());
        Table::untrained(models.unwrap_or(0), two_axes)
    }

    fn values<'a>(&'a self, table: &'a Table, weights: Weights) -> Values<'a> {
        Values {
            table,
            scarce: &self.scarce,
            mean_milli: self.broad.mean_milli().max(1.0),
            weights,
        }
    }

    /// Self-play towards one target: tables of the second half, and their mean as the last.
    fn candidates(
        &self,
        target: Target,
        weights: Weights,
        seed: u64,
        step: &mut dyn FnMut(),
    ) -> Vec<Table> {
        let mut table = self.untrained();
        let mut learner = Learner::new(table.models, table.two_axes);
        let mut mean = vec![0.0_f64; table.values.len()];
        let mut candidates = Vec::new();
        let mut random = Random::seeded(seed);
        // On a small cluster an iteration has several episodes, so that cells are visited as often.
        let repeats = (PART_GPUS / all_gpus(&self.nodes)).clamp(1, MOST_EPISODES);
        let episodes = repeats * self.training.form.episodes();
        for iteration in 0..ITERATIONS {
            learner.forget_some();
            for episode in 0..episodes {
                let nodes = part(&self.nodes, PART_GPUS, iteration * episodes + episode);
                let values = self.values(&table, weights);
                let how = (target, random.seed());
                play(values, &self.broad, &nodes, how, &mut learner);
            }
            learner.improve(&mut table, iteration);
            if iteration >= ITERATIONS / 2 {
                for (sum, value) in mean.iter_mut().zip(&table.values) {
                    *sum += f64::from(*value);
                }
            }
            let after_first = (iteration + 1).checked_sub(FIRST_CANDIDATE);
            if after_first.is_some_and(|after| after.is_multiple_of(EACH_CANDIDATE)) {
                candidates.push(table.clone());
            }
            step();
        }
        let summed = (ITERATIONS - ITERATIONS / 2) as f64;
        for (value, sum) in table.values.iter_mut().zip(mean) {
            *value = (sum / summed) as f32;
        }
        candidates.push(table);
        candidates
    }

    /// What a table leaves unused, or refuses, as a part of the volume: the mean over fresh orders that are the same for
    /// every table.
    fn loss(&self, table: &Table, weights: Weights, trials: Trials) -> f64 {
        let mut random = Random::seeded(self.training.seed ^ trials.salt);
        let values = self.values(table, weights);
        let trial = |trial| {
            let seed = random.seed();
            match self.training.form {
                Form::Fill => {
                    let nodes = part(&self.nodes, 2 * PART_GPUS, trial);
                    unused_after_fill(values, &self.own, &nodes, seed)
                }
                Form::Departures => {
                    let nodes = part(&self.nodes, PART_GPUS, trial);
                    let mut player = Player::new(values);
                    refused_with_departures(
                        &mut player,
                        &self.own,
                        &nodes,
                        (trials.holding_times, seed),
                    )
                }
            }
        };
        (0..trials.count).map(trial).sum::<f64>() / trials.count as f64
    }
}

/// Orders for trials.
#[derive(Clone, Copy, Debug)]
struct Trials {
    count: usize,
    /// Mean holding times that a trial with departures counts.
    holding_times: f64,
    /// Sets these orders apart from others of the same training.
    salt: u64,
}

/// A table with what it lost in trials.
struct Tried {
    loss: f64,
    table: Table,
    weights: Weights,
}
