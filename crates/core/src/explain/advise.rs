//! Right-sizing: recommends how much memory to request, from the usage of earlier runs of the same program.
//!
//! ```text
//! ended runs ──► the largest peak of a run without a refusal + a margin, in steps of 256 MiB
//! ```
//! A run with a refused allocation needed that limit at least: what its program would have requested next is unknown. So
//! a size is named only where a run without a refusal needed as much.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::model::gpu::Gpu;
use crate::model::request::Amount;
use crate::units::{Bytes, Share};

/// The number of runs that count, the newest ones: a user's programs change with time. Our choice. Half would let one
/// unusual week decide; double would hold sizes of programs that are long gone.
pub const RUNS: usize = 50;

/// Sizes are advised in steps of this. A hundredth of a small GPU: smaller steps would pretend a precision that runs do
/// not have.
const STEP: Bytes = Bytes::mib(256);

/// What is added to the most that any run needed: a tenth, and this at least. Programs differ a little from run to run
/// (sizes of inputs, what a library caches); these two figures are our choice.
const MARGIN: Bytes = Bytes::mib(256);

/// What one ended run is remembered by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunUsage {
    /// Its limit on each GPU, the largest of them.
    pub limit: Bytes,
    /// The most it used of one GPU.
    pub peak: Bytes,
    /// How often its limit refused memory.
    pub denied: u64,
    /// The smallest limit under which the largest of the refused allocations would have passed; zero when none was
    /// refused.
    pub sufficient: Bytes,
}

impl RunUsage {
    /// What it needed at least. Without a refusal, what it needed.
    pub fn need(&self) -> Bytes {
        self.peak.max(self.sufficient)
    }
}

/// What follows from some runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// How many runs it is from.
    pub runs: usize,
    /// How many of them were refused memory.
    pub refused: usize,
    /// The newest run's limit.
    pub limit: Bytes,
    /// The middle one of the runs' peaks, and the highest.
    pub peak_median: Bytes,
    pub peak_most: Bytes,
    /// The most that a run needed at least.
    pub at_least: Bytes,
    /// What to ask for on each GPU; `None` if the runs without a refusal needed less than another run at least.
    pub memory: Option<Bytes>,
}

/// What to ask for, from runs with the newest first; `None` from none that used memory.
pub fn advise(runs: &[RunUsage]) -> Option<Advice> {
    let used = |run: &&RunUsage| run.need() > Bytes::ZERO;
    let runs: Vec<&RunUsage> = runs.iter().filter(used).take(RUNS).collect();
    let newest = runs.first()?;
    let at_least = runs.iter().map(|run| run.need()).max()?;
    let whole = runs.iter().filter(|run| run.denied == 0);
    let memory = whole.map(|run| run.need()).max().map(|most| {
        let margin = Bytes::new(most.get() / 10).max(MARGIN);
        most.saturating_add(margin).round_up(STEP)
    });
    let mut peaks: Vec<Bytes> = runs.iter().map(|run| run.peak).collect();
    peaks.sort_unstable();
    Some(Advice {
        runs: runs.len(),
        refused: runs.iter().filter(|run| run.denied > 0).count(),
        limit: newest.limit,
        peak_median: peaks[(peaks.len() - 1) / 2],
        peak_most: *peaks.last()?,
        at_least,
        memory: memory.filter(|memory| *memory >= at_least),
    })
}

/// A request with head room for a program that was refused memory on one of `count` GPUs: twice the limit that the
/// refused call needs, or whole GPUs where these have no more. `None` when no GPU has what the call needs. Twice, because
/// the program's whole need is unknown, and a search by doubling ends after few runs.
pub fn with_head_room(needed: Bytes, count: NonZeroU32, gpus: &[Gpu]) -> Option<Amount> {
    let twice = needed.saturating_add(needed).round_up(STEP);
    let usable = gpus.iter().map(Gpu::usable).max()?;
    amount(twice, count, gpus).or((needed <= usable).then_some(Amount::Whole(count)))
}

/// How to ask for so much memory on each of so many GPUs of these; `None` when no GPU has it.
pub fn amount(memory: Bytes, count: NonZeroU32, gpus: &[Gpu]) -> Option<Amount> {
    let usable = gpus.iter().map(Gpu::usable).max()?;
    let share = gpus
        .iter()
        .filter_map(|gpu| gpu.share_of(memory))
        .max()
        .filter(|_| memory <= usable);
    match (share, count) {
        // Nearly all of a GPU, or all but the margin.
        (None | Some(Share::FULL), _) => {
            Some(Amount::Whole(count)).filter(|_| memory.saturating_sub(MARGIN) <= usable)
        }
        (Some(_), NonZeroU32::MIN) => Some(Amount::Memory(memory)),
        (Some(share), count) => Some(Amount::Shares { count, share }),
    }
}

/// Whether a name matches a pattern in which `*` stands for any text and `?` for any letter.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    // reachable[i]: the pattern so far matches the first i letters.
    let mut reachable: Vec<bool> = (0..=name.len()).map(|at| at == 0).collect();
    for letter in pattern {
        let mut next = vec![false; name.len() + 1];
        for at in 0..=name.len() {
            next[at] = match letter {
                '*' => reachable[at] || at > 0 && next[at - 1],
                '?' => at > 0 && reachable[at - 1],
                _ => at > 0 && reachable[at - 1] && name[at - 1] == letter,
            };
        }
        reachable = next;
    }
    reachable[name.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(limit: u64, peak: u64) -> RunUsage {
        RunUsage {
            limit: Bytes::mib(limit),
            peak: Bytes::mib(peak),
            ..RunUsage::default()
        }
    }

    fn gpu(gib: u64) -> Gpu {
        Gpu::sample(0, Bytes::gib(gib))
    }

    #[test]
    fn nothing_follows_from_no_run_and_from_none_that_used_memory() {
        assert_eq!(advise(&[]), None);
        assert_eq!(advise(&[run(4096, 0)]), None);
    }

    #[test]
    fn the_most_that_any_run_needed_and_a_margin_is_advised() {
        let advice = advise(&[run(40960, 17000), run(40960, 18000), run(20480, 10000)]).unwrap();
        let expected = Some(Bytes::mib(19968));
        assert_eq!(advice.memory, expected, "19800 MiB in steps of 256");
        assert_eq!(
            (advice.peak_median, advice.peak_most),
            (Bytes::mib(17000), Bytes::mib(18000))
        );
        assert_eq!((advice.runs, advice.refused), (3, 0));
        assert_eq!(advice.limit, Bytes::mib(40960));
        let small = advise(&[run(1024, 100)]).unwrap();
        assert_eq!(small.memory, Some(Bytes::mib(512)));
    }

    #[test]
    fn a_size_is_named_only_from_runs_that_were_refused_no_memory() {
        let refused = RunUsage {
            denied: 3,
            sufficient: Bytes::mib(9000),
            ..run(8192, 8000)
        };
        // What the refused run would have requested next is unknown.
        for runs in [&[refused][..], &[refused, run(8192, 7000)]] {
            let advice = advise(runs).unwrap();
            assert_eq!((advice.memory, advice.at_least), (None, Bytes::mib(9000)));
            assert_eq!((advice.refused, advice.peak_most), (1, Bytes::mib(8000)));
        }
        let advice = advise(&[run(16384, 12000), refused]).unwrap();
        assert_eq!(
            advice.memory,
            Some(Bytes::mib(13312)),
            "13200 MiB in steps of 256"
        );
        assert_eq!(advice.at_least, Bytes::mib(12000));
    }

    #[test]
    fn head_room_is_twice_the_need_or_whole_gpus() {
        let flag = |mib, count| {
            let count = NonZeroU32::new(count).unwrap();
            with_head_room(Bytes::mib(mib), count, &[gpu(80)]).map(|amount| amount.flag())
        };
        assert_eq!(flag(20383, 1).unwrap(), "--gpu-memory 40GiB");
        assert_eq!(flag(20480, 2).unwrap(), "-g 2x0.5");
        assert_eq!(flag(50 << 10, 1).unwrap(), "-g 1");
        assert_eq!(flag(79 << 10, 2).unwrap(), "-g 2");
        assert_eq!(flag(90 << 10, 1), None);
        assert_eq!(flag(u64::from(u32::MAX) << 20, 1), None);
    }

    #[test]
    fn old_runs_are_forgotten() {
        let mut runs = vec![run(8192, 1000); RUNS];
        runs.push(run(8192, 8000));
        assert_eq!(advise(&runs).unwrap().peak_most, Bytes::mib(1000));
    }

    #[test]
    fn an_amount_is_memory_for_one_gpu_and_a_share_of_several() {
        let (one, two) = (NonZeroU32::MIN, NonZeroU32::new(2).unwrap());
        let flag = |memory, count, gib| amount(memory, count, &[gpu(gib)]).map(|it| it.flag());
        assert_eq!(flag(Bytes::gib(20), one, 80).unwrap(), "--gpu-memory 20GiB");
        assert_eq!(flag(Bytes::gib(20), two, 80).unwrap(), "-g 2x0.25");
        assert_eq!(flag(Bytes::gib(80), two, 80).unwrap(), "-g 2");
        assert_eq!(
            flag(Bytes::gib(80).saturating_add(Bytes::mib(256)), one, 80).unwrap(),
            "-g 1"
        );
        assert_eq!(flag(Bytes::gib(90), one, 80), None);
        assert_eq!(amount(Bytes::gib(1), one, &[]), None);
    }

    #[test]
    fn a_pattern_matches_whole_names() {
        for (pattern, name, does) in [
            ("train*", "train-7", true),
            ("train*", "retrain", false),
            ("*", "", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*a*b*", "xxaxxbxx", true),
            ("ab", "ab", true),
            ("ab", "abc", false),
        ] {
            assert_eq!(matches(pattern, name), does, "{pattern} {name}");
        }
    }
}
