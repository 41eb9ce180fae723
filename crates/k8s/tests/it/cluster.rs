//! The client of the cluster, and the server in memory that the other tests believe.

#![allow(clippy::unwrap_used)]

use crate::apiserver;

use std::collections::BTreeSet;

use divvy_testkit::Bounded as _;
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::json;

use apiserver::ApiServer;
use divvy_k8s::base::cluster::{self, is_already_exists, is_conflict, is_missing};

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(
        json!({ "metadata": { "name": name, "labels": { "is": "ours" } }, "data": { "a": "1" } }),
    )
    .unwrap()
}

#[tokio::test]
async fn errors_tell_apart_what_is_missing_what_is_there_and_what_has_changed() {
    let server = ApiServer::start();
    let maps: Api<ConfigMap> = Api::namespaced(server.client(), "team");
    let missing = maps.get("one").await.unwrap_err();
    assert!(is_missing(&missing) && !is_conflict(&missing));
    let made = maps
        .create(&PostParams::default(), &config_map("one"))
        .await
        .unwrap();
    let there = maps
        .create(&PostParams::default(), &config_map("one"))
        .await
        .unwrap_err();
    assert!(is_already_exists(&there) && !is_conflict(&there));
    let mut first = made.clone();
    first.data = Some([("a".to_owned(), "2".to_owned())].into());
    maps.replace("one", &PostParams::default(), &first)
        .await
        .unwrap();
    let late = maps
        .replace("one", &PostParams::default(), &first)
        .await
        .unwrap_err();
    assert!(is_conflict(&late) && !is_already_exists(&late));
    assert!(
        cluster::error_message(&late).contains("409"),
        "{}",
        cluster::error_message(&late)
    );
}

#[tokio::test]
async fn a_cluster_without_a_configuration_is_reported_as_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_divvy-k8s"))
        .args(["controller"])
        .env("KUBECONFIG", folder.path().join("none"))
        .env_remove("KUBERNETES_SERVICE_HOST")
        .output_bounded()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && said.contains("KUBECONFIG"),
        "{said}"
    );
}

#[tokio::test]
async fn patches_do_what_each_kind_of_them_does() {
    let server = ApiServer::start();
    let maps: Api<ConfigMap> = Api::namespaced(server.client(), "team");
    let apply = |data: serde_json::Value| {
        let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "m" }, "data": data });
        let maps = maps.clone();
        async move {
            let params = PatchParams::apply("divvy").force();
            maps.patch("m", &params, &Patch::Apply(object))
                .await
                .unwrap()
        }
    };
    let made = apply(json!({ "a": "1", "b": "2" })).await;
    let same = apply(json!({ "a": "1", "b": "2" })).await;
    assert_eq!(
        made.metadata.resource_version, same.metadata.resource_version,
        "nothing changed"
    );
    let merge = json!({ "data": { "c": "3" } });
    maps.patch("m", &PatchParams::default(), &Patch::Merge(merge))
        .await
        .unwrap();
    let less = apply(json!({ "a": "1" })).await;
    let keys: BTreeSet<String> = less.data.unwrap().into_keys().collect();
    assert_eq!(
        keys,
        ["a", "c"].map(str::to_owned).into(),
        "what was applied by us alone is gone"
    );
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    maps.create(&dry, &config_map("dry")).await.unwrap();
    assert!(maps.get_opt("dry").await.unwrap().is_none());
}

#[tokio::test]
async fn a_watch_sees_what_its_selector_takes_and_goes_on_after_every_cut() {
    let server = ApiServer::start();
    let client = server.client();
    let maps: Api<ConfigMap> = Api::namespaced(client, "team");
    maps.create(&PostParams::default(), &config_map("before"))
        .await
        .unwrap();
    let mut stream = std::pin::pin!(names(maps.clone(), "is=ours"));
    assert_eq!(stream.next().await.unwrap(), "+before");
    maps.create(&PostParams::default(), &config_map("after"))
        .await
        .unwrap();
    assert_eq!(stream.next().await.unwrap(), "+after");
    server.forget_history();
    let unlabel = json!({ "metadata": { "labels": null } });
    maps.patch("before", &PatchParams::default(), &Patch::Merge(unlabel))
        .await
        .unwrap();
    // The client lists anew: what is left is named again.
    assert_eq!(stream.next().await.unwrap(), "+after");
    maps.delete("after", &DeleteParams::default())
        .await
        .unwrap();
    assert_eq!(stream.next().await.unwrap(), "-after");
}

/// Names of what a watch shows, errors left out.
fn names(maps: Api<ConfigMap>, labels: &str) -> impl futures_util::Stream<Item = String> {
    let name = |map: ConfigMap| map.metadata.name.unwrap_or_default();
    let stream = watcher(maps, watcher::Config::default().labels(labels));
    stream
        .default_backoff()
        .filter_map(move |event| async move {
            match event.ok()? {
                watcher::Event::Apply(map) | watcher::Event::InitApply(map) => {
                    Some(format!("+{}", name(map)))
                }
                watcher::Event::Delete(map) => Some(format!("-{}", name(map))),
                watcher::Event::Init | watcher::Event::InitDone => None,
            }
        })
}

#[tokio::test]
async fn a_pod_on_a_node_stays_until_its_kubelet_has_let_it_go() {
    let server = ApiServer::start();
    let pods: Api<Pod> = Api::namespaced(server.client(), "team");
    server.create(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p", "namespace": "team" },
        "spec": { "nodeName": "a", "containers": [] }, "status": { "phase": "Running" },
    }));
    pods.delete("p", &DeleteParams::default()).await.unwrap();
    assert!(
        pods.get("p")
            .await
            .unwrap()
            .metadata
            .deletion_timestamp
            .is_some()
    );
    pods.delete("p", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    assert!(pods.get_opt("p").await.unwrap().is_none());
    let running = ListParams::default().fields("status.phase=Running");
    assert!(pods.list(&running).await.unwrap().items.is_empty());
}
