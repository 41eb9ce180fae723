//! Work of a captured stream: copies, allocations and events become nodes.

use crate::engine::objects::capture::Member;
use crate::engine::objects::graph::node::{Allocate, Dependency, Edge, Node, Operation};
use crate::engine::objects::handles::Handle;
use crate::engine::objects::pool::Pool;
use crate::engine::objects::result::Done;
use crate::engine::objects::stream::{Destination, Event, EventState, Stream, Target};
use crate::engine::objects::transfer::Move;
use crate::engine::process::Process;
use divvy_driver::sys::cuda::{
    CUDA_MEM_ALLOC_NODE_PARAMS, CUdeviceptr, CUmemAllocationType, CUmemLocation, CUmemLocationType,
    CUmemPoolProps, CUresult,
};

impl Process {
    /// Copies or memory sets of one call: one node each, side by side.
    pub fn capture_moves(&self, stream: Handle<Stream>, moves: &[Move]) -> Done {
        let mut objects = self.objects();
        for of in moves {
            of.resolve(&objects)?.check_in_graph(self, &objects)?;
        }
        let member = objects
            .streams
            .get(stream)
            .and_then(|it| it.capture.as_ref());
        let (before, capture) = match member {
            Some(member) => (member.dependencies.clone(), member.capture),
            None => return Err(CUresult::ILLEGAL_STATE),
        };
        let capture = objects.graphs.captures.get(capture);
        let graph = capture.ok_or(CUresult::ILLEGAL_STATE)?.graph;
        let mut nodes = Vec::with_capacity(moves.len());
        for of in moves {
            let operation = Operation::Move(*of);
            nodes.push(objects.graphs.add(graph, before.clone(), operation)?);
        }
        if !nodes.is_empty() {
            objects.continue_from(stream, nodes);
        }
        Ok(())
    }

    /// An allocation of the stream's GPU, or of a pool's, as a node. Its address holds from now on.
    pub fn capture_allocation(
        &self,
        stream: Handle<Stream>,
        size: u64,
        pool: Option<Handle<Pool>>,
    ) -> Done<CUdeviceptr> {
        let mut objects = self.objects();
        let found = objects.streams.get(stream);
        let found = found.ok_or(CUresult::INVALID_HANDLE)?;
        let member = found.capture.as_ref().ok_or(CUresult::ILLEGAL_STATE)?;
        let before = member.dependencies.clone();
        let capture = objects.graphs.captures.get(member.capture);
        let graph = capture.ok_or(CUresult::ILLEGAL_STATE)?.graph;
        let gpu = match pool {
            Some(pool) => objects.pools.get(pool)?.gpu,
            None => objects.context(found.context)?.gpu,
        };
        let base = self.reserve_for_graph(&mut objects, graph, &before, gpu, size)?;
        let parameters = CUDA_MEM_ALLOC_NODE_PARAMS {
            poolProps: CUmemPoolProps {
                allocType: CUmemAllocationType::PINNED,
                location: CUmemLocation {
                    type_: CUmemLocationType::DEVICE,
                    id: self.device(gpu),
                },
                ..CUmemPoolProps::default()
            },
            bytesize: size as usize,
            dptr: base,
            ..CUDA_MEM_ALLOC_NODE_PARAMS::default()
        };
        let allocate = Allocate::new(parameters, Box::default(), gpu);
        objects.capture(stream, Operation::Allocate(allocate))?;
        Ok(base)
    }

    /// What a captured stream has come to becomes what the event stands for.
    pub fn capture_record(&self, event: Handle<Event>, stream: Handle<Stream>) -> Done {
        let mut objects = self.objects();
        let member = objects
            .streams
            .get(stream)
            .and_then(|it| it.capture.as_ref());
        let member = member.ok_or(CUresult::ILLEGAL_STATE)?;
        let last = EventState::Captured(
            member.capture,
            member.dependencies.iter().map(|on| on.on).collect(),
        );
        let event = objects.events.get_mut(event);
        event.ok_or(CUresult::INVALID_HANDLE)?.last = last;
        Ok(())
    }

    /// Makes a stream wait for an event, which inside of a capture is how streams join and leave each other.
    pub fn wait_event(&'static self, event: Handle<Event>, stream: usize) -> Done {
        let place = self.destination(stream)?;
        if let (Destination::Issue(target, current), Some(at)) = (place, self.marked(event)?) {
            return self.wait_for_marked(current.gpu, target, at);
        }
        let mut objects = self.objects();
        let found = objects.events.get(event).ok_or(CUresult::INVALID_HANDLE)?;
        match (place, found.last.clone()) {
            // Work is carried out in issue order, so what the event stands for comes first in any case.
            (Destination::Issue(..), EventState::Never | EventState::Recorded(_))
            | (_, EventState::Never) => Ok(()),
            (Destination::Capture(stream), EventState::Recorded(_)) => {
                Err(objects.spoil(stream, CUresult::STREAM_CAPTURE_ISOLATION))
            }
            (Destination::Capture(stream), EventState::Captured(capture, nodes)) => {
                let own = objects.capture_of(stream).map(|(own, _)| own);
                if own != Some(capture) {
                    objects.invalidate(capture);
                    return Err(objects.spoil(stream, CUresult::STREAM_CAPTURE_MERGE));
                }
                let member = objects.streams.get_mut(stream);
                if let Some(member) = member.and_then(|stream| stream.capture.as_mut()) {
                    member.add(ordinary(nodes));
                }
                Ok(())
            }
            (Destination::Issue(target, _), EventState::Captured(capture, nodes)) => {
                let found = objects.graphs.captures.get(capture);
                let is_valid = found.ok_or(CUresult::CAPTURED_EVENT)?.is_valid;
                match target {
                    _ if !is_valid => Err(CUresult::STREAM_CAPTURE_INVALIDATED),
                    Target::Default => {
                        objects.invalidate(capture);
                        Err(CUresult::STREAM_CAPTURE_UNSUPPORTED)
                    }
                    Target::Own(stream) => {
                        let member = Member::new(capture, ordinary(nodes).collect());
                        if let Some(stream) = objects.streams.get_mut(stream) {
                            stream.capture = Some(member);
                        }
                        Ok(())
                    }
                }
            }
        }
    }

    /// An event that stands for nodes cannot be waited for or asked, and trying ends its capture.
    pub fn check_event(&self, event: Handle<Event>) -> Done {
        let mut objects = self.objects();
        let found = objects.events.get(event).ok_or(CUresult::INVALID_HANDLE)?;
        let EventState::Captured(capture, _) = found.last else {
            drop(objects);
            return self.check_unsafe();
        };
        objects.invalidate(capture);
        Err(CUresult::CAPTURED_EVENT)
    }
}

fn ordinary(nodes: Vec<Handle<Node>>) -> impl Iterator<Item = Dependency> {
    nodes.into_iter().map(|on| Dependency {
        on,
        edge: Edge::default(),
    })
}
