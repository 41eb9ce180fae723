//! Container options: parses the flags of `docker run` that a container job gives, and refuses unsafe ones.
//!
//! ```text
//! words ──► split ──► arguments │ image │ command
//!                        │
//!                        ▼
//!              flags (one table) ──► Options, or a ContainerOptionError: the flag, why, what to do instead
//! ```
//! Only flags of the table are accepted, so no unknown flag reaches the engine. Flags that would let a container leave
//! its slice (other GPUs, the host's processes, files over the limiter) are refused by name. Paths are checked as text;
//! the agent checks again where they lead ([`paths::source`]).
//!
//! May use: no other room.

mod flags;
pub mod paths;
pub mod submitter;
mod values;
pub mod words;

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use flags::{Flag, FlagRule, UserRule};
use submitter::Submitter;
use values::ValueError;

/// Flags of `docker run` as a container's specification has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    pub add_hosts: Vec<String>,
    pub cap_drop: Vec<String>,
    pub cpu_period: Option<i64>,
    pub cpu_quota: Option<i64>,
    pub cpu_shares: Option<i64>,
    pub cpuset_cpus: Option<String>,
    pub cpuset_mems: Option<String>,
    pub detach: bool,
    pub dns: Vec<String>,
    pub dns_options: Vec<String>,
    pub dns_search: Vec<String>,
    pub domainname: Option<String>,
    pub entrypoint: Option<String>,
    /// In the order given; without a value: the submitter's own.
    pub env: Vec<(String, Option<String>)>,
    pub env_files: Vec<String>,
    pub expose: Vec<String>,
    pub group_add: Vec<String>,
    pub hostname: Option<String>,
    /// Flags that are accepted and have no effect, in the words of tutorials: the slice decides what they ask for.
    #[serde(skip)]
    pub ignored: Vec<String>,
    pub init: bool,
    pub interactive: bool,
    pub ipc: Option<String>,
    pub labels: BTreeMap<String, String>,
    /// Bytes of host memory; so are the other two.
    pub memory: Option<i64>,
    pub memory_reservation: Option<i64>,
    /// -1 for no limit.
    pub memory_swap: Option<i64>,
    pub mounts: Vec<Mount>,
    /// Thousand-millionths of a CPU.
    pub nano_cpus: Option<i64>,
    pub network: Option<String>,
    pub no_healthcheck: bool,
    pub no_new_privileges: bool,
    pub pids_limit: Option<i64>,
    pub publish: Vec<Port>,
    pub publish_all: bool,
    pub pull: Pull,
    pub read_only: bool,
    pub shm_size: Option<i64>,
    pub stop_signal: Option<String>,
    pub sysctls: BTreeMap<String, String>,
    pub tty: bool,
    pub ulimits: Vec<Ulimit>,
    pub user: Option<String>,
    pub workdir: Option<String>,
}

/// Something mounted into the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mount {
    /// A file or folder of the host.
    Bind {
        /// Absolute, or relative to the submitter's folder where it begins with a dot.
        source: String,
        target: String,
        read_only: bool,
    },
    /// A volume of the engine; one of its own without a name.
    Volume {
        name: Option<String>,
        target: String,
        read_only: bool,
    },
    Tmpfs {
        target: String,
        options: String,
    },
}

impl Mount {
    /// Its path in the container.
    pub fn target(&self) -> &str {
        match self {
            Self::Bind { target, .. }
            | Self::Volume { target, .. }
            | Self::Tmpfs { target, .. } => target,
        }
    }
}

/// A port of the container that is to be reached from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// `8888/tcp`.
    pub container: String,
    pub host_ip: Option<String>,
    /// The engine chooses without one.
    pub host_port: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ulimit {
    pub name: String,
    pub soft: i64,
    pub hard: i64,
}

/// When an image is fetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pull {
    Always,
    #[default]
    Missing,
    Never,
}

/// Why words are no container that may be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContainerOptionError {
    #[error("{flag}: Divvy does not support this flag of `docker run`")]
    Unknown { flag: String },
    #[error("{flag} {why}")]
    Wrong { flag: String, why: String },
    /// It would let the container out of its slice, or cannot go with one.
    #[error("{flag} is refused: {why}")]
    Escape {
        flag: String,
        why: &'static str,
        hint: &'static str,
    },
    /// The caller's containers run as the caller, and the flag is not for those.
    #[error("{flag} is refused: {why}")]
    Submitter {
        flag: String,
        why: String,
        hint: String,
    },
    /// Two or more, so that a line needs one correction.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<Self>),
    #[error("no image given")]
    NoImage,
}

impl ContainerOptionError {
    /// Whether it is refused for what it would do, and not for how it is written.
    pub fn is_escape(&self) -> bool {
        match self {
            Self::Escape { .. } | Self::Submitter { .. } => true,
            Self::Several(all) => all.iter().any(Self::is_escape),
            Self::Unknown { .. } | Self::Wrong { .. } | Self::NoImage => false,
        }
    }

    /// What to do instead.
    pub fn hint(&self) -> Cow<'_, str> {
        Cow::Borrowed(match self {
            Self::Unknown { .. } => "leave it out; docs/containers.md lists the supported flags",
            Self::Wrong { .. } => "write it as `docker run` takes it",
            Self::Escape { hint, .. } => hint,
            Self::Submitter { hint, .. } => hint,
            Self::Several(all) => {
                let hints = all.iter().map(|one| match one.flag() {
                    Some(flag) => format!("{flag}: {}", one.hint()),
                    None => one.hint().into_owned(),
                });
                return Cow::Owned(hints.collect::<Vec<_>>().join("; "));
            }
            Self::NoImage => {
                "put the image after the flags: divvy docker run --gpu-memory 8G IMAGE CMD"
            }
        })
    }

    /// The flag without its value.
    fn flag(&self) -> Option<&str> {
        match self {
            Self::Unknown { flag }
            | Self::Wrong { flag, .. }
            | Self::Escape { flag, .. }
            | Self::Submitter { flag, .. } => flag.split('=').next(),
            Self::Several(_) | Self::NoImage => None,
        }
    }

    /// One error for all that are wrong with a line.
    fn of_all(mut all: Vec<Self>) -> Result<(), Self> {
        match all.len() {
            0 => Ok(()),
            1 => Err(all.remove(0)),
            _ => Err(Self::Several(all)),
        }
    }
}

/// One flag as it was given.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ParsedFlag<'a> {
    flag: &'static Flag,
    value: &'a str,
}

/// A line of `docker run`, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunCommand {
    /// Flags that the caller said are its own, as they were written.
    pub own: Vec<String>,
    /// All other flags.
    pub arguments: Vec<String>,
    pub image: String,
    pub command: Vec<String>,
}

/// Takes apart the words after `docker run`. `own` names flags of the caller's, each with whether it takes a value.
///
/// # Errors
/// [`ContainerOptionError`] for a flag that is in neither list, and where no image follows; the flags' values are not
/// judged yet.
pub fn parse_command_line(
    words: &[String],
    own: &[(&str, bool)],
) -> Result<RunCommand, ContainerOptionError> {
    let mut line = RunCommand::default();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        if word == "--" || !word.starts_with('-') || word == "-" {
            let image = if word == "--" {
                rest.next()
            } else {
                Some(word)
            };
            line.image = image.cloned().ok_or(ContainerOptionError::NoImage)?;
            line.command = rest.cloned().collect();
            return Ok(line);
        }
        let name = word.split_once('=').map_or(word.as_str(), |(name, _)| name);
        let mine = own.iter().find(|(own, _)| *own == name);
        let (list, takes_next) = match mine {
            Some((_, takes)) => (&mut line.own, *takes && name == word),
            None => (&mut line.arguments, flags::wants_next(word)?),
        };
        list.push(word.clone());
        if takes_next {
            let value = rest.next().ok_or_else(|| no_value(word))?;
            list.push(value.clone());
        }
    }
    Err(ContainerOptionError::NoImage)
}

/// The flags that these words are.
fn parse_flags(arguments: &[String]) -> Result<Vec<ParsedFlag<'_>>, ContainerOptionError> {
    let mut found = Vec::new();
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        let mut next = || {
            rest.next()
                .map(String::as_str)
                .ok_or_else(|| no_value(word))
        };
        found.extend(flags::read(word, &mut next)?);
    }
    Ok(found)
}

/// What these words ask for.
///
/// # Errors
/// [`ContainerOptionError`], for all flags that are refused together.
pub fn options(arguments: &[String]) -> Result<Options, ContainerOptionError> {
    let mut options = Options::default();
    let mut refused = Vec::new();
    for ParsedFlag { flag, value } in parse_flags(arguments)? {
        match &flag.rule {
            FlagRule::Take(take) => {
                let fault = take(&mut options, value).err();
                refused.extend(fault.map(|fault| fault.of(flag, value)));
            }
            FlagRule::Pass => {}
            FlagRule::SliceHas { shown, .. } if flag.asks_for_slice(value) => {
                options.ignored.push((*shown).to_owned());
            }
            FlagRule::SliceHas { why, hint, .. } | FlagRule::Refuse { why, hint } => {
                refused.push(ContainerOptionError::Escape {
                    flag: flag.written(value),
                    why,
                    hint,
                })
            }
        }
    }
    ContainerOptionError::of_all(refused).map(|()| options)
}

/// Judges the same words for a user whose containers run as themselves, beyond what [`options`] refuses for all callers.
///
/// # Errors
/// [`ContainerOptionError::Submitter`], for all flags that are for administrators alone; the errors of [`options`].
pub fn check_submitter(
    arguments: &[String],
    submitter: &Submitter<'_>,
) -> Result<(), ContainerOptionError> {
    let mut refused = Vec::new();
    for ParsedFlag { flag, value } in parse_flags(arguments)? {
        let judged = match &flag.users {
            UserRule::Allow | UserRule::Refused => Ok(()),
            UserRule::Judge(judge) => judge(submitter, value),
            UserRule::Admins { why, hint } => Err(ValueError::Escape { why, hint }),
        };
        refused.extend(judged.err().map(|fault| fault.of(flag, value)));
    }
    ContainerOptionError::of_all(refused)?;
    submitter::check_targets(&options(arguments)?.mounts)
}

/// The same words, each flag in one of its own, without those that have no effect and those that speak of environment
/// variables: their values are secrets more often than not, and travel apart.
///
/// # Errors
/// As [`options`], as far as words are no flags.
pub fn without_env(arguments: &[String]) -> Result<Vec<String>, ContainerOptionError> {
    let words = parse_flags(arguments)?;
    let others = words
        .iter()
        .filter(|given| !given.flag.is_env() && !given.flag.asks_for_slice(given.value));
    Ok(others
        .map(|given| given.flag.written(given.value))
        .collect())
}

/// Whether a variable has no effect in a container of Divvy: the slice has what it asks for.
pub fn is_ignored_variable(name: &str) -> bool {
    name == values::VISIBLE_DEVICES
}

/// Whether a job may set this variable in its container.
///
/// # Errors
/// [`ContainerOptionError::Escape`] for those that say which GPUs there are and which libraries are loaded.
pub fn env_name(name: &str) -> Result<(), ContainerOptionError> {
    values::env_name(name).map_err(|fault| fault.named("-e", name))
}

fn no_value(word: &str) -> ContainerOptionError {
    ContainerOptionError::Wrong {
        flag: word.to_owned(),
        why: "needs a value".to_owned(),
    }
}

#[cfg(test)]
mod tests;
