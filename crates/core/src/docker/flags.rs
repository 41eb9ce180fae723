//! The flag table: the name of each flag of `docker run`, whether it takes a value, and how it is handled.

use super::values::{self, ValueError};
use super::{ContainerOptionError, Options, ParsedFlag};

/// One flag of `docker run`.
#[derive(Debug)]
pub struct Flag {
    pub long: &'static str,
    pub short: Option<char>,
    /// Without one it is a switch, which may be followed by `=true` or `=false`.
    pub takes_value: bool,
    pub rule: FlagRule,
}

impl PartialEq for Flag {
    fn eq(&self, other: &Self) -> bool {
        self.long == other.long
    }
}

/// What becomes of a flag.
#[derive(Debug)]
pub enum FlagRule {
    Take(fn(&mut Options, &str) -> Result<(), ValueError>),
    /// It says what is so anyway, or what only the engine's own command line would do.
    Pass,
    Refuse {
        why: &'static str,
        hint: &'static str,
    },
}

impl Flag {
    /// As it would be written in one word.
    pub fn written(&self, value: &str) -> String {
        match self.takes_value {
            true => format!("--{}={value}", self.long),
            false if value == "true" => format!("--{}", self.long),
            false => format!("--{}={value}", self.long),
        }
    }

    pub fn is_env(&self) -> bool {
        matches!(self.long, "env" | "env-file")
    }
}

const fn switch(long: &'static str, short: Option<char>, rule: FlagRule) -> Flag {
    Flag {
        long,
        short,
        takes_value: false,
        rule,
    }
}

const fn valued(long: &'static str, short: Option<char>, rule: FlagRule) -> Flag {
    Flag {
        long,
        short,
        takes_value: true,
        rule,
    }
}

macro_rules! set {
    ($field:ident: flag) => {
        FlagRule::Take(|options, value| {
            options.$field = values::switch(value)?;
            Ok(())
        })
    };
    ($field:ident: text) => {
        FlagRule::Take(|options, value| {
            options.$field = Some(value.to_owned());
            Ok(())
        })
    };
    ($field:ident: many) => {
        FlagRule::Take(|options, value| {
            options.$field.push(value.to_owned());
            Ok(())
        })
    };
    ($field:ident: pairs) => {
        FlagRule::Take(|options, value| {
            let (name, value) = value.split_once('=').unwrap_or((value, ""));
            options.$field.insert(name.to_owned(), value.to_owned());
            Ok(())
        })
    };
    ($field:ident: $read:path) => {
        FlagRule::Take(|options, value| {
            options.$field = Some($read(value)?);
            Ok(())
        })
    };
    ($field:ident: each $read:path) => {
        FlagRule::Take(|options, value| {
            options.$field.push($read(value)?);
            Ok(())
        })
    };
}

const fn refuse(why: &'static str, hint: &'static str) -> FlagRule {
    FlagRule::Refuse { why, hint }
}

/// What a job's GPUs are is said to Divvy.
const GPUS: FlagRule = refuse(
    "it would give the container GPUs outside its slice",
    "use -g or --gpu-memory before the image; Divvy adds the devices",
);
const DEVICES: FlagRule = refuse(
    "a device of the host would bypass the limiter",
    "leave it out: the GPU's devices come with the slice",
);
const ANOTHERS: FlagRule = refuse(
    "it adds the mounts of another container, which Divvy cannot check",
    "name the folders themselves with -v",
);
const LOGS: FlagRule = refuse(
    "Divvy keeps the job's output",
    "leave it out; `divvy logs JOB` shows it",
);
const CGROUP: FlagRule = refuse(
    "Divvy identifies the container's processes by their control group",
    "leave it out",
);

/// All flags that are known, in the order of `docker run --help`.
pub const FLAGS: &[Flag] = &[
    valued("add-host", None, set!(add_hosts: many)),
    valued(
        "annotation",
        None,
        refuse(
            "annotations change the behaviour of the container runtime",
            "use --label",
        ),
    ),
    valued(
        "cap-add",
        None,
        refuse(
            "additional capabilities let a program remove its limits",
            "leave it out, or run the container by hand with `docker run` and no slice",
        ),
    ),
    valued("cap-drop", None, set!(cap_drop: many)),
    valued("cgroup-parent", None, CGROUP),
    valued("cgroupns", None, FlagRule::Take(values::cgroupns)),
    valued("cpu-period", None, set!(cpu_period: values::number)),
    valued("cpu-quota", None, set!(cpu_quota: values::number)),
    valued("cpu-shares", Some('c'), set!(cpu_shares: values::number)),
    valued("cpus", None, set!(nano_cpus: values::nano_cpus)),
    valued("cpuset-cpus", None, set!(cpuset_cpus: text)),
    valued("cpuset-mems", None, set!(cpuset_mems: text)),
    switch("detach", Some('d'), set!(detach: flag)),
    valued("device", None, DEVICES),
    valued("device-cgroup-rule", None, DEVICES),
    switch("disable-content-trust", None, FlagRule::Pass),
    valued("dns", None, set!(dns: many)),
    valued("dns-opt", None, set!(dns_options: many)),
    valued("dns-option", None, set!(dns_options: many)),
    valued("dns-search", None, set!(dns_search: many)),
    valued("domainname", None, set!(domainname: text)),
    valued("entrypoint", None, set!(entrypoint: text)),
    valued("env", Some('e'), set!(env: each values::env)),
    valued("env-file", None, set!(env_files: many)),
    valued("expose", None, set!(expose: each values::exposed)),
    valued("gpus", None, GPUS),
    valued("group-add", None, set!(group_add: many)),
    valued("hostname", Some('h'), set!(hostname: text)),
    switch("init", None, set!(init: flag)),
    switch("interactive", Some('i'), set!(interactive: flag)),
    valued("ipc", None, FlagRule::Take(values::ipc)),
    valued("label", Some('l'), FlagRule::Take(values::label)),
    valued("log-driver", None, LOGS),
    valued("log-opt", None, LOGS),
    valued("memory", Some('m'), set!(memory: values::size)),
    valued(
        "memory-reservation",
        None,
        set!(memory_reservation: values::size),
    ),
    valued(
        "memory-swap",
        None,
        set!(memory_swap: values::size_or_unlimited),
    ),
    valued("mount", None, set!(mounts: each values::mount)),
    valued("network", None, FlagRule::Take(values::network)),
    valued("net", None, FlagRule::Take(values::network)),
    switch("no-healthcheck", None, set!(no_healthcheck: flag)),
    valued(
        "pid",
        None,
        refuse(
            "Divvy identifies the container's processes by their PID namespace",
            "leave it out: the limiter needs no --pid=host",
        ),
    ),
    valued("pids-limit", None, set!(pids_limit: values::number)),
    switch(
        "privileged",
        None,
        refuse(
            "a privileged container has every device of the host",
            "leave it out",
        ),
    ),
    valued("publish", Some('p'), set!(publish: each values::port)),
    switch("publish-all", Some('P'), set!(publish_all: flag)),
    valued("pull", None, FlagRule::Take(values::pull)),
    switch("quiet", Some('q'), FlagRule::Pass),
    switch("read-only", None, set!(read_only: flag)),
    valued("restart", None, FlagRule::Take(values::restart)),
    switch("rm", None, FlagRule::Pass),
    valued(
        "runtime",
        None,
        refuse(
            "another runtime may add GPUs and omit the limiter",
            "leave it out",
        ),
    ),
    valued("security-opt", None, FlagRule::Take(values::security)),
    valued("shm-size", None, set!(shm_size: values::size)),
    switch("sig-proxy", None, FlagRule::Pass),
    valued("stop-signal", None, set!(stop_signal: text)),
    valued("sysctl", None, set!(sysctls: pairs)),
    valued("tmpfs", None, set!(mounts: each values::tmpfs)),
    switch("tty", Some('t'), set!(tty: flag)),
    valued("ulimit", None, set!(ulimits: each values::ulimit)),
    switch(
        "use-api-socket",
        None,
        refuse(
            "access to the container engine allows starting any container",
            "leave it out",
        ),
    ),
    valued("user", Some('u'), set!(user: text)),
    valued(
        "userns",
        None,
        refuse(
            "the slice's files belong to users of the engine's user namespace",
            "leave it out",
        ),
    ),
    valued(
        "uts",
        None,
        refuse("it shares the host's UTS namespace", "use --hostname"),
    ),
    valued("volume", Some('v'), set!(mounts: each values::volume)),
    valued("volumes-from", None, ANOTHERS),
    valued("workdir", Some('w'), set!(workdir: text)),
];

fn long(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.long == name)
}

fn short(letter: char) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.short == Some(letter))
}

/// A word of flags, as pflag reads it: `--name`, `--name=value`, `-x`, `-xvalue`, `-x=value`, `-xyz`.
enum Word<'a> {
    /// Switches, each with what was written behind it.
    Switches(Vec<ParsedFlag<'a>>),
    /// Switches, and a flag with its value there or in the next word.
    Valued(Vec<ParsedFlag<'a>>, &'static Flag, Option<&'a str>),
}

fn classify_word(text: &str) -> Result<Word<'_>, ContainerOptionError> {
    let unknown = |flag: &str| ContainerOptionError::Unknown {
        flag: flag.to_owned(),
    };
    if let Some(name) = text.strip_prefix("--") {
        let (name, value) = match name.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (name, None),
        };
        let flag = long(name).ok_or_else(|| unknown(&format!("--{name}")))?;
        return Ok(match flag.takes_value {
            true => Word::Valued(Vec::new(), flag, value),
            false => Word::Switches(vec![ParsedFlag {
                flag,
                value: value.unwrap_or("true"),
            }]),
        });
    }
    let letters = text.strip_prefix('-').unwrap_or(text);
    let mut switches = Vec::new();
    for (at, letter) in letters.char_indices() {
        let flag = short(letter).ok_or_else(|| unknown(&format!("-{letter}")))?;
        let behind = &letters[at + letter.len_utf8()..];
        if flag.takes_value {
            let value = behind.strip_prefix('=').unwrap_or(behind);
            let value = (!behind.is_empty()).then_some(value);
            return Ok(Word::Valued(switches, flag, value));
        }
        if let Some(value) = behind.strip_prefix('=') {
            switches.push(ParsedFlag { flag, value });
            break;
        }
        switches.push(ParsedFlag {
            flag,
            value: "true",
        });
    }
    Ok(Word::Switches(switches))
}

/// Whether the word after this one belongs to it.
pub fn wants_next(text: &str) -> Result<bool, ContainerOptionError> {
    Ok(matches!(classify_word(text)?, Word::Valued(_, _, None)))
}

/// The flags of one word; `next` gives the word after it.
pub fn read<'a>(
    text: &'a str,
    next: &mut dyn FnMut() -> Result<&'a str, ContainerOptionError>,
) -> Result<Vec<ParsedFlag<'a>>, ContainerOptionError> {
    if !text.starts_with('-') || text.len() < 2 {
        return Err(ContainerOptionError::Unknown {
            flag: text.to_owned(),
        });
    }
    match classify_word(text)? {
        Word::Switches(switches) => Ok(switches),
        Word::Valued(mut switches, flag, value) => {
            let value = match value {
                Some(value) => value,
                None => next()?,
            };
            switches.push(ParsedFlag { flag, value });
            Ok(switches)
        }
    }
}
