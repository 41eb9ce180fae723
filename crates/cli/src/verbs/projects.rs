//! `projects` and `admin project`: quotas, limits and members.

use std::process::ExitCode;

use divvy_api::v1::{Project, ProjectChange};
use divvy_core::{Bytes, Gpus};

use crate::args::{AdminProject, Format, Look, ProjectArgs, RemoveProject};
use crate::ask::terms::seconds;
use crate::call::{Outcome, client};
use crate::error_output::{Result, usage};
use crate::output::{print, say, view};
use crate::render;
use crate::watch::{self, Shown};

pub async fn projects(look: Look) -> Outcome {
    let client = client()?;
    let format = look.read.output;
    let draw = async || {
        let projects = client.projects().await?;
        let remark = "no projects; `divvy admin project add NAME --quota 2` adds one";
        let is_bare = projects.is_empty() && !format.is_json();
        Ok(Shown {
            text: render::list(&projects, format, view(), render::projects)?,
            remarks: is_bare.then(|| remark.to_owned()).into_iter().collect(),
        })
    };
    watch::show(look.watch, format, draw).await
}

pub async fn admin(args: AdminProject) -> Outcome {
    match args {
        AdminProject::Add(args) => add(args).await,
        AdminProject::Set(args) => set(args).await,
        AdminProject::Rm(args) => remove(args).await,
    }
}

fn show(projects: &[Project], format: Format) -> std::result::Result<(), crate::output::Stop> {
    print(render::list(projects, format, view(), render::projects)?)
}

async fn add(args: ProjectArgs) -> Outcome {
    if args.quota.is_none() {
        return Err(usage(
            "the quota of the project is missing",
            "add --quota 2.5, or --quota 0 for a project without guaranteed GPUs",
        )
        .into());
    }
    let project = client()?.add_project(&args.name, &change(&args)?).await?;
    report_change(&project, args.output, "was added")
}

async fn set(args: ProjectArgs) -> Outcome {
    let change = change(&args)?;
    if change == ProjectChange::default() {
        return Err(usage(
            "no change given",
            "add the new values: --quota 3, --limit none, --weight 2, --members ana,@vision",
        )
        .into());
    }
    let project = client()?.set_project(&args.name, &change).await?;
    report_change(&project, args.output, "was changed")
}

async fn remove(args: RemoveProject) -> Outcome {
    let project = client()?.remove_project(&args.name).await?;
    say(&format!("project {} was removed", project.name));
    Ok(ExitCode::SUCCESS)
}

fn report_change(project: &Project, format: Option<Format>, what: &str) -> Outcome {
    match format {
        Some(format) => show(std::slice::from_ref(project), format)?,
        None => say(&format!(
            "project {} {what}: {}",
            project.name,
            render::entitled(project)
        )),
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the change that these flags describe.
fn change(args: &ProjectArgs) -> Result<ProjectChange> {
    Ok(ProjectChange {
        quota: given(&args.quota, |text| gpus("--quota", text))?,
        quota_memory_bytes: given(&args.quota_memory, |text| {
            unless("none", text, |text| memory("--quota-memory", text))
        })?,
        weight: given(&args.weight, |text| unless("quota", text, weight))?,
        limit: given(&args.limit, |text| {
            unless("none", text, |text| gpus("--limit", text))
        })?,
        limit_memory_bytes: given(&args.limit_memory, |text| {
            unless("none", text, |text| memory("--limit-memory", text))
        })?,
        priority: args.priority,
        min_runtime_s: given(&args.min_runtime, |text| seconds("--min-runtime", text))?,
        members: args.members.as_deref().map(members),
    })
}

fn given<T>(word: &Option<String>, read: impl FnOnce(&str) -> Result<T>) -> Result<Option<T>> {
    word.as_deref().map(read).transpose()
}

/// `None` for the word that takes a figure away.
fn unless<T>(word: &str, text: &str, read: impl FnOnce(&str) -> Result<T>) -> Result<Option<T>> {
    (text != word).then(|| read(text)).transpose()
}

fn gpus(flag: &str, text: &str) -> Result<u64> {
    let read = text.parse::<Gpus>();
    read.map(Gpus::thousandths)
        .map_err(|error| usage(format!("{flag}: {error}"), error.hint()))
}

fn memory(flag: &str, text: &str) -> Result<u64> {
    let read = text.parse::<Bytes>();
    read.map(Bytes::get)
        .map_err(|error| usage(format!("{flag} {text}: {error}"), error.hint()))
}

fn weight(text: &str) -> Result<u32> {
    text.parse().map_err(|_| {
        usage(
            format!("--weight {text}: not a weight"),
            "use a whole number, or `quota` for a weight equal to its quota",
        )
    })
}

fn members(text: &str) -> Vec<String> {
    match text {
        "all" => Vec::new(),
        _ => text.split(',').map(|word| word.trim().to_owned()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> ProjectArgs {
        ProjectArgs {
            name: "vision".into(),
            quota: None,
            quota_memory: None,
            weight: None,
            limit: None,
            limit_memory: None,
            priority: None,
            min_runtime: None,
            members: None,
            output: None,
        }
    }

    #[test]
    fn what_is_not_said_does_not_change_and_none_takes_away() {
        assert_eq!(change(&args()).unwrap(), ProjectChange::default());
        let said = ProjectArgs {
            quota: Some("2.5".into()),
            quota_memory: Some("120G".into()),
            weight: Some("quota".into()),
            limit: Some("none".into()),
            limit_memory: Some("none".into()),
            priority: Some(-2),
            min_runtime: Some("10m".into()),
            members: Some("ana, @vision".into()),
            ..args()
        };
        let expected = ProjectChange {
            quota: Some(2500),
            quota_memory_bytes: Some(Some(120 << 30)),
            weight: Some(None),
            limit: Some(None),
            limit_memory_bytes: Some(None),
            priority: Some(-2),
            min_runtime_s: Some(600),
            members: Some(vec!["ana".into(), "@vision".into()]),
        };
        assert_eq!(change(&said).unwrap(), expected);
        let all = ProjectArgs {
            members: Some("all".into()),
            weight: Some("0".into()),
            ..args()
        };
        let all = change(&all).unwrap();
        assert_eq!((all.members, all.weight), (Some(Vec::new()), Some(Some(0))));
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_word_and_a_hint() {
        let cases = [
            (
                ProjectArgs {
                    quota: Some("two".into()),
                    ..args()
                },
                "--quota: `two`",
            ),
            (
                ProjectArgs {
                    quota: Some("0.0001".into()),
                    ..args()
                },
                "--quota: `0.0001`",
            ),
            (
                ProjectArgs {
                    limit: Some("-1".into()),
                    ..args()
                },
                "--limit: `-1`",
            ),
            (
                ProjectArgs {
                    limit_memory: Some("12".into()),
                    ..args()
                },
                "--limit-memory 12",
            ),
            (
                ProjectArgs {
                    weight: Some("1.5".into()),
                    ..args()
                },
                "--weight 1.5",
            ),
            (
                ProjectArgs {
                    min_runtime: Some("soon".into()),
                    ..args()
                },
                "--min-runtime soon",
            ),
        ];
        for (args, named) in cases {
            let error = change(&args).unwrap_err();
            assert!(error.message.contains(named), "{}", error.message);
            assert!(error.hint.is_some_and(|hint| !hint.is_empty()));
        }
    }
}
