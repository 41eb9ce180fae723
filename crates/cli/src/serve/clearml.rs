//! What the words of `daemon` say about a ClearML Server.

use std::path::PathBuf;

use divvy_core::docker::words;
use divvy_core::{GpuSelection, QueueSpec};

use crate::args;
use crate::container;
use crate::failure::{Result, usage};

/// Whose tasks are run, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClearMl {
    pub config_file: Option<PathBuf>,
    pub create_queue: bool,
    /// Names on the server, in the order they are served; none: the server's default queue.
    pub queues: Vec<String>,
    /// What `--gpus` was given, without blanks; absent without it.
    pub gpus: Option<String>,
    /// Every task has a slot of its own; otherwise there is one task at a time, on all GPUs.
    pub dynamic: bool,
    /// The image for tasks that name none, and its arguments; absent: tasks run as processes.
    pub docker: Option<Vec<String>>,
    pub uptime: Vec<String>,
    pub downtime: Vec<String>,
    pub polling_interval: Option<u64>,
    pub slot_tags: Vec<String>,
    pub keep_children: bool,
    /// Program and arguments that run tasks as processes; absent: `clearml-agent`.
    pub agent: Option<Vec<String>>,
    /// `user`, `project`, `none`, or a file that maps the server's names to projects; absolute.
    pub project_by: Option<String>,
}

/// What these words say of it; `None` without `--clearml`.
///
/// # Errors
/// [`divvy_api::v1::ErrorCode::Usage`] with the word that is wrong.
pub fn clearml(
    args: &args::Daemon,
    gpus: &GpuSelection,
    queues: &[QueueSpec],
) -> Result<Option<ClearMl>> {
    let asked = &args.clearml;
    if !asked.clearml {
        return Ok(None);
    }
    if args.system {
        return Err(usage(
            "--clearml and --system are for two daemons",
            "leave --system out: tasks run as the user whose daemon this is",
        ));
    }
    if args.dynamic_gpus && *gpus == GpuSelection::All && args.gpus.is_empty() {
        return Err(usage(
            "--gpus must be provided with --dynamic-gpus: workers are named after it",
            "write --gpus 0-3, --gpus 0,1 or --gpus all",
        ));
    }
    let agent = match asked.clearml_agent.as_deref() {
        None => None,
        Some(line) => Some(
            words::split(line)
                .ok()
                .filter(|words| !words.is_empty())
                .ok_or_else(|| {
                    usage(
                        format!("--clearml-agent {line:?} is no command"),
                        "name a program, as in --clearml-agent /opt/venv/bin/clearml-agent",
                    )
                })?,
        ),
    };
    Ok(Some(ClearMl {
        config_file: asked.config_file.clone(),
        create_queue: asked.create_queue,
        queues: queues.iter().map(|queue| queue.name.to_string()).collect(),
        gpus: written(&args.gpus),
        dynamic: args.dynamic_gpus,
        docker: args
            .docker
            .as_deref()
            .map(container::unpacked)
            .transpose()?,
        uptime: asked.uptime.clone(),
        downtime: asked.downtime.clone(),
        polling_interval: asked.polling_interval,
        slot_tags: asked.child_report_tags.clone(),
        keep_children: asked.keep_children,
        agent,
        project_by: asked.clearml_project_by.as_deref().map(rule).transpose()?,
    }))
}

/// The rule with its file's whole path, which a daemon that goes into the background finds again.
fn rule(text: &str) -> Result<String> {
    if ["none", "user", "project"].contains(&text) {
        return Ok(text.to_owned());
    }
    let path = std::path::absolute(text).map_err(|error| {
        usage(
            format!("--clearml-project-by {text:?}: {error}"),
            "write user, project, none, or the path of a file",
        )
    })?;
    Ok(path.display().to_string())
}

/// `0,1` from the two words of `--gpus 0, 1`; `0-2` as it is.
fn written(words: &[String]) -> Option<String> {
    let items = words.iter().flat_map(|word| word.split([',', ' ']));
    let items: Vec<&str> = items.filter(|item| !item.is_empty()).collect();
    (!items.is_empty()).then(|| items.join(","))
}

#[cfg(test)]
mod tests {
    use super::super::tests::parsed;
    use super::*;

    fn asked(line: &str) -> ClearMl {
        parsed(&format!("divvy daemon {line}"))
            .unwrap()
            .clearml
            .unwrap()
    }

    #[test]
    fn the_documented_lines_are_taken_with_the_server_behind_them() {
        let asked_for = asked(
            "--dynamic-gpus --gpus 0, 1 --queue half_gpu=0.5 quarter=0.25 --docker --clearml --config-file /c --create-queue",
        );
        assert_eq!(asked_for.queues, ["half_gpu", "quarter"]);
        assert_eq!(asked_for.gpus.as_deref(), Some("0,1"));
        assert_eq!(asked_for.docker, Some(Vec::new()));
        assert!(asked_for.dynamic && asked_for.create_queue);
        let plain =
            asked("--clearml --queue default --docker clearml/fractional-gpu:u22-cu12.3-8gb");
        assert_eq!(
            (plain.queues.len(), plain.dynamic, plain.gpus),
            (1, false, None)
        );
        assert_eq!(
            plain.docker.unwrap(),
            ["clearml/fractional-gpu:u22-cu12.3-8gb"]
        );
        // Without --dynamic-gpus `=` is part of a name, and without --queue there is the server's own default.
        assert_eq!(asked("--clearml --queue half=0.5").queues, ["half=0.5"]);
        assert_eq!(asked("--clearml").queues, Vec::<String>::new());
    }

    #[test]
    fn in_plain_form_one_task_has_all_gpus() {
        let daemon = parsed("divvy daemon --clearml --gpus 0-1 --queue a b").unwrap();
        assert!(daemon.all_to_one);
        let daemon =
            parsed("divvy daemon --clearml --dynamic-gpus --gpus 0-1 --queue a=1").unwrap();
        assert!(!daemon.all_to_one);
        assert!(!parsed("divvy daemon --queue a b").unwrap().all_to_one);
    }

    #[test]
    fn tasks_have_containers_of_their_own_and_submitted_jobs_none_by_that() {
        let daemon = parsed("divvy daemon --clearml --docker img --queue a").unwrap();
        assert_eq!(daemon.container, None);
    }

    #[test]
    fn what_cannot_be_is_refused_before_anything_is_registered() {
        let lines = [
            ("--config-file /c", "--clearml"),
            ("--create-queue", "--clearml"),
            ("--clearml-project-by user", "--clearml"),
            (
                "--clearml --queue a --clearml-project-by=",
                "--clearml-project-by",
            ),
            ("--clearml --system", "--system"),
            (
                "--clearml --dynamic-gpus --queue a=1",
                "--gpus must be provided",
            ),
            (
                "--clearml --dynamic-gpus --gpus 0 --queue a",
                "queue must be in format <queue_name>=<num_gpus>",
            ),
            (
                "--clearml --dynamic-gpus --gpus 0 --queue a=0",
                "<= 0 is not allowed",
            ),
            (
                "--clearml --dynamic-gpus --gpus 0-3 --queue a=2.5",
                "fractional gpu cannot be > 1",
            ),
            ("--clearml --dynamic-gpus --gpus 0 --queue a=0.3", "a=0.3"),
            ("--clearml --gpus 0:0", "0:0"),
            ("--clearml --services-mode", "--services-mode"),
            ("--clearml --polling-interval 4", "4"),
            ("--clearml --clearml-agent 'a", "no command"),
        ];
        for (line, named) in lines {
            let error = parsed(&format!("divvy daemon {line}")).unwrap_err();
            assert_eq!(error.code.exit_code(), 2, "{line}");
            assert!(error.message.contains(named), "{line}: {}", error.message);
        }
    }
}
