//! Container settings from clearml.conf and the environment, typed and with the stock agent's defaults.
//!
//! The defaults are those of `clearml-agent` 3.0.3 (`backend_api/config/default/agent.conf`, `sdk.conf`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use divvy_core::docker::{self, words};
use regex::Regex;

use super::masking::Masks;
use crate::config::{ConfigError, Tree};

/// `agent.default_docker.image`.
const IMAGE: &str = "nvidia/cuda:12.6.3-cudnn-runtime-ubuntu20.04";

/// `agent.forbidden_docker_args`.
const FORBIDDEN: [&str; 1] = ["entrypoint"];

/// `agent.protected_docker_extra_args`.
const PROTECTED: [&str; 4] = ["privileged", "security-opt", "network", "ipc"];

/// `agent.package_manager.pip_version`.
const PIP: [&str; 3] = [
    "<20.2 ; python_version < '3.10'",
    "<22.3 ; python_version >= '3.10' and python_version <= '3.11'",
    ">=23,<26 ; python_version >= '3.12'",
];

/// How tasks are run in containers.
#[derive(Clone, Debug)]
pub struct Setup {
    /// For tasks that name no image.
    pub image: String,
    /// And its arguments.
    pub arguments: Vec<String>,
    /// `agent.disable_task_docker_override`: tasks do not choose.
    pub no_override: bool,
    /// `agent.extra_docker_arguments`.
    pub extra: Vec<String>,
    /// The flags of elements of these two that were read as several words.
    pub split: Vec<String>,
    /// `CLEARML_AGENT_EXTRA_DOCKER_LABELS`.
    pub labels: Vec<String>,
    /// `agent.docker_args_filters`: what of a task's arguments is let through; empty: all.
    pub filters: Vec<Regex>,
    /// `agent.forbidden_docker_args`: flags that are dropped from all arguments, without dashes.
    pub forbidden: Vec<String>,
    /// Flags of `extra` that a task may not give as well, and the reverse.
    pub protected: Vec<String>,
    /// `agent.docker_args_extra_precedes_task`.
    pub extra_first: bool,
    /// `agent.docker_allow_host_environ`: `-e NAME` and `$NAME` in a task's arguments mean the daemon's variables.
    pub host_environment: bool,
    pub script: Lines,
    pub mounts: Mounts,
    pub masks: Masks,
    /// `agent.docker_force_pull`.
    pub pull: bool,
    /// `FORCE_LOCAL_CLEARML_AGENT_WHEEL`: a wheel of the agent on this machine that the container installs.
    pub wheel: Option<PathBuf>,
    /// `CLEARML_AGENT_SKIP_PIP_VENV_INSTALL`, passed on.
    pub skip_venv: Option<String>,
    /// Tags of the worker, for the task's own agent.
    pub worker_tags: Vec<String>,
    /// Bytes of memory that this machine has.
    pub host_memory: u64,
    /// The daemon's environment.
    pub vars: BTreeMap<String, String>,
}

/// The parts of the script in the container.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    /// `agent.docker_init_bash_script`: in place of the stock beginning.
    pub init: Option<Vec<String>>,
    /// `agent.docker_preprocess_bash_script`.
    pub before: Vec<String>,
    /// `agent.extra_docker_shell_script`.
    pub extra: Vec<String>,
    /// `agent.docker_install_opencv_libs`.
    pub opencv: bool,
    /// `agent.package_manager.pip_version`.
    pub pip: Vec<String>,
    /// The package of the agent: `clearml-agent`.
    pub agent: String,
    /// `agent.standalone_mode`: nothing is installed.
    pub standalone: bool,
}

/// Folders of the host and where they lie in the container.
#[derive(Clone, Debug, Default)]
pub struct Mounts {
    pub apt: Option<Folder>,
    pub pip: Option<Folder>,
    pub poetry: Option<Folder>,
    pub pip_download: Option<Folder>,
    pub cache: Option<Folder>,
    pub vcs: Option<Folder>,
    pub venvs: Option<Folder>,
    /// Where virtual environments are built in the container.
    pub venv_build: String,
    /// `~/.ssh`, copied; none where the keys stay outside.
    pub ssh: Option<PathBuf>,
    /// Where it is used and where its copy lies.
    pub ssh_inside: String,
    pub ssh_copy: String,
    /// The authentication agent's socket, in place of the keys.
    pub ssh_socket: Option<String>,
    /// `.git-credentials` and `.gitconfig`, those that are there.
    pub git: Vec<PathBuf>,
    /// Folder for what is made for one task: the configuration, the copy of the keys.
    pub tasks: PathBuf,
}

impl Mounts {
    /// The folders that containers of a slot keep from one task to the next.
    pub fn caches(&self, slot: Option<&str>) -> Vec<Folder> {
        let shared = [
            &self.pip,
            &self.poetry,
            &self.pip_download,
            &self.cache,
            &self.vcs,
            &self.venvs,
        ];
        let own = self.apt.iter().map(|apt| apt.of_slot(slot));
        own.chain(shared.into_iter().flatten().cloned()).collect()
    }
}

/// A folder of the host, and its place in the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    pub host: PathBuf,
    pub inside: String,
}

/// Bytes of memory that this machine has.
fn host_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

/// The daemon's environment and home, through which paths of the configuration are read.
struct PathContext<'a> {
    vars: &'a BTreeMap<String, String>,
    home: PathBuf,
}

impl Setup {
    /// `asked`: the words behind `--docker`.
    ///
    /// # Errors
    /// A value that means nothing, with its key.
    pub fn read(
        tree: &Tree,
        asked: &[String],
        vars: BTreeMap<String, String>,
    ) -> Result<Self, ConfigError> {
        let var = |name: &str| {
            vars.get(name)
                .filter(|value| !value.trim().is_empty())
                .cloned()
        };
        let (image, arguments) = default(tree, asked, var("CLEARML_DOCKER_IMAGE"))?;
        let extra = match var("CLEARML_AGENT_EXTRA_DOCKER_ARGS") {
            Some(line) => shell(&line),
            None => list(tree, "agent.extra_docker_arguments")?,
        };
        let (arguments, mut split) = split_flags(arguments);
        let (extra, split_extra) = split_flags(extra);
        split.extend(split_extra);
        let labels = var("CLEARML_AGENT_EXTRA_DOCKER_LABELS");
        let filters = match var("CLEARML_AGENT_DOCKER_ARGS_FILTERS") {
            Some(line) => shell(&line),
            None => list(tree, "agent.docker_args_filters")?,
        };
        let filters = filters.iter().map(|pattern| {
            // As Python's `re.match`: from the beginning.
            Regex::new(&format!("^(?:{pattern})")).map_err(|_| {
                tree.refuse(
                    "agent.docker_args_filters",
                    "expected a list of regular expressions",
                )
            })
        });
        let named = |key, standard: &[&str]| -> Result<Vec<String>, ConfigError> {
            Ok(match tree.get(key) {
                Some(_) => list(tree, key)?,
                None => standard.iter().map(ToString::to_string).collect(),
            })
        };
        let flag = |key, standard| Ok::<_, ConfigError>(tree.flag(key)?.unwrap_or(standard));
        let place = PathContext::of(&vars);
        let (lines, mounts) = (lines(tree, &var)?, place.mounts(tree)?);
        Ok(Self {
            image,
            arguments,
            no_override: flag("agent.disable_task_docker_override", false)?,
            extra,
            split,
            labels: labels.map(|line| shell(&line)).unwrap_or_default(),
            filters: filters.collect::<Result<_, _>>()?,
            forbidden: named("agent.forbidden_docker_args", &FORBIDDEN)?,
            protected: named("agent.protected_docker_extra_args", &PROTECTED)?,
            extra_first: flag("agent.docker_args_extra_precedes_task", true)?,
            host_environment: flag("agent.docker_allow_host_environ", false)?,
            script: lines,
            mounts,
            masks: Masks::read(tree, &vars)?,
            pull: flag("agent.docker_force_pull", false)?,
            wheel: var("FORCE_LOCAL_CLEARML_AGENT_WHEEL").map(|path| place.path(&path)),
            skip_venv: var("CLEARML_AGENT_SKIP_PIP_VENV_INSTALL"),
            worker_tags: Vec::new(),
            host_memory: host_memory(),
            vars,
        })
    }
}

/// The image and the arguments of tasks that name none.
fn default(
    tree: &Tree,
    asked: &[String],
    var: Option<String>,
) -> Result<(String, Vec<String>), ConfigError> {
    let first = match asked.first() {
        Some(first) => first.clone(),
        None => match var {
            Some(image) => image,
            None => tree
                .text("agent.default_docker.image")?
                .filter(|image| !image.trim().is_empty())
                .unwrap_or_else(|| IMAGE.to_owned()),
        },
    };
    // An image may come with its arguments in one text.
    let mut words = shell(&first).into_iter();
    let image = words.next().unwrap_or_else(|| IMAGE.to_owned());
    let behind: Vec<String> = words.collect();
    let arguments = match (behind.is_empty(), asked.len()) {
        (false, _) => behind,
        (true, 2..) => asked[1..].to_vec(),
        (true, _) => list(tree, "agent.default_docker.arguments")?,
    };
    Ok((image, arguments))
}

fn lines(tree: &Tree, var: &dyn Fn(&str) -> Option<String>) -> Result<Lines, ConfigError> {
    let script = |key| -> Result<Option<Vec<String>>, ConfigError> {
        Ok(match tree.get(key) {
            None => None,
            Some(serde_json::Value::String(line)) => Some(vec![line.clone()]),
            Some(_) => tree.strings(key)?,
        })
    };
    let pip = match tree.get("agent.package_manager.pip_version") {
        None => PIP.iter().map(ToString::to_string).collect(),
        Some(serde_json::Value::String(one)) => vec![one.clone()],
        Some(_) => tree
            .strings("agent.package_manager.pip_version")?
            .unwrap_or_default(),
    };
    Ok(Lines {
        init: script("agent.docker_init_bash_script")?,
        before: script("agent.docker_preprocess_bash_script")?.unwrap_or_default(),
        extra: script("agent.extra_docker_shell_script")?.unwrap_or_default(),
        opencv: tree
            .flag("agent.docker_install_opencv_libs")?
            .unwrap_or(true),
        // A bare version is one exactly, as the stock agent has it.
        pip: pip.iter().map(|version| pinned(version)).collect(),
        agent: var("FORCE_CLEARML_AGENT_REPO")
            .or_else(|| var("CLEARML_AGENT_DOCKER_AGENT_REPO"))
            .unwrap_or_else(|| "clearml-agent".to_owned()),
        standalone: tree.flag("agent.standalone_mode")?.unwrap_or(false),
    })
}

/// `==20.1` from `20.1`; what has a sign already stays.
fn pinned(version: &str) -> String {
    let version = version.trim();
    let signed = version.is_empty() || version.starts_with(['=', '<', '>', '~', '!', '@']);
    if signed {
        version.to_owned()
    } else {
        format!("=={version}")
    }
}

impl<'a> PathContext<'a> {
    fn of(vars: &'a BTreeMap<String, String>) -> Self {
        let home = vars
            .get("HOME")
            .map_or_else(|| PathBuf::from("/root"), PathBuf::from);
        Self { vars, home }
    }

    /// `~/x` and `$NAME/x` as Python's `expanduser` and `expandvars` have them.
    fn path(&self, text: &str) -> PathBuf {
        let text = expanded(text, self.vars);
        match text.strip_prefix("~/") {
            Some(rest) => self.home.join(rest),
            None if text == "~" => self.home.clone(),
            None => PathBuf::from(text),
        }
    }

    fn mounts(&self, tree: &Tree) -> Result<Mounts, ConfigError> {
        let host = |key: &str, standard: &str| -> Result<Option<PathBuf>, ConfigError> {
            let text = match tree.get(key) {
                Some(_) => tree.text(key)?.unwrap_or_default(),
                None => standard.to_owned(),
            };
            Ok((!text.trim().is_empty()).then(|| self.path(text.trim())))
        };
        let inside = |name: &str, standard: &str| -> Result<String, ConfigError> {
            let text = tree.text(&format!("agent.docker_internal_mounts.{name}"))?;
            Ok(text
                .filter(|text| !text.is_empty())
                .unwrap_or_else(|| standard.to_owned()))
        };
        let folder = |key, standard: &str, name, at: &str| -> Result<Option<Folder>, ConfigError> {
            let inside = inside(name, at)?;
            Ok(host(key, standard)?.map(|host| Folder { host, inside }))
        };
        let set = |name: &str| self.vars.get(name).filter(|value| !value.trim().is_empty());
        let socket = set("SSH_AUTH_SOCK").cloned();
        let no_ssh = set("CLEARML_AGENT_DISABLE_SSH_MOUNT")
            .is_some_and(|text| ["1", "true", "yes", "on"].contains(&text.to_lowercase().as_str()));
        let no_ssh = no_ssh || tree.flag("agent.disable_ssh_mount")?.unwrap_or(false);
        let ssh = self.home.join(".ssh");
        let git = [".git-credentials", ".gitconfig"].map(|name| self.home.join(name));
        let poetry = tree.text("agent.package_manager.type")?.as_deref() == Some("poetry");
        let vcs = tree.flag("agent.vcs_cache.enabled")?.unwrap_or(true);
        Ok(Mounts {
            apt: folder(
                "agent.docker_apt_cache",
                "~/.clearml/apt-cache",
                "apt_cache",
                "/var/cache/apt/archives",
            )?,
            pip: folder(
                "agent.docker_pip_cache",
                "~/.clearml/pip-cache",
                "pip_cache",
                "/root/.cache/pip",
            )?,
            poetry: folder(
                "agent.docker_poetry_cache",
                "~/.clearml/poetry-cache",
                "poetry_cache",
                "/root/.cache/pypoetry",
            )?
            .filter(|_| poetry),
            pip_download: folder(
                "agent.pip_download_cache.path",
                "~/.clearml/pip-download-cache",
                "pip_download",
                "/root/.clearml/pip-download-cache",
            )?,
            cache: folder(
                "sdk.storage.cache.default_base_dir",
                "~/.clearml/cache",
                "sdk_cache",
                "/clearml_agent_cache",
            )?,
            vcs: folder(
                "agent.vcs_cache.path",
                "~/.clearml/vcs-cache",
                "vcs_cache",
                "/root/.clearml/vcs-cache",
            )?
            .filter(|_| vcs),
            venvs: folder(
                "agent.venvs_cache.path",
                "~/.clearml/venvs-cache",
                "venvs_cache",
                "/root/.clearml/venvs-cache",
            )?,
            venv_build: inside("venv_build", "~/.clearml/venvs-builds")?,
            ssh: (socket.is_none() && !no_ssh && ssh.is_dir()).then_some(ssh),
            ssh_inside: inside("ssh_folder", "~/.ssh")?,
            ssh_copy: inside("ssh_ro_folder", "/.ssh")?,
            ssh_socket: socket,
            git: git.into_iter().filter(|file| file.is_file()).collect(),
            tasks: self.home.join(".clearml/divvy"),
        })
    }
}

/// A list of texts; one text alone is shell words.
fn list(tree: &Tree, key: &str) -> Result<Vec<String>, ConfigError> {
    match tree.get(key) {
        None => Ok(Vec::new()),
        Some(serde_json::Value::String(line)) => Ok(shell(line)),
        Some(_) => Ok(tree.strings(key)?.unwrap_or_default()),
    }
}

/// A list of flags of which each element may be a flag with its value, `-e A=b`, or several: the words of all, and the
/// flags of those elements. Docker takes such an element as one word, with the blank in the value. The stock agent
/// writes the list to the task as one text, whose words are these.
pub fn split_flags(list: Vec<String>) -> (Vec<String>, Vec<String>) {
    let (mut words, mut split) = (Vec::with_capacity(list.len()), Vec::new());
    for element in list {
        if has_several_words(&element) {
            let several = shell(&element);
            split.extend(several.first().cloned());
            words.extend(several);
        } else {
            words.push(element)
        }
    }
    (words, split)
}

/// Whether a blank of an element is between words, and not in a value: `--env=A=b c` and `-eA=b c` are one word.
fn has_several_words(element: &str) -> bool {
    let Some((flag, rest)) = element.trim().split_once(char::is_whitespace) else {
        return false;
    };
    let is_long = |name: &str| {
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
        !name.is_empty() && name.chars().all(is_part)
    };
    let is_flag = match (flag.strip_prefix("--"), flag.strip_prefix('-')) {
        (Some(name), _) => is_long(name),
        (None, Some(letters)) => {
            !letters.is_empty() && letters.chars().all(|letter| letter.is_ascii_alphabetic())
        }
        (None, None) => return false,
    };
    let has_flags = || rest.split_whitespace().any(|word| word.starts_with('-'));
    is_flag
        || match docker::options(&[element.to_owned()]) {
            Ok(options) => options.env.is_empty() && options.labels.is_empty() && has_flags(),
            Err(_) => true,
        }
}

/// Words as a shell has them; by blanks alone where a quote is not closed.
pub fn shell(line: &str) -> Vec<String> {
    words::split(line).unwrap_or_else(|_| line.split_whitespace().map(str::to_owned).collect())
}

/// `$NAME` and `${NAME}`; one that is not set stays as it is written.
pub fn expanded(text: &str, vars: &BTreeMap<String, String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let behind = &rest[at + 1..];
        let (name, length) = match behind.strip_prefix('{') {
            Some(braced) => match braced.find('}') {
                Some(end) => (&braced[..end], end + 2),
                None => ("", 0),
            },
            None => {
                let part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
                let end = behind.find(|letter| !part(letter)).unwrap_or(behind.len());
                (&behind[..end], end)
            }
        };
        match vars.get(name) {
            Some(value) => out.push_str(value),
            None => {
                out.push('$');
                out.push_str(&behind[..length]);
            }
        }
        rest = &behind[length..];
    }
    out.push_str(rest);
    out
}

impl Folder {
    /// `HOST:CONTAINER`.
    pub fn joined(&self) -> String {
        joined(&self.host, &self.inside)
    }

    /// The same folder for one slot: what two containers at once would lock against each other.
    fn of_slot(&self, slot: Option<&str>) -> Self {
        match slot {
            None => self.clone(),
            Some(slot) => Self {
                host: PathBuf::from(format!("{}.{slot}", self.host.display())),
                inside: self.inside.clone(),
            },
        }
    }
}

pub fn joined(host: &Path, inside: &str) -> String {
    format!("{}:{inside}", host.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_in_paths_are_read_as_python_reads_them() {
        let vars = BTreeMap::from([
            ("A".to_owned(), "x".to_owned()),
            ("HOME".to_owned(), "/h".to_owned()),
        ]);
        for (text, expected) in [
            ("$A/${A}y$A_", "x/xy$A_"),
            ("${B}$", "${B}$"),
            ("${A", "${A"),
            ("plain", "plain"),
        ] {
            assert_eq!(expanded(text, &vars), expected);
        }
        let place = PathContext::of(&vars);
        assert_eq!(place.path("~/.clearml/$A"), Path::new("/h/.clearml/x"));
        assert_eq!(place.path("/a~"), Path::new("/a~"));
    }

    #[test]
    fn an_element_of_docker_arguments_that_is_a_flag_and_its_value_is_several_words() {
        for (element, expected) in [
            // The elements of clearml-agent 174.
            (
                "-e http_proxy=http://192.0.2.1:3128",
                "-e|http_proxy=http://192.0.2.1:3128",
            ),
            (
                "-e no_proxy=localhost,10.0.0.0/8",
                "-e|no_proxy=localhost,10.0.0.0/8",
            ),
            ("-v /data:/data", "-v|/data:/data"),
            ("--shm-size 1g", "--shm-size|1g"),
            ("--label a=b", "--label|a=b"),
            // Of another public clearml.conf, and other forms.
            ("-v /home/ana/data:/opt/data", "-v|/home/ana/data:/opt/data"),
            (" -v  /a:/a -v /b:/b ", "-v|/a:/a|-v|/b:/b"),
            ("-e A=\"b c\"", "-e|A=b c"),
            ("-e 'A=b c'", "-e|A=b c"),
            ("--env-file /x y", "--env-file|/x|y"),
            ("-it --rm", "-it|--rm"),
            ("--ipc=host --network=host", "--ipc=host|--network=host"),
            ("--network=host --ipc=host", "--network=host|--ipc=host"),
            ("--shm-size=8g --cpus=2", "--shm-size=8g|--cpus=2"),
            ("-e A=it's", "-e|A=it's"),
        ] {
            let (words, split) = split_flags(vec![element.to_owned()]);
            assert_eq!(words.join("|"), expected, "{element}");
            assert_eq!(split, [words[0].clone()], "{element}");
        }
        // In these the blank is in the value, and docker takes them so.
        for element in [
            "--env=A=b c",
            "-eA=b c",
            "-e=A=-x -y",
            "--env=JAVA_OPTS=-Xmx1g -Xms1g",
            "--label=a=b c",
            "-v/data:/my data",
            "--shm-size=1g",
            "-e",
            "A=b c",
            "A=-x -y",
            "",
            " ",
        ] {
            let list = vec![element.to_owned()];
            assert_eq!(split_flags(list.clone()), (list, Vec::new()), "{element}");
        }
    }

    #[test]
    fn a_version_of_pip_without_a_sign_is_that_one() {
        assert_eq!(pinned("20.1"), "==20.1");
        assert_eq!(
            pinned(" <20.2 ; python_version < '3.10'"),
            "<20.2 ; python_version < '3.10'"
        );
        assert_eq!(pinned(""), "");
    }
}
