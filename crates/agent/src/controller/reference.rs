//! Job references: the meaning of `12`, `12_3`, `last`, `sweep` or `sweep[3]`. No other module interprets them.
//!
//! ```text
//! 12        an array, where job 12 is the first of one; else job 12
//! 12_3      the job of array 12 with the index 3
//! last      the newest job; the array that it belongs to
//! sweep[3]  a job of this name
//! sweep     a job of this name, or the array that was submitted with it
//! ```
//! A number alone means any job but an array's first, which is written `12_0`.

use std::collections::BTreeSet;
use std::fmt;

use divvy_api::v1::Error;
use divvy_api::v1::ErrorCode;
use divvy_core::JobId;

use crate::controller::halt::{Halt, accepted};
use crate::controller::io::Io;
use crate::controller::runtime::ActiveJob;
use crate::controller::state;
use crate::controller::state::Jobs;
use crate::journal::StoreError;
use crate::model::job::{Credentials, Job};
use crate::model::policy::{ArrayTask, Of};
use crate::model::validate::limits::MOST_TASKS;

/// What a reference means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobRef {
    Job {
        id: JobId,
        /// Its index, if its number is also that of its array.
        first: Option<u32>,
    },
    /// All jobs of an array, by the number of the first.
    Array(JobId),
}

impl fmt::Display for JobRef {
    /// The reference that means this job or array now and later.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job {
                id,
                first: Some(index),
            } => write!(out, "{id}_{index}"),
            Self::Job { id, first: None } | Self::Array(id) => id.fmt(out),
        }
    }
}

impl JobRef {
    pub(in crate::controller) fn job(job: &Job) -> Self {
        Self::numbered(job.id, job.spec.policy.array)
    }

    fn numbered(id: JobId, task: Option<ArrayTask>) -> Self {
        let first = task.filter(|task| task.array_of(id) == id);
        Self::Job {
            id,
            first: first.map(|task| task.index),
        }
    }

    /// The array of a job, or the job itself.
    fn whole(job: &Job) -> Self {
        match job.spec.policy.array {
            Some(task) if task.count != Some(1) => Self::Array(task.array_of(job.id)),
            _ => Self::job(job),
        }
    }

    /// The form of a dependency on it.
    pub(in crate::controller) fn of(self, count: u32) -> (JobId, Of) {
        match self {
            Self::Job { id, first: None } => (id, Of::Job),
            Self::Job {
                id,
                first: Some(index),
            } => (id, Of::First(index)),
            Self::Array(array) => (array, Of::Array(count)),
        }
    }
}

/// `12_3`, `#12_3`.
fn task_reference(reference: &str) -> Option<(JobId, u32)> {
    let (array, index) = reference.split_once('_')?;
    if !index.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some((array.parse().ok()?, index.parse().ok()?))
}

/// `sweep[3]`.
fn task_name(reference: &str) -> Option<(&str, u32)> {
    let (name, index) = reference.strip_suffix(']')?.rsplit_once('[')?;
    if !index.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some((name, index.parse().ok()?))
}

/// The job or its array, if this name means one of them.
fn named(job: &Job, name: &str) -> Option<JobRef> {
    let own = job.spec.name.as_str();
    if own == name {
        return Some(JobRef::job(job));
    }
    let task = job.spec.policy.array?;
    let is_its = own.starts_with(name) && task_name(own) == Some((name, task.index));
    is_its.then(|| JobRef::whole(job))
}

/// The one job that a reference means.
pub(in crate::controller) fn find(jobs: &Jobs, io: &Io, reference: &str) -> Result<JobId, Halt> {
    match resolve_reference(jobs, io, reference)? {
        JobRef::Job { id, .. } => Ok(id),
        JobRef::Array(array) => Err(single_job_error(io, array)?.into()),
    }
}

/// The meaning of a reference. A name means a job that has not ended, else the newest.
pub(in crate::controller) fn resolve_reference(
    jobs: &Jobs,
    io: &Io,
    reference: &str,
) -> Result<JobRef, Halt> {
    if reference == "last" {
        let newest = io.store.newest()?;
        return whole(jobs, io, newest)?
            .ok_or_else(|| missing(reference, "no job has been submitted yet").into());
    }
    if let Ok(id) = reference.parse::<JobId>() {
        return by_number(jobs, io, reference, id);
    }
    let mut unknown = None;
    if let Some((array, index)) = task_reference(reference)
        && let Some(first) = first_kept(io, array)?
    {
        match task(jobs, io, JobRef::whole(&first), array, index) {
            Ok(meant) => return Ok(meant),
            // `2026_11` may be a name.
            Err(Halt::Refused(error)) => unknown = Some(error),
            Err(halt) => return Err(halt),
        }
    }
    let active = active_named(jobs, reference, None);
    if !active.is_empty() {
        return Ok(exactly_one(reference, &active)?);
    }
    let job = named_or_keyed(io, reference)?;
    let array = io.store.newest_array_named(reference)?;
    if let Some(meant) = whole(jobs, io, array.filter(|array| Some(*array) > job))? {
        return Ok(meant);
    }
    if let Some(id) = job {
        return Ok(JobRef::numbered(id, task_of(jobs, io, id)?.flatten()));
    }
    if let Some((name, index)) = task_name(reference)
        && let Some(meant @ JobRef::Array(array)) = accepted(resolve_reference(jobs, io, name))?
    {
        return task(jobs, io, meant, array, index);
    }
    let hint = match reference.contains(['_', '[']) {
        false => "use its number, its name or `last`; `divvy ps -a` lists them all",
        true => {
            "use its number, its name or `last`, or 12_3 for index 3 of array 12; `divvy ps -a` lists them all"
        }
    };
    Err(unknown.unwrap_or_else(|| missing(reference, hint)).into())
}

/// What a reference means to a caller that may see all jobs.
///
/// # Errors
/// [`ErrorCode::NotFound`], and [`ErrorCode::Conflict`] for a name of several jobs.
pub fn resolve(jobs: &Jobs, io: &Io, reference: &str) -> Result<JobRef, Error> {
    Ok(resolve_reference(jobs, io, reference)?)
}

fn by_number(jobs: &Jobs, io: &Io, reference: &str, id: JobId) -> Result<JobRef, Halt> {
    match task_of(jobs, io, id)? {
        Some(Some(task)) if task.array_of(id) == id && task.count != Some(1) => {
            return Ok(JobRef::Array(id));
        }
        Some(task) => return Ok(JobRef::numbered(id, task)),
        None => {}
    }
    // The journal may keep other jobs of an array longer than its first.
    if first_kept(io, id)?.is_some() {
        return Ok(JobRef::Array(id));
    }
    Err(state::unjournaled::refuse_unknown(jobs, id)
        .unwrap_or_else(|| missing(reference, "`divvy ps -a` lists them all"))
        .into())
}

/// The job of an array with this index. `meant`: the meaning of the array's own reference.
fn task(jobs: &Jobs, io: &Io, meant: JobRef, array: JobId, index: u32) -> Result<JobRef, Halt> {
    let has = |active: &&ActiveJob| {
        let task = active.job.spec.policy.array;
        task.is_some_and(|task| task.index == index)
    };
    if let Some(active) = living_of_array(jobs, array).find(has) {
        return Ok(JobRef::job(&active.job));
    }
    if let Some(id) = io.store.task_of_array(array, index)? {
        return Ok(JobRef::numbered(id, task_of(jobs, io, id)?.flatten()));
    }
    let of = match meant {
        JobRef::Array(array) => format!("array {array}"),
        job @ JobRef::Job { .. } => format!("job {job}"),
    };
    let why = format!("{of} has no job with the index {index}");
    let error = Error::new(ErrorCode::NotFound, why);
    Err(match io.store.extent_of_array(array)? {
        Some((low, high, _)) => error.hint(format!(
            "its jobs are {array}_{low} to {array}_{high}; `divvy ps {array}` lists them"
        )),
        None => error.hint("`divvy ps -a` lists all jobs"),
    }
    .into())
}

/// The error for an array where a single job is required.
fn single_job_error(io: &Io, array: JobId) -> Result<Error, StoreError> {
    let extent = io.store.extent_of_array(array)?;
    let one = extent.map_or_else(|| array.to_string(), |(low, ..)| format!("{array}_{low}"));
    let why = format!("{array} is an array, but a single job is required");
    Ok(Error::new(ErrorCode::Conflict, why)
        .hint(format!(
            "name one of its jobs, such as {one}; `divvy ps {array}` lists them"
        ))
        .details(serde_json::json!({ "array": array.to_string() })))
}

/// The array of a job, active or not, or the job itself.
fn whole(jobs: &Jobs, io: &Io, job: Option<JobId>) -> Result<Option<JobRef>, StoreError> {
    let Some(id) = job else { return Ok(None) };
    if let Some(active) = jobs.active.get(&id) {
        return Ok(Some(JobRef::whole(&active.job)));
    }
    if let Some(job) = io.store.job(id)? {
        return Ok(Some(JobRef::whole(&job)));
    }
    // The number of an array's first job, which the journal no longer has, while it has others.
    Ok(first_kept(io, id)?.map(|_| JobRef::Array(id)))
}

/// The array index of a job; `None` if there is no such job.
fn task_of(jobs: &Jobs, io: &Io, id: JobId) -> Result<Option<Option<ArrayTask>>, StoreError> {
    if let Some(active) = jobs.active.get(&id) {
        return Ok(Some(active.job.spec.policy.array));
    }
    Ok(io.store.job(id)?.map(|job| job.spec.policy.array))
}

/// The first job of an array in the journal; `None` if this is no number of an array.
pub(in crate::controller) fn first_kept(io: &Io, array: JobId) -> Result<Option<Job>, StoreError> {
    let kept = io.store.first_of_array(array)?;
    Ok(kept.map(|(job, _)| job))
}

/// An array's jobs that have not ended, by number.
pub(in crate::controller) fn living_of_array(
    jobs: &Jobs,
    array: JobId,
) -> impl Iterator<Item = &ActiveJob> {
    let below = JobId(array.0.saturating_add(MOST_TASKS as u64));
    let active = jobs.active.range(array..below).map(|(_, active)| &**active);
    active.filter(move |active| {
        let task = active.job.spec.policy.array;
        task.is_some_and(|task| task.array_of(active.job.id) == array)
    })
}

/// The jobs and arrays that a name means among active ones: of all users, or of one.
fn active_named(jobs: &Jobs, name: &str, of: Option<u32>) -> BTreeSet<JobRef> {
    let active = jobs.active.values().map(|active| &active.job);
    let active = active.filter(|job| of.is_none_or(|uid| job.spec.credentials.uid == uid));
    active.filter_map(|job| named(job, name)).collect()
}

/// The meaning of a reference among the caller's own jobs; `None` for a number, and if there are none or several.
pub(in crate::controller) fn find_own(
    jobs: &Jobs,
    io: &Io,
    reference: &str,
    caller: u32,
) -> Result<Option<JobRef>, StoreError> {
    if reference == "last" {
        let by = Credentials {
            uid: caller,
            gid: 0,
        };
        return whole(jobs, io, io.store.newest_of(by)?);
    }
    let named = active_named(jobs, reference, Some(caller));
    let mut named = named.into_iter();
    Ok(match (named.next(), named.next()) {
        (Some(meant), None) => Some(meant),
        _ => None,
    })
}

/// How many jobs an array has at most, counted from its first number.
pub(in crate::controller) fn count_of_array(io: &Io, array: JobId) -> Result<u32, StoreError> {
    let kept = io.store.first_of_array(array)?;
    if let Some(count) = kept.and_then(|(_, task)| task.count) {
        return Ok(count);
    }
    // An array of a build that did not store the count: its known jobs count.
    let extent = io.store.extent_of_array(array)?;
    let last = extent.map_or(array, |(.., last)| last);
    Ok(u32::try_from(last.0.saturating_sub(array.0) + 1).unwrap_or(u32::MAX))
}

fn missing(reference: &str, hint: &str) -> Error {
    Error::new(ErrorCode::NotFound, format!("there is no job {reference}")).hint(hint.to_owned())
}

/// The only element, or an error that names all of them.
fn exactly_one(name: &str, meant: &BTreeSet<JobRef>) -> Result<JobRef, Error> {
    if let (Some(one), 1) = (meant.first(), meant.len()) {
        return Ok(*one);
    }
    let references: Vec<String> = meant.iter().map(ToString::to_string).collect();
    let arrays = meant.iter().filter(|one| matches!(one, JobRef::Array(_)));
    let kinds = match arrays.count() {
        0 => "jobs",
        arrays if arrays == meant.len() => "arrays",
        _ => "jobs and arrays",
    };
    Err(Error::new(
        ErrorCode::Conflict,
        format!("{} {kinds} are named {name}", meant.len()),
    )
    .hint(format!(
        "use one of their numbers: {}",
        references.join(", ")
    ))
    .details(serde_json::json!({ "jobs": references })))
}

/// The refusal of a change to a job that has ended.
pub(in crate::controller) fn has_ended(id: JobId) -> Error {
    Error::new(ErrorCode::Conflict, format!("job {id} has ended already"))
        .hint(format!("`divvy describe {id}` shows how it ended"))
}

/// The newest job of this name. Else the newest job of a front end's task such as `clearml:4f2…`, which is the prefix
/// of its idempotency keys.
pub fn named_or_keyed(io: &Io, reference: &str) -> Result<Option<JobId>, StoreError> {
    let named = io.store.newest_named(reference)?;
    match named.is_none() && reference.contains(':') {
        true => io.store.newest_keyed(reference),
        false => Ok(named),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_of_an_array_is_written_with_its_index() {
        let task = |text| task_reference(text).map(|(array, index)| (array.0, index));
        assert_eq!(task("12_3"), Some((12, 3)));
        assert_eq!(task("#12_0"), Some((12, 0)));
        for text in [
            "12",
            "12_",
            "_3",
            "a_3",
            "12_-1",
            "12_+1",
            "12_3_4",
            "12_99999999999",
            "12_ 3",
        ] {
            assert_eq!(task(text), None, "{text}");
        }
        assert_eq!(task_name("sweep[3]"), Some(("sweep", 3)));
        assert_eq!(task_name("a[1][3]"), Some(("a[1]", 3)));
        for text in [
            "sweep",
            "sweep[]",
            "sweep[x]",
            "sweep[+1]",
            "sweep[3] ",
            "]",
        ] {
            assert_eq!(task_name(text), None, "{text}");
        }
    }

    #[test]
    fn a_reference_is_written_so_that_it_means_the_same_again() {
        let job = |first| JobRef::Job {
            id: JobId(12),
            first,
        };
        assert_eq!(job(None).to_string(), "12");
        assert_eq!(job(Some(0)).to_string(), "12_0");
        assert_eq!(JobRef::Array(JobId(12)).to_string(), "12");
    }
}
