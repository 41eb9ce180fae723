//! Whatever is killed when: no device is given twice, no slice is leaked.

use divvy_k8s::node::protocol::dra::Claim;

use divvy_testkit::failpoints::{CLAIM_DELETE, CLAIM_PUT, CRASH_AT, MIG_CREATE, MIG_DESTROY};
use divvy_testkit::until_async as until;

use crate::kubelet::fake::Driver;
use crate::kubelet::gate::{Cut, Gate};
use crate::kubelet::rig::Node;

/// Where the driver is killed: at each of its calls to the agent.
const OF_CALLS: [(&str, Cut); 6] = [
    ("GET /v1/gpus", Cut::Before),
    ("GET /v1/gpus", Cut::After),
    ("PUT /v1/claims/", Cut::Before),
    ("PUT /v1/claims/", Cut::After),
    ("DELETE /v1/claims/", Cut::Before),
    ("DELETE /v1/claims/", Cut::After),
];

/// A daemon that dies at a point, and is started again as often as it dies.
async fn dies_at(node: &mut Node, driver: &Driver, point: &str, story: impl AsyncFnOnce(Driver)) {
    node.kill_daemon();
    node.start_daemon(&[(CRASH_AT, point)]).await;
    let story = story(driver.clone());
    let again = async {
        node.daemon_dies().await;
        node.start_daemon(&[]).await;
    };
    tokio::join!(story, again);
}

/// Prepared, unprepared, and prepared for another one: what kubelet makes of two pods.
async fn one_after_the_other(driver: &Driver, first: &Claim, second: &Claim) {
    driver.prepared(first).await;
    driver.unprepared(first).await;
    driver.prepared(second).await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_daemon_that_dies_at_any_step_of_a_claim_holds_it_once_or_not_at_all() {
    let (mut node, driver) = Node::served("a100-80gb:1").await;
    let gpu = node.gpu(0).await;
    for point in CLAIM_PUT.into_iter().chain(CLAIM_DELETE) {
        eprintln!("dies at {point}");
        let first = node.allocate("first", &[(&gpu, Some("60Gi"))]);
        let second = node.allocate("second", &[(&gpu, Some("60Gi"))]);
        dies_at(&mut node, &driver, point, async |driver| {
            one_after_the_other(&driver, &first, &second).await;
        })
        .await;
        node.is_sound(&[&second]).await;
        driver.prepare(&first).await.unwrap_err();
        driver.unprepared(&second).await;
        node.is_sound(&[]).await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_daemon_that_dies_at_any_step_of_an_instance_makes_it_once_or_not_at_all() {
    let (mut node, driver) = Node::divided("a100-80gb:1", 0).serve().await;
    let [two, three] = [
        node.place("2g.20gb", 0).await,
        node.place("3g.40gb", 0).await,
    ];
    for point in MIG_CREATE.into_iter().chain(MIG_DESTROY) {
        eprintln!("dies at {point}");
        let first = node.allocate("first", &[(&two, None)]);
        let second = node.allocate("second", &[(&three, None)]);
        dies_at(&mut node, &driver, point, async |driver| {
            one_after_the_other(&driver, &first, &second).await;
        })
        .await;
        node.is_sound(&[&second]).await;
        let instances = node.machine.agent().mig_instances().await.unwrap();
        let there: Vec<_> = instances
            .iter()
            .map(|one| (&*one.profile, one.start))
            .collect();
        assert_eq!(there, [("3g.40gb", 0)], "{point}");
        driver.unprepared(&second).await;
        node.is_sound(&[]).await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_driver_that_is_killed_between_any_two_calls_holds_what_it_has_prepared_once() {
    for (call, cut) in OF_CALLS {
        eprintln!("killed at {call}, {cut:?}");
        let mut node = Node::new("a100-80gb:1");
        node.start_daemon(&[]).await;
        let gate = Gate::new(node.machine.path(), &node.machine.agent_socket());
        node.start_driver(&gate.socket);
        let driver = node.kubelet.driver().await;
        let gpu = node.gpu(0).await;
        let first = node.allocate("first", &[(&gpu, Some("60Gi"))]);
        let second = node.allocate("second", &[(&gpu, Some("60Gi"))]);
        gate.close(call, cut);
        let killed = async {
            gate.held().await;
            node.kill_driver();
            node.start_driver(&gate.socket);
            node.kubelet.register().await;
        };
        tokio::join!(one_after_the_other(&driver, &first, &second), killed);
        node.is_sound(&[&second]).await;
        driver.prepare(&first).await.unwrap_err();
        driver.unprepared(&second).await;
        node.is_sound(&[]).await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn both_may_be_killed_at_any_time_and_what_is_held_stays_held() {
    let (mut node, driver) = Node::served("a100-80gb:1").await;
    let gpu = node.gpu(0).await;
    let claim = node.allocate("a", &[(&gpu, Some("60Gi"))]);
    let devices = driver.prepare(&claim).await.unwrap();
    let cdi = node.cdi();
    node.kill_driver();
    node.kill_daemon();
    assert_eq!(
        node.cdi(),
        cdi,
        "containers that start meanwhile have their limits"
    );
    node.start_daemon(&[]).await;
    node.start_driver(&node.machine.agent_socket());
    node.kubelet.register().await;
    assert_eq!(driver.prepared(&claim).await, devices);
    node.is_sound(&[&claim]).await;
    let other = node.allocate("other", &[(&gpu, Some("60Gi"))]);
    driver.prepare(&other).await.unwrap_err();
}

#[tokio::test(flavor = "current_thread")]
async fn after_a_reboot_claims_are_prepared_anew() {
    let mut node = Node::divided("a100-80gb:2", 1);
    node.start_daemon(&[("DIVVY_TEST_BOOT", "first")]).await;
    node.start_driver(&node.machine.agent_socket());
    let driver = node.kubelet.driver().await;
    let [part, place] = [node.gpu(0).await, node.place("2g.20gb", 0).await];
    let part = node.allocate("part", &[(&part, Some("60Gi"))]);
    let place = node.allocate("place", &[(&place, None)]);
    let devices = [driver.prepared(&part).await, driver.prepared(&place).await];
    node.power_off();
    node.start_daemon(&[("DIVVY_TEST_BOOT", "second")]).await;
    // Their containers are gone, and kubelet has not asked yet.
    until("nothing is held", async || {
        node.machine.held().await.is_empty().then_some(())
    })
    .await;
    node.is_sound(&[]).await;
    node.start_driver(&node.machine.agent_socket());
    node.kubelet.register().await;
    // Kubelet has what it was told on its disk: the same claim has the same CDI device.
    assert_eq!(driver.prepared(&place).await, devices[1]);
    assert_eq!(driver.prepared(&part).await, devices[0]);
    node.is_sound(&[&part, &place]).await;
}
