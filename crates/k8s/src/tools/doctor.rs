//! `divvy-k8s doctor`: checks of a cluster: which requirements of Divvy it meets, which it lacks, and which could not
//! be checked.
//!
//! ```text
//!   facts: objects of the cluster, or why they could not be read ──► rows, one a check (pure) ──► table, JSON, exit code
//! ```
//! A row says what was read for it. What the API does not show is said to be unknown, with where to look; nothing is guessed.

mod access;
mod carrier;
mod extender;
mod facts;
mod kueue;
mod modes;
mod monitoring;
mod nodes;
mod pods;
mod published;
mod row;
mod version;
mod webhook;

use std::process::ExitCode;

use divvy_api::v1::Error;
use kube::Client;

use crate::base::cluster;
use crate::base::error_output::{self, Format};
pub use facts::{ClusterFacts, Probe, Right, opted_in};
use row::UNREADABLE;
pub use row::{Row, Status};

#[derive(clap::Args)]
pub struct Args {
    /// Namespace in which Divvy is installed
    #[arg(short, long, default_value = cluster::NAMESPACE)]
    namespace: String,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

impl Args {
    pub fn is_json(&self) -> bool {
        self.output.is_json()
    }
}

/// Every check, in the order in which things are set up.
pub fn rows(facts: &ClusterFacts) -> Vec<Row> {
    let mut rows = vec![version::server(
        &facts.version,
        &facts.gates,
        !(facts.by_claims() || facts.by_enforcer()),
    )];
    rows.extend(nodes::rows(facts));
    rows.push(modes::row(facts));
    if facts.by_claims() {
        rows.extend(published::rows(facts));
    }
    if facts.by_carriers() {
        rows.extend(carrier::rows(facts));
    }
    rows.extend(monitoring::rows(facts));
    rows.extend(webhook::rows(facts));
    rows.extend(pods::rows(facts));
    rows.extend(kueue::rows(facts));
    rows.extend(extender::row(facts));
    rows.push(access::row(&facts.access));
    rows
}

/// With exit code 1 where something fails.
///
/// # Errors
/// The cluster does not answer at all.
pub async fn run(args: &Args, client: &Client) -> Result<ExitCode, Error> {
    let facts = facts::read(client, &args.namespace).await?;
    let rows = rows(&facts);
    let failed = rows.iter().any(|row| row.status == Status::Fail);
    error_output::print(&render(rows, args.output)?)?;
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// A line a check, below it what is not well, then the sum.
///
/// # Errors
/// As [`error_output::json`].
pub fn render(rows: Vec<Row>, format: Format) -> Result<String, Error> {
    if format.is_json() {
        return error_output::json("Doctor", rows);
    }
    let lines: Vec<[String; 3]> = rows
        .iter()
        .map(|row| {
            [
                row.status.as_str().to_owned(),
                row.check.to_owned(),
                row.found.clone(),
            ]
        })
        .collect();
    let mut text = error_output::table(["STATUS", "CHECK", "FOUND"], &lines);
    let is_unreadable = |row: &&Row| row.status == Status::Unknown && row.fix == UNREADABLE;
    let unreadable: Vec<&Row> = rows.iter().filter(is_unreadable).collect();
    // A user of one namespace may read few of the facts, and needs to hear of that once.
    let is_together = unreadable.len() > 1;
    let in_full = |row: &&Row| row.status != Status::Ok && !(is_together && is_unreadable(row));
    for row in rows.iter().filter(in_full) {
        text.push_str(&format!("\n{}: {}\n", row.status.as_str(), row.check));
        for (word, line) in [
            ("read", row.read),
            ("found", row.found.as_str()),
            ("means", row.means.as_str()),
            ("do", row.fix.as_str()),
        ] {
            if !line.is_empty() {
                text.push_str(&format!("  {word:<6} {}\n", error_output::clean(line)));
            }
        }
    }
    if is_together {
        let checks: Vec<&str> = unreadable.iter().map(|row| row.check).collect();
        let checks = checks.join(", ");
        text.push_str(&format!(
            "\nunknown: {checks}\n  found  you may not read what these checks need\n  do     {UNREADABLE}\n"
        ));
    }
    let count = |status| rows.iter().filter(|row| row.status == status).count();
    text.push_str(&format!(
        "\n{} ok, {} warn, {} fail, {} unknown: {}\n",
        count(Status::Ok),
        count(Status::Warn),
        count(Status::Fail),
        count(Status::Unknown),
        match (count(Status::Fail), count(Status::Unknown)) {
            (0, 0) => "pods can get GPU fractions in this cluster",
            (0, _) => "no problem found; some checks could not run",
            _ => "GPU fractions do not work as they should in this cluster",
        }
    ));
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error_output::few;

    #[test]
    fn what_is_not_well_is_said_in_full_and_what_is_unknown_is_not_called_well() {
        let rows = vec![
            Row::ok("a", "nodes", "all well"),
            Row::unknown("b", "pods", "forbidden"),
        ];
        let text = render(rows.clone(), Format::Table).unwrap();
        assert_eq!(
            text,
            "STATUS   CHECK  FOUND\n\
             ok       a      all well\n\
             unknown  b      cannot read it: forbidden\n\
             \nunknown: b\n  read   pods\n  found  cannot read it: forbidden\n  do     use a context of KUBECONFIG that may read it\n\
             \n1 ok, 0 warn, 0 fail, 1 unknown: no problem found; some checks could not run\n"
        );
        let two = vec![
            Row::unknown("a", "nodes", "forbidden"),
            Row::unknown("b", "pods", "forbidden"),
        ];
        let text = render(two, Format::Table).unwrap();
        assert!(
            text.contains("\nunknown: a, b\n  found  you may not read what these checks need\n"),
            "{text}"
        );
        assert_eq!(text.matches("use a context").count(), 1, "once: {text}");
        let json: serde_json::Value =
            serde_json::from_str(&render(rows, Format::Json).unwrap()).unwrap();
        assert_eq!(
            (&json["kind"], &json["items"][1]["status"]),
            (&"Doctor".into(), &"unknown".into())
        );
        assert_eq!(
            few(&["a", "b", "c", "d", "e", "f", "g"]),
            "a, b, c, d, e and 2 more"
        );
    }
}
