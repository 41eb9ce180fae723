//! Beginning, ending and querying the capture of a stream, and where work for a stream goes.

use crate::engine::objects::Objects;
use crate::engine::objects::capture::{Capture, Captured, Member};
use crate::engine::objects::context::Current;
use crate::engine::objects::graph::node::Dependency;
use crate::engine::objects::graph::{Graph, Owner};
use crate::engine::objects::handles::Handle;
use crate::engine::objects::result::Done;
use crate::engine::objects::stream::{Destination, Stream, Target};
use crate::engine::process::Process;
use divvy_driver::sys::cuda::{
    CUresult, CUstreamCaptureMode as Mode, CUstreamCaptureStatus as Status,
};

impl Process {
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
        if captured.is_empty() {
            Ok(())
        } else {
            Err(CUresult::STREAM_CAPTURE_IMPLICIT)
        }
    }

    /// Begins to capture a stream, into a graph that is there (with what its first node depends on) or a new one.
    pub fn begin_capture(
        &self,
        stream: usize,
        mode: Mode,
        into: Option<(Handle<Graph>, Vec<Dependency>)>,
    ) -> Done {
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
        let is_foreign = into.is_some();
        let (graph, dependencies) = match into {
            Some((graph, dependencies)) => {
                for dependency in &dependencies {
                    if objects.graphs.node(dependency.on)?.graph != graph {
                        return Err(CUresult::INVALID_VALUE);
                    }
                }
                (graph, dependencies)
            }
            None => (objects.graphs.create(Owner::Capture), Vec::new()),
        };
        let found = objects.graphs.get_mut(graph)?;
        if found.filling {
            return Err(CUresult::INVALID_VALUE);
        }
        found.filling = true;
        let capture = objects.graphs.captures.insert(Capture {
            id: self.next_id(),
            graph,
            origin,
            is_foreign,
            mode,
            thread: std::thread::current().id(),
            is_valid: true,
            left: Vec::new(),
        });
        if let Some(stream) = objects.streams.get_mut(origin) {
            stream.capture = Some(Member::new(capture, dependencies));
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
            let graph = objects.graphs.get_mut(graph)?;
            graph.filling = false;
            if graph.owner == Owner::Capture {
                graph.owner = Owner::Program;
            }
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

    /// More of a stream with an active capture.
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
