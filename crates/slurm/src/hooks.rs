//! What the plugin does at each point of a step.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use divvy_core::Bytes;

use crate::record::{Access, FOLDER, Outcome, Record};
use crate::spank::{Handle, say};
use crate::{mounts, visible};

/// `--gpu-memory` of this step, in bytes.
static GPU_MEMORY: Mutex<Option<u64>> = Mutex::new(None);

/// Tasks of this step that have ended on this node.
static ENDED: AtomicU32 = AtomicU32::new(0);

/// The variable of Prolog, where Slurm calls it `SPANK_DIVVY_GPU_MEMORY`; its value is in bytes.
pub const FOR_PROLOG: &str = "DIVVY_GPU_MEMORY";

/// What plugstack.conf gives the plugin.
struct Arguments {
    records: PathBuf,
    /// `missing=run`: a job without a record runs without a limit.
    may_run_without_record: bool,
}

impl Arguments {
    /// # Errors
    /// Names an argument that the plugin does not know.
    fn parse(words: &[String]) -> Result<Self, String> {
        let mut arguments = Self {
            records: FOLDER.into(),
            may_run_without_record: false,
        };
        for word in words {
            match word.split_once('=') {
                Some(("missing", "refuse")) => arguments.may_run_without_record = false,
                Some(("missing", "run")) => arguments.may_run_without_record = true,
                Some(("records", folder)) if folder.starts_with('/') => {
                    arguments.records = folder.into();
                }
                _ => {
                    return Err(format!(
                        "plugstack.conf has {word:?} for the plugin, which takes missing=refuse, missing=run and records=/FOLDER"
                    ));
                }
            }
        }
        Ok(arguments)
    }
}

/// Checks the argument of `--gpu-memory`; whether the command may go on.
pub fn take_gpu_memory(text: &str) -> bool {
    let bytes = match text.parse::<Bytes>() {
        Ok(bytes) if bytes > Bytes::ZERO => bytes,
        Ok(_) => {
            say("--gpu-memory 0: a job needs more than no memory; use a size such as 8G");
            return false;
        }
        Err(error) => {
            let text: String = text.chars().filter(|c| !c.is_control()).take(40).collect();
            say(&format!(
                "--gpu-memory {text}: {error}; use a size such as 8G"
            ));
            return false;
        }
    };
    if let Ok(mut taken) = GPU_MEMORY.lock() {
        *taken = Some(bytes.get());
    }
    true
}

fn gpu_memory() -> Option<u64> {
    GPU_MEMORY.lock().map_or(None, |taken| *taken)
}

/// Passes the option on to Prolog; whether the command may go on.
pub fn after_options(job: &Handle) -> bool {
    let Some(bytes) = gpu_memory().filter(|_| !job.is_remote()) else {
        return true;
    };
    if !job.set_for_prolog(FOR_PROLOG, &bytes.to_string()) {
        say("--gpu-memory: this Slurm passes no variable to Prolog, so the limit would be lost");
        return false;
    }
    true
}

/// Puts a task, which is still root's, into the slice of its job; whether it may start.
pub fn begin_task(job: &Handle, words: &[String]) -> bool {
    match enter(job, words) {
        Ok(()) => true,
        Err(why) => {
            say(&format!("the job does not start here: {why}"));
            false
        }
    }
}

fn enter(job: &Handle, words: &[String]) -> Result<(), String> {
    let arguments = Arguments::parse(words)?;
    let number = job.job().ok_or("Slurm does not tell the job's number")?;
    let record = match Record::read(&arguments.records, number) {
        Ok(Some(record)) => record,
        Ok(None) if arguments.may_run_without_record => return Ok(()),
        Ok(None) => {
            return Err(format!(
                "`divvy-slurm prolog` left no record of job {number} on this node; the administrator sets \
                 Prolog and PrologFlags=Alloc in slurm.conf"
            ));
        }
        Err(error) => return Err(format!("the record of job {number}: {error}")),
    };
    let asked = gpu_memory();
    if asked.is_some() && asked != record.gpu_memory {
        return Err(
            "--gpu-memory belongs to the job, and a step cannot change it: give it to sbatch or salloc"
                .to_owned(),
        );
    }
    match &record.outcome {
        Outcome::NoSlice => Ok(()),
        Outcome::Refused(why) => Err(why.clone()),
        Outcome::Unlimited(why) => {
            say(&format!("the job runs without a limit: {why}"));
            Ok(())
        }
        Outcome::Slice(access) => enter_slice(job, access),
    }
}

fn enter_slice(job: &Handle, access: &Access) -> Result<(), String> {
    mounts::make(&access.mounts).map_err(|error| format!("slice {}: {error}", access.name))?;
    let shown = |name: &str| job.variable(name);
    let seen = visible::devices(
        &access.gpus,
        shown("SLURM_STEP_GPUS").as_deref(),
        shown("CUDA_VISIBLE_DEVICES").as_deref(),
    );
    for (name, value) in &access.environment {
        let value = match name.as_str() {
            "LD_PRELOAD" | "LD_LIBRARY_PATH" => before(value, shown(name)),
            // An instance of MIG has a name of its own, which is not that of its GPU.
            "CUDA_VISIBLE_DEVICES" if !seen.is_empty() && is_of_gpus(access, value) => seen.clone(),
            _ => value.clone(),
        };
        if !job.set(name, &value) {
            return Err(format!("Slurm did not take the variable {name}"));
        }
    }
    if access.refuse_user_namespaces {
        divvy_fork::refuse_user_namespaces()
            .map_err(|error| format!("cannot forbid user namespaces in the slice: {error}"))?;
    }
    Ok(())
}

fn is_of_gpus(access: &Access, visible: &str) -> bool {
    let mut uuids = visible.split(',');
    uuids.all(|uuid| access.gpus.iter().any(|(_, gpu)| gpu == uuid))
}

/// Ours before the task's own, once.
fn before(ours: &str, theirs: Option<String>) -> String {
    match theirs {
        Some(theirs) if theirs == ours || theirs.starts_with(&format!("{ours}:")) => theirs,
        Some(theirs) if !theirs.is_empty() => format!("{ours}:{theirs}"),
        _ => ours.to_owned(),
    }
}

/// After the step's last task on this node, says what the job's output should have: refusals of memory. Updates the
/// job's comment, which Slurm allows only while the job runs.
pub fn end_task(job: &Handle, words: &[String]) -> bool {
    let ended = ENDED.fetch_add(1, Ordering::Relaxed) + 1;
    if job.local_tasks() != Some(ended) {
        return true;
    }
    let (Ok(arguments), Some(number)) = (Arguments::parse(words), job.job()) else {
        return true;
    };
    if let Ok(Some(record)) = Record::read(&arguments.records, number)
        && matches!(record.outcome, Outcome::Slice(_))
    {
        for line in closing_lines(&record, &arguments.records) {
            say(&line);
        }
    }
    true
}

fn closing_lines(record: &Record, records: &Path) -> Vec<String> {
    let output = Command::new(&record.helper)
        .args(["after-step", &record.job.to_string()])
        .env("DIVVY_SLURM_RECORDS", records)
        .env("DIVVY_SLURM_CONFIG", &record.config)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let text = output.map(|output| output.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines().take(64).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_argument_of_plugstack_is_named() {
        let words = |words: &[&str]| {
            words
                .iter()
                .map(|&word| word.to_owned())
                .collect::<Vec<_>>()
        };
        let parsed = Arguments::parse(&words(&["missing=run", "records=/x"])).unwrap();
        assert!(parsed.may_run_without_record);
        assert_eq!(parsed.records, Path::new("/x"));
        assert!(!Arguments::parse(&[]).unwrap().may_run_without_record);
        for wrong in ["missing=", "records=x", "allow", ""] {
            let error = Arguments::parse(&words(&[wrong])).err().unwrap();
            assert!(error.contains(&format!("{wrong:?}")), "{error}");
        }
    }

    #[test]
    fn a_tasks_own_libraries_stay_after_ours() {
        for (theirs, expected) in [
            (None, "/sim"),
            (Some(""), "/sim"),
            (Some("/a:/b"), "/sim:/a:/b"),
            (Some("/sim"), "/sim"),
            (Some("/sim:/a"), "/sim:/a"),
            (Some("/simple"), "/sim:/simple"),
        ] {
            assert_eq!(before("/sim", theirs.map(str::to_owned)), expected);
        }
    }
}
