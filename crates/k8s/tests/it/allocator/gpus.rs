//! GPUs, and what is published and asked of them.

use std::sync::Arc;

use divvy_core::mig::{MigProfile, Placement, ProfileTable};
use divvy_core::units::Bytes;
use divvy_k8s::base::claim::Template;
use divvy_k8s::base::pod_request::{Fraction, Size};
use divvy_k8s::base::role::Role;
use divvy_k8s::base::slices::{
    Carving, Gpu, Health, Node, Offer, Pool, Taints, classes, inventory_of, pool,
};
use k8s_openapi::api::resource::v1::{ResourceClaimSpec, ResourceSlice};

use crate::allocator::model::Cluster;

pub fn gpu(index: u32, memory: Bytes, offer: Offer) -> Gpu {
    Gpu {
        uuid: format!("GPU-00000000-0000-4000-8000-{index:012x}"),
        index,
        model: "NVIDIA H100 80GB HBM3".to_owned(),
        memory,
        offer,
        health: Health::Well,
    }
}

pub fn shared(index: u32, gib: u64) -> Gpu {
    gpu(index, Bytes::gib(gib), Offer::Parts(None))
}

/// In parts or in instances, whichever come first.
pub fn either(index: u32, model: &str) -> Gpu {
    gpu(index, Bytes::gib(80), Offer::Parts(Some(carving(model))))
}

pub fn cut(index: u32, model: &str) -> Gpu {
    gpu(index, Bytes::gib(80), Offer::Instances(carving(model)))
}

pub fn carving(model: &str) -> Carving {
    Carving {
        table: ProfileTable::clone(&table(model)),
        taken: Vec::new(),
    }
}

pub fn table(model: &str) -> Arc<ProfileTable> {
    ProfileTable::of_model(model).unwrap()
}

pub fn place(table: &ProfileTable, profile: &str, start: u8) -> Placement {
    Placement {
        profile: table.named(name(profile)).unwrap().id,
        start,
    }
}

pub fn name(profile: &str) -> MigProfile {
    profile.parse().unwrap()
}

pub fn may_cut() -> Role {
    Role::DynamicMig {
        by: vec!["divvy.dev/dynamic-mig"],
    }
}

pub fn node(name: &str) -> Node {
    Node {
        name: name.to_owned(),
        uid: format!("uid-of-{name}"),
    }
}

pub fn pool_of(gpus: &[Gpu]) -> Pool {
    pool(gpus, &may_cut(), Taints::Known)
}

pub fn slices(gpus: &[Gpu]) -> Vec<ResourceSlice> {
    pool_of(gpus).slices(&node("a"), 1)
}

/// A cluster of these slices, with our classes.
pub fn cluster(slices: Vec<ResourceSlice>) -> Cluster {
    let classes = classes(&inventory_of(&slices), true);
    Cluster::new(slices, classes)
}

/// What the injector makes of it in this cluster; `None` for what no GPU of it could ever serve.
pub fn asks(cluster: &Cluster, sizes: &[Size]) -> Option<ResourceClaimSpec> {
    let template = Template::of(sizes, &inventory_of(&cluster.slices)).ok()?;
    Some(serde_json::from_value(template.spec["spec"].clone()).unwrap())
}

pub fn part(text: &str) -> Size {
    Size::Fraction(Fraction::between_none_and_one(text).unwrap())
}

pub fn memory(gib: u64) -> Size {
    Size::Memory(gib << 10)
}
