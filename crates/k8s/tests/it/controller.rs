//! `divvy-k8s controller`, the program, beside an API server in memory that asks it over TLS as a real one does.

#![allow(clippy::unwrap_used)]

use crate::apiserver;
pub mod health;
pub mod replica;

use std::convert::Infallible;
use std::future::ready;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use divvy_testkit::Bounded as _;
use futures_util::future::join_all;
use futures_util::{StreamExt as _, stream};
use http_body_util::BodyExt as _;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use rcgen::{CertificateParams, Issuer, KeyPair, date_time_ymd};
use serde_json::{Value, json};

use apiserver::{Call, Cut, View, admission};
use replica::{Cluster, HOST, NAMESPACE, Replica, marked, plain};

const SECRET: &str = "divvy-webhook-tls";

fn text(secret: &Value, key: &str) -> String {
    let data: k8s_openapi::ByteString =
        serde_json::from_value(secret["data"][key].clone()).unwrap();
    String::from_utf8(data.0).unwrap()
}

#[tokio::test]
async fn a_marked_pod_is_changed_over_tls_that_the_controller_saw_to_itself() {
    let cluster = Cluster::new();
    let replica = Replica::start(&cluster, "a", &[]);
    replica.serves(&cluster.server);
    let made = cluster.create(&marked("train")).await.unwrap();
    let claims = &made.spec.as_ref().unwrap().resource_claims;
    let claim = &claims.as_ref().unwrap()[0];
    assert_eq!(claim.name, "fraction-gpu");
    let template = claim.resource_claim_template_name.as_deref().unwrap();
    let there = cluster
        .server
        .look(|view| view.get("resourceclaimtemplates", "team", template))
        .unwrap();
    let owner = &there["metadata"]["ownerReferences"][0];
    assert_eq!(
        owner["kind"], "MutatingWebhookConfiguration",
        "it goes when the chart goes"
    );
    assert_eq!(
        there["spec"]["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]["memory"],
        "40Gi"
    );
    let writes = |view: &View<'_>| {
        view.calls()
            .iter()
            .filter(|call| call.path.contains("resourceclaimtemplates") && call.method != "GET")
            .count()
    };
    // Others like it need no other call, from when the replica has heard of what it made.
    for number in 0.. {
        assert!(number < 1000, "each of them needs one");
        let before = cluster.server.look(writes);
        let pod = marked(&format!("like-it-{number}"));
        cluster.create(&pod).await.unwrap();
        if cluster.server.look(writes) == before {
            break;
        }
    }
    // One of no opted-in namespace is not looked at.
    let elsewhere: Api<Pod> = Api::namespaced(cluster.client(), "elsewhere");
    let left = elsewhere
        .create(&PostParams::default(), &marked("train"))
        .await
        .unwrap();
    assert!(left.spec.unwrap().resource_claims.is_none());
}

#[tokio::test]
async fn refusals_and_warnings_reach_the_author_of_a_pod_and_a_dry_run_makes_nothing() {
    let cluster = Cluster::new();
    let replica = Replica::start(&cluster, "a", &[]);
    replica.serves(&cluster.server);
    let mut third = marked("third");
    third.metadata.labels =
        Some([("clearml-injector/fraction".to_owned(), "0.3".to_owned())].into());
    let refused = cluster.create(&third).await.unwrap_err();
    let refused = divvy_k8s::base::cluster::error_message(&refused);
    assert!(refused.contains("`0.3` is not one of 0.0625"), "{refused}");
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let made = cluster.pods().create(&dry, &marked("dry")).await.unwrap();
    assert!(made.spec.unwrap().resource_claims.is_some());
    assert!(
        cluster
            .server
            .look(|view| view.all("resourceclaimtemplates"))
            .is_empty()
    );
}

#[tokio::test]
async fn a_template_of_pods_keeps_what_it_asks_for_as_a_label() {
    let cluster = Cluster::new();
    let replica = Replica::start(&cluster, "a", &[]);
    replica.serves(&cluster.server);
    let limits = json!({ "clear.ml/fraction-1": "0.5" });
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": { "name": "d" },
        "spec": {
            "selector": { "matchLabels": { "app": "d" } },
            "template": {
                "metadata": { "labels": { "app": "d" } },
                "spec": { "containers": [{ "name": "c", "resources": { "limits": limits } }] },
            },
        },
    }))
    .unwrap();
    let api: Api<Deployment> = Api::namespaced(cluster.client(), "team");
    let made = api
        .create(&PostParams::default(), &deployment)
        .await
        .unwrap();
    let recorded = made.metadata.annotations.unwrap();
    let template = made.spec.unwrap().template;
    let labels = template.metadata.unwrap().labels.unwrap();
    assert_eq!(labels["clearml-injector/fraction"], "0.500");
    let spec = template.spec.unwrap();
    let resources = spec.containers[0].resources.clone().unwrap();
    assert!(resources.limits.unwrap_or_default().is_empty());
    let claims = spec.resource_claims.unwrap();
    let claim = claims[0].resource_claim_template_name.as_deref().unwrap();
    assert_eq!(
        recorded["divvy.dev/claim-templates"],
        json!({ claim: "0.500" }).to_string()
    );
    // A client deletes it: there is no pod yet, and the Deployment needs it.
    cluster
        .server
        .remove("resourceclaimtemplates", "team", claim);
    cluster.server.until("the template is there again", |view| {
        view.get("resourceclaimtemplates", "team", claim)
    });
}

#[tokio::test]
async fn what_is_no_review_is_refused_and_no_body_is_read_without_bounds() {
    let cluster = Cluster::new();
    let replica = Replica::start(&cluster, "a", &[]);
    replica.serves(&cluster.server);
    let bundle = cluster.bundle();
    let answered = async |method: &str, path: &str, length: usize, body: Body| {
        let stream = admission::tls(replica.address(), bundle.as_bytes(), HOST)
            .await
            .unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", HOST)
            .header("content-length", length);
        let request = request.body(body).unwrap();
        sender
            .send_request(request)
            .await
            .unwrap()
            .status()
            .as_u16()
    };
    assert_eq!(answered("GET", "/mutate", 0, Body::empty()).await, 405);
    assert_eq!(answered("POST", "/other", 0, Body::empty()).await, 404);
    assert_eq!(answered("POST", "/mutate", 2, Body::from("{}")).await, 400);
    // No byte is sent behind the first that is too many: what a server leaves unread breaks off its answer.
    let too_many = Ok::<_, Infallible>(vec![b' '; (8 << 20) + 1]);
    let more = stream::once(ready(too_many)).chain(stream::pending());
    let more = Body::from_stream(more);
    assert_eq!(answered("POST", "/mutate", 9 << 20, more).await, 413);
    let other = admission::tls(
        replica.address(),
        bundle.as_bytes(),
        "other.divvy-system.svc",
    )
    .await;
    assert!(other.is_err(), "it is for its own name alone");
}

/// F1: who is unreachable holds up marked pods, and those alone.
#[tokio::test]
async fn without_a_webhook_marked_pods_are_refused_by_its_name_and_others_made() {
    let cluster = Cluster::new();
    let replica = Replica::start(&cluster, "a", &[]);
    replica.serves(&cluster.server);
    drop(replica);
    let refused = cluster.create(&marked("train")).await.unwrap_err();
    let refused = divvy_k8s::base::cluster::error_message(&refused);
    assert!(refused.contains("pods.inject.divvy.dev"), "{refused}");
    cluster.create(&plain("web")).await.unwrap();
    let mut theirs = marked("theirs");
    theirs.spec.as_mut().unwrap().scheduler_name = Some("kai-scheduler".to_owned());
    cluster.create(&theirs).await.unwrap();
}

#[tokio::test]
async fn of_two_replicas_that_make_a_certificate_one_wins_and_both_show_it() {
    let cluster = Cluster::new();
    // Both are told that there is none.
    cluster.server.fail("GET", "/secrets/", 404, 2);
    let (one, two) = (
        Replica::start(&cluster, "a", &[]),
        Replica::start(&cluster, "b", &[]),
    );
    for (replica, name) in [(&one, "x"), (&two, "y")] {
        replica.serves(&cluster.server);
        cluster.create(&marked(name)).await.unwrap();
    }
    let made = cluster.server.look(|view| {
        let calls = view.calls().iter();
        calls
            .filter(|call| call.method == "POST" && call.path.ends_with("/secrets"))
            .count()
    });
    assert_eq!(made, 2, "both have tried");
    let bundle = cluster.bundle();
    assert_eq!(bundle.matches("BEGIN CERTIFICATE").count(), 1);
}

#[tokio::test]
async fn an_empty_secret_of_a_chart_is_filled_and_one_that_has_expired_renewed() {
    let cluster = Cluster::new();
    cluster.server.create(json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": { "name": SECRET, "namespace": NAMESPACE, "labels": { "of": "chart" } },
    }));
    let replica = Replica::start(&cluster, "a", &[]);
    replica.serves(&cluster.server);
    cluster.create(&marked("one")).await.unwrap();
    drop(replica);

    let expired = expired();
    cluster.server.merge("secrets", NAMESPACE, SECRET, &expired);
    let before = cluster
        .server
        .look(|view| view.get("secrets", NAMESPACE, SECRET))
        .unwrap();
    let replica = Replica::start(&cluster, "a", &[]);
    replica.serves(&cluster.server);
    cluster.create(&marked("two")).await.unwrap();
    let after = cluster
        .server
        .look(|view| view.get("secrets", NAMESPACE, SECRET))
        .unwrap();
    assert_ne!(text(&before, "tls.crt"), text(&after, "tls.crt"));
    assert!(
        !text(&after, "ca.crt").contains(text(&before, "ca.crt").trim()),
        "nobody trusts what is over"
    );
    assert_eq!(after["metadata"]["labels"]["of"], "chart");
    drop(replica);

    let _named = Replica::start(&cluster, "a", &["--tls-name", "gpu.example.com"]);
    let before = text(&after, "tls.crt");
    cluster
        .server
        .until("a certificate for the further name", |view| {
            let now = view.get("secrets", NAMESPACE, SECRET)?;
            (text(&now, "tls.crt") != before).then_some(())
        });
}

/// What a Secret has whose certificate was good in 2020.
fn expired() -> Value {
    let (begins, ends) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    (authority.not_before, authority.not_after) = (begins, ends);
    let key = KeyPair::generate().unwrap();
    let bundle = authority.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(authority, key);
    let mut leaf = CertificateParams::new(vec![HOST.to_owned()]).unwrap();
    (leaf.not_before, leaf.not_after) = (begins, ends);
    let key = KeyPair::generate().unwrap();
    let certificate = leaf.signed_by(&key, &issuer).unwrap().pem();
    let data = |text: String| json!(k8s_openapi::ByteString(text.into_bytes()));
    json!({ "data": {
        "ca.crt": data(bundle), "tls.crt": data(certificate), "tls.key": data(key.serialize_pem()),
    } })
}

#[tokio::test]
async fn certificates_that_another_program_renews_are_served_and_their_authority_published() {
    let cluster = Cluster::new();
    let folder = tempfile::tempdir().unwrap();
    let made = certificate();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for (name, text) in [("crt", &made.0), ("key", &made.1), ("ca", &made.2)] {
        std::fs::write(path(name), text).unwrap();
    }
    let (certificate, key, authority) = (path("crt"), path("key"), path("ca"));
    let replica = Replica::start(
        &cluster,
        "a",
        &[
            "--tls-cert",
            &certificate,
            "--tls-key",
            &key,
            "--tls-ca",
            &authority,
        ],
    );
    replica.serves(&cluster.server);
    cluster.create(&marked("train")).await.unwrap();
    assert_eq!(cluster.bundle(), made.2);
    assert!(
        cluster
            .server
            .look(|view| view.get("secrets", NAMESPACE, SECRET))
            .is_none()
    );
}

/// Certificate, key and authority, as a first run of the controller makes them elsewhere.
fn certificate() -> (String, String, String) {
    let other = Cluster::new();
    let replica = Replica::start(&other, "a", &[]);
    replica.serves(&other.server);
    let secret = other
        .server
        .look(|view| view.get("secrets", NAMESPACE, SECRET))
        .unwrap();
    (
        text(&secret, "tls.crt"),
        text(&secret, "tls.key"),
        text(&secret, "ca.crt"),
    )
}

#[tokio::test]
async fn a_webhook_configuration_without_its_authority_gets_it_again() {
    let cluster = Cluster::new();
    let replica = Replica::start(&cluster, "a", &[]);
    replica.serves(&cluster.server);
    let bundle = cluster.bundle();
    cluster.register();
    cluster.server.until("the bundle", |view| {
        let webhooks = replica::webhooks(view);
        webhooks
            .iter()
            .all(|webhook| webhook["clientConfig"]["caBundle"].is_string())
            .then_some(())
    });
    assert_eq!(cluster.bundle(), bundle);
    cluster.create(&marked("train")).await.unwrap();
}

#[tokio::test]
async fn classes_follow_what_nodes_publish_and_are_made_again_when_deleted() {
    let cluster = Cluster::new();
    let _replica = Replica::start(&cluster, "a", &[]);
    let class = "mig-1g-10gb.gpu.divvy.dev";
    cluster.server.until("both classes", |view| {
        view.get("deviceclasses", "", "fraction.gpu.divvy.dev")?;
        view.get("deviceclasses", "", class)
    });
    cluster.server.remove("deviceclasses", "", class);
    let again = cluster.server.until("the class again", |view| {
        view.get("deviceclasses", "", class)
    });
    assert_eq!(
        again["spec"]["extendedResourceName"],
        "nvidia.com/mig-1g.10gb"
    );
    assert_eq!(
        again["metadata"]["ownerReferences"][0]["kind"],
        "MutatingWebhookConfiguration"
    );
}

/// A cluster with a controller, in which a pod was made, and the template that was made for it.
async fn with_a_template() -> (Cluster, Replica, Value) {
    let cluster = Cluster::new();
    let replica = Replica::start(&cluster, "a", &[]);
    replica.serves(&cluster.server);
    cluster.create(&marked("train")).await.unwrap();
    let made = cluster.server.until("a template", a_template);
    (cluster, replica, made)
}

fn a_template(view: &View<'_>) -> Option<Value> {
    view.all("resourceclaimtemplates").pop()
}

#[tokio::test]
async fn a_template_that_says_something_else_is_replaced_and_a_strangers_refused() {
    let (cluster, _replica, made) = with_a_template().await;
    let name = made["metadata"]["name"].as_str().unwrap();
    let mut poisoned = made.clone();
    poisoned["metadata"] = json!({
        "name": name, "namespace": "team", "labels": made["metadata"]["labels"],
        "annotations": { "divvy.dev/last-used": "9999-12-30T22:00:00Z" },
    });
    poisoned["spec"]["spec"]["devices"]["requests"] = json!([
        { "name": "gpu-0", "exactly": { "deviceClassName": "fraction.gpu.divvy.dev", "count": 1 } },
    ]);
    cluster.server.create(poisoned.clone());
    // Until it has heard of the other, it believes in its own; one of the next pods is the first to differ.
    for number in 0.. {
        assert!(number < 1000, "it is never replaced");
        let pod = marked(&format!("second-{number}"));
        cluster.create(&pod).await.unwrap();
        let there = cluster.server.look(a_template);
        if there.is_some_and(|there| there["spec"] == made["spec"]) {
            break;
        }
    }

    poisoned["metadata"]["labels"] = json!({});
    cluster.server.create(poisoned);
    for number in 0.. {
        assert!(number < 1000, "it is never refused");
        let pod = marked(&format!("third-{number}"));
        if let Err(refused) = cluster.create(&pod).await {
            let refused = divvy_k8s::base::cluster::error_message(&refused);
            assert!(
                refused.contains(name) && refused.contains("not Divvy's"),
                "{refused}"
            );
            break;
        }
    }
}

/// Two replicas that are asked in turn.
fn two_replicas(cluster: &Cluster) -> [Replica; 2] {
    let replicas = ["a", "b"].map(|name| Replica::start(cluster, name, &[]));
    for replica in &replicas {
        replica.serves(&cluster.server);
    }
    let addresses = replicas.each_ref().map(Replica::address);
    cluster
        .server
        .set_endpoints(NAMESPACE, "divvy-webhook", &addresses);
    replicas
}

/// Has eight clients make so many marked pods each at the same time; what they were refused with.
async fn burst(cluster: &Cluster, name: &str, each: usize) -> Vec<String> {
    let clients = (0..8).map(|client| async move {
        let mut refused = Vec::new();
        for number in 0..each {
            let pod = marked(&format!("{name}-{client}-{number}"));
            let made = cluster.create(&pod).await;
            refused.extend(
                made.err()
                    .map(|error| divvy_k8s::base::cluster::error_message(&error)),
            );
        }
        refused
    });
    join_all(clients).await.concat()
}

fn templates_made(view: &View<'_>) -> usize {
    view.made("resourceclaimtemplates")
}

#[tokio::test]
async fn a_burst_of_64_pods_is_admitted_with_one_template() {
    let cluster = Cluster::new();
    let _replicas = two_replicas(&cluster);
    let refused = burst(&cluster, "pod", 8).await;
    assert_eq!(refused, [""; 0], "{} of 64 refused", refused.len());
    assert_eq!(cluster.server.look(|view| view.made("pods")), 64);
    assert_eq!(cluster.server.look(templates_made), 1);
}

#[tokio::test]
async fn a_burst_over_a_template_that_says_something_else_replaces_it_once() {
    let cluster = Cluster::new();
    let _replicas = two_replicas(&cluster);
    cluster.create(&marked("first")).await.unwrap();
    let made = cluster.server.look(a_template).unwrap();
    let mut poisoned = made.clone();
    poisoned["metadata"] = json!({
        "name": made["metadata"]["name"], "namespace": "team", "labels": made["metadata"]["labels"],
    });
    poisoned["spec"]["spec"]["devices"]["requests"] = json!([
        { "name": "gpu-0", "exactly": { "deviceClassName": "fraction.gpu.divvy.dev", "count": 1 } },
    ]);
    cluster.server.create(poisoned);
    let before = cluster.server.look(templates_made);
    for number in 0.. {
        assert!(number < 100, "it is never replaced");
        let refused = burst(&cluster, &format!("pod-{number}"), 1).await;
        assert_eq!(refused, [""; 0]);
        let there = cluster.server.look(a_template);
        if there.is_some_and(|there| there["spec"] == made["spec"]) {
            break;
        }
    }
    assert_eq!(cluster.server.look(templates_made), before + 1);
}

#[tokio::test]
async fn a_template_that_a_waiting_pod_lacks_is_made_again() {
    let (cluster, _replica, made) = with_a_template().await;
    let name = made["metadata"]["name"].as_str().unwrap();
    cluster
        .server
        .remove("resourceclaimtemplates", "team", name);
    let again = cluster.server.until("it again", a_template);
    assert_eq!(
        (&again["metadata"]["name"], &again["spec"]),
        (&made["metadata"]["name"], &made["spec"])
    );
    assert_ne!(again["metadata"]["uid"], made["metadata"]["uid"]);
}

#[tokio::test]
async fn a_pod_that_finds_no_place_is_told_why_with_figures() {
    let cluster = Cluster::new();
    // Before the start: what it lists is of several moments, and another word comes a minute after the first.
    cluster.hold("gpu-0", "60Gi");
    let replica = Replica::start(&cluster, "a", &[]);
    replica.serves(&cluster.server);
    cluster.create(&marked("train")).await.unwrap();
    cluster.server.merge(
        "pods",
        "team",
        "train",
        &json!({ "status": {
        "phase": "Pending",
        "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }],
        "resourceClaimStatuses": [{ "name": "fraction-gpu", "resourceClaimName": "train-claim" }],
    } }),
    );
    let event = cluster.server.until("an event", |view| {
        let events = view.all("events").into_iter();
        events
            .into_iter()
            .find(|event| event["regarding"]["name"] == "train")
    });
    let note = event["note"].as_str().unwrap();
    assert_eq!(event["reason"], "WaitsForGpu");
    assert!(
        note.contains("20.0 GiB of 80.0 GiB") && note.contains("needs 40.0 GiB"),
        "{note}"
    );
    assert!(note.contains("big holds 60.0 GiB"), "{note}");
}

/// Who leads, null where nobody does.
fn holder(view: &View<'_>) -> Option<Value> {
    let lease = view.get("leases", NAMESPACE, "divvy-controller")?;
    Some(lease["spec"]["holderIdentity"].clone())
}

fn leads(view: &View<'_>, who: &str) -> Option<()> {
    (holder(view)? == who).then_some(())
}

#[tokio::test]
async fn told_to_end_it_gives_the_lease_back_and_answers_on_for_a_while() {
    let cluster = Cluster::new();
    // It is not waited for.
    let replica = Replica::start(&cluster, "a", &["--drain-seconds", "3600"]);
    replica.serves(&cluster.server);
    cluster.server.until("a leader", |view| leads(view, "a"));
    replica.terminate();
    cluster
        .server
        .until("no leader", |view| holder(view).filter(Value::is_null));
    cluster.create(&marked("late")).await.unwrap();
}

#[tokio::test]
async fn told_to_end_it_ends_well_and_leads_no_more() {
    let cluster = Cluster::new();
    let mut replica = Replica::start(&cluster, "a", &["--drain-seconds", "0"]);
    replica.serves(&cluster.server);
    cluster.server.until("a leader", |view| leads(view, "a"));
    replica.terminate();
    assert_eq!(replica.ends(), Some(0));
    assert_eq!(cluster.server.look(holder), Some(Value::Null));
}

#[tokio::test]
async fn when_the_leader_dies_another_leads() {
    let cluster = Cluster::new();
    let quick = ["--lease-seconds", "3"];
    let class = |view: &View<'_>| view.get("deviceclasses", "", "fraction.gpu.divvy.dev");
    let first = Replica::start(&cluster, "a", &quick);
    cluster
        .server
        .until("the first to lead", |view| leads(view, "a"));
    cluster.server.until("its work", class);
    let second = Replica::start(&cluster, "b", &quick);
    second.serves(&cluster.server);
    drop(first);
    cluster
        .server
        .until("the second to lead", |view| leads(view, "b"));
    cluster
        .server
        .remove("deviceclasses", "", "fraction.gpu.divvy.dev");
    cluster.server.until("its work", class);
}

/// The first tier kills a replica at every third write, the second tier at each.
const SOME: usize = 3;

/// Killed at its writes of these numbers, up to the first that never comes: the next start makes everything whole.
async fn killed_at_writes(cut: Cut, numbers: impl Iterator<Item = usize>) {
    // Who leads writes that down again and again, and the longer the Lease the more seldom.
    let lease = ["--lease-seconds", "60"];
    for nth in numbers {
        assert!(nth < 30, "it never came to an end");
        let cluster = Cluster::new();
        cluster.server.cut(nth, cut);
        let replica = Replica::start(&cluster, "a", &lease);
        cluster
            .server
            .set_service(NAMESPACE, "divvy-webhook", replica.address());
        let was_held = cluster.runs_until_held(&replica);
        drop(replica);
        cluster.server.release();
        let replica = Replica::start(&cluster, "a", &lease);
        replica.serves(&cluster.server);
        let made = cluster.create(&marked("after")).await.unwrap();
        let claims = made.spec.unwrap().resource_claims.unwrap();
        let template = claims[0].resource_claim_template_name.clone().unwrap();
        cluster.server.until("everything", |view| {
            view.get("resourceclaimtemplates", "team", &template)?;
            view.get("deviceclasses", "", "fraction.gpu.divvy.dev")?;
            view.get("deviceclasses", "", "mig-1g-10gb.gpu.divvy.dev")?;
            leads(view, "a")
        });
        if !was_held {
            break;
        }
    }
}

#[tokio::test]
async fn killed_between_two_writes_it_is_whole_after_a_restart() {
    killed_at_writes(Cut::Before, (1..).step_by(SOME)).await;
    killed_at_writes(Cut::After, (2..).step_by(SOME)).await;
}

mod exhaustive {
    use super::*;

    #[tokio::test]
    async fn killed_between_any_two_writes_it_is_whole_after_a_restart() {
        for cut in [Cut::Before, Cut::After] {
            killed_at_writes(cut, 1..).await;
        }
    }

    /// The API server keeps a connection for 90 s, and does not repeat a review that a closing server has cut off.
    #[tokio::test]
    async fn the_webhook_keeps_an_idle_connection() {
        // Longer than the bound of a TLS handshake, which once closed connections too.
        const IDLE: Duration = Duration::from_secs(12);
        let cluster = Cluster::new();
        let replica = Replica::start(&cluster, "a", &[]);
        replica.serves(&cluster.server);
        let bundle = cluster.bundle();
        let stream = admission::tls(replica.address(), bundle.as_bytes(), HOST)
            .await
            .unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        let mut connection = tokio::spawn(connection);
        let request = Request::builder().uri("/mutate").header("host", HOST);
        let request = request.body(Body::empty()).unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status().as_u16(), 405);
        response.into_body().collect().await.unwrap();
        let ended = tokio::time::timeout(IDLE, &mut connection).await;
        assert!(ended.is_err(), "the webhook closed it: {ended:?}");
    }

    /// K1: 95 KiB of each foreign pod stayed in memory, so that 2,000 of them took 230 MiB, and 7,600 the limit of the chart.
    #[tokio::test]
    async fn two_thousand_foreign_pods_take_no_memory_of_the_controller() {
        const MOST_MIB: u64 = 128;
        let cluster = Cluster::new();
        for number in 0..2_000 {
            cluster.server.create(foreign_pod(number));
        }
        let replica = Replica::start(&cluster, "a", &[]);
        replica.serves(&cluster.server);
        cluster.server.until("the pods are listed", |view| {
            let mut calls = view.calls().iter();
            let watches =
                |call: &Call| call.path == "/api/v1/pods" && call.query.contains_key("watch");
            calls.any(watches).then_some(())
        });
        let (now, most) = replica.memory_mib();
        assert!(most <= MOST_MIB, "{now} MiB, {most} MiB at most");
    }
}

#[test]
fn the_webhook_configuration_can_be_printed_without_the_chart() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_divvy-k8s"))
        .args(["controller", "--print-webhook", "--namespace", "n"])
        .output_bounded()
        .unwrap();
    let printed: Value = yaml_serde::from_slice(&output.stdout).unwrap();
    assert_eq!(printed["kind"], "MutatingWebhookConfiguration");
    assert_eq!(
        printed["webhooks"][0]["clientConfig"]["service"]["namespace"],
        "n"
    );
    let api: Result<k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration, _> =
        serde_json::from_value(printed);
    assert!(api.is_ok());
}

/// A suspended Job has no pod, so the event is on the Job; a pod at Kueue's gate has its own.
#[tokio::test]
async fn what_kueue_holds_is_told_with_kueues_reason() {
    let cluster = Cluster::new();
    for definition in crate::kueue::definitions() {
        cluster.server.create(definition);
    }
    let recorded = include_str!("../fixtures/kueue/workloads.json");
    let recorded: Value = serde_json::from_str(recorded).unwrap();
    for name in ["exceeds", "gated", "admitted"] {
        cluster.server.create(recorded["workloads"][name].clone());
    }
    let gated = &recorded["workloads"]["gated"]["metadata"]["ownerReferences"][0];
    cluster.server.create(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "gated", "namespace": "vision", "uid": gated["uid"] },
        "spec": {
            "containers": [{ "name": "main", "image": "x" }],
            "schedulingGates": [{ "name": "kueue.x-k8s.io/admission" }],
            "resourceClaims": [{ "name": "fraction-gpu", "resourceClaimTemplateName": "divvy-abc" }],
        },
        "status": { "phase": "Pending" },
    }));
    let _replica = Replica::start(&cluster, "a", &[]);
    let uid = cluster
        .server
        .look(|view| view.get("pods", "vision", "gated"))
        .unwrap()["metadata"]["uid"]
        .clone();
    // The stand-in gives every object a uid of its own.
    cluster.server.merge("workloads", "vision", recorded["workloads"]["gated"]["metadata"]["name"].as_str().unwrap(), &json!({
        "metadata": { "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod", "name": "gated", "uid": uid, "controller": true }] },
    }));
    for (kind, name, part) in [
        ("Job", "huge", "maximum capacity"),
        ("Pod", "gated", "81050Mi more needed"),
    ] {
        let event = cluster.server.until("an event", |view| {
            let mut events = view.all("events").into_iter();
            events.find(|event| {
                event["regarding"]["kind"] == kind && event["regarding"]["name"] == name
            })
        });
        assert_eq!(event["reason"], "WaitsForGpu");
        let note = event["note"].as_str().unwrap();
        assert!(
            note.starts_with("waits for quota in the queue default (Kueue)") && note.contains(part),
            "{note}"
        );
    }
    let of_first = |event: &Value| event["regarding"]["name"] == "first";
    assert!(
        !cluster
            .server
            .look(|view| view.all("events").iter().any(of_first))
    );
}

/// K1: a process for each part. The reconciler stops and dies, and the webhook answers as before.
#[tokio::test]
async fn admissions_go_on_while_the_reconciler_is_stopped_or_dead() {
    let cluster = Cluster::new();
    let webhook = Replica::start(&cluster, "a", &["--only", "webhook"]);
    webhook.serves(&cluster.server);
    let mut reconciler = Replica::start(&cluster, "b", &["--only", "reconcile"]);
    reconciler.hears(|line| line.ends_with(" ready"), || false);
    cluster.server.until("the work of the leader", |view| {
        let lease = view.get("leases", NAMESPACE, "divvy-controller")?;
        assert_eq!(
            lease["spec"]["holderIdentity"], "b",
            "the webhook leads nothing"
        );
        let class = view.get("deviceclasses", "", "fraction.gpu.divvy.dev")?;
        // Its owner is the webhook's configuration, which this process only reads.
        class["metadata"]["ownerReferences"][0]["uid"]
            .as_str()
            .map(|_| ())
    });
    let admitted = async |name: &str| {
        let pod = cluster.create(&marked(name)).await.unwrap();
        let claims = pod.spec.unwrap().resource_claims.unwrap();
        claims[0].resource_claim_template_name.clone().unwrap()
    };
    reconciler.signal(rustix::process::Signal::STOP);
    let template = admitted("stopped").await;
    // Templates are the webhook's own work, so the first pod of its kind is admitted too.
    cluster
        .server
        .remove("resourceclaimtemplates", "team", &template);
    reconciler.signal(rustix::process::Signal::KILL);
    assert_eq!(
        reconciler.ends(),
        None,
        "killed by a signal, without an exit code"
    );
    assert_eq!(admitted("killed").await, template);
    assert_eq!(webhook.told("/readyz").0, 200);
}

/// The bound of a page is the bound of a controller's memory while it lists.
#[tokio::test]
async fn the_controller_lists_in_pages_alone() {
    let cluster = Cluster::new();
    for name in 0..60 {
        cluster.server.create(foreign_pod(name));
    }
    let replica = Replica::start(&cluster, "a", &[]);
    replica.serves(&cluster.server);
    let lists = cluster.server.until("every pod is listed", |view| {
        let calls = view.calls().iter();
        let lists: Vec<Call> = calls
            .filter(|call| call.method == "GET" && call.query.contains_key("limit"))
            .cloned()
            .collect();
        let of_pods = lists.iter().filter(|call| call.path == "/api/v1/pods");
        (of_pods.count() >= 3).then_some(lists)
    });
    // The webhook's own configuration is watched by its name.
    let of_many = lists
        .iter()
        .filter(|call| !call.query.contains_key("fieldSelector") || call.path.ends_with("/pods"));
    for call in of_many {
        assert_eq!(call.query["limit"], "25", "{}", call.path);
    }
    let whole = cluster.server.look(|view| {
        let calls = view.calls().iter();
        let whole = calls.filter(|call| {
            call.method == "GET"
                && !call.query.contains_key("watch")
                && call.query.get("limit").is_none_or(|limit| limit == "0")
                && call.path.ends_with("/pods")
        });
        whole.cloned().collect::<Vec<Call>>()
    });
    assert!(whole.is_empty(), "{whole:?}");
}

/// A pending pod with 50 variables, and without a GPU.
fn foreign_pod(number: usize) -> Value {
    let variables = (0..50).map(
        |variable| json!({ "name": format!("VARIABLE_{variable}"), "value": "x".repeat(200) }),
    );
    let variables: Vec<Value> = variables.collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": format!("foreign-{number}"), "namespace": "elsewhere" },
        "spec": { "containers": [{ "name": "c", "image": "x", "env": variables }] },
    })
}
