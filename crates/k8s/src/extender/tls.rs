//! The certificate of the extender: mounted files, or a Secret in which the extender creates and renews it.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{info, warn};

use super::ExtenderError;
use crate::base::cluster::chain;
use crate::base::server::ServingCert;
use crate::controller::certificate::Identity;
use crate::controller::identity::{CertSource, IdentityError, ensure_identity};

/// How often the certificate is read again, and renewed if that is due. A certificate has a year, so a minute is soon
/// enough; each look is one read.
const ROUND: Duration = Duration::from_secs(60);

/// Reads or creates the certificate, and follows its renewals for as long as the process lives.
///
/// # Errors
/// The files are unusable, or the Secret can neither be read nor written.
pub async fn serving(
    client: &Client,
    place: CertSource,
    names: Vec<String>,
    tasks: &mut JoinSet<()>,
) -> Result<Arc<ServingCert>, ExtenderError> {
    let shown = Arc::new(ServingCert::default());
    let mut keeper = CertKeeper {
        client: client.clone(),
        place,
        names,
        shown: Arc::clone(&shown),
        identity: None,
    };
    keeper.read().await?;
    tasks.spawn(async move {
        loop {
            sleep(ROUND).await;
            if let Err(error) = keeper.read().await {
                warn!(error = chain(&error), "cannot read the certificate again");
            }
        }
    });
    Ok(shown)
}

struct CertKeeper {
    client: Client,
    place: CertSource,
    names: Vec<String>,
    shown: Arc<ServingCert>,
    identity: Option<Identity>,
}

impl CertKeeper {
    async fn read(&mut self) -> Result<(), IdentityError> {
        let now = Timestamp::now();
        let had = self.identity.as_ref();
        let identity = ensure_identity(&self.client, &self.place, &self.names, had, now).await?;
        if had == Some(&identity) {
            return Ok(());
        }
        if let Ok(certified) = identity.certified() {
            self.shown.show(certified);
        }
        let ends = identity.ends().map(|ends| ends.to_string());
        match (&self.place, had) {
            // A scheduler reads its CA file only when it starts.
            (CertSource::Secret { name, .. }, Some(_)) => warn!(
                secret = name,
                ends,
                "renewed the certificate: copy ca.crt of the Secret to the schedulers, and restart them"
            ),
            _ => info!(ends, "serving HTTPS with the certificate"),
        }
        self.identity = Some(identity);
        Ok(())
    }
}
