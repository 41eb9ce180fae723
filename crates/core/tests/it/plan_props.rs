//! What must hold of every plan, over random nodes, jobs, ends and foreign processes.

use crate::node;

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use divvy_core::mig::{
    Attribute, Layout, Placement, Profile, ProfileTable, UnallocatedInstance, UnallocatedState,
};
use divvy_core::order_key::sort_queue;
use divvy_core::{
    AllocatedJob, Amount, Bytes, ComputeMode, Gpu, Grant, Isolation, JobId, MigProfile, Mode,
    Order, PendingJob, Plan, QueueSpec, Reason, Request, Share, Snapshot, Start, SuggestedChange,
    Suggestion, can_ever_fit, invariants, plan, why,
};
use node::{Node, amount};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Something that happens to a node.
#[derive(Clone, Debug)]
enum Step {
    Submit {
        queue: Index,
        request: Request,
    },
    End(Index),
    Foreign {
        gpu: Index,
        memory: Bytes,
    },
    /// Somebody makes a MIG instance, or removes one.
    Other {
        gpu: Index,
        profile: Index,
        start: Index,
    },
}

fn amounts() -> impl Strategy<Value = Amount> {
    let count = || (1..=3_u32).prop_map(|count| NonZeroU32::new(count).expect("above zero"));
    let share = || {
        let round = select(vec![125_u16, 250, 333, 375, 500, 625, 750, 875, 1000]);
        prop_oneof![3 => round, 1 => 1..=1000_u16]
            .prop_map(|thousandths| Share::from_thousandths(thousandths).expect("a share"))
    };
    prop_oneof![
        4 => share().prop_map(Amount::Share),
        3 => (1..=90_000_u64).prop_map(|mib| Amount::Memory(Bytes::mib(mib))),
        1 => (1..=100_u64).prop_map(|mib| Amount::Memory(Bytes::mib(mib))),
        1 => (1..=1_u64 << 36).prop_map(|bytes| Amount::Memory(Bytes::new(bytes))),
        2 => count().prop_map(Amount::Whole),
        1 => (count(), 1..=2_u32).prop_map(|(min, more)| Amount::Range { min, max: min.saturating_add(more) }),
        1 => (count(), share()).prop_map(|(count, share)| Amount::Shares { count, share }),
        3 => profiles().prop_map(Amount::Mig),
    ]
}

/// Models of different shapes: 4 slices of memory, 8 and 12.
const MODELS: [&str; 5] = [
    "a30-24gb",
    "a100-40gb",
    "h200-141gb",
    "b200-180gb",
    "rtxpro6000-96gb",
];

/// Any profile of these, with attributes too.
fn profiles() -> impl Strategy<Value = MigProfile> {
    let of_model = |model| ProfileTable::of_model(model).expect("a model of data/mig.toml");
    let names = MODELS.iter().flat_map(move |model| {
        let table = of_model(model);
        let names: Vec<MigProfile> = table.profiles.iter().map(|profile| profile.name).collect();
        names
    });
    select(names.collect::<Vec<_>>())
}

fn requests() -> impl Strategy<Value = Request> {
    let on = prop_oneof![4 => Just(Vec::new()), 1 => vec(0..4_u32, 1..3)];
    let isolation = prop_oneof![
        6 => Just(Isolation::Any),
        1 => select(Isolation::ALL.to_vec()),
    ];
    (amounts(), on, isolation, any::<bool>()).prop_map(|(amount, on, isolation, exact)| Request {
        compute: ComputeMode::Fair.into(),
        on,
        isolation,
        exact,
        ..amount.into()
    })
}

fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (any::<Index>(), requests()).prop_map(|(queue, request)| Step::Submit { queue, request }),
        2 => any::<Index>().prop_map(Step::End),
        1 => (any::<Index>(), select(vec![0, 0, 512, 6000, 30_000, 90_000]))
            .prop_map(|(gpu, mib)| Step::Foreign { gpu, memory: Bytes::mib(mib) }),
        1 => (any::<Index>(), any::<Index>(), any::<Index>())
            .prop_map(|(gpu, profile, start)| Step::Other { gpu, profile, start }),
    ];
    vec(step, 1..most)
}

fn gpus() -> impl Strategy<Value = Vec<Gpu>> {
    // Sizes as drivers report them: not multiples of 2 MiB once the reserve is off.
    let total = select(vec![81_559_u64, 81_920, 40_960, 23_034, 143_771]);
    let mode = prop_oneof![4 => Just(Mode::Shared), 4 => Just(Mode::Mig), 1 => Just(Mode::Exclusive), 1 => Just(Mode::Unmanaged)];
    vec((total, 0..800_u64, mode, select(MODELS.to_vec())), 1..5).prop_map(|gpus| {
        let gpu = |(index, (total, reserved, mode, model))| {
            let mut gpu = Gpu {
                mode,
                total: Bytes::mib(total),
                reserved: Bytes::mib(reserved),
                ..node::gpu(index)
            };
            if mode == Mode::Mig {
                node::cut(&mut gpu, model);
            }
            gpu
        };
        (0..).zip(gpus).map(gpu).collect()
    })
}

fn nodes() -> impl Strategy<Value = Node> {
    let queues = select(vec![
        "",
        "a=1 b=0.5",
        "a=0.25 b=2 c=0.125",
        "a=1-4 b=0.5 c=0.75",
    ]);
    (gpus(), queues, any::<bool>(), any::<bool>(), 0..4_u64).prop_map(
        |(gpus, queues, fair, backfill, yields)| {
            let mut node = Node::new(0, queues);
            node.snapshot.gpus = gpus;
            node.snapshot.order = if fair { Order::Fairness } else { Order::Strict };
            node.snapshot.backfill = backfill;
            node.yields = yields;
            node
        },
    )
}

impl Step {
    /// Lets it happen. A request that can never fit is refused, as the agent does.
    fn happen(&self, node: &mut Node) {
        match self {
            Self::Submit { queue, request } => {
                let queues: Vec<QueueSpec> = node
                    .snapshot
                    .queues
                    .iter()
                    .map(|queue| queue.spec.clone())
                    .collect();
                let spec = queue.get(&queues);
                let request = spec.amount.map_or_else(|| request.clone(), Request::from);
                if can_ever_fit(&node.snapshot.gpus, &request).is_ok() {
                    node.submit_request(spec.name.as_str(), request);
                }
            }
            Self::End(index) => {
                if !node.snapshot.held.is_empty() {
                    let job = index.get(&node.snapshot.held).job;
                    node.end(job.0);
                }
            }
            Self::Foreign { gpu, memory } => {
                gpu.get_mut(&mut node.snapshot.gpus).unmanaged = *memory
            }
            Self::Other {
                gpu,
                profile,
                start,
            } => other(&mut node.snapshot, *gpu, *profile, *start),
        }
    }
}

/// A foreign instance where there is room for one, idle ones apart; where there is none, the foreign ones of the GPU go.
fn other(snapshot: &mut Snapshot, gpu: Index, profile: Index, start: Index) {
    let held: Vec<Grant> = all_grants(snapshot).cloned().collect();
    let gpu = gpu.get_mut(&mut snapshot.gpus);
    let Some(carving) = &mut gpu.mig else { return };
    let profile = profile.get(&carving.table.profiles);
    let instance = UnallocatedInstance {
        placement: Placement {
            profile: profile.id,
            start: *start.get(&profile.starts),
        },
        standing: UnallocatedState::Foreign,
    };
    let of_jobs = held.iter().filter(|grant| grant.gpu == gpu.uuid);
    let of_jobs = of_jobs.filter_map(|grant| Some(grant.mig?.placement));
    let all = carving.instances.iter().map(|instance| instance.placement);
    let layout = Layout::of(&carving.table, of_jobs.chain(all));
    if layout.allows(&carving.table, instance.placement) {
        carving.instances.push(instance)
    } else {
        carving
            .instances
            .retain(|other| other.standing == UnallocatedState::Idle)
    }
}

fn all_grants(snapshot: &Snapshot) -> impl Iterator<Item = &Grant> {
    snapshot.held.iter().flat_map(|held| &held.grants)
}

/// The memory slices of a placement, one by one.
fn slices(gpu: &Gpu, placement: Placement) -> impl Iterator<Item = u8> {
    let table = &gpu.mig.as_ref().expect("a GPU in MIG mode").table;
    let profile = table.profile(placement.profile).expect("a profile of it");
    placement.start..placement.start + profile.memory_slices
}

/// Whether a grant is the smallest instance that gives so much, by the rules alone: no attribute but one that was named, and of
/// those that are enough the first by memory, compute slices, memory slices, id.
fn is_smallest(gpu: &Gpu, request: &Request, grant: &Grant) -> bool {
    let table = &gpu.mig.as_ref().expect("a GPU in MIG mode").table;
    let thousandths = |profile: &Profile| {
        u32::from(profile.memory_slices) * 1000 / u32::from(table.memory_slices)
    };
    let enough = |profile: &&Profile| {
        let plain = profile.name.attribute() == Attribute::None;
        match request.amount {
            Amount::Share(share) | Amount::Shares { share, .. } => {
                plain && thousandths(profile) >= u32::from(share.thousandths())
            }
            Amount::Memory(memory) if request.exact => plain && profile.memory >= memory,
            Amount::Memory(memory) => plain && profile.memory.max(profile.name.nominal()) >= memory,
            Amount::Mig(name) => profile.name == name,
            Amount::Whole(_) | Amount::Range { .. } => false,
        }
    };
    let order = |profile: &&Profile| {
        (
            profile.memory,
            profile.compute_slices,
            profile.memory_slices,
            profile.id,
        )
    };
    let smallest = table.profiles.iter().filter(enough).min_by_key(order);
    let (Some(profile), Some(mig)) = (smallest, grant.mig) else {
        return false;
    };
    mig.profile == profile.name
        && mig.placement.profile == profile.id
        && profile.starts.contains(&mig.placement.start)
        && grant.memory.get() == profile.memory.get() / (2 << 20) * (2 << 20)
        && u32::from(grant.share.thousandths()) == thousandths(profile)
        && grant.label == format!("gpu{}.{}@{}", gpu.index, profile.name, mig.placement.start)
}

/// Whether grants are what the request asks for, by the rules of the resource model and nothing of the planner's.
fn satisfies(gpus: &[Gpu], request: &Request, grants: &[Grant]) -> bool {
    let different: BTreeSet<_> = grants.iter().map(|grant| &grant.gpu).collect();
    let count = u32::try_from(grants.len()).expect("few grants");
    let each = |right: &dyn Fn(&Gpu, &Grant) -> bool| {
        grants.iter().all(|grant| {
            let gpu = gpus
                .iter()
                .find(|gpu| gpu.uuid == grant.gpu)
                .expect("a GPU of the node");
            (request.on.is_empty() || request.on.contains(&gpu.index))
                && gpu.index == grant.index
                && match gpu.mode {
                    Mode::Unmanaged => false,
                    Mode::Exclusive => is_whole(request.amount) && right(gpu, grant),
                    Mode::Shared if is_whole(request.amount) => right(gpu, grant),
                    Mode::Shared => {
                        gpu.enforcement.satisfies(request.isolation) && right(gpu, grant)
                    }
                    Mode::Mig => {
                        !is_whole(request.amount)
                            && request.isolation.takes_instances()
                            && is_smallest(gpu, request, grant)
                    }
                }
                && grant.mig.is_some() == (gpu.mode == Mode::Mig)
        })
    };
    let two_mib = 2 << 20;
    let usable = |gpu: &Gpu| gpu.total.get() - gpu.reserved.get();
    let whole = |gpu: &Gpu, grant: &Grant| {
        grant.share == Share::FULL
            && gpu.unmanaged.get() <= usable(gpu) / 10
            && grant.memory.get() == (usable(gpu) - gpu.unmanaged.get()) / two_mib * two_mib
    };
    let share = |share: Share| {
        move |gpu: &Gpu, grant: &Grant| {
            let exact = u128::from(usable(gpu)) * u128::from(share.thousandths()) / 1000;
            grant.share == share
                && u128::from(grant.memory.get()) == exact / two_mib as u128 * two_mib as u128
        }
    };
    different.len() == grants.len()
        && match request.amount {
            Amount::Share(Share::FULL) => count == 1 && each(&whole),
            Amount::Share(part) => count == 1 && each(&share(part)),
            Amount::Memory(memory) => {
                count == 1
                    && each(&|gpu, grant| {
                        let exact = u128::from(memory.get()) * 1000;
                        let thousandths = u128::from(grant.share.thousandths());
                        let usable = u128::from(usable(gpu));
                        let ceiling =
                            thousandths * usable >= exact && (thousandths - 1) * usable < exact;
                        ceiling && grant.memory.get() == memory.get().next_multiple_of(two_mib)
                    })
            }
            Amount::Whole(wanted) => count == wanted.get() && each(&whole),
            Amount::Range { min, max } => (min.get()..=max.get()).contains(&count) && each(&whole),
            Amount::Shares {
                count: wanted,
                share: Share::FULL,
            } => count == wanted.get() && each(&whole),
            Amount::Shares {
                count: wanted,
                share: part,
            } => count == wanted.get() && each(&share(part)),
            // An instance is weighed by its GPU alone.
            Amount::Mig(_) => count == 1 && each(&|_, _| false),
        }
}

fn is_whole(amount: Amount) -> bool {
    match amount {
        Amount::Share(share) | Amount::Shares { share, .. } => share == Share::FULL,
        Amount::Whole(_) | Amount::Range { .. } => true,
        Amount::Memory(_) | Amount::Mig(_) => false,
    }
}

/// The snapshot with one waiting job and no other.
fn alone(snapshot: &Snapshot, job: JobId, request: &Request) -> Snapshot {
    let mut alone = snapshot.clone();
    alone.queues.truncate(1);
    alone.queues[0].waiting = vec![PendingJob::new(job, request.clone())];
    alone
}

fn hold(snapshot: &mut Snapshot, start: &Start) {
    let Start {
        job, queue, grants, ..
    } = start.clone();
    for queue in &mut snapshot.queues {
        queue.waiting.retain(|waiting| waiting.job != job);
    }
    node::take(snapshot, start);
    snapshot.held.push(AllocatedJob::new(job, queue, grants));
}

fn request_of(snapshot: &Snapshot, job: JobId) -> Request {
    let mut waiting = snapshot.queues.iter().flat_map(|queue| &queue.waiting);
    waiting
        .find(|waiting| waiting.job == job)
        .expect("a waiting job")
        .request
        .clone()
}

/// The rules R1 to R4 word by word: whose turn is it; its head starts, or the pass is over.
fn served_one_by_one(snapshot: &Snapshot) -> Vec<JobId> {
    let (mut state, mut turn, mut started) = (snapshot.clone(), snapshot.cursor, Vec::new());
    loop {
        let count = state.queues.len();
        let from = if state.order == Order::Strict {
            0
        } else {
            turn
        };
        let next = (0..count)
            .map(|step| (from + step) % count)
            .find(|queue| !state.queues[*queue].waiting.is_empty());
        let Some(queue) = next else { return started };
        let PendingJob { job, request, .. } = state.queues[queue].waiting[0].clone();
        let name = state.queues[queue].spec.name.clone();
        let Some(start) = plan(&alone(&state, job, &request)).starts.pop() else {
            return started;
        };
        hold(
            &mut state,
            &Start {
                queue: name,
                ..start
            },
        );
        started.push(job);
        turn = (queue + 1) % count;
    }
}

fn first_that_waits(plan: &Plan) -> Option<JobId> {
    let mut waits = plan
        .waits
        .iter()
        .filter(|wait| !matches!(wait.reason, Reason::Never(_)));
    waits.next().map(|wait| wait.job)
}

/// Each change that `why` names for the first jobs that wait starts its job when made.
pub(crate) fn what_would_start_a_job_does(snapshot: &Snapshot) -> Result<(), TestCaseError> {
    let waits = plan(snapshot).waits;
    for wait in waits.iter().take(5) {
        let why = why(snapshot, wait.job).expect("a job of the node");
        let further = why.summary.strip_prefix(&wait.reason.to_string());
        prop_assert!(
            further.is_some_and(|more| more.is_empty() || more.starts_with("; ")),
            "{}",
            why.summary
        );
        prop_assert_eq!(why.gpus.len(), snapshot.gpus.len());
        for Suggestion { text, change } in why.suggestions {
            let mut changed = snapshot.clone();
            if let Some(SuggestedChange::Queue(name, amount)) = &change {
                let mut moved = None;
                for queue in &mut changed.queues {
                    moved = queue
                        .waiting
                        .extract_if(.., |waiting| waiting.job == wait.job)
                        .last()
                        .or(moved);
                }
                let mut moved = moved.expect("a waiting job");
                moved.request.amount = *amount;
                let queue = changed
                    .queues
                    .iter_mut()
                    .find(|queue| queue.spec.name == *name)
                    .expect("a queue");
                queue.waiting.push(moved);
                sort_queue(&mut queue.waiting);
                let starts = plan(&changed).starts;
                prop_assert!(
                    starts.iter().any(|start| start.job == wait.job),
                    "{} for #{}",
                    text,
                    wait.job
                );
                continue;
            }
            let jobs: BTreeSet<u64> = text
                .split('#')
                .skip(1)
                .map(|rest| {
                    rest.split(|c: char| !c.is_ascii_digit())
                        .next()
                        .expect("a number")
                        .parse()
                        .expect("a number")
                })
                .collect();
            let flag = ["-g ", "--gpu-memory ", "--mig-profile "]
                .iter()
                .find_map(|flag| {
                    text.strip_prefix("would start now with ")?
                        .strip_prefix(flag)
                });
            let mut requests = changed
                .queues
                .iter_mut()
                .flat_map(|queue| &mut queue.waiting);
            let its = requests
                .find(|waiting| waiting.job == wait.job)
                .expect("a waiting job");
            if text.starts_with("would start now without --isolation") {
                its.request.isolation = Isolation::Any;
            } else if text == "would start now without --gpu-memory-exact" {
                its.request.exact = false;
            } else if let Some(flag) = flag {
                its.request.amount = amount(flag);
            } else if text.contains("any one of") {
                changed
                    .held
                    .retain(|held| Some(&held.job.0) != jobs.first());
            } else if text.ends_with(" end") || text.ends_with(" ends") {
                changed.held.retain(|held| !jobs.contains(&held.job.0));
            } else {
                continue;
            }
            let starts = plan(&changed).starts;
            prop_assert!(
                starts.iter().any(|start| start.job == wait.job),
                "{} for #{}",
                text,
                wait.job
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_plan_overfills_a_gpu_and_every_start_gets_what_it_asked_for(mut node in nodes(), steps in steps(60)) {
        for step in steps {
            step.happen(&mut node);
            let before = node.snapshot.clone();
            let plan = node.step(); // Carries it out and checks the invariants.
            for start in &plan.starts {
                let request = request_of(&before, start.job);
                prop_assert!(satisfies(&before.gpus, &request, &start.grants), "{request:?} got {start:?}");
                for grant in &start.grants {
                    let gpu = before.gpus.iter().find(|gpu| gpu.uuid == grant.gpu).expect("a GPU of the node");
                    if gpu.mode == Mode::Mig {
                        continue; // An instance has its own memory; places are looked at below.
                    }
                    let held = node.snapshot.held.iter().flat_map(|held| &held.grants);
                    let memory: Bytes = held.filter(|held| held.gpu == gpu.uuid).map(|held| held.memory).sum();
                    prop_assert!(memory.saturating_add(gpu.unmanaged) <= gpu.usable());
                }
            }
        }
    }

    #[test]
    fn instances_never_share_a_slice_and_none_in_use_is_moved(mut node in nodes(), steps in steps(60)) {
        for step in steps {
            step.happen(&mut node);
            let before: Vec<Grant> = all_grants(&node.snapshot).cloned().collect();
            node.step();
            let after: Vec<&Grant> = all_grants(&node.snapshot).collect();
            prop_assert!(before.iter().all(|grant| after.contains(&grant)));
            for gpu in &node.snapshot.gpus {
                let Some(carving) = &gpu.mig else { continue };
                let held = after.iter().filter(|grant| grant.gpu == gpu.uuid);
                let held = held.filter_map(|grant| Some(grant.mig?.placement));
                let all = held.chain(carving.instances.iter().map(|instance| instance.placement));
                let taken: Vec<u8> = all.flat_map(|placement| slices(gpu, placement)).collect();
                prop_assert_eq!(taken.iter().collect::<BTreeSet<_>>().len(), taken.len(), "{:?}", taken);
            }
        }
    }

    /// What is kept for later is in nobody's way: with it or without it the same job is the first to start. And nothing is
    /// removed for a start that did not lie in its place.
    #[test]
    fn idle_instances_are_room_and_go_only_where_they_are_in_the_way(mut node in nodes(), steps in steps(60)) {
        for step in steps {
            step.happen(&mut node);
            let mut without = node.snapshot.clone();
            for carving in without.gpus.iter_mut().filter_map(|gpu| gpu.mig.as_mut()) {
                carving.instances.retain(|instance| instance.standing != UnallocatedState::Idle);
            }
            let first = |plan: &Plan| plan.starts.first().map(|start| start.job);
            let with = plan(&node.snapshot);
            prop_assert_eq!(first(&with), first(&plan(&without)));
            for start in &with.starts {
                for (uuid, placement) in &start.reclaim {
                    let gpu = node.snapshot.gpus.iter().find(|gpu| gpu.uuid == *uuid).expect("a GPU of the node");
                    let grant = start.grants.iter().find(|grant| grant.gpu == *uuid).expect("a grant there");
                    let table = &gpu.mig.as_ref().expect("a GPU in MIG mode").table;
                    let own = grant.mig.expect("an instance").placement;
                    // By its place, or by its kind: one +me excludes another wherever it lies.
                    prop_assert!(!Layout::of(table, [*placement]).allows(table, own));
                    let idle = &gpu.mig.as_ref().expect("a GPU in MIG mode").instances;
                    let idle_there = UnallocatedInstance { placement: *placement, standing: UnallocatedState::Idle };
                    prop_assert!(idle.contains(&idle_there));
                }
            }
            node.step();
        }
    }

    /// Where a part is asked for, and not how it is to be held, a GPU that gives just that comes before one that rounds up.
    #[test]
    fn shared_gpus_are_asked_before_those_that_are_cut(mut node in nodes(), steps in steps(60)) {
        node.snapshot.backfill = false; // Else a shared GPU with room may be kept free for another.
        for step in steps {
            step.happen(&mut node);
            let before = node.snapshot.clone();
            let Some(start) = node.step().starts.into_iter().next() else { continue };
            let request = request_of(&before, start.job);
            if start.grants.len() == 1 && start.grants[0].mig.is_some() {
                let mut uncut = alone(&before, start.job, &request);
                for gpu in uncut.gpus.iter_mut().filter(|gpu| gpu.mode == Mode::Mig) {
                    gpu.mode = Mode::Unmanaged;
                }
                prop_assert!(plan(&uncut).starts.is_empty(), "{:?}", request);
            }
        }
    }

    #[test]
    fn every_job_starts_or_waits_with_a_reason_and_no_label_is_there_twice(mut node in nodes(), steps in steps(60)) {
        for step in steps {
            step.happen(&mut node);
            let waiting = node.snapshot.queues.iter().flat_map(|queue| &queue.waiting);
            let waiting: BTreeSet<JobId> = waiting.map(|waiting| waiting.job).collect();
            let plan = node.step();
            let started = plan.starts.iter().map(|start| start.job);
            let planned: Vec<JobId> = started.chain(plan.waits.iter().map(|wait| wait.job)).collect();
            prop_assert_eq!(planned.len(), waiting.len());
            prop_assert_eq!(planned.into_iter().collect::<BTreeSet<_>>(), waiting);
            for wait in &plan.waits {
                let reason = wait.reason.to_string();
                prop_assert!(!reason.is_empty() && !reason.contains('\n'));
            }
            let labels: Vec<&str> = node.snapshot.held.iter().flat_map(|held| &held.grants).map(|grant| grant.label.as_str()).collect();
            prop_assert_eq!(labels.iter().collect::<BTreeSet<_>>().len(), labels.len());
        }
    }

    #[test]
    fn equal_inputs_give_equal_plans_whatever_the_order_of_the_inventory(mut node in nodes(), steps in steps(40)) {
        for step in steps {
            step.happen(&mut node);
            let mut other = node.snapshot.clone();
            other.gpus.reverse();
            other.held.reverse();
            prop_assert_eq!(plan(&node.snapshot), plan(&other));
            node.step();
            prop_assert!(plan(&node.snapshot).starts.is_empty(), "a plan leaves nothing to start behind");
        }
    }

    #[test]
    fn without_backfill_queues_are_served_one_by_one_and_no_head_is_overtaken(mut node in nodes(), steps in steps(40)) {
        node.snapshot.backfill = false;
        for step in steps {
            step.happen(&mut node);
            let expected = served_one_by_one(&node.snapshot);
            let started: Vec<JobId> = node.step().starts.iter().map(|start| start.job).collect();
            prop_assert_eq!(started, expected);
        }
    }

    #[test]
    fn what_why_says_would_start_it_does(mut node in nodes(), steps in steps(25)) {
        for step in steps {
            step.happen(&mut node);
            node.step();
        }
        what_would_start_a_job_does(&node.snapshot)?;
    }

    #[test]
    fn the_nearest_request_fits_where_the_first_never_does(gpus in gpus(), request in requests()) {
        if let Err(never) = can_ever_fit(&gpus, &request) {
            if let Some(nearest) = never.nearest {
                prop_assert!(can_ever_fit(&gpus, &nearest).is_ok(), "{nearest:?}");
            } else {
                let one = can_ever_fit(&gpus, &request.with_amount(Amount::ONE_GPU));
                prop_assert!(one.is_err());
            }
        }
    }

    /// Two worlds with the same jobs, ends and foreign processes, with and without backfill: in both the head starts at
    /// the same moment, whoever ends and in whatever order, if the backfilled jobs never end.
    #[test]
    fn backfill_never_delays_the_head(mut node in nodes(), steps in steps(40), ends in vec((any::<Index>(), any::<bool>(), any::<Index>()), 1..30)) {
        node.snapshot.backfill = false;
        for step in &steps {
            step.happen(&mut node);
            node.step();
        }
        let Some(head) = first_that_waits(&plan(&node.snapshot)) else { return Ok(()) };
        let mut without = node.snapshot.clone();
        let mut with = Snapshot { backfill: true, ..node.snapshot.clone() };
        let mut originals: Vec<JobId> = without.held.iter().map(|held| held.job).collect();
        let step = |snapshot: &mut Snapshot| {
            let plan = plan(snapshot);
            plan.starts.iter().for_each(|start| hold(snapshot, start));
            plan.starts.iter().any(|start| start.job == head)
        };
        for (end, settle, gpu) in ends {
            let started = (step(&mut without), step(&mut with));
            invariants::check(&with).expect("backfill overfills nothing");
            prop_assert_eq!(started.0, started.1, "the head starts in one world and not in the other");
            if started.0 || originals.is_empty() {
                break;
            }
            let ended = originals.swap_remove(end.index(originals.len()));
            for world in [&mut without, &mut with] {
                world.held.retain(|held| held.job != ended);
                if settle {
                    let memory = &mut gpu.get_mut(&mut world.gpus).unmanaged;
                    *memory = Bytes::new(memory.get() / 2);
                }
            }
        }
    }

    /// The definition itself, for every set of ends at once: after the backfill the head fits exactly when it would have.
    #[test]
    fn backfill_leaves_the_head_the_same_chances_for_every_set_of_ends(mut node in nodes(), steps in steps(25)) {
        node.snapshot.backfill = false;
        for step in &steps {
            step.happen(&mut node);
            node.step();
        }
        let Some(head) = first_that_waits(&plan(&node.snapshot)) else { return Ok(()) };
        let request = request_of(&node.snapshot, head);
        let mut with = Snapshot { backfill: true, ..node.snapshot.clone() };
        plan(&with).starts.iter().for_each(|start| hold(&mut with, start));
        let jobs: Vec<JobId> = node.snapshot.held.iter().map(|held| held.job).collect();
        if jobs.len() > 8 {
            return Ok(()); // 256 sets are enough for one case.
        }
        for set in 0..1_u32 << jobs.len() {
            let ends = |job: &JobId| jobs.iter().position(|other| other == job).is_some_and(|bit| set >> bit & 1 == 1);
            let fits = |snapshot: &Snapshot| {
                let mut after = alone(snapshot, head, &request);
                after.held.retain(|held| !ends(&held.job));
                !plan(&after).starts.is_empty()
            };
            prop_assert_eq!(fits(&node.snapshot), fits(&with), "after the ends {:b} of {:?}", set, &jobs);
        }
    }
}
