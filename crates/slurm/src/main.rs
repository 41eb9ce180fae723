//! `divvy-slurm`: what Slurm runs on a node. Prolog holds the slice of a job, Epilog releases it, and the health check
//! releases slices of jobs that are gone.
#![forbid(unsafe_code)]

mod node;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use clap::{CommandFactory as _, Parser, Subcommand};

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
    /// Writes the manual pages into a folder
    #[command(hide = true)]
    Manual {
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
}

/// Writes a page for the program and one for each verb.
fn manual(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    clap_mangen::generate_to(Args::command(), folder)
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
            Verb::Manual { folder } => manual(&folder).map_err(|error| {
                format!(
                    "cannot write manual pages into {}: {error}",
                    folder.display()
                )
            }),
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
