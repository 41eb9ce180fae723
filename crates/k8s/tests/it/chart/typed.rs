//! Objects as the API's types have them.

use k8s_openapi::api::admissionregistration::v1::{
    MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, MutatingWebhookConfiguration,
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaimTemplate};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Kinds of the chart that lie in no namespace.
pub const CLUSTER_WIDE: &[&str] = &[
    "ClusterQueue",
    "ClusterRole",
    "ClusterRoleBinding",
    "Cohort",
    "CustomResourceDefinition",
    "DeviceClass",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "MutatingWebhookConfiguration",
    "Namespace",
    "ResourceFlavor",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

/// Whether the object is what its kind takes: it parses, and nothing that it says is lost on the way.
///
/// # Errors
/// The field, or that the kind is none that the chart should have.
pub fn check(object: &Value) -> Result<(), String> {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let kind = object["kind"].as_str().unwrap_or_default();
    match (version, kind) {
        ("v1", "Namespace") => whole::<Namespace>(object),
        ("v1", "Service") => whole::<Service>(object),
        ("v1", "ServiceAccount") => whole::<ServiceAccount>(object),
        ("v1", "Secret") => whole::<Secret>(object),
        ("v1", "ConfigMap") => whole::<ConfigMap>(object),
        ("apps/v1", "Deployment") => whole::<Deployment>(object),
        ("apps/v1", "DaemonSet") => whole::<DaemonSet>(object),
        ("batch/v1", "Job") => whole::<Job>(object),
        ("policy/v1", "PodDisruptionBudget") => whole::<PodDisruptionBudget>(object),
        ("coordination.k8s.io/v1", "Lease") => whole::<Lease>(object),
        ("rbac.authorization.k8s.io/v1", "Role") => whole::<Role>(object),
        ("rbac.authorization.k8s.io/v1", "RoleBinding") => whole::<RoleBinding>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRole") => whole::<ClusterRole>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding") => {
            whole::<ClusterRoleBinding>(object)
        }
        ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration") => {
            whole::<MutatingWebhookConfiguration>(object)
        }
        ("resource.k8s.io/v1", "DeviceClass") => whole::<DeviceClass>(object),
        ("resource.k8s.io/v1", "ResourceClaimTemplate") => whole::<ResourceClaimTemplate>(object),
        ("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicy") => {
            whole::<MutatingAdmissionPolicy>(object)
        }
        ("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicyBinding") => {
            whole::<MutatingAdmissionPolicyBinding>(object)
        }
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy") => {
            whole::<ValidatingAdmissionPolicy>(object)
        }
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding") => {
            whole::<ValidatingAdmissionPolicyBinding>(object)
        }
        ("kueue.x-k8s.io/v1beta2", _) => match crate::kueue::faults(object).as_slice() {
            [] => Ok(()),
            faults => Err(faults.join("; ")),
        },
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition") => {
            whole::<CustomResourceDefinition>(object)
        }
        ("networking.k8s.io/v1", "NetworkPolicy") => whole::<NetworkPolicy>(object),
        ("monitoring.coreos.com/v1", "PodMonitor") => {
            by_schema(include_str!("podmonitor.json"), object)
        }
        ("monitoring.coreos.com/v1", "ServiceMonitor") => {
            by_schema(include_str!("servicemonitor.json"), object)
        }
        ("monitoring.coreos.com/v1", "PrometheusRule") => {
            by_schema(include_str!("prometheusrule.json"), object)
        }
        // cert-manager's own, of which three fields are used.
        ("cert-manager.io/v1", "Certificate") => {
            let spec = object["spec"].as_object().ok_or("no spec")?;
            let keys: Vec<&str> = spec.keys().map(String::as_str).collect();
            match keys.as_slice() {
                ["dnsNames", "issuerRef", "secretName"] => Ok(()),
                other => Err(format!("{other:?}")),
            }
        }
        _ => Err("the chart has no business with this kind".to_owned()),
    }
}

/// By the schema that the operator publishes; a field that it does not know is dropped there, so none is taken here.
fn by_schema(schema: &str, object: &Value) -> Result<(), String> {
    let mut schema: Value = serde_json::from_str(schema).map_err(|error| error.to_string())?;
    close(&mut schema);
    let validator = jsonschema::validator_for(&schema).map_err(|error| error.to_string())?;
    validator
        .validate(object)
        .map_err(|error| error.to_string())
}

/// Has every object of a schema that names fields take no others.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if fields.get("properties").is_some_and(Value::is_object) {
                fields.insert("additionalProperties".to_owned(), Value::Bool(false));
            }
            fields.values_mut().for_each(close);
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

/// The types drop what they do not know, so what comes back is compared with what was there.
fn whole<T: DeserializeOwned + Serialize>(object: &Value) -> Result<(), String> {
    let typed: T = serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
    let back = serde_json::to_value(typed).map_err(|error| error.to_string())?;
    kept(object, &back, &mut String::new())
}

fn kept(said: &Value, back: &Value, at: &mut String) -> Result<(), String> {
    let deeper = |at: &mut String, key: &str, said: &Value, back: Option<&Value>| {
        let length = at.len();
        at.push('/');
        at.push_str(key);
        let missing = Value::Null;
        kept(said, back.unwrap_or(&missing), at)?;
        at.truncate(length);
        Ok(())
    };
    match (said, back) {
        (Value::Object(said), _) => said
            .iter()
            .filter(|(_, value)| !value.is_null())
            .try_for_each(|(key, value)| deeper(at, key, value, back.get(key))),
        (Value::Array(said), _) => said
            .iter()
            .enumerate()
            .try_for_each(|(index, value)| deeper(at, &index.to_string(), value, back.get(index))),
        _ if said == back => Ok(()),
        _ => Err(format!("{at}: {said} became {back}")),
    }
}
