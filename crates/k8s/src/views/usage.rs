//! `usage`: GPU hours of the cluster, summed over the ledgers of the nodes' daemons.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args as ClapArgs;
use divvy_api::v1::{Error, ErrorCode, List, Usage};
use divvy_cli::args::Read;
use divvy_cli::render::View;
use divvy_cli::table::{self, Column};
use divvy_cli::text;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};

use super::{Nodes, listed, node_exec, once};
use crate::doctor::few;
use crate::error_output::usage as wrong_usage;
use crate::project::report::{self, ProjectReportSpec};
use crate::views::objects::list_all;

/// Words of `--by`, and the nodes' word for each.
const GROUPS: [(&str, &str); 5] = [
    ("namespace", "namespace"),
    ("project", "namespace"),
    ("user", "user"),
    ("day", "day"),
    ("claim", "job"),
];

#[derive(ClapArgs)]
pub struct Args {
    /// One row per namespace, project, user, day or claim, or a list of them; none: one row in total
    #[arg(long, value_name = "LIST", default_value = "namespace")]
    by: String,
    /// Begin: a time before the end (30d, 12h), a day (2026-11-01) or a time in RFC 3339
    #[arg(long, value_name = "WHEN", default_value = "30d")]
    since: String,
    /// End: a day, a time in RFC 3339, or a time before now (12h) [default: now]
    #[arg(long, value_name = "WHEN")]
    until: Option<String>,
    #[command(flatten)]
    nodes: Nodes,
    #[command(flatten)]
    read: Read,
}

impl Args {
    pub fn is_json(&self) -> bool {
        self.read.output.is_json()
    }
}

/// # Errors
/// The caller may not run commands on the nodes, or no node answers.
pub async fn run(args: &Args, client: &Client) -> Result<ExitCode, Error> {
    let by = groups(&args.by)?;
    let namespace = args.nodes.divvy_namespace.as_str();
    if !node_exec::is_allowed(client, namespace).await? {
        if let Some(rows) = of_reports(args, &by, client).await? {
            let notes = vec![
                total(&rows),
                format!(
                    "you may not create pods/exec in namespace {namespace}, so these are the hours of your own project by the controller's samples: days in UTC, without claims and use"
                ),
            ];
            return once(async || listed(&rows, args.read.output, drawn, notes.clone())).await;
        }
        let message = format!(
            "cannot read the GPU hours of the nodes: you may not create pods/exec in namespace {namespace}"
        );
        return Err(Error::new(ErrorCode::NotAllowed, message)
            .hint("ask the cluster's administrator for this right"));
    }
    let pods = node_exec::node_pods(client, namespace).await?;
    if pods.is_empty() {
        let message = format!("no node pod of Divvy in namespace {namespace}");
        return Err(Error::new(ErrorCode::NotFound, message)
            .hint("name the namespace of the release with --divvy-namespace"));
    }
    let asked = words(args, &by);
    let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
    let patience = args.nodes.patience();
    let answers = node_exec::run_on_all(client, namespace, &pods, &asked, patience).await;
    let (mut rows, mut silent) = (Vec::new(), BTreeMap::new());
    for (node, answer) in answers {
        let list = answer.and_then(|text| {
            serde_json::from_str::<List<Usage>>(&text)
                .map_err(|error| format!("cannot read its answer: {error}"))
        });
        match list {
            Ok(list) => rows.extend(list.items),
            Err(why) => _ = silent.insert(node, why),
        }
    }
    if silent.len() == pods.len() {
        // All of them refuse a wrong time, with the same words.
        let (node, why) = silent.pop_first().unwrap_or_default();
        let message = format!("no node has answered; node {node}: {why}");
        return Err(
            Error::new(ErrorCode::NoDaemon, message).hint("divvy-k8s doctor checks the nodes")
        );
    }
    let projects = match by.contains(&"project") {
        true => projects(client).await?,
        false => BTreeMap::new(),
    };
    let rows = merged(rows, &by, &projects);
    let mut notes = vec![total(&rows)];
    if !silent.is_empty() {
        let names = silent
            .iter()
            .map(|(node, why)| format!("node {node}: {why}"));
        let names: Vec<String> = names.collect();
        notes.push(format!(
            "the sum lacks {} nodes: {}",
            names.len(),
            few(&names)
        ));
    }
    once(async || listed(&rows, args.read.output, drawn, notes.clone())).await
}

/// The rows of the reports that the caller may read; `None` if there are none, or they cannot answer the question.
async fn of_reports(
    args: &Args,
    by: &[&'static str],
    client: &Client,
) -> Result<Option<Vec<Usage>>, Error> {
    let is_known = |word: &&str| ["namespace", "project", "day"].contains(word);
    let reports = report::readable(client).await.unwrap_or_default();
    if reports.is_empty() || !by.iter().all(is_known) {
        return Ok(None);
    }
    let since = date(&args.since)?;
    let until = args.until.as_deref().map(date).transpose()?;
    // Each namespace of a project has the same report.
    let mut of_project: BTreeMap<String, ProjectReportSpec> = BTreeMap::new();
    for report in reports {
        of_project.insert(report.spec.project.clone(), report.spec);
    }
    let mut rows = Vec::new();
    for (project, report) in of_project {
        let mib = u64::try_from(report.gpu_memory_bytes >> 20).unwrap_or(0);
        for found in &report.days {
            let is_later = until.as_ref().is_some_and(|until| found.day > *until);
            if found.day < since || is_later {
                continue;
            }
            let ms = u64::try_from(found.allocated_gpu_ms).unwrap_or(0);
            rows.push(Usage {
                day: by.contains(&"day").then(|| found.day.clone()),
                project: Some(project.clone()).filter(|_| !by.is_empty()),
                allocated_gpu_ms: ms,
                unknown_gpu_ms: ms,
                memory_mib_s: (ms / 1000).saturating_mul(mib),
                user: None,
                queue: None,
                gpu_index: None,
                gpu_uuid: None,
                job: None,
                name: None,
                namespace: None,
                jobs: 0,
                used_gpu_ms: 0,
                loaned_gpu_ms: 0,
                idle_gpu_ms: 0,
                suspended_gpu_ms: 0,
                capacity_gpu_ms: 0,
            });
        }
    }
    let mut sums: BTreeMap<_, Usage> = BTreeMap::new();
    for row in rows {
        let key = (row.day.clone(), row.project.clone());
        match sums.get_mut(&key) {
            Some(sum) => add(sum, &row),
            None => _ = sums.insert(key, row),
        }
    }
    Ok(Some(sums.into_values().collect()))
}

/// The day in UTC of `30d`, `2026-11-01` or a time in RFC 3339.
fn date(text: &str) -> Result<String, Error> {
    let now = Timestamp::now().to_zoned(TimeZone::UTC);
    let ago = text.parse::<Span>().ok();
    let ago = ago.and_then(|span| now.checked_sub(span).ok());
    let at = text.parse::<Timestamp>().ok();
    let at = at.map(|at| at.to_zoned(TimeZone::UTC));
    let day = ago.or(at).map(|time| time.date());
    let day = day.or_else(|| text.parse::<Date>().ok());
    day.map(|day| day.to_string()).ok_or_else(|| {
        wrong_usage(
            format!("{text:?} is not a time"),
            "write 30d, a day such as 2026-11-01, or a time in RFC 3339",
        )
    })
}

/// The words of `--by`.
fn groups(text: &str) -> Result<Vec<&'static str>, Error> {
    let mut by = Vec::new();
    let words = text.split(',').filter(|word| !word.is_empty());
    for word in words.filter(|word| *word != "none") {
        let known = GROUPS.iter().find(|(name, _)| *name == word);
        let Some((name, _)) = known else {
            let names: Vec<&str> = GROUPS.iter().map(|(name, _)| *name).collect();
            return Err(wrong_usage(
                format!("usage cannot be grouped by {word:?}"),
                format!(
                    "use one or more of {}, separated by commas",
                    names.join(", ")
                ),
            ));
        };
        if !by.contains(name) {
            by.push(*name);
        }
    }
    Ok(by)
}

/// `divvy usage …` for each node.
fn words(args: &Args, by: &[&str]) -> Vec<String> {
    let mut groups: Vec<&str> = by
        .iter()
        .filter_map(|word| GROUPS.iter().find(|(name, _)| name == word))
        .map(|(_, of_node)| *of_node)
        .collect();
    groups.dedup();
    let groups = match groups.is_empty() {
        true => "none".to_owned(),
        false => groups.join(","),
    };
    let mut words = vec!["usage".to_owned(), "-o".to_owned(), "json".to_owned()];
    words.push(format!("--by={groups}"));
    words.push(format!("--since={}", args.since));
    words.extend(args.until.iter().map(|until| format!("--until={until}")));
    words
}

/// The project of each namespace: the ClusterQueue of its LocalQueues, if they agree (Kueue).
async fn projects(client: &Client) -> Result<BTreeMap<String, String>, Error> {
    let kind = GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", "LocalQueue");
    let api = Api::<DynamicObject>::all_with(client.clone(), &ApiResource::from_gvk(&kind));
    let queues = list_all(&api, None).await.map_err(|error| {
        crate::error_output::of_kube(error, "list LocalQueues of Kueue, which name the projects")
    })?;
    let mut projects: BTreeMap<String, Option<String>> = BTreeMap::new();
    for queue in queues {
        let (Some(namespace), Some(project)) = (
            queue.metadata.namespace,
            queue.data["spec"]["clusterQueue"].as_str(),
        ) else {
            continue;
        };
        let known = projects
            .entry(namespace)
            .or_insert_with(|| Some(project.to_owned()));
        if known.as_deref() != Some(project) {
            *known = None;
        }
    }
    let agreed = projects.into_iter();
    Ok(agreed
        .filter_map(|(namespace, project)| Some((namespace, project?)))
        .collect())
}

/// The sum of the nodes' rows for each of what was asked by, the largest first within a day.
fn merged(rows: Vec<Usage>, by: &[&str], projects: &BTreeMap<String, String>) -> Vec<Usage> {
    let has = |word: &str| by.contains(&word);
    let mut sums: BTreeMap<_, Usage> = BTreeMap::new();
    for mut row in rows {
        if has("project") {
            let namespace = row.namespace.as_ref();
            row.project = namespace.and_then(|namespace| projects.get(namespace).cloned());
        }
        row.namespace = row.namespace.filter(|_| has("namespace"));
        // Numbers of jobs are those of one node.
        row.job = None;
        let key = (
            row.day.clone(),
            row.namespace.clone(),
            row.project.clone(),
            row.user.clone(),
            row.name.clone(),
        );
        match sums.get_mut(&key) {
            Some(sum) => add(sum, &row),
            None => _ = sums.insert(key, row),
        }
    }
    let mut rows: Vec<Usage> = sums.into_values().collect();
    // Of a day without use, a node reports an empty row; others may have used it.
    let is_empty = |row: &Usage| row.jobs == 0 && row.allocated_gpu_ms == 0;
    if by.iter().any(|word| *word != "day") {
        rows.retain(|row| !is_empty(row));
    }
    rows.sort_by(|a, b| {
        let most = b.allocated_gpu_ms.cmp(&a.allocated_gpu_ms);
        a.day.cmp(&b.day).then(most)
    });
    rows
}

fn add(sum: &mut Usage, row: &Usage) {
    for (sum, more) in [
        (&mut sum.jobs, row.jobs),
        (&mut sum.allocated_gpu_ms, row.allocated_gpu_ms),
        (&mut sum.used_gpu_ms, row.used_gpu_ms),
        (&mut sum.loaned_gpu_ms, row.loaned_gpu_ms),
        (&mut sum.idle_gpu_ms, row.idle_gpu_ms),
        (&mut sum.unknown_gpu_ms, row.unknown_gpu_ms),
        (&mut sum.suspended_gpu_ms, row.suspended_gpu_ms),
        (&mut sum.memory_mib_s, row.memory_mib_s),
        (&mut sum.capacity_gpu_ms, row.capacity_gpu_ms),
    ] {
        *sum = sum.saturating_add(more);
    }
}

/// The part of a row that it is summed by, if it has one.
type KeyOf = fn(&Usage) -> Option<&String>;

/// The columns of `divvy usage`. The nodes' part of the machine is left out: a node without use of a namespace has no
/// row for it.
fn drawn(rows: &[Usage], view: View) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let keys: [(&str, KeyOf); 5] = [
        ("DAY", |row| row.day.as_ref()),
        ("NAMESPACE", |row| row.namespace.as_ref()),
        ("PROJECT", |row| row.project.as_ref()),
        ("USER", |row| row.user.as_ref()),
        ("CLAIM", |row| row.name.as_ref()),
    ];
    let keys: Vec<_> = keys
        .into_iter()
        .filter(|(_, of)| rows.iter().any(|row| of(row).is_some()))
        .collect();
    let mut columns: Vec<Column> = keys.iter().map(|(name, _)| Column::Text(name)).collect();
    columns.extend(
        [
            "JOBS",
            "GPU HOURS",
            "USED",
            "IDLE",
            "UNKNOWN",
            "MEMORY GiB H",
        ]
        .map(Column::Right),
    );
    let cells = |row: &Usage| {
        let names = keys
            .iter()
            .map(|(_, of)| of(row).map_or_else(|| "-".to_owned(), |name| text::clean(name)));
        let mut cells: Vec<String> = names.collect();
        cells.push(row.jobs.to_string());
        let times = [
            row.allocated_gpu_ms,
            row.used_gpu_ms,
            row.idle_gpu_ms,
            row.unknown_gpu_ms,
        ];
        cells.extend(times.map(hours));
        let memory = u128::from(row.memory_mib_s) * 100 / (1024 * 3600);
        cells.push(hundredths(memory));
        cells
    };
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    table::render(&columns, &rows, view.fit())
}

/// `12.50 GPU hours`.
fn total(rows: &[Usage]) -> String {
    let sum = rows.iter().map(|row| row.allocated_gpu_ms);
    let sum = sum.fold(0, u64::saturating_add);
    match rows.iter().all(|row| row.jobs == 0) && sum == 0 {
        true => "no claim held a GPU in this time".to_owned(),
        false => format!("{} GPU hours", hours(sum)),
    }
}

fn hours(ms: u64) -> String {
    hundredths(u128::from(ms) / 36_000)
}

fn hundredths(figure: u128) -> String {
    format!("{}.{:02}", figure / 100, figure % 100)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn row(of: Value, hours: u64) -> Usage {
        let mut row = json!({
            "jobs": u64::from(hours > 0), "allocated_gpu_ms": hours * 3_600_000, "used_gpu_ms": 0, "loaned_gpu_ms": 0,
            "idle_gpu_ms": 0, "unknown_gpu_ms": 0, "suspended_gpu_ms": 0, "memory_mib_s": 0, "job": "7",
        });
        for (key, value) in of.as_object().unwrap() {
            row[key] = value.clone();
        }
        serde_json::from_value(row).unwrap()
    }

    #[test]
    fn rows_of_several_nodes_are_summed_by_namespace_and_by_project() {
        let rows = || {
            vec![
                row(json!({ "namespace": "team-a" }), 2),
                row(json!({ "namespace": "team-b" }), 4),
                row(json!({ "namespace": "team-a" }), 3),
                row(json!({}), 1),
            ]
        };
        let told = |rows: &[Usage]| -> Vec<(Option<String>, u64)> {
            let of = |row: &Usage| row.namespace.clone().or(row.project.clone());
            let hours = |row: &Usage| row.allocated_gpu_ms / 3_600_000;
            rows.iter().map(|row| (of(row), hours(row))).collect()
        };
        let named = |name: &str, hours| (Some(name.to_owned()), hours);
        let sums = merged(rows(), &["namespace"], &BTreeMap::new());
        assert_eq!(
            told(&sums),
            [named("team-a", 5), named("team-b", 4), (None, 1)]
        );
        assert_eq!(sums[0].jobs, 2);
        let projects = ["team-a", "team-b"]
            .map(|namespace| (namespace.to_owned(), "vision".to_owned()))
            .into();
        let sums = merged(rows(), &["project"], &projects);
        assert_eq!(told(&sums), [named("vision", 9), (None, 1)]);
    }

    #[test]
    fn days_are_in_their_order_and_empty_ones_are_kept_only_alone() {
        let rows = || {
            vec![
                row(json!({ "day": "2026-11-02" }), 0),
                row(json!({ "day": "2026-11-01" }), 1),
                row(json!({ "day": "2026-11-02" }), 0),
            ]
        };
        let days = |by: &[&str]| {
            let rows = merged(rows(), by, &BTreeMap::new());
            let days = rows.iter().map(|row| row.day.clone().unwrap());
            days.collect::<Vec<_>>()
        };
        assert_eq!(days(&["day"]), ["2026-11-01", "2026-11-02"]);
        assert_eq!(days(&["day", "namespace"]), ["2026-11-01"]);
    }

    #[test]
    fn an_unknown_word_is_refused_with_the_known_ones() {
        let error = groups("namespace,queue").unwrap_err();
        assert!(error.message.contains("\"queue\""), "{}", error.message);
        assert!(error.hint.unwrap().contains("namespace, project, user"));
        assert_eq!(groups("none").unwrap(), [""; 0]);
    }
}
