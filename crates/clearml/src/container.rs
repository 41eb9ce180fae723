//! The command line of a task: the stock agent's `execute`, in a container or as a plain process.
//!
//! ```text
//! clearml.conf, environment ──► Setup ─┐
//! the task's container, its slot ──────┼──► Launch: command, container, variables, lines for the task's log
//! files of one task ───────────────────┘
//! ```
//! The container is the stock agent's (3.0.3), word for word, but for two things: the GPU comes as the node agent's slice, and
//! what would let the container out of that slice is left out of its arguments and named in the task's log.

mod arguments;
mod environments;
mod files;
mod masking;
mod script;
mod setup;
mod template;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use divvy_api::v1;
use divvy_core::docker::{self, ContainerOptionError};

use crate::Settings;
use crate::config::{ConfigError, Credentials};
use crate::server::{self, Task};
use crate::slot::TaskSlot;

use arguments::{Argument, merged, of_agent, of_task, share_memory};
pub use files::FileError;
use files::{TaskFolder, config_inside, make_caches};
use masking::listed;
use script::CONFIG;
pub use script::{ScriptSpec, script};
pub use setup::{Lines, Setup};
use setup::{expanded, joined, shell, split_flags};
use template::filled;

/// The command line's options on running tasks.
#[derive(Clone, Debug)]
pub struct Options {
    /// `--docker [IMAGE [ARGUMENT…]]`; absent: tasks run as plain processes.
    pub docker: Option<Vec<String>>,
    /// The stock agent where there is no container: program and arguments that come before `execute`.
    pub agent: Vec<String>,
    /// Tags of the workers that tasks run as; without them, the daemon's own.
    pub slot_tags: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            docker: None,
            agent: vec!["clearml-agent".to_owned()],
            slot_tags: Vec::new(),
        }
    }
}

/// The launch of a claimed task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Its container.
    pub container: Option<v1::Container>,
    /// Their environment; in a container, besides the image's.
    pub env: BTreeMap<String, String>,
    /// Lines for the task's log before it starts, in order, each with its line break.
    pub lines: Vec<String>,
    /// The update of the task's container section on the server, where the task has none of its own.
    pub write_back: Option<server::Container>,
    /// The command line that comes to the same, in three parts: before the GPUs, after them, and the whole rest.
    shown: [Vec<String>; 2],
}

impl Launch {
    /// The line of the task's log that says what is executed. `slice`: what the node agent adds, as flags of `docker run`.
    pub fn executing(&self, slice: &[String]) -> String {
        let [before, after] = &self.shown;
        let added = slice.iter().filter(|_| self.container.is_some());
        let words: Vec<String> = before.iter().chain(added).chain(after).cloned().collect();
        format!("Executing: {}\n", listed(&words))
    }
}

/// Why a task cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("cannot create its container: {0}")]
    Container(#[from] ContainerOptionError),
}

/// How tasks are run here.
#[derive(Clone, Debug)]
pub struct Runner {
    setup: Setup,
    /// Whether in containers.
    docker: bool,
    /// As in [`Options`].
    agent: Vec<String>,
    /// The configuration, as tasks get it.
    inside: serde_json::Value,
    /// The file that was named for this daemon, for plain processes.
    file: Option<PathBuf>,
    token: Option<String>,
    /// Where virtual environments are built outside of containers.
    venvs: String,
}

/// Has `clearml-agent execute` end with the exit code of the task's program, instead of 0 (3.0.3, `worker.py`).
const PROPAGATE: (&str, &str) = ("CLEARML_AGENT_PROPAGATE_EXITCODE", "1");

/// The files of one task on this machine.
#[derive(Clone, Debug)]
struct TaskFiles {
    config: PathBuf,
    ssh: Option<PathBuf>,
}

impl Runner {
    /// # Errors
    /// [`ConfigError`], for a value that means nothing.
    pub fn read(settings: &Settings, options: &Options) -> Result<Self, ConfigError> {
        // Other variables cannot be said to the node agent, whose environments are text.
        let vars = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        Self::read_with(settings, options, vars.collect())
    }

    /// The same with another environment.
    ///
    /// # Errors
    /// As above.
    pub fn read_with(
        settings: &Settings,
        options: &Options,
        vars: BTreeMap<String, String>,
    ) -> Result<Self, ConfigError> {
        let tree = &settings.tree;
        let setup = Setup {
            worker_tags: if options.slot_tags.is_empty() {
                settings.worker_tags.clone()
            } else {
                options.slot_tags.clone()
            },
            ..Setup::read(tree, options.docker.as_deref().unwrap_or_default(), vars)?
        };
        let venvs = tree.text("agent.venvs_dir")?;
        Ok(Self {
            inside: config_inside(tree.root(), &setup.mounts),
            docker: options.docker.is_some(),
            agent: options.agent.clone(),
            file: tree.file().map(Path::to_owned),
            token: match &settings.api.credentials {
                Credentials::Token(token) => Some(token.expose().to_owned()),
                Credentials::Keys { .. } => None,
            },
            venvs: venvs.unwrap_or_else(|| "~/.clearml/venvs-builds".to_owned()),
            setup,
        })
    }

    /// Which docker arguments of the configuration are read as several words, where tasks run in containers.
    pub fn split_arguments(&self) -> Option<String> {
        let split = &self.setup.split;
        (self.docker && !split.is_empty()).then(|| split_note(split))
    }

    /// The image of tasks that name none, where tasks run in containers.
    pub fn image(&self) -> Option<&str> {
        self.docker.then_some(self.setup.image.as_str())
    }

    /// The stock agent's `execute`, as lists of jobs show it for tasks that wait.
    pub fn execute(&self) -> Vec<String> {
        let stock = Options::default().agent;
        let agent = if self.docker { &stock } else { &self.agent };
        [&agent[..], &["execute".to_owned()]].concat()
    }

    /// Prepares the launch of a task on this slot. In container mode it creates the task's files on this machine, until
    /// [`Runner::clear`].
    ///
    /// # Errors
    /// When its files cannot be made.
    pub fn launch(&self, task: &Task, slot: &TaskSlot) -> Result<Launch, LaunchError> {
        if !self.docker {
            return Ok(self.process(task, slot));
        }
        let mounts = &self.setup.mounts;
        let folder = TaskFolder::make(&mounts.tasks, &task.id)?;
        let made = TaskFiles {
            config: folder.write_config(&self.inside)?,
            ssh: match &mounts.ssh {
                Some(keys) => Some(folder.copy_keys(keys)?),
                None => None,
            },
        };
        let caches = mounts.caches(own_suffix(slot).as_deref());
        make_caches(caches.iter().map(|one| one.host.as_path()));
        self.contained(task, slot, &made)
    }

    /// Removes what was made on this machine for a task.
    ///
    /// # Errors
    /// When something of it stays.
    pub fn clear(&self, task: &str) -> std::io::Result<()> {
        if self.docker {
            TaskFolder::remove(&self.setup.mounts.tasks, task)
        } else {
            Ok(())
        }
    }

    /// Removes what was made for tasks that are none of these: an earlier daemon was killed before it could.
    pub fn clear_all_but(&self, living: &BTreeSet<String>) {
        let folders = std::fs::read_dir(&self.setup.mounts.tasks)
            .into_iter()
            .flatten()
            .flatten();
        for name in folders.filter_map(|entry| entry.file_name().into_string().ok()) {
            if !living.contains(&name)
                && let Err(error) = self.clear(&name)
            {
                tracing::warn!(task = name, %error, "cannot remove the files of an ended task");
            }
        }
    }

    /// A plain process: the stock agent with the daemon's own environment.
    fn process(&self, task: &Task, slot: &TaskSlot) -> Launch {
        let flags = self.execute_flags();
        let flags = flags.split(' ').map(str::to_owned);
        let more = ["--id", &task.id].map(str::to_owned);
        let agent = self.agent.iter().cloned().chain(["execute".to_owned()]);
        let command: Vec<String> = agent.chain(flags).chain(more).collect();
        let mut env = self.setup.vars.clone();
        // Which GPUs it has and what holds it to them is the node agent's to say.
        env.retain(|name, _| {
            !name.starts_with("DIVVY_")
                && !["NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"].contains(&name.as_str())
        });
        env.insert("CLEARML_WORKER_ID".into(), slot.worker.clone());
        env.insert("CLEARML_TASK_ID".into(), task.id.clone());
        env.insert(PROPAGATE.0.into(), PROPAGATE.1.into());
        if let Some(file) = &self.file {
            env.insert("CLEARML_CONFIG_FILE".into(), file.display().to_string());
        }
        if let Some(suffix) = own_suffix(slot) {
            // Two at once would build in the same folder.
            let venvs = expanded(&self.venvs, &self.setup.vars);
            let venvs = format!("{}.{suffix}", venvs.trim_end_matches('/'));
            environments::remove_unfinished(Path::new(&venvs));
            env.insert("CLEARML_AGENT__AGENT__VENVS_DIR".into(), venvs);
            env.insert("CLEARML_AGENT_GPU_FRACTIONS".into(), slot.fractions());
        }
        self.add_worker(&mut |name, value| drop(env.insert(name.to_owned(), value)));
        Launch {
            shown: [command.clone(), Vec::new()],
            command,
            env,
            ..Launch::default()
        }
    }

    /// Flags of the agent's `execute`.
    fn execute_flags(&self) -> String {
        let mut flags = "--full-monitoring".to_owned();
        if self.setup.script.standalone {
            flags += " --standalone-mode";
        }
        // The agent of a task replaces the variable by the value of its own flag.
        let level = self.setup.vars.get("CLEARML_LOG_LEVEL");
        if let Some(level) = level.filter(|level| LOG_LEVELS.contains(&level.as_str())) {
            flags += &format!(" --log-level {level}");
        }
        flags
    }

    /// Adds the variables that the task's agent needs from the daemon.
    fn add_worker(&self, add: &mut dyn FnMut(&str, String)) {
        if let Some(token) = &self.token {
            add("CLEARML_AUTH_TOKEN", token.clone());
        }
        if !self.setup.worker_tags.is_empty() {
            let tags = self
                .setup
                .worker_tags
                .iter()
                .map(|tag| docker::words::quoted(tag));
            add("CLEARML_WORKER_TAGS", tags.collect::<Vec<_>>().join(" "));
        }
        if let Some(level) = self.setup.vars.get("CLEARML_LOG_LEVEL") {
            add("CLEARML_LOG_LEVEL", level.clone());
        }
    }

    /// The stock agent's `docker run`.
    fn contained(
        &self,
        task: &Task,
        slot: &TaskSlot,
        made: &TaskFiles,
    ) -> Result<Launch, LaunchError> {
        let setup = &self.setup;
        let asked = task.container.clone().unwrap_or_default();
        let own_image = asked
            .image
            .as_deref()
            .map(str::trim)
            .filter(|image| !image.is_empty());
        let own_image = own_image.filter(|_| !setup.no_override);
        let is_default = own_image.is_none();
        let (image, (words, split)) = match own_image {
            Some(image) => (
                image.to_owned(),
                split_flags(shell(asked.arguments.as_deref().unwrap_or_default())),
            ),
            None => (setup.image.clone(), (setup.arguments.clone(), Vec::new())),
        };
        let script_of_task = asked.setup_shell_script.as_deref();
        let mut lines = vec![format!(
            "Running Task {} inside {}docker: {image} arguments: {}\n",
            task.id,
            if is_default { "default " } else { "" },
            listed(&setup.masks.over(&words)),
        )];
        if !split.is_empty() {
            lines.push(format!("divvy: {}\n", split_note(&split)));
        }
        if let Some(text) = script_of_task.filter(|text| !text.is_empty()) {
            lines.push(format!("custom_setup_bash_script:\n{text}\n"));
        }
        let words: Vec<String> = words.iter().map(|word| filled(word, task, slot)).collect();
        // The image's defaults are the administrator's words, and are judged like a task's all the same.
        let mut of_task = of_task(&words, setup);
        let mut extra = setup.extra.clone();
        if let Some(socket) = &setup.mounts.ssh_socket {
            extra.extend([
                "-v".into(),
                format!("{socket}:{socket}"),
                "-e".into(),
                format!("SSH_AUTH_SOCK={socket}"),
            ]);
        }
        let mut of_agent = of_agent(&extra, setup);
        share_memory(&mut of_task, &mut of_agent, setup);
        lines.extend(of_task.left_out.into_iter().chain(of_agent.left_out));
        let mut all = merged(of_task.kept, of_agent.kept, setup);
        all.retain(|one| {
            let ours = one.target().is_some_and(|target| target == CONFIG);
            if ours {
                lines.push(format!(
                    "clearml-agent: ignoring docker argument {}: {CONFIG} is reserved for the configuration\n",
                    one.0.join(" ")
                ));
            }
            !ours
        });
        let flags = self.flags(task, slot, &image, &all, made);
        let whole = self.script(task, script_of_task, made);

        let options = docker::options(&flags)?;
        let mut env: BTreeMap<String, String> = BTreeMap::new();
        // Of several the last one counts, as in the engine.
        env.extend(
            options
                .env
                .into_iter()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        let fractions = slot.fractions();
        let mut before: Vec<String> = ["docker", "run"].map(str::to_owned).to_vec();
        if own_suffix(slot).is_some() {
            env.insert("CLEARML_AGENT_GPU_FRACTIONS".into(), fractions.clone());
            before.extend([
                "-e".into(),
                format!("CLEARML_AGENT_GPU_FRACTIONS={fractions}"),
            ]);
        }
        env.insert(PROPAGATE.0.into(), PROPAGATE.1.into());
        before.extend(["-e".into(), format!("{}={}", PROPAGATE.0, PROPAGATE.1)]);
        before.push("-t".into());
        let command = ["bash", "-c", &whole].map(str::to_owned).to_vec();
        let after: Vec<String> = flags
            .iter()
            .chain([&image])
            .chain(&command)
            .cloned()
            .collect();
        let written = |words: &[String]| {
            words
                .iter()
                .map(|word| docker::words::quoted(word))
                .collect::<Vec<_>>()
                .join(" ")
        };
        Ok(Launch {
            container: Some(v1::Container {
                image: image.clone(),
                arguments: docker::without_env(&flags)?,
                starter: None,
                as_submitter: false,
            }),
            env,
            lines,
            write_back: is_default.then(|| server::Container {
                image: Some(image),
                arguments: Some(written(&self.setup.arguments)),
                setup_shell_script: asked.setup_shell_script.clone(),
            }),
            shown: [setup.masks.over(&before), setup.masks.over(&after)],
            command,
        })
    }

    /// Flags in the stock order, all but the GPUs.
    fn flags(
        &self,
        task: &Task,
        slot: &TaskSlot,
        image: &str,
        arguments: &[Argument],
        made: &TaskFiles,
    ) -> Vec<String> {
        let setup = &self.setup;
        let mut flags: Vec<String> = arguments.iter().flat_map(|one| one.0.clone()).collect();
        let taken: BTreeSet<String> = arguments.iter().filter_map(Argument::target).collect();
        let mut add = |flag: &str, value: String| flags.extend([flag.to_owned(), value]);
        add("-l", format!("clearml-worker-id={}", slot.worker));
        add("-l", format!("clearml-parent-worker-id={}", slot.parent));
        for label in &setup.labels {
            add("-l", label.clone());
        }
        add("-e", format!("CLEARML_WORKER_ID={}", slot.worker));
        add("-e", format!("CLEARML_DOCKER_IMAGE={image}"));
        add("-e", format!("CLEARML_TASK_ID={}", task.id));
        self.add_worker(&mut |name, value| add("-e", format!("{name}={value}")));
        if let Some(skip) = &setup.skip_venv {
            add("-e", format!("CLEARML_AGENT_SKIP_PIP_VENV_INSTALL={skip}"));
        }
        if own_suffix(slot).is_some() {
            add("-e", "CLEARML_AGENT_SERVICE_TASK=1".to_owned());
        }
        if let Some(wheel) = &setup.wheel {
            add("-v", joined(wheel, &wheel_inside(wheel)));
        }
        let mounts = &setup.mounts;
        for file in &mounts.git {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            add(
                "-v",
                joined(file, &format!("{}.git/{name}", mounts.ssh_copy)),
            );
        }
        add("-v", joined(&made.config, CONFIG));
        add("-e", format!("CLEARML_CONFIG_FILE={CONFIG}"));
        // A place that the arguments have taken is theirs.
        let mut mount = |joined: String, inside: &str| {
            if !taken.contains(inside) {
                add("-v", joined);
            }
        };
        if let Some(ssh) = &made.ssh {
            mount(joined(ssh, &mounts.ssh_copy), &mounts.ssh_copy);
        }
        for folder in mounts.caches(own_suffix(slot).as_deref()) {
            mount(folder.joined(), &folder.inside);
        }
        if setup.pull {
            flags.push("--pull=always".to_owned());
        }
        flags.push("--rm".to_owned());
        flags
    }

    fn script(&self, task: &Task, setup: Option<&str>, made: &TaskFiles) -> String {
        let mounts = &self.setup.mounts;
        let git = format!("{}.git", mounts.ssh_copy);
        let wheel = self
            .setup
            .wheel
            .as_deref()
            .map(|wheel| format!("\"{}\"", wheel_inside(wheel)));
        script(
            &self.setup.script,
            &ScriptSpec {
                task: &task.id,
                setup,
                ssh_copy: made.ssh.is_some().then_some(mounts.ssh_copy.as_str()),
                ssh_inside: &mounts.ssh_inside,
                git_copy: (!mounts.git.is_empty()).then_some(git.as_str()),
                agent: wheel.as_deref().unwrap_or(&self.setup.script.agent),
                visible: "all",
                flags: &self.execute_flags(),
            },
        )
    }
}

/// What `clearml-agent execute --log-level` takes.
const LOG_LEVELS: [&str; 6] = ["DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL"];

/// Names flags alone: a value may be secret.
fn split_note(flags: &[String]) -> String {
    format!(
        "each of these docker arguments has a blank and is read as several words: {}",
        flags.join(", ")
    )
}

/// Where a wheel of this machine lies in a container.
fn wheel_inside(wheel: &Path) -> String {
    format!(
        "/tmp/{}",
        wheel.file_name().unwrap_or_default().to_string_lossy()
    )
}

/// The suffix of this slot's own folders: `gpu2.25a`; `None` for the daemon that runs one task at a time.
fn own_suffix(slot: &TaskSlot) -> Option<String> {
    let (_, label) = slot.worker.rsplit_once(':')?;
    (slot.worker != slot.parent).then(|| label.replace([',', '/'], "-"))
}

#[cfg(test)]
mod tests;
