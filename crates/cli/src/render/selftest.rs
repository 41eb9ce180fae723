//! Output of `selftest`: the matrix of attempts, one table for each GPU.

use std::fmt::Write as _;

use divvy_api::v1::{LimiterForm, ParkTest, Selftest, SelftestCheck, SelftestResult};

use super::View;
use crate::table::{self, Column};
use crate::text;

/// A heading, the matrix and its sum, for each GPU.
pub fn selftests(tests: &[Selftest], view: View) -> String {
    let each: Vec<String> = tests.iter().map(|test| selftest(test, view)).collect();
    each.join("\n")
}

/// A line for each GPU.
pub fn park_tests(tests: &[ParkTest], _: View) -> String {
    let line = |test: &ParkTest| {
        let simulated = if test.simulated.is_some() {
            ", simulated"
        } else {
            ""
        };
        format!(
            "GPU {} {}{simulated} · driver {}: {} parked in {:.2} s, woken in {:.2} s, and unchanged\n",
            test.gpu_index,
            text::clean(&test.model),
            text::clean(&test.driver_version),
            text::memory(test.memory_bytes),
            test.park_s,
            test.wake_s,
        )
    };
    tests.iter().map(line).collect()
}

fn selftest(test: &Selftest, view: View) -> String {
    let mut text = heading(test);
    let columns = [
        Column::Fixed("CHECK"),
        Column::Fixed("RESULT"),
        Column::Right("GOT"),
        Column::Text("NOTE"),
    ];
    let rows: Vec<Vec<String>> = test.checks.iter().map(row).collect();
    text.push_str(&table::render(&columns, &rows, view.fit()));
    text.push_str(&sum(test));
    text
}

fn heading(test: &Selftest) -> String {
    let simulated = if test.simulated.is_some() {
        ", simulated"
    } else {
        ""
    };
    let form = match test.form {
        Some(LimiterForm::Preload) => "preload",
        Some(LimiterForm::Wrapper) => "wrapper",
        None => "not loaded",
    };
    let holder = text::enforcer(&test.enforcement);
    let holder = match test.enforcement.as_str() {
        "mig" => holder,
        _ => format!("{holder} ({form})"),
    };
    format!(
        "GPU {} {}{simulated} · driver {}, CUDA {} · limit {}, enforced by {holder}, {}\n",
        test.gpu_index,
        text::clean(&test.model),
        text::clean(&test.driver_version),
        text::clean(&test.cuda_version),
        text::memory(test.memory_limit_bytes),
        if test.daemon {
            "in a slice of the daemon"
        } else {
            "in a slice without a daemon"
        },
    )
}

fn row(check: &SelftestCheck) -> Vec<String> {
    vec![
        text::clean(&check.name),
        result(check.result).to_owned(),
        check.got_bytes.map(text::memory).unwrap_or_default(),
        text::clean(&check.detail),
    ]
}

fn result(result: SelftestResult) -> &'static str {
    match result {
        SelftestResult::Enforced => "enforced",
        SelftestResult::NotEnforced => "NOT ENFORCED",
        SelftestResult::Agrees => "agrees",
        SelftestResult::Differs => "DIFFERS",
        SelftestResult::NotAvailable => "not available",
        SelftestResult::Failed => "FAILED",
    }
}

/// `12 enforced, 8 agree, 3 not available, 0 failed`
fn sum(test: &Selftest) -> String {
    let count = |what: &dyn Fn(SelftestResult) -> bool| {
        test.checks
            .iter()
            .filter(|check| what(check.result))
            .count()
    };
    let mut line = String::new();
    let _ = write!(
        line,
        "{} enforced, {} agree, {} not available, {} failed: ",
        count(&|result| result == SelftestResult::Enforced),
        count(&|result| result == SelftestResult::Agrees),
        count(&|result| result == SelftestResult::NotAvailable),
        count(&SelftestResult::is_failure),
    );
    line.push_str(if test.passed {
        "the limit holds\n"
    } else {
        "the limit does not hold\n"
    });
    line
}
