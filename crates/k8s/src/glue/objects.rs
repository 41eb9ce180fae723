//! The glue's Kubernetes objects: its own pods and Secrets, in one namespace.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Event, Pod, Secret};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, LogParams, Patch,
    PatchParams, PostParams, Preconditions,
};
use serde_json::json;

use super::record::{Record, name, selector};
use crate::base::claim::NoTemplate;
use crate::base::cluster::error_message;

/// Kueue's object for a pod that it holds back.
const WORKLOAD: (&str, &str, &str) = ("kueue.x-k8s.io", "v1beta2", "Workload");

/// Objects of one answer of a list. The same as client-go's.
const PAGE: u32 = 500;

/// Events that are read at most. A namespace with more has other troubles. So ten pages, and no more memory than that.
const MOST_EVENTS: usize = 5000;

/// A glue's pods and Secrets.
#[derive(Clone)]
pub struct Objects {
    pods: Api<Pod>,
    secrets: Api<Secret>,
    events: Api<Event>,
    workloads: Api<DynamicObject>,
    pub namespace: String,
    /// As [`super::record::holder`] has it.
    pub holder: String,
}

/// The existing objects of a task.
#[derive(Clone, Debug)]
pub struct TaskObjects {
    pub record: Record,
    pub pod: Option<Pod>,
}

/// The result of creating a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateOutcome {
    /// It is there.
    Created,
    /// Not now, and why; the same may be taken later.
    Later(String),
    /// Such a pod is refused, and why.
    Never(String),
}

impl Objects {
    pub fn new(client: kube::Client, namespace: &str, holder: &str) -> Self {
        Self {
            pods: Api::namespaced(client.clone(), namespace),
            secrets: Api::namespaced(client.clone(), namespace),
            events: Api::namespaced(client.clone(), namespace),
            workloads: Api::namespaced_with(client, namespace, &ApiResource::from_gvk(&workload())),
            namespace: namespace.to_owned(),
            holder: holder.to_owned(),
        }
    }

    /// Everything that is ours, by task.
    ///
    /// # Errors
    /// The API server's; so for every call here.
    pub async fn list(&self) -> Result<BTreeMap<String, TaskObjects>, kube::Error> {
        let ours = ListParams::default().labels(&selector(&self.holder));
        // Records first: a pod is never there before its record. Without their data, which has every task's configuration.
        let secrets = self.secrets.list_metadata(&ours).await?;
        let pods = self.pods.list(&ours).await?;
        let records = secrets.iter().filter_map(|one| Record::of(&one.metadata));
        let mut found: BTreeMap<String, TaskObjects> = records
            .map(|record| (record.task.clone(), TaskObjects { record, pod: None }))
            .collect();
        for pod in pods {
            if let Some(record) = Record::of_pod(&pod) {
                let task = record.task.clone();
                found
                    .entry(task)
                    .or_insert(TaskObjects { record, pod: None })
                    .pod = Some(pod);
            }
        }
        Ok(found)
    }

    /// Events of the namespace's pods.
    pub async fn events(&self) -> Result<Vec<Event>, kube::Error> {
        let mut events = Vec::new();
        let mut page = ListParams::default()
            .fields("involvedObject.kind=Pod")
            .limit(PAGE);
        loop {
            let found = self.events.list(&page).await?;
            let next = found.metadata.continue_.clone();
            events.extend(found.items);
            match next.filter(|next| !next.is_empty() && events.len() < MOST_EVENTS) {
                Some(next) => page = page.continue_token(&next),
                None => return Ok(events),
            }
        }
    }

    /// Kueue's Workloads of this glue's pods.
    pub async fn workloads(&self) -> Result<Vec<DynamicObject>, kube::Error> {
        Ok(self.workloads.list(&ListParams::default()).await?.items)
    }

    /// The pod of a task as it is now.
    pub async fn pod(&self, task: &str) -> Result<Option<Pod>, kube::Error> {
        self.pods.get_opt(&name(task)).await
    }

    /// Makes a record; `false`: there is one already.
    pub async fn make_record(&self, record: &Record) -> Result<bool, kube::Error> {
        match self
            .secrets
            .create(&PostParams::default(), &record.secret(&self.holder))
            .await
        {
            Ok(_) => Ok(true),
            Err(error) if is(&error, 409) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes how far a task is.
    pub async fn write_mark(&self, record: &Record) -> Result<(), kube::Error> {
        self.annotate(&record.task, record.mark_said()).await
    }

    /// Writes how much of its log was sent.
    pub async fn write_logged(&self, record: &Record) -> Result<(), kube::Error> {
        self.annotate(&record.task, record.logged_said()).await
    }

    async fn annotate(
        &self,
        task: &str,
        (name_of, value): (String, String),
    ) -> Result<(), kube::Error> {
        let patch = json!({ "metadata": { "annotations": { name_of: value } } });
        self.secrets
            .patch(&name(task), &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map(drop)
    }

    /// Writes the pod's files into its Secret, which is created again if it was deleted. [`CreateOutcome::Never`]: a Secret
    /// cannot hold them, as more than 1 MiB is (`MaxSecretSize`, core/v1).
    pub async fn fill(
        &self,
        record: &Record,
        data: BTreeMap<String, String>,
    ) -> Result<CreateOutcome, kube::Error> {
        self.make_record(record).await?;
        let data: BTreeMap<String, ByteString> = data
            .into_iter()
            .map(|(key, text)| (key, ByteString(text.into_bytes())))
            .collect();
        let patch = json!({ "data": data });
        let (name, params) = (name(&record.task), PatchParams::default());
        match self
            .secrets
            .patch(&name, &params, &Patch::Merge(patch))
            .await
        {
            Ok(_) => Ok(CreateOutcome::Created),
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 413 | 422) => {
                Ok(CreateOutcome::Never(status.message))
            }
            Err(error) => Err(error),
        }
    }

    pub async fn remove_record(&self, task: &str) -> Result<(), kube::Error> {
        match self
            .secrets
            .delete(&name(task), &DeleteParams::default())
            .await
        {
            Err(error) if !is(&error, 404) => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes a task's pod, once.
    pub async fn make_pod(&self, pod: &Pod) -> CreateOutcome {
        match self.pods.create(&PostParams::default(), pod).await {
            Ok(_) => CreateOutcome::Created,
            Err(error) if is(&error, 409) => self.is_ours(pod).await,
            Err(error) => judged(&error),
        }
    }

    /// A pod of this name is there: ours, if it says so.
    async fn is_ours(&self, pod: &Pod) -> CreateOutcome {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        match self.pods.get_opt(name).await {
            Ok(Some(there)) if Record::of_pod(&there) == Record::of_pod(pod) => {
                CreateOutcome::Created
            }
            Ok(Some(_)) => CreateOutcome::Never(format!("another pod with the name {name} exists")),
            Ok(None) => CreateOutcome::Later("its earlier pod was just deleted".to_owned()),
            Err(error) => CreateOutcome::Later(error_message(&error)),
        }
    }

    /// Deletes this very pod; it is no error that it is gone.
    pub async fn delete(&self, pod: &Pod) -> Result<(), kube::Error> {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let only = Preconditions {
            uid: pod.metadata.uid.clone(),
            ..Preconditions::default()
        };
        let params = DeleteParams {
            preconditions: Some(only),
            ..DeleteParams::default()
        };
        match self.pods.delete(name, &params).await {
            Err(error) if !is(&error, 404) && !is(&error, 409) => Err(error),
            _ => Ok(()),
        }
    }

    /// The log of a pod's container, with the time of each line, from `since` on and as it grows.
    pub async fn log(
        &self,
        pod: &Pod,
        since: Option<k8s_openapi::jiff::Timestamp>,
    ) -> Result<impl futures_util::AsyncBufRead + use<>, kube::Error> {
        let first = pod.spec.as_ref().and_then(|spec| spec.containers.first());
        let params = LogParams {
            container: first.map(|container| container.name.clone()),
            follow: true,
            timestamps: true,
            since_time: since,
            ..LogParams::default()
        };
        self.pods
            .log_stream(pod.metadata.name.as_deref().unwrap_or_default(), &params)
            .await
    }
}

fn workload() -> GroupVersionKind {
    let (group, version, kind) = WORKLOAD;
    GroupVersionKind::gvk(group, version, kind)
}

fn is(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// Parts of what an API server says when admission refuses a pod for what it is: a webhook, a policy, pod security.
const REFUSALS: [&str; 3] = [
    "denied the request",
    "denied request",
    "violates PodSecurity",
];

/// Whether a pod that was not taken may be later.
fn judged(error: &kube::Error) -> CreateOutcome {
    let kube::Error::Api(status) = error else {
        return CreateOutcome::Later(error_message(error));
    };
    let message = status.message.clone();
    let passes = [NoTemplate::NoGpus.to_string().as_str(), "exceeded quota"]
        .iter()
        .any(|part| message.contains(part));
    let refused = REFUSALS.iter().any(|part| message.contains(part));
    match status.code {
        _ if passes => CreateOutcome::Later(message),
        // An error of a server, not of the pod: a webhook's answer of such a code is called a denial as well.
        429 | 500..=599 => CreateOutcome::Later(message),
        400 | 413 | 422 => CreateOutcome::Never(message),
        _ if refused => CreateOutcome::Never(message),
        _ => CreateOutcome::Later(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(code: u16, message: &str) -> CreateOutcome {
        let status = json!({ "status": "Failure", "code": code, "message": message });
        judged(&kube::Error::Api(serde_json::from_value(status).unwrap()))
    }

    #[test]
    fn a_pod_that_is_refused_for_what_it_is_is_told_from_one_that_has_to_wait() {
        for message in [
            "admission webhook \"inject.gpu.divvy.dev\" denied the request: clearml-injector/fraction: 0.3",
            "ValidatingAdmissionPolicy 'x' with binding 'y' denied request: no",
            "pods \"p\" is forbidden: violates PodSecurity \"baseline:latest\": hostPath volumes",
        ] {
            assert!(
                matches!(answered(403, message), CreateOutcome::Never(_)),
                "{message}"
            );
        }
        assert!(matches!(
            answered(422, "Pod \"p\" is invalid"),
            CreateOutcome::Never(_)
        ));
        for (code, message) in [
            (403, "pods \"p\" is forbidden: exceeded quota: gpus"),
            (
                403,
                "pods is forbidden: User \"system:serviceaccount:a:b\" cannot create resource \"pods\"",
            ),
            (404, "namespaces \"a\" not found"),
            (429, "too many requests"),
            (500, "Internal error occurred: failed calling webhook"),
            (
                500,
                "admission webhook \"inject.gpu.divvy.dev\" denied the request: the claim template could not be made",
            ),
            (
                429,
                "admission webhook \"x\" denied the request: too many requests",
            ),
        ] {
            assert!(
                matches!(answered(code, message), CreateOutcome::Later(_)),
                "{message}"
            );
        }
        let starting = format!(
            "admission webhook denied the request: {}",
            NoTemplate::NoGpus
        );
        assert!(matches!(answered(403, &starting), CreateOutcome::Later(_)));
    }
}
