//! Cut NVIDIA GPUs into safe fractions: command line and daemon in one program.
//!
//! The commands know nothing of the agent, and the agent nothing of the command line; they meet here.
#![forbid(unsafe_code)]

mod clearml;
mod stock;

use std::process::ExitCode;

use divvy_cli::{Backend, Daemon, Ran, StandaloneRun};

fn main() -> ExitCode {
    let backend = Backend {
        daemon: |mut asked| {
            let beside = asked.clearml.take();
            if let Some(clearml) = &beside {
                stock::enter(clearml)?;
            }
            let beside = beside
                .map(|clearml| clearml::beside(clearml, asked.queues.clone(), asked.detached));
            divvy_agent::daemon(daemon(asked), beside.transpose()?)
        },
        supervise: divvy_agent::supervise,
        on_terminal: divvy_agent::on_terminal,
        run_here: |dir| divvy_agent::run_client_job(dir).map(ran),
        solo: |asked| divvy_agent::run_standalone(solo(asked)),
        probe_context: divvy_agent::probe_context,
        checkpoint: divvy_agent::checkpoint,
        probe_limits: divvy_agent::probe_limits,
        copy_journal: divvy_agent::copy_journal,
        restore_journal: divvy_agent::restore_journal,
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
        max_jobs,
        max_texts,
        docker,
        container,
        deny_unlimited,
        cdi_dir,
        detached,
        sim,
        grace,
        idle,
        keep: (jobs_for, most_jobs, usage_for),
        keep_logs,
        log_size,
        on_bypass,
        refuse_user_namespaces,
        system,
        beside_system,
        access,
        listen,
        token_file,
        all_to_one,
        // Worked off by whoever called.
        clearml: _,
    } = asked;
    divvy_agent::DaemonArgs {
        gpus,
        queues,
        order,
        backfill,
        preemption,
        max_jobs,
        max_texts,
        detached,
        docker,
        container,
        deny_unlimited,
        cdi_dir,
        sim,
        grace,
        log: match log_size {
            None => divvy_agent::LogSize::Usual,
            Some(Some(most)) => divvy_agent::LogSize::AtMost(most),
            Some(None) => divvy_agent::LogSize::Unbounded,
        },
        idle,
        keep: divvy_agent::RetentionPolicy {
            jobs_for,
            max_jobs: most_jobs,
            usage_for,
            max_log_bytes: keep_logs
                .unwrap_or(divvy_agent::RetentionPolicy::default().max_log_bytes),
        },
        on_bypass,
        refuse_user_namespaces,
        all_to_one,
        listen: divvy_agent::ListenArgs {
            system,
            beside_system,
            access,
            listen,
            token_file,
        },
    }
}

fn ran(ran: divvy_agent::ProgramResult) -> Ran {
    let divvy_agent::ProgramResult { code, stopped } = ran;
    Ran { code, stopped }
}

fn solo(asked: StandaloneRun) -> divvy_agent::StandaloneArgs {
    let StandaloneRun {
        submit,
        docker,
        sim,
    } = asked;
    divvy_agent::StandaloneArgs {
        submit,
        docker,
        sim,
    }
}
