//! The extender on objects of a real cluster: three nodes of four GPUs, and a pod with half of one.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::*;

/// A question of kube-scheduler 1.36.2, and what the API server had then and afterwards.
const RECORDED: &str = include_str!("recorded.json");

fn recorded() -> Value {
    serde_json::from_str(RECORDED).unwrap()
}

fn typed<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

fn facts(pod: &Value) -> PodFacts {
    PodFacts::of(&typed::<Pod>(pod)).unwrap()
}

/// An extender that has read the cluster as it was before the pod was scored.
fn extender() -> Extender {
    let args = Args {
        listen: "127.0.0.1:0".parse().unwrap(),
        health_listen: "127.0.0.1:0".parse().unwrap(),
        metrics: false,
        tls_cert: None,
        tls_key: None,
        tls_secret: None,
        tls_names: Vec::new(),
        policy: "auto".to_owned(),
        least_history: 300,
        history: None,
        namespace: None,
    };
    let extender = Extender::new(&args);
    let recorded = recorded();
    extender.with_view(|view| {
        for node in recorded["nodes"].as_array().unwrap() {
            view.put_node(typed(node));
        }
        for slice in recorded["slices"].as_array().unwrap() {
            view.put_slice(typed(slice));
        }
        view.put_class(&typed(&recorded["class"]));
        view.put_claim(typed(&claim("train-fraction-gpu-fm64f", None)));
        view.put_pod(facts(&recorded["question"]["Pod"]));
    });
    for _ in 0..watch::KINDS {
        extender.listed();
    }
    extender
}

/// The recorded claim under another name; allocated on a device, or not yet.
fn claim(name: &str, device: Option<(&str, &str)>) -> Value {
    let mut claim = recorded()["claim"].clone();
    claim["metadata"]["name"] = json!(name);
    match device {
        None => claim["status"] = json!({}),
        Some((pool, device)) => {
            let result = &mut claim["status"]["allocation"]["devices"]["results"][0];
            result["pool"] = json!(pool);
            result["device"] = json!(device);
        }
    }
    claim
}

/// The recorded question about another pod, with a claim of its own.
fn question(name: &str) -> Value {
    let mut question = recorded()["question"].clone();
    let pod = &mut question["Pod"];
    pod["metadata"]["name"] = json!(name);
    pod["metadata"]["uid"] = json!(name);
    pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"] = json!(name);
    question
}

/// Asks about a pod that the watches have shown; the node that is chosen.
fn chosen(extender: &Extender, question: &Value) -> (Option<String>, Outcome) {
    let question = Question::parse(question.to_string().as_bytes()).unwrap();
    extender.choose(&question, Instant::now())
}

fn shown(extender: &Extender, name: &str) -> Value {
    let question = question(name);
    extender.with_view(|view| {
        let mut own = claim(name, None);
        own["metadata"]["ownerReferences"][0]["uid"] = json!(name);
        view.put_claim(typed(&own));
        view.put_pod(facts(&question["Pod"]));
    });
    question
}

fn free(extender: &Extender) -> Vec<u64> {
    let mut state = extender.state();
    let nodes = state.view.cluster(Instant::now()).nodes();
    nodes.iter().map(|node| node.free_milli()).collect()
}

#[tokio::test(flavor = "current_thread")]
async fn the_schedulers_question_gets_a_list_that_it_takes() {
    let extender = extender();
    let body = recorded()["question"].to_string();
    let answer = extender.answer(body.as_bytes()).await;
    assert_eq!(answer.unwrap(), r#"[{"Host":"pk-0","Score":10}]"#);
    let error = extender.answer(b"{}").await.unwrap_err();
    assert_eq!(error, "the request has no Pod");
}

#[test]
fn pods_that_follow_are_scored_beside_those_that_were_just_scored() {
    let extender = extender();
    let nodes: Vec<String> = (0..6)
        .map(|at| {
            let question = shown(&extender, &format!("p{at}"));
            chosen(&extender, &question).0.unwrap()
        })
        .collect();
    // Half of a GPU each: best fit fills the node that has the least left.
    assert_eq!(nodes, ["pk-0"; 6]);
    assert_eq!(free(&extender), [1000, 4000, 4000]);
    assert_eq!(extender.status().assumed, 6);
}

#[test]
fn what_the_cluster_shows_replaces_the_assumption() {
    let extender = extender();
    let recorded = recorded();
    assert_eq!(chosen(&extender, &recorded["question"]).0.unwrap(), "pk-0");
    assert_eq!(free(&extender), [3500, 4000, 4000]);
    // The scheduler took another node.
    extender.with_view(|view| view.put_claim(typed(&recorded["claim"])));
    assert_eq!(free(&extender), [4000, 3500, 4000]);
    let bound = extender.with_view(|view| view.put_pod(facts(&recorded["bound"])));
    assert_eq!(bound.unwrap().is_chosen, Some(false));
    assert_eq!(
        (free(&extender), extender.status().assumed),
        (vec![4000, 3500, 4000], 0)
    );
    let cpu = |at: usize| extender.state().view.last_cluster().nodes()[at].cpu_milli;
    assert_eq!([cpu(0), cpu(1), cpu(2)], [64_000, 62_000, 64_000]);
    // It ends.
    extender.with_view(|view| {
        view.remove_pod(&("default".to_owned(), "train".to_owned()));
        view.remove_claim(&("default".to_owned(), "train-fraction-gpu-fm64f".to_owned()));
    });
    assert_eq!(free(&extender), [4000; 3]);
}

#[test]
fn pods_without_a_gpu_of_ours_and_unknown_ones_are_not_placed() {
    let extender = extender();
    let mut plain = question("plain");
    plain["Pod"]["spec"]["resourceClaims"] = json!([]);
    plain["Pod"]["status"]["resourceClaimStatuses"] = json!([]);
    assert_eq!(chosen(&extender, &plain), (None, Outcome::NotOurs));
    let unknown = question("unknown");
    assert_eq!(chosen(&extender, &unknown), (None, Outcome::UnknownClaim));
    let allocated = shown(&extender, "allocated");
    let on = claim("allocated", Some(("pk-2", "gpu-2-0")));
    extender.with_view(|view| view.put_claim(typed(&on)));
    assert_eq!(chosen(&extender, &allocated), (None, Outcome::Allocated));
    let mut elsewhere = shown(&extender, "elsewhere");
    elsewhere["NodeNames"] = json!(["cpu-only", "another"]);
    assert_eq!(chosen(&extender, &elsewhere), (None, Outcome::NoRoom));
    assert_eq!(extender.status().assumed, 0);
}

/// Every client of the port can send a pod; the extender assumes only pods that the API server knows.
#[test]
fn nothing_is_assumed_of_a_pod_that_does_not_exist() {
    let extender = extender();
    let invented = question("invented");
    extender.with_view(|view| view.put_claim(typed(&claim("invented", None))));
    let (node, outcome) = chosen(&extender, &invented);
    assert_eq!((node.as_deref(), outcome), (Some("pk-0"), Outcome::Chosen));
    assert_eq!(
        (extender.status().assumed, free(&extender)),
        (0, vec![4000; 3])
    );
}

#[test]
fn whole_gpus_by_their_resource_need_the_class() {
    let extender = extender();
    let mut whole = question("whole");
    let pod = &mut whole["Pod"];
    pod["spec"]["resourceClaims"] = json!([]);
    pod["status"] = json!({});
    pod["spec"]["containers"][0]["resources"] = json!({ "limits": { "nvidia.com/gpu": "3" } });
    assert_eq!(chosen(&extender, &whole), (None, Outcome::NotOurs));
    let mut class = recorded()["class"].clone();
    class["spec"]["extendedResourceName"] = json!("nvidia.com/gpu");
    extender.with_view(|view| {
        view.put_class(&typed(&class));
        view.put_pod(facts(&whole["Pod"]));
    });
    assert_eq!(chosen(&extender, &whole).0.as_deref(), Some("pk-0"));
    assert_eq!(free(&extender), [1000, 4000, 4000]);
}

#[test]
fn a_node_that_leaves_is_not_chosen_and_a_sick_gpu_has_nothing_free() {
    let extender = extender();
    extender.with_view(|view| view.remove_node("pk-0"));
    let question = shown(&extender, "p");
    assert_eq!(chosen(&extender, &question).0.as_deref(), Some("pk-1"));
    let mut slice = recorded()["slices"][2].clone();
    slice["spec"]["devices"][0]["taints"] =
        json!([{ "key": "gpu.divvy.dev/unhealthy", "effect": "NoSchedule" }]);
    slice["spec"]["pool"]["generation"] = json!(2);
    extender.with_view(|view| view.put_slice(typed(&slice)));
    assert_eq!(free(&extender), [3500, 3000]);
}

#[test]
fn requests_are_counted_once_scored_or_not_and_a_table_needs_enough_of_them() {
    let extender = extender();
    for name in ["a", "b"] {
        let question = shown(&extender, name);
        chosen(&extender, &question);
        chosen(&extender, &question);
    }
    shown(&extender, "c");
    assert!(extender.state().lesson(Instant::now()).is_none());
    let status = extender.status();
    // With the recorded pod, which is there from the start.
    assert_eq!((status.requests, status.kinds), (4, 1));
    assert_eq!(status.policy, "best-fit");
    assert_eq!(
        status.reason.unwrap(),
        "the history has 4 requests, the check needs 300"
    );
    extender.state().training.least_history = 4;
    let lesson = extender.state().lesson(Instant::now()).unwrap();
    assert_eq!((lesson.mix.requests(), lesson.specs.len()), (4, 3));
    assert_eq!(
        extender.status().reason.unwrap(),
        "the first table is being trained"
    );
    assert!(extender.state().lesson(Instant::now()).is_none(), "once");
}
