//! Calls on the memory of graphs: reserving addresses for allocation nodes, taking memory for a launch, freeing and
//! trimming.

use crate::engine::machine::group::GroupId;
use crate::engine::objects::Objects;
use crate::engine::objects::graph::Graph;
use crate::engine::objects::graph::exec::Exec;
use crate::engine::objects::graph::memory::{GraphPool, Live, Region};
use crate::engine::objects::graph::node::{Allocate, Dependency};
use crate::engine::objects::handles::Handle;
use crate::engine::objects::memory::{Allocation, AllocationKind, LARGE};
use crate::engine::objects::result::Done;
use crate::engine::objects::stream::Target;
use crate::engine::process::Process;
use divvy_driver::sys::cuda::{CUdeviceptr, CUgraphMem_attribute as Attribute, CUresult};
use std::collections::BTreeMap;

impl Process {
    /// Reserves the addresses of an allocation node that will depend on `before`. They have no keeper yet.
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

    /// Takes what an executable graph needs of its GPUs to run in a stream, as far as earlier graphs have not left
    /// enough. All or nothing.
    pub fn bind_graph(&self, objects: &mut Objects, handle: Handle<Exec>, target: Target) -> Done {
        let exec = objects.graphs.execs.get(handle);
        let peak = exec.ok_or(CUresult::INVALID_VALUE)?.peak.clone();
        let stream = match target {
            Target::Default => 0,
            Target::Own(stream) => stream.value(),
        };
        let mut taken: Vec<(usize, u64, u64)> = Vec::new();
        for (gpu, bytes) in &peak {
            let others = self.beside(objects, *gpu, handle, stream);
            let memory = &objects.graphs.memory;
            let need = memory.live(*gpu, Some(handle)) + others + bytes;
            let need = need.next_multiple_of(LARGE);
            let more = need.saturating_sub(memory.pools[*gpu].reserved.now);
            let charges = &mut objects.graphs.memory.pools[*gpu].charges;
            if let Err(error) = self.grow_charges(*gpu, charges, more) {
                for (gpu, more, _) in taken {
                    let charges = &mut objects.graphs.memory.pools[gpu].charges;
                    self.shrink_charges(gpu, charges, more);
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

    /// Bytes of a GPU that graphs in other streams may be using at the same time, besides what lives: the most in each
    /// stream.
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
            group: GroupId::NONE,
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
        let GraphPool {
            reserved,
            used,
            charges,
        } = &mut objects.graphs.memory.pools[gpu];
        let surplus = reserved.now.saturating_sub(keep);
        reserved.now -= surplus;
        used.now = used.now.min(keep);
        self.shrink_charges(gpu, charges, surplus);
    }

    pub fn graph_memory(&self, gpu: usize, attribute: Attribute) -> Done<u64> {
        let objects = self.objects();
        let GraphPool { reserved, used, .. } = &objects.graphs.memory.pools[gpu];
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
        let GraphPool { reserved, used, .. } = &mut objects.graphs.memory.pools[gpu];
        match attribute {
            Attribute::USED_MEM_HIGH => used.high = used.now,
            Attribute::RESERVED_MEM_HIGH => reserved.high = reserved.now,
            _ => return Err(CUresult::INVALID_VALUE),
        }
        Ok(())
    }
}
