//! The machine that this process has opened: its state file and configuration, from the environment, on first need.

use crate::config::Config;
use crate::engine::machine::state::{InitError, State};
use std::sync::OnceLock;

pub struct Machine {
    pub state: State,
    pub config: Config,
}

static MACHINE: OnceLock<Option<Machine>> = OnceLock::new();

/// The machine, or None after one line on stderr has said why there is none.
pub fn machine() -> Option<&'static Machine> {
    let opened = MACHINE.get_or_init(|| match open() {
        Ok(machine) => {
            // SAFETY: the handler only stores to atomics and closes a descriptor.
            unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
            Some(machine)
        }
        Err(error) => {
            eprintln!("divvy-sim: {error}");
            None
        }
    });
    opened.as_ref()
}

fn open() -> Result<Machine, InitError> {
    let config = Config::from_env()?;
    Ok(Machine {
        state: State::from_env(&config)?,
        config,
    })
}

/// In a fork child: the parent's slot stays the parent's.
extern "C" fn after_fork() {
    if let Some(Some(machine)) = MACHINE.get() {
        machine.state.forget_after_fork();
    }
}
