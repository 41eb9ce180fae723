//! Whatever the driver and the accounts say: every byte belongs to somebody once, and who is honest is not accused.

use divvy_core::job::Process;
use divvy_core::reconcile::{
    BypassChange, BypassKind, BypassPolicy, HONEST, LedgerEntry, Limiter, ProcessOwner,
    ProcessSample, SLACK, Sample, SliceSample, UNLISTED_SLACK, Watchlist, compare, random_gap,
};
use divvy_core::{Bytes, GpuUuid, JobId};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng};

const JOBS: u64 = 3;

fn amount() -> impl Strategy<Value = Bytes> {
    // Whole GiB and their neighbourhoods, where thresholds lie.
    (0u64..40, 0u64..1200).prop_map(|(gib, mib)| Bytes::mib(gib * 1024 + mib))
}

fn limiter() -> impl Strategy<Value = Limiter> {
    prop_oneof![
        Just(Limiter::Loaded),
        Just(Limiter::Off),
        Just(Limiter::NotLoaded),
        Just(Limiter::Hidden)
    ]
}

fn of() -> impl Strategy<Value = ProcessOwner> {
    let account = proptest::option::of(
        (amount(), any::<bool>()).prop_map(|(charged, steady)| LedgerEntry { charged, steady }),
    );
    let member = (0..JOBS, account, limiter(), any::<bool>()).prop_map(
        |(job, account, limiter, has_escaped)| ProcessOwner::Job {
            job: JobId(job),
            account,
            limiter,
            has_escaped,
        },
    );
    prop_oneof![1 => Just(ProcessOwner::Unmanaged), 1 => Just(ProcessOwner::Exited), 4 => member]
}

fn sight() -> impl Strategy<Value = Sample> {
    let processes = proptest::collection::vec((amount(), of()), 0..8);
    let limits = proptest::collection::vec(amount(), 0..JOBS as usize);
    let unlisted = prop_oneof![Just(Bytes::ZERO), amount()];
    (processes, limits, amount(), unlisted, any::<bool>()).prop_map(
        |(processes, limits, charged, unlisted, is_walled)| {
            let process = |(pid, (used, of))| ProcessSample {
                process: Process { pid, start_time: 1 },
                used: Some(used),
                owner: of,
            };
            Sample {
                used: processes
                    .iter()
                    .filter(|(_, of)| *of != ProcessOwner::Exited)
                    .map(|(used, _)| *used)
                    .sum::<Bytes>()
                    .saturating_add(unlisted),
                context: Bytes::mib(400),
                slices: (0..)
                    .zip(limits)
                    .map(|(job, granted)| SliceSample {
                        job: JobId(job),
                        granted,
                        granted_recently: Some(granted),
                        tampered: false,
                        is_walled,
                        charged,
                        charged_at_most: charged,
                    })
                    .collect(),
                processes: (1..).zip(processes).map(process).collect(),
            }
        },
    )
}

fn sum(bytes: impl Iterator<Item = Bytes>) -> u64 {
    bytes.map(Bytes::get).sum()
}

proptest! {
    #[test]
    fn every_byte_that_is_listed_belongs_to_a_slice_or_is_foreign(sight in sight()) {
        let balance = compare(&sight);
        let held = sight.processes.iter().filter(|seen| seen.owner != ProcessOwner::Exited);
        let held = sum(held.filter_map(|seen| seen.used));
        let within = sight.slices.iter().zip(&balance.slices);
        let within = sum(within.map(|(slice, found)| found.driver.unwrap_or_default().min(slice.granted)));
        prop_assert_eq!(balance.unmanaged.get() - balance.unlisted.get() + within, held);
    }

    /// What is left for slices is never more than the GPU's own free memory less what slices may still take. A ledger
    /// explains memory inside its grant; some slack is for figures of two moments.
    #[test]
    fn memory_that_is_given_out_is_free_by_the_gpus_own_figure(sight in sight(), total in amount()) {
        let balance = compare(&sight);
        let total = sight.used.saturating_add(total).get();
        let granted = sum(sight.slices.iter().map(|slice| slice.granted));
        let not_yet_used = sight.slices.iter().zip(&balance.slices).map(|(slice, found)| {
            let used = found.driver.unwrap_or_default().max(slice.charged_at_most);
            slice.granted.saturating_sub(used)
        });
        let slack = UNLISTED_SLACK.get() * (sight.processes.len() as u64 + 1);
        let left = total.saturating_sub(granted + balance.unmanaged.get());
        let free = (total - sight.used.get()).saturating_sub(sum(not_yet_used));
        prop_assert!(left <= free + slack, "{} of {}", left, free);
        prop_assert!(balance.unlisted <= balance.unmanaged && balance.unlisted.get() <= sight.used.get());
    }

    /// The driver lists managed memory for no process, and rounds what it does list.
    #[test]
    fn a_job_within_its_ledger_takes_nothing_but_its_slice_whatever_is_listed(
        charged in amount(),
        listed in 0..=1000u64,
        short in 0..=2 * SLACK.get(),
    ) {
        let used = Bytes::new(charged.get() / 1000 * listed);
        let account = Some(LedgerEntry { charged, steady: true });
        let owner = ProcessOwner::Job { job: JobId(0), account, limiter: Limiter::Loaded, has_escaped: false };
        let process = Process { pid: 7, start_time: 1 };
        let slice = SliceSample {
            job: JobId(0),
            granted: charged,
            granted_recently: Some(charged),
            tampered: false,
            is_walled: false,
            charged,
            charged_at_most: charged,
        };
        let sight = Sample {
            used: charged.saturating_add(Bytes::new(short)),
            slices: vec![slice],
            processes: vec![ProcessSample { process, used: Some(used), owner }],
            ..Sample::default()
        };
        let balance = compare(&sight);
        prop_assert_eq!((balance.unmanaged, balance.unlisted), (Bytes::ZERO, Bytes::ZERO));
        prop_assert_eq!(balance.suspects, []);
    }

    #[test]
    fn a_limit_counts_no_more_besides_its_account_than_the_driver_shows(sight in sight()) {
        for slice in compare(&sight).slices {
            prop_assert!(slice.uncounted <= slice.driver.unwrap_or_default());
            prop_assert_eq!(slice.mismatch().is_some(), slice.steady);
        }
    }

    #[test]
    fn a_process_with_a_ledger_of_its_memory_is_not_accused(
        used in amount(),
        more in 0..=SLACK.get(),
        steady in any::<bool>(),
    ) {
        let account = Some(LedgerEntry { charged: used, steady });
        let owner = ProcessOwner::Job { job: JobId(0), account, limiter: Limiter::Loaded, has_escaped: false };
        let used = used.saturating_add(Bytes::new(more));
        let process = Process { pid: 7, start_time: 1 };
        let sight = Sample {
            slices: vec![SliceSample { job: JobId(0), granted: used, granted_recently: Some(used), tampered: false, is_walled: false, charged: used, charged_at_most: used }],
            processes: vec![ProcessSample { process, used: Some(used), owner }],
            ..Sample::default()
        };
        let balance = compare(&sight);
        prop_assert_eq!(balance.suspects, []);
        prop_assert_eq!(balance.slices[0].uncounted, Bytes::ZERO);
    }

    #[test]
    fn only_listed_processes_of_jobs_are_accused_and_killed_only_for_harm(sight in sight()) {
        for suspect in compare(&sight).suspects {
            let seen = sight.processes.iter().find(|seen| seen.process == suspect.process).unwrap();
            let ProcessOwner::Job { job, account, has_escaped, .. } = seen.owner else {
                panic!("{seen:?} is accused");
            };
            prop_assert_eq!(job, suspect.job);
            let beyond = seen.used.unwrap_or_default().saturating_sub(suspect.charged);
            match suspect.kind {
                BypassKind::Unlimited => prop_assert!(account.is_none()),
                BypassKind::OtherGpu => prop_assert!(sight.slices.iter().all(|slice| slice.job != job)),
                BypassKind::Overdrawn => {
                    let slice = sight.slices.iter().position(|slice| slice.job == job).unwrap();
                    let held = compare(&sight).slices[slice].driver.unwrap_or_default();
                    prop_assert!(held > sight.slices[slice].granted.saturating_add(HONEST));
                }
                BypassKind::Understated => prop_assert!(account.is_some_and(|account| account.steady) && beyond > HONEST),
                BypassKind::Escaped => prop_assert!(has_escaped),
            }
            let killed = BypassPolicy::Kill.action_for(&suspect) == BypassPolicy::Kill;
            prop_assert_eq!(killed, suspect.harmful);
        }
    }

    #[test]
    fn equal_sights_have_equal_balances(sight in sight()) {
        prop_assert_eq!(compare(&sight), compare(&sight.clone()));
    }
}

const MS: u64 = 1_000_000;

fn seeded(seed: u64) -> TestRng {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)
}

fn between(rng: &mut TestRng, least: u64, most: u64) -> u64 {
    least + rng.next_u64() % (most - least + 1)
}

/// A program that takes 20 GiB past the limiter again and again, and gives them back.
#[derive(Debug)]
struct Flicker {
    hold: u64,
    pause: u64,
    /// It waits for the daemon's heartbeat before each pause.
    follows_heartbeat: bool,
}

impl Flicker {
    /// The moments at which it holds the memory until `end`, in nanoseconds.
    fn holds(&self, end: u64) -> Vec<std::ops::Range<u64>> {
        let mut holds = Vec::new();
        let mut now = 0;
        while now < end {
            if self.follows_heartbeat {
                now = (now + 1).next_multiple_of(250 * MS);
            }
            let from = now + self.pause;
            now = from + self.hold;
            holds.push(from..now);
        }
        holds
    }
}

/// When the first bypass is reported, if looks are as the daemon's. `shown`: what a look at a moment shows.
fn first_report(
    rng: &mut TestRng,
    end: u64,
    shown: impl Fn(u64) -> Vec<ProcessSample>,
) -> Option<u64> {
    let gpu = GpuUuid::from_bytes([1; 16]);
    let granted = Bytes::gib(2);
    let mut list = Watchlist::default();
    let mut now = 0;
    while now < end {
        // The daemon looks again soon after a look that found a suspect.
        now += if list.is_curious() {
            25 * MS
        } else {
            u64::try_from(random_gap(rng.next_u64()).as_nanos()).unwrap_or(u64::MAX)
        };
        let slice = SliceSample {
            job: JobId(0),
            granted,
            granted_recently: Some(granted),
            tampered: false,
            is_walled: false,
            charged: Bytes::ZERO,
            charged_at_most: Bytes::ZERO,
        };
        let sight = Sample {
            used: Bytes::gib(20),
            context: Bytes::mib(400),
            slices: vec![slice],
            processes: shown(now),
        };
        let suspects = compare(&sight).suspects;
        let suspects: Vec<_> = suspects
            .iter()
            .map(|one| (*one, Limiter::NotLoaded))
            .collect();
        let there: Vec<_> = sight.processes.iter().map(|one| one.process).collect();
        let changes = list.update(now, &gpu, &suspects, &there, &[]);
        if changes
            .iter()
            .any(|change| matches!(change, BypassChange::Detected { .. }))
        {
            return Some(now);
        }
    }
    None
}

fn past_the_limiter(pid: u32) -> ProcessSample {
    ProcessSample {
        process: Process { pid, start_time: 1 },
        used: Some(Bytes::gib(20)),
        owner: ProcessOwner::Job {
            job: JobId(0),
            account: None,
            limiter: Limiter::NotLoaded,
            has_escaped: false,
        },
    }
}

/// With looks at each beat and two in a row, the same programs that follow the heartbeat are never found.
#[test]
fn a_job_that_holds_memory_between_the_looks_is_reported_with_any_pattern() {
    let end = 120_000 * MS;
    let mut times = Vec::new();
    for seed in 0..1000 {
        let mut rng = seeded(seed);
        let flicker = Flicker {
            hold: between(&mut rng, 50, 300) * MS,
            pause: between(&mut rng, 5, 500) * MS,
            follows_heartbeat: between(&mut rng, 0, 1) == 0,
        };
        let holds = flicker.holds(end);
        let is_held = |now| holds.iter().any(|hold| hold.contains(&now));
        // A process of its own each time, so that none is met twice.
        let shown = |now| {
            if is_held(now) {
                vec![past_the_limiter(now as u32)]
            } else {
                vec![]
            }
        };
        let reported = first_report(&mut rng, end, shown);
        let reported =
            reported.unwrap_or_else(|| panic!("seed {seed}: {flicker:?} is not reported"));
        times.push((reported - holds[0].start) / MS);
    }
    times.sort_unstable();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    println!("reported after {median} ms (median), {worst} ms (worst)");
    assert!(median < 1000 && worst < 60_000, "{median} {worst}");
}

/// A process that exits during a look, for example.
#[test]
fn a_job_whose_figures_disagree_at_one_look_in_ten_seconds_is_not_reported() {
    for seed in 0..50 {
        let mut rng = seeded(seed);
        let period = between(&mut rng, 10_050, 20_000) * MS;
        // Less than the second look needs to come.
        let length = between(&mut rng, 1, 24) * MS;
        let shown = |now| {
            if now % period < length {
                vec![past_the_limiter(7)]
            } else {
                vec![]
            }
        };
        let reported = first_report(&mut rng, 600_000 * MS, shown);
        assert_eq!(reported, None, "seed {seed}");
    }
}
