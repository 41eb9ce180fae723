//! The active set: which jobs the controller checks, as of one state of the journal.

use std::collections::HashMap;

use divvy_core::JobId;

use crate::model::policy::Tie;

/// The list, as of one version of the journal.
#[derive(Debug, Default)]
pub struct ActiveSet {
    pub jobs: Vec<JobId>,
    /// The jobs that end with each client; those that wait in a queue are not in the list above.
    pub tied: HashMap<Tie, Vec<JobId>>,
    /// The journal's version, as [`changes`](crate::journal::Store::changes) counts it.
    pub journal_version: Option<u64>,
    /// The journal's version when ended jobs were last removed.
    pub dropped: Option<u64>,
}
