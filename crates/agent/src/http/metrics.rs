//! Metrics: `GET /metrics`, in Prometheus's text format (version 0.0.4).
//!
//! Base units, ratios from 0 to 1, counters end in `_total`; GPU labels are spelled as dcgm-exporter spells them. Only
//! jobs that have left their queue and have not ended have series, and counts stand for pending jobs. docs/reference.md
//! says what each series is, and why others are missing.

mod daemon_stats;
mod gpus;
mod jobs;
mod page_bound;

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::sync::{Arc, PoisonError};

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use divvy_api::v1::Gpu;
use divvy_core::Enforcement;
use divvy_core::reconcile::BypassKind;
use jiff::SignedDuration;
use serde::Serialize;

use super::Api;
use super::body::ApiError;
use crate::controller::query::metrics::{JobRow, Page};
use crate::host::clock::now;
use crate::host::error::error_chain;
use crate::journal::{self, StoreError};
use crate::model::usage::GpuTimeTotals;

pub async fn metrics(api: Api) -> Result<Response, ApiError> {
    // Scrapes go on for ever: without jobs they get the samples that come anyway.
    if api.observer.is_busy() {
        api.observer.wait_for_recent_sample().await;
    }
    let mut page = api.mailbox.query(|queries| Ok(queries.metrics())).await?;
    page.gpu_facts.power = api.observer.power();
    page.gpu_time = gpu_time(&api).await;
    let home = Arc::clone(&api.home);
    let page = api
        .budget
        .run(move || {
            let glances = std::mem::take(&mut page.glances).into_iter();
            let told = glances.map(|glance| glance.into_view().into_api(&home).into());
            page.jobs = told.collect();
            page_bound::limit(&mut page);
            page
        })
        .await?;
    let kind = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    Ok((kind, text(&page)).into_response())
}

/// How late an open allocation counts. The daemon may hear of a job's end only after it, and a counter that went on
/// until then would have to fall. Used time is journaled as often.
const SETTLING: SignedDuration = SignedDuration::from_secs(10);

/// GPU time of users and projects. A scrape never sees less than the one before: a clock that was set back, or a journal
/// that cannot be read now, leaves the last figures.
async fn gpu_time(api: &Api) -> GpuTimeTotals {
    let (database, until) = (api.home.database(), now().checked_sub(SETTLING));
    let until = until.unwrap_or_default();
    let read = api
        .budget
        .run(move || journal::usage_totals(&database, until));
    let warn = |error: &StoreError| {
        let error = error_chain(error);
        tracing::warn!(error, "cannot read the GPU time of users");
    };
    let found = read.await.ok();
    let found = found.and_then(|totals| totals.inspect_err(warn).ok());
    let found = found.unwrap_or_default();
    let mut last = api.gpu_time.lock().unwrap_or_else(PoisonError::into_inner);
    last.raise_to(&found);
    last.clone()
}

/// One metric with its samples.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    /// A line each.
    samples: String,
}

fn family(name: &'static str, kind: &'static str, help: &'static str) -> Family {
    Family {
        name,
        kind,
        help,
        samples: String::new(),
    }
}

impl Family {
    fn sample(&mut self, labels: Vec<(&'static str, String)>, value: impl fmt::Display) {
        self.suffixed("", labels, value);
    }

    /// `suffix` comes behind the metric's name.
    fn suffixed(
        &mut self,
        suffix: &'static str,
        labels: Vec<(&'static str, String)>,
        value: impl fmt::Display,
    ) {
        let Self { name, samples, .. } = self;
        let _ = write!(samples, "{name}{suffix}");
        for (at, (label, value)) in labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            let _ = write!(samples, "{before}{label}=\"{}\"", escaped(value));
        }
        let after = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(samples, "{after} {value}");
    }
}

/// The page as text.
pub fn text(page: &Page) -> String {
    let mut families = about_the_daemon(page);
    families.extend(gpus::about_gpus(page));
    families.extend(gpus::about_instances(page));
    families.extend(jobs::about_jobs(page));
    families.extend(daemon_stats::about_projects(page));
    families.push(page_bound::about_the_page(page));
    let mut text = String::new();
    for family in families.iter().filter(|family| !family.samples.is_empty()) {
        let Family {
            name, kind, help, ..
        } = family;
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        text.push_str(&family.samples);
    }
    text
}

/// How strong the limits are that hold on a GPU, in the words of `--isolation`.
fn level(gpu: &Gpu) -> &'static str {
    match Enforcement::from_name(&gpu.enforcement) {
        Some(Enforcement::Mig) => "hardware",
        Some(Enforcement::Driver) => "driver",
        Some(Enforcement::Limiter) | None => "cooperative",
    }
}

/// A word as JSON has it.
fn to_json_word(word: impl Serialize) -> String {
    let word = serde_json::to_value(word).unwrap_or_default();
    word.as_str().unwrap_or_default().to_owned()
}

fn about_the_daemon(page: &Page) -> Vec<Family> {
    let mut build = family(
        "divvy_build_info",
        "gauge",
        "Version of the daemon; always 1.",
    );
    build.sample(vec![("version", page.node.version.clone())], 1);
    let mut enforcement = family(
        "divvy_enforcement_info",
        "gauge",
        "Backend that enforces memory limits, and the action on a bypass; always 1.",
    );
    let held = page.gpus.iter().map(|gpu| (&*gpu.enforcement, level(gpu)));
    for (backend, level) in held.collect::<BTreeSet<_>>() {
        let labels = vec![
            ("backend", backend.to_owned()),
            ("level", level.to_owned()),
            ("on_bypass", page.node.on_bypass.clone()),
        ];
        enforcement.sample(labels, 1);
    }
    let mut bypasses = family(
        "divvy_bypasses_total",
        "counter",
        "Bypasses of the limiter by processes of jobs, by kind.",
    );
    for (way, count) in BypassKind::ALL.iter().zip(page.bypasses) {
        bypasses.sample(vec![("kind", way.name().to_owned())], count);
    }
    let mut queues = family("divvy_queue_jobs", "gauge", "Jobs of the queue, by state.");
    for queue in &page.queues {
        for (state, count) in [("queued", queue.waiting), ("running", queue.running)] {
            let labels = vec![("queue", queue.name.clone()), ("state", state.to_owned())];
            queues.sample(labels, count);
        }
    }
    vec![build, enforcement, bypasses, queues]
}

/// In thousandths or percent: exact, and without a float.
fn ratio(part: u64, digits: usize) -> String {
    let whole = 10_u64.pow(u32::try_from(digits).unwrap_or_default());
    format!("{}.{:0digits$}", part / whole, part % whole)
}

/// A label's value: backslashes, quotes and line ends as the format has them.
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests;
