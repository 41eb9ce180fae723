//! `cargo +nightly fuzz run queues`: words of the command line.
#![no_main]

#[allow(dead_code, reason = "shared with the other bodies")]
#[path = "../bodies/input.rs"]
mod input;
#[path = "../bodies/queues.rs"]
mod queues;
#[path = "../bodies/text.rs"]
mod text;

libfuzzer_sys::fuzz_target!(|data: &[u8]| queues::run(data));
