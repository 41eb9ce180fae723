//! Leader election among the replicas by a Lease object.
//!
//! Clocks of other replicas are not compared: a Lease has expired when no replica has renewed it for its whole length
//! on this replica's own clock. Two holders at the same time are harmless, since every write names a version; the Lease
//! saves work, not data.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Client;
use kube::api::{Api, PostParams};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use crate::base::cluster::{error_message, is_already_exists, is_conflict, is_missing};
use crate::base::metrics::controller::METRICS;

/// As client-go has them: a Lease of 15 s is renewed every 2 s, and given up when that has not worked for 10 s.
pub const LENGTH: Duration = Duration::from_secs(15);
const RENEWS: u32 = 15 / 2;

#[derive(Clone, Debug)]
pub struct LeaseConfig {
    pub namespace: String,
    pub name: String,
    /// Unique to this replica, and the same after its restart.
    pub me: String,
    pub length: Duration,
}

/// The next action on a Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaseAction {
    Take,
    Renew,
    Wait,
}

/// The action, from the Lease's holder and the time since its last renewal.
fn next(lease: &LeaseSpec, silent: Duration, me: &str) -> LeaseAction {
    let length = lease
        .lease_duration_seconds
        .and_then(|seconds| u64::try_from(seconds).ok());
    let length = length.map_or(LENGTH, Duration::from_secs);
    match lease.holder_identity.as_deref() {
        Some(holder) if holder == me => LeaseAction::Renew,
        None | Some("") => LeaseAction::Take,
        Some(_) if silent >= length => LeaseAction::Take,
        Some(_) => LeaseAction::Wait,
    }
}

/// Says over `leads` whether this replica leads, until it is told to stop; then the Lease is given back.
pub async fn keep(
    client: Client,
    terms: LeaseConfig,
    leads: watch::Sender<bool>,
    mut stop: watch::Receiver<bool>,
) {
    let api: Api<Lease> = Api::namespaced(client, &terms.namespace);
    let mut seen: Option<(LeaseSpec, Instant)> = None;
    let mut renewed = Instant::now();
    while !*stop.borrow() {
        // A call that hangs must not outlive the Lease.
        let tried = timeout(terms.length / 3, attempt(&api, &terms, &mut seen)).await;
        let now = Instant::now();
        match tried {
            Ok(Ok(true)) => {
                renewed = now;
                set(&leads, true, &terms);
            }
            Ok(Ok(false)) => set(&leads, false, &terms),
            Ok(Err(error)) => warn!(
                lease = terms.name,
                error = error_message(&error),
                "cannot acquire or renew the Lease"
            ),
            Err(_) => warn!(
                lease = terms.name,
                "cannot acquire or renew the Lease: the API server does not respond"
            ),
        }
        if now.duration_since(renewed) >= terms.length * 2 / 3 {
            set(&leads, false, &terms);
        }
        tokio::select! {
            () = sleep(terms.length / RENEWS) => {}
            _ = stop.changed() => {}
        }
    }
    if *leads.borrow() {
        set(&leads, false, &terms);
        if let Err(error) = release(&api, &terms).await {
            warn!(
                lease = terms.name,
                error = error_message(&error),
                "cannot release the Lease"
            );
        }
    }
}

fn set(leads: &watch::Sender<bool>, now: bool, terms: &LeaseConfig) {
    let changed = leads.send_if_modified(|led| std::mem::replace(led, now) != now);
    if changed {
        METRICS.leads(now);
        info!(
            lease = terms.name,
            identity = terms.me,
            leads = now,
            "leadership"
        );
    }
}

/// Whether the Lease is ours after this.
async fn attempt(
    api: &Api<Lease>,
    terms: &LeaseConfig,
    seen: &mut Option<(LeaseSpec, Instant)>,
) -> Result<bool, kube::Error> {
    let there = match api.get(&terms.name).await {
        Ok(lease) => Some(lease),
        Err(error) if is_missing(&error) => None,
        Err(error) => return Err(error),
    };
    let now = Instant::now();
    let written = match there {
        None => {
            let mut lease = Lease::default();
            lease.metadata.name = Some(terms.name.clone());
            lease.spec = Some(ours(&LeaseSpec::default(), terms));
            api.create(&PostParams::default(), &lease).await
        }
        Some(mut lease) => {
            let spec = lease.spec.unwrap_or_default();
            let since = match seen {
                Some((before, since)) if *before == spec => *since,
                _ => now,
            };
            *seen = Some((spec.clone(), since));
            if next(&spec, now.duration_since(since), &terms.me) == LeaseAction::Wait {
                return Ok(false);
            }
            lease.spec = Some(ours(&spec, terms));
            api.replace(&terms.name, &PostParams::default(), &lease)
                .await
        }
    };
    match written {
        Ok(_) => Ok(true),
        // Another replica was faster.
        Err(error) if is_conflict(&error) || is_already_exists(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

fn ours(before: &LeaseSpec, terms: &LeaseConfig) -> LeaseSpec {
    let now = MicroTime(Timestamp::now());
    let mine = before.holder_identity.as_deref() == Some(terms.me.as_str());
    LeaseSpec {
        holder_identity: Some(terms.me.clone()),
        lease_duration_seconds: i32::try_from(terms.length.as_secs()).ok(),
        renew_time: Some(now.clone()),
        acquire_time: if mine {
            before.acquire_time.clone()
        } else {
            Some(now)
        },
        lease_transitions: if mine {
            before.lease_transitions
        } else {
            Some(before.lease_transitions.unwrap_or(0).saturating_add(1))
        },
        ..before.clone()
    }
}

async fn release(api: &Api<Lease>, terms: &LeaseConfig) -> Result<(), kube::Error> {
    let mut lease = api.get(&terms.name).await?;
    let spec = lease.spec.get_or_insert_default();
    if spec.holder_identity.as_deref() == Some(terms.me.as_str()) {
        spec.holder_identity = None;
        api.replace(&terms.name, &PostParams::default(), &lease)
            .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held_by(holder: Option<&str>) -> LeaseSpec {
        LeaseSpec {
            holder_identity: holder.map(str::to_owned),
            lease_duration_seconds: Some(15),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn a_lease_is_taken_when_it_is_free_or_its_holder_silent_and_never_from_a_live_one() {
        let seconds = Duration::from_secs;
        assert_eq!(next(&held_by(None), seconds(0), "a"), LeaseAction::Take);
        assert_eq!(next(&held_by(Some("")), seconds(0), "a"), LeaseAction::Take);
        assert_eq!(
            next(&held_by(Some("b")), seconds(14), "a"),
            LeaseAction::Wait
        );
        assert_eq!(
            next(&held_by(Some("b")), seconds(15), "a"),
            LeaseAction::Take
        );
        assert_eq!(
            next(&held_by(Some("a")), seconds(99), "a"),
            LeaseAction::Renew
        );
    }

    #[test]
    fn a_change_of_hands_is_counted_and_a_renewal_is_not() {
        let terms = LeaseConfig {
            namespace: "n".into(),
            name: "l".into(),
            me: "a".into(),
            length: LENGTH,
        };
        let taken = ours(&held_by(Some("b")), &terms);
        assert_eq!(
            (taken.lease_transitions, taken.lease_duration_seconds),
            (Some(1), Some(15))
        );
        let renewed = ours(&taken, &terms);
        assert_eq!(renewed.lease_transitions, Some(1));
        assert_eq!(renewed.acquire_time, taken.acquire_time);
    }
}
