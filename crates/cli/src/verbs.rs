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
pub(crate) mod signals;
mod slice;
mod stop;
mod stop_reasons;
mod submit;
mod usage;
mod wait;
mod waiting;

use std::future::Future;
use std::process::ExitCode;
use std::sync::Once;

use divvy_api::client::{Client, JobSelection};
use divvy_api::home::Home;
use divvy_api::v1::{Error, ErrorCode, Job};

use crate::Backend;
use crate::args::{self, Verb};
use crate::output::{self, Stop};
use crate::serve;
use crate::{complete, manual, top, web};

/// The exit code of a command, or why it stops.
pub type Outcome = Result<ExitCode, Stop>;

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
        Verb::Checkpoint(args) => Ok((backend.checkpoint)(
            &args.act,
            (args.pid, args.start_time),
            args.within_ms,
            args.library.as_deref(),
        )),
        Verb::ProbeDriver => Ok((backend.probe_driver)()),
        Verb::ProbeLimits(args) => Ok((backend.probe_limits)(args.limit, &args.words)),
    }
}

/// Runs the future on this thread alone: starting threads would cost more than most verbs take.
pub fn block_on<T>(work: impl Future<Output = Result<T, Stop>>) -> Result<T, Stop> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(no_runtime)?;
    runtime.block_on(work)
}

fn no_runtime(error: std::io::Error) -> Stop {
    Error::new(
        ErrorCode::Internal,
        format!("cannot wait for input and output: {error}"),
    )
    .into()
}

/// A client of the instance this process's environment names.
pub fn client() -> Result<Client, Error> {
    Ok(client_called(&called()?))
}

fn called() -> Result<Home, Error> {
    Home::to_call().map_err(|error| Error::from(&error))
}

/// A client of the instance that is called unless the user names one.
pub fn client_called(home: &Home) -> Client {
    static SAID: Once = Once::new();
    if home.is_beside_system() {
        SAID.call_once(|| {
            output::say("using your own daemon, not the system's; `divvy daemon --stop` stops it");
        });
    }
    client_of(home)
}

pub fn client_of(home: &Home) -> Client {
    Client::new(home.socket()).telling(output::say)
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

/// The job that these words mean, where a verb takes no array.
async fn one_job(client: &Client, text: &str) -> Result<Job, Error> {
    let JobSelection { array, jobs } = client.jobs_of(reference(text)).await?;
    let mut jobs = array_logs::in_order(jobs).into_iter();
    match (array, jobs.next()) {
        (None, Some(job)) => Ok(job),
        (array, first) => {
            let array = array.unwrap_or_default();
            let first = first.map(|job| job.reference()).unwrap_or_default();
            let why = format!("{array} is an array, but this command needs one job");
            Err(Error::new(ErrorCode::Conflict, why).hint(format!(
                "use one of its jobs, such as {first}; `divvy ps {array}` lists them"
            )))
        }
    }
}

/// A job as the user refers to it, `#12` as tables show it included. The `#` of a name is part of the name.
fn reference(text: &str) -> &str {
    let is_number = |text: &str| text.parse::<u64>().is_ok();
    let number = text.strip_prefix('#').filter(|number| {
        let task = number.split_once('_');
        is_number(number) || task.is_some_and(|(array, index)| is_number(array) && is_number(index))
    });
    number.unwrap_or(text)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sign_before_a_number_is_no_part_of_a_reference() {
        for (typed, asked) in [
            ("#12", "12"),
            ("12", "12"),
            ("#12_3", "12_3"),
            ("#a_3", "#a_3"),
            ("#train", "#train"),
            ("##3", "##3"),
            ("last", "last"),
        ] {
            assert_eq!(reference(typed), asked);
        }
    }
}
