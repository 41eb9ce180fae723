//! Segments: the files of one step. A segment is only appended to; when it is full, another begins, and the oldest goes.
//!
//! ```text
//! segment := magic[8] step:u32 began:i64 frame…      frame := length:u32 crc32:u32 records[length]
//! ```
//! A frame is one write. A reader takes the frames up to the first that is not whole.

use std::collections::{HashSet, VecDeque};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::records;
use crate::host::clock;

/// The format and its version.
const MAGIC: [u8; 8] = *b"divvyh1\n";

/// Bytes before the first frame, and before the records of each frame, so the format bounds them: magic number, times
/// and counts.
const HEADER: usize = 20;
const FRAME: usize = 8;

/// Parts that a step's time and bytes are divided into: that much of them can go at once. A sixth: fewer parts would
/// lose more at once, and more would be more files.
const PARTS: u64 = 6;

/// A larger file was not written by a daemon.
const MOST_READ: u64 = 64 << 20;

/// Most files of one step. More than twice its parts, so that files of an earlier clock have room.
const MOST_FILES: usize = 16;

/// The files of one step.
pub struct Segments {
    pub folder: PathBuf,
    /// Seconds.
    pub step: u32,
    kept_s: i64,
    most_bytes: u64,
    /// Oldest first.
    files: VecDeque<Segment>,
    /// The last of them is open for writes.
    live: Option<File>,
}

#[derive(Clone, Debug)]
struct Segment {
    number: u32,
    path: PathBuf,
    bytes: u64,
    /// Seconds since 1970.
    began: i64,
}

/// Makes the folder.
pub fn create(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ if folder.is_dir() => Ok(()),
        _ => Err(io::ErrorKind::NotADirectory.into()),
    }
}

impl Segments {
    /// The segments that are there. Files with other names are no segments, and stay.
    pub fn open(folder: &Path, step: u32, kept_s: u32, most_bytes: u64) -> Self {
        let mut files: Vec<Segment> = fs::read_dir(folder)
            .into_iter()
            .flatten()
            .filter_map(|entry| segment(&entry.ok()?, step))
            .collect();
        files.sort_by_key(|segment| segment.number);
        Self {
            folder: folder.to_owned(),
            step,
            kept_s: i64::from(kept_s),
            most_bytes,
            files: files.into(),
            live: None,
        }
    }

    pub fn paths(&self) -> Vec<PathBuf> {
        self.files
            .iter()
            .map(|segment| segment.path.clone())
            .collect()
    }

    /// Writes one frame; into a new segment, where none is open.
    pub fn append(&mut self, records: &[u8], now: i64) -> io::Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        if self.live.is_none() {
            self.begin(now)?;
        }
        let (Some(live), Some(segment)) = (&mut self.live, self.files.back_mut()) else {
            return Ok(());
        };
        let length = u32::try_from(records.len()).map_err(io::Error::other)?;
        let mut frame = Vec::with_capacity(FRAME + records.len());
        frame.extend(length.to_le_bytes());
        frame.extend(crc32fast::hash(records).to_le_bytes());
        frame.extend(records);
        if let Err(error) = live.write_all(&frame) {
            // What was written of it is cut off where that works; otherwise a reader stops there.
            let _ = live.set_len(segment.bytes);
            return Err(error);
        }
        segment.bytes += frame.len() as u64;
        Ok(())
    }

    /// Whether the open segment has its part of the time or of the bytes.
    pub fn is_full(&self, now: i64) -> bool {
        let part = self.kept_s / PARTS as i64;
        self.files.back().is_some_and(|segment| {
            !(0..part).contains(&(now - segment.began)) || segment.bytes >= self.most_bytes / PARTS
        })
    }

    /// Ends the open segment.
    pub fn end(&mut self) {
        self.live = None;
    }

    /// Opens a segment: the last one, if it is whole and not full, or a new one.
    fn begin(&mut self, now: i64) -> io::Result<()> {
        create(&self.folder)?;
        if !self.is_full(now)
            && let Some(segment) = self.files.back_mut()
            && let Some(whole) = whole_bytes(&segment.path, self.step)
        {
            let file = OpenOptions::new().append(true).open(&segment.path)?;
            file.set_len(whole)?;
            segment.bytes = whole;
            self.live = Some(file);
            return Ok(());
        }
        self.remove_old(now);
        let number = self
            .files
            .back()
            .map_or(1, |last| last.number.wrapping_add(1));
        let path = self.folder.join(format!("{}s-{number:010}", self.step));
        let mut file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        let mut header = Vec::with_capacity(HEADER);
        header.extend(MAGIC);
        header.extend(self.step.to_le_bytes());
        header.extend(now.to_le_bytes());
        if let Err(error) = file.write_all(&header) {
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        self.files.push_back(Segment {
            number,
            path,
            bytes: HEADER as u64,
            began: now,
        });
        self.live = Some(file);
        Ok(())
    }

    /// Removes the segments that are too old, too many or too large together; room for a new one is left.
    fn remove_old(&mut self, now: i64) {
        let part = self.most_bytes / PARTS;
        while let Some(oldest) = self.files.front() {
            let bytes: u64 = self.files.iter().map(|segment| segment.bytes).sum();
            // The next one begins where this one ends.
            let end = self.files.get(1).map_or(now, |next| next.began);
            let is_old = now - end > self.kept_s;
            if !is_old && bytes + part <= self.most_bytes && self.files.len() < MOST_FILES {
                return;
            }
            let _ = fs::remove_file(&oldest.path);
            self.files.pop_front();
        }
    }

    /// Writes every segment again that has subjects which are not to be kept. One that cannot be written again is removed.
    pub fn rewrite(&mut self, keep: &dyn Fn(&str) -> bool) {
        self.live = None;
        self.files.retain_mut(|segment| {
            let (mut removed, mut all) = (HashSet::new(), HashSet::new());
            let mut frames = Vec::new();
            read(&segment.path, self.step, &mut |records| {
                let kept = records::without(records, keep, &mut removed);
                all.extend(removed.iter().copied());
                kept.is_some_and(|kept| {
                    frames.push(kept);
                    true
                })
            });
            if all.is_empty() {
                return true;
            }
            let written = segment.replace(self.step, &frames);
            if written.is_err() {
                let _ = fs::remove_file(&segment.path);
            }
            written.is_ok()
        });
    }
}

impl Segment {
    /// Puts these frames in the place of its own.
    fn replace(&mut self, step: u32, frames: &[Vec<u8>]) -> io::Result<()> {
        let mut content = Vec::new();
        content.extend(MAGIC);
        content.extend(step.to_le_bytes());
        content.extend(self.began.to_le_bytes());
        for records in frames {
            content.extend(u32::try_from(records.len()).unwrap_or(0).to_le_bytes());
            content.extend(crc32fast::hash(records).to_le_bytes());
            content.extend(records);
        }
        let beside = self.path.with_extension("new");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&beside)?;
        file.write_all(&content)?;
        fs::rename(&beside, &self.path)?;
        self.bytes = content.len() as u64;
        Ok(())
    }
}

/// A file that has the name of a segment.
fn segment(entry: &fs::DirEntry, step: u32) -> Option<Segment> {
    let name = entry.file_name();
    let number = name.to_str()?.strip_prefix(&format!("{step}s-"))?;
    let is_number = number.len() == 10 && number.bytes().all(|byte| byte.is_ascii_digit());
    let number = number.parse().ok().filter(|_| is_number)?;
    let path = entry.path();
    let metadata = fs::symlink_metadata(&path).ok()?;
    // What is no file may block its reader.
    if !metadata.is_file() {
        return None;
    }
    Some(Segment {
        number,
        bytes: metadata.len(),
        began: began(&path, step).unwrap_or_else(|| clock::now().as_second()),
        path,
    })
}

fn began(path: &Path, step: u32) -> Option<i64> {
    let mut header = [0; HEADER];
    File::open(path).ok()?.read_exact(&mut header).ok()?;
    check_header(&header, step)
}

/// When the segment began; `None` for another file.
fn check_header(content: &[u8], step: u32) -> Option<i64> {
    let (magic, rest) = content.split_first_chunk::<8>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (began, _) = rest.split_first_chunk::<8>()?;
    (*magic == MAGIC && u32::from_le_bytes(*length) == step).then(|| i64::from_le_bytes(*began))
}

/// Gives the records of each whole frame to `take`, until it returns false. Returns the bytes of what it took; `None` for a
/// file that is no segment.
pub fn read(path: &Path, step: u32, take: &mut dyn FnMut(&[u8]) -> bool) -> Option<u64> {
    if fs::metadata(path).ok()?.len() > MOST_READ {
        return None;
    }
    let content = fs::read(path).ok()?;
    check_header(&content, step)?;
    let mut whole = HEADER;
    while let Some(frame) = content.get(whole..).filter(|rest| !rest.is_empty()) {
        let Some((length, rest)) = frame.split_first_chunk::<4>() else {
            break;
        };
        let Some((sum, rest)) = rest.split_first_chunk::<4>() else {
            break;
        };
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let Some(records) = rest.get(..length) else {
            break;
        };
        if crc32fast::hash(records) != u32::from_le_bytes(*sum) || !take(records) {
            break;
        }
        whole += FRAME + length;
    }
    Some(whole as u64)
}

/// Bytes of the whole frames of a segment, with its header.
fn whole_bytes(path: &Path, step: u32) -> Option<u64> {
    read(path, step, &mut |_| true)
}
