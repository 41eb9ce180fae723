//! The webhook: judges what is asked, and makes what the answer needs before it goes out.

use std::sync::Arc;

use serde_json::Value;
use tracing::{info, warn};

use super::inventory::Known;
use super::review::{NoReview, Question, RefusedAs, Verdict, answer, judge, question};
use super::templates::Templates;
use crate::ask::Steps;

pub struct Webhook {
    pub known: Arc<Known>,
    pub templates: Templates,
    pub steps: Steps,
}

impl Webhook {
    /// The answer to the AdmissionReview in a body.
    ///
    /// # Errors
    /// There is none in it.
    pub async fn review(&self, body: &[u8]) -> Result<Value, NoReview> {
        let question = question(body)?;
        let judged = judge(&question, &self.known.inventory(), self.steps);
        let verdict = self.prepare(&question, judged).await;
        report(&question, &verdict);
        Ok(answer(&question.uid, &verdict))
    }

    /// Makes the template that the pod is to claim by, unless nothing is meant to happen.
    async fn prepare(&self, question: &Question, verdict: Verdict) -> Verdict {
        let Some(template) = verdict.template.as_ref().filter(|_| !question.dry_run) else {
            return verdict;
        };
        match self.templates.ensure(&question.namespace, template).await {
            Ok(()) => verdict,
            Err(error) => Verdict::refuse(RefusedAs::Failed, error.to_string()),
        }
    }
}

fn report(question: &Question, verdict: &Verdict) {
    let Question {
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
        (None, None) => info!(namespace, object, dry_run, "left as it is"),
    }
}
