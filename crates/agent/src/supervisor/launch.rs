//! The launcher: starts a job's program, and later its exec sessions. All of them with the same environment, mounts,
//! group and user.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::StdioMode;
use divvy_ledger::kept::KeptFiles;
use rustix::io::Errno;
use rustix::process::{WaitOptions, waitpid};

use super::injection;
use super::job_environment;
use super::resolve_program::{self, LaunchError};
use crate::exec::terminal;
use crate::host::cgroup::{Cgroup, CgroupEntry, CgroupStatus};
use crate::host::run_as::Identity;
use crate::host::task_limits::{TaskBound, UserLimit};
use crate::host::{device_nodes, process};
use crate::job_dir::LaunchSpec;
use crate::job_dir::OutputFiles;
use crate::job_dir::injection::{InjectedLimiter, InjectionMode};

/// The variable by which the limiter finds the files of a slice without names.
const SUPERVISOR: &str = "DIVVY_SUPERVISOR";

/// The kernel's name of this process's own program, at any path and for every user.
const THIS: &str = "/proc/self/exe";

/// What a job's programs are started with.
#[derive(Debug)]
pub struct Launcher<'a> {
    spec: &'a LaunchSpec,
    env: BTreeMap<String, String>,
    /// How the job's limiter came in.
    limiter: Option<InjectedLimiter>,
    /// The files of a slice with names that a logout may take.
    _kept: Option<KeptFiles>,
    /// The way into the job's group and back.
    cgroup_entry: Option<CgroupEntry>,
    /// Where its group does not count its processes.
    user_limit: Option<UserLimit>,
}

/// What a guest is started on.
#[derive(Debug)]
pub enum ExecStdio {
    /// A terminal, and what `TERM` says of it.
    Terminal(OwnedFd, String),
    Pipes([OwnedFd; 3]),
}

impl ExecStdio {
    /// What a call brought; `None` where it is not what belongs together.
    pub fn from_request(terminal: Option<String>, descriptors: Vec<OwnedFd>) -> Option<Self> {
        match terminal {
            Some(kind) => {
                let [terminal] = <[OwnedFd; 1]>::try_from(descriptors).ok()?;
                Some(Self::Terminal(terminal, kind))
            }
            None => Some(Self::Pipes(descriptors.try_into().ok()?)),
        }
    }
}

/// Keeps the files of the job's slice open. Another user's job could not read this process's descriptors, and the names of
/// its slice are root's, which no logout takes.
fn keep_slice(spec: &LaunchSpec, env: &mut BTreeMap<String, String>) -> Option<KeptFiles> {
    env.remove(SUPERVISOR);
    let slice = env.get("DIVVY_SLICE").filter(|_| spec.user.is_none())?;
    // Without them the slice ends with its names.
    let kept = KeptFiles::of(Path::new(slice)).ok()?;
    env.insert(SUPERVISOR.to_owned(), std::process::id().to_string());
    Some(kept)
}

impl<'a> Launcher<'a> {
    /// Makes the job's group and lays its limiter.
    ///
    /// # Errors
    /// When the job cannot have the limiter that it must have.
    pub fn prepare(spec: &'a LaunchSpec) -> Result<(Self, CgroupStatus), LaunchError> {
        let mut held = spec.held.clone();
        let doors = held.group.clone().and_then(|path| {
            let doors = Cgroup::at(&path).staying(spec.needs_group).create();
            doors
                .map_err(|error| held = without_group(&path, &error))
                .ok()
        });
        if spec.needs_group && doors.is_none() {
            return Err(no_wall(&held));
        }
        if spec.refuse_gpus
            && let Some(doors) = &doors
            && let Err(error) = device_nodes::refuse_all_in(doors.folder())
        {
            // The daemon ends what uses a GPU all the same.
            tracing::debug!(%error, "cannot keep the group from the GPUs' device nodes");
        }
        let no_group = || {
            held.because
                .clone()
                .unwrap_or_else(|| "the job has no control group".into())
        };
        let counted = doors
            .as_ref()
            .map_or_else(|| Err(no_group()), CgroupEntry::task_bound);
        let (tasks, user_limit) = counted.map(|bound| (bound, None)).unwrap_or_else(|why| {
            let user = spec.user.as_ref().map(|user| user.uid);
            TaskBound::without_pids(user, why)
        });
        held.tasks = Some(tasks);
        let mut env = spec.env.clone();
        let kept = keep_slice(spec, &mut env);
        let mut host = Self {
            spec,
            env,
            limiter: None,
            _kept: kept,
            cgroup_entry: doors,
            user_limit,
        };
        if let Err(error) = host.inject_limiter() {
            if let Some(doors) = host.cgroup_entry {
                doors.give_up();
            }
            return Err(error);
        }
        Ok((host, held))
    }

    /// Gets the job its limiter, if it is to have one.
    fn inject_limiter(&mut self) -> Result<(), LaunchError> {
        let Some(wish) = &self.spec.limiter else {
            return if job_environment::counts_instances(&self.env) {
                resolve_program::check_preload(&self.env)
            } else {
                Ok(())
            };
        };
        let limiter = injection::inject(wish, &mut self.env, self.spec.user.as_ref())?;
        if limiter.form == InjectionMode::Preload {
            resolve_program::check_preload(&self.env)?;
        }
        self.limiter = Some(limiter);
        Ok(())
    }

    /// How the job's limiter came in, if it has one.
    pub fn limiter(&self) -> Option<&InjectedLimiter> {
        self.limiter.as_ref()
    }

    /// Starts the job's own program. `held` is what holds its processes together, as it came to be.
    ///
    /// # Errors
    /// As a shell would say it.
    pub fn start(&mut self, place: StdioMode, held: &mut CgroupStatus) -> Result<u32, LaunchError> {
        let spec = self.spec;
        let (name, args) = spec.command.split_first().ok_or_else(LaunchError::empty)?;
        let env = &self.env;
        // Before there is a copy of this process, which would not have the timers.
        let inherited = divvy_fork::inherited();
        let dress = |command: &mut Command| -> io::Result<()> {
            inherited.pass_on(command);
            match place {
                // Descriptor 0 is the run lock, which the program must not hold.
                StdioMode::Background => {
                    command.stdin(Stdio::null()).process_group(0);
                }
                StdioMode::Attached => {
                    command.process_group(0);
                }
                StdioMode::Foreground => {}
            }
            Ok(())
        };
        let launch = |go| {
            let file = find(spec, env, name)?;
            let files = spec.output.as_ref().map(OutputFiles::open).transpose()?;
            let dress = |command: &mut Command| {
                dress(command)?;
                files.iter().try_for_each(|files| files.redirect(command))
            };
            launch(spec, env, &file, name, args, &dress, go)
        };
        let limit = self.user_limit;
        if let Some(doors) = &self.cgroup_entry
            && let Some(started) = fork_into_cgroup(Some(doors.folder()), spec, limit, launch)
        {
            return started;
        }
        let launch = || {
            fork_into_cgroup(None, spec, limit, launch)
                .unwrap_or_else(|| as_user(spec, limit, || launch(SPAWN)))
        };
        match (&mut self.cgroup_entry, &spec.held.group) {
            (Some(doors), Some(path)) => {
                let mut started = None;
                if let Err(error) = doors.spawn_inside(|| started = Some(launch())) {
                    // Also when it came in and not out: then it is in there itself, and must not be killed with it.
                    let tasks = held.tasks.take();
                    *held = without_group(path, &error);
                    held.tasks = tasks.filter(|_| limit.is_some());
                    self.cgroup_entry = None;
                    if spec.needs_group && started.is_none() {
                        return Err(no_wall(held));
                    }
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
    pub fn start_exec(&mut self, command: &[String], ends: &ExecStdio) -> Result<u32, LaunchError> {
        // The job may have run for days.
        let user = self.spec.user.clone().map(Identity::with_present_groups);
        let spec = &LaunchSpec {
            user,
            ..self.spec.clone()
        };
        let (name, args) = command.split_first().ok_or_else(LaunchError::empty)?;
        let mut env = self.env.clone();
        if let ExecStdio::Terminal(_, kind) = ends {
            env.insert("TERM".to_owned(), kind.clone());
        }
        let inherited = divvy_fork::inherited();
        let launch = |go| match ends {
            ExecStdio::Pipes([input, output, errors]) => {
                let file = find(spec, &env, name)?;
                let dress = |command: &mut Command| {
                    inherited.pass_on(command);
                    command
                        .stdin(Stdio::from(input.try_clone()?))
                        .stdout(Stdio::from(output.try_clone()?))
                        .stderr(Stdio::from(errors.try_clone()?))
                        .process_group(0);
                    Ok(())
                };
                launch(spec, &env, &file, name, args, &dress, go)
            }
            ExecStdio::Terminal(terminal, _) => {
                let file = find(spec, &env, name)?;
                let file = file.to_str().ok_or_else(|| LaunchError {
                    code: 126,
                    message: format!("the path of {name} is not UTF-8"),
                })?;
                let words = [terminal::VERB, file, name].map(str::to_owned);
                let words: Vec<String> = words.into_iter().chain(args.to_vec()).collect();
                let dress = |command: &mut Command| {
                    inherited.pass_on(command);
                    command
                        .stdin(Stdio::from(terminal.try_clone()?))
                        .stdout(Stdio::from(terminal.try_clone()?))
                        .stderr(Stdio::from(terminal.try_clone()?));
                    Ok(())
                };
                launch(spec, &env, Path::new(THIS), "divvy", &words, &dress, go)
            }
        };
        let limit = self.user_limit;
        if let Some(doors) = &self.cgroup_entry
            && let Some(started) = fork_into_cgroup(Some(doors.folder()), spec, limit, launch)
        {
            return started;
        }
        let launch = || {
            fork_into_cgroup(None, spec, limit, launch)
                .unwrap_or_else(|| as_user(spec, limit, || launch(SPAWN)))
        };
        match &mut self.cgroup_entry {
            Some(doors) => doors.spawn_inside(launch).unwrap_or_else(|error| {
                Err(LaunchError {
                    code: 125,
                    message: format!("cannot enter the job's control group: {error}"),
                })
            }),
            None => launch(),
        }
    }
}

fn find(
    spec: &LaunchSpec,
    env: &BTreeMap<String, String>,
    name: &str,
) -> Result<PathBuf, LaunchError> {
    resolve_program::find(name, env.get("PATH").map(String::as_str), &spec.cwd)
}

/// Found and started with the job's user's rights, and none but theirs, by a process that cannot be copied.
fn as_user(
    spec: &LaunchSpec,
    limit: Option<UserLimit>,
    work: impl FnOnce() -> Result<u32, LaunchError> + Send,
) -> Result<u32, LaunchError> {
    let started = match &spec.user {
        Some(user) => user
            .run(|| confine(spec).and_then(|()| work()))
            .unwrap_or_else(|error| Err(cannot_become(user, &error))),
        None => work(),
    };
    if let (Ok(pid), Some(limit)) = (&started, limit)
        && let Some(pid) = process::to_rustix_pid(*pid)
    {
        // One that has ended needs none.
        let _ = limit.apply_to(pid);
    }
    started
}

/// Takes from this thread, which is the job's user by now, what the daemon refuses to jobs.
fn confine(spec: &LaunchSpec) -> Result<(), LaunchError> {
    if !spec.refuse_user_namespaces {
        return Ok(());
    }
    divvy_fork::refuse_user_namespaces().map_err(|error| LaunchError {
        code: 125,
        message: format!("cannot forbid user namespaces in the job: {error}"),
    })
}

fn apply_user_limit(limit: UserLimit) -> Result<(), LaunchError> {
    limit.apply().map_err(|error| LaunchError {
        code: 125,
        message: format!("cannot limit the number of the job's processes: {error}"),
    })
}

fn cannot_become(user: &Identity, error: &io::Error) -> LaunchError {
    LaunchError {
        code: 125,
        message: format!("cannot become uid {}: {error}", user.uid),
    }
}

/// How a program is started: the child's pid, or no return.
type Go = fn(&mut Command) -> io::Result<u32>;

const SPAWN: Go = |command| Ok(command.spawn()?.id());

/// This very process becomes it.
const BECOME: Go = |command| Err(command.exec());

/// Started by a copy of this process that is born in the job's group, if it has one, becomes the user and then the program. `None` where
/// there can be no such copy, and nothing was done.
fn fork_into_cgroup(
    group: Option<BorrowedFd<'_>>,
    spec: &LaunchSpec,
    limit: Option<UserLimit>,
    launch: impl FnOnce(Go) -> Result<u32, LaunchError>,
) -> Option<Result<u32, LaunchError>> {
    let user = match &spec.user {
        Some(user) => match user.groups() {
            Ok(groups) => Some((user, groups)),
            Err(error) => return Some(Err(cannot_become(user, &error))),
        },
        None => None,
    };
    let (mut said, mut say) = io::pipe().ok()?;
    let become_it = || {
        if let Some(limit) = limit {
            limit.lift();
        }
        let assumed = match &user {
            Some((user, groups)) => user
                .assume(groups)
                .map_err(|error| cannot_become(user, &error))
                .and_then(|()| confine(spec)),
            None => Ok(()),
        };
        // Last: a user at their process limit can still exec a program, but not fork.
        let limited = assumed.and_then(|()| limit.map_or(Ok(()), apply_user_limit));
        if let Err(error) = limited.and_then(|()| launch(BECOME)) {
            let _ = write!(say, "{} {}", error.code, error.message);
        }
        1
    };
    let born = match group {
        Some(group) => divvy_fork::fork_into(group, become_it),
        None => divvy_fork::fork(become_it),
    };
    let pid = born.ok()?;
    drop(say);
    // Closed by a successful exec, or by the exit of a child that could not exec.
    let mut text = String::new();
    let _ = said.read_to_string(&mut text);
    let Some((code, message)) = text.split_once(' ') else {
        return Some(Ok(pid));
    };
    while let Some(pid) = process::to_rustix_pid(pid)
        && matches!(waitpid(Some(pid), WaitOptions::empty()), Err(Errno::INTR))
    {}
    Some(Err(LaunchError {
        code: code.parse().unwrap_or(125),
        message: message.to_owned(),
    }))
}

/// Starts a file that was found; `dress` says on which descriptors.
fn launch(
    spec: &LaunchSpec,
    env: &BTreeMap<String, String>,
    file: &Path,
    name: &str,
    args: &[String],
    dress: &dyn Fn(&mut Command) -> io::Result<()>,
    go: Go,
) -> Result<u32, LaunchError> {
    let start = |path: &Path, before: &[&Path], arg0: Option<&str>| {
        let mut command = Command::new(path);
        if let Some(name) = arg0 {
            command.arg0(name);
        }
        command.args(before).args(args);
        command.current_dir(&spec.cwd).env_clear().envs(env);
        dress(&mut command)?;
        go(&mut command)
    };
    let started = match start(file, &[], Some(name)) {
        // A script without `#!` line: run it as execvp(3) and shells do.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOEXEC) => {
            start(Path::new("/bin/sh"), &[file], None)
        }
        other => other,
    };
    // The child is waited for together with everything that the job leaves behind.
    started.map_err(|error| LaunchError::spawn(name, &spec.cwd, &error))
}

/// A program outside of the group has no limit of the driver's.
fn no_wall(held: &CgroupStatus) -> LaunchError {
    let why = held.because.as_deref().unwrap_or("it has none");
    LaunchError {
        code: 125,
        message: format!("cannot enter the control group that the driver limits: {why}"),
    }
}

fn without_group(path: &Path, error: &io::Error) -> CgroupStatus {
    CgroupStatus {
        group: None,
        because: Some(format!("{}: {error}", path.display())),
        tasks: None,
    }
}
