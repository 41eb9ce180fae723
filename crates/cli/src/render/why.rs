//! `why`: one sentence, then GPU by GPU, then what would help.

use std::fmt::Write as _;

use divvy_api::v1::{JobState, Why, WhyGpu};

use crate::text;

/// The explanation as lines.
pub fn why(why: &Why) -> String {
    let (queue, summary) = (text::clean(&why.queue), text::clean(&why.summary));
    let mut lines = match (why.state, why.place) {
        (JobState::Queued, Some(place)) => format!(
            "#{} waits in queue {queue}, place {place}: {summary}\n",
            why.job
        ),
        (JobState::Queued, None) => format!("#{} waits in queue {queue}: {summary}\n", why.job),
        _ => format!("#{} does not wait: {summary}\n", why.job),
    };
    for gpu in &why.gpus {
        let _ = writeln!(
            lines,
            "  {:<7} {}",
            format!("gpu {}", gpu.gpu_index),
            one_gpu(gpu)
        );
    }
    if !why.behind.is_empty() {
        let ahead: Vec<String> = why.behind.iter().map(|id| format!("#{id}")).collect();
        let _ = writeln!(lines, "  {:<7} {}", "behind", ahead.join(", "));
    }
    for (at, change) in why.sooner.iter().enumerate() {
        let _ = writeln!(
            lines,
            "  {:<7} {}",
            if at == 0 { "sooner" } else { "" },
            text::clean(change)
        );
    }
    lines
}

fn one_gpu(gpu: &WhyGpu) -> String {
    let failed = if gpu.failed.is_empty() {
        "would fit".to_owned()
    } else {
        text::clean(&gpu.failed.join("; "))
    };
    match gpu.holders.as_slice() {
        [] => failed,
        holders => format!("{failed} ({})", text::clean(&holders.join(", "))),
    }
}
