//! `admin`: changes to GPU modes and MIG instances of the node.

use std::process::ExitCode;

use divvy_api::v1::{self, ErrorCode};
use jiff::Zoned;

use crate::args::{Admin, AdminDrain, AdminGpu, AdminMig, AdminUndrain, Format, MigGc, MigPlan};
use crate::call::{Outcome, client};
use crate::error_output::usage;
use crate::output::{print, say, view};
use crate::{Backend, ask, render};

pub async fn admin(args: Admin, backend: Backend) -> Outcome {
    match args {
        Admin::Init(args) => super::init::init(*args, backend).await,
        Admin::Gpu(args) => gpu(args).await,
        Admin::Drain(args) => drain(args).await,
        Admin::Undrain(args) => undrain(args).await,
        Admin::Project(args) => super::projects::admin(args).await,
        Admin::Journal(args) => super::journal::journal(args, backend),
        Admin::Mig(AdminMig::Ls(read)) => list(read.output).await,
        Admin::Mig(AdminMig::Plan(args)) => plan(args).await,
        Admin::Mig(AdminMig::Gc(args)) => gc(args).await,
    }
}

/// Exits with the code of a conflict while something is in the way.
async fn gpu(args: AdminGpu) -> Outcome {
    let body = v1::GpuChange {
        mode: args.mode.into(),
        dry_run: args.dry_run,
    };
    let changed = client()?.change_gpu(&args.gpu, &body).await?;
    let is_blocked = !changed.blockers.is_empty();
    match args.output {
        Some(format) => {
            let draw = |all: &[_], _| all.iter().map(render::changed).collect();
            print(render::list(&[changed], format, view(), draw)?)?;
        }
        None => print(render::changed(&changed))?,
    }
    if is_blocked {
        return Ok(ExitCode::from(ErrorCode::Conflict.exit_code()));
    }
    Ok(ExitCode::SUCCESS)
}

async fn drain(args: AdminDrain) -> Outcome {
    let until = args.until.as_deref();
    let drain = v1::Drain {
        gpus: args.gpus,
        reason: args.reason,
        until: until
            .map(|text| ask::filters::later("--until", text, &Zoned::now()))
            .transpose()?,
    };
    let gpus = client()?.drain(&drain).await?;
    print(render::list(&gpus, args.read.output, view(), render::gpus)?)?;
    if !args.read.output.is_json() {
        let busy = gpus.iter().filter(|gpu| !gpu.slices.is_empty()).count();
        say(match busy {
            0 => "no jobs run there",
            _ => "running jobs continue there; list them: divvy ps --state running",
        });
    }
    Ok(ExitCode::SUCCESS)
}

async fn undrain(args: AdminUndrain) -> Outcome {
    let undrain = v1::Undrain { gpus: args.gpus };
    let gpus = client()?.undrain(&undrain).await?;
    print(render::list(&gpus, args.read.output, view(), render::gpus)?)?;
    Ok(ExitCode::SUCCESS)
}

async fn list(format: Format) -> Outcome {
    let instances = client()?.mig_instances().await?;
    print(render::list(&instances, format, view(), render::instances)?)?;
    if instances.is_empty() && !format.is_json() {
        say("there are no MIG instances; `divvy gpus` shows which GPUs are in MIG mode");
    }
    Ok(ExitCode::SUCCESS)
}

async fn plan(args: MigPlan) -> Outcome {
    for profile in &args.profiles {
        if let Err(error) = profile.parse::<divvy_core::MigProfile>() {
            return Err(usage(error.to_string(), error.hint()).into());
        }
    }
    let wanted = v1::MigWanted {
        profiles: args.profiles,
        gpus_on: ask::gpus_on(args.gpus_on.as_deref())?,
    };
    let planned = client()?.mig_plan(&wanted).await?;
    print(render::list(
        &planned,
        args.read.output,
        view(),
        render::planned,
    )?)?;
    Ok(ExitCode::SUCCESS)
}

async fn gc(args: MigGc) -> Outcome {
    let gc = v1::MigGc {
        gpus_on: ask::gpus_on(args.gpus_on.as_deref())?,
        dry_run: args.dry_run,
    };
    let gone = client()?.mig_gc(&gc).await?;
    print(render::list(
        &gone,
        args.read.output,
        view(),
        render::instances,
    )?)?;
    if gone.is_empty() && !args.read.output.is_json() {
        say("no idle MIG instances");
    }
    Ok(ExitCode::SUCCESS)
}
