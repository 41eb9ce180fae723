//! Visible devices: a job counts its GPUs from 0 in `CUDA_VISIBLE_DEVICES`, and the driver counts the machine's GPUs.
//! While the driver initialises, the variable therefore has the UUIDs that the numbers stand for.
//!
//! ```text
//! the program's    0,1 ──┐                               ┌──► 0,1
//! the driver's           └─► GPU-5c…,GPU-8a… ── cuInit ──┘
//! ```
//! The driver reads the variable once, in `cuInit`. Programs and their children read it as well, some of them as numbers,
//! so it gets the program's value back. Nothing that the driver answers is changed.

use std::ffi::{CStr, CString, c_uint};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use divvy_driver::sys::cuda::CUresult;
use divvy_ledger::{Numbering, Slice};

use crate::log;
use crate::process::{self, LimiterState};
use crate::route::hook::Real;

const VISIBLE: &CStr = c"CUDA_VISIBLE_DEVICES";

/// The UUIDs, which the daemon sets beside the numbers.
const GRANTED: &CStr = c"NVIDIA_VISIBLE_DEVICES";

/// Set in each program of a job of Divvy's.
const JOB: &CStr = c"DIVVY_JOB_ID";

/// It has [`BY_DRIVER`] where an engine brought the process into its slice and shows GPUs in its own way.
const NUMBERING: &CStr = c"DIVVY_NUMBERING";
const BY_DRIVER: &CStr = c"driver";

/// An entry that names no GPU on any machine, at which the driver's list ends (CUDA programming guide, environment
/// variables: `0,-1,1`).
const END: &str = "-1";

pub fn init<F>(real: Real<'_, F>, _flags: c_uint) -> CUresult {
    let Some(gpus) = numbered_gpus() else {
        return real.call();
    };
    let given = variable(VISIBLE);
    let text = given.as_deref().map(CStr::to_string_lossy);
    let (list, unknown) = translate(text.as_deref(), &gpus);
    if let Some(entry) = unknown {
        say(text.as_deref().unwrap_or_default(), &entry, gpus.len());
    }
    let Ok(list) = CString::new(list) else {
        return real.call();
    };
    if gpus.iter().all(|gpu| is_instance(gpu)) {
        process::shows_instances_alone();
    }
    if given.as_deref() == Some(&list) {
        return real.call();
    }
    // Two threads that initialise at once both set this value, or one finds it and leaves it. The C library frees no value
    // that it replaces, so a thread that reads the variable meanwhile reads one of the two.
    set(Some(&list));
    let result = real.call();
    // Another thread of the program may have set the variable.
    if variable(VISIBLE).as_deref() == Some(&list) {
        set(given.as_deref());
    }
    result
}

/// UUIDs of the slice's GPUs, where the program counts these from 0. The slice's own file is asked rather than the
/// environment, which a program may clear (GPUStack starts its servers with this one variable).
fn numbered_gpus() -> Option<Vec<String>> {
    if variable(NUMBERING).as_deref() == Some(BY_DRIVER) {
        return None;
    }
    // The limiter needs the slice as well, so it is opened once.
    if let LimiterState::Limited(account) = process::limiter_state() {
        return numbered_by(account.slice());
    }
    let Some(folder) = process::slice_folder() else {
        return instances();
    };
    match process::open(&folder) {
        Ok(slice) => numbered_by(&slice),
        Err(_) => granted_gpus(),
    }
}

fn numbered_by(slice: &Slice) -> Option<Vec<String>> {
    let gpus = slice.gpus().iter().map(|gpu| uuid_text(&gpu.uuid));
    (slice.spec().numbering == Numbering::Slice).then(|| gpus.collect())
}

/// The UUIDs that the daemon has set beside the numbers. Where the slice cannot be opened, as by another user's process
/// (`sudo -E`), no memory is granted, but a context on another job's GPU would end the job as a bypass.
fn granted_gpus() -> Option<Vec<String>> {
    let list = variable(GRANTED)?;
    let gpus: Vec<String> = list
        .to_string_lossy()
        .split(',')
        .map(str::to_owned)
        .collect();
    gpus.iter().all(|gpu| is_uuid(gpu)).then_some(gpus)
}

/// A job's MIG instances. The driver holds such a job to its instance, so it has no slice: its variables alone name them.
fn instances() -> Option<Vec<String>> {
    variable(JOB)?;
    granted_gpus().filter(|gpus| gpus.iter().all(|gpu| is_instance(gpu)))
}

/// The UUID as NVML and the driver's variable have it.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = "GPU".to_owned();
    for (at, byte) in uuid.iter().enumerate() {
        let dash = if [0, 4, 6, 8, 10].contains(&at) {
            "-"
        } else {
            ""
        };
        let _ = write!(text, "{dash}{byte:02x}");
    }
    text
}

/// The driver's list for a list of the program's, and the entry that names no GPU of the slice. The list ends there, as
/// the driver's own does. Without a list the slice's GPUs are all visible.
fn translate(given: Option<&str>, gpus: &[String]) -> (String, Option<String>) {
    let Some(given) = given else {
        return (gpus.join(","), None);
    };
    let mut list: Vec<&str> = Vec::new();
    let mut unknown = None;
    for entry in given.split(',').map(str::trim) {
        match gpu(entry, gpus) {
            Some(gpu) => list.push(gpu),
            None => {
                unknown = (!hides_on_purpose(entry)).then(|| entry.to_owned());
                list.push(END);
                break;
            }
        }
    }
    (list.join(","), unknown)
}

/// The UUID of the GPU that a number or the beginning of a UUID names.
fn gpu<'a>(entry: &str, gpus: &'a [String]) -> Option<&'a str> {
    if is_number(entry) {
        return Some(gpus.get(entry.parse::<usize>().ok()?)?);
    }
    let begins = |uuid: &&String| {
        let beginning = uuid.get(..entry.len());
        beginning.is_some_and(|beginning| beginning.eq_ignore_ascii_case(entry))
    };
    let mut named = gpus.iter().filter(begins);
    let first = named.next().filter(|_| is_uuid(entry))?;
    named.next().is_none().then_some(first.as_str())
}

fn is_number(entry: &str) -> bool {
    !entry.is_empty() && entry.bytes().all(|byte| byte.is_ascii_digit())
}

/// `-1`, an empty entry, and words such as `none` and Slurm's `NoDevFiles`.
fn hides_on_purpose(entry: &str) -> bool {
    let is_word = !entry.bytes().any(|byte| byte.is_ascii_digit()) && !is_uuid(entry);
    is_word || entry.starts_with('-')
}

fn is_uuid(entry: &str) -> bool {
    entry.starts_with("GPU-") || is_instance(entry)
}

fn is_instance(uuid: &str) -> bool {
    uuid.starts_with("MIG-")
}

/// Says, once in this process, which entry hides GPUs of the job.
fn say(given: &str, entry: &str, gpus: usize) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if SAID.swap(true, Relaxed) {
        return;
    }
    let mut line =
        format!("CUDA_VISIBLE_DEVICES={given}: {entry} is not a GPU of this job, which has ");
    let _ = match gpus {
        1 => write!(line, "GPU 0 alone"),
        _ => write!(line, "GPUs 0 to {}", gpus - 1),
    };
    log::write_line(&format!(
        "{line}; remove the line that sets the variable, or count the job's GPUs from 0"
    ));
}

fn variable(name: &CStr) -> Option<CString> {
    // SAFETY: a NUL-terminated name; the value is copied at once.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_owned())
    }
}

fn set(value: Option<&CStr>) {
    // SAFETY: NUL-terminated texts, which the C library copies. Without memory for it, it changes nothing.
    unsafe {
        match value {
            Some(value) => libc::setenv(VISIBLE.as_ptr(), value.as_ptr(), 1),
            None => libc::unsetenv(VISIBLE.as_ptr()),
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus() -> [String; 2] {
        ["GPU-aa22", "GPU-bb33"].map(str::to_owned)
    }

    #[test]
    fn a_uuid_is_written_as_nvml_writes_it() {
        let bytes = std::array::from_fn(|at| at as u8);
        assert_eq!(
            uuid_text(&bytes),
            "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
        );
    }

    #[test]
    fn numbers_and_beginnings_of_uuids_become_uuids_of_the_slice() {
        for (given, list) in [
            (None, "GPU-aa22,GPU-bb33"),
            (Some("0"), "GPU-aa22"),
            (Some("1"), "GPU-bb33"),
            (Some("0,1"), "GPU-aa22,GPU-bb33"),
            (Some(" 1 , 0 "), "GPU-bb33,GPU-aa22"),
            (Some("00"), "GPU-aa22"),
            (Some("GPU-bb33"), "GPU-bb33"),
            (Some("GPU-B,0"), "GPU-bb33,GPU-aa22"),
            // The driver itself hides all of a list with one GPU twice.
            (Some("0,0"), "GPU-aa22,GPU-aa22"),
            (Some(""), "-1"),
            (Some("-1"), "-1"),
            (Some("0,-1,1"), "GPU-aa22,-1"),
            (Some("1,"), "GPU-bb33,-1"),
            (Some("none"), "-1"),
        ] {
            assert_eq!(translate(given, &gpus()), (list.to_owned(), None));
        }
    }

    #[test]
    fn the_list_ends_at_what_is_not_the_jobs() {
        for (given, list, unknown) in [
            ("2", "-1", "2"),
            ("1,2,0", "GPU-bb33,-1", "2"),
            ("99999999999999999999", "-1", "99999999999999999999"),
            ("GPU-cc44", "-1", "GPU-cc44"),
            ("0,MIG-1", "GPU-aa22,-1", "MIG-1"),
            ("0;1", "-1", "0;1"),
            ("cuda:0", "-1", "cuda:0"),
            ("+1", "-1", "+1"),
            // It names two.
            ("GPU-", "-1", "GPU-"),
            ("GPU-aa22é", "-1", "GPU-aa22é"),
        ] {
            let expected = (list.to_owned(), Some(unknown.to_owned()));
            assert_eq!(translate(Some(given), &gpus()), expected);
        }
    }
}
