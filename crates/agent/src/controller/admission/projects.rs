//! Projects: their settings, their members, and the quota that they use.

use divvy_api::v1::{self, Error, ErrorCode, ProjectChange};
use divvy_core::project::{QuotaStatus, check_quota, quota_status};
use divvy_core::{Bytes, Gpus, JobState, Project, ProjectName, Request, SchedulingClass};

use super::file_projects;
use crate::controller::admission::user_rules;
use crate::controller::effects::Effects;
use crate::controller::halt::Halt;
use crate::controller::io::Io;
use crate::controller::mig::capacity;
use crate::controller::query::estimate;
use crate::controller::request::ProjectAct;
use crate::controller::state::{Jobs, QueueState, State};
use crate::host::account::UserAccount;
use crate::journal::StoreError;
use crate::model::job::Credentials;
use crate::model::policy::LONGEST_S;
use crate::model::validate::usage;

/// Every project with its quota status, by name.
pub fn list_projects(state: &State, io: &Io) -> Vec<v1::Project> {
    let projects = list_with_entitled(state, io);
    projects.into_iter().map(|(project, _)| project).collect()
}

/// The same, each with the number of its pending jobs that fit into the unused part of its quota.
pub fn list_with_entitled(state: &State, io: &Io) -> Vec<(v1::Project, u64)> {
    let input = estimate::input(state, io);
    let snapshot = input.snapshot();
    let found = quota_status(snapshot);
    let projects = found.iter().zip(&snapshot.projects);
    projects
        .map(|(standing, project)| {
            let counts = count_jobs(&state.jobs, &project.name);
            (to_api(project, standing, counts), standing.entitled)
        })
        .collect()
}

/// How many jobs of a project have been placed, and how many wait. A job that waits for a dependency or for its array
/// counts too, although the planner does not see it.
pub(super) fn count_jobs(jobs: &Jobs, name: &ProjectName) -> (u32, u32) {
    let (mut holding, mut waiting) = (0, 0);
    for active in jobs.active.values() {
        let job = &active.job;
        if job.owner().project.as_ref() != Some(name) {
            continue;
        }
        match &job.state {
            JobState::Queued => waiting += 1,
            JobState::Ended { .. } => {}
            _ => holding += 1,
        }
    }
    (holding, waiting)
}

fn get_project(state: &State, io: &Io, name: &str) -> Result<v1::Project, Error> {
    let mut shown = list_projects(state, io).into_iter();
    shown
        .find(|project| project.name == name)
        .ok_or_else(|| user_rules::no_project(&state.queues, name))
}

/// Applies an administrator's act to a project.
pub(in crate::controller) fn apply_project_act(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    name: &str,
    act: &ProjectAct,
) -> Result<v1::Project, Halt> {
    if let Some(error) = file_projects::defined_in_file(io, name) {
        return Err(error.into());
    }
    match act {
        ProjectAct::Add(change) => change_project(state, fx, io, name, true, change),
        ProjectAct::Set(change) => change_project(state, fx, io, name, false, change),
        ProjectAct::Remove => remove_project(state, fx, io, name),
    }
}

/// Creates or changes a project.
fn change_project(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    name: &str,
    new: bool,
    change: &ProjectChange,
) -> Result<v1::Project, Halt> {
    let project = changed_project(&state.queues, name, new, change)?;
    store_project(state, fx, io, project, new)?;
    Ok(get_project(state, io, name)?)
}

/// Stores a new or changed project.
pub(super) fn store_project(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    project: Project,
    is_new: bool,
) -> Result<(), StoreError> {
    io.store.set_project(&project)?;
    let kind = match is_new {
        true => "project_added",
        false => "project_changed",
    };
    fx.record_event(io, None, kind, &describe(&project))?;
    let projects = &mut state.queues.projects;
    projects.retain(|before| before.name != project.name);
    projects.push(project);
    projects.sort_by(|one, other| one.name.cmp(&other.name));
    fx.replan = true;
    Ok(())
}

/// Erases a project without jobs.
pub(super) fn erase_project(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    name: &str,
) -> Result<(), StoreError> {
    io.store.remove_project(name)?;
    fx.record_event(io, None, "project_removed", name)?;
    let projects = &mut state.queues.projects;
    projects.retain(|project| project.name.as_str() != name);
    fx.replan = true;
    Ok(())
}

/// That jobs belong to a project.
pub(super) fn jobs_of(count: u32, name: &str) -> String {
    let belong = match count {
        1 => "job belongs",
        _ => "jobs belong",
    };
    format!("{count} {belong} to the project {name}")
}

fn changed_project(
    queues: &QueueState,
    name: &str,
    new: bool,
    change: &ProjectChange,
) -> Result<Project, Error> {
    let named = |error: divvy_core::units::IdError| usage(error.to_string()).hint(error.hint());
    let parsed: ProjectName = name.parse().map_err(named)?;
    let before = queues
        .projects
        .iter()
        .find(|project| project.name == parsed);
    let mut project = match (before, new) {
        (Some(_), true) => {
            return Err(Error::new(
                ErrorCode::Conflict,
                format!("project {name} already exists"),
            )
            .hint(format!("`divvy admin project set {name}` changes it")));
        }
        (None, false) => return Err(user_rules::no_project(queues, name)),
        (Some(before), false) => before.clone(),
        (None, true) => Project::new(parsed),
    };
    let gpus = Gpus::from_thousandths;
    if let Some(quota) = change.quota {
        project.quota.gpus = gpus(quota);
    }
    if let Some(memory) = change.quota_memory_bytes {
        project.quota.memory = memory.map(Bytes::new);
    }
    if let Some(weight) = change.weight {
        project.weight = weight;
    }
    if let Some(limit) = change.limit {
        project.limit.gpus = limit.map(gpus);
    }
    if let Some(memory) = change.limit_memory_bytes {
        project.limit.memory = memory.map(Bytes::new);
    }
    project.priority = change.priority.unwrap_or(project.priority);
    project.min_runtime_s = change.min_runtime_s.unwrap_or(project.min_runtime_s);
    if let Some(members) = &change.members {
        project.members.clone_from(members);
    }
    check(&project)?;
    Ok(project)
}

/// Removes a project that has no jobs.
fn remove_project(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    name: &str,
) -> Result<v1::Project, Halt> {
    let shown = get_project(state, io, name)?;
    let belong = shown.running + shown.waiting;
    if belong > 0 {
        let error = Error::new(ErrorCode::Conflict, jobs_of(belong, name));
        return Err(error.hint("wait for them to end, or cancel them").into());
    }
    erase_project(state, fx, io, name)?;
    Ok(shown)
}

/// Whether a user may submit to a project. The HTTP server has already resolved the caller's groups. `behalf` is the
/// user of the job; the daemon's own user may name any user there.
pub(in crate::controller) fn check_member(
    queues: &QueueState,
    owner: &SchedulingClass,
    account: &UserAccount,
    behalf: &str,
) -> Result<(), Error> {
    let Some(project) = project_of(queues, owner)? else {
        return Ok(());
    };
    let user = &account.name;
    let vouches = behalf != user && account.uid == Credentials::current().uid;
    let admits = vouches
        || project.admits(user, account.group_names())
        || (behalf != user && project.admits(behalf, []));
    if !admits {
        let why = format!("{user} is not a member of the project {}", project.name);
        return Err(Error::new(ErrorCode::NotAllowed, why)
            .hint(format!("its members are {}", project.members.join(", "))));
    }
    Ok(())
}

/// The project that a job names. If no projects exist, the name is only a label.
fn project_of<'a>(
    queues: &'a QueueState,
    owner: &SchedulingClass,
) -> Result<Option<&'a Project>, Error> {
    let Some(name) = owner
        .project
        .as_ref()
        .filter(|_| !queues.projects.is_empty())
    else {
        return Ok(None);
    };
    let project = queues.projects.iter().find(|project| project.name == *name);
    let project = project.ok_or_else(|| user_rules::no_project(queues, name.as_str()))?;
    Ok(Some(project))
}

/// Whether the limits of the job's user and project allow this request.
pub(in crate::controller) fn check_project(
    state: &State,
    io: &Io,
    owner: &SchedulingClass,
    request: &Request,
) -> Result<(), Error> {
    if let Some(user) = &owner.user {
        user_rules::check_limit(state, io, user, request)?;
    }
    let Some(project) = project_of(&state.queues, owner)? else {
        return Ok(());
    };
    let preemption = io.config.schedule.preemption;
    check_quota(
        &capacity::gpus_for(&state.mig, &state.gpus, request),
        project,
        owner,
        request,
        preemption,
    )
    .map_err(|refused| Error::new(ErrorCode::NeverFits, refused.to_string()).hint(refused.hint()))
}

fn check(project: &Project) -> Result<(), Error> {
    if !project.limit.holds(divvy_core::project::Resources {
        gpus: project.quota.gpus,
        memory: project.quota.memory.unwrap_or_default(),
    }) {
        return Err(
            usage(format!("the limit of {} is below its quota", project.name))
                .hint("raise the limit, or lower the quota"),
        );
    }
    // Fits the database, and is more than any machine has.
    const MOST: Gpus = Gpus::from_thousandths(1_000_000_000);
    if project.quota.gpus > MOST || project.limit.gpus.is_some_and(|limit| limit > MOST) {
        return Err(usage(format!(
            "quota and limit must not exceed {MOST} GPUs"
        )));
    }
    if project.min_runtime_s > LONGEST_S {
        return Err(usage("the minimum runtime is longer than 100 years"));
    }
    let wrong = |member: &&String| !divvy_core::is_account_name(member);
    match project.members.iter().find(wrong) {
        Some(member) => Err(
            usage(format!("{member:?}: not a valid name of a user or a group"))
                .hint("write users as ana, and groups as @vision"),
        ),
        None => Ok(()),
    }
}

/// `vision: quota 2.5 GPUs, limit 4 GPUs`.
fn describe(project: &Project) -> String {
    let mut words = format!("{}: quota {} GPUs", project.name, project.quota.gpus);
    if let Some(limit) = project.limit.gpus {
        words += &format!(", limit {limit} GPUs");
    }
    if let Some(weight) = project.weight {
        words += &format!(", weight {weight}");
    }
    words
}

fn to_api(
    project: &Project,
    standing: &QuotaStatus,
    (running, waiting): (u32, u32),
) -> v1::Project {
    v1::Project {
        name: project.name.to_string(),
        quota: project.quota.gpus.thousandths(),
        quota_memory_bytes: project.quota.memory.map(Bytes::get),
        weight: project.weight,
        limit: project.limit.gpus.map(Gpus::thousandths),
        limit_memory_bytes: project.limit.memory.map(Bytes::get),
        priority: project.priority,
        min_runtime_s: project.min_runtime_s,
        members: project.members.clone(),
        used: standing.used.gpus.thousandths(),
        used_memory_bytes: standing.used.memory.get(),
        over_quota: standing.over.gpus.thousandths(),
        fair_share: standing.fair_share.thousandths(),
        running,
        waiting,
    }
}
