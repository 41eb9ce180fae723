//! A history of figures on disk, from a seed, in the form of `crates/agent/src/history`: a daemon that starts beside it
//! shows it as its own. A daemon of another form of files ignores it, and the charts are empty.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// Steps in seconds, and how far back each reaches.
const STEPS: [(u32, i64); 3] = [(1, 600), (10, 21_600), (60, 604_800)];

/// The nine figures of a subject, in the order of the files; NaN where there is none.
pub type Figures = [f32; 9];

/// A subject, such as `gpu:0`, and its figures so many seconds before the end.
pub type Subject<'a> = (String, Box<dyn Fn(i64) -> Figures + 'a>);

/// Figures without a value.
pub const NONE: Figures = [f32::NAN; 9];

/// Writes the history of these subjects, up to `end` (seconds since 1970), into a new folder.
///
/// # Panics
/// When the folder cannot be written.
pub fn write(folder: &Path, end: i64, subjects: &[Subject<'_>]) {
    let mut builder = DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(folder);
    made.expect("the folder can be made");
    for (step, kept) in STEPS {
        let length = i64::from(step);
        let last = end.div_euclid(length) * length;
        let began = last - kept + length;
        let mut content = b"divvyh1\n".to_vec();
        content.extend(step.to_le_bytes());
        content.extend(began.to_le_bytes());
        let frame = records(subjects, began, last, length, end);
        let size = u32::try_from(frame.len()).expect("a history of a week is small");
        content.extend(size.to_le_bytes());
        content.extend(crc32fast::hash(&frame).to_le_bytes());
        content.extend(frame);
        let file = folder.join(format!("{step}s-{:010}", 1));
        fs::write(file, content).expect("the folder can be written");
    }
}

/// Names, rows with what differs from the row before, and the end.
fn records(subjects: &[Subject<'_>], began: i64, last: i64, step: i64, end: i64) -> Vec<u8> {
    let mut out = vec![3];
    number(subjects.len(), &mut out);
    for (at, (name, _)) in subjects.iter().enumerate() {
        number(at, &mut out);
        number(name.len(), &mut out);
        out.extend(name.as_bytes());
    }
    let mut before = vec![NONE; subjects.len()];
    let mut at = began;
    while at < last {
        let mut entries = Vec::new();
        let mut count = 0;
        for (index, ((_, figures), known)) in subjects.iter().zip(&mut before).enumerate() {
            let now = figures(end - at);
            let has: u16 = bits(&now, |_, value| !value.is_nan());
            let differs = bits(&now, |place, value| {
                value.to_bits() != known[place].to_bits()
                    && !(value.is_nan() && known[place].is_nan())
            });
            if differs != 0 {
                // A row has all figures of a subject that changed: no figures would end the series.
                count += 1;
                number(index, &mut entries);
                entries.extend(has.to_le_bytes());
                let values = now.iter().filter(|value| !value.is_nan());
                values.for_each(|value| entries.extend(value.to_le_bytes()));
                *known = now;
            }
        }
        if count > 0 {
            out.push(4);
            out.extend(at.to_le_bytes());
            number(count, &mut out);
            out.extend(entries);
        }
        at += step;
    }
    // The values last until here, and end: the daemon goes on with its own.
    out.push(2);
    out.extend(last.to_le_bytes());
    out.push(0);
    out
}

fn bits(figures: &Figures, is_set: impl Fn(usize, f32) -> bool) -> u16 {
    let places = figures.iter().enumerate();
    places.fold(0, |bits, (place, value)| {
        bits | u16::from(is_set(place, *value)) << place
    })
}

/// LEB128.
fn number(mut number: usize, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(u8::try_from(number & 0x7f).unwrap_or(0) | 0x80);
        number >>= 7;
    }
    out.push(u8::try_from(number).unwrap_or(0));
}
