//! Registration of the admission webhook at the API server: the rules of its configuration, and the CA bundle.
//!
//! The chart owns the configuration; this module only writes the CA bundle into it. The webhook matches only marked
//! objects: those that ask for part of a GPU, in a namespace that has opted in. The match is written twice, in Rust
//! (`pod_request`) and in the CEL expressions below, which the API server evaluates; a test compares both.

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use crate::pod_request::{DEVICES, FRACTION, FRACTION_LABEL, HAMI_MEMORY, HAMI_PERCENT, MEMORY};

/// Where the API server posts its questions.
pub const PATH: &str = "/mutate";
/// A namespace with this label takes part.
pub const OPT_IN: (&str, &str) = ("divvy.dev/inject", "enabled");
/// How long the API server waits for an answer, in seconds. Most calls need none of it; one that makes a template needs a call of its own.
pub const TIMEOUT_SECONDS: u64 = 10;

/// The parameters of the configuration.
#[derive(Clone, Debug)]
pub struct Registration<'a> {
    pub name: &'a str,
    pub namespace: &'a str,
    pub service: &'a str,
    /// All namespaces but the system's own ones, instead of those that have opted in.
    pub all_namespaces: bool,
}

impl Registration<'_> {
    /// The MutatingWebhookConfiguration, without a bundle.
    pub fn object(&self) -> Value {
        let namespaces = match self.all_namespaces {
            false => json!({ "matchLabels": { OPT_IN.0: OPT_IN.1 } }),
            true => json!({ "matchExpressions": [{
                "key": "kubernetes.io/metadata.name",
                "operator": "NotIn",
                "values": ["kube-system", self.namespace],
            }] }),
        };
        let webhook = |name: &str, rules: Value, conditions: Value| {
            json!({
                "name": format!("{name}.inject.divvy.dev"),
                "admissionReviewVersions": ["v1"],
                "clientConfig": { "service": {
                    "namespace": self.namespace, "name": self.service, "path": PATH, "port": 443,
                } },
                "rules": rules,
                "namespaceSelector": namespaces,
                "matchConditions": conditions,
                "failurePolicy": "Fail",
                "matchPolicy": "Equivalent",
                "sideEffects": "NoneOnDryRun",
                "reinvocationPolicy": "IfNeeded",
                "timeoutSeconds": TIMEOUT_SECONDS,
            })
        };
        let rule = |group: &str, operations: Value, resources: Value| {
            json!({
                "apiGroups": [group], "apiVersions": ["v1"], "operations": operations,
                "resources": resources, "scope": "Namespaced",
            })
        };
        let written = || json!(["CREATE", "UPDATE"]);
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": { "name": self.name, "labels": { "app.kubernetes.io/managed-by": "divvy" } },
            "webhooks": [
                webhook(
                    "pods",
                    json!([rule("", json!(["CREATE"]), json!(["pods"]))]),
                    json!([
                        condition("default-scheduler", &default_scheduler()),
                        condition("asks-for-a-part", &marked_pod()),
                    ]),
                ),
                webhook(
                    "templates",
                    json!([
                        rule("apps", written(), json!(["deployments", "statefulsets", "daemonsets", "replicasets"])),
                        rule("batch", written(), json!(["jobs"])),
                        rule("", written(), json!(["replicationcontrollers"])),
                    ]),
                    json!([condition("asks-for-a-part", &marked_template("object.spec.template"))]),
                ),
                webhook(
                    "cronjobs",
                    json!([rule("batch", written(), json!(["cronjobs"]))]),
                    json!([condition("asks-for-a-part", &marked_template("object.spec.jobTemplate.spec.template"))]),
                ),
            ],
        })
    }
}

fn condition(name: &str, expression: &str) -> Value {
    json!({ "name": name, "expression": expression })
}

fn default_scheduler() -> String {
    "!has(object.spec.schedulerName) || object.spec.schedulerName in ['', 'default-scheduler']"
        .to_owned()
}

/// A pod with the label, an annotation or a limit.
fn marked_pod() -> String {
    let annotations = [FRACTION, MEMORY, DEVICES]
        .map(|key| format!("'{key}'"))
        .join(", ");
    format!(
        "(has(object.metadata.labels) && '{FRACTION_LABEL}' in object.metadata.labels) || \
         (has(object.metadata.annotations) && [{annotations}].exists(key, key in object.metadata.annotations)) || \
         {}",
        limited("object.spec", &any_part())
    )
}

/// A template whose limits the API server would refuse: fractions are no whole numbers.
fn marked_template(template: &str) -> String {
    let of_clearml = "key.startsWith('clear.ml/fraction')".to_owned();
    format!(
        "has({template}.spec.containers) && ({})",
        limited(&format!("{template}.spec"), &of_clearml)
    )
}

fn any_part() -> String {
    format!("key.startsWith('clear.ml/fraction') || key in ['{HAMI_MEMORY}', '{HAMI_PERCENT}']")
}

/// Whether any container of a pod's spec has a limit or a request that this says yes to.
fn limited(spec: &str, says: &str) -> String {
    let listed = |list: &str| {
        format!("(has(one.resources.{list}) && one.resources.{list}.exists(key, {says}))")
    };
    let container = format!(
        "has(one.resources) && ({} || {})",
        listed("limits"),
        listed("requests")
    );
    format!(
        "{spec}.containers.exists(one, {container}) || \
         (has({spec}.initContainers) && {spec}.initContainers.exists(one, {container}))"
    )
}

/// Writes the CA bundle into the configuration if it differs. Returns the previous configuration, or `None` if there is
/// none.
///
/// # Errors
/// A call of the API failed.
pub async fn publish_ca_bundle(
    client: &Client,
    name: &str,
    bundle: Option<&str>,
) -> Result<Option<MutatingWebhookConfiguration>, kube::Error> {
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let Some(configuration) = api.get_opt(name).await? else {
        return Ok(None);
    };
    if let Some(patch) = bundle.and_then(|bundle| bundle_patch(&configuration, bundle)) {
        let patch = Patch::Strategic(patch);
        api.patch(name, &PatchParams::default(), &patch).await?;
        tracing::info!(
            configuration = name,
            "wrote the CA bundle into the webhook configuration"
        );
    }
    Ok(Some(configuration))
}

/// For each webhook that has another bundle, found by its name; `None` where none has.
fn bundle_patch(configuration: &MutatingWebhookConfiguration, bundle: &str) -> Option<Value> {
    let wanted = ByteString(bundle.as_bytes().to_vec());
    let webhooks = configuration.webhooks.iter().flatten();
    let others =
        webhooks.filter(|webhook| webhook.client_config.ca_bundle.as_ref() != Some(&wanted));
    let patches: Vec<Value> = others
        .map(|webhook| json!({ "name": webhook.name, "clientConfig": { "caBundle": wanted } }))
        .collect();
    (!patches.is_empty()).then(|| json!({ "webhooks": patches }))
}
