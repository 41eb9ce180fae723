//! Eight processes of one slice take what they can get, over and over. Two referees: the driver, watched from outside the
//! slice, and the ledger.

use divvy_testkit::Rng;

use crate::support::{CONTEXT, MIB, Probe, ROOM, Rig, Way};

const PROCESSES: u64 = 8;
/// `race::exhaustive` of the end-to-end tests has 1,000 rounds of the same races.
const ROUNDS: u64 = 400;
const KILLS: u64 = 60;

fn racers(rig: &Rig) -> Vec<Probe> {
    (0..PROCESSES).map(|_| rig.ready(Way::Handle)).collect()
}

/// A process outside that watches how much of the GPU is in use.
fn watcher(rig: &Rig) -> Probe {
    let mut watcher = rig.outside();
    assert_eq!(watcher.ask("watch 0"), [0]);
    watcher
}

/// `slack`: bytes that the driver may briefly hold beyond the limit, of allocations that are refused in the end.
fn race(kind: &str, most: u64, slack: u64) {
    let rig = Rig::new(PROCESSES, ROOM);
    let mut racers = racers(&rig);
    let mut watcher = watcher(&rig);
    for (seed, racer) in racers.iter_mut().enumerate() {
        racer.say(&format!("race {kind} {ROUNDS} {seed} {most} {ROOM}"));
    }
    for racer in &mut racers {
        let said = racer.hear();
        assert_eq!(
            said[1], 0,
            "{kind}: a call failed otherwise than at the limit"
        );
        assert!(said[0] > 0, "{kind}: nobody was ever refused");
        assert_eq!(
            said[2], 0,
            "{kind}: all together were granted more than the slice has"
        );
    }
    for racer in &mut racers {
        assert_eq!(racer.ask("sync"), [0]);
        let _ = racer.info();
    }
    let peak = rig.peak(&mut watcher);
    assert!(
        peak <= rig.limit + slack,
        "{kind}: {} bytes over the limit",
        peak - rig.limit
    );
    assert!(
        peak > PROCESSES * CONTEXT,
        "{kind}: the watcher saw nothing"
    );
    assert!(
        rig.usage().peak <= rig.limit + slack,
        "{kind}: the ledger itself went over"
    );
    assert_eq!(
        rig.charged(),
        PROCESSES * CONTEXT,
        "{kind}: the ledger leaks"
    );
    assert_eq!(rig.truth(), PROCESSES * CONTEXT, "{kind}: the driver leaks");
    for racer in racers {
        racer.ends_silently();
    }
}

#[test]
fn racing_for_linear_memory_no_process_exceeds_the_limit() {
    race("linear", 64 * MIB, 0);
}

#[test]
fn racing_for_handles_no_process_exceeds_the_limit() {
    race("vmm", 64 * MIB, 0);
}

#[test]
fn racing_for_managed_memory_no_process_exceeds_the_limit() {
    race("managed", 256 * MIB, 0);
}

#[test]
fn racing_for_stream_ordered_memory_no_process_exceeds_the_limit() {
    // A pool with holes may grow although it has room; that is seen at once and undone.
    race("async", 64 * MIB, PROCESSES * 64 * MIB);
}

#[test]
fn racing_with_random_kills_no_process_exceeds_the_limit() {
    // By handle, for which a newcomer needs no context: the room for one would be taken by the others at once.
    let rig = Rig::new(1, ROOM);
    let start = |seed: u64| {
        let mut racer = rig.inside(Way::Handle);
        assert_eq!(racer.ask("init"), [0]);
        racer.say(&format!(
            "race vmm 1000000 {seed} {} {}",
            64 * MIB,
            u64::MAX
        ));
        racer
    };
    let mut racers: Vec<Probe> = (0..PROCESSES).map(start).collect();
    let mut watcher = watcher(&rig);
    let mut random = Rng::new(0);
    for kill in 0..KILLS {
        let victim = random.index(racers.len()).expect("racers");
        racers[victim].kill();
        rig.settle_the_dead();
        racers[victim] = start(PROCESSES + kill);
    }
    for racer in &mut racers {
        racer.kill();
    }
    rig.settle_the_dead();
    let peak = rig.peak(&mut watcher);
    assert!(
        peak <= rig.limit,
        "{} bytes over the limit",
        peak - rig.limit
    );
    assert!(peak > rig.limit / 2, "the watcher saw nothing");
    assert_eq!(rig.charged(), 0, "the ledger leaks");
    assert_eq!(rig.truth(), 0, "the driver leaks");
    assert!(
        rig.slice()
            .read()
            .expect("a sound slice")
            .processes()
            .is_empty()
    );
}
