//! Projects that the configuration file defines. The file is their source: commands cannot change them, and a project
//! that has left the file is removed. A setting of the journal keeps their names, so that a later daemon knows which
//! projects came from a file.

use std::collections::BTreeSet;

use divvy_api::daemon::{Configured, Origin};
use divvy_api::v1::{Error, ErrorCode};
use divvy_core::Project;

use super::projects::{count_jobs, erase_project, jobs_of, store_project};
use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::state::State;
use crate::journal::StoreError;

/// The setting with the names of projects that came from a file, as JSON.
const SETTING: &str = "config_projects";

/// The difference between the file's projects and the node's.
pub(in crate::controller) struct ProjectPlan {
    /// New or changed projects; whether each is new.
    set: Vec<(Project, bool)>,
    removed: Vec<String>,
    /// Projects that have left the file, and the number of their jobs.
    busy: Vec<(String, u32)>,
    /// Names of all projects of the file.
    names: BTreeSet<String>,
    file: Option<String>,
}

/// Compares the projects of a file with those of the node.
pub(in crate::controller) fn plan(
    state: &State,
    io: &Io,
    configured: &Configured,
) -> Result<ProjectPlan, StoreError> {
    let known = &state.queues.projects;
    let defined = configured.options.projects.iter();
    let defined: Vec<Project> = defined
        .map(|(name, options)| options.project(name.clone()))
        .collect();
    let names: BTreeSet<String> = defined.iter().map(|one| one.name.to_string()).collect();
    let (mut removed, mut busy) = (Vec::new(), Vec::new());
    for name in names_in_journal(io)?.difference(&names) {
        let Some(project) = known.iter().find(|one| one.name.as_str() == name) else {
            continue;
        };
        let (running, waiting) = count_jobs(&state.jobs, &project.name);
        match running + waiting {
            0 => removed.push(name.clone()),
            jobs => busy.push((name.clone(), jobs)),
        }
    }
    let before = |project: &Project| known.iter().find(|one| one.name == project.name);
    let set = defined
        .into_iter()
        .filter(|project| before(project) != Some(project))
        .map(|project| {
            let is_new = before(&project).is_none();
            (project, is_new)
        });
    Ok(ProjectPlan {
        set: set.collect(),
        removed,
        busy,
        names,
        file: configured.file().map(|file| file.display().to_string()),
    })
}

fn names_in_journal(io: &Io) -> Result<BTreeSet<String>, StoreError> {
    let names = io.store.setting(SETTING)?;
    Ok(names
        .and_then(|names| serde_json::from_str(&names).ok())
        .unwrap_or_default())
}

impl ProjectPlan {
    /// Why the projects cannot be as the file has them: jobs belong to one that has left it.
    pub(in crate::controller) fn conflict(&self) -> Option<Error> {
        let (name, jobs) = self.busy.first()?;
        let file = self.file.as_deref().unwrap_or("the configuration");
        let why = format!("{}, which is no longer in {file}", jobs_of(*jobs, name));
        let hint = "wait for them to end, or cancel them; keep the project in the file until then";
        Some(Error::new(ErrorCode::Conflict, why).hint(hint))
    }

    /// Makes the difference. A project with jobs stays.
    pub(in crate::controller) fn apply(
        self,
        state: &mut State,
        fx: &mut Effects,
        io: &Io,
    ) -> Result<(), StoreError> {
        for name in &self.removed {
            erase_project(state, fx, io, name)?;
        }
        for (project, is_new) in self.set {
            store_project(state, fx, io, project, is_new)?;
        }
        let mut names = self.names;
        names.extend(self.busy.into_iter().map(|(name, _)| name));
        if names != names_in_journal(io)? {
            let names = serde_json::to_string(&names).unwrap_or_default();
            io.store.set_setting(SETTING, &names)?;
        }
        fx.replan = true;
        Ok(())
    }
}

/// Defines the projects of the file that the daemon has read at its start.
pub(in crate::controller) fn define(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
) -> Result<(), StoreError> {
    let plan = plan(state, io, &io.config.configured)?;
    if let Some(conflict) = plan.conflict() {
        tracing::warn!(
            "{}; it stays until a reload finds it without jobs",
            conflict.message
        );
    }
    plan.apply(state, fx, io)
}

/// Why a command cannot change a project: the file defines it.
pub(in crate::controller) fn defined_in_file(io: &Io, name: &str) -> Option<Error> {
    let path = ["projects".to_owned(), name.to_owned()];
    let configured = &io.config.configured;
    let is_defined = configured
        .options
        .projects
        .keys()
        .any(|defined| defined.as_str() == name);
    let Origin::File(file, place) = configured.origin(&path) else {
        return None;
    };
    let why = format!(
        "the project {name} is defined in {}:{}",
        file.display(),
        place.line
    );
    is_defined.then(|| {
        Error::new(ErrorCode::Conflict, why)
            .hint("change it in the file, then run: divvy config reload")
    })
}
