//! A job's slice in the ledger: the one conversion between core's grants and the ledger's words.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use divvy_api::sync::lock;
use divvy_core::{Bytes, Compute, ComputeMode, Grant};
use divvy_ledger::{
    Control, CreateError, Denial, Forgery, GpuSpec, Grant as Gate, Listed, Numbering, OpenError,
    ProcessIdentity, Reader, SharingMode, Slice, SliceSpec, Snapshot, kept,
};

use super::watched_jobs::{SliceLedger, WatchedJob};
use crate::host::clock::boot_ns;
use crate::host::process::evidence::{KnownFile, has_mapped};
use crate::host::process::{self, Process};
use crate::host::run_as::Identity;
use crate::model::job::AllocationStats;

/// A slice's ledger, read under what the daemon has granted: the slice's own control file may be its job's to write.
#[derive(Debug)]
pub struct GrantedSlice {
    reader: Reader,
    granted: Mutex<SliceSpec>,
}

impl GrantedSlice {
    /// Opens the slice in `folder`, which was granted this.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn open(folder: &Path, granted: SliceSpec) -> Result<Self, OpenError> {
        Ok(Self {
            reader: Reader::open(folder)?,
            granted: Mutex::new(granted),
        })
    }

    /// What the daemon has granted, and written into the slice's control file.
    pub fn granted(&self) -> SliceSpec {
        self.lock().clone()
    }

    /// The ledger's present content, under what was granted.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub fn read(&self) -> Result<Snapshot, OpenError> {
        Ok(self.reader.read()?.granted(self.granted()))
    }

    pub fn slice(&self) -> &Slice {
        self.reader.slice()
    }

    fn change(&self, change: impl FnOnce(&mut SliceSpec)) {
        change(&mut self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, SliceSpec> {
        lock(&self.granted)
    }
}

/// What a job has done to its slice's control file, before the daemon put it right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tampering {
    /// It wrote over it.
    Forged(Forgery),
    /// It put another file in its place.
    Replaced,
}

impl std::fmt::Display for Tampering {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self::Forged(forgery) = self else {
            return out.write_str("another file had replaced it");
        };
        write!(out, "{}", forgery.field)?;
        if let Some(gpu) = forgery.gpu {
            write!(out, " of its GPU {gpu}")?;
        }
        let [found, expected] = [forgery.found, forgery.expected];
        if forgery.field.is_bytes() {
            let [found, expected] = [found, expected].map(|bytes| Bytes::new(bytes).human());
            write!(out, ": {found} instead of {expected}")
        } else {
            write!(out, ": {found:#x} instead of {expected:#x}")
        }
    }
}

/// A slice that the daemon holds open.
pub struct HeldSlice {
    folder: PathBuf,
    control: Control,
    reader: Arc<GrantedSlice>,
    /// Its slots file, which every process that has joined has mapped.
    slots: KnownFile,
}

/// Why a slice cannot be made or adopted.
#[derive(Debug, thiserror::Error)]
pub enum SliceError {
    #[error(transparent)]
    Create(#[from] CreateError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("cannot change the owner of the slice {path} to uid {uid}")]
    HandOver {
        path: PathBuf,
        uid: u32,
        source: io::Error,
    },
    #[error("cannot remove the slice folder {path}")]
    Remove { path: PathBuf, source: io::Error },
}

/// What is cut for one job.
pub struct SliceConfig<'a> {
    pub job: &'a str,
    /// Tells this slice from an earlier one of the same job.
    pub generation: u64,
    pub compute: Compute,
    pub numbering: Numbering,
    /// The slice grants nothing more: its job is being released.
    pub closed: bool,
    pub grants: &'a [Grant],
    /// By position in `grants`.
    pub overheads: &'a [Bytes],
}

impl SliceConfig<'_> {
    fn spec(&self) -> SliceSpec {
        let gpu = |(grant, overhead): (&Grant, &Bytes)| {
            let (weight, cap) = weight_and_cap(grant, self.compute);
            GpuSpec {
                uuid: grant.gpu.to_bytes(),
                limit: grant.memory.get(),
                overhead: overhead.get(),
                weight,
                cap,
                unseen: 0,
                parked_limit: 0,
            }
        };
        SliceSpec {
            id: self.job.to_owned(),
            generation: self.generation,
            mode: mode(self.compute),
            numbering: self.numbering,
            closed: self.closed,
            gpus: self.grants.iter().zip(self.overheads).map(gpu).collect(),
        }
    }
}

impl HeldSlice {
    /// Makes the slice anew; what an attempt cut short has left there is replaced.
    pub fn create(folder: &Path, cut: &SliceConfig<'_>) -> Result<Box<Self>, SliceError> {
        remove(folder)?;
        let spec = cut.spec();
        let control = Control::create(folder, &spec)?;
        Ok(Self::with(folder, control, spec)?)
    }

    /// Takes over a slice that an earlier daemon made, with what the journal says of it: its job may have written into
    /// it since. What that daemon had the limit count besides is in no journal, and is believed as far as the job loses
    /// by it alone. So is the numbering, which fits the variables that the job started with. Where the names are gone,
    /// as after a logout, the supervisor's descriptors lead to the files.
    pub fn adopt(
        folder: &Path,
        cut: &SliceConfig<'_>,
        supervisor: Option<Process>,
    ) -> Result<Box<Self>, SliceError> {
        let mut spec = cut.spec();
        let supervisor = supervisor.filter(|process| process.is_alive());
        let found = supervisor.map(|process| Slice::find_folder(folder, process.pid, &spec.id));
        let folder = found.as_deref().unwrap_or(folder);
        let found = Slice::open(folder).map(|slice| slice.spec().clone());
        if let Ok(found) = &found {
            spec.numbering = found.numbering;
        }
        for (gpu, found) in spec
            .gpus
            .iter_mut()
            .zip(found.iter().flat_map(|found| &found.gpus))
        {
            gpu.unseen = found.unseen.min(gpu.limit);
        }
        let control = match Control::open_writable(folder) {
            Ok(control) => control,
            Err(error @ OpenError::Missing { .. }) => return Err(error.into()),
            Err(_) => Control::replace(folder, &spec)?,
        };
        control.mend(&spec);
        Ok(Self::with(folder, control, spec)?)
    }

    /// Opens a slice of a run without a daemon, of which nothing but its files tells what it was granted.
    pub fn open(folder: &Path) -> Result<Box<Self>, SliceError> {
        let control = Control::open_writable(folder)?;
        let spec = Slice::open(folder)?.spec().clone();
        Ok(Self::with(folder, control, spec)?)
    }

    fn with(folder: &Path, control: Control, spec: SliceSpec) -> Result<Box<Self>, OpenError> {
        let reader = GrantedSlice::open(folder, spec)?;
        Ok(Box::new(Self {
            folder: folder.to_owned(),
            control,
            slots: KnownFile::of(reader.slice().slots_path()),
            reader: Arc::new(reader),
        }))
    }

    /// Names the supervisor of its job, which keeps the files open: their names may go at a logout.
    pub fn set_supervisor(&self, pid: u32) {
        self.reader.slice().set_supervisor(pid);
    }

    /// Puts the control file right where its job has changed it, and says what it had done. A file that is missing or
    /// was cut short stays so: its job gets no memory by it.
    ///
    /// # Errors
    /// When another file lies in its place and the right one cannot be put there.
    pub fn repair(&mut self) -> Result<Option<Tampering>, SliceError> {
        let spec = self.reader.granted();
        let forged = self.control.mend(&spec).map(Tampering::Forged);
        if self.control.lies_in(&self.folder) || !self.folder.join("control").exists() {
            return Ok(forged);
        }
        self.control = Control::replace(&self.folder, &spec)?;
        Ok(Some(Tampering::Replaced))
    }

    /// Whether both of its files lie there.
    pub fn exists(folder: &Path) -> bool {
        ["control", "slots"]
            .iter()
            .all(|name| folder.join(name).is_file())
    }

    /// Everything the ledger says now.
    pub fn read(&self) -> Result<Snapshot, OpenError> {
        self.reader.read()
    }

    /// Its ledger, for readers in other threads.
    pub fn ledger(&self) -> Arc<GrantedSlice> {
        Arc::clone(&self.reader)
    }

    /// Tells the slice's processes that the daemon lives.
    pub fn heartbeat(&self) {
        self.control.heartbeat(boot_ns());
    }

    /// Gives its processes these limits and weights from now on; by position in its GPUs. `parked`: the limits that a
    /// parked job gets back; none for another job.
    pub fn resize(&self, limits: &[Grant], compute: Compute, parked: &[Bytes]) {
        let returns = |gpu: usize| parked.get(gpu).map_or(0, |limit| limit.get());
        self.reader.change(|spec| {
            spec.mode = mode(compute);
            for (at, (gpu, limit)) in spec.gpus.iter_mut().zip(limits).enumerate() {
                (gpu.limit, gpu.parked_limit) = (limit.memory.get(), returns(at));
                (gpu.weight, gpu.cap) = weight_and_cap(limit, compute);
            }
        });
        self.control.set_mode(mode(compute));
        let is_closed = self.reader.granted().closed;
        for (gpu, limit) in limits.iter().enumerate() {
            if !is_closed {
                self.control.set_limit(gpu, limit.memory.get());
            }
            self.control.set_parked_limit(gpu, returns(gpu));
            let (weight, cap) = weight_and_cap(limit, compute);
            self.control.set_compute(gpu, weight, cap);
        }
    }

    /// Opens the gate of a job whose daemon died after the wake, and before it opened the gate.
    pub fn open_parked_gate(&self) {
        if self.control.granted() == Gate::Parked {
            self.control.grant(Gate::Open, boot_ns());
        }
    }

    /// Forgets the calls that woke a parked job before. Without the file there is none.
    pub fn clear_wake_request(&self) {
        let _ = self.reader.slice().clear_wake_request();
    }

    /// Measures the peak that a job has after its resize. Without the file there is nothing to measure.
    pub fn restart_peaks(&self) {
        let _ = self.reader.slice().restart_peaks();
    }

    /// Closes the slice: its processes get nothing more, whether they have joined or join later.
    pub fn close(&self) {
        self.reader.change(|spec| spec.closed = true);
        self.control.close();
    }

    /// Whether a process has reserved bytes, in any PID namespace. Such a process may be about to call the driver.
    pub fn has_reservations(&self) -> bool {
        let found = self.read();
        found.is_ok_and(|ledger| {
            self.reader
                .slice()
                .has_reservations(&ledger)
                .unwrap_or(false)
        })
    }

    /// What its refused processes wrote down, and how many records there were.
    pub fn denials(&self) -> Result<(Vec<Denial>, u64), OpenError> {
        self.reader.slice().denials()
    }

    /// What the limit of one of its GPUs counts besides what is charged.
    pub fn set_unaccounted(&self, gpu: usize, bytes: Bytes) {
        self.reader.change(|spec| {
            if let Some(gpu) = spec.gpus.get_mut(gpu) {
                gpu.unseen = bytes.get();
            }
        });
        self.control.set_unseen(gpu, bytes.get());
    }

    /// The slice as observations know it, with the known processes at the root of its job's process tree.
    pub fn to_watched_job(&self, roots: Vec<Process>) -> WatchedJob {
        WatchedJob {
            ledger: Some(SliceLedger {
                slice: Arc::clone(&self.reader),
                slots: self.slots.clone(),
            }),
            roots,
            mounts: Vec::new(),
            cgroup: None,
            pods: Vec::new(),
            walls: Vec::new(),
        }
    }

    /// Gives back what dead processes held once the driver has released it. It reads every slot, so it is only called
    /// when there is a dead process.
    pub fn reap(&self, listed: &dyn Fn(&ProcessIdentity) -> Listed) -> Result<(), OpenError> {
        let now = boot_ns();
        self.reader.slice().reap(now, listed).map(drop)
    }

    /// Live processes of the slice. A slot is the job's own statement, and a job could name any pid in it, so a process
    /// counts only if it has the slice mapped. This process has it mapped too, but holds nothing.
    pub fn live_processes(&self, snapshot: &Snapshot) -> Vec<Process> {
        processes(snapshot)
            .filter(|process| process.pid != std::process::id())
            .filter(|process| process.is_alive() && has_mapped(process.pid, &self.slots))
            .collect()
    }

    pub fn remove(self) -> Result<(), SliceError> {
        self.control.close();
        remove(&self.folder)
    }
}

fn mode(compute: Compute) -> SharingMode {
    match compute.mode {
        ComputeMode::Fair => SharingMode::Fair,
        ComputeMode::Strict => SharingMode::Strict,
        ComputeMode::None => SharingMode::None,
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
    let here = process::own_pid_namespace();
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
pub fn allocation_stats(snapshot: &Snapshot, gpu: usize) -> AllocationStats {
    let usage = snapshot.usage(gpu);
    let last_denied = (usage.denied > 0).then_some(Bytes::new(usage.last_denied_size));
    AllocationStats {
        peak: Bytes::new(usage.peak),
        denied: usage.denied,
        last_denied,
        mismatch_max: Bytes::ZERO,
    }
}

/// Lets a slice be used by the programs of another user: the ledger is theirs to write, the limits stay the daemon's.
pub fn chown_to_user(folder: &Path, user: &Identity) -> Result<(), SliceError> {
    let slots = folder.join("slots");
    let give = || -> io::Result<()> {
        lchown(&slots, Some(user.uid), Some(user.gid))?;
        // Passable for processes that know the names in it.
        fs::set_permissions(folder, fs::Permissions::from_mode(0o711))
    };
    give().map_err(|source| SliceError::HandOver {
        path: folder.to_owned(),
        uid: user.uid,
        source,
    })
}

/// Lets programs of any user use a slice of root's. They reach the ledger only through its mount, because other users
/// cannot pass through the folder. Only root's own slices may be world-writable.
pub fn make_world_accessible(folder: &Path) -> Result<(), SliceError> {
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

/// Removes a slice folder, also one that is not there. What still has its files mapped gets nothing more.
pub fn remove(folder: &Path) -> Result<(), SliceError> {
    if kept::is_of_descriptors(folder) {
        return Ok(()); // Its names are gone already.
    }
    if let Ok(control) = Control::open_writable(folder) {
        control.close();
    }
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
        let held = HeldSlice::open(&folder).unwrap();
        let _slot = held.reader.slice().join().unwrap();
        let snapshot = held.read().unwrap();
        let me = Process::this().unwrap();
        assert!(processes(&snapshot).any(|process| process == me));
        assert!(has_mapped(me.pid, &held.slots), "as every agent has");
        assert_eq!(held.live_processes(&snapshot), []);
    }

    fn cut<'a>(grants: &'a [Grant], overheads: &'a [Bytes]) -> SliceConfig<'a> {
        SliceConfig {
            job: "3",
            generation: 1,
            compute: Compute::default(),
            numbering: Numbering::Slice,
            closed: false,
            grants,
            overheads,
        }
    }

    fn grant() -> Grant {
        Grant {
            gpu: divvy_core::GpuUuid::from_bytes([7; 16]),
            index: 0,
            label: "gpu0.1a".into(),
            share: "0.1".parse().unwrap(),
            memory: Bytes::gib(8),
            mig: None,
        }
    }

    /// Writes a word into the control file, as a job of the daemon's own user can.
    fn forge(folder: &Path, at: u64, word: u64) {
        use std::os::unix::fs::FileExt;
        let file = fs::File::options().write(true).open(folder.join("control"));
        file.unwrap().write_all_at(&word.to_ne_bytes(), at).unwrap();
    }

    /// The limit as the slice's processes read it.
    fn limit(folder: &Path) -> Bytes {
        Bytes::new(Slice::open(folder).unwrap().gpus()[0].limit)
    }

    #[test]
    fn what_is_granted_is_the_agents_word_and_no_files() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("3");
        let (grants, overheads) = ([grant()], [Bytes::mib(400)]);
        let mut held = HeldSlice::create(&folder, &cut(&grants, &overheads)).unwrap();
        let granted = held.read().unwrap().spec().clone();
        assert_eq!(held.repair().unwrap(), None);
        for at in [148, 256, 264, 272, 280, 288, 296] {
            forge(&folder, at, u64::from(u32::MAX) * 3);
            let said = held.ledger().read().map(|said| said.spec().clone());
            assert!(
                said.is_err() || said.is_ok_and(|said| said == granted),
                "byte {at}"
            );
            let found = held.repair().unwrap();
            assert!(
                matches!(found, Some(Tampering::Forged(_))),
                "byte {at}: {found:?}"
            );
        }
        forge(&folder, 272, 40 << 30);
        let told = held.repair().unwrap().unwrap().to_string();
        assert_eq!(told, "limit of its GPU 0: 40.0 GiB instead of 8.0 GiB");
        // What the daemon changes itself is no forgery.
        held.resize(
            &[Grant {
                memory: Bytes::gib(2),
                ..grant()
            }],
            Compute::default(),
            &[],
        );
        held.set_unaccounted(0, Bytes::gib(1));
        assert_eq!(held.repair().unwrap(), None);
        assert_eq!(limit(&folder), Bytes::gib(2));
    }

    #[test]
    fn an_adopted_slice_keeps_the_numbering_that_fits_its_jobs_variables() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("3");
        let (grants, overheads) = ([grant()], [Bytes::mib(400)]);
        let now = cut(&grants, &overheads);
        // As a version without numbers made it.
        let earlier = SliceConfig {
            numbering: Numbering::Driver,
            ..cut(&grants, &overheads)
        };
        for (made, found) in [(&earlier, Numbering::Driver), (&now, Numbering::Slice)] {
            drop(HeldSlice::create(&folder, made).unwrap());
            let mut held = HeldSlice::adopt(&folder, &now, None).unwrap();
            assert_eq!(Slice::open(&folder).unwrap().spec().numbering, found);
            assert_eq!(held.repair().unwrap(), None);
        }
    }

    /// The daemon was killed between the close and the release.
    #[test]
    fn a_closed_slice_stays_closed_for_the_daemon_that_adopts_it() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("3");
        let (grants, overheads) = ([grant()], [Bytes::mib(400)]);
        let open = cut(&grants, &overheads);
        let held = HeldSlice::create(&folder, &open).unwrap();
        let slot = held.reader.slice().join().unwrap();
        held.close();
        drop(held);
        let closed = SliceConfig {
            closed: true,
            ..open
        };
        let mut held = HeldSlice::adopt(&folder, &closed, None).unwrap();
        // What a daemon does with each slice that it adopts, and at each observation.
        held.resize(&grants, Compute::default(), &[]);
        assert_eq!(held.repair().unwrap(), None);
        assert_eq!(slot.reserve(0, 1).unwrap_err().limit, 0);
        // The daemon reports its grant as before.
        assert_eq!(held.read().unwrap().usage(0).limit, 8 << 30);
        forge(&folder, 272, 8 << 30);
        forge(&folder, 160, 0);
        assert!(matches!(held.repair().unwrap(), Some(Tampering::Forged(_))));
        assert_eq!(limit(&folder), Bytes::ZERO);
        assert!(!held.has_reservations());
    }

    #[test]
    fn a_control_file_in_the_place_of_the_agents_is_replaced_and_a_missing_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("3");
        let (grants, overheads) = ([grant()], [Bytes::mib(400)]);
        let mut held = HeldSlice::create(&folder, &cut(&grants, &overheads)).unwrap();
        fs::copy(folder.join("control"), folder.join("other")).unwrap();
        fs::rename(folder.join("other"), folder.join("control")).unwrap();
        forge(&folder, 272, 40 << 30);
        assert_eq!(held.repair().unwrap(), Some(Tampering::Replaced));
        assert_eq!(limit(&folder), Bytes::gib(8));
        assert_eq!(held.repair().unwrap(), None);
        fs::remove_file(folder.join("control")).unwrap();
        assert_eq!(held.repair().unwrap(), None);
        assert!(!folder.join("control").exists(), "its job gets no memory");
    }

    #[test]
    fn a_slice_is_adopted_with_what_the_journal_says_whatever_its_job_wrote_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("3");
        let (grants, overheads) = ([grant()], [Bytes::mib(400)]);
        let cut = cut(&grants, &overheads);
        drop(HeldSlice::create(&folder, &cut).unwrap());
        for (at, word) in [(272, 40 << 30), (256, 1), (148, 9), (144, 77), (0, 0)] {
            forge(&folder, at, word);
            let held = HeldSlice::adopt(&folder, &cut, None).unwrap();
            assert_eq!(
                held.read().unwrap().spec().gpus[0].limit,
                8 << 30,
                "byte {at}"
            );
            assert_eq!(limit(&folder), Bytes::gib(8), "byte {at}");
        }
        // What an earlier daemon had counted besides stays, and is no more than the whole.
        forge(&folder, 296, 3 << 30);
        let held = HeldSlice::adopt(&folder, &cut, None).unwrap();
        assert_eq!(held.read().unwrap().usage(0).unseen, 3 << 30);
        forge(&folder, 296, u64::MAX);
        let held = HeldSlice::adopt(&folder, &cut, None).unwrap();
        assert_eq!(held.read().unwrap().usage(0).unseen, 8 << 30);
    }
}
