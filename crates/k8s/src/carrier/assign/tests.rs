use super::*;
use proptest::prelude::*;
use proptest::sample::Index;

fn time(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn seeker(uid: &str, units: u8) -> FractionPod {
    FractionPod {
        uid: uid.to_owned(),
        namespace: "team".to_owned(),
        name: format!("pod-{uid}"),
        units,
        min_memory: Bytes::ZERO,
        gated: true,
        node: None,
        over: false,
        placement_key: "anywhere".to_owned(),
        feasible_nodes: ["a".to_owned(), "b".to_owned()].into(),
        created: time(0),
    }
}

fn share(name: &str, node: &str, carrier: Option<&str>) -> SharedGpu {
    SharedGpu {
        name: name.to_owned(),
        node: node.to_owned(),
        memory: Bytes::gib(80),
        carrier: carrier.map(str::to_owned),
        draining: false,
        assigned: Vec::new(),
        held: Vec::new(),
    }
}

fn carrier(name: &str) -> ReservationPod {
    ReservationPod {
        name: name.to_owned(),
        placement_key: "anywhere".to_owned(),
        scheduled: true,
        going: false,
        over: false,
    }
}

fn part(uid: &str, units: u8) -> PodUnits {
    PodUnits {
        uid: uid.to_owned(),
        units,
    }
}

fn world(
    seekers: Vec<FractionPod>,
    shares: Vec<SharedGpu>,
    carriers: Vec<ReservationPod>,
) -> ClusterState {
    ClusterState {
        seekers,
        shares,
        carriers,
        nodes: ["a".to_owned(), "b".to_owned()].into(),
    }
}

fn now(world: &ClusterState) -> Vec<ReservationStep> {
    plan(world, &BTreeMap::new(), time(1000))
}

#[test]
fn a_pod_goes_to_the_gpu_with_the_least_left_over_and_is_written_down_first() {
    let full = SharedGpu {
        assigned: vec![part("x", 10)],
        ..share("gpu-2", "b", Some("c2"))
    };
    let living = FractionPod {
        gated: false,
        node: Some("b".to_owned()),
        ..seeker("x", 10)
    };
    let look = world(
        vec![living, seeker("1", 4)],
        vec![share("gpu-1", "a", Some("c1")), full],
        vec![carrier("c1"), carrier("c2")],
    );
    let steps = now(&look);
    assert!(
        matches!(&steps[0], ReservationStep::Assign { share, .. } if share == "gpu-2"),
        "{steps:?}"
    );
    assert!(matches!(&steps[1], ReservationStep::Ungate { node, .. } if node == "b"));
    assert_eq!(steps.len(), 2);
}

#[test]
fn pods_without_a_gpu_get_as_few_carriers_as_hold_them_and_those_on_their_way_count() {
    let three = || vec![seeker("1", 8), seeker("2", 8), seeker("3", 8)];
    let steps = now(&world(three(), vec![], vec![]));
    assert_eq!(
        steps
            .iter()
            .filter(|step| matches!(step, ReservationStep::Reserve { .. }))
            .count(),
        2,
        "{steps:?}"
    );
    let waiting = ReservationPod {
        scheduled: false,
        ..carrier(&reservation_pod_name("1"))
    };
    let steps = now(&world(three(), vec![], vec![waiting.clone()]));
    assert_eq!(steps.len(), 1, "{steps:?}");
    let steps = now(&world(vec![], vec![], vec![waiting]));
    assert!(
        matches!(&steps[..], [ReservationStep::Delete { .. }]),
        "for nobody: {steps:?}"
    );
}

#[test]
fn what_the_node_still_holds_is_not_given_out_again() {
    let rest = SharedGpu {
        held: vec![part("old", 12)],
        ..share("gpu-1", "a", Some("c1"))
    };
    let steps = now(&world(
        vec![seeker("1", 8)],
        vec![rest],
        vec![carrier("c1")],
    ));
    assert!(
        matches!(&steps[..], [ReservationStep::Reserve { .. }]),
        "{steps:?}"
    );
}

#[test]
fn a_gpu_whose_carrier_is_gone_or_that_is_too_small_or_elsewhere_is_not_taken() {
    let small = FractionPod {
        min_memory: Bytes::gib(60),
        ..seeker("1", 8)
    };
    let elsewhere = FractionPod {
        feasible_nodes: ["b".to_owned()].into(),
        ..seeker("2", 8)
    };
    let going = ReservationPod {
        going: true,
        ..carrier("c2")
    };
    let look = world(
        vec![small, elsewhere],
        vec![
            share("gpu-1", "a", Some("c1")),
            share("gpu-2", "b", Some("c2")),
            share("gpu-3", "b", None),
        ],
        vec![carrier("c1"), going],
    );
    assert!(
        now(&look)
            .iter()
            .all(|step| matches!(step, ReservationStep::Reserve { .. }))
    );
}

#[test]
fn a_pod_that_is_over_gone_or_assigned_twice_leaves() {
    let over = FractionPod {
        gated: false,
        over: true,
        ..seeker("over", 4)
    };
    let lifted = FractionPod {
        gated: false,
        feasible_nodes: ["b".to_owned()].into(),
        ..seeker("twice", 4)
    };
    let one = SharedGpu {
        assigned: vec![part("over", 4), part("gone", 4), part("twice", 4)],
        ..share("gpu-1", "a", Some("c1"))
    };
    let two = SharedGpu {
        assigned: vec![part("twice", 4)],
        ..share("gpu-2", "b", Some("c2"))
    };
    let steps = now(&world(
        vec![over, lifted],
        vec![one, two],
        vec![carrier("c1"), carrier("c2")],
    ));
    let drop = |uid: &str| ReservationStep::Unassign {
        share: "gpu-1".to_owned(),
        uid: uid.to_owned(),
    };
    assert_eq!(steps, [drop("over"), drop("gone"), drop("twice")]);
}

#[test]
fn a_pod_that_took_another_assignment_of_its_node_is_assigned_there() {
    let pod = FractionPod {
        gated: false,
        node: Some("a".to_owned()),
        ..seeker("1", 4)
    };
    let meant = SharedGpu {
        assigned: vec![part("1", 4)],
        ..share("gpu-1", "a", Some("c1"))
    };
    let taken = SharedGpu {
        held: vec![part("1", 4)],
        ..share("gpu-2", "a", Some("c2"))
    };
    let steps = now(&world(
        vec![pod],
        vec![meant, taken],
        vec![carrier("c1"), carrier("c2")],
    ));
    assert!(
        matches!(&steps[0], ReservationStep::Assign { share, .. } if share == "gpu-2"),
        "{steps:?}"
    );
    assert_eq!(
        steps[1],
        ReservationStep::Unassign {
            share: "gpu-1".to_owned(),
            uid: "1".to_owned()
        }
    );
    assert_eq!(steps.len(), 2);
}

#[test]
fn a_pod_for_which_a_step_fails_stops_no_other_pod() {
    let look = world(
        vec![seeker("1", 4), seeker("2", 4)],
        vec![share("gpu-1", "a", Some("c1"))],
        vec![carrier("c1")],
    );
    let steps = now(&look);
    let left = |failing: usize| -> usize {
        let mut failed = Failed::default();
        failed.add(&steps[failing]);
        let rest = steps[failing + 1..].iter();
        rest.filter(|step| !failed.stops(step)).count()
    };
    assert_eq!(steps.len(), 4, "{steps:?}");
    assert_eq!(
        left(1),
        2,
        "a gate that may not be lifted is its pod's alone"
    );
    assert_eq!(
        left(0),
        0,
        "what comes after it in that record counted on it"
    );
}

#[test]
fn an_empty_gpu_is_kept_for_a_while_then_drained_then_given_back() {
    let look = |draining| {
        world(
            vec![],
            vec![SharedGpu {
                draining,
                ..share("gpu-1", "a", Some("c1"))
            }],
            vec![carrier("c1")],
        )
    };
    let at = |world: &ClusterState, seconds| {
        plan(
            world,
            &BTreeMap::from([("gpu-1".to_owned(), time(0))]),
            time(seconds),
        )
    };
    assert!(at(&look(false), 119).is_empty());
    assert!(matches!(
        &at(&look(false), 120)[..],
        [ReservationStep::Drain { draining: true, .. }]
    ));
    assert!(
        matches!(&at(&look(true), 120)[..], [ReservationStep::Delete { carrier }] if carrier == "c1")
    );
    let mut taken = look(true);
    taken.shares[0].assigned.push(part("1", 1));
    taken.seekers.push(FractionPod {
        gated: false,
        ..seeker("1", 1)
    });
    assert!(
        matches!(
            &now(&taken)[..],
            [ReservationStep::Drain {
                draining: false,
                ..
            }]
        ),
        "somebody came"
    );
    let mut gone = look(true);
    gone.shares[0].carrier = None;
    gone.carriers.clear();
    assert!(matches!(
        &now(&gone)[..],
        [ReservationStep::Drain {
            draining: false,
            ..
        }]
    ));
    gone.nodes.clear();
    assert!(matches!(
        &now(&gone)[..],
        [ReservationStep::DeleteShare { .. }]
    ));
}

/// GPUs that there are: two in each of two nodes.
const GPUS: [(&str, &str); 4] = [
    ("gpu-0", "a"),
    ("gpu-1", "a"),
    ("gpu-2", "b"),
    ("gpu-3", "b"),
];

/// A cluster that does what clusters do, in any order, and two controllers that look and act as if each were alone.
struct Model {
    world: ClusterState,
    versions: BTreeMap<String, u64>,
    /// The last observation of each controller, and its pending steps.
    controllers: [(BTreeMap<String, u64>, Vec<ReservationStep>); 2],
    /// Which of their steps failed.
    failed: [Failed; 2],
    empty_since: BTreeMap<String, Timestamp>,
    clock: i64,
    made: usize,
}

#[derive(Clone, Debug)]
enum Event {
    Submit(u8),
    End(Index),
    Delete(Index),
    Schedule(Index),
    Release(Index),
    CarrierStarts(Index),
    CarrierDies(Index),
    Look(usize),
    Act(usize),
    Crash(usize),
    Fail(usize),
    Later,
}

fn event() -> impl Strategy<Value = Event> {
    let index = any::<Index>;
    prop_oneof![
        4 => (1_u8..=16).prop_map(Event::Submit),
        2 => index().prop_map(Event::End),
        1 => index().prop_map(Event::Delete),
        4 => index().prop_map(Event::Schedule),
        3 => index().prop_map(Event::Release),
        3 => index().prop_map(Event::CarrierStarts),
        1 => index().prop_map(Event::CarrierDies),
        5 => (0_usize..2).prop_map(Event::Look),
        9 => (0_usize..2).prop_map(Event::Act),
        1 => (0_usize..2).prop_map(Event::Crash),
        2 => (0_usize..2).prop_map(Event::Fail),
        1 => Just(Event::Later),
    ]
}

impl Model {
    fn new() -> Self {
        let shares = GPUS.map(|(name, node)| share(name, node, None)).to_vec();
        Self {
            versions: shares.iter().map(|share| (share.name.clone(), 0)).collect(),
            world: world(vec![], shares, vec![]),
            controllers: Default::default(),
            failed: Default::default(),
            empty_since: BTreeMap::new(),
            clock: 0,
            made: 0,
        }
    }

    fn happens(&mut self, event: &Event) {
        match event {
            Event::Submit(units) => {
                self.made += 1;
                let created = time(self.clock);
                let one = FractionPod {
                    created,
                    ..seeker(&self.made.to_string(), *units)
                };
                self.world.seekers.push(one);
            }
            Event::End(index) => {
                if let Some(pod) = pick(&mut self.world.seekers, index) {
                    pod.over = true;
                }
            }
            Event::Delete(index) => {
                if !self.world.seekers.is_empty() {
                    let at = index.index(self.world.seekers.len());
                    self.world.seekers.remove(at);
                }
            }
            Event::Schedule(index) => self.schedule(index),
            Event::Release(index) => self.release(index),
            Event::CarrierStarts(index) => self.carrier_starts(index),
            Event::CarrierDies(index) => {
                if let Some(carrier) = pick(&mut self.world.carriers, index) {
                    let name = carrier.name.clone();
                    self.gone(&name);
                }
            }
            Event::Look(at) => self.observe(*at),
            Event::Act(at) => self.act(*at),
            Event::Crash(at) => self.controllers[*at].1.clear(),
            Event::Fail(at) => self.fail(*at),
            Event::Later => self.clock += 60,
        }
    }

    /// The scheduler places a pod, and the node seats it.
    fn schedule(&mut self, index: &Index) {
        let shares = &mut self.world.shares;
        let mut free: Vec<&mut FractionPod> = self
            .world
            .seekers
            .iter_mut()
            .filter(|pod| !pod.gated && !pod.over && pod.node.is_none())
            .collect();
        let Some(pod) = pick(&mut free, index) else {
            return;
        };
        let node = pod.feasible_nodes.first().cloned().unwrap_or_default();
        let seat = shares
            .iter_mut()
            .find(|share| share.node == node && share.has(&pod.uid));
        let seat = seat
            .unwrap_or_else(|| panic!("{} was let in to {node} without an assignment", pod.uid));
        let held: u8 = seat.held.iter().map(|part| part.units).sum();
        if held + pod.units > UNITS {
            // Kubelet has no ids left: it refuses the pod, which is not to happen.
            panic!("{} was let in to a GPU that is full", pod.uid);
        }
        pod.node = Some(node);
        seat.held.push(part(&pod.uid, pod.units));
    }

    fn release(&mut self, index: &Index) {
        let living: BTreeSet<String> = self
            .world
            .seekers
            .iter()
            .filter(|pod| !pod.over)
            .map(|pod| pod.uid.clone())
            .collect();
        if let Some(share) = pick(&mut self.world.shares, index) {
            share.held.retain(|part| {
                living.contains(&part.uid) || share.assigned.iter().any(|one| one.uid == part.uid)
            });
        }
    }

    /// NVIDIA's plugin gives it a free GPU, and the node reports it.
    fn carrier_starts(&mut self, index: &Index) {
        let waiting = self
            .world
            .carriers
            .iter_mut()
            .filter(|one| !one.scheduled && !one.going);
        let mut waiting: Vec<&mut ReservationPod> = waiting.collect();
        let Some(carrier) = pick(&mut waiting, index) else {
            return;
        };
        if let Some(share) = self
            .world
            .shares
            .iter_mut()
            .find(|share| share.carrier.is_none() && share.held.is_empty())
        {
            carrier.scheduled = true;
            share.carrier = Some(carrier.name.clone());
        }
    }

    fn gone(&mut self, carrier: &str) {
        self.world.carriers.retain(|one| one.name != carrier);
        for share in &mut self.world.shares {
            if share.carrier.as_deref() == Some(carrier) {
                share.carrier = None;
            }
        }
    }

    fn observe(&mut self, at: usize) {
        let now = time(self.clock);
        let old = std::mem::take(&mut self.empty_since);
        self.empty_since = self
            .world
            .shares
            .iter()
            .filter(|share| is_empty(share))
            .map(|share| (share.name.clone(), *old.get(&share.name).unwrap_or(&now)))
            .collect();
        self.controllers[at] = (
            self.versions.clone(),
            plan(&self.world, &self.empty_since, now),
        );
        self.failed[at] = Failed::default();
    }

    /// Takes one step, unless one that failed stops it.
    fn act(&mut self, at: usize) {
        if self.controllers[at].1.is_empty() {
            return;
        }
        let step = self.controllers[at].1.remove(0);
        if !self.failed[at].stops(&step) && !self.take(at, &step) {
            self.failed[at].add(&step);
        }
    }

    /// The same, when the API server has a hiccup.
    fn fail(&mut self, at: usize) {
        if !self.controllers[at].1.is_empty() {
            let step = self.controllers[at].1.remove(0);
            self.failed[at].add(&step);
        }
    }

    fn take(&mut self, at: usize, step: &ReservationStep) -> bool {
        let mut write = |name: &str, change: &mut dyn FnMut(&mut SharedGpu)| {
            let seen = self.controllers[at].0.get(name).copied();
            let version = self.versions.get_mut(name).unwrap();
            if seen != Some(*version) {
                return false;
            }
            *version += 1;
            self.controllers[at].0.insert(name.to_owned(), *version);
            change(
                self.world
                    .shares
                    .iter_mut()
                    .find(|share| share.name == name)
                    .unwrap(),
            );
            true
        };
        match step {
            ReservationStep::Unassign { share, uid } => write(share, &mut |share| {
                share.assigned.retain(|part| part.uid != *uid)
            }),
            ReservationStep::Assign { share, seeker } => write(share, &mut |share| {
                share.assigned.push(part(&seeker.uid, seeker.units))
            }),
            ReservationStep::Drain { share, draining } => {
                write(share, &mut |share| share.draining = *draining)
            }
            ReservationStep::Ungate { seeker, node } => {
                // For the pod as it was looked at: its gate is still there.
                let pod = self
                    .world
                    .seekers
                    .iter_mut()
                    .find(|pod| pod.uid == seeker.uid && pod.gated && !pod.over);
                pod.is_some_and(|pod| {
                    pod.gated = false;
                    pod.feasible_nodes = [node.clone()].into();
                    true
                })
            }
            ReservationStep::Reserve { name, seeker } => {
                if !self.world.carriers.iter().any(|one| one.name == *name) {
                    self.world.carriers.push(ReservationPod {
                        scheduled: false,
                        placement_key: seeker.placement_key.clone(),
                        ..carrier(name)
                    });
                }
                true
            }
            ReservationStep::Delete { carrier } => {
                self.gone(carrier);
                true
            }
            ReservationStep::DeleteShare { .. } => unreachable!("no node goes"),
        }
    }

    fn check(&self) {
        for share in &self.world.shares {
            let mut parts: BTreeMap<&str, u8> = BTreeMap::new();
            for part in share.assigned.iter().chain(&share.held) {
                parts.insert(&part.uid, part.units);
            }
            let sum: u32 = parts.values().map(|units| u32::from(*units)).sum();
            assert!(
                sum <= u32::from(UNITS),
                "{} is promised {sum} times a sixteenth",
                share.name
            );
        }
    }
}

fn pick<'a, T>(all: &'a mut [T], index: &Index) -> Option<&'a mut T> {
    match all.len() {
        0 => None,
        len => all.get_mut(index.index(len)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// No sixteenth is assigned twice and no pod is admitted without an assignment, for any events in any order, with
    /// two independent controllers that may stop after any step. Once no event happens any more, nothing is left.
    #[test]
    fn no_gpu_is_overfull_and_nothing_is_left_over(events in prop::collection::vec(event(), 1..120)) {
        let mut model = Model::new();
        for event in &events {
            model.happens(event);
            model.check();
        }
        // All pods end; the cluster comes to rest.
        for pod in &mut model.world.seekers {
            pod.over = true;
        }
        for _ in 0..12 {
            model.clock += 60;
            model.observe(0);
            while !model.controllers[0].1.is_empty() {
                model.act(0);
                model.check();
            }
            for at in 0..GPUS.len() {
                let living: BTreeSet<String> = BTreeSet::new();
                let share = &mut model.world.shares[at];
                share.held.retain(|part| living.contains(&part.uid) || share.assigned.iter().any(|one| one.uid == part.uid));
            }
        }
        prop_assert!(model.world.carriers.is_empty(), "{:?}", model.world.carriers);
        for share in &model.world.shares {
            prop_assert!(is_empty(share) && share.carrier.is_none() && !share.draining, "{share:?}");
        }
    }

    /// With one controller and GPUs enough, every waiting pod is admitted.
    #[test]
    fn every_pod_with_room_is_admitted(sizes in prop::collection::vec(1_u8..=16, 1..5)) {
        let mut model = Model::new();
        for units in &sizes {
            model.happens(&Event::Submit(*units));
        }
        for _ in 0..12 {
            model.observe(0);
            while !model.controllers[0].1.is_empty() {
                model.act(0);
            }
            let waiting: Vec<String> = model.world.carriers.iter().filter(|one| !one.scheduled).map(|one| one.name.clone()).collect();
            for name in waiting {
                let free = model.world.shares.iter().position(|share| share.carrier.is_none()).unwrap();
                model.world.shares[free].carrier = Some(name.clone());
                model.world.carriers.iter_mut().find(|one| one.name == name).unwrap().scheduled = true;
            }
        }
        prop_assert!(model.world.seekers.iter().all(|pod| !pod.gated));
        model.observe(0);
        prop_assert!(model.controllers[0].1.is_empty(), "what is done is not done again");
    }
}
