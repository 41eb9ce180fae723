//! The memory of allocation nodes: addresses that are fixed with the node, and each GPU's memory behind them.
//!
//! ```text
//! node added ── address reserved
//! launch or upload ── the GPU's memory taken, as far as what is there does not do
//! trim ── what neither lives nor is in flight goes back to the GPU
//! ```
//! As the CUDA programming guide has it ("Graph Memory Nodes"): a node that comes after another allocation of its graph
//! has been freed may get the same addresses; physical memory is mapped at the first launch or by an upload, not at
//! instantiation; graphs share it unless they run at once, which those of one stream do not; what a graph has left
//! unfreed stays until someone frees it, even when the graph is gone; destroying graphs gives nothing back, trimming
//! does. Inferred: a graph needs the most that is allocated at one time in the order its nodes run in, pieces are
//! multiples of 512 B, and the GPU's memory is taken in multiples of 2 MiB.

use crate::engine::mig::partition::MAX_PARTITIONS;
use crate::engine::objects::Objects;
use crate::engine::objects::graph::exec::Exec;
use crate::engine::objects::graph::node::{Dependency, Operation};
use crate::engine::objects::graph::plan::Plan;
use crate::engine::objects::graph::{Graph, Graphs};
use crate::engine::objects::handles::Handle;
use crate::engine::objects::memory::Charges;
use crate::engine::objects::memory::SMALL;
use crate::engine::objects::pool::Level;
use crate::engine::objects::result::Done;
use divvy_driver::sys::cuda::{CUdeviceptr, CUresult};
use std::collections::{BTreeMap, BTreeSet};

pub struct GraphMemory {
    pub regions: BTreeMap<CUdeviceptr, Region>,
    pub pools: [GraphPool; MAX_PARTITIONS],
}

impl Default for GraphMemory {
    fn default() -> Self {
        GraphMemory {
            regions: BTreeMap::new(),
            pools: std::array::from_fn(|_| GraphPool::default()),
        }
    }
}

/// The addresses of one allocation node, or of several of a graph that follow each other.
pub struct Region {
    pub size: u64,
    pub gpu: usize,
    /// The graph of the nodes.
    pub graph: Handle<Graph>,
    /// How many keep the addresses: nodes, each executable graph once, and the memory itself while it is allocated.
    pub keepers: u32,
    /// Nodes that allocate it.
    pub nodes: usize,
    /// Nodes that free it, by their graphs.
    pub freed_by: Vec<Handle<Graph>>,
    pub live: Option<Live>,
}

/// Memory that a launch has allocated and no call has freed.
pub struct Live {
    pub exec: Handle<Exec>,
    pub size: u64,
    /// The launch frees it too, and no other call may.
    pub is_passing: bool,
}

impl Region {
    /// How many of the allocations are freed by the graph that makes them.
    fn freed_at_home(&self) -> usize {
        let own = self.freed_by.iter().filter(|graph| **graph == self.graph);
        own.count()
    }
}

#[derive(Default)]
pub struct GraphPool {
    pub reserved: Level,
    /// Bytes that graphs have mapped.
    pub used: Level,
    /// What is reserved.
    pub charges: Charges,
}

/// Bytes of a GPU that an allocation of `size` takes while it lives.
fn piece(size: u64) -> u64 {
    size.next_multiple_of(SMALL)
}

impl GraphMemory {
    /// Whether a range lies in what graphs allocate, now or when they run.
    pub fn holds(&self, start: CUdeviceptr, length: u64) -> bool {
        let before = self.regions.range(..=start).next_back();
        before.is_some_and(|(base, region)| {
            let offset = start - base;
            offset < region.size && length <= region.size - offset
        })
    }

    pub fn hold(&mut self, base: CUdeviceptr) {
        if let Some(region) = self.regions.get_mut(&base) {
            region.keepers += 1;
        }
    }

    /// A node that allocates here has been added.
    pub fn will_allocate(&mut self, base: CUdeviceptr) {
        if let Some(region) = self.regions.get_mut(&base) {
            region.nodes += 1;
            region.keepers += 1;
        }
    }

    /// An allocation is freed by its own graph, once, or by others, once in each.
    pub fn may_be_freed_in(&self, base: CUdeviceptr, graph: Handle<Graph>) -> Done {
        let region = self.regions.get(&base).ok_or(CUresult::INVALID_VALUE)?;
        let elsewhere = region.freed_by.iter().any(|other| *other != region.graph);
        let clashes = region.freed_at_home() >= region.nodes
            || graph == region.graph && elsewhere
            || graph != region.graph && region.freed_by.contains(&graph);
        if clashes {
            Err(CUresult::INVALID_VALUE)
        } else {
            Ok(())
        }
    }

    pub fn will_free(&mut self, base: CUdeviceptr, graph: Handle<Graph>) {
        if let Some(region) = self.regions.get_mut(&base) {
            region.freed_by.push(graph);
        }
    }

    pub fn will_not_free(&mut self, base: CUdeviceptr, graph: Handle<Graph>) {
        if let Some(region) = self.regions.get_mut(&base) {
            let at = region.freed_by.iter().position(|other| *other == graph);
            at.map(|at| region.freed_by.remove(at));
        }
    }

    fn is_live(&self, base: CUdeviceptr) -> bool {
        let region = self.regions.get(&base);
        region.is_some_and(|region| region.live.is_some())
    }

    /// What the launches of an executable graph have left allocated.
    pub fn unfreed_of(&self, exec: Handle<Exec>) -> Vec<CUdeviceptr> {
        let regions = self.regions.iter();
        let own = regions.filter(|(_, region)| {
            let live = region.live.as_ref();
            live.is_some_and(|live| live.exec == exec)
        });
        own.map(|(base, _)| *base).collect()
    }

    /// Before a launch: what it allocates must be free, or about to be, and what it frees must be allocated.
    pub fn check_launch(&self, plan: &Plan, unfreed: &[CUdeviceptr]) -> Done {
        let live = self.regions.keys().copied();
        let live = live.filter(|base| self.is_live(*base) && !unfreed.contains(base));
        let mut live: BTreeSet<CUdeviceptr> = live.collect();
        let mut fits = true;
        plan.visit(&mut |step| match &*step.operation {
            Operation::Allocate(allocate) => fits &= live.insert(allocate.address()),
            Operation::Free(address) => fits &= live.remove(address),
            _ => {}
        });
        if fits {
            Ok(())
        } else {
            Err(CUresult::INVALID_VALUE)
        }
    }

    /// Bytes of live allocations, without those of one executable graph.
    pub fn live(&self, gpu: usize, without: Option<Handle<Exec>>) -> u64 {
        let here = self.regions.values().filter(|region| region.gpu == gpu);
        let live = here.filter_map(|region| region.live.as_ref());
        live.filter(|live| Some(live.exec) != without)
            .map(|live| piece(live.size))
            .sum()
    }
}

/// The most each GPU has allocated at one time when the plan runs.
pub fn peak(plan: &Plan) -> BTreeMap<usize, u64> {
    let mut now: BTreeMap<usize, u64> = BTreeMap::new();
    let mut peak: BTreeMap<usize, u64> = BTreeMap::new();
    let mut own = BTreeMap::new();
    plan.visit(&mut |step| match &*step.operation {
        Operation::Allocate(allocate) => {
            let (gpu, size) = (allocate.gpu, piece(allocate.size()));
            let sum = now.entry(gpu).or_default();
            *sum += size;
            let high = peak.entry(gpu).or_default();
            *high = (*high).max(*sum);
            own.insert(allocate.address(), (gpu, size));
        }
        Operation::Free(address) => {
            if let Some((gpu, size)) = own.remove(address) {
                now.entry(gpu).and_modify(|sum| *sum -= size);
            }
        }
        _ => {}
    });
    peak
}

impl Graphs {
    /// Addresses that every earlier allocation in them has been freed from by the time a node behind `before` runs: the
    /// smallest that do.
    pub fn reusable(
        &self,
        graph: Handle<Graph>,
        before: &[Dependency],
        gpu: usize,
        size: u64,
    ) -> Option<CUdeviceptr> {
        let ends: Vec<_> = before.iter().map(|on| on.on).collect();
        let mut freed: BTreeMap<CUdeviceptr, usize> = BTreeMap::new();
        for node in self.ancestors(&ends) {
            if let Operation::Free(address) = &*self.node(node).ok()?.operation {
                *freed.entry(*address).or_default() += 1;
            }
        }
        let fitting = self.memory.regions.iter().filter(|(base, region)| {
            let is_free = freed.get(base) == Some(&region.nodes);
            is_free && region.graph == graph && region.gpu == gpu && region.size >= size
        });
        fitting
            .min_by_key(|(_, region)| region.size)
            .map(|(base, _)| *base)
    }
}

impl Objects {
    /// One keeper of a region less; the last lets it go.
    pub fn let_go(&mut self, base: CUdeviceptr) {
        let regions = &mut self.graphs.memory.regions;
        let Some(region) = regions.get_mut(&base) else {
            return;
        };
        region.keepers -= 1;
        if region.keepers == 0 {
            let size = region.size;
            regions.remove(&base);
            self.memory.give_addresses(base, size);
        }
    }

    /// Ends an allocation that lives; its memory stays with the graphs.
    pub fn end_graph_allocation(&mut self, base: CUdeviceptr) {
        let region = self.graphs.memory.regions.get_mut(&base);
        if region.is_some_and(|region| region.live.take().is_some()) {
            self.memory.remove(base);
            self.let_go(base);
        }
    }
}
