//! `divvy-slurm`: what Slurm runs on a node. Prolog holds the slice of a job, Epilog releases it, and the health check
//! releases slices of jobs that are gone.
#![forbid(unsafe_code)]

mod node;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Divvy under Slurm: limits for jobs with shards of a GPU
#[derive(Parser)]
#[command(name = "divvy-slurm", version)]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Holds the slice of a job, for `Prolog` in slurm.conf
    Prolog,
    /// Releases the slice of a job, for `Epilog` in slurm.conf
    Epilog,
    /// Releases slices of jobs that are gone, for `HealthCheckProgram` in slurm.conf
    Check,
    /// Prints what the output of a job should have after a step; the plugin calls it
    #[command(hide = true)]
    AfterStep { job: u32 },
}

fn main() -> ExitCode {
    divvy_fork::take_over();
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("divvy-slurm: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let done = runtime.block_on(async {
        match args.verb {
            Verb::Prolog => node::prolog().await,
            Verb::Epilog => node::epilog().await,
            Verb::Check => node::check().await,
            Verb::AfterStep { job } => node::after_step(job).await,
        }
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("divvy-slurm: {why}");
            ExitCode::FAILURE
        }
    }
}
