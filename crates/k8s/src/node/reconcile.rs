//! Reconciliation of claims: releases and reports claims that the agent holds and kubelet will never unprepare
//! (orphans).
//!
//! Kubelet unprepares what it has prepared, over its own restarts and reboots. What it forgets (its checkpoint was lost, the
//! node was taken out of the cluster and put back, a claim was deleted by force) is held by the agent for ever, and no pod
//! gets it. So what is held is compared with the claims there are.

use std::sync::Arc;
use std::time::Duration;

use divvy_api::v1::{HeldClaim, JobState};
use k8s_openapi::api::resource::v1::ResourceClaim;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::node::allocation;
use crate::node::events::{EventTarget, Kind};
use crate::node::incidents;
use crate::node::plugin::DraDriver;
use crate::node::registration::DRIVERS;

/// Between two comparisons: nothing waits for them but what is leaked. Half would double the calls of each node to the
/// API server.
const AGAIN: Duration = Duration::from_secs(60);

/// Why kubelet will not unprepare a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Leak {
    #[error("the claim no longer exists")]
    Gone,
    #[error("another claim has its name")]
    Replaced,
    #[error("the claim is no longer allocated")]
    Deallocated,
    #[error("the claim is allocated to another node")]
    Moved,
}

/// Whether what is held for a claim is still the claim's; `claim` is what has its name now.
pub fn judge(uid: &str, claim: Option<&ResourceClaim>, node: &str) -> Option<Leak> {
    let Some(claim) = claim else {
        return Some(Leak::Gone);
    };
    if claim.metadata.uid.as_deref() != Some(uid) {
        return Some(Leak::Replaced);
    }
    match allocation::results(claim, &DRIVERS) {
        Err(_) => Some(Leak::Deallocated),
        Ok(results) if results.iter().all(|result| result.pool != node) => Some(Leak::Moved),
        Ok(_) => None,
    }
}

/// Compares at once, and then again and again.
pub async fn run(plugin: Arc<DraDriver>, mut stop: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            () = async { compare(&plugin).await; sleep(AGAIN).await; } => {}
        }
    }
}

async fn compare(plugin: &DraDriver) {
    let held = match plugin.agent().held().await {
        Ok(held) => held,
        Err(error) => {
            tracing::debug!("cannot compare the allocations with the cluster's claims: {error}");
            return;
        }
    };
    // An allocation that is being released is not an orphan.
    let leaving = |held: &&HeldClaim| matches!(held.state, JobState::Stopping | JobState::Ended);
    for one in held.iter().filter(|held| !leaving(held)) {
        look_into(plugin, one).await;
    }
}

async fn look_into(plugin: &DraDriver, held: &HeldClaim) {
    let HeldClaim {
        uid,
        namespace,
        name,
        ..
    } = held;
    let judged = |claim: Result<Option<ResourceClaim>, _>| match claim {
        Ok(claim) => judge(uid, claim.as_ref(), plugin.node()),
        Err(error) => {
            tracing::debug!("cannot compare claim {namespace}/{name}: {error}");
            None
        }
    };
    // Nearly all claims are well, which the cached objects show. Only the others are read again from the API server.
    let at_hand = plugin.claim_at_hand(namespace, name).await;
    let pods = at_hand.as_ref().ok().and_then(Option::as_ref);
    if let Some(claim) = pods {
        plugin.pods().note(uid, claim);
    }
    let pods = pods.map_or_else(Vec::new, allocation::pods);
    if judged(at_hand).is_none() {
        // Kubelet prepares a claim for its first pod alone; by its pods the agent knows their processes.
        if pods.iter().any(|pod| !held.pods.contains(pod)) {
            plugin.prepare_again(held).await;
        }
        return;
    }
    // The claim's lock orders this check with kubelet's calls for the same claim.
    let _turn = plugin.claim_lock().lock(uid).await;
    let Some(leak) = judged(plugin.claim(namespace, name).await) else {
        return;
    };
    // As it is now: a process may have come since.
    let now = plugin.agent().held().await.unwrap_or_default();
    let Some(now_held) = now.iter().find(|now| now.uid == *uid) else {
        return;
    };
    let processes = now_held.processes;
    let about = EventTarget {
        kind: Kind::Claim,
        namespace,
        name,
        uid,
    };
    // Also with processes: neither the scheduler nor a quota counts their memory any more.
    if let Err(error) = plugin.agent().release(uid).await {
        tracing::warn!("cannot release claim {namespace}/{name}: {error}");
        return;
    }
    if processes > 0 {
        let note = format!(
            "{leak}, but {processes} processes use its allocation on this node: they get no more GPU memory, and the \
             daemon kills those that still run after its grace period"
        );
        incidents::tell_pods(plugin, now_held, "LeakInUse", note).await;
        return;
    }
    let note = format!(
        "released the claim's allocation on this node: {leak}, and no process uses the allocation"
    );
    plugin
        .events()
        .warn(about, "LeakReleased", "Reconcile", note)
        .await;
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::base::claim::DRIVER;

    fn claim(status: serde_json::Value) -> ResourceClaim {
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": { "name": "c", "uid": "1" }, "spec": {}, "status": status,
        });
        serde_json::from_value(claim).unwrap()
    }

    fn on(driver: &str, node: &str) -> ResourceClaim {
        let result = json!({ "request": "r", "driver": driver, "pool": node, "device": "d" });
        claim(json!({ "allocation": { "devices": { "results": [result] } } }))
    }

    #[test]
    fn what_is_allocated_here_is_no_leak_and_everything_else_is() {
        for driver in DRIVERS {
            assert_eq!(judge("1", Some(&on(driver, "a")), "a"), None);
        }
        assert_eq!(judge("1", Some(&on(DRIVER, "b")), "a"), Some(Leak::Moved));
        assert_eq!(
            judge("2", Some(&on(DRIVER, "a")), "a"),
            Some(Leak::Replaced)
        );
        assert_eq!(judge("1", None, "a"), Some(Leak::Gone));
        for nothing in [claim(json!({})), on("nic.example", "a")] {
            assert_eq!(judge("1", Some(&nothing), "a"), Some(Leak::Deallocated));
        }
    }
}
