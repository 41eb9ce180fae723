//! Nodes: two axes, what does not fit, and the best fit, which is that of placement.

use std::num::NonZeroU32;

use divvy_core::{Amount, Bytes, Gpu, GpuUuid, JobId, Mode, NodeUsage, QueueName, Request, Share};
use proptest::prelude::*;

use super::*;

/// So many MiB; `None` for 0.
fn known(mib: u64) -> Option<Bytes> {
    (mib > 0).then(|| Bytes::mib(mib))
}

fn node(gpus: u32, gpu_memory_mib: u64) -> NodeSpec {
    NodeSpec {
        name: "n".to_owned(),
        cpu_milli: 8000,
        memory: Bytes::gib(16),
        gpus,
        model: 1,
        gpu_memory: known(gpu_memory_mib),
    }
}

fn part(thousandths: u16, gpu_memory_mib: u64) -> Shape {
    Shape {
        cpu_milli: 1000,
        memory: Bytes::MIB,
        gpus: 1,
        share: Share::from_thousandths(thousandths),
        gpu_memory: known(gpu_memory_mib),
        models: ModelSet::ANY,
    }
}

#[test]
fn share_and_memory_are_two_axes() {
    let mut cluster = Cluster::new([node(1, 1000)]);
    let small_share = part(100, 900);
    let choice = Choice {
        node: 0,
        gpus: vec![0],
    };
    assert!(cluster.take(&small_share, &choice));
    assert_eq!(cluster.nodes()[0].gpus[0].milli(), 900);
    assert!(
        !cluster.nodes()[0].fits(&part(200, 0)),
        "200 MiB are not free"
    );
    assert!(cluster.nodes()[0].fits(&part(900, 100)));
    assert!(cluster.nodes()[0].fits(&part(0, 100)), "the share follows");
    cluster.release(&small_share, &choice);
    assert_eq!(cluster.nodes()[0].idle_gpus(), 1);
    assert_eq!(cluster.change(), 2);
}

#[test]
fn what_does_not_fit_changes_nothing() {
    let mut cluster = Cluster::new([node(2, 0)]);
    let before = cluster.clone();
    for (shape, gpus) in [
        (part(0, 0), vec![0]),
        (part(500, 0), vec![2]),
        (part(500, 0), vec![0, 1]),
        (
            Shape {
                gpus: 2,
                ..part(500, 0)
            },
            vec![1, 1],
        ),
        (
            Shape {
                cpu_milli: 8001,
                ..part(500, 0)
            },
            vec![0],
        ),
        (
            Shape {
                models: ModelSet::ANY.with(0),
                ..part(500, 0)
            },
            vec![0],
        ),
        (part(0, 100), vec![0]),
    ] {
        assert!(
            !cluster.take(&shape, &Choice { node: 0, gpus }),
            "{shape:?}"
        );
    }
    assert_eq!(cluster, before);
}

#[test]
fn what_is_read_elsewhere_counts_as_a_change_only_where_it_is_one() {
    let mut cluster = Cluster::new([node(2, 0), node(1, 0)]);
    let half = GpuFree {
        share: Share::from_thousandths(500),
        memory: None,
    };
    cluster.set_free(1, 4000, Bytes::gib(8), &[half, half]);
    let [first, second] = cluster.nodes() else {
        panic!("two nodes")
    };
    assert!(second.changed_since(0) && !first.changed_since(0));
    assert_eq!((second.free_milli(), second.cpu_milli), (500, 4000));
    cluster.set_free(1, 4000, Bytes::gib(8), &[half]);
    cluster.set_free(2, 1, Bytes::MIB, &[]);
    assert_eq!(cluster.change(), 1);
}

#[test]
fn the_best_fit_is_the_tightest_gpu() {
    let mut cluster = Cluster::new([node(3, 0)]);
    for (share, gpu) in [(300, 2), (600, 1)] {
        let gpus = vec![gpu];
        assert!(cluster.take(&part(share, 0), &Choice { node: 0, gpus }));
    }
    let node = &cluster.nodes()[0];
    assert_eq!(node.best_fit(&part(400, 0)), Some(vec![1]));
    assert_eq!(node.best_fit(&part(500, 0)), Some(vec![2]));
    assert_eq!(node.best_fit(&part(1000, 0)), Some(vec![0]));
    assert_eq!(
        node.best_fit(&Shape {
            gpus: 2,
            ..part(700, 0)
        }),
        Some(vec![2, 0])
    );
    assert_eq!(
        node.best_fit(&Shape {
            gpus: 2,
            ..part(1000, 0)
        }),
        None
    );
    assert_eq!(
        node.best_fit(&Shape {
            gpus: 0,
            ..part(0, 0)
        }),
        Some(vec![])
    );
}

/// A request as both rooms state it.
#[derive(Clone, Copy, Debug)]
enum Asked {
    /// One part by share, in steps of 5 thousandths.
    Share(u16),
    /// One part by memory, of which several amounts are the same share.
    Memory(u64),
    Whole(u32),
    /// Parts of several GPUs.
    Shares(u32, u16),
}

/// MiB of each GPU: 80 for each thousandth, so that both rooms round nothing.
const MEMORY: u64 = 80_000;

/// A shared GPU of the planner, all of it usable.
fn gpu(index: u32) -> Gpu {
    let mut uuid = [0; 16];
    uuid[12..].copy_from_slice(&index.to_be_bytes());
    Gpu {
        uuid: GpuUuid::from_bytes(uuid),
        index,
        model: "m".to_owned(),
        mode: Mode::Shared,
        away: false,
        out_of_service: None,
        total: Bytes::mib(MEMORY),
        reserved: Bytes::ZERO,
        unmanaged: Bytes::ZERO,
        unlisted: Bytes::ZERO,
        unlisted_holder: None,
        context: Bytes::ZERO,
        mig: None,
        enforcement: divvy_core::Enforcement::Limiter,
        elsewhere: Vec::new(),
    }
}

impl Asked {
    fn shape(self) -> Shape {
        let (gpus, share, gpu_memory_mib) = match self {
            Self::Share(share) => (1, share, 0),
            Self::Memory(mib) => (1, 0, mib),
            Self::Whole(gpus) => (gpus, 1000, 0),
            Self::Shares(gpus, share) => (gpus, share, 0),
        };
        Shape {
            gpus,
            share: Share::from_thousandths(share),
            gpu_memory: known(gpu_memory_mib),
            ..Shape::default()
        }
    }

    fn request(self) -> Request {
        let share = |share| Share::from_thousandths(share).unwrap();
        let count = |gpus| NonZeroU32::new(gpus).unwrap();
        let amount = match self {
            Self::Share(thousandths) => Amount::Share(share(thousandths)),
            Self::Memory(mib) => Amount::Memory(Bytes::mib(mib)),
            Self::Whole(gpus) => Amount::Whole(count(gpus)),
            Self::Shares(gpus, thousandths) => Amount::Shares {
                count: count(gpus),
                share: share(thousandths),
            },
        };
        amount.plain().into()
    }
}

fn asked() -> impl Strategy<Value = Asked> {
    prop_oneof![
        4 => (1_u16..200).prop_map(|fifths| Asked::Share(fifths * 5)),
        3 => (0_u64..60, 1_u64..8).prop_map(|(fifths, tens)| {
            Asked::Memory(fifths * 400 + tens * 10)
        }),
        1 => (1_u32..4).prop_map(Asked::Whole),
        2 => (2_u32..4, 1_u16..200).prop_map(|(gpus, fifths)| Asked::Shares(gpus, fifths * 5)),
    ]
}

proptest! {
    /// Jobs come, and some leave: whatever is occupied, the node of a cluster and the planner's node choose the same GPUs.
    #[test]
    fn the_best_fit_of_a_node_is_that_of_placement(
        steps in prop::collection::vec((asked(), any::<bool>(), any::<prop::sample::Index>()), 1..40)
    ) {
        let gpus: Vec<Gpu> = (0..4).map(gpu).collect();
        let mut planner = NodeUsage::empty(&gpus);
        let mut cluster = Cluster::new([node(4, MEMORY)]);
        let mut jobs: Vec<(JobId, Shape, Choice)> = Vec::new();
        for (nth, (asked, leaves, which)) in (1..).zip(steps) {
            let placed = planner.find(&asked.request());
            let chosen = cluster.nodes()[0].best_fit(&asked.shape());
            let positions = placed.as_ref().map(|offers| {
                offers.iter().map(|offer| offer.position).collect::<Vec<usize>>()
            });
            prop_assert_eq!(&positions, &chosen, "{:?} in {:?}", asked, cluster.nodes()[0].gpus);
            if let (Some(offers), Some(gpus)) = (placed, chosen) {
                let job = JobId(nth);
                planner.assign(job, &QueueName::default_queue(), &offers);
                let choice = Choice { node: 0, gpus };
                prop_assert!(cluster.take(&asked.shape(), &choice));
                jobs.push((job, asked.shape(), choice));
            }
            if leaves && !jobs.is_empty() {
                let (job, shape, choice) = jobs.swap_remove(which.index(jobs.len()));
                planner = planner.without(&[job].into());
                cluster.release(&shape, &choice);
            }
        }
    }
}
