//! Carrier mode: reservation pods hold GPUs of NVIDIA's device plugin, and Divvy shares those GPUs without DRA
//! claims.
//!
//! ```text
//!   pod that asks for a part ──► admission: a gate, and so many sixteenths as a limit
//!                                     │
//!   controller ── assign (pure) ──────┴─► a reservation pod, for `nvidia.com/gpu: 1`, on the stock scheduler
//!        │                                     │ NVIDIA's plugin gives it a GPU
//!        ├─► GpuShare of that GPU: this pod, so many sixteenths; then the gate is lifted, to that node
//!        │                                     │
//!   node part ── pod-resources ──► the reservation pod's GPU ──► the GpuShare's status
//!             └─ device plugin ──► sixteenths of that GPU ──► Allocate ──► a claim of the node's agent
//! ```
//! Every GPU has one [`share::GpuShare`], and a pod is assigned by one write of it, which fails after a concurrent
//! write: no second controller and no restart can assign a sixteenth twice. A limit is a number of sixteenths, which no
//! pod can change after its creation, so two pods of the same size may swap their devices. No other state is kept: a
//! restarted part observes again.
//!
//! No part of this was run on a cluster with GPUs.

pub mod admission;
pub mod assign;
pub mod assignment;
pub mod cluster_state;
pub(crate) mod kept;
pub mod node_affinity;
pub mod pod;
pub mod protocol;
pub mod share;
pub mod units;

use std::process::ExitCode;

use divvy_api::v1::{Error, ErrorCode};
use tokio::signal::unix::{SignalKind, signal};

use crate::base::error_output;

/// The scheduling gate that a pod has until a GPU is found for it.
pub const GATE: &str = "divvy.dev/carrier";
/// Pods of carrier mode have it, so that others need not be listed. Taking it off a pod frees nothing: what the node holds counts.
pub const LABEL: (&str, &str) = ("divvy.dev/carrier", "wanted");
/// MiB that a pod asked for, if it asked for memory: only a GPU whose sixteenths cover it will do. A change of it
/// changes where the pod may go, and not what it gets.
pub const LEAST: &str = "divvy.dev/gpu-memory-mib";
/// Where carriers and shares are.
pub const NAMESPACE: &str = "divvy-carriers";
/// The resource name in pods: a sixteenth of one GPU.
pub const RESOURCE: &str = "gpu.divvy.dev/sixteenth";

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Runs in a reservation pod and keeps its GPU until SIGTERM or SIGINT
    Hold,
    /// Prints the CustomResourceDefinition of GpuShare, which carrier mode needs
    Crd,
}

/// # Errors
/// Signals cannot be waited for, or stdout does not take it.
pub async fn run(args: &Args) -> Result<ExitCode, Error> {
    match args.verb {
        Verb::Hold => {
            let failed = |error: std::io::Error| Error::new(ErrorCode::Internal, error.to_string());
            let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
            let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
        Verb::Crd => {
            let text = yaml_serde::to_string(&share::definition());
            let text = text.map_err(|error| Error::new(ErrorCode::Internal, error.to_string()))?;
            error_output::print(&text)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
