//! Workloads of a cluster: nodes, requests, and the order in which the requests arrive.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use divvy_packing::random::Random;
use divvy_packing::{Cluster, NodeSpec, Shape};

/// Requests are appended until they ask for this much of the cluster's GPUs, in percent. As in the published comparison
/// (FGD), so that figures compare.
pub const UNTIL: u64 = 130;

/// One request of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Unique. A drawn order starts from the list sorted by name.
    pub name: String,
    pub shape: Shape,
}

/// Nodes and requests as a list has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    pub nodes: Vec<NodeSpec>,
    pub pods: Vec<Pod>,
}

/// The order in which a list's requests arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Order {
    /// Drawn, from a seed.
    Seeded,
    /// As in the list, and nothing is appended or removed.
    Given,
}

/// A workload in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arranged {
    /// Empty. Its nodes are in the order that breaks ties.
    pub cluster: Cluster,
    pub arrivals: Vec<Shape>,
}

impl Workload {
    /// The shapes of the list, each with its count, in order of shape.
    pub fn mix(&self) -> Vec<(Shape, u64)> {
        let mut mix: BTreeMap<Shape, u64> = BTreeMap::new();
        for pod in &self.pods {
            *mix.entry(pod.shape).or_default() += 1;
        }
        mix.into_iter().collect()
    }

    /// The empty cluster and the arrivals. A drawn order shuffles the requests and the nodes. It appends requests
    /// of the list, drawn with replacement, until the arrivals ask for [`UNTIL`] percent of the GPUs; a list that asks
    /// for more loses requests at random.
    pub fn arranged(&self, order: Order, seed: u64) -> Arranged {
        let (nodes, arrivals) = match order {
            Order::Given => {
                let given = |pods: &[Pod]| pods.iter().map(|pod| pod.shape).collect();
                (self.nodes.clone(), given(&self.pods))
            }
            Order::Seeded => self.drawn(&mut Random::seeded(seed)),
        };
        Arranged {
            cluster: Cluster::new(nodes),
            arrivals,
        }
    }

    /// The same requests on every n-th node, of the nodes sorted by model, GPUs and CPU: a part of the cluster that has
    /// nodes of each kind.
    #[must_use]
    pub fn on_every(mut self, nth: usize) -> Self {
        let kind = |node: &NodeSpec| (node.model, node.gpus, node.cpu_milli, node.memory);
        self.nodes
            .sort_by(|a, b| kind(a).cmp(&kind(b)).then(a.name.cmp(&b.name)));
        self.nodes = self.nodes.into_iter().step_by(nth.max(1)).collect();
        self
    }

    fn drawn(&self, draw: &mut Random) -> (Vec<NodeSpec>, Vec<Shape>) {
        let mut pods: Vec<&Pod> = self.pods.iter().collect();
        pods.sort_by(|a, b| a.name.cmp(&b.name));
        let cluster = Cluster::new(self.nodes.iter().cloned());
        let list = pods.into_iter().map(|pod| Asked {
            shape: pod.shape,
            milli: cluster.asked_milli(&pod.shape),
        });
        let list: Vec<Asked> = list.collect();
        let mut arrivals = list.clone();
        draw.shuffle(&mut arrivals);
        let most = cluster.capacity_milli() * UNTIL / 100;
        let mut asked: u64 = list.iter().map(|asked| asked.milli).sum();
        if asked < most {
            append(&mut arrivals, &list, asked, most, draw);
        }
        while asked > most {
            let removed = arrivals.remove(draw.below(arrivals.len()));
            asked -= removed.milli;
        }
        let mut nodes = self.nodes.clone();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        draw.shuffle(&mut nodes);
        let shapes = arrivals.into_iter().map(|asked| asked.shape);
        (nodes, shapes.collect())
    }
}

/// A request, and the thousandths of GPUs that it asks for.
#[derive(Clone, Copy)]
struct Asked {
    shape: Shape,
    milli: u64,
}

/// Appends drawn requests until the next one has no room. Room is needed for one GPU's share of a request, as in the
/// published comparison, so that a request for several GPUs may exceed it.
fn append(arrivals: &mut Vec<Asked>, list: &[Asked], mut asked: u64, most: u64, draw: &mut Random) {
    // A list that asks for no GPU never fills the room.
    while asked > 0 {
        let drawn = list[draw.below(list.len())];
        if asked + drawn.milli / u64::from(drawn.shape.gpus.max(1)) > most {
            return;
        }
        asked += drawn.milli;
        arrivals.push(drawn);
    }
}

impl Order {
    pub const ALL: [Self; 2] = [Self::Seeded, Self::Given];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Seeded => "seeded",
            Self::Given => "given",
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The order has no such name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown order {0:?}: use seeded or given")]
pub struct OrderError(pub String);

impl FromStr for Order {
    type Err = OrderError;

    fn from_str(text: &str) -> Result<Self, OrderError> {
        let named = Self::ALL.into_iter().find(|order| order.name() == text);
        named.ok_or_else(|| OrderError(text.to_owned()))
    }
}
