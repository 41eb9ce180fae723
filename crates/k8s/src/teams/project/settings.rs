//! The settings of projects and departments: flags to changes, and changes to settings that Kueue accepts.

use std::collections::BTreeSet;

use divvy_api::v1::{Error, ErrorCode};
use divvy_core::Gpus;
use divvy_core::units::{Bytes, gpus};

use super::{ProjectArgs, SettingArgs};
use crate::base::claim::Inventory;
use crate::base::error_output::usage;
use crate::teams::kueue::objects::{Department, Project};
use crate::teams::kueue::{ROOT, quota};

/// The namespaces of one project: each is a LocalQueue, written one after the other. More would take longer than a
/// command may, with an answer of the API server each.
const MOST_NAMESPACES: usize = 64;
/// The weight that Kueue multiplies by.
const MOST_WEIGHT: u32 = 1_000_000;

/// The change that flags describe; absent settings stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub quota: Option<u64>,
    pub limit: Option<Limit>,
    /// `Some(None)`: as the quota.
    pub weight: Option<Option<u32>>,
    pub gpu_size: Option<Bytes>,
    pub namespaces: Option<BTreeSet<String>>,
    /// `Some(None)`: in no department.
    pub department: Option<Option<String>>,
}

/// What a project may hold beyond its quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    None,
    AtQuota,
    Gpus(u64),
}

impl Limit {
    fn beside(self, quota: u64) -> Option<u64> {
        match self {
            Self::None => None,
            Self::AtQuota => Some(quota),
            Self::Gpus(limit) => Some(limit),
        }
    }
}

/// Returns the change of these flags.
///
/// # Errors
/// A value is malformed or out of bounds.
pub fn of_project(args: &ProjectArgs) -> Result<Change, Error> {
    let mut change = of_settings(&args.settings, "project")?;
    if !args.namespace.is_empty() {
        let namespaces: BTreeSet<String> = args.namespace.iter().cloned().collect();
        for namespace in &namespaces {
            checked_name("--namespace", namespace)?;
        }
        if namespaces.len() > MOST_NAMESPACES {
            return Err(usage(
                format!("--namespace: {} namespaces", namespaces.len()),
                format!("a project has at most {MOST_NAMESPACES} namespaces; add another project"),
            ));
        }
        change.namespaces = Some(namespaces);
    }
    change.department = match args.department.as_deref() {
        None => None,
        Some("none") => Some(None),
        Some(name) => {
            checked_name("--department", name)?;
            Some(Some(name.to_owned()))
        }
    };
    Ok(change)
}

/// Returns the change of the settings that departments have too. `noun` is what has the name.
///
/// # Errors
/// As [`of_project`].
pub fn of_settings(args: &SettingArgs, noun: &str) -> Result<Change, Error> {
    checked_name(noun, &args.name)?;
    let limit = match (args.limit.as_deref(), args.over_quota, args.no_over_quota) {
        (Some("none"), _, _) | (None, true, _) => Some(Limit::None),
        (Some(text), _, _) => Some(Limit::Gpus(amount("--limit", text)?)),
        (None, _, true) => Some(Limit::AtQuota),
        (None, false, false) => None,
    };
    let quota = args.quota.as_deref();
    Ok(Change {
        quota: quota.map(|text| amount("--quota", text)).transpose()?,
        limit,
        weight: match args.weight.as_deref() {
            None => None,
            Some("quota") => Some(None),
            Some(text) => Some(Some(weight(text)?)),
        },
        gpu_size: args.gpu_size.as_deref().map(size).transpose()?,
        ..Change::default()
    })
}

/// Checks a name of Kubernetes' form for labels (RFC 1123): Kueue's metrics and LocalQueues carry it.
///
/// # Errors
/// It is empty, too long, or has other characters; or Divvy uses it.
pub fn checked_name(what: &str, name: &str) -> Result<(), Error> {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let has_ends = !name.starts_with('-') && !name.ends_with('-');
    if name.is_empty() || name.len() > 63 || !has_ends || !name.chars().all(is_inner) {
        let shown: String = name.chars().take(80).collect();
        return Err(usage(
            format!("{what} `{shown}`: not a name"),
            "use 1 to 63 lower-case letters, digits and `-`, with a letter or digit at both ends",
        ));
    }
    if what == "department" && name == ROOT {
        return Err(usage(
            format!("{what} `{name}`: the cohort of all projects has this name"),
            "choose another name",
        ));
    }
    Ok(())
}

fn amount(flag: &str, text: &str) -> Result<u64, Error> {
    let read = text.parse::<Gpus>();
    let amount = read
        .map_err(|error| usage(format!("{flag}: {error}"), error.hint()))?
        .thousandths();
    if amount <= quota::MOST {
        Ok(amount)
    } else {
        Err(usage(
            format!("{flag} {text}: more than {} GPUs", gpus(quota::MOST)),
            "use the number of GPUs of the cluster at most",
        ))
    }
}

fn weight(text: &str) -> Result<u32, Error> {
    let read = text
        .parse::<u32>()
        .ok()
        .filter(|weight| *weight <= MOST_WEIGHT);
    read.ok_or_else(|| {
        usage(
            format!("--weight {text}: not a weight"),
            format!(
                "use a whole number up to {MOST_WEIGHT}, or `quota` for a weight equal to its quota"
            ),
        )
    })
}

fn size(text: &str) -> Result<Bytes, Error> {
    let read = text.parse::<Bytes>();
    let size = read.map_err(|error| usage(format!("--gpu-size {text}: {error}"), error.hint()))?;
    if (Bytes::gib(2)..=Bytes::gib(4096)).contains(&size) {
        Ok(size)
    } else {
        Err(usage(
            format!("--gpu-size {text}: not the memory of a GPU"),
            "use 2G to 4T, as `divvy-k8s admin nodes` shows it",
        ))
    }
}

/// Returns the memory in which quotas are counted: of the cluster's only size of GPU, or of the published size that is
/// nearest to the wanted one. GPUs publish a little less memory than their name says.
///
/// # Errors
/// No GPU is published and no size was given, or there are several sizes.
pub fn gpu_memory(wanted: Option<Bytes>, inventory: &Inventory) -> Result<Bytes, Error> {
    if let Some(wanted) = wanted {
        let distance = |size: &Bytes| size.get().abs_diff(wanted.get());
        let near = inventory.sizes.iter().copied().min_by_key(distance);
        // An "80 GB" GPU publishes 79.2 GiB.
        return Ok(near
            .filter(|size| distance(size) <= wanted.get() / 10)
            .unwrap_or(wanted));
    }
    let sizes: Vec<Bytes> = inventory.sizes.iter().copied().collect();
    match sizes.as_slice() {
        [size] => Ok(*size),
        [] if !inventory.profiles.is_empty() => Err(usage(
            "the cluster publishes MIG instances only, so the memory of a GPU is unknown",
            "add the memory of one GPU, such as --gpu-size 80G",
        )),
        [] => Err(Error::new(ErrorCode::NeverFits, "no node publishes GPUs yet")
            .hint("check the node pods with `divvy-k8s doctor`, or add the memory of one GPU, such as --gpu-size 80G")),
        several => {
            let names: Vec<String> = several.iter().map(|size| size.human()).collect();
            Err(usage(
                format!("the cluster has GPUs of {} sizes: {}", several.len(), names.join(", ")),
                "add the memory of the GPU that a quota counts in, such as --gpu-size 80G",
            ))
        }
    }
}

/// Returns the new project of `add`.
///
/// # Errors
/// A required setting is missing, or settings contradict each other.
pub fn added(name: &str, change: &Change, gpu_memory: Bytes) -> Result<Project, Error> {
    let Some(quota) = change.quota else {
        return Err(usage(
            "the quota of the project is missing",
            "add --quota 2.5, or --quota 0 for a project without guaranteed GPUs",
        ));
    };
    let Some(namespaces) = change.namespaces.clone() else {
        return Err(usage(
            "the namespace of the project is missing",
            format!("add --namespace {name}, the namespace of its pods"),
        ));
    };
    let project = Project {
        name: name.to_owned(),
        quota,
        limit: change.limit.and_then(|limit| limit.beside(quota)),
        weight: change.weight.flatten(),
        namespaces,
        department: change.department.clone().flatten(),
        gpu_memory,
    };
    checked_limit(project.quota, project.limit)?;
    Ok(project)
}

/// Returns the project with a change.
///
/// # Errors
/// As [`added`].
pub fn changed(project: &Project, change: &Change) -> Result<Project, Error> {
    let quota = change.quota.unwrap_or(project.quota);
    let project = Project {
        quota,
        limit: new_limit(change, project.quota, project.limit, quota),
        weight: change.weight.unwrap_or(project.weight),
        namespaces: change
            .namespaces
            .clone()
            .unwrap_or_else(|| project.namespaces.clone()),
        department: change
            .department
            .clone()
            .unwrap_or_else(|| project.department.clone()),
        gpu_memory: change.gpu_size.unwrap_or(project.gpu_memory),
        name: project.name.clone(),
    };
    checked_limit(project.quota, project.limit)?;
    Ok(project)
}

/// Returns the department with a change.
///
/// # Errors
/// Settings contradict each other.
pub fn changed_department(department: &Department, change: &Change) -> Result<Department, Error> {
    let quota = change.quota.or(department.quota);
    let limit = match change.limit {
        Some(Limit::AtQuota) if quota.is_none() => {
            return Err(usage(
                "--no-over-quota needs the quota of the department",
                "add --quota, the GPUs of its projects together",
            ));
        }
        _ => {
            let before = department.quota.unwrap_or_default();
            new_limit(change, before, department.limit, quota.unwrap_or_default())
        }
    };
    checked_limit(quota.unwrap_or_default(), limit)?;
    Ok(Department {
        name: department.name.clone(),
        quota,
        limit,
        weight: change.weight.unwrap_or(department.weight),
        gpu_memory: change.gpu_size.unwrap_or(department.gpu_memory),
    })
}

/// A project that never goes over quota stays one when its quota changes.
fn new_limit(change: &Change, quota: u64, limit: Option<u64>, new_quota: u64) -> Option<u64> {
    match (change.limit, limit) {
        (Some(given), _) => given.beside(new_quota),
        (None, Some(limit)) if limit == quota => Some(new_quota),
        (None, limit) => limit,
    }
}

fn checked_limit(quota: u64, limit: Option<u64>) -> Result<(), Error> {
    match limit {
        Some(limit) if limit < quota => Err(usage(
            format!(
                "the limit of {} is below the quota of {}",
                gpus(limit),
                gpus(quota)
            ),
            "use a limit that is at least the quota, or none",
        )),
        _ => Ok(()),
    }
}

/// `quota 2.5, limit 4`: what a project may have, as `divvy admin project` says it.
pub fn entitled(quota: Option<u64>, limit: Option<u64>, weight: Option<u32>) -> String {
    let mut words = match quota {
        Some(quota) => format!("quota {}", gpus(quota)),
        None => "the quotas of its projects".to_owned(),
    };
    match limit {
        Some(limit) if Some(limit) == quota => words += ", never over quota",
        Some(limit) => words += &format!(", limit {}", gpus(limit)),
        None => words += ", no limit",
    }
    if let Some(weight) = weight {
        words += &format!(", weight {weight}");
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> SettingArgs {
        SettingArgs {
            name: "vision".into(),
            quota: None,
            limit: None,
            over_quota: false,
            no_over_quota: false,
            weight: None,
            gpu_size: None,
            output: crate::base::error_output::Format::Table,
        }
    }

    fn change(args: SettingArgs) -> Result<Change, Error> {
        of_settings(&args, "project")
    }

    #[test]
    fn values_out_of_bounds_are_refused_with_the_flag() {
        let text = |text: &str| Some(text.to_owned());
        let cases = [
            (
                SettingArgs {
                    quota: text("two"),
                    ..args()
                },
                "--quota",
            ),
            (
                SettingArgs {
                    quota: text("0.0001"),
                    ..args()
                },
                "--quota",
            ),
            (
                SettingArgs {
                    quota: text("100000.001"),
                    ..args()
                },
                "--quota",
            ),
            (
                SettingArgs {
                    quota: text("99999999999999999999"),
                    ..args()
                },
                "--quota",
            ),
            (
                SettingArgs {
                    limit: text("-1"),
                    ..args()
                },
                "--limit",
            ),
            (
                SettingArgs {
                    weight: text("1.5"),
                    ..args()
                },
                "--weight",
            ),
            (
                SettingArgs {
                    weight: text("1000001"),
                    ..args()
                },
                "--weight",
            ),
            (
                SettingArgs {
                    gpu_size: text("1G"),
                    ..args()
                },
                "--gpu-size",
            ),
            (
                SettingArgs {
                    gpu_size: text("80"),
                    ..args()
                },
                "--gpu-size",
            ),
            (
                SettingArgs {
                    name: "Vision".into(),
                    ..args()
                },
                "project `Vision`",
            ),
            (
                SettingArgs {
                    name: "bild\u{e4}".into(),
                    ..args()
                },
                "project",
            ),
            (
                SettingArgs {
                    name: "v".repeat(64),
                    ..args()
                },
                "project",
            ),
            (
                SettingArgs {
                    name: String::new(),
                    ..args()
                },
                "project",
            ),
            (
                SettingArgs {
                    name: "-v".into(),
                    ..args()
                },
                "project",
            ),
        ];
        for (args, named) in cases {
            let error = change(args).unwrap_err();
            assert!(error.message.contains(named), "{}", error.message);
            assert!(error.message.len() < 200 && error.hint.is_some());
        }
        let largest = change(SettingArgs {
            quota: text("100000"),
            weight: text("1000000"),
            ..args()
        });
        assert_eq!(largest.unwrap().quota, Some(quota::MOST));
    }

    #[test]
    fn a_project_without_over_quota_stays_so_and_a_limit_stays_a_limit() {
        let text = |text: &str| Some(text.to_owned());
        let mut add = change(SettingArgs {
            quota: text("2"),
            no_over_quota: true,
            ..args()
        })
        .unwrap();
        add.namespaces = Some(["vision".to_owned()].into());
        let project = added("vision", &add, Bytes::gib(80)).unwrap();
        assert_eq!(project.limit, Some(2000));
        let more = change(SettingArgs {
            quota: text("3"),
            ..args()
        })
        .unwrap();
        assert_eq!(changed(&project, &more).unwrap().limit, Some(3000));
        let over = change(SettingArgs {
            over_quota: true,
            ..args()
        })
        .unwrap();
        assert_eq!(changed(&project, &over).unwrap().limit, None);
        let bounded = changed(
            &project,
            &change(SettingArgs {
                limit: text("4"),
                ..args()
            })
            .unwrap(),
        )
        .unwrap();
        assert_eq!(changed(&bounded, &more).unwrap().limit, Some(4000));
        let least = change(SettingArgs {
            quota: text("5"),
            ..args()
        })
        .unwrap();
        assert!(
            changed(&bounded, &least)
                .unwrap_err()
                .message
                .contains("below the quota")
        );
    }

    #[test]
    fn the_size_of_a_gpu_is_the_published_one() {
        let of = |sizes: &[u64]| Inventory {
            sizes: sizes.iter().map(|mib| Bytes::mib(*mib)).collect(),
            ..Inventory::default()
        };
        assert_eq!(
            gpu_memory(None, &of(&[81_050])).unwrap(),
            Bytes::mib(81_050)
        );
        let both = of(&[23_034, 81_050]);
        let error = gpu_memory(None, &both).unwrap_err();
        assert!(
            error.message.contains("22.5 GiB, 79.2 GiB"),
            "{}",
            error.message
        );
        assert_eq!(
            gpu_memory(Some(Bytes::gib(80)), &both).unwrap(),
            Bytes::mib(81_050)
        );
        assert_eq!(
            gpu_memory(Some(Bytes::gib(24)), &both).unwrap(),
            Bytes::mib(23_034)
        );
        assert_eq!(
            gpu_memory(Some(Bytes::gib(48)), &both).unwrap(),
            Bytes::gib(48)
        );
        assert_eq!(
            gpu_memory(None, &of(&[])).unwrap_err().code,
            ErrorCode::NeverFits
        );
    }

    #[test]
    fn what_an_addition_lacks_is_named() {
        let none = Change::default();
        assert!(
            added("a", &none, Bytes::gib(80))
                .unwrap_err()
                .message
                .contains("quota")
        );
        let quota = Change {
            quota: Some(0),
            ..Change::default()
        };
        assert!(
            added("a", &quota, Bytes::gib(80))
                .unwrap_err()
                .message
                .contains("namespace")
        );
    }
}
