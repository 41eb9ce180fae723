//! `divvy-k8s why`: why a pod or a Job waits, from Kueue's quota to the image.
//!
//! ```text
//!   facts: pod, Job, Workload, queues, claims, slices, events ──► explain (pure) ──► render: text, JSON
//! ```
//! An explanation names the first thing that holds the pod: whatever comes after it cannot be known yet. Names of other
//! namespaces' pods are not shown.

mod explain;
mod facts;
mod owned;
mod render;

use std::process::ExitCode;

use divvy_api::v1::Error;
use kube::Client;

use crate::base::error_output::{self, Format};
pub use explain::{Explanation, HeldBy, Line, State, explain};
pub use facts::{Facts, Quota, Subject};

/// Pods and Jobs in one call. More would take a minute of calls; a label narrows the list.
const MOST: usize = 100;

#[derive(clap::Args)]
pub struct Args {
    /// Names of pods or Jobs; `pod/NAME`, `job/NAME` and `workload/NAME` say which, and `jobset/NAME` or another kind that
    /// the webhook gives claims to
    #[arg(required = true, value_name = "POD|JOB")]
    names: Vec<String>,
    /// Namespace [default: that of your kubeconfig's context]
    #[arg(short, long)]
    namespace: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

impl Args {
    pub fn is_json(&self) -> bool {
        self.output.is_json()
    }
}

/// # Errors
/// There is no such pod or Job, or the cluster cannot be read.
pub async fn run(args: &Args, client: &Client) -> Result<ExitCode, Error> {
    if args.names.len() > MOST {
        return Err(error_output::usage(
            format!("{} names", args.names.len()),
            format!("give at most {MOST} names at once"),
        ));
    }
    let namespace = args
        .namespace
        .as_deref()
        .unwrap_or_else(|| client.default_namespace());
    let mut all = Vec::new();
    for name in &args.names {
        all.push(explain(&facts::read(client, namespace, name).await?));
    }
    error_output::print(&if args.is_json() {
        error_output::json("Why", all)?
    } else {
        render::text(&all)
    })?;
    Ok(ExitCode::SUCCESS)
}
