//! Whatever the driver and the accounts say: every byte belongs to somebody once, and who is honest is not accused.

use divvy_core::job::Process;
use divvy_core::reconcile::{
    BypassKind, BypassPolicy, HONEST, LedgerEntry, Limiter, ProcessOwner, ProcessSample, SLACK,
    Sample, SliceSample, compare,
};
use divvy_core::{Bytes, JobId};
use proptest::prelude::*;

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
    let member =
        (0..JOBS, account, limiter()).prop_map(|(job, account, limiter)| ProcessOwner::Job {
            job: JobId(job),
            account,
            limiter,
        });
    prop_oneof![1 => Just(ProcessOwner::Unmanaged), 1 => Just(ProcessOwner::Exited), 4 => member]
}

fn sight() -> impl Strategy<Value = Sample> {
    let processes = proptest::collection::vec((amount(), of()), 0..8);
    let limits = proptest::collection::vec(amount(), 0..JOBS as usize);
    (processes, limits, amount()).prop_map(|(processes, limits, charged)| {
        let process = |(pid, (used, of))| ProcessSample {
            process: Process { pid, start_time: 1 },
            used: Some(used),
            owner: of,
        };
        Sample {
            used: Bytes::gib(400),
            context: Bytes::mib(400),
            slices: (0..)
                .zip(limits)
                .map(|(job, granted)| SliceSample {
                    job: JobId(job),
                    granted,
                    granted_recently: Some(granted),
                    tampered: false,
                    charged,
                })
                .collect(),
            processes: (1..).zip(processes).map(process).collect(),
        }
    })
}

fn sum(bytes: impl Iterator<Item = Bytes>) -> u64 {
    bytes.map(Bytes::get).sum()
}

proptest! {
    #[test]
    fn every_byte_that_is_held_belongs_to_a_slice_or_is_foreign(sight in sight()) {
        let balance = compare(&sight);
        let held = sight.processes.iter().filter(|seen| seen.owner != ProcessOwner::Exited);
        let held = sum(held.filter_map(|seen| seen.used));
        let within = sight.slices.iter().zip(&balance.slices);
        let within = sum(within.map(|(slice, found)| found.driver.unwrap_or_default().min(slice.granted)));
        prop_assert_eq!(balance.unmanaged.get() + within, held);
    }

    #[test]
    fn a_limit_counts_no_more_besides_its_account_than_the_driver_shows(sight in sight()) {
        for slice in compare(&sight).slices {
            prop_assert!(slice.uncounted <= slice.driver.unwrap_or_default());
            prop_assert_eq!(slice.mismatch().is_some(), slice.steady);
        }
    }

    #[test]
    fn who_has_an_account_of_what_it_holds_is_not_accused(
        used in amount(),
        more in 0..=SLACK.get(),
        steady in any::<bool>(),
    ) {
        let account = Some(LedgerEntry { charged: used, steady });
        let owner = ProcessOwner::Job { job: JobId(0), account, limiter: Limiter::Loaded };
        let used = used.saturating_add(Bytes::new(more));
        let process = Process { pid: 7, start_time: 1 };
        let sight = Sample {
            slices: vec![SliceSample { job: JobId(0), granted: used, granted_recently: Some(used), tampered: false, charged: used }],
            processes: vec![ProcessSample { process, used: Some(used), owner }],
            ..Sample::default()
        };
        let balance = compare(&sight);
        prop_assert_eq!(balance.suspects, []);
        prop_assert_eq!(balance.slices[0].uncounted, Bytes::ZERO);
    }

    #[test]
    fn nobody_is_accused_but_listed_processes_of_jobs_and_killed_only_for_harm(sight in sight()) {
        for suspect in compare(&sight).suspects {
            let seen = sight.processes.iter().find(|seen| seen.process == suspect.process).unwrap();
            let ProcessOwner::Job { job, account, .. } = seen.owner else {
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
