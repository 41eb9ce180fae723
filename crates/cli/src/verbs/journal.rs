//! `admin journal`: backup and restore of the journal, by the agent's side of the program, without a daemon.

use std::process::ExitCode;

use divvy_api::v1::JournalFile;

use crate::args::{AdminJournal, JournalOf};
use crate::call::Outcome;
use crate::output::{print, view};
use crate::{Backend, render};

pub fn journal(args: AdminJournal, backend: Backend) -> Outcome {
    let (done, of) = match args {
        AdminJournal::Copy(args) => ((backend.copy_journal)(args.of.system)?, args.of),
        AdminJournal::Restore(args) => {
            let done = (backend.restore_journal)(args.of.system, &args.file)?;
            (done, args.of)
        }
    };
    show(done, &of)
}

fn show(done: JournalFile, of: &JournalOf) -> Outcome {
    match of.output {
        Some(format) => {
            let draw = |all: &[_], _| all.iter().map(render::journal).collect();
            print(render::list(&[done], format, view(), draw)?)?;
        }
        None => print(render::journal(&done))?,
    }
    Ok(ExitCode::SUCCESS)
}
