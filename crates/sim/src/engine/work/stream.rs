//! Streams: creating and waiting for them, default streams, host functions.
//!
//! All streams of a process on one GPU are one queue in issue order, so an event another stream waits for has always
//! been issued before. What the CPU does for a call (copying, filling, running a known kernel) is done while the call
//! is made; only its duration goes through the queue.

use crate::engine::machine::slots::QueuePosition;
use crate::engine::objects::Objects;
use crate::engine::objects::context::{Context, Current};
use crate::engine::objects::green::GreenContext;
use crate::engine::objects::handles::Handle;
use crate::engine::objects::result::Done;
use crate::engine::objects::stream::{Stream, Target};
use crate::engine::process::{Process, process};
use crate::engine::time::Work;
use divvy_driver::sys::cuda::CUresult;
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;

/// CUstream values with a meaning of their own.
const LEGACY: usize = 1;

/// `CU_STREAM_PER_THREAD` of cuda.h.
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
    /// The stream behind a CUstream value: NULL, 1 (legacy) and 2 (per-thread) are default streams of the current
    /// context.
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
        let green = crate::engine::process::current::top().and_then(|top| objects.greens.of(top));
        let stream = self.new_stream(context, flags, priority, green);
        Ok(objects.streams.insert(stream))
    }

    pub fn new_stream(
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

    pub fn is_done(&self, gpu: usize, ticket: u64) -> Done {
        let slot = self.slot;
        self.is_done_at(QueuePosition { slot, gpu, ticket })
    }

    pub fn is_done_at(&self, at: QueuePosition) -> Done {
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

    /// Runs `function` on a thread of the driver's once everything issued before has ended; what is issued after waits
    /// for it.
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
