//! The verbs: each calls the daemon, renders the answer and returns an exit code.

mod admin;
mod array_logs;
mod attach;
mod config;
mod docker;
mod doctor;
mod exec;
mod files;
mod follow;
mod init;
mod journal;
mod oom;
mod projects;
mod read;
mod reconnect;
mod resize;
mod run;
mod run_remote;
mod select;
mod selftest;
mod shell;
mod slice;
mod stop;
mod stop_reasons;
mod store;
mod submit;
mod usage;
mod wait;
mod waiting;

use std::process::ExitCode;

use divvy_api::client::Client;
use divvy_api::v1::{Error, ErrorCode};

use crate::args::{self, Verb};
use crate::call::{Outcome, block_on, called};
use crate::{Backend, complete, manual, output, serve, top, web};

/// Does what the words ask for.
pub fn act(verb: Verb, backend: Backend) -> Outcome {
    match verb {
        Verb::Run(args) => run::run(&args, backend),
        Verb::Shell(args) => shell::shell(*args, backend),
        Verb::Exec(args) => block_on(exec::exec(args)),
        Verb::Attach(args) => block_on(attach::attach(args)),
        Verb::Docker(args) => docker::docker(args, backend),
        Verb::Slice(args) => slice::slice(args, backend),
        Verb::Submit(args) => block_on(submit::submit(*args)),
        Verb::Ps(args) => block_on(read::jobs(args)),
        Verb::Top(args) => block_on(watch(args)),
        Verb::Web(args) => block_on(serve_page(args)),
        Verb::Gpus(args) => block_on(read::gpus(args, backend)),
        Verb::Queues(args) => block_on(read::queues(args)),
        Verb::Projects(args) => block_on(projects::projects(args)),
        Verb::Usage(args) => block_on(usage::usages(args)),
        Verb::Describe(args) => block_on(read::describe(args)),
        Verb::Why(args) => block_on(read::why(args)),
        Verb::Events(args) => block_on(follow::events(args)),
        Verb::Logs(args) => block_on(follow::logs(args)),
        Verb::Oom(args) => block_on(oom::oom(args)),
        Verb::Advise(args) => block_on(resize::advise(args)),
        Verb::Resize(args) => block_on(resize::resize(args)),
        Verb::Move(args) => block_on(waiting::move_jobs(args)),
        Verb::Hold(args) => block_on(wait::hold(args)),
        Verb::Release(args) => block_on(wait::release(args)),
        Verb::Change(args) => block_on(waiting::change(args)),
        Verb::Wait(args) => block_on(wait::wait(args)),
        Verb::Cancel(args) => block_on(wait::cancel(args)),
        Verb::Requeue(args) => block_on(wait::requeue(args)),
        Verb::Suspend(args) => block_on(wait::suspend(args)),
        Verb::Resume(args) => block_on(wait::resume(args)),
        Verb::Park(args) => block_on(wait::park(args, true)),
        Verb::Wake(args) => block_on(wait::park(args, false)),
        Verb::Daemon(args) if args.status => block_on(stop::status()),
        Verb::Daemon(args) if args.stop.is_some() => block_on(stop::stop(&args)),
        Verb::Daemon(args) => daemon(&args, backend),
        Verb::Config(args) => config::config(args, backend),
        Verb::Doctor(args) => doctor::doctor(&args, backend),
        Verb::Selftest(args) => selftest::selftest(&args, backend),
        Verb::Simulate(args) => (backend.simulate)(&args),
        Verb::Admin(args) => block_on(admin::admin(args, backend)),
        Verb::Completion(args) => completion(&args),
        Verb::Manual(args) => manual(&args),
        Verb::Supervise(args) => Ok((backend.supervise)(&args.job_directory)),
        Verb::OnTerminal(args) => Ok((backend.on_terminal)(&args.words)),
        Verb::HoldSlice => shell::hold(),
        Verb::ProbeContext(args) => Ok((backend.probe_context)(
            &args.gpu_uuid,
            args.simulated.as_deref(),
        )),
        Verb::Checkpoint(args) => Ok((backend.checkpoint)(args.library.as_deref())),
        Verb::ProbeDriver => Ok((backend.probe_driver)()),
        Verb::ProbeLimits(args) => Ok((backend.probe_limits)(args.limit, &args.words)),
    }
}

/// The live view. Its client writes nothing to stderr, because that would break the drawing.
async fn watch(args: args::Top) -> Outcome {
    let home = called()?;
    top::top(Client::new(home.socket()), args).await
}

/// The page in a browser. Its client writes nothing to stderr: the page shows those messages for each call.
async fn serve_page(args: args::Web) -> Outcome {
    let home = called()?;
    web::web(Client::new(home.socket()), args).await
}

fn daemon(args: &args::Daemon, backend: Backend) -> Outcome {
    let configured = serve::source(args)?.read();
    (backend.daemon)(configured.map_err(|error| Error::from(&error))?)?;
    Ok(ExitCode::SUCCESS)
}

fn completion(args: &args::Completion) -> Outcome {
    output::print(complete::script(&args.shell)?)?;
    Ok(ExitCode::SUCCESS)
}

fn manual(args: &args::Manual) -> Outcome {
    let pages = manual::write(&args.folder).map_err(|error| {
        let why = format!(
            "cannot write manual pages into {}: {error}",
            args.folder.display()
        );
        Error::new(ErrorCode::Internal, why)
    })?;
    for page in pages {
        output::print(format!("{}\n", page.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
