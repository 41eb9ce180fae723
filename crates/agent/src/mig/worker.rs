//! Threads that change MIG, one for each GPU: making and destroying take seconds, and the cycle waits for neither.
//!
//! ```text
//! cycle ── Order (journaled before) ──► worker ── lock of the GPU ──► driver
//!   ▲                                     │
//!   └──────────── Report ─────────────────┘
//! ```
//! Orders for one GPU are carried out in their order, so that what is made in a place comes after what was destroyed there. A
//! look that overlaps a change of its GPU says nothing of who is there, which [`Epochs`] tell.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use divvy_core::GpuUuid;
use divvy_driver::nvml::mig::{Activation, MigMode};

use super::driver::Gpu;
use super::work::{self, Failure};
use super::{Made, Slot};
use crate::failpoint::reach;
use crate::gpu::Source;
use crate::mailbox::{Mailbox, Message};
use crate::supervise::chain;

/// What is to be done to a slot, or to a whole GPU.
#[derive(Clone, Debug)]
pub struct Order {
    pub gpu: GpuUuid,
    pub task: Task,
}

#[derive(Clone, Debug)]
pub enum Task {
    /// Makes an instance of so many memory slices.
    Make {
        slot: Slot,
        generation: u64,
        size: u8,
    },
    /// Looks whether an idle one is clean, and changes nothing.
    Check {
        slot: Slot,
        generation: u64,
        made: Made,
    },
    Unmake {
        slot: Slot,
        generation: u64,
        made: Option<Made>,
    },
    /// Turns MIG on or off.
    Mode { on: bool },
}

impl Task {
    /// Which slot it is about; `None` where it is about the whole GPU.
    pub fn slot(&self) -> Option<&Slot> {
        match self {
            Self::Make { slot, .. } | Self::Check { slot, .. } | Self::Unmake { slot, .. } => {
                Some(slot)
            }
            Self::Mode { .. } => None,
        }
    }

    /// What has become of it, where that is a failure.
    fn failed(self, failure: Failure) -> Outcome {
        match self {
            Self::Make {
                slot, generation, ..
            } => Outcome::Made {
                slot,
                generation,
                result: Err(failure),
            },
            Self::Check {
                slot, generation, ..
            } => Outcome::Checked {
                slot,
                generation,
                result: Err(failure),
            },
            Self::Unmake {
                slot, generation, ..
            } => Outcome::Unmade {
                slot,
                generation,
                result: Err(failure),
            },
            Self::Mode { on } => Outcome::Mode {
                on,
                result: Err(failure),
            },
        }
    }
}

/// What has become of an order.
#[derive(Debug)]
pub struct Report {
    pub gpu: GpuUuid,
    pub result: Outcome,
    pub took: Duration,
    /// Looks from before this epoch of the GPU are out of date.
    pub epoch: u64,
}

#[derive(Debug)]
pub enum Outcome {
    Made {
        slot: Slot,
        generation: u64,
        result: Result<Made, Failure>,
    },
    /// Whether it is as it was made, with nobody and nothing in it.
    Checked {
        slot: Slot,
        generation: u64,
        result: Result<bool, Failure>,
    },
    /// Whether anything of it was there.
    Unmade {
        slot: Slot,
        generation: u64,
        result: Result<bool, Failure>,
    },
    /// The driver's word on the order, and the mode as it is now.
    Mode {
        on: bool,
        result: Result<(Activation, Option<MigMode>), Failure>,
    },
}

impl Outcome {
    /// Which slot it is about; `None` where it is about the whole GPU.
    pub fn slot(&self) -> Option<&Slot> {
        match self {
            Self::Made { slot, .. } | Self::Checked { slot, .. } | Self::Unmade { slot, .. } => {
                Some(slot)
            }
            Self::Mode { .. } => None,
        }
    }
}

/// How often each GPU was changed: odd while it is being changed.
#[derive(Debug, Default)]
pub struct Epochs(Mutex<BTreeMap<GpuUuid, u64>>);

impl Epochs {
    /// The epoch of a GPU that is not being changed.
    pub fn settled(&self, gpu: &GpuUuid) -> Option<u64> {
        let epoch = self.lock().get(gpu).copied().unwrap_or_default();
        epoch.is_multiple_of(2).then_some(epoch)
    }

    /// A change begins, or ends; the epoch from then on.
    pub fn step(&self, gpu: &GpuUuid) -> u64 {
        let mut epochs = self.lock();
        let epoch = epochs.entry(gpu.clone()).or_default();
        *epoch += 1;
        *epoch
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<GpuUuid, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The threads, for whoever gives orders.
pub struct Workers {
    source: Arc<Source>,
    mailbox: Mailbox,
    /// Folder of the GPUs' lock files.
    locks: PathBuf,
    threads: BTreeMap<GpuUuid, Sender<Task>>,
}

impl Workers {
    pub fn new(source: Arc<Source>, mailbox: Mailbox, locks: PathBuf) -> Self {
        Self {
            source,
            mailbox,
            locks,
            threads: BTreeMap::new(),
        }
    }

    /// Where reports go.
    pub fn mailbox(&self) -> Mailbox {
        self.mailbox.clone()
    }

    /// Has an order carried out; the mailbox gets its report.
    pub fn give(&mut self, order: Order) {
        #[cfg(test)]
        if crate::simulation::mig::give(&order) {
            return;
        }
        let Order { gpu, task } = order;
        let thread = match self.threads.entry(gpu.clone()) {
            Entry::Occupied(thread) => thread.into_mut(),
            Entry::Vacant(none) => {
                let worker = Worker::new(gpu, &self.source, &self.mailbox, &self.locks);
                let (sender, tasks) = channel();
                none.insert(match worker.start(tasks) {
                    Ok(()) => sender,
                    // Nobody hears the order, and so nobody will: the daemon is of no use without threads.
                    Err(error) => panic!("cannot start a thread: {error}"),
                })
            }
        };
        // The thread ends only with this.
        let _ = thread.send(task);
    }

    /// Carries an order out at once, as its thread would.
    #[cfg(test)]
    pub fn carry_out(&self, Order { gpu, task }: Order) -> Outcome {
        Worker::new(gpu, &self.source, &self.mailbox, &self.locks).carry_out(task)
    }
}

struct Worker {
    gpu: GpuUuid,
    source: Arc<Source>,
    mailbox: Mailbox,
    lock: PathBuf,
}

impl Worker {
    fn new(gpu: GpuUuid, source: &Arc<Source>, mailbox: &Mailbox, locks: &Path) -> Self {
        Self {
            lock: locks.join(format!("{gpu}.lock")),
            gpu,
            source: Arc::clone(source),
            mailbox: mailbox.clone(),
        }
    }

    fn start(self, tasks: Receiver<Task>) -> io::Result<()> {
        std::thread::Builder::new()
            .name("mig".to_owned())
            .spawn(move || self.run(&tasks))
            .map(drop)
    }

    fn run(&self, tasks: &Receiver<Task>) {
        for task in tasks {
            let began = Instant::now();
            self.source.epochs.step(&self.gpu);
            let result = survive(task, |task| self.carry_out(task));
            let report = Report {
                gpu: self.gpu.clone(),
                result,
                took: began.elapsed(),
                epoch: self.source.epochs.step(&self.gpu),
            };
            self.mailbox.post(Message::Mig(Box::new(report)));
        }
    }

    fn carry_out(&self, task: Task) -> Outcome {
        // Where the lock cannot be had, nothing is done.
        let lock = lock(&self.lock).map_err(|error| {
            Failure::Stuck(format!("cannot lock {}: {error}", self.lock.display()))
        });
        let device = || -> Result<Gpu<'_>, Failure> {
            let device = self.source.device(&self.gpu);
            device.map_err(|error| Failure::Stuck(chain(&error)))
        };
        match task {
            Task::Make {
                slot,
                generation,
                size,
            } => {
                let begun = lock.and_then(|lock| Ok((lock, device()?)));
                let result = begun
                    .map_err(Failure::before_anything)
                    .and_then(|(_lock, device)| work::make(&device, slot.placement, size));
                Outcome::Made {
                    slot,
                    generation,
                    result,
                }
            }
            Task::Check {
                slot,
                generation,
                made,
            } => {
                let check = |_lock| {
                    reach("mig.reuse.begin");
                    work::is_clean(&device()?, slot.placement, &made)
                };
                let result = lock.and_then(check);
                Outcome::Checked {
                    slot,
                    generation,
                    result,
                }
            }
            Task::Unmake {
                slot,
                generation,
                made,
            } => {
                let unmake = |_lock| work::unmake(&device()?, slot.placement, made.as_ref());
                let result = lock.and_then(unmake);
                Outcome::Unmade {
                    slot,
                    generation,
                    result,
                }
            }
            Task::Mode { on } => {
                let set = |_lock| work::set_mode(&device()?, on);
                let result = lock.and_then(set);
                Outcome::Mode { on, result }
            }
        }
    }
}

/// Whoever gave an order hears of it whatever happens: what an order that ended in a panic has left is not known.
fn survive(task: Task, carry_out: impl FnOnce(Task) -> Outcome) -> Outcome {
    let again = task.clone();
    catch_unwind(AssertUnwindSafe(|| carry_out(task))).unwrap_or_else(|_| {
        // Its words are in the log already.
        again.failed(Failure::Stuck(
            "an internal error interrupted the change; see the daemon's log".to_owned(),
        ))
    })
}

/// NVML has no lock of its own. Held until the file is closed.
fn lock(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    file.lock()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_core::mig::Placement;

    #[test]
    fn an_order_that_ends_in_a_panic_is_reported_as_stuck() {
        let gpu = "GPU-00000000-0000-5000-8000-000000000001".parse().unwrap();
        let placement = Placement {
            profile: 19,
            start: 3,
        };
        let slot = Slot { gpu, placement };
        let task = Task::Make {
            slot: slot.clone(),
            generation: 7,
            size: 1,
        };
        let outcome = survive(task, |_| panic!("halfway"));
        assert_eq!(outcome.slot(), Some(&slot));
        let Outcome::Made {
            generation, result, ..
        } = outcome
        else {
            panic!("{outcome:?}");
        };
        assert_eq!(generation, 7);
        assert!(matches!(result, Err(Failure::Stuck(_))), "{result:?}");
    }
}
