//! The memory footprint of a graph: the most that its memory nodes can take of each device.
//!
//! An allocation node gets its address when it is added, and allocations of one graph whose lifetimes do not overlap may
//! share addresses (CUDA programming guide, "Address Reuse within a Graph"). A page is backed once at any time, so the
//! distinct pages bound the memory that a run of the graph can need.

use std::collections::{BTreeMap, HashSet};
use std::ptr::null_mut;

use divvy_driver::sys::cuda::{
    CUDA_MEM_ALLOC_NODE_PARAMS, CUdevice, CUdeviceptr, CUgraph, CUgraphNode, CUgraphNodeType,
    CUresult,
};

use crate::charge::vmm;
use crate::route::function::driver;

/// Device memory is mapped in pages of this size (the granularity that `cuMemGetAllocationGranularity` answers on all
/// current GPUs). A smaller one would charge less than the driver maps.
const PAGE: u64 = 2 << 20;
/// How deep graphs may lie in graphs; CUDA has no such limit, and no sane graph comes near.
const DEPTH: u32 = 64;

/// The footprint of one graph.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// By device, in bytes.
    pub bytes: BTreeMap<CUdevice, u64>,
    /// Whether an allocation outlives the run, to be freed by another graph or call.
    pub leaves_allocations: bool,
}

/// The memory nodes of a graph and its child graphs. Bodies of conditional nodes can have none.
#[derive(Default)]
struct Nodes {
    allocations: Vec<Allocation>,
    freed: HashSet<CUdeviceptr>,
}

struct Allocation {
    device: CUdevice,
    address: CUdeviceptr,
    bytes: u64,
}

impl Footprint {
    /// Asks the driver for the graph's nodes. What it does not say it will not instantiate either.
    pub fn of(graph: CUgraph) -> Footprint {
        let mut nodes = Nodes::default();
        nodes.collect(graph, DEPTH);
        nodes.footprint()
    }
}

impl Nodes {
    fn collect(&mut self, graph: CUgraph, depth: u32) {
        for node in nodes_of(graph).unwrap_or_default() {
            match type_of(node) {
                Some(CUgraphNodeType::MEM_ALLOC) => self.allocations.extend(allocation_of(node)),
                Some(CUgraphNodeType::MEM_FREE) => self.freed.extend(address_freed_by(node)),
                Some(CUgraphNodeType::GRAPH) if depth > 0 => {
                    if let Some(child) = child_of(node) {
                        self.collect(child, depth - 1);
                    }
                }
                _ => {}
            }
        }
    }

    fn footprint(&self) -> Footprint {
        let mut pages: BTreeMap<CUdevice, Vec<(u64, u64)>> = BTreeMap::new();
        for Allocation {
            device,
            address,
            bytes,
        } in &self.allocations
        {
            let end = address.saturating_add(*bytes);
            let range = (address / PAGE, end.div_ceil(PAGE));
            pages.entry(*device).or_default().push(range);
        }
        let bytes = pages
            .into_iter()
            .map(|(device, ranges)| (device, distinct(ranges).saturating_mul(PAGE)))
            .collect();
        let leaves_allocations =
            (self.allocations.iter()).any(|allocation| !self.freed.contains(&allocation.address));
        Footprint {
            bytes,
            leaves_allocations,
        }
    }
}

/// How many numbers lie in at least one of the ranges (start, end).
fn distinct(mut ranges: Vec<(u64, u64)>) -> u64 {
    ranges.sort_unstable();
    let mut covered = 0;
    let mut count = 0;
    for (start, end) in ranges {
        count += end.saturating_sub(start.max(covered));
        covered = covered.max(end);
    }
    count
}

fn nodes_of(graph: CUgraph) -> Option<Vec<CUgraphNode>> {
    let ask = driver::cuGraphGetNodes.get()?;
    let mut count = 0;
    // SAFETY: the program's graph; without an array only the count is answered.
    if unsafe { ask(graph, null_mut(), &mut count) } != CUresult::SUCCESS {
        return None;
    }
    let mut nodes = vec![null_mut(); count];
    // SAFETY: room for as many nodes as `count` says.
    let result = unsafe { ask(graph, nodes.as_mut_ptr(), &mut count) };
    nodes.truncate(count);
    (result == CUresult::SUCCESS).then_some(nodes)
}

fn type_of(node: CUgraphNode) -> Option<CUgraphNodeType> {
    let mut kind = CUgraphNodeType::EMPTY;
    // SAFETY: a node of the program's graph, and a place for the answer.
    let result = unsafe { driver::cuGraphNodeGetType.get()?(node, &mut kind) };
    (result == CUresult::SUCCESS).then_some(kind)
}

/// `None` for host memory too.
fn allocation_of(node: CUgraphNode) -> Option<Allocation> {
    let mut params = std::mem::MaybeUninit::<CUDA_MEM_ALLOC_NODE_PARAMS>::zeroed();
    // SAFETY: an allocation node, and a place for its parameters, for which all zeros are valid too.
    let params = unsafe {
        let result = driver::cuGraphMemAllocNodeGetParams.get()?(node, params.as_mut_ptr());
        (result == CUresult::SUCCESS).then_some(params.assume_init())?
    };
    Some(Allocation {
        device: vmm::device_of(&params.poolProps.location)?,
        address: params.dptr,
        bytes: params.bytesize as u64,
    })
}

fn address_freed_by(node: CUgraphNode) -> Option<CUdeviceptr> {
    let mut address = 0;
    // SAFETY: a free node, and a place for the answer.
    let result = unsafe { driver::cuGraphMemFreeNodeGetParams.get()?(node, &mut address) };
    (result == CUresult::SUCCESS).then_some(address)
}

fn child_of(node: CUgraphNode) -> Option<CUgraph> {
    let mut graph = null_mut();
    // SAFETY: a child graph node, and a place for the answer.
    let result = unsafe { driver::cuGraphChildGraphNodeGetGraph.get()?(node, &mut graph) };
    (result == CUresult::SUCCESS).then_some(graph)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn footprint(allocations: &[(CUdevice, u64, u64)], freed: &[u64]) -> Footprint {
        let allocation = |(device, address, bytes): &(_, _, _)| Allocation {
            device: *device,
            address: *address,
            bytes: *bytes,
        };
        Nodes {
            allocations: allocations.iter().map(allocation).collect(),
            freed: freed.iter().copied().collect(),
        }
        .footprint()
    }

    #[test]
    fn allocations_that_share_addresses_are_counted_once() {
        let found = footprint(
            &[
                (0, 4 * PAGE, PAGE),
                (0, 4 * PAGE, 3 * PAGE),
                (0, 6 * PAGE, PAGE),
                (0, 100 * PAGE, 1),
                (1, 4 * PAGE, PAGE),
            ],
            &[],
        );
        assert_eq!(found.bytes, BTreeMap::from([(0, 4 * PAGE), (1, PAGE)]));
    }

    #[test]
    fn small_allocations_in_one_page_are_one_page() {
        let found = footprint(&[(0, 4 * PAGE, 512), (0, 4 * PAGE + 512, PAGE)], &[]);
        assert_eq!(found.bytes, BTreeMap::from([(0, 2 * PAGE)]));
    }

    #[test]
    fn an_allocation_without_a_free_node_outlives_the_run() {
        assert!(footprint(&[(0, PAGE, 1), (0, 3 * PAGE, 1)], &[PAGE]).leaves_allocations);
        assert!(!footprint(&[(0, PAGE, 1)], &[PAGE]).leaves_allocations);
    }

    #[test]
    fn no_size_overflows() {
        let found = footprint(&[(0, u64::MAX - 5, u64::MAX), (0, 0, u64::MAX)], &[]);
        assert_eq!(
            found.bytes,
            BTreeMap::from([(0, u64::MAX.div_ceil(PAGE).saturating_mul(PAGE))])
        );
    }
}
