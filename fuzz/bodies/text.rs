//! Random bytes, read as text that looks like what a grammar reads: pieces of its words, and now and then anything at all.

use super::input::Input;

/// Longest text, in pieces.
const MOST: u64 = 24;

pub fn text(input: &mut Input<'_>, pieces: &[&str]) -> String {
    let mut text = String::new();
    for _ in 0..input.below(MOST) {
        match input.byte() {
            // A piece most of the time.
            0..=223 => text.push_str(pieces[input.below(pieces.len() as u64) as usize]),
            224..=250 => text.push(char::from(input.byte())),
            _ => text.extend(char::from_u32(input.word() as u32 % 0x11_0000)),
        }
    }
    text
}
