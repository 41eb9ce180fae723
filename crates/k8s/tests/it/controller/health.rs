//! What kubelet is told of a replica, whatever becomes of the API server.

use std::collections::BTreeSet;

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
async fn a_replica_without_a_published_authority_is_not_ready() {
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
    let refused = divvy_k8s::base::cluster::error_message(&refused);
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

/// Metrics of the page of docs/kubernetes-monitoring.md that begin with this.
pub fn documented(prefix: &str) -> BTreeSet<String> {
    let docs = include_str!("../../../../../docs/kubernetes-monitoring.md");
    let rows = docs.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = rows.filter_map(|row| row.split('`').next());
    let names = names.filter(|name| name.starts_with(prefix));
    names.map(str::to_owned).collect()
}

/// Names of metrics of a page, by their types.
pub fn families(page: &str) -> BTreeSet<String> {
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let names = types.filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

#[tokio::test]
async fn the_leader_counts_reviews_and_waiting_pods_and_says_when_its_certificate_ends() {
    let cluster = Cluster::new();
    let server = &cluster.server;
    let replica = Replica::start(&cluster, "a", &["--metrics"]);
    replica.serves(server);
    cluster.create(&marked("train")).await.unwrap();
    let page = server.until("the leader has seen the pod", |_| {
        let (status, page) = replica.told("/metrics");
        assert_eq!(status, 200);
        let pending = "divvy_controller_waiting_pods{reason=\"pending\"} 1";
        page.contains(pending).then_some(page)
    });
    assert_eq!(families(&page), documented("divvy_controller_"), "{page}");
    for series in [
        "divvy_controller_leader 1",
        "divvy_controller_admissions_total{kind=\"Pod\",result=\"changed\"} 1",
        "divvy_controller_claim_template_creates_total{result=\"created\"} 1",
    ] {
        assert!(page.contains(&format!("\n{series}\n")), "{series}: {page}");
    }
    assert!(!page.contains("\ndivvy_controller_admission_duration_seconds_count 0\n"));
    let end = "\ndivvy_controller_certificate_expiry_timestamp_seconds ";
    let end = page.split(end).nth(1).and_then(|rest| rest.lines().next());
    let end: i64 = end.and_then(|end| end.parse().ok()).unwrap();
    let days = (end - jiff::Timestamp::now().as_second()) / 86_400;
    assert!((360..=366).contains(&days), "{days}");
    let quiet = Replica::start(&cluster, "b", &[]);
    assert_eq!(
        quiet.told("/metrics").0,
        404,
        "without the flag there is no page"
    );
}
