//! The filter of `docker run` arguments that tasks and administrators bring: each is passed on, or dropped with a
//! message.
//!
//! ```text
//! the task's ──filters──┐
//!                       ├── forbidden ── judged by core's table ── merged, each flag of few once
//! agent.extra_… ────────┘
//! ```
//! The stock agent stops at its own lists; here every flag is also one that cannot let a container out of its slice.

use std::collections::BTreeMap;

use divvy_core::Bytes;
use divvy_core::docker::{self, ContainerOptionError, Mount};

use super::setup::{Setup, expanded};

/// One flag and what belongs to it, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument(pub Vec<String>);

/// The kept arguments, and a sentence for each dropped one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    pub kept: Vec<Argument>,
    pub left_out: Vec<String>,
    /// Which of `left_out` is about `--ipc=host`, by which it would have had the host's shared memory.
    pub host_ipc: Option<usize>,
}

impl Argument {
    /// `--gpus` of `--gpus=all`.
    fn flag(&self) -> &str {
        let first = self.0[0].trim();
        first.split_once('=').map_or(first, |(flag, _)| flag)
    }

    /// `gpus` of `--gpus=all`, as the stock agent's lists name flags.
    fn name(&self) -> &str {
        self.flag().trim_start_matches('-')
    }

    fn is_host_ipc(&self) -> bool {
        let value = match self.0[0].split_once('=') {
            Some((_, value)) => value,
            None => self.0.get(1).map_or("", String::as_str),
        };
        self.name() == "ipc" && value.trim() == "host"
    }

    /// Where it mounts something, if it does.
    pub fn target(&self) -> Option<String> {
        let options = docker::options(&self.0).ok()?;
        options
            .mounts
            .first()
            .map(|mount: &Mount| mount.target().to_owned())
    }
}

/// Groups words into flags. A word that belongs to no flag stands alone.
fn apart(words: &[String]) -> Vec<Argument> {
    let mut all: Vec<Argument> = Vec::new();
    let mut rest = words
        .iter()
        .filter(|word| !word.trim().is_empty())
        .peekable();
    while let Some(word) = rest.next() {
        let mut one = vec![word.trim().to_owned()];
        if word.trim().len() > 1 && word.trim().starts_with('-') {
            let takes_next =
                match docker::parse_command_line(&[one[0].clone(), "image".to_owned()], &[]) {
                    // The image was its value.
                    Err(ContainerOptionError::NoImage) => true,
                    // An unknown flag; a next word that is no flag is most likely its value.
                    Err(_) => {
                        !one[0].contains('=')
                            && rest.peek().is_some_and(|next| !next.starts_with('-'))
                    }
                    Ok(_) => false,
                };
            if takes_next {
                one.extend(rest.next().map(|value| value.trim().to_owned()));
            }
        }
        all.push(Argument(one));
    }
    all
}

/// A task's arguments that may be its container's.
pub fn of_task(words: &[String], setup: &Setup) -> Judged {
    let mut judged = Judged::default();
    for argument in apart(words) {
        let passes = setup.filters.is_empty()
            || setup
                .filters
                .iter()
                .any(|filter| filter.is_match(&argument.0[0]));
        if passes {
            judged.judge(argument, setup)
        } else {
            judged.leave_out(
                &argument,
                "it matches no pattern of agent.docker_args_filters",
            )
        }
    }
    if setup.host_environment {
        judged
            .kept
            .iter_mut()
            .for_each(|argument| argument.resolve(&setup.vars));
    }
    judged
}

/// `agent.extra_docker_arguments`, which may mean the daemon's variables.
pub fn of_agent(words: &[String], setup: &Setup) -> Judged {
    let mut judged = Judged::default();
    for mut argument in apart(words) {
        argument.resolve(&setup.vars);
        judged.judge(argument, setup);
    }
    judged
}

impl Judged {
    fn judge(&mut self, argument: Argument, setup: &Setup) {
        if setup.forbidden.iter().any(|name| name == argument.name()) {
            let why =
                "it would override the agent startup script and prevent the task from running";
            return self.leave_out(&argument, why);
        }
        match docker::options(&argument.0) {
            Ok(options) => match options.ignored.first() {
                None => self.kept.push(argument),
                Some(flag) => self.left_out.push(format!(
                    "divvy: ignoring a docker argument: {flag} has no effect, as the slice decides which GPUs the container gets\n"
                )),
            },
            Err(refused) => {
                if argument.is_host_ipc() {
                    self.host_ipc = Some(self.left_out.len());
                }
                self.left_out
                    .push(format!("divvy: ignoring a docker argument: {refused}\n"));
            }
        }
    }

    fn leave_out(&mut self, argument: &Argument, why: &str) {
        self.left_out.push(format!(
            "clearml-agent: ignoring docker argument {}: {why}\n",
            argument.flag()
        ));
    }
}

impl Argument {
    /// Fills in variables of the daemon's: `-e NAME`, `-e NAME=$OTHER`.
    fn resolve(&mut self, vars: &BTreeMap<String, String>) {
        let Ok(options) = docker::options(&self.0) else {
            return;
        };
        if let Some((name, value)) = options.env.first() {
            let value = match value {
                Some(value) => Some(expanded(value, vars)),
                None => vars.get(name).cloned(),
            };
            if let Some(value) = value {
                self.0 = vec!["-e".to_owned(), format!("{name}={value}")];
            }
        }
    }
}

/// Gives a container whose `--ipc=host` was left out shared memory of its own, as much as the host's default is: without it the engine
/// gives 64 MB, too little for the workers of a data loader. A size that the arguments name stays.
pub fn share_memory(task: &mut Judged, agent: &mut Judged, setup: &Setup) {
    let sized = |judged: &Judged| judged.kept.iter().any(|one| one.name() == "shm-size");
    if sized(task) || sized(agent) {
        return;
    }
    let line = match (task.host_ipc, agent.host_ipc) {
        (Some(at), _) => &mut task.left_out[at],
        (None, Some(at)) => &mut agent.left_out[at],
        (None, None) => return,
    };
    let mebibytes = (setup.host_memory / 2) >> 20;
    let human = Bytes::new(mebibytes << 20).human();
    let words = ["--shm-size".to_owned(), format!("{mebibytes}m")];
    *line = format!(
        "{}; the container gets {human} of /dev/shm, half of the host's memory (change this with --shm-size)\n",
        line.trim_end()
    );
    task.kept.push(Argument(words.to_vec()));
}

/// Both, in the order that the configuration says; of a protected flag only the first one's.
pub fn merged(task: Vec<Argument>, agent: Vec<Argument>, setup: &Setup) -> Vec<Argument> {
    let (mut first, second) = if setup.extra_first {
        (agent, task)
    } else {
        (task, agent)
    };
    let taken: Vec<String> = first.iter().map(|one| one.name().to_owned()).collect();
    let protected = |one: &Argument| {
        setup.protected.iter().any(|name| name == one.name())
            && taken.iter().any(|name| name == one.name())
    };
    first.extend(second.into_iter().filter(|one| !protected(one)));
    first
}

#[cfg(test)]
mod tests {
    use super::super::tests::setup;
    use super::*;

    fn split_words(line: &str) -> Vec<String> {
        divvy_core::docker::words::split(line).unwrap()
    }

    fn kept(judged: &Judged) -> Vec<String> {
        judged.kept.iter().map(|one| one.0.join(" ")).collect()
    }

    #[test]
    fn flags_keep_their_values_and_strangers_theirs() {
        let all = apart(&split_words(
            "--ipc=private -e A=b -it --no-such x --cpus 2 stray --rm",
        ));
        let all: Vec<String> = all.iter().map(|one| one.0.join("|")).collect();
        let expected = [
            "--ipc=private",
            "-e|A=b",
            "-it",
            "--no-such|x",
            "--cpus|2",
            "stray",
            "--rm",
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn what_would_let_a_task_out_of_its_slice_is_left_out_by_name() {
        let line = "--gpus all --privileged -v /:/host -e LD_PRELOAD=/x.so -e A=1 --pid=host --cap-add SYS_ADMIN \
                    --device /dev/nvidia0 -v /data:/data -v /x:/etc/ld.so.preload -e NVIDIA_VISIBLE_DEVICES=all --runtime nvidia \
                    --ipc=host --shm-size 8g --entrypoint sh --network host";
        let judged = of_task(&split_words(line), &setup(&[], ""));
        let expected = [
            "-e A=1",
            "-v /data:/data",
            "--shm-size 8g",
            "--network host",
        ];
        assert_eq!(kept(&judged), expected);
        let said = judged.left_out.concat();
        for name in [
            "--gpus all",
            "--privileged",
            "--volume=/:/host",
            "LD_PRELOAD",
            "--pid=host",
            "--cap-add=SYS_ADMIN",
            "--device=/dev/nvidia0",
            "ld.so.preload",
            "NVIDIA_VISIBLE_DEVICES",
            "--runtime=nvidia",
            "--ipc=host",
            "--entrypoint",
        ] {
            assert!(said.contains(name), "{name}: {said}");
        }
        assert_eq!(judged.left_out.len(), 12, "{said}");
        assert!(
            !said.contains("/x.so"),
            "a refusal keeps values to itself: {said}"
        );
    }

    #[test]
    fn shared_memory_takes_the_place_of_the_hosts() {
        let shared = |task: &str, agent: &str| {
            let setup = Setup {
                host_memory: 16 << 30,
                ..setup(&[], "")
            };
            let mut of_task = of_task(&split_words(task), &setup);
            let mut of_agent = of_agent(&split_words(agent), &setup);
            share_memory(&mut of_task, &mut of_agent, &setup);
            let said = of_task.left_out.concat() + &of_agent.left_out.concat();
            let all = Judged {
                kept: merged(of_task.kept, of_agent.kept, &setup),
                ..Judged::default()
            };
            (kept(&all), said)
        };
        for (task, agent) in [
            ("--ipc=host", ""),
            ("--ipc host -e A=1", ""),
            ("", "--ipc=host"),
            ("--ipc=host", "--ipc=host"),
        ] {
            let (kept, said) = shared(task, agent);
            assert!(
                kept.contains(&"--shm-size 8192m".to_owned()),
                "{task}|{agent}: {kept:?}"
            );
            assert_eq!(said.matches("8.0 GiB of /dev/shm").count(), 1, "{said}");
            assert!(said.starts_with("divvy: "), "{said}");
        }
        for (task, agent) in [
            ("--ipc=host --shm-size 1g", ""),
            ("--ipc=host", "--shm-size=1g"),
            ("--ipc=private", ""),
            ("--ipc=container:x", ""),
            ("", ""),
        ] {
            let (kept, said) = shared(task, agent);
            assert!(
                !kept.contains(&"--shm-size 8192m".to_owned()),
                "{task}|{agent}"
            );
            assert!(!said.contains("/dev/shm"), "{said}");
        }
    }

    #[test]
    fn filters_let_through_what_they_match_and_nothing_else() {
        let setup = setup(&[], r#"agent.docker_args_filters: ["^--env$", "^-e$"]"#);
        let judged = of_task(
            &split_words("-e A=1 --env B=2 --shm-size 8g --env=C=3"),
            &setup,
        );
        assert_eq!(kept(&judged), ["-e A=1", "--env B=2"]);
        assert!(judged.left_out[0].contains("--shm-size") && judged.left_out[1].contains("--env"));
        // They are for tasks alone.
        assert_eq!(
            kept(&of_agent(&split_words("--shm-size 8g"), &setup)),
            ["--shm-size 8g"]
        );
    }

    #[test]
    fn the_daemons_variables_are_the_administrators_to_give() {
        let line = split_words("-e WHO -e PATH_TO=$WHO/x -e NONE");
        let plain = setup(&[("WHO", "ana")], "");
        assert_eq!(
            kept(&of_agent(&line, &plain)),
            ["-e WHO=ana", "-e PATH_TO=ana/x", "-e NONE"]
        );
        assert_eq!(
            kept(&of_task(&line, &plain)),
            ["-e WHO", "-e PATH_TO=$WHO/x", "-e NONE"]
        );
        let open = setup(&[("WHO", "ana")], "agent.docker_allow_host_environ: true");
        assert_eq!(
            kept(&of_task(&line, &open))[..2],
            ["-e WHO=ana", "-e PATH_TO=ana/x"]
        );
    }

    #[test]
    fn of_a_protected_flag_the_first_ones_counts() {
        let merge = |config: &str| {
            let setup = setup(&[], config);
            let task = of_task(&split_words("--network host -e T=1"), &setup).kept;
            let agent = of_agent(&split_words("--network none -e A=1"), &setup).kept;
            merged(task, agent, &setup)
                .iter()
                .map(|one| one.0.join(" "))
                .collect::<Vec<_>>()
        };
        assert_eq!(merge(""), ["--network none", "-e A=1", "-e T=1"]);
        let reverse = "agent.docker_args_extra_precedes_task: false";
        assert_eq!(merge(reverse), ["--network host", "-e T=1", "-e A=1"]);
    }
}
