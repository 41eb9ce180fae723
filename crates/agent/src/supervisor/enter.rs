//! `divvy slice enter`: this process enters the slice of a claim and becomes a program there.
//!
//! It reads the slice's entry alone, and asks no daemon. As root it lays the wrapper in a mount namespace of its own;
//! another user gets the preload.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use divvy_api::home::Home;
use divvy_api::standalone::{SliceAccess, SliceMount};
use divvy_api::v1::claim::is_uid;
use divvy_api::v1::{Error, ErrorCode};
use divvy_core::QueueName;
use rustix::io::Errno;

use super::bind_mounts::mount_marker;
use super::injection::{self, listed_mounts, without};
use super::job_environment::{JobEnvironment, NUMBERING, for_job, for_program};
use super::resolve_program::{self, LaunchError};
use super::write_stderr;
use crate::host::error::error_chain;
use crate::host::run_as::Identity;
use crate::job_dir::injection::{InjectedLimiter, InjectionMode, InjectionPolicy};
use crate::job_dir::slice_entry::{SliceEntry, has_ledger};

/// Enters the slice and becomes the program; returns the exit code of a failed start, as a shell has it.
///
/// # Errors
/// [`ErrorCode::NotFound`] without such a slice, [`ErrorCode::LaunchFailed`] when the limiter cannot be put in place;
/// then nothing was started.
pub fn enter_slice(home: &Home, name: &str, command: &[OsString]) -> Result<u8, Error> {
    let entry = find(home, name)?;
    let before = environment();
    let mut env = around(&entry, |around| for_program(before.clone(), around));
    let prepared = prepare(&entry, &mut env);
    let started = prepared.and_then(|()| become_program(command, &before, &env));
    match started {
        Err(LaunchError { code: 125, message }) => {
            Err(Error::new(ErrorCode::LaunchFailed, message).hint(format!(
                "`divvy slice env {name} -o json` shows the mounts and the variables of the slice"
            )))
        }
        Err(LaunchError { code, message }) => {
            write_stderr(&message);
            Ok(u8::try_from(code).unwrap_or(125))
        }
        Ok(never) => match never {},
    }
}

/// What this process, or a program that it tells, does to enter the slice; without `mounts`, by variables alone.
///
/// # Errors
/// As [`enter_slice`].
pub fn slice_access(home: &Home, name: &str, mounts: bool) -> Result<SliceAccess, Error> {
    let entry = find(home, name)?;
    let variables = if mounts { for_job } else { for_program };
    let mut environment = around(&entry, |around| variables(BTreeMap::new(), around));
    if mounts && entry.slice.is_some() {
        // An engine that makes the mounts shows GPUs in its own way: Ray by the machine's numbers, and Slurm hides the
        // others from the driver.
        environment.insert(NUMBERING.to_owned(), "driver".to_owned());
    }
    let (form, reason, mounts) = match &entry.limiter {
        None if mounts => ("hardware", None, marker_mount(&entry)),
        None => ("hardware", None, Vec::new()),
        Some(InjectionPolicy::Wrapper(_)) if !mounts => {
            let why =
                "the daemon requires the wrapper (DIVVY_FORM), and variables alone do not bring it";
            return Err(Error::new(ErrorCode::LaunchFailed, why)
                .hint(format!("enter it as root: divvy slice enter {name} -- CMD")));
        }
        Some(_) if !mounts => {
            let because = "variables alone do not bring the wrapper".to_owned();
            ("preload", Some(because), Vec::new())
        }
        Some(wish) => {
            let library_path = environment.get("LD_LIBRARY_PATH").map(String::as_str);
            let (limiter, mounts) = listed_mounts(wish, library_path, other_user(&entry));
            let form = match limiter.form {
                InjectionMode::Wrapper => {
                    without(&mut environment, "LD_PRELOAD", &entry.preload);
                    "wrapper"
                }
                InjectionMode::Preload => "preload",
            };
            (form, limiter.because, mounts)
        }
    };
    Ok(SliceAccess {
        name: entry.name,
        job: entry.job,
        form,
        reason,
        environment,
        mounts,
        refuse_user_namespaces: entry.refuse_user_namespaces,
    })
}

fn find(home: &Home, name: &str) -> Result<SliceEntry, Error> {
    let missing = || {
        let shown = crate::model::validate::truncate_name(name);
        Error::new(
            ErrorCode::NotFound,
            format!("there is no slice {shown:?}, or it has ended"),
        )
    };
    if !is_uid(name) {
        return Err(missing());
    }
    let found = SliceEntry::read(home, name).map_err(|error| {
        let why = format!(
            "cannot read the entry of slice {name}: {}",
            error_chain(&error)
        );
        match error.kind() {
            io::ErrorKind::PermissionDenied => Error::new(ErrorCode::NotAllowed, why),
            _ => Error::new(ErrorCode::Internal, why),
        }
    })?;
    let entry = found.ok_or_else(missing)?;
    // Once the daemon has removed the ledger, the limiter would refuse each allocation.
    match entry.slice.as_deref().is_none_or(has_ledger) {
        true => Ok(entry),
        false => Err(missing()),
    }
}

/// The variables of this process that are text; the program inherits the others as they are.
fn environment() -> BTreeMap<String, String> {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).collect()
}

fn around<T>(entry: &SliceEntry, variables: impl FnOnce(&JobEnvironment<'_>) -> T) -> T {
    let queue = QueueName::default_queue();
    variables(&JobEnvironment {
        job: &entry.job,
        queue: &queue,
        visible: &entry.visible,
        slice: entry.slice.as_deref(),
        preload: &entry.preload,
        simulated: entry.simulated.as_ref(),
    })
}

/// The owner, where root enters another user's slice: nothing that the owner can write is mounted over.
fn other_user(entry: &SliceEntry) -> Option<&Identity> {
    (entry.owner.uid != rustix::process::geteuid().as_raw()).then_some(&entry.owner)
}

fn prepare(entry: &SliceEntry, env: &mut BTreeMap<String, String>) -> Result<(), LaunchError> {
    match &entry.limiter {
        None => {
            // Without the mount the daemon sees the slice's processes as unmanaged ones.
            if let Err(error) = mount_marker(&entry.marker)
                && rustix::process::geteuid().is_root()
            {
                write_stderr(&error_chain(&error));
            }
        }
        Some(wish) => {
            let limiter = injection::inject(wish, env, other_user(entry))?;
            if limiter.form == InjectionMode::Preload {
                resolve_program::check_preload(env)?;
                say_weaker(&limiter);
            }
        }
    }
    if entry.refuse_user_namespaces {
        divvy_fork::refuse_user_namespaces().map_err(|error| LaunchError {
            code: 125,
            message: format!("cannot forbid user namespaces in the slice: {error}"),
        })?;
    }
    Ok(())
}

/// Only a failed attempt is worth a line: for an ordinary user the preload is the form to expect.
fn say_weaker(limiter: &InjectedLimiter) {
    if let Some(because) = limiter.because.as_ref().filter(|_| limiter.failed) {
        write_stderr(&format!(
            "the slice is held by LD_PRELOAD, the weaker form: {because}"
        ));
    }
}

fn marker_mount(entry: &SliceEntry) -> Vec<SliceMount> {
    let mount = SliceMount {
        source: Some(entry.marker.clone()),
        target: divvy_driver::load::BEHIND.into(),
        read_only: true,
    };
    let is_root = rustix::process::geteuid().is_root();
    is_root.then_some(mount).into_iter().collect()
}

fn become_program(
    command: &[OsString],
    before: &BTreeMap<String, String>,
    env: &BTreeMap<String, String>,
) -> Result<std::convert::Infallible, LaunchError> {
    let (name, words) = command.split_first().ok_or_else(LaunchError::empty)?;
    let cwd = std::env::current_dir().unwrap_or_else(|_| "/".into());
    let shown = name.to_string_lossy();
    let file = resolve_program::find(&shown, env.get("PATH").map(String::as_str), &cwd)?;
    let start = |path: &Path, script: Option<&Path>, arg0: Option<&OsString>| {
        let mut command = Command::new(path);
        if let Some(name) = arg0 {
            command.arg0(name);
        }
        command.args(script).args(words).envs(env);
        for gone in before.keys().filter(|name| !env.contains_key(*name)) {
            command.env_remove(gone);
        }
        divvy_fork::inherited().pass_on(&mut command);
        command.exec()
    };
    let mut error = start(&file, None, Some(name));
    // A script without a `#!` line: as execvp(3) and shells do.
    if Errno::from_io_error(&error) == Some(Errno::NOEXEC) {
        error = start(Path::new("/bin/sh"), Some(&file), None);
    }
    Err(LaunchError::spawn(&shown, &cwd, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_slice_has_is_not_found_whatever_it_looks_like() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::under(folder.path()).unwrap();
        home.create().unwrap();
        for name in [
            "none",
            "",
            "../0/x",
            "a/b",
            "\u{1b}[31m",
            &"x".repeat(1 << 20),
        ] {
            let error = slice_access(&home, name, true).unwrap_err();
            assert_eq!(error.code, ErrorCode::NotFound, "{error}");
            assert!(error.message.len() < 400, "the error repeats the name");
            assert!(!error.message.contains('\u{1b}'), "{error}");
        }
    }

    #[test]
    fn a_slice_without_its_ledger_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::under(folder.path()).unwrap();
        home.create().unwrap();
        let me = Identity {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: None,
            account: None,
        };
        let slice = home.slice("7");
        let entry = SliceEntry {
            version: crate::job_dir::slice_entry::VERSION,
            name: "a".into(),
            job: "7".into(),
            owner: me.clone(),
            visible: vec!["GPU-1".into()],
            slice: Some(slice.clone()),
            preload: "/lib/preload.so".into(),
            simulated: None,
            limiter: Some(InjectionPolicy::Preload {
                because: "a test".into(),
            }),
            marker: folder.path().into(),
            refuse_user_namespaces: true,
        };
        entry.write(&home, &me).unwrap();
        assert_eq!(
            slice_access(&home, "a", true).unwrap_err().code,
            ErrorCode::NotFound
        );
        std::fs::create_dir(&slice).unwrap();
        std::fs::write(slice.join("control"), "").unwrap();
        let access = slice_access(&home, "a", true).unwrap();
        assert_eq!((access.form, access.job.as_str()), ("preload", "7"));
        assert_eq!(access.environment["LD_PRELOAD"], "/lib/preload.so");
        assert_eq!(access.environment["CUDA_VISIBLE_DEVICES"], "GPU-1");
        assert_eq!(access.environment[NUMBERING], "driver");
        assert_eq!(access.environment["DIVVY_SLICE"], slice.to_str().unwrap());
        assert!(access.mounts.is_empty());
        let lines = slice_access(&home, "a", false).unwrap().environment;
        assert_eq!(lines["CUDA_VISIBLE_DEVICES"], "0");
        assert!(!lines.contains_key(NUMBERING));
        assert!(
            access.refuse_user_namespaces,
            "a program that enters by itself installs the filter"
        );
    }
}
