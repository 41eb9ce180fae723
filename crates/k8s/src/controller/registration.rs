//! Registration of the admission webhook at the API server: the rules of its configuration, and the CA bundle.
//!
//! The chart owns the configuration; this module only writes the CA bundle into it. The webhook matches only marked
//! objects: those that ask for part of a GPU, in a namespace that has opted in. The match is written twice, in Rust
//! (`pod_request`) and in the CEL expressions below, which the API server evaluates; a test compares both. An update is only
//! asked about if it changes a template, so that nothing else of a workload waits for the webhook.

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use crate::base::inject::CLAIM;
use crate::base::inject::OPT_IN;
use crate::base::pod_request::{
    DEFAULT_SCHEDULER, DEVICES, FRACTION, FRACTION_LABEL, HAMI_MEMORY, HAMI_PERCENT, IMAGES, MEMORY,
};
use crate::base::workload::{WORKLOADS, Workload};

/// Where the API server posts its questions.
pub const PATH: &str = "/mutate";
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
    /// Schedulers that place claims, beside the default one.
    pub schedulers: &'a [String],
}

impl Registration<'_> {
    /// The MutatingWebhookConfiguration, without a bundle.
    pub fn object(&self) -> Value {
        let namespaces = if self.all_namespaces {
            json!({ "matchExpressions": [{
                "key": "kubernetes.io/metadata.name",
                "operator": "NotIn",
                "values": ["kube-system", self.namespace],
            }] })
        } else {
            json!({ "matchLabels": { OPT_IN.0: OPT_IN.1 } })
        };
        let webhook = |matched: Value| {
            let mut webhook = json!({
                "admissionReviewVersions": ["v1"],
                "clientConfig": { "service": {
                    "namespace": self.namespace, "name": self.service, "path": PATH, "port": 443,
                } },
                "namespaceSelector": namespaces,
                "failurePolicy": "Fail",
                "matchPolicy": "Equivalent",
                "sideEffects": "NoneOnDryRun",
                "reinvocationPolicy": "IfNeeded",
                "timeoutSeconds": TIMEOUT_SECONDS,
            });
            json_patch::merge(&mut webhook, &matched);
            webhook
        };
        let webhooks = webhooks(self.schedulers).into_iter().map(webhook);
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": { "name": self.name, "labels": { "app.kubernetes.io/managed-by": "divvy" } },
            "webhooks": webhooks.collect::<Vec<_>>(),
        })
    }
}

/// Name, rules and conditions of each webhook: one for pods, and one for all kinds that have their templates in one place.
/// The chart has a copy of the list.
pub fn webhooks(schedulers: &[String]) -> Vec<Value> {
    let asks = |expression: String| json!({ "name": "asks-for-a-part", "expression": expression });
    let named = |name: &str| format!("{name}.inject.divvy.dev");
    let mut all = vec![json!({
        "name": named("pods"),
        "rules": [rule("", "v1", &["pods"], &["CREATE"])],
        "matchConditions": [asks(marked("object", schedulers))],
    })];
    for kinds in WORKLOADS.chunk_by(|one, other| one.templates == other.templates) {
        let name = match kinds {
            [only] => only.resource,
            _ => "templates",
        };
        let rules = kinds.chunk_by(|one, other| one.group == other.group);
        let rules = rules.map(|kinds| {
            let resources: Vec<&str> = kinds.iter().map(|kind| kind.resource).collect();
            // The API's own groups have one version; an operator may serve its objects in several.
            let version = if kinds[0].group.contains('.') {
                "*"
            } else {
                kinds[0].version
            };
            rule(kinds[0].group, version, &resources, &["CREATE", "UPDATE"])
        });
        let each = kinds[0].templates.iter().map(|pattern| {
            let segments: Vec<&str> = pattern.split('/').skip(1).collect();
            format!("({})", in_each("object", &segments, schedulers))
        });
        all.push(json!({
            "name": named(name),
            "rules": rules.collect::<Vec<_>>(),
            "matchConditions": [
                { "name": "changes-a-template", "expression": changed(&kinds[0]) },
                asks(each.collect::<Vec<_>>().join(" || ")),
            ],
        }));
    }
    all
}

fn rule(group: &str, version: &str, resources: &[&str], operations: &[&str]) -> Value {
    json!({
        "apiGroups": [group], "apiVersions": [version], "operations": operations,
        "resources": resources, "scope": "Namespaced",
    })
}

/// An object that is created, or whose templates, or what they have in common, is changed.
fn changed(workload: &Workload) -> String {
    let mut common: Vec<&str> = Vec::new();
    let patterns: Vec<Vec<&str>> = workload
        .templates
        .iter()
        .map(|pattern| pattern.split('/').skip(1).collect())
        .collect();
    for (at, segment) in patterns[0].iter().enumerate() {
        let is_name = !["*", "{}"].contains(segment);
        if !is_name || !patterns.iter().all(|other| other.get(at) == Some(segment)) {
            break;
        }
        common.push(segment);
    }
    let (guards, before) = path("oldObject", &common);
    let (_, now) = path("object", &common);
    let there = guards.join(" && ");
    format!("request.operation == 'CREATE' || !({there}) || {now} != {before}")
}

/// The path to a field, and what has to be there for it: an expression that asks for a field of a field that is absent is an
/// error, and the API server then refuses the object.
fn path(root: &str, names: &[&str]) -> (Vec<String>, String) {
    let mut path = root.to_owned();
    let mut guards = Vec::new();
    for name in names {
        path = format!("{path}.{name}");
        guards.push(format!("has({path})"));
    }
    (guards, path)
}

/// Whether any template at this place of an object is marked.
fn in_each(root: &str, segments: &[&str], schedulers: &[String]) -> String {
    let at = segments.iter().position(|one| ["*", "{}"].contains(one));
    let (names, rest) = segments.split_at(at.unwrap_or(segments.len()));
    let (mut guards, path) = path(root, names);
    guards.push(match rest.split_first() {
        None => marked(&path, schedulers),
        Some((&"*", below)) => {
            let inner = in_each("part", below, schedulers);
            format!("{path}.exists(part, {inner})")
        }
        Some((_, below)) => {
            let inner = in_each(&format!("{path}[role]"), below, schedulers);
            format!("{path}.exists(role, {inner})")
        }
    });
    guards.join(" && ")
}

/// A pod or template of a scheduler that is served, with a label, an annotation, a limit, a claim of the webhook's, or an image
/// with a fixed limit.
fn marked(pod: &str, schedulers: &[String]) -> String {
    let served = schedulers.iter().map(String::as_str);
    let served = ["", DEFAULT_SCHEDULER].into_iter().chain(served);
    let served = served.map(|name| format!("'{name}'")).collect::<Vec<_>>();
    let served = served.join(", ");
    let annotations = [FRACTION, MEMORY, DEVICES].map(|key| format!("'{key}'"));
    let annotations = annotations.join(", ");
    let (spec, metadata) = (format!("{pod}.spec"), format!("{pod}.metadata"));
    let part = format!(
        "key.startsWith('clear.ml/fraction') || key in ['{HAMI_MEMORY}', '{HAMI_PERCENT}']"
    );
    format!(
        "has({spec}) && has({spec}.containers) && \
         (!has({spec}.schedulerName) || {spec}.schedulerName in [{served}]) && (\
         (has({metadata}) && (\
         (has({metadata}.labels) && '{FRACTION_LABEL}' in {metadata}.labels) || \
         (has({metadata}.annotations) && [{annotations}].exists(key, key in {metadata}.annotations)))) || \
         (has({spec}.resourceClaims) && {spec}.resourceClaims.exists(claim, claim.name == '{CLAIM}')) || \
         {} || \
         (({}) && (!has({spec}.resourceClaims) || size({spec}.resourceClaims) == 0) && !({})))",
        limited(&spec, &part),
        in_containers(
            &spec,
            &format!("has(one.image) && one.image.matches('{IMAGES}')")
        ),
        limited(&spec, "key.startsWith('nvidia.com/')"),
    )
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
    in_containers(spec, &container)
}

fn in_containers(spec: &str, says: &str) -> String {
    format!(
        "{spec}.containers.exists(one, {says}) || \
         (has({spec}.initContainers) && {spec}.initContainers.exists(one, {says}))"
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
