//! `submit`: a job into a queue.

use std::process::ExitCode;

use divvy_api::v1::Runner;

use super::{Outcome, client};
use crate::args::Submit;
use crate::output::{print, view};
use crate::{ask, render, start};

pub async fn submit(args: Submit) -> Outcome {
    let mut submit = ask::submit(&args.job, Runner::Supervisor)?;
    submit.dry_run = args.dry_run;
    submit.idempotency_key = args.idempotency_key;
    let client = client()?;
    start::agent(&client, args.job.sim.as_deref()).await?;
    let job = client.submit(&submit).await?;
    match args.output {
        Some(format) => print(render::list(&[job], format, view(), render::jobs)?)?,
        None if args.parsable => print(format!("{}\n", job.id))?,
        None => print(render::submitted(&job, args.dry_run))?,
    }
    Ok(ExitCode::SUCCESS)
}
