//! What nobody will ever give back.

use divvy_testkit::until_async as until;
use serde_json::json;

use crate::kubelet::rig::Node;

#[tokio::test(flavor = "current_thread")]
async fn what_is_held_for_claims_that_are_gone_or_moved_is_released_and_told() {
    let (mut node, driver) = Node::served("a100-80gb:1").await;
    let gpu = node.gpu(0).await;
    let names = ["gone", "replaced", "deallocated", "moved", "kept"];
    let claims = names.map(|name| node.allocate(name, &[(&gpu, Some("10Gi"))]));
    for claim in &claims {
        driver.prepare(claim).await.unwrap();
    }
    let [gone, replaced, deallocated, _, kept] = &claims;
    // Kubelet forgets them all: it asks for nothing.
    node.kill_driver();
    node.forget(gone);
    node.allocate(&replaced.name, &[(&gpu, Some("10Gi"))]);
    let none = json!({ "status": { "allocation": null } });
    node.api
        .merge("resourceclaims", "team", &deallocated.name, &none);
    let elsewhere = json!({ "status": { "allocation": { "devices": { "results": [{
        "request": "gpu-0", "driver": "gpu.divvy.dev", "pool": "node-b", "device": gpu,
    }] } } } });
    node.api
        .merge("resourceclaims", "team", "moved", &elsewhere);
    node.start_driver(&node.machine.agent_socket());
    until("only one is held", async || {
        (node.machine.held().await.len() == 1).then_some(())
    })
    .await;
    node.is_sound(&[kept]).await;
    until("all four are told", async || {
        let events = node.api.look(|view| view.all("events"));
        let of = |claim: &&divvy_k8s::node::protocol::dra::Claim| {
            events.iter().any(|event| {
                event["reason"] == "LeakReleased" && event["regarding"]["uid"] == claim.uid
            })
        };
        (claims.iter().filter(of).count() == 4).then_some(())
    })
    .await;
}
