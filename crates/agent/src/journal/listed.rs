//! Ended jobs of a list: the filters of `GET /v1/jobs` in SQL, and pages with a limit.

use std::collections::BTreeSet;
use std::path::Path;

use divvy_api::v1::EndReason;
use divvy_core::JobId;
use divvy_core::job::Outcome;
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

use super::jobs::jobs;
use super::{StoreError, events, rows, sql};
use crate::model::job::{Credentials, Job};
use crate::model::job_filter::{Field, GpuFilter, JobFilter, Key, UserFilter};

/// Which part of a list by number is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Jobs behind this one.
    pub after: Option<JobId>,
    /// The newest first.
    pub descending: bool,
    /// `None`: all of them.
    pub most: Option<usize>,
}

#[cfg(test)]
impl Span {
    /// Whether a job comes behind `after`.
    pub fn has(&self, id: JobId) -> bool {
        self.after.is_none_or(|after| match self.descending {
            false => id > after,
            true => id < after,
        })
    }
}

/// The ended jobs that match, in this part of the list, and the number of those that match in all.
///
/// # Errors
/// When the journal cannot be read.
pub fn listed(
    database: &Path,
    filter: &JobFilter,
    span: Span,
) -> Result<(Vec<Job>, u64), StoreError> {
    let db = events::reader(database).map_err(sql("open the database for reading"))?;
    let which = Which::of(filter)?;
    let read = || -> rusqlite::Result<(Vec<JobId>, Option<u64>)> {
        let (behind, order) = match span.descending {
            false => (">", "ASC"),
            true => ("<", "DESC"),
        };
        let mut values = which.values.clone();
        let mut place = |value: i64| {
            values.push(value.into());
            format!("?{}", values.len())
        };
        let after = span.after.map(|after| {
            let after = place(rows::figure(after.0));
            format!(" AND id {behind} {after}")
        });
        let limit = span.most.map(|most| {
            let most = place(i64::try_from(most).unwrap_or(i64::MAX));
            format!(" LIMIT {most}")
        });
        let query = format!(
            "SELECT id FROM job WHERE {}{} ORDER BY id {order}{}",
            which.condition,
            after.unwrap_or_default(),
            limit.unwrap_or_default()
        );
        let mut query = db.prepare(&query)?;
        let ids = query.query_map(params_from_iter(values), |row| row.get(0).map(JobId))?;
        let ids = ids.collect::<rusqlite::Result<Vec<_>>>()?;
        // A list of everything is its own count.
        let is_whole = span.after.is_none() && span.most.is_none_or(|most| ids.len() < most);
        if is_whole {
            return Ok((ids, None));
        }
        let count = format!("SELECT count(*) FROM job WHERE {}", which.condition);
        let count = db.query_row(&count, params_from_iter(&which.values), |row| row.get(0))?;
        Ok((ids, Some(count)))
    };
    let (ids, count) = read().map_err(sql("list ended jobs"))?;
    let count = count.unwrap_or(ids.len() as u64);
    Ok((of_ids(&db, &ids)?, count))
}

/// The numbers and values of all ended jobs that match. A list that is sorted by a value needs all of them.
///
/// # Errors
/// When the journal cannot be read.
pub fn listed_keys(
    database: &Path,
    filter: &JobFilter,
    by: Field,
) -> Result<Vec<(JobId, Option<Key>)>, StoreError> {
    let which = Which::of(filter)?;
    let read = || -> rusqlite::Result<Vec<_>> {
        let db = events::reader(database)?;
        let query = format!(
            "SELECT id, {} FROM job WHERE {}",
            column(by),
            which.condition
        );
        let mut query = db.prepare(&query)?;
        let keys = query.query_map(params_from_iter(&which.values), |row| {
            let key = match row.get(1)? {
                Value::Integer(number) => Some(Key::Number(number)),
                Value::Text(text) => Some(Key::Text(text)),
                Value::Null | Value::Real(_) | Value::Blob(_) => None,
            };
            Ok((JobId(row.get(0)?), key))
        })?;
        keys.collect()
    };
    read().map_err(sql("sort ended jobs"))
}

/// Those of these jobs that have ended and match, in no order.
///
/// # Errors
/// When the journal cannot be read.
pub fn listed_of(
    database: &Path,
    ids: &[JobId],
    filter: &JobFilter,
) -> Result<Vec<Job>, StoreError> {
    let db = events::reader(database).map_err(sql("open the database for reading"))?;
    let mut found = of_ids(&db, ids)?;
    found.retain(|job| job.state.outcome().is_some() && filter.matches(job));
    Ok(found)
}

fn of_ids(db: &Connection, ids: &[JobId]) -> Result<Vec<Job>, StoreError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let ids: BTreeSet<u64> = ids.iter().map(|id| id.0).collect();
    let ids = rows::json(&ids).map_err(sql("list ended jobs"))?;
    jobs(db, "id IN (SELECT value FROM json_each(?1))", [ids])
}

/// The column that has a list's value; for a job that has ended.
fn column(by: Field) -> &'static str {
    match by {
        Field::Id => "id",
        Field::Name => "name",
        Field::User => "user",
        Field::Queue => "queue",
        Field::Project => "project",
        Field::State => ENDED_RANK,
        // It holds and waits for nothing any more.
        Field::Memory | Field::Place => "NULL",
        Field::Peak => "(SELECT sum(peak) FROM holding WHERE job = id)",
        Field::Share => "(SELECT sum(share) FROM holding WHERE job = id)",
        Field::Submitted => "submitted_at",
        Field::Started => "started_at",
        Field::Ended => "ended_at",
        Field::Elapsed => "ended_at - started_at",
    }
}

/// Place of the state `ended` among the states.
const ENDED_RANK: &str = "4";

/// A condition with its values.
struct Which {
    condition: String,
    values: Vec<Value>,
}

impl Which {
    fn of(filter: &JobFilter) -> Result<Self, StoreError> {
        let mut which = Self {
            condition: "state = 'ended'".to_owned(),
            values: Vec::new(),
        };
        if let Some(states) = &filter.states
            && !states.reasons.is_empty()
        {
            let reasons = states.reasons.iter().map(|reason| ended_by(*reason));
            let reasons: rusqlite::Result<Vec<String>> = reasons.collect();
            let reasons = reasons.map_err(sql("list ended jobs"))?;
            which.and(&format!("({})", reasons.join(" OR ")), []);
        }
        match &filter.user {
            None => {}
            Some(UserFilter::Name(name)) => which.and("user = ?", [name.clone().into()]),
            // What was submitted before there were other users is the daemon's own user's.
            Some(UserFilter::Uid(uid)) if *uid == Credentials::current().uid => {
                which.and("coalesce(uid, ?) = ?", [(*uid).into(), (*uid).into()]);
            }
            Some(UserFilter::Uid(uid)) => which.and("uid = ?", [(*uid).into()]),
        }
        match filter.project.as_deref() {
            None => {}
            Some("") => which.and("project IS NULL", []),
            Some(project) => which.and("project = ?", [project.to_owned().into()]),
        }
        if let Some(queue) = &filter.queue {
            which.and("queue = ?", [queue.clone().into()]);
        }
        let held = "EXISTS (SELECT 1 FROM holding WHERE job = id AND";
        match &filter.gpu {
            None => {}
            Some(GpuFilter::Index(index)) => {
                which.and(&format!("{held} gpu_index = ?)"), [(*index).into()]);
            }
            Some(GpuFilter::Uuid(uuid)) => {
                which.and(&format!("{held} gpu_uuid = ?)"), [uuid.clone().into()]);
            }
        }
        if let Some(name) = &filter.name {
            which.and("name GLOB ?", [name.glob().into()]);
        }
        if let Some(since) = filter.since {
            which.and("ended_at > ?", [since.as_microsecond().into()]);
        }
        if let Some(text) = &filter.text {
            let handle = " OR instr(coalesce(terms ->> '$.array.array', id) || '_' || (terms ->> '$.array.index'), ?)";
            let handle = if text.is_of_handle() { handle } else { "" };
            let one = format!(
                "instr(lower(name), ?) OR instr(lower(user), ?) OR instr(lower(queue), ?) \
                 OR instr(lower(coalesce(project, '')), ?) OR instr(id, ?){handle}"
            );
            let count = one.matches('?').count();
            let forms = text.forms();
            let condition = vec![one; forms.len()].join(" OR ");
            let values = forms
                .iter()
                .flat_map(|form| vec![form.clone().into(); count]);
            which.and(&format!("({condition})"), values.collect::<Vec<_>>());
        }
        Ok(which)
    }

    /// Adds a condition, in which each `?` stands for the next value.
    fn and(&mut self, condition: &str, values: impl IntoIterator<Item = Value>) {
        let mut parts = condition.split('?');
        self.condition.push_str(" AND ");
        self.condition.extend(parts.next());
        for (value, part) in values.into_iter().zip(parts) {
            self.values.push(value);
            self.condition
                .push_str(&format!("?{}{part}", self.values.len()));
        }
    }
}

/// The condition for jobs that ended for this reason.
fn ended_by(reason: EndReason) -> rusqlite::Result<String> {
    let is = |outcome: Outcome| Ok(format!("outcome = '{}'", rows::json(&outcome)?));
    let begins = |outcome: Outcome| {
        let text = rows::json(&outcome)?;
        let begin = text.split_inclusive(':').next().unwrap_or_default();
        Ok::<_, rusqlite::Error>(format!("outcome GLOB '{begin}*'"))
    };
    match reason {
        EndReason::Completed => is(Outcome::Exited(0)),
        EndReason::Failed => Ok(format!(
            "{} AND NOT {} OR {}",
            begins(Outcome::Exited(1))?,
            is(Outcome::Exited(0))?,
            begins(Outcome::Signaled(9))?
        )),
        EndReason::Cancelled => is(Outcome::Cancelled),
        EndReason::LaunchFailed => begins(Outcome::LaunchFailed(String::new())),
        EndReason::SupervisorLost => is(Outcome::SupervisorLost),
        EndReason::Bypass => is(Outcome::Bypass),
        EndReason::TimeLimit => is(Outcome::TimeLimit),
        EndReason::IdleTimeout => is(Outcome::Idle),
        EndReason::DependencyFailed => begins(Outcome::DependencyFailed(JobId(0))),
        EndReason::GpuLost => is(Outcome::GpuLost),
        EndReason::Released => is(Outcome::Released),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_of_the_end_is_the_same_in_sql() {
        let db = Connection::open_in_memory().unwrap();
        let outcomes = [
            Outcome::Exited(0),
            Outcome::Exited(1),
            Outcome::Exited(10),
            Outcome::Signaled(9),
            Outcome::Cancelled,
            Outcome::LaunchFailed("it: \"cancelled\"".into()),
            Outcome::SupervisorLost,
            Outcome::Bypass,
            Outcome::TimeLimit,
            Outcome::Idle,
            Outcome::DependencyFailed(JobId(7)),
            Outcome::GpuLost,
            Outcome::Released,
        ];
        for outcome in &outcomes {
            for reason in EndReason::ALL {
                let query = format!(
                    "SELECT {} FROM (SELECT ?1 AS outcome)",
                    ended_by(reason).unwrap()
                );
                let found: bool = db
                    .query_row(&query, [rows::json(outcome).unwrap()], |row| row.get(0))
                    .unwrap();
                assert_eq!(
                    found,
                    EndReason::from(outcome) == reason,
                    "{outcome:?} {reason:?}"
                );
            }
        }
    }
}
