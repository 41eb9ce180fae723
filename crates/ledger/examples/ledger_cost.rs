//! What the ledger costs: a reservation's whole life in nanoseconds, and how long 300 processes take to join.
//!
//! Prints one line a figure, `NAME VALUE UNIT`, for `cargo xtask bench`. Build it with `--release`.

use std::error::Error;
use std::io::{PipeWriter, Read, Write, pipe};
use std::path::Path;
use std::time::{Duration, Instant};

use divvy_ledger::{Control, GpuSpec, ProcessSlot, Slice, SliceSpec};

const LIMIT: u64 = 1 << 36;
/// Enough pairs that single interruptions disappear in the mean, and less than a second of time.
const PAIRS: u32 = 200_000;
/// More than a slice has as a rule, and below its bound of 1024, so that a search of all slots shows.
const PROCESSES: usize = 300;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir_in(if Path::new("/dev/shm").is_dir() {
        "/dev/shm"
    } else {
        "/tmp"
    })?;
    let slice = made(&folder.path().join("pairs"))?;
    let mut out = std::io::stdout();

    let mut slots = vec![slice.join()?];
    let first = |slots: &[ProcessSlot]| best(|| pairs(&slots[0]), PAIRS);
    writeln!(out, "ledger_pair_1_process {:.1} ns", first(&slots))?;
    let denied = best(|| denials(&slots[0]), PAIRS / 100);
    writeln!(out, "ledger_denial_1_process {denied:.1} ns")?;
    for others in [8, 64] {
        while slots.len() < others {
            slots.push(slice.join()?);
        }
        writeln!(
            out,
            "ledger_pair_{others}_processes {:.1} ns",
            first(&slots)
        )?;
    }
    writeln!(
        out,
        "ledger_free_64_processes {:.1} ns",
        best(|| frees(&slots[0]), PAIRS)
    )?;
    writeln!(
        out,
        "ledger_info {:.1} ns",
        best(|| infos(&slots[0]), PAIRS)
    )?;
    let reads = || {
        for _ in 0..PAIRS / 1000 {
            std::hint::black_box(slice.read().expect("the slice is sound"));
        }
    };
    let read = best(reads, PAIRS / 1000) / 1e3;
    writeln!(out, "ledger_agent_read {read:.1} us")?;
    drop(slots);
    for siblings in [0, 1, 7, 31] {
        let slice = made(&folder.path().join(format!("view-{siblings}")))?;
        let slot = slice.join()?;
        let _members = Members::start(&slice, siblings)?;
        let view = best(|| views(&slot), PAIRS);
        writeln!(out, "ledger_view_{siblings}_siblings {view:.1} ns")?;
    }

    let joined = joins(&slice)?;
    writeln!(
        out,
        "ledger_{PROCESSES}_joins_with_fork {:.1} ms",
        joined.as_secs_f64() * 1e3
    )?;
    Ok(())
}

/// A new slice of one GPU.
fn made(folder: &Path) -> Result<Slice, Box<dyn Error>> {
    let gpus = vec![GpuSpec {
        uuid: [1; 16],
        limit: LIMIT,
        overhead: 1 << 28,
        weight: 1000,
        ..GpuSpec::default()
    }];
    let spec = SliceSpec {
        id: "cost".into(),
        generation: 1,
        gpus,
        ..SliceSpec::default()
    };
    Control::create(folder, &spec)?;
    Ok(Slice::open(folder)?)
}

/// Nanoseconds for each of `count` pieces of work, in the best of seven goes.
fn best(work: impl Fn(), count: u32) -> f64 {
    let go = |_| {
        let start = Instant::now();
        work();
        start.elapsed().as_nanos() as f64 / f64::from(count)
    };
    (0..7).map(go).fold(f64::INFINITY, f64::min)
}

fn pairs(slot: &ProcessSlot) {
    for _ in 0..PAIRS {
        slot.reserve(0, 2 << 20)
            .expect("an empty slice has room")
            .commit();
        slot.release(0, 2 << 20);
    }
}

fn denials(slot: &ProcessSlot) {
    slot.reserve(0, LIMIT)
        .expect("an empty slice has room")
        .commit();
    for _ in 0..PAIRS / 100 {
        assert!(slot.reserve(0, 2 << 20).is_err());
    }
    slot.release(0, LIMIT);
}

fn frees(slot: &ProcessSlot) {
    for _ in 0..PAIRS {
        std::hint::black_box(slot.free(0));
    }
}

fn infos(slot: &ProcessSlot) {
    for _ in 0..PAIRS {
        std::hint::black_box(slot.usage(0));
    }
}

fn views(slot: &ProcessSlot) {
    for _ in 0..PAIRS {
        // As the limiter does: each use of the slot looks at its files now and then.
        assert!(slot.check().is_ok());
        std::hint::black_box(slot.used_by_living(0));
    }
}

/// Forked processes that have joined, reserved a mebibyte and stay until this is dropped.
struct Members {
    children: Vec<libc::pid_t>,
    go: Option<PipeWriter>,
}

impl Members {
    fn start(slice: &Slice, processes: usize) -> Result<Self, Box<dyn Error>> {
        let (mut joined, report) = pipe()?;
        let (mut wait, go) = pipe()?;
        let mut children = Vec::new();
        for _ in 0..processes {
            // SAFETY: this program has one thread, so its child may do what it likes; it ends in _exit.
            match unsafe { libc::fork() } {
                0 => {
                    let slot = slice.join().map(|slot| &*Box::leak(Box::new(slot)));
                    let fine = slot.is_ok_and(|slot| {
                        slot.mark_life();
                        slot.reserve(0, 1 << 20).map(|hold| hold.commit()).is_ok()
                    });
                    let _ = (&report).write_all(&[u8::from(fine)]);
                    drop(go);
                    let _ = wait.read(&mut [0]);
                    // SAFETY: ends the child without running the parent's destructors.
                    unsafe { libc::_exit(0) }
                }
                child if child > 0 => children.push(child),
                _ => return Err(std::io::Error::last_os_error().into()),
            }
        }
        let mut answers = vec![0; processes];
        joined.read_exact(&mut answers)?;
        let go = Some(go);
        let all = Self { children, go };
        if answers.contains(&0) {
            return Err("not every process joined".into());
        }
        Ok(all)
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        self.go = None;
        for child in &self.children {
            // SAFETY: our own child, waited for once.
            unsafe { libc::waitpid(*child, std::ptr::null_mut(), 0) };
        }
    }
}

/// How long it takes until 300 processes have joined and reserved.
fn joins(slice: &Slice) -> Result<Duration, Box<dyn Error>> {
    let start = Instant::now();
    let members = Members::start(slice, PROCESSES)?;
    let took = start.elapsed();
    if slice.usage(0)?.charged != (PROCESSES as u64) << 20 {
        return Err("not every process was charged".into());
    }
    drop(members);
    Ok(took)
}
