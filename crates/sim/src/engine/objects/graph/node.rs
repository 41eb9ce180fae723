//! Graph nodes: what a node does, and the edges that lead to it.

use crate::engine::objects::graph::Graph;
use crate::engine::objects::handles::Handle;
use crate::engine::objects::host_call::HostCall;
use crate::engine::objects::launch::Launch;
use crate::engine::objects::stream::Event;
use crate::engine::objects::transfer::Move;
use divvy_driver::sys::cuda::{
    CUDA_MEM_ALLOC_NODE_PARAMS, CUdeviceptr, CUgraphEdgeData, CUgraphNodeType, CUmemAccessDesc,
    CUresult,
};
use std::sync::Arc;

pub struct Node {
    pub graph: Handle<Graph>,
    /// Number in its graph.
    pub local_id: u32,
    pub operation: Arc<Operation>,
    pub dependencies: Vec<Dependency>,
    /// The node this one was copied from when its graph was cloned.
    pub original: Option<Handle<Node>>,
}

/// An edge, seen from the node it leads to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Dependency {
    pub on: Handle<Node>,
    pub edge: Edge,
}

/// What an edge says beyond its ends.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Edge {
    pub from_port: u8,
    pub kind: u8,
}

impl Edge {
    pub fn is_ordinary(self) -> bool {
        self == Edge::default()
    }

    /// No type of node has incoming ports, and what is reserved is zero.
    pub fn read(data: &CUgraphEdgeData) -> Result<Edge, CUresult> {
        let known = data.type_ <= 1 && data.from_port <= 2;
        if !known || data.to_port != 0 || data.reserved != [0; 5] {
            return Err(CUresult::INVALID_VALUE);
        }
        Ok(Edge {
            from_port: data.from_port,
            kind: data.type_,
        })
    }

    pub fn written(self) -> CUgraphEdgeData {
        CUgraphEdgeData {
            from_port: self.from_port,
            type_: self.kind,
            ..CUgraphEdgeData::default()
        }
    }
}

pub enum Operation {
    Kernel(Launch),
    Move(Move),
    Host(HostCall),
    /// A graph that belongs to the node.
    Child(Handle<Graph>),
    Empty,
    /// Nothing is to be done: what the event stands for was issued before.
    Wait(Handle<Event>),
    Record(Handle<Event>),
    Allocate(Allocate),
    Free(CUdeviceptr),
}

/// An allocation node: its parameters as they were given, with the address in them.
pub struct Allocate {
    parameters: CUDA_MEM_ALLOC_NODE_PARAMS,
    /// What `accessDescs` points to.
    access: Box<[CUmemAccessDesc]>,
    pub gpu: usize,
}

// SAFETY: the pointers are into the same value's `access`, and addresses that are handed back and not followed.
unsafe impl Send for Allocate {}

// SAFETY: as above.
unsafe impl Sync for Allocate {}

impl Allocate {
    pub fn new(
        parameters: CUDA_MEM_ALLOC_NODE_PARAMS,
        access: Box<[CUmemAccessDesc]>,
        gpu: usize,
    ) -> Self {
        Allocate {
            parameters,
            access,
            gpu,
        }
    }

    pub fn address(&self) -> CUdeviceptr {
        self.parameters.dptr
    }

    pub fn size(&self) -> u64 {
        self.parameters.bytesize as u64
    }

    pub fn parameters(&self) -> CUDA_MEM_ALLOC_NODE_PARAMS {
        CUDA_MEM_ALLOC_NODE_PARAMS {
            accessDescs: self.access.as_ptr(),
            accessDescCount: self.access.len(),
            ..self.parameters
        }
    }
}

impl Operation {
    pub fn kind(&self) -> CUgraphNodeType {
        match self {
            Operation::Kernel(_) => CUgraphNodeType::KERNEL,
            Operation::Move(Move::Copy(_)) => CUgraphNodeType::MEMCPY,
            Operation::Move(Move::Fill(_)) => CUgraphNodeType::MEMSET,
            Operation::Host(_) => CUgraphNodeType::HOST,
            Operation::Child(_) => CUgraphNodeType::GRAPH,
            Operation::Empty => CUgraphNodeType::EMPTY,
            Operation::Wait(_) => CUgraphNodeType::WAIT_EVENT,
            Operation::Record(_) => CUgraphNodeType::EVENT_RECORD,
            Operation::Allocate(_) => CUgraphNodeType::MEM_ALLOC,
            Operation::Free(_) => CUgraphNodeType::MEM_FREE,
        }
    }

    pub fn touches_allocations(&self) -> bool {
        matches!(self, Operation::Allocate(_) | Operation::Free(_))
    }

    /// Whether a node that is to be instantiated with `self` may be changed to do `new` instead, as the documentation
    /// of `cuGraphExecUpdate` has it.
    pub fn may_become(&self, new: &Operation) -> bool {
        match (self, new) {
            (Operation::Kernel(old), Operation::Kernel(new)) => {
                old.context == new.context && old.shape.cooperative == new.shape.cooperative
            }
            (Operation::Move(Move::Copy(old)), Operation::Move(Move::Copy(new))) => {
                old.srcMemoryType == new.srcMemoryType && old.dstMemoryType == new.dstMemoryType
            }
            (Operation::Move(Move::Fill(old)), Operation::Move(Move::Fill(new))) => {
                let shape = |fill: &divvy_driver::sys::cuda::CUDA_MEMSET_NODE_PARAMS| {
                    (fill.width, fill.pitch, fill.elementSize)
                };
                old.height == new.height && (old.height <= 1 || shape(old) == shape(new))
            }
            (Operation::Allocate(old), Operation::Allocate(new)) => old.address() == new.address(),
            (Operation::Free(old), Operation::Free(new)) => old == new,
            _ => self.kind() == new.kind(),
        }
    }
}
