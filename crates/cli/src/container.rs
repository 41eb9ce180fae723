//! Conversion of `docker run` flags into the container of a submission: image, flags, variables.

use std::collections::BTreeMap;
use std::fs;

use divvy_api::v1::{Container, Error, ErrorCode};
use divvy_core::docker::{self, ContainerOptionError, words};

use crate::error_output::{Result, usage};
use crate::{output, text};

/// Flags of `divvy docker run` that are the slice's, each with whether it takes a value. `-p` and `-q` are the
/// container's.
pub const SLICE_FLAGS: &[(&str, bool)] = &[
    ("-g", true),
    ("--gpu", true),
    ("--gpu-memory", true),
    ("--gpu-memory-exact", false),
    ("--mig-profile", true),
    ("--isolation", true),
    ("--compute", true),
    ("--latency", true),
    ("--name", true),
    ("--queue", true),
    ("--project", true),
    ("--gpus-on", true),
    ("--no-wait", false),
    ("--sim", true),
    ("--own-daemon", false),
    ("--outlive-client", false),
];

/// A container, and the variables that its programs are given besides the image's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerSpec {
    pub container: Container,
    pub env: BTreeMap<String, String>,
    /// Run it in the background (`--detach`).
    pub detach: bool,
    /// Flags without an effect, as they were written.
    pub ignored: Vec<String>,
}

/// Judges an image and flags of `docker run`, as the agent will again.
///
/// # Errors
/// [`ErrorCode::NotAllowed`] for what would let the container out of its slice, [`ErrorCode::Usage`] for what is written wrongly.
pub fn parse_container(image: &str, arguments: &[String]) -> Result<ContainerSpec> {
    let mut options = docker::options(arguments).map_err(|refused| refusal(&refused))?;
    let mut env = BTreeMap::new();
    for file in &options.env_files {
        env.extend(variables(file)?);
    }
    for (name, value) in options.env {
        // Without a value it is this process's own, if it has it: as `docker` does.
        let value = value.or_else(|| std::env::var(&name).ok());
        env.extend(value.map(|value| (name, value)));
    }
    env.retain(|name, value| {
        let is_ignored = docker::is_ignored_variable(name);
        if is_ignored {
            options.ignored.push(format!("{name}={value}"));
        }
        !is_ignored
    });
    for name in env.keys() {
        docker::env_name(name).map_err(|refused| refusal(&refused))?;
    }
    let mut kept = docker::without_env(arguments).map_err(|refused| refusal(&refused))?;
    // Other flags decide whether the client waits.
    kept.retain(|word| word != "--detach");
    Ok(ContainerSpec {
        container: Container {
            image: image.to_owned(),
            arguments: kept,
            starter: None,
            as_submitter: false,
        },
        env,
        detach: options.detach,
        ignored: options.ignored,
    })
}

/// The lines `NAME=VALUE` of a file; `NAME` alone is this process's own, `#` begins a remark.
fn variables(file: &str) -> Result<Vec<(String, String)>> {
    let text = fs::read_to_string(file).map_err(|error| {
        usage(
            format!("--env-file {file} cannot be read: {error}"),
            "use a file with lines NAME=VALUE",
        )
    })?;
    let lines = text.lines().map(str::trim_start);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let variable = |line: &str| match line.split_once('=') {
        Some((name, value)) => Some((name.to_owned(), value.to_owned())),
        None => std::env::var(line)
            .ok()
            .map(|value| (line.to_owned(), value)),
    };
    Ok(lines.filter_map(variable).collect())
}

/// Words of which each may itself be a line of words, quoted.
///
/// # Errors
/// [`ErrorCode::Usage`] for a quote that is not closed.
pub fn unpacked(lines: &[String]) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for line in lines {
        let words = words::split(line)
            .map_err(|error| usage(format!("{line:?}: {error}"), "close the quote"))?;
        all.extend(words);
    }
    Ok(all)
}

/// Says once which flags of a line have no effect.
pub fn report_ignored(asked: &ContainerSpec) {
    if !asked.ignored.is_empty() {
        let (flags, have) = match asked.ignored.as_slice() {
            [one] => (one.clone(), "has"),
            all => (all.join(", "), "have"),
        };
        output::say(&format!(
            "{} {have} no effect: the slice decides which GPUs the container gets",
            text::clean(&flags)
        ));
    }
}

pub fn refusal(refused: &ContainerOptionError) -> Error {
    let code = if refused.is_escape() {
        ErrorCode::NotAllowed
    } else {
        ErrorCode::Usage
    };
    Error::new(code, refused.to_string()).hint(refused.hint())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_words(line: &str) -> Vec<String> {
        words::split(line).unwrap()
    }

    #[test]
    fn variables_are_the_submitters_and_travel_apart() {
        let file = std::env::temp_dir().join(format!("divvy-env-{}", std::process::id()));
        fs::write(&file, "# remark\n\nFROM_FILE=a b\nPATH\nNOT_THERE_AT_ALL\n").unwrap();
        let line = format!(
            "-it -e A=1 -e PATH -e NOT_THERE_AT_ALL --env-file {} -d",
            file.display()
        );
        let asked = parse_container("u22", &split_words(&line)).unwrap();
        fs::remove_file(file).unwrap();
        let path = std::env::var("PATH").unwrap();
        let expected = [("A", "1"), ("FROM_FILE", "a b"), ("PATH", &path)];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(asked.env, expected.into());
        assert_eq!(asked.container.arguments, ["--interactive", "--tty"]);
        assert!(asked.detach);
    }

    #[test]
    fn an_escape_has_the_exit_code_of_what_is_not_allowed() {
        for (line, code) in [
            ("--gpus device=1", 4),
            ("-e LD_PRELOAD=/x", 4),
            ("--nonsense", 2),
            ("--env-file /no/such", 2),
        ] {
            assert_eq!(
                parse_container("u22", &split_words(line))
                    .unwrap_err()
                    .code
                    .exit_code(),
                code,
                "{line}"
            );
        }
    }

    #[test]
    fn an_image_and_its_flags_may_come_in_one_word() {
        let line = ["u22 -v '/a b:/c'".to_owned(), "-i".to_owned()];
        assert_eq!(unpacked(&line).unwrap(), ["u22", "-v", "/a b:/c", "-i"]);
        assert!(unpacked(&["'".to_owned()]).is_err());
    }
}
