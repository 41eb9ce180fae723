//! Read-only verbs: one call, and its answer rendered.

use std::collections::BTreeSet;
use std::process::ExitCode;

use divvy_api::client::{Client, JobSelection};
use divvy_api::v1::Job;

use super::{Outcome, client, reference};
use crate::args::{Format, Ps, ReadJob};
use crate::output::{print, say, view};
use crate::render;

pub async fn jobs(args: Ps) -> Outcome {
    let client = client()?;
    let format = args.read.output;
    if !args.jobs.is_empty() {
        return these(&client, &args).await;
    }
    if format.is_json() {
        let jobs = client.jobs(args.all).await?;
        print(render::list(&jobs, format, view(), render::jobs)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = render::Rows::new(format, view());
    match format {
        Format::Wide => {
            let jobs = client.jobs(args.all).await?;
            jobs.iter().for_each(|job| rows.add_whole(job));
        }
        _ => client.jobs_briefly(args.all, |job| rows.add(&job)).await?,
    }
    let text = rows.drawn();
    print(&text)?;
    if text.is_empty() {
        say(if args.all {
            "no jobs yet"
        } else {
            "no pending or running jobs; `divvy ps -a` lists ended jobs, too"
        });
    }
    Ok(ExitCode::SUCCESS)
}

/// The jobs that are named, and all jobs of arrays that are, ended ones included.
async fn these(client: &Client, args: &Ps) -> Outcome {
    let (mut found, mut known) = (Vec::new(), BTreeSet::new());
    for name in &args.jobs {
        let jobs = client.jobs_of(reference(name)).await?.jobs;
        found.extend(jobs.into_iter().filter(|job| known.insert(job.id.clone())));
    }
    print(render::list(
        &found,
        args.read.output,
        view(),
        render::jobs,
    )?)?;
    Ok(ExitCode::SUCCESS)
}

pub async fn gpus(format: Format) -> Outcome {
    let client = client()?;
    let gpus = client.gpus().await?;
    print(render::list(&gpus, format, view(), render::gpus)?)?;
    if matches!(format, Format::Table | Format::Wide) {
        print(render::gpus_footer(&gpus, &client.node().await?))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub async fn queues(format: Format) -> Outcome {
    let queues = client()?.queues().await?;
    print(render::list(&queues, format, view(), render::queues)?)?;
    Ok(ExitCode::SUCCESS)
}

pub async fn describe(args: ReadJob) -> Outcome {
    let JobSelection { array, jobs } = client()?.jobs_of(reference(&args.job)).await?;
    let draw = |jobs: &[Job], view| match &array {
        None => jobs.iter().map(|job| render::describe(job, view)).collect(),
        Some(array) => render::describe_array(array, jobs, view),
    };
    print(render::list(&jobs, args.read.output, view(), draw)?)?;
    Ok(ExitCode::SUCCESS)
}

pub async fn why(args: ReadJob) -> Outcome {
    let why = client()?.why(reference(&args.job)).await?;
    let draw = |whys: &[_], view| whys.iter().map(|why| render::why(why, view)).collect();
    print(render::list(&[why], args.read.output, view(), draw)?)?;
    Ok(ExitCode::SUCCESS)
}
