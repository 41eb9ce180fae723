//! The MIG workers: one thread for each GPU that creates and destroys instances. Both take seconds, and the controller
//! waits for neither.
//!
//! ```text
//! controller ── MigCommand (journaled before) ──► worker ── lock of the GPU ──► driver
//!   ▲                                               │
//!   └──────────── report ───────────────────────────┘
//! ```
//! A worker carries out the commands for its GPU in order, so that a new instance in a place comes after the removal of
//! the old one. An observation that overlaps a change of its GPU is no evidence about processes;
//! [`Epochs`] detect the overlap.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use divvy_api::sync;
use divvy_core::GpuUuid;
use divvy_driver::nvml::memory_limits::MemoryLimits;
use divvy_driver::nvml::mig::{Activation, MigMode};

use super::driver::Gpu;
use super::operations::{self, MigOpError};
use crate::gpu::Source;
use crate::gpu::driver_limit::{LimitTask, NoDriverLimit};
use crate::host::error::error_chain;
use crate::host::failpoint::reach;
use crate::host::lock_file;
use crate::model::mig_instance::{InstanceInfo, MigSlot};

/// What is to be done to a slot, or to a whole GPU.
#[derive(Clone, Debug)]
pub struct MigCommand {
    pub gpu: GpuUuid,
    pub task: MigTask,
}

#[derive(Clone, Debug)]
pub enum MigTask {
    /// Makes an instance of so many memory slices.
    Create {
        slot: MigSlot,
        generation: u64,
        size: u8,
    },
    /// Checks whether an idle instance is clean, and changes nothing.
    Check {
        slot: MigSlot,
        generation: u64,
        made: InstanceInfo,
    },
    Destroy {
        slot: MigSlot,
        generation: u64,
        made: Option<InstanceInfo>,
    },
    /// Turns MIG on or off.
    SetMode { on: bool },
    /// Sets the driver's limit of a job, and has nothing to do with MIG.
    Limit(LimitTask),
}

impl MigTask {
    /// Which slot it is about; `None` where it is about the whole GPU.
    pub fn slot(&self) -> Option<&MigSlot> {
        match self {
            Self::Create { slot, .. } | Self::Check { slot, .. } | Self::Destroy { slot, .. } => {
                Some(slot)
            }
            Self::SetMode { .. } | Self::Limit(_) => None,
        }
    }

    /// What has become of it, where that is a failure.
    fn failed(self, failure: MigOpError) -> MigOutcome {
        match self {
            Self::Create {
                slot, generation, ..
            } => MigOutcome::Created {
                slot,
                generation,
                result: Err(failure),
            },
            Self::Check {
                slot, generation, ..
            } => MigOutcome::Checked {
                slot,
                generation,
                result: Err(failure),
            },
            Self::Destroy {
                slot, generation, ..
            } => MigOutcome::Destroyed {
                slot,
                generation,
                result: Err(failure),
            },
            Self::SetMode { on } => MigOutcome::ModeSet {
                on,
                result: Err(failure),
            },
            Self::Limit(task) => MigOutcome::Limited {
                task,
                result: Err(NoDriverLimit::Failed(failure.to_string())),
            },
        }
    }
}

/// The outcome of a command.
#[derive(Debug)]
pub struct MigReport {
    pub gpu: GpuUuid,
    pub outcome: MigOutcome,
    pub took: Duration,
    /// Observations from before this epoch of the GPU are out of date.
    pub epoch: u64,
}

#[derive(Debug)]
pub enum MigOutcome {
    Created {
        slot: MigSlot,
        generation: u64,
        result: Result<InstanceInfo, MigOpError>,
    },
    /// Whether it is as it was made, with no process and nothing else in it.
    Checked {
        slot: MigSlot,
        generation: u64,
        result: Result<bool, MigOpError>,
    },
    /// Whether anything of it was there.
    Destroyed {
        slot: MigSlot,
        generation: u64,
        result: Result<bool, MigOpError>,
    },
    /// The driver's answer to the command, and the mode as it is now.
    ModeSet {
        on: bool,
        result: Result<(Activation, Option<MigMode>), MigOpError>,
    },
    /// The limits that were set before.
    Limited {
        task: LimitTask,
        result: Result<MemoryLimits, NoDriverLimit>,
    },
}

impl MigOutcome {
    /// Which slot it is about; `None` where it is about the whole GPU.
    pub fn slot(&self) -> Option<&MigSlot> {
        match self {
            Self::Created { slot, .. }
            | Self::Checked { slot, .. }
            | Self::Destroyed { slot, .. } => Some(slot),
            Self::ModeSet { .. } | Self::Limited { .. } => None,
        }
    }
}

/// How often each GPU was changed: odd while it is being changed.
#[derive(Debug, Default)]
pub struct Epochs(Mutex<BTreeMap<GpuUuid, u64>>);

impl Epochs {
    /// The epoch of a GPU that is not being changed.
    pub fn stable(&self, gpu: &GpuUuid) -> Option<u64> {
        let epoch = self.lock().get(gpu).copied().unwrap_or_default();
        epoch.is_multiple_of(2).then_some(epoch)
    }

    /// A change begins, or ends; the epoch from then on.
    pub fn advance(&self, gpu: &GpuUuid) -> u64 {
        let mut epochs = self.lock();
        let epoch = epochs.entry(gpu.clone()).or_default();
        *epoch += 1;
        *epoch
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<GpuUuid, u64>> {
        sync::lock(&self.0)
    }
}

/// The receiver of MIG commands: the worker threads, or what a test has in their place.
pub struct Workers(Mutex<Box<dyn FnMut(MigCommand) + Send>>);

impl Workers {
    pub fn new(dispatch: impl FnMut(MigCommand) + Send + 'static) -> Self {
        Self(Mutex::new(Box::new(dispatch)))
    }

    /// A thread for each GPU, started with its first command. `report` hears of each outcome; `locks` is the folder of
    /// the GPUs' lock files.
    pub fn threads(
        source: Arc<Source>,
        report: impl Fn(MigReport) + Clone + Send + 'static,
        locks: PathBuf,
    ) -> Self {
        let mut threads: BTreeMap<GpuUuid, Sender<MigTask>> = BTreeMap::new();
        Self::new(move |MigCommand { gpu, task }| {
            let thread = match threads.entry(gpu.clone()) {
                Entry::Occupied(thread) => thread.into_mut(),
                Entry::Vacant(none) => {
                    let worker = Worker::new(gpu, &source, &locks);
                    let (sender, tasks) = channel();
                    none.insert(match worker.start(tasks, report.clone()) {
                        Ok(()) => sender,
                        // No thread hears the command: the daemon is of no use without threads.
                        Err(error) => panic!("cannot start a thread: {error}"),
                    })
                }
            };
            // The thread ends only with this.
            let _ = thread.send(task);
        })
    }

    /// Has a command carried out.
    pub fn dispatch(&self, command: MigCommand) {
        (sync::lock(&self.0))(command);
    }
}

/// Carries out the commands for one GPU.
pub struct Worker {
    gpu: GpuUuid,
    source: Arc<Source>,
    lock: PathBuf,
}

impl Worker {
    pub fn new(gpu: GpuUuid, source: &Arc<Source>, locks: &Path) -> Self {
        Self {
            lock: locks.join(format!("{gpu}.lock")),
            gpu,
            source: Arc::clone(source),
        }
    }

    fn start(
        self,
        tasks: Receiver<MigTask>,
        report: impl Fn(MigReport) + Send + 'static,
    ) -> io::Result<()> {
        std::thread::Builder::new()
            .name("mig".to_owned())
            .spawn(move || self.run(&tasks, report))
            .map(drop)
    }

    fn run(&self, tasks: &Receiver<MigTask>, report: impl Fn(MigReport)) {
        for task in tasks {
            let began = Instant::now();
            // A limit changes nothing that an observation shows.
            let changes = !matches!(task, MigTask::Limit(_));
            if changes {
                self.source.epochs.advance(&self.gpu);
            }
            let result = catch_panic(task, |task| self.execute(task));
            report(MigReport {
                gpu: self.gpu.clone(),
                outcome: result,
                took: began.elapsed(),
                epoch: match changes {
                    true => self.source.epochs.advance(&self.gpu),
                    false => 0,
                },
            });
        }
    }

    /// Carries a command out at once.
    pub fn execute(&self, task: MigTask) -> MigOutcome {
        // Without the lock the worker changes no instance. The driver's limits need no lock: each daemon has groups of
        // its own.
        let lock = || {
            lock(&self.lock).map_err(|error| {
                MigOpError::Stuck(format!("cannot lock {}: {error}", self.lock.display()))
            })
        };
        let device = || -> Result<Box<dyn Gpu + '_>, MigOpError> {
            let device = self.source.device(&self.gpu);
            device.map_err(|error| MigOpError::Stuck(error_chain(&error)))
        };
        match task {
            MigTask::Create {
                slot,
                generation,
                size,
            } => {
                let begun = lock().and_then(|lock| Ok((lock, device()?)));
                let result =
                    begun
                        .map_err(MigOpError::before_anything)
                        .and_then(|(_lock, device)| {
                            operations::create_instance(&*device, slot.placement, size)
                        });
                MigOutcome::Created {
                    slot,
                    generation,
                    result,
                }
            }
            MigTask::Check {
                slot,
                generation,
                made,
            } => {
                let check = |_lock| {
                    reach("mig.reuse.begin");
                    operations::is_clean(&*device()?, slot.placement, &made)
                };
                let result = lock().and_then(check);
                MigOutcome::Checked {
                    slot,
                    generation,
                    result,
                }
            }
            MigTask::Destroy {
                slot,
                generation,
                made,
            } => {
                let unmake = |_lock| {
                    operations::destroy_instance(&*device()?, slot.placement, made.as_ref())
                };
                let result = lock().and_then(unmake);
                MigOutcome::Destroyed {
                    slot,
                    generation,
                    result,
                }
            }
            MigTask::SetMode { on } => {
                let set = |_lock| operations::set_mode(&*device()?, on);
                let result = lock().and_then(set);
                MigOutcome::ModeSet { on, result }
            }
            MigTask::Limit(task) => {
                let result = device()
                    .map_err(|error| NoDriverLimit::Failed(error.to_string()))
                    .and_then(|device| task.run(&*device));
                MigOutcome::Limited { task, result }
            }
        }
    }
}

/// The sender of a command always gets a report. After a panic the state of the instance is unknown.
fn catch_panic(task: MigTask, carry_out: impl FnOnce(MigTask) -> MigOutcome) -> MigOutcome {
    let again = task.clone();
    catch_unwind(AssertUnwindSafe(|| carry_out(task))).unwrap_or_else(|_| {
        // Its words are in the log already.
        again.failed(MigOpError::Stuck(
            "an internal error interrupted the change; see the daemon's log".to_owned(),
        ))
    })
}

/// NVML has no lock of its own. Held until the file is closed.
fn lock(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let file = lock_file::open(path)?;
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
        let slot = MigSlot { gpu, placement };
        let task = MigTask::Create {
            slot: slot.clone(),
            generation: 7,
            size: 1,
        };
        let outcome = catch_panic(task, |_| panic!("halfway"));
        assert_eq!(outcome.slot(), Some(&slot));
        let MigOutcome::Created {
            generation, result, ..
        } = outcome
        else {
            panic!("{outcome:?}");
        };
        assert_eq!(generation, 7);
        assert!(matches!(result, Err(MigOpError::Stuck(_))), "{result:?}");
    }
}
