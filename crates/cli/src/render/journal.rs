//! Output of `admin journal`: the written file, and the place of the journal that it replaced.

use std::fmt::Write as _;

use divvy_api::v1::JournalFile;

use crate::text;

/// A copy that was written, or one that is the journal now.
pub fn journal(done: &JournalFile) -> String {
    let JournalFile {
        path,
        jobs_living,
        jobs_ended,
        replaced,
    } = done;
    let mut lines = format!(
        "{}: {jobs_living} pending or running jobs, {jobs_ended} ended jobs\n",
        text::clean(path)
    );
    if let Some(replaced) = replaced {
        let _ = writeln!(lines, "  previous journal: {}", text::clean(replaced));
    }
    lines
}
