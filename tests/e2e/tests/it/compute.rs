//! Shares of compute time, through the daemon, the limiter and the simulated GPU's own time. The machine is shared with
//! whatever else runs, and tenants launch by its processors: so what one got is compared with what another got at the same time, or with what
//! the same ones got when nothing was amiss, and kernels are long enough for the GPU, and not a processor, to be what is wanted.
//! `cargo xtask bench` has the figures, also for short kernels.

use std::path::Path;

use divvy_e2e::{Home, Tenant, can_unshare, part, until};
use rustix::process::{Pid, Signal, kill_process};

/// Simulated GPUs whose programs come before whatever else the machine does: what is measured is who waits for whom at the GPU, and not for a
/// processor. For the same reason `.config/nextest.toml` runs one of these tests at a time.
fn alone(gpus: usize) -> Home {
    Home::new(&format!("a100-40gb:{gpus}")).before_others()
}

/// Keeps five kernels on the GPU.
const FLOOD: &str = "flood 2000";

/// Tenants beside each other on one GPU; the part of it that each used, after a second to settle.
fn beside(home: &Home, tenants: &[(&[&str], &str)]) -> Vec<f64> {
    let mut running: Vec<Tenant> = tenants
        .iter()
        .map(|(flags, _)| Tenant::run(home, flags))
        .collect();
    let start = running[0].clock();
    for (tenant, (_, what)) in running.iter_mut().zip(tenants) {
        tenant.begin(what, 4_500);
    }
    running
        .iter_mut()
        .map(|tenant| {
            let _ = tenant.hear();
            part(&tenant.used(start), 10..42)
        })
        .collect()
}

fn pid(home: &Home, job: &str) -> Pid {
    let pid = home.running(job).pid.expect("it runs");
    Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("not zero")
}

/// Milliseconds that a job's launches have stood at the gate.
fn throttled(home: &Home, job: &str) -> u64 {
    let time = home.job(job).compute_time;
    time.expect("it takes turns").throttled_ms
}

/// Until a job has waited for others that long: they take turns.
fn turns_are_taken(home: &Home, job: &str, ms: u64) {
    until("turns are taken", || {
        (throttled(home, job) > ms).then_some(())
    });
}

#[test]
fn two_floods_get_what_their_shares_say() {
    let home = alone(1);
    let _daemon = home.daemon(&[]);
    let used = beside(&home, &[(&["-g", "0.25"], FLOOD), (&["-g", "0.75"], FLOOD)]);
    let share = used[0] / (used[0] + used[1]);
    assert!(
        (share - 0.25).abs() <= 0.05,
        "{share:.3} of what the two used: {used:?}"
    );
}

#[test]
fn what_one_does_not_use_the_other_gets() {
    let home = alone(1);
    let _daemon = home.daemon(&[]);
    let _idle = Tenant::run(&home, &["-g", "0.5"]);
    let mut tenants =
        ["fair", "none"].map(|compute| Tenant::run(&home, &["-g", "0.25", "--compute", compute]));
    let mut made = [0, 0];
    for _ in 0..4 {
        for (tenant, made) in tenants.iter_mut().zip(&mut made) {
            tenant.begin("burst 200 100 0", 800);
            *made += tenant.hear()[0];
        }
    }
    let [fair, ungated] = made;
    assert!(
        fair * 10 >= ungated * 8,
        "{fair} kernels of the {ungated} that one who takes no turns makes"
    );
    let waited = throttled(&home, "2");
    assert!(waited <= 320, "{waited} of 3200 ms at the gate");
}

#[test]
fn a_strict_share_is_never_exceeded_on_an_idle_gpu() {
    let home = alone(1);
    let _daemon = home.daemon(&[]);
    for flags in [
        &["-g", "0.25", "--compute", "strict"][..],
        &["-g", "1", "--compute", "strict=0.25"],
    ] {
        let used = beside(&home, &[(flags, FLOOD)]);
        assert!((0.1..=0.29).contains(&used[0]), "{flags:?}: {used:?}");
    }
}

#[test]
fn a_share_of_compute_of_its_own_counts_instead_of_the_memorys() {
    let home = alone(1);
    let _daemon = home.daemon(&[]);
    let used = beside(
        &home,
        &[
            (&["--gpu-memory", "4G", "--compute", "fair=0.8"], FLOOD),
            (&["-g", "0.5", "--compute", "fair=0.2"], FLOOD),
        ],
    );
    let share = used[0] / (used[0] + used[1]);
    assert!(
        (share - 0.8).abs() <= 0.06,
        "{share:.3} of what the two used: {used:?}"
    );
}

#[test]
fn shares_follow_a_resize_while_programs_run() {
    let home = alone(1);
    let _daemon = home.daemon(&[]);
    let mut tenants = [(); 2].map(|()| Tenant::run(&home, &["-g", "0.5"]));
    let start = tenants[0].clock();
    for tenant in &mut tenants {
        tenant.begin(FLOOD, 0);
    }
    turns_are_taken(&home, "1", 1_200);
    let resized = usize::try_from(tenths_since(start)).expect("a few");
    let said = home.divvy(&["resize", "1", "--compute", "fair=0.2"]).ok();
    assert!(said.stdout.contains("fair=0.2"), "{}", said.stdout);
    assert_eq!(home.job("1").compute, "fair=0.2");
    let used = tenants.each_mut().map(|tenant| {
        let _ = tenant.stop();
        part(&tenant.used(start), 5..resized)
    });
    let before = used[0] / (used[0] + used[1]);
    assert!((before - 0.5).abs() <= 0.07, "{before:.3} before: {used:?}");
    // However late it was resized: from here on it is. 0.2 beside 0.5.
    let [one, other] = flooding(&mut tenants, 10..42);
    let after = one / (one + other);
    assert!(
        (after - 0.286).abs() <= 0.06,
        "{after:.3} after: {one:.3} and {other:.3}"
    );
}

#[test]
fn what_a_slice_asked_and_used_is_shown() {
    let home = alone(1);
    let _daemon = home.daemon(&[]);
    let mut tenants = ["0.25", "0.5"].map(|share| Tenant::run(&home, &["-g", share]));
    for tenant in &mut tenants {
        tenant.begin(FLOOD, 0);
    }
    let time = until("what was used is known", || {
        let time = home.job("1").compute_time?;
        (time.share_used? > 0 && time.throttled_ms > 0).then_some(time)
    });
    assert_eq!(time.share_asked, 250);
    let said = home.divvy(&["describe", "1"]).exits(0);
    assert!(said.stdout.contains("share 0.25"), "{}", said.stdout);
    let slices = home.items(&["gpus"])[0]["slices"].clone();
    assert_eq!(slices[1]["compute_time"]["share_asked"], 500, "{slices}");
    for tenant in &mut tenants {
        let _ = tenant.stop();
    }
}

/// What becomes of a tenant while it has the turn and a kernel of 200 ms on the GPU: a signal, or none where it sleeps.
const ENDS: [(&str, Option<Signal>); 3] = [
    ("hold 200000", Some(Signal::KILL)),
    ("hold 200000", Some(Signal::STOP)),
    ("launch 200000 1", None),
];

#[test]
fn a_holder_that_is_killed_or_stopped_or_sleeps_blocks_the_others_no_longer_than_usual() {
    let home = alone(1);
    let _daemon = home.daemon(&[]);
    let mut other = Tenant::run(&home, &["-g", "0.2"]);
    // With one beside it nobody is alone, to leave hundreds of kernels on the GPU for a newcomer to wait for.
    let _idle = Tenant::run(&home, &["-g", "0.2"]);
    let mut holders = Vec::new();
    for ((what, signal), job) in ENDS.into_iter().zip(["3", "4", "5"]) {
        let mut holder = Tenant::run(&home, &["-g", "0.2"]);
        let process = pid(&home, job);
        // Turns as they should be: the other waits for one of these kernels at a time.
        let start = holder.clock();
        other.begin("flood 200", 0);
        let _ = holder.ask("loop 200000 0 1200");
        let end = holder.clock();
        let _ = other.stop();
        let usual = other.gap(start, end);
        assert!(usual >= 190, "{usual} ms, and the kernels take 200");

        holder.begin(what, 0);
        assert_eq!(holder.hear(), [0], "its kernel is on the GPU");
        let start = other.clock();
        other.begin("flood 200", 1_500);
        if let Some(signal) = signal {
            kill_process(process, signal).expect("it is ours");
        }
        let _ = other.hear();
        let longest = other.gap(start, start + 1_400);
        assert!(
            longest <= 2 * usual,
            "{longest} ms beside one that got {signal:?}; usually {usual}"
        );
        let before = throttled(&home, "1");
        other.begin("flood 200", 1_500);
        let _ = other.hear();
        let waited = throttled(&home, "1") - before;
        assert!(
            waited <= 300,
            "{waited} of 1500 ms at the gate beside one that got {signal:?}"
        );
        holders.push(holder);
    }
}

/// As in a container: whether it is stopped is seen by nobody outside, and it stands at the gate with a kernel on the GPU.
#[test]
fn one_that_is_stopped_in_a_namespace_of_its_own_is_waited_for_once() {
    if !can_unshare(&["unshare", "--pid", "--fork"]) {
        return;
    }
    let home = alone(1);
    let _daemon = home.daemon(&[]);
    let mut other = Tenant::run(&home, &["-g", "0.5"]);
    let mut apart = Tenant::apart(&home, &["-g", "0.5"]);
    let start = other.clock();
    other.begin(FLOOD, 0);
    apart.begin("flood 50000", 0);
    turns_are_taken(&home, "2", 500);
    // Nearly all the time it waits for its turn, beside a kernel of its own.
    let process = only_child(pid(&home, "2"));
    stop_asleep(process);
    let stopped = tenths_since(start) as usize;
    until("time passes", || {
        (tenths_since(start) as usize > stopped + 45).then_some(())
    });
    let _ = other.stop();
    let used = part(&other.used(start), stopped + 15..stopped + 45);
    assert!(used >= 0.8, "{used} of the GPU beside one that is stopped");
    kill_process(process, Signal::CONT).expect("it is ours");
}

/// Stops a process where all of its threads sleep in the kernel: the simulated driver's locks are all its processes', and whoever is
/// stopped with one stops everybody.
fn stop_asleep(process: Pid) {
    let pid = process.as_raw_nonzero();
    let is_asleep = |task: &Path| {
        let call = std::fs::read_to_string(task.join("syscall")).unwrap_or_default();
        call.split(' ').next().is_some_and(|number| number == FUTEX)
    };
    until("it is stopped asleep", || {
        kill_process(process, Signal::STOP).expect("it is ours");
        let stat = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        until("it is stopped", || stat().contains(") T ").then_some(()));
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
        if tasks.flatten().all(|task| is_asleep(&task.path())) {
            return Some(());
        }
        kill_process(process, Signal::CONT).expect("it is ours");
        None
    });
}

/// futex(2), as `/proc/PID/syscall` has it.
const FUTEX: &str = if cfg!(target_arch = "x86_64") {
    "202"
} else {
    "98"
};

fn only_child(of: Pid) -> Pid {
    let pid = of.as_raw_nonzero();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let child = children.expect("it lives").trim().parse();
    Pid::from_raw(child.expect("one child")).expect("not zero")
}

/// Tenths of a second since a moment on the tenants' clock, which is the machine's uptime.
fn tenths_since(start: u64) -> u64 {
    let uptime = std::fs::read_to_string("/proc/uptime").expect("Linux has it");
    let seconds: f64 = uptime
        .split(' ')
        .next()
        .and_then(|text| text.parse().ok())
        .expect("seconds");
    (seconds * 10.0) as u64 - start / 100
}

#[test]
fn tenants_go_on_without_a_daemon_and_take_turns_again_under_the_next() {
    let home = alone(1);
    let daemon = home.daemon(&[]);
    let mut tenants = ["0.2", "0.8"].map(|share| Tenant::run(&home, &["-g", share]));
    let start = tenants[0].clock();
    for tenant in &mut tenants {
        tenant.begin(FLOOD, 0);
    }
    turns_are_taken(&home, "1", 1_200);
    let crashed = usize::try_from(tenths_since(start)).expect("a few");
    daemon.crash();
    let with = tenants.each_mut().map(|tenant| {
        let _ = tenant.stop();
        part(&tenant.used(start), 5..crashed)
    });
    // For a second the last grants count; from then on the driver divides.
    let [one, other] = flooding(&mut tenants, 15..32);
    let [before, after] = [with[0] + with[1], one + other];
    assert!(
        after >= 0.7 * before,
        "{after:.3} of the GPU used, and {before:.3} while turns were taken"
    );
    let share = one / after;
    assert!(
        (0.35..=0.65).contains(&share),
        "{share:.3} where nobody gives turns"
    );
    let _daemon = home.daemon(&[]);
    let [one, other] = flooding(&mut tenants, 10..42);
    let share = one / (one + other);
    assert!(
        (share - 0.2).abs() <= 0.05,
        "{share:.3} of what the two used: {one:.3} and {other:.3}"
    );
}

/// What two floods beside each other use of the GPU, in these tenths of a second from now on.
fn flooding(tenants: &mut [Tenant; 2], tenths: std::ops::Range<usize>) -> [f64; 2] {
    let start = tenants[0].clock();
    for tenant in tenants.iter_mut() {
        tenant.begin(FLOOD, tenths.end as u64 * 100 + 300);
    }
    tenants.each_mut().map(|tenant| {
        let _ = tenant.hear();
        part(&tenant.used(start), tenths.clone())
    })
}

/// Whether ranks make progress beside floods, and each flood has a quarter of the time.
///
/// Ranks that were kept apart at the end of a lease would wait until no process waits for their work: a second (the
/// core's `LONGEST_DRAIN`) at every such end, so that next to none of their speed alone would be left. A machine that is
/// itself slow to wake them can miss one of the two figures.
fn progress(part: f64, longest: u64, used: u64, of: u64) -> Result<(), String> {
    if (part >= 1.0 / 6.0 || longest < 1_000) && used * 4 >= of {
        return Ok(());
    }
    Err(format!(
        "{part:.3} of the speed without floods; {longest} ms without a collective; a flood used {used} of {of} ms"
    ))
}

/// One of six measurements has to succeed: a busy machine spoils one, a scheduler that keeps ranks apart all of them.
fn in_one_of_six(mut measure: impl FnMut() -> Result<(), String>) {
    let mut failed = Vec::new();
    for _ in 0..6 {
        match measure() {
            Ok(()) => return,
            Err(why) => failed.push(why),
        }
    }
    panic!("{}", failed.join("\n"));
}

#[test]
fn ranks_that_wait_for_each_other_get_on_beside_a_flood() {
    let home = alone(2);
    let _daemon = home.daemon(&[]);
    let mut flood = Tenant::run(&home, &["-g", "0.5", "--gpus-on", "0"]);
    let mut ranks = Tenant::run(&home, &["-g", "2x0.5"]);
    in_one_of_six(|| {
        let alone = ranks.ask("ranks 300 2000")[0];
        flood.begin(FLOOD, 0);
        let start = ranks.clock();
        let beside = ranks.ask("ranks 300 3000")[0];
        let end = ranks.clock();
        let used = flood.stop()[0] * 2;
        let speed = |made: u64, ms: u64| made as f64 / ms as f64;
        let part = speed(beside, end - start) / speed(alone, 2_000);
        progress(part, ranks.gap(start, end), used, end - start)
    });
}

/// How long two ranks, each a process with a GPU of its own, take for so many collectives, and the longest time without one; in
/// milliseconds.
fn meet(ranks: &mut [Tenant; 2], times: u64) -> (u64, u64) {
    let start = ranks[0].clock();
    for (rank, what) in ranks.iter_mut().zip(["meet 1000", "meet 3000"]) {
        rank.begin(what, times);
    }
    let took = ranks.each_mut().map(|rank| rank.hear()[0]);
    let end = ranks[0].clock();
    (took[0], ranks[0].gap(start, end))
}

#[test]
fn ranks_in_two_processes_get_on_beside_a_flood_on_each_of_their_gpus() {
    let home = alone(2);
    let _daemon = home.daemon(&[]);
    let first = Tenant::run(&home, &["-g", "2x0.5"]);
    let mut ranks = [first, Tenant::inside(&home, "1", 1)];
    let mut floods = ["0", "1"].map(|gpu| Tenant::run(&home, &["-g", "0.5", "--gpus-on", gpu]));
    in_one_of_six(|| {
        let (alone, _) = meet(&mut ranks, 300);
        for flood in &mut floods {
            flood.begin(FLOOD, 0);
        }
        let (beside, longest) = meet(&mut ranks, 300);
        let used = floods.each_mut().map(|flood| flood.stop()[0] * 2);
        let least = used.into_iter().min().unwrap_or_default();
        progress(alone as f64 / beside as f64, longest, least, beside)
    });
}
