//! The commands of a node: Prolog, Epilog, the health check and the closing lines of a step.
//!
//! ```text
//! allocation  what Slurm gave the job     scontrol -d show job
//! gres        Slurm's GPUs of the node    slurmd -G
//! amounts     both together: a part of each GPU
//! daemon      the slice, held and released; slices of jobs that are gone
//! ```

mod allocation;
mod amounts;
mod closing;
mod config;
mod daemon;
mod environment;
mod gpus;
mod gres;
mod programs;

use spank_divvy::record::{self, Outcome, Record, VERSION};

use config::{Config, WithoutDaemon, WithoutLimit};
use daemon::{Daemon, Trouble};
use environment::{HookEnvironment, node_name, records, variable};
use programs::Programs;

/// Holds the job's slice and leaves the record for the plugin. Slurm drains the node after an error, so an error is
/// that of the node alone; everything else becomes a line in the job's output.
pub async fn prolog() -> Result<(), String> {
    let told = HookEnvironment::from_environment()?;
    let config = Config::read();
    let outcome = match &config {
        Err(why) => Outcome::Refused(why.clone()),
        Ok(config) => match decide(&told, config).await {
            Ok(outcome) => outcome,
            Err(trouble) => on_trouble(&told, config, trouble)?,
        },
    };
    if let Outcome::Refused(why) | Outcome::Unlimited(why) = &outcome {
        eprintln!("divvy-slurm: job {}: {why}", told.job);
    }
    let record = Record {
        version: VERSION,
        job: told.job,
        node: told.node,
        outcome,
        gpu_memory: told.gpu_memory,
        config: config::path(),
        helper: std::env::current_exe().unwrap_or_else(|_| "/usr/bin/divvy-slurm".into()),
    };
    let folder = records();
    record
        .write(&folder)
        .map_err(|error| format!("cannot write the record in {}: {error}", folder.display()))
}

/// What the configuration says of a job whose slice is not there.
fn on_trouble(
    told: &HookEnvironment,
    config: &Config,
    trouble: Trouble,
) -> Result<Outcome, String> {
    let node = &told.node;
    match trouble {
        Trouble::NoDaemon(why) => match config.without_daemon {
            WithoutDaemon::Refuse => Ok(Outcome::Refused(format!(
                "Divvy's daemon on {node} does not answer: {why}"
            ))),
            WithoutDaemon::Run => Ok(Outcome::Unlimited(format!(
                "Divvy's daemon on {node} does not answer: {why}"
            ))),
            WithoutDaemon::Drain => Err(format!("the daemon does not answer: {why}")),
        },
        Trouble::Refused(why) => Ok(match config.without_limit {
            WithoutLimit::Refuse => Outcome::Refused(format!("{node}: {why}")),
            WithoutLimit::Run => Outcome::Unlimited(format!("{node}: {why}")),
        }),
    }
}

async fn decide(told: &HookEnvironment, config: &Config) -> Result<Outcome, Trouble> {
    if !told.has_gpus {
        return match told.gpu_memory {
            None => Ok(Outcome::NoSlice),
            Some(_) => Err(Trouble::Refused(
                "--gpu-memory limits the GPUs of a job, and Slurm gave this job none: add --gres=shard:N or --gres=gpu:N"
                    .to_owned(),
            )),
        };
    }
    let programs = Programs::new(config);
    let wanted = {
        let job = programs.show_job(told.job).map_err(Trouble::Refused)?;
        let gres = allocation::on_node(&job, told.job, &told.node).map_err(Trouble::Refused)?;
        let layout = gres::layout(&programs, config, &gres, &told.node);
        amounts::parts(&gres, &layout, told.gpu_memory).map_err(Trouble::Refused)?
    };
    if wanted.is_empty() || (config.leaves_whole_gpus() && amounts::is_all_whole(&wanted)) {
        return Ok(Outcome::NoSlice);
    }
    let daemon = Daemon::of(config)?;
    let access = daemon.hold(told, config, &programs, &wanted).await?;
    Ok(Outcome::Slice(Box::new(access)))
}

/// Releases the job's slice. It never fails: Slurm would drain the node, and the health check makes up for it.
pub async fn epilog() -> Result<(), String> {
    let told = HookEnvironment::from_environment()?;
    let had_slice = match Record::read(&records(), told.job) {
        Ok(Some(record)) => matches!(record.outcome, Outcome::Slice(_)),
        // Prolog may have died between the slice and its record.
        Ok(None) | Err(_) => true,
    };
    if had_slice && let Err(trouble) = release(told.job).await {
        eprintln!(
            "divvy-slurm: job {}: its slice stays until the health check: {trouble}",
            told.job
        );
    }
    record::remove(&records(), told.job);
    Ok(())
}

async fn release(job: u32) -> Result<(), Trouble> {
    let config = Config::read().map_err(Trouble::Refused)?;
    Daemon::of(&config)?.release_in_time(job, &config).await
}

/// Releases slices and records of jobs that Slurm no longer has on this node.
pub async fn check() -> Result<(), String> {
    let config = Config::read()?;
    let daemon = Daemon::of(&config).map_err(|trouble| trouble.to_string())?;
    let released = daemon
        .release_leftovers(&Programs::new(&config), &node_name(&variable))
        .await
        .map_err(|trouble| trouble.to_string())?;
    for job in released {
        eprintln!("divvy-slurm: job {job} is gone, and its slice was released");
    }
    Ok(())
}

/// Prints the lines for the output of a job whose step has ended, and updates the job's comment.
pub async fn after_step(job: u32) -> Result<(), String> {
    let record = Record::read(&records(), job).map_err(|error| error.to_string())?;
    let record = record.ok_or_else(|| format!("there is no record of job {job} on this node"))?;
    let config = Config::read()?;
    let daemon = Daemon::of(&config).map_err(|trouble| trouble.to_string())?;
    let programs = Programs::new(&config);
    closing::say(&daemon, &programs, &config, job, &record.node)
        .await
        .map_err(|trouble| trouble.to_string())
}

#[cfg(test)]
mod tests;
