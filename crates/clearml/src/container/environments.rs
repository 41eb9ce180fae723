//! Virtual environments (venvs) of tasks in processes, in the slot's own folder: the removal of unfinished ones.
//!
//! `clearml-agent` takes a folder such as `venvs-builds.gpu0.5a/3.11` for an environment as soon as it exists. A task
//! that is stopped while virtualenv works leaves half of one, and every later task of that slot would fail with
//! "…/bin/python: No such file or directory" or "No module named pip". So what is not finished goes before the next task.

use std::fs;
use std::path::Path;

/// What an environment has once it is finished: virtualenv, `python -m venv` and `uv venv` write `bin/activate` last.
/// The agent makes an environment of conda anew for each task.
const FINISHED: [&str; 2] = ["bin/activate", "conda-meta"];

/// Removes the unfinished environments of a slot, whose folder is `venvs`. Only folders that are named by a Python
/// version are the agent's.
pub fn remove_unfinished(venvs: &Path) {
    let Ok(folders) = fs::read_dir(venvs) else {
        // No task has run in this slot yet.
        return;
    };
    for folder in folders.flatten() {
        let is_version = folder.file_name().to_str().is_some_and(is_version);
        // A link may lead anywhere.
        let is_folder = folder.file_type().is_ok_and(|kind| kind.is_dir());
        let path = folder.path();
        if !is_version || !is_folder || FINISHED.iter().any(|part| path.join(part).exists()) {
            continue;
        }
        match fs::remove_dir_all(&path) {
            Ok(()) => {
                tracing::info!(path = %path.display(), "removed an environment that an earlier task left unfinished");
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot remove an unfinished environment; tasks of this slot may fail");
            }
        }
    }
}

fn is_version(name: &str) -> bool {
    name.starts_with(|one: char| one.is_ascii_digit())
        && name.chars().all(|one| one.is_ascii_digit() || one == '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_that_a_stopped_task_left_unfinished_goes_and_others_stay() {
        let venvs = tempfile::tempdir().unwrap();
        let make = |path: &str| {
            let path = venvs.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        };
        for path in [
            "3.11/code/script.py",
            "3.12/bin/python",
            "3.13/bin/activate",
            "3.9/conda-meta/history",
            "mine/bin/python",
            "3.11-old/x",
        ] {
            make(path);
        }
        std::os::unix::fs::symlink(venvs.path().join("mine"), venvs.path().join("3.8")).unwrap();
        remove_unfinished(venvs.path());
        remove_unfinished(&venvs.path().join("none"));
        let left = fs::read_dir(venvs.path()).unwrap();
        let mut left: Vec<String> = left
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["3.11-old", "3.13", "3.8", "3.9", "mine"]);
        assert!(venvs.path().join("mine/bin/python").exists());
    }
}
