//! The words after `--queue` and `--gpus`: no text does harm, no queue is listed twice, and what is read and written again is the
//! same.

use std::collections::BTreeSet;

use divvy_core::{GpuSelection, QueueSpec, QueueWords, parse_gpus, parse_queues};

use super::input::Input;
use super::text::text;

const PIECES: &[&str] = &[
    "a",
    "b",
    "default",
    "gpu",
    "half_gpu",
    "=",
    "==",
    "0",
    "0.5",
    "0.25",
    "0.125",
    "0.1",
    "1",
    "2",
    "4",
    "1-4",
    "2-2",
    "4-1",
    "-",
    ",",
    ":",
    "..",
    " ",
    "all",
    "0-2",
    "0,1",
    "0:1",
    "1g.10gb",
    "4294967296",
    "1e3",
    "\t",
    "\u{7f}",
    "ü",
];

/// Most words on one line.
const MOST: u64 = 5;

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    while !input.is_empty() {
        let words: Vec<String> = (0..input.below(MOST))
            .map(|_| text(&mut input, PIECES))
            .collect();
        let kind = match input.byte() % 3 {
            0 => QueueWords::Any,
            1 => QueueWords::Amounts,
            _ => QueueWords::Names,
        };
        match parse_queues(&words, kind, input.byte() & 7 == 7) {
            Ok(queues) => {
                assert_eq!(queues.len(), words.len());
                let names: BTreeSet<_> = queues.iter().map(|queue| &queue.name).collect();
                assert_eq!(names.len(), queues.len(), "{words:?}");
                for QueueSpec { name, amount } in &queues {
                    let Some(amount) = amount else { continue };
                    let written = format!("{name}={amount}");
                    let read: QueueSpec = written
                        .parse()
                        .unwrap_or_else(|error| panic!("{words:?}: {written:?}: {error}"));
                    assert_eq!((&read.name, read.amount.as_ref()), (name, Some(amount)));
                }
            }
            Err(error) => assert!(!error.to_string().is_empty() && !error.hint().is_empty()),
        }
        match parse_gpus(&words) {
            Ok(GpuSelection::All) => {}
            Ok(GpuSelection::Indices(indices)) => {
                let sorted: BTreeSet<u32> = indices.iter().copied().collect();
                assert_eq!(sorted.len(), indices.len(), "{words:?}");
            }
            Ok(gpus @ GpuSelection::Uuids(_)) => {
                assert_eq!(parse_gpus(&[gpus.to_string()]), Ok(gpus), "{words:?}");
            }
            Err(error) => assert!(!error.to_string().is_empty() && !error.hint().is_empty()),
        }
    }
}
