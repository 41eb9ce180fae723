//! Folded arrays: one row for the queued tasks of an array, as Slurm's `squeue` shows them.

use serde::{Deserialize, Serialize};

/// Pieces of a list of indices that a row shows: more would take the other columns' room.
const MOST_PIECES: usize = 3;

/// Queued tasks of one array, with one queue and one request, that an item of a list stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Folded {
    /// Number of tasks.
    pub count: u32,
    /// Their indices: `2-8,10-39`; after three pieces `…`. `2-39%4`: four jobs of the array hold slices at once.
    pub indices: String,
}

impl Folded {
    /// The fold of the tasks with these indices, in any order. `most`: so many jobs of the array hold slices at once.
    pub fn of(mut indices: Vec<u32>, most: Option<u32>) -> Self {
        indices.sort_unstable();
        let mut pieces: Vec<(u32, u32)> = Vec::new();
        for &index in &indices {
            match pieces.last_mut() {
                Some((_, to)) if to.checked_add(1) == Some(index) => *to = index,
                _ => pieces.push((index, index)),
            }
        }
        let shown = pieces.iter().take(MOST_PIECES);
        let mut shown: Vec<String> = shown
            .map(|(from, to)| {
                if from == to {
                    from.to_string()
                } else {
                    format!("{from}-{to}")
                }
            })
            .collect();
        if pieces.len() > MOST_PIECES {
            shown.push("…".to_owned());
        }
        Self {
            count: u32::try_from(indices.len()).unwrap_or(u32::MAX),
            indices: shown.join(",") + &most.map(|most| format!("%{most}")).unwrap_or_default(),
        }
    }

    /// `12_[2-39]`: the reference of the row, from that of one of its tasks.
    pub fn reference(&self, task: &str) -> String {
        let array = task.rsplit_once('_').map_or(task, |(array, _)| array);
        format!("{array}_[{}]", self.indices)
    }

    /// The name that the array was submitted with, from that of one of its tasks: `sweep` of `sweep[2]`.
    pub fn name(task: &str) -> &str {
        match task.rsplit_once('[') {
            Some((name, index)) if index.ends_with(']') => name,
            _ => task,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fold_names_its_indices_in_at_most_three_pieces() {
        for (indices, words) in [
            (&[2, 3, 4][..], "2-4"),
            (&[9, 2, 3], "2-3,9"),
            (&[u32::MAX, 0], "0,4294967295"),
            (&[0, 2, 4, 5, 6, 8], "0,2,4-6,…"),
            (&[], ""),
        ] {
            let fold = Folded::of(indices.to_vec(), None);
            assert_eq!(
                (fold.count as usize, fold.indices.as_str()),
                (indices.len(), words)
            );
        }
        let fold = Folded::of((2..40).collect(), Some(4));
        assert_eq!(fold.reference("12_2"), "12_[2-39%4]");
        let fold = Folded::of(vec![2, 3], None);
        assert_eq!(fold.reference("12_2"), "12_[2-3]");
        assert_eq!(["sw[2]", "a[b", "a"].map(Folded::name), ["sw", "a[b", "a"]);
    }
}
