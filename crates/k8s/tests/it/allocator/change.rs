//! What is written to the cluster, until what is there is what is to be.

use divvy_k8s::base::slices::{Gpu, Health, Node, Pool, SliceChange, steps};
use k8s_openapi::api::resource::v1::ResourceSlice;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;

use crate::allocator::gpus::{cut, either, node, pool_of, shared};
use crate::allocator::shape;

/// A cluster's slices, after these steps.
fn after(found: &[ResourceSlice], steps: &[SliceChange]) -> Vec<ResourceSlice> {
    let mut all = found.to_vec();
    let at = |all: &[ResourceSlice], slice: &ResourceSlice| {
        let mut found = all.iter();
        found.position(|one| one.metadata.name == slice.metadata.name)
    };
    for step in steps {
        match step {
            SliceChange::Create(slice) => {
                assert_eq!(at(&all, slice), None, "it is there already");
                all.push(slice.clone());
            }
            SliceChange::Replace(slice) => {
                let found = at(&all, slice).expect("it is there");
                assert_eq!(
                    all[found].metadata.resource_version,
                    slice.metadata.resource_version
                );
                assert_eq!(
                    all[found].spec.pool.name, slice.spec.pool.name,
                    "that is for good"
                );
                all[found] = slice.clone();
            }
            SliceChange::Delete(slice) => {
                let found = at(&all, slice).expect("it is there");
                all.remove(found);
            }
        }
    }
    all
}

/// Those of the newest generation, as the scheduler reads them: complete, in order, and what the pool is.
fn is_published(all: &[ResourceSlice], pool: &Pool, node: &Node) {
    let ours = all
        .iter()
        .filter(|s| s.spec.node_name.as_ref() == Some(&node.name));
    let mut ours: Vec<&ResourceSlice> = ours
        .filter(|slice| slice.spec.driver == "gpu.divvy.dev")
        .collect();
    ours.sort_by_key(|slice| slice.metadata.name.clone());
    let generation = ours.first().map_or(1, |slice| slice.spec.pool.generation);
    let wanted = pool.slices(node, generation);
    assert_eq!(ours.len(), wanted.len());
    shape::check(&wanted);
    assert!(steps(pool, node, all).is_empty(), "settled");
}

fn many() -> Vec<Gpu> {
    (0..4).map(|index| either(index, "h100-80gb")).collect()
}

#[test]
fn at_first_everything_is_made_and_then_nothing_is_done() {
    let (pool, node) = (pool_of(&many()), node("a"));
    let first = steps(&pool, &node, &[]);
    assert!(
        first
            .iter()
            .all(|step| matches!(step, SliceChange::Create(_)))
    );
    let all = after(&[], &first);
    assert!(all.iter().all(|slice| slice.spec.pool.generation == 1));
    is_published(&all, &pool, &node);
}

#[test]
fn the_api_servers_own_way_of_writing_is_no_change() {
    let (mut gpus, node) = (many(), node("a"));
    gpus[0].health = Health::Troubled;
    let pool = pool_of(&gpus);
    let mut all = pool.slices(&node, 7);
    for slice in &mut all {
        slice.metadata.uid = Some("made".to_owned());
        for device in slice.spec.devices.iter_mut().flatten() {
            for capacity in device.capacity.iter_mut().flat_map(|all| all.values_mut()) {
                if capacity.value.0 == "80Gi" {
                    capacity.value = Quantity("81920Mi".to_owned());
                }
            }
            for taint in device.taints.iter_mut().flatten() {
                taint.time_added = Some(Time("2026-01-02T03:04:05Z".parse().unwrap()));
            }
        }
    }
    assert_eq!(steps(&pool, &node, &all), []);
}

#[test]
fn what_was_deleted_comes_back_as_it_was() {
    let (pool, node) = (pool_of(&many()), node("a"));
    let mut all = pool.slices(&node, 5);
    let gone = all.remove(1);
    assert_eq!(steps(&pool, &node, &all), [SliceChange::Create(gone)]);
}

#[test]
fn a_change_is_one_generation_and_all_of_it() {
    let (gpus, node) = (many(), node("a"));
    let before = pool_of(&gpus).slices(&node, 5);
    let mut ill = gpus.clone();
    ill[0].health = Health::Lost;
    let pool = pool_of(&ill);
    let changes = steps(&pool, &node, &before);
    assert_eq!(changes.len(), before.len());
    let all = after(&before, &changes);
    assert!(all.iter().all(|slice| slice.spec.pool.generation == 6));
    is_published(&all, &pool, &node);
}

#[test]
fn the_time_of_a_taint_stays_while_it_is_the_same() {
    let (mut gpus, node) = (many(), node("a"));
    gpus[0].health = Health::Silent;
    let mut before = pool_of(&gpus).slices(&node, 5);
    let since = Some(Time("2026-01-02T03:04:05Z".parse().unwrap()));
    for device in before
        .iter_mut()
        .flat_map(|s| s.spec.devices.iter_mut().flatten())
    {
        for taint in device.taints.iter_mut().flatten() {
            taint.time_added.clone_from(&since);
        }
    }
    let times = |gpus: &[Gpu]| {
        let all = after(&before, &steps(&pool_of(gpus), &node, &before));
        let devices = all
            .iter()
            .flat_map(|slice| slice.spec.devices.iter().flatten());
        let taints = devices.flat_map(|device| device.taints.iter().flatten());
        taints
            .map(|taint| taint.time_added.clone())
            .collect::<Vec<_>>()
    };
    gpus[1].memory = gpus[0].memory.round_down(divvy_core::units::Bytes::gib(7));
    assert!(times(&gpus).iter().all(|time| *time == since));
    gpus[0].health = Health::Lost;
    assert!(
        times(&gpus).iter().all(Option::is_none),
        "it is another taint"
    );
}

#[test]
fn fewer_gpus_are_fewer_slices_and_none_is_none() {
    let (gpus, node) = (many(), node("a"));
    let before = pool_of(&gpus).slices(&node, 5);
    for left in [1, 0] {
        let pool = pool_of(&gpus[..left]);
        let all = after(&before, &steps(&pool, &node, &before));
        is_published(&all, &pool, &node);
        assert!(all.len() < before.len());
    }
}

#[test]
fn what_is_left_of_another_shape_goes_and_what_is_others_stays() {
    let (pool, node) = (pool_of(&many()), node("a"));
    let older = |name: &str, generation: i64, pool_name: &str| {
        let mut slice = pool.slices(&node, generation).remove(0);
        slice.metadata.name = Some(name.to_owned());
        slice.spec.pool.name = pool_name.to_owned();
        slice
    };
    let mut of_other_node = older("b", 9, "b");
    of_other_node.spec.node_name = Some("b".to_owned());
    let mut of_other_driver = older("nvidia", 9, "a");
    of_other_driver.spec.driver = "gpu.nvidia.com".to_owned();
    let found = [
        older("a-gpu.divvy.dev-xyz", 3, "a"),
        // In the way of one of ours: the name of its pool is for good.
        older("a-gpu.divvy.dev-000", 3, "gpus-of-a"),
        of_other_node.clone(),
        of_other_driver.clone(),
    ];
    let all = after(&found, &steps(&pool, &node, &found));
    is_published(&all, &pool, &node);
    assert!(all.contains(&of_other_node) && all.contains(&of_other_driver));
    assert_eq!(all.len(), pool.slices(&node, 1).len() + 2);
}

#[derive(Clone, Debug)]
enum Damage {
    Delete(usize),
    Generation(usize, i64),
    Count(usize),
    Device(usize),
    Extra(usize, i64),
    Owner(usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        any::<usize>().prop_map(Damage::Delete),
        (any::<usize>(), 0..9_i64).prop_map(|(at, generation)| Damage::Generation(at, generation)),
        any::<usize>().prop_map(Damage::Count),
        any::<usize>().prop_map(Damage::Device),
        (any::<usize>(), 0..9_i64).prop_map(|(at, generation)| Damage::Extra(at, generation)),
        any::<usize>().prop_map(Damage::Owner),
    ]
}

fn do_damage(all: &mut Vec<ResourceSlice>, damage: &Damage) {
    let (Damage::Delete(at)
    | Damage::Generation(at, _)
    | Damage::Count(at)
    | Damage::Device(at)
    | Damage::Extra(at, _)
    | Damage::Owner(at)) = *damage;
    if all.is_empty() {
        return;
    }
    let at = at % all.len();
    match damage {
        Damage::Delete(_) => drop(all.remove(at)),
        Damage::Generation(_, generation) => all[at].spec.pool.generation = *generation,
        Damage::Count(_) => all[at].spec.pool.resource_slice_count += 1,
        Damage::Device(_) => {
            let devices = all[at].spec.devices.iter_mut().flatten();
            devices.take(1).for_each(|device| device.name.push('x'));
        }
        Damage::Extra(_, generation) => {
            let mut slice = all[at].clone();
            slice.metadata.name = Some(format!("extra-{}", all.len()));
            slice.spec.pool.generation = *generation;
            all.push(slice);
        }
        Damage::Owner(_) => all[at].metadata.owner_references = None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_was_done_to_them_slices_are_right_after_one_pass(
        before in 0..5_u32,
        now in 0..5_u32,
        damages in prop::collection::vec(damage(), 0..4),
    ) {
        let gpus = |count: u32| -> Vec<Gpu> {
            let gpu = |index| match index % 2 {
                0 => cut(index, "h100-80gb"),
                _ => shared(index, 80),
            };
            (0..count).map(gpu).collect()
        };
        let node = node("a");
        let mut all = pool_of(&gpus(before)).slices(&node, 4);
        damages.iter().for_each(|damage| do_damage(&mut all, damage));
        let pool = pool_of(&gpus(now));
        let steps = steps(&pool, &node, &all);
        let newest = all.iter().map(|slice| slice.spec.pool.generation).max();
        let all = after(&all, &steps);
        is_published(&all, &pool, &node);
        // The scheduler may know what was there: nothing that is written pretends to be it and is not.
        for step in &steps {
            if let SliceChange::Replace(slice) = step {
                prop_assert!(Some(slice.spec.pool.generation) > newest);
            }
        }
    }
}
