//! The choice of a node for a queued job: a node policy of [`cluster`](crate::cluster), on a copy of the nodes.
//!
//! The planner says on which nodes a job fits; the policy chooses among them. The GPUs inside the node are the
//! planner's. A policy that chooses another node, because it knows no MIG instances and no quotas, is replaced by best
//! fit for this job. A node with several GPU models counts as one of its first GPU's model.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::ground::Ground;
use super::scene::{Scene, SceneError};
use super::work::Submission;
use crate::cluster::{
    BestFit, Choice, Cluster, Fgd, ModelSet, NodePolicy, NodeSpec, PolicyName, Shape, Stock,
    Strategy,
};
use crate::model::request::Amount;
use crate::model::slice::Grant;
use crate::placement::Offer;
use crate::placement::hosts::{HostChoice, HostHold, HostNeed};
use crate::placement::occupancy::NodeUsage;
use crate::units::{Bytes, JobId};

/// Stands for CPU and main memory that are not counted.
const PLENTY: u64 = 1 << 40;

/// A policy with its copy of the nodes.
pub(super) struct PolicyChoice(RefCell<Copy>);

struct Copy {
    policy: Box<dyn NodePolicy>,
    best_fit: BestFit,
    cluster: Cluster,
    /// What each job holds in the copy.
    held: BTreeMap<JobId, (HostHold, Option<(Shape, Choice)>)>,
    /// What each job asks for.
    shapes: Vec<Shape>,
}

impl PolicyChoice {
    pub fn new(
        scene: &Scene,
        ground: &Ground,
        jobs: &[Submission],
        needs: &[HostNeed],
    ) -> Result<Self, SceneError> {
        let shapes: Vec<Shape> = jobs
            .iter()
            .zip(needs)
            .map(|(job, need)| shape(job, *need))
            .collect();
        let specs = ground.hosts.iter().map(|host| {
            let first = ground.gpus.get(host.gpus.start);
            NodeSpec {
                name: String::new(),
                cpu_milli: host.cpu_milli.min(PLENTY),
                memory_mib: mib(host.memory).min(PLENTY),
                gpus: u32::try_from(host.gpus.len()).unwrap_or(u32::MAX),
                model: ground
                    .models
                    .get(host.gpus.start)
                    .map_or(0, |bit| bit.trailing_zeros() as usize),
                gpu_memory_mib: first.map_or(0, |gpu| mib(gpu.usable())),
            }
        });
        Ok(Self(RefCell::new(Copy {
            policy: policy(scene.policy, &shapes)?,
            best_fit: BestFit::default(),
            cluster: Cluster::new(specs),
            held: BTreeMap::new(),
            shapes,
        })))
    }
}

fn policy(name: PolicyName, shapes: &[Shape]) -> Result<Box<dyn NodePolicy>, SceneError> {
    Ok(match name {
        PolicyName::BestFit => Box::new(BestFit::default()),
        PolicyName::Fgd => {
            let mut mix: BTreeMap<Shape, u64> = BTreeMap::new();
            for shape in shapes {
                *mix.entry(*shape).or_default() += 1;
            }
            Box::new(Fgd::new(&mix.into_iter().collect::<Vec<_>>()))
        }
        PolicyName::StockLeast => Box::new(Stock::new(Strategy::LeastAllocated)),
        PolicyName::StockMost => Box::new(Stock::new(Strategy::MostAllocated)),
        PolicyName::Learned | PolicyName::QueueVisible => return Err(SceneError::Policy(name)),
    })
}

fn mib(bytes: Bytes) -> u64 {
    bytes.get() >> 20
}

/// What a job asks for. A range counts as its smallest number, and a MIG profile as its memory.
fn shape(job: &Submission, need: HostNeed) -> Shape {
    let (gpus, share, memory) = match job.request.amount {
        Amount::Share(share) => (1, share.thousandths(), Bytes::ZERO),
        Amount::Memory(memory) => (1, 0, memory),
        Amount::Whole(count) | Amount::Range { min: count, .. } => (count.get(), 1000, Bytes::ZERO),
        Amount::Shares { count, share } => (count.get(), share.thousandths(), Bytes::ZERO),
        Amount::Mig(profile) => (1, 0, profile.nominal()),
    };
    Shape {
        cpu_milli: need.cpu_milli,
        memory_mib: mib(need.memory),
        gpus,
        share: share.into(),
        gpu_memory_mib: mib(memory),
        models: (0..64)
            .filter(|bit| need.models >> bit & 1 == 1)
            .fold(ModelSet::ANY, ModelSet::with),
    }
}

impl HostChoice for PolicyChoice {
    fn choose(
        &self,
        node: &NodeUsage<'_>,
        job: JobId,
        candidates: &[(usize, Vec<Offer>)],
    ) -> usize {
        let copy = &mut *self.0.borrow_mut();
        copy.follow(node);
        let nth = usize::try_from(job.0).unwrap_or(usize::MAX);
        let Some(shape) = copy.shapes.get(nth).copied() else {
            return 0;
        };
        let place = |choice: Option<Choice>| {
            let chosen = choice?.node;
            candidates.iter().position(|(host, _)| *host == chosen)
        };
        place(copy.policy.choose(&copy.cluster, &shape))
            .or_else(|| place(copy.best_fit.choose(&copy.cluster, &shape)))
            .unwrap_or(0)
    }
}

impl Copy {
    /// Brings the copy to the state of the nodes.
    fn follow(&mut self, node: &NodeUsage<'_>) {
        let Some(hosts) = &node.hosts else { return };
        let jobs = hosts.jobs();
        let gone = self
            .held
            .extract_if(.., |job, (hold, _)| jobs.get(job) != Some(hold));
        for (_, (_, held)) in gone {
            if let Some((shape, choice)) = held {
                self.cluster.release(&shape, &choice);
            }
        }
        for (job, hold) in jobs {
            if self.held.contains_key(job) {
                continue;
            }
            let first = hosts.table().hosts[hold.host].gpus.clone();
            let usages = node.gpus[first].iter().enumerate();
            let grants = usages.filter_map(|(gpu, usage)| {
                let mut holders = usage.holders.iter();
                Some((gpu, &holders.find(|holder| holder.job == *job)?.grant))
            });
            let held = held(hold.host, grants, hosts.need(*job));
            let taken = held.filter(|(shape, choice)| self.cluster.take(shape, choice));
            self.held.insert(*job, (*hold, taken));
        }
    }
}

/// What a job holds of a node, for the copy.
fn held<'a>(
    node: usize,
    grants: impl Iterator<Item = (usize, &'a Grant)>,
    need: HostNeed,
) -> Option<(Shape, Choice)> {
    let (gpus, grants): (Vec<usize>, Vec<&Grant>) = grants.unzip();
    let first = grants.first()?;
    let shape = Shape {
        cpu_milli: need.cpu_milli,
        memory_mib: mib(need.memory),
        gpus: u32::try_from(gpus.len()).ok()?,
        share: first.share.thousandths().into(),
        gpu_memory_mib: mib(first.memory),
        models: ModelSet::ANY,
    };
    Some((shape, Choice { node, gpus }))
}
