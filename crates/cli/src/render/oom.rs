//! Output of `oom`: for each refusal the request, the free memory and the limit that the refused call needs.

use std::fmt::Write as _;

use divvy_api::v1::{JobState, Oom, OomAllocation, OomCause, OomKind, OomRecord};
use divvy_core::Bytes;

use super::View;
use crate::text;

/// The explanation as lines.
pub fn oom(oom: &Oom, view: View) -> String {
    let (id, name) = (&oom.job, text::clean(&oom.name));
    let mut lines = match (oom.denials, oom.records.len()) {
        (0, 0) => return format!("#{id} {name}: no GPU memory was refused\n"),
        (0, _) => format!("#{id} {name}: GPU memory was refused, but not by its limit\n"),
        (1, _) => format!("#{id} {name}: its limit refused GPU memory once\n"),
        (times, _) => format!("#{id} {name}: its limit refused GPU memory {times} times\n"),
    };
    let mut next = 0;
    for record in &oom.records {
        if record.number > next {
            let _ = writeln!(
                lines,
                "\n({} records in between were not kept)",
                record.number - next
            );
        }
        next = record.number.saturating_add(1);
        lines.push('\n');
        lines.push_str(&one(record, view));
    }
    if let Some(limit) = oom
        .records
        .iter()
        .filter_map(|record| record.sufficient_limit_bytes)
        .max()
    {
        let _ = writeln!(
            lines,
            "\nthe refused calls need a limit of {}; what the program requests after them is not known",
            size(limit).human()
        );
    }
    let suggested = oom.suggested.clone().map(divvy_core::Amount::try_from);
    if let Some(Ok(amount)) = suggested {
        let flag = amount.flag();
        let command = match oom.state {
            JobState::Running | JobState::Starting => format!("divvy resize {id} {flag}"),
            _ => format!("divvy run {flag} -- …"),
        };
        let _ = writeln!(lines, "with room for more: {command}");
    }
    lines
}

fn one(record: &OomRecord, view: View) -> String {
    let ago = text::elapsed(record.at, view.now);
    let asked = match record.asked_bytes {
        0 => "memory".to_owned(),
        _ if exceeds_gpu(record) => "more than a whole GPU".to_owned(),
        bytes => text::memory(bytes),
    };
    let gpu = record
        .gpu_index
        .map(|index| format!(" on GPU {index}"))
        .unwrap_or_default();
    let mut lines = format!(
        "{ago} ago  pid {} {}: {} requested {asked}{gpu}\n",
        record.pid,
        text::clean(&record.program),
        text::clean(&record.api)
    );
    let mut fact = |name: &str, value: String| {
        let _ = writeln!(lines, "  {name:<8} {value}");
    };
    fact("cause", cause(record));
    if record.gpu_index.is_some() {
        let own = format!("this process {}", text::memory(record.own_bytes));
        let peers = record
            .peers
            .iter()
            .map(|peer| format!("pid {} {}", peer.pid, text::memory(peer.used_bytes)));
        let unnamed = record.peer_count.saturating_sub(record.peers.len() as u64);
        let more = (unnamed > 0).then(|| format!("{unnamed} more processes"));
        let unseen = (record.unaccounted_bytes > 0).then(|| {
            format!(
                "without a known process {}",
                text::memory(record.unaccounted_bytes)
            )
        });
        let all = [own].into_iter().chain(peers).chain(more).chain(unseen);
        fact("used by", all.collect::<Vec<_>>().join(", "));
    }
    if !record.largest.is_empty() {
        let named: Vec<String> = record.largest.iter().map(allocation).collect();
        let counted: u64 = record
            .largest
            .iter()
            .map(|live| u64::from(live.count))
            .sum();
        let rest = record.allocations.saturating_sub(counted);
        let rest = (rest > 0).then(|| format!("{rest} smaller"));
        let all = named.into_iter().chain(rest);
        fact("holding", all.collect::<Vec<_>>().join(", "));
    }
    if let Some(limit) = record.sufficient_limit_bytes {
        fact("needs", format!("--gpu-memory {}, or more", size(limit)));
    }
    if record.skipped > 0 {
        let times = match record.skipped {
            1 => "once".to_owned(),
            times => format!("{times} times"),
        };
        fact("before", format!("refused {times} without a record"));
    }
    lines
}

/// The smallest limit that can be requested.
fn size(limit: u64) -> Bytes {
    Bytes::new(limit).round_up(Bytes::mib(1))
}

/// Whether the call asked for more than the GPU has: the driver refused it, and no limit would have granted it.
fn exceeds_gpu(record: &OomRecord) -> bool {
    record.cause == OomCause::GpuFull && record.asked_bytes > record.limit_bytes
}

/// The exhausted limit, with figures.
fn cause(record: &OomRecord) -> String {
    let slice = text::memories(&[record.used_bytes, record.limit_bytes]);
    let gpu = record
        .gpu_free_bytes
        .zip(record.gpu_total_bytes)
        .map(|(free, total)| text::memories(&[free, total]));
    match record.cause {
        OomCause::SliceFull => {
            let gpu = gpu.map_or_else(String::new, |gpu| format!("; the GPU had {gpu} free"));
            format!("the slice was full: {slice} in use{gpu}")
        }
        OomCause::GpuFull if exceeds_gpu(record) => {
            "the driver refused it: it is larger than the GPU, so no limit allows it".to_owned()
        }
        OomCause::GpuFull => {
            let gpu = gpu.map_or_else(String::new, |gpu| format!(": {gpu} free"));
            format!("the GPU was full{gpu}; the slice had room: {slice} in use")
        }
        OomCause::NotInSlice => "the GPU is not one of the job's".to_owned(),
        OomCause::Other => {
            "the driver refused it; the limit does not count this kind of memory".to_owned()
        }
    }
}

/// `2.1 GiB ×3 pool`.
fn allocation(live: &OomAllocation) -> String {
    let kind = match live.kind {
        OomKind::Linear => "linear",
        OomKind::Managed => "managed",
        OomKind::Pool => "pool",
        OomKind::Handle => "handle",
        OomKind::Array => "array",
        OomKind::Graph => "graph",
        OomKind::Imported => "imported",
        OomKind::Context => "context",
        OomKind::Other => "other",
    };
    let size = text::memory(live.bytes);
    match live.count {
        1 => format!("{size} {kind}"),
        count => format!("{count} × {size} {kind}"),
    }
}
