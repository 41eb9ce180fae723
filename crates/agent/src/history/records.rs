//! The records of a segment, and how a subject's points come out of them. Pure.
//!
//! ```text
//! record   := 0                                        the values end with the step of the last row; numbers begin anew
//!           | 1 time                                   the values end at this time: a gap begins
//!           | 2 time                                   the values last until this time at least
//!           | 3 count (number length text)…            names of subjects
//!           | 4 time count (number figures value…)…    a row: what differs from the row before; no figures: the series ends
//! time     := i64, seconds since 1970      figures := u16, a bit each      value := f32
//! number, count, length := LEB128          all of them little-endian
//! ```

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::downsample::Row;
use super::figures::{COUNT, Figure, Values};

const RESET: u8 = 0;
const GAP: u8 = 1;
const THROUGH: u8 = 2;
const NAMES: u8 = 3;
const ROW: u8 = 4;

/// One record.
#[derive(Clone, Debug, PartialEq)]
enum Record<'a> {
    Reset,
    Gap(i64),
    Through(i64),
    Names(Vec<(u32, &'a str)>),
    Row(i64, Vec<Entry>),
}

/// What a row says of one series.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Entry {
    number: u32,
    /// The figures that it has, as bits; none if the series ends.
    figures: u16,
    values: Values,
}

/// What is left to parse.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count)?;
        self.0 = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn number(&mut self) -> Option<u32> {
        let mut number = 0_u64;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.array()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return u32::try_from(number).ok();
            }
        }
        None
    }

    fn time(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    fn record(&mut self) -> Option<Record<'a>> {
        let [kind] = self.array()?;
        Some(match kind {
            RESET => Record::Reset,
            GAP => Record::Gap(self.time()?),
            THROUGH => Record::Through(self.time()?),
            NAMES => {
                let mut names = Vec::new();
                for _ in 0..self.number()? {
                    let (number, length) = (self.number()?, self.number()?);
                    let name = self.bytes(usize::try_from(length).ok()?)?;
                    names.push((number, std::str::from_utf8(name).ok()?));
                }
                Record::Names(names)
            }
            ROW => {
                let at = self.time()?;
                let mut entries = Vec::new();
                for _ in 0..self.number()? {
                    entries.push(self.entry()?);
                }
                Record::Row(at, entries)
            }
            _ => return None,
        })
    }

    fn entry(&mut self) -> Option<Entry> {
        let number = self.number()?;
        let figures = u16::from_le_bytes(self.array()?);
        if figures >> COUNT != 0 {
            return None;
        }
        let mut values = Values::default();
        for (at, value) in values.0.iter_mut().enumerate() {
            if figures & 1 << at != 0 {
                *value = f32::from_le_bytes(self.array()?);
            }
        }
        Some(Entry {
            number,
            figures,
            values,
        })
    }
}

fn push_number(mut number: u32, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn push_count(count: usize, out: &mut Vec<u8>) {
    push_number(u32::try_from(count).unwrap_or(u32::MAX), out);
}

impl Record<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        let timed = |kind: u8, time: &i64, out: &mut Vec<u8>| {
            out.push(kind);
            out.extend(time.to_le_bytes());
        };
        match self {
            Self::Reset => out.push(RESET),
            Self::Gap(time) => timed(GAP, time, out),
            Self::Through(time) => timed(THROUGH, time, out),
            Self::Names(names) => {
                out.push(NAMES);
                push_count(names.len(), out);
                for (number, name) in names {
                    push_number(*number, out);
                    push_count(name.len(), out);
                    out.extend(name.as_bytes());
                }
            }
            Self::Row(at, entries) => {
                timed(ROW, at, out);
                push_count(entries.len(), out);
                for entry in entries {
                    push_number(entry.number, out);
                    out.extend(entry.figures.to_le_bytes());
                    for (at, value) in entry.values.0.iter().enumerate() {
                        if entry.figures & 1 << at != 0 {
                            out.extend(value.to_le_bytes());
                        }
                    }
                }
            }
        }
    }
}

/// Turns rows into records.
#[derive(Debug, Default)]
pub struct Encoder {
    /// The series of the last row, with their numbers.
    current: BTreeMap<Arc<str>, (u32, Values)>,
    next_number: u32,
    /// End of the last row. `None` before the first one.
    end: Option<i64>,
    /// The time that the last record gives.
    told: i64,
}

impl Encoder {
    /// Writes what differs from the row before.
    pub fn row(&mut self, row: &Row, out: &mut Vec<u8>) {
        match self.end {
            None => Record::Reset.write(out),
            Some(end) if end == row.at => {}
            Some(end) => {
                Record::Gap(end).write(out);
                self.current.clear();
            }
        }
        let (mut names, mut entries) = (Vec::new(), Vec::new());
        for (subject, values) in &row.series {
            let (number, figures) = match self.current.get_mut(subject) {
                Some((number, before)) => {
                    let changes = before.changes(values);
                    *before = *values;
                    (*number, changes)
                }
                None => {
                    let number = self.next_number;
                    self.next_number += 1;
                    names.push((number, &**subject));
                    let new = (number, *values);
                    self.current.insert(Arc::clone(subject), new);
                    (number, Values::default().changes(values))
                }
            };
            if figures != 0 {
                entries.push(Entry {
                    number,
                    figures,
                    values: *values,
                });
            }
        }
        self.current.retain(|subject, (number, _)| {
            let stays = row.series.contains_key(subject);
            if !stays {
                entries.push(Entry {
                    number: *number,
                    figures: 0,
                    values: Values::default(),
                });
            }
            stays
        });
        if !names.is_empty() {
            Record::Names(names).write(out);
        }
        let end = row.at + row.step;
        // The first row, and the first after a gap, say that something is known again.
        if !entries.is_empty() || self.end != Some(row.at) {
            Record::Row(row.at, entries).write(out);
            self.told = end;
        }
        self.end = Some(end);
    }

    /// Writes until when the values have lasted, if no record says so.
    pub fn through(&mut self, out: &mut Vec<u8>) {
        self.tail(out);
        self.told = self.end.unwrap_or(self.told);
    }

    /// The same for a copy of the records.
    pub fn tail(&self, out: &mut Vec<u8>) {
        if let Some(end) = self.end.filter(|end| *end != self.told) {
            Record::Through(end).write(out);
        }
    }
}

/// Reads the points of one subject.
pub struct Reader<'a> {
    subject: &'a str,
    step: i64,
    from: i64,
    points: Vec<Values>,
    number: Option<u32>,
    held: Option<Values>,
    /// Time of the last row.
    row: Option<i64>,
    /// The points before it are known.
    filled: i64,
}

impl<'a> Reader<'a> {
    /// `from` and `to` are multiples of the step.
    pub fn new(subject: &'a str, step: i64, (from, to): (i64, i64)) -> Self {
        let count = usize::try_from((to - from) / step).unwrap_or(0);
        Self {
            subject,
            step,
            from,
            points: vec![Values::default(); count],
            number: None,
            held: None,
            row: None,
            filled: i64::MIN,
        }
    }

    /// Takes records; false if they are not whole.
    pub fn take(&mut self, records: &[u8]) -> bool {
        let mut input = Input(records);
        while !input.0.is_empty() {
            match input.record() {
                Some(record) => self.apply(&record),
                None => return false,
            }
        }
        true
    }

    /// The records that follow have no connection with those before.
    pub fn end_of_segment(&mut self) {
        if let Some(row) = self.row.take() {
            self.fill(row.saturating_add(self.step));
        }
        (self.number, self.held) = (None, None);
    }

    /// The figures with a value, each with a value for each step.
    pub fn figures(mut self) -> Vec<(&'static str, Vec<Option<f64>>)> {
        self.end_of_segment();
        let of = |figure: Figure| {
            let values = self.points.iter().map(move |point| {
                let value = point.0.get(figure as usize).copied();
                value.filter(|value| value.is_finite()).map(f64::from)
            });
            values.collect::<Vec<_>>()
        };
        let all = Figure::ALL
            .into_iter()
            .map(|(figure, name)| (name, of(figure)));
        all.filter(|(_, values)| values.iter().any(Option::is_some))
            .collect()
    }

    fn apply(&mut self, record: &Record<'_>) {
        match record {
            Record::Reset => self.end_of_segment(),
            Record::Gap(end) => {
                self.fill(*end);
                (self.row, self.held) = (None, None);
            }
            Record::Through(end) => {
                self.fill(*end);
                self.row = Some(end.saturating_sub(self.step));
            }
            Record::Names(names) => {
                let own = names.iter().find(|(_, name)| *name == self.subject);
                if let Some((number, _)) = own {
                    (self.number, self.held) = (Some(*number), None);
                }
            }
            Record::Row(at, entries) => {
                match *at < self.filled {
                    // The clock was set back, or this row comes a second time: the later record counts.
                    true => self.clear(*at),
                    false if self.row.is_some() => self.fill(*at),
                    false => self.filled = *at,
                }
                self.row = Some(*at);
                for entry in entries {
                    if Some(entry.number) == self.number {
                        self.update(entry);
                    }
                }
            }
        }
    }

    fn update(&mut self, entry: &Entry) {
        if entry.figures == 0 {
            (self.number, self.held) = (None, None);
            return;
        }
        let held = self.held.get_or_insert_default();
        for (at, (held, value)) in held.0.iter_mut().zip(entry.values.0).enumerate() {
            if entry.figures & 1 << at != 0 {
                *held = value;
            }
        }
    }

    fn index(&self, time: i64) -> usize {
        let steps = time.saturating_sub(self.from).div_euclid(self.step);
        usize::try_from(steps.max(0)).unwrap_or(usize::MAX)
    }

    /// The held values last until then.
    fn fill(&mut self, end: i64) {
        let (from, to) = (self.index(self.filled), self.index(end));
        let to = to.min(self.points.len());
        if let (Some(held), Some(points)) = (self.held, self.points.get_mut(from..to)) {
            points.fill(held);
        }
        self.filled = end;
    }

    /// Nothing is known from then on.
    fn clear(&mut self, from: i64) {
        let at = self.index(from);
        if let Some(points) = self.points.get_mut(at..) {
            points.fill(Values::default());
        }
        self.filled = from;
    }
}

/// Records without the subjects that are not to be kept. `removed` has the numbers of those so far, between two calls for
/// one segment. `None` if the records are not whole.
pub fn without(
    records: &[u8],
    keep: &dyn Fn(&str) -> bool,
    removed: &mut HashSet<u32>,
) -> Option<Vec<u8>> {
    let (mut input, mut kept) = (Input(records), Vec::with_capacity(records.len()));
    while !input.0.is_empty() {
        let mut record = input.record()?;
        match &mut record {
            Record::Reset => removed.clear(),
            Record::Gap(_) | Record::Through(_) => {}
            Record::Names(names) => names.retain(|(number, name)| {
                let stays = keep(name);
                if !stays {
                    removed.insert(*number);
                }
                stays
            }),
            Record::Row(_, entries) => entries.retain(|entry| !removed.contains(&entry.number)),
        }
        record.write(&mut kept);
    }
    Some(kept)
}
