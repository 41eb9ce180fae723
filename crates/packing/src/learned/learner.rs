//! The learner: from what GPUs had free at the end of episodes to the values of cells.

use super::cells::{CPU, FREE, SPARE, prior};
use super::table::Table;

/// Observations that the next coarser mean counts for. Our choice: fewer would believe single observations, more would
/// hide what a cell has of its own.
const SHRINKAGE: f64 = 5.0;

/// What is left of old observations after an iteration. So half is left after 14 iterations, a third of a training:
/// less would forget before a cell is seen again.
const DECAY: f64 = 0.95;

/// The least part of the way to the new estimate that the table goes in an iteration. A smaller one would keep the
/// first iterations' values; a larger one would swing.
const LEAST_STEP: f32 = 0.1;

/// Sums of observations by cell.
#[derive(Clone, Debug)]
pub(super) struct Learner {
    cells: Vec<Sum>,
    spares: usize,
    models: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    unused: f64,
    count: f64,
}

impl Sum {
    fn add(&mut self, other: Self) {
        self.unused += other.unused;
        self.count += other.count;
    }

    /// The mean, where few observations count less than `coarser`.
    fn shrunk(self, coarser: f64) -> f64 {
        (self.unused + SHRINKAGE * coarser) / (self.count + SHRINKAGE)
    }
}

impl Learner {
    pub(super) fn new(models: usize, two_axes: bool) -> Self {
        let spares = if two_axes { SPARE } else { 1 };
        Self {
            cells: vec![Sum::default(); models * spares * CPU * FREE],
            spares,
            models,
        }
    }

    /// A GPU was in this cell, and so much of it stayed unused, in thousandths.
    pub(super) fn observe(&mut self, cell: usize, unused: f32) {
        if let Some(sum) = self.cells.get_mut(cell) {
            sum.add(Sum {
                unused: f64::from(unused),
                count: 1.0,
            });
        }
    }

    pub(super) fn forget_some(&mut self) {
        for sum in &mut self.cells {
            sum.unused *= DECAY;
            sum.count *= DECAY;
        }
    }

    /// Moves the table towards what was observed. Iterations count from 0.
    pub(super) fn improve(&self, table: &mut Table, iteration: usize) {
        let step = (1.0 / (iteration + 1) as f32).max(LEAST_STEP);
        let row = self.spares * CPU * FREE;
        for spare in 0..self.spares {
            for free in 0..FREE {
                let cell =
                    |model: usize, cpu: usize| model * row + (spare * CPU + cpu) * FREE + free;
                let mut all = Sum::default();
                let by_cpu: [Sum; CPU] = std::array::from_fn(|cpu| {
                    let mut sum = Sum::default();
                    for model in 0..self.models {
                        sum.add(self.cells[cell(model, cpu)]);
                    }
                    all.add(sum);
                    sum
                });
                for (cpu, sum) in by_cpu.into_iter().enumerate() {
                    let over_all = all.shrunk(f64::from(prior(spare, cpu, free)));
                    let over_models = sum.shrunk(over_all);
                    let mut towards = |cell: usize, estimate: f64| {
                        let value = &mut table.values[cell];
                        *value += step * (estimate as f32 - *value);
                    };
                    for model in 0..self.models {
                        let at = cell(model, cpu);
                        towards(at, self.cells[at].shrunk(over_models));
                    }
                    towards(cell(self.models, cpu), over_models);
                }
            }
        }
    }
}
