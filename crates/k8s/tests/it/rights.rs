//! What the pieces ask the API server for, and what the chart's roles let them: a call that no rule allows fails in a cluster, and nowhere
//! else. `cargo xtask kube` tries the same with a real API server.

#![allow(clippy::unwrap_used)]

use crate::apiserver;
use crate::chart::render;
use crate::controller::replica;
use crate::glue::{kubelet::Fate, scene};

use std::collections::BTreeSet;

use serde_json::{Value, json};

use apiserver::Call;
use render::{Chart, chart};
use replica::{Cluster, NAMESPACE, Replica, marked};

/// A call as an access rule sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Asked {
    verb: &'static str,
    group: String,
    resource: String,
    namespace: String,
    name: String,
}

/// `None` of what is no resource: discovery, health.
fn asked(call: &Call) -> Option<Asked> {
    let mut parts = call
        .path
        .trim_matches('/')
        .split('/')
        .collect::<Vec<_>>()
        .into_iter();
    let group = match parts.next()? {
        "api" => String::new(),
        "apis" => parts.next()?.to_owned(),
        _ => return None,
    };
    parts.next()?;
    let mut rest: Vec<&str> = parts.collect();
    let namespace = match rest.as_slice() {
        ["namespaces", namespace, _, ..] => {
            let namespace = (*namespace).to_owned();
            rest.drain(..2);
            namespace
        }
        _ => String::new(),
    };
    let name = rest.get(1).copied().unwrap_or_default().to_owned();
    let resource = match rest.get(2) {
        Some(door) => format!("{}/{door}", rest[0]),
        None => (*rest.first()?).to_owned(),
    };
    let watches = call
        .query
        .get("watch")
        .is_some_and(|value| value == "true" || value == "1");
    let verb = match (call.method.as_str(), name.is_empty()) {
        ("GET", _) if watches => "watch",
        ("GET", true) => "list",
        ("GET", false) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", _) => "delete",
        other => panic!("a call that is none: {other:?}"),
    };
    // A list of one by its name is judged by that name.
    let one = call
        .query
        .get("fieldSelector")
        .and_then(|text| text.strip_prefix("metadata.name="));
    Some(Asked {
        verb,
        group,
        resource,
        namespace,
        name: one.map_or(name, str::to_owned),
    })
}

fn has(rule: &Value, key: &str, word: &str) -> bool {
    rule[key]
        .as_array()
        .into_iter()
        .flatten()
        .any(|one| one == word)
}

/// Whether the roles of a piece let it do that.
fn allowed(chart: &Chart, piece: &str, asked: &Asked) -> bool {
    let account = format!("divvy-{piece}");
    let everywhere = chart.find("ClusterRole", None, &account);
    let here = chart.find("Role", Some(&asked.namespace), &account);
    let rules = [everywhere, here]
        .into_iter()
        .flatten()
        .flat_map(|role| role["rules"].as_array().into_iter().flatten());
    rules.into_iter().any(|rule| {
        has(rule, "apiGroups", &asked.group)
            && has(rule, "resources", &asked.resource)
            && has(rule, "verbs", asked.verb)
            && (rule["resourceNames"].is_null() || has(rule, "resourceNames", &asked.name))
    })
}

#[tokio::test]
async fn the_controllers_roles_allow_what_it_does() {
    let Some(chart) = chart(&[]) else { return };
    let cluster = Cluster::new();
    // As the chart ships them: empty.
    let empty = |version: &str, kind: &str, name: &str| json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name, "namespace": NAMESPACE } });
    cluster
        .server
        .create(empty("v1", "Secret", "divvy-webhook-tls"));
    cluster
        .server
        .create(empty("coordination.k8s.io/v1", "Lease", "divvy-controller"));
    let replica = Replica::start(&cluster, "a", &["--namespace", NAMESPACE]);
    replica.serves(&cluster.server);
    cluster.create(&marked("train")).await.unwrap();
    cluster.server.until("the device classes", |view| {
        view.get("deviceclasses", "", "mig-1g-10gb.gpu.divvy.dev")
    });
    let calls = cluster.server.until("a call of every verb", |view| {
        let mine = |asked: &Asked| asked.verb == "create" && asked.resource == "pods";
        let asked = view.calls().iter().filter_map(asked);
        let calls: BTreeSet<Asked> = asked.filter(|asked| !mine(asked)).collect();
        let mut verbs = ["list", "watch", "get", "create", "update", "patch"].into_iter();
        let all = verbs.all(|verb| calls.iter().any(|asked| asked.verb == verb));
        all.then_some(calls)
    });
    for asked in &calls {
        assert!(allowed(&chart, "controller", asked), "{asked:?}");
    }
}

#[test]
fn the_glues_role_allows_what_it_does() {
    let values = [
        "--set",
        "glue.enabled=true,glue.credentialsSecret=clearml,glue.namespace=divvy-system",
        "--namespace",
        "other",
    ];
    let Some(chart) = chart(&values) else { return };
    let scene = scene::Scene::new("agentk8sglue: {queue: half}");
    let task = scene.stub.enqueued("half", "task", json!({}));
    // It waits behind Kueue's gate, then installs, runs and ends.
    scene.node.set(&task, Fate::Gated);
    let _glue = scene.glue();
    let listed = |word: &str| {
        let path = format!("/{word}");
        scene::until(format!("{word}: read"), || {
            let of = |call: &Call| call.path.ends_with(&path);
            scene
                .api
                .look(|view| view.calls().iter().any(of))
                .then_some(())
        });
    };
    listed("events");
    listed("workloads");
    // The pod's log is read until the task's own agent begins, which a pod that completes at once may do first.
    scene.node.set(&task, Fate::Installs);
    listed("log");
    scene.node.set(&task, Fate::Completes);
    scene.becomes(&task, "completed");
    scene.is_clean();
    let calls: BTreeSet<Asked> = scene
        .api
        .look(|view| view.calls().iter().filter_map(asked).collect());
    assert!(calls.len() >= 10, "{calls:#?}");
    for asked in &calls {
        assert!(allowed(&chart, "glue", asked), "{asked:?}");
    }
}

/// Each verb that a role grants, without the names of objects.
fn granted(chart: &Chart, account: &str) -> BTreeSet<(String, String, String)> {
    let of = |kind| chart.objects.iter().filter(move |one| one["kind"] == kind);
    let roles = of("ClusterRole").chain(of("Role"));
    let roles = roles.filter(|role| role["metadata"]["name"] == account);
    let rules = roles.flat_map(|role| role["rules"].as_array().into_iter().flatten());
    let words = |rule: &Value, key: &str| -> Vec<String> {
        let list = rule[key].as_array().into_iter().flatten();
        list.map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    let mut granted = BTreeSet::new();
    for rule in rules {
        for group in words(rule, "apiGroups") {
            for resource in words(rule, "resources") {
                for verb in words(rule, "verbs") {
                    granted.insert((group.clone(), resource.clone(), verb));
                }
            }
        }
    }
    granted
}

/// The extender for a scheduler of one's own, with a certificate of its own: it makes every call that its roles allow, and no other.
#[test]
fn the_extenders_roles_allow_what_it_does_and_nothing_else() {
    let values = ["--set", "extender.enabled=true,extender.tls.mode=self"];
    let Some(chart) = chart(&values) else { return };
    let cluster = Cluster::new();
    // As the chart ships them: empty.
    for (kind, name) in [
        ("Secret", "divvy-extender-tls"),
        ("ConfigMap", "divvy-extender"),
    ] {
        cluster.server.create(json!({
            "apiVersion": "v1", "kind": kind, "metadata": { "name": name, "namespace": NAMESPACE },
        }));
    }
    let args = [
        "--namespace",
        NAMESPACE,
        "--history",
        "divvy-extender",
        "--tls-secret",
        "divvy-extender-tls",
        "--tls-name",
        "divvy-extender.divvy-system.svc",
    ];
    let mut extender = Replica::of("extender", &cluster, &args);
    extender.hears(|line| line.ends_with(" ready"), || false);
    // It saves the history at its end too.
    extender.terminate();
    assert_eq!(extender.ends(), Some(0));
    let calls: BTreeSet<Asked> = cluster
        .server
        .look(|view| view.calls().iter().filter_map(asked).collect());
    for asked in &calls {
        assert!(allowed(&chart, "extender", asked), "{asked:?}");
    }
    let made = calls.iter().map(|asked| {
        (
            asked.group.clone(),
            asked.resource.clone(),
            asked.verb.to_owned(),
        )
    });
    assert_eq!(
        made.collect::<BTreeSet<_>>(),
        granted(&chart, "divvy-extender")
    );
    let secret = |verb, name: &str| Asked {
        verb,
        group: String::new(),
        resource: "secrets".to_owned(),
        namespace: NAMESPACE.to_owned(),
        name: name.to_owned(),
    };
    assert!(allowed(
        &chart,
        "extender",
        &secret("get", "divvy-extender-tls")
    ));
    for other in [
        secret("get", "divvy-webhook-tls"),
        secret("list", ""),
        secret("create", ""),
        secret("delete", "divvy-extender-tls"),
    ] {
        assert!(!allowed(&chart, "extender", &other), "{other:?}");
    }
}
