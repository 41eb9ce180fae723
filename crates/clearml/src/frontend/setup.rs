//! Start-up of the front end: login, queues and names, before the first task.

use divvy_api::client::Client;
use divvy_api::home::machine;
use divvy_api::v1::Gpu;

use super::context::{Context, Parts};
use super::pull_schedule::Gate;
use super::queue_mirror::depth;
use super::record::Records;
use crate::config::ConfigError;
use crate::container::Runner;
use crate::server::{QueueFacts, Server};
use crate::slot::daemon_id;
use crate::{Error, Options, ServerQueue, Settings};

/// The least the stock agent polls, seconds; `--polling-interval` below it is that. A shorter one would load a server
/// that other agents share.
const LEAST_POLL: u64 = 5;

/// A queue that is served.
#[derive(Clone, Debug)]
pub struct Queue {
    pub id: String,
    pub name: String,
    /// The agent's.
    pub agent: String,
    /// The amount of each of its tasks.
    pub amount: divvy_core::Amount,
    /// How many of its tasks are mirrored.
    pub depth: usize,
    /// The program and arguments that its waiting tasks are shown with, without the task's id.
    pub execute: Vec<String>,
}

/// Logs in and finds the queues.
///
/// # Errors
/// [`Error`], before anything is changed on the server but for queues that are made.
pub async fn set_up(options: &Options) -> Result<(Context, Vec<Queue>, Gate), Error> {
    let settings = options.settings.clone();
    let host = machine::host();
    let runner = Runner::read(&settings, &options.run)?;
    if let Some(note) = runner.split_arguments() {
        tracing::warn!("{note}");
    }
    let or = |asked: &[String], set: &[String]| {
        if asked.is_empty() {
            set.to_vec()
        } else {
            asked.to_vec()
        }
    };
    let uptime = or(&options.uptime, &settings.uptime);
    let downtime = or(&options.downtime, &settings.downtime);
    let (gate, both) =
        Gate::of(&uptime, &downtime).map_err(|error| wrong_hours(&settings, options, error.0))?;
    if both {
        tracing::warn!(
            "both uptime and downtime are set, but only one of them can apply; ignoring both"
        );
    }
    let records = Records::open(&options.records)?;
    let client = Client::new(&options.socket).of_process(std::process::id());
    let gpus = loop {
        match client.gpus().await {
            Err(error) if error.code == divvy_api::v1::ErrorCode::Unresponsive => {
                tracing::warn!(%error, "a call to the daemon failed; retrying");
            }
            answer => break answer?,
        }
    };
    // A GPU that is lost or out of service may be back before the next start.
    let returns = |gpu: &Gpu| gpu.lost.is_some() || gpu.out_of_service.is_some();
    let gpus = gpus.iter();
    let gpus = gpus
        .filter(|gpu| gpu.mode != "unmanaged" || returns(gpu))
        .count();
    let server = Server::new(&settings.api, &host)?;
    server.login().await?;
    let facts = server.facts();
    tracing::info!(
        server = server.address(),
        version = facts.server_version.as_deref().unwrap_or("unknown"),
        api = facts.api_version.as_deref().unwrap_or("unknown"),
        "logged in to the ClearML server"
    );
    let mut queues = Vec::new();
    for served in &options.queues {
        let facts = find(&server, &served.server, options.create_queue).await?;
        queues.push(Queue {
            id: facts.id,
            name: facts.name,
            agent: served.agent.as_str().to_owned(),
            amount: served.amount,
            depth: depth(served.amount, gpus),
            execute: runner.execute(),
        });
    }
    let daemon = settings
        .worker_id
        .clone()
        .unwrap_or_else(|| daemon_id(&settings.worker_name, &options.mode));
    let asked = options.polling_interval;
    let context = Context::new(Parts {
        poll: asked.map_or(settings.poll, |asked| {
            std::time::Duration::from_secs(asked.max(LEAST_POLL))
        }),
        server,
        client,
        records,
        runner,
        mode: options.mode.clone(),
        host,
        daemon,
        queues: queues.iter().map(|queue| queue.id.clone()).collect(),
        slot_tags: options.slot_tags.clone(),
        settings,
    });
    Ok((context, queues, gate))
}

/// Names the flag, or the key of the configuration, that has the window.
fn wrong_hours(settings: &Settings, options: &Options, window: String) -> ConfigError {
    let wanted = "expected a time window such as \"8-17 MON-FRI\"";
    let flags = [
        ("--uptime", &options.uptime),
        ("--downtime", &options.downtime),
    ];
    match flags.iter().find(|(_, windows)| windows.contains(&window)) {
        Some((flag, _)) => ConfigError::Flag {
            flag,
            value: window,
            wanted,
        },
        None if settings.uptime.contains(&window) => settings.tree.refuse("agent.uptime", wanted),
        None => settings.tree.refuse("agent.downtime", wanted),
    }
}

async fn find(server: &Server, wanted: &ServerQueue, create: bool) -> Result<QueueFacts, Error> {
    let name = match wanted {
        ServerQueue::Named(name) => name.as_str(),
        ServerQueue::Default => match server.default_queue().await {
            Ok(queue) => return Ok(queue),
            // None is tagged so.
            Err(error) if error.refusal().is_some() => "default",
            Err(error) => return Err(error.into()),
        },
    };
    let found = server.find_queue(name, create).await?;
    found.ok_or_else(|| Error::NoQueue(name.to_owned()))
}
