//! Certificate rotation: keeps the served certificate and the CA bundle in the webhook configuration in step.
//!
//! The order matters, because the API server trusts the CA bundle that it read last. First the bundle gets the new
//! certificate's authority; a while later the server serves the new certificate. A certificate that no client would
//! accept is replaced at once.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::Client;
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use tokio::time::sleep;
use tracing::{error, info, warn};

use super::certificate::Identity;
use super::health::Ready;
use super::identity::{CertSource, ensure_identity};
use super::owner::OwnerRef;
use super::registration::publish_ca_bundle;
use crate::base::cluster::{chain, error_message};
use crate::base::metrics::controller::METRICS;
use crate::base::server::ServingCert;

/// The interval at which the controller checks certificate and configuration; a change of the latter wakes it at once.
/// A certificate has a year, so a minute only bounds how long a deleted Secret is missed; each check is three reads.
const ROUND: Duration = Duration::from_secs(60);
/// After a failure. The webhook refuses pods until it works, so soon; not at once, as the API server may be starting.
const AGAIN: Duration = Duration::from_secs(2);
/// The time until every API server has read the new CA bundle; they watch the configuration, so this is long. Inferred.
const SPREADS: Duration = Duration::from_secs(10);

pub struct CertRotator {
    pub client: Client,
    pub place: CertSource,
    /// The names in the certificate; first the one that the API server calls.
    pub names: Vec<String>,
    /// The webhook's configuration.
    pub configuration: String,
    pub owner: Arc<OwnerRef>,
    pub shown: Arc<ServingCert>,
    pub ready: Arc<Ready>,
}

impl CertRotator {
    /// For as long as the process lives.
    pub async fn run(self) {
        let api: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        let mut changes = pin!(watch_object(api, &self.configuration).default_backoff());
        let mut shows: Option<Identity> = None;
        loop {
            let wait = if self.rotate(&mut shows).await {
                ROUND
            } else {
                AGAIN
            };
            tokio::select! {
                () = sleep(wait) => {}
                change = changes.next() => if let Some(Err(error)) = change {
                    warn!(error = chain(&error), "cannot watch the webhook configuration");
                    sleep(AGAIN).await;
                },
            }
        }
    }

    /// Whether all is as it should be after it.
    async fn rotate(&self, shows: &mut Option<Identity>) -> bool {
        let now = Timestamp::now();
        let settled =
            ensure_identity(&self.client, &self.place, &self.names, shows.as_ref(), now).await;
        let identity = match settled {
            Ok(identity) => identity,
            Err(error) => {
                error!(error = chain(&error), "no certificate to serve");
                return false;
            }
        };
        let bundle = Some(identity.bundle.as_str()).filter(|bundle| !bundle.is_empty());
        let told = match publish_ca_bundle(&self.client, &self.configuration, bundle).await {
            Ok(Some(configuration)) => {
                self.owner.set(&configuration);
                true
            }
            Ok(None) => {
                let configuration = &self.configuration;
                warn!(
                    configuration,
                    "this MutatingWebhookConfiguration does not exist, so the webhook receives no pods"
                );
                false
            }
            Err(error) => {
                warn!(
                    error = error_message(&error),
                    "cannot write the CA bundle into the webhook configuration"
                );
                false
            }
        };
        if told && shows.as_ref() != Some(&identity) {
            self.show(&identity, shows.as_ref(), now).await;
            *shows = Some(identity);
        }
        // If the configuration could not be written now, it still has the authority of the served certificate.
        let host = self.names.first().map_or("", String::as_str);
        let is_good = |shows: &Identity| shows.bundle.is_empty() || shows.serves(host, now).is_ok();
        self.ready
            .certificate(told || shows.as_ref().is_some_and(is_good));
        told
    }

    async fn show(&self, identity: &Identity, before: Option<&Identity>, now: Timestamp) {
        let host = self.names.first().map_or("", String::as_str);
        // Mounted files without a CA cannot be judged; the administrator is responsible for them.
        if before.is_some_and(|before| before.serves(host, now).is_ok()) {
            sleep(SPREADS).await;
        }
        match identity.certified() {
            Ok(certified) => {
                self.shown.show(certified);
                if let Some(end) = identity.ends() {
                    METRICS.certificate_ends(end);
                }
                info!(host, "serving the certificate");
            }
            Err(error) => error!(error = chain(&error), "cannot serve the certificate"),
        }
    }
}
