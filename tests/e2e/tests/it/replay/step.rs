//! The vocabulary in which the steps of a program are written down.

use divvy_driver::Error;
use divvy_driver::probe::Place;
use serde::{Deserialize, Serialize};

/// What a step answered here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StepReport {
    pub calls: String,
    pub expects: String,
    pub result: StepResult,
    /// Observation, with its figures.
    pub seen: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepResult {
    /// The program would find what it expects.
    Ok,
    /// The program would find something else.
    Failed,
    /// This machine, driver or GPU lacks what the step needs.
    NotAvailable,
}

/// One step of a program.
pub struct Step {
    /// The functions that the program calls, in its order.
    pub calls: &'static str,
    pub expects: &'static str,
    /// File and function of the program.
    pub source: &'static str,
    pub act: Act,
}

/// An amount of memory, which an act rounds down to whole pieces.
#[derive(Clone, Copy, Debug)]
pub enum Amount {
    Bytes(u64),
    /// Thousandths of the total that `cuMemGetInfo` shows.
    OfTotal(u64),
    /// Thousandths of what `cuMemGetInfo` shows as free.
    OfFree(u64),
    /// The free memory without a reserve: the first where less than 2 GiB are free, else the second.
    FreeWithout(u64, u64),
}

/// How memory is shared with another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The descriptor of physical memory.
    Descriptor,
    /// A handle of legacy IPC.
    Ipc,
}

/// Calls, and the comparison of their answers.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    /// Totals are the limit; free agrees between CUDA and NVML to the byte.
    Views,
    /// `nvidia-smi` as a child shows the limit as the total.
    NvidiaSmi,
    /// A job on two GPUs sees equal totals.
    EqualGpus,
    /// Free stays while a neighbour in another slice allocates.
    Steady,
    /// Takes the highest part of the total that is free, in hundredths; the default is in hundredths too.
    Utilisation { default: u64 },
    /// Takes a part that a neighbour with the same limit has taken as well.
    AsNeighbour(u64),
    /// One block is granted, counts while it is held, and is free at once.
    Take { way: &'static str, amount: Amount },
    /// Blocks until one is refused: never beyond the limit, and nearly all of it.
    Fill { way: &'static str, block: u64 },
    /// Asks for less and less, by thousandths, until a block is granted.
    BackOff {
        way: &'static str,
        from: Amount,
        keeps: u64,
    },
    /// The list of processes has this one, with its memory.
    Listed,
    /// Maps pieces behind each other, in a thread without a context.
    GrowWithoutContext { piece: u64, pieces: u64 },
    /// Maps pieces until one is refused; those before stay.
    GrowUntilRefused { piece: u64 },
    /// Maps memory and releases its handles at once.
    GrowMappedOnly { piece: u64, pieces: u64 },
    /// Unmaps and releases pieces, and maps them again at the same addresses.
    Sleep { piece: u64, pieces: u64 },
    /// Stream-ordered memory stays reserved when freed, until the pool is trimmed.
    Pool { own: bool, amount: Amount },
    /// Memory that is refused while a graph is captured leaves the capture as it is.
    Capture,
    /// Physical memory of the host counts nothing.
    HostPhysical(Place),
    /// Pinned memory of the host counts nothing.
    Pinned(u64),
    /// Several processes of the slice hold a part each; their sum counts.
    Processes { count: usize, part: u64 },
    /// Processes that look and exit.
    Glances(usize),
    /// A process that holds memory is killed.
    Killed,
    /// Another process imports memory, which counts once.
    SharedOnce(By),
    /// Shareable memory beyond the limit is refused, and at once.
    RefusedSoon,
    /// Layers that fit what is free but a margin are granted.
    Layers { layer: u64, margin: u64 },
}

/// Why a step is not as expected.
#[derive(Debug)]
pub enum Trouble {
    Failed(String),
    NotAvailable(String),
}

/// The observation, in words.
pub type Seen = Result<String, Trouble>;

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        if error.is_unsupported() {
            Self::NotAvailable(error.to_string())
        } else {
            Self::Failed(error.to_string())
        }
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// The observation, as a failure unless `right`.
pub fn judged(right: bool, seen: String) -> Seen {
    if right {
        Ok(seen)
    } else {
        Err(Trouble::Failed(seen))
    }
}

impl Step {
    /// The step with its result.
    pub fn report(&self, seen: Seen) -> StepReport {
        let (result, seen) = match seen {
            Ok(seen) => (StepResult::Ok, seen),
            Err(Trouble::Failed(seen)) => (StepResult::Failed, seen),
            Err(Trouble::NotAvailable(seen)) => (StepResult::NotAvailable, seen),
        };
        StepReport {
            calls: self.calls.to_owned(),
            expects: self.expects.to_owned(),
            result,
            seen,
        }
    }
}
