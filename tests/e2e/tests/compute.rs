//! Shares of compute time, through the daemon, the limiter and the simulated GPU's own time. The machine is shared with
//! whatever else runs: bounds are on what tenants get of what the GPU did, and wide. `cargo xtask bench` has the figures.

use std::sync::{Mutex, MutexGuard, PoisonError};

use divvy_e2e::{Home, Tenant, part, until};
use rustix::process::{Pid, Signal, kill_process};

/// Simulated GPUs, for one test at a time: what is measured is who waits for whom at the GPU, and not for a processor. For the same reason
/// all that is started there comes before whatever else the machine does.
fn alone(gpus: usize) -> (MutexGuard<'static, ()>, Home) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    (one, Home::new(&format!("a100-40gb:{gpus}")).before_others())
}

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

fn signal(home: &Home, job: &str, signal: Signal) {
    let pid = home.running(job).pid.expect("it runs");
    let pid = Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("not zero");
    kill_process(pid, signal).expect("it is ours");
}

#[test]
fn two_floods_get_what_their_shares_say() {
    let (_alone, home) = alone(1);
    let _daemon = home.daemon(&[]);
    let used = beside(
        &home,
        &[
            (&["-g", "0.25"], "flood 200"),
            (&["-g", "0.75"], "flood 200"),
        ],
    );
    let share = used[0] / (used[0] + used[1]);
    assert!(
        (share - 0.25).abs() <= 0.05,
        "{share:.3} of what the two used: {used:?}"
    );
}

#[test]
fn what_one_does_not_use_the_other_gets() {
    let (_alone, home) = alone(1);
    let _daemon = home.daemon(&[]);
    let idle = Tenant::run(&home, &["-g", "0.75"]);
    let used = beside(&home, &[(&["-g", "0.25"], "flood 200")]);
    drop(idle);
    assert!(used[0] >= 0.6, "{used:?} of an idle GPU");
}

#[test]
fn a_strict_share_is_never_exceeded_on_an_idle_gpu() {
    let (_alone, home) = alone(1);
    let _daemon = home.daemon(&[]);
    for flags in [
        &["-g", "0.25", "--compute", "strict"][..],
        &["-g", "1", "--compute", "strict=0.25"],
    ] {
        let used = beside(&home, &[(flags, "flood 200")]);
        assert!((0.1..=0.29).contains(&used[0]), "{flags:?}: {used:?}");
    }
}

#[test]
fn a_share_of_compute_of_its_own_counts_instead_of_the_memorys() {
    let (_alone, home) = alone(1);
    let _daemon = home.daemon(&[]);
    let used = beside(
        &home,
        &[
            (
                &["--gpu-memory", "4G", "--compute", "fair=0.8"],
                "flood 200",
            ),
            (&["-g", "0.5", "--compute", "fair=0.2"], "flood 200"),
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
    let (_alone, home) = alone(1);
    let _daemon = home.daemon(&[]);
    let mut tenants = [(); 2].map(|()| Tenant::run(&home, &["-g", "0.5"]));
    let start = tenants[0].clock();
    for tenant in &mut tenants {
        tenant.begin("flood 200", 6_000);
    }
    until("the two take turns", || {
        home.job("1")
            .compute_time
            .filter(|time| time.throttled_ms > 1_200)
    });
    let resized = usize::try_from(tenths_since(start)).expect("a few");
    let said = home.divvy(&["resize", "1", "--compute", "fair=0.2"]).ok();
    assert!(said.stdout.contains("fair=0.2"), "{}", said.stdout);
    assert_eq!(home.job("1").compute, "fair=0.2");
    let share = |used: &[Vec<f64>; 2], tenths: std::ops::Range<usize>| {
        let [one, other] = [0, 1].map(|tenant| part(&used[tenant], tenths.clone()));
        one / (one + other)
    };
    let used = tenants.each_mut().map(|tenant| {
        let _ = tenant.hear();
        tenant.used(start)
    });
    let before = share(&used, 5..resized.min(58));
    assert!((before - 0.5).abs() <= 0.07, "{before:.3} before: {used:?}");
    // However late it was resized: from here on it is. 0.2 beside 0.5.
    let start = tenants[0].clock();
    for tenant in &mut tenants {
        tenant.begin("flood 200", 4_500);
    }
    let used = tenants.each_mut().map(|tenant| {
        let _ = tenant.hear();
        tenant.used(start)
    });
    let after = share(&used, 10..42);
    assert!((after - 0.286).abs() <= 0.06, "{after:.3} after: {used:?}");
}

#[test]
fn what_a_slice_asked_and_used_is_shown() {
    let (_alone, home) = alone(1);
    let _daemon = home.daemon(&[]);
    let mut tenants = [("0.25", "flood 200"), ("0.5", "flood 200")]
        .map(|(share, what)| (Tenant::run(&home, &["-g", share]), what));
    for (tenant, what) in &mut tenants {
        tenant.begin(what, 4_000);
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
    for (tenant, _) in &mut tenants {
        let _ = tenant.hear();
    }
}

#[test]
fn a_stopped_or_killed_tenant_does_not_hold_the_others_up() {
    let (_alone, home) = alone(1);
    let _daemon = home.daemon(&[]);
    let mut other = Tenant::run(&home, &["-g", "0.5"]);
    let mut victim = Tenant::run(&home, &["-g", "0.5"]);
    victim.begin("flood 200", 600_000);
    other.begin("flood 200", 3_000);
    // It holds or waits for the GPU by then.
    until("the two take turns", || {
        home.job("1")
            .compute_time
            .filter(|time| time.throttled_ms > 200)
    });
    signal(&home, "2", Signal::STOP);
    let _ = other.hear();
    let start = other.clock();
    other.begin("flood 200", 4_500);
    let _ = other.hear();
    let used = other.used(start);
    let alone = part(&used, 10..42);
    assert!(
        alone >= 0.75,
        "{alone:.3} beside a stopped tenant: {used:?}"
    );

    other.begin("flood 200", 3_000);
    signal(&home, "2", Signal::KILL);
    assert!(other.hear()[0] > 1_000, "kernels beside a killed tenant");
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
    let (_alone, home) = alone(1);
    let daemon = home.daemon(&[]);
    let mut tenants = ["0.2", "0.8"].map(|share| Tenant::run(&home, &["-g", share]));
    for tenant in &mut tenants {
        tenant.begin("flood 200", 3_000);
    }
    daemon.crash();
    for tenant in &mut tenants {
        assert!(tenant.hear()[0] > 500, "kernels while nobody gives turns");
    }
    let _daemon = home.daemon(&[]);
    let start = tenants[0].clock();
    for tenant in &mut tenants {
        tenant.begin("flood 200", 4_500);
    }
    let used = tenants.each_mut().map(|tenant| {
        let _ = tenant.hear();
        part(&tenant.used(start), 10..42)
    });
    let share = used[0] / (used[0] + used[1]);
    assert!(
        (share - 0.2).abs() <= 0.05,
        "{share:.3} of what the two used: {used:?}"
    );
}

#[test]
fn ranks_that_wait_for_each_other_get_on_beside_a_flood() {
    let (_alone, home) = alone(2);
    let _daemon = home.daemon(&[]);
    let mut flood = Tenant::run(&home, &["-g", "0.5", "--gpus-on", "0"]);
    let mut ranks = Tenant::run(&home, &["-g", "2x0.5"]);
    flood.begin("flood 200", 3_500);
    ranks.begin("ranks 300", 3_000);
    assert!(ranks.hear()[0] > 100, "collectives of two ranks");
    let _ = flood.hear();
}
