//! ELF inspection: the loader of a program, from its first bytes, and the glibc version that a library needs or offers.

use object::LittleEndian;
use object::elf::{FileHeader64, PT_DYNAMIC, PT_INTERP, VersionIndex};
use object::read::ReadRef as _;
use object::read::elf::{FileHeader as _, ProgramHeader as _};

/// A program, as far as it matters to the limiter, which is a glibc library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// glibc's loader loads it.
    Glibc,
    Musl,
    /// No loader loads it.
    Static,
    /// `#!`: this other program runs it.
    Script(String),
    /// None of these: it may still be a script that a shell runs.
    Unknown,
}

/// Returns the kind of a program from `head`, the first bytes of its file.
pub fn program(head: &[u8]) -> Program {
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let text = String::from_utf8_lossy(line);
        let interpreter = text.split_ascii_whitespace().next();
        return interpreter.map_or(Program::Unknown, |name| Program::Script(name.to_owned()));
    }
    let Some(header) = header(head) else {
        return Program::Unknown;
    };
    let mut dynamic = false;
    for segment in header
        .program_headers(LittleEndian, head)
        .unwrap_or_default()
    {
        match segment.p_type(LittleEndian) {
            PT_INTERP => {
                let name = segment.interpreter(LittleEndian, head).ok().flatten();
                return match String::from_utf8_lossy(name.unwrap_or_default()) {
                    name if name.contains("ld-musl") => Program::Musl,
                    name if name.contains("ld-linux") => Program::Glibc,
                    _ => Program::Unknown,
                };
            }
            PT_DYNAMIC => dynamic = true,
            _ => {}
        }
    }
    // The loader itself and libraries name no loader, like a static position-independent program. Only the program has an
    // entry address; most libraries have none.
    match dynamic && header.e_entry(LittleEndian) == 0 {
        true => Program::Unknown,
        false => Program::Static,
    }
}

/// The header of a 64-bit little-endian file. `FileHeader64::parse` would also refuse a version byte that the kernel
/// ignores, so that a static program could pass as unknown.
fn header(file: &[u8]) -> Option<&FileHeader64<LittleEndian>> {
    if !file.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    file.read_at(0).ok()
}

/// Returns the highest minor version among the symbol versions `GLIBC_2.N` of a library: the version that it needs, or,
/// for glibc itself, offers.
pub fn glibc(library: &[u8]) -> Option<u32> {
    let sections = header(library)?.sections(LittleEndian, library).ok()?;
    let versions = sections.versions(LittleEndian, library).ok()??;
    let minor = |index| {
        let name = versions.version(VersionIndex(index)).ok()??.name();
        let name = std::str::from_utf8(name.strip_prefix(b"GLIBC_2.")?).ok()?;
        name.split('.').next()?.parse().ok()
    };
    (0..u16::MAX).filter_map(minor).max()
}

#[cfg(test)]
mod tests {
    use object::elf::ProgramType;

    use super::*;

    /// A 64-bit file with these segments: type and contents.
    fn elf(entry: u64, segments: &[(ProgramType, &[u8])]) -> Vec<u8> {
        let mut file = vec![0; 64];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[24..32].copy_from_slice(&entry.to_le_bytes());
        file[32..40].copy_from_slice(&64_u64.to_le_bytes());
        file[54..56].copy_from_slice(&56_u16.to_le_bytes());
        let count = u16::try_from(segments.len()).unwrap();
        file[56..58].copy_from_slice(&count.to_le_bytes());
        let mut contents = 64 + 56 * segments.len() as u64;
        for (kind, bytes) in segments {
            let mut header = vec![0; 56];
            header[..4].copy_from_slice(&kind.0.to_le_bytes());
            header[8..16].copy_from_slice(&contents.to_le_bytes());
            header[32..40].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
            file.extend(header);
            contents += bytes.len() as u64;
        }
        file.extend(segments.iter().flat_map(|(_, bytes)| bytes.iter()));
        file
    }

    #[test]
    fn a_program_is_told_by_the_loader_it_names() {
        let named = |name: &[u8]| elf(1, &[(PT_INTERP, name)]);
        for (file, expected) in [
            (named(b"/lib64/ld-linux-x86-64.so.2\0"), Program::Glibc),
            (named(b"/lib/ld-musl-x86_64.so.1\0"), Program::Musl),
            (named(b"/odd/loader\0"), Program::Unknown),
            (elf(1, &[]), Program::Static),
            (elf(1, &[(PT_DYNAMIC, b"")]), Program::Static),
            (elf(0, &[(PT_DYNAMIC, b"")]), Program::Unknown),
            (
                b"#!/bin/sh -e\n".to_vec(),
                Program::Script("/bin/sh".into()),
            ),
            (
                b"#! /usr/bin/env python\n".to_vec(),
                Program::Script("/usr/bin/env".into()),
            ),
            (b"#!\n".to_vec(), Program::Unknown),
            (b"echo\n".to_vec(), Program::Unknown),
            (Vec::new(), Program::Unknown),
        ] {
            assert_eq!(program(&file), expected);
        }
        let me = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(program(&me), Program::Glibc);
    }

    #[test]
    fn half_a_file_is_no_answer_and_no_panic() {
        let whole = elf(
            1,
            &[
                (PT_DYNAMIC, b"x"),
                (PT_INTERP, b"/lib/ld-musl-x86_64.so.1\0"),
            ],
        );
        for length in 0..whole.len() {
            let _ = program(&whole[..length]);
        }
        assert_eq!(program(&whole), Program::Musl);
    }

    #[test]
    fn versions_of_glibc_are_read_as_numbers() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = maps
            .lines()
            .find(|line| line.ends_with("/libc.so.6"))
            .unwrap();
        let libc = std::fs::read(&libc[libc.find('/').unwrap()..]).unwrap();
        let me = std::fs::read("/proc/self/exe").unwrap();
        // A Rust program needs at least `GLIBC_2.14` (memcpy), which is less than `GLIBC_2.2.5` as text.
        let (has, needs) = (glibc(&libc).unwrap(), glibc(&me).unwrap());
        assert!(has >= needs && needs >= 14, "{has} {needs}");
        assert_eq!(glibc(b"GLIBC_2.34\0"), None);
        assert_eq!(glibc(b""), None);
        for length in (0..me.len()).step_by(me.len() / 100) {
            let _ = glibc(&me[..length]);
        }
    }
}
