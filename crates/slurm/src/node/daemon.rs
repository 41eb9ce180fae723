//! The slice of a job in the node's daemon.

use std::fmt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use divvy_api::client::Client;
use divvy_api::home::Home;
use divvy_api::v1::{Bypass, BypassAction, Claim, ClaimDevice, Error, ErrorCode, Gpu, HeldClaim};
use divvy_core::Bytes;
use serde::Deserialize;
use spank_divvy::record::{self, Access};

use super::amounts::Part;
use super::config::{Config, WithoutLimit};
use super::environment::{HookEnvironment, records, search_path};
use super::gpus;
use super::programs::Programs;

/// Pause between two tries. A daemon restarts within a second or two, so three tries in a second find it soon; each is
/// one local call.
const PAUSE: Duration = Duration::from_millis(300);

/// Pause between two looks for slices of jobs that are gone, each with a call to slurmctld. slurmctld serves all nodes,
/// so a shorter pause on each would be felt; a job ends within seconds anyway.
const BETWEEN_LOOKS: Duration = Duration::from_secs(3);

/// The longest that Epilog waits for a daemon that is about to start again. systemd starts it again after 2 s; longer
/// would keep the node from its next job, as slurmctld waits for Epilog.
const RESTART: Duration = Duration::from_secs(10);

/// Why a job has no slice.
pub enum Trouble {
    NoDaemon(String),
    Refused(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDaemon(why) | Self::Refused(why) => f.write_str(why),
        }
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        let text = match &error.hint {
            Some(hint) => format!("{} ({hint})", error.message),
            None => error.message.clone(),
        };
        match error.code {
            ErrorCode::NoDaemon | ErrorCode::Unresponsive => Self::NoDaemon(text),
            _ => Self::Refused(text),
        }
    }
}

pub struct Daemon {
    pub client: Client,
    home: Option<PathBuf>,
}

/// Name of a job's slice.
pub fn slice_name(job: u32) -> String {
    format!("slurm-{job}")
}

/// The job of a slice; `None` for slices of others.
pub fn job_of(held: &HeldClaim) -> Option<u32> {
    let number = held.uid.strip_prefix("slurm-")?;
    let job = number.parse().ok()?;
    (held.namespace.is_empty() && slice_name(job) == held.uid).then_some(job)
}

impl Daemon {
    pub fn of(config: &Config) -> Result<Self, Trouble> {
        let home = match &config.home {
            Some(folder) => Home::under(folder),
            None => Home::of_system(),
        };
        let home = home.map_err(|error| Trouble::Refused(error.to_string()))?;
        Ok(Self {
            client: Client::new(home.socket()),
            home: config.home.clone(),
        })
    }

    /// Holds the job's parts of GPUs, and tells how a task enters them.
    ///
    /// # Errors
    /// Once `wait_seconds` have passed, for a daemon that does not answer and for memory that is not free.
    pub async fn hold(
        &self,
        told: &HookEnvironment,
        config: &Config,
        programs: &Programs,
        parts: &[Part],
    ) -> Result<Access, Trouble> {
        let deadline = Instant::now() + Duration::from_secs(config.wait_seconds);
        let mut look_again = Instant::now();
        loop {
            let error = match self.try_to_hold(told, config, parts).await {
                Ok(held) => return self.access(&held, config, parts),
                Err(Trial::Over(trouble)) => return Err(trouble),
                Err(Trial::Again(error)) => error,
            };
            // A slice of an earlier job holds the memory, perhaps because its Epilog was lost.
            if error.code == ErrorCode::WouldWait && Instant::now() >= look_again {
                look_again = Instant::now() + BETWEEN_LOOKS;
                if self
                    .release_leftovers(programs, &told.node)
                    .await
                    .is_ok_and(|jobs| !jobs.is_empty())
                {
                    continue;
                }
            }
            // An earlier run of this job, whose Epilog was lost, had other GPUs.
            if error.code == ErrorCode::Conflict {
                let _ = self.release(told.job).await;
            }
            if Instant::now() >= deadline {
                return Err(error.into());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn try_to_hold(
        &self,
        told: &HookEnvironment,
        config: &Config,
        parts: &[Part],
    ) -> Result<HeldClaim, Trial> {
        let is_simulated = self.client.node().await?.simulated.is_some();
        let gpus = self.client.gpus().await?;
        let device = |part: &Part| -> Result<ClaimDevice, Trial> {
            let gpu = find(&gpus, part, is_simulated).map_err(Trouble::Refused)?;
            if let Some(why) = no_parts(gpu, part) {
                return Err(Trouble::Refused(why).into());
            }
            if let Some(why) = part.excess(Bytes::new(gpu.memory_usable_bytes)) {
                return Err(Trouble::Refused(why).into());
            }
            let uuid = gpu.uuid.as_str();
            Ok(match (part.memory, part.thousandths()) {
                (Some(memory), _) => ClaimDevice::part(uuid, memory.get()),
                (None, 1000) => ClaimDevice::whole(uuid),
                (None, thousandths) => ClaimDevice::share(uuid, thousandths),
            })
        };
        let claim = Claim {
            devices: parts.iter().map(device).collect::<Result<_, _>>()?,
            compute: config.compute.clone(),
            owner: told.uid.map(|uid| uid.to_string()),
            ..Claim::default()
        };
        Ok(self.client.put_claim(&slice_name(told.job), &claim).await?)
    }

    fn access(&self, held: &HeldClaim, config: &Config, parts: &[Part]) -> Result<Access, Trouble> {
        let shown = self.ask_for_access(&held.uid).map_err(Trouble::Refused)?;
        if shown.access.form == "preload" && config.weaker_form == WithoutLimit::Refuse {
            let reason = shown.reason.unwrap_or_default();
            return Err(Trouble::Refused(format!(
                "only LD_PRELOAD would hold the limit: {reason} (weaker_form = \"run\" in /etc/divvy/slurm.toml allows it)"
            )));
        }
        let mut access = shown.access;
        let uuids = held.devices.iter().map(|device| device.gpu.clone());
        access.gpus = parts.iter().map(|part| part.gpu).zip(uuids).collect();
        Ok(access)
    }

    fn ask_for_access(&self, name: &str) -> Result<Shown, String> {
        // The program beside this one, else that of the search path.
        let beside = std::env::current_exe()
            .ok()
            .map(|path| path.with_file_name("divvy"));
        let divvy = beside
            .filter(|path| path.is_file())
            .unwrap_or_else(|| "divvy".into());
        let mut command = Command::new("/usr/bin/env");
        command
            .arg(&divvy)
            .args(["slice", "env", name, "-o", "json"])
            .env("PATH", search_path())
            .stdin(Stdio::null());
        if let Some(home) = &self.home {
            command.env("DIVVY_HOME", home);
        }
        let failed = |why: String| format!("`divvy slice env {name}` failed: {why}");
        let output = command
            .output()
            .map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(failed(said.trim().chars().take(400).collect()));
        }
        let list: List =
            serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))?;
        let mut items = list.items.into_iter();
        items
            .next()
            .ok_or_else(|| failed("it shows no slice".to_owned()))
    }

    /// Releases the slice of a job, also from a daemon that answers only after a restart.
    pub async fn release_in_time(&self, job: u32, config: &Config) -> Result<(), Trouble> {
        let deadline = Instant::now() + RESTART.min(Duration::from_secs(config.wait_seconds));
        loop {
            match self.release(job).await {
                Err(Trouble::NoDaemon(_)) if Instant::now() < deadline => {
                    tokio::time::sleep(PAUSE).await;
                }
                done => return done,
            }
        }
    }

    /// Releases slices of jobs that Slurm no longer has on the node, and answers their jobs: their Epilog was lost, or
    /// found no daemon. Slices of others are left alone.
    ///
    /// # Errors
    /// When the daemon or slurmctld does not answer; then nothing is released.
    pub async fn release_leftovers(
        &self,
        programs: &Programs,
        node: &str,
    ) -> Result<Vec<u32>, Trouble> {
        // First what is there, then what runs: a job that begins between the two is in the second list alone.
        let held: Vec<u32> = self
            .client
            .claims()
            .await?
            .iter()
            .filter_map(job_of)
            .collect();
        let folder = records();
        let recorded = record::jobs(&folder);
        if held.is_empty() && recorded.is_empty() {
            return Ok(Vec::new());
        }
        let running = programs.jobs_on(node).map_err(Trouble::Refused)?;
        for job in recorded.iter().filter(|job| !running.contains(job)) {
            record::remove(&folder, *job);
        }
        let mut released = Vec::new();
        for job in held.into_iter().filter(|job| !running.contains(job)) {
            self.release(job).await?;
            released.push(job);
        }
        Ok(released)
    }

    /// Releases the slice of a job; one that is not there is fine.
    pub async fn release(&self, job: u32) -> Result<(), Trouble> {
        self.client.delete_claim(&slice_name(job)).await?;
        Ok(())
    }

    /// The processes of a slice that were killed because they held memory past the limiter, oldest first.
    pub async fn bypasses(&self, held: &HeldClaim) -> Result<Vec<Bypass>, Trouble> {
        let job = self.client.job(&held.job).await?;
        let killed = job.bypasses.into_iter();
        Ok(killed
            .filter(|one| one.action == BypassAction::Killed)
            .collect())
    }

    /// The slice of a job.
    pub async fn held(&self, job: u32) -> Result<Option<HeldClaim>, Trouble> {
        let claims = self.client.claims().await?;
        Ok(claims.into_iter().find(|held| job_of(held) == Some(job)))
    }
}

/// Why a GPU has no part of this size at all: its mode.
fn no_parts(gpu: &Gpu, part: &Part) -> Option<String> {
    let is_part = part.thousandths() < 1000 || part.memory.is_some();
    let mode = match gpu.mode.as_str() {
        "shared" => return None,
        "mig" => "MIG mode, and only its instances are limited".to_owned(),
        mode => format!("mode {mode} of Divvy, which has no parts"),
    };
    is_part.then(|| {
        let problem = gpu.problem.as_ref().map(|why| format!(" ({why})"));
        format!(
            "GPU {} is in {mode}{}: leave its shards out of gres.conf, or run `divvy admin gpu {} --mode shared`",
            gpu.index,
            problem.unwrap_or_default(),
            gpu.index
        )
    })
}

/// The daemon's GPU of a part.
fn find<'a>(gpus: &'a [Gpu], part: &Part, is_simulated: bool) -> Result<&'a Gpu, String> {
    let gpu = if is_simulated {
        gpus.iter().find(|gpu| gpu.index == part.minor)
    } else {
        let uuid = gpus::uuid_of(part.minor)?;
        gpus.iter().find(|gpu| gpu.uuid == uuid)
    };
    gpu.ok_or_else(|| {
        format!(
            "Slurm gave GPU {} (/dev/nvidia{}), and Divvy's daemon has no such GPU (`divvy gpus` lists its own)",
            part.gpu, part.minor
        )
    })
}

/// Why a try failed.
enum Trial {
    Over(Trouble),
    Again(Error),
}

impl From<Trouble> for Trial {
    fn from(trouble: Trouble) -> Self {
        Self::Over(trouble)
    }
}

impl From<Error> for Trial {
    fn from(error: Error) -> Self {
        let is_passing = matches!(
            error.code,
            ErrorCode::NoDaemon
                | ErrorCode::Unresponsive
                | ErrorCode::TimedOut
                | ErrorCode::WouldWait
                | ErrorCode::Conflict
        );
        if is_passing {
            Self::Again(error)
        } else {
            Self::Over(error.into())
        }
    }
}

/// The answer of `divvy slice env -o json`.
#[derive(Deserialize)]
struct List {
    items: Vec<Shown>,
}

#[derive(Deserialize)]
struct Shown {
    #[serde(flatten)]
    access: Access,
    reason: Option<String>,
}
