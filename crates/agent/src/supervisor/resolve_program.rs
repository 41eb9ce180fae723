//! The PATH lookup of a command's program, with the reason and the shell's exit code if it cannot be started.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use divvy_api::program::{self, LookupError};
use rustix::fs::{Access, access};

/// A program that could not be started.
#[derive(Debug, PartialEq, Eq)]
pub struct LaunchError {
    /// 127 not found, 126 found but not executable, 125 anything that is not the program's fault.
    pub code: i32,
    pub message: String,
}

impl LaunchError {
    pub fn empty() -> Self {
        Self {
            code: 125,
            message: "the command is empty".into(),
        }
    }

    pub fn spawn(name: &str, cwd: &Path, error: &io::Error) -> Self {
        if !cwd.is_dir() {
            return Self {
                code: 125,
                message: format!("cannot enter the working directory {}", cwd.display()),
            };
        }
        let code = if error.kind() == io::ErrorKind::NotFound {
            127
        } else {
            126
        };
        Self {
            code,
            message: format!("cannot start {name}: {error}"),
        }
    }
}

/// Refuses to start a program if its limiter is gone, as with a replaced installation. The dynamic loader only warns of
/// a preloaded library that it cannot open, and runs the program without it.
pub fn check_preload(env: &BTreeMap<String, String>) -> Result<(), LaunchError> {
    let Some(file) = env
        .get("LD_PRELOAD")
        .and_then(|list| list.split(':').next())
    else {
        return Ok(());
    };
    access(file, Access::READ_OK).map_err(|errno| LaunchError {
        code: 125,
        message: format!(
            "cannot read the limiter {file} ({}), which keeps the program in its slice or on its MIG instance",
            io::Error::from(errno)
        ),
    })
}

/// The file that `name` means: itself when it has a slash, else the first executable of that name on `path`.
pub fn find(name: &str, path: Option<&str>, cwd: &Path) -> Result<PathBuf, LaunchError> {
    program::find(name, path, cwd).map_err(|error| match error {
        LookupError::File(_, error) if name.contains('/') => LaunchError::spawn(name, cwd, &error),
        LookupError::File(file, error) => LaunchError {
            code: 126,
            message: format!("cannot start {}: {error}", file.display()),
        },
        LookupError::NotInPath(path) => LaunchError {
            code: 127,
            message: format!("{name}: not found in PATH ({path})"),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, mode) in [("a/tool", 0o644), ("b/tool", 0o755), ("b/plain", 0o644)] {
            let file = dir.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, "#!/bin/sh\n").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        }
        dir
    }

    #[test]
    fn the_first_executable_on_the_path_is_taken() {
        let dir = tree();
        let path = format!("{0}/a:{0}/b:{0}/b/plain", dir.path().display());
        assert_eq!(
            find("tool", Some(&path), Path::new("/")),
            Ok(dir.path().join("b/tool"))
        );
        assert_eq!(
            find("tool", Some("a:b"), dir.path()),
            Ok(dir.path().join("b/tool")),
            "relative to the job's folder"
        );
        assert_eq!(
            find("b/tool", Some(""), dir.path()),
            Ok(dir.path().join("b/tool"))
        );
    }

    #[test]
    fn nothing_starts_without_the_limiter_it_was_promised() {
        let dir = tree();
        let env = |list: String| BTreeMap::from([("LD_PRELOAD".to_owned(), list)]);
        let there = dir.path().join("b/plain").display().to_string();
        assert_eq!(check_preload(&BTreeMap::new()), Ok(()));
        assert_eq!(
            check_preload(&env(format!("{there}:/no/such/user.so"))),
            Ok(())
        );
        let gone = check_preload(&env(format!("/no/such/limiter.so:{there}"))).unwrap_err();
        assert_eq!(gone.code, 125);
        assert!(
            gone.message.contains("/no/such/limiter.so"),
            "{}",
            gone.message
        );
    }

    #[test]
    fn what_is_missing_is_127_and_what_may_not_run_is_126() {
        let dir = tree();
        let path = format!("{}/b", dir.path().display());
        assert_eq!(
            find("nothing", Some(&path), Path::new("/"))
                .unwrap_err()
                .code,
            127
        );
        assert_eq!(
            find("plain", Some(&path), Path::new("/")).unwrap_err().code,
            126
        );
        assert_eq!(find("./nothing", None, dir.path()).unwrap_err().code, 127);
        assert_eq!(find("./b", None, dir.path()).unwrap_err().code, 126);
        assert_eq!(find("b/tool/x", None, dir.path()).unwrap_err().code, 127);
    }
}
