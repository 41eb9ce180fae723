//! Output of `doctor`: one line for each finding, and below it the consequence and the fix, if there is one.

use divvy_api::v1::{Finding, FindingStatus};

use super::View;
use crate::table::{self, Column};
use crate::text;

/// The findings in their order, then their sum.
pub fn findings(findings: &[Finding], view: View) -> String {
    let columns = [
        Column::Fixed("STATUS"),
        Column::Fixed("CHECK"),
        Column::Text("FOUND"),
    ];
    let rows: Vec<Vec<String>> = findings.iter().map(row).collect();
    let mut text = table::render(&columns, &rows, view.fit());
    for finding in findings
        .iter()
        .filter(|finding| finding.status != FindingStatus::Ok)
    {
        text.push_str(&advice(finding));
    }
    let count = |status| {
        let of = findings.iter().filter(|finding| finding.status == status);
        of.count()
    };
    let sum = format!(
        "\n{} ok, {} warn, {} fail: {}\n",
        count(FindingStatus::Ok),
        count(FindingStatus::Warn),
        count(FindingStatus::Fail),
        if count(FindingStatus::Fail) == 0 {
            "jobs can run here; test their limits with `divvy selftest`"
        } else {
            "jobs cannot run correctly here"
        }
    );
    text.push_str(&table::wrapped(&sum, view.width, 0));
    text
}

fn row(finding: &Finding) -> Vec<String> {
    vec![
        status(finding.status).to_owned(),
        finding.check.clone(),
        text::clean(&finding.found),
    ]
}

/// Consequence of a finding, and its fix.
fn advice(finding: &Finding) -> String {
    let mut lines = format!("\n{}: {}\n", status(finding.status), finding.check);
    for (word, line) in [
        ("found", &finding.found),
        ("means", &finding.means),
        ("do", &finding.fix),
    ] {
        if !line.is_empty() {
            lines.push_str(&format!("  {word:<6} {}\n", text::clean(line)));
        }
    }
    lines
}

fn status(status: FindingStatus) -> &'static str {
    match status {
        FindingStatus::Ok => "ok",
        FindingStatus::Warn => "warn",
        FindingStatus::Fail => "fail",
    }
}
