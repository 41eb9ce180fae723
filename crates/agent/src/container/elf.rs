//! What a program needs to be loaded, read from its first bytes (elf(5)), and which glibc a library wants or is.

/// A program, as far as it matters to a limiter that is a glibc library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// glibc's loader loads it.
    Glibc,
    Musl,
    /// Nothing loads it.
    Static,
    /// `#!`: another program runs it.
    Script(String),
    /// None of these: it may still be a script that a shell runs.
    Unknown,
}

const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;

/// What `head`, the first bytes of a file, says.
pub fn program(head: &[u8]) -> Program {
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let text = String::from_utf8_lossy(line);
        let interpreter = text.split_ascii_whitespace().next();
        return interpreter.map_or(Program::Unknown, |name| Program::Script(name.to_owned()));
    }
    // 64 bits, little endian.
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return Program::Unknown;
    }
    let mut dynamic = false;
    for (kind, offset, size) in segments(head) {
        match kind {
            PT_INTERP => {
                let end = offset.saturating_add(size).min(head.len());
                let name = head.get(offset..end).unwrap_or_default();
                return match String::from_utf8_lossy(name) {
                    name if name.contains("ld-musl") => Program::Musl,
                    name if name.contains("ld-linux") => Program::Glibc,
                    _ => Program::Unknown,
                };
            }
            PT_DYNAMIC => dynamic = true,
            _ => {}
        }
    }
    // The loader itself and libraries have no loader named, and are none of these; a static program that may lie anywhere
    // looks the same, and is one.
    match dynamic && !is_executable(head) {
        true => Program::Unknown,
        false => Program::Static,
    }
}

/// An entry address: libraries mostly have none.
fn is_executable(head: &[u8]) -> bool {
    number(head, 24, 8).is_some_and(|entry| entry != 0)
}

/// Type, offset and size of each program header.
fn segments(head: &[u8]) -> impl Iterator<Item = (u32, usize, usize)> + '_ {
    let at = number(head, 32, 8).unwrap_or(0);
    let size = number(head, 54, 2).unwrap_or(0);
    let count = number(head, 56, 2).unwrap_or(0);
    (0..count).map_while(move |index| {
        let start = at.checked_add(index.checked_mul(size)?)?;
        Some((
            u32::try_from(number(head, start, 4)?).ok()?,
            number(head, start.checked_add(8)?, 8)?,
            number(head, start.checked_add(32)?, 8)?,
        ))
    })
}

fn number(bytes: &[u8], at: usize, size: usize) -> Option<usize> {
    let mut word = [0; 8];
    word.get_mut(..size)?
        .copy_from_slice(bytes.get(at..at.checked_add(size)?)?);
    usize::try_from(u64::from_le_bytes(word)).ok()
}

/// The highest minor number among the `GLIBC_2.N` in a library: what it needs, or, of glibc itself, what it offers.
pub fn glibc(library: &[u8]) -> Option<u32> {
    const NAME: &[u8] = b"GLIBC_2.";
    let names = library.windows(NAME.len()).enumerate();
    let found = names
        .filter(|(_, window)| *window == NAME)
        .filter_map(|(at, _)| {
            let digits = library.get(at + NAME.len()..)?;
            let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
            std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
        });
    found.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A 64-bit file with these segments: type and contents.
    fn elf(entry: u64, segments: &[(u32, &[u8])]) -> Vec<u8> {
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
            header[..4].copy_from_slice(&kind.to_le_bytes());
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
        assert_eq!(glibc(b"..GLIBC_2.9\0GLIBC_2.34\0GLIBC_2.2.5\0"), Some(34));
        assert_eq!(glibc(b"GLIBC_2."), None);
        assert_eq!(glibc(b""), None);
    }
}
