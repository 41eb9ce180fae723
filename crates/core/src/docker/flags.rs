//! The flag table: the name of each flag of `docker run`, whether it takes a value, and how it is handled.

use super::submitter::{self, Submitter};
use super::values::{self, ValueError};
use super::{ContainerOptionError, Options, ParsedFlag};

/// One flag of `docker run`.
#[derive(Debug)]
pub struct Flag {
    pub long: &'static str,
    pub short: Option<char>,
    /// Without one it is a switch, which may be followed by `=true` or `=false`.
    pub takes_value: bool,
    /// For users whose containers run as themselves. Each row states it, so that a new flag is judged for them too.
    pub users: UserRule,
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
    /// One value has no effect, because the slice has what it asks for. Any other is refused.
    SliceHas {
        value: &'static str,
        /// The flag with that value, as tutorials have it.
        shown: &'static str,
        why: &'static str,
        hint: &'static str,
    },
    Refuse {
        why: &'static str,
        hint: &'static str,
    },
}

/// What a user may do with a flag whose containers run as themselves (`as = "submitter"` in the roles).
#[derive(Debug)]
pub enum UserRule {
    Allow,
    /// By its value.
    Judge(fn(&Submitter<'_>, &str) -> Result<(), ValueError>),
    /// For administrators alone.
    Admins {
        why: &'static str,
        hint: &'static str,
    },
    /// Its rule refuses it for all callers.
    Refused,
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

    /// Whether it asks for what the slice has anyway.
    pub fn asks_for_slice(&self, value: &str) -> bool {
        matches!(self.rule, FlagRule::SliceHas { value: has, .. } if has == value)
    }

    pub fn is_env(&self) -> bool {
        matches!(self.long, "env" | "env-file")
    }
}

const fn switch(long: &'static str, short: Option<char>, users: UserRule, rule: FlagRule) -> Flag {
    Flag {
        long,
        short,
        takes_value: false,
        users,
        rule,
    }
}

const fn valued(long: &'static str, short: Option<char>, users: UserRule, rule: FlagRule) -> Flag {
    Flag {
        long,
        short,
        takes_value: true,
        users,
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

const LABELS: UserRule = UserRule::Admins {
    why: "labels can control other programs of the host that watch the container engine",
    hint: "leave it out",
};
const PUBLISH_ALL: UserRule = UserRule::Admins {
    why: "the container engine opens ports past the host's firewall",
    hint: "name each port on the host's own address: -p 127.0.0.1:8888:8888",
};
const SYSCTLS: UserRule = UserRule::Admins {
    why: "only administrators set kernel parameters",
    hint: "leave it out",
};

/// All flags that are known, in the order of `docker run --help`.
pub const FLAGS: &[Flag] = &[
    valued("add-host", None, UserRule::Allow, set!(add_hosts: many)),
    valued(
        "annotation",
        None,
        UserRule::Refused,
        refuse(
            "annotations change the behaviour of the container runtime",
            "use --label",
        ),
    ),
    valued(
        "cap-add",
        None,
        UserRule::Refused,
        refuse(
            "additional capabilities let a program remove its limits",
            "leave it out, or run the container by hand with `docker run` and no slice",
        ),
    ),
    valued("cap-drop", None, UserRule::Allow, set!(cap_drop: many)),
    valued("cgroup-parent", None, UserRule::Refused, CGROUP),
    valued(
        "cgroupns",
        None,
        UserRule::Allow,
        FlagRule::Take(values::cgroupns),
    ),
    valued(
        "cpu-period",
        None,
        UserRule::Allow,
        set!(cpu_period: values::number),
    ),
    valued(
        "cpu-quota",
        None,
        UserRule::Allow,
        set!(cpu_quota: values::number),
    ),
    valued(
        "cpu-shares",
        Some('c'),
        UserRule::Judge(submitter::cpu_shares),
        set!(cpu_shares: values::number),
    ),
    valued(
        "cpus",
        None,
        UserRule::Allow,
        set!(nano_cpus: values::nano_cpus),
    ),
    valued(
        "cpuset-cpus",
        None,
        UserRule::Allow,
        set!(cpuset_cpus: text),
    ),
    valued(
        "cpuset-mems",
        None,
        UserRule::Allow,
        set!(cpuset_mems: text),
    ),
    switch("detach", Some('d'), UserRule::Allow, set!(detach: flag)),
    valued("device", None, UserRule::Refused, DEVICES),
    valued("device-cgroup-rule", None, UserRule::Refused, DEVICES),
    switch(
        "disable-content-trust",
        None,
        UserRule::Allow,
        FlagRule::Pass,
    ),
    valued("dns", None, UserRule::Allow, set!(dns: many)),
    valued("dns-opt", None, UserRule::Allow, set!(dns_options: many)),
    valued("dns-option", None, UserRule::Allow, set!(dns_options: many)),
    valued("dns-search", None, UserRule::Allow, set!(dns_search: many)),
    valued("domainname", None, UserRule::Allow, set!(domainname: text)),
    valued("entrypoint", None, UserRule::Allow, set!(entrypoint: text)),
    valued(
        "env",
        Some('e'),
        UserRule::Allow,
        FlagRule::Take(values::env),
    ),
    valued("env-file", None, UserRule::Allow, set!(env_files: many)),
    valued(
        "expose",
        None,
        UserRule::Allow,
        set!(expose: each values::exposed),
    ),
    valued(
        "gpus",
        None,
        UserRule::Allow,
        // All GPUs are those of the slice. Other values name other GPUs.
        FlagRule::SliceHas {
            value: "all",
            shown: "--gpus all",
            why: "it would give the container GPUs outside its slice",
            hint: "use -g or --gpu-memory before the image; Divvy adds the devices",
        },
    ),
    valued(
        "group-add",
        None,
        UserRule::Judge(submitter::group_add),
        set!(group_add: many),
    ),
    valued("hostname", Some('h'), UserRule::Allow, set!(hostname: text)),
    switch("init", None, UserRule::Allow, set!(init: flag)),
    switch(
        "interactive",
        Some('i'),
        UserRule::Allow,
        set!(interactive: flag),
    ),
    valued(
        "ipc",
        None,
        UserRule::Judge(submitter::ipc),
        FlagRule::Take(values::ipc),
    ),
    valued("label", Some('l'), LABELS, FlagRule::Take(values::label)),
    valued("log-driver", None, UserRule::Refused, LOGS),
    valued("log-opt", None, UserRule::Refused, LOGS),
    valued(
        "memory",
        Some('m'),
        UserRule::Allow,
        set!(memory: values::size),
    ),
    valued(
        "memory-reservation",
        None,
        UserRule::Allow,
        set!(memory_reservation: values::size),
    ),
    valued(
        "memory-swap",
        None,
        UserRule::Allow,
        set!(memory_swap: values::size_or_unlimited),
    ),
    valued(
        "mount",
        None,
        UserRule::Judge(submitter::mount),
        set!(mounts: each values::mount),
    ),
    valued(
        "network",
        None,
        UserRule::Judge(submitter::network),
        FlagRule::Take(values::network),
    ),
    valued(
        "net",
        None,
        UserRule::Judge(submitter::network),
        FlagRule::Take(values::network),
    ),
    switch(
        "no-healthcheck",
        None,
        UserRule::Allow,
        set!(no_healthcheck: flag),
    ),
    valued(
        "pid",
        None,
        UserRule::Refused,
        refuse(
            "Divvy identifies the container's processes by their PID namespace",
            "leave it out: the limiter needs no --pid=host",
        ),
    ),
    valued(
        "pids-limit",
        None,
        UserRule::Allow,
        set!(pids_limit: values::number),
    ),
    switch(
        "privileged",
        None,
        UserRule::Refused,
        refuse(
            "a privileged container has every device of the host",
            "leave it out",
        ),
    ),
    valued(
        "publish",
        Some('p'),
        UserRule::Judge(submitter::publish),
        set!(publish: each values::port),
    ),
    switch(
        "publish-all",
        Some('P'),
        PUBLISH_ALL,
        set!(publish_all: flag),
    ),
    valued("pull", None, UserRule::Allow, FlagRule::Take(values::pull)),
    switch("quiet", Some('q'), UserRule::Allow, FlagRule::Pass),
    switch("read-only", None, UserRule::Allow, set!(read_only: flag)),
    valued(
        "restart",
        None,
        UserRule::Allow,
        FlagRule::Take(values::restart),
    ),
    switch("rm", None, UserRule::Allow, FlagRule::Pass),
    valued(
        "runtime",
        None,
        UserRule::Allow,
        FlagRule::SliceHas {
            value: "nvidia",
            shown: "--runtime=nvidia",
            why: "another runtime may add GPUs and omit the limiter",
            hint: "leave it out",
        },
    ),
    valued(
        "security-opt",
        None,
        UserRule::Allow,
        FlagRule::Take(values::security),
    ),
    valued(
        "shm-size",
        None,
        UserRule::Allow,
        set!(shm_size: values::size),
    ),
    switch("sig-proxy", None, UserRule::Allow, FlagRule::Pass),
    valued(
        "stop-signal",
        None,
        UserRule::Allow,
        set!(stop_signal: text),
    ),
    valued("sysctl", None, SYSCTLS, set!(sysctls: pairs)),
    valued(
        "tmpfs",
        None,
        UserRule::Judge(submitter::tmpfs),
        set!(mounts: each values::tmpfs),
    ),
    switch("tty", Some('t'), UserRule::Allow, set!(tty: flag)),
    valued(
        "ulimit",
        None,
        UserRule::Judge(submitter::ulimit),
        set!(ulimits: each values::ulimit),
    ),
    switch(
        "use-api-socket",
        None,
        UserRule::Refused,
        refuse(
            "access to the container engine allows starting any container",
            "leave it out",
        ),
    ),
    valued(
        "user",
        Some('u'),
        UserRule::Judge(submitter::user),
        set!(user: text),
    ),
    valued(
        "userns",
        None,
        UserRule::Refused,
        refuse(
            "the slice's files belong to users of the engine's user namespace",
            "leave it out",
        ),
    ),
    valued(
        "uts",
        None,
        UserRule::Refused,
        refuse("it shares the host's UTS namespace", "use --hostname"),
    ),
    valued(
        "volume",
        Some('v'),
        UserRule::Judge(submitter::volume),
        set!(mounts: each values::volume),
    ),
    valued("volumes-from", None, UserRule::Refused, ANOTHERS),
    valued(
        "workdir",
        Some('w'),
        UserRule::Judge(submitter::workdir),
        set!(workdir: text),
    ),
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
