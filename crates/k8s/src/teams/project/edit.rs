//! Adds, changes and removes projects.

use std::collections::BTreeSet;
use std::time::Duration;

use divvy_api::v1::{Error, ErrorCode};
use divvy_core::units::{Bytes, gpus};
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::settings::{self, Change};
use super::{ProjectArgs, RemoveArgs, department, list};
use crate::base::cluster;
use crate::base::error_output::few;
use crate::base::error_output::{self, Format, say};
use crate::base::inject::OPT_IN;
use crate::teams::kueue::objects::{self, Kind, Project};
use crate::teams::kueue::status::{self, Owner, WorkloadState, owner};
use crate::teams::kueue::store::{self, Kueue, foreign};
use crate::teams::kueue::{MANAGER, MARK, QUEUE, quota};

/// How often a change is tried anew because another client came first.
pub const TRIES: usize = 5;
/// Kueue removes its finalizer within a second; longer means that it does not run.
const GONE: Duration = Duration::from_secs(30);
/// Pods get 30 s to end (`terminationGracePeriodSeconds`), and the Job's controller a while. So three times that leaves
/// room for a busy controller.
const DRAINED: Duration = Duration::from_secs(90);
/// So four looks in a second: a shorter pause would be more calls than a user sees.
const POLL: Duration = Duration::from_millis(250);

pub async fn add(args: &ProjectArgs, client: &Client) -> Result<(), Error> {
    let (name, change) = (&args.settings.name, settings::of_project(args)?);
    // The command refuses an incomplete call before it asks the cluster for anything.
    settings::added(name, &change, Bytes::ZERO)?;
    let kueue = Kueue::of(client).await?;
    let (inventory, published) = store::inventory(client).await?;
    let gpu_memory = settings::gpu_memory(change.gpu_size, &inventory)?;
    let project = settings::added(name, &change, gpu_memory)?;
    let before = kueue.get(Kind::ClusterQueue, None, name).await?;
    if let Some(queue) = &before {
        may_complete(queue, &project)?;
    }
    check(&kueue, &project).await?;
    let mut queue = match before {
        Some(queue) => queue,
        None => {
            kueue
                .create(Kind::ClusterQueue, &skeleton(&project))
                .await?
        }
    };
    for attempt in 1.. {
        match write(&kueue, &project, &queue).await {
            // Kueue adds its finalizer and defaults to a new object; another administrator adds settings.
            Err(error) if error.code == ErrorCode::Conflict && attempt < TRIES => {
                queue = kueue
                    .get(Kind::ClusterQueue, None, name)
                    .await?
                    .ok_or_else(|| missing(name))?;
                may_complete(&queue, &project)?;
            }
            written => {
                written?;
                break;
            }
        }
    }
    warn_of_promises(&kueue, gpu_memory, published).await?;
    report(&kueue, &project, args.settings.output, "was added").await
}

pub async fn set(args: &ProjectArgs, client: &Client) -> Result<(), Error> {
    let (name, mut change) = (&args.settings.name, settings::of_project(args)?);
    if change == Change::default() {
        return Err(error_output::usage(
            "no change given",
            "add the new values: --quota 3, --limit none, --weight 2, --namespace ana,lee",
        ));
    }
    let kueue = Kueue::of(client).await?;
    let (inventory, published) = store::inventory(client).await?;
    if let Some(size) = change.gpu_size {
        change.gpu_size = Some(settings::gpu_memory(Some(size), &inventory)?);
    }
    for attempt in 1.. {
        let (queue, before) = existing(&kueue, name).await?;
        let project = settings::changed(&before, &change)?;
        check(&kueue, &project).await?;
        let dropped: BTreeSet<&String> =
            before.namespaces.difference(&project.namespaces).collect();
        refuse_workloads(&kueue, name, |namespace| {
            dropped.contains(&namespace.to_owned())
        })
        .await?;
        match write(&kueue, &project, &queue).await {
            Err(error) if error.code == ErrorCode::Conflict && attempt < TRIES => continue,
            written => written?,
        }
        for namespace in dropped {
            leave_namespace(&kueue, name, namespace).await?;
        }
        if let Some(left) = before
            .department
            .filter(|left| project.department.as_ref() != Some(left))
        {
            department::refresh(&kueue, &left).await?;
        }
        warn_of_promises(&kueue, project.gpu_memory, published).await?;
        return report(&kueue, &project, args.settings.output, "was changed").await;
    }
    Ok(())
}

pub async fn remove(args: &RemoveArgs, client: &Client) -> Result<(), Error> {
    let name = &args.name.name;
    settings::checked_name("project", name)?;
    let kueue = Kueue::of(client).await?;
    let Some(queue) = kueue.get(Kind::ClusterQueue, None, name).await? else {
        // The rest of a removal that was cut short.
        remove_shared(&kueue).await?;
        return Err(missing(name));
    };
    match owner(&queue) {
        Owner::Divvy => {}
        other => return Err(foreign(Kind::ClusterQueue, name, &other)),
    }
    if args.force {
        drain(&kueue, name).await?
    } else {
        refuse_workloads(&kueue, name, |_| true).await?
    }
    let project = status::project(&queue);
    let mut namespaces: BTreeSet<String> = project
        .iter()
        .flat_map(|project| project.namespaces.clone())
        .collect();
    for local in local_queues(&kueue, name).await? {
        if owner(&local) == Owner::Divvy {
            namespaces.extend(local["metadata"]["namespace"].as_str().map(str::to_owned));
        }
    }
    for namespace in &namespaces {
        leave_namespace(&kueue, name, namespace).await?;
    }
    kueue.delete(Kind::ClusterQueue, None, name).await?;
    wait_until_gone(&kueue, name).await?;
    if let Some(department) = project.and_then(|project| project.department) {
        department::refresh(&kueue, &department).await?;
    }
    remove_shared(&kueue).await?;
    match args.name.output {
        Format::Json => list::print_removed("Project", name),
        Format::Table => {
            say(&format!("project {name} was removed"));
            Ok(())
        }
    }
}

/// Whether `add` may go on with a ClusterQueue of this name: one that a killed `add` left, or that says the same.
fn may_complete(queue: &Value, project: &Project) -> Result<(), Error> {
    let name = &project.name;
    match owner(queue) {
        Owner::Divvy => {}
        other => return Err(foreign(Kind::ClusterQueue, name, &other)),
    }
    refuse_leaving(queue)?;
    match status::project(queue) {
        Some(there) if there != *project => Err(Error::new(
            ErrorCode::Conflict,
            format!(
                "the project {name} exists already: {}",
                settings::entitled(Some(there.quota), there.limit, there.weight)
            ),
        )
        .hint(format!("divvy-k8s project set {name}"))),
        _ => Ok(()),
    }
}

fn refuse_leaving(queue: &Value) -> Result<(), Error> {
    if queue["metadata"]["deletionTimestamp"].is_null() {
        Ok(())
    } else {
        Err(Error::new(
            ErrorCode::Conflict,
            format!("the project {} is being removed", status::name(queue)),
        )
        .hint("wait until `divvy-k8s project ls` does not list it"))
    }
}

async fn existing(kueue: &Kueue, name: &str) -> Result<(Value, Project), Error> {
    let queue = kueue
        .get(Kind::ClusterQueue, None, name)
        .await?
        .ok_or_else(|| missing(name))?;
    match owner(&queue) {
        Owner::Divvy => {}
        other => return Err(foreign(Kind::ClusterQueue, name, &other)),
    }
    refuse_leaving(&queue)?;
    let project = status::project(&queue).ok_or_else(|| {
        Error::new(
            ErrorCode::Conflict,
            format!("the project {name} is incomplete: its addition was cut short"),
        )
        .hint(format!(
            "repeat `divvy-k8s project add {name}`, or remove it: divvy-k8s project rm {name}"
        ))
    })?;
    Ok((queue, project))
}

fn missing(name: &str) -> Error {
    Error::new(ErrorCode::NotFound, format!("there is no project {name}"))
        .hint("divvy-k8s project ls")
}

/// A ClusterQueue that admits nothing yet. Its creation is what two administrators cannot both do.
fn skeleton(project: &Project) -> Value {
    let mut queue = project.cluster_queue();
    queue["spec"] = json!({});
    if let Some(metadata) = queue["metadata"].as_object_mut() {
        metadata.remove("annotations");
    }
    queue
}

/// Checks everything that a project needs, before the first write.
async fn check(kueue: &Kueue, project: &Project) -> Result<(), Error> {
    for object in objects::shared() {
        let (kind, name) = kind_of(&object);
        if let Some(there) = kueue.get(kind, None, &name).await?
            && owner(&there) == Owner::Other
        {
            return Err(foreign(kind, &name, &Owner::Other));
        }
    }
    if let Some(name) = &project.department {
        department::check(kueue, name, project).await?;
    }
    for namespace in &project.namespaces {
        if find_namespace(&kueue.client, namespace).await?.is_none() {
            return Err(Error::new(
                ErrorCode::NotFound,
                format!("there is no namespace {namespace}"),
            )
            .hint(format!("kubectl create namespace {namespace}")));
        }
        let Some(local) = kueue.get(Kind::LocalQueue, Some(namespace), QUEUE).await? else {
            continue;
        };
        let of = local["spec"]["clusterQueue"].as_str().unwrap_or_default();
        if of == project.name && owner(&local) == Owner::Divvy {
            continue;
        }
        let (message, hint) = match owner(&local) {
            Owner::Other => (
                format!(
                    "the namespace {namespace} has a LocalQueue {QUEUE} already, for the ClusterQueue {of}"
                ),
                format!("kubectl delete localqueue {QUEUE} -n {namespace}"),
            ),
            _ => (
                format!("the namespace {namespace} belongs to the project {of}"),
                format!("divvy-k8s project set {of} --namespace NAMESPACE, without {namespace}"),
            ),
        };
        return Err(Error::new(ErrorCode::Conflict, message).hint(hint));
    }
    Ok(())
}

/// Writes a project that was checked. Every step may be repeated.
async fn write(kueue: &Kueue, project: &Project, before: &Value) -> Result<(), Error> {
    for object in objects::shared() {
        let (kind, name) = kind_of(&object);
        match kueue.get(kind, None, &name).await?.as_ref().map(owner) {
            None | Some(Owner::Divvy) => drop(kueue.apply(kind, &object, None).await?),
            Some(Owner::Chart(_) | Owner::Other) => {}
        }
    }
    kueue
        .apply_over(Kind::ClusterQueue, &project.cluster_queue(), before)
        .await?;
    for local in project.local_queues() {
        kueue.apply(Kind::LocalQueue, &local, None).await?;
    }
    for namespace in &project.namespaces {
        label_namespace(&kueue.client, namespace, true).await?;
    }
    match &project.department {
        Some(name) => department::refresh(kueue, name).await,
        None => Ok(()),
    }
}

fn kind_of(object: &Value) -> (Kind, String) {
    let kind = match object["kind"].as_str() {
        Some("Cohort") => Kind::Cohort,
        _ => Kind::ResourceFlavor,
    };
    (kind, status::name(object))
}

async fn find_namespace(client: &Client, name: &str) -> Result<Option<Namespace>, Error> {
    let found = Api::<Namespace>::all(client.clone()).get_opt(name).await;
    found.map_err(|error| error_output::of_kube(error, &format!("read the namespace {name}")))
}

/// Opts a namespace in, or takes that back. Server-side apply leaves the label if another client has set it as well.
async fn label_namespace(client: &Client, name: &str, on: bool) -> Result<(), Error> {
    let Some(namespace) = find_namespace(client, name).await? else {
        return Ok(());
    };
    let mut object = json!({
        "apiVersion": "v1", "kind": "Namespace",
        // With the uid, a namespace that is deleted meanwhile is not created again.
        "metadata": { "name": name, "uid": namespace.metadata.uid },
    });
    if on {
        object["metadata"]["labels"] = json!({ OPT_IN.0: OPT_IN.1 });
    }
    let parameters = PatchParams::apply(MANAGER).force();
    let namespaces = Api::<Namespace>::all(client.clone());
    let patched = namespaces
        .patch(name, &parameters, &Patch::Apply(&object))
        .await;
    match patched {
        Err(error) if !cluster::is_missing(&error) => Err(error_output::of_kube(
            error,
            &format!("label the namespace {name}"),
        )),
        _ => Ok(()),
    }
}

/// Takes a namespace out of a project. The LocalQueue goes last: it is what a repeated command finds the namespace by.
async fn leave_namespace(kueue: &Kueue, project: &str, namespace: &str) -> Result<(), Error> {
    let local = kueue.get(Kind::LocalQueue, Some(namespace), QUEUE).await?;
    if local.is_some_and(|local| {
        owner(&local) == Owner::Divvy && local["spec"]["clusterQueue"] == project
    }) {
        label_namespace(&kueue.client, namespace, false).await?;
        kueue
            .delete(Kind::LocalQueue, Some(namespace), QUEUE)
            .await?;
    }
    Ok(())
}

async fn local_queues(kueue: &Kueue, project: &str) -> Result<Vec<Value>, Error> {
    let mut all = kueue.list(Kind::LocalQueue, "").await?;
    all.retain(|local| local["spec"]["clusterQueue"] == project);
    Ok(all)
}

/// Refuses while workloads of the project are in these namespaces.
async fn refuse_workloads(
    kueue: &Kueue,
    project: &str,
    of: impl Fn(&str) -> bool,
) -> Result<(), Error> {
    let mut found = Vec::new();
    for local in local_queues(kueue, project).await? {
        let namespace = status::text(&local["metadata"]["namespace"]);
        if !of(namespace) {
            continue;
        }
        let all = kueue.workloads(Some(namespace)).await?;
        let of_queue = all
            .iter()
            .filter(|one| one["spec"]["queueName"] == local["metadata"]["name"]);
        found.extend(of_queue.filter_map(|one| {
            let state = match status::workload_state(one) {
                WorkloadState::Finished => return None,
                WorkloadState::Admitted | WorkloadState::Stopping { .. } => "running",
                _ => "waiting",
            };
            Some(format!("{} ({state})", list::workload_name(one)))
        }));
    }
    if found.is_empty() {
        Ok(())
    } else {
        let hint = format!("delete them, or evict them: divvy-k8s project rm {project} --force");
        let message = format!(
            "the project {project} has {} workloads: {}",
            found.len(),
            few(&found)
        );
        Err(Error::new(ErrorCode::Conflict, message).hint(hint))
    }
}

/// Has Kueue evict everything of a project.
async fn drain(kueue: &Kueue, name: &str) -> Result<(), Error> {
    kueue.drain(name).await?;
    let ends = Instant::now() + DRAINED;
    loop {
        let Some(queue) = kueue.get(Kind::ClusterQueue, None, name).await? else {
            return Ok(());
        };
        let left = queue["status"]["reservingWorkloads"].as_u64().unwrap_or(0);
        if left == 0 {
            return Ok(());
        }
        if Instant::now() > ends {
            let seconds = DRAINED.as_secs();
            let message =
                format!("{left} workloads of the project {name} still run after {seconds} s");
            return Err(Error::new(ErrorCode::TimedOut, message)
                .hint("their pods end at their own pace; repeat the command"));
        }
        sleep(POLL).await;
    }
}

async fn wait_until_gone(kueue: &Kueue, name: &str) -> Result<(), Error> {
    let ends = Instant::now() + GONE;
    while kueue.get(Kind::ClusterQueue, None, name).await?.is_some() {
        if Instant::now() > ends {
            let message = format!(
                "the ClusterQueue {name} is still there after {} s",
                GONE.as_secs()
            );
            return Err(Error::new(ErrorCode::TimedOut, message)
                .hint("Kueue's controller removes it: kubectl get pods -n kueue-system; then repeat the command"));
        }
        sleep(POLL).await;
    }
    Ok(())
}

/// Removes what all projects share, once there are none.
async fn remove_shared(kueue: &Kueue) -> Result<(), Error> {
    let projects = kueue
        .list(Kind::ClusterQueue, &format!("{MARK}=project"))
        .await?;
    let departments = kueue
        .list(Kind::Cohort, &format!("{MARK}=department"))
        .await?;
    if !projects.is_empty() || !departments.is_empty() {
        return Ok(());
    }
    for object in objects::shared() {
        let (kind, name) = kind_of(&object);
        let there = kueue.get(kind, None, &name).await?;
        if there.is_some_and(|there| owner(&there) == Owner::Divvy) {
            kueue.delete(kind, None, &name).await?;
        }
    }
    Ok(())
}

pub async fn forget_shared(kueue: &Kueue) -> Result<(), Error> {
    remove_shared(kueue).await
}

/// Warns if the quotas together are more than the GPUs that nodes publish.
async fn warn_of_promises(kueue: &Kueue, gpu_memory: Bytes, published: u64) -> Result<(), Error> {
    let queues = kueue
        .list(Kind::ClusterQueue, &format!("{MARK}=project"))
        .await?;
    let projects = queues.iter().filter_map(status::project);
    let promised: u64 = projects
        .map(|one| quota::memory(one.quota, one.gpu_memory).get())
        .fold(0, u64::saturating_add);
    if published > 0 && promised > published {
        let in_gpus =
            |bytes: u64| gpus(quota::thousandths(Bytes::new(bytes), gpu_memory)).to_string();
        say(&format!(
            "warning: the quotas of all projects are {} GPUs together, but the nodes publish {}",
            in_gpus(promised),
            in_gpus(published)
        ));
    }
    Ok(())
}

async fn report(kueue: &Kueue, project: &Project, format: Format, what: &str) -> Result<(), Error> {
    match format {
        Format::Json => list::print_project(kueue, &project.name).await,
        Format::Table => {
            let words = settings::entitled(Some(project.quota), project.limit, project.weight);
            say(&format!("project {} {what}: {words}", project.name));
            Ok(())
        }
    }
}
