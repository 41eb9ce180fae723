//! `divvy-k8s`: Divvy's part in a Kubernetes cluster.

mod show;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use clap::{CommandFactory as _, Parser, Subcommand};
use divvy_k8s::base::{cluster, error_output};
use divvy_k8s::teams::project;
use divvy_k8s::tools::{admin, doctor, submit, uninstall, views, why};
use divvy_k8s::{carrier, controller, extender, glue, node};
use tracing_subscriber::EnvFilter;

/// Fractions of GPUs for pods, on the stock scheduler
#[derive(Parser)]
#[command(name = "divvy-k8s", version)]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Shows the webhook's changes to the objects of a file
    Inject(show::Args),
    /// Runs the DRA driver of a node, which uses the node's `divvy daemon`
    Node(node::Args),
    /// Checks that the node's `divvy daemon` responds: exit code 0 or 1
    Probe(node::probe::Args),
    /// Runs the webhook, and maintains DeviceClasses and claim templates
    Controller(controller::Args),
    /// Creates a pod, or a Job, with a GPU request
    Submit(submit::Args),
    /// Sets which nodes may have MIG instances, and lists the devices of each node
    Admin(admin::Args),
    /// Sets the quotas of teams, as Kueue's objects
    Project(project::Args),
    /// Sets the quotas that projects share
    Department(project::DepartmentArgs),
    /// Explains why a pod or a Job waits
    Why(why::Args),
    /// Checks that the cluster has everything that Divvy needs
    Doctor(doctor::Args),
    /// Lists every GPU of every node
    Gpus(views::GpusArgs),
    /// Lists the pods with GPUs, and those that wait for one
    Ps(views::PsArgs),
    /// Runs a reservation pod, or prints the definition of GpuShare
    Carrier(carrier::Args),
    /// Runs the tasks of a ClearML Server's queues as pods
    Glue(glue::Args),
    /// Scores nodes for the kube-scheduler, so that GPUs are packed
    Extender(extender::Args),
    /// Removes what `helm uninstall` would leave; the chart's hooks run it
    Uninstall(uninstall::Args),
    /// Writes the manual pages into a folder
    #[command(hide = true)]
    Manual {
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
}

fn main() -> ExitCode {
    match error_output::parse::<Args>().verb {
        Verb::Inject(args) => match show::show(&args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                eprintln!("divvy-k8s: {failure}");
                ExitCode::from(failure.code())
            }
        },
        Verb::Node(args) => serve(node::run(args)),
        Verb::Probe(args) => serve(node::probe::run(args)),
        Verb::Controller(args) => serve(controller::run(args)),
        Verb::Submit(args) => error_output::people(args.is_json(), async || {
            let client = if args.needs_cluster() {
                Some(error_output::client().await?)
            } else {
                None
            };
            submit::run(&args, client.as_ref()).await
        }),
        Verb::Admin(args) => error_output::people(args.is_json(), async || {
            admin::run(&args, &error_output::client().await?).await
        }),
        Verb::Project(args) => error_output::people(args.is_json(), async || {
            project::run(&args, &error_output::client().await?).await
        }),
        Verb::Department(args) => error_output::people(args.is_json(), async || {
            project::run_department(&args, &error_output::client().await?).await
        }),
        Verb::Why(args) => error_output::people(args.is_json(), async || {
            why::run(&args, &error_output::client().await?).await
        }),
        Verb::Doctor(args) => error_output::people(args.is_json(), async || {
            doctor::run(&args, &error_output::client().await?).await
        }),
        Verb::Gpus(args) => error_output::people(args.is_json(), async || {
            views::gpus(&args, &error_output::client().await?).await
        }),
        Verb::Ps(args) => error_output::people(args.is_json(), async || {
            views::ps(&args, &error_output::client().await?).await
        }),
        Verb::Carrier(args) => error_output::people(false, async || carrier::run(&args).await),
        Verb::Extender(args) => serve(extender::run(args)),
        Verb::Glue(args) => glue::run(&args),
        Verb::Uninstall(args) => error_output::people(false, async || uninstall::run(&args).await),
        Verb::Manual { folder } => match manual(&folder) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                let folder = folder.display();
                eprintln!("divvy-k8s: cannot write manual pages into {folder}: {error}");
                ExitCode::FAILURE
            }
        },
    }
}

/// Writes a page for the program and one for each verb.
fn manual(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    clap_mangen::generate_to(Args::command(), folder)
}

/// Runs a service until SIGTERM or SIGINT; its log goes to stderr.
fn serve<E: Error>(service: impl Future<Output = Result<(), E>>) -> ExitCode {
    let filter = EnvFilter::try_from_env("DIVVY_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_env_filter(filter)
        .with_target(false)
        .init();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let served = match runtime {
        Ok(runtime) => runtime
            .block_on(service)
            .map_err(|error| cluster::chain(&error)),
        Err(error) => Err(format!("cannot start: {error}")),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("divvy-k8s: {error}");
            ExitCode::FAILURE
        }
    }
}
