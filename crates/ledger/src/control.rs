//! The control file of a slice: the daemon creates it and changes limits through it while jobs run.
//!
//! One writer at a time, the daemon. Several fields change together under a seqlock; a limit alone is one atomic word,
//! so a job needs no retry to read it. Owner and mode of the files decide which users may write them: root creates a
//! slice for another user, and then that user can only read `control`.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::{fmt, io};

use crate::compute::WrittenGate;
use crate::kept;
use crate::layout::{self, CONTROL_NAME, ControlFile, ControlGpu, GPUS, ID_BYTES, SLOTS_NAME};
use crate::map::{self, Map, OpenError, word};

/// The limits of a slice, as the daemon decided them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SliceSpec {
    /// At most 64 bytes, without NUL.
    pub id: String,
    /// Tells this slice from earlier ones in the same folder.
    pub generation: u64,
    pub mode: SharingMode,
    pub numbering: Numbering,
    /// The slice grants nothing more. The file then has a limit of 0 for each GPU, whatever `gpus` says.
    pub closed: bool,
    /// 1 to 16; the position is the `gpu` argument everywhere in this crate.
    pub gpus: Vec<GpuSpec>,
}

/// One GPU of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GpuSpec {
    pub uuid: [u8; 16],
    /// Bytes that all processes of the slice together may use.
    pub limit: u64,
    /// Bytes that a context costs each process, as measured by the agent.
    pub overhead: u64,
    /// Share of compute time relative to other slices, in thousandths.
    pub weight: u16,
    /// Most compute time in thousandths; 0 means no cap.
    pub cap: u16,
    /// Bytes that the driver holds for the slice beyond what its processes were charged, as the agent sees them.
    pub unseen: u64,
    /// The limit that the slice gets back when its parked job is woken; 0 unless it is parked. `limit` is 0 then.
    pub parked_limit: u64,
}

/// How compute time is shared between slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SharingMode {
    #[default]
    Fair,
    Strict,
    None,
}

impl SharingMode {
    fn to_word(self) -> u32 {
        match self {
            Self::Fair => 0,
            Self::Strict => 1,
            Self::None => 2,
        }
    }
    fn from_word(word: u32) -> Option<Self> {
        [Self::Fair, Self::Strict, Self::None]
            .into_iter()
            .find(|mode| mode.to_word() == word)
    }
}

/// What the numbers in `CUDA_VISIBLE_DEVICES` of the slice's programs count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Numbering {
    /// The GPUs that the driver finds: those of the machine, or those that an engine does not hide.
    #[default]
    Driver,
    /// The GPUs of the slice, from 0, by their position in it.
    Slice,
}

impl Numbering {
    fn to_word(self) -> u64 {
        match self {
            Self::Driver => 0,
            Self::Slice => 1,
        }
    }

    /// A word that only a later version writes is taken for its oldest meaning.
    fn from_word(word: u64) -> Self {
        match word {
            1 => Self::Slice,
            _ => Self::Driver,
        }
    }
}

/// Why a slice could not be set up.
#[derive(Debug)]
pub enum CreateError {
    /// The specification itself cannot be written down.
    Invalid(&'static str),
    /// A file operation failed.
    Open(OpenError),
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(why) => write!(f, "cannot create the slice: {why}"),
            Self::Open(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CreateError {}

impl From<OpenError> for CreateError {
    fn from(error: OpenError) -> Self {
        Self::Open(error)
    }
}

/// A field of `control`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    Header,
    Id,
    /// The mode, or the number of GPUs.
    Mode,
    Numbering,
    Uuid,
    Limit,
    /// The context overhead.
    Overhead,
    Weight,
    Unseen,
    ParkedLimit,
    /// The grant of launches.
    Gate,
    /// When the agent last said that the grant counts.
    Keeper,
    /// How much work to keep ahead.
    Ahead,
    Unused,
}

impl Field {
    /// Whether its words are bytes of memory.
    pub fn is_bytes(self) -> bool {
        matches!(
            self,
            Self::Limit | Self::Overhead | Self::Unseen | Self::ParkedLimit
        )
    }
}

impl fmt::Display for Field {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Header => "header",
            Self::Id => "id",
            Self::Mode => "mode or number of GPUs",
            Self::Numbering => "numbering of GPUs",
            Self::Uuid => "UUID",
            Self::Limit => "limit",
            Self::Overhead => "context overhead",
            Self::Weight => "share of compute time",
            Self::Unseen => "unaccounted memory",
            Self::ParkedLimit => "limit of a parked job",
            Self::Gate => "launch gate",
            Self::Keeper => "time of the launch gate",
            Self::Ahead => "work ahead at the launch gate",
            Self::Unused => "unused bytes",
        })
    }
}

/// A word of `control` that said something else than the agent had written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forgery {
    /// The field that the word belongs to.
    pub field: Field,
    /// Position of the GPU, where it is a field of one.
    pub gpu: Option<usize>,
    /// The eight bytes as they were, and as they are to be.
    pub found: u64,
    pub expected: u64,
}

impl Forgery {
    fn at(offset: usize, found: u64, expected: u64) -> Self {
        use std::mem::offset_of;
        let gpus = offset_of!(ControlFile, gpus);
        let (field, gpu) = match offset.checked_sub(gpus) {
            None if offset < offset_of!(ControlFile, id) => (Field::Header, None),
            None if offset < offset_of!(ControlFile, sequence) => (Field::Id, None),
            None if offset == offset_of!(ControlFile, mode) => (Field::Mode, None),
            None if offset == offset_of!(ControlFile, numbering) => (Field::Numbering, None),
            Some(within) if within < GPUS * size_of::<ControlGpu>() => {
                let field = match within % size_of::<ControlGpu>() {
                    0 | 8 => Field::Uuid,
                    at if at == offset_of!(ControlGpu, limit) => Field::Limit,
                    at if at == offset_of!(ControlGpu, overhead) => Field::Overhead,
                    at if at == offset_of!(ControlGpu, weight) => Field::Weight,
                    at if at == offset_of!(ControlGpu, unseen) => Field::Unseen,
                    at if at == offset_of!(ControlGpu, parked_limit) => Field::ParkedLimit,
                    _ => Field::Unused,
                };
                (field, Some(within / size_of::<ControlGpu>()))
            }
            _ => (Field::Unused, None),
        };
        Self {
            field,
            gpu,
            found,
            expected,
        }
    }
}

/// The writable control file of a slice.
///
/// A user's own agent and jobs have one owner, so a job can cut this file short, and a store behind a file's end is
/// SIGBUS. Every change therefore looks at the length first, and leaves a damaged file alone: readers refuse it.
pub struct Control {
    file: Map<ControlFile>,
    descriptor: File,
    pub(crate) gate: Mutex<WrittenGate>,
}

impl Control {
    /// Creates the slice in `dir`, with mode 0700 if missing. `control` appears last and complete, so a process that
    /// can open it finds a whole slice; leftovers of an interrupted attempt are replaced.
    ///
    /// # Errors
    /// The specification does not fit the layout; `control` exists already; the file system refuses or is full (all
    /// space is taken now, so that a full tmpfs fails here and not in a job).
    pub fn create(dir: &Path, spec: &SliceSpec) -> Result<Self, CreateError> {
        check(spec)?;
        let at = |name| dir.join(name);
        let fail = |name: &str, operation| {
            let path = dir.join(name);
            move |error| map::failed(&path, operation, error)
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(|error| map::failed(dir, "create", error))?;
        if fs::symlink_metadata(at(CONTROL_NAME)).is_ok() {
            return Err(fail(CONTROL_NAME, "create")(io::ErrorKind::AlreadyExists.into()).into());
        }
        write_new(
            &at(SLOTS_NAME),
            0o600,
            map::SLOTS.size,
            &header(map::SLOTS, spec.generation),
        )
        .map_err(fail(SLOTS_NAME, "create"))?;
        Self::lay(dir, spec)
    }

    /// Writes the file beside its place and renames it, so that a process that can open it finds a whole one.
    fn lay(dir: &Path, spec: &SliceSpec) -> Result<Self, CreateError> {
        let draft = dir.join("control.new");
        let path = dir.join(CONTROL_NAME);
        write_new(&draft, 0o644, map::CONTROL.size, &control_bytes(spec))
            .map_err(|error| map::failed(&draft, "create", error))?;
        fs::rename(&draft, &path).map_err(|error| map::failed(&path, "create", error))?;
        Ok(Self::open_writable(dir)?)
    }

    /// Opens the control file of an existing slice for writing, as the agent does after a restart.
    ///
    /// # Errors
    /// As [`crate::Slice::open`].
    pub fn open_writable(dir: &Path) -> Result<Self, OpenError> {
        let path = kept::file_in(dir, CONTROL_NAME);
        let (descriptor, _) = map::open(&path, map::CONTROL, true)?;
        let file = Map::<ControlFile>::new(&descriptor, true)
            .map_err(|error| map::failed(&path, "map", error))?;
        // A writer that was killed half way leaves an odd sequence behind.
        if !file.sequence.load(SeqCst).is_multiple_of(2) {
            file.sequence.fetch_add(1, SeqCst);
        }
        Ok(Self {
            file,
            descriptor,
            gate: Mutex::default(),
        })
    }

    /// Changes a limit while jobs run. Below what is in use, nothing breaks: new reservations are refused until enough
    /// is given back. A `gpu` the slice does not have is ignored. Not for a closed slice: it would open it again.
    pub fn set_limit(&self, gpu: usize, bytes: u64) {
        self.write(gpu, |gpu| gpu.limit.store(bytes, SeqCst));
    }

    /// Says which limit a parked job gets back, for its views; 0 for a job that is not parked.
    pub fn set_parked_limit(&self, gpu: usize, bytes: u64) {
        self.write(gpu, |gpu| gpu.parked_limit.store(bytes, SeqCst));
    }

    /// Changes what a context is taken to cost. Processes that have been charged keep their charge.
    pub fn set_overhead(&self, gpu: usize, bytes: u64) {
        self.write(gpu, |gpu| gpu.overhead.store(bytes, SeqCst));
    }

    /// Changes compute weight and cap (thousandths; cap 0 for none) together.
    pub fn set_compute(&self, gpu: usize, weight: u16, cap: u16) {
        self.write(gpu, |gpu| {
            gpu.weight.store(weight, SeqCst);
            gpu.cap.store(cap, SeqCst);
        });
    }

    /// Changes how the slice takes part in the division of compute time.
    pub fn set_mode(&self, mode: SharingMode) {
        if self.is_whole() {
            self.file.mode.store(mode.to_word(), SeqCst);
        }
    }

    /// Counts bytes against the limit that the driver holds for the slice's processes and that none of them was charged:
    /// what no hook sees. Only the agent can tell, and only here, where no job can write.
    pub fn set_unseen(&self, gpu: usize, bytes: u64) {
        self.write(gpu, |gpu| gpu.unseen.store(bytes, SeqCst));
    }

    /// Compares the file with what the agent has decided, and writes back every word that a job has written over. Answers with the
    /// first of them. The heartbeat is not looked at, which is written anew all the time, nor are the words of the gate, which
    /// [`Control::grant`] looks at. A file that was cut short stays so, for readers refuse it.
    pub fn mend(&self, spec: &SliceSpec) -> Option<Forgery> {
        use std::mem::offset_of;
        let file = self.whole()?;
        let heartbeat = offset_of!(ControlFile, heartbeat);
        let sequence = offset_of!(ControlFile, sequence);
        let expected = control_bytes(spec);
        let words = (0..offset_of!(ControlFile, grant)).step_by(size_of::<u64>());
        let written = words.filter(|at| *at != heartbeat && *at != sequence);
        let forged: Vec<(usize, u64, u64)> = written
            .map(|at| (at, self.word(at).load(SeqCst), word(&expected, at)))
            .filter(|(_, found, expected)| found != expected)
            .collect();
        if !file.sequence.load(SeqCst).is_multiple_of(2) {
            file.sequence.fetch_add(1, SeqCst);
        }
        let (at, found, expected) = *forged.first()?;
        file.sequence.fetch_add(1, SeqCst);
        for (at, _, expected) in &forged {
            self.word(*at).store(*expected, SeqCst);
        }
        file.sequence.fetch_add(1, SeqCst);
        Some(Forgery::at(at, found, expected))
    }

    /// The eight bytes of the file at an offset that is a multiple of eight.
    fn word(&self, offset: usize) -> &AtomicU64 {
        let words = size_of::<ControlFile>() / size_of::<AtomicU64>();
        let first = std::ptr::from_ref(&*self.file).cast::<AtomicU64>();
        // SAFETY: the file is mapped whole, it is atomics all the way down (`Shared`) and aligned for more than eight bytes.
        let all = unsafe { std::slice::from_raw_parts(first, words) };
        &all[offset / size_of::<AtomicU64>()]
    }

    /// Whether this is the file that lies in the slice's folder. `false` also where none does.
    pub fn lies_in(&self, dir: &Path) -> bool {
        let lies = map::FileIdentity::at(&kept::file_in(dir, CONTROL_NAME));
        let is = self.descriptor.metadata();
        matches!((lies, is), (Ok(lies), Ok(is)) if lies.is_same_file(&is))
    }

    /// Replaces the control file by a new one of the same name. The slots stay.
    ///
    /// # Errors
    /// As [`Control::create`].
    pub fn replace(dir: &Path, spec: &SliceSpec) -> Result<Self, CreateError> {
        check(spec)?;
        Self::lay(dir, spec)
    }

    /// Closes the slice: from now on no process reserves memory in it, neither one that has it mapped nor one that opens
    /// its files later, by a name or by a mount.
    ///
    /// A reservation publishes its bytes before it reads the limit, and both accesses are sequentially consistent. So a
    /// ledger that is read after this call shows every reservation that was granted
    /// ([`crate::Slice::has_reservations`]). The limit itself becomes 0, so that a limiter of an earlier version obeys.
    /// `ended` also says that files without a name belong to a released slice.
    pub fn close(&self) {
        let Some(file) = self.whole() else { return };
        file.sequence.fetch_add(1, SeqCst);
        for gpu in &file.gpus {
            gpu.limit.store(0, SeqCst);
        }
        file.ended.store(1, SeqCst);
        file.sequence.fetch_add(1, SeqCst);
    }

    /// Tells the jobs that the agent is there. `now`: [`crate::boot_time_ns`].
    pub fn heartbeat(&self, now: u64) {
        if self.is_whole() {
            self.file.heartbeat.store(now, Relaxed);
        }
    }

    /// The file, unless a job has cut it short.
    pub(crate) fn whole(&self) -> Option<&ControlFile> {
        self.is_whole().then(|| &*self.file)
    }

    fn is_whole(&self) -> bool {
        let expected = map::CONTROL.size as u64;
        self.descriptor
            .metadata()
            .is_ok_and(|status| status.len() >= expected)
    }

    fn write(&self, gpu: usize, change: impl FnOnce(&ControlGpu)) {
        let Some(gpu) = self.file.gpus.get(gpu) else {
            return;
        };
        if !self.is_whole() {
            return;
        }
        self.file.sequence.fetch_add(1, SeqCst);
        change(gpu);
        self.file.sequence.fetch_add(1, SeqCst);
    }
}

fn check(spec: &SliceSpec) -> Result<(), CreateError> {
    if spec.id.len() > ID_BYTES || spec.id.contains('\0') {
        return Err(CreateError::Invalid(
            "its id is longer than 64 bytes or contains NUL",
        ));
    }
    if spec.gpus.is_empty() || spec.gpus.len() > GPUS {
        return Err(CreateError::Invalid("it must have 1 to 16 GPUs"));
    }
    let twice = |(at, gpu): (usize, &GpuSpec)| {
        spec.gpus
            .iter()
            .take(at)
            .any(|other| other.uuid == gpu.uuid)
    };
    if spec.gpus.iter().enumerate().any(twice) {
        return Err(CreateError::Invalid("it contains one GPU twice"));
    }
    Ok(())
}

/// Creates a file of `size` bytes that begins with `start`, with all its space allocated.
fn write_new(path: &Path, mode: u32, size: usize, start: &[u8]) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    file.set_permissions(PermissionsExt::from_mode(mode))?;
    allocate(&file, size)?;
    file.write_all_at(start, 0)
}

fn allocate(file: &File, size: usize) -> io::Result<()> {
    // SAFETY: a valid descriptor, no memory involved.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, size as libc::off_t) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::EOPNOTSUPP) => file.set_len(size as u64),
        error => Err(error),
    }
}

fn put(bytes: &mut [u8], offset: usize, value: &[u8]) {
    bytes[offset..offset + value.len()].copy_from_slice(value);
}

fn header(kind: map::Kind, generation: u64) -> Vec<u8> {
    use std::mem::offset_of;
    let mut bytes = vec![0; size_of::<layout::Header>()];
    put(
        &mut bytes,
        offset_of!(layout::Header, magic),
        &kind.magic.to_ne_bytes(),
    );
    put(
        &mut bytes,
        offset_of!(layout::Header, version),
        &layout::VERSION.to_ne_bytes(),
    );
    put(
        &mut bytes,
        offset_of!(layout::Header, size),
        &(kind.size as u64).to_ne_bytes(),
    );
    put(
        &mut bytes,
        offset_of!(layout::Header, generation),
        &generation.to_ne_bytes(),
    );
    bytes
}

fn control_bytes(spec: &SliceSpec) -> Vec<u8> {
    use std::mem::offset_of;
    let mut bytes = header(map::CONTROL, spec.generation);
    bytes.resize(layout::CONTROL_SIZE, 0);
    put(&mut bytes, offset_of!(ControlFile, id), spec.id.as_bytes());
    put(
        &mut bytes,
        offset_of!(ControlFile, mode),
        &spec.mode.to_word().to_ne_bytes(),
    );
    put(
        &mut bytes,
        offset_of!(ControlFile, gpu_count),
        &(spec.gpus.len() as u32).to_ne_bytes(),
    );
    put(
        &mut bytes,
        offset_of!(ControlFile, numbering),
        &spec.numbering.to_word().to_ne_bytes(),
    );
    put(
        &mut bytes,
        offset_of!(ControlFile, ended),
        &u64::from(spec.closed).to_ne_bytes(),
    );
    for (index, gpu) in spec.gpus.iter().enumerate() {
        let at = offset_of!(ControlFile, gpus) + index * size_of::<ControlGpu>();
        put(&mut bytes, at + offset_of!(ControlGpu, uuid), &gpu.uuid);
        put(
            &mut bytes,
            at + offset_of!(ControlGpu, limit),
            &if spec.closed { 0 } else { gpu.limit }.to_ne_bytes(),
        );
        put(
            &mut bytes,
            at + offset_of!(ControlGpu, overhead),
            &gpu.overhead.to_ne_bytes(),
        );
        put(
            &mut bytes,
            at + offset_of!(ControlGpu, weight),
            &gpu.weight.to_ne_bytes(),
        );
        put(
            &mut bytes,
            at + offset_of!(ControlGpu, cap),
            &gpu.cap.to_ne_bytes(),
        );
        put(
            &mut bytes,
            at + offset_of!(ControlGpu, unseen),
            &gpu.unseen.to_ne_bytes(),
        );
        put(
            &mut bytes,
            at + offset_of!(ControlGpu, parked_limit),
            &gpu.parked_limit.to_ne_bytes(),
        );
    }
    bytes
}

/// Decodes the bytes of a control file; the error is the name of the invalid field.
pub(crate) fn parse(bytes: &[u8]) -> Result<SliceSpec, &'static str> {
    use std::mem::offset_of;
    let id = bytes
        .get(offset_of!(ControlFile, id)..)
        .and_then(|rest| rest.get(..ID_BYTES))
        .unwrap_or_default();
    let id = id.split(|byte| *byte == 0).next().unwrap_or_default();
    let id = std::str::from_utf8(id).map_err(|_| "id")?.to_owned();
    let mode =
        SharingMode::from_word(word(bytes, offset_of!(ControlFile, mode)) as u32).ok_or("mode")?;
    let count = word(bytes, offset_of!(ControlFile, gpu_count)) as u32 as usize;
    if count == 0 || count > GPUS {
        return Err("GPU count");
    }
    let gpu = |index: usize| {
        let at = offset_of!(ControlFile, gpus) + index * size_of::<ControlGpu>();
        let field = |offset| word(bytes, at + offset);
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&field(offset_of!(ControlGpu, uuid)).to_ne_bytes());
        uuid[8..].copy_from_slice(&field(offset_of!(ControlGpu, uuid) + 8).to_ne_bytes());
        GpuSpec {
            uuid,
            limit: field(offset_of!(ControlGpu, limit)),
            overhead: field(offset_of!(ControlGpu, overhead)),
            weight: field(offset_of!(ControlGpu, weight)) as u16,
            cap: field(offset_of!(ControlGpu, cap)) as u16,
            unseen: field(offset_of!(ControlGpu, unseen)),
            parked_limit: field(offset_of!(ControlGpu, parked_limit)),
        }
    };
    let generation = word(bytes, offset_of!(layout::Header, generation));
    let numbering = Numbering::from_word(word(bytes, offset_of!(ControlFile, numbering)));
    Ok(SliceSpec {
        id,
        generation,
        mode,
        numbering,
        closed: word(bytes, offset_of!(ControlFile, ended)) != 0,
        gpus: (0..count).map(gpu).collect(),
    })
}

/// The bytes that a sequence number guards, and the number. The kernel copies a page in no order that a processor would keep
/// (arm64), so one copy may hold a new number and an old limit: two equal copies do not.
fn spec_bytes(bytes: &[u8; layout::CONTROL_SIZE]) -> [&[u8]; 2] {
    use std::mem::offset_of;
    let heartbeat = offset_of!(ControlFile, heartbeat);
    [
        &bytes[..heartbeat],
        &bytes[heartbeat + 8..offset_of!(ControlFile, grant)],
    ]
}

/// Reads an open control file, in any state, as one consistent whole, and the daemon's last heartbeat.
pub(crate) fn read_from(path: &Path, file: &File) -> Result<(SliceSpec, u64), OpenError> {
    use std::mem::offset_of;
    let look = || {
        let mut bytes = [0; layout::CONTROL_SIZE];
        file.read_exact_at(&mut bytes, 0)
            .map(|()| bytes)
            .map_err(|error| map::failed(path, "read", error))
    };
    let mut bytes = look()?;
    // A writer holds the sequence odd for some ten nanoseconds; one that died there has left every word whole.
    for _ in 0..1000 {
        let before = std::mem::replace(&mut bytes, look()?);
        let sequence = word(&bytes, offset_of!(ControlFile, sequence));
        if sequence.is_multiple_of(2) && spec_bytes(&before) == spec_bytes(&bytes) {
            break;
        }
    }
    map::generation(path, map::CONTROL, &bytes, layout::CONTROL_SIZE as u64)?;
    let spec = parse(&bytes).map_err(|field| OpenError::Garbled {
        path: path.into(),
        field,
    })?;
    Ok((spec, word(&bytes, offset_of!(ControlFile, heartbeat))))
}
