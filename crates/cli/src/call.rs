//! What the verbs share: the outcome of a command, the client of the daemon, references to jobs.

pub mod backend;
pub mod signals;

use std::future::Future;
use std::process::ExitCode;
use std::sync::Once;

use divvy_api::client::{Client, JobSelection};
use divvy_api::home::Home;
use divvy_api::v1::{Error, ErrorCode, Job};

use crate::output::{self, Stop};

/// The exit code of a command, or why it stops.
pub type Outcome = Result<ExitCode, Stop>;

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

pub fn called() -> Result<Home, Error> {
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

/// The job that these words mean, where a verb takes no array.
pub async fn one_job(client: &Client, text: &str) -> Result<Job, Error> {
    let JobSelection { array, jobs } = client.jobs_of(reference(text)).await?;
    let mut jobs = in_order(jobs).into_iter();
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
pub fn reference(text: &str) -> &str {
    let is_number = |text: &str| text.parse::<u64>().is_ok();
    let number = text.strip_prefix('#').filter(|number| {
        let task = number.split_once('_');
        is_number(number) || task.is_some_and(|(array, index)| is_number(array) && is_number(index))
    });
    number.unwrap_or(text)
}

/// Of an array the jobs in the order of their indices.
pub fn in_order(mut jobs: Vec<Job>) -> Vec<Job> {
    jobs.sort_by_key(|job| job.array.as_ref().map(|task| task.index));
    jobs
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
