//! `daemon --clearml`: the front end to a ClearML Server, in the daemon's own process and over its socket.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use divvy_agent::FrontEndTask;
use divvy_agent::home::Home;
use divvy_api::daemon::ClearMlOptions;
use divvy_api::error_chain::error_chain;
use divvy_api::front_end::{TellHolds, Withdrawal};
use divvy_api::v1::{Error, ErrorCode, FrontEnd};
use divvy_clearml::config::ConfigError;
use divvy_clearml::projects::{Projects, Source};
use divvy_clearml::server::Subcode;
use divvy_clearml::slot::daemon_id;
use divvy_clearml::{Mode, Options, Served, ServerQueue, Settings, StopSignal, Ties, container};
use divvy_core::{Amount, QueueName, QueueSpec};
use tokio::sync::mpsc::{self, error::TrySendError};

/// Cancels of waiting tasks under way at once. Each is four calls to the server. The cancellation of an array brings
/// thousands: 64 at once keep a server busy, and stay far below the usual 1024 descriptors of a process.
const WITHDRAWALS: usize = 64;

/// Time for the server to accept or refuse the keys. A detached caller sees no later refusal, so it waits longer.
const DETACHED: Duration = Duration::from_secs(10);
const ATTACHED: Duration = Duration::from_secs(2);

/// Returns the front end for the daemon, after all checks that need no server, and a check of the keys. With `detached`
/// that check may take longer, since no caller will see later errors of the daemon.
///
/// # Errors
/// [`ErrorCode::Usage`] for a wrong configuration, [`ErrorCode::NotAllowed`] for refused keys.
pub fn front_end(
    asked: ClearMlOptions,
    queues: Vec<QueueSpec>,
    detached: bool,
) -> Result<FrontEndTask, Error> {
    let settings = Settings::read(asked.config_file.as_deref()).map_err(|error| wrong(&error))?;
    let mode = match (asked.dynamic, asked.gpus) {
        (true, gpus) => Mode::Dynamic {
            gpus: gpus.unwrap_or_else(|| "all".to_owned()),
        },
        (false, gpus) => Mode::Plain { gpus },
    };
    let run = container::Options {
        docker: asked.docker,
        slot_tags: asked.slot_tags.clone(),
        ..match asked.agent {
            Some(agent) => container::Options {
                agent,
                ..container::Options::default()
            },
            None => container::Options::default(),
        }
    };
    // Parse it here once, so that its errors appear before the daemon serves.
    let runner = container::Runner::read(&settings, &run).map_err(|error| wrong(&error))?;
    let project_by = asked.project_by.as_deref().map(Source::parse);
    let project_by = project_by.unwrap_or_default();
    Projects::open(&project_by).map_err(|error| failed(error.into()))?;
    // Before the measurement of the GPUs, which takes longer.
    divvy_clearml::check(&settings, if detached { DETACHED } else { ATTACHED }).map_err(failed)?;
    let mut notice = match runner.image() {
        Some(image) => format!("each task runs in a container of its own image, or of {image}"),
        None => "each task runs as a process; use --docker for containers".to_owned(),
    };
    if !asked.ignored.is_empty() {
        notice += &format!("; {} has no effect", asked.ignored.join(", "));
    }
    let about = FrontEnd {
        kind: "clearml".to_owned(),
        worker: settings
            .worker_id
            .clone()
            .unwrap_or_else(|| daemon_id(&settings.worker_name, &mode)),
        server: settings.api.server.clone(),
        queues: asked.queues.clone(),
    };
    let stop = StopSignal::new();
    let told = stop.clone();
    let (ask, withdrawals) = mpsc::channel(WITHDRAWALS);
    let withdraw = move |asked: Withdrawal| {
        if let Err(error) = ask.try_send(asked) {
            let Withdrawal { job, reply, .. } = match error {
                TrySendError::Full(asked) | TrySendError::Closed(asked) => asked,
            };
            let why = format!("the front end is busy, so the task of job {job} stays in its queue");
            let refused = Error::new(ErrorCode::Conflict, why);
            let _ = reply.send(Err(refused.hint("cancel it again in a few seconds")));
        }
    };
    let work = move |home: &Home, gpus: u32, tell_holds: TellHolds| {
        let options = Options {
            socket: home.socket(),
            records: home.state().join("clearml"),
            settings,
            queues: served(&asked.queues, &queues, gpus)?,
            create_queue: asked.create_queue,
            mode,
            run,
            uptime: asked.uptime,
            downtime: asked.downtime,
            slot_tags: asked.slot_tags,
            polling_interval: asked.polling_interval,
            keep_children: asked.keep_children,
            project_by,
        };
        let ties = Ties {
            withdrawals,
            tell_holds,
        };
        divvy_clearml::run(options, stop, ties).map_err(failed)
    };
    Ok(FrontEndTask {
        about,
        notice,
        run: Box::new(work),
        withdraw: Arc::new(withdraw),
        stop: Box::new(move || told.stop()),
    })
}

/// Returns the server's queues with the amount of each task: the amount of the agent's queue with that name, or all GPUs.
fn served(names: &[String], queues: &[QueueSpec], gpus: u32) -> Result<Vec<Served>, Error> {
    let all = || -> Result<Amount, Error> {
        let why = "no GPU is available for tasks";
        let count = NonZeroU32::new(gpus).ok_or_else(|| Error::new(ErrorCode::NeverFits, why))?;
        Ok(Amount::Whole(count))
    };
    if names.is_empty() {
        return Ok(vec![Served {
            server: ServerQueue::Default,
            agent: QueueName::default_queue(),
            amount: all()?,
        }]);
    }
    let one = |queue: &QueueSpec| {
        Ok(Served {
            server: ServerQueue::Named(queue.name.to_string()),
            agent: queue.name.clone(),
            amount: queue.amount.map_or_else(all, Ok)?,
        })
    };
    queues.iter().map(one).collect()
}

fn wrong(error: &ConfigError) -> Error {
    Error::new(ErrorCode::Usage, error_chain(error)).hint(error.hint())
}

fn failed(error: divvy_clearml::Error) -> Error {
    match error {
        divvy_clearml::Error::Config(error) => wrong(&error),
        divvy_clearml::Error::Agent(error) => error,
        divvy_clearml::Error::NoQueue(_) => Error::new(ErrorCode::NotFound, error_chain(&error))
            .hint("create it on the server, or use --create-queue"),
        divvy_clearml::Error::Projects(error) => {
            Error::new(ErrorCode::Usage, error_chain(&error)).hint(error.hint())
        }
        divvy_clearml::Error::Server(error) => {
            let code = match error.refusal() {
                Some(Subcode::Unauthorized | Subcode::Forbidden) => ErrorCode::NotAllowed,
                _ => ErrorCode::Internal,
            };
            let failed = Error::new(code, error_chain(&error));
            match error.hint() {
                Some(hint) => failed.hint(hint),
                None => failed,
            }
        }
        other => Error::new(ErrorCode::Internal, error_chain(&other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_without_an_amount_has_the_whole_node() {
        let spec = |text: &str, amount| QueueSpec {
            name: text.parse().unwrap(),
            amount,
        };
        let queues = [spec("a", None), spec("b", Some(Amount::ONE_GPU))];
        let names = ["a", "b"].map(str::to_owned);
        let amounts: Vec<_> = served(&names, &queues, 3)
            .unwrap()
            .into_iter()
            .map(|served| (served.server, served.amount.to_string()))
            .collect();
        let named = |name: &str| ServerQueue::Named(name.to_owned());
        assert_eq!(
            amounts,
            [(named("a"), "3".to_owned()), (named("b"), "1".to_owned())]
        );
        let default = served(&[], &[spec("default", None)], 2).unwrap();
        assert_eq!(
            (default.len(), &default[0].server),
            (1, &ServerQueue::Default)
        );
        assert_eq!(served(&[], &[], 0).unwrap_err().code, ErrorCode::NeverFits);
    }
}
