//! Cut NVIDIA GPUs into safe fractions: command line and daemon in one program.
//!
//! The commands know nothing of the agent, and the agent nothing of the command line; they meet here.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use divvy_cli::{Backend, Daemon, Solo};

fn main() -> ExitCode {
    let backend = Backend {
        daemon: |asked| divvy_agent::daemon(daemon(asked)),
        supervise: divvy_agent::supervise,
        run_here: divvy_agent::run_client_job,
        solo: |asked| divvy_agent::solo(solo(asked)),
        probe_context: divvy_agent::probe_context,
        probe_limits: divvy_agent::probe_limits,
        doctor: divvy_agent::doctor,
        probe_driver: divvy_agent::probe_driver,
        gpu_indices: divvy_agent::gpu_indices,
    };
    divvy_cli::main(std::env::args_os(), backend)
}

fn daemon(asked: Daemon) -> divvy_agent::DaemonArgs {
    let Daemon {
        gpus,
        queues,
        order,
        backfill,
        preemption,
        docker,
        container,
        deny_unlimited,
        cdi_dir,
        detached,
        sim,
        grace,
        on_bypass,
        system,
        access,
        listen,
        token_file,
    } = asked;
    divvy_agent::DaemonArgs {
        gpus,
        queues,
        order,
        backfill,
        preemption,
        detached,
        docker,
        container,
        deny_unlimited,
        cdi_dir,
        sim,
        grace,
        on_bypass,
        doors: divvy_agent::DoorArgs {
            system,
            access,
            listen,
            token_file,
        },
    }
}

fn solo(asked: Solo) -> divvy_agent::SoloArgs {
    let Solo { submit, sim } = asked;
    divvy_agent::SoloArgs { submit, sim }
}
