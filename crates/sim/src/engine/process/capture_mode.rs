//! The capture mode of a thread, and the calls that are refused while a stream is captured.

use crate::engine::objects::Objects;
use crate::engine::objects::capture::Capture;
use crate::engine::objects::result::Done;
use crate::engine::process::Process;
use divvy_driver::sys::cuda::{CUresult, CUstreamCaptureMode as Mode};
use std::cell::Cell;
use std::sync::atomic::Ordering::SeqCst;

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::GLOBAL) };
}

/// Sets how the calling thread's calls get on with captures; gives what was set before.
pub fn exchange_mode(mode: Mode) -> Done<Mode> {
    if mode.0 <= Mode::RELAXED.0 {
        Ok(MODE.replace(mode))
    } else {
        Err(CUresult::INVALID_VALUE)
    }
}

impl Process {
    pub fn has_captures(&self) -> bool {
        self.captures.load(SeqCst) > 0
    }

    pub fn count_captures(&self, objects: &Objects) {
        let count = objects.graphs.captures.iter().count();
        self.captures.store(count, SeqCst);
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
        if clashes.is_empty() {
            Ok(())
        } else {
            Err(CUresult::STREAM_CAPTURE_UNSUPPORTED)
        }
    }
}
