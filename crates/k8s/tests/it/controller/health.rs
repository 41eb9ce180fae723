//! What kubelet is told of a replica, whatever becomes of the API server.

use serde_json::json;

use super::apiserver::{ApiServer, View};
use super::replica::{Cluster, NAMESPACE, Replica, marked};

/// Waits until so many more calls of a path have come.
fn more_calls(server: &ApiServer, part: &str, count: usize) {
    let calls = |view: &View<'_>| {
        let calls = view.calls().iter();
        calls.filter(|call| call.path.contains(part)).count()
    };
    let before = server.look(calls);
    server.until(part, |view| (calls(view) >= before + count).then_some(()));
}

fn is_ready(replica: &Replica) -> bool {
    assert_eq!(replica.told("/healthz").0, 200, "it lives");
    replica.told("/readyz").0 == 200
}

#[tokio::test]
async fn a_replica_is_ready_from_when_it_has_seen_the_cluster_also_while_the_api_server_is_away() {
    let cluster = Cluster::new();
    let server = &cluster.server;
    server.fail("GET", "/resourceslices", 500, usize::MAX);
    let replica = Replica::start(&cluster, "a", &[]);
    more_calls(server, "/resourceslices", 2);
    assert!(!is_ready(&replica));
    let (_, lacks) = replica.told("/readyz");
    assert!(lacks.contains("ResourceSlices of the nodes"), "{lacks}");
    server.heal();
    replica.serves(server);
    assert!(is_ready(&replica));

    for method in ["GET", "POST", "PUT", "PATCH"] {
        server.fail(method, "/", 500, usize::MAX);
    }
    server.cut_watches();
    // It has asked again for its certificate, and so has had no answer once.
    more_calls(server, "/secrets/", 2);
    assert!(is_ready(&replica), "what it shows is good for a year");
    server.heal();
    cluster.create(&marked("after")).await.unwrap();
}

#[tokio::test]
async fn without_somebody_to_tell_whom_to_trust_a_replica_is_not_ready() {
    let cluster = Cluster::new();
    let server = &cluster.server;
    server.remove("mutatingwebhookconfigurations", "", "divvy");
    let replica = Replica::start(&cluster, "a", &[]);
    more_calls(server, "/mutatingwebhookconfigurations", 3);
    server.until("its certificate", |view| {
        view.get("secrets", NAMESPACE, "divvy-webhook-tls")
    });
    assert!(!is_ready(&replica));
    cluster.register();
    replica.serves(server);
    assert!(is_ready(&replica));
}

/// One for each way of asking that the pods of a namespace have, and no more than a thousand ways.
#[tokio::test]
async fn a_namespace_that_tries_all_ways_of_asking_is_refused_and_others_are_not() {
    let cluster = Cluster::new();
    let template = |namespace: &str, number: usize| {
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": {
                "name": format!("divvy-{number}"), "namespace": namespace,
                "labels": { "app.kubernetes.io/managed-by": "divvy" },
            },
            "spec": { "spec": {} },
        })
    };
    for number in 0..1000 {
        cluster.server.create(template("team", number));
    }
    let replica = Replica::start(&cluster, "a", &[]);
    replica.serves(&cluster.server);
    let refused = cluster.create(&marked("train")).await.unwrap_err();
    let refused = divvy_k8s::cluster::error_message(&refused);
    assert!(refused.contains("1000 claim templates"), "{refused}");
    cluster
        .server
        .remove("resourceclaimtemplates", "team", "divvy-0");
    // From when it has heard of that.
    for number in 0.. {
        assert!(number < 1000, "it is never made");
        if cluster
            .create(&marked(&format!("train-{number}")))
            .await
            .is_ok()
        {
            break;
        }
    }
}
