//! Trains the table, and compares it with best fit before it is used.

use divvy_packing::NodeSpec;
use divvy_packing::learned::{self, Form, Learned, Mix, Training};

use super::chooser::{BestFitReason, Table, Verdict};

/// The same input gives the same table. Any number would do.
const SEED: u64 = 42;

/// What a training needs.
pub struct Lesson {
    pub mix: Mix,
    /// The last requests.
    pub last: Mix,
    pub specs: Vec<NodeSpec>,
    pub models: Vec<String>,
}

impl Lesson {
    /// Trains a table and compares it; takes seconds.
    pub fn learn(self) -> Verdict {
        let training = Training {
            form: Form::Departures,
            seed: SEED,
        };
        let learned = match Learned::train(&self.mix, &self.specs, training, &mut |_| {}) {
            Ok(learned) => learned,
            Err(error) => return Verdict::BestFit(BestFitReason::Untrainable(error)),
        };
        match learned::check(&learned, &self.last, &self.specs, SEED) {
            learned::Verdict::BestFit(why) => Verdict::BestFit(BestFitReason::Check(why)),
            learned::Verdict::Learned { .. } => Verdict::Use(Box::new(Table {
                learned,
                models: self.models,
            })),
        }
    }
}

#[cfg(test)]
mod tests {
    use divvy_core::{Bytes, Share};
    use divvy_packing::{ModelSet, Shape};

    use super::*;

    fn lesson(count: u64, last: u64) -> Lesson {
        let shape = |share, cpu_milli| Shape {
            cpu_milli,
            memory: Bytes::gib(1),
            gpus: 1,
            share: Share::from_thousandths(share),
            gpu_memory: None,
            models: ModelSet::ANY,
        };
        let mix = |count| -> Mix {
            let kinds = [(shape(500, 2000), count), (shape(1000, 4000), count)];
            kinds.into_iter().collect()
        };
        let node = |at: usize| NodeSpec {
            name: format!("n{at}"),
            cpu_milli: 32_000,
            memory: Bytes::gib(128),
            gpus: 4,
            model: 0,
            gpu_memory: Some(Bytes::gib(80)),
        };
        Lesson {
            mix: mix(count),
            last: mix(last),
            specs: (0..2).map(node).collect(),
            models: vec!["m".to_owned()],
        }
    }

    #[test]
    fn a_table_is_used_only_after_the_check() {
        // Nothing divides badly here, so neither is behind by more than chance.
        match lesson(200, 200).learn() {
            Verdict::Use(table) => assert_eq!(table.learned.requests(), 400),
            Verdict::BestFit(reason) => assert_eq!(reason.label(), "behind", "{reason}"),
        }
        let Verdict::BestFit(unchecked) = lesson(200, 1).learn() else {
            panic!("two requests are no check");
        };
        assert_eq!(unchecked.label(), "little-history");
        let Verdict::BestFit(untrainable) = (Lesson {
            specs: Vec::new(),
            ..lesson(200, 200)
        })
        .learn() else {
            panic!("no node");
        };
        assert_eq!(
            untrainable.to_string(),
            "no table can be trained: no node has a GPU"
        );
    }
}
