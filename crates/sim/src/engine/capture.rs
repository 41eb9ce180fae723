//! Stream capture: work that is given to a stream becomes nodes of a graph instead.
//!
//! ```text
//! begin on a stream (the origin) ──► its work becomes nodes, each after the stream's last
//!   event recorded in a captured stream stands for nodes; another stream that waits for it joins the capture
//! end on the origin ──► the graph, if every stream that joined has led back to the origin
//! what cannot be captured makes the capture invalid: everything in it then fails until its end, which gives no graph
//! ```
//! Which calls are refused follows `cuThreadExchangeStreamCaptureMode` and the programming guide. That a call is "potentially unsafe" is documented
//! for allocation only; that waiting for a device, for or about any event, freeing, loading code and copies the caller waits for are so too is
//! inferred from what frameworks avoid.

mod work;

use super::context::{Context, Current};
use super::graph::node::{Dependency, Edge, Node, Operation};
use super::graph::{Graph, Owner};
use super::handles::Handle;
use super::process::{Done, Objects, Process};
use super::stream::{Destination, Stream, Target};
use divvy_driver::sys::cuda::{
    CUgraphEdgeData, CUresult, CUstream_flags, CUstreamCaptureMode as Mode,
    CUstreamCaptureStatus as Status,
};
use std::cell::Cell;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::ThreadId;

/// A capture from its beginning to its end.
pub struct Capture {
    pub id: u64,
    pub graph: Handle<Graph>,
    origin: Handle<Stream>,
    mode: Mode,
    thread: ThreadId,
    is_valid: bool,
    /// Where streams stood that were destroyed: their work must have led back too.
    left: Vec<Handle<Node>>,
}

/// A stream's part in a capture.
pub struct Member {
    pub capture: Handle<Capture>,
    /// What the stream's next node depends on.
    pub dependencies: Vec<Dependency>,
    /// The same as last shown to the program, which reads it where it lies.
    shown_nodes: Vec<usize>,
    shown_edges: Vec<CUgraphEdgeData>,
}

impl Member {
    fn new(capture: Handle<Capture>, dependencies: Vec<Dependency>) -> Self {
        Member {
            capture,
            dependencies,
            shown_nodes: Vec::new(),
            shown_edges: Vec::new(),
        }
    }

    fn add(&mut self, more: impl IntoIterator<Item = Dependency>) {
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

/// What a stream says about its capture. The lists stay where they are until the next question or the end of the capture.
pub struct Captured {
    pub id: u64,
    pub graph: Handle<Graph>,
    pub nodes: *const usize,
    pub edges: *const CUgraphEdgeData,
    pub count: usize,
    pub has_edge_data: bool,
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::GLOBAL) };
}

/// Sets how the calling thread's calls get on with captures; gives what was set before.
pub fn exchange_mode(mode: Mode) -> Done<Mode> {
    match mode.0 <= Mode::RELAXED.0 {
        true => Ok(MODE.replace(mode)),
        false => Err(CUresult::INVALID_VALUE),
    }
}

impl Objects {
    fn capture_of(&self, stream: Handle<Stream>) -> Option<(Handle<Capture>, &Capture)> {
        let member = self.streams.get(stream)?.capture.as_ref()?;
        Some((member.capture, self.graphs.captures.get(member.capture)?))
    }

    fn invalidate(&mut self, capture: Handle<Capture>) {
        if let Some(capture) = self.graphs.captures.get_mut(capture) {
            capture.is_valid = false;
        }
    }

    /// The capture a stream is in does not survive the call.
    fn spoil(&mut self, stream: Handle<Stream>, error: CUresult) -> CUresult {
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

    fn continue_from(&mut self, stream: Handle<Stream>, nodes: Vec<Handle<Node>>) {
        let member = self.streams.get_mut(stream);
        if let Some(member) = member.and_then(|stream| stream.capture.as_mut()) {
            let ordinary = |on| Dependency {
                on,
                edge: Edge::default(),
            };
            member.dependencies = nodes.into_iter().map(ordinary).collect();
        }
    }

    /// Streams that are captured and of a context whose legacy stream would wait for them.
    fn blocking_members(&self, context: Handle<Context>) -> Vec<Handle<Stream>> {
        self.streams.find(|stream| {
            let blocks = stream.flags & CUstream_flags::NON_BLOCKING.0 == 0;
            blocks && stream.capture.is_some() && stream.context == context
        })
    }

    /// Ends a capture without a graph.
    fn abandon(&mut self, handle: Handle<Capture>) {
        self.release_members(handle);
        let Some(capture) = self.graphs.captures.remove(handle) else {
            return;
        };
        self.end_graph(capture.graph);
    }

    fn release_members(&mut self, capture: Handle<Capture>) {
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
    fn is_joined(&self, handle: Handle<Capture>, origin: Handle<Stream>) -> bool {
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

impl Process {
    fn has_captures(&self) -> bool {
        self.captures.load(SeqCst) > 0
    }

    fn count_captures(&self, objects: &Objects) {
        let count = objects.graphs.captures.iter().count();
        self.captures.store(count, SeqCst);
    }

    /// Where work for a stream goes: to the GPU, or into the graph that the stream is captured into.
    pub fn destination(&self, stream: usize) -> Done<Destination> {
        let (target, current) = self.target(stream)?;
        if !self.has_captures() {
            return Ok(Destination::Issue(target, current));
        }
        let mut objects = self.objects();
        match target {
            Target::Default => {
                self.check_legacy(&mut objects, current)?;
                Ok(Destination::Issue(target, current))
            }
            Target::Own(stream) => match objects.capture_of(stream) {
                None => Ok(Destination::Issue(target, current)),
                Some((_, capture)) if capture.is_valid => Ok(Destination::Capture(stream)),
                Some(_) => Err(CUresult::STREAM_CAPTURE_INVALIDATED),
            },
        }
    }

    /// The same for work that cannot be captured, and for waiting and asking.
    pub fn uncaptured(&self, stream: usize) -> Done<(Target, Current)> {
        match self.destination(stream)? {
            Destination::Issue(target, current) => Ok((target, current)),
            Destination::Capture(stream) => Err(self.objects().refuse_capture(stream)),
        }
    }

    /// The default stream, for a call that returns when its work is done.
    pub fn synchronous(&self) -> Done<(Target, Current)> {
        let placed = self.uncaptured(0)?;
        self.check_unsafe()?;
        Ok(placed)
    }

    /// Work in the legacy stream waits for, and holds up, the context's blocking streams: they must not be captured.
    fn check_legacy(&self, objects: &mut Objects, current: Current) -> Done {
        let captured = objects.blocking_members(current.context);
        for stream in &captured {
            objects.spoil(*stream, CUresult::STREAM_CAPTURE_IMPLICIT);
        }
        match captured.is_empty() {
            true => Ok(()),
            false => Err(CUresult::STREAM_CAPTURE_IMPLICIT),
        }
    }

    /// Refuses a call that is unsafe while something is captured, as far as the calling thread's mode minds.
    pub fn check_unsafe(&self) -> Done {
        let mode = MODE.get();
        if !self.has_captures() || mode == Mode::RELAXED {
            return Ok(());
        }
        let mut objects = self.objects();
        let thread = std::thread::current().id();
        let minds = |capture: &Capture| {
            let own = capture.thread == thread && capture.mode != Mode::RELAXED;
            let anyones = mode == Mode::GLOBAL && capture.mode == Mode::GLOBAL;
            capture.is_valid && (own || anyones)
        };
        let clashes = objects.graphs.captures.find(minds);
        for capture in &clashes {
            objects.invalidate(*capture);
        }
        match clashes.is_empty() {
            true => Ok(()),
            false => Err(CUresult::STREAM_CAPTURE_UNSUPPORTED),
        }
    }

    /// Begins to capture a stream into a new graph.
    pub fn begin_capture(&self, stream: usize, mode: Mode) -> Done {
        let (target, _) = self.target(stream)?;
        let mut objects = self.objects();
        let Target::Own(origin) = target else {
            return Err(CUresult::STREAM_CAPTURE_UNSUPPORTED);
        };
        if objects.capture_of(origin).is_some() {
            return Err(objects.spoil(origin, CUresult::ILLEGAL_STATE));
        }
        if mode.0 > Mode::RELAXED.0 {
            return Err(CUresult::INVALID_VALUE);
        }
        let graph = objects.graphs.create(Owner::Capture);
        let capture = objects.graphs.captures.insert(Capture {
            id: self.next_id(),
            graph,
            origin,
            mode,
            thread: std::thread::current().id(),
            is_valid: true,
            left: Vec::new(),
        });
        if let Some(stream) = objects.streams.get_mut(origin) {
            stream.capture = Some(Member::new(capture, Vec::new()));
        }
        self.count_captures(&objects);
        Ok(())
    }

    /// Ends the capture that began on this stream and gives its graph.
    pub fn end_capture(&self, stream: usize) -> Done<Handle<Graph>> {
        let (target, _) = self.target(stream)?;
        let mut objects = self.objects();
        let Target::Own(stream) = target else {
            return Err(CUresult::ILLEGAL_STATE);
        };
        let (handle, capture) = objects.capture_of(stream).ok_or(CUresult::ILLEGAL_STATE)?;
        let (graph, is_valid) = (capture.graph, capture.is_valid);
        if capture.origin != stream {
            return Err(objects.spoil(stream, CUresult::STREAM_CAPTURE_UNMATCHED));
        }
        if capture.mode != Mode::RELAXED && capture.thread != std::thread::current().id() {
            return Err(CUresult::STREAM_CAPTURE_WRONG_THREAD);
        }
        let error = match (is_valid, objects.is_joined(handle, stream)) {
            (false, _) => Some(CUresult::STREAM_CAPTURE_INVALIDATED),
            (true, false) => Some(CUresult::STREAM_CAPTURE_UNJOINED),
            (true, true) => None,
        };
        if error.is_some() {
            objects.abandon(handle);
        } else {
            objects.release_members(handle);
            objects.graphs.captures.remove(handle);
            objects.graphs.get_mut(graph)?.owner = Owner::Program;
        }
        self.count_captures(&objects);
        error.map_or(Ok(graph), Err)
    }

    /// The stream is about to go. A capture goes with its origin; another stream may go once it has joined again.
    pub fn leave_capture(&self, objects: &mut Objects, stream: Handle<Stream>) {
        let found = objects.streams.get_mut(stream);
        let Some(member) = found.and_then(|stream| stream.capture.take()) else {
            return;
        };
        let Some(capture) = objects.graphs.captures.get_mut(member.capture) else {
            return;
        };
        if capture.origin == stream {
            objects.abandon(member.capture);
            self.count_captures(objects);
        } else {
            let lasts = member.dependencies.iter();
            capture.left.extend(lasts.map(|last| last.on));
        }
    }

    /// Whether a stream is captured. The legacy stream cannot answer while a blocking stream of its context is.
    pub fn capture_status(&self, stream: usize) -> Done<Status> {
        let (target, current) = self.target(stream)?;
        let objects = self.objects();
        match target {
            Target::Default if !objects.blocking_members(current.context).is_empty() => {
                Err(CUresult::STREAM_CAPTURE_IMPLICIT)
            }
            Target::Default => Ok(Status::NONE),
            Target::Own(stream) => Ok(match objects.capture_of(stream) {
                None => Status::NONE,
                Some((_, capture)) if capture.is_valid => Status::ACTIVE,
                Some(_) => Status::INVALIDATED,
            }),
        }
    }

    /// More of a stream whose capture is active.
    pub fn capture_info(&self, stream: usize) -> Done<Captured> {
        let (target, _) = self.target(stream)?;
        let mut objects = self.objects();
        let Target::Own(stream) = target else {
            return Err(CUresult::ILLEGAL_STATE);
        };
        let (_, capture) = objects.capture_of(stream).ok_or(CUresult::ILLEGAL_STATE)?;
        let (id, graph) = (capture.id, capture.graph);
        let member = objects.streams.get_mut(stream);
        let member = member.and_then(|stream| stream.capture.as_mut());
        let member = member.ok_or(CUresult::ILLEGAL_STATE)?;
        let now = &member.dependencies;
        member.shown_nodes = now.iter().map(|on| on.on.value()).collect();
        member.shown_edges = now.iter().map(|on| on.edge.written()).collect();
        Ok(Captured {
            id,
            graph,
            nodes: member.shown_nodes.as_ptr(),
            edges: member.shown_edges.as_ptr(),
            count: now.len(),
            has_edge_data: now.iter().any(|on| !on.edge.is_ordinary()),
        })
    }

    /// Adds to what the stream's next node depends on, or replaces it.
    pub fn set_capture_dependencies(
        &self,
        stream: usize,
        dependencies: Vec<Dependency>,
        replaces: bool,
    ) -> Done {
        let (target, _) = self.target(stream)?;
        let mut objects = self.objects();
        let Target::Own(stream) = target else {
            return Err(CUresult::ILLEGAL_STATE);
        };
        let (_, capture) = objects.capture_of(stream).ok_or(CUresult::ILLEGAL_STATE)?;
        if !capture.is_valid {
            return Err(CUresult::STREAM_CAPTURE_INVALIDATED);
        }
        let graph = capture.graph;
        for dependency in &dependencies {
            if objects.graphs.node(dependency.on)?.graph != graph {
                return Err(CUresult::INVALID_VALUE);
            }
        }
        let member = objects.streams.get_mut(stream);
        if let Some(member) = member.and_then(|stream| stream.capture.as_mut()) {
            if replaces {
                member.dependencies.clear();
            }
            member.add(dependencies);
        }
        Ok(())
    }
}
