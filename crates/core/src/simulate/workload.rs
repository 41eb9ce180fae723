//! Workloads of a cluster: nodes, requests, and the order in which the requests arrive.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::go_random::GoRandom;
use crate::cluster::random::Random;
use crate::cluster::{Cluster, NodeSpec, Shape};

/// Requests are appended until they ask for this much of the cluster's GPUs, in percent.
pub const UNTIL: u64 = 130;

/// One request of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Unique. The published orders start from the list sorted by name.
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
    /// As the published runs drew it: Go's generator, seeds 42 to 51.
    Published,
    /// Drawn in the same way by Divvy's generator.
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

    /// The empty cluster and the arrivals. Both drawn orders shuffle the requests and the nodes. They append requests
    /// of the list, drawn with replacement, until the arrivals ask for [`UNTIL`] percent of the GPUs; a list that asks
    /// for more loses requests at random.
    pub fn arranged(&self, order: Order, seed: u64) -> Arranged {
        let (nodes, arrivals) = match order {
            Order::Given => {
                let given = |pods: &[Pod]| pods.iter().map(|pod| pod.shape).collect();
                (self.nodes.clone(), given(&self.pods))
            }
            Order::Published => self.drawn(&mut Published::seeded(seed)),
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
        let kind = |node: &NodeSpec| (node.model, node.gpus, node.cpu_milli, node.memory_mib);
        self.nodes
            .sort_by(|a, b| kind(a).cmp(&kind(b)).then(a.name.cmp(&b.name)));
        self.nodes = self.nodes.into_iter().step_by(nth.max(1)).collect();
        self
    }

    fn drawn(&self, draw: &mut impl Draw) -> (Vec<NodeSpec>, Vec<Shape>) {
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
        draw.order(&mut nodes);
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
/// published runs, so that a request for several GPUs may exceed it.
fn append(
    arrivals: &mut Vec<Asked>,
    list: &[Asked],
    mut asked: u64,
    most: u64,
    draw: &mut impl Draw,
) {
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

/// What an order is drawn with.
trait Draw {
    fn below(&mut self, bound: usize) -> usize;
    fn shuffle(&mut self, requests: &mut [Asked]);
    /// Puts nodes that are sorted by name in the order that breaks ties.
    fn order(&mut self, nodes: &mut [NodeSpec]);
}

impl Draw for Random {
    fn below(&mut self, bound: usize) -> usize {
        Self::below(self, bound)
    }

    fn shuffle(&mut self, requests: &mut [Asked]) {
        Self::shuffle(self, requests);
    }

    fn order(&mut self, nodes: &mut [NodeSpec]) {
        Self::shuffle(self, nodes);
    }
}

/// The draws of the published runs.
struct Published(GoRandom);

impl Published {
    /// A log line of the published program takes the first number.
    fn seeded(seed: u64) -> Self {
        let mut random = GoRandom::seeded(seed);
        random.int63();
        Self(random)
    }
}

impl Draw for Published {
    fn below(&mut self, bound: usize) -> usize {
        self.0.below(u32::try_from(bound).unwrap_or(u32::MAX)) as usize
    }

    fn shuffle(&mut self, requests: &mut [Asked]) {
        self.0.shuffle(requests);
    }

    /// Each node's name gets a random number in front, and names break ties.
    fn order(&mut self, nodes: &mut [NodeSpec]) {
        // The informers that the program starts here draw ten numbers.
        for _ in 0..10 {
            self.0.int63();
        }
        let numbers = self
            .0
            .permutation(u32::try_from(nodes.len()).unwrap_or(u32::MAX));
        let mut keyed: Vec<(u32, NodeSpec)> =
            numbers.into_iter().zip(nodes.iter().cloned()).collect();
        keyed.sort_by_key(|(number, _)| *number);
        for (place, (_, node)) in nodes.iter_mut().zip(keyed) {
            *place = node;
        }
    }
}

impl Order {
    pub const ALL: [Self; 3] = [Self::Published, Self::Seeded, Self::Given];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Published => "published",
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
#[error("unknown order {0:?}: use published, seeded or given")]
pub struct OrderError(pub String);

impl FromStr for Order {
    type Err = OrderError;

    fn from_str(text: &str) -> Result<Self, OrderError> {
        let named = Self::ALL.into_iter().find(|order| order.name() == text);
        named.ok_or_else(|| OrderError(text.to_owned()))
    }
}
