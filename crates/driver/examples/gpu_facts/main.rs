//! What a driver really does where the limiter and the simulator rely on it: measured, one fact a run, as JSON on stdout.
//!
//! ```text
//! gpu_facts list            the facts, and what each decides
//! gpu_facts FACT            measures it in this process, which should be fresh: one JSON object; exits with 69 where it cannot be had
//! ```
//! `cargo xtask gpu` runs all of them and writes a report; docs/hardware.md says what was found on which hardware. Nothing here
//! changes a setting of a GPU; memory is taken and given back, and `memory_limits` limits a control group of its own
//! alone.

mod arrays;
mod costs;
mod gpu;
mod groups;
mod growth;
mod linear;
mod pools;
mod sharing;

use std::io::Write;
use std::process::ExitCode;

use serde_json::Value;

/// What a fact is measured with, or why it could not be.
type Answer = Result<Value, Box<dyn std::error::Error>>;

/// Exit code of a fact that cannot be found out here (EX_UNAVAILABLE of sysexits.h).
const NOT_AVAILABLE: u8 = 69;

/// One thing to find out.
struct Fact {
    name: &'static str,
    /// Which belief of ours it confirms or refutes.
    decides: &'static str,
    measure: fn() -> Answer,
}

const FACTS: &[Fact] = &[
    Fact {
        name: "machine",
        decides: "the machine, GPU and driver that the other facts apply to",
        measure: gpu::machine,
    },
    Fact {
        name: "context_bytes",
        decides: "the overhead of a first and a second context, and of lazily loaded code",
        measure: linear::context_bytes,
    },
    Fact {
        name: "alloc_sizes",
        decides: "how cuMemAlloc rounds: multiples of 512 bytes below 1 MiB, of 2 MiB from there on",
        measure: linear::alloc_sizes,
    },
    Fact {
        name: "managed_bytes",
        decides: "whether managed memory takes GPU memory at allocation or at first use",
        measure: linear::managed_bytes,
    },
    Fact {
        name: "array_sizes",
        decides: "the memory of arrays beyond their elements, and whether an array with deferred mapping reports it in advance",
        measure: arrays::sizes,
    },
    Fact {
        name: "green_contexts",
        decides: "the multiprocessors of green contexts, and the memory that such a context takes",
        measure: growth::green_contexts,
    },
    Fact {
        name: "pool_segments",
        decides: "how pools grow (32 MiB), and when they release memory",
        measure: pools::segments,
    },
    Fact {
        name: "pool_reclaim",
        decides: "whether the driver reclaims the cached memory of pools before it reports out of memory",
        measure: pools::reclaim,
    },
    Fact {
        name: "context_limits",
        decides: "the memory of stacks, printf buffers and device heaps, and when it is taken",
        measure: growth::context_limits,
    },
    Fact {
        name: "graph_bytes",
        decides: "when memory nodes of graphs allocate memory, and when they free it",
        measure: growth::graph_bytes,
    },
    Fact {
        name: "ipc_accounting",
        decides: "for which process NVML counts memory opened by IPC handle",
        measure: sharing::ipc,
    },
    Fact {
        name: "vmm_accounting",
        decides: "for which process NVML counts memory imported by descriptor",
        measure: sharing::vmm,
    },
    Fact {
        name: "memory_limits",
        decides: "whether the driver limits a control group, where it refuses, and what it counts and shows",
        measure: groups::memory_limits,
    },
    Fact {
        name: "kill_return",
        decides: "how long after SIGKILL a process's memory is free again",
        measure: sharing::kill_return,
    },
    Fact {
        name: "call_cost",
        decides: "the cost of the calls that the limiter makes or intercepts",
        measure: costs::calls,
    },
    Fact {
        name: "call_turns",
        decides: "the cost that the limiter adds to these calls, by turns in one process",
        measure: costs::turns,
    },
    Fact {
        name: "event_cost",
        decides: "the cost of measuring device time with events, and of handing a turn over by futex",
        measure: costs::events,
    },
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["list"] => list(),
        ["hold", bytes] => sharing::hold(bytes),
        ["open", handle] => sharing::open(handle),
        ["import", descriptor] => sharing::import(descriptor),
        [name] => FACTS
            .iter()
            .find(|fact| fact.name == name)
            .ok_or_else(|| format!("unknown fact {name}; see `gpu_facts list`").into())
            .and_then(|fact| say(&(fact.measure)()?)),
        _ => Err("usage: gpu_facts list | gpu_facts FACT".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu_facts: {error}");
            if error.is::<gpu::NotAvailable>() {
                ExitCode::from(NOT_AVAILABLE)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

fn list() -> Result<(), Box<dyn std::error::Error>> {
    let facts = FACTS
        .iter()
        .map(|fact| serde_json::json!({"name": fact.name, "decides": fact.decides}));
    say(&facts.collect())
}

/// One line, at once: another process may be waiting for it.
fn say(value: &Value) -> Result<(), Box<dyn std::error::Error>> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{value}")?;
    Ok(stdout.flush()?)
}
