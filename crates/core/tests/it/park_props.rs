//! Which idle jobs are parked for another one, and the room that parked jobs are promised.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use divvy_core::resize::park::{ParkInput, Parkable, choose_victims, min_awake};
use divvy_core::{
    AllocatedJob, Bytes, Grant, JobId, ParkRule, PendingJob, Queue, QueueName, QueueSpec, Share,
    Snapshot, plan,
};
use proptest::prelude::*;

use crate::node::gpu;

fn grant(index: u8, share: u16) -> Grant {
    let gpu = gpu(u32::from(index));
    let share = Share::from_thousandths(share).expect("a share");
    Grant {
        gpu: gpu.uuid.clone(),
        index: gpu.index,
        memory: gpu.memory_of(share),
        share,
        label: format!("gpu{index}"),
        mig: None,
    }
}

/// Jobs that are idle, of which some were woken lately.
fn parkable() -> impl Strategy<Value = Vec<Parkable>> {
    let one = (0_u64..5, 1_u64..5, prop::option::of(0_u64..90), 0_u64..6);
    prop::collection::vec(one, 0..7).prop_map(|all| {
        let all = (1..).zip(all);
        all.map(|(job, (idle, gib, awake, copy))| Parkable {
            job: JobId(job),
            idle: Duration::from_secs(60 * idle),
            bytes: Bytes::gib(gib),
            awake: awake.map(Duration::from_secs),
            stays: min_awake(Duration::from_secs(30), Duration::from_secs(copy)),
        })
        .collect()
    })
}

proptest! {
    #[test]
    fn victims_are_the_fewest_that_make_room_and_none_was_woken_just_now(
        candidates in parkable(),
        need in 1_u64..20,
    ) {
        let bytes_of = |gone: &BTreeSet<JobId>| {
            let gone = candidates.iter().filter(|one| gone.contains(&one.job));
            gone.map(|one| one.bytes).sum::<Bytes>()
        };
        let makes_room = |gone: &BTreeSet<JobId>| bytes_of(gone) >= Bytes::gib(need);
        let chosen = choose_victims(&candidates, makes_room);
        prop_assert_eq!(&chosen, &choose_victims(&candidates, makes_room));
        let mut backwards = candidates.clone();
        backwards.reverse();
        prop_assert_eq!(&chosen, &choose_victims(&backwards, makes_room));
        let may_go: Vec<&Parkable> = candidates
            .iter()
            .filter(|one| one.awake.is_none_or(|awake| awake >= one.stays))
            .collect();
        let sets = (0..1_usize << may_go.len()).map(|mask| -> BTreeSet<JobId> {
            let is_in = |at: &usize| mask >> at & 1 == 1;
            (0..may_go.len()).filter(is_in).map(|at| may_go[at].job).collect()
        });
        let enough: Vec<BTreeSet<JobId>> = sets.filter(makes_room).collect();
        let fewest = enough.iter().map(BTreeSet::len).min();
        let Some(chosen) = chosen else {
            prop_assert_eq!(fewest, None);
            return Ok(());
        };
        let set: BTreeSet<JobId> = chosen.iter().copied().collect();
        prop_assert!(makes_room(&set));
        prop_assert_eq!(Some(set.len()), fewest);
        prop_assert!(set.iter().all(|job| may_go.iter().any(|one| one.job == *job)));
        // Of equal sets the one with the longest idle jobs.
        let idle = |set: &BTreeSet<JobId>| {
            let its = candidates.iter().filter(|one| set.contains(&one.job));
            let mut idle: Vec<Duration> = its.map(|one| one.idle).collect();
            idle.sort_unstable_by(|one, other| other.cmp(one));
            idle
        };
        let equal = enough.iter().filter(|other| other.len() == set.len());
        prop_assert!(equal.clone().all(|other| idle(other) <= idle(&set)));
        let alike = equal.filter(|other| other.len() == 1 && idle(other) == idle(&set));
        prop_assert!(alike.clone().all(|other| bytes_of(other) >= bytes_of(&set)));
    }

    /// Whatever starts, each parked job has room beside the holders that do not give way (I2).
    #[test]
    fn no_start_breaks_the_promise_to_a_parked_job(
        jobs in prop::collection::vec((0_u8..2, 1_u16..9, 0_u8..3, any::<bool>()), 0..8),
        asks in prop::collection::vec((1_u16..9, any::<bool>()), 1..8),
        backfill in any::<bool>(),
    ) {
        let mut node = node(&jobs, &asks);
        node.backfill = backfill;
        prop_assume!(broken(&node).is_none());
        let plan = plan(&node);
        for start in plan.starts {
            node.held.push(AllocatedJob::new(start.job, start.queue, start.grants));
        }
        prop_assert_eq!(broken(&node), None);
    }

    /// The victims for a pending job are parked, and then it starts and the promises hold.
    #[test]
    fn a_job_starts_in_the_room_of_its_victims(
        jobs in prop::collection::vec((0_u8..2, 1_u16..9, 0_u8..2, any::<bool>()), 0..8),
        ask in (1_u16..9, any::<bool>()),
        is_bound in any::<bool>(),
    ) {
        let mut node = node(&jobs, &[ask]);
        if !is_bound {
            node.parking = ParkRule::default();
        }
        prop_assume!(broken(&node).is_none() && plan(&node).starts.is_empty());
        let idle = |held: &&AllocatedJob| node.parking.gives_way.contains(&held.job) || !is_bound;
        let candidates: Vec<Parkable> = (node.held.iter().filter(idle))
            .map(|held| Parkable {
                job: held.job,
                idle: Duration::from_secs(held.job.0),
                bytes: held.grants[0].memory,
                awake: None,
                stays: Duration::ZERO,
            })
            .collect();
        let promised = candidates.iter().map(|one| one.job).filter(|_| is_bound).collect();
        let input = ParkInput {
            snapshot: &node,
            leaving: &BTreeSet::new(),
            candidates: &candidates,
            promised: &promised,
        };
        let Some(victims) = input.victims_for_start(JobId(100)) else { return Ok(()) };
        let mut after = node.clone();
        for job in &victims {
            let gone = after.held.extract_if(.., |held| held.job == *job);
            let gone: Vec<AllocatedJob> = gone.collect();
            if is_bound {
                after.parking.promised.extend(gone.into_iter().map(|held| (held.job, held.grants)));
            }
        }
        let starts = plan(&after).starts;
        prop_assert_eq!(starts.len(), 1, "{:?}", victims);
        for start in starts {
            after.held.push(AllocatedJob::new(start.job, start.queue, start.grants));
        }
        prop_assert_eq!(broken(&after), None);
    }
}

/// Two GPUs with jobs that hold eighths of one; of each kind 0 holds, 1 gives way, 2 is parked with a promise. The
/// pending jobs have numbers from 100.
fn node(jobs: &[(u8, u16, u8, bool)], asks: &[(u16, bool)]) -> Snapshot {
    let queue = QueueName::default_queue();
    let mut rule = ParkRule::default();
    let mut held: Vec<AllocatedJob> = Vec::new();
    let mut used = [0, 0];
    for (job, (index, eighths, kind, gives_way)) in (1..).zip(jobs) {
        let grants = vec![grant(*index, eighths * 125)];
        if *kind == 2 {
            rule.promised.insert(JobId(job), grants);
            continue;
        }
        let used = &mut used[usize::from(*index)];
        if *used + eighths > 8 {
            continue;
        }
        *used += eighths;
        if *gives_way {
            rule.gives_way.insert(JobId(job));
        }
        held.push(AllocatedJob::new(JobId(job), queue.clone(), grants));
    }
    let waiting = (100..).zip(asks).map(|(job, (eighths, gives_way))| {
        let share = Share::from_thousandths(eighths * 125).expect("a share");
        let mut waiting = PendingJob::new(JobId(job), divvy_core::Amount::Share(share).into());
        waiting.request.gives_way = *gives_way;
        waiting
    });
    let waiting: Vec<PendingJob> = waiting.collect();
    let gives_way = waiting.iter().filter(|one| one.request.gives_way);
    rule.gives_way.extend(gives_way.map(|one| one.job));
    Snapshot {
        gpus: (0..2).map(gpu).collect(),
        held,
        queues: vec![Queue {
            spec: QueueSpec::open(queue),
            waiting,
        }],
        parking: rule,
        ..Snapshot::default()
    }
}

/// A parked job without room beside the holders that do not give way.
fn broken(node: &Snapshot) -> Option<JobId> {
    let mut firm: BTreeMap<_, (u64, Bytes)> = BTreeMap::new();
    let stays = |held: &&AllocatedJob| !node.parking.gives_way.contains(&held.job);
    for grant in node.held.iter().filter(stays).flat_map(|held| &held.grants) {
        let sum = firm.entry(grant.gpu.clone()).or_default();
        sum.0 += u64::from(grant.share.thousandths());
        sum.1 = sum.1.saturating_add(grant.memory);
    }
    let lacks = |grant: &Grant| {
        let (share, memory) = firm.get(&grant.gpu).copied().unwrap_or_default();
        let gpu = node
            .gpus
            .iter()
            .find(|gpu| gpu.uuid == grant.gpu)
            .expect("its GPU");
        share + u64::from(grant.share.thousandths()) > 1000
            || memory.saturating_add(grant.memory) > gpu.usable()
    };
    let mut promised = node.parking.promised.iter();
    let (job, _) = promised.find(|(_, grants)| grants.iter().any(lacks))?;
    Some(*job)
}
