//! Call tracing: the call log (DIVVY_SIM_LOG), the faults of DIVVY_SIM_CONFIG, and the catch of panics around every
//! call.
//!
//! With neither variable set a call costs one relaxed load more than its handler.

use crate::config::{Config, Fault, Moment};
use divvy_driver::sys::nvml::{nvmlGetMemoryLimits_v1_t, nvmlSetMemoryLimits_v1_t};
use std::ffi::{CStr, CString, c_char};
use std::fmt::{Debug, Write};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// What the functions of an API answer.
pub trait Answer: Copy + Debug {
    const SUCCESS: Self;
    /// For a panic in the simulator.
    const UNKNOWN: Self;
    const NOT_SUPPORTED: Self;
    /// For an argument that cannot be.
    const INVALID: Self;

    fn from_code(code: u32) -> Self;
}

impl Answer for divvy_driver::sys::cuda::CUresult {
    const SUCCESS: Self = Self::SUCCESS;
    const UNKNOWN: Self = Self::UNKNOWN;
    const NOT_SUPPORTED: Self = Self::NOT_SUPPORTED;
    const INVALID: Self = Self::INVALID_VALUE;

    fn from_code(code: u32) -> Self {
        Self(code)
    }
}

impl Answer for divvy_driver::sys::nvml::nvmlReturn_t {
    const SUCCESS: Self = Self::SUCCESS;
    const UNKNOWN: Self = Self::UNKNOWN;
    const NOT_SUPPORTED: Self = Self::NOT_SUPPORTED;
    const INVALID: Self = Self::INVALID_ARGUMENT;

    fn from_code(code: u32) -> Self {
        Self(code)
    }
}

const UNDECIDED: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;

static TRACING: AtomicU8 = AtomicU8::new(UNDECIDED);

/// Runs a handler and turns its result into the API's. `arguments` writes the arguments for the log.
pub fn call<A: Answer>(
    name: &str,
    handler: impl FnOnce() -> Result<(), A>,
    arguments: impl Fn(&mut Line),
) -> A {
    if TRACING.load(Relaxed) == OFF {
        walled(handler)
    } else {
        traced(name, handler, arguments)
    }
}

fn walled<A: Answer>(handler: impl FnOnce() -> Result<(), A>) -> A {
    match catch_unwind(AssertUnwindSafe(handler)) {
        Ok(Ok(())) => A::SUCCESS,
        Ok(Err(answer)) => answer,
        Err(_) => A::UNKNOWN,
    }
}

#[cold]
fn traced<A: Answer>(
    name: &str,
    handler: impl FnOnce() -> Result<(), A>,
    arguments: impl Fn(&mut Line),
) -> A {
    let tracer = TRACER.get_or_init(Tracer::from_env);
    let struck = tracer.strike(name);
    let answer = match struck.code {
        Some(code) => A::from_code(code),
        None => walled(handler),
    };
    if struck.dies_after {
        die();
    }
    if let Some(descriptor) = tracer.log {
        let mut line = Line(format!("{} {name}(", std::process::id()));
        arguments(&mut line);
        let text = format!("{}) = {answer:?}\n", line.0.trim_end_matches(", "));
        // SAFETY: a descriptor of ours and a buffer that outlives the call. One write to a file opened for appending:
        // lines never mix.
        unsafe { libc::write(descriptor, text.as_ptr().cast(), text.len()) };
    }
    answer
}

static TRACER: OnceLock<Tracer> = OnceLock::new();

struct Tracer {
    log: Option<i32>,
    faults: Vec<(Fault, AtomicU64)>,
}

impl Tracer {
    fn from_env() -> Tracer {
        let log = std::env::var_os("DIVVY_SIM_LOG")
            .filter(|path| !path.is_empty())
            .and_then(|path| {
                let path = CString::new(path.as_bytes()).ok()?;
                let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
                // SAFETY: a valid path; the descriptor is kept for the life of the process.
                let descriptor = unsafe { libc::open(path.as_ptr(), flags, 0o600) };
                (descriptor >= 0).then_some(descriptor)
            });
        // A bad file is reported where it stops the initialisation: `machine::machine`.
        let faults = Config::from_env().unwrap_or_default().faults;
        let tracer = Tracer {
            log,
            faults: faults
                .into_iter()
                .map(|fault| (fault, AtomicU64::new(0)))
                .collect(),
        };
        TRACING.store(
            if tracer.log.is_none() && tracer.faults.is_empty() {
                OFF
            } else {
                ON
            },
            Relaxed,
        );
        tracer
    }

    /// Counts the call for every fault that names it, and does what those that strike do before it.
    fn strike(&self, name: &str) -> Struck {
        let mut struck = Struck::default();
        for (fault, calls) in self
            .faults
            .iter()
            .filter(|(fault, _)| fault.function.matches(name))
        {
            let call = calls.fetch_add(1, Relaxed) + 1;
            if call < fault.call || (fault.times != 0 && call >= fault.call + fault.times) {
                continue;
            }
            if let (Some(gpu), Some(machine)) =
                (fault.lose_gpu, crate::engine::machine::opened::machine())
            {
                let state = &machine.state;
                if gpu < state.gpu_count() {
                    state.lock().lose(gpu);
                }
            }
            if fault.kill == Some(Moment::Before) {
                die();
            }
            if fault.delay_ms != 0 {
                pass(Duration::from_millis(fault.delay_ms));
            }
            struck.code = struck.code.or(fault.code);
            struck.dies_after |= fault.kill == Some(Moment::After);
        }
        struck
    }
}

/// What faults make of a call.
#[derive(Default)]
struct Struck {
    /// What it answers without being done.
    code: Option<u32>,
    dies_after: bool,
}

/// Lets time pass. A virtual clock is moved on, since no process may be waiting for it here.
fn pass(time: Duration) {
    match crate::engine::machine::opened::machine() {
        Some(machine) if machine.state.has_virtual_clock() => machine.state.lock().pass(time),
        _ => std::thread::sleep(time),
    }
}

/// As `kill -9` does it.
fn die() {
    // SAFETY: a signal to this very process, which does not return from it.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

/// One line of the call log while its arguments are written.
pub struct Line(String);

impl Line {
    /// Names are written as text, limits of memory by their fields, everything else as `Debug` does it.
    pub fn argument<T: Debug + Copy + 'static>(&mut self, value: T) {
        let any: &dyn std::any::Any = &value;
        let name = any
            .downcast_ref::<*const c_char>()
            .filter(|name| !name.is_null());
        if let Some(limits) = any.downcast_ref::<*mut nvmlSetMemoryLimits_v1_t>() {
            // SAFETY: null, or the caller's structure.
            if let Some(set) = unsafe { limits.as_ref() } {
                self.argument(set.nameSpace);
                self.argument(set.softLimit);
                return self.argument(set.hardLimit);
            }
        }
        if let Some(limits) = any.downcast_ref::<*mut nvmlGetMemoryLimits_v1_t>() {
            // SAFETY: as above.
            if let Some(get) = unsafe { limits.as_ref() } {
                self.argument(get.nameSpace);
                self.argument(get.softLimit);
                self.argument(get.hardLimit);
                return self.argument(get.currentUsed);
            }
        }
        // Writing to a String does not fail.
        let _ = match name {
            // SAFETY: `const char *` parameters of both APIs are zero-terminated names.
            Some(name) => write!(self.0, "{:?}, ", unsafe { CStr::from_ptr(*name) }),
            None => write!(self.0, "{value:?}, "),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_driver::sys::cuda::CUresult;

    #[test]
    fn a_panic_becomes_an_unknown_error() {
        let answer: CUresult = call("cuNothing", || panic!("a bug"), |_| ());
        assert_eq!(answer, CUresult::UNKNOWN);
    }

    #[test]
    fn lines_show_names_as_text_and_the_rest_as_it_is() {
        let mut line = Line(String::new());
        line.argument(c"cuInit".as_ptr());
        line.argument(std::ptr::null::<c_char>());
        line.argument(7u64);
        line.argument(CUresult::OUT_OF_MEMORY);
        assert_eq!(line.0, "\"cuInit\", 0x0, 7, CUDA_ERROR_OUT_OF_MEMORY (2), ");
    }
}
