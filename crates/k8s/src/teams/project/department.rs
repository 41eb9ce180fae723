//! Departments: Cohorts with a quota of their own, above projects.
//!
//! Kueue adds the quota of a Cohort to the quotas of its members. The quota of a department includes those of its
//! projects, so its Cohort has the rest, and [`refresh`] writes it anew whenever a project changes.

use divvy_api::v1::{Error, ErrorCode};
use divvy_core::units::{Bytes, gpus};
use kube::Client;
use serde_json::Value;

use super::edit::{TRIES, forget_shared};
use super::settings::{self, Change};
use super::{NameArgs, SettingArgs, list};
use crate::base::error_output::{self, Format, say};
use crate::teams::kueue::MARK;
use crate::teams::kueue::objects::{self, Department, Kind, Project};
use crate::teams::kueue::status::{self, Owner, owner};
use crate::teams::kueue::store::{self, Kueue, foreign};

pub async fn add(args: &SettingArgs, client: &Client) -> Result<(), Error> {
    let (name, change) = (&args.name, settings::of_settings(args, "department")?);
    let empty = |gpu_memory| Department {
        name: name.clone(),
        quota: None,
        limit: None,
        weight: None,
        gpu_memory,
    };
    settings::changed_department(&empty(Bytes::ZERO), &change)?;
    let kueue = Kueue::of(client).await?;
    let (inventory, _) = store::inventory(client).await?;
    let gpu_memory = settings::gpu_memory(change.gpu_size, &inventory)?;
    let change = Change {
        gpu_size: Some(gpu_memory),
        ..change
    };
    let department = settings::changed_department(&empty(gpu_memory), &change)?;
    if let Some(cohort) = kueue.get(Kind::Cohort, None, name).await? {
        match owner(&cohort) {
            Owner::Divvy => {}
            other => return Err(foreign(Kind::Cohort, name, &other)),
        }
        if status::department(&cohort).is_some_and(|there| there != department) {
            return Err(Error::new(
                ErrorCode::Conflict,
                format!("the department {name} exists already"),
            )
            .hint(format!("divvy-k8s department set {name}")));
        }
    } else {
        kueue.create(Kind::Cohort, &department.cohort(0)).await?;
    }
    write_shared(&kueue).await?;
    apply(&kueue, name, |_| Ok(department.clone())).await?;
    report(&kueue, &department, args.output, "was added").await
}

pub async fn set(args: &SettingArgs, client: &Client) -> Result<(), Error> {
    let mut change = settings::of_settings(args, "department")?;
    if change == Change::default() {
        return Err(error_output::usage(
            "no change given",
            "add the new values: --quota 6, --limit none, --weight 2",
        ));
    }
    let kueue = Kueue::of(client).await?;
    if let Some(size) = change.gpu_size {
        let (inventory, _) = store::inventory(client).await?;
        change.gpu_size = Some(settings::gpu_memory(Some(size), &inventory)?);
    }
    let department = apply(&kueue, &args.name, |before| {
        settings::changed_department(before, &change)
    })
    .await?;
    report(&kueue, &department, args.output, "was changed").await
}

pub async fn remove(args: &NameArgs, client: &Client) -> Result<(), Error> {
    let name = &args.name;
    settings::checked_name("department", name)?;
    let kueue = Kueue::of(client).await?;
    existing(&kueue, name).await?;
    let projects = projects_of(&kueue, name).await?;
    if !projects.is_empty() {
        let names: Vec<&str> = projects
            .iter()
            .map(|project| project.name.as_str())
            .collect();
        return Err(Error::new(
            ErrorCode::Conflict,
            format!(
                "the department {name} has projects: {}",
                crate::base::error_output::few(&names)
            ),
        )
        .hint(format!(
            "divvy-k8s project set {} --department none",
            names[0]
        )));
    }
    kueue.delete(Kind::Cohort, None, name).await?;
    forget_shared(&kueue).await?;
    match args.output {
        Format::Json => list::print_removed("Department", name),
        Format::Table => {
            say(&format!("department {name} was removed"));
            Ok(())
        }
    }
}

/// Checks that a department has room for a project's quota.
///
/// # Errors
/// The department is missing, or its quota is smaller than those of its projects.
pub async fn check(kueue: &Kueue, name: &str, project: &Project) -> Result<(), Error> {
    let (_, department) = existing(kueue, name).await?;
    if department.gpu_memory != project.gpu_memory {
        return Err(error_output::usage(
            format!(
                "the department {name} counts in GPUs of {}, and the project in GPUs of {}",
                department.gpu_memory.human(),
                project.gpu_memory.human()
            ),
            format!("add --gpu-size {}M", department.gpu_memory.get() >> 20),
        ));
    }
    let others = projects_of(kueue, name).await?;
    let others = others
        .iter()
        .filter(|other| other.name != project.name)
        .map(|other| other.quota);
    room(
        &department,
        others.sum::<u64>().saturating_add(project.quota),
    )
}

fn room(department: &Department, of_projects: u64) -> Result<(), Error> {
    match department.quota {
        Some(quota) if of_projects > quota => Err(Error::new(
            ErrorCode::Conflict,
            format!(
                "the projects of the department {} would have {} GPUs, but its quota is {}",
                department.name,
                gpus(of_projects),
                gpus(quota)
            ),
        )
        .hint(format!(
            "divvy-k8s department set {} --quota {}",
            department.name,
            gpus(of_projects)
        ))),
        _ => Ok(()),
    }
}

/// Writes the Cohort of a department anew, for the projects that it has now.
///
/// # Errors
/// The cluster refuses it.
pub async fn refresh(kueue: &Kueue, name: &str) -> Result<(), Error> {
    if kueue.get(Kind::Cohort, None, name).await?.is_none() {
        return Ok(());
    }
    for _ in 0..TRIES {
        let (cohort, department) = existing(kueue, name).await?;
        let sum = sum_of(kueue, name).await?;
        let wanted = department.cohort(sum);
        if wanted["spec"] != settled(&cohort) {
            match kueue.apply_over(Kind::Cohort, &wanted, &cohort).await {
                Err(error) if error.code == ErrorCode::Conflict => continue,
                applied => drop(applied?),
            }
        }
        // Another command may have added a project meanwhile.
        if sum_of(kueue, name).await? == sum {
            return Ok(());
        }
    }
    Err(Error::new(
        ErrorCode::Conflict,
        format!("other clients keep changing the department {name}"),
    )
    .hint("repeat the command"))
}

/// The spec as Divvy writes it.
fn settled(cohort: &Value) -> Value {
    let spec = &cohort["spec"];
    serde_json::json!({
        "parentName": spec["parentName"], "fairSharing": spec["fairSharing"], "resourceGroups": spec["resourceGroups"],
    })
}

async fn apply(
    kueue: &Kueue,
    name: &str,
    change: impl Fn(&Department) -> Result<Department, Error>,
) -> Result<Department, Error> {
    for attempt in 1.. {
        let (cohort, before) = existing(kueue, name).await?;
        let department = change(&before)?;
        let sum = sum_of(kueue, name).await?;
        room(&department, sum)?;
        let wanted = department.cohort(sum);
        match kueue.apply_over(Kind::Cohort, &wanted, &cohort).await {
            Err(error) if error.code == ErrorCode::Conflict && attempt < TRIES => {}
            applied => {
                applied?;
                refresh(kueue, name).await?;
                return Ok(department);
            }
        }
    }
    Err(missing(name))
}

async fn write_shared(kueue: &Kueue) -> Result<(), Error> {
    for object in objects::shared() {
        let kind = if object["kind"] == "Cohort" {
            Kind::Cohort
        } else {
            Kind::ResourceFlavor
        };
        let name = status::name(&object);
        match kueue.get(kind, None, &name).await?.as_ref().map(owner) {
            None | Some(Owner::Divvy) => drop(kueue.apply(kind, &object, None).await?),
            Some(Owner::Chart(_)) => {}
            Some(Owner::Other) => return Err(foreign(kind, &name, &Owner::Other)),
        }
    }
    Ok(())
}

async fn existing(kueue: &Kueue, name: &str) -> Result<(Value, Department), Error> {
    let cohort = kueue
        .get(Kind::Cohort, None, name)
        .await?
        .ok_or_else(|| missing(name))?;
    match owner(&cohort) {
        Owner::Divvy => {}
        other => return Err(foreign(Kind::Cohort, name, &other)),
    }
    let department = status::department(&cohort).ok_or_else(|| missing(name))?;
    Ok((cohort, department))
}

fn missing(name: &str) -> Error {
    Error::new(
        ErrorCode::NotFound,
        format!("there is no department {name}"),
    )
    .hint(format!("divvy-k8s department add {name} --quota 6"))
}

async fn projects_of(kueue: &Kueue, name: &str) -> Result<Vec<Project>, Error> {
    let queues = kueue
        .list(Kind::ClusterQueue, &format!("{MARK}=project"))
        .await?;
    let projects = queues.iter().filter_map(status::project);
    Ok(projects
        .filter(|project| project.department.as_deref() == Some(name))
        .collect())
}

async fn sum_of(kueue: &Kueue, name: &str) -> Result<u64, Error> {
    let projects = projects_of(kueue, name).await?;
    Ok(projects.iter().map(|project| project.quota).sum())
}

async fn report(
    kueue: &Kueue,
    department: &Department,
    format: Format,
    what: &str,
) -> Result<(), Error> {
    match format {
        Format::Json => list::print_department(kueue, &department.name).await,
        Format::Table => {
            let words = settings::entitled(department.quota, department.limit, department.weight);
            say(&format!("department {} {what}: {words}", department.name));
            Ok(())
        }
    }
}
