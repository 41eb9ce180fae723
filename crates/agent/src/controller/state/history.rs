//! The history's clock: when the last sample was taken, and what the samples have in common until the journal changes.

use std::collections::BTreeMap;

/// What [`record`](crate::controller::observe::history::record) keeps between two samples.
#[derive(Default)]
pub struct HistoryClock {
    /// The daemon keeps a history.
    pub is_kept: bool,
    /// The second of the last sample.
    pub second: i64,
    /// The journal's version that the counts are of.
    pub journal_version: Option<u64>,
    /// Waiting jobs, by subject. To count ten thousand takes longer than all the rest of a sample.
    pub waiting: BTreeMap<String, u32>,
}
