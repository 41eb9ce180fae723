//! The state of this process: limited by a slice, refused, or switched off. The first hooked call that needs it
//! determines it.
//!
//! ```text
//! nothing yet ── first need ──► Off       DIVVY_SHIM=off and the limits are this user's own, or a wrapper does the work
//!                           ├─► Refused   no slice, or none that can be trusted: allocations fail, one line says why; without a slice
//!                           │             those on instances of divided GPUs, whose memory the driver holds, go through
//!                           └─► Limited   the slice is open; a slot in it is taken when first charged
//! any of them ── fork, in the child ──► nothing yet
//! ```
//! `DIVVY_SHIM=off` is obeyed only by a process that could as well raise its limits: its slice is the one that `DIVVY_SLICE` names,
//! and the process's user owns the limits there and may write them. It is ignored
//! - where the slice is mounted for the job ([`MOUNTED`]: wrapper, container, claim), by root in a container too, for which the owner
//!   of the limits is the same number;
//! - where the limits are another user's (a system daemon's) or mounted read-only;
//! - where there is no slice, or a damaged one: a job can bring about both.
//!
//! Nothing is ever freed: other threads may hold it, and a fork child must not give up what is its parent's.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use divvy_driver::sys::cuda::CUdevice;
use divvy_ledger::{MOUNTED, OpenError, ProcessSlot, Slice};

use crate::account::ProcessAccount;
use crate::compute;
use crate::device;
use crate::log;
use crate::park;
use crate::route::form;

const SLICE: &str = "DIVVY_SLICE";
const JOB: &str = "DIVVY_JOB_ID";
const SUPERVISOR: &str = "DIVVY_SUPERVISOR";
const SWITCH: &str = "DIVVY_SHIM";
const REMEDY: &str = "start the program with `divvy run`";

/// Whether the driver was given instances of divided GPUs alone, so that each of its devices is one.
static INSTANCES_ALONE: AtomicBool = AtomicBool::new(false);

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(null_mut());

pub struct Process {
    limiter_state: OnceLock<LimiterState>,
    has_logged: AtomicBool,
}

pub enum LimiterState {
    Off,
    Refused(Refusal),
    Limited(Box<ProcessAccount>),
}

/// Why a process gets no memory.
pub struct Refusal {
    pub cause: String,
    /// Nothing says that it belongs to a slice, rather than to one that cannot be trusted.
    without_slice: bool,
}

impl Refusal {
    /// Whether it is not about a device: what has no slice may be a job on a MIG device. The driver holds such a job to its instance, so it has no
    /// slice. The limiter is in it for the numbers of its instances, or because it is in every program of a machine or of an image.
    pub fn spares(&self, device: Option<CUdevice>) -> bool {
        self.without_slice
            && (INSTANCES_ALONE.load(Relaxed) || device.is_some_and(device::is_instance))
    }
}

/// The driver initialises with a list of instances alone.
pub fn shows_instances_alone() {
    INSTANCES_ALONE.store(true, Relaxed);
}

/// This process's standing, found out now if it was not before.
pub fn limiter_state() -> &'static LimiterState {
    current().limiter_state.get_or_init(find_out)
}

/// This process's account, if it is known to have one. Asks nothing and makes nothing.
pub fn account() -> Option<&'static ProcessAccount> {
    // SAFETY: only `current` stores, and never frees what it stored.
    let process = unsafe { CURRENT.load(Acquire).as_ref() }?;
    match process.limiter_state.get()? {
        LimiterState::Limited(account) => Some(account),
        LimiterState::Off | LimiterState::Refused(_) => None,
    }
}

/// Alarms of this process before it had a slot to count them in.
static EARLY: AtomicU32 = AtomicU32::new(0);

/// Counts what should not be where the agent sees it: now, or once the process has a slot. Safe inside `dlsym`.
pub fn alarm() {
    match account().and_then(ProcessAccount::joined) {
        Some(slot) => slot.alarm(),
        None => {
            EARLY.fetch_add(1, Relaxed);
        }
    }
}

/// Counts the alarms of before in the slot that the process has now.
pub fn count_early(slot: &ProcessSlot) {
    for _ in 0..EARLY.swap(0, Relaxed) {
        slot.alarm();
    }
}

/// Says, once in this process, why its allocations fail, or that they are not limited.
pub fn log_once(text: impl FnOnce() -> String) {
    if !current().has_logged.swap(true, Relaxed) {
        log::write_line(&text());
    }
}

/// Says that allocations are refused, once in this process.
pub fn log_refusal(cause: &str) {
    let switch = if is_switched_off() && account().is_none() {
        format!("; {SWITCH}=off is ignored without a valid slice")
    } else {
        String::new()
    };
    log_once(|| format!("GPU memory is refused: {cause}{switch}; {}", remedy()));
}

/// What its user can do about a refusal. A sandbox of a job's program may hide the slice, or show it read-only.
fn remedy() -> String {
    let Some(job) = std::env::var_os(JOB).filter(|job| !job.is_empty()) else {
        return REMEDY.to_owned();
    };
    let folder = slice_folder().unwrap_or_else(|| MOUNTED.into());
    let is_hidden = !folder.join("slots").exists();
    if !is_hidden && !divvy_ledger::is_read_only(&folder) {
        return REMEDY.to_owned();
    }
    // A form with mounts has more than the slice below that folder.
    let bound = if folder == Path::new(MOUNTED) {
        folder.parent().unwrap_or(&folder)
    } else {
        &folder
    };
    format!(
        "in a sandbox of job {}, bind {} into it, writable",
        job.display(),
        bound.display()
    )
}

/// Says that this process is limited although it was told not to be, where it was. For the moment when it joins its slice.
pub fn log_ignored_switch() {
    if is_switched_off() {
        log::write_line(&format!(
            "{SWITCH}=off is ignored: this user may not change the limits of the slice"
        ));
    }
}

/// Says that nothing is limited, once in this process.
pub fn log_off() {
    log_once(|| format!("{SWITCH}=off: GPU memory is not limited in this process"));
}

fn current() -> &'static Process {
    let known = CURRENT.load(Acquire);
    if !known.is_null() {
        // SAFETY: stored below, never freed.
        return unsafe { &*known };
    }
    watch_forks();
    let fresh = Box::into_raw(Box::new(Process {
        limiter_state: OnceLock::new(),
        // It is not for one that stands aside to say that nothing is limited.
        has_logged: AtomicBool::new(form::stands_aside()),
    }));
    match CURRENT.compare_exchange(null_mut(), fresh, AcqRel, Acquire) {
        // SAFETY: just made, and shared from now on.
        Ok(_) => unsafe { &*fresh },
        Err(winner) => {
            // SAFETY: just made and not yet shared; the winner's is never freed.
            unsafe {
                drop(Box::from_raw(fresh));
                &*winner
            }
        }
    }
}

/// Whether `DIVVY_SHIM=off` is in the environment.
fn is_switched_off() -> bool {
    std::env::var_os(SWITCH).is_some_and(|value| value == "off")
}

fn find_out() -> LimiterState {
    if form::stands_aside() {
        return LimiterState::Off;
    }
    let Some(folder) = slice_folder() else {
        return LimiterState::Refused(Refusal {
            cause: format!("{SLICE} is not set, so this process belongs to no slice"),
            without_slice: true,
        });
    };
    let is_mounted = folder == Path::new(MOUNTED);
    match open(&folder) {
        Ok(slice) if is_switched_off() && !is_mounted && slice.is_own() => LimiterState::Off,
        Ok(slice) => LimiterState::Limited(Box::new(ProcessAccount::new(slice))),
        Err(error) => LimiterState::Refused(Refusal {
            cause: error.to_string(),
            without_slice: false,
        }),
    }
}

/// The folder of this process's slice. The mount of the job takes precedence over its environment.
pub fn slice_folder() -> Option<PathBuf> {
    let mounted = Some(PathBuf::from(MOUNTED)).filter(|folder| folder.exists());
    let named = || std::env::var_os(SLICE).filter(|value| !value.is_empty());
    mounted.or_else(|| named().map(PathBuf::from))
}

/// The slice in this folder. A logout may take its names, now or later: then the descriptors of the job's supervisor lead
/// to its files. Not where another user's folder is mounted: a job could name any process as its supervisor.
pub fn open(folder: &Path) -> Result<Slice, OpenError> {
    let is_mounted = folder == Path::new(MOUNTED);
    let is_own = || fs::metadata(folder).is_ok_and(|status| status.uid() == divvy_ledger::user());
    let Some(supervisor) = supervisor().filter(|_| !is_mounted || is_own()) else {
        return Slice::open(folder);
    };
    let job = std::env::var(JOB).unwrap_or_default();
    let slice = Slice::open(&Slice::find_folder(folder, supervisor, &job))?;
    slice.set_supervisor(supervisor);
    Ok(slice)
}

/// The process that supervises the job, by the job's environment.
fn supervisor() -> Option<u32> {
    std::env::var(SUPERVISOR).ok()?.parse().ok()
}

/// A fork child starts with nothing: its parent's slot, locks and pointers are not its own.
fn watch_forks() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    extern "C" fn forget() {
        CURRENT.store(null_mut(), Release);
        compute::forget_slot();
        park::forget();
    }
    if !WATCHED.swap(true, AcqRel) {
        // SAFETY: the handler stores four words, which is allowed in a fork child.
        unsafe { libc::pthread_atfork(None, None, Some(forget)) };
    }
}
