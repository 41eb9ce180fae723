//! The admission webhook: judges a pod, and creates its claim template before the answer is sent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::runtime::reflector::Store;
use serde_json::Value;
use tokio::time::timeout;
use tracing::{info, warn};

use super::inventory::SharedInventory;
use super::registration::TIMEOUT_SECONDS;
use super::review::{
    AdmissionDecision, AdmissionRequest, NoReview, RefusedAs, answer, judge, judge_carried,
    question,
};
use super::templates::{TemplateError, Templates};
use crate::metrics::controller::METRICS;
use crate::pod_request::Steps;
use crate::reservation::cluster_state::sizes;
use crate::reservation::share::GpuShare;

/// The time limit for creating a template, below the API server's own timeout, so that the client gets the reason.
const PATIENCE: Duration = Duration::from_secs(TIMEOUT_SECONDS - 2);

pub struct Webhook {
    pub mode: SharingMode,
    pub steps: Steps,
}

/// How parts of GPUs are had in this cluster.
pub enum SharingMode {
    /// By claims.
    Claims {
        known: Arc<SharedInventory>,
        templates: Templates,
    },
    /// By carriers, of the GPUs that these are the records of.
    Reservations(Store<GpuShare>),
}

impl Webhook {
    /// The answer to the AdmissionReview in a body.
    ///
    /// # Errors
    /// There is none in it.
    pub async fn review(&self, body: &[u8]) -> Result<Value, NoReview> {
        let begun = Instant::now();
        let mut question = question(body)?;
        let judged = match &self.mode {
            SharingMode::Claims { known, .. } => judge(&question, &known.inventory(), self.steps),
            SharingMode::Reservations(shares) => {
                let sizes = sizes(shares.state().iter().map(AsRef::as_ref));
                judge_carried(&question, &sizes, self.steps)
            }
        };
        // The object may be large, and many requests may wait for the API server below, so it is dropped first.
        question.object = Value::Null;
        let verdict = self.prepare(&question, judged).await;
        report(&question, &verdict);
        METRICS.reviewed(&question.kind, verdict.result(), begun.elapsed());
        Ok(answer(&question.uid, &verdict))
    }

    /// Makes the template that the pod is to claim by, unless nothing is meant to happen.
    async fn prepare(
        &self,
        question: &AdmissionRequest,
        verdict: AdmissionDecision,
    ) -> AdmissionDecision {
        let template = verdict.template.as_ref().filter(|_| !question.dry_run);
        let (Some(template), SharingMode::Claims { templates, .. }) = (template, &self.mode) else {
            return verdict;
        };
        let made = templates.ensure(&question.namespace, template);
        match timeout(PATIENCE, made).await {
            Ok(Ok(())) => verdict,
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
                    template.name
                );
                AdmissionDecision::refuse(RefusedAs::Failed, text)
            }
        }
    }
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
            let template = verdict
                .template
                .as_ref()
                .map(|template| template.name.as_str());
            info!(namespace, object, dry_run, template, "changed");
        }
        (None, None) => info!(namespace, object, dry_run, "unchanged"),
    }
}
