//! What a job's output and its comment have after a step.

use divvy_api::v1::{Bypass, Slice};
use divvy_core::Bytes;
use spank_divvy::record::Reported;

use super::config::Config;
use super::daemon::{Daemon, Trouble};
use super::environment::records;
use super::programs::Programs;

/// Prints a line for each GPU on which memory was refused since the last step, and updates the comment.
pub async fn say(
    daemon: &Daemon,
    programs: &Programs,
    config: &Config,
    job: u32,
    node: &str,
) -> Result<(), Trouble> {
    let Some(held) = daemon.held(job).await? else {
        return Ok(());
    };
    let folder = records();
    let before = Reported::read(&folder, job);
    let denials = held.slices.iter().map(|slice| slice.denials).sum();
    let mut text = String::new();
    if denials > before.denials {
        for slice in held.slices.iter().filter(|slice| slice.denials > 0) {
            text.push_str(&refusals(slice, &held.job, node));
            text.push('\n');
        }
    }
    let bypasses = daemon.bypasses(&held).await?;
    for bypass in bypasses.iter().skip(before.bypasses) {
        text.push_str(&kill(bypass, node));
        text.push('\n');
    }
    print(&text);
    let comment = peaks(&held.slices, node);
    let is_new = config.comment && comment != before.comment;
    if is_new && let Err(why) = comment_with(programs, job, node, &comment) {
        eprintln!("divvy-slurm: job {job}: {why}");
    }
    let now = Reported {
        denials,
        bypasses: bypasses.len(),
        comment,
    };
    if now != before {
        now.write(&folder, job)
            .map_err(|error| Trouble::Refused(error.to_string()))?;
    }
    Ok(())
}

fn print(text: &str) {
    use std::io::Write as _;
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn refusals(slice: &Slice, job: &str, node: &str) -> String {
    let limit = Bytes::new(slice.memory_limit_bytes).human();
    let last = slice.last_denied_bytes.map(|bytes| {
        let bytes = Bytes::new(bytes).human();
        format!(", the last one for {bytes}")
    });
    let requests = match slice.denials {
        1 => "1 request for memory was".to_owned(),
        count => format!("{count} requests for memory were"),
    };
    format!(
        "GPU {} of {node}: since the job's start, {requests} refused at the limit of {limit}{}; `divvy oom {job}` there has more",
        slice.gpu_index,
        last.unwrap_or_default(),
    )
}

/// What the daemon did to a process that held memory past the limiter. Its program says no more than `Killed`.
fn kill(bypass: &Bypass, node: &str) -> String {
    let memory = bypass.memory_driver_bytes.map_or_else(
        || "memory".to_owned(),
        |bytes| Bytes::new(bytes).human().to_string(),
    );
    format!(
        "GPU {} of {node}: the daemon killed process {} ({}), which held {memory} past the limiter; the job goes on",
        bypass.gpu_index,
        bypass.pid,
        bypass.program.escape_debug(),
    )
}

/// `divvy n1: peak 3.2 GiB of 20.0 GiB`, with each GPU of the node.
fn peaks(slices: &[Slice], node: &str) -> String {
    let peak = |slice: &Slice| {
        let peak = Bytes::new(slice.memory_peak_bytes).human();
        format!("{peak} of {}", Bytes::new(slice.memory_limit_bytes).human())
    };
    let peaks: Vec<String> = slices.iter().map(peak).collect();
    format!("divvy {node}: peak {}", peaks.join(", "))
}

/// Sets this node's part of the comment; what others wrote stays.
fn comment_with(programs: &Programs, job: u32, node: &str, part: &str) -> Result<(), String> {
    // Two nodes may write at the same time, so that one part is lost: look again.
    for _ in 0..3 {
        let text = programs.show_job(job)?;
        let before = comment_of(&text);
        let with = with_part(&before, node, part);
        if with == before {
            return Ok(());
        }
        programs.set_comment(job, &with)?;
    }
    Ok(())
}

fn comment_of(text: &str) -> String {
    let mut lines = text.lines().map(str::trim_start);
    let comment = lines.find_map(|line| line.strip_prefix("Comment="));
    comment.unwrap_or_default().trim_end().to_owned()
}

/// A comment has parts with `; ` between them. Slurm's own limit is 4 KiB in its database.
fn with_part(before: &str, node: &str, part: &str) -> String {
    let ours = format!("divvy {node}: ");
    let others = before
        .split("; ")
        .filter(|part| !part.is_empty() && !part.starts_with(&ours));
    let with: Vec<&str> = others.chain([part]).collect();
    let with = with.join("; ");
    if with.len() > 2048 {
        before.to_owned()
    } else {
        with
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_names_each_process_that_was_killed_for_a_bypass() {
        let at = "2026-11-29T10:00:00Z";
        let bypass: Bypass = serde_json::from_value(serde_json::json!({
            "gpu_uuid": "GPU-1", "gpu_index": 1, "pid": 4711, "program": "prog\u{1b}", "kind": "unlimited",
            "cause": "the limiter is not loaded", "memory_driver_bytes": 8_u64 << 30, "memory_charged_bytes": 0,
            "first_seen_at": at, "detected_at": at, "ended_at": null, "action": "killed",
        }))
        .unwrap();
        let expected = "GPU 1 of n1: the daemon killed process 4711 (prog\\u{1b}), which held 8.0 GiB past the \
                        limiter; the job goes on";
        assert_eq!(kill(&bypass, "n1"), expected);
    }

    #[test]
    fn the_comment_keeps_what_others_wrote() {
        let first = with_part("", "n1", "divvy n1: peak 1.0 GiB of 2.0 GiB");
        assert_eq!(first, "divvy n1: peak 1.0 GiB of 2.0 GiB");
        let user = with_part("my run; b", "n1", "divvy n1: peak 1");
        assert_eq!(user, "my run; b; divvy n1: peak 1");
        let other = with_part(&user, "n2", "divvy n2: peak 2");
        let again = with_part(&other, "n1", "divvy n1: peak 3");
        assert_eq!(again, "my run; b; divvy n2: peak 2; divvy n1: peak 3");
        let long = "x".repeat(2048);
        assert_eq!(with_part(&long, "n1", "divvy n1: peak 1"), long);
        assert_eq!(comment_of("JobId=7\n   Comment=a; b \n   Power="), "a; b");
        assert_eq!(comment_of("JobId=7\n   Power="), "");
    }
}
