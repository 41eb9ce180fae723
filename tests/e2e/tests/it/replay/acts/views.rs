//! The memory that the driver shows.

use std::process::Command;
use std::time::Duration;

use divvy_testkit::{Bounded as _, let_pass};

use crate::replay::child::failure_message;
use crate::replay::stage::{MIB, PIECE, Stage, near};
use crate::replay::step::{Seen, Trouble, judged};

/// How often free memory is read beside the neighbour, and the pause between: the neighbour allocates many times meanwhile.
const LOOKS: u32 = 40;
const PAUSE: Duration = Duration::from_millis(10);

/// The limit as every total; free memory of CUDA and of NVML, to the byte.
pub fn views(stage: &Stage) -> Seen {
    let device_total = stage.session.device_total()?;
    let info = stage.info()?;
    let nvml = stage.nvml_memory()?;
    let totals = [device_total, info.total, nvml.total];
    if totals == [stage.limit; 3] && info.free == nvml.free {
        return Ok(format!(
            "total {} and free {}, by CUDA and by NVML",
            info.total, info.free
        ));
    }
    Err(Trouble::Failed(format!(
        "total {device_total} (device), {} (CUDA), {} (NVML); free {} (CUDA), {} (NVML); limit {}",
        info.total, nvml.total, info.free, nvml.free, stage.limit
    )))
}

pub fn nvidia_smi(stage: &Stage) -> Seen {
    let mut command = Command::new("nvidia-smi");
    command.args(["--query-gpu=memory.total", "--format=csv,noheader,nounits"]);
    let output = match command.output_bounded() {
        Ok(output) if output.status.success() => output,
        Ok(output) => return Err(Trouble::Failed(failure_message(&output))),
        Err(error) => return Err(Trouble::NotAvailable(format!("nvidia-smi: {error}"))),
    };
    // The program takes the least of all GPUs; those outside the slice show their own totals.
    let said = String::from_utf8_lossy(&output.stdout);
    let least = said
        .lines()
        .filter_map(|line| line.trim().parse::<u64>().ok())
        .min();
    let limit = stage.limit / MIB;
    match least {
        Some(least) => judged(least == limit, format!("{least} MiB; limit {limit} MiB")),
        None => Err(Trouble::Failed(format!("no figure in {:?}", said.trim()))),
    }
}

pub fn equal_gpus(stage: &Stage) -> Seen {
    let missing = || Trouble::NotAvailable("no second GPU has room".to_owned());
    let gpus = stage.around.pair.as_ref().ok_or_else(missing)?;
    let totals = gpus
        .iter()
        .flat_map(|gpu| [gpu.cuda_total_bytes, gpu.nvml_total_bytes]);
    let totals: Vec<u64> = totals.collect();
    let words: Vec<String> = totals.iter().map(u64::to_string).collect();
    let right = gpus.len() > 1 && totals.iter().all(|total| *total == totals[0]);
    let seen = format!("totals on {} GPUs: {}", gpus.len(), words.join(", "));
    judged(right, seen)
}

pub fn steady(stage: &Stage) -> Seen {
    let (mut least, mut most) = (u64::MAX, 0);
    for _ in 0..LOOKS {
        let free = stage.info()?.free;
        (least, most) = (least.min(free), most.max(free));
        let_pass(PAUSE);
    }
    let seen = format!(
        "{LOOKS} looks: at least {least} free, at most {} more",
        most - least
    );
    judged(near(least, most), seen)
}

/// This process in NVML's list, with what it holds.
pub fn listed(stage: &Stage) -> Seen {
    let bytes = stage.limit / 4 / PIECE * PIECE;
    let _held = stage.take("cuMemAlloc_v2", bytes)?;
    let nvml = stage.nvml.as_ref().map_err(Clone::clone)?;
    let device = nvml.device_by_uuid(stage.session.uuid()?)?;
    let processes = device.processes()?;
    let me = std::process::id();
    let own = processes.iter().find(|process| process.pid == me);
    match own.map(|process| process.used) {
        Some(None) => Err(Trouble::NotAvailable(
            "the driver reports no memory of processes".to_owned(),
        )),
        Some(Some(used)) => judged(
            (bytes..=stage.limit).contains(&used) && processes.len() == 1,
            format!(
                "{} process; this one with {used} bytes, {bytes} of them taken now",
                processes.len()
            ),
        ),
        None => Err(Trouble::Failed(format!(
            "this process is not among {}",
            processes.len()
        ))),
    }
}
