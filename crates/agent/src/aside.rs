//! Putting the GPU memory of jobs aside, and back: a thread for each errand, and a short-lived process for each call of the driver.
//!
//! ```text
//! cycle ── Errand (journaled before) ──► thread ── who uses a GPU? ──► cycle journals them, and says so
//!   ▲                                      │ lock all, save and stop each, stop the rest, look again
//!   └──────────── Report ──────────────────┘
//! ```
//! An errand begins with how the processes are, so that it may be carried out again after anything. It undoes nothing: what is half
//! done is brought back by another errand. What follows from a report is for `cycle::memory`, which step comes next for
//! [`divvy_core::memory`].

pub mod helper;
mod room;
mod thread;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::SyncSender;

use divvy_core::memory::Memory;
use divvy_core::{GpuUuid, JobId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::gpu::Observer;
use crate::gpu::slice::GrantedSlice;
use crate::mailbox::{Mailbox, Message};
use crate::process::Process;
use helper::Helper;

/// What is journaled of a job's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Aside {
    pub memory: Memory,
    /// Since when it is there.
    pub since: Option<Timestamp>,
    /// Why it could not be put aside.
    pub because: Option<String>,
    /// Processes of it that the driver may have been told to lock.
    pub parts: Vec<Process>,
}

impl Aside {
    /// Nothing was ever done with it.
    pub fn is_untouched(&self) -> bool {
        *self == Self::default()
    }
}

/// Whether memory is to leave its GPUs or to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Out,
    Back,
}

/// What is to be done for a job.
pub struct Errand {
    pub job: JobId,
    /// Which of its runs it is for.
    pub attempt: u32,
    pub way: Way,
    pub supervisor: Process,
    pub slice: Arc<GrantedSlice>,
    /// By position in its slice.
    pub gpus: Vec<GpuUuid>,
    pub parts: Vec<Process>,
    /// Nobody wants it any more: set by the cycle.
    pub withdrawn: Arc<AtomicBool>,
}

/// What an errand says.
pub struct Report {
    pub job: JobId,
    pub attempt: u32,
    pub what: News,
}

pub enum News {
    /// These use a GPU, and are about to be locked. Nothing is done to them before somebody answers that it is journaled.
    Met(Vec<Process>, SyncSender<()>),
    Ended(Outcome),
}

/// What has become of it, with the reason in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Saved,
    /// Nothing was done.
    Refused(String),
    /// Something may have been done, and not all.
    Failed(String),
    Restored,
    NotRestored(String),
    /// The job is to end.
    Withdrawn,
}

/// Sends threads on errands.
pub struct Errands {
    mailbox: Mailbox,
    observer: Arc<Observer>,
    helper: Helper,
}

impl Errands {
    /// `divvy`: this program; `cuda`: the library to load, unless it is the one that the loader finds.
    pub fn new(
        mailbox: Mailbox,
        observer: Arc<Observer>,
        divvy: PathBuf,
        cuda: Option<PathBuf>,
    ) -> Self {
        Self {
            mailbox,
            observer,
            helper: Helper { divvy, cuda },
        }
    }

    /// Has an errand carried out; the mailbox gets its report.
    pub fn send(&self, errand: Errand) {
        let (job, attempt, way) = (errand.job, errand.attempt, errand.way);
        let errand = thread::Runner::new(
            errand,
            self.helper.clone(),
            Arc::clone(&self.observer),
            self.mailbox.clone(),
        );
        let run = move || errand.run();
        let started = std::thread::Builder::new()
            .name("aside".to_owned())
            .spawn(run);
        if let Err(error) = started {
            let why = format!("cannot start a thread: {error}");
            let ended = match way {
                Way::Out => Outcome::Refused(why),
                Way::Back => Outcome::NotRestored(why),
            };
            self.give_up(job, attempt, ended);
        }
    }

    /// Nobody can be sent: the mailbox gets this as the report.
    pub fn give_up(&self, job: JobId, attempt: u32, ended: Outcome) {
        self.mailbox.post(Message::Aside(Box::new(Report {
            job,
            attempt,
            what: News::Ended(ended),
        })));
    }
}
