//! `oom`: the report about a job's refused GPU memory.

use std::process::ExitCode;

use crate::args::ReadJob;
use crate::call::{Outcome, client, reference};
use crate::output::{print, view};
use crate::render;

pub async fn oom(args: ReadJob) -> Outcome {
    let oom = client()?.oom(reference(&args.job)).await?;
    let draw = |ooms: &[_], view| ooms.iter().map(|oom| render::oom(oom, view)).collect();
    print(render::list(&[oom], args.read.output, view(), draw)?)?;
    Ok(ExitCode::SUCCESS)
}
