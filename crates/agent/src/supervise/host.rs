//! Starting programs for a job: its own, and later its guests. All of them with the same environment, mounts, group and user.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::cgroup::{Doors, Group, Held};
use super::form::{self, Form};
use super::lookup::{self, LaunchError};
use super::{Place, report};
use crate::guest::terminal;
use crate::records::{JobDir, Spec};

/// What the kernel calls the program of this very process, wherever its file is and whoever may reach it there.
const THIS: &str = "/proc/self/exe";

/// What a job's programs are started with.
#[derive(Debug)]
pub struct Host<'a> {
    spec: &'a Spec,
    env: BTreeMap<String, String>,
    /// The way into the job's group and back.
    doors: Option<Doors>,
}

/// What a guest is started on.
#[derive(Debug)]
pub enum Ends {
    /// A terminal, and what `TERM` says of it.
    Terminal(OwnedFd, String),
    Pipes([OwnedFd; 3]),
}

impl Ends {
    /// What a call brought; `None` where it is not what belongs together.
    pub fn of(terminal: Option<String>, descriptors: Vec<OwnedFd>) -> Option<Self> {
        match terminal {
            Some(kind) => {
                let [terminal] = <[OwnedFd; 1]>::try_from(descriptors).ok()?;
                Some(Self::Terminal(terminal, kind))
            }
            None => Some(Self::Pipes(descriptors.try_into().ok()?)),
        }
    }
}

impl<'a> Host<'a> {
    /// Makes the job's group and lays its limiter.
    ///
    /// # Errors
    /// When the job cannot have the limiter that it must have.
    pub fn prepare(dir: &JobDir, spec: &'a Spec) -> Result<(Self, Held), LaunchError> {
        let mut held = spec.held.clone();
        let doors = held.group.clone().and_then(|path| {
            let doors = Group::at(&path).make();
            doors
                .map_err(|error| held = without_group(&path, &error))
                .ok()
        });
        let mut host = Self {
            spec,
            env: spec.env.clone(),
            doors,
        };
        if let Err(error) = host.limit(dir) {
            if let Some(doors) = host.doors {
                doors.give_up();
            }
            return Err(error);
        }
        Ok((host, held))
    }

    /// Gets the job its limiter, if it is to have one.
    fn limit(&mut self, dir: &JobDir) -> Result<(), LaunchError> {
        let Some(wish) = &self.spec.limiter else {
            return Ok(());
        };
        let limiter = form::lay(wish, &mut self.env, self.spec.user.as_ref())?;
        // Without the record nobody can say which form it is, and it is that form all the same.
        report(dir.write_limiter(&limiter));
        match limiter.form {
            Form::Preload => lookup::limiter(&self.env),
            Form::Wrapper => Ok(()),
        }
    }

    /// Starts the job's own program. `held` is what holds its processes together, as it came to be.
    ///
    /// # Errors
    /// As a shell would say it.
    pub fn start(&mut self, place: Place, held: &mut Held) -> Result<u32, LaunchError> {
        let spec = self.spec;
        let (name, args) = spec.command.split_first().ok_or_else(LaunchError::empty)?;
        let env = &self.env;
        let dress = |command: &mut Command| {
            match place {
                // Descriptor 0 is the run lock, which the program must not hold.
                Place::Background => {
                    command.stdin(Stdio::null()).process_group(0);
                }
                Place::Attached => {
                    command.process_group(0);
                }
                Place::Foreground => {}
            }
            Ok(())
        };
        let launch = || {
            let file = find(spec, env, name)?;
            launch(spec, env, &file, name, args, &dress)
        };
        let launch = || as_user(spec, launch);
        match (&mut self.doors, &spec.held.group) {
            (Some(doors), Some(path)) => {
                let mut started = None;
                if let Err(error) = doors.start(|| started = Some(launch())) {
                    // Also when it came in and not out: then it is in there itself, and must not be killed with it.
                    *held = without_group(path, &error);
                    self.doors = None;
                }
                started.unwrap_or_else(launch)
            }
            _ => launch(),
        }
    }

    /// Starts a guest. It leads a group of its own, on a terminal a session.
    ///
    /// # Errors
    /// As a shell would say it.
    pub fn admit(&mut self, command: &[String], ends: &Ends) -> Result<u32, LaunchError> {
        let spec = self.spec;
        let (name, args) = command.split_first().ok_or_else(LaunchError::empty)?;
        let mut env = self.env.clone();
        let launch = move || match ends {
            Ends::Pipes([input, output, errors]) => {
                let file = find(spec, &env, name)?;
                launch(spec, &env, &file, name, args, &|command| {
                    command
                        .stdin(Stdio::from(input.try_clone()?))
                        .stdout(Stdio::from(output.try_clone()?))
                        .stderr(Stdio::from(errors.try_clone()?))
                        .process_group(0);
                    Ok(())
                })
            }
            Ends::Terminal(terminal, kind) => {
                env.insert("TERM".to_owned(), kind.clone());
                let file = find(spec, &env, name)?;
                let file = file.to_str().ok_or_else(|| LaunchError {
                    code: 126,
                    message: format!("the path of {name} is not UTF-8"),
                })?;
                let words = [terminal::VERB, file, name].map(str::to_owned);
                let words: Vec<String> = words.into_iter().chain(args.to_vec()).collect();
                launch(spec, &env, Path::new(THIS), "divvy", &words, &|command| {
                    command
                        .stdin(Stdio::from(terminal.try_clone()?))
                        .stdout(Stdio::from(terminal.try_clone()?))
                        .stderr(Stdio::from(terminal.try_clone()?));
                    Ok(())
                })
            }
        };
        let launch = || as_user(spec, launch);
        match &mut self.doors {
            Some(doors) => doors.start(launch).unwrap_or_else(|error| {
                Err(LaunchError {
                    code: 125,
                    message: format!("the job's control group cannot be entered: {error}"),
                })
            }),
            None => launch(),
        }
    }
}

fn find(spec: &Spec, env: &BTreeMap<String, String>, name: &str) -> Result<PathBuf, LaunchError> {
    lookup::find(name, env.get("PATH").map(String::as_str), &spec.cwd)
}

/// Found and started with the job's user's rights, and none but theirs.
fn as_user<T: Send>(
    spec: &Spec,
    work: impl FnOnce() -> Result<T, LaunchError> + Send,
) -> Result<T, LaunchError> {
    match &spec.user {
        Some(user) => user.run(work).unwrap_or_else(|error| {
            Err(LaunchError {
                code: 125,
                message: format!("cannot become uid {}: {error}", user.uid),
            })
        }),
        None => work(),
    }
}

/// Starts a file that was found; `dress` says on which descriptors.
fn launch(
    spec: &Spec,
    env: &BTreeMap<String, String>,
    file: &Path,
    name: &str,
    args: &[String],
    dress: &dyn Fn(&mut Command) -> io::Result<()>,
) -> Result<u32, LaunchError> {
    let spawn = |path: &Path, before: &[&Path], arg0: Option<&str>| {
        let mut command = Command::new(path);
        if let Some(name) = arg0 {
            command.arg0(name);
        }
        command.args(before).args(args);
        command.current_dir(&spec.cwd).env_clear().envs(env);
        dress(&mut command)?;
        command.spawn()
    };
    let spawned = match spawn(file, &[], Some(name)) {
        // A script without `#!` line: run it as execvp(3) and shells do.
        Err(error)
            if rustix::io::Errno::from_io_error(&error) == Some(rustix::io::Errno::NOEXEC) =>
        {
            spawn(Path::new("/bin/sh"), &[file], None)
        }
        other => other,
    };
    // The child is waited for together with everything that the job leaves behind.
    spawned
        .map(|child| child.id())
        .map_err(|error| LaunchError::spawn(name, &spec.cwd, &error))
}

fn without_group(path: &Path, error: &io::Error) -> Held {
    Held {
        group: None,
        because: Some(format!("{}: {error}", path.display())),
    }
}
