//! Value parsers of the flags: sizes, mounts, ports, variables. Each takes the text and reports what is wrong with it.

use std::path::Path;

use super::flags::Flag;
use super::paths::{self, Kept};
use super::{ContainerOptionError, Mount, Options, Port, Pull, Ulimit};

/// What is wrong with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueError {
    Wrong(String),
    Escape {
        why: &'static str,
        hint: &'static str,
    },
    /// It is not for users whose containers run as themselves.
    Submitter {
        why: String,
        hint: String,
    },
}

impl ValueError {
    pub fn of(self, flag: &Flag, value: &str) -> ContainerOptionError {
        match self {
            Self::Wrong(why) => ContainerOptionError::Wrong {
                flag: flag.written(value),
                why,
            },
            Self::Escape { why, hint } => ContainerOptionError::Escape {
                flag: flag.written(&redacted_value(flag, value)),
                why,
                hint,
            },
            Self::Submitter { why, hint } => ContainerOptionError::Submitter {
                flag: flag.written(&redacted_value(flag, value)),
                why,
                hint,
            },
        }
    }

    pub fn named(self, flag: &str, value: &str) -> ContainerOptionError {
        let flag = format!("{flag} {value}");
        match self {
            Self::Wrong(why) => ContainerOptionError::Wrong { flag, why },
            Self::Escape { why, hint } => ContainerOptionError::Escape { flag, why, hint },
            Self::Submitter { why, hint } => ContainerOptionError::Submitter { flag, why, hint },
        }
    }
}

/// A refusal names a variable and keeps its value to itself.
fn redacted_value(flag: &Flag, value: &str) -> String {
    match flag.is_env() {
        true => value.split('=').next().unwrap_or_default().to_owned(),
        false => value.to_owned(),
    }
}

impl From<Kept> for ValueError {
    fn from(Kept { why, hint }: Kept) -> Self {
        Self::Escape { why, hint }
    }
}

fn wrong(why: impl Into<String>) -> ValueError {
    ValueError::Wrong(why.into())
}

pub fn switch(text: &str) -> Result<bool, ValueError> {
    match text {
        "true" | "TRUE" | "True" | "1" | "t" | "T" => Ok(true),
        "false" | "FALSE" | "False" | "0" | "f" | "F" => Ok(false),
        _ => Err(wrong("is a switch: true or false")),
    }
}

pub fn number(text: &str) -> Result<i64, ValueError> {
    text.parse().map_err(|_| wrong("needs a number"))
}

/// `1.5` CPUs in thousand-millionths, without floating point.
pub fn nano_cpus(text: &str) -> Result<i64, ValueError> {
    let fault = || wrong("needs a number of CPUs, as in 1.5");
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 9 || (whole.is_empty() && part.is_empty()) {
        return Err(fault());
    }
    let whole: i64 = format!("0{whole}").parse().map_err(|_| fault())?;
    let part: i64 = format!("{part:0<9}").parse().map_err(|_| fault())?;
    whole
        .checked_mul(1_000_000_000)
        .and_then(|whole| whole.checked_add(part))
        .ok_or_else(fault)
}

/// Host memory as the engine's command line has it: `512m`, `8g`, a bare number of bytes.
pub fn size(text: &str) -> Result<i64, ValueError> {
    let fault = || wrong("needs a size, as in 512m or 8g");
    let lower = text.to_ascii_lowercase();
    let digits = lower.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &lower[digits.len()..] {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(fault()),
    };
    let number: i64 = digits.trim_end().parse().map_err(|_| fault())?;
    if number < 0 {
        return Err(fault());
    }
    number.checked_mul(1 << shift).ok_or_else(fault)
}

pub fn size_or_unlimited(text: &str) -> Result<i64, ValueError> {
    match text {
        "-1" => Ok(-1),
        text => size(text),
    }
}

/// The variable of NVIDIA's container runtime.
pub const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// Variables that say which GPUs there are, which libraries a program gets, and whether it is limited.
pub fn env_name(name: &str) -> Result<(), ValueError> {
    const GPUS: &[&str] = &[VISIBLE_DEVICES, "CUDA_VISIBLE_DEVICES"];
    const LOADER: &[&str] = &["LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT"];
    if name.is_empty() || name.contains('\0') {
        return Err(wrong("needs a name: NAME=VALUE"));
    }
    if GPUS.contains(&name) {
        return Err(ValueError::Escape {
            why: "the slice determines the container's GPUs",
            hint: "leave it out",
        });
    }
    if LOADER.contains(&name) {
        return Err(ValueError::Escape {
            why: "it could load libraries before the limiter",
            hint: "set it inside the container: sh -c 'LD_PRELOAD=… program'",
        });
    }
    if name.starts_with("DIVVY_") {
        return Err(ValueError::Escape {
            why: "this variable is reserved for Divvy",
            hint: "leave it out",
        });
    }
    Ok(())
}

pub fn env(options: &mut Options, text: &str) -> Result<(), ValueError> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    };
    // Each tutorial sets it, and the container gets the value of the slice.
    if name == VISIBLE_DEVICES {
        options.ignored.push(format!("-e {text}"));
        return Ok(());
    }
    env_name(name)?;
    options.env.push((name.to_owned(), value));
    Ok(())
}

pub fn label(options: &mut Options, text: &str) -> Result<(), ValueError> {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    if name.is_empty() {
        return Err(wrong("needs a name: NAME=VALUE"));
    }
    if name == "divvy" || name.starts_with("divvy.") {
        return Err(ValueError::Escape {
            why: "this label is reserved for Divvy",
            hint: "use another name",
        });
    }
    options.labels.insert(name.to_owned(), value.to_owned());
    Ok(())
}

pub fn cgroupns(_: &mut Options, text: &str) -> Result<(), ValueError> {
    match text {
        "private" => Ok(()),
        _ => Err(ValueError::Escape {
            why: "the host's control groups are not available to containers",
            hint: "leave it out",
        }),
    }
}

pub fn ipc(options: &mut Options, text: &str) -> Result<(), ValueError> {
    match text {
        "" | "private" | "none" | "shareable" => {
            options.ipc = Some(text.to_owned()).filter(|text| !text.is_empty());
            Ok(())
        }
        _ => Err(ValueError::Escape {
            why: "Divvy cannot count memory that several containers share",
            hint: "use --shm-size to enlarge the container's own shared memory",
        }),
    }
}

/// A mode of the engine's, or a user's own network by name. `container:ID` and Podman's `ns:PATH` join another
/// container's namespace. Options of Podman's other modes (`pasta:--pcap,FILE`) are words for a program of the host.
pub fn network(options: &mut Options, text: &str) -> Result<(), ValueError> {
    const OWN: &str = "make a network for both (`docker network create`) and name that";
    let escape = |why, hint| Err(ValueError::Escape { why, hint });
    match text.split_once(':') {
        Some(("container", _)) => escape(
            "it joins the network of another container, possibly of another user",
            OWN,
        ),
        Some(("ns", _)) => escape(
            "it joins a network namespace of the host, possibly of another user",
            OWN,
        ),
        Some(_) => escape(
            "options of a network mode can reach programs of the host",
            "leave the options out: bridge, host, none, or the name of a network",
        ),
        None if is_name(text) => {
            options.network = Some(text.to_owned());
            Ok(())
        }
        None => Err(wrong("needs bridge, host, none, or the name of a network")),
    }
}

/// As engines name networks and volumes: `[a-zA-Z0-9][a-zA-Z0-9_.-]*`.
fn is_name(text: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "_.-".contains(letter);
    let first = text.chars().next();
    first.is_some_and(|letter| letter.is_ascii_alphanumeric()) && text.chars().all(plain)
}

pub fn pull(options: &mut Options, text: &str) -> Result<(), ValueError> {
    options.pull = match text {
        "always" => Pull::Always,
        "missing" => Pull::Missing,
        "never" => Pull::Never,
        _ => return Err(wrong("is always, missing or never")),
    };
    Ok(())
}

pub fn restart(_: &mut Options, text: &str) -> Result<(), ValueError> {
    match text {
        "" | "no" => Ok(()),
        _ => Err(ValueError::Escape {
            why: "a job runs once",
            hint: "leave it out, and submit the job again when it has ended",
        }),
    }
}

pub fn security(options: &mut Options, text: &str) -> Result<(), ValueError> {
    match text {
        "no-new-privileges" | "no-new-privileges:true" | "no-new-privileges=true" => {
            options.no_new_privileges = true;
            Ok(())
        }
        _ => Err(ValueError::Escape {
            why: "a weaker profile lets a program remove its limits",
            hint: "leave it out; only no-new-privileges is allowed",
        }),
    }
}

pub fn ulimit(text: &str) -> Result<Ulimit, ValueError> {
    let fault = || wrong("needs NAME=SOFT or NAME=SOFT:HARD");
    let (name, limits) = text.split_once('=').ok_or_else(fault)?;
    let (soft, hard) = limits.split_once(':').unwrap_or((limits, limits));
    let number = |text: &str| text.parse().map_err(|_| fault());
    if name.is_empty() {
        return Err(fault());
    }
    Ok(Ulimit {
        name: name.to_owned(),
        soft: number(soft)?,
        hard: number(hard)?,
    })
}

/// `8888`, `8888/udp`.
pub fn exposed(text: &str) -> Result<String, ValueError> {
    let (number, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    if !matches!(protocol, "tcp" | "udp" | "sctp") || number.parse::<u16>().is_err() {
        return Err(wrong("needs a port, as in 8888 or 8888/udp"));
    }
    Ok(format!("{number}/{protocol}"))
}

/// `[[IP:][HOST]:]CONTAINER[/PROTOCOL]`; ranges are not taken.
pub fn port(text: &str) -> Result<Port, ValueError> {
    let (before, container) = match text.rsplit_once(':') {
        Some((before, container)) => (Some(before), container),
        None => (None, text),
    };
    let (host_ip, host_port) = match before.map(|before| before.rsplit_once(':')) {
        Some(Some((ip, port))) => (Some(ip), Some(port)),
        Some(None) => (None, before),
        None => (None, None),
    };
    let filled = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
    let host_port = filled(host_port);
    if host_port
        .as_deref()
        .is_some_and(|port| port.parse::<u16>().is_err())
    {
        return Err(wrong("needs single ports, as in 8888:8888"));
    }
    Ok(Port {
        container: exposed(container)?,
        host_ip: filled(host_ip).map(|ip| ip.trim_matches(['[', ']']).to_owned()),
        host_port,
    })
}

fn bind(source: &str, target: &str, read_only: bool) -> Result<Mount, ValueError> {
    if source.starts_with('/') {
        paths::source(Path::new(source), &[])?;
    } else if !source.starts_with('.') {
        return Err(wrong("needs a path of the host that begins with / or ."));
    }
    Ok(Mount::Bind {
        source: source.to_owned(),
        target: target.to_owned(),
        read_only,
    })
}

/// `-v [SOURCE:]TARGET[:OPTIONS]`.
pub fn volume(text: &str) -> Result<Mount, ValueError> {
    let parts: Vec<&str> = text.split(':').collect();
    let (source, target, options) = match parts[..] {
        [target] => (None, target, ""),
        [source, target] => (Some(source), target, ""),
        [source, target, options] => (Some(source), target, options),
        _ => return Err(wrong("needs SOURCE:TARGET or SOURCE:TARGET:ro")),
    };
    let mut read_only = false;
    for option in options.split(',').filter(|option| !option.is_empty()) {
        match option {
            "ro" => read_only = true,
            "rw" | "z" | "Z" | "nocopy" | "rprivate" | "private" => {}
            _ => return Err(wrong(format!("has an unsupported option: {option}"))),
        }
    }
    paths::target(target)?;
    match source {
        None => Ok(Mount::Volume {
            name: None,
            target: target.to_owned(),
            read_only,
        }),
        Some(source) if source.starts_with(['/', '.']) => bind(source, target, read_only),
        Some(name) => named(name, target, read_only),
    }
}

fn named(name: &str, target: &str, read_only: bool) -> Result<Mount, ValueError> {
    if !is_name(name) {
        return Err(wrong("names an invalid volume"));
    }
    Ok(Mount::Volume {
        name: Some(name.to_owned()),
        target: target.to_owned(),
        read_only,
    })
}

pub fn tmpfs(text: &str) -> Result<Mount, ValueError> {
    let (target, options) = text.split_once(':').unwrap_or((text, ""));
    paths::target(target)?;
    Ok(Mount::Tmpfs {
        target: target.to_owned(),
        options: options.to_owned(),
    })
}

/// `--mount type=bind,source=/a,target=/b,readonly`.
pub fn mount(text: &str) -> Result<Mount, ValueError> {
    let (mut kind, mut source, mut target) = ("volume", None, None);
    let (mut read_only, mut tmpfs) = (false, Vec::new());
    for field in text.split(',') {
        let (name, value) = field.split_once('=').unwrap_or((field, ""));
        match name.trim() {
            "type" => kind = value,
            "source" | "src" => source = Some(value),
            "target" | "dst" | "destination" => target = Some(value),
            "readonly" | "ro" => read_only = value.is_empty() || switch(value)?,
            "tmpfs-size" => tmpfs.push(format!("size={}", size(value)?)),
            "tmpfs-mode" => tmpfs.push(format!("mode={value}")),
            "volume-nocopy" => {}
            "volume-opt" | "volume-driver" => {
                return Err(ValueError::Escape {
                    why: "a volume driver can mount any folder of the host",
                    hint: "create the volume first with `docker volume create`, and name it here",
                });
            }
            other => return Err(wrong(format!("has an unsupported field: {other}"))),
        }
    }
    let target = target.ok_or_else(|| wrong("needs a target"))?;
    paths::target(target)?;
    match (kind, source) {
        ("bind", Some(source)) => bind(source, target, read_only),
        ("bind", None) => Err(wrong("needs a source")),
        ("volume", None) => Ok(Mount::Volume {
            name: None,
            target: target.to_owned(),
            read_only,
        }),
        ("volume", Some(name)) => named(name, target, read_only),
        ("tmpfs", None) => Ok(Mount::Tmpfs {
            target: target.to_owned(),
            options: tmpfs.join(","),
        }),
        _ => Err(wrong("is of type bind, volume or tmpfs")),
    }
}
