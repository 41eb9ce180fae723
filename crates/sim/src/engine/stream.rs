//! Issuing work and waiting for it: streams, events, host functions.
//!
//! All streams of a process on one GPU are one queue in issue order, so an event another stream waits for has always been issued before. What the
//! CPU does for a call (copying, filling, running a known kernel) is done while the call is made; only its duration goes through the queue.

use super::capture::{Capture, Member};
use super::context::{Context, Current};
use super::graph::node::Node;
use super::green::GreenContext;
use super::handles::Handle;
use super::mark::IpcEventId;
use super::process::{Done, Objects, Process, process};
use super::slots::QueuePosition;
use super::time::{DEPTH, Queue, Work};
use divvy_driver::sys::cuda::CUresult;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, PoisonError};

pub struct Stream {
    pub context: Handle<Context>,
    pub flags: u32,
    pub priority: i32,
    pub id: u64,
    /// Ticket of the last work issued to it.
    last: u64,
    /// While its work becomes nodes of a graph.
    pub capture: Option<Member>,
    /// Whose it is, if it was made under one.
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
    gpu: usize,
    mark: Arc<TimePoint>,
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

/// A point in a queue whose time someone may ask for later.
struct TimePoint {
    ticket: u64,
    /// When it was passed, in simulated nanoseconds; 0 until that is known.
    passed: AtomicU64,
}

impl TimePoint {
    /// Takes the time over from the queue, which forgets it after [`DEPTH`] further entries.
    fn passed(&self, queue: &Queue) -> Option<u64> {
        if let Some(end) = queue.ended_at(self.ticket) {
            self.passed.store(end, SeqCst);
        }
        Some(self.passed.load(SeqCst)).filter(|passed| *passed != 0)
    }
}

/// What must be looked after while work is appended to one GPU's queue.
#[derive(Default)]
pub struct Issue {
    marks: VecDeque<Arc<TimePoint>>,
    /// The newest host function that may not have returned.
    host_function: Option<u64>,
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

/// A function of the program's and what it is called with, on whatever thread its turn comes.
#[derive(Clone, Copy)]
pub struct HostCall {
    pub function: unsafe extern "C" fn(*mut c_void),
    pub data: *mut c_void,
}

// SAFETY: the API hands the data to the function on another thread by contract.
unsafe impl Send for HostCall {}
// SAFETY: as above.
unsafe impl Sync for HostCall {}

impl HostCall {
    pub fn call(self) {
        // SAFETY: the program's own function and argument, called as the API promises.
        unsafe { (self.function)(self.data) }
    }
}

/// CUstream values with a meaning of their own.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

thread_local! {
    /// Which default stream NULL means in the call that is being made.
    static NULL_MEANS: Cell<usize> = const { Cell::new(LEGACY) };
    /// This thread's default stream in each context where it has used one.
    /// Never dropped: destructors of the program's own, which run after ours would, still use the driver.
    static OWN_DEFAULTS: RefCell<ManuallyDrop<Vec<Handle<Stream>>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

/// Makes a call in which NULL means the calling thread's default stream: the `_ptds` and `_ptsz` forms.
pub fn with_per_thread_default<A>(call: impl FnOnce() -> A) -> A {
    let before = NULL_MEANS.replace(PER_THREAD);
    let answer = call();
    NULL_MEANS.set(before);
    answer
}

impl Process {
    /// The stream behind a CUstream value: NULL, 1 (legacy) and 2 (per-thread) are default streams of the current context.
    pub fn target(&self, value: usize) -> Done<(Target, Current)> {
        let mut objects = self.objects();
        let value = if value == 0 { NULL_MEANS.get() } else { value };
        if value == LEGACY {
            return Ok((Target::Default, self.current(&objects)?));
        }
        if value == PER_THREAD {
            let current = self.current(&objects)?;
            let stream = self.own_default(&mut objects, current.context);
            return Ok((Target::Own(stream), current));
        }
        let handle = Handle::from_value(value);
        let stream = objects.streams.get(handle);
        let stream = stream.ok_or(CUresult::INVALID_HANDLE)?;
        let context = stream.context;
        if stream
            .green
            .is_some_and(|green| objects.greens.green(green).is_err())
        {
            return Err(CUresult::STREAM_DETACHED);
        }
        let found = objects.context(context)?;
        if let Some(error) = found.broken {
            return Err(error);
        }
        self.check_gpu(found.gpu)?;
        Ok((
            Target::Own(handle),
            Current {
                context,
                gpu: found.gpu,
            },
        ))
    }

    /// Whether a CUstream value means the legacy default stream in the call that is being made.
    pub fn is_legacy(&self, value: usize) -> bool {
        value == LEGACY || value == 0 && NULL_MEANS.get() == LEGACY
    }

    pub fn create_stream(&self, flags: u32, priority: i32) -> Done<Handle<Stream>> {
        let mut objects = self.objects();
        let Current { context, .. } = self.current(&objects)?;
        let green = super::context::top().and_then(|top| objects.greens.of(top));
        let stream = self.new_stream(context, flags, priority, green);
        Ok(objects.streams.insert(stream))
    }

    pub(super) fn new_stream(
        &self,
        context: Handle<Context>,
        flags: u32,
        priority: i32,
        green: Option<Handle<GreenContext>>,
    ) -> Stream {
        Stream {
            context,
            flags,
            priority,
            id: self.next_id(),
            last: 0,
            capture: None,
            green,
        }
    }

    /// The calling thread's default stream in a context, made when it is first used.
    fn own_default(&self, objects: &mut Objects, context: Handle<Context>) -> Handle<Stream> {
        OWN_DEFAULTS.with_borrow_mut(|own| {
            own.retain(|stream| objects.streams.get(*stream).is_some());
            let here = own.iter().copied().find(|stream| {
                let found = objects.streams.get(*stream);
                found.is_some_and(|found| found.context == context)
            });
            here.unwrap_or_else(|| {
                let stream = self.new_stream(context, 0, 0, None);
                let stream = objects.streams.insert(stream);
                own.push(stream);
                stream
            })
        })
    }

    pub fn destroy_stream(&self, stream: Handle<Stream>) -> Done {
        let mut objects = self.objects();
        self.leave_capture(&mut objects, stream);
        let removed = objects.streams.remove(stream);
        removed.map(drop).ok_or(CUresult::INVALID_HANDLE)
    }

    /// Appends work and gives its ticket; waits for room in a full queue.
    pub fn issue(&self, gpu: usize, target: Target, work: Work) -> u64 {
        self.issue_marked(gpu, target, work, false).0
    }

    fn issue_marked(
        &self,
        gpu: usize,
        target: Target,
        work: Work,
        marked: bool,
    ) -> (u64, Option<Arc<TimePoint>>) {
        if matches!(work, Work::Meet { .. }) {
            self.state().expect_meetings();
        }
        let queue = self.state().queue(self.slot, gpu);
        let mut issue = self.issue[gpu]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let ticket = loop {
            while issue
                .marks
                .front()
                .is_some_and(|mark| mark.passed(queue).is_some())
            {
                issue.marks.pop_front();
            }
            if let Some(ticket) = queue.push(self.state().now(), work) {
                break ticket;
            }
            if self.state().gpu(gpu).is_lost() {
                break queue.newest();
            }
            self.state()
                .wait(self.slot, gpu, queue.newest() + 1 - DEPTH);
        };
        if work == Work::Gate {
            issue.host_function = Some(ticket);
        }
        let mark = marked.then(|| {
            Arc::new(TimePoint {
                ticket,
                passed: AtomicU64::new(0),
            })
        });
        issue.marks.extend(mark.clone());
        drop(issue);
        if let Target::Own(stream) = target
            && let Some(stream) = self.objects().streams.get_mut(stream)
        {
            stream.last = ticket;
        }
        (ticket, mark)
    }

    /// Before the CPU touches memory for a call: host functions issued earlier must have returned.
    pub fn after_host_functions(&self, gpu: usize) {
        let pending = self.issue[gpu]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .host_function
            .take();
        if let Some(ticket) = pending {
            self.state().wait(self.slot, gpu, ticket);
        }
    }

    /// Waits for everything issued to a GPU; then pools give back what they need not keep.
    pub fn synchronize(&self, gpu: usize) -> Done {
        let newest = self.state().queue(self.slot, gpu).newest();
        self.wait_for(gpu, newest)
    }

    pub fn synchronize_stream(&self, gpu: usize, target: Target) -> Done {
        self.wait_for(gpu, self.last_of(gpu, target))
    }

    pub fn wait_for(&self, gpu: usize, ticket: u64) -> Done {
        if !self.state().queue(self.slot, gpu).is_done(ticket) {
            self.state().wait(self.slot, gpu, ticket);
        }
        self.trim_pools(gpu);
        self.check_gpu(gpu)
    }

    /// Whether all work of a stream is done.
    pub fn query_stream(&self, gpu: usize, target: Target) -> Done {
        self.is_done(gpu, self.last_of(gpu, target))
    }

    fn last_of(&self, gpu: usize, target: Target) -> u64 {
        match target {
            Target::Default => self.state().queue(self.slot, gpu).newest(),
            Target::Own(stream) => self
                .objects()
                .streams
                .get(stream)
                .map_or(0, |stream| stream.last),
        }
    }

    fn is_done(&self, gpu: usize, ticket: u64) -> Done {
        let slot = self.slot;
        self.is_done_at(QueuePosition { slot, gpu, ticket })
    }

    fn is_done_at(&self, at: QueuePosition) -> Done {
        let QueuePosition { slot, gpu, ticket } = at;
        let queue = self.state().queue(slot, gpu);
        if !queue.is_done(ticket) {
            self.state().lock().advance(gpu);
        }
        if queue.is_done(ticket) {
            Ok(())
        } else {
            Err(CUresult::NOT_READY)
        }
    }

    pub fn create_event(&self, flags: u32) -> Done<Handle<Event>> {
        let mut objects = self.objects();
        let Current { context, .. } = self.current(&objects)?;
        Ok(objects.events.insert(Event {
            context,
            flags,
            last: EventState::Never,
            mark: None,
            imported: false,
        }))
    }

    pub fn issue_record(&self, event: Handle<Event>, target: Target, gpu: usize) -> Done {
        self.objects()
            .events
            .get(event)
            .ok_or(CUresult::INVALID_HANDLE)?;
        let (_, mark) = self.issue_marked(gpu, target, Work::Delay(0), true);
        if let (Some(event), Some(mark)) = (self.objects().events.get_mut(event), mark) {
            let record = EventRecord { gpu, mark };
            if let Some(mark) = event.mark {
                let at = record.awaited(self.slot);
                self.state().lock().record_ipc_event(mark, at);
            }
            event.last = EventState::Recorded(record);
        }
        Ok(())
    }

    /// The point an event was last recorded at; None for one that never was.
    fn record(&self, event: Handle<Event>) -> Done<Option<EventRecord>> {
        let objects = self.objects();
        let event = objects.events.get(event).ok_or(CUresult::INVALID_HANDLE)?;
        match &event.last {
            EventState::Never => Ok(None),
            EventState::Recorded(record) => Ok(Some(record.clone())),
            EventState::Captured(..) => Err(CUresult::CAPTURED_EVENT),
        }
    }

    pub fn query_event(&self, event: Handle<Event>) -> Done {
        self.check_event(event)?;
        if let Some(at) = self.marked(event)? {
            return self.is_done_at(at);
        }
        self.record(event)?.map_or(Ok(()), |record| {
            self.is_done(record.gpu, record.mark.ticket)
        })
    }

    pub fn synchronize_event(&self, event: Handle<Event>) -> Done {
        self.check_event(event)?;
        if let Some(at) = self.marked(event)?.filter(|at| at.slot != self.slot) {
            self.state().wait_for(self.slot, at);
            return self.check_gpu(at.gpu);
        }
        self.record(event)?.map_or(Ok(()), |record| {
            self.wait_for(record.gpu, record.mark.ticket)
        })
    }

    /// Milliseconds of simulated time between two events.
    pub fn elapsed(&self, start: Handle<Event>, end: Handle<Event>) -> Done<f32> {
        let time = |event| -> Done<u64> {
            let timeless = self
                .objects()
                .events
                .get(event)
                .ok_or(CUresult::INVALID_HANDLE)?
                .flags
                & 2
                != 0;
            let record = self
                .record(event)?
                .filter(|_| !timeless)
                .ok_or(CUresult::INVALID_HANDLE)?;
            self.is_done(record.gpu, record.mark.ticket)?;
            record
                .mark
                .passed(self.state().queue(self.slot, record.gpu))
                .ok_or(CUresult::NOT_READY)
        };
        let (start, end) = (time(start)?, time(end)?);
        Ok((end as f64 - start as f64) as f32 / 1e6)
    }

    /// Runs `function` on a thread of the driver's once everything issued before has ended; what is issued after waits for it.
    pub fn issue_host_function(
        &'static self,
        gpu: usize,
        target: Target,
        function: impl FnOnce() + Send + 'static,
    ) -> Done {
        let gate = self.issue(gpu, target, Work::Gate);
        let run = move || {
            if gate > 1 {
                self.state().wait(self.slot, gpu, gate - 1);
            }
            function();
            // After a fork the queue is the parent's.
            if process().is_ok() {
                let queue = self.state().queue(self.slot, gpu);
                queue.open_gate(gate, self.state().now());
                self.state().notify();
            }
        };
        std::thread::Builder::new()
            .name("divvy-sim-host".into())
            .spawn(run)
            .map(drop)
            .map_err(|_| CUresult::OPERATING_SYSTEM)
    }
}
