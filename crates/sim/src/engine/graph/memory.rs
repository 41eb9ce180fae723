//! The memory of allocation nodes: addresses that are fixed with the node, and each GPU's memory behind them.
//!
//! ```text
//! node added ── address reserved          launch or upload ── the GPU's memory taken, as far as what is there does not do
//! trim ── what neither lives nor is in flight goes back to the GPU
//! ```
//! As the CUDA programming guide has it ("Graph Memory Nodes"): a node that comes after another allocation of its graph has been freed may get the
//! same addresses; physical memory is mapped at the first launch or by an upload, not at instantiation; graphs share it unless they run at once,
//! which those of one stream do not; what a graph has left unfreed stays until someone frees it, even when the graph is gone; destroying graphs
//! gives nothing back, trimming does. Inferred: a graph needs the most that is allocated at one time in the order its nodes run in, pieces are
//! multiples of 512 B, and the GPU's memory is taken in multiples of 2 MiB.

use super::exec::Exec;
use super::node::{Allocate, Dependency, Operation};
use super::plan::Plan;
use super::{Graph, Graphs, Handle};
use crate::engine::memory::{Allocation, AllocationKind, LARGE, SMALL};
use crate::engine::pool::Level;
use crate::engine::process::{Done, Objects, Process};
use crate::engine::seat::MAX_PARTITIONS;
use crate::engine::stream::Target;
use divvy_driver::sys::cuda::{CUdeviceptr, CUgraphMem_attribute as Attribute, CUresult};
use std::collections::{BTreeMap, BTreeSet};

pub struct GraphMemory {
    regions: BTreeMap<CUdeviceptr, Region>,
    pools: [GraphPool; MAX_PARTITIONS],
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
struct Region {
    size: u64,
    gpu: usize,
    /// The graph whose nodes they are.
    graph: Handle<Graph>,
    /// Who keeps the addresses: nodes, executable graphs once for each, and the memory itself while it is allocated.
    keepers: u32,
    /// Nodes that allocate it.
    nodes: usize,
    /// Nodes that free it, by their graphs.
    freed_by: Vec<Handle<Graph>>,
    live: Option<Live>,
}

/// Memory that a launch has allocated and nobody has freed.
struct Live {
    exec: Handle<Exec>,
    size: u64,
    /// The launch frees it too, which nobody else may.
    is_passing: bool,
}

impl Region {
    /// How many of the allocations are freed by the graph that makes them.
    fn freed_at_home(&self) -> usize {
        let own = self.freed_by.iter().filter(|graph| **graph == self.graph);
        own.count()
    }
}

#[derive(Default)]
struct GraphPool {
    reserved: Level,
    /// Bytes that graphs have mapped.
    used: Level,
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
        match clashes {
            true => Err(CUresult::INVALID_VALUE),
            false => Ok(()),
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
        match fits {
            true => Ok(()),
            false => Err(CUresult::INVALID_VALUE),
        }
    }

    /// Bytes of live allocations, without those of one executable graph.
    fn live(&self, gpu: usize, without: Option<Handle<Exec>>) -> u64 {
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
    /// Addresses that every earlier allocation in them has been freed from by the time a node behind `before` runs: the smallest that do.
    fn reusable(
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

impl Process {
    /// Reserves the addresses of an allocation node that will depend on `before`. Nobody keeps them yet.
    pub fn reserve_for_graph(
        &self,
        objects: &mut Objects,
        graph: Handle<Graph>,
        before: &[Dependency],
        gpu: usize,
        size: u64,
    ) -> Done<CUdeviceptr> {
        if size == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        if size > self.model(gpu).memory_usable() {
            return Err(CUresult::OUT_OF_MEMORY);
        }
        if let Some(base) = objects.graphs.reusable(graph, before, gpu, size) {
            return Ok(base);
        }
        let base = objects.memory.take_addresses(size)?;
        let region = Region {
            size,
            gpu,
            graph,
            keepers: 0,
            nodes: 0,
            freed_by: Vec::new(),
            live: None,
        };
        objects.graphs.memory.regions.insert(base, region);
        Ok(base)
    }

    /// Takes what an executable graph needs of its GPUs to run in a stream, as far as earlier graphs have not left enough. All or nothing.
    pub fn bind_graph(&self, objects: &mut Objects, handle: Handle<Exec>, target: Target) -> Done {
        let exec = objects.graphs.execs.get(handle);
        let peak = exec.ok_or(CUresult::INVALID_VALUE)?.peak.clone();
        let stream = match target {
            Target::Default => 0,
            Target::Own(stream) => stream.value(),
        };
        let mut taken = Vec::new();
        for (gpu, bytes) in &peak {
            let others = self.beside(objects, *gpu, handle, stream);
            let memory = &objects.graphs.memory;
            let need = memory.live(*gpu, Some(handle)) + others + bytes;
            let need = need.next_multiple_of(LARGE);
            let more = need.saturating_sub(memory.pools[*gpu].reserved.now);
            if let Err(error) = self.take_bytes(*gpu, more) {
                for (gpu, more, _) in taken {
                    self.return_bytes(gpu, more);
                }
                return Err(error);
            }
            taken.push((*gpu, more, need));
        }
        for (gpu, more, need) in taken {
            let pool = &mut objects.graphs.memory.pools[gpu];
            pool.reserved.add(more);
            pool.used.add(need.saturating_sub(pool.used.now));
        }
        if let Some(exec) = objects.graphs.execs.get_mut(handle) {
            (exec.bound, exec.stream) = (peak, Some(stream));
        }
        Ok(())
    }

    /// Bytes of a GPU that graphs in other streams may be using at the same time, besides what lives: the most in each stream.
    fn beside(&self, objects: &Objects, gpu: usize, own: Handle<Exec>, stream: usize) -> u64 {
        let mut streams: BTreeMap<usize, u64> = BTreeMap::new();
        for (handle, exec) in objects.graphs.execs.iter() {
            let Some(at) = exec.stream.filter(|at| *at != stream && handle != own) else {
                continue;
            };
            if self.is_in_flight(exec) {
                let most = streams.entry(at).or_default();
                *most = (*most).max(exec.bound.get(&gpu).copied().unwrap_or(0));
            }
        }
        streams.values().sum()
    }

    fn is_in_flight(&self, exec: &Exec) -> bool {
        exec.last.is_some_and(|(gpu, ticket)| {
            let queue = self.state().queue(self.slot, gpu);
            if !queue.is_done(ticket) {
                self.state().lock().advance(gpu);
            }
            !queue.is_done(ticket)
        })
    }

    /// Bytes of a GPU behind what lives and what is bound for those that `counts` picks.
    fn graph_demand(&self, objects: &Objects, gpu: usize, counts: impl Fn(&Exec) -> bool) -> u64 {
        let memory = &objects.graphs.memory;
        let execs = objects.graphs.execs.iter();
        let each = execs
            .filter(|(_, exec)| counts(exec))
            .map(|(handle, exec)| {
                let others = self.beside(objects, gpu, handle, exec.stream.unwrap_or(0));
                let bound = exec.bound.get(&gpu).copied().unwrap_or(0);
                memory.live(gpu, Some(handle)) + others + bound
            });
        let most = each.max().unwrap_or(0).max(memory.live(gpu, None));
        most.next_multiple_of(LARGE)
    }

    /// A graph is gone: what only it had mapped is used no longer, and stays reserved.
    pub fn unmap_graphs(&self, objects: &mut Objects) {
        for gpu in self.partitions() {
            let demand = self.graph_demand(objects, gpu, |_| true);
            let used = &mut objects.graphs.memory.pools[gpu].used;
            used.now = used.now.min(demand);
        }
    }

    /// The allocation of a node begins to live.
    pub fn begin_graph_allocation(
        &self,
        objects: &mut Objects,
        allocate: &Allocate,
        exec: Handle<Exec>,
    ) {
        let (base, size) = (allocate.address(), allocate.size());
        let is_passing = objects
            .graphs
            .execs
            .get(exec)
            .is_some_and(|exec| exec.plan.frees(base));
        let Some(region) = objects.graphs.memory.regions.get_mut(&base) else {
            return;
        };
        region.live = Some(Live {
            exec,
            size,
            is_passing,
        });
        region.keepers += 1;
        objects.memory.insert(Allocation {
            base,
            size,
            kind: AllocationKind::Graph,
            gpu: region.gpu,
            context: None,
            id: self.next_id(),
            charged: 0,
        });
    }

    /// Frees from outside of graphs what a graph has allocated and does not free itself.
    pub fn free_graph_allocation(&self, objects: &mut Objects, base: CUdeviceptr) -> Done {
        let region = objects.graphs.memory.regions.get(&base);
        let live = region.and_then(|region| region.live.as_ref());
        if live.is_none_or(|live| live.is_passing) {
            return Err(CUresult::INVALID_VALUE);
        }
        objects.end_graph_allocation(base);
        Ok(())
    }

    /// Gives back what neither lives nor belongs to a graph in flight.
    pub fn trim_graph_memory(&self, gpu: usize) {
        let mut objects = self.objects();
        let keep = self.graph_demand(&objects, gpu, |exec| self.is_in_flight(exec));
        for exec in objects.graphs.execs.find(|exec| !self.is_in_flight(exec)) {
            if let Some(exec) = objects.graphs.execs.get_mut(exec) {
                exec.bound.remove(&gpu);
            }
        }
        let GraphPool { reserved, used } = &mut objects.graphs.memory.pools[gpu];
        let surplus = reserved.now.saturating_sub(keep);
        reserved.now -= surplus;
        used.now = used.now.min(keep);
        self.return_bytes(gpu, surplus);
    }

    pub fn graph_memory(&self, gpu: usize, attribute: Attribute) -> Done<u64> {
        let objects = self.objects();
        let GraphPool { reserved, used } = &objects.graphs.memory.pools[gpu];
        match attribute {
            Attribute::USED_MEM_CURRENT => Ok(used.now),
            Attribute::USED_MEM_HIGH => Ok(used.high),
            Attribute::RESERVED_MEM_CURRENT => Ok(reserved.now),
            Attribute::RESERVED_MEM_HIGH => Ok(reserved.high),
            _ => Err(CUresult::INVALID_VALUE),
        }
    }

    /// A high mark becomes what there is now, which the API calls resetting it to 0.
    pub fn reset_graph_memory(&self, gpu: usize, attribute: Attribute) -> Done {
        let mut objects = self.objects();
        let GraphPool { reserved, used } = &mut objects.graphs.memory.pools[gpu];
        match attribute {
            Attribute::USED_MEM_HIGH => used.high = used.now,
            Attribute::RESERVED_MEM_HIGH => reserved.high = reserved.now,
            _ => return Err(CUresult::INVALID_VALUE),
        }
        Ok(())
    }
}
