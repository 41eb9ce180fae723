//! `divvy doctor`: what is here, what of it will hold a job to its limit, and what to do about the rest.
//!
//! ```text
//! machine      the driver and its GPUs, asked in a process of its own: a broken driver may hang or crash
//! driver gpus limiter folders system units conflicts      each turns facts into findings
//! ```
//! Nothing is changed: every trial uses a temporary folder that is removed again. The command line finds out whether a
//! daemon serves, as any other client would.

mod conflicts;
mod driver;
mod folders;
mod gpus;
mod limiter;
pub(crate) mod machine;
mod mig;
mod system;
mod units;

use std::path::{Path, PathBuf};

use divvy_api::home::{Home, HomeError};
use divvy_api::v1::{Finding, FindingStatus};

use crate::config::simulated_gpus;
use crate::config::{Simulated, library};
use crate::daemon::bootstrap::PRELOAD;
use crate::registry;
use machine::Machine;

/// Runs all checks; `sim` is the value of `--sim`.
pub fn doctor(sim: Option<&str>) -> Vec<Finding> {
    let home = home_to_check();
    let simulated = SimulatedHere::make(sim);
    let (simulated, trouble) = match &simulated {
        Some(Ok(simulated)) => (Some(&simulated.0), None),
        Some(Err(trouble)) => (None, Some(trouble.clone())),
        None => (None, None),
    };
    let divvy = std::env::current_exe().map_err(|error| error.to_string());
    let preload = divvy
        .clone()
        .and_then(|divvy| library(PRELOAD, &divvy).map_err(|error| error.to_string()));
    let form = match (divvy, &preload) {
        (Ok(divvy), Ok(preload)) => Some(limiter::form(&divvy, preload, simulated)),
        _ => None,
    };
    let scratch_copy = preload.as_deref().map_or(Ok(None), limiter::scratch_copy);
    let (_scratch, loaded) = match scratch_copy {
        Ok(Some((scratch, copy))) => (Some(scratch), Ok(copy)),
        Ok(None) => (None, preload.clone()),
        Err(error) => (None, Err(error)),
    };
    let bare = Machine::probe(simulated, None);
    let limited = loaded
        .as_ref()
        .ok()
        .map(|loaded| Machine::probe(simulated, Some(loaded)));

    let mut findings = Vec::new();
    findings.extend(trouble.map(|trouble| {
        fail(
            "driver.simulated",
            trouble,
            "the simulated GPUs were not created, so the findings describe the real machine",
            "use MODEL:N, for example --sim a100-80gb:3",
        )
    }));
    findings.extend(driver::findings(&bare, simulated.is_some()));
    findings.extend(limiter::findings(&preload, &loaded, limited.as_ref()));
    findings.extend(form.as_ref().map(limiter::form_finding));
    let works = findings
        .iter()
        .filter(|finding| finding.check.starts_with("limiter."))
        .all(|finding| finding.status != FindingStatus::Fail);
    let form = form.and_then(Result::ok).map(|limiter| limiter.form);
    findings.extend(gpus::findings(
        &bare,
        form.filter(|_| works),
        simulated.is_some(),
    ));
    findings.extend(home.iter().flat_map(folders::findings));
    findings.extend(system::findings());
    if Home::to_call().is_ok_and(|home| home.is_systems()) {
        findings.extend(units::findings(Path::new("/")));
    }
    findings.extend(conflicts::findings(&conflicts::HostEnvironment::here()));
    if simulated.is_none() {
        let state = simulated_gpus::named_state();
        let others = registry::held_by_other_users(state.as_deref());
        findings.extend(conflicts::daemons(&others));
    }
    findings
}

/// The home whose folders decide whether jobs run: that of the system's daemon, where commands call it. Only root can
/// check those; the daemon tells other users what it lacks (`Node::not_ready`).
fn home_to_check() -> Option<Result<Home, HomeError>> {
    match Home::to_call() {
        Ok(home) if home.is_systems() => rustix::process::geteuid().is_root().then_some(Ok(home)),
        _ => Some(Home::from_env()),
    }
}

/// All is well.
fn ok(check: &str, found: impl Into<String>) -> Finding {
    finding(check, FindingStatus::Ok, found, "", "")
}

/// Divvy works, and something is worse than it could be.
fn warn(check: &str, found: impl Into<String>, means: &str, fix: &str) -> Finding {
    finding(check, FindingStatus::Warn, found, means, fix)
}

/// Jobs cannot run, or would not be held.
fn fail(check: &str, found: impl Into<String>, means: &str, fix: &str) -> Finding {
    finding(check, FindingStatus::Fail, found, means, fix)
}

fn finding(
    check: &str,
    status: FindingStatus,
    found: impl Into<String>,
    means: &str,
    fix: &str,
) -> Finding {
    Finding {
        check: check.to_owned(),
        status,
        found: found.into(),
        means: means.to_owned(),
        fix: fix.to_owned(),
    }
}

/// A temporary folder of the doctor's own, which goes with it.
struct Scratch(PathBuf);

impl Scratch {
    fn of(what: &str) -> Self {
        let name = format!("divvy-doctor-{}-{what}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left behind lies in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A simulated machine of the doctor's own.
struct SimulatedHere(
    Simulated,
    #[expect(dead_code, reason = "it removes the folder")] Scratch,
);

impl SimulatedHere {
    /// `None` where no simulated GPUs are asked for; why they cannot be made, else.
    fn make(sim: Option<&str>) -> Option<Result<Self, String>> {
        let scratch = Scratch::of("gpus");
        let home = Home::under(&scratch.0).ok()?;
        let simulated = simulated_gpus::requested(sim, &home)?;
        let made = std::env::current_exe()
            .map_err(|error| error.to_string())
            .and_then(|divvy| {
                simulated_gpus::install(&simulated, &divvy, false)
                    .map_err(|error| error.message)?;
                Ok(Self(simulated, scratch))
            });
        Some(made)
    }
}
