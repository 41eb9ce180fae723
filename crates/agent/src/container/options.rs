//! Validation of container options: a job that asks for a container is refused here if it can be refused at all.

use std::path::Path;

use divvy_api::v1::{Container, Error, ErrorCode, Runner, Submit};
use divvy_core::docker::submitter::Submitter;
use divvy_core::docker::{self, ContainerOptionError};

use super::engine::{self, NoEngine};
use crate::host::process::Process;
use crate::model::validate::usage;

/// Validates the container options of a submission, fills in the daemon's own options if it has none, and moves
/// variables to the job's environment. `submitter`: the caller, if the caller's containers run as the caller.
///
/// # Errors
/// [`ErrorCode::NotAllowed`] for what would let the container out of its slice, [`ErrorCode::Usage`] for what is written wrongly,
/// [`ErrorCode::LaunchFailed`] where no container engine listens.
pub fn validate(
    submit: &mut Submit,
    default: Option<&Container>,
    submitter: Option<&Submitter<'_>>,
) -> Result<(), Error> {
    if submit.container.is_none()
        && submit.runner == Runner::Supervisor
        && let Some(default) = default
    {
        submit.container = Some(default.clone());
        // It was meant for a process of this host; the container has other paths and libraries.
        submit.env.clear();
    }
    let Some(container) = &mut submit.container else {
        return Ok(());
    };
    if container.image.is_empty() || container.image.starts_with('-') {
        return Err(usage(format!("{:?} is not an image name", container.image)));
    }
    let options = docker::options(&container.arguments).map_err(|refused| refusal(&refused))?;
    container.as_submitter = submitter.is_some();
    if let Some(submitter) = submitter {
        if container.starter.is_some() {
            let why = "a container that another program starts does not run as its submitter";
            return Err(Error::new(ErrorCode::NotAllowed, why)
                .hint("have Divvy start it: divvy docker run"));
        }
        docker::check_submitter(&container.arguments, submitter)
            .map_err(|refused| refusal(&refused))?;
    }
    if let Some(file) = options.env_files.first() {
        return Err(usage(format!(
            "--env-file {file} cannot be used: the daemon does not read the submitter's files"
        ))
        .hint("pass each variable: -e NAME=VALUE"));
    }
    for (name, value) in options.env {
        // One without a value is the submitter's own, which it has sent along or does not have.
        if let Some(value) = value {
            submit.env.insert(name, value);
        }
    }
    for name in submit.env.keys().chain(submit.secrets.keys()) {
        docker::env_name(name).map_err(|refused| refusal(&refused))?;
    }
    if let Some(starter) = &mut container.starter {
        if submit.runner == Runner::Client {
            return Err(usage(
                "a job has either a container's starter or a client that runs it, not both",
            ));
        }
        let process = Process::with_pid(starter.pid).filter(|process| process.is_alive());
        let process = process.ok_or_else(|| {
            usage(format!(
                "the container's starter, pid {}, does not exist",
                starter.pid
            ))
            .hint("give the PID that the process has in the PID namespace of the host")
        })?;
        starter.start_time = Some(process.start_time);
    }
    container.arguments =
        docker::without_env(&container.arguments).map_err(|refused| refusal(&refused))?;
    engine::socket()
        .map(drop)
        .map_err(|error| no_engine(&error))
}

pub fn refusal(refused: &ContainerOptionError) -> Error {
    let code = match refused.is_escape() {
        true => ErrorCode::NotAllowed,
        false => ErrorCode::Usage,
    };
    Error::new(code, refused.to_string()).hint(refused.hint())
}

fn no_engine(error: &NoEngine) -> Error {
    Error::new(ErrorCode::LaunchFailed, error.to_string()).hint(error.hint())
}

/// The name of a job that runs its image's own command: `pytorch` of `nvcr.io/nvidia/pytorch:24.05`.
pub fn name(image: &str) -> String {
    let last = Path::new(image).file_name().and_then(|name| name.to_str());
    let last = last.unwrap_or(image);
    last.split([':', '@']).next().unwrap_or(last).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_named_after_its_image_where_it_has_no_command() {
        for (image, expected) in [
            ("nvcr.io/nvidia/pytorch:24.05", "pytorch"),
            ("ubuntu", "ubuntu"),
            ("host:5000/x@sha256:0", "x"),
        ] {
            assert_eq!(name(image), expected);
        }
    }

    #[test]
    fn a_submitters_container_is_marked_by_the_daemon_alone_and_has_no_other_starter() {
        let folders = [std::path::PathBuf::from("/data")];
        let submitter = Submitter {
            uid: 1001,
            gid: 1001,
            name: "lee",
            groups: &[],
            folders: &folders,
            cwd: Path::new("/"),
        };
        let submit = |arguments: &[&str], as_submitter, starter| Submit {
            container: Some(Container {
                image: "u22".to_owned(),
                arguments: arguments.iter().map(ToString::to_string).collect(),
                starter,
                as_submitter,
            }),
            ..Submit::default()
        };
        let code = |arguments: &[&str], starter| {
            let mut submit = submit(arguments, false, starter);
            validate(&mut submit, None, Some(&submitter)).map_err(|error| error.code)
        };
        assert_eq!(code(&["-v", "/etc:/e"], None), Err(ErrorCode::NotAllowed));
        assert_eq!(code(&["--user=0"], None), Err(ErrorCode::NotAllowed));
        let starter = divvy_api::v1::Starter {
            pid: std::process::id(),
            start_time: None,
        };
        assert_eq!(code(&[], Some(starter)), Err(ErrorCode::NotAllowed));
        // Whether an engine listens here does not matter to the mark.
        for (by, says) in [(Some(&submitter), false), (None, true)] {
            let mut submit = submit(&["-v", "/data:/d"], says, None);
            let _ = validate(&mut submit, None, by);
            let marked = submit.container.map(|container| container.as_submitter);
            assert_eq!(marked, Some(by.is_some()));
        }
    }

    #[test]
    fn an_escape_is_not_allowed_and_nonsense_is_usage() {
        let code = |word: &str| {
            let refused = docker::options(&[word.to_owned()]).unwrap_err();
            refusal(&refused).code
        };
        assert_eq!(code("--privileged"), ErrorCode::NotAllowed);
        assert_eq!(code("--nonsense"), ErrorCode::Usage);
    }
}
