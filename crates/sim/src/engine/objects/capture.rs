//! Stream capture: work that is given to a stream becomes nodes of a graph instead.
//!
//! ```text
//! begin on a stream (the origin) ──► its work becomes nodes, each after the stream's last
//!   event recorded in a captured stream stands for nodes; another stream that waits for it joins the capture
//! end on the origin ──► the graph, if every stream that joined has led back to the origin
//! what cannot be captured makes the capture invalid: everything in it then fails until its end, which gives no graph
//! ```
//! Which calls are refused follows `cuThreadExchangeStreamCaptureMode` and the programming guide. That a call is
//! "potentially unsafe" is documented for allocation only; that waiting for a device, for or about any event, freeing,
//! loading code and copies the caller waits for are so too is inferred from what frameworks avoid.

use crate::engine::objects::Objects;
use crate::engine::objects::context::Context;
use crate::engine::objects::graph::Graph;
use crate::engine::objects::graph::node::{Dependency, Edge, Node, Operation};
use crate::engine::objects::handles::Handle;
use crate::engine::objects::result::Done;
use crate::engine::objects::stream::Stream;
use divvy_driver::sys::cuda::{
    CUgraphEdgeData, CUresult, CUstream_flags, CUstreamCaptureMode as Mode,
};
use std::thread::ThreadId;

/// A capture from its beginning to its end.
pub struct Capture {
    pub id: u64,
    pub graph: Handle<Graph>,
    pub origin: Handle<Stream>,
    /// The graph was there before and stays.
    pub is_foreign: bool,
    pub mode: Mode,
    pub thread: ThreadId,
    pub is_valid: bool,
    /// Where streams stood that were destroyed: their work must have led back too.
    pub left: Vec<Handle<Node>>,
}

/// A stream's part in a capture.
pub struct Member {
    pub capture: Handle<Capture>,
    /// What the stream's next node depends on.
    pub dependencies: Vec<Dependency>,
    /// The same as last shown to the program, which reads it where it lies.
    pub shown_nodes: Vec<usize>,
    pub shown_edges: Vec<CUgraphEdgeData>,
}

impl Member {
    pub fn new(capture: Handle<Capture>, dependencies: Vec<Dependency>) -> Self {
        Member {
            capture,
            dependencies,
            shown_nodes: Vec::new(),
            shown_edges: Vec::new(),
        }
    }

    pub fn add(&mut self, more: impl IntoIterator<Item = Dependency>) {
        for dependency in more {
            if !self
                .dependencies
                .iter()
                .any(|have| have.on == dependency.on)
            {
                self.dependencies.push(dependency);
            }
        }
    }
}

/// What a stream says about its capture. The lists stay where they are until the next question or the end of the
/// capture.
pub struct Captured {
    pub id: u64,
    pub graph: Handle<Graph>,
    pub nodes: *const usize,
    pub edges: *const CUgraphEdgeData,
    pub count: usize,
    pub has_edge_data: bool,
}

impl Objects {
    pub fn capture_of(&self, stream: Handle<Stream>) -> Option<(Handle<Capture>, &Capture)> {
        let member = self.streams.get(stream)?.capture.as_ref()?;
        Some((member.capture, self.graphs.captures.get(member.capture)?))
    }

    pub fn invalidate(&mut self, capture: Handle<Capture>) {
        if let Some(capture) = self.graphs.captures.get_mut(capture) {
            capture.is_valid = false;
        }
    }

    /// The capture a stream is in does not survive the call.
    pub fn spoil(&mut self, stream: Handle<Stream>, error: CUresult) -> CUresult {
        if let Some((capture, _)) = self.capture_of(stream) {
            self.invalidate(capture);
        }
        error
    }

    pub fn refuse_capture(&mut self, stream: Handle<Stream>) -> CUresult {
        self.spoil(stream, CUresult::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Adds a node behind the stream's last.
    pub fn capture(&mut self, stream: Handle<Stream>, operation: Operation) -> Done<Handle<Node>> {
        let member = self.streams.get(stream).and_then(|it| it.capture.as_ref());
        let member = member.ok_or(CUresult::ILLEGAL_STATE)?;
        let dependencies = member.dependencies.clone();
        let capture = self.graphs.captures.get(member.capture);
        let graph = capture.ok_or(CUresult::ILLEGAL_STATE)?.graph;
        let node = self.graphs.add(graph, dependencies, operation)?;
        self.continue_from(stream, vec![node]);
        Ok(node)
    }

    pub fn continue_from(&mut self, stream: Handle<Stream>, nodes: Vec<Handle<Node>>) {
        let member = self.streams.get_mut(stream);
        if let Some(member) = member.and_then(|stream| stream.capture.as_mut()) {
            let ordinary = |on| Dependency {
                on,
                edge: Edge::default(),
            };
            member.dependencies = nodes.into_iter().map(ordinary).collect();
        }
    }

    /// Captured streams of a context with a legacy stream that would wait for them.
    pub fn blocking_members(&self, context: Handle<Context>) -> Vec<Handle<Stream>> {
        self.streams.find(|stream| {
            let blocks = stream.flags & CUstream_flags::NON_BLOCKING.0 == 0;
            blocks && stream.capture.is_some() && stream.context == context
        })
    }

    /// Ends a capture without a graph.
    pub fn abandon(&mut self, handle: Handle<Capture>) {
        self.release_members(handle);
        let Some(capture) = self.graphs.captures.remove(handle) else {
            return;
        };
        if let Ok(graph) = self.graphs.get_mut(capture.graph) {
            graph.filling = false;
            if !capture.is_foreign {
                self.end_graph(capture.graph);
            }
        }
    }

    pub fn release_members(&mut self, capture: Handle<Capture>) {
        let is_member = |stream: &Stream| {
            let member = stream.capture.as_ref();
            member.is_some_and(|member| member.capture == capture)
        };
        for stream in self.streams.find(is_member) {
            if let Some(stream) = self.streams.get_mut(stream) {
                stream.capture = None;
            }
        }
    }

    /// Whether every stream of the capture has led back to its origin.
    pub fn is_joined(&self, handle: Handle<Capture>, origin: Handle<Stream>) -> bool {
        let members = self.streams.iter().filter_map(|(stream, found)| {
            let member = found.capture.as_ref()?;
            (member.capture == handle).then_some((stream, member))
        });
        let (own, others): (Vec<_>, Vec<_>) = members.partition(|(stream, _)| *stream == origin);
        let ends = own.iter().flat_map(|(_, member)| &member.dependencies);
        let ends: Vec<Handle<Node>> = ends.map(|end| end.on).collect();
        let joined = self.graphs.ancestors(&ends);
        let lasts = others.iter().flat_map(|(_, member)| &member.dependencies);
        let left = self.graphs.captures.get(handle);
        let left = left.into_iter().flat_map(|capture| &capture.left);
        lasts
            .map(|last| &last.on)
            .chain(left)
            .all(|last| joined.contains(last))
    }
}
