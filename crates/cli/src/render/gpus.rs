//! Output of `gpus`.

use divvy_api::v1::{ComputeTime, Gpu, GpuProcess, GpuSlice, Node};

use super::{COMPUTE, View, mig};
use crate::colour::Tone;
use crate::table::{self, Cells, Column, Spare};
use crate::text;

/// Most processes of a GPU that a note names. A longer note would not fit a line; `divvy gpus -o json` has all.
const MOST_NAMED: usize = 4;

/// One row a GPU.
pub fn gpus(gpus: &[Gpu], view: View) -> String {
    if gpus.is_empty() {
        return String::new();
    }
    let maps = gpus.iter().any(|gpu| gpu.mig.is_some());
    let mut columns = vec![
        Column::Right("GPU"),
        Column::Text("MODEL"),
        Column::Spare("MODE", Spare::If("shared")),
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
    let mut cells = Cells::coloured(view.palette);
    for gpu in gpus {
        row(gpu, maps, view).iter().for_each(|cell| cells.add(cell));
        let is_bad = gpu.problem.is_some() || gpu.lost.is_some() || !gpu.bypass_pids.is_empty();
        cells.add_in(is_bad.then_some(Tone::Bad), &note(gpu, view));
        cells.end_row();
    }
    cells.render(&columns, view.fit())
}

/// One row a GPU of a machine without a daemon, by the driver alone.
pub fn unmanaged_gpus(gpus: &[Gpu], view: View) -> String {
    if gpus.is_empty() {
        return String::new();
    }
    let columns = [
        Column::Right("GPU"),
        Column::Text("MODEL"),
        Column::Right("USED/TOTAL"),
        Column::Right("UTIL"),
        Column::Right("TEMP"),
        Column::Right("POWER"),
        Column::Text("PROCESSES"),
    ];
    let absent = || "–".to_owned();
    let mut cells = Cells::coloured(view.palette);
    for gpu in gpus {
        cells.add(&gpu.index.to_string());
        cells.add(&model(gpu, view));
        cells.add(&text::memories(&[
            gpu.memory_used_bytes,
            gpu.memory_total_bytes,
        ]));
        cells.add(
            &gpu.utilization_percent
                .map_or_else(absent, |percent| format!("{percent}%")),
        );
        cells.add(
            &gpu.temperature_celsius
                .map_or_else(absent, |celsius| format!("{celsius} °C")),
        );
        cells.add(
            &gpu.power_watts
                .map_or_else(absent, |watts| format!("{watts} W")),
        );
        let trouble = gpu.problem.as_deref().map(text::clean);
        let tone = trouble.is_some().then_some(Tone::Bad);
        cells.add_in(tone, &trouble.unwrap_or_else(|| people(gpu)));
        cells.end_row();
    }
    cells.render(&columns, view.fit())
}

/// The model, without the manufacturer where room is scarce.
fn model(gpu: &Gpu, view: View) -> String {
    let model = text::clean(&gpu.model);
    match model.strip_prefix("NVIDIA ") {
        Some(short) if !view.wide => short.to_owned(),
        _ => model,
    }
}

fn row(gpu: &Gpu, maps: bool, view: View) -> Vec<String> {
    let figures = [
        gpu.memory_used_bytes,
        gpu.memory_allocated_bytes,
        gpu.memory_usable_bytes,
    ];
    let mut cells = vec![
        gpu.index.to_string(),
        model(gpu, view),
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
    let Some(available) = &gpu.available else {
        return "–".to_owned();
    };
    let share = (available.share > 0).then(|| text::share(available.share));
    let memory = (available.memory_bytes > 0).then(|| text::memory_down(available.memory_bytes));
    let parts: Vec<String> = share.into_iter().chain(memory).collect();
    parts.join(", ")
}

/// `ana python (pid 13640) 1.4 GiB`, of the largest processes outside Divvy.
fn people(gpu: &Gpu) -> String {
    let one = |process: &GpuProcess| {
        let user = process.user.as_deref().map(text::clean);
        let program = process.program.as_deref().map(text::clean);
        let who: Vec<String> = user.into_iter().chain(program).collect();
        let pid = if who.is_empty() {
            format!("pid {}", process.pid)
        } else {
            format!("{} (pid {})", who.join(" "), process.pid)
        };
        match process.memory_bytes {
            Some(memory) => format!("{pid} {}", text::memory(memory)),
            None => pid,
        }
    };
    let mut named: Vec<String> = gpu.processes.iter().take(MOST_NAMED).map(one).collect();
    let more = gpu.unmanaged_pids.len().saturating_sub(named.len());
    if more > 0 && !named.is_empty() {
        named.push(format!("{more} more"));
    }
    named.join(", ")
}

/// `#3 ana gpu0:0.25a`, with what it uses of the GPU's time where that is measured; wide, with its share and how long it has waited, too.
fn slice(slice: &GpuSlice, view: View) -> String {
    let uses = |time: ComputeTime| {
        let used = time.share_used?;
        Some(format!("{} % busy", (used + 5) / 10))
    };
    let time = slice.compute_time.and_then(|time| {
        if view.wide {
            Some(text::compute_time(&time))
        } else {
            uses(time)
        }
    });
    let time = time.map(|time| format!(" ({time})")).unwrap_or_default();
    let user = match slice.user.as_str() {
        "" => String::new(),
        user => format!("{} ", text::clean(user)),
    };
    let label = text::labels([&*slice.label]);
    format!("#{} {user}{label}{time}", slice.job)
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
    let unlisted = match gpu.memory_unlisted_bytes {
        0 => String::new(),
        bytes => format!(
            "{} in use by no listed process{}",
            text::memory(bytes),
            holder(gpu)
        ),
    };
    let listed = gpu
        .memory_unmanaged_bytes
        .saturating_sub(gpu.memory_unlisted_bytes);
    let outside = match (pids.as_slice(), listed) {
        ([], 0) => String::new(),
        // They are other daemons' jobs.
        (_, 0) if !gpu.held_elsewhere.is_empty() => String::new(),
        // By no stranger: by jobs, past their slices or on GPUs that are not theirs.
        ([], bytes) => format!("{} held by jobs beyond their slices", text::memory(bytes)),
        _ if !gpu.processes.is_empty() => format!("outside Divvy: {}", people(gpu)),
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
    let blind = if gpu.process_memory_known {
        String::new()
    } else {
        "the driver does not report the memory of each process".to_owned()
    };
    let trouble = gpu.problem.as_deref().map(text::clean).unwrap_or_default();
    let parts = [
        slices.join(", "),
        elsewhere.join(", "),
        trouble,
        outside,
        unlisted,
        past,
        blind,
    ];
    parts
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}

/// The job that may hold what no listed process does.
fn holder(gpu: &Gpu) -> String {
    let Some(holder) = &gpu.memory_unlisted_holder else {
        return String::new();
    };
    format!(
        ": #{} may, pid {} has {} descriptors for it",
        holder.job, holder.pid, holder.descriptors
    )
}

/// The line below the table: enforcement of limits, and source of the GPUs.
pub fn gpus_footer(gpus: &[Gpu], node: &Node, view: View) -> String {
    let mut kinds: Vec<_> = (gpus.iter())
        .map(|gpu| text::enforcement(&gpu.enforcement))
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    let source = match &node.simulated {
        Some(models) => format!("simulated GPUs: {models}"),
        None => format!("driver: {}", node.driver_version),
    };
    let text = format!(
        "memory limits: {} (on bypass: {}) · compute: {COMPUTE} · {source}\n",
        kinds.join(", "),
        node.on_bypass,
    );
    table::wrapped(&text, view.width, 0)
}
