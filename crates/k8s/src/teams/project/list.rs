//! Lists of projects and departments.

use std::collections::BTreeMap;

use divvy_api::v1::{Error, ErrorCode};
use divvy_core::units::{Bytes, gpus};
use kube::Client;
use serde::Serialize;
use serde_json::Value;

use super::report;
use crate::base::error_output::{self, Format, say};
use crate::teams::kueue::objects::{Department, Kind, Project};
use crate::teams::kueue::status::{self, Owner, Usage, WorkloadState, owner};
use crate::teams::kueue::store::Kueue;
use crate::teams::kueue::{MARK, quota};

/// A project, as `-o json` prints it. Amounts of GPUs are in thousandths, as in the node's API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct ProjectRow {
    name: String,
    quota: u64,
    limit: Option<u64>,
    weight: Option<u32>,
    used: u64,
    over_quota: u64,
    /// What its waiting workloads ask for; absent if Workloads cannot be read.
    pending: Option<u64>,
    running: u64,
    waiting: u64,
    department: Option<String>,
    namespaces: Vec<String>,
    gpu_memory_bytes: u64,
    /// The Helm release that it comes from.
    release: Option<String>,
    /// Why it admits nothing.
    inactive: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct DepartmentRow {
    name: String,
    /// Absent: the quotas of its projects.
    quota: Option<u64>,
    limit: Option<u64>,
    weight: Option<u32>,
    /// The quotas of its projects together.
    promised: u64,
    used: u64,
    over_quota: u64,
    running: u64,
    waiting: u64,
    projects: Vec<String>,
    gpu_memory_bytes: u64,
}

#[derive(Serialize)]
struct Removed<'a> {
    name: &'a str,
}

pub async fn projects(format: Format, client: &Client) -> Result<(), Error> {
    let kueue = Kueue::of(client).await?;
    let rows = match project_rows(&kueue).await {
        Err(error) if error.code == ErrorCode::NotAllowed => {
            let rows = reported(client).await;
            if rows.is_empty() {
                return Err(error);
            }
            say(
                "note: you may not list clusterqueues, so this is your own project by the controller's report, up to a minute old",
            );
            rows
        }
        rows => rows?,
    };
    if rows.is_empty() && !format.is_json() {
        say("no projects; `divvy-k8s project add NAME --quota 2 --namespace NAMESPACE` adds one");
        return Ok(());
    }
    print_projects(rows, format)
}

pub async fn departments(format: Format, client: &Client) -> Result<(), Error> {
    let kueue = Kueue::of(client).await?;
    let rows = department_rows(&kueue).await?;
    if rows.is_empty() && !format.is_json() {
        say("no departments; `divvy-k8s department add NAME --quota 6` adds one");
        return Ok(());
    }
    print_departments(rows, format)
}

/// Prints one project as JSON.
///
/// # Errors
/// As [`projects`].
pub async fn print_project(kueue: &Kueue, name: &str) -> Result<(), Error> {
    let mut rows = project_rows(kueue).await?;
    rows.retain(|row| row.name == name);
    print_projects(rows, Format::Json)
}

/// Prints one department as JSON.
///
/// # Errors
/// As [`departments`].
pub async fn print_department(kueue: &Kueue, name: &str) -> Result<(), Error> {
    let mut rows = department_rows(kueue).await?;
    rows.retain(|row| row.name == name);
    print_departments(rows, Format::Json)
}

/// Prints the name of a removed object as JSON.
///
/// # Errors
/// stdout does not take it.
pub fn print_removed(kind: &str, name: &str) -> Result<(), Error> {
    error_output::print(&error_output::json(kind, vec![Removed { name }])?)
}

/// `job train`: the owner of a Workload, by its kind.
pub fn workload_name(workload: &Value) -> String {
    let owners = workload["metadata"]["ownerReferences"].as_array();
    let owner = owners.and_then(|all| {
        all.iter()
            .find(|one| one["controller"] == true)
            .or(all.first())
    });
    match owner {
        Some(owner) => {
            let kind = status::text(&owner["kind"]).to_lowercase();
            format!("{kind} {}", status::text(&owner["name"]))
        }
        None => format!("workload {}", status::name(workload)),
    }
}

async fn project_rows(kueue: &Kueue) -> Result<Vec<ProjectRow>, Error> {
    let queues = kueue
        .list(Kind::ClusterQueue, &format!("{MARK}=project"))
        .await?;
    // Who may read quotas may not always read all workloads.
    let waiting = match kueue.workloads(None).await {
        Ok(workloads) => Some(workloads),
        Err(error) if error.code == ErrorCode::NotAllowed => None,
        Err(error) => return Err(error),
    };
    Ok(queues
        .iter()
        .map(|queue| row(queue, waiting.as_deref()))
        .collect())
}

/// The projects of the reports that the caller may read, each with the caller's namespaces.
async fn reported(client: &Client) -> Vec<ProjectRow> {
    let reports = report::readable(client).await.unwrap_or_default();
    let mut rows: BTreeMap<String, ProjectRow> = BTreeMap::new();
    for report in reports {
        let amount = |amount: i64| u64::try_from(amount).unwrap_or(0);
        let namespace = report.metadata.namespace.unwrap_or_default();
        let spec = report.spec;
        let row = rows.entry(spec.project.clone());
        let row = row.or_insert_with(|| ProjectRow {
            name: spec.project,
            quota: amount(spec.quota),
            limit: spec.limit.map(amount),
            weight: spec.weight.and_then(|weight| u32::try_from(weight).ok()),
            used: amount(spec.used),
            over_quota: amount(spec.over_quota),
            pending: None,
            running: amount(spec.running),
            waiting: amount(spec.waiting),
            department: spec.department,
            namespaces: Vec::new(),
            gpu_memory_bytes: amount(spec.gpu_memory_bytes),
            release: None,
            inactive: spec.inactive,
        });
        row.namespaces.push(namespace);
    }
    rows.into_values().collect()
}

fn row(queue: &Value, workloads: Option<&[Value]>) -> ProjectRow {
    let Some(project) = status::project(queue) else {
        return ProjectRow {
            name: status::name(queue),
            quota: 0,
            limit: None,
            weight: None,
            used: 0,
            over_quota: 0,
            pending: None,
            running: 0,
            waiting: 0,
            department: None,
            namespaces: Vec::new(),
            gpu_memory_bytes: 0,
            release: None,
            inactive: Some("incomplete; repeat `divvy-k8s project add`".to_owned()),
        };
    };
    let usage = status::usage(queue, project.gpu_memory);
    let pending = workloads.map(|all| pending(all, &project));
    ProjectRow {
        name: project.name,
        quota: project.quota,
        limit: project.limit,
        weight: project.weight,
        used: usage.used,
        over_quota: usage.borrowed,
        pending,
        running: usage.running,
        waiting: usage.waiting,
        department: project.department,
        namespaces: project.namespaces.into_iter().collect(),
        gpu_memory_bytes: project.gpu_memory.get(),
        release: match owner(queue) {
            Owner::Chart(release) => Some(release),
            Owner::Divvy | Owner::Other => None,
        },
        inactive: usage.inactive,
    }
}

/// What the waiting workloads of a project's namespaces ask for. Kueue notes it when it looks at one; until then, what the
/// webhook recorded counts.
fn pending(workloads: &[Value], project: &Project) -> u64 {
    let of_project = workloads.iter().filter(|workload| {
        let namespace = status::text(&workload["metadata"]["namespace"]);
        project.namespaces.contains(namespace)
            && matches!(
                status::workload_state(workload),
                WorkloadState::Pending { .. }
            )
    });
    let memory = of_project.map(|workload| {
        status::workload_memory(workload)
            .unwrap_or_else(|| status::recorded_memory(workload, project.gpu_memory))
    });
    let memory = memory.fold(Bytes::new(0), Bytes::saturating_add);
    quota::thousandths(memory, project.gpu_memory)
}

fn print_projects(rows: Vec<ProjectRow>, format: Format) -> Result<(), Error> {
    if format.is_json() {
        return error_output::print(&error_output::json("Project", rows)?);
    }
    let titles = [
        "PROJECT",
        "QUOTA",
        "LIMIT",
        "USED",
        "OVER",
        "PENDING",
        "WEIGHT",
        "RUNNING",
        "WAITING",
        "DEPARTMENT",
        "NAMESPACES",
    ];
    let lines: Vec<[String; 11]> = rows
        .iter()
        .map(|row| {
            [
                row.name.clone(),
                amount(row.quota),
                limit(row.limit),
                amount(row.used),
                amount(row.over_quota),
                row.pending.map_or_else(|| "-".to_owned(), amount),
                weight(row.weight),
                row.running.to_string(),
                row.waiting.to_string(),
                row.department.clone().unwrap_or_else(|| "-".to_owned()),
                row.namespaces.join(","),
            ]
        })
        .collect();
    error_output::print(&error_output::table(titles, &lines))?;
    for row in &rows {
        if let Some(why) = &row.inactive {
            say(&format!(
                "warning: project {} admits nothing: {}",
                row.name,
                error_output::clean(why)
            ));
        }
    }
    Ok(())
}

async fn department_rows(kueue: &Kueue) -> Result<Vec<DepartmentRow>, Error> {
    let cohorts = kueue
        .list(Kind::Cohort, &format!("{MARK}=department"))
        .await?;
    let queues = kueue
        .list(Kind::ClusterQueue, &format!("{MARK}=project"))
        .await?;
    let mut members: BTreeMap<String, Vec<(Project, Usage)>> = BTreeMap::new();
    for queue in &queues {
        if let Some(project) = status::project(queue)
            && let Some(department) = project.department.clone()
        {
            let usage = status::usage(queue, project.gpu_memory);
            members
                .entry(department)
                .or_default()
                .push((project, usage));
        }
    }
    let rows = cohorts.iter().filter_map(status::department);
    Ok(rows
        .map(|department| {
            department_row(
                &department,
                members.remove(&department.name).unwrap_or_default(),
            )
        })
        .collect())
}

fn department_row(department: &Department, members: Vec<(Project, Usage)>) -> DepartmentRow {
    let promised = members.iter().map(|(project, _)| project.quota).sum();
    let used = members.iter().map(|(_, usage)| usage.used).sum::<u64>();
    DepartmentRow {
        name: department.name.clone(),
        quota: department.quota,
        limit: department.limit,
        weight: department.weight,
        promised,
        used,
        over_quota: used.saturating_sub(department.effective_quota(promised)),
        running: members.iter().map(|(_, usage)| usage.running).sum(),
        waiting: members.iter().map(|(_, usage)| usage.waiting).sum(),
        projects: members
            .into_iter()
            .map(|(project, _)| project.name)
            .collect(),
        gpu_memory_bytes: department.gpu_memory.get(),
    }
}

fn print_departments(rows: Vec<DepartmentRow>, format: Format) -> Result<(), Error> {
    if format.is_json() {
        return error_output::print(&error_output::json("Department", rows)?);
    }
    let titles = [
        "DEPARTMENT",
        "QUOTA",
        "PROMISED",
        "LIMIT",
        "USED",
        "OVER",
        "WEIGHT",
        "RUNNING",
        "WAITING",
        "PROJECTS",
    ];
    let lines: Vec<[String; 10]> = rows
        .iter()
        .map(|row| {
            [
                row.name.clone(),
                row.quota.map_or_else(|| "projects".to_owned(), amount),
                amount(row.promised),
                limit(row.limit),
                amount(row.used),
                amount(row.over_quota),
                weight(row.weight),
                row.running.to_string(),
                row.waiting.to_string(),
                row.projects.join(","),
            ]
        })
        .collect();
    error_output::print(&error_output::table(titles, &lines))
}

fn amount(thousandths: u64) -> String {
    gpus(thousandths).to_string()
}

fn limit(limit: Option<u64>) -> String {
    limit.map_or_else(|| "none".to_owned(), amount)
}

fn weight(weight: Option<u32>) -> String {
    weight.map_or_else(|| "quota".to_owned(), |weight| weight.to_string())
}
