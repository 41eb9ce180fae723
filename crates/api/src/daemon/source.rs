//! Where a daemon's options come from: the configuration file, and the values of the command line that win over it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use divvy_core::{GpuSelection, QueueName, QueueSpec};
use serde::Serialize;

use super::DaemonOptions;
use super::check::{self, Violation};
use super::file::{self, COMMAND, ConfigError, LARGEST, Parsed, Place, Places, Problem};
use super::keys::{self, Applies, KEYS, Key};
use crate::home::absolute_folder;
use crate::v1::{ConfigOrigin, ConfigValue, Error, ErrorCode};

/// The variable that names the file.
pub const VARIABLE: &str = "DIVVY_CONFIG";

/// The file of the system's daemon.
pub const SYSTEM_FILE: &str = "/etc/divvy/config.toml";

/// The origin of an effective value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    /// The line of the file.
    File(PathBuf, Place),
    /// The flag with its dashes: `--gpus`, or `--set limits.max-jobs`.
    Flag(String),
}

/// A key's value from the command line.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    path: Vec<String>,
    value: toml::Value,
    flag: String,
}

impl Setting {
    /// Parses `KEY=VALUE` of `--set`: the value as the file writes it, or a text without quotes.
    ///
    /// # Errors
    /// [`ErrorCode::Usage`] with what is wrong, and a hint.
    pub fn parse(text: &str) -> Result<Vec<Self>, Error> {
        let shown = format!("--set {text}");
        let (key, value) = text.split_once('=').ok_or_else(|| {
            let error = Error::new(ErrorCode::Usage, format!("{shown}: no value"));
            error.hint("say --set KEY=VALUE: --set backfill=true")
        })?;
        let mut settings = Self::of_text(&shown, key.trim(), value)?;
        for setting in &mut settings {
            setting.flag = format!("--set {}", keys::written(&setting.path));
        }
        Ok(settings)
    }

    /// The settings of a flag with this text for a key; several for the text of a table.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn of_text(flag: &str, key: &str, value: &str) -> Result<Vec<Self>, Error> {
        let table = file::parse_value(key, value).map_err(|problem| {
            let error = Error::new(ErrorCode::Usage, format!("{flag}: {}", problem.message));
            error.hint(problem.hint.unwrap_or_else(|| format!("see {flag}")))
        })?;
        let set = |(path, value)| Self {
            path,
            value,
            flag: flag.to_owned(),
        };
        Ok(leaves(table).into_iter().map(set).collect())
    }

    /// The settings of a flag with this value for a key.
    ///
    /// # Errors
    /// As [`Self::parse`], and [`ErrorCode::Internal`] for a value that no file can write.
    pub fn of_flag(flag: &str, key: &str, value: impl Serialize) -> Result<Vec<Self>, Error> {
        let value = toml::Value::try_from(value)
            .map_err(|error| Error::new(ErrorCode::Internal, format!("{flag}: {error}")))?;
        Self::of_text(flag, key, &value.to_string())
    }

    /// The settings as a file writes them.
    ///
    /// # Errors
    /// [`ErrorCode::Internal`] for settings that contradict each other.
    pub fn file(settings: &[Self]) -> Result<String, Error> {
        let mut table = toml::Table::new();
        for setting in settings {
            put(&mut table, &setting.path, Some(&setting.value))
                .map_err(|error| Error::new(ErrorCode::Internal, error.to_string()))?;
        }
        Ok(table.to_string())
    }
}

/// What a start of the daemon brings: the file's path and the values of the command line. A reload reads the file again.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// `None`: no folder for a file is known.
    path: Option<PathBuf>,
    /// A flag or a variable named the file, so it must exist.
    is_named: bool,
    /// The fields that no file contains.
    start: DaemonOptions,
    settings: Vec<Setting>,
}

/// The options in force.
#[derive(Clone, Debug, Default)]
pub struct Configured {
    /// Flags and the file together.
    pub options: DaemonOptions,
    source: Source,
    /// Places of the keys of the file; `None`: there is no file.
    places: Option<Places>,
}

impl Source {
    /// The command line, and the file that is read first.
    ///
    /// `start` has the fields that no file contains, and `named` is the value of `--config`. The last setting of a key
    /// wins.
    pub fn new(start: DaemonOptions, settings: Vec<Setting>, named: Option<PathBuf>) -> Self {
        let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let (path, is_named) = place(start.listen.system, named, &var);
        Self {
            path,
            is_named,
            start,
            settings,
        }
    }

    /// The path of the file, whether or not it exists.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Reads the file and adds the settings.
    ///
    /// # Errors
    /// All problems of the file; without those, all values that contradict each other.
    pub fn read(&self) -> Result<Configured, ConfigError> {
        let parsed = self.parsed()?;
        self.with(parsed)
    }

    /// Adds the settings to a text that was parsed, in place of the file.
    ///
    /// # Errors
    /// All values that contradict each other.
    pub fn merge(&self, parsed: Parsed) -> Result<Configured, ConfigError> {
        self.with(Some(parsed))
    }

    fn with(&self, parsed: Option<Parsed>) -> Result<Configured, ConfigError> {
        let (file, places) = match parsed {
            Some(Parsed { options, places }) => (options, Some(places)),
            None => (DaemonOptions::default(), None),
        };
        let mut configured = Configured {
            options: self.merged(file).map_err(|error| {
                let path = self.path().unwrap_or(Path::new(COMMAND));
                ConfigError::of_whole(path, error.message().to_owned(), None)
            })?,
            source: self.clone(),
            places,
        };
        // Only now is it known which queues and GPUs the front end serves.
        let options = &mut configured.options;
        if let Some(clearml) = &mut options.clearml {
            let names = options.queues.iter().map(|queue| queue.name.to_string());
            clearml.queues = names.collect();
            let named = Some(&options.gpus).filter(|gpus| **gpus != GpuSelection::All);
            // The flag knows its exact words.
            let words = clearml.gpus.take();
            clearml.gpus = words.or_else(|| named.map(GpuSelection::to_string));
        }
        if options.queues.is_empty() && options.gives_all_gpus_to_one_job() {
            options.queues = vec![QueueSpec::open(QueueName::default_queue())];
        }
        let is_set = |path: &[String]| {
            configured.is_written(path) || self.settings.iter().any(|one| one.path == path)
        };
        let mut found = check::values(&configured.options, &is_set);
        found.extend(check::together(&configured.options));
        if found.is_empty() {
            return Ok(configured);
        }
        Err(configured.refusal(found, ErrorCode::Usage))
    }

    fn parsed(&self) -> Result<Option<Parsed>, ConfigError> {
        let Some(path) = &self.path else {
            return Ok(None);
        };
        let Some(text) = read(path, self.start.listen.system, self.is_named)? else {
            return Ok(None);
        };
        match file::parse(&text) {
            Ok(parsed) => Ok(Some(parsed)),
            Err(problems) => Err(ConfigError {
                path: path.clone(),
                code: ErrorCode::Usage,
                problems,
            }),
        }
    }

    /// The file's options with the settings in place of its values.
    pub(super) fn merged(&self, file: DaemonOptions) -> Result<DaemonOptions, toml::de::Error> {
        let changes = self.settings.iter();
        let mut options = changed(&file, changes.map(|one| (&one.path[..], Some(&one.value))))?;
        carry(&mut options, &self.start);
        Ok(options)
    }
}

/// The options with other values at these paths; `None` leaves the key out. Fields that no file contains have defaults.
fn changed<'a>(
    options: &DaemonOptions,
    changes: impl Iterator<Item = (&'a [String], Option<&'a toml::Value>)>,
) -> Result<DaemonOptions, toml::de::Error> {
    let mut table = toml::Table::try_from(options).map_err(serde::de::Error::custom)?;
    for (path, value) in changes {
        put(&mut table, path, value)?;
    }
    table.try_into()
}

fn put(
    mut table: &mut toml::Table,
    path: &[String],
    value: Option<&toml::Value>,
) -> Result<(), toml::de::Error> {
    let Some((name, above)) = path.split_last() else {
        return Ok(());
    };
    for name in above {
        let inner = table
            .entry(name)
            .or_insert_with(|| toml::Table::new().into());
        let inner = inner.as_table_mut();
        table = inner.ok_or_else(|| serde::de::Error::custom(format!("{name} is no table")))?;
    }
    match value {
        Some(value) => drop(table.insert(name.clone(), value.clone())),
        None => drop(table.remove(name)),
    }
    Ok(())
}

/// Copies the fields that no file contains.
fn carry(to: &mut DaemonOptions, from: &DaemonOptions) {
    to.detached = from.detached;
    to.standby = from.standby;
    to.node_pod.clone_from(&from.node_pod);
    to.listen.system = from.listen.system;
    if let Some(from) = &from.clearml {
        let to = to.clearml.get_or_insert_default();
        to.queues.clone_from(&from.queues);
        to.gpus.clone_from(&from.gpus);
        to.variables.clone_from(&from.variables);
        to.ignored.clone_from(&from.ignored);
    }
}

impl Configured {
    /// The file that was read.
    pub fn file(&self) -> Option<&Path> {
        self.source.path().filter(|_| self.places.is_some())
    }

    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Where the value of a key, or of an element of it, comes from. Parts without a place of their own have that of
    /// their table.
    pub fn origin(&self, path: &[String]) -> Origin {
        let mut settings = self.source.settings.iter().rev();
        if let Some(setting) = settings.find(|setting| path.starts_with(&setting.path)) {
            return Origin::Flag(setting.flag.clone());
        }
        let place = self.places.as_ref().and_then(|places| {
            (1..=path.len())
                .rev()
                .find_map(|length| places.get(&path[..length]))
        });
        match (self.source.path(), place) {
            (Some(file), Some(place)) => Origin::File(file.to_owned(), *place),
            _ => Origin::Default,
        }
    }

    /// An error about a value, with the place of the value in the file or the name of the flag in its message.
    pub fn blame(&self, path: &[String], mut error: Error) -> Error {
        match self.origin(path) {
            Origin::Default => error,
            Origin::Flag(flag) => {
                error.message = format!("{flag}: {}", error.message);
                error
            }
            Origin::File(file, place) => {
                let problem = Problem {
                    place: Some(place),
                    key: None,
                    message: error.message,
                    hint: error.hint,
                };
                let refusal = ConfigError {
                    path: file,
                    code: error.code,
                    problems: vec![problem],
                };
                Error::from(&refusal)
            }
        }
    }

    fn refusal(&self, found: Vec<Violation>, code: ErrorCode) -> ConfigError {
        let problems = found.into_iter().map(|violation| self.problem(violation));
        ConfigError {
            path: self.file().unwrap_or(Path::new(COMMAND)).to_owned(),
            code,
            problems: problems.collect(),
        }
    }

    fn problem(&self, violation: Violation) -> Problem {
        let path = violation.full_path();
        let (place, key) = match self.origin(&path) {
            Origin::File(_, place) => (Some(place), keys::written(&violation.path)),
            Origin::Flag(flag) => (None, flag),
            Origin::Default => (None, keys::written(&violation.path)),
        };
        Problem {
            place,
            key: Some(key),
            message: violation.message,
            hint: Some(violation.hint),
        }
    }

    /// The message with the place of its value in the file, or the name of the flag.
    pub(super) fn at_its_place(&self, violation: Violation) -> String {
        let problem = self.problem(violation);
        self.refusal(Vec::new(), ErrorCode::Usage)
            .error_of(&problem)
            .message
    }

    /// Puts back the former values of keys that only a start of the daemon applies. Returns the changed keys that are in
    /// force now, and those that wait for the start. `is_fixed` names further keys that wait.
    pub fn keep(
        &mut self,
        before: &Self,
        is_fixed: impl Fn(&Key) -> bool,
    ) -> (Vec<String>, Vec<String>) {
        let (now, former) = (flat(&self.options), flat(&before.options));
        let paths: BTreeSet<&Vec<String>> = now.keys().chain(former.keys()).collect();
        let (mut applied, mut waiting) = (BTreeSet::new(), BTreeSet::new());
        let mut kept = Vec::new();
        for path in paths {
            let Some(key) = keys::find(path).filter(|_| now.get(path) != former.get(path)) else {
                continue;
            };
            // A table that only one of the two has is one change.
            let table = path.split_last().map_or(&[][..], |(_, table)| table);
            let has = |values: &BTreeMap<Vec<String>, toml::Value>| {
                values.keys().any(|key| key.starts_with(table))
            };
            let name = if has(&now) == has(&former) {
                keys::written(path)
            } else {
                keys::written(table)
            };
            if key.applies == Applies::Restart || is_fixed(key) {
                kept.push((&path[..], former.get(path)));
                waiting.insert(name);
            } else {
                applied.insert(name);
            }
        }
        // Values of options make options.
        if let Ok(mut options) = changed(&self.options, kept.into_iter()) {
            carry(&mut options, &self.options);
            self.options = options;
        }
        // Only its absence has no key.
        self.options.clearml.clone_from(&before.options.clearml);
        (applied.into_iter().collect(), waiting.into_iter().collect())
    }

    /// The effective values with their origins, in the order of [`KEYS`]. `needs_restart` contains keys whose values in
    /// the file are not in force.
    pub fn report(&self, needs_restart: &[String]) -> Vec<ConfigValue> {
        let mut options = self.options.clone();
        options.on_bypass = Some(options.bypass_policy());
        let mut values: Vec<(Vec<String>, toml::Value)> = flat(&options).into_iter().collect();
        let rank = |path: &[String]| KEYS.iter().position(|key| key.is(path));
        // Keys of one table together, and projects one after the other.
        let table = |path: &[String]| {
            let first = path.first().filter(|_| path.len() > 1)?;
            KEYS.iter()
                .position(|key| key.name.split('.').next() == Some(first))
        };
        values.sort_by_cached_key(|(path, _)| {
            let names = path.split_last().map(|(_, names)| names.to_vec());
            (table(path).or(rank(path)), names, rank(path))
        });
        let shown =
            |(path, value): (Vec<String>, toml::Value)| self.value(&path, value, needs_restart);
        values.into_iter().filter_map(shown).collect()
    }

    fn value(
        &self,
        path: &[String],
        value: toml::Value,
        needs_restart: &[String],
    ) -> Option<ConfigValue> {
        let key = keys::find(path)?;
        let written = keys::written(path);
        let mut shown = ConfigValue {
            needs_restart: needs_restart.iter().any(|name| {
                written
                    .strip_prefix(name.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            }),
            key: written,
            value: serde_json::to_value(value).ok()?,
            origin: ConfigOrigin::Default,
            file: None,
            line: None,
            column: None,
            flag: None,
            applies: key.applies.name().to_owned(),
        };
        match self.origin(path) {
            // A table of the file gives its other keys no value.
            Origin::File(file, place) if self.is_written(path) => {
                shown.origin = ConfigOrigin::File;
                shown.file = Some(file.display().to_string());
                shown.line = u32::try_from(place.line).ok();
                shown.column = u32::try_from(place.column).ok();
            }
            Origin::Flag(flag) => {
                shown.origin = ConfigOrigin::Flag;
                shown.flag = Some(flag);
            }
            Origin::File(..) | Origin::Default => {}
        }
        Some(shown)
    }

    fn is_written(&self, path: &[String]) -> bool {
        self.places
            .as_ref()
            .is_some_and(|places| places.contains_key(path))
    }
}

/// The values of all keys, by their paths.
pub(super) fn flat(options: &DaemonOptions) -> BTreeMap<Vec<String>, toml::Value> {
    // Options of any origin have a serde form; a table whose values cannot be written has none.
    leaves(toml::Table::try_from(options).unwrap_or_default())
}

/// The values of the keys in a table, by their paths.
fn leaves(table: toml::Table) -> BTreeMap<Vec<String>, toml::Value> {
    fn walk(table: toml::Table, path: &[String], found: &mut BTreeMap<Vec<String>, toml::Value>) {
        for (name, value) in table {
            let path = [path, &[name]].concat();
            match (keys::find(&path), value) {
                (None, toml::Value::Table(inner)) => walk(inner, &path, found),
                (_, value) => drop(found.insert(path, value)),
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(table, &[], &mut found);
    found
}

/// The path of the file, and whether a flag or a variable names it.
fn place(
    system: bool,
    named: Option<PathBuf>,
    var: &dyn Fn(&str) -> Option<OsString>,
) -> (Option<PathBuf>, bool) {
    let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
    if let Some(path) = named.or_else(|| var(VARIABLE).map(PathBuf::from)) {
        return (Some(absolute(path)), true);
    }
    // All files of such an instance are below its folder.
    if let Some(home) = var("DIVVY_HOME") {
        return (Some(absolute(Path::new(&home).join("config.toml"))), false);
    }
    if system {
        return (Some(SYSTEM_FILE.into()), false);
    }
    let folder = |name| absolute_folder(var, name);
    let config =
        folder("XDG_CONFIG_HOME").or_else(|| folder("HOME").map(|home| home.join(".config")));
    (config.map(|config| config.join("divvy/config.toml")), false)
}

/// Reads the file; `None` if it does not exist and need not.
fn read(path: &Path, system: bool, is_named: bool) -> Result<Option<Vec<u8>>, ConfigError> {
    // Also where there is no file: a user who can write the folder can delete it.
    if system {
        check_folder(path).map_err(|why| why.of(path))?;
    }
    match bytes(path, system) {
        Ok(text) => Ok(Some(text)),
        Err(Unread::Io(error)) if error.kind() == io::ErrorKind::NotFound && !is_named => Ok(None),
        Err(why) => Err(why.of(path)),
    }
}

/// Reads a file that only its user may write, and of the system's daemon only root, as the file's folder.
///
/// # Errors
/// The reason as the one problem of the file.
pub fn read_named(path: &Path, system: bool) -> Result<Vec<u8>, ConfigError> {
    if system {
        check_folder(path).map_err(|why| why.of(path))?;
    }
    bytes(path, system).map_err(|why| why.of(path))
}

/// Whether other users can put a file of the system's daemon into the place of another, or delete it.
fn check_folder(path: &Path) -> Result<(), Unread> {
    let Some(folder) = path.parent() else {
        return Ok(());
    };
    // The error of the file says what is missing.
    let Ok(meta) = std::fs::metadata(folder) else {
        return Ok(());
    };
    let me = rustix::process::geteuid().as_raw();
    let folder = folder.to_owned();
    let owner = meta.uid();
    if owner != me && owner != 0 {
        return Err(Unread::FolderOwner { folder, owner });
    }
    // In a sticky folder such as /tmp, users can rename and delete their own files alone. A read-only mount is no proof:
    // the daemon's unit has /etc read-only for the daemon alone (ProtectSystem=full).
    let is_sticky = meta.mode() & 0o1000 != 0;
    if meta.mode() & 0o022 != 0 && !is_sticky {
        let mode = meta.mode() & 0o7777;
        return Err(Unread::FolderOpen { folder, mode });
    }
    Ok(())
}

enum Unread {
    Io(io::Error),
    Owner { owner: u32, me: u32 },
    Open { mode: u32 },
    FolderOwner { folder: PathBuf, owner: u32 },
    FolderOpen { folder: PathBuf, mode: u32 },
    TooLarge,
}

impl Unread {
    fn of(self, path: &Path) -> ConfigError {
        let shown = path.display();
        let (message, hint) = match self {
            Self::Io(error) => (
                format!("cannot read it: {error}"),
                format!("name a readable file: --config FILE or {VARIABLE}"),
            ),
            Self::Owner { owner, me } => (
                format!("it belongs to uid {owner}, but the daemon runs as uid {me}"),
                format!("chown {me} {shown}: its owner decides what the daemon does"),
            ),
            Self::Open { mode } => (
                format!("it is writable by other users (mode {mode:o})"),
                format!("chmod go-w {shown}: users who can write it can make themselves admins"),
            ),
            Self::FolderOwner { folder, owner } => (
                format!("its folder belongs to uid {owner}: that user can replace it"),
                format!("chown root {}", folder.display()),
            ),
            Self::FolderOpen { folder, mode } => (
                format!(
                    "other users can replace it: its folder is writable by them (mode {mode:o})"
                ),
                format!("chmod go-w {}", folder.display()),
            ),
            Self::TooLarge => (
                "it is larger than 1 MiB".to_owned(),
                "name a configuration file".to_owned(),
            ),
        };
        ConfigError::of_whole(path, message, Some(hint))
    }
}

fn bytes(path: &Path, system: bool) -> Result<Vec<u8>, Unread> {
    let file = OpenOptions::new()
        .read(true)
        // A pipe without a writer must not hold up the daemon.
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .map_err(Unread::Io)?;
    let meta = file.metadata().map_err(Unread::Io)?;
    let me = rustix::process::geteuid().as_raw();
    if meta.uid() != me && meta.uid() != 0 {
        return Err(Unread::Owner {
            owner: meta.uid(),
            me,
        });
    }
    // A user's own group may write in many homes.
    let others = if system { 0o022 } else { 0o002 };
    if meta.is_file() && meta.mode() & others != 0 {
        return Err(Unread::Open {
            mode: meta.mode() & 0o7777,
        });
    }
    let mut text = Vec::new();
    file.take(LARGEST + 1)
        .read_to_end(&mut text)
        .map_err(Unread::Io)?;
    if u64::try_from(text.len()).is_ok_and(|length| length <= LARGEST) {
        Ok(text)
    } else {
        Err(Unread::TooLarge)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use divvy_core::Order;

    use super::*;
    use crate::daemon::ClearMlOptions;

    fn configured(file: &str, start: DaemonOptions, settings: Vec<Setting>) -> Configured {
        let source = Source::new(start, settings, Some("/c.toml".into()));
        source.merge(file::parse(file.as_bytes()).unwrap()).unwrap()
    }

    fn set(texts: &[&str]) -> Vec<Setting> {
        let all = texts.iter().map(|text| Setting::parse(text).unwrap());
        all.flatten().collect()
    }

    fn path(key: &str) -> Vec<String> {
        key.split('.').map(str::to_owned).collect()
    }

    /// System, `--config`, variables, the path, and whether it is named.
    type Case<'a> = (
        bool,
        Option<&'a str>,
        &'a [(&'a str, &'a str)],
        Option<&'a str>,
        bool,
    );

    #[test]
    fn the_file_is_the_named_one_or_that_of_the_instance() {
        let cases: [Case<'_>; 8] = [
            (
                true,
                Some("/f"),
                &[("DIVVY_CONFIG", "/e")],
                Some("/f"),
                true,
            ),
            (
                true,
                None,
                &[("DIVVY_CONFIG", "/e"), ("DIVVY_HOME", "/h")],
                Some("/e"),
                true,
            ),
            (
                true,
                None,
                &[("DIVVY_HOME", "/h")],
                Some("/h/config.toml"),
                false,
            ),
            (true, None, &[("HOME", "/root")], Some(SYSTEM_FILE), false),
            (
                false,
                None,
                &[("HOME", "/a")],
                Some("/a/.config/divvy/config.toml"),
                false,
            ),
            (
                false,
                None,
                &[("HOME", "/a"), ("XDG_CONFIG_HOME", "/x")],
                Some("/x/divvy/config.toml"),
                false,
            ),
            (
                false,
                None,
                &[("HOME", "/a"), ("XDG_CONFIG_HOME", "x")],
                Some("/a/.config/divvy/config.toml"),
                false,
            ),
            (false, None, &[], None, false),
        ];
        for (system, named, variables, expected, is_named) in cases {
            let var = |name: &str| {
                let found = variables.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| OsString::from(value))
            };
            let found = place(system, named.map(PathBuf::from), &var);
            assert_eq!(
                found,
                (expected.map(PathBuf::from), is_named),
                "{variables:?}"
            );
        }
    }

    #[test]
    fn a_value_of_the_command_line_wins_over_that_of_the_file() {
        let file = "grace = \"5s\"\nbackfill = true\n[limits]\nmax-jobs = 3\n";
        let settings = set(&["grace=9s", "limits.log-size=2M", "grace=1s"]);
        let configured = configured(file, DaemonOptions::default(), settings);
        assert_eq!(configured.options.grace, Duration::from_secs(1));
        assert!(configured.options.backfill);
        let limits = configured.options.limits;
        assert_eq!((limits.max_jobs, limits.log_size), (3, Some(2 << 20)));
        assert_eq!(configured.options.order, Order::Strict);
        let flag = Origin::Flag("--set grace".to_owned());
        assert_eq!(configured.origin(&path("grace")), flag);
        let place = Place {
            line: 2,
            column: 12,
        };
        let origin = Origin::File("/c.toml".into(), place);
        assert_eq!(configured.origin(&path("backfill")), origin);
        assert_eq!(configured.origin(&path("order")), Origin::Default);
    }

    #[test]
    fn a_wrong_key_or_value_of_the_command_line_is_refused_with_its_words() {
        for (text, message, hint) in [
            (
                "grase=1s",
                "--set grase=1s: unknown key `grase`",
                "did you mean `grace`?",
            ),
            (
                "max-jobs=1",
                "unknown key `max-jobs`",
                "write `max-jobs` in the table [limits]",
            ),
            ("grace", "--set grace: no value", "--set KEY=VALUE"),
            ("grace=10", "expected a duration", "`divvy config show"),
            (
                "grace=soon",
                "\"soon\" is not a duration",
                "use 90s, 2h or 30d",
            ),
            (
                "backfill=maybe",
                "expected true or false",
                "`divvy config show",
            ),
            ("limits=5", "expected a table", "write [limits]"),
            ("=5", "--set =5: ", ""),
        ] {
            let error = Setting::parse(text).unwrap_err();
            assert_eq!(error.code, ErrorCode::Usage);
            assert!(error.message.contains(message), "{}", error.message);
            assert!(error.hint.as_deref().unwrap().contains(hint), "{error:?}");
        }
        // The rules for values hold too, and a project needs its quota.
        for (text, message) in [
            ("limits.max-jobs=0", "--set limits.max-jobs: 0 jobs"),
            ("projects.lab.weight=2", "quota of the project is missing"),
            (
                "listen.access=roles",
                "--set listen.access: roles is not an absolute path",
            ),
        ] {
            let source = Source::new(DaemonOptions::default(), set(&[text]), None);
            let error = Error::from(&source.with(None).unwrap_err());
            assert!(error.message.contains(message), "{}", error.message);
        }
        // There is no file to check.
        let both = set(&["limits.max-jobs=0", "projects.x.members=[\"a b\"]"]);
        let source = Source::new(DaemonOptions::default(), both, None);
        let hint = Error::from(&source.with(None).unwrap_err()).hint.unwrap();
        assert!(
            hint.contains("further problem") && !hint.contains("config check"),
            "{hint}"
        );
    }

    #[test]
    fn a_front_end_of_the_file_has_the_queues_and_gpus_of_the_daemon() {
        let file = "gpus = \"0-1\"\nqueues = [\"half=0.5\", \"one=1\"]\n[clearml]\ndynamic = true\ncreate-queue = true\n";
        let options = configured(file, DaemonOptions::default(), Vec::new()).options;
        let clearml = options.clearml.unwrap();
        assert_eq!(clearml.queues, ["half", "one"]);
        assert_eq!(clearml.gpus.as_deref(), Some("0,1"));
        assert!(clearml.dynamic && clearml.create_queue);
        // The words of the flag, which the names of workers contain; the file's other keys stay.
        let start = DaemonOptions {
            clearml: Some(ClearMlOptions {
                gpus: Some("0-2".to_owned()),
                ..ClearMlOptions::default()
            }),
            ..DaemonOptions::default()
        };
        let gpus = Setting::of_flag("--gpus", "gpus", "0-2").unwrap();
        let options = configured(file, start, gpus).options;
        let clearml = options.clearml.unwrap();
        assert_eq!(clearml.gpus.as_deref(), Some("0-2"));
        assert!(clearml.create_queue && clearml.dynamic);
        // Without queues the daemon serves the server's default queue, one task at a time.
        let options = configured("[clearml]\n", DaemonOptions::default(), Vec::new()).options;
        assert_eq!(options.clearml.unwrap().queues, [""; 0]);
        assert_eq!(options.queues.len(), 1);
    }

    #[test]
    fn values_together_are_refused_with_the_line_or_the_flag() {
        let refused = |file: &str, start: DaemonOptions, texts: &[&str]| {
            let source = Source::new(start, set(texts), Some("/c.toml".into()));
            let error = source.merge(file::parse(file.as_bytes()).unwrap());
            Error::from(&error.unwrap_err())
        };
        let mut system = DaemonOptions::default();
        system.listen.system = true;
        for (file, start, texts, message) in [
            (
                "[roles]\n",
                DaemonOptions::default(),
                &[][..],
                "/c.toml:1:2: roles",
            ),
            (
                "[roles]\n[listen]\naccess = \"/a\"\n",
                system.clone(),
                &[],
                "/c.toml:3:10: listen.access",
            ),
            (
                "[roles]\n",
                system.clone(),
                &["listen.access=/a"],
                "--set listen.access",
            ),
            ("[clearml]\n", system.clone(), &[], "/c.toml:1:2: clearml"),
            (
                "[listen]\nlisten = \"127.0.0.1:1\"\n",
                system.clone(),
                &[],
                "/c.toml:2:10: listen.listen",
            ),
            (
                "[listen]\nlisten = \"0.0.0.0:1\"\ntoken-file = \"/t\"\n",
                system.clone(),
                &[],
                "/c.toml:2:10: listen.listen",
            ),
            (
                "[listen]\nweb-hosts = [\"lab1\"]\n",
                system.clone(),
                &[],
                "/c.toml:2:13: listen.web-hosts",
            ),
            (
                "[listen]\ntoken-file = \"/t\"\n",
                system,
                &[],
                "/c.toml:2:14: listen.token-file",
            ),
            (
                "refuse-user-namespaces = true\n",
                DaemonOptions::default(),
                &[],
                "/c.toml:1:26: refuse",
            ),
        ] {
            let error = refused(file, start, texts);
            assert!(error.message.contains(message), "{}", error.message);
            assert!(error.hint.is_some(), "{}", error.message);
        }
    }

    #[test]
    fn a_reload_keeps_what_only_a_start_applies() {
        let of = |file: &str| configured(file, DaemonOptions::default(), Vec::new());
        let before =
            of("queues = [\"q\"]\ngpus = \"0\"\ngrace = \"1s\"\n[projects.a]\nquota = 1\n");
        let mut now = of(
            "queues = [\"q\"]\ngpus = \"1\"\ngrace = \"2s\"\n[clearml]\n[projects.b]\nquota = 1\n",
        );
        let (changed, waiting) = now.keep(&before, |_| false);
        assert_eq!(changed, ["grace", "projects.a", "projects.b"]);
        assert_eq!(waiting, ["clearml", "gpus"]);
        assert_eq!(now.options.gpus, before.options.gpus);
        assert_eq!(now.options.clearml, None);
        let shown = now.report(&waiting);
        let gpus = shown.iter().find(|value| value.key == "gpus").unwrap();
        assert!(gpus.needs_restart && gpus.value == "0");
        let mut same =
            of("queues = [\"q\"]\ngpus = \"0\"\ngrace = \"1s\"\n[projects.a]\nquota = 1\n");
        let nothing = (Vec::<String>::new(), Vec::<String>::new());
        assert_eq!(same.keep(&before, |_| false), nothing);
    }

    #[test]
    fn a_folder_in_which_other_users_can_replace_the_file_is_refused_for_the_systems_daemon() {
        use std::os::unix::fs::{PermissionsExt as _, chown};
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("divvy");
        std::fs::create_dir(&folder).unwrap();
        let file = folder.join("config.toml");
        let reads = |system: bool| super::read(&file, system, false).map(|text| text.is_some());
        let set = |mode: u32| {
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let why = |error: ConfigError| {
            let problem = &error.problems[0];
            format!("{}; {}", problem.message, problem.hint.clone().unwrap())
        };
        // With and without a file: a user could delete it.
        for is_there in [false, true] {
            if is_there {
                std::fs::write(&file, "").unwrap();
            }
            // In a sticky folder users replace their own files alone.
            for mode in [0o755, 0o700, 0o1777] {
                set(mode);
                assert_eq!(reads(true), Ok(is_there), "{mode:o}");
            }
            for mode in [0o777, 0o775, 0o757] {
                set(mode);
                let text = why(reads(true).unwrap_err());
                let shown = format!("its folder is writable by them (mode {mode:o})");
                let command = format!("chmod go-w {}", folder.display());
                assert!(text.contains(&shown) && text.ends_with(&command), "{text}");
                assert!(read_named(&file, true).is_err());
                // The group of a home may be its user's own.
                assert_eq!(reads(false), Ok(is_there), "{mode:o}");
            }
        }
        set(0o755);
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root can give a folder away");
            return;
        }
        chown(&folder, Some(60_101), None).unwrap();
        let text = why(reads(true).unwrap_err());
        assert!(text.contains("belongs to uid 60101"), "{text}");
    }
}
