//! `config`: the daemon's configuration file, written, checked, shown and reloaded.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use divvy_api::daemon::{ConfigError, Configured, DaemonOptions, ListenOptions, Source};
use divvy_api::home::Home;
use divvy_api::v1::{ConfigOrigin, ConfigReload, ConfigValue, Error, ErrorCode};

use crate::args::{self, ConfigVerb, Format};
use crate::call::{Outcome, block_on, client};
use crate::error_output;
use crate::output::{self, print, say, view};
use crate::{Backend, render};

use super::store;

pub fn config(args: ConfigVerb, backend: Backend) -> Outcome {
    match args {
        ConfigVerb::Init(args) => init(args),
        ConfigVerb::Check(args) => check(args, backend),
        ConfigVerb::Show(args) => show(args),
        ConfigVerb::Reload(args) => block_on(reload(args)),
    }
}

/// A file that another user writes must not decide what the daemon does.
pub(super) const CONFIG_MODE: u32 = 0o644;

fn init(args: args::ConfigInit) -> Outcome {
    let path = place(&source(is_systems(false, args.file.as_ref()), args.file))?;
    if let Some(copy) = store::replace(&path, &render::commented_config(), CONFIG_MODE, args.force)?
    {
        say(&format!("kept the former file as {}", copy.display()));
    }
    say(&format!("wrote {}", path.display()));
    Ok(ExitCode::SUCCESS)
}

/// The path of the file that is written.
pub(super) fn place(source: &Source) -> error_output::Result<PathBuf> {
    source.path().map(Path::to_owned).ok_or_else(|| {
        let why = "there is no home folder for the configuration file";
        Error::new(ErrorCode::Internal, why).hint("name the file")
    })
}

/// The file that a daemon would read.
pub(super) fn source(system: bool, file: Option<PathBuf>) -> Source {
    Source::new(start(system), Vec::new(), file)
}

/// The start of a daemon of this user, or of the system's.
pub(super) fn start(system: bool) -> DaemonOptions {
    DaemonOptions {
        listen: ListenOptions {
            system,
            ..ListenOptions::default()
        },
        ..DaemonOptions::default()
    }
}

/// The options of a daemon that this user would start without flags.
///
/// # Errors
/// As [`Source::read`].
pub fn of_next_daemon() -> Result<Configured, ConfigError> {
    let is_systems = Home::to_call().is_ok_and(|home| home.is_systems());
    source(is_systems, None).read()
}

/// Whether the file is that of the system's daemon: by flag, by its path, or because root names no other instance.
fn is_systems(asked: bool, file: Option<&PathBuf>) -> bool {
    let is_roots = || {
        let own = ["DIVVY_HOME", "DIVVY_CONFIG"].map(std::env::var_os);
        rustix::process::geteuid().is_root() && own.iter().all(Option::is_none)
    };
    let is_named = |file: &PathBuf| file.as_path() == divvy_api::daemon::source::SYSTEM_FILE;
    asked || file.map_or_else(is_roots, is_named)
}

fn check(args: args::ConfigCheck, backend: Backend) -> Outcome {
    let source = source(is_systems(args.system, args.file.as_ref()), args.file);
    let json = args.output.is_some_and(Format::is_json);
    match source.read() {
        Err(error) => Ok(report(&error, json)),
        Ok(configured) => {
            let Some(file) = configured.file() else {
                return Err(missing(&source).into());
            };
            warn(&(backend.absent_accounts)(&configured));
            match args.output {
                Some(format) => list(&set(configured.report(&[]), false), format)?,
                None => say(&format!("{} is correct", file.display())),
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Prints each warning about users and groups, and once what to do.
pub(super) fn warn(warnings: &[String]) {
    for warning in warnings {
        say(&format!("warning: {warning}"));
    }
    if !warnings.is_empty() {
        say(ABSENT_HINT);
    }
}

/// The way on from a user or a group that the user database does not have.
pub(super) const ABSENT_HINT: &str = "correct the names, or create the accounts; `getent passwd NAME` and `getent group NAME` ask the user database, also \
     whether a directory is away";

/// Prints each problem; gives the exit code.
fn report(error: &ConfigError, json: bool) -> ExitCode {
    if json {
        return error_output::report(&Error::from(error), true);
    }
    for problem in &error.problems {
        error_output::report(&error.error_of(problem), false);
    }
    ExitCode::from(error.code.exit_code())
}

fn missing(source: &Source) -> Error {
    let why = match source.path() {
        Some(path) => format!("there is no file {}", path.display()),
        None => "there is no configuration file, and no home folder for one".to_owned(),
    };
    Error::new(ErrorCode::NotFound, why)
        .hint("name a file: divvy config check FILE; `divvy config init` writes one")
}

fn show(args: args::ConfigShow) -> Outcome {
    let named = args.system || args.config.is_some();
    let running = if named { None } else { block_on(running())? };
    let values = match running {
        Some(values) => values,
        None => {
            let source = source(is_systems(args.system, args.config.as_ref()), args.config);
            match source.read() {
                Ok(configured) => of_file(&source, &configured, args.output),
                Err(error) => return Ok(report(&error, args.output.is_json())),
            }
        }
    };
    list(&set(values, args.defaults), args.output)?;
    Ok(ExitCode::SUCCESS)
}

/// The values of the running daemon; `None` if none runs.
async fn running() -> Result<Option<Vec<ConfigValue>>, output::Stop> {
    match client()?.config().await {
        Ok(values) => Ok(Some(values)),
        Err(error) if error.code == ErrorCode::NoDaemon => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn of_file(source: &Source, configured: &Configured, format: Format) -> Vec<ConfigValue> {
    if !format.is_json() {
        let path = source.path().map(|path| path.display().to_string());
        say(&match (configured.file(), path) {
            (Some(file), _) => format!("no daemon is asked; the values of {}", file.display()),
            (None, Some(path)) => format!("no daemon runs, and there is no file {path}"),
            (None, None) => "no daemon runs, and there is no file".to_owned(),
        });
    }
    configured.report(&[])
}

/// Without the values that are defaults, unless they are asked for.
fn set(values: Vec<ConfigValue>, defaults: bool) -> Vec<ConfigValue> {
    let is_shown = |value: &ConfigValue| {
        defaults || value.origin != ConfigOrigin::Default || value.needs_restart
    };
    values.into_iter().filter(is_shown).collect()
}

fn list(values: &[ConfigValue], format: Format) -> Result<(), output::Stop> {
    print(render::list(values, format, view(), render::config)?)?;
    if values.is_empty() && !format.is_json() {
        say("every key has its default: divvy config show --defaults");
    }
    Ok(())
}

async fn reload(args: args::ConfigReload) -> Outcome {
    let done = match client()?.reload_config().await {
        Ok(done) => done,
        Err(error) => return Ok(refused(&error, args.output.is_some_and(Format::is_json))),
    };
    match args.output {
        Some(format) => {
            let draw = |all: &[_], _| all.iter().map(render::config_reload).collect();
            print(render::list(&[done], format, view(), draw)?)?;
        }
        None => {
            warn(&done.warnings);
            say(&reloaded(&done));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints every problem of the file that the daemon found.
fn refused(error: &Error, json: bool) -> ExitCode {
    match ConfigError::of(error).filter(|all| all.problems.len() > 1 && !json) {
        Some(all) => report(&all, false),
        None => error_output::report(error, json),
    }
}

fn reloaded(done: &ConfigReload) -> String {
    render::config_reload(done).trim_end().to_owned()
}
