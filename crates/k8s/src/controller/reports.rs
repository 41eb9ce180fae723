//! The reports of projects for their members: quota and use from Kueue, and GPU time by sampling the allocated claims.
//!
//! ```text
//!   claims, slices ──(each 10 s)──► GPU time of each project and day ──┐
//!   ClusterQueues of projects ──(each minute)──► quota, use ───────────┴──► ProjectReport in each namespace
//! ```
//! A new leader continues the days of the reports that it finds. Time without a leader is not counted; the nodes' ledgers,
//! which `divvy usage` on the node sums, count all of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use serde_json::Value;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::capacity::{ClaimFacts, newest};
use super::informers::{Cache, LeaderCache};
use crate::base::cluster::{error_message, for_each, is_missing};
use crate::base::slices::{MEMORY, bytes};
use crate::teams::kueue::MARK;
use crate::teams::kueue::objects::{Kind, Project};
use crate::teams::kueue::status::{self, Usage};
use crate::teams::kueue::store;
use crate::teams::project::report::{DayReport, NAME, ProjectReport, ProjectReportSpec};

/// A claim that lives shorter may be missed. Reading the caches costs no call.
const SAMPLE: Duration = Duration::from_secs(10);
/// How often quotas are read, and changed ones reported: one call. Quotas are changed by hand, so a minute is soon
/// enough, and a view reads the quota itself.
const LOOK: Duration = Duration::from_secs(60);
/// How often GPU time alone is reported: each report is a call. A twelfth of an hour, the unit of the report: oftener
/// would be a write for each project without news.
const HOURS: Duration = Duration::from_secs(300);
/// The days of a report: `usage --since 30d` is the default.
const DAYS: usize = 31;
/// Reports that are written in one look, so that a change of every project spreads over minutes.
const WRITES: usize = 100;
const MANAGER: &str = "divvy-controller";

/// A day in UTC, as text.
type Day = String;

/// GPU time in bytes times milliseconds, by project and day.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ledger(BTreeMap<String, BTreeMap<Day, u128>>);

impl Ledger {
    fn add(&mut self, project: &str, day: &str, bytes: u64, elapsed: Duration) {
        if bytes == 0 {
            return;
        }
        let days = self.0.entry(project.to_owned()).or_default();
        *days.entry(day.to_owned()).or_default() += u128::from(bytes) * elapsed.as_millis();
        while days.len() > DAYS {
            days.pop_first();
        }
    }

    /// Takes in the days of an existing report; the namespaces of a project have the same.
    fn restore(&mut self, report: &ProjectReportSpec) {
        let days = self.0.entry(report.project.clone()).or_default();
        let gpu = u128::from(report.gpu_memory_bytes.unsigned_abs());
        for found in report.days.iter().rev().take(DAYS) {
            let time = u128::from(found.allocated_gpu_ms.unsigned_abs()) * gpu;
            let known = days.entry(found.day.clone()).or_default();
            *known = time.max(*known);
        }
    }

    fn days(&self, project: &Project) -> Vec<DayReport> {
        let gpu = u128::from(project.gpu_memory.get().max(1));
        let days = self.0.get(&project.name).into_iter().flatten();
        days.map(|(day, time)| DayReport {
            day: day.clone(),
            allocated_gpu_ms: i64::try_from(time / gpu).unwrap_or(i64::MAX),
        })
        .collect()
    }
}

/// The bytes of GPU memory that the claims of each namespace hold. A whole GPU without published memory counts `whole`.
fn held<'c>(
    slices: impl IntoIterator<Item = &'c ResourceSlice>,
    claims: impl IntoIterator<Item = &'c ClaimFacts>,
    whole: u64,
) -> BTreeMap<String, u64> {
    let mut memory: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for slice in newest(slices) {
        for device in slice.spec.devices.iter().flatten() {
            let capacity = device.capacity.as_ref().and_then(|all| all.get(MEMORY));
            if let Some(size) = capacity.and_then(|capacity| bytes(&capacity.value)) {
                memory.insert((&slice.spec.pool.name, &device.name), size.get());
            }
        }
    }
    let mut held: BTreeMap<String, u64> = BTreeMap::new();
    for claim in claims {
        for one in &claim.devices {
            let device = memory.get(&(one.pool.as_str(), one.device.as_str()));
            let bytes = one.bytes.min(device.copied().unwrap_or(whole));
            let sum = held.entry(claim.namespace.clone()).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }
    held
}

fn report(project: &Project, usage: &Usage, days: Vec<DayReport>) -> ProjectReportSpec {
    let amount = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
    ProjectReportSpec {
        project: project.name.clone(),
        quota: amount(project.quota),
        limit: project.limit.map(amount),
        weight: project.weight.map(i64::from),
        department: project.department.clone(),
        used: amount(usage.used),
        over_quota: amount(usage.borrowed),
        running: amount(usage.running),
        waiting: amount(usage.waiting),
        gpu_memory_bytes: amount(project.gpu_memory.get()),
        inactive: usage.inactive.clone(),
        days,
    }
}

/// Whether a report is to be written over one that was written so long ago.
fn is_due(written: &ProjectReportSpec, ago: Duration, wanted: &ProjectReportSpec) -> bool {
    if written == wanted {
        return false;
    }
    let days = wanted.days.clone();
    let is_time_alone = ProjectReportSpec {
        days,
        ..written.clone()
    } == *wanted;
    !is_time_alone || ago >= HOURS
}

/// The reports as they are in the cluster, by namespace, with the time of the last write.
type Written = BTreeMap<String, (ProjectReportSpec, Instant)>;

/// Keeps the reports while this replica leads.
pub async fn keep(client: Client, seen: Arc<Cache>, leaders: Arc<LeaderCache>) {
    leaders.wait_until_synced().await;
    let mut ledger = Ledger::default();
    let mut projects: Vec<(Project, Usage)> = Vec::new();
    let mut written: Option<Written> = None;
    let (mut sampled, mut looked) = (Instant::now(), None::<Instant>);
    loop {
        let now = Instant::now();
        let elapsed = now.duration_since(std::mem::replace(&mut sampled, now));
        let day = Timestamp::now().to_zoned(TimeZone::UTC).date().to_string();
        let (slices, claims) = (seen.slices.state(), leaders.claims.state());
        // Nearly all projects count in one size of GPU.
        let mut by_size: BTreeMap<u64, BTreeMap<String, u64>> = BTreeMap::new();
        for (project, _) in &projects {
            let whole = project.gpu_memory.get();
            let held = by_size.entry(whole).or_insert_with(|| {
                held(
                    slices.iter().map(AsRef::as_ref),
                    claims.iter().map(AsRef::as_ref),
                    whole,
                )
            });
            let own = project.namespaces.iter().filter_map(|name| held.get(name));
            let bytes = own.fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
            ledger.add(&project.name, &day, bytes, elapsed);
        }
        if looked.is_none_or(|looked| looked.elapsed() >= LOOK) {
            looked = Some(now);
            if written.is_none() {
                written = find(&client, &mut ledger).await;
            }
            if let (Some(written), Some(found)) = (&mut written, read(&client).await) {
                projects = found;
                write(&client, &projects, &ledger, written).await;
            }
        }
        sleep(SAMPLE).await;
    }
}

/// Returns the existing reports; `None` while they cannot be read, or their definition is missing.
async fn find(client: &Client, ledger: &mut Ledger) -> Option<Written> {
    let api: Api<ProjectReport> = Api::all(client.clone());
    let mut found = Written::new();
    let listed = for_each(&api, ListParams::default(), |report| {
        ledger.restore(&report.spec);
        let namespace = report.namespace().unwrap_or_default();
        found.insert(namespace, (report.spec, Instant::now()));
    });
    match listed.await {
        Ok(()) => Some(found),
        Err(error) if is_missing(&error) => None,
        Err(error) => {
            warn!(error = error_message(&error), "cannot list ProjectReports");
            None
        }
    }
}

/// Returns the projects and their use; none without Kueue, `None` if they cannot be read.
async fn read(client: &Client) -> Option<Vec<(Project, Usage)>> {
    let api: Api<DynamicObject> = store::objects(client, Kind::ClusterQueue);
    let mut projects = Vec::new();
    let ours = ListParams::default().labels(&format!("{MARK}=project"));
    let listed = for_each(&api, ours, |queue| {
        let queue = serde_json::to_value(queue).unwrap_or(Value::Null);
        if let Some(project) = status::project(&queue) {
            let usage = status::usage(&queue, project.gpu_memory);
            projects.push((project, usage));
        }
    });
    match listed.await {
        Err(error) if !is_missing(&error) => {
            warn!(error = error_message(&error), "cannot list ClusterQueues");
            None
        }
        _ => Some(projects),
    }
}

async fn write(
    client: &Client,
    projects: &[(Project, Usage)],
    ledger: &Ledger,
    written: &mut Written,
) {
    let mut wanted: BTreeMap<&str, ProjectReportSpec> = BTreeMap::new();
    for (project, usage) in projects {
        let report = report(project, usage, ledger.days(project));
        for namespace in &project.namespaces {
            wanted.insert(namespace, report.clone());
        }
    }
    let is_due = |(namespace, report): &(&&str, &ProjectReportSpec)| {
        let known = written.get(**namespace);
        known.is_none_or(|(known, when)| is_due(known, when.elapsed(), report))
    };
    let due: Vec<(String, ProjectReportSpec)> = wanted
        .iter()
        .filter(is_due)
        .take(WRITES)
        .map(|(namespace, report)| ((*namespace).to_owned(), report.clone()))
        .collect();
    for (namespace, spec) in due {
        let api: Api<ProjectReport> = Api::namespaced(client.clone(), &namespace);
        let report = ProjectReport::new(NAME, spec.clone());
        let parameters = PatchParams::apply(MANAGER).force();
        match api.patch(NAME, &parameters, &Patch::Apply(&report)).await {
            Ok(_) => _ = written.insert(namespace, (spec, Instant::now())),
            // A project may name a namespace that is yet to come.
            Err(error) if is_missing(&error) => {}
            Err(error) => {
                let error = error_message(&error);
                warn!(namespace, error, "cannot write a ProjectReport; retrying");
            }
        }
    }
    let gone = written
        .keys()
        .filter(|name| !wanted.contains_key(name.as_str()));
    let gone: Vec<String> = gone.take(WRITES).cloned().collect();
    for namespace in gone {
        let api: Api<ProjectReport> = Api::namespaced(client.clone(), &namespace);
        match api.delete(NAME, &DeleteParams::default()).await {
            Err(error) if !is_missing(&error) => {
                let error = error_message(&error);
                warn!(namespace, error, "cannot delete a ProjectReport; retrying");
            }
            _ => {
                info!(namespace, "deleted the ProjectReport: no project has it");
                written.remove(&namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use divvy_core::units::Bytes;
    use k8s_openapi::api::resource::v1::ResourceClaim;
    use serde_json::json;

    use super::*;

    fn project() -> Project {
        Project {
            name: "vision".to_owned(),
            quota: 1500,
            limit: None,
            weight: None,
            namespaces: ["eyes".to_owned(), "vision".to_owned()].into(),
            department: None,
            gpu_memory: Bytes::gib(80),
        }
    }

    fn spec(days: Vec<DayReport>) -> ProjectReportSpec {
        report(&project(), &Usage::default(), days)
    }

    fn day(day: &str, ms: i64) -> DayReport {
        DayReport {
            day: day.to_owned(),
            allocated_gpu_ms: ms,
        }
    }

    #[test]
    fn claims_count_by_namespace_what_they_hold() {
        let slice: ResourceSlice = serde_json::from_value(json!({
            "metadata": { "name": "a" },
            "spec": {
                "driver": "gpu.divvy.dev", "nodeName": "a",
                "pool": { "name": "a", "generation": 1, "resourceSliceCount": 1 },
                "devices": [
                    { "name": "gpu-0", "capacity": { "memory": { "value": "80Gi" } } },
                    { "name": "mig-0", "capacity": { "memory": { "value": "10Gi" } } },
                    { "name": "gpu-1" },
                ],
            },
        }))
        .unwrap();
        let claim = |namespace: &str, device: &str, memory: Option<&str>| -> ClaimFacts {
            let consumed = memory.map(|memory| json!({ "memory": memory }));
            let claim: ResourceClaim = serde_json::from_value(json!({
                "metadata": { "name": "c", "namespace": namespace }, "spec": {},
                "status": { "allocation": { "devices": { "results": [{
                    "driver": "gpu.divvy.dev", "pool": "a", "device": device, "request": "r",
                    "consumedCapacity": consumed,
                }] } } },
            }))
            .unwrap();
            ClaimFacts::of(&claim).unwrap()
        };
        let claims = [
            claim("vision", "gpu-0", Some("20Gi")),
            claim("vision", "mig-0", None),
            claim("eyes", "gpu-1", None),
        ];
        let gib = |gib: u64| Bytes::gib(gib).get();
        let found = held([&slice], &claims, gib(80));
        assert_eq!(
            found,
            [("eyes".to_owned(), gib(80)), ("vision".to_owned(), gib(30))].into()
        );
    }

    #[test]
    fn gpu_time_counts_by_day_and_a_new_leader_continues_it() {
        let (mut ledger, project) = (Ledger::default(), project());
        let hour = Duration::from_secs(3600);
        let half = Bytes::gib(40).get();
        ledger.add("vision", "2026-11-01", half, hour);
        ledger.add("vision", "2026-11-02", half, hour * 3);
        ledger.add("vision", "2026-11-03", 0, hour);
        let days = ledger.days(&project);
        let expected = [day("2026-11-01", 1_800_000), day("2026-11-02", 5_400_000)];
        assert_eq!(days, expected);
        let mut next = Ledger::default();
        // The report of each namespace has the same days.
        next.restore(&spec(days.clone()));
        next.restore(&spec(days));
        assert_eq!(next, ledger);
        for number in 0..100 {
            ledger.add("vision", &format!("2027-{number:03}"), half, hour);
        }
        assert_eq!(ledger.days(&project).len(), DAYS, "older days leave");
    }

    #[test]
    fn a_report_is_written_when_its_quota_changes_and_seldom_for_its_time_alone() {
        let first = spec(vec![day("2026-11-01", 1)]);
        let later = spec(vec![day("2026-11-01", 2)]);
        let used = ProjectReportSpec {
            used: 500,
            ..later.clone()
        };
        assert!(!is_due(&first, HOURS, &first));
        assert!(!is_due(&first, HOURS / 2, &later));
        assert!(is_due(&first, HOURS, &later));
        assert!(is_due(&first, Duration::ZERO, &used));
    }
}
