//! Scripts of jobs: copied at submission, so that a later change of the file changes no job.
//!
//! ```text
//! submit ──► journal, beside the environment ──► the record's first line ──► a file in the job's folder
//!                                                (its supervisor's)           (its user's), given to its interpreter
//! ```
//! All three are removed when the job ends. A file, and no `bash -c`: a word of a command has 128 KiB at most (execve(2),
//! `MAX_ARG_STRLEN`), and a script may have any interpreter.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, fchown};
use std::path::Path;

use divvy_api::v1::{Error, Runner, Script, Submit};

use crate::job_dir::{JobDir, LaunchSpec, SCRIPT};
use crate::model::job::Job;
use crate::model::validate::usage;
use crate::supervisor::resolve_program::LaunchError;

/// By this name the journal keeps a script among the variables, which are as private as it is and leave the journal when the job
/// ends. No variable has a name with `=`.
const STORED_KEY: &str = "=script";

/// Refuses a script that cannot be run; `contained`: the job is to be in a container.
///
/// # Errors
/// [`ErrorCode::Usage`](divvy_api::v1::ErrorCode::Usage).
pub fn check(submit: &Submit, contained: bool) -> Result<(), Error> {
    let Some(Script { text, .. }) = &submit.script else {
        return Ok(());
    };
    if contained {
        return Err(usage("a script cannot run in a container").hint(
            "mount the script's folder with -v, and start the script as the container's command",
        ));
    }
    if submit.runner == Runner::Client || submit.confirm {
        return Err(usage(
            "a script cannot be combined with a foreground job or with confirmation: the daemon copies and starts it",
        ));
    }
    if text.contains('\0') {
        return Err(usage("the script contains a NUL byte"));
    }
    match interpreter(text) {
        Some(_) => Ok(()),
        None => Err(usage("the script has no interpreter line")
            .hint("start its first line with #! and the interpreter's path: #!/bin/bash")),
    }
}

/// The interpreter that a script names, and the one argument that the kernel would give it (execve(2)).
fn interpreter(text: &str) -> Option<(&str, Option<&str>)> {
    let line = text.lines().next()?.strip_prefix("#!")?.trim();
    let (program, argument) = match line.split_once([' ', '\t']) {
        Some((program, argument)) => (program, Some(argument.trim_start())),
        None => (line, None),
    };
    (!program.is_empty()).then_some((program, argument))
}

/// Puts a script beside the variables that are stored with a job.
pub fn store_with_env(script: Option<Script>, env: &mut BTreeMap<String, String>) {
    env.extend(script.map(|script| (STORED_KEY.to_owned(), script.text)));
}

/// Takes the script from among the stored variables.
pub fn take_from_env(env: &mut BTreeMap<String, String>) -> Option<String> {
    env.remove(STORED_KEY)
}

/// The numbers of a job by the names of Slurm. Not `SLURM_JOBID`, `SLURM_NTASKS` or a list of nodes: by these libraries of MPI and
/// frameworks take it that `srun` starts their processes.
pub fn slurm_names(job: &Job) -> Vec<(String, String)> {
    let mut names = vec![("SLURM_JOB_ID".to_owned(), job.id.to_string())];
    if let Some(task) = job.spec.policy.array {
        let array = task.array.unwrap_or(job.id);
        names.push(("SLURM_ARRAY_JOB_ID".to_owned(), array.to_string()));
        names.push(("SLURM_ARRAY_TASK_ID".to_owned(), task.index.to_string()));
    }
    names
}

/// Lays the script of a job, if it has one, into its folder for its user to read, and has its interpreter be what is started.
///
/// # Errors
/// When the file cannot be written.
pub fn install(dir: &JobDir, spec: &mut LaunchSpec) -> Result<(), LaunchError> {
    let Some(text) = spec.script.take() else {
        return Ok(());
    };
    let path = dir.path().join(SCRIPT);
    let failed = |error: &io::Error| LaunchError {
        code: 125,
        message: format!(
            "cannot write the job's script to {}: {error}",
            path.display()
        ),
    };
    write(&path, &text, spec).map_err(|error| failed(&error))?;
    let (program, argument) = interpreter(&text).unwrap_or(("/bin/sh", None));
    let words = spec.command.drain(..).skip(1);
    let path = path.display().to_string();
    let before = [
        Some(program.to_owned()),
        argument.map(str::to_owned),
        Some(path),
    ];
    spec.command = before.into_iter().flatten().chain(words).collect();
    Ok(())
}

fn write(path: &Path, text: &str, spec: &LaunchSpec) -> io::Result<()> {
    // Of a supervisor that was killed before it wrote `launch`.
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o700)
        .open(path)?;
    file.write_all(text.as_bytes())?;
    match &spec.user {
        Some(user) => fchown(&file, Some(user.uid), Some(user.gid)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interpreter_of_a_script_is_what_the_kernel_would_start() {
        for (text, found) in [
            ("#!/bin/bash\necho", Some(("/bin/bash", None))),
            ("#! /bin/sh -e\n", Some(("/bin/sh", Some("-e")))),
            (
                "#!/usr/bin/env -S python3 -u",
                Some(("/usr/bin/env", Some("-S python3 -u"))),
            ),
            ("#!\necho", None),
            ("echo", None),
            ("", None),
        ] {
            assert_eq!(interpreter(text), found, "{text:?}");
        }
    }

    #[test]
    fn a_script_is_run_from_the_jobs_folder_with_its_arguments_and_goes_with_its_spec() {
        let root = tempfile::tempdir().unwrap();
        let dir = JobDir::new(root.path().join("7"));
        let mut spec = LaunchSpec {
            command: vec!["job.sh".into(), "a b".into()],
            script: Some("#!/bin/sh -e\necho \"$1\"\n".into()),
            ..LaunchSpec::default()
        };
        dir.write_spec(&spec).unwrap();
        install(&dir, &mut spec).unwrap();
        let path = dir.path().join(SCRIPT);
        let laid = path.display().to_string();
        assert_eq!(spec.command, ["/bin/sh", "-e", &laid, "a b"]);
        let said = std::process::Command::new(&spec.command[0])
            .args(&spec.command[1..])
            .output()
            .unwrap();
        assert_eq!(said.stdout, b"a b\n");
        // Again, after a supervisor that was killed.
        spec.script = Some("#!/bin/sh\n".into());
        install(&dir, &mut spec).unwrap();
        dir.erase_spec().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn the_journal_keeps_a_script_apart_from_every_variable() {
        let mut env = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
        let script = Script {
            text: "#!/bin/sh".into(),
            slurm_names: false,
        };
        store_with_env(Some(script), &mut env);
        assert_eq!(env.len(), 2);
        assert_eq!(take_from_env(&mut env).as_deref(), Some("#!/bin/sh"));
        assert_eq!((take_from_env(&mut env), env.len()), (None, 1));
    }
}
