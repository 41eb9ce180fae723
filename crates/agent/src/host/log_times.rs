//! Time marks of a job's log: how long the log was at which time, so that its output since a time can be found.
//!
//! A log has no times of its own, as programs write to it themselves. The supervisor looks at its length every second
//! anyway, and writes a line `milliseconds since 1970, bytes` into a file beside it: at most every ten seconds, and only
//! when there was output. Recent marks stay; the older they are, the fewer are kept.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::host::clock::{Instant, now};

/// Least time between two marks. So `--since` is exact to ten seconds; oftener would write more marks than output.
pub const MARK_INTERVAL: Duration = Duration::from_secs(10);

/// Most marks of a log: about 25 KiB. More would be read for each `--since`; the coarser old ones suffice.
const MOST: usize = 1024;

/// The part of its age by which a mark may be missed. So two minutes of an hour; half as coarse would need twice the
/// marks.
const COARSENESS: i64 = 32;

/// More than [`MOST`] marks take.
const MAX_BYTES: u64 = 64 << 10;

/// Writes the marks of one log.
#[derive(Debug)]
pub struct LogTimes {
    path: PathBuf,
    next: Instant,
    /// The length at the last mark.
    marked: u64,
    /// Marks in the file; unknown until this process writes the first one.
    count: Option<usize>,
}

impl LogTimes {
    /// The marks in this file, which need not exist yet.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            // A job that is over before needs no marks and pays for none.
            next: Instant::now() + MARK_INTERVAL,
            marked: 0,
            count: None,
        }
    }

    /// Marks the present length if a mark is due. A mark that cannot be written is left out.
    pub fn mark_if_due(&mut self, length: impl FnOnce() -> io::Result<u64>) {
        let at = Instant::now();
        if at < self.next {
            return;
        }
        self.next = at + MARK_INTERVAL;
        if let Ok(length) = length()
            && length != self.marked
        {
            self.marked = length;
            let _ = self.write(now().as_millisecond(), length);
        }
    }

    fn write(&mut self, time: i64, length: u64) -> io::Result<()> {
        let count = match self.count {
            Some(count) => count,
            None => marks(&read(&self.path)?).count(),
        };
        self.count = Some(count + 1);
        if count < MOST {
            let mut file = File::options().append(true).create(true).open(&self.path)?;
            // A line that a killed process left unfinished ends here, and counts as none.
            return file.write_all(format!("\n{time} {length}\n").as_bytes());
        }
        let text = read(&self.path)?;
        let kept = thinned(&marks(&text).collect::<Vec<_>>(), time);
        let mut lines: Vec<String> = kept
            .iter()
            .map(|(time, length)| format!("{time} {length}\n"))
            .collect();
        lines.push(format!("{time} {length}\n"));
        self.count = Some(lines.len());
        let new = self.path.with_extension("new");
        std::fs::write(&new, lines.concat())?;
        std::fs::rename(&new, &self.path)
    }
}

/// The marks without those that the others make up for: between two marks lies no more than a thirty-second of their age.
/// For a log of ten years these are less than [`MOST`].
fn thinned(marks: &[(i64, u64)], now: i64) -> Vec<(i64, u64)> {
    let mut kept: Vec<(i64, u64)> = Vec::new();
    for (place, mark) in marks.iter().enumerate().rev() {
        let older = place.checked_sub(1).and_then(|older| marks.get(older));
        let is_needed = match (kept.last(), older) {
            (Some((newer, _)), Some((older, _))) => {
                newer.saturating_sub(*older) > now.saturating_sub(*older) / COARSENESS
            }
            (None, _) | (_, None) => true,
        };
        if is_needed {
            kept.push(*mark);
        }
    }
    // Only a clock that jumps leaves as many.
    if kept.len() >= MOST {
        kept.truncate(MOST / 2);
    }
    kept.reverse();
    kept
}

fn read(path: &Path) -> io::Result<String> {
    match File::open(path) {
        Ok(file) => read_marks(&file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

/// The text of a file of marks, as far as it may be long.
///
/// # Errors
/// When it cannot be read.
pub fn read_marks(file: &File) -> io::Result<String> {
    let mut text = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Times and lengths, oldest first.
fn marks(text: &str) -> impl Iterator<Item = (i64, u64)> {
    text.split_inclusive('\n').filter_map(|line| {
        let (time, length) = line.strip_suffix('\n')?.split_once(' ')?;
        Some((time.parse().ok()?, length.parse().ok()?))
    })
}

/// The length of the log at the last mark that is not after this time, in milliseconds since 1970; 0 before the first
/// mark. `None` without marks.
pub fn length_at(text: &str, time: i64) -> Option<u64> {
    let mut last = None;
    for (at, length) in marks(text) {
        // A clock that was set back: the earlier mark is the safe one.
        if at > time {
            return Some(last.unwrap_or(0));
        }
        last = Some(length);
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_since_a_time_begins_at_the_last_mark_before_it() {
        let text = "100 5\n200 9\n\n300 30\n40";
        for (time, length) in [
            (99, 0),
            (100, 5),
            (199, 5),
            (200, 9),
            (300, 30),
            (i64::MAX, 30),
        ] {
            assert_eq!(length_at(text, time), Some(length), "{time}");
        }
        for none in ["", "x y\n", "\n\n", "12"] {
            assert_eq!(length_at(none, 5), None, "{none:?}");
        }
        assert_eq!(
            length_at("100 5\n50 9\n200 12\n", 60),
            Some(0),
            "the clock was set back"
        );
    }

    #[test]
    fn recent_marks_stay_old_ones_thin_out_and_their_number_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log.times");
        let mut times = LogTimes::new(path.clone());
        for at in 0..10_000_i64 {
            times.write(at * 10_000, at.unsigned_abs() * 7).unwrap();
            // Another process goes on, after one that was killed while it wrote.
            if at == 5000 {
                let mut file = File::options().append(true).open(&path).unwrap();
                file.write_all(b"5000").unwrap();
                times = LogTimes::new(path.clone());
            }
        }
        let text = read(&path).unwrap();
        assert!(text.len() < 32 << 10, "{}", text.len());
        let all: Vec<_> = marks(&text).collect();
        assert!(all.len() <= MOST && all.is_sorted(), "{}", all.len());
        let recent = all.windows(2).rev().take(30);
        assert!(recent.clone().all(|pair| pair[1].0 - pair[0].0 == 10_000));
        // So that for every time an offset is found that is not later, and little earlier by its age.
        for at in (0..10_000_i64).step_by(7) {
            let length = length_at(&text, at * 10_000).unwrap();
            let age = (9999 - at).unsigned_abs();
            assert!(length <= at.unsigned_abs() * 7, "{at}");
            assert!(
                length + 7 * (age / 31 + 1) >= at.unsigned_abs() * 7,
                "{at}: {length}"
            );
        }
    }

    #[test]
    fn marks_of_ten_years_are_still_few_and_a_clock_that_jumps_makes_no_more() {
        let mut marks = Vec::new();
        // Every ten seconds of the last days, and as many as were kept of the years before.
        let now = 10 * 365 * 86_400_000_i64;
        let mut time = 0;
        while time < now {
            marks.push((time, 1));
            time += ((now - time) / 400).max(10_000);
        }
        let kept = thinned(&marks, now);
        assert!(
            marks.len() > 3000 && kept.len() < MOST,
            "{} of {}",
            kept.len(),
            marks.len()
        );
        let jumps: Vec<_> = (0..5000)
            .map(|at| (i64::MAX / 5000 * (at % 50) * (at % 7), 1))
            .collect();
        assert!(thinned(&jumps, 5).len() < MOST);
    }

    #[test]
    fn a_job_that_is_over_soon_writes_no_marks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log.times");
        let mut times = LogTimes::new(path.clone());
        times.mark_if_due(|| Ok(5));
        assert!(!path.exists());
        times.next = Instant::now();
        times.mark_if_due(|| Ok(5));
        times.next = Instant::now();
        times.mark_if_due(|| Ok(5));
        assert_eq!(
            marks(&read(&path).unwrap()).count(),
            1,
            "nothing new was written"
        );
        assert!(
            length_at(&read(&path).unwrap(), now().as_millisecond())
                .is_some_and(|length| length == 5)
        );
    }
}
