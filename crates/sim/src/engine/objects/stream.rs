//! Streams and events as objects, and what a call names by a stream: its target and its destination.

use crate::engine::machine::ipc_event::IpcEventId;
use crate::engine::machine::slots::QueuePosition;
use crate::engine::objects::capture::{Capture, Member};
use crate::engine::objects::context::{Context, Current};
use crate::engine::objects::graph::node::Node;
use crate::engine::objects::green::GreenContext;
use crate::engine::objects::handles::Handle;
use crate::engine::time::Queue;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

pub struct Stream {
    pub context: Handle<Context>,
    pub flags: u32,
    pub priority: i32,
    pub id: u64,
    /// Ticket of the last work issued to it.
    pub last: u64,
    /// While its work becomes nodes of a graph.
    pub capture: Option<Member>,
    /// The green context that it was made under.
    pub green: Option<Handle<GreenContext>>,
}

/// `CU_STREAM_NON_BLOCKING`.
pub const NON_BLOCKING: u32 = 1;

pub struct Event {
    pub context: Handle<Context>,
    pub flags: u32,
    pub last: EventState,
    /// Where other processes find it.
    pub mark: Option<IpcEventId>,
    /// It is another process's.
    pub imported: bool,
}

/// What an event stands for: where it was recorded last.
#[derive(Clone)]
pub enum EventState {
    Never,
    Recorded(EventRecord),
    /// In a captured stream: the nodes it had come to.
    Captured(Handle<Capture>, Vec<Handle<Node>>),
}

#[derive(Clone)]
pub struct EventRecord {
    pub gpu: usize,
    pub mark: Arc<TimePoint>,
}

impl EventRecord {
    /// The same place, for other processes.
    pub fn awaited(&self, slot: usize) -> QueuePosition {
        QueuePosition {
            slot,
            gpu: self.gpu,
            ticket: self.mark.ticket,
        }
    }
}

/// A point in a queue with a time that a caller may query later.
pub struct TimePoint {
    pub ticket: u64,
    /// When it was passed, in simulated nanoseconds; 0 until that is known.
    passed: AtomicU64,
}

impl TimePoint {
    pub fn new(ticket: u64) -> TimePoint {
        TimePoint {
            ticket,
            passed: AtomicU64::new(0),
        }
    }

    /// Takes the time over from the queue, which forgets it after `DEPTH` further entries.
    pub fn passed(&self, queue: &Queue) -> Option<u64> {
        if let Some(end) = queue.ended_at(self.ticket) {
            self.passed.store(end, SeqCst);
        }
        Some(self.passed.load(SeqCst)).filter(|passed| *passed != 0)
    }
}

/// What must be looked after while work is appended to one GPU's queue.
#[derive(Default)]
pub struct Issue {
    pub marks: VecDeque<Arc<TimePoint>>,
    /// The newest host function that may not have returned.
    pub host_function: Option<u64>,
}

/// Which stream a call named.
#[derive(Clone, Copy)]
pub enum Target {
    /// The legacy default stream.
    Default,
    Own(Handle<Stream>),
}

/// Where work for a stream goes.
#[derive(Clone, Copy)]
pub enum Destination {
    Issue(Target, Current),
    /// Into the graph the stream is captured into.
    Capture(Handle<Stream>),
}
