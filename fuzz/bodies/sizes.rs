//! Sizes, shares and amounts: no text does harm, and what is read and written again is the same.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use divvy_core::{Amount, Bytes, Compute, GpuUuid, Gpus, Isolation, JobId, MigProfile, Share};

use super::input::Input;
use super::text::text;

const PIECES: &[&str] = &[
    "0",
    "1",
    "2",
    "5",
    "9",
    "10",
    "25",
    "125",
    "999",
    "1000",
    "4294967295",
    "18446744073709551615",
    "18446744073709551616",
    ".",
    "0.",
    "-",
    "+",
    "x",
    "X",
    "e",
    "_",
    " ",
    "k",
    "K",
    "M",
    "G",
    "T",
    "P",
    "E",
    "i",
    "B",
    "iB",
    "b",
    "GiB",
    "gb",
    "g",
    "1g.5gb",
    "2g.10gb",
    "+me",
    ".all",
    "fair",
    "strict",
    "none",
    "=",
    "driver",
    "GPU-",
    "#",
    "٣",
    "²",
];

fn there_and_back<T>(text: &str)
where
    T: FromStr<Err: Display> + Display + PartialEq + Debug,
{
    match text.parse::<T>() {
        Ok(value) => {
            let written = value.to_string();
            let read = written.parse::<T>();
            let read = read.unwrap_or_else(|error| panic!("{text:?}: {written:?}: {error}"));
            assert_eq!(read, value, "{text:?}: {written:?}");
        }
        Err(error) => assert!(
            !error.to_string().is_empty(),
            "{text:?} is refused without a reason"
        ),
    }
}

/// An amount is read back from what it is written as, by the flag that it came from.
fn amount<E: Display>(text: &str, read: fn(&str) -> Result<Amount, E>) {
    match read(text) {
        Ok(amount) => {
            let written = amount.to_string();
            let again =
                read(&written).unwrap_or_else(|error| panic!("{text:?}: {written:?}: {error}"));
            assert_eq!(again, amount, "{text:?}: {written:?}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    while !input.is_empty() {
        let text = text(&mut input, PIECES);
        there_and_back::<Bytes>(&text);
        there_and_back::<Share>(&text);
        there_and_back::<Gpus>(&text);
        there_and_back::<Compute>(&text);
        there_and_back::<Isolation>(&text);
        there_and_back::<MigProfile>(&text);
        there_and_back::<GpuUuid>(&text);
        there_and_back::<JobId>(&text);
        amount(&text, Amount::from_gpu_flag);
        amount(&text, Amount::from_memory_flag);
        amount(&text, Amount::from_mig_flag);
    }
}
