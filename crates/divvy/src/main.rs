//! The program `divvy`: it joins the command line, the node agent and the ClearML front end.
//!
//! `cli` does not link the agent, and the agent does not know the command line. Both use the types of `divvy-api`.
#![forbid(unsafe_code)]

mod clearml;
mod stock;

use std::process::ExitCode;

use divvy_api::daemon::Configured;
use divvy_api::v1::Error;
use divvy_cli::Backend;

fn main() -> ExitCode {
    divvy_agent::take_over();
    let backend = Backend {
        daemon,
        supervise: divvy_agent::supervise,
        on_terminal: divvy_agent::on_terminal,
        run_here: divvy_agent::run_client_job,
        solo: divvy_agent::run_standalone,
        enter_slice: divvy_agent::enter_slice,
        slice_access: divvy_agent::slice_access,
        probe_context: divvy_agent::probe_context,
        checkpoint: divvy_agent::checkpoint,
        probe_limits: divvy_agent::probe_limits,
        record_park: divvy_agent::record_park,
        copy_journal: divvy_agent::copy_journal,
        restore_journal: divvy_agent::restore_journal,
        absent_accounts: divvy_agent::absent_accounts,
        doctor: divvy_agent::doctor,
        probe_driver: divvy_agent::probe_driver,
        observe_gpus: divvy_agent::observe_gpus,
        gpu_indices: divvy_agent::gpu_indices,
        simulate: divvy_study::simulate,
        protocols: divvy_agent::protocols,
    };
    divvy_cli::main(std::env::args_os(), backend)
}

fn daemon(configured: Configured) -> Result<(), Error> {
    let options = &configured.options;
    let mut front_end = None;
    if let Some(clearml) = options.clearml.clone() {
        stock::enter(&clearml)?;
        front_end = Some(clearml::front_end(
            clearml,
            options.queues.clone(),
            options.detached,
        )?);
    }
    divvy_agent::daemon(configured, front_end)
}
