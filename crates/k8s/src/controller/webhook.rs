//! The admission webhook: judges a pod, and creates its claim template before the answer is sent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use serde_json::Value;
use tokio::time::timeout;
use tracing::{info, warn};

use super::informers::Informer;
use super::inventory::SharedInventory;
use super::registration::TIMEOUT_SECONDS;
use super::review::{
    AdmissionDecision, AdmissionRequest, NoReview, RefusedAs, answer, judge, judge_carried,
    question,
};
use super::templates::{TemplateError, Templates};
use crate::base::metrics::controller::METRICS;
use crate::base::pod_request::{Rules, Steps};
use crate::carrier::cluster_state::sizes;
use crate::carrier::share::GpuShare;

/// The time limit for creating a template, below the API server's own timeout, so that the client gets the reason.
const PATIENCE: Duration = Duration::from_secs(TIMEOUT_SECONDS - 2);

pub struct Webhook {
    pub mode: SharingMode,
    pub steps: Steps,
    /// Schedulers that place claims, beside the default one.
    pub schedulers: Vec<String>,
}

/// How parts of GPUs are had in this cluster.
pub enum SharingMode {
    /// By claims.
    Claims {
        known: Arc<SharedInventory>,
        templates: Templates,
    },
    /// By carriers, of the GPUs that these are the records of.
    Reservations(Arc<Informer<GpuShare>>),
}

impl Webhook {
    /// The answer to the AdmissionReview in a body.
    ///
    /// # Errors
    /// There is none in it.
    pub async fn review(&self, body: &[u8]) -> Result<Value, NoReview> {
        let begun = Instant::now();
        let mut question = question(body)?;
        let rules = Rules {
            steps: self.steps,
            schedulers: &self.schedulers,
        };
        let judged = match &self.mode {
            SharingMode::Claims { known, .. } => judge(&question, &known.inventory(), rules),
            SharingMode::Reservations(shares) => {
                let sizes = sizes(shares.state().iter().map(AsRef::as_ref));
                judge_carried(&question, &sizes, rules)
            }
        };
        // The object may be large, and many requests may wait for the API server below, so it is dropped first.
        question.object = Value::Null;
        question.old_object = None;
        let verdict = self.prepare(&question, judged).await;
        report(&question, &verdict);
        METRICS.reviewed(&question.kind, verdict.result(), begun.elapsed());
        Ok(answer(&question.uid, &verdict))
    }

    /// Makes the templates that the pods are to claim by, unless nothing is meant to happen.
    async fn prepare(
        &self,
        question: &AdmissionRequest,
        verdict: AdmissionDecision,
    ) -> AdmissionDecision {
        let SharingMode::Claims { templates, .. } = &self.mode else {
            return verdict;
        };
        if question.dry_run || verdict.templates.is_empty() {
            return verdict;
        }
        let each = verdict.templates.iter();
        let each: Vec<_> = each
            .map(|template| templates.ensure(&question.namespace, template))
            .collect();
        let made = try_join_all(each);
        match timeout(PATIENCE, made).await {
            Ok(Ok(_)) => verdict,
            Ok(Err(error)) => {
                let kind = match &error {
                    TemplateError::Make { .. } | TemplateError::Altered { .. } => RefusedAs::Failed,
                    TemplateError::TooMany { .. } | TemplateError::Contended { .. } => {
                        RefusedAs::Unavailable
                    }
                    TemplateError::Foreign { .. } => RefusedAs::Forbidden,
                };
                AdmissionDecision::refuse(kind, error.to_string())
            }
            Err(_) => {
                let text = format!(
                    "cannot create the claim template {}: the API server does not respond",
                    names(&verdict)
                );
                AdmissionDecision::refuse(RefusedAs::Failed, text)
            }
        }
    }
}

/// Of the claim templates.
fn names(verdict: &AdmissionDecision) -> String {
    let names = verdict.templates.iter();
    let names: Vec<&str> = names.map(|template| template.name.as_str()).collect();
    names.join(", ")
}

fn report(question: &AdmissionRequest, verdict: &AdmissionDecision) {
    let AdmissionRequest {
        namespace,
        object_name: object,
        dry_run,
        ..
    } = question;
    match (&verdict.refused, &verdict.patch) {
        (Some(refused), _) => warn!(namespace, object, dry_run, why = refused.text, "refused"),
        (None, Some(_)) => {
            let template = names(verdict);
            info!(namespace, object, dry_run, template, "changed");
        }
        (None, None) => info!(namespace, object, dry_run, "unchanged"),
    }
}
