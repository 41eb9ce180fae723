//! One AdmissionReview (`admission.k8s.io/v1`): the request and its answer, as JSON. Pure.
//!
//! `inject` changes a pod; this module maps its refusals to error kinds, and names the object that must exist before
//! the answer is sent.

use std::collections::BTreeSet;

use divvy_core::units::Bytes;
use json_patch::Patch;
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use crate::base::claim::{Inventory, NoTemplate, Template};
use crate::base::inject::{InjectError, inject, inject_workload, strip_template};
use crate::base::metrics::controller::ReviewResult;
use crate::base::pod_request::{Refusal, Rules, SkipReason};
use crate::carrier::admission::{GateError, gate};

const VERSION: &str = "admission.k8s.io/v1";

/// Why a body is no question.
#[derive(Debug, thiserror::Error)]
pub enum NoReview {
    #[error("the body is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the body is not an AdmissionReview of {VERSION}, but {kind} of {version}")]
    Kind { kind: String, version: String },
    #[error("the AdmissionReview has no request with a uid")]
    NoRequest,
}

/// A question.
#[derive(Clone, Debug, PartialEq)]
pub struct AdmissionRequest {
    pub uid: String,
    pub namespace: String,
    /// `Pod train`, `Pod train-7d9f-…`: for the log.
    pub object_name: String,
    pub kind: String,
    pub dry_run: bool,
    pub object: Value,
    /// The version that an update replaces.
    pub old_object: Option<Value>,
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdmissionDecision {
    pub refused: Option<Rejection>,
    pub patch: Option<Patch>,
    pub warnings: Vec<String>,
    /// The claim templates that must exist in the request's namespace before the answer is sent.
    pub templates: Vec<Template>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub kind: RefusedAs,
    pub text: String,
}

/// The kinds of refusal, as the API has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedAs {
    /// The request is invalid.
    Invalid,
    /// It would go past its limit.
    Forbidden,
    /// It may be served later.
    Unavailable,
    /// It could be served, had a call not failed.
    Failed,
}

impl RefusedAs {
    fn code(self) -> (u16, &'static str) {
        match self {
            Self::Invalid => (422, "Invalid"),
            Self::Forbidden => (403, "Forbidden"),
            Self::Unavailable => (503, "ServiceUnavailable"),
            Self::Failed => (500, "InternalError"),
        }
    }
}

impl AdmissionDecision {
    pub fn refuse(kind: RefusedAs, text: String) -> Self {
        let refused = Some(Rejection { kind, text });
        Self {
            refused,
            ..Self::default()
        }
    }

    /// The answer in one word, for metrics.
    pub(super) fn result(&self) -> ReviewResult {
        match (&self.refused, &self.patch) {
            (None, None) => ReviewResult::Unchanged,
            (None, Some(_)) => ReviewResult::Changed,
            (Some(refused), _) => match refused.kind {
                RefusedAs::Invalid => ReviewResult::Invalid,
                RefusedAs::Forbidden => ReviewResult::Forbidden,
                RefusedAs::Unavailable => ReviewResult::Unavailable,
                RefusedAs::Failed => ReviewResult::Failed,
            },
        }
    }
}

/// The question in a body.
///
/// # Errors
/// There is none.
pub fn question(body: &[u8]) -> Result<AdmissionRequest, NoReview> {
    let mut review: Value = serde_json::from_slice(body)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, version) = (text(&review["kind"]), text(&review["apiVersion"]));
    if kind != "AdmissionReview" || version != VERSION {
        return Err(NoReview::Kind { kind, version });
    }
    let request = &mut review["request"];
    let uid = text(&request["uid"]);
    if uid.is_empty() {
        return Err(NoReview::NoRequest);
    }
    let metadata = &request["object"]["metadata"];
    let name = metadata["name"]
        .as_str()
        .or(metadata["generateName"].as_str());
    let kind = text(&request["kind"]["kind"]);
    Ok(AdmissionRequest {
        object_name: format!("{kind} {}", name.unwrap_or("without a name")),
        uid,
        namespace: text(&request["namespace"]),
        kind,
        dry_run: request["dryRun"] == true,
        old_object: (request["operation"] == "UPDATE").then(|| request["oldObject"].take()),
        object: request["object"].take(),
    })
}

/// The answer to a request, before any object is created.
pub fn judge<'r>(
    question: &AdmissionRequest,
    inventory: &Inventory,
    rules: impl Into<Rules<'r>>,
) -> AdmissionDecision {
    match question.kind.as_str() {
        "Pod" => judge_pod(&question.object, inventory, rules.into()),
        _ => judge_workload(question, inventory, rules.into()),
    }
}

/// The same where parts of GPUs are had by carriers; `sizes` are the usable memory of the GPUs.
pub fn judge_carried<'r>(
    question: &AdmissionRequest,
    sizes: &BTreeSet<Bytes>,
    rules: impl Into<Rules<'r>>,
) -> AdmissionDecision {
    let rules = rules.into();
    if question.kind != "Pod" {
        return judge_template(question, rules);
    }
    match gate(&question.object, sizes, rules) {
        Ok(Ok(gated)) => AdmissionDecision {
            patch: Some(gated.patch),
            warnings: gated.warnings,
            ..AdmissionDecision::default()
        },
        Ok(Err(SkipReason::Unmarked | SkipReason::Scheduler(_) | SkipReason::Done)) => {
            AdmissionDecision::default()
        }
        Err(error) => {
            let kind = match &error {
                GateError::Refused(refusal) => kind_of_refusal(refusal),
                GateError::NoGpus => RefusedAs::Unavailable,
                GateError::Several(_) | GateError::TooMuch { .. } => RefusedAs::Invalid,
            };
            AdmissionDecision::refuse(kind, error.to_string())
        }
    }
}

fn judge_pod(pod: &Value, inventory: &Inventory, rules: Rules<'_>) -> AdmissionDecision {
    match inject(pod, inventory, rules) {
        Ok(Ok(injection)) => AdmissionDecision {
            refused: None,
            patch: Some(injection.patch),
            warnings: injection.warnings,
            templates: injection.template.into_iter().collect(),
        },
        Ok(Err(SkipReason::Unmarked | SkipReason::Scheduler(_) | SkipReason::Done)) => {
            AdmissionDecision::default()
        }
        Err(error) => AdmissionDecision::refuse(kind_of(&error), error.to_string()),
    }
}

fn judge_workload(
    question: &AdmissionRequest,
    inventory: &Inventory,
    rules: Rules<'_>,
) -> AdmissionDecision {
    let object = of_kind(question);
    let old = question.old_object.as_ref();
    match inject_workload(&object, old, inventory, rules) {
        Ok(None) => AdmissionDecision::default(),
        Ok(Some(injection)) => AdmissionDecision {
            refused: None,
            patch: Some(injection.patch),
            warnings: injection.warnings,
            templates: injection.templates,
        },
        Err(error) => AdmissionDecision::refuse(kind_of(&error), error.to_string()),
    }
}

fn judge_template(question: &AdmissionRequest, rules: Rules<'_>) -> AdmissionDecision {
    let object = of_kind(question);
    match strip_template(&object, rules) {
        Ok(None) => AdmissionDecision::default(),
        Ok(Some(stripped)) => AdmissionDecision {
            patch: Some(json_patch::diff(&object, &stripped)),
            ..AdmissionDecision::default()
        },
        Err(refusal) => {
            let error = InjectError::Refused(refusal);
            AdmissionDecision::refuse(kind_of(&error), error.to_string())
        }
    }
}

/// The object of a review says its kind; what is without is of the kind that the question is about.
fn of_kind(question: &AdmissionRequest) -> Value {
    let mut object = question.object.clone();
    if object["kind"].is_null() {
        object["kind"] = json!(question.kind);
    }
    object
}

fn kind_of(error: &InjectError) -> RefusedAs {
    match error {
        InjectError::Refused(refusal) => kind_of_refusal(refusal),
        InjectError::NoTemplate(NoTemplate::NoGpus) => RefusedAs::Unavailable,
        InjectError::NoTemplate(NoTemplate::TooMuch { .. } | NoTemplate::NoSize { .. }) => {
            RefusedAs::Invalid
        }
    }
}

fn kind_of_refusal(refusal: &Refusal) -> RefusedAs {
    match refusal {
        Refusal::Privileged(_)
        | Refusal::Unheld { .. }
        | Refusal::NodeName
        | Refusal::Visible { .. } => RefusedAs::Forbidden,
        _ => RefusedAs::Invalid,
    }
}

/// The AdmissionReview that answers.
pub fn answer(uid: &str, verdict: &AdmissionDecision) -> Value {
    let mut response = json!({ "uid": uid, "allowed": verdict.refused.is_none() });
    if !verdict.warnings.is_empty() {
        response["warnings"] = json!(verdict.warnings);
    }
    match &verdict.refused {
        Some(Rejection { kind, text }) => {
            let (code, reason) = kind.code();
            response["status"] = json!({
                "status": "Failure", "code": code, "reason": reason, "message": text,
            });
        }
        None => {
            if let Some(patch) = verdict.patch.as_ref().filter(|patch| !patch.is_empty()) {
                let text = json!(patch).to_string();
                response["patchType"] = json!("JSONPatch");
                response["patch"] = json!(ByteString(text.into_bytes()));
            }
        }
    }
    json!({ "apiVersion": VERSION, "kind": "AdmissionReview", "response": response })
}
