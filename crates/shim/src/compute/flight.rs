//! Work in flight: this process's event marks in its streams, and the measurements under way. Kept only while slices
//! take turns.
//!
//! A mark is an event recorded behind some work; when the driver says that it has passed, the work is done. Marks are set
//! only in a launch, into the stream that it goes to, for at no other time is a stream known to be alive. What stands behind
//! the last mark is little, and is done when the ledger's reckoning says so.

use std::collections::VecDeque;

use divvy_driver::sys::cuda::{CUcontext, CUevent, CUresult, CUstream};

use crate::charge::driver_cache::relaxed;
use crate::charge::stream::Flavour;
use crate::compute::forecast::{Forecast, Work};
use crate::route::function::driver;

/// So much work is let onto the GPU ahead, in nanoseconds, unless the daemon says less: what is on it when a turn ends,
/// the next one waits for. Half of `HALF_QUANTUM`: twice as much would let a turn run half again over its end. Less would leave the GPU idle while a
/// busy host launches.
pub const WINDOW: u64 = 10_000_000;
/// A mark stands behind this part of the work that is let onto the GPU ahead: an eighth is late by an eighth at most, and
/// twice as many marks would double the driver calls.
pub const SPACING: u64 = 8;
/// A stream in which nothing was launched at the gate for so long may hold work that was never counted.
const FORGETFUL: u64 = 20_000_000;
/// Measurements that may be under way. Eight marks fill the window of one stream, so this is enough for eight streams;
/// further ones go unmeasured, and the next samples count.
const SAMPLES: usize = 64;

/// Where work goes: the stream, in its context, on a GPU of the slice.
#[derive(Clone, Copy)]
pub struct Lane {
    pub context: CUcontext,
    pub stream: CUstream,
    pub name: StreamId,
    /// The per-thread flavour of the functions was called.
    pub per_thread: bool,
    pub gpu: usize,
}

/// The identity of a stream in a context, for every flavour of a function.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct StreamId {
    stream: usize,
    /// The thread whose default stream it is; 0 for streams that all threads mean.
    thread: usize,
}

impl StreamId {
    /// The calling thread's word for a stream.
    pub fn of(stream: CUstream, flavour: &Flavour) -> Self {
        /// `CU_STREAM_LEGACY` of `cuda.h`.
        const LEGACY_STREAM: usize = 1;
        match flavour.identity(stream) {
            Some(0 | LEGACY_STREAM) => Self {
                stream: 0,
                thread: 0,
            },
            Some(stream) => Self { stream, thread: 0 },
            None => Self {
                stream: 0,
                // SAFETY: it only returns the caller's thread id.
                thread: unsafe { libc::pthread_self() } as usize,
            },
        }
    }
}

impl Lane {
    fn is(&self, other: &Lane) -> bool {
        self.context == other.context && self.name == other.name
    }

    /// The program made the stream: it is no context's default.
    pub fn is_made(&self) -> bool {
        self.name.stream != 0
    }

    fn record(&self, event: CUevent) -> bool {
        let record = if self.per_thread {
            driver::cuEventRecord_ptsz.get()
        } else {
            driver::cuEventRecord.get()
        };
        let Some(record) = record else { return false };
        // SAFETY: an event of ours, of the stream's own context, which is current; the stream is the one being launched into.
        relaxed(|| unsafe { record(event, self.stream) }) == CUresult::SUCCESS
    }
}

struct WorkMarker {
    event: CUevent,
    cost: u64,
    set_at: u64,
}

struct Track {
    lane: Lane,
    marks: VecDeque<WorkMarker>,
    /// Work behind the last mark.
    behind: u64,
    used_at: u64,
}

struct Sample {
    context: CUcontext,
    start: CUevent,
    end: CUevent,
    work: Work,
}

#[derive(Default)]
pub struct InFlightWork {
    tracks: Vec<Track>,
    samples: Vec<Sample>,
    spare: Vec<(CUcontext, CUevent)>,
    /// GPUs that work went to.
    gpus: Vec<usize>,
}

// SAFETY: handles of the driver, which may be used from any thread; they are passed to it and not followed.
unsafe impl Send for InFlightWork {}

impl InFlightWork {
    /// Begins a launch: what is on the GPU already gets a mark if it was never counted.
    pub fn enter(&mut self, lane: Lane, now: u64) {
        let event = match self.tracks.iter_mut().find(|track| track.lane.is(&lane)) {
            Some(track) if now.saturating_sub(track.used_at) < FORGETFUL => {
                track.used_at = now;
                return;
            }
            _ => self.event(lane.context),
        };
        let track = self.track(lane, now);
        if let Some(event) = event
            && lane.record(event)
        {
            track.marks.push_back(WorkMarker {
                event,
                cost: WINDOW,
                set_at: now,
            });
        }
    }

    fn track(&mut self, lane: Lane, now: u64) -> &mut Track {
        let at = match self.tracks.iter().position(|track| track.lane.is(&lane)) {
            Some(at) => at,
            None => {
                if !self.gpus.contains(&lane.gpu) {
                    self.gpus.push(lane.gpu);
                }
                let (marks, behind, used_at) = (VecDeque::new(), 0, now);
                self.tracks.push(Track {
                    lane,
                    marks,
                    behind,
                    used_at,
                });
                self.tracks.len() - 1
            }
        };
        let track = &mut self.tracks[at];
        track.used_at = now;
        track
    }

    /// Whether so much more may go to a GPU now: little is ahead by what is known, and no mark is old. What no mark stands
    /// behind cannot be waited for. `window`: what may be ahead, in nanoseconds.
    pub fn has_room(&self, gpu: usize, cost: u64, window: u64, now: u64) -> bool {
        let on_gpu = || self.tracks.iter().filter(|track| track.lane.gpu == gpu);
        let ahead: u64 = on_gpu()
            .map(|track| track.behind + track.marks.iter().map(|mark| mark.cost).sum::<u64>())
            .sum();
        let is_old = |mark: &WorkMarker| now.saturating_sub(mark.set_at) > WINDOW;
        let any_old = on_gpu().any(|track| track.marks.front().is_some_and(is_old));
        !any_old && ahead.saturating_add(cost) <= window
            || on_gpu().all(|track| track.marks.is_empty())
    }

    /// Sets out to measure a launch.
    pub fn begin_sample(&mut self, lane: Lane, work: Work) -> Option<(CUevent, Work)> {
        if self.samples.len() >= SAMPLES {
            return None;
        }
        let start = self.event(lane.context)?;
        if lane.record(start) {
            return Some((start, work));
        }
        self.spare.push((lane.context, start));
        None
    }

    /// A launch has been made. Sets a mark if one is due, or if it is measured.
    pub fn launched(
        &mut self,
        lane: Lane,
        cost: u64,
        sample: Option<(CUevent, Work)>,
        window: u64,
        now: u64,
    ) {
        self.track(lane, now).behind += cost;
        if let Some((start, work)) = sample {
            match self.event(lane.context).filter(|end| lane.record(*end)) {
                Some(end) => {
                    let context = lane.context;
                    self.samples.push(Sample {
                        context,
                        start,
                        end,
                        work,
                    });
                }
                None => self.spare.push((lane.context, start)),
            }
            self.mark(lane, now);
        } else if self.track(lane, now).behind >= window / SPACING {
            self.mark(lane, now);
        }
    }

    /// Sets a mark behind everything in the lane that has none.
    pub fn mark(&mut self, lane: Lane, now: u64) {
        if self.track(lane, now).behind == 0 {
            return;
        }
        if let Some(event) = self.event(lane.context) {
            if lane.record(event) {
                let track = self.track(lane, now);
                let cost = std::mem::take(&mut track.behind);
                track.marks.push_back(WorkMarker {
                    event,
                    cost,
                    set_at: now,
                });
            } else {
                self.spare.push((lane.context, event));
            }
        }
    }

    /// Looks which marks have passed and which measurements are there. A stream with no mark that was not used for long is
    /// forgotten, as programs make and destroy any number of them: the next launch into it marks it again.
    pub fn collect_finished(&mut self, forecast: &Forecast, now: u64) {
        let Self {
            tracks,
            samples,
            spare,
            ..
        } = self;
        for track in tracks.iter_mut() {
            while let Some(mark) = track.marks.pop_front_if(|mark| has_passed(mark.event)) {
                spare.push((track.lane.context, mark.event));
            }
        }
        let is_forgotten = |track: &Track| {
            track.marks.is_empty() && now.saturating_sub(track.used_at) >= FORGETFUL
        };
        tracks.retain(|track| !is_forgotten(track));
        samples.retain(|sample| {
            let passed = has_passed(sample.end);
            if passed {
                if let Some(nanos) = between(sample.start, sample.end) {
                    forecast.learn(sample.work, nanos);
                }
                spare.extend([sample.start, sample.end].map(|event| (sample.context, event)));
            }
            !passed
        });
    }

    /// Everything that was launched before has been waited for: in one stream, or in all.
    pub fn synchronised(&mut self, of: impl Fn(&Lane) -> bool) {
        for track in self.tracks.iter_mut().filter(|track| of(&track.lane)) {
            track.behind = 0;
        }
    }

    /// Whether nothing of this process's is left on a GPU, as far as marks tell.
    pub fn is_empty(&self, gpu: usize) -> bool {
        self.tracks
            .iter()
            .filter(|track| track.lane.gpu == gpu)
            .all(|track| track.marks.is_empty())
    }

    /// Whether there is nothing on a GPU that a mark does not stand behind, either.
    pub fn is_done(&self, gpu: usize) -> bool {
        let nothing_behind = |track: &Track| track.lane.gpu != gpu || track.behind == 0;
        self.is_empty(gpu) && self.tracks.iter().all(nothing_behind)
    }

    /// GPUs that work went to so far.
    pub fn gpus(&self) -> &[usize] {
        &self.gpus
    }

    /// Contexts are gone, and their events with them.
    pub fn forget(&mut self, is_gone: impl Fn(usize) -> bool) {
        let lives = |context: CUcontext| !is_gone(context as usize);
        self.tracks.retain(|track| lives(track.lane.context));
        self.samples.retain(|sample| lives(sample.context));
        self.spare.retain(|(context, _)| lives(*context));
    }

    /// An event of the current context.
    fn event(&mut self, context: CUcontext) -> Option<CUevent> {
        if let Some(at) = self.spare.iter().position(|(of, _)| *of == context) {
            return Some(self.spare.swap_remove(at).1);
        }
        let mut event = std::ptr::null_mut();
        let create = driver::cuEventCreate.get()?;
        // SAFETY: a place for the answer; the caller's context is current.
        let result = relaxed(|| unsafe { create(&mut event, 0) });
        (result == CUresult::SUCCESS).then_some(event)
    }
}

/// An event that the driver does not know any more has passed too.
fn has_passed(event: CUevent) -> bool {
    let Some(query) = driver::cuEventQuery.get() else {
        return true;
    };
    // SAFETY: an event of ours, in a context that was not seen to end.
    relaxed(|| unsafe { query(event) }) != CUresult::NOT_READY
}

/// Device time from one event to another that has passed, in nanoseconds.
fn between(start: CUevent, end: CUevent) -> Option<u64> {
    let mut milliseconds = 0.0;
    let elapsed = driver::cuEventElapsedTime.get()?;
    // SAFETY: two events of ours, and a place for the answer.
    let result = relaxed(|| unsafe { elapsed(&mut milliseconds, start, end) });
    (result == CUresult::SUCCESS && milliseconds >= 0.0)
        .then_some((f64::from(milliseconds) * 1e6) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charge::stream::{LEGACY, PER_THREAD};

    /// The driver is not there, so nothing is marked.
    fn lane(stream: usize, flavour: &Flavour) -> Lane {
        let stream = stream as CUstream;
        Lane {
            context: std::ptr::dangling_mut::<u64>().cast(),
            stream,
            name: StreamId::of(stream, flavour),
            per_thread: false,
            gpu: 0,
        }
    }

    #[test]
    fn streams_that_are_not_used_any_more_are_forgotten_with_what_was_put_there() {
        let (mut flight, forecast) = (InFlightWork::default(), Forecast::default());
        for stream in 0..1000 {
            let lane = lane(0x1000 + stream, &LEGACY);
            flight.track(lane, stream as u64).behind += WINDOW / SPACING / 2;
        }
        flight.collect_finished(&forecast, FORGETFUL);
        assert_eq!(flight.tracks.len(), 999);
        flight.collect_finished(&forecast, 999 + FORGETFUL);
        assert!(flight.tracks.is_empty() && flight.is_done(0));
        assert!(flight.has_room(0, WINDOW, WINDOW, 1000 + FORGETFUL));
        // The slice is told that the work is done all the same.
        assert_eq!(flight.gpus(), [0]);
    }

    #[test]
    fn a_default_stream_of_each_thread_is_another_one_and_a_made_one_is_the_same() {
        let is = |one: usize, other: usize, of: &Flavour, and: &Flavour| {
            lane(one, of).is(&lane(other, and))
        };
        assert!(is(0x1000, 0x1000, &LEGACY, &PER_THREAD));
        assert!(is(0, 2, &PER_THREAD, &LEGACY));
        assert!(is(0, 1, &LEGACY, &PER_THREAD));
        assert!(!is(0, 0, &LEGACY, &PER_THREAD));
        let names = || [StreamId::of(NULL, &PER_THREAD), StreamId::of(NULL, &LEGACY)];
        let elsewhere = std::thread::scope(|scope| scope.spawn(names).join());
        let [own, all] = elsewhere.expect("it does not panic");
        assert!(own != names()[0] && all == names()[1]);
    }

    const NULL: CUstream = std::ptr::null_mut();
}
