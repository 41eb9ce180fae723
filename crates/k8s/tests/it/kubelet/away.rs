//! A piece is away, and comes back: what kubelet asks waits, and what runs does not notice.

use divvy_testkit::until_async as until;
use futures_util::FutureExt;

use crate::kubelet::gate::{Cut, Gate};
use crate::kubelet::rig::Node;

#[tokio::test(flavor = "current_thread")]
async fn without_an_agent_the_driver_registers_and_kubelets_calls_wait_for_it() {
    let mut node = Node::new("a100-80gb:1");
    let gate = Gate::new(node.machine.path(), &node.machine.agent_socket());
    node.start_driver(&gate.socket);
    let driver = node.kubelet.driver().await;
    node.start_daemon(&[]).await;
    let gpu = node.gpu(0).await;
    let claim = node.allocate("a", &[(&gpu, Some("60Gi"))]);
    let comes_back = async || {
        // Twice, as one may be the driver's own look of every few seconds.
        gate.missed().await;
        gate.missed().await;
        gate.is_away(false);
    };
    // One call of kubelet's, which ends well although nobody was there when it began.
    gate.is_away(true);
    node.kill_daemon();
    node.start_daemon(&[]).await;
    let (devices, ()) = tokio::join!(driver.prepare(&claim), comes_back());
    let devices = devices.unwrap();
    let cdi = node.cdi();
    gate.is_away(true);
    node.kill_daemon();
    assert_eq!(node.cdi(), cdi, "who has a slice has it without the agent");
    node.start_daemon(&[]).await;
    let (unprepared, ()) = tokio::join!(driver.unprepare(&claim), comes_back());
    unprepared.unwrap();
    node.is_sound(&[]).await;
    assert_eq!(devices.len(), 1);
}

#[tokio::test(flavor = "current_thread")]
async fn without_the_driver_kubelet_tries_again_until_it_is_back() {
    let (mut node, driver) = Node::served("a100-80gb:1").await;
    let gpu = node.gpu(0).await;
    let [old, new] = ["old", "new"].map(|name| node.allocate(name, &[(&gpu, Some("60Gi"))]));
    driver.prepare(&old).await.unwrap();
    node.kill_driver();
    driver.unprepare(&old).await.unwrap_err();
    node.start_driver(&node.machine.agent_socket());
    driver.unprepared(&old).await;
    driver.prepared(&new).await;
    node.is_sound(&[&new]).await;
}

/// Kubelet forgets a claim whose unprepare ended well, and its slice would be held for ever.
#[tokio::test(flavor = "current_thread")]
async fn an_unprepare_that_the_daemon_never_hears_is_an_error_and_tried_again() {
    let (mut node, driver) = Node::served("a100-80gb:1").await;
    let claim = node.allocate("a", &[(&node.gpu(0).await, Some("60Gi"))]);
    driver.prepare(&claim).await.unwrap();
    node.kill_daemon();
    let said = driver.unprepare(&claim).await.unwrap_err();
    assert!(said.contains("daemon"), "{said}");
    node.start_daemon(&[]).await;
    driver.unprepared(&claim).await;
    node.is_sound(&[]).await;
}

#[tokio::test(flavor = "current_thread")]
async fn an_unprepare_comes_after_the_prepare_that_kubelet_gave_up_waiting_for() {
    let mut node = Node::new("a100-80gb:1");
    node.start_daemon(&[]).await;
    let gate = Gate::new(node.machine.path(), &node.machine.agent_socket());
    node.start_driver(&gate.socket);
    let driver = node.kubelet.driver().await;
    let claim = node.allocate("a", &[(&node.gpu(0).await, Some("60Gi"))]);
    gate.close("PUT /v1/claims/", Cut::Before);
    {
        let prepare = driver.prepare(&claim);
        tokio::pin!(prepare);
        tokio::select! {
            _ = &mut prepare => panic!("it is held"),
            () = gate.held() => {}
        }
        // Kubelet hangs up here.
    }
    let unprepare = driver.unprepare(&claim);
    tokio::pin!(unprepare);
    assert!(unprepare.as_mut().now_or_never().is_none());
    gate.open();
    unprepare.await.unwrap();
    node.is_sound(&[]).await;
}

#[tokio::test(flavor = "current_thread")]
async fn without_an_api_server_nothing_is_prepared_and_everything_can_be_given_back() {
    let (node, driver) = Node::served("a100-80gb:1").await;
    let gpu = node.gpu(0).await;
    let [old, new] = ["old", "new"].map(|name| node.allocate(name, &[(&gpu, Some("20Gi"))]));
    driver.prepare(&old).await.unwrap();
    node.api.fail("GET", "/resourceclaims/new", 500, 1);
    let refused = driver.prepare(&new).await.unwrap_err();
    assert!(refused.contains("cannot read the claim"), "{refused}");
    driver.unprepare(&old).await.unwrap();
    node.is_sound(&[]).await;
    driver.prepare(&new).await.unwrap();
    until("only the new one is held", async || {
        let held = node.machine.held().await;
        (held.len() == 1 && held[0].uid == new.uid).then_some(())
    })
    .await;
}
