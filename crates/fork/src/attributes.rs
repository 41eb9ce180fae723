//! Attributes that a process keeps over fork(2) and exec(2), as far as Divvy has to change them for its own work: blocked
//! and ignored signals, interval timers, and the limit of file sizes.
//!
//! | process | its own | its programs |
//! |---|---|---|
//! | `divvy run`, before a program | SIGCHLD handled, no SIGXFSZ | what its caller gave it ([`inherited`]) |
//! | daemon, fork server, supervisor of a job | defaults ([`drop_inherited`]) | defaults |
//!
//! `docs/reference.md` has the whole table ("Inherited attributes").

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::ptr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, PoisonError};

/// The highest signal number of Linux (`_NSIG`).
const SIGNALS: i32 = 64;

/// ITIMER_REAL, ITIMER_VIRTUAL and ITIMER_PROF of setitimer(2), which the crate libc lacks.
const TIMERS: [libc::c_int; 3] = [0, 1, 2];

/// What this process was started with, and hands on to the programs that it stands in front of.
#[derive(Clone, Copy)]
pub struct Inherited {
    blocked: libc::sigset_t,
    /// A bit for each signal, signal 1 the lowest.
    ignored: u64,
    /// Absent where the limit of this process is that of its programs.
    file_size: Option<libc::rlimit>,
    timers: [libc::itimerval; 3],
}

/// `None` before [`take_over`].
static INHERITED: Mutex<Option<Inherited>> = Mutex::new(None);

/// Whether SIGPIPE was ignored when this process began: the runtime of Rust ignores it before `main`.
static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);

// The loader calls it before the runtime's start.
#[used]
#[unsafe(link_section = ".init_array")]
static READ_SIGPIPE: extern "C" fn() = {
    extern "C" fn read() {
        PIPE_IGNORED.store(is_ignored(libc::SIGPIPE), SeqCst);
    }
    read
};

/// Remembers what this process was started with, and makes SIGCHLD what waiting for children needs: a program whose
/// starter blocks it is not woken, and one that ignores it gets no exit codes. The first call of a program.
pub fn take_over() {
    let bit = |signal: i32| u64::from(is_ignored(signal)) << (signal - 1);
    let ignored = (1..=SIGNALS).fold(0, |all, signal| all | bit(signal));
    let pipe = 1 << (libc::SIGPIPE - 1);
    let was_pipe = if PIPE_IGNORED.load(SeqCst) { pipe } else { 0 };
    *kept() = Some(Inherited {
        blocked: change_mask(libc::SIG_UNBLOCK, &[libc::SIGCHLD]),
        ignored: ignored & !pipe | was_pipe,
        ..Inherited::none()
    });
    if ignored >> (libc::SIGCHLD - 1) & 1 == 1 {
        set_disposition(libc::SIGCHLD, libc::SIG_DFL);
    }
}

/// Lets go of what the starter of a daemon or a supervisor left by accident, so that no job has it: blocked and ignored
/// signals, and timers. At the limit of file sizes, which a unit may set, a write fails as on a full disk.
pub fn drop_inherited() {
    change_mask(libc::SIG_SETMASK, &[]);
    for signal in (1..=SIGNALS).filter(|signal| *signal != libc::SIGPIPE && is_ignored(*signal)) {
        set_disposition(signal, libc::SIG_DFL);
    }
    take_timers();
    set_disposition(libc::SIGXFSZ, libc::SIG_IGN);
    *kept() = Some(Inherited::none());
}

/// Has no write of this process end it by SIGXFSZ: raises the limit of file sizes as far as it may, and beyond that a
/// write fails with `EFBIG`. Programs get the limit that this process had ([`Inherited::pass_on`]).
pub fn survive_file_limit() {
    let mut before = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: a valid place for the answer.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, before.as_mut_ptr()) } != 0 {
        return;
    }
    // SAFETY: the call has filled it.
    let before = unsafe { before.assume_init() };
    let raised = [libc::RLIM_INFINITY, before.rlim_max].iter().any(|most| {
        let limit = libc::rlimit {
            rlim_cur: *most,
            rlim_max: *most,
        };
        // SAFETY: the kernel reads the limit.
        unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) == 0 }
    });
    if let Some(inherited) = kept().as_mut().filter(|_| raised) {
        inherited.file_size.get_or_insert(before);
    }
    set_disposition(libc::SIGXFSZ, libc::SIG_IGN);
}

/// Unblocks signals for which this process has installed handlers.
pub fn unblock(signals: &[i32]) {
    change_mask(libc::SIG_UNBLOCK, signals);
}

/// What this process was started with, for the program that it starts next. Takes the timers from this process: they
/// are the program's from now on.
pub fn inherited() -> Inherited {
    let kept = *kept();
    Inherited {
        timers: take_timers(),
        ..kept.unwrap_or_else(Inherited::none)
    }
}

impl Inherited {
    /// The attributes of a process whose starter has left nothing.
    fn none() -> Self {
        Self {
            blocked: set_of(&[]),
            ignored: 0,
            file_size: None,
            timers: TIMERS.map(|_| no_timer()),
        }
    }

    /// Has the program of a command begin with them.
    pub fn pass_on(self, command: &mut Command) {
        let apply = move || -> io::Result<()> {
            for signal in 1..=SIGNALS {
                // The runtime has just made SIGPIPE the default.
                if self.ignored >> (signal - 1) & 1 == 1 {
                    set_disposition(signal, libc::SIG_IGN);
                } else if signal == libc::SIGXFSZ {
                    set_disposition(signal, libc::SIG_DFL);
                }
            }
            if let Some(limit) = &self.file_size {
                // SAFETY: the kernel reads the limit, which is no higher than the present one.
                unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, limit) };
            }
            for (which, timer) in TIMERS.into_iter().zip(&self.timers) {
                if timer.it_value.tv_sec != 0 || timer.it_value.tv_usec != 0 {
                    // SAFETY: the kernel reads the timer.
                    unsafe { libc::setitimer(which, timer, ptr::null_mut()) };
                }
            }
            // SAFETY: the set was filled by the C library.
            unsafe {
                libc::sigprocmask(libc::SIG_SETMASK, &raw const self.blocked, ptr::null_mut())
            };
            Ok(())
        };
        // SAFETY: system calls on copies of plain data: no lock and no allocation.
        unsafe { command.pre_exec(apply) };
    }
}

fn kept() -> std::sync::MutexGuard<'static, Option<Inherited>> {
    INHERITED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call only asks, and fills a valid place; zeroes are a valid action where it fails.
    let action = unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}

/// Sets a signal to `SIG_IGN` or `SIG_DFL`; nothing for one that the C library keeps to itself.
fn set_disposition(signal: i32, disposition: libc::sighandler_t) {
    // SAFETY: neither of the two is a handler.
    unsafe { libc::signal(signal, disposition) };
}

/// Changes the signal mask of this thread; returns the one before.
fn change_mask(how: i32, signals: &[i32]) -> libc::sigset_t {
    let (set, mut before) = (set_of(signals), set_of(&[]));
    // SAFETY: two sets that the C library has filled.
    unsafe { libc::pthread_sigmask(how, &raw const set, &raw mut before) };
    before
}

fn set_of(signals: &[i32]) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the first call fills the set, and the others change it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}

fn no_timer() -> libc::itimerval {
    let zero = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    libc::itimerval {
        it_interval: zero,
        it_value: zero,
    }
}

/// Stops the interval timers of this process; returns what was left of them.
fn take_timers() -> [libc::itimerval; 3] {
    TIMERS.map(|which| {
        let (none, mut left) = (no_timer(), no_timer());
        // SAFETY: the kernel reads the one and fills the other.
        unsafe { libc::setitimer(which, &raw const none, &raw mut left) };
        left
    })
}
