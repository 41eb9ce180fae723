//! Out-of-memory reports: from the ledger's denial records to the API's type. What it wrote is its own word: shown, and
//! not believed.

use divvy_api::v1::{OomAllocation, OomCause, OomKind, OomPeer, OomRecord};
use divvy_core::Bytes;
use divvy_ledger::{AllocationKind, Denial, DenialCause, boot_time_ns};
use jiff::{SignedDuration, Timestamp};

use crate::host::clock::now;
use crate::model::job::Allocation;

/// The records of a slice, its GPUs named.
pub fn to_api(denials: &[Denial], holdings: &[Allocation]) -> Vec<OomRecord> {
    let (booted_for, now) = (boot_time_ns(), now());
    denials
        .iter()
        .map(|denial| record(denial, holdings, booted_for, now))
        .collect()
}

/// A refusal by the limit in one line.
pub fn describe(denial: &Denial) -> Option<String> {
    let figures =
        [denial.requested, denial.used, denial.limit].map(|bytes| Bytes::new(bytes).human());
    let [asked, used, limit] = figures;
    let needed = Bytes::new(denial.used.saturating_add(denial.requested)).round_up(Bytes::mib(1));
    (denial.cause == DenialCause::SliceFull).then(|| {
        format!(
            "out of GPU memory: {} requested {asked} with {used} of {limit} in use; this call needs --gpu-memory {needed} at least",
            denial.api.as_str()
        )
    })
}

fn record(denial: &Denial, holdings: &[Allocation], booted_for: u64, now: Timestamp) -> OomRecord {
    let grant = denial
        .gpu
        .and_then(|gpu| holdings.get(gpu))
        .map(|holding| &holding.grant);
    // Nothing is refused in times to come.
    let ago = i64::try_from(booted_for.saturating_sub(denial.at)).unwrap_or(i64::MAX);
    let at = now
        .checked_sub(SignedDuration::from_nanos(ago))
        .unwrap_or(now);
    let of_gpu = |figure: u64| (denial.gpu_total > 0).then_some(figure);
    let sufficient = || denial.used.saturating_add(denial.requested);
    OomRecord {
        number: denial.number,
        at,
        pid: denial.owner.pid,
        program: denial.program.as_str().to_owned(),
        api: denial.api.as_str().to_owned(),
        cause: cause(denial.cause),
        gpu_uuid: grant.map(|grant| grant.gpu.to_string()),
        gpu_index: grant.map(|grant| grant.index),
        asked_bytes: denial.requested,
        limit_bytes: denial.limit,
        used_bytes: denial.used,
        own_bytes: denial.own,
        unaccounted_bytes: denial.unseen,
        gpu_free_bytes: of_gpu(denial.gpu_free),
        gpu_total_bytes: of_gpu(denial.gpu_total),
        sufficient_limit_bytes: (denial.cause == DenialCause::SliceFull).then(sufficient),
        skipped: denial.skipped,
        allocations: denial.allocations,
        largest: denial
            .largest
            .iter()
            .map(|live| OomAllocation {
                bytes: live.bytes,
                count: live.count,
                kind: kind(live.kind),
            })
            .collect(),
        peer_count: denial.peer_count,
        peers: denial
            .peers
            .iter()
            .map(|peer| OomPeer {
                pid: peer.pid,
                used_bytes: peer.used,
            })
            .collect(),
    }
}

fn cause(cause: DenialCause) -> OomCause {
    match cause {
        DenialCause::SliceFull => OomCause::SliceFull,
        DenialCause::GpuFull => OomCause::GpuFull,
        DenialCause::NotInSlice => OomCause::NotInSlice,
        DenialCause::Other => OomCause::Other,
    }
}

fn kind(kind: AllocationKind) -> OomKind {
    match kind {
        AllocationKind::Linear => OomKind::Linear,
        AllocationKind::Managed => OomKind::Managed,
        AllocationKind::Pool => OomKind::Pool,
        AllocationKind::Handle => OomKind::Handle,
        AllocationKind::Array => OomKind::Array,
        AllocationKind::Graph => OomKind::Graph,
        AllocationKind::Imported => OomKind::Imported,
        AllocationKind::Context => OomKind::Context,
        AllocationKind::Other => OomKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_dated_by_how_long_ago_it_was_and_never_in_times_to_come() {
        let now = now();
        let at = |at: u64| {
            let denial = Denial {
                at,
                ..Denial::default()
            };
            record(&denial, &[], 5_000_000_000, now).at
        };
        assert_eq!(at(3_000_000_000), now - SignedDuration::from_secs(2));
        assert_eq!(at(u64::MAX), now);
    }

    #[test]
    fn only_a_full_slice_could_have_had_a_larger_limit() {
        let of = |cause, used| {
            let denial = Denial {
                cause,
                used,
                requested: 50,
                ..Denial::default()
            };
            record(&denial, &[], 0, now()).sufficient_limit_bytes
        };
        assert_eq!(of(DenialCause::SliceFull, 70), Some(120));
        assert_eq!(of(DenialCause::SliceFull, u64::MAX), Some(u64::MAX));
        assert_eq!(of(DenialCause::GpuFull, 70), None);
        assert_eq!(of(DenialCause::NotInSlice, 70), None);
    }
}
