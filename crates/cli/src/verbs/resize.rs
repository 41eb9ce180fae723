//! `advise` and `resize`: the recommended size of a job, and the change to it.

use std::process::ExitCode;

use divvy_api::client::Runs;
use divvy_api::v1::{self, Error, ErrorCode};
use divvy_core::command::program;

use crate::args::{Advise, Format, Resize};
use crate::call::{Outcome, client, reference};
use crate::error_output::usage;
use crate::output::{print, say, view};
use crate::{ask, render};

pub async fn advise(args: Advise) -> Outcome {
    let (runs, whose) = match (&args.job, &args.name, program(&args.command)) {
        (Some(job), ..) => (
            Runs::Like(reference(job).to_owned()),
            Some(format!("the program of job {job}")),
        ),
        (None, Some(name), _) => (
            Runs::Named(name.clone()),
            Some(format!("jobs named {name}")),
        ),
        (None, None, program) if program.is_empty() => (Runs::All, None),
        (None, None, program) => {
            let whose = format!("`{program}`");
            (Runs::Of(program), Some(whose))
        }
    };
    let advice = client()?.advice(&runs).await?;
    if let Some(whose) = whose.as_ref().filter(|_| advice.is_empty()) {
        let what = format!("no data about {whose}: no run that used GPU memory has ended");
        return Err(Error::new(ErrorCode::NotFound, what)
            .hint("run it once with a generous limit; `divvy advise` lists the known programs")
            .into());
    }
    print(render::list(
        &advice,
        args.read.output,
        view(),
        render::advice,
    )?)?;
    if matches!(args.read.output, Format::Table | Format::Wide) {
        match &advice[..] {
            [] => say("no data: no job that used GPU memory has ended yet"),
            [one] if whose.is_some() && one.memory_bytes.is_none() => say(
                "a size follows from a run that is refused no memory; run it once with a larger limit, such as -g 1",
            ),
            [one] if whose.is_some() => print(render::command_of(one))?,
            _ => {}
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub async fn resize(args: Resize) -> Outcome {
    let amount = ask::amount(args.gpu.as_deref(), args.gpu_memory.as_deref())?;
    let compute = args.compute.as_deref().map(ask::compute).transpose()?;
    if amount.is_none() && compute.is_none() {
        return Err(usage(
            "the new size is missing",
            "add --gpu-memory 12G, -g 0.5 or --compute fair=0.25",
        )
        .into());
    }
    let (of_memory, of_time) = (amount.is_some(), compute.is_some());
    let body = v1::Resize {
        amount: amount.map(Into::into),
        compute,
    };
    let job = client()?.resize(reference(&args.job), &body).await;
    let job = job.map_err(|error| match error.code {
        ErrorCode::NoDaemon => Error {
            hint: Some(
                "only jobs of a daemon can be resized, not runs with --no-daemon".to_owned(),
            ),
            ..error
        },
        _ => error,
    })?;
    match args.output {
        Some(format) => print(render::list(&[job], format, view(), render::jobs)?)?,
        None => {
            let memory = of_memory.then(|| render::resized(&job));
            let time = of_time.then(|| render::redivided(&job));
            print([memory, time].into_iter().flatten().collect::<String>())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
