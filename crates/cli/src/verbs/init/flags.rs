//! Flags of `divvy admin init` as settings of the configuration file.

use std::collections::BTreeMap;
use std::path::Path;

use divvy_api::daemon::{Setting, keys};

use crate::args::AdminInit;
use crate::error_output::{Result, usage};

/// The settings of the flags. `token` is the file for the token of TCP clients.
///
/// # Errors
/// [`divvy_api::v1::ErrorCode::Usage`] with the flag and what is wrong with its value.
pub fn settings(args: &AdminInit, token: &Path) -> Result<Vec<Setting>> {
    let mut found = Vec::new();
    for (flag, key, value) in [
        ("--gpus", "gpus", &args.gpus),
        ("--max-gpus", "project-rules.max-gpus", &args.max_gpus),
        ("--device-nodes", "device-nodes", &args.device_nodes),
    ] {
        if let Some(value) = value {
            found.extend(Setting::of_flag(flag, key, value)?);
        }
    }
    if !args.queue.is_empty() {
        found.extend(Setting::of_flag("--queue", "queues", &args.queue)?);
    }
    if !args.admin.is_empty() {
        let admins: Vec<&str> = args.admin.iter().flat_map(|word| split(word)).collect();
        found.extend(Setting::of_flag("--admin", "roles.admin", admins)?);
    }
    if let Some(address) = args.listen {
        found.extend(Setting::of_flag("--listen", "listen.listen", address)?);
        found.extend(Setting::of_flag("--listen", "listen.token-file", token)?);
    }
    let mut names = Vec::new();
    for word in &args.project {
        let (name, quota, members) = project(word)?;
        let key = |part: &str| keys::written(&["projects", name, part].map(str::to_owned));
        found.extend(Setting::of_text("--project", &key("quota"), quota)?);
        if !members.is_empty() {
            found.extend(Setting::of_flag("--project", &key("members"), members)?);
        }
        names.push(name);
    }
    let mut rules = BTreeMap::new();
    for word in &args.default_project {
        let (user, name) = word.split_once('=').unwrap_or(("others", word));
        if !names.contains(&name) {
            return Err(usage(
                format!("--default-project {word}: there is no project {name} in this file"),
                format!("add it: --project {name}=QUOTA"),
            ));
        }
        rules.insert(user, name);
    }
    if !rules.is_empty() {
        let key = "project-rules.default-project";
        found.extend(Setting::of_flag("--default-project", key, rules)?);
    }
    Ok(found)
}

/// The name, the quota and the members of `vision=2.5:ana,@vision`.
fn project(word: &str) -> Result<(&str, &str, Vec<&str>)> {
    let parts = word.rsplit_once('=').map(|(name, rest)| {
        let (quota, members) = rest.split_once(':').unwrap_or((rest, "all"));
        (name, quota, members)
    });
    match parts {
        Some((name, quota, members)) if !name.is_empty() && !quota.is_empty() => {
            let members = match members {
                "all" => Vec::new(),
                members => split(members).collect(),
            };
            Ok((name, quota, members))
        }
        _ => Err(usage(
            format!("--project {word}: not a project"),
            "use NAME=QUOTA or NAME=QUOTA:MEMBERS, for example vision=2.5:ana,@vision",
        )),
    }
}

fn split(word: &str) -> impl Iterator<Item = &str> {
    word.split(',').filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use divvy_api::daemon::file;

    use super::*;

    fn file(args: &AdminInit) -> Result<String> {
        Setting::file(&settings(args, Path::new("/etc/divvy/token"))?)
    }

    #[test]
    fn flags_become_the_lines_of_the_configuration_file() {
        assert_eq!(file(&AdminInit::default()).unwrap(), "");
        let words = |text: &str| text.split(' ').map(str::to_owned).collect();
        let args = AdminInit {
            gpus: Some("0,1".into()),
            queue: words("half=0.5 whole=1"),
            admin: words("ana,@wheel lee"),
            project: words("vision=2.5:ana,@vision nlp=0:all"),
            default_project: words("nlp @vision=vision"),
            max_gpus: Some("2".into()),
            device_nodes: Some("jobs".into()),
            listen: Some(([127, 0, 0, 1], 7070).into()),
            ..AdminInit::default()
        };
        let text = file(&args).unwrap();
        file::parse(text.as_bytes()).unwrap();
        for line in [
            "gpus = \"0,1\"",
            "queues = [\"half=0.5\", \"whole=1\"]",
            "listen = \"127.0.0.1:7070\"",
            "token-file = \"/etc/divvy/token\"",
            "admin = [\"ana\", \"@wheel\", \"lee\"]",
            "[projects.vision]",
            "quota = 2.5",
            "members = [\"ana\", \"@vision\"]",
            "[projects.nlp]",
            "quota = 0",
            "[project-rules.default-project]",
            "others = \"nlp\"",
            "\"@vision\" = \"vision\"",
            "max-gpus = \"2\"",
            "device-nodes = \"jobs\"",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}:\n{text}");
        }
    }

    #[test]
    fn a_wrong_project_queue_or_user_is_refused_with_its_flag() {
        let some = |text: &str| Some(text.to_owned());
        let list = |text: &str| vec![text.to_owned()];
        let none = AdminInit::default;
        for (args, named) in [
            (
                AdminInit {
                    queue: list("a=0.3"),
                    ..none()
                },
                "--queue: ",
            ),
            (
                AdminInit {
                    project: list("vision"),
                    ..none()
                },
                "--project vision",
            ),
            (
                AdminInit {
                    project: list("a=x"),
                    ..none()
                },
                "--project: ",
            ),
            (
                AdminInit {
                    gpus: some("0-x"),
                    ..none()
                },
                "--gpus: ",
            ),
            (
                AdminInit {
                    default_project: list("@vision=cv"),
                    ..none()
                },
                "no project cv",
            ),
            (
                AdminInit {
                    device_nodes: some("some"),
                    ..none()
                },
                "--device-nodes: ",
            ),
            (
                AdminInit {
                    max_gpus: some("many"),
                    ..none()
                },
                "--max-gpus: ",
            ),
            // A name cannot leave its string.
            (
                AdminInit {
                    project: list("a\"]\nsim=\"x=1"),
                    ..none()
                },
                "--project: ",
            ),
        ] {
            let error = file(&args).unwrap_err();
            assert_eq!(error.code.exit_code(), 2);
            assert!(error.message.contains(named), "{}", error.message);
            assert!(error.hint.is_some());
        }
    }
}
