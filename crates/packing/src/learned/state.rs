//! The cluster as the scores see it: what nodes are worth, slots for scarce shapes, and prices.

use divvy_core::Bytes;

use super::scarce::{Scarce, Slots, have_moved, prices};
use super::scratch::Scratch;
use super::table::{Free, GpuKind, Table};
use crate::node::{Cluster, Node, Shape};

/// Prices are compared with the state of the cluster after this part of its capacity was taken or given back. A
/// two-hundredth: prices change slowly, so oftener would only take time.
const LOOKS_PER_CAPACITY: u64 = 200;

/// Prefers a GPU that the request fits tightly: thousandths of a GPU for each thousandth left over.
const TIGHTNESS: f32 = 0.0001;

/// What a policy adds to the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Weights {
    /// How much of a scarce shape's volume a slot for it is worth.
    pub(super) price: f32,
    /// Thousandths of a GPU that a node costs for each whole GPU free on it.
    pub(super) spread: f32,
}

/// What does not change while a cluster fills and empties.
#[derive(Clone, Copy, Debug)]
pub(super) struct Values<'a> {
    pub(super) table: &'a Table,
    pub(super) scarce: &'a [Scarce],
    /// Thousandths of GPUs of a request, on average.
    pub(super) mean_milli: f64,
    pub(super) weights: Weights,
}

/// The cluster as the scores see it.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// The cluster's change up to which the nodes are known.
    change: u64,
    /// Increases when another cluster is observed.
    pub(super) resets: u64,
    nodes: Vec<Known>,
    hardware: Vec<Hardware>,
    /// Slots for each scarce shape, on each node.
    slots: Vec<u32>,
    /// Slots for each scarce shape in the cluster.
    total_slots: Vec<u64>,
    free_milli: u64,
    capacity_milli: u64,
    /// Thousandths of GPUs taken and given back since the prices were compared.
    moved_milli: u64,
    prices: Vec<f32>,
    /// Increases with each adoption of prices.
    pub(super) adopted: u64,
    /// Nodes in the order of their changes, possibly several times.
    pub(super) log: Vec<u32>,
    /// The number of log entries that were dropped.
    pub(super) dropped: usize,
    scratch: Scratch,
}

/// What is known of a node as it is now.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Its value without prices, in thousandths of a GPU.
    unused: f32,
    gpu_milli: u64,
    hardware: u32,
}

/// Nodes with the same GPUs.
#[derive(Clone, Debug)]
struct Hardware {
    model: usize,
    gpu_memory: Option<Bytes>,
    kind: GpuKind,
    slots: Vec<Option<Slots>>,
}

impl State {
    /// Takes note of the nodes that have changed, and of prices.
    pub(super) fn observe(&mut self, values: Values<'_>, cluster: &Cluster) {
        let nodes = cluster.nodes();
        if nodes.len() != self.nodes.len() || cluster.change() < self.change {
            self.reset(values, cluster);
            return;
        }
        if cluster.change() == self.change {
            return;
        }
        if self.log.len() > 4 * nodes.len() {
            self.dropped += self.log.len();
            self.log.clear();
        }
        for (at, node) in nodes.iter().enumerate() {
            if node.changed_since(self.change) {
                let before = self.nodes[at].gpu_milli;
                self.know(values, at, node);
                let after = self.nodes[at].gpu_milli;
                self.free_milli = self.free_milli - before + after;
                self.moved_milli += before.abs_diff(after);
                self.log.push(u32::try_from(at).unwrap_or(u32::MAX));
            }
        }
        self.change = cluster.change();
        if self.moved_milli * LOOKS_PER_CAPACITY >= self.capacity_milli {
            self.moved_milli = 0;
            let new = self.new_prices(values);
            if have_moved(&self.prices, &new) {
                self.prices = new;
                self.adopted += 1;
            }
        }
    }

    fn reset(&mut self, values: Values<'_>, cluster: &Cluster) {
        *self = Self {
            change: cluster.change(),
            resets: self.resets + 1,
            total_slots: vec![0; values.scarce.len()],
            slots: vec![0; values.scarce.len() * cluster.nodes().len()],
            free_milli: cluster.free_milli(),
            capacity_milli: cluster.capacity_milli(),
            ..Self::default()
        };
        for (at, node) in cluster.nodes().iter().enumerate() {
            let like = |known: &Hardware| {
                known.model == node.spec.model && known.gpu_memory == node.spec.gpu_memory
            };
            let hardware = self.hardware.iter().position(like).unwrap_or_else(|| {
                let slots = values.scarce.iter();
                self.hardware.push(Hardware {
                    model: node.spec.model,
                    gpu_memory: node.spec.gpu_memory,
                    kind: GpuKind::of(&node.spec),
                    slots: slots.map(|scarce| Slots::of(&scarce.shape, node)).collect(),
                });
                self.hardware.len() - 1
            });
            self.nodes.push(Known {
                hardware: u32::try_from(hardware).unwrap_or(u32::MAX),
                ..Known::default()
            });
            self.know(values, at, node);
        }
        self.prices = self.new_prices(values);
    }

    fn new_prices(&self, values: Values<'_>) -> Vec<f32> {
        let expected = self.free_milli as f64 / values.mean_milli;
        prices(
            values.scarce,
            values.weights.price,
            expected,
            &self.total_slots,
        )
    }

    /// Computes what a node's value and slots are now.
    fn know(&mut self, values: Values<'_>, at: usize, node: &Node) {
        let known = &mut self.nodes[at];
        let hardware = &self.hardware[known.hardware as usize];
        let free = Free::of(node);
        known.unused = values.table.unused(hardware.kind, free);
        known.gpu_milli = node.free_milli();
        let scarce = values.scarce.len();
        let slots = &mut self.slots[at * scarce..(at + 1) * scarce];
        for (index, slot) in slots.iter_mut().enumerate() {
            let now = hardware.slots[index].as_ref();
            let now = now.map_or(0, |slots| slots.count(free));
            self.total_slots[index] = self.total_slots[index] + u64::from(now) - u64::from(*slot);
            *slot = now;
        }
    }

    /// What the request costs on this node without prices, in thousandths of a GPU; infinite where it does not fit.
    pub(super) fn table_part(
        &mut self,
        values: Values<'_>,
        node: &Node,
        at: usize,
        shape: &Shape,
    ) -> f32 {
        let Some(left_over) = self.scratch.place(node, shape) else {
            return f32::INFINITY;
        };
        let known = self.nodes[at];
        let kind = self.hardware[known.hardware as usize].kind;
        let after = self.scratch.free(node, shape);
        let cost = values.table.unused(kind, after) - known.unused;
        let spread = values.weights.spread * 0.001 * known.gpu_milli as f32;
        cost + TIGHTNESS * left_over as f32 + spread
    }

    /// The prices of the slots that the request takes away on this node, where it fits. Never negative.
    pub(super) fn price_part(
        &mut self,
        values: Values<'_>,
        node: &Node,
        at: usize,
        shape: &Shape,
    ) -> f32 {
        self.scratch.place(node, shape);
        let hardware = &self.hardware[self.nodes[at].hardware as usize];
        let after = self.scratch.free(node, shape);
        let scarce = values.scarce.len();
        let slots = &self.slots[at * scarce..(at + 1) * scarce];
        let mut cost = 0.0;
        for (index, before) in slots.iter().enumerate() {
            // A request makes no slots, so a node without any loses none.
            if *before > 0
                && let Some(slots) = &hardware.slots[index]
            {
                let now = slots.count(after);
                cost += self.prices[index] * before.saturating_sub(now) as f32;
            }
        }
        cost
    }
}

#[cfg(test)]
mod tests {
    use divvy_core::Share;

    use super::*;
    use crate::node::{Choice, GpuFree, ModelSet, NodeSpec};
    use crate::random::Random;

    fn scarce(shape: Shape) -> Scarce {
        Scarce {
            shape,
            gpu_milli: 2000,
            part: 0.1,
        }
    }

    /// After any number of changes: the same values, slots and sums as of a state that sees the cluster for the first time.
    #[test]
    fn what_is_followed_is_what_is_computed_anew() {
        let specs = (0..5).map(|nth| NodeSpec {
            name: format!("n{nth}"),
            cpu_milli: 9000,
            memory: Bytes::mib(9000),
            gpus: 1 + nth,
            model: nth as usize % 2,
            gpu_memory: [None, Some(Bytes::mib(1000))][nth as usize / 3],
        });
        let mut cluster = Cluster::new(specs);
        let table = Table::untrained(2, true);
        let part = |gpus, share, models| Shape {
            cpu_milli: 700,
            memory: Bytes::mib(900),
            gpus,
            share: Share::from_thousandths(share),
            models: ModelSet::from_bits(models),
            ..Shape::default()
        };
        let shapes = [
            part(2, 1000, 0),
            part(1, 300, 2),
            part(1, 1000, 1),
            part(3, 400, 0),
        ];
        let scarce: Vec<Scarce> = shapes.into_iter().map(scarce).collect();
        let values = Values {
            table: &table,
            scarce: &scarce,
            mean_milli: 500.0,
            weights: Weights {
                price: 1.0,
                spread: 1.0,
            },
        };
        let mut random = Random::seeded(9);
        let mut followed = State::default();
        let mut held: Vec<(Shape, Choice)> = Vec::new();
        for _ in 0..300 {
            let shape = part(random.below(4) as u32, 1 + random.below(1000) as u16, 0);
            let node = random.below(5);
            if let Some(gpus) = cluster.nodes()[node].best_fit(&shape) {
                let choice = Choice { node, gpus };
                assert!(cluster.take(&shape, &choice));
                held.push((shape, choice));
            } else if !held.is_empty() {
                let (shape, choice) = held.swap_remove(random.below(held.len()));
                cluster.release(&shape, &choice);
            }
            followed.observe(values, &cluster);
            let mut anew = State::default();
            anew.observe(values, &cluster);
            assert_eq!(followed.slots, anew.slots);
            assert_eq!(followed.total_slots, anew.total_slots);
            assert_eq!(followed.free_milli, anew.free_milli);
            let unused = |state: &State| -> Vec<u32> {
                state
                    .nodes
                    .iter()
                    .map(|node| node.unused.to_bits())
                    .collect()
            };
            assert_eq!(unused(&followed), unused(&anew));
            // The slots are what division gives.
            for (at, node) in cluster.nodes().iter().enumerate() {
                for (index, scarce) in scarce.iter().enumerate() {
                    let slots = divided(node, &scarce.shape);
                    assert_eq!(followed.slots[at * 4 + index], slots, "{node:?} {scarce:?}");
                }
            }
        }
        assert!(
            held.len() > 3 && followed.adopted > 3,
            "{}",
            followed.adopted
        );
    }

    fn divided(node: &Node, shape: &Shape) -> u32 {
        let Some(part) = node.part(shape) else {
            return 0;
        };
        let gpus: u64 = if shape.gpus > 1 || part.is_idle() {
            let fitting = node.gpus.iter().filter(|free| free.holds(part)).count() as u64;
            fitting / u64::from(shape.gpus)
        } else {
            let each = node.gpus.iter().map(|free| {
                let shares = u64::from(free.milli() / part.milli());
                let bytes = |gpu: GpuFree| gpu.memory.map_or(0, Bytes::get);
                shares.min(bytes(*free).checked_div(bytes(part)).unwrap_or(shares))
            });
            each.sum()
        };
        let most = (node.cpu_milli / shape.cpu_milli).min(node.memory.get() / shape.memory.get());
        u32::try_from(gpus.min(most)).unwrap()
    }
}
