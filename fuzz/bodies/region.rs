//! A slice whose files hold anything at all, read and used by the limiter and the daemon: neither panics, hangs or
//! believes that more is free than the limit.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use divvy_ledger::{Control, GpuSpec, Listed, ProcessSlot, Slice, SliceSpec, boot_time_ns};

use super::input::Input;

/// Refused reservations wait for rivals that hostile bytes invent, one second at most: so few are tried.
const RESERVATIONS: u32 = 3;

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let gpus = 1 + input.below(16) as usize;
    let gpu = |index| GpuSpec {
        uuid: [index as u8; 16],
        limit: 1 << 30,
        overhead: 1 << 20,
        weight: 1000,
        ..GpuSpec::default()
    };
    let spec = SliceSpec {
        id: "fuzz".into(),
        generation: 1,
        gpus: (0..gpus).map(gpu).collect(),
        ..SliceSpec::default()
    };
    drop(Control::create(folder.path(), &spec).expect("a slice"));
    let file = |name: &str| {
        let path = folder.path().join(name);
        let opened = OpenOptions::new().read(true).write(true).open(path);
        opened.expect("the slice's file")
    };
    let files = [file("control"), file("slots")];

    // While no process has the files mapped, they may be of any size.
    for _ in 0..input.below(4) {
        spoil(&mut input, &files);
    }
    if input.byte().is_multiple_of(8) {
        let size = input.below(1 << 22);
        files[usize::from(input.byte() % 2)]
            .set_len(size)
            .expect("room for a few MiB");
    }
    let Some(slice) = looked_at(folder.path()) else {
        return;
    };
    let Ok(slot) = slice.join() else { return };
    let mut reservations = RESERVATIONS;
    while !input.is_empty() {
        match input.byte() % 4 {
            0 => drop(looked_at(folder.path())),
            1 => reap(&slice),
            2 => spoil(&mut input, &files),
            _ => used(&mut input, &slot, &mut reservations),
        }
    }
}

/// Writes anything anywhere, mostly where something is.
fn spoil(input: &mut Input<'_>, files: &[File; 2]) {
    let file = &files[usize::from(input.byte() % 2)];
    let size = file.metadata().expect("an open file").len();
    let end = match input.byte() % 4 {
        0 => size,
        1 => 64,
        _ => 16 << 10,
    };
    let offset = input.below(end.min(size).max(1));
    let count = usize::from(input.byte());
    let bytes = input.bytes(count);
    let room = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
    file.write_all_at(&bytes[..bytes.len().min(room)], offset)
        .expect("within the file");
}

/// Reads all there is to read from outside.
fn looked_at(folder: &Path) -> Option<Slice> {
    let slice = Slice::open(folder).ok()?;
    if let Ok(snapshot) = slice.read() {
        for gpu in 0..17 {
            let usage = snapshot.usage(gpu);
            assert!(usage.free <= usage.limit, "more is free than there is");
        }
        assert!(snapshot.processes().len() <= divvy_ledger::SLOTS);
        snapshot.is_member(std::process::id());
        snapshot.alarms();
        snapshot.heartbeat();
    }
    let _ = slice.denials();
    Some(slice)
}

fn reap(slice: &Slice) {
    // Far in the future, so that every process's time is over.
    let later = boot_time_ns() + (1 << 40);
    for listed in [Listed::No, Listed::Unknown] {
        // A slot that cannot be read cannot be reaped.
        let _ = slice.reap(later, &|_| listed);
    }
}

/// Uses the slot as a program's hooks do.
fn used(input: &mut Input<'_>, slot: &ProcessSlot, reservations: &mut u32) {
    let gpu = usize::from(input.byte() % 18);
    let bytes = input.word() >> (input.byte() % 64);
    let _ = slot.check();
    match input.byte() % 10 {
        0 => slot.release(gpu, bytes),
        1 => slot.force(gpu, bytes),
        2 => slot.note_managed(gpu, bytes as i64),
        3 => slot.release_overhead(gpu),
        4 => slot.alarm(),
        5 => drop(slot.process(std::process::id())),
        6 if *reservations > 0 => {
            *reservations -= 1;
            if let Ok(hold) = slot.reserve(gpu, bytes) {
                match input.byte() % 3 {
                    0 => hold.commit(),
                    1 => hold.commit_as(input.word()),
                    _ => drop(hold),
                }
            }
        }
        7 if *reservations > 0 => {
            *reservations -= 1;
            let _ = slot.charge_overhead(gpu);
        }
        8 => {
            if let Some(shared) = slot.import(gpu, bytes) {
                slot.release_shared(shared);
            }
        }
        9 => {
            if let Some(shared) = slot.export(gpu, bytes % 8, bytes) {
                slot.release_shared(shared);
            }
        }
        _ => {
            let usage = slot.usage(gpu);
            assert!(usage.free <= usage.limit, "more is free than there is");
        }
    }
}
