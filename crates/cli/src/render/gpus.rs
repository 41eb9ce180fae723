//! Output of `gpus`.

use divvy_api::v1::{ComputeTime, Gpu, GpuSlice, Node};

use super::{COMPUTE, View, mig};
use crate::table::{self, Column};
use crate::text;

/// One row a GPU.
pub fn gpus(gpus: &[Gpu], view: View) -> String {
    if gpus.is_empty() {
        return String::new();
    }
    let maps = gpus.iter().any(|gpu| gpu.mig.is_some());
    let mut columns = vec![
        Column::Right("GPU"),
        Column::Text("MODEL"),
        Column::Fixed("MODE"),
    ];
    columns.extend([
        Column::Right("USED/ALLOC/USABLE"),
        Column::Right("UTIL"),
        Column::Fixed("FREE"),
    ]);
    if view.wide {
        columns.extend([
            Column::Fixed("TOTAL"),
            Column::Fixed("CONTEXT"),
            Column::Right("MISMATCH"),
            Column::Fixed("LIMITS"),
            Column::Fixed("COMPUTE"),
        ]);
        if maps {
            columns.push(Column::Fixed("SLOTS"));
        }
        columns.push(Column::Fixed("UUID"));
    }
    columns.push(Column::Text("NOTE"));
    let rows: Vec<Vec<String>> = gpus.iter().map(|gpu| row(gpu, maps, view)).collect();
    table::render(&columns, &rows, view.fit())
}

fn row(gpu: &Gpu, maps: bool, view: View) -> Vec<String> {
    let figures = [
        gpu.memory_used_bytes,
        gpu.memory_allocated_bytes,
        gpu.memory_usable_bytes,
    ];
    let model = text::clean(&gpu.model);
    let model = if view.wide {
        &model
    } else {
        model.strip_prefix("NVIDIA ").unwrap_or(&model)
    };
    let mut cells = vec![
        gpu.index.to_string(),
        model.to_owned(),
        gpu.mode.clone(),
        text::memories(&figures),
    ];
    cells.push(
        gpu.utilization_percent
            .map_or_else(|| "–".to_owned(), |percent| format!("{percent}%")),
    );
    cells.push(free(gpu));
    if view.wide {
        cells.extend([
            text::memory(gpu.memory_total_bytes),
            text::memory(gpu.context_overhead_bytes),
            mismatch(gpu),
        ]);
        let compute = match gpu.mig {
            Some(_) => "by instance",
            None => COMPUTE,
        };
        cells.extend([
            text::enforcement(&gpu.enforcement).into_owned(),
            compute.to_owned(),
        ]);
        if maps {
            cells.push(gpu.mig.as_ref().map(mig::slot_map).unwrap_or_default());
        }
        cells.push(gpu.uuid.clone());
    }
    cells.push(note(gpu, view));
    cells
}

/// Free capacity for a new job: `0.25, 19.8 GiB`, or `up to 3g.20gb`.
fn free(gpu: &Gpu) -> String {
    let is_elsewhere = gpu.mig.is_some() && !gpu.held_elsewhere.is_empty();
    if let Some(mig) = gpu
        .mig
        .as_ref()
        .filter(|_| gpu.problem.is_none() && !is_elsewhere)
    {
        return mig::room(mig);
    }
    let elsewhere = gpu.held_elsewhere.iter();
    let share = elsewhere.clone().fold(gpu.share_allocated, |sum, held| {
        sum.saturating_add(held.share)
    });
    let share = 1000u16.saturating_sub(share);
    let taken = elsewhere.fold(gpu.memory_allocated_bytes, |sum, held| {
        sum.saturating_add(held.memory_bytes)
    });
    let taken = taken.saturating_add(gpu.memory_unmanaged_bytes);
    let memory = gpu.memory_usable_bytes.saturating_sub(taken);
    let none = ["unmanaged", "mig"].contains(&gpu.mode.as_str());
    if none || share == 0 || memory == 0 {
        return "–".to_owned();
    }
    format!("{}, {}", text::share(share), text::memory(memory))
}

/// `#3 gpu0.25a`, with what it uses of the GPU's time where that is measured; wide, with its share and how long it has waited, too.
fn slice(slice: &GpuSlice, view: View) -> String {
    let uses = |time: ComputeTime| {
        let used = time.share_used?;
        Some(format!("uses {}", text::share(used)))
    };
    let time = slice.compute_time.and_then(|time| match view.wide {
        true => Some(text::compute_time(&time)),
        false => uses(time),
    });
    let time = time.map(|time| format!(" ({time})")).unwrap_or_default();
    format!("#{} {}{time}", slice.job, slice.label)
}

/// By how much the accounts are off the driver's figures, now and at most.
fn mismatch(gpu: &Gpu) -> String {
    match gpu.memory_mismatch_bytes {
        Some(now) => text::memories(&[now, gpu.memory_mismatch_max_bytes]),
        None if gpu.process_memory_known => "–".to_owned(),
        None => "unknown".to_owned(),
    }
}

/// Holders of slices, users of the GPU outside slices, and bypasses.
fn note(gpu: &Gpu, view: View) -> String {
    let slices = gpu.slices.iter().map(|held| slice(held, view));
    let slices: Vec<String> = slices.collect();
    let pids: Vec<String> = gpu.unmanaged_pids.iter().map(u32::to_string).collect();
    let outside = match (pids.as_slice(), gpu.memory_unmanaged_bytes) {
        ([], 0) => String::new(),
        // They are other daemons' jobs.
        (_, 0) if !gpu.held_elsewhere.is_empty() => String::new(),
        // By no stranger: by jobs, past their slices or on GPUs that are not theirs.
        ([], bytes) => format!("{} held by jobs beyond their slices", text::memory(bytes)),
        (pids, bytes) => format!(
            "{} held outside Divvy by pid {}",
            text::memory(bytes),
            pids.join(", ")
        ),
    };
    let elsewhere = gpu.held_elsewhere.iter().map(|held| {
        let (share, memory) = (text::share(held.share), text::memory(held.memory_bytes));
        format!("{share} ({memory}) held by {}", text::clean(&held.holder))
    });
    let elsewhere: Vec<String> = elsewhere.collect();
    let past: Vec<String> = gpu.bypass_pids.iter().map(u32::to_string).collect();
    let past = match past.as_slice() {
        [] => String::new(),
        pids => format!("bypass by pid {}", pids.join(", ")),
    };
    let blind = match gpu.process_memory_known {
        true => String::new(),
        false => "the driver does not report the memory of each process".to_owned(),
    };
    let trouble = gpu.problem.as_deref().map(text::clean).unwrap_or_default();
    let parts = [
        slices.join(", "),
        elsewhere.join(", "),
        trouble,
        outside,
        past,
        blind,
    ];
    parts
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}

/// The line below the table: enforcement of limits, and source of the GPUs.
pub fn gpus_footer(gpus: &[Gpu], node: &Node) -> String {
    let mut kinds: Vec<_> = (gpus.iter())
        .map(|gpu| text::enforcement(&gpu.enforcement))
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    let source = match &node.simulated {
        Some(models) => format!("simulated GPUs: {models}"),
        None => format!("driver: {}", node.driver_version),
    };
    format!(
        "memory limits: {} (on bypass: {}) · compute: {COMPUTE} · {source}\n",
        kinds.join(", "),
        node.on_bypass,
    )
}
