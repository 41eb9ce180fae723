//! Read-only verbs: one call, and its answer rendered.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::IsTerminal as _;
use std::process::ExitCode;

use divvy_api::client::{Client, JobSelection, Runs};
use divvy_api::v1::{Error, ErrorCode, Job, JobQuery, JobState};
use divvy_api::version;
use jiff::Timestamp;

use crate::Backend;
use crate::args::{Format, Look, Ps, ReadJob};
use crate::ask::filters;
use crate::call::{Outcome, client, reference};
use crate::output::{self, Stop, print, view};
use crate::render::{self, Span};
use crate::watch::{self, Shown};

pub async fn jobs(args: Ps) -> Outcome {
    let client = client()?;
    let format = args.look.read.output;
    // A wrong word is refused before anything is drawn.
    filters::query(&args.filter, args.all, Timestamp::now())?;
    let draw = async || {
        if !args.jobs.is_empty() {
            return these(&client, &args).await;
        }
        let query = filters::query(&args.filter, args.all, Timestamp::now())?;
        let plain = JobQuery {
            all: args.all,
            ..JobQuery::default()
        };
        let is_filtered = query != plain;
        let (text, left_out) = listed(&client, &query, &args, is_filtered).await?;
        let remark = match left_out {
            0 => (text.is_empty() || text == "[]\n").then(|| none(&args, is_filtered)),
            count => Some(format!("{count} more pending jobs; -n 0 lists them too")),
        };
        Ok(Shown {
            text,
            remarks: remark.filter(|_| !format.is_json()).into_iter().collect(),
        })
    };
    watch::show(args.look.watch, format, draw).await
}

/// Rows beside those of queued jobs, on a terminal: the head, some running jobs, the remark and the next prompt. So the
/// list of pending jobs fits a screen with them.
const OTHER_ROWS: usize = 10;

/// The jobs of a query, in the form asked for, and the number of queued jobs that are left out on a terminal.
async fn listed(
    client: &Client,
    query: &JobQuery,
    args: &Ps,
    is_filtered: bool,
) -> Result<(String, usize), Stop> {
    let format = args.look.read.output;
    let span = if filters::is_past(query) {
        Span::Past
    } else {
        Span::Present
    };
    let whole = async || {
        if is_filtered {
            match client.job_page(query).await {
                Ok(page) => Ok(page.jobs),
                Err(error) => Err(unknown_filter(client, error).await),
            }
        } else {
            client.jobs(query.all).await
        }
    };
    // A list that a program reads, or a user bounds, is whole.
    let is_bounded = args.filter.limit.is_none() && std::io::stdout().is_terminal();
    let most_queued = match output::terminal_rows().filter(|_| is_bounded) {
        Some(rows) => rows.saturating_sub(OTHER_ROWS).max(OTHER_ROWS),
        None => usize::MAX,
    };
    let rows = render::Rows::new(format, view(), span);
    let mut rows = if args.tasks {
        rows
    } else {
        rows.folding(most_queued)
    };
    match format {
        Format::Json | Format::Ndjson | Format::Csv => {
            let jobs = whole().await?;
            return Ok((render::list(&jobs, format, view(), render::jobs)?, 0));
        }
        Format::Wide => whole().await?.iter().for_each(|job| rows.add_whole(job)),
        Format::Table | Format::Name if is_filtered => {
            let read = client.page_briefly(query, |job| rows.add(&job)).await;
            if let Err(error) = read {
                return Err(unknown_filter(client, error).await.into());
            }
        }
        Format::Table | Format::Name => {
            client.jobs_briefly(query.all, |job| rows.add(&job)).await?;
        }
    }
    let text = rows.drawn();
    Ok((text, rows.left_out()))
}

/// Why a daemon refuses a query: one of another version may not know its parameters.
async fn unknown_filter(client: &Client, error: Error) -> Error {
    let ours = version::program();
    match client.node().await {
        Ok(node) if error.code == ErrorCode::Usage && node.version != ours => Error::new(
            ErrorCode::Usage,
            format!(
                "the daemon is version {}, this program is {ours}, and the daemon does not know these filters: {}",
                node.version, error.message
            ),
        )
        .hint("restart the daemon with this version, or leave the filters out"),
        _ => error,
    }
}

/// The remark in place of an empty list.
fn none(args: &Ps, is_filtered: bool) -> String {
    let words = filters::in_words(&args.filter);
    match (is_filtered && !words.is_empty(), args.all) {
        (true, _) => format!("no jobs match {words}"),
        (false, true) => "no jobs yet".to_owned(),
        (false, false) => {
            "no pending or running jobs; `divvy ps -a` lists ended jobs, too".to_owned()
        }
    }
}

/// The jobs that are named, and all jobs of arrays that are, ended ones included.
async fn these(client: &Client, args: &Ps) -> Result<Shown, Stop> {
    let (mut found, mut known) = (Vec::new(), BTreeSet::new());
    for name in &args.jobs {
        let jobs = client.jobs_of(reference(name)).await?.jobs;
        found.extend(jobs.into_iter().filter(|job| known.insert(job.id.clone())));
    }
    let is_past = args.all || found.iter().any(|job| job.state == JobState::Ended);
    let table = if is_past {
        render::past_jobs
    } else {
        render::jobs
    };
    let text = render::list(&found, args.look.read.output, view(), table)?;
    Ok(Shown::list(text))
}

pub async fn gpus(look: Look, backend: Backend) -> Outcome {
    let client = client()?;
    let format = look.read.output;
    let is_served = Cell::new(false);
    let draw = async || {
        let gpus = match client.gpus().await {
            Ok(gpus) => gpus,
            // A watched list of a daemon that went away stays.
            Err(error) if error.code == ErrorCode::NoDaemon && !is_served.get() => {
                return without_daemon(error, format, backend);
            }
            Err(error) => return Err(error.into()),
        };
        is_served.set(true);
        let mut text = render::list(&gpus, format, view(), render::gpus)?;
        if matches!(format, Format::Table | Format::Wide) {
            text += &render::gpus_footer(&gpus, &client.node().await?, view());
        }
        Ok(Shown::list(text))
    };
    watch::show(look.watch, format, draw).await
}

/// The GPUs as the driver shows them, without a daemon.
fn without_daemon(error: Error, format: Format, backend: Backend) -> Result<Shown, Stop> {
    let gpus = match (backend.observe_gpus)() {
        Ok(gpus) => gpus,
        Err(why) => {
            let both = format!("{}, and without one: {}", error.message, why.message);
            return Err(Stop::Failed(Error {
                message: both,
                ..error
            }));
        }
    };
    let text = render::list(&gpus, format, view(), render::unmanaged_gpus)?;
    let remark = "no daemon runs, so these are the driver's figures; `divvy run` or `divvy daemon --detached` starts one";
    Ok(Shown {
        text,
        remarks: vec![remark.to_owned()],
    })
}

pub async fn queues(look: Look) -> Outcome {
    let client = client()?;
    let format = look.read.output;
    let draw = async || {
        let queues = client.queues().await?;
        let text = render::list(&queues, format, view(), render::queues)?;
        Ok(Shown::list(text))
    };
    watch::show(look.watch, format, draw).await
}

pub async fn describe(args: ReadJob) -> Outcome {
    let client = client()?;
    let JobSelection { array, jobs } = client.jobs_of(reference(&args.job)).await?;
    let used = match &jobs[..] {
        [job] if array.is_none() && !args.read.output.is_json() => used(&client, job).await,
        _ => String::new(),
    };
    let draw = |jobs: &[Job], view| match &array {
        None => (jobs.iter())
            .map(|job| render::describe_with(job, &used, view))
            .collect(),
        Some(array) => render::describe_array(array, jobs, view),
    };
    print(render::list(&jobs, args.read.output, view(), draw)?)?;
    Ok(ExitCode::SUCCESS)
}

/// What a job used, in words: of a running one its energy. Figures that the daemon does not give to the caller are left
/// out.
async fn used(client: &Client, job: &Job) -> String {
    let Some(started) = job.started_at else {
        return String::new();
    };
    let advice = match job.state {
        JobState::Ended => client.advice(&Runs::Like(job.id.clone())).await,
        _ => Ok(Vec::new()),
    };
    let ended = job.ended_at.unwrap_or_else(Timestamp::now);
    let usage = client.usage("job", started, ended, None).await;
    let mut usage = usage.unwrap_or_default().into_iter();
    let own = usage.find(|usage| usage.job.as_deref() == Some(job.id.as_str()));
    render::efficiency(job, &advice.unwrap_or_default(), own.as_ref())
}

pub async fn why(args: ReadJob) -> Outcome {
    let why = client()?.why(reference(&args.job)).await?;
    let draw = |whys: &[_], view| whys.iter().map(|why| render::why(why, view)).collect();
    // COLUMNS alone wraps no text that another program reads.
    let mut view = view();
    view.width = view.width.filter(|_| std::io::stdout().is_terminal());
    print(render::list(&[why], args.read.output, view, draw)?)?;
    Ok(ExitCode::SUCCESS)
}
