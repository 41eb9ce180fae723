//! `divvy-k8s`: Divvy's part in a Kubernetes cluster.

mod show;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Fractions of GPUs for pods, on the stock scheduler
#[derive(Parser)]
#[command(name = "divvy-k8s", version)]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Shows what the objects of a file become: what the webhook does to them, without a cluster
    Inject(show::Args),
}

fn main() -> ExitCode {
    let Verb::Inject(args) = Args::parse().verb;
    match show::show(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("divvy-k8s: {failure}");
            ExitCode::from(failure.code())
        }
    }
}
