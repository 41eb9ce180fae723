//! Waiting requests as patterns that fill GPUs exactly.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use divvy_core::{Bytes, Share};
use divvy_packing::{Cluster, ModelSet, NodeSpec, Shape};
use divvy_study::engine::patterns::{MOST_WAITING, Waiting, start};
use proptest::prelude::*;

fn node(nth: usize, gpus: u32, cpu: u64) -> NodeSpec {
    NodeSpec {
        name: format!("n{nth}"),
        cpu_milli: 1000 * cpu,
        memory: Bytes::gib(1024),
        gpus,
        model: nth % 2,
        gpu_memory: None,
    }
}

fn shape(cpu: u64, gpus: u32, share: u16) -> Shape {
    Shape {
        cpu_milli: 1000 * cpu,
        memory: Bytes::gib(1),
        gpus,
        share: Share::from_thousandths(share),
        ..Shape::default()
    }
}

fn waits(shapes: &[Shape]) -> Vec<Waiting> {
    let waiting = shapes.iter().map(|shape| Waiting {
        shape: *shape,
        is_due: false,
    });
    waiting.collect()
}

/// Takes what starts; fails where it does not fit or starts twice. Returns the places of what started.
fn taken(cluster: &Cluster, waiting: &[Waiting]) -> (Cluster, Vec<usize>) {
    let mut cluster = cluster.clone();
    let mut started = Vec::new();
    for one in start(&cluster, waiting) {
        assert!(
            cluster.take(&waiting[one.waiting].shape, &one.choice),
            "{one:?}"
        );
        assert!(!started.contains(&one.waiting), "twice: {one:?}");
        started.push(one.waiting);
    }
    started.sort_unstable();
    (cluster, started)
}

/// The oldest would fill the GPU to 80 %; 600 and 400 fill it.
#[test]
fn parts_that_fill_a_gpu_start_before_older_ones() {
    let cluster = Cluster::new([node(0, 1, 8)]);
    let waiting = waits(&[shape(1, 1, 800), shape(1, 1, 600), shape(1, 1, 400)]);
    let (after, started) = taken(&cluster, &waiting);
    assert_eq!((started, after.free_milli()), (vec![1, 2], 0));
    let mut due = waiting;
    due[0].is_due = true;
    assert_eq!(taken(&cluster, &due).1, [0], "a due request goes first");
}

#[test]
fn nodes_are_filled_to_their_cpu() {
    // Ten cores for two GPUs, and two: in the other order one whole GPU stays without CPU.
    let cluster = Cluster::new([node(0, 2, 10), node(1, 2, 2)]);
    let small = [shape(1, 1, 1000); 2];
    let large = [shape(5, 1, 1000); 2];
    let (after, started) = taken(&cluster, &waits(&[small, large].concat()));
    assert_eq!((started.len(), after.free_milli()), (4, 0));
}

#[test]
fn of_equal_parts_the_oldest_start() {
    let cluster = Cluster::new([node(0, 1, 8)]);
    let (_, started) = taken(&cluster, &waits(&[shape(1, 1, 500); 4]));
    assert_eq!(started, [0, 1]);
}

#[test]
fn nothing_else_starts_where_a_due_request_has_no_room() {
    let cluster = Cluster::new([node(0, 2, 8)]);
    let mut waiting = waits(&[
        shape(1, 1, 300),
        shape(1, 3, 1000),
        shape(1, 1, 500),
        shape(1, 1, 500),
    ]);
    waiting[0].is_due = true;
    waiting[1].is_due = true;
    waiting[2].is_due = true;
    assert_eq!(taken(&cluster, &waiting).1, [0]);
}

#[test]
fn many_sizes_many_requests_and_none() {
    let cluster = Cluster::new([node(0, 4, 64)]);
    assert_eq!(start(&cluster, &[]), []);
    assert_eq!(start(&Cluster::new([]), &waits(&[shape(1, 1, 500)])), []);
    let sizes: Vec<Shape> = (1..1000).map(|share| shape(0, 1, share)).collect();
    let (after, _) = taken(&cluster, &waits(&sizes));
    assert!(after.free_milli() < 40, "{}", after.free_milli());
    // Requests beyond the bound are not considered: the only one that fits is the last.
    let mut many = vec![shape(1, 8, 1000); MOST_WAITING];
    many.push(shape(1, 1, 1000));
    assert_eq!(start(&cluster, &waits(&many)), []);
}

fn any_waiting() -> impl Strategy<Value = Waiting> {
    let shares = prop_oneof![Just(1000_u16), Just(500), Just(810), Just(190), 1..1000_u16];
    (0..9_u64, 0..4_u32, shares, 0..3_u64, 0..4).prop_map(|(cpu, gpus, share, models, due)| {
        Waiting {
            shape: Shape {
                models: ModelSet::from_bits(models),
                ..shape(cpu, gpus, if gpus == 0 { 0 } else { share })
            },
            is_due: due == 0,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// On clusters in any state: what starts fits, nothing that still fits is left, and due requests come first.
    #[test]
    fn what_starts_fits_and_due_requests_come_first(
        held in prop::collection::vec(any_waiting(), 0..8),
        waiting in prop::collection::vec(any_waiting(), 0..30),
    ) {
        let empty = Cluster::new((0..4).map(|nth| node(nth, 1 + nth as u32, 8)));
        let (cluster, _) = taken(&empty, &held);
        let (after, started) = taken(&cluster, &waiting);
        let left = (0..waiting.len()).filter(|at| !started.contains(at));
        let (due, other): (Vec<usize>, Vec<usize>) = left.partition(|at| waiting[*at].is_due);
        match due.first() {
            None => {
                for at in other {
                    let fits = after.nodes().iter().any(|node| node.fits(&waiting[at].shape));
                    prop_assert!(!fits, "{:?} fits and does not start", waiting[at]);
                }
            }
            Some(first) => {
                let fits = after.nodes().iter().any(|node| node.fits(&waiting[*first].shape));
                prop_assert!(!fits, "due {first} fits and does not start");
                prop_assert!(started.iter().all(|at| waiting[*at].is_due && at < first));
            }
        }
    }
}
