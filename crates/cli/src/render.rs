//! Output formats of the verbs: tables for people, JSON for programs. Pure: equal values and widths give equal text.
//!
//! Every form ends in a newline, or is empty. The forms for people escape control characters in texts of other users
//! (names, commands, reasons); JSON escapes them itself.

mod address;
mod advice;
mod arrays;
mod config;
mod csv;
mod describe;
mod doctor;
mod efficiency;
mod events;
mod gpus;
pub(crate) mod jobs;
mod journal;
mod mig;
mod oom;
mod projects;
mod queues;
mod selftest;
mod slices;
mod usage;
mod view;
mod web;
mod why;

use divvy_api::standalone::SliceAccess;
use divvy_api::v1::{
    Advice, ConfigReload, ConfigValue, Event, Finding, Gpu, GpuChanged, HeldClaim, Job,
    JournalFile, List, MigInstance, MigPlanned, Oom, ParkTest, Project, Queue, Selftest, Usage,
    Why,
};
use serde::Serialize;

pub use address::WebAddress;
pub use advice::{advice, command_of};
pub use arrays::{array_changed, describe_array, submitted_array};
pub use config::{commented_config, config, config_reload};
pub use describe::{describe, describe_with};
pub use doctor::findings;
pub use efficiency::efficiency;
pub use events::{event_line, events};
pub use gpus::{gpus, gpus_footer, unmanaged_gpus};
pub use jobs::{
    Rows, Span, folded_jobs, jobs, labels, past_jobs, redivided, resized, start, submitted,
};
pub use journal::journal;
pub use mig::{changed, instances, planned};
pub use oom::oom;
pub use projects::{entitled, projects};
pub use queues::queues;
pub use selftest::{park_tests, selftests};
pub use slices::{end_of, held_by, slices};
pub use usage::{Marks, daily_usages, days_legend, energy_total, usage_total, usages};
pub use view::{COMPUTE, View};
pub use web::web_address;
pub use why::why;

use crate::args::Format;

/// Something a list holds.
pub trait Item: Serialize + Clone {
    /// `kind` of the JSON envelope.
    const KIND: &'static str;

    /// Columns of the type as CSV: fields of its JSON.
    const COLUMNS: &'static [&'static str] = &[];

    /// Reference of the item for other verbs.
    fn name(&self) -> String;
}

impl Item for Job {
    const KIND: &'static str = "JobList";

    fn name(&self) -> String {
        self.reference()
    }
}

impl Item for HeldClaim {
    const KIND: &'static str = "ClaimList";

    fn name(&self) -> String {
        self.uid.clone()
    }
}

impl Item for SliceAccess {
    const KIND: &'static str = "SliceAccess";

    fn name(&self) -> String {
        self.name.clone()
    }
}

impl Item for Gpu {
    const KIND: &'static str = "GpuList";

    fn name(&self) -> String {
        self.uuid.clone()
    }
}

impl Item for WebAddress {
    const KIND: &'static str = "WebAddress";

    fn name(&self) -> String {
        self.url.clone()
    }
}

impl Item for JournalFile {
    const KIND: &'static str = "JournalFileList";

    fn name(&self) -> String {
        self.path.clone()
    }
}

impl Item for Queue {
    const KIND: &'static str = "QueueList";

    fn name(&self) -> String {
        self.name.clone()
    }
}

impl Item for Project {
    const KIND: &'static str = "ProjectList";

    fn name(&self) -> String {
        self.name.clone()
    }
}

impl Item for ConfigValue {
    const KIND: &'static str = "ConfigList";

    fn name(&self) -> String {
        self.key.clone()
    }
}

impl Item for ConfigReload {
    const KIND: &'static str = "ConfigReload";

    fn name(&self) -> String {
        self.file.clone().unwrap_or_default()
    }
}

impl Item for Usage {
    const KIND: &'static str = "UsageList";

    const COLUMNS: &'static [&'static str] = &usage::COLUMNS;

    /// What it is put together by, with slashes between.
    fn name(&self) -> String {
        let gpu = self.gpu_index.map(|index| index.to_string());
        let idle = self.idle.then(|| "idle".to_owned());
        let parts = [
            &self.day,
            &self.month,
            &idle,
            &self.namespace,
            &self.user,
            &self.project,
            &self.queue,
            &gpu,
            &self.job,
        ];
        let parts = parts.into_iter().flatten().map(String::as_str);
        parts.collect::<Vec<_>>().join("/")
    }
}

impl Item for Event {
    const KIND: &'static str = "EventList";

    fn name(&self) -> String {
        self.seq.to_string()
    }
}

impl Item for Why {
    const KIND: &'static str = "Why";

    fn name(&self) -> String {
        self.job.clone()
    }
}

impl Item for Oom {
    const KIND: &'static str = "Oom";

    fn name(&self) -> String {
        self.job.clone()
    }
}

impl Item for Advice {
    const KIND: &'static str = "AdviceList";

    fn name(&self) -> String {
        self.program.clone()
    }
}

impl Item for GpuChanged {
    const KIND: &'static str = "GpuChange";

    fn name(&self) -> String {
        self.gpu_uuid.clone()
    }
}

impl Item for MigInstance {
    const KIND: &'static str = "MigInstanceList";

    fn name(&self) -> String {
        self.uuid
            .clone()
            .unwrap_or_else(|| format!("{}/{}@{}", self.gpu_uuid, self.profile, self.start))
    }
}

impl Item for MigPlanned {
    const KIND: &'static str = "MigPlan";

    fn name(&self) -> String {
        format!("{}/{}@{}", self.gpu_uuid, self.profile, self.start)
    }
}

impl Item for Finding {
    const KIND: &'static str = "Doctor";

    fn name(&self) -> String {
        self.check.clone()
    }
}

impl Item for ParkTest {
    const KIND: &'static str = "ParkTest";

    fn name(&self) -> String {
        self.gpu_uuid.clone()
    }
}

impl Item for Selftest {
    const KIND: &'static str = "Selftest";

    fn name(&self) -> String {
        self.gpu_uuid.clone()
    }
}

impl Format {
    /// How tables are drawn in it.
    fn of(self, view: View) -> View {
        match self {
            Self::Wide => View { wide: true, ..view },
            _ => view,
        }
    }
}

/// The items in the form asked for; `table` draws the two forms for people.
///
/// # Errors
/// When an item cannot be written as JSON, which no type of the API allows.
pub fn list<T: Item>(
    items: &[T],
    format: Format,
    view: View,
    table: impl FnOnce(&[T], View) -> String,
) -> serde_json::Result<String> {
    Ok(match format {
        Format::Table => table(items, view),
        Format::Wide => table(items, format.of(view)),
        Format::Json => serde_json::to_string_pretty(&List::new(T::KIND, items.to_vec()))? + "\n",
        Format::Ndjson => items
            .iter()
            .map(|item| Ok(serde_json::to_string(item)? + "\n"))
            .collect::<serde_json::Result<_>>()?,
        Format::Name => items
            .iter()
            .map(|item| crate::text::clean(&item.name()) + "\n")
            .collect(),
        Format::Csv => csv::csv(items)?,
    })
}
