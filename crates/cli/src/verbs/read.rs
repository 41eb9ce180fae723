//! Verbs that ask once and draw the answer.

use std::process::ExitCode;

use super::{Outcome, client, reference};
use crate::args::{Format, Ps, ReadJob};
use crate::output::{print, say, view};
use crate::render;

pub async fn jobs(args: Ps) -> Outcome {
    let client = client()?;
    let format = args.read.output;
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
            "there are no jobs yet"
        } else {
            "no job waits or runs; `divvy ps -a` shows ended ones"
        });
    }
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
    let job = client()?.job(reference(&args.job)).await?;
    let draw = |jobs: &[_], view| jobs.iter().map(|job| render::describe(job, view)).collect();
    print(render::list(&[job], args.read.output, view(), draw)?)?;
    Ok(ExitCode::SUCCESS)
}

pub async fn why(args: ReadJob) -> Outcome {
    let why = client()?.why(reference(&args.job)).await?;
    let draw = |whys: &[_], view| whys.iter().map(|why| render::why(why, view)).collect();
    print(render::list(&[why], args.read.output, view(), draw)?)?;
    Ok(ExitCode::SUCCESS)
}
