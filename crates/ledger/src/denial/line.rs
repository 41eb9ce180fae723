//! One record of the denial log: the meaning of its words, its checksum, and the test for a complete write.

use super::{AllocationGroup, AllocationKind, Denial, DenialCause, NAMED, Peer, Text};
use crate::layout::{DENIAL_WORDS, DENIALS, GPUS};
use crate::process::ProcessIdentity;

/// Where in a line things are, in words.
pub mod at {
    pub const NUMBER: usize = 0;
    pub const TIME: usize = 1;
    pub const PID_AND_PLACE: usize = 2;
    pub const START_TIME: usize = 3;
    pub const PID_NAMESPACE: usize = 4;
    pub const ASKED: usize = 5;
    pub const LIMIT: usize = 6;
    pub const USED: usize = 7;
    pub const OWN: usize = 8;
    pub const UNSEEN: usize = 9;
    pub const GPU_FREE: usize = 10;
    pub const GPU_TOTAL: usize = 11;
    pub const SKIPPED: usize = 12;
    pub const ALLOCATIONS: usize = 13;
    pub const PEER_COUNT: usize = 14;
    pub const PROGRAM: usize = 15;
    /// The layout: a text and a list take several words.
    pub const API: usize = 17;
    pub const LARGEST: usize = 22;
    pub const PEERS: usize = 38;
    pub const CHECK: usize = crate::layout::DENIAL_WORDS - 1;
}

pub type Words = [u64; DENIAL_WORDS];

/// The first refusals keep their lines; later ones go round in the others.
pub fn line_of(number: u64) -> usize {
    /// Half of the lines, so that the first refusals show the cause, and the last ones the state when a user looks.
    const FIRST: u64 = DENIALS as u64 / 2;
    let line = match number.checked_sub(FIRST) {
        None => number,
        Some(later) => FIRST + later % (DENIALS as u64 - FIRST),
    };
    line as usize
}

pub fn encode(denial: &Denial) -> Words {
    let mut words = [0; DENIAL_WORDS];
    let gpu = denial.gpu.map_or(0xffff, |gpu| gpu as u64 & 0xffff);
    words[at::NUMBER] = denial.number;
    words[at::TIME] = denial.at;
    words[at::PID_AND_PLACE] =
        u64::from(denial.owner.pid) | gpu << 32 | u64::from(cause_code(denial.cause)) << 48;
    words[at::START_TIME] = denial.owner.start_time;
    words[at::PID_NAMESPACE] = denial.owner.pid_namespace;
    words[at::ASKED] = denial.requested;
    words[at::LIMIT] = denial.limit;
    words[at::USED] = denial.used;
    words[at::OWN] = denial.own;
    words[at::UNSEEN] = denial.unseen;
    words[at::GPU_FREE] = denial.gpu_free;
    words[at::GPU_TOTAL] = denial.gpu_total;
    words[at::SKIPPED] = denial.skipped;
    words[at::ALLOCATIONS] = denial.allocations;
    words[at::PEER_COUNT] = denial.peer_count;
    put_text(&mut words[at::PROGRAM..at::API], &denial.program.0);
    put_text(&mut words[at::API..at::LARGEST], &denial.api.0);
    for (index, live) in denial.largest.iter().take(NAMED).enumerate() {
        words[at::LARGEST + 2 * index] = live.bytes;
        words[at::LARGEST + 2 * index + 1] =
            u64::from(live.count) | u64::from(kind_code(live.kind)) << 32;
    }
    for (index, peer) in denial.peers.iter().take(NAMED).enumerate() {
        words[at::PEERS + 2 * index] = peer.pid.into();
        words[at::PEERS + 2 * index + 1] = peer.used;
    }
    words[at::CHECK] = check(&words);
    words
}

/// Decodes a line; `None` if it is not completely written.
pub fn decode(words: &Words) -> Option<Denial> {
    if words[at::CHECK] != check(words) {
        return None;
    }
    let place = words[at::PID_AND_PLACE];
    let gpu = (place >> 32 & 0xffff) as usize;
    let pair =
        |start: usize, index: usize| (words[start + 2 * index], words[start + 2 * index + 1]);
    let live = |index| match pair(at::LARGEST, index) {
        (_, 0) => None,
        (bytes, rest) => Some(AllocationGroup {
            bytes,
            count: rest as u32,
            kind: KINDS
                .get((rest >> 32) as usize)
                .copied()
                .unwrap_or(AllocationKind::Other),
        }),
    };
    let peer = |index| match pair(at::PEERS, index) {
        (_, 0) => None,
        (pid, used) => Some(Peer {
            pid: pid as u32,
            used,
        }),
    };
    Some(Denial {
        number: words[at::NUMBER],
        at: words[at::TIME],
        owner: ProcessIdentity {
            pid: place as u32,
            start_time: words[at::START_TIME],
            pid_namespace: words[at::PID_NAMESPACE],
        },
        program: Text::new(&text::<16>(&words[at::PROGRAM..at::API])),
        api: Text::new(&text::<40>(&words[at::API..at::LARGEST])),
        gpu: (gpu < GPUS).then_some(gpu),
        cause: CAUSES
            .get((place >> 48) as usize)
            .copied()
            .unwrap_or(DenialCause::Other),
        requested: words[at::ASKED],
        limit: words[at::LIMIT],
        used: words[at::USED],
        own: words[at::OWN],
        unseen: words[at::UNSEEN],
        gpu_free: words[at::GPU_FREE],
        gpu_total: words[at::GPU_TOTAL],
        skipped: words[at::SKIPPED],
        allocations: words[at::ALLOCATIONS],
        largest: (0..NAMED).filter_map(live).collect(),
        peers: (0..NAMED).filter_map(peer).collect(),
        peer_count: words[at::PEER_COUNT],
    })
}

/// Their position is their code.
const CAUSES: [DenialCause; 4] = [
    DenialCause::SliceFull,
    DenialCause::GpuFull,
    DenialCause::NotInSlice,
    DenialCause::Other,
];
const KINDS: [AllocationKind; 9] = [
    AllocationKind::Linear,
    AllocationKind::Managed,
    AllocationKind::Pool,
    AllocationKind::Handle,
    AllocationKind::Array,
    AllocationKind::Graph,
    AllocationKind::Imported,
    AllocationKind::Context,
    AllocationKind::Other,
];

fn cause_code(cause: DenialCause) -> u16 {
    CAUSES.iter().position(|other| *other == cause).unwrap_or(0) as u16
}

fn kind_code(kind: AllocationKind) -> u32 {
    KINDS.iter().position(|other| *other == kind).unwrap_or(0) as u32
}

fn put_text(words: &mut [u64], text: &[u8]) {
    for (word, eight) in words.iter_mut().zip(text.chunks_exact(8)) {
        *word = u64::from_ne_bytes(eight.try_into().unwrap_or_default());
    }
}

fn text<const BYTES: usize>(words: &[u64]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    for (eight, word) in bytes.chunks_exact_mut(8).zip(words) {
        eight.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// Never 0 by construction for a line of zeros, so an unused line has a wrong one.
fn check(words: &Words) -> u64 {
    let mix =
        |sum: u64, word: &u64| (sum.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    words[..at::CHECK]
        .iter()
        .fold(u64::from_ne_bytes(*b"DIVVYden"), mix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Denial {
        Denial {
            number: u64::MAX,
            at: 1,
            owner: ProcessIdentity {
                pid: u32::MAX,
                start_time: 2,
                pid_namespace: 3,
            },
            program: Text::new(b"python3"),
            api: Text::new(b"cuMemPoolImportFromShareableHandle"),
            gpu: Some(15),
            cause: DenialCause::GpuFull,
            requested: 4,
            limit: 5,
            used: 6,
            own: 7,
            unseen: 8,
            gpu_free: 9,
            gpu_total: 10,
            skipped: 11,
            allocations: 12,
            largest: (1..=NAMED as u64)
                .map(|at| AllocationGroup {
                    bytes: 100 - at,
                    count: at as u32,
                    kind: KINDS[at as usize],
                })
                .collect(),
            peers: (1..=NAMED as u32)
                .map(|at| Peer {
                    pid: at,
                    used: 50 - u64::from(at),
                })
                .collect(),
            peer_count: 13,
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        assert_eq!(decode(&encode(&full())), Some(full()));
        let outside = Denial {
            gpu: None,
            cause: DenialCause::NotInSlice,
            largest: vec![],
            peers: vec![],
            ..full()
        };
        assert_eq!(decode(&encode(&outside)), Some(outside));
    }

    #[test]
    fn a_line_of_two_writers_or_of_none_is_left_out() {
        assert_eq!(decode(&[0; DENIAL_WORDS]), None);
        let whole = encode(&full());
        for at in 0..DENIAL_WORDS {
            let mut torn = whole;
            torn[at] ^= 1;
            assert_eq!(decode(&torn), None, "word {at}");
        }
    }

    #[test]
    fn the_first_half_of_the_lines_keeps_the_first_refusals() {
        let lines: Vec<usize> = (0..26).map(line_of).collect();
        assert_eq!(lines[..16], (0..16).collect::<Vec<_>>());
        assert_eq!(lines[16..], [8, 9, 10, 11, 12, 13, 14, 15, 8, 9]);
        assert!(line_of(u64::MAX) < DENIALS);
    }
}
