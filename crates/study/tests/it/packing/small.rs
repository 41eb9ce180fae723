//! Small clusters and requests.

use divvy_core::{Bytes, Share};
use divvy_packing::{BestFit, ModelSet, NodePolicy, NodeSpec, Shape};
use divvy_study::engine::fgd::Fgd;
use divvy_study::engine::policy_name::PolicyName;

/// The policy, for requests as in this mix.
pub fn built(name: PolicyName, mix: &[(Shape, u64)]) -> Box<dyn NodePolicy> {
    match name {
        PolicyName::BestFit => Box::new(BestFit::default()),
        PolicyName::Fgd => Box::new(Fgd::new(mix)),
        PolicyName::Learned | PolicyName::QueueVisible => panic!("{name} is not built here"),
    }
}

/// A node with 64 cores, and memory that is no limit.
pub fn node(name: &str, gpus: u32) -> NodeSpec {
    NodeSpec {
        name: name.to_owned(),
        cpu_milli: 64_000,
        memory: Bytes::gib(1024),
        gpus,
        model: 0,
        gpu_memory: None,
    }
}

/// A request with one core for each GPU.
pub fn shape(gpus: u32, share: u16) -> Shape {
    Shape {
        cpu_milli: 1000 * u64::from(gpus.max(1)),
        memory: Bytes::gib(1),
        gpus,
        share: Share::from_thousandths(share),
        gpu_memory: None,
        models: ModelSet::ANY,
    }
}
