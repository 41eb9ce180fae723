//! Whatever is resized, in whatever order, and whenever a goal is reached: no GPU is promised twice.

use crate::node;

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use divvy_core::resize::{ResizeTarget, Resized, grant_at_target, resize};
use divvy_core::{Amount, Bytes, Gpu, JobId, Mode, Share, Snapshot, invariants};
use node::Node;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

#[derive(Clone, Debug)]
enum Step {
    Submit(Amount),
    End(Index),
    Resize(Index, Amount),
    /// A job uses no more than its goal on all its GPUs.
    Reach(Index),
    Foreign(Index, Bytes),
}

fn amounts() -> impl Strategy<Value = Amount> {
    let count = || (1..=2_u32).prop_map(|count| NonZeroU32::new(count).expect("above zero"));
    let share = || {
        let round = select(vec![125_u16, 250, 333, 500, 750, 1000]);
        prop_oneof![3 => round, 1 => 1..=1000_u16]
            .prop_map(|thousandths| Share::from_thousandths(thousandths).expect("a share"))
    };
    prop_oneof![
        4 => share().prop_map(Amount::Share),
        4 => (1..=90_000_u64).prop_map(|mib| Amount::Memory(Bytes::mib(mib))),
        2 => count().prop_map(Amount::Whole),
        2 => (count(), share()).prop_map(|(count, share)| Amount::Shares { count, share }),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let foreign = select(vec![0, 0, 512, 6000, 30_000]);
    let step = prop_oneof![
        3 => amounts().prop_map(Step::Submit),
        1 => any::<Index>().prop_map(Step::End),
        6 => (any::<Index>(), amounts()).prop_map(|(job, amount)| Step::Resize(job, amount)),
        3 => any::<Index>().prop_map(Step::Reach),
        1 => (any::<Index>(), foreign).prop_map(|(gpu, mib)| Step::Foreign(gpu, Bytes::mib(mib))),
    ];
    vec(step, 1..60)
}

fn gpus() -> impl Strategy<Value = Vec<Gpu>> {
    let total = select(vec![81_559_u64, 40_960, 23_034]);
    let mode = prop_oneof![9 => Just(Mode::Shared), 1 => Just(Mode::Exclusive)];
    vec((total, 0..800_u64, mode), 1..4).prop_map(|gpus| {
        let gpu = |(index, (total, reserved, mode))| Gpu {
            mode,
            total: Bytes::mib(total),
            reserved: Bytes::mib(reserved),
            ..node::gpu(index)
        };
        (0..).zip(gpus).map(gpu).collect()
    })
}

/// What jobs are to hold once they use less, by job and place.
type Goals = BTreeMap<(JobId, usize), ResizeTarget>;

fn job(snapshot: &Snapshot, index: &Index) -> Option<JobId> {
    let held = &snapshot.held;
    (!held.is_empty()).then(|| held[index.index(held.len())].job)
}

fn hold(snapshot: &mut Snapshot, goals: &mut Goals, job: JobId, all: Vec<Resized>) {
    goals.retain(|(of, _), _| *of != job);
    let held = snapshot.held.iter_mut().find(|held| held.job == job);
    let held = held.expect("a job that holds something");
    for (place, (grant, one)) in held.grants.iter_mut().zip(all).enumerate() {
        goals.extend(one.target.map(|goal| ((job, place), goal)));
        *grant = one.grant;
    }
}

fn reach(snapshot: &mut Snapshot, goals: &mut Goals, job: JobId) {
    for place in 0..8 {
        let Some(goal) = goals.remove(&(job, place)) else {
            continue;
        };
        let at = |held: &divvy_core::AllocatedJob| held.job == job;
        let held = snapshot
            .held
            .iter()
            .position(at)
            .expect("it holds something");
        let grant = grant_at_target(snapshot, job, &snapshot.held[held].grants[place], goal);
        snapshot.held[held].grants[place] = grant;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn no_resize_overfills_a_gpu_and_nothing_is_given_up_before_its_time(gpus in gpus(), steps in steps()) {
        let mut node = Node::new(0, "");
        node.snapshot.gpus = gpus;
        let mut goals = Goals::new();
        for step in steps {
            let snapshot = &mut node.snapshot;
            match step {
                Step::Submit(amount) => {
                    if divvy_core::can_ever_fit(&snapshot.gpus, &amount.into()).is_ok() {
                        node.submit_request("default", amount.into());
                    }
                    node.step();
                }
                Step::End(index) => {
                    if let Some(job) = job(snapshot, &index) {
                        goals.retain(|(of, _), _| *of != job);
                        node.end(job.0);
                    }
                }
                Step::Resize(index, amount) => {
                    let Some(job) = job(snapshot, &index) else { continue };
                    let before = snapshot.held.iter().find(|held| held.job == job).expect("held").grants.clone();
                    let Ok(all) = resize(snapshot, job, amount) else { continue };
                    prop_assert_eq!(&Ok(all.clone()), &resize(snapshot, job, amount));
                    for (old, new) in before.iter().zip(&all) {
                        prop_assert_eq!(&old.gpu, &new.grant.gpu);
                        prop_assert!(new.grant.memory >= old.memory && new.grant.share >= old.share);
                        let goal = new.target.map_or(new.grant.memory, |goal| goal.memory);
                        if let Amount::Memory(asked) = amount {
                            prop_assert!(goal >= asked, "{} of {}", goal, asked);
                        }
                    }
                    hold(snapshot, &mut goals, job, all);
                    // Asked for again, the same is there already.
                    let again = resize(snapshot, job, amount).expect("it was there before");
                    let held = snapshot.held.iter().find(|held| held.job == job).expect("held");
                    let now: Vec<_> = again.iter().map(|one| one.grant.clone()).collect();
                    prop_assert_eq!(&now, &held.grants);
                }
                Step::Reach(index) => {
                    if let Some(job) = job(snapshot, &index) {
                        reach(snapshot, &mut goals, job);
                    }
                }
                Step::Foreign(index, memory) => {
                    let gpu = index.index(snapshot.gpus.len());
                    snapshot.gpus[gpu].unmanaged = memory;
                }
            }
            prop_assert_eq!(invariants::check(&node.snapshot), Ok(()));
        }
    }
}
