//! The stationary distribution of a Markov chain in continuous time, computed exactly without sampling.

/// How often the chain changes from one state to another, per unit of time: for each state, to which and how often.
pub(super) type Rates = Vec<Vec<(usize, f64)>>;

/// The part of time spent in each state in the long run, in the order of `rates`; they sum to 1.
///
/// State 0 must be reachable from every state, and every state from it. By the algorithm of Grassmann, Taksar and
/// Heyman (Operations Research 33, 1985): Gaussian elimination without a single subtraction, so that nothing cancels.
/// Takes a third of the cube of the number of states, and less where few states follow each other.
pub(super) fn stationary(rates: &Rates) -> Vec<f64> {
    let count = rates.len();
    let mut matrix = vec![vec![0.0_f64; count]; count];
    for (from, changes) in rates.iter().enumerate() {
        for (to, rate) in changes {
            matrix[from][*to] += rate;
        }
    }
    for last in (1..count).rev() {
        let (before, from_last) = matrix.split_at_mut(last);
        let from_last = &from_last[0][..last];
        let leaves: f64 = from_last.iter().sum();
        assert!(leaves > 0.0, "state {last} never leads back");
        for row in before {
            if row[last] == 0.0 {
                continue;
            }
            row[last] /= leaves;
            let into_last = row[last];
            for (rate, onward) in row[..last].iter_mut().zip(from_last) {
                *rate += into_last * onward;
            }
        }
    }
    let mut parts = vec![1.0_f64; count];
    for state in 1..count {
        parts[state] = (0..state)
            .map(|from| parts[from] * matrix[from][state])
            .sum();
    }
    let total: f64 = parts.iter().sum();
    for part in &mut parts {
        *part /= total;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_without_room_loses_what_erlang_says() {
        // Four servers at a load of three: Erlang's B is 27/8 over 1 + 3 + 9/2 + 9/2 + 27/8.
        let rates: Rates = (0..5_usize)
            .map(|busy| {
                let ends = busy.checked_sub(1).map(|fewer| (fewer, busy as f64));
                let starts = (busy < 4).then_some((busy + 1, 3.0));
                ends.into_iter().chain(starts).collect()
            })
            .collect();
        let parts = stationary(&rates);
        assert!((parts[4] - 27.0 / 8.0 / 16.375).abs() < 1e-12, "{parts:?}");
        assert!((parts.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_ring_that_turns_one_way_stays_longest_where_it_leaves_slowest() {
        let rates: Rates = vec![vec![(1, 1.0)], vec![(2, 2.0)], vec![(0, 4.0)]];
        let parts = stationary(&rates);
        for (part, expected) in parts.iter().zip([4.0 / 7.0, 2.0 / 7.0, 1.0 / 7.0]) {
            assert!((part - expected).abs() < 1e-12, "{parts:?}");
        }
    }
}
