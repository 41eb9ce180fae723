//! `divvy selftest --park`: one cycle of parking, with a process whose memory has a pattern in it.
//!
//! ```text
//! lead ──► holder: fills memory ──► "filled" ── lock, save, restore, unlock ──► "compare" ──► "whole"
//! ```
//! Inside the slice NVML's answers are the limiter's. The daemon asks the driver at each park of a job whether it has
//! given all memory back.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use divvy_api::v1::ParkTest;
use divvy_core::Bytes;
use divvy_core::resize::memory::ProcessState;
use divvy_driver::pattern::Pattern;

use super::{Failure, gpu_environment, print_json, simulated};
use crate::checkpoint::Checkpointer;
use crate::checkpoint::helper::{CheckpointAction, CheckpointHelper};
use crate::host::clock::{Instant, now};
use crate::host::process::Process;

/// What the holder keeps: long enough to copy for its rate to be seen, and an eighth of the smallest slice that
/// `selftest` makes by default.
const MIB: u64 = 512;

/// Keeps memory with a pattern, and compares it once the test sends a line.
pub fn holder() -> Result<(), Failure> {
    let pattern = Pattern::fill(MIB)?;
    print_json("filled")?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let is_whole = pattern.is_whole()?;
    print_json(if is_whole { "whole" } else { "changed" })
}

struct Holder {
    child: Child,
    orders: ChildStdin,
    words: BufReader<std::process::ChildStdout>,
}

impl Holder {
    fn start(this: &Path) -> Result<Self, Failure> {
        let mut child = Command::new(this)
            .args(["probe-limits", "--limit", "0", "holder"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (orders, words) = (child.stdin.take(), child.stdout.take());
        Ok(Self {
            orders: orders.ok_or("no pipe")?,
            words: BufReader::new(words.ok_or("no pipe")?),
            child,
        })
    }

    fn hear(&mut self, wanted: &str) -> Result<(), Failure> {
        let mut line = String::new();
        self.words.read_line(&mut line)?;
        match line.trim().trim_matches('"') {
            said if said == wanted => Ok(()),
            said => {
                Err(format!("the process with the memory says {said:?}, not {wanted:?}").into())
            }
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Locked, it would not end by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Parks and wakes a process once, and prints what was seen.
pub fn cycle() -> Result<(), Failure> {
    super::exit_after_timeout();
    let place = gpu_environment()?;
    let this = std::env::current_exe()?;
    let mut holder = Holder::start(&this)?;
    holder.hear("filled")?;
    let process = Process::with_pid(holder.child.id()).ok_or("the process has ended")?;
    let helper = CheckpointHelper::new(this.clone(), None);
    let step = |act, expected| -> Result<(), Failure> {
        match helper.call(act, process, Bytes::mib(MIB))? {
            state if state == expected => Ok(()),
            state => Err(format!("after {act:?} the process is {state:?}").into()),
        }
    };
    let uuid = &place.identity.uuid;
    step(CheckpointAction::Lock, ProcessState::Locked)?;
    let began = Instant::now();
    step(CheckpointAction::Save, ProcessState::Checkpointed)?;
    let out = began.elapsed();
    let began = Instant::now();
    step(CheckpointAction::Restore, ProcessState::Locked)?;
    let back = began.elapsed();
    step(CheckpointAction::Unlock, ProcessState::Running)?;
    writeln!(holder.orders, "compare")?;
    holder.hear("whole")?;
    print_json(&ParkTest {
        gpu_uuid: uuid.clone(),
        gpu_index: place.identity.index,
        model: place.identity.name.clone(),
        driver_version: place.driver_version,
        simulated: simulated(),
        at: now(),
        memory_bytes: Bytes::mib(MIB).get(),
        park_s: out.as_secs_f64(),
        wake_s: back.as_secs_f64(),
    })
}
