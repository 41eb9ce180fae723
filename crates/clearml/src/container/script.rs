//! The bootstrap script of a task's container: it finds a Python, installs the stock agent, and hands over to it.
//!
//! Line for line the stock agent's (3.0.3), so that images that work there work here.

use super::setup::Lines;

/// Where the configuration lies in a container.
pub const CONFIG: &str = "/tmp/clearml.conf";

/// The parameters of a script.
#[derive(Clone, Copy, Debug)]
pub struct ScriptSpec<'a> {
    pub task: &'a str,
    /// The task's own `setup_shell_script`.
    pub setup: Option<&'a str>,
    /// Whether a copy of the keys is there, and where; and where it is used.
    pub ssh_copy: Option<&'a str>,
    pub ssh_inside: &'a str,
    /// Where git's own files lie, if there are any.
    pub git_copy: Option<&'a str>,
    /// The agent to install: `clearml-agent`, or a wheel's path in the container.
    pub agent: &'a str,
    /// The value of `NVIDIA_VISIBLE_DEVICES` for the agent.
    pub visible: &'a str,
    /// Flags of `execute`.
    pub flags: &'a str,
}

/// The argument of `bash -c`.
pub fn script(lines: &Lines, asked: &ScriptSpec<'_>) -> String {
    let filled = |line: &str| fill(line, lines, asked);
    let stock;
    let init = match &lines.init {
        Some(init) => init,
        None => {
            stock = beginning(lines.opencv, asked);
            &stock
        }
    };
    // The stock agent leaves the beginning out too.
    let installing = lines.before.iter().chain(init);
    let mut parts: Vec<String> = if lines.standalone {
        Vec::new()
    } else {
        installing.map(|line| filled(line)).collect()
    };
    parts.push("[ ! -z $LOCAL_PYTHON ] || export LOCAL_PYTHON=python3".to_owned());
    parts.push(
        "$LOCAL_PYTHON -m pip --version > /dev/null || export LOCAL_PYTHON=$(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin command -v python3)"
            .to_owned(),
    );
    if !lines.standalone {
        parts.push(format!("$LOCAL_PYTHON -m pip install -U {}", pip(lines)));
        parts.push(format!("$LOCAL_PYTHON -m pip install -U {}", asked.agent));
    }
    parts.extend(lines.extra.iter().cloned());
    let own = asked.setup.unwrap_or_default().lines().map(str::trim);
    let own: Vec<&str> = own
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    parts.extend(own.into_iter().map(str::to_owned));
    parts.push(format!("cp {CONFIG} ~/default_clearml.conf"));
    parts.push(format!(
        "NVIDIA_VISIBLE_DEVICES={} $LOCAL_PYTHON -u -m clearml_agent execute {} --id {}",
        asked.visible, asked.flags, asked.task
    ));
    parts.retain(|part| !part.is_empty());
    parts.join(" ; ")
}

fn beginning(opencv: bool, asked: &ScriptSpec<'_>) -> Vec<String> {
    let libraries = if opencv {
        " libsm6 libxext6 libxrender-dev libglib2.0-0"
    } else {
        ""
    };
    let mut lines = vec![
        "echo 'Binary::apt::APT::Keep-Downloaded-Packages \"true\";' > /etc/apt/apt.conf.d/docker-clean".to_owned(),
        "chown -R $(whoami) $HOME/.cache/pip".to_owned(),
        "export DEBIAN_FRONTEND=noninteractive".to_owned(),
        format!("export CLEARML_APT_INSTALL=\"$CLEARML_APT_INSTALL{libraries}\""),
    ];
    if asked.ssh_copy.is_some() {
        lines.push("cp -Rf {mount_ssh_ro} -T {mount_ssh}".to_owned());
    }
    if asked.git_copy.is_some() {
        lines.push("cp -Rf {mount_git_ro} -T ~/".to_owned());
    }
    let rest = [
        "[ ! -z $(which git 2> /dev/null || command -v git) ] || export CLEARML_APT_INSTALL=\"$CLEARML_APT_INSTALL git\"",
        "declare LOCAL_PYTHON",
        "[ ! -z $LOCAL_PYTHON ] || for i in {{20..5}}; do (which {python_single_digit}.$i 2> /dev/null || command -v {python_single_digit}.$i) && {python_single_digit}.$i -m pip --version && export LOCAL_PYTHON=$(which {python_single_digit}.$i 2> /dev/null || command -v {python_single_digit}.$i) && break ; done",
        "[ ! -z $LOCAL_PYTHON ] || export CLEARML_APT_INSTALL=\"$CLEARML_APT_INSTALL {python_single_digit}-pip\"",
        "[ -z \"$CLEARML_APT_INSTALL\" ] || (apt-get update -y ; apt-get install -y $CLEARML_APT_INSTALL) || (dnf install -y $CLEARML_APT_INSTALL)",
        "rm -f /usr/lib/python3.*/EXTERNALLY-MANAGED",
    ];
    lines.extend(rest.map(str::to_owned));
    lines
}

/// The placeholders of a configured script, as Python's `format` fills them in.
fn fill(line: &str, lines: &Lines, asked: &ScriptSpec<'_>) -> String {
    let pip = pip(lines);
    let values = [
        ("{python_single_digit}", "python3"),
        ("{python}", "python3"),
        ("{pip_version}", pip.as_str()),
        ("{clearml_agent_wheel}", asked.agent),
        ("{mount_ssh_ro}", asked.ssh_copy.unwrap_or_default()),
        ("{mount_ssh}", asked.ssh_inside),
        ("{mount_git_ro}", asked.git_copy.unwrap_or_default()),
    ];
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let named = values.iter().find(|(name, _)| rest.starts_with(name));
        let length = match named {
            Some((name, value)) => {
                out.push_str(value);
                name.len()
            }
            None if rest.starts_with("{{") || rest.starts_with("}}") => {
                out.push_str(&rest[..1]);
                2
            }
            None => {
                out.push_str(&rest[..1]);
                1
            }
        };
        rest = &rest[length..];
    }
    out.push_str(rest);
    out
}

/// `"pip<20.2 ; python_version < '3.10'" "pip…"`.
fn pip(lines: &Lines) -> String {
    if lines.pip.is_empty() {
        "\"pip\"".to_owned()
    } else {
        let each = lines.pip.iter().map(|version| format!("\"pip{version}\""));
        each.collect::<Vec<_>>().join(" ")
    }
}
