//! A job's slice in the ledger: the one place where core's grants become ledger words, and back.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use divvy_core::{Bytes, Compute, ComputeMode, Grant};
use divvy_ledger::{
    Control, CreateError, Denial, GpuSpec, Listed, Mode, OpenError, Owner, Reader, SliceSpec,
    Snapshot,
};

use super::roster::{Account, Entry};
use crate::clock::boot_ns;
use crate::job::Traces;
use crate::process::inside::{Mark, has_mapped};
use crate::process::{self, Process};
use crate::supervise::identity::Identity;

/// A slice that the agent holds open.
pub struct HeldSlice {
    folder: PathBuf,
    control: Control,
    reader: Arc<Reader>,
    /// Its slots file, which every process that has joined has mapped.
    slots: Mark,
}

/// Why a slice cannot be made or adopted.
#[derive(Debug, thiserror::Error)]
pub enum SliceError {
    #[error(transparent)]
    Create(#[from] CreateError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("cannot give the slice {path} to uid {uid}")]
    HandOver {
        path: PathBuf,
        uid: u32,
        source: io::Error,
    },
    #[error("cannot remove the slice folder {path}")]
    Remove { path: PathBuf, source: io::Error },
}

/// What is cut for one job.
pub struct Cut<'a> {
    pub job: &'a str,
    /// Tells this slice from an earlier one of the same job.
    pub generation: u64,
    pub compute: Compute,
    pub grants: &'a [Grant],
    /// By position in `grants`.
    pub overheads: &'a [Bytes],
}

impl HeldSlice {
    /// Makes the slice anew; what an attempt cut short has left there is replaced.
    pub fn create(folder: &Path, cut: &Cut<'_>) -> Result<Box<Self>, SliceError> {
        remove(folder)?;
        let gpu = |(grant, overhead): (&Grant, &Bytes)| {
            let (weight, cap) = weight_and_cap(grant, cut.compute);
            GpuSpec {
                uuid: grant.gpu.to_bytes(),
                limit: grant.memory.get(),
                overhead: overhead.get(),
                weight,
                cap,
                unseen: 0,
            }
        };
        let spec = SliceSpec {
            id: cut.job.to_owned(),
            generation: cut.generation,
            mode: mode(cut.compute),
            gpus: cut.grants.iter().zip(cut.overheads).map(gpu).collect(),
        };
        let control = Control::create(folder, &spec)?;
        Ok(Self::with(folder, control)?)
    }

    /// Takes over a slice that an earlier agent made.
    pub fn adopt(folder: &Path) -> Result<Box<Self>, SliceError> {
        let control = Control::open_writable(folder)?;
        Ok(Self::with(folder, control)?)
    }

    fn with(folder: &Path, control: Control) -> Result<Box<Self>, OpenError> {
        Ok(Box::new(Self {
            folder: folder.to_owned(),
            control,
            reader: Arc::new(Reader::open(folder)?),
            slots: Mark::of(&folder.join("slots")),
        }))
    }

    /// Whether both of its files lie there.
    pub fn is_there(folder: &Path) -> bool {
        ["control", "slots"]
            .iter()
            .all(|name| folder.join(name).is_file())
    }

    /// Everything the ledger says now.
    pub fn read(&self) -> Result<Snapshot, OpenError> {
        self.reader.read()
    }

    /// Its account, for whoever reads it elsewhere.
    pub fn account(&self) -> Arc<Reader> {
        Arc::clone(&self.reader)
    }

    /// Tells the slice's processes that the agent lives.
    pub fn beat(&self) {
        self.control.heartbeat(boot_ns());
    }

    /// Gives its processes these limits and weights from now on; by position in its GPUs.
    pub fn resize(&self, limits: &[Grant], compute: Compute) {
        self.control.set_mode(mode(compute));
        for (gpu, limit) in limits.iter().enumerate() {
            self.control.set_limit(gpu, limit.memory.get());
            let (weight, cap) = weight_and_cap(limit, compute);
            self.control.set_compute(gpu, weight, cap);
        }
    }

    /// What its refused processes wrote down, and how many records there were.
    pub fn denials(&self) -> Result<(Vec<Denial>, u64), OpenError> {
        self.reader.slice().denials()
    }

    /// What the limit of one of its GPUs counts besides what is charged.
    pub fn set_unseen(&self, gpu: usize, bytes: Bytes) {
        self.control.set_unseen(gpu, bytes.get());
    }

    /// The slice as looks know it, with the processes that its job's tree grows from as far as they are known.
    pub fn entry(&self, roots: Vec<Process>) -> Entry {
        Entry {
            slice: Some(Account {
                slice: Arc::clone(&self.reader),
                slots: self.slots.clone(),
            }),
            roots,
            mounted: None,
        }
    }

    /// Gives back what dead processes held once the driver has let go of it. Looks at every slot, so only called when there
    /// is a dead one.
    pub fn reap(&self, listed: &dyn Fn(&Owner) -> Listed) -> Result<(), OpenError> {
        let now = boot_ns();
        self.reader.slice().reap(now, listed).map(drop)
    }

    /// Processes of the slice that live. A slot is the job's word, and a job could name anybody's pid in it: who has really
    /// joined has the slice mapped. So has this process, which holds nothing.
    pub fn living(&self, snapshot: &Snapshot) -> Vec<Process> {
        processes(snapshot)
            .filter(|process| process.pid != std::process::id())
            .filter(|process| process.is_alive() && has_mapped(process.pid, &self.slots))
            .collect()
    }

    pub fn remove(self) -> Result<(), SliceError> {
        remove(&self.folder)
    }
}

fn mode(compute: Compute) -> Mode {
    match compute.mode {
        ComputeMode::Fair => Mode::Fair,
        ComputeMode::Strict => Mode::Strict,
        ComputeMode::None => Mode::None,
    }
}

/// Compute weight and cap, in thousandths; a cap of 0 is none.
fn weight_and_cap(grant: &Grant, compute: Compute) -> (u16, u16) {
    let weight = compute.share.unwrap_or(grant.share).thousandths();
    match compute.mode {
        ComputeMode::Strict => (weight, weight),
        ComputeMode::Fair | ComputeMode::None => (weight, 0),
    }
}

/// Processes of this PID namespace that hold a slot, dead or alive.
fn processes(snapshot: &Snapshot) -> impl Iterator<Item = Process> {
    let here = process::here();
    let owners = snapshot
        .processes()
        .into_iter()
        .map(|process| process.owner);
    let ours = owners.filter(move |owner| owner.pid_namespace == here);
    ours.map(|owner| Process {
        pid: owner.pid,
        start_time: owner.start_time,
    })
}

/// What the slice will be remembered by on one of its GPUs.
pub fn traces(snapshot: &Snapshot, gpu: usize) -> Traces {
    let usage = snapshot.usage(gpu);
    let last_denied = (usage.denied > 0).then_some(Bytes::new(usage.last_denied_size));
    Traces {
        peak: Bytes::new(usage.peak),
        denied: usage.denied,
        last_denied,
        mismatch_max: Bytes::ZERO,
    }
}

/// Lets a slice be used by the programs of another user: the account is theirs to write, the limits stay the agent's.
pub fn hand_over(folder: &Path, user: &Identity) -> Result<(), SliceError> {
    let slots = folder.join("slots");
    let give = || -> io::Result<()> {
        lchown(&slots, Some(user.uid), Some(user.gid))?;
        // To be passed through by who knows the names in it.
        fs::set_permissions(folder, fs::Permissions::from_mode(0o711))
    };
    give().map_err(|source| SliceError::HandOver {
        path: folder.to_owned(),
        uid: user.uid,
        source,
    })
}

/// Lets programs of any user use a slice of root's: they get at the account alone, where it is mounted for them, for nobody else passes
/// through the folder. Only root's own may be writable by everybody.
pub fn open_to_everybody(folder: &Path) -> Result<(), SliceError> {
    let slots = folder.join("slots");
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    fs::set_permissions(&slots, fs::Permissions::from_mode(0o666)).map_err(|source| {
        SliceError::HandOver {
            path: folder.to_owned(),
            uid: u32::MAX,
            source,
        }
    })
}

/// Removes a slice folder, also one that is not there.
pub fn remove(folder: &Path) -> Result<(), SliceError> {
    // Its two files are nearly always all that is in it.
    let removed = ["control", "slots"]
        .iter()
        .try_for_each(|name| fs::remove_file(folder.join(name)))
        .and_then(|()| fs::remove_dir(folder));
    match removed.or_else(|_| fs::remove_dir_all(folder)) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(SliceError::Remove {
            path: folder.to_owned(),
            source,
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_a_job_names_in_its_slots_holds_nothing_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let spec = SliceSpec {
            id: "3".into(),
            generation: 1,
            gpus: vec![GpuSpec::default()],
            ..SliceSpec::default()
        };
        let folder = folder.path().join("3");
        Control::create(&folder, &spec).unwrap();
        let held = HeldSlice::adopt(&folder).unwrap();
        let _slot = held.reader.slice().join().unwrap();
        let snapshot = held.read().unwrap();
        let me = Process::this().unwrap();
        assert!(processes(&snapshot).any(|process| process == me));
        assert!(has_mapped(me.pid, &held.slots), "as every agent has");
        assert_eq!(held.living(&snapshot), []);
    }
}
