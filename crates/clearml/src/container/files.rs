//! Host files of a task's container: the configuration, a copy of the SSH keys, the cache folders.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::setup::Mounts;

/// A file or folder that could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {path}")]
pub struct FileError {
    what: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// The folder of one task, below the user's own; other users have no access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskFolder(PathBuf);

impl TaskFolder {
    /// Makes it anew; what an attempt cut short has left there is removed. A task's id is a name the server gave.
    ///
    /// # Errors
    /// When it cannot be made, or the id cannot be a folder's name.
    pub fn make(below: &Path, task: &str) -> Result<Self, FileError> {
        let path = below.join(task);
        let fault = |what, source| FileError {
            what,
            path: path.clone(),
            source,
        };
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "_-".contains(letter);
        if task.is_empty() || !task.chars().all(plain) {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "not a valid task ID");
            return Err(fault("create", source));
        }
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(fault("remove", error));
            }
            _ => {}
        }
        let mut folder = DirBuilder::new();
        folder.mode(0o700).recursive(true);
        folder
            .create(&path)
            .map_err(|error| fault("create", error))?;
        Ok(Self(path))
    }

    /// Writes the configuration that the task's agent reads; the container's user can read it there, root or not.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_config(&self, config: &Value) -> Result<PathBuf, FileError> {
        let path = self.0.join("clearml.conf");
        let write = || -> io::Result<()> {
            // The folder keeps others on this machine out; the container may run as any user.
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o644)
                .open(&path)?;
            // JSON is HOCON.
            file.write_all(serde_json::to_string_pretty(config)?.as_bytes())
        };
        write().map_err(|source| FileError {
            what: "write",
            path: path.clone(),
            source,
        })?;
        Ok(path)
    }

    /// Copies the keys.
    ///
    /// # Errors
    /// When one cannot be copied.
    pub fn copy_keys(&self, from: &Path) -> Result<PathBuf, FileError> {
        let to = self.0.join("ssh");
        copy(from, &to).map_err(|source| FileError {
            what: "copy the keys from",
            path: from.to_owned(),
            source,
        })?;
        Ok(to)
    }

    /// Removes it and all in it.
    ///
    /// # Errors
    /// When something of it stays.
    pub fn remove(below: &Path, task: &str) -> io::Result<()> {
        match fs::remove_dir_all(below.join(task)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// A folder with what is in it; sockets and the like stay behind, and links are followed, as they mean nothing elsewhere.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let Ok(kind) = fs::metadata(&source) else {
            continue;
        };
        if kind.is_dir() {
            copy(&source, &target)?;
        } else if kind.is_file() {
            fs::copy(&source, &target)?;
        }
    }
    Ok(())
}

/// Makes the folders of the caches; one that cannot be made is the engine's to complain about.
pub fn make_caches<'a>(folders: impl Iterator<Item = &'a Path>) {
    for folder in folders {
        if let Err(error) = fs::create_dir_all(folder) {
            tracing::warn!(folder = %folder.display(), %error, "cannot create a cache folder");
        }
    }
}

/// The configuration as it is inside: the caches lie where they are mounted, and nothing of the host's Python counts.
pub fn config_inside(root: &Value, mounts: &Mounts) -> Value {
    let mut inside = root.clone();
    let place =
        |folder: &Option<super::setup::Folder>| folder.as_ref().map(|one| json!(one.inside));
    let values = [
        ("sdk.storage.cache.default_base_dir", place(&mounts.cache)),
        ("agent.pip_download_cache.path", place(&mounts.pip_download)),
        ("agent.vcs_cache.path", place(&mounts.vcs)),
        ("agent.venvs_cache.path", place(&mounts.venvs)),
        (
            "agent.docker_internal_mounts.venvs_cache",
            place(&mounts.venvs),
        ),
        ("agent.venvs_dir", Some(json!(mounts.venv_build))),
        (
            "agent.package_manager.conda_env_as_base_docker",
            Some(json!(false)),
        ),
        (
            "agent.package_manager.system_site_packages",
            Some(json!(true)),
        ),
        ("agent.default_python", Some(json!(""))),
        ("agent.python_binary", Some(json!(""))),
        ("agent.cuda_version", Some(json!(""))),
        ("agent.cudnn_version", Some(json!(""))),
    ];
    for (key, value) in values {
        if let Some(value) = value {
            put(&mut inside, key, value);
        }
    }
    // The daemon's own name is not the task's.
    if let Some(agent) = inside.get_mut("agent").and_then(Value::as_object_mut) {
        agent.remove("worker_id");
    }
    inside
}

fn put(root: &mut Value, key: &str, value: Value) {
    let mut at = root;
    for part in key.split('.') {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        at = at
            .as_object_mut()
            .expect("the line above made it an object")
            .entry(part)
            .or_insert(Value::Null);
    }
    *at = value;
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_tasks_folder_is_its_users_alone_and_goes_with_all_in_it() {
        let home = tempfile::tempdir().unwrap();
        let below = home.path().join(".clearml/divvy");
        let keys = home.path().join("keys");
        fs::create_dir_all(keys.join("sub")).unwrap();
        fs::write(keys.join("sub/id"), "key").unwrap();
        for _ in 0..2 {
            let folder = TaskFolder::make(&below, "a1b2").unwrap();
            let mode = fs::metadata(&folder.0).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700);
            let copy = folder.copy_keys(&keys).unwrap();
            assert_eq!(fs::read_to_string(copy.join("sub/id")).unwrap(), "key");
            let config = folder.write_config(&json!({"api": {"x": 1}})).unwrap();
            let read: Value = serde_json::from_str(&fs::read_to_string(config).unwrap()).unwrap();
            assert_eq!(read["api"]["x"], 1);
        }
        TaskFolder::remove(&below, "a1b2").unwrap();
        TaskFolder::remove(&below, "a1b2").expect("a second time changes nothing");
        assert_eq!(fs::read_dir(&below).unwrap().count(), 0);
        for wrong in ["", "..", "a/b", "a b"] {
            assert!(TaskFolder::make(&below, wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_key_is_put_where_it_belongs_whatever_lay_there() {
        let mut root = json!({"a": 1, "b": {"c": 2}});
        put(&mut root, "a.x.y", json!(3));
        put(&mut root, "b.d", json!(4));
        assert_eq!(root, json!({"a": {"x": {"y": 3}}, "b": {"c": 2, "d": 4}}));
    }
}
