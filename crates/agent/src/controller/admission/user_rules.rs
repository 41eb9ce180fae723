//! Rules for users at admission: the project of a job that names none, and the most GPUs of each user.

use std::collections::BTreeMap;

use divvy_api::daemon::UserKey;
use divvy_api::spelling;
use divvy_api::v1::{Error, ErrorCode};
use divvy_core::project::check_user_limit;
use divvy_core::{Gpus, Request, UserName};

use crate::controller::io::Io;
use crate::controller::mig::capacity;
use crate::controller::state::job_users::names;
use crate::controller::state::{QueueState, State};
use crate::host::account::UserAccount;
use crate::model::validate::usage;

/// Labels that the daemon remembers. Where there are more, it takes any label for a known one.
pub(in crate::controller) const MOST_LABELS: usize = 1000;

/// Looks up the users of the active jobs, if a rule has exceptions: after the daemon's start and after a change of the
/// rules.
pub(in crate::controller) fn learn_users(state: &mut State, io: &Io) {
    if io.config.project_rules.max_gpus.has_exceptions() {
        state.queues.users.look_up(&state.jobs);
    }
}

/// The limits of the users that have active jobs.
pub(in crate::controller) fn user_limits(state: &State, io: &Io) -> BTreeMap<UserName, Gpus> {
    if io.config.project_rules.max_gpus.is_empty() {
        return BTreeMap::new();
    }
    let users = names(&state.jobs).into_iter();
    users
        .filter_map(|name| Some((UserName::from(name), user_limit(state, io, name)?)))
        .collect()
}

/// The limit of a user; `None` without one.
pub(in crate::controller) fn user_limit(state: &State, io: &Io, name: &str) -> Option<Gpus> {
    let rule = &io.config.project_rules.max_gpus;
    rule.largest(&state.queues.users.key(name))?.gpus()
}

/// Whether the limit of a user allows this request.
///
/// # Errors
/// [`ErrorCode::NeverFits`], with the nearest request within the limit.
pub(in crate::controller) fn check_limit(
    state: &State,
    io: &Io,
    user: &UserName,
    request: &Request,
) -> Result<(), Error> {
    let Some(most) = user_limit(state, io, user.as_str()) else {
        return Ok(());
    };
    let gpus = capacity::gpus_for(&state.mig, &state.gpus, request);
    check_user_limit(&gpus, user, most, request).map_err(|refused| {
        Error::new(ErrorCode::NeverFits, refused.to_string()).hint(refused.hint())
    })
}

/// The project of a job: the one that the submission names, else the default of the job's user.
///
/// # Errors
/// [`ErrorCode::Usage`] where a project is required and there is none, [`ErrorCode::NotFound`] for a default that is no
/// project.
pub(in crate::controller) fn project(
    queues: &QueueState,
    io: &Io,
    named: Option<String>,
    user: &UserKey<'_>,
    account: &UserAccount,
) -> Result<Option<String>, Error> {
    let rules = &io.config.project_rules;
    let is_project = |name: &str| {
        let mut projects = queues.projects.iter();
        projects.any(|project| project.name.as_str() == name)
    };
    match (named, rules.default_project.first(user)) {
        (None, Some(default)) if !queues.projects.is_empty() && !is_project(default.as_str()) => {
            let why = format!(
                "the default project of {} is {default}, and there is no project {default}",
                user.name
            );
            Err(Error::new(ErrorCode::NotFound, why).hint(format!(
                "name another one with -p; an administrator creates it: divvy admin project add {default}"
            )))
        }
        (None, None) if rules.require_project => Err(usage(
            "the job names no project, and this daemon requires one",
        )
        .hint(usable_projects(queues, account))),
        (Some(named), _) if rules.require_project && !is_project(&named) => {
            Err(no_project(queues, &named))
        }
        (None, default) => Ok(default.map(ToString::to_string)),
        (named, _) => Ok(named),
    }
}

/// The refusal of a default project that does not admit the caller.
pub(in crate::controller) fn not_member_of_default(error: Error, user: &str) -> Error {
    let why = format!(
        "the default project of {user} refuses the job: {}",
        error.message
    );
    let hint = error.hint.unwrap_or_default();
    Error::new(error.code, why).hint(format!("name another project with -p; {hint}"))
}

/// The projects that the caller may use, as a hint.
fn usable_projects(queues: &QueueState, account: &UserAccount) -> String {
    let admits =
        |project: &&divvy_core::Project| project.admits(&account.name, account.group_names());
    let usable = queues.projects.iter().filter(admits);
    let flags: Vec<String> = usable
        .map(|project| format!("-p {}", project.name))
        .collect();
    match (&flags[..], queues.projects.is_empty()) {
        ([], true) => {
            "no project exists; an administrator creates one: divvy admin project add".to_owned()
        }
        ([], false) => format!(
            "{} is a member of no project; an administrator adds members: divvy admin project set NAME --members …",
            account.name
        ),
        (flags, _) => format!("add {}", flags.join(" or ")),
    }
}

/// What a submission may not mean: where no projects exist, a name that no job had before is only a label.
pub(in crate::controller) fn project_warning(queues: &QueueState, name: &str) -> Option<String> {
    let is_known = queues.labels.len() >= MOST_LABELS || queues.labels.contains(name);
    if !queues.projects.is_empty() || is_known {
        return None;
    }
    let near = spelling::nearest(name, queues.labels.iter().cloned());
    let meant = near.first().map(|near| format!("; did you mean {near}?"));
    let meant = meant.unwrap_or_default();
    Some(format!(
        "this daemon has no projects, so {name} is only a label{meant}"
    ))
}

pub(super) fn no_project(queues: &QueueState, name: &str) -> Error {
    let names: Vec<&str> = queues
        .projects
        .iter()
        .map(|one| one.name.as_str())
        .collect();
    let hint = match names[..] {
        [] => "no project exists; create one: divvy admin project add".to_owned(),
        _ => spelling::hint(name, "projects", &names),
    };
    Error::new(ErrorCode::NotFound, format!("there is no project {name}")).hint(hint)
}
