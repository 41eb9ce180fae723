//! The history: a ring on disk of what the node, GPUs, jobs, queues, users and projects held and used.
//!
//! ```text
//! controller ── one sample a second ──► timeline ──► downsamplers 1 s, 10 s, 60 s ──► encoders ──► segments on disk
//! ```
//! The controller never waits for the disk: a sample that the thread cannot take at once is lost. A level stores a value
//! only where it differs from the one before, so that a node on which nothing changes writes nothing. A crash loses the
//! samples since the last write; a file that is damaged, cut or foreign gives no points.
//!
//! May use: `host`.
//! Used by: `controller`, `http`, `daemon`.

mod downsample;
mod figures;
mod records;
mod segments;
#[cfg(test)]
mod tests;
mod timeline;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use divvy_api::sync::lock;
use divvy_api::v1::history::STEPS;
use divvy_core::Bytes;

use downsample::{Downsampler, Row};
pub use figures::{Figure, Series, Values};
use records::{Encoder, Reader};
use segments::Segments;
use timeline::Timeline;

use crate::host::disk::Disk;

/// Most series in one sample. Those at its end have no history, and the log names the first of them once. So there is
/// room for 8 GPUs, hundreds of jobs and their users.
pub const MOST_SERIES: usize = 1000;

/// Longest name of a subject, in bytes: twice as long as any name that a submission may have (`LONGEST_NAME`).
const MOST_NAME: usize = 512;

/// Most bytes on disk of each step. With 8 GPUs and 64 jobs the whole ring takes about a fifth of them.
const MOST_BYTES: [u64; STEPS.len()] = [8 << 20, 16 << 20, 40 << 20];

/// Interval of writes while jobs hold GPUs: a crash loses that much. A shorter one would wear disks, a longer one would
/// leave a gap in each curve.
const FLUSH: Duration = Duration::from_secs(10);

/// The same while none does, so that disks may sleep.
const IDLE_FLUSH: Duration = Duration::from_secs(60);

/// Bytes in memory that are written without delay. So the memory has a bound; half would write more often while much
/// happens.
const FLUSH_BYTES: usize = 256 << 10;

/// With less room on the disk the history stops: the journal comes first, and reports a full disk much later.
const LEAST_FREE: Bytes = Bytes::mib(64);

/// Interval of attempts while the disk takes no writes.
const RETRY: Duration = Duration::from_secs(60);

/// Interval of removals of deleted jobs from the files, which rewrites them. So a deleted job may be seen ten minutes
/// longer.
const FORGET: Duration = Duration::from_secs(600);

/// Commands that may wait for the thread. A sample comes each second, so a minute of a hung disk fits; then samples are
/// dropped.
const BACKLOG: usize = 64;

/// How long a stop waits for the last write. A write takes milliseconds; longer would delay a restart for a disk that
/// hangs.
const STOP: Duration = Duration::from_secs(2);

/// What the controller saw at one time.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Seconds since 1970.
    pub at: i64,
    /// For how many seconds the values stay, if no other sample comes.
    pub lasts: i64,
    /// Jobs hold GPUs.
    pub is_busy: bool,
    /// The most important first.
    pub series: Vec<(String, Values)>,
}

enum Command {
    Record(Sample),
    /// Jobs that the journal deletes.
    Forget(Vec<String>),
    Stop(SyncSender<()>),
}

/// The ring of one step.
struct Level {
    downsampler: Downsampler,
    encoder: Encoder,
    segments: Segments,
    /// Encoded and not written.
    pending: Vec<u8>,
}

/// All of the ring.
struct Ring {
    disk: Disk,
    timeline: Timeline,
    levels: Vec<Level>,
    /// The disk takes no writes since then, which the log has reported.
    failed_at: Option<Instant>,
    is_crowded: bool,
    flushed_at: Instant,
    is_busy: bool,
    forgotten: BTreeSet<String>,
    forgot_at: Instant,
}

/// One subject over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Seconds.
    pub step: u32,
    /// Time of the first value: seconds since 1970, a multiple of the step.
    pub from: i64,
    /// Figures with a value in the window, each with one value a step.
    pub figures: Vec<(&'static str, Vec<Option<f64>>)>,
}

/// The history of a daemon: its thread, and its readers.
pub struct History {
    ring: Arc<Mutex<Ring>>,
    commands: SyncSender<Command>,
}

impl History {
    /// Opens the ring in this folder, and starts its thread. A folder that cannot be used is reported by the log; the
    /// history then has no points.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(folder: &Path) -> io::Result<Self> {
        let ring = Arc::new(Mutex::new(Ring::open(folder)));
        let (commands, received) = sync_channel(BACKLOG);
        let shared = Arc::clone(&ring);
        std::thread::Builder::new()
            .name("history".to_owned())
            .spawn(move || run(&shared, &received))?;
        Ok(Self { ring, commands })
    }

    /// Adds a sample; loses it while the thread is behind.
    pub fn record(&self, sample: Sample) {
        let _ = self.commands.try_send(Command::Record(sample));
    }

    /// Removes the series of jobs, by number, from the files some minutes later.
    pub fn forget(&self, jobs: Vec<String>) {
        let _ = self.commands.try_send(Command::Forget(jobs));
    }

    /// Writes what is in memory.
    pub fn stop(&self) {
        let (done, wait) = sync_channel(1);
        if self.commands.try_send(Command::Stop(done)).is_ok() {
            let _ = wait.recv_timeout(STOP);
        }
    }

    /// The points of a subject from `since` (the whole ring if `None`) to `now`, in seconds since 1970. `step`: one of
    /// [`STEPS`], or the finest that reaches back to `since`.
    pub fn read(&self, subject: &str, since: Option<i64>, step: Option<u32>, now: i64) -> Window {
        read(&self.ring, subject, since, step, now)
    }
}

fn read(
    ring: &Mutex<Ring>,
    subject: &str,
    since: Option<i64>,
    step: Option<u32>,
    now: i64,
) -> Window {
    let (step, from, to) = window(since, step, now);
    let (files, tail) = {
        let mut ring = lock(ring);
        ring.advance(now);
        ring.files(step)
    };
    let mut reader = Reader::new(subject, i64::from(step), (from, to));
    for file in &files {
        segments::read(file, step, &mut |payload| reader.take(payload));
        if Some(file) != files.last() {
            reader.end_of_segment();
        }
    }
    reader.take(&tail);
    Window {
        step,
        from,
        figures: reader.figures(),
    }
}

/// The step of an answer, its first point, and the end of its last one.
fn window(since: Option<i64>, step: Option<u32>, now: i64) -> (u32, i64, i64) {
    let reaches =
        |(_, kept): &(u32, u32)| since.is_none_or(|since| now - since <= i64::from(*kept));
    let known = |wanted: u32| STEPS.into_iter().find(|(step, _)| *step == wanted);
    let coarsest = STEPS[STEPS.len() - 1];
    let (step, kept) = (step.and_then(known))
        .or_else(|| STEPS.into_iter().find(reaches))
        .unwrap_or(coarsest);
    let (length, oldest) = (i64::from(step), now.saturating_sub(i64::from(kept)));
    let from = since.map_or(oldest, |since| since.clamp(oldest, now));
    let to = now.div_euclid(length) * length;
    let from = (from.div_euclid(length) * length).min(to);
    (step, from, to)
}

fn run(ring: &Mutex<Ring>, commands: &Receiver<Command>) {
    loop {
        let patience = lock(ring).time_to_flush();
        match commands.recv_timeout(patience) {
            Ok(Command::Record(sample)) => lock(ring).record(sample),
            Ok(Command::Forget(jobs)) => lock(ring).forgotten.extend(jobs),
            Ok(Command::Stop(done)) => {
                lock(ring).close();
                let _ = done.try_send(());
                return;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return lock(ring).close(),
        }
        let mut ring = lock(ring);
        if ring.time_to_flush().is_zero() {
            ring.flush();
        }
        ring.forget_jobs();
    }
}

impl Ring {
    fn open(folder: &Path) -> Self {
        let level = |(&(step, kept), most): (&(u32, u32), u64)| Level {
            downsampler: Downsampler::new(i64::from(step)),
            encoder: Encoder::default(),
            segments: Segments::open(folder, step, kept, most),
            pending: Vec::new(),
        };
        let mut ring = Self {
            disk: Disk::of(folder.parent().unwrap_or(folder)),
            timeline: Timeline::default(),
            levels: STEPS.iter().zip(MOST_BYTES).map(level).collect(),
            failed_at: None,
            is_crowded: false,
            flushed_at: Instant::now(),
            is_busy: false,
            forgotten: BTreeSet::new(),
            forgot_at: Instant::now(),
        };
        if let Err(error) = segments::create(folder) {
            ring.report_failure(&error);
        }
        ring
    }

    fn record(&mut self, sample: Sample) {
        let Sample {
            at,
            lasts,
            is_busy,
            mut series,
        } = sample;
        series.retain(|(name, _)| name.len() <= MOST_NAME);
        if let Some((first, _)) = series.get(MOST_SERIES)
            && !std::mem::replace(&mut self.is_crowded, true)
        {
            tracing::warn!(
                series = series.len(),
                %first,
                "the history has room for {MOST_SERIES} series; it leaves out those from this one on"
            );
        }
        series.truncate(MOST_SERIES);
        self.is_busy = is_busy;
        let series: Series = series
            .into_iter()
            .map(|(name, values)| (name.into(), values))
            .collect();
        let levels = &mut self.levels;
        self.timeline
            .take(at, lasts, series, |from, seconds, series| {
                add(levels, from, seconds, series);
            });
    }

    /// Adds the values that have lasted until then.
    fn advance(&mut self, now: i64) {
        let levels = &mut self.levels;
        self.timeline.advance(now, |from, seconds, series| {
            add(levels, from, seconds, series);
        });
        for level in levels {
            if let Some(row) = level.downsampler.finish_before(now) {
                level.encoder.row(&row, &mut level.pending);
            }
        }
    }

    /// The files of a step, and what is not in them yet.
    fn files(&self, step: u32) -> (Vec<PathBuf>, Vec<u8>) {
        let level = self.levels.iter().find(|level| level.segments.step == step);
        let Some(level) = level else {
            return Default::default();
        };
        let mut tail = level.pending.clone();
        level.encoder.tail(&mut tail);
        (level.segments.paths(), tail)
    }

    fn time_to_flush(&self) -> Duration {
        let pending = self.levels.iter().map(|level| level.pending.len()).sum();
        let interval = match (self.failed_at.is_some(), pending, self.is_busy) {
            (true, _, _) => RETRY,
            (false, FLUSH_BYTES.., _) => Duration::ZERO,
            (false, _, true) => FLUSH,
            (false, 1.., false) => IDLE_FLUSH,
            (false, 0, false) => FORGET,
        };
        interval.saturating_sub(self.flushed_at.elapsed())
    }

    /// Writes what is in memory. If the disk does not take it, it is lost, and the history goes on later.
    fn flush(&mut self) {
        self.flushed_at = Instant::now();
        let now = self.timeline.now();
        // Where statvfs(3) does not answer, a write shows whether there is room.
        let free = self.disk.free_space().map(|room| room.bytes).ok();
        if let Some(free) = free.filter(|free| *free < LEAST_FREE) {
            let [free, needed] = free.human_beside(LEAST_FREE);
            let why = format!("{free} is free, but {needed} is needed");
            return self.report_failure(&io::Error::new(io::ErrorKind::StorageFull, why));
        }
        for level in &mut self.levels {
            if let Err(error) = level.flush(now, self.is_busy) {
                return self.report_failure(&error);
            }
        }
        if self.failed_at.take().is_some() {
            tracing::info!("the history goes on");
        }
    }

    fn report_failure(&mut self, error: &io::Error) {
        let folder = self
            .levels
            .first()
            .map(|level| level.segments.folder.display());
        if self.failed_at.replace(Instant::now()).is_none() {
            let folder = folder.map(|folder| folder.to_string());
            tracing::warn!(folder, %error, "cannot write the history; the daemon goes on without it");
        }
        for level in &mut self.levels {
            level.restart();
        }
    }

    /// Writes everything, also the steps that have only begun.
    fn close(&mut self) {
        for level in &mut self.levels {
            if let Some(row) = level.downsampler.finish() {
                level.encoder.row(&row, &mut level.pending);
            }
            level.encoder.through(&mut level.pending);
        }
        self.flush();
    }

    /// Rewrites the files without deleted jobs.
    fn forget_jobs(&mut self) {
        if self.forgotten.is_empty() || self.forgot_at.elapsed() < FORGET {
            return;
        }
        self.forgot_at = Instant::now();
        let jobs = std::mem::take(&mut self.forgotten);
        self.flush();
        for level in &mut self.levels {
            level.restart();
            level.segments.rewrite(&|subject| !is_of(subject, &jobs));
        }
    }
}

impl Level {
    fn flush(&mut self, now: i64, is_busy: bool) -> io::Result<()> {
        // Without a change nothing is written, unless jobs hold GPUs: then a crash must not lose more than that interval.
        if is_busy || !self.pending.is_empty() {
            self.encoder.through(&mut self.pending);
        }
        if self.pending.is_empty() {
            return Ok(());
        }
        self.segments.append(&self.pending, now)?;
        self.pending.clear();
        if self.segments.is_full(now) {
            // The values of this segment last until the next one begins.
            self.encoder.through(&mut self.pending);
            let ended = self.segments.append(&self.pending, now);
            self.restart();
            ended?;
        }
        Ok(())
    }

    /// The next row begins a segment, and has all values.
    fn restart(&mut self) {
        self.pending.clear();
        self.segments.end();
        self.encoder = Encoder::default();
    }
}

fn add(levels: &mut [Level], from: i64, seconds: i64, series: &Series) {
    for level in levels {
        let Level {
            downsampler,
            encoder,
            pending,
            ..
        } = level;
        downsampler.add(from, seconds, series, |row: &Row| encoder.row(row, pending));
    }
}

/// Whether a subject is one of these jobs or a slice of one.
fn is_of(subject: &str, jobs: &BTreeSet<String>) -> bool {
    let (kind, name) = subject.split_once(':').unwrap_or_default();
    let job = name.split('/').next().unwrap_or_default();
    matches!(kind, "job" | "slice") && jobs.contains(job)
}
