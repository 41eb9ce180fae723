//! The webhook of a cluster in which some nodes share GPUs by claims and others by carriers: it decides for each pod.

use std::sync::Arc;

use serde_json::Value;

use super::informers::Informer;
use super::registration::PATH;
use super::review::{AdmissionDecision, AdmissionRequest, NoReview, RefusedAs, answer, question};
use super::webhook::Webhook;
use crate::base::server::Service;
use crate::base::sharing::{NoSharing, SHARING, Sharing, of_pod};

/// The webhooks of the modes that this cluster has.
pub enum Dispatch {
    One {
        mode: Sharing,
        webhook: Webhook,
    },
    Both {
        claims: Webhook,
        carriers: Webhook,
        /// The word of each namespace that has one.
        namespaces: Arc<Informer<String>>,
        default: Sharing,
    },
}

impl Service for Dispatch {
    const PATH: &'static str = PATH;
    /// The API server takes requests of 3 MiB (`MaxRequestBodyBytes`); a review of an update has the object twice.
    const MOST_BYTES: usize = 8 << 20;

    async fn answer(&self, body: &[u8]) -> Result<String, String> {
        let review = self.review(body).await;
        review.map_or_else(|no| Err(no.to_string()), |review| Ok(review.to_string()))
    }
}

impl Dispatch {
    /// The answer to the AdmissionReview in a body.
    ///
    /// # Errors
    /// There is none in it.
    pub async fn review(&self, body: &[u8]) -> Result<Value, NoReview> {
        let asked = question(body)?;
        match self.webhook(&asked) {
            Ok(webhook) => {
                drop(asked);
                webhook.review(body).await
            }
            Err(text) => {
                let refused = AdmissionDecision::refuse(RefusedAs::Invalid, text);
                Ok(answer(&asked.uid, &refused))
            }
        }
    }

    fn webhook(&self, asked: &AdmissionRequest) -> Result<&Webhook, String> {
        let own = word(&asked.object);
        let said = |error: NoSharing| error.to_string();
        match self {
            Self::One { mode, webhook } => match own.map(str::parse::<Sharing>) {
                None => Ok(webhook),
                Some(wanted) => {
                    if wanted.map_err(said)? == *mode {
                        Ok(webhook)
                    } else {
                        Err(format!(
                            "{SHARING}: no node of this cluster shares GPUs by {}; remove the annotation, or set carrier.nodeSelector of the chart",
                            own.unwrap_or_default()
                        ))
                    }
                }
            },
            Self::Both {
                claims,
                carriers,
                namespaces,
                default,
            } => {
                let of_namespace = namespaces.get("", &asked.namespace);
                let mode = of_pod(
                    own,
                    of_namespace.as_ref().map(|word| word.as_str()),
                    *default,
                );
                Ok(match mode.map_err(said)? {
                    Sharing::Claims => claims,
                    Sharing::Carrier => carriers,
                })
            }
        }
    }
}

/// The annotation of a pod, or of the pods of a template.
fn word(object: &Value) -> Option<&str> {
    let places = ["/spec/jobTemplate/spec/template", "/spec/template", ""];
    let pod = places.iter().find_map(|place| object.pointer(place))?;
    pod["metadata"]["annotations"][SHARING].as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_word_of_a_template_is_that_of_its_pods() {
        let marked = json!({ "metadata": { "annotations": { (SHARING): "carrier" } } });
        for object in [
            marked.clone(),
            json!({ "spec": { "template": marked } }),
            json!({ "spec": { "jobTemplate": { "spec": { "template": marked } } } }),
        ] {
            assert_eq!(word(&object), Some("carrier"), "{object}");
        }
        let of_job = json!({ "metadata": { "annotations": { (SHARING): "carrier" } }, "spec": { "template": {} } });
        assert_eq!(
            word(&of_job),
            None,
            "a Job's own annotations are not its pods'"
        );
    }
}
