//! The content of an entry: amounts for each GPU in two copies, so that a reader always finds a whole one.
//!
//! ```text
//! file = copy 0 (4096 bytes) · copy 1 (4096 bytes)      a write replaces the older copy
//! copy = magic 8 · count u32 · flags u32 · sequence u64 · checksum u64 · boot 16 · driver u64 · free 8 · records
//! record = GPU's UUID 16 · memory u64 and share u64 of held, of intent and of kept · used u64
//! ```
//! Numbers are little-endian. A reader takes nothing for granted: another user wrote the bytes.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use divvy_api::home::machine;
use divvy_core::{Bytes, GpuUuid};

use crate::registry::Held;

/// Bytes of one copy, and of the file. So the kernel writes it at once, being one page; 56 GPUs fit.
pub const COPY: usize = 4096;
pub const FILE: usize = 2 * COPY;

/// The sum of the fields in the drawing above, and of those of a record: so the format bounds them.
const HEADER: usize = 64;
const RECORD: usize = 72;
/// GPUs that fit into a copy.
pub const GPUS: usize = (COPY - HEADER) / RECORD;

/// The last character is the version of the format.
const MAGIC: [u8; 8] = *b"DIVVYRG1";

/// What writes an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    SystemDaemon,
    Daemon,
    /// `divvy run --no-daemon`. A home has one daemon, or any number of these.
    Run,
}

impl Writer {
    fn flags(self) -> u32 {
        match self {
            Self::Daemon => 0,
            Self::SystemDaemon => 1,
            Self::Run => 2,
        }
    }

    fn from_flags(flags: u32) -> Option<Self> {
        [Self::Daemon, Self::SystemDaemon, Self::Run]
            .into_iter()
            .find(|writer| writer.flags() == flags)
    }
}

/// A part of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Thousandths.
    pub share: u64,
    pub memory: Bytes,
}

impl Amount {
    pub const ZERO: Self = Self {
        share: 0,
        memory: Bytes::ZERO,
    };

    /// All of any GPU.
    pub const WHOLE: Self = Self {
        share: 1000,
        memory: Bytes::new(u64::MAX),
    };

    pub fn plus(self, more: Self) -> Self {
        Self {
            share: self.share.saturating_add(more.share),
            memory: self.memory.saturating_add(more.memory),
        }
    }

    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }

    /// What remains of it beside another amount.
    pub fn without(self, other: Self) -> Self {
        Self {
            share: self.share.saturating_sub(other.share),
            memory: self.memory.saturating_sub(other.memory),
        }
    }

    /// At most all of a GPU.
    pub fn at_most(self, usable: Bytes) -> Self {
        Self {
            share: self.share.min(1000),
            memory: self.memory.min(usable),
        }
    }

    pub fn fits(self, usable: Bytes) -> bool {
        self.share <= 1000 && self.memory <= usable
    }

    fn max(self, other: Self) -> Self {
        Self {
            share: self.share.max(other.share),
            memory: self.memory.max(other.memory),
        }
    }
}

/// The driver whose GPUs an entry is about: simulated GPUs have the same UUIDs for each simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Driver(u64);

impl Driver {
    /// The machine's own driver, or the simulated one with this state file.
    pub fn of(state: Option<&Path>) -> Self {
        let Some(meta) = state.and_then(|state| std::fs::metadata(state).ok()) else {
            return Self(0);
        };
        let mut hash = Fnv::default();
        hash.write_u64(meta.dev());
        hash.write_u64(meta.ino());
        // A later file may have the same inode.
        let made = meta.created().ok();
        let made = made.and_then(|made| made.duration_since(UNIX_EPOCH).ok());
        hash.write_u128(made.map_or(0, |made| made.as_nanos()));
        Self(hash.finish().max(1))
    }
}

/// What an entry says of one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The journal has it.
    pub held: Amount,
    /// The daemon is about to journal it.
    pub intent: Amount,
    /// The part of both that counts though no process of the daemon lives: claims, jobs that are starting, and jobs that
    /// a client of another user supervises.
    pub kept: Amount,
    pub used: Bytes,
}

/// What a daemon publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub writer: Writer,
    pub driver: Driver,
    boot: [u8; 16],
    sequence: u64,
    gpus: BTreeMap<[u8; 16], Record>,
    /// What the file says at least to be held: more than is, where the others are to get nothing.
    reserved: BTreeMap<[u8; 16], Amount>,
}

/// The entry has no room for another GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyGpus;

impl Entry {
    pub fn new(writer: Writer, driver: Driver) -> Self {
        Self {
            writer,
            driver,
            boot: boot(),
            sequence: 0,
            gpus: BTreeMap::new(),
            reserved: BTreeMap::new(),
        }
    }

    pub fn record(&self, gpu: &GpuUuid) -> Record {
        self.gpus.get(&gpu.to_bytes()).copied().unwrap_or_default()
    }

    pub fn records(&self) -> impl Iterator<Item = (GpuUuid, Record)> {
        let all = self.gpus.iter();
        all.map(|(gpu, record)| (GpuUuid::from_bytes(*gpu), *record))
    }

    /// Whether it was written since the machine started.
    pub fn is_of_this_boot(&self) -> bool {
        self.boot == boot()
    }

    /// What counts of it once no process of its daemon lives.
    pub fn without_processes(mut self) -> Self {
        for record in self.gpus.values_mut() {
            *record = Record {
                held: record.kept,
                ..Record::default()
            };
        }
        self.gpus.retain(|_, record| !record.held.is_zero());
        self
    }

    /// Says that this is held, and nothing else. More GPUs than fit are left out; [`intend`](Self::intend) has refused
    /// them before.
    pub fn set(&mut self, held: &BTreeMap<GpuUuid, Held>) {
        let records = held.iter().filter(|(_, held)| !held.amount.is_zero());
        let records = records.map(|(gpu, held)| {
            let record = Record {
                held: held.amount,
                intent: Amount::ZERO,
                kept: held.kept,
                used: held.used,
            };
            (gpu.to_bytes(), record)
        });
        self.gpus = records.take(GPUS).collect();
    }

    /// Keeps these amounts from all other daemons, whether they are held or not. They do not outlive the daemon.
    pub fn reserve(&mut self, reserved: &BTreeMap<GpuUuid, Amount>) {
        let reserved = reserved.iter();
        self.reserved = reserved
            .map(|(gpu, amount)| (gpu.to_bytes(), *amount))
            .collect();
    }

    /// The records as the others read them.
    fn published(&self) -> BTreeMap<[u8; 16], Record> {
        let mut gpus = self.gpus.clone();
        for (gpu, amount) in &self.reserved {
            if gpus.len() < GPUS || gpus.contains_key(gpu) {
                let record = gpus.entry(*gpu).or_default();
                record.held = record.held.max(*amount);
            }
        }
        gpus
    }

    /// Adds the amounts of an earlier entry where they are greater.
    pub fn keep(&mut self, before: &Self) {
        for (gpu, record) in &before.gpus {
            if self.gpus.len() >= GPUS && !self.gpus.contains_key(gpu) {
                continue;
            }
            let now = self.gpus.entry(*gpu).or_default();
            now.held = now.held.max(record.held.plus(record.intent));
            now.kept = now.kept.max(record.kept);
        }
    }

    /// Adds to the intent. It counts without a process, as the journal may have it before a supervisor lives.
    pub fn intend(&mut self, gpu: &GpuUuid, more: Amount) -> Result<(), TooManyGpus> {
        let gpu = gpu.to_bytes();
        if self.gpus.len() >= GPUS && !self.gpus.contains_key(&gpu) {
            return Err(TooManyGpus);
        }
        let record = self.gpus.entry(gpu).or_default();
        record.intent = record.intent.plus(more);
        record.kept = record.kept.plus(more);
        Ok(())
    }

    /// Says what it said before, in a later copy.
    pub fn take_back(&mut self, before: &Self) {
        self.gpus.clone_from(&before.gpus);
    }

    /// Its next copy, and the place of that copy in the file.
    pub fn next_copy(&mut self) -> ([u8; COPY], u64) {
        self.sequence += 1;
        let at = (self.sequence % 2) * COPY as u64;
        (self.encode(), at)
    }

    fn encode(&self) -> [u8; COPY] {
        let gpus = self.published();
        let mut copy = [0; COPY];
        let mut out = Cursor {
            bytes: &mut copy,
            at: 0,
        };
        out.put(&MAGIC);
        out.put(&u32::try_from(gpus.len()).unwrap_or(0).to_le_bytes());
        out.put(&self.writer.flags().to_le_bytes());
        out.put(&self.sequence.to_le_bytes());
        out.put(&[0; 8]);
        out.put(&self.boot);
        out.put(&self.driver.0.to_le_bytes());
        out.at = HEADER;
        for (gpu, record) in &gpus {
            out.put(gpu);
            for amount in [record.held, record.intent, record.kept] {
                out.put(&amount.memory.get().to_le_bytes());
                out.put(&amount.share.min(1000).to_le_bytes());
            }
            out.put(&record.used.get().to_le_bytes());
        }
        let sum = checksum(&copy, gpus.len());
        copy[CHECKSUM..CHECKSUM + 8].copy_from_slice(&sum.to_le_bytes());
        copy
    }

    /// The newest of the file's copies.
    ///
    /// # Errors
    /// How many copies are whole and well-formed, where that is none or one: another read may find both.
    pub fn decode(file: &[u8; FILE]) -> Result<Self, Option<Self>> {
        let (first, second) = file.split_at(COPY);
        match [first, second].map(|copy| decode(copy.try_into().ok()?)) {
            [Some(first), Some(second)] => Ok(match first.sequence > second.sequence {
                true => first,
                false => second,
            }),
            [one, other] => Err(one.or(other)),
        }
    }
}

/// Where the checksum lies. The format has it behind the magic number, so that it covers the rest.
const CHECKSUM: usize = 24;

struct Cursor<'a> {
    bytes: &'a mut [u8; COPY],
    at: usize,
}

impl Cursor<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let end = self.at + bytes.len();
        if let Some(space) = self.bytes.get_mut(self.at..end) {
            space.copy_from_slice(bytes);
        }
        self.at = end;
    }
}

fn decode(copy: &[u8; COPY]) -> Option<Entry> {
    let number = |at: usize| Some(u64::from_le_bytes(copy.get(at..at + 8)?.try_into().ok()?));
    let small = |at: usize| Some(u32::from_le_bytes(copy.get(at..at + 4)?.try_into().ok()?));
    let count = usize::try_from(small(8)?).ok()?;
    if copy[..8] != MAGIC || count > GPUS || number(CHECKSUM)? != checksum(copy, count) {
        return None;
    }
    let mut gpus = BTreeMap::new();
    for record in 0..count {
        let at = HEADER + record * RECORD;
        let gpu: [u8; 16] = copy.get(at..at + 16)?.try_into().ok()?;
        let amount = |nth: usize| {
            let at = at + 16 + nth * 16;
            let (memory, share) = (Bytes::new(number(at)?), number(at + 8)?);
            (share <= 1000).then_some(Amount { share, memory })
        };
        let record = Record {
            held: amount(0)?,
            intent: amount(1)?,
            kept: amount(2)?,
            used: Bytes::new(number(at + 64)?),
        };
        if gpus.insert(gpu, record).is_some() {
            return None;
        }
    }
    Some(Entry {
        writer: Writer::from_flags(small(12)?)?,
        driver: Driver(number(48)?),
        boot: copy.get(32..48)?.try_into().ok()?,
        sequence: number(16)?,
        gpus,
        reserved: BTreeMap::new(),
    })
}

/// Of the header and the records, without itself. It finds a copy that is only half written; against a forger it is no
/// protection.
fn checksum(copy: &[u8; COPY], records: usize) -> u64 {
    let mut hash = Fnv::default();
    hash.write(&copy[..CHECKSUM]);
    hash.write(&copy[CHECKSUM + 8..HEADER + records * RECORD]);
    hash.finish()
}

/// FNV-1a with 64 bits. Builds of any Rust version have to agree on it, unlike on the standard library's hash.
pub struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// The kernel's number of this boot; zeros if the kernel has none.
fn boot() -> [u8; 16] {
    let digits: String = machine::boot()
        .chars()
        .filter(char::is_ascii_hexdigit)
        .collect();
    u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use divvy_testkit::Rng;

    use super::*;

    fn gpu(index: u8) -> GpuUuid {
        GpuUuid::from_bytes([index; 16])
    }

    fn amount(share: u64, gib: u64) -> Amount {
        Amount {
            share,
            memory: Bytes::gib(gib),
        }
    }

    fn entry(gpus: u8) -> Entry {
        let mut entry = Entry::new(Writer::Daemon, Driver(7));
        let held = |index| Held {
            amount: amount(500, 40),
            kept: amount(250, 20),
            used: Bytes::gib(u64::from(index)),
        };
        entry.set(&(0..gpus).map(|index| (gpu(index), held(index))).collect());
        entry
    }

    /// A file after these writes.
    fn file(entry: &mut Entry, writes: usize) -> [u8; FILE] {
        let mut file = [0; FILE];
        for _ in 0..writes {
            let (copy, at) = entry.next_copy();
            let at = usize::try_from(at).unwrap();
            file[at..at + COPY].copy_from_slice(&copy);
        }
        file
    }

    #[test]
    fn a_reader_finds_the_newest_whole_copy_wherever_a_write_was_cut_off() {
        let mut entry = entry(3);
        let before = file(&mut entry, 2);
        assert_eq!(Entry::decode(&before), Ok(entry.clone()));
        let old = entry.clone();
        entry.intend(&gpu(0), amount(500, 39)).unwrap();
        let (copy, at) = entry.next_copy();
        let at = usize::try_from(at).unwrap();
        for cut in 0..=COPY {
            let mut torn = before;
            torn[at..at + cut].copy_from_slice(&copy[..cut]);
            match Entry::decode(&torn) {
                Ok(read) => assert!(read == entry || read == old, "cut at {cut}"),
                Err(read) => assert_eq!(read, Some(old.clone()), "cut at {cut}"),
            }
        }
        assert_eq!(entry.record(&gpu(0)).intent, amount(500, 39));
    }

    #[test]
    fn bytes_of_another_user_are_an_entry_within_its_bounds_or_none() {
        let mut rng = Rng::new(24);
        let whole = file(&mut entry(2), 2);
        let (mut read, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let mut bytes = whole;
            for _ in 0..=rng.below(4) {
                let at = usize::try_from(rng.below(300)).unwrap();
                let copy = usize::try_from(rng.below(2)).unwrap() * COPY;
                bytes[copy + at] = u8::try_from(rng.below(256)).unwrap();
            }
            // A forger knows the checksum.
            for copy in [0, COPY] {
                let one: &[u8; COPY] = bytes[copy..copy + COPY].try_into().unwrap();
                let count = u32::from_le_bytes(one[8..12].try_into().unwrap()) as usize;
                let sum = checksum(one, count.min(GPUS)).to_le_bytes();
                bytes[copy + CHECKSUM..copy + CHECKSUM + 8].copy_from_slice(&sum);
            }
            match Entry::decode(&bytes) {
                Ok(entry) => {
                    read += 1;
                    for (_, record) in entry.records() {
                        for amount in [record.held, record.intent, record.kept] {
                            assert!(amount.share <= 1000);
                        }
                    }
                }
                Err(_) => refused += 1,
            }
        }
        assert!(read > 1000 && refused > 1000, "{read} {refused}");
    }

    #[test]
    fn an_entry_has_room_for_each_of_its_gpus_and_refuses_one_more() {
        let most = u8::try_from(GPUS).unwrap();
        let mut full = entry(most);
        assert_eq!(full.intend(&gpu(most), amount(1, 1)), Err(TooManyGpus));
        let bytes = file(&mut full, 2);
        assert_eq!(Entry::decode(&bytes).unwrap().records().count(), GPUS);
    }

    #[test]
    fn without_a_process_only_what_is_kept_counts() {
        let mut entry = entry(1);
        entry.intend(&gpu(0), amount(100, 8)).unwrap();
        entry.intend(&gpu(1), amount(200, 16)).unwrap();
        let kept = entry.without_processes();
        assert_eq!(kept.record(&gpu(0)).held, amount(350, 28));
        assert_eq!(kept.record(&gpu(1)).held, amount(200, 16));
        assert_eq!(kept.record(&gpu(1)).intent, Amount::ZERO);
    }
}
