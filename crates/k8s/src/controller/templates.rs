//! The life of ResourceClaimTemplates: created at admission, created again when a pod lacks one, deleted when unused.
//!
//! A template is only needed until the pod's claim has been made of it. It says nothing of the cluster as it is now: when other GPUs come,
//! new pods get a template of another name, and those that were admitted keep theirs. When it was last of use stands in an annotation, so
//! that none is removed between the admission of a pod and its claim, whichever replica did what. A workload that exists keeps
//! the templates of its pod templates: its pods may come in days, and a queue reads them before that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::classes::classes_of;
use super::holders::Held;
use super::informers::{Informer, Key};
use super::owner::OwnerRef;
use super::pending::Pending;
use crate::base::claim::{Inventory, PREFIX, Template};
use crate::base::cluster::{MANAGED_BY, error_message, is_already_exists, is_conflict, is_missing};
use crate::base::metrics::controller::METRICS;
use crate::base::pod_request::Size;
use crate::base::quantity::Quantity;

/// When a pod was last admitted with it, RFC 3339.
const LAST_USED: &str = "divvy.dev/last-used";
/// How long an unused template stays: much longer than the controller manager takes to make a claim.
const KEPT: Duration = Duration::from_secs(3600);
/// A use is written down again when the last is older than this. A quarter of the hour for which an unused one is kept,
/// so that a note is never lost by one failed write.
const NOTED: Duration = Duration::from_secs(3600 / 4);
/// The most templates of a namespace, one for each distinct request. A thousand mean a client that tries all requests.
/// Real namespaces have tens; more would fill the API server's store.
const MOST: usize = 1000;
/// How often an admission makes a template that other clients delete or replace meanwhile. A race is lost once; five
/// lost ones in a row mean a client that deletes all templates. More than a race needs; so often in a row means a
/// client that deletes all templates.
const TRIES: usize = 5;

#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    #[error("cannot create the claim template {name}: {}", error_message(error))]
    Make {
        name: String,
        #[source]
        error: Box<kube::Error>,
    },
    #[error(
        "namespace {namespace} already has {MOST} claim templates of Divvy, the maximum; Divvy deletes each an hour after its last pod or workload"
    )]
    TooMany { namespace: String },
    #[error(
        "the ResourceClaimTemplate {name} in namespace {namespace} is not Divvy's and requests something else: delete it, and create the pod again"
    )]
    Foreign { namespace: String, name: String },
    #[error(
        "the API server stored the claim template {name} with changes: a feature gate is off, or another webhook modifies it"
    )]
    Altered { name: String },
    #[error("cannot create the claim template {name}: other clients replaced it {TRIES} times")]
    Contended { name: String },
}

/// What Divvy needs of a claim template. Any user may write templates with Divvy's label, so the spec itself is not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateFacts {
    key: Key,
    uid: Option<String>,
    version: Option<String>,
    is_ours: bool,
    last_used: Option<Timestamp>,
    spec: SpecDigest,
    /// Divvy's classes that it names.
    pub classes: Vec<String>,
}

/// Digest of a spec in normal form.
type SpecDigest = [u8; 32];

impl TemplateFacts {
    /// `None` for a template whose name is none of Divvy's.
    pub fn of(template: &ResourceClaimTemplate) -> Option<Self> {
        let name = template.name_any();
        let last_used = template.annotations().get(LAST_USED);
        let devices = template.spec.spec.devices.iter();
        let requests = devices.flat_map(|devices| devices.requests.iter().flatten());
        let (key, value) = MANAGED_BY;
        name.starts_with(PREFIX).then(|| Self {
            uid: template.uid(),
            version: template.resource_version(),
            is_ours: template
                .labels()
                .get(key)
                .is_some_and(|found| found == value),
            last_used: last_used.and_then(|text| text.parse().ok()),
            spec: serde_json::to_value(&template.spec)
                .map_or_else(|_| SpecDigest::default(), |spec| digest(&spec)),
            classes: requests.flat_map(classes_of).collect(),
            key: (template.namespace().unwrap_or_default(), name),
        })
    }
}

/// The state of an existing template for a pod that is admitted now.
#[derive(Debug, PartialEq, Eq)]
enum ExistingTemplate {
    Fresh,
    /// Its use is to be written down.
    Stale,
    /// It has another spec than its name stands for: a user has made it, or the controller did for a pod of another inventory.
    Wrong,
    /// It has another spec, and no label of Divvy's.
    Foreign,
}

/// The templates, as the webhook uses them.
pub struct Templates {
    pub client: Client,
    pub seen: Arc<Informer<TemplateFacts>>,
    pub owner: Arc<OwnerRef>,
}

impl Templates {
    /// Sees to it that the template is in this namespace, and stays for the time that a claim needs to be made.
    ///
    /// # Errors
    /// A call failed, or there is another of its name.
    pub async fn ensure(&self, namespace: &str, template: &Template) -> Result<(), TemplateError> {
        let name = &template.name;
        let failed = |error| TemplateError::Make {
            name: name.clone(),
            error: Box::new(error),
        };
        let api: Api<ResourceClaimTemplate> = Api::namespaced(self.client.clone(), namespace);
        let seen = self.seen.get(namespace, name);
        let seen = seen.map(|seen| classify(&seen, template, Timestamp::now()));
        match seen {
            Some(ExistingTemplate::Fresh) => return Ok(()),
            Some(ExistingTemplate::Stale) => match note(&api, name).await {
                Ok(()) => return Ok(()),
                Err(error) if is_missing(&error) => {}
                Err(error) => return Err(failed(error)),
            },
            Some(ExistingTemplate::Wrong | ExistingTemplate::Foreign) | None => {}
        }
        if self.seen.count_in(namespace) >= MOST {
            return Err(TemplateError::TooMany {
                namespace: namespace.to_owned(),
            });
        }
        for _ in 0..TRIES {
            match make(&api, template, namespace, &self.owner).await {
                Ok(made) if is_stored(template, &made) => return Ok(()),
                Ok(_) => return Err(TemplateError::Altered { name: name.clone() }),
                Err(error) if is_already_exists(&error) => {}
                Err(error) => return Err(failed(error)),
            }
            let Some(there) = api.get_opt(name).await.map_err(failed)? else {
                continue;
            };
            let facts = TemplateFacts::of(&there);
            let found = facts.map(|facts| classify(&facts, template, Timestamp::now()));
            match found.unwrap_or(ExistingTemplate::Foreign) {
                ExistingTemplate::Fresh => return Ok(()),
                ExistingTemplate::Stale => match note(&api, name).await {
                    Err(error) if is_missing(&error) => {}
                    noted => return noted.map_err(failed),
                },
                ExistingTemplate::Foreign => {
                    return Err(TemplateError::Foreign {
                        namespace: namespace.to_owned(),
                        name: name.clone(),
                    });
                }
                ExistingTemplate::Wrong => {
                    tracing::warn!(
                        namespace,
                        template = name,
                        "replaced: its spec does not match its name"
                    );
                    remove(&api, &there).await.map_err(failed)?;
                }
            }
        }
        Err(TemplateError::Contended { name: name.clone() })
    }
}

fn classify(there: &TemplateFacts, wanted: &Template, now: Timestamp) -> ExistingTemplate {
    match (there.is_ours, there.spec == digest(&wanted.spec)) {
        // Without the label the controller does not remove it; the claims made from it are the same.
        (false, true) => ExistingTemplate::Fresh,
        (false, false) => ExistingTemplate::Foreign,
        (true, false) => ExistingTemplate::Wrong,
        (true, true) => match last_used(there, now) {
            Some(ago) if ago < NOTED => ExistingTemplate::Fresh,
            _ => ExistingTemplate::Stale,
        },
    }
}

/// Whether the API server has the template with the spec that its name stands for.
fn is_stored(wanted: &Template, there: &ResourceClaimTemplate) -> bool {
    TemplateFacts::of(there).is_some_and(|there| there.spec == digest(&wanted.spec))
}

/// How long ago a pod was admitted with it; `None` for a time in the future.
fn last_used(template: &TemplateFacts, now: Timestamp) -> Option<Duration> {
    Duration::try_from(now.duration_since(template.last_used?)).ok()
}

fn digest(spec: &Value) -> SpecDigest {
    Sha256::digest(normal(spec).to_string().as_bytes()).into()
}

/// A spec in the form that is the same for what Divvy writes and for what the API server returns: without defaults and empty
/// fields, and with one form of quantities.
fn normal(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let has_value = |key: &str, value: &Value| !is_empty(value) && !is_default(key, value);
            let fields = fields.iter().filter(|(key, value)| has_value(key, value));
            // In the order of their names, whatever order serde_json keeps.
            let sorted: BTreeMap<&String, Value> =
                fields.map(|(key, value)| (key, normal(value))).collect();
            json!(sorted)
        }
        Value::Array(items) => items.iter().map(normal).collect(),
        other => Quantity::of(other).map_or_else(|_| other.clone(), |amount| json!(amount.text())),
    }
}

/// Whether a field has no value. Go's `omitempty` keeps empty structs: a template's spec always has `metadata: {}`
/// (`ResourceClaimTemplateSpec`, resource.k8s.io/v1).
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_empty),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// The API server's default for a request that leaves the field out (`SetDefaults_ExactDeviceRequest`).
fn is_default(field: &str, value: &Value) -> bool {
    match field {
        "allocationMode" => value == "ExactCount",
        "count" => value == 1,
        _ => false,
    }
}

/// Records a use, now.
async fn note(api: &Api<ResourceClaimTemplate>, name: &str) -> Result<(), kube::Error> {
    let now = Timestamp::now().to_string();
    let patch = json!({ "metadata": { "annotations": { LAST_USED: now } } });
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    match api.patch_metadata(name, &params, &patch).await {
        // The API server gives up a patch after five collisions with other writers: they have recorded a use as well.
        Err(error) if !is_conflict(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Deletes exactly this version, so a changed template stays.
async fn remove(
    api: &Api<ResourceClaimTemplate>,
    template: &ResourceClaimTemplate,
) -> Result<(), kube::Error> {
    let params = DeleteParams::default().preconditions(Preconditions {
        uid: template.uid(),
        resource_version: template.resource_version(),
    });
    match api.delete(&template.name_any(), &params).await {
        Err(error) if !is_missing(&error) && !is_conflict(&error) => Err(error),
        _ => Ok(()),
    }
}

async fn make(
    api: &Api<ResourceClaimTemplate>,
    template: &Template,
    namespace: &str,
    owner: &OwnerRef,
) -> Result<ResourceClaimTemplate, kube::Error> {
    let mut object: Value = template.object(namespace);
    object["metadata"]["annotations"][LAST_USED] = json!(Timestamp::now().to_string());
    if let Some(owner) = owner.reference() {
        object["metadata"]["ownerReferences"] = json!([owner]);
    }
    let object = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
    let made = api.create(&PostParams::default(), &object).await;
    METRICS.template_created(match &made {
        Ok(_) => Some(true),
        Err(error) if is_already_exists(error) => Some(false),
        Err(_) => None,
    });
    made
}

/// A write to a template.
#[derive(Clone, Debug, PartialEq)]
pub enum TemplateChange {
    /// A pod or a workload refers to one that is not there.
    Make {
        namespace: String,
        template: Template,
    },
    /// Unused for a while; the version is the observed one.
    Remove {
        namespace: String,
        name: String,
        uid: String,
        version: String,
    },
}

impl TemplateChange {
    /// # Errors
    /// A call failed. A conflict, or a template that is in use again, is no error.
    pub async fn run(&self, client: &Client, owner: &OwnerRef) -> Result<(), kube::Error> {
        match self {
            Self::Make {
                namespace,
                template,
            } => {
                let api = Api::namespaced(client.clone(), namespace);
                tracing::info!(
                    namespace,
                    template = template.name,
                    "created again: a pod or a workload needs it"
                );
                match make(&api, template, namespace, owner).await {
                    Err(error) if !is_already_exists(&error) => Err(error),
                    _ => Ok(()),
                }
            }
            Self::Remove {
                namespace,
                name,
                uid,
                version,
            } => {
                let api: Api<ResourceClaimTemplate> = Api::namespaced(client.clone(), namespace);
                let params = DeleteParams::default().preconditions(Preconditions {
                    uid: Some(uid.clone()),
                    resource_version: Some(version.clone()),
                });
                tracing::info!(
                    namespace,
                    template = name,
                    "removed: no pod and no workload needs it"
                );
                match api.delete(name, &params).await {
                    Err(error) if !is_missing(&error) && !is_conflict(&error) => Err(error),
                    _ => Ok(()),
                }
            }
        }
    }
}

/// Since when which templates have been of no use, as far as this replica has seen.
pub type IdleSince = BTreeMap<Key, Timestamp>;

/// The writes to the existing templates, for the pods that wait and the workloads that exist; `idle` is carried from one round to
/// the next.
pub fn steps<'t>(
    templates: impl IntoIterator<Item = &'t TemplateFacts>,
    pods: &[Arc<Pending>],
    held: &Held,
    inventory: &Inventory,
    now: Timestamp,
    idle: &mut IdleSince,
) -> Vec<TemplateChange> {
    let waiting = pods.iter().filter(|pod| pod.claim.is_none());
    let mut needed: BTreeMap<Key, Vec<Size>> = BTreeMap::new();
    for (key, asked) in &held.templates {
        needed.insert(key.clone(), asked.clone());
    }
    for pod in waiting {
        let key = (pod.namespace.clone(), pod.template.clone());
        needed.insert(key, pod.asked.clone());
    }
    let mut steps = Vec::new();
    let mut still_idle = IdleSince::new();
    let mut there = BTreeSet::new();
    for template in templates {
        let key = template.key.clone();
        there.insert(key.clone());
        if needed.contains_key(&key) || !template.is_ours {
            continue;
        }
        let since = *idle.get(&key).unwrap_or(&now);
        let idle_for = Duration::try_from(now.duration_since(since)).unwrap_or_default();
        let unused_for = last_used(template, now).map_or(idle_for, |ago| ago.min(idle_for));
        if held.is_complete
            && unused_for >= KEPT
            && let (Some(uid), Some(version)) = (template.uid.clone(), template.version.clone())
        {
            steps.push(TemplateChange::Remove {
                namespace: key.0.clone(),
                name: key.1.clone(),
                uid,
                version,
            });
        }
        still_idle.insert(key, since);
    }
    *idle = still_idle;
    for (key, asked) in needed {
        if asked.is_empty() || !key.1.starts_with(PREFIX) || there.contains(&key) {
            continue;
        }
        // Under the name that the pod has, though the cluster may be another by now. What cannot be is told the pod as an event.
        if let Ok(template) = Template::of(&asked, inventory) {
            let (namespace, name) = key;
            let template = Template { name, ..template };
            steps.push(TemplateChange::Make {
                namespace,
                template,
            });
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use divvy_core::units::Bytes;

    use super::*;

    fn inventory() -> Inventory {
        Inventory {
            sizes: [Bytes::gib(80)].into(),
            ..Inventory::default()
        }
    }

    fn waiting(template: &str) -> Arc<Pending> {
        Arc::new(Pending {
            namespace: "team".into(),
            name: "p".into(),
            uid: "u".into(),
            template: template.into(),
            asked: vec![Size::Memory(2000)],
            claim: None,
            has_no_place: false,
        })
    }

    /// No workload.
    fn none() -> Held {
        Held {
            is_complete: true,
            ..Held::default()
        }
    }

    fn at(minutes: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + minutes * 60).unwrap()
    }

    fn template(name: &str, used: Timestamp) -> TemplateFacts {
        let template = serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "team", "uid": "t", "resourceVersion": "7",
                "labels": { "app.kubernetes.io/managed-by": "divvy" },
                "annotations": { LAST_USED: used.to_string() },
            },
            "spec": { "spec": {} },
        }))
        .unwrap();
        TemplateFacts::of(&template).unwrap()
    }

    #[test]
    fn a_template_that_a_pod_lacks_is_made_again_under_its_name() {
        let steps = steps(
            [],
            &[waiting("divvy-abc")],
            &none(),
            &inventory(),
            at(0),
            &mut IdleSince::new(),
        );
        let [
            TemplateChange::Make {
                namespace,
                template,
            },
        ] = &steps[..]
        else {
            panic!("{steps:?}");
        };
        let fresh = Template::of(&[Size::Memory(2000)], &inventory()).unwrap();
        assert_eq!(
            (namespace.as_str(), template.name.as_str()),
            ("team", "divvy-abc")
        );
        assert_eq!(template.spec, fresh.spec);
    }

    #[test]
    fn nothing_is_made_for_what_was_not_recorded_is_not_ours_or_has_its_claim() {
        let pending = || Arc::unwrap_or_clone(waiting("divvy-abc"));
        let unrecorded = Pending {
            asked: Vec::new(),
            ..pending()
        };
        let claimed = Pending {
            claim: Some("p-xyz".into()),
            ..pending()
        };
        let pods = [
            Arc::new(unrecorded),
            waiting("somebodys"),
            Arc::new(claimed),
        ];
        assert_eq!(
            steps(
                [],
                &pods,
                &none(),
                &inventory(),
                at(0),
                &mut IdleSince::new()
            ),
            []
        );
        let nowhere = steps(
            [],
            &[waiting("divvy-abc")],
            &none(),
            &Inventory::default(),
            at(0),
            &mut IdleSince::new(),
        );
        assert_eq!(nowhere, [], "no GPU could serve it: that is told, not made");
    }

    #[test]
    fn an_unused_template_goes_after_a_while_and_not_before() {
        let (old, mut idle) = (template("divvy-abc", at(0)), IdleSince::new());
        let mut at_minute = |minute, pods: &[Arc<Pending>]| {
            steps([&old], pods, &none(), &inventory(), at(minute), &mut idle)
        };
        assert_eq!(
            at_minute(500, &[]),
            [],
            "a replica that has just come waits for itself"
        );
        assert_eq!(at_minute(559, &[]), []);
        let removed = TemplateChange::Remove {
            namespace: "team".into(),
            name: "divvy-abc".into(),
            uid: "t".into(),
            version: "7".into(),
        };
        assert_eq!(at_minute(560, &[]), [removed]);
        assert_eq!(
            at_minute(600, &[waiting("divvy-abc")]),
            [],
            "a pod waits for it"
        );
        assert_eq!(at_minute(601, &[]), [], "and the hour begins anew");
    }

    #[test]
    fn a_workload_keeps_its_template_and_gets_a_lost_one_again() {
        let key = ("team".to_owned(), "divvy-abc".to_owned());
        let held = Held {
            templates: [(key, vec![Size::Memory(2000)])].into(),
            is_complete: true,
        };
        let (old, mut idle) = (template("divvy-abc", at(0)), IdleSince::new());
        for minute in [0, 100, 10_000] {
            let steps = steps([&old], &[], &held, &inventory(), at(minute), &mut idle);
            assert_eq!(steps, [], "{minute}");
        }
        let again = steps([], &[], &held, &inventory(), at(10_001), &mut idle);
        assert!(
            matches!(&again[..], [TemplateChange::Make { template, .. }] if template.name == "divvy-abc"),
            "{again:?}"
        );
        // When the workload is gone the hour begins.
        let mut after =
            |minute, held: &Held| steps([&old], &[], held, &inventory(), at(minute), &mut idle);
        assert_eq!(after(10_001, &none()), []);
        assert_eq!(
            after(10_061, &Held::default()),
            [],
            "a kind could not be listed, so it may be in use"
        );
        let removed = after(10_061, &none());
        assert!(
            matches!(&removed[..], [TemplateChange::Remove { .. }]),
            "{removed:?}"
        );
    }

    #[test]
    fn a_time_that_is_yet_to_come_keeps_nothing_and_breaks_nothing() {
        let last: Timestamp = "9999-12-30T22:00:00Z".parse().unwrap();
        let (old, mut idle) = (template("divvy-abc", last), IdleSince::new());
        assert_eq!(
            steps([&old], &[], &none(), &inventory(), at(0), &mut idle),
            []
        );
        let after = steps([&old], &[], &none(), &inventory(), at(60), &mut idle);
        assert!(
            matches!(&after[..], [TemplateChange::Remove { .. }]),
            "{after:?}"
        );
        let wanted = Template {
            name: "divvy-abc".into(),
            spec: json!({ "spec": {} }),
        };
        assert_eq!(classify(&old, &wanted, at(0)), ExistingTemplate::Stale);
    }

    #[test]
    fn what_says_something_else_under_the_same_name_is_not_taken() {
        let wanted = Template::of(&[Size::Memory(2048), Size::Whole], &inventory()).unwrap();
        let there = |change: &dyn Fn(&mut Value)| {
            let mut object = wanted.object("team");
            object["metadata"]["annotations"][LAST_USED] = json!(at(0).to_string());
            change(&mut object["spec"]["spec"]["devices"]["requests"]);
            let there = serde_json::from_value(object).unwrap();
            classify(&TemplateFacts::of(&there).unwrap(), &wanted, at(1))
        };
        assert_eq!(there(&|_| {}), ExistingTemplate::Fresh);
        // As the API server writes it.
        let written = |requests: &mut Value| {
            for request in requests.as_array_mut().unwrap() {
                request["exactly"]["allocationMode"] = json!("ExactCount");
            }
            requests[1]["exactly"]["capacity"]["requests"]["memory"] = json!("2Gi");
        };
        assert_eq!(there(&written), ExistingTemplate::Fresh);
        for change in [
            (|requests| requests[0]["exactly"]["deviceClassName"] = json!("other"))
                as fn(&mut Value),
            |requests| requests[0]["exactly"]["adminAccess"] = json!(true),
            |requests| requests[1]["exactly"]["capacity"]["requests"]["memory"] = json!("1Gi"),
            |requests| requests[0]["exactly"]["allocationMode"] = json!("All"),
            |requests| drop(requests.as_array_mut().unwrap().pop()),
        ] {
            assert_eq!(there(&change), ExistingTemplate::Wrong);
        }
    }

    #[test]
    fn what_the_api_server_writes_into_a_template_is_no_change() {
        let wanted = Template::of(&[Size::Memory(2048)], &inventory()).unwrap();
        let there = |metadata: Value, labels: Value| {
            let mut object = wanted.object("team");
            object["metadata"]["annotations"][LAST_USED] = json!(at(0).to_string());
            object["metadata"]["labels"] = labels;
            object["spec"]["metadata"] = metadata;
            object["spec"]["spec"]["devices"]["config"] = json!([]);
            let there = serde_json::from_value(object).unwrap();
            classify(&TemplateFacts::of(&there).unwrap(), &wanted, at(1))
        };
        let (key, value) = MANAGED_BY;
        let ours = json!({ key: value });
        // The first is what 1.36.2 answers.
        for metadata in [json!({}), json!(null), json!({ "labels": {} })] {
            assert_eq!(there(metadata, ours.clone()), ExistingTemplate::Fresh);
        }
        let labelled = json!({ "labels": { "a": "b" } });
        assert_eq!(there(labelled.clone(), ours), ExistingTemplate::Wrong);
        // Another client's of the same spec serves as well, and one of another does not.
        assert_eq!(there(json!({}), json!({})), ExistingTemplate::Fresh);
        assert_eq!(there(labelled, json!({})), ExistingTemplate::Foreign);
    }

    #[test]
    fn what_was_used_lately_and_what_is_not_ours_stays() {
        let mut idle = IdleSince::new();
        let used = template("divvy-abc", at(550));
        let foreign = TemplateFacts {
            is_ours: false,
            ..template("divvy-abc", at(0))
        };
        for minute in [500, 609] {
            let all = [&used, &foreign];
            assert_eq!(
                steps(all, &[], &none(), &inventory(), at(minute), &mut idle),
                []
            );
        }
    }
}
