use super::*;
use crate::units::GpuUuid;

const JOB: JobId = JobId(3);

fn process(pid: u32) -> Process {
    Process {
        pid,
        start_time: u64::from(pid) * 10,
    }
}

fn seen(pid: u32, used: Bytes, of: ProcessOwner) -> ProcessSample {
    ProcessSample {
        process: process(pid),
        used: Some(used),
        owner: of,
    }
}

fn member(charged: Option<Bytes>) -> ProcessOwner {
    let account = charged.map(|charged| LedgerEntry {
        charged,
        steady: true,
    });
    let limiter = Limiter::Loaded;
    ProcessOwner::Job {
        job: JOB,
        account,
        limiter,
        has_escaped: false,
    }
}

fn bare(limiter: Limiter) -> ProcessOwner {
    ProcessOwner::Job {
        job: JOB,
        account: None,
        limiter,
        has_escaped: false,
    }
}

/// A GPU where job 3 has a slice of 8 GiB, a context costs 400 MiB, and the driver lists all memory with a process.
fn gpu(charged: Bytes, processes: Vec<ProcessSample>) -> Sample {
    Sample {
        used: processes.iter().filter_map(|process| process.used).sum(),
        context: Bytes::mib(400),
        slices: vec![SliceSample {
            job: JOB,
            granted: Bytes::gib(8),
            granted_recently: Some(Bytes::gib(8)),
            tampered: false,
            is_walled: false,
            charged,
            charged_at_most: charged,
        }],
        processes,
    }
}

fn ways(balance: &Comparison) -> Vec<(BypassKind, bool)> {
    let way = |suspect: &Suspect| (suspect.kind, suspect.harmful);
    balance.suspects.iter().map(way).collect()
}

#[test]
fn an_account_that_agrees_with_the_driver_has_no_error() {
    let held = Bytes::gib(4);
    let balance = compare(&gpu(held, vec![seen(7, held, member(Some(held)))]));
    let slice = balance.slices[0];
    assert_eq!((slice.mismatch(), slice.uncounted), (Some(0), Bytes::ZERO));
    assert_eq!((balance.unmanaged, ways(&balance)), (Bytes::ZERO, vec![]));
}

#[test]
fn what_the_driver_says_beyond_an_account_counts_inside_the_limit_once_it_is_more_than_slack() {
    let at = |extra: u64| {
        let charged = Bytes::gib(4);
        let used = charged.saturating_add(Bytes::mib(extra));
        let balance = compare(&gpu(charged, vec![seen(7, used, member(Some(charged)))]));
        assert_eq!(ways(&balance), [], "a little unseen memory is no bypass");
        (balance.slices[0].mismatch(), balance.slices[0].uncounted)
    };
    assert_eq!(at(32), (Some(32 << 20), Bytes::ZERO));
    assert_eq!(at(34), (Some(34 << 20), Bytes::mib(34)));
}

#[test]
fn a_ledger_that_claims_too_much_hides_no_bypass_of_another_process() {
    let (low, high) = (Bytes::gib(1), Bytes::gib(2));
    let processes = vec![
        seen(7, low, member(Some(high))),
        seen(8, high, member(Some(low))),
    ];
    let balance = compare(&gpu(Bytes::gib(3), processes));
    assert_eq!(balance.slices[0].uncounted, Bytes::gib(1));
}

#[test]
fn a_process_without_a_slot_is_a_bypass_whatever_it_holds() {
    for limiter in [Limiter::NotLoaded, Limiter::Off, Limiter::Hidden] {
        let balance = compare(&gpu(
            Bytes::ZERO,
            vec![seen(7, Bytes::mib(400), bare(limiter))],
        ));
        assert_eq!(ways(&balance), [(BypassKind::Unlimited, true)]);
        assert_eq!(balance.slices[0].uncounted, Bytes::mib(400));
    }
}

#[test]
fn a_limited_process_may_have_a_context_before_its_first_allocation() {
    let with = |mib| {
        let processes = vec![seen(7, Bytes::mib(mib), bare(Limiter::Loaded))];
        ways(&compare(&gpu(Bytes::ZERO, processes)))
    };
    assert_eq!(with(400 + 512), []);
    assert_eq!(with(400 + 514), [(BypassKind::Unlimited, true)]);
}

#[test]
fn a_slice_that_the_driver_limits_has_no_bypass_but_a_process_that_escaped() {
    let with = |used, account: Option<Bytes>, has_escaped| {
        let owner = ProcessOwner::Job {
            job: JOB,
            account: account.map(|charged| LedgerEntry {
                charged,
                steady: true,
            }),
            limiter: Limiter::NotLoaded,
            has_escaped,
        };
        let mut sight = gpu(account.unwrap_or_default(), vec![seen(7, used, owner)]);
        sight.slices[0].is_walled = true;
        compare(&sight)
    };
    let (used, small) = (Bytes::gib(7), Bytes::gib(1));
    for account in [None, Some(small)] {
        let held = with(used, account, false);
        assert_eq!(ways(&held), [], "{account:?}");
        let slice = held.slices[0];
        assert_eq!((slice.uncounted, slice.driver), (Bytes::ZERO, Some(used)));
        assert_eq!(
            ways(&with(used, account, true)),
            [(BypassKind::Escaped, true)]
        );
    }
    // The limiter alone is in force until the group has its limit.
    let unlimited = compare(&gpu(small, vec![seen(7, used, bare(Limiter::NotLoaded))]));
    assert_eq!(ways(&unlimited), [(BypassKind::Unlimited, true)]);
}

#[test]
fn an_account_much_too_small_is_harmful_only_beyond_the_limit() {
    let with = |used: u64, charged: u64| {
        let (used, charged) = (Bytes::mib(used), Bytes::mib(charged));
        let processes = vec![seen(7, used, member(Some(charged)))];
        compare(&gpu(charged, processes))
    };
    assert_eq!(ways(&with(512, 0)), []);
    assert_eq!(ways(&with(514, 0)), [(BypassKind::Understated, false)]);
    assert_eq!(
        ways(&with(8192, 6144)),
        [],
        "a quarter may be what no call shows"
    );
    assert_eq!(ways(&with(8192, 6142)), [(BypassKind::Understated, false)]);
    let beyond = with(9 << 10, 0);
    assert_eq!(ways(&beyond), [(BypassKind::Understated, true)]);
    assert_eq!(beyond.unmanaged, Bytes::gib(1), "what it took from others");
    let suspect = beyond.suspects[0];
    assert_eq!(BypassPolicy::Kill.action_for(&suspect), BypassPolicy::Kill);
    let within = with(2048, 0).suspects[0];
    assert_eq!(BypassPolicy::Kill.action_for(&within), BypassPolicy::Deny);
    assert_eq!(BypassPolicy::Warn.action_for(&within), BypassPolicy::Warn);
}

/// One process that holds so much of its slice of 8 GiB, in MiB, and is charged for so much.
fn alone(used: u64, charged: u64) -> Sample {
    let (used, charged) = (Bytes::mib(used), Bytes::mib(charged));
    gpu(charged, vec![seen(7, used, member(Some(charged)))])
}

#[test]
fn a_slice_that_holds_more_than_it_was_granted_is_overdrawn_however_true_its_account_is() {
    let balance = compare(&alone(30 << 10, 30 << 10));
    assert_eq!(ways(&balance), [(BypassKind::Overdrawn, true)]);
    assert_eq!(
        BypassPolicy::Kill.action_for(&balance.suspects[0]),
        BypassPolicy::Kill
    );
    assert_eq!(
        balance.unmanaged,
        Bytes::gib(22),
        "no neighbour is to have it"
    );
    let slice = balance.slices[0];
    assert_eq!((slice.mismatch(), slice.uncounted), (Some(0), Bytes::ZERO));
}

#[test]
fn what_an_honest_account_may_be_short_of_overdraws_nothing_and_a_little_more_is_not_killed_for() {
    let at = |used, charged| ways(&compare(&alone(used, charged)));
    assert_eq!(at((8 << 10) + 512, 8 << 10), []);
    assert_eq!(
        at((8 << 10) + 514, 8 << 10),
        [(BypassKind::Overdrawn, false)]
    );
    assert_eq!(
        at(10 << 10, 8 << 10),
        [(BypassKind::Overdrawn, false)],
        "a quarter"
    );
    assert_eq!(at((10 << 10) + 2, 8 << 10), [(BypassKind::Overdrawn, true)]);
    assert_eq!(
        at((8 << 10) + 514, (8 << 10) + 514),
        [(BypassKind::Overdrawn, true)]
    );
    let excess = compare(&alone((8 << 10) + 2, 8 << 10)).unmanaged;
    assert_eq!(excess, Bytes::mib(2), "every byte of it is not given out");
}

#[test]
fn memory_that_the_driver_shows_with_each_process_that_shares_it_overdraws_nothing() {
    // 5 GiB that one process has exported and the other has imported.
    let shared = Bytes::gib(5);
    let processes = vec![
        seen(7, shared, member(Some(shared))),
        seen(8, shared, member(Some(shared))),
    ];
    let mut sight = gpu(shared, processes);
    sight.used = shared.saturating_add(Bytes::gib(1));
    assert_eq!(
        ways(&compare(&sight)),
        [],
        "the GPU's own figure has it once"
    );
    sight.used = Bytes::gib(10);
    assert_eq!(ways(&compare(&sight)), [(BypassKind::Overdrawn, true); 2]);
    // What the others hold is not this slice's.
    sight
        .processes
        .push(seen(9, Bytes::gib(3), ProcessOwner::Unmanaged));
    assert_eq!(ways(&compare(&sight)), []);
    sight.used = Bytes::gib(13);
    assert_eq!(ways(&compare(&sight)), [(BypassKind::Overdrawn, true); 2]);
}

#[test]
fn a_slice_whose_limit_was_written_over_is_given_no_such_room() {
    let at = |used| {
        let mut sight = alone(used, 8 << 10);
        sight.slices[0].tampered = true;
        ways(&compare(&sight))
    };
    assert_eq!(at(8 << 10), [], "forging alone takes nothing");
    assert_eq!(at((8 << 10) + 32), []);
    assert_eq!(at((8 << 10) + 34), [(BypassKind::Overdrawn, true)]);
}

#[test]
fn all_processes_of_an_overdrawn_slice_are_accused_and_no_others_processes() {
    let held = Bytes::gib(5);
    let mut sight = gpu(
        Bytes::gib(10),
        vec![
            seen(7, held, member(Some(held))),
            seen(8, held, member(Some(held))),
            seen(9, Bytes::mib(600), bare(Limiter::Off)),
            seen(10, Bytes::ZERO, member(Some(Bytes::ZERO))),
            seen(11, Bytes::gib(20), ProcessOwner::Unmanaged),
        ],
    );
    let others = ProcessOwner::Job {
        job: JobId(4),
        account: Some(LedgerEntry {
            charged: held,
            steady: true,
        }),
        limiter: Limiter::Loaded,
        has_escaped: false,
    };
    sight.processes.push(seen(12, held, others));
    sight.used = sight.used.saturating_add(held);
    sight.slices.push(SliceSample {
        job: JobId(4),
        ..sight.slices[0]
    });
    let found: Vec<(u32, BypassKind)> = compare(&sight)
        .suspects
        .iter()
        .map(|suspect| (suspect.process.pid, suspect.kind))
        .collect();
    let (overdrawn, unlimited) = (BypassKind::Overdrawn, BypassKind::Unlimited);
    assert_eq!(found, [(9, unlimited), (7, overdrawn), (8, overdrawn)]);
}

#[test]
fn an_overdraw_is_found_though_the_account_never_rests_or_the_driver_says_nothing() {
    let account = |steady| ProcessOwner::Job {
        job: JOB,
        account: Some(LedgerEntry {
            charged: Bytes::gib(9),
            steady,
        }),
        limiter: Limiter::Loaded,
        has_escaped: false,
    };
    let with = |used: Option<u64>, steady| {
        let one = ProcessSample {
            process: process(7),
            used: used.map(Bytes::gib),
            owner: account(steady),
        };
        let mut sight = gpu(Bytes::gib(9), vec![one]);
        sight.used = Bytes::gib(used.unwrap_or(9));
        let balance = compare(&sight);
        (ways(&balance), balance.unmanaged)
    };
    let gib = Bytes::gib;
    assert_eq!(
        with(Some(30), false),
        (vec![(BypassKind::Overdrawn, true)], gib(22))
    );
    // Each of two figures of a moving account may be of another moment.
    assert_eq!(
        with(Some(9), false),
        (vec![(BypassKind::Overdrawn, false)], gib(1))
    );
    assert_eq!(
        with(Some(9), true),
        (vec![(BypassKind::Overdrawn, true)], gib(1))
    );
    assert_eq!(
        with(None, true),
        (vec![(BypassKind::Overdrawn, true)], gib(1))
    );
}

#[test]
fn a_slice_that_was_just_made_smaller_or_whose_memory_moves_is_not_accused() {
    let mut sight = alone(8 << 10, 8 << 10);
    sight.slices[0].granted = Bytes::gib(2);
    assert_eq!(ways(&compare(&sight)), [], "8 GiB were granted lately");
    assert_eq!(compare(&sight).unmanaged, Bytes::gib(6));
    sight.slices[0].granted = Bytes::ZERO;
    sight.slices[0].granted_recently = None;
    assert_eq!(ways(&compare(&sight)), [], "its memory is put aside");
    assert_eq!(compare(&sight).unmanaged, Bytes::gib(8));
}

#[test]
fn what_was_granted_counts_for_two_seconds_after_a_slice_was_made_smaller() {
    const SECOND: BootNanos = 1_000_000_000;
    let gib = Bytes::gib;
    let mut granted = GrantHistory::default();
    assert_eq!(granted.record(SECOND, gib(8)), gib(8));
    assert_eq!(granted.record(2 * SECOND, gib(2)), gib(8));
    assert_eq!(
        granted.record(3 * SECOND, gib(1)),
        gib(8),
        "the most of them"
    );
    assert_eq!(granted.record(5 * SECOND - 1, gib(1)), gib(8));
    assert_eq!(granted.record(5 * SECOND, gib(1)), gib(1));
    assert_eq!(
        granted.record(6 * SECOND, gib(16)),
        gib(16),
        "more counts at once"
    );
}

#[test]
fn a_gpu_that_the_job_does_not_hold_is_a_bypass_and_what_it_takes_there_is_foreign() {
    let mut sight = gpu(Bytes::ZERO, vec![seen(7, Bytes::gib(2), member(None))]);
    sight.slices[0].job = JobId(4);
    let balance = compare(&sight);
    assert_eq!(ways(&balance), [(BypassKind::OtherGpu, true)]);
    assert_eq!(balance.unmanaged, Bytes::gib(2));
    assert_eq!(balance.slices[0].driver, Some(Bytes::ZERO));
}

#[test]
fn a_changing_ledger_accuses_no_process_and_gives_a_lower_bound() {
    let account = Some(LedgerEntry {
        charged: Bytes::ZERO,
        steady: false,
    });
    let of = ProcessOwner::Job {
        job: JOB,
        account,
        limiter: Limiter::Loaded,
        has_escaped: false,
    };
    let processes = vec![
        seen(7, Bytes::gib(6), of),
        seen(8, Bytes::gib(1), bare(Limiter::Off)),
    ];
    let balance = compare(&gpu(Bytes::ZERO, processes));
    assert_eq!(ways(&balance), [(BypassKind::Unlimited, true)]);
    assert_eq!(balance.inconclusive, [process(7)]);
    let slice = balance.slices[0];
    assert_eq!(
        (slice.uncounted, slice.steady, slice.mismatch()),
        (Bytes::gib(1), false, None)
    );
}

#[test]
fn strangers_are_foreign_and_the_departed_are_so_until_the_driver_has_their_memory_back() {
    let processes = vec![
        seen(7, Bytes::gib(2), ProcessOwner::Unmanaged),
        seen(8, Bytes::gib(3), ProcessOwner::Unmanaged),
        seen(9, Bytes::gib(4), ProcessOwner::Exited),
    ];
    let mut sight = gpu(Bytes::ZERO, processes);
    for (used, unlisted) in [(9, 4), (5, 0)] {
        sight.used = Bytes::gib(used);
        let balance = compare(&sight);
        assert_eq!(balance.unmanaged, Bytes::gib(used));
        assert_eq!(balance.unlisted, Bytes::gib(unlisted));
        assert_eq!(ways(&balance), []);
    }
}

#[test]
fn memory_of_no_process_is_taken_beyond_some_slack_and_beyond_what_a_ledger_explains() {
    let held = Bytes::gib(1);
    let at = |charged, used| {
        let mut sight = gpu(charged, vec![seen(7, held, member(Some(held)))]);
        sight.used = used;
        let balance = compare(&sight);
        assert_eq!(balance.unmanaged, balance.unlisted);
        balance.unlisted
    };
    // One process, and once more.
    let slack = SLACK.saturating_add(SLACK);
    let (at_most, beyond) = (held.saturating_add(slack), Bytes::mib(1024 + 65));
    assert_eq!(at(held, at_most), Bytes::ZERO);
    assert_eq!(at(held, beyond), Bytes::mib(65));
    // Managed memory of a slice of 8 GiB: what its ledger says counts as far as its grant goes.
    assert_eq!(at(Bytes::gib(6), Bytes::gib(6)), Bytes::ZERO);
    assert_eq!(at(Bytes::gib(4), Bytes::gib(6)), Bytes::gib(2));
    assert_eq!(at(Bytes::gib(30), Bytes::gib(30)), Bytes::gib(22));
}

#[test]
fn a_stranger_of_unknown_size_has_all_that_is_not_ours() {
    let unknown = |of| ProcessSample {
        process: process(7),
        used: None,
        owner: of,
    };
    let charged = Bytes::gib(4);
    let at = |used, of| {
        let mut sight = gpu(charged, vec![unknown(of)]);
        sight.used = used;
        compare(&sight)
    };
    let all = Bytes::gib(40);
    assert_eq!(at(all, ProcessOwner::Unmanaged).unmanaged, all);
    let ours = at(charged, member(Some(charged)));
    assert_eq!(
        (ours.unmanaged, ours.slices[0].driver, ways(&ours)),
        (Bytes::ZERO, None, vec![])
    );
    assert_eq!(
        ways(&at(charged, bare(Limiter::Off))),
        [(BypassKind::Unlimited, true)]
    );
    assert_eq!(ways(&at(charged, bare(Limiter::Loaded))), []);
}

#[test]
fn a_bypass_that_is_seen_twice_is_reported_once_and_over_when_gone() {
    let on = GpuUuid::from_bytes([1; 16]);
    let sight = gpu(
        Bytes::ZERO,
        vec![seen(7, Bytes::gib(1), bare(Limiter::Off))],
    );
    let suspect = compare(&sight).suspects[0];
    let (seen, there) = ([(suspect, Limiter::Off)], [process(7)]);
    let mut list = Watchlist::default();

    assert_eq!(list.update(100, &on, &seen, &there, &[]), []);
    assert!(list.is_curious());
    let accused = BypassChange::Detected {
        gpu: on.clone(),
        suspect,
        limiter: Limiter::Off,
        since: 100,
    };
    assert_eq!(list.update(130, &on, &seen, &there, &[]), [accused]);
    assert!(!list.is_curious());
    let goes_on = BypassChange::Updated {
        gpu: on.clone(),
        suspect,
    };
    assert_eq!(list.update(160, &on, &seen, &there, &[]), [goes_on]);
    let elsewhere = GpuUuid::from_bytes([2; 16]);
    assert_eq!(list.update(190, &elsewhere, &[], &[], &[]), []);
    let over = BypassChange::Cleared {
        gpu: on.clone(),
        suspect,
    };
    assert_eq!(list.update(220, &on, &[], &[], &[]), [over]);
    assert_eq!(list.update(250, &on, &[], &[], &[]), []);
}

#[test]
fn a_bypass_that_stops_for_a_moment_has_not_stopped() {
    const SECOND: BootNanos = 1_000_000_000;
    let on = GpuUuid::from_bytes([1; 16]);
    let processes = vec![seen(7, Bytes::gib(1), bare(Limiter::Off))];
    let suspect = compare(&gpu(Bytes::ZERO, processes)).suspects[0];
    let (seen, there) = ([(suspect, Limiter::Off)], [process(7)]);
    let mut list = Watchlist::default();
    let mut told = 0;
    for now in 1..10 {
        let seen = if now < 3 || now % 2 == 0 {
            &seen[..]
        } else {
            &[]
        };
        let changes = list.update(now * SECOND, &on, seen, &there, &[]);
        let tells = |change: &&BypassChange| !matches!(change, BypassChange::Updated { .. });
        told += changes.iter().filter(tells).count();
    }
    assert_eq!(told, 1, "accused once");
    assert_eq!(
        list.update(20 * SECOND, &on, &[], &there, &there),
        [],
        "unsure"
    );
    let over = BypassChange::Cleared {
        gpu: on.clone(),
        suspect,
    };
    assert_eq!(list.update(21 * SECOND, &on, &[], &there, &[]), [over]);
}

#[test]
fn a_process_that_is_suspect_once_is_no_bypass_and_neither_is_the_next_with_that_pid() {
    let on = GpuUuid::from_bytes([1; 16]);
    let charged = Bytes::gib(1);
    let sight = gpu(charged, vec![seen(7, Bytes::gib(4), member(Some(charged)))]);
    let first = compare(&sight).suspects[0];
    assert!(!first.harmful, "within the limit");
    let second = Suspect {
        process: Process {
            start_time: 9999,
            ..first.process
        },
        ..first
    };
    let mut list = Watchlist::default();
    let mut look = |now, suspects: &[Suspect]| {
        let there: Vec<Process> = suspects.iter().map(|suspect| suspect.process).collect();
        let suspects: Vec<_> = suspects.iter().map(|one| (*one, Limiter::Loaded)).collect();
        list.update(now, &on, &suspects, &there, &[])
    };
    assert_eq!(look(1, &[first]), []);
    assert_eq!(look(2, &[second]), []);
    assert_eq!(look(3, &[]), []);
    assert_eq!(look(4, &[first]), []);
    assert!(list.is_curious());
}

/// A job that starts a process for each time that it takes memory.
#[test]
fn a_job_that_does_harm_at_two_looks_within_ten_seconds_has_a_bypass() {
    const SECOND: BootNanos = 1_000_000_000;
    let gpus = [1, 2].map(|byte| GpuUuid::from_bytes([byte; 16]));
    let suspect = |pid| {
        let processes = vec![seen(pid, Bytes::gib(20), bare(Limiter::Off))];
        compare(&gpu(Bytes::ZERO, processes)).suspects[0]
    };
    let mut list = Watchlist::default();
    let mut look = |second, of: &[Suspect]| {
        let now = second * SECOND;
        let there: Vec<Process> = of.iter().map(|suspect| suspect.process).collect();
        let of: Vec<_> = of.iter().map(|one| (*one, Limiter::Off)).collect();
        let mut found = Vec::new();
        for gpu in &gpus {
            found.extend(list.update(now, gpu, &of, &there, &[]));
        }
        let since = |change| match change {
            BypassChange::Detected { suspect, since, .. } => Some((suspect, since / SECOND)),
            _ => None,
        };
        found.into_iter().filter_map(since).collect::<Vec<_>>()
    };
    assert_eq!(look(1, &[suspect(7)]), [], "one look, at two GPUs");
    assert_eq!(look(2, &[]), []);
    assert_eq!(look(11, &[suspect(8)]), [], "too long after the first");
    let neighbour = Suspect {
        job: JobId(4),
        ..suspect(9)
    };
    assert_eq!(look(12, &[neighbour]), [], "another job");
    assert_eq!(look(13, &[]), []);
    let found = suspect(10);
    assert_eq!(look(20, &[found]), [(found, 11), (found, 11)]);
}

#[test]
fn what_was_accused_on_a_gpu_that_is_gone_is_over() {
    let on = [1, 2].map(|byte| GpuUuid::from_bytes([byte; 16]));
    let processes = vec![seen(7, Bytes::gib(1), bare(Limiter::Off))];
    let suspect = compare(&gpu(Bytes::ZERO, processes)).suspects[0];
    let mut list = Watchlist::default();
    for now in [1, 2] {
        for gpu in &on {
            list.update(now, gpu, &[(suspect, Limiter::Off)], &[process(7)], &[]);
        }
    }
    let over = BypassChange::Cleared {
        gpu: on[1].clone(),
        suspect,
    };
    assert_eq!(list.retain(|gpu| *gpu == on[0]), [over]);
    assert_eq!(list.retain(|gpu| *gpu == on[0]), []);
}

#[test]
fn a_policy_is_a_word() {
    for policy in BypassPolicy::ALL {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    let error = "murder".parse::<BypassPolicy>().unwrap_err();
    assert!(error.hint().contains("kill"));
}
