//! What is run for a task: the stock agent's `execute` in a container or as a plain process.

use std::collections::BTreeMap;

use crate::Settings;
use crate::server::Task;
use crate::slot::Slot;

/// What the command line says about running tasks.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `--docker [IMAGE [ARGUMENT…]]`; absent: tasks run as plain processes.
    pub docker: Option<Vec<String>>,
}

/// What a claimed task is to be run with.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// Program and arguments.
    pub command: Vec<String>,
    /// More of its environment.
    pub env: BTreeMap<String, String>,
    /// Lines for the task's log before it starts, in order, each with its line break.
    pub lines: Vec<String>,
}

/// What the task is to be run with, on this slot.
pub fn launch(_settings: &Settings, _options: &Options, task: &Task, slot: &Slot) -> Launch {
    let command = ["clearml-agent", "execute", "--full-monitoring", "--id"];
    Launch {
        command: command
            .into_iter()
            .map(str::to_owned)
            .chain([task.id.clone()])
            .collect(),
        env: BTreeMap::from([("CLEARML_WORKER_ID".to_owned(), slot.worker.clone())]),
        lines: Vec::new(),
    }
}
