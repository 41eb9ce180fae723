//! What came of each case.

use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};

/// What became of a case that did not fail.
#[derive(Clone, Debug)]
pub enum CaseOutcome {
    /// It is as expected; what was seen.
    Held(Value),
    /// It could not be looked at here, and why.
    NotChecked(String),
}

/// Cases and what came of them, as they are done.
#[derive(Default)]
pub struct Report {
    only: Vec<String>,
    rows: Vec<Row>,
}

struct Row {
    name: String,
    what: String,
    status: &'static str,
    detail: String,
    seen: Value,
    seconds: f64,
}

impl Report {
    /// Of the cases whose names begin with one of these; of all for none.
    pub fn new(only: &[String]) -> Self {
        Self {
            only: only.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Does one case and writes down what came of it.
    pub fn case(&mut self, name: &str, what: &str, check: impl FnOnce() -> Result<CaseOutcome>) {
        let wanted = self.only.is_empty() || self.only.iter().any(|only| name.starts_with(only));
        if !wanted {
            return;
        }
        let started = Instant::now();
        let (status, detail, seen) = match check() {
            Ok(CaseOutcome::Held(seen)) => ("held", String::new(), seen),
            Ok(CaseOutcome::NotChecked(why)) => ("not checked", why, Value::Null),
            Err(error) => ("failed", format!("{error:#}"), Value::Null),
        };
        let seconds = started.elapsed().as_secs_f64();
        eprintln!("   {name:<22} {status:<12} {what}");
        for line in detail.lines() {
            eprintln!("   {:<22} {line}", "");
        }
        self.rows.push(Row {
            name: name.to_owned(),
            what: what.to_owned(),
            status,
            detail,
            seen,
            seconds,
        });
    }

    fn count(&self, status: &str) -> usize {
        self.rows.iter().filter(|row| row.status == status).count()
    }

    /// Whether nothing failed.
    pub fn good(&self) -> bool {
        self.count("failed") == 0
    }

    /// The whole, for programs.
    pub fn summary(&self, cluster: &Value) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(|row| json!({
            "name": row.name, "what": row.what, "status": row.status, "detail": row.detail, "seen": row.seen, "seconds": row.seconds,
        })).collect();
        json!({
            "schema": "divvy/kube-report/v1",
            "cluster": cluster,
            "held": self.count("held"),
            "failed": self.count("failed"),
            "not_checked": self.count("not checked"),
            "cases": rows,
        })
    }

    /// The end, for people: what failed, and what nobody has looked at.
    pub fn closing(&self) -> String {
        let mut text = String::new();
        for (status, title) in [("not checked", "NOT CHECKED"), ("failed", "FAILED")] {
            for row in self.rows.iter().filter(|row| row.status == status) {
                text += &format!("{title}: {} ({}): {}\n", row.name, row.what, row.detail);
            }
        }
        text + &format!(
            "{} held, {} failed, {} not checked\n",
            self.count("held"),
            self.count("failed"),
            self.count("not checked")
        )
    }
}
