//! Reload of the configuration file: the new values are checked against the node, its jobs and its projects, and then
//! all of them or none are in force.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use divvy_api::daemon::{Configured, Source};
use divvy_api::v1::{ConfigReload, Error, ErrorCode};
use divvy_core::{Gpu, QueueSpec, can_ever_fit};

use crate::auth::{Rules, absent};
use crate::config::Settings;
use crate::controller::admission::file_projects::{self, ProjectPlan};
use crate::controller::admission::user_rules;
use crate::controller::disk_full;
use crate::controller::effects::Effects;
use crate::controller::halt::Halt;
use crate::controller::io::Io;
use crate::controller::mailbox::{Mailbox, Message};
use crate::controller::mig::capacity;
use crate::controller::request::Reply;
use crate::controller::state::{Jobs, State};
use crate::gpu::Device;
use crate::host::live::Live;
use crate::journal::StoreError;

/// Jobs that a refusal names. A longer list hides the reason; the count follows.
const MOST_NAMED: usize = 5;

/// Reads the file for each request to reload it, one request at a time.
pub struct Reloader {
    source: Source,
    mailbox: Mailbox,
    turn: tokio::sync::Mutex<()>,
    /// What the configuration in force names and the machine does not have.
    warnings: Live<Vec<String>>,
}

/// The file as it is now.
pub struct Reread {
    configured: Configured,
    rules: Rules,
    warnings: Vec<String>,
}

impl Reloader {
    pub fn new(source: Source, mailbox: Mailbox) -> Self {
        Self {
            source,
            mailbox,
            turn: tokio::sync::Mutex::new(()),
            warnings: Live::new(Vec::new()),
        }
    }

    /// Looks for users and groups of this configuration, which the daemon has started with, that do not exist. No start
    /// waits for the user database.
    ///
    /// # Errors
    /// When there can be no further thread.
    pub fn check_accounts(self: Arc<Self>, configured: Configured) -> io::Result<()> {
        let check = move || {
            let _turn = self.turn.blocking_lock();
            self.keep(absent::warnings(&configured));
        };
        let thread = std::thread::Builder::new().name("warnings".into());
        thread.spawn(check).map(drop)
    }

    /// Logs the warnings, for `divvy doctor` to show.
    fn keep(&self, warnings: Vec<String>) {
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        self.warnings.set(warnings);
    }

    /// What the configuration in force names and the machine does not have.
    pub fn warnings(&self) -> Vec<String> {
        self.warnings.get().to_vec()
    }

    /// Reads the file and has the controller apply it.
    ///
    /// # Errors
    /// [`ErrorCode::Usage`] with the places of all problems, [`ErrorCode::NeverFits`] and [`ErrorCode::Conflict`] for
    /// values that the node or its jobs do not allow. Nothing has changed then.
    pub async fn reload(&self) -> Result<ConfigReload, Error> {
        let _turn = self.turn.lock().await;
        let source = self.source.clone();
        let read = tokio::task::spawn_blocking(move || reread(&source)).await;
        let read = read.unwrap_or_else(|error| {
            let why = format!("cannot read the configuration file: {error}");
            Err(Error::new(ErrorCode::Internal, why))
        });
        let warnings = read.as_ref().map(|read| read.warnings.clone());
        let warnings = warnings.unwrap_or_default();
        let read = Box::new(read);
        let mut done = self
            .mailbox
            .request(|reply| Message::Reload { read, reply })
            .await?;
        done.warnings.clone_from(&warnings);
        self.keep(warnings);
        Ok(done)
    }
}

fn reread(source: &Source) -> Result<Reread, Error> {
    let configured = source.read().map_err(|error| Error::from(&error))?;
    let me = rustix::process::geteuid().as_raw();
    let rules = Rules::of(&configured.options, me)?;
    let warnings = absent::warnings(&configured);
    Ok(Reread {
        configured,
        rules,
        warnings,
    })
}

/// Applies what was read, or refuses it; replies once the journal has it.
pub(super) fn reload(
    state: &mut State,
    fx: &mut Effects,
    io: &mut Io,
    read: Result<Reread, Error>,
    reply: Reply<ConfigReload>,
) -> Result<(), StoreError> {
    if let Some(full) = disk_full::disk_full_error(&state.disk, io) {
        let _ = reply.send(Err(full));
        return Ok(());
    }
    let checked = read.map_err(Halt::from);
    let answer = match checked.and_then(|read| check(state, io, read)) {
        Ok(plan) => Ok(apply(state, fx, io, plan)?),
        Err(Halt::Journal(error)) => return Err(error),
        Err(Halt::Refused(error)) => {
            tracing::warn!(
                why = error.message,
                "the configuration file is refused; the former values stay in force"
            );
            fx.record_event(io, None, "config_refused", &error.message)?;
            Err(error)
        }
    };
    fx.replies.queries.push(Box::new(move |_, _, _| {
        let _ = reply.send(answer);
    }));
    Ok(())
}

/// What a reload changes.
struct Plan {
    configured: Configured,
    rules: Rules,
    settings: Settings,
    projects: ProjectPlan,
    changed: Vec<String>,
    needs_restart: Vec<String>,
}

fn check(state: &State, io: &Io, read: Reread) -> Result<Plan, Halt> {
    let Reread {
        mut configured,
        rules,
        warnings: _,
    } = read;
    // The front end has its own list of the queues.
    let has_front_end = io.config.front_end.is_some();
    let (changed, needs_restart) = configured.keep(&io.config.configured, |key| {
        has_front_end && key.name == "queues"
    });
    let devices = &state.gpus.devices;
    let settings = Settings::of(&configured.options, served(devices));
    let settings = settings.map_err(|error| configured.blame(&["idle".to_owned()], error))?;
    let queues = &settings.schedule.queues;
    let ever = capacity::gpus_ever(&state.mig, &state.gpus);
    // A queue that the start let pass is no reason to refuse another change.
    let before = &io.config.schedule.queues;
    let misfits = misfits(&configured, queues, &[&ever, &state.gpus.start.before]);
    let mut misfits = misfits
        .into_iter()
        .filter(|(queue, _)| !before.contains(queue));
    misfits
        .next()
        .map_or(Ok(()), |(_, error)| Err(error))
        .and_then(|()| check_jobs(&configured, queues, &state.jobs, &io.config.schedule.queues))?;
    let projects = file_projects::plan(state, io, &configured)?;
    if let Some(error) = projects.conflict() {
        return Err(error.into());
    }
    Ok(Plan {
        configured,
        rules,
        settings,
        projects,
        changed,
        needs_restart,
    })
}

fn apply(
    state: &mut State,
    fx: &mut Effects,
    io: &mut Io,
    plan: Plan,
) -> Result<ConfigReload, StoreError> {
    let Plan {
        configured,
        rules,
        settings,
        projects,
        changed,
        needs_restart,
    } = plan;
    projects.apply(state, fx, io)?;
    let names = |queues: &[QueueSpec]| -> Vec<_> {
        queues.iter().map(|queue| queue.name.clone()).collect()
    };
    if names(&settings.schedule.queues) != names(&io.config.schedule.queues) {
        // A place in the former order.
        state.queues.cursor = 0;
    }
    io.config.adopt(settings, rules);
    user_rules::learn_users(state, io);
    let done = ConfigReload {
        file: configured.file().map(|file| file.display().to_string()),
        changed,
        needs_restart: needs_restart.clone(),
        warnings: Vec::new(),
    };
    io.config.configured = configured;
    io.config.needs_restart = needs_restart;
    fx.replan = true;
    let file = done.file.as_deref().unwrap_or("no file");
    let (changed, later) = (done.changed.join(", "), done.needs_restart.join(", "));
    tracing::info!(
        file,
        changed,
        needs_restart = later,
        "reloaded the configuration"
    );
    let mut text = format!("{file}: changed {}", or_nothing(&changed));
    if !later.is_empty() {
        text += &format!("; after a restart {later}");
    }
    fx.record_event(io, None, "config_reloaded", &text)?;
    Ok(done)
}

fn or_nothing(keys: &str) -> &str {
    match keys {
        "" => "nothing",
        keys => keys,
    }
}

/// How many GPUs the daemon serves now: those of a queue without an amount.
pub fn served(devices: &[Device]) -> u32 {
    let served = devices
        .iter()
        .filter(|device| device.is_managed && !device.is_lost);
    u32::try_from(served.count()).unwrap_or(u32::MAX)
}

/// Queues of jobs that none of these sets of GPUs can ever serve, each with a refusal that has the queue's place in the
/// file ([`ErrorCode::NeverFits`]).
pub fn misfits(
    configured: &Configured,
    queues: &[QueueSpec],
    sets: &[&[Gpu]],
) -> Vec<(QueueSpec, Error)> {
    let mut misfits = Vec::new();
    for (index, queue) in queues.iter().enumerate() {
        let QueueSpec { name, amount } = queue;
        let Some(amount) = amount else { continue };
        let mut answers = sets
            .iter()
            .map(|gpus| can_ever_fit(gpus, &(*amount).into()));
        let Some(Err(never)) = answers.next() else {
            continue;
        };
        if answers.any(|fits| fits.is_ok()) {
            continue;
        }
        let hint = never.hint();
        let why = format!(
            "queue {name}={amount} cannot start any job: {}",
            never.message
        );
        let path = ["queues".to_owned(), index.to_string()];
        let error = Error::new(ErrorCode::NeverFits, why).hint(hint);
        misfits.push((queue.clone(), configured.blame(&path, error)));
    }
    misfits
}

/// Refuses to remove a queue that has jobs.
fn check_jobs(
    configured: &Configured,
    queues: &[QueueSpec],
    jobs: &Jobs,
    before: &[QueueSpec],
) -> Result<(), Error> {
    let stay: BTreeSet<_> = queues.iter().map(|queue| &queue.name).collect();
    for queue in before.iter().filter(|queue| !stay.contains(&queue.name)) {
        let of = jobs.active.values().map(|active| &active.job);
        let of: Vec<String> = of
            .filter(|job| job.spec.queue == queue.name)
            .map(|job| job.id.to_string())
            .collect();
        if of.is_empty() {
            continue;
        }
        let named = of.iter().take(MOST_NAMED).cloned().collect::<Vec<_>>();
        let further = match of.len().saturating_sub(MOST_NAMED) {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        let why = format!(
            "the queue {} is not in the file, and has jobs: {}{further}",
            queue.name,
            named.join(", ")
        );
        let first = of.first().cloned().unwrap_or_default();
        let error = Error::new(ErrorCode::Conflict, why).hint(format!(
            "keep the queue until they have ended, or move pending jobs: divvy move {first} -q QUEUE"
        ));
        return Err(configured.blame(&["queues".to_owned()], error));
    }
    Ok(())
}
