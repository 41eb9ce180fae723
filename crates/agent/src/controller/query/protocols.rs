//! Protocol versions: of each interface between parts of Divvy that may come from different builds.
//!
//! | protocol | between | a part of another version |
//! |---|---|---|
//! | `api` | client and daemon | the header `divvy-version` of each answer names it; errors name both |
//! | `journal` | daemon and the file of another daemon | an older file is migrated, a newer one refused |
//! | `ledger` | daemon and limiter | the files of the slice are refused |
//! | `record` | daemon and supervisor | lines of a later version are skipped |

use std::collections::BTreeMap;

use crate::{job_dir, journal};

/// The versions of this build, by protocol.
pub fn protocols() -> BTreeMap<String, u32> {
    let all = [
        ("api", divvy_api::version::API),
        ("journal", journal::schema()),
        ("ledger", divvy_ledger::VERSION),
        ("record", job_dir::RECORD_VERSION),
    ];
    let named = all.into_iter();
    named
        .map(|(name, version)| (name.to_owned(), version))
        .collect()
}
