//! `project` and `department` as an administrator types them, against an API server with Kueue's definitions.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use crate::apiserver::Cut;
use crate::kueue::{Cluster, faults};

use divvy_k8s::teams::project::report;
use divvy_testkit::Bounded as _;
use serde_json::{Value, json};

/// The resource of a ClusterQueue or Cohort that counts GPU memory.
fn memory(object: &Value) -> &Value {
    &object["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]
}

fn workload(namespace: &str, job: &str, conditions: &Value) -> Value {
    json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
        "metadata": { "name": format!("job-{job}-1a2b3"), "namespace": namespace, "ownerReferences": [
            { "apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": format!("uid-of-{job}"), "controller": true },
        ] },
        "spec": { "queueName": "default", "active": true, "podSets": [{ "name": "main", "count": 1, "template": {} }] },
        "status": { "conditions": conditions, "resourceRequests": [
            { "name": "main", "resources": { "cpu": "1", "gpu.memory": "40524Mi" } },
        ] },
    })
}

fn condition(name: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({ "type": name, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-11-26T20:00:00Z" })
}

#[test]
fn a_project_is_objects_that_kueue_knows_and_it_reads_back() {
    let cluster = Cluster::start();
    let said =
        cluster.done("project add vision --quota 1.5 --limit 2 --weight 3 --namespace vision");
    assert_eq!(
        said.err,
        "divvy-k8s: project vision was added: quota 1.5, limit 2, weight 3\n"
    );
    for object in cluster.objects() {
        assert_eq!(faults(&object), Vec::<String>::new(), "{object:#}");
    }
    let queue = cluster.get("clusterqueues", "", "vision").unwrap();
    assert_eq!(memory(&queue)["nominalQuota"], "121575Mi");
    assert_eq!(memory(&queue)["borrowingLimit"], "40525Mi");
    let local = cluster.get("localqueues", "vision", "default").unwrap();
    assert_eq!(local["spec"]["clusterQueue"], "vision");
    let namespace = cluster.get("namespaces", "", "vision").unwrap();
    assert_eq!(
        namespace["metadata"]["labels"]["divvy.dev/inject"],
        "enabled"
    );
    cluster.server.merge(
        "clusterqueues",
        "",
        "vision",
        &json!({ "status": {
        "pendingWorkloads": 1, "admittedWorkloads": 2, "reservingWorkloads": 2,
        "flavorsReservation": [{ "name": "divvy-gpu", "resources": [
            { "name": "gpu.memory", "total": "141836Mi", "borrowed": "20261Mi" },
        ] }],
    } }),
    );
    cluster
        .server
        .create(workload("vision", "train", &json!([])));
    assert_eq!(
        cluster.done("project ls").out,
        "PROJECT  QUOTA  LIMIT  USED  OVER  PENDING  WEIGHT  RUNNING  WAITING  DEPARTMENT  NAMESPACES\n\
         vision   1.5    2      1.75  0.25  0.5      3       2        1        -           vision\n"
    );
    let row = cluster.done("project ls -o json").json();
    assert_eq!(
        (&row["kind"], &row["items"][0]["used"]),
        (&json!("Project"), &json!(1750))
    );
    assert_eq!(row["items"][0]["gpu_memory_bytes"], 81_050_u64 << 20);
    // Kueue has not looked at this one yet.
    let mut new = workload("vision", "new", &json!([]));
    new["status"] = json!({});
    new["spec"]["podSets"][0]["count"] = json!(3);
    new["spec"]["podSets"][0]["template"] =
        json!({ "metadata": { "annotations": { "divvy.dev/gpus": "0.500" } } });
    cluster.server.create(new);
    let row = cluster.done("project ls -o json").json();
    assert_eq!(row["items"][0]["pending"], 2000);
}

/// K8: they may read neither ClusterQueues nor the ledgers of the nodes.
#[test]
fn members_see_quota_and_gpu_hours_of_their_own_project() {
    let cluster = Cluster::start();
    let definition = serde_json::to_value(report::definition()).unwrap();
    cluster.server.create(definition);
    cluster.done("project add vision --quota 1.5 --namespace vision");
    let words = "controller --only reconcile --health-listen 127.0.0.1:0 --namespace divvy-system";
    let mut controller = cluster.spawn(words);
    let written = cluster.server.until("the report", |view| {
        view.get("projectreports", "vision", "project")
    });
    controller.kill().unwrap();
    controller.wait_bounded().unwrap();
    assert_eq!(written["spec"]["quota"], 1500);
    let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
    let days = json!([
        { "day": "2020-01-01", "allocatedGpuMs": 7_200_000 },
        { "day": today.date().to_string(), "allocatedGpuMs": 5_400_000 },
    ]);
    let days = json!({ "spec": { "days": days } });
    cluster
        .server
        .merge("projectreports", "vision", "project", &days);
    cluster.done("project set vision --quota 2");
    // A leader that starts continues the days.
    let mut controller = cluster.spawn(words);
    let written = cluster.server.until("the new quota", |view| {
        let report = view.get("projectreports", "vision", "project")?;
        (report["spec"]["quota"] == 2000).then_some(report)
    });
    controller.kill().unwrap();
    controller.wait_bounded().unwrap();
    assert_eq!(written["spec"]["days"], days["spec"]["days"]);
    cluster.server.deny("list", "clusterqueues");
    let said = cluster.done("project ls");
    let row = said.out.lines().nth(1).unwrap();
    assert!(row.starts_with("vision   2      none"), "{}", said.out);
    assert!(
        said.err.contains("you may not list clusterqueues"),
        "{}",
        said.err
    );
}

#[test]
fn a_change_keeps_the_other_settings_and_moves_namespaces() {
    let cluster = Cluster::start();
    cluster.done("project add vision --quota 1 --no-over-quota --namespace vision");
    cluster.done("project set vision --quota 2");
    let queue = cluster.get("clusterqueues", "", "vision").unwrap();
    assert_eq!(
        (
            &memory(&queue)["nominalQuota"],
            &memory(&queue)["borrowingLimit"]
        ),
        (&json!("162100Mi"), &json!("0"))
    );
    cluster.done("project set vision --over-quota --weight 5 --namespace nlp");
    let queue = cluster.get("clusterqueues", "", "vision").unwrap();
    assert!(memory(&queue)["borrowingLimit"].is_null());
    assert_eq!(queue["metadata"]["annotations"]["divvy.dev/weight"], "5");
    assert!(cluster.get("localqueues", "vision", "default").is_none());
    assert!(cluster.get("localqueues", "nlp", "default").is_some());
    let labels =
        |name: &str| cluster.get("namespaces", "", name).unwrap()["metadata"]["labels"].clone();
    assert!(labels("vision")["divvy.dev/inject"].is_null());
    assert_eq!(labels("nlp")["divvy.dev/inject"], "enabled");
    cluster.done("project set vision --weight quota");
    let queue = cluster.get("clusterqueues", "", "vision").unwrap();
    assert!(queue["metadata"]["annotations"]["divvy.dev/weight"].is_null());
    assert_eq!(queue["spec"]["fairSharing"]["weight"], "2");
    cluster.refused("project set vision", 2, "no change given");
    cluster.refused("project set nlp --quota 1", 3, "there is no project nlp");
}

#[test]
fn an_addition_that_was_killed_anywhere_is_completed_by_repeating_it() {
    let words = "project add vision --quota 1 --namespace vision --department research";
    let department = "department add research --quota 2";
    let whole = {
        let cluster = Cluster::start();
        cluster.done(department);
        let before = cluster.server.look(|view| view.writes());
        cluster.done(words);
        (
            cluster.objects(),
            cluster.server.look(|view| view.writes()) - before,
        )
    };
    let cluster = Cluster::start();
    for nth in 1..=whole.1 {
        cluster.done(department);
        cluster.server.cut(nth, Cut::After);
        let mut child = cluster.spawn(words);
        cluster
            .server
            .until("the command is held at its write", |view| view.held());
        child.kill().unwrap();
        child.wait_bounded().unwrap();
        cluster.server.release();
        cluster.done(words);
        assert_eq!(cluster.objects(), whole.0, "killed after write {nth}");
        cluster.done("project rm vision");
        cluster.done("department rm research");
        assert_eq!(cluster.objects(), Vec::<Value>::new());
    }
}

#[test]
fn a_removal_that_was_killed_anywhere_is_completed_by_repeating_it() {
    let cluster = Cluster::start();
    let add = "project add vision --quota 1 --namespace vision";
    cluster.done(add);
    let before = cluster.server.look(|view| view.writes());
    cluster.done("project rm vision");
    let writes = cluster.server.look(|view| view.writes()) - before;
    assert!(writes >= 6, "{writes}");
    for nth in 1..=writes {
        cluster.done(add);
        cluster.server.cut(nth, Cut::After);
        let mut child = cluster.spawn("project rm vision");
        cluster
            .server
            .until("the command is held at its write", |view| view.held());
        child.kill().unwrap();
        child.wait_bounded().unwrap();
        cluster.server.release();
        let said = cluster.run("project rm vision");
        assert!(matches!(said.code, Some(0 | 3)), "{said:?}");
        assert_eq!(
            cluster.objects(),
            Vec::<Value>::new(),
            "killed after write {nth}"
        );
        let namespace = cluster.get("namespaces", "", "vision").unwrap();
        assert!(namespace["metadata"]["labels"]["divvy.dev/inject"].is_null());
    }
}

#[test]
fn of_two_calls_that_add_the_same_project_one_is_refused() {
    let cluster = Cluster::start();
    for _ in 0..3 {
        let both = ["1", "2"].map(|quota| {
            cluster.spawn(&format!(
                "project add vision --quota {quota} --namespace vision"
            ))
        });
        let codes = both.map(|mut child| child.wait_bounded().unwrap().code().unwrap());
        assert!(codes == [0, 8] || codes == [8, 0], "{codes:?}");
        let queue = cluster.get("clusterqueues", "", "vision").unwrap();
        let expected = if codes[0] == 0 { "81050Mi" } else { "162100Mi" };
        assert_eq!(memory(&queue)["nominalQuota"], expected);
        cluster.done("project rm vision");
    }
}

#[test]
fn what_exists_already_is_refused_with_its_name() {
    let cluster = Cluster::start();
    let add = "project add vision --quota 1 --namespace vision";
    let object = |kind: &str, namespace: Option<&str>, name: &str, spec: Value| {
        let mut object = json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": { "name": name }, "spec": spec,
        });
        if let Some(namespace) = namespace {
            object["metadata"]["namespace"] = json!(namespace);
        }
        object
    };
    for (plural, kind, namespace, name, spec, text) in [
        (
            "clusterqueues",
            "ClusterQueue",
            "",
            "vision",
            json!({}),
            "the ClusterQueue vision exists already",
        ),
        (
            "resourceflavors",
            "ResourceFlavor",
            "",
            "divvy-gpu",
            json!({}),
            "the ResourceFlavor divvy-gpu exists already",
        ),
        (
            "cohorts",
            "Cohort",
            "",
            "divvy",
            json!({}),
            "the Cohort divvy exists already",
        ),
        (
            "localqueues",
            "LocalQueue",
            "vision",
            "default",
            json!({ "clusterQueue": "other" }),
            "for the ClusterQueue other",
        ),
    ] {
        let of = Some(namespace).filter(|name| !name.is_empty());
        cluster.server.create(object(kind, of, name, spec));
        let before = cluster.objects();
        cluster.refused(add, 8, text);
        assert_eq!(cluster.objects(), before, "nothing was written");
        cluster.server.remove(plural, namespace, name);
    }
    cluster.done(add);
    cluster.done(add);
    cluster.refused(
        "project add vision --quota 2 --namespace vision",
        8,
        "exists already: quota 1, no limit",
    );
    cluster.refused(
        "project add nlp --quota 1 --namespace nlp,vision",
        8,
        "vision belongs to the project vision",
    );
    cluster.refused(
        "project add nlp --quota 1 --namespace gone",
        3,
        "there is no namespace gone",
    );
    cluster.refused(
        "project add nlp --quota 1 --namespace nlp --department x",
        3,
        "there is no department x",
    );
    // What the chart renders is the chart's.
    let helm = json!({ "metadata": {
        "labels": { "app.kubernetes.io/managed-by": "Helm" }, "annotations": { "meta.helm.sh/release-name": "gpus" },
    } });
    cluster.server.merge("clusterqueues", "", "vision", &helm);
    for words in ["project set vision --quota 2", "project rm vision"] {
        cluster.refused(words, 8, "belongs to the Helm release gpus");
    }
}

#[test]
fn a_cluster_that_lacks_something_says_what() {
    let cluster = Cluster::bare();
    cluster.namespace("vision");
    let add = "project add vision --quota 1 --namespace vision";
    cluster.refused(add, 7, "Kueue is not installed");
    cluster.refused("project ls -o json", 7, "kueue.x-k8s.io");
    let mut old = crate::kueue::definitions();
    for definition in &mut old {
        definition["spec"]["versions"][0]["name"] = json!("v1beta1");
        cluster.server.create(definition.clone());
    }
    cluster.refused(add, 7, "too old: it serves kueue.x-k8s.io in v1beta1");
    let cluster = Cluster::start();
    cluster.server.remove("resourceslices", "", "node-a-0");
    cluster.refused(add, 5, "no node publishes GPUs yet");
    cluster.gpus("node-a", &["81050Mi", "23034Mi"]);
    cluster.refused(add, 2, "GPUs of 2 sizes: 22.5 GiB, 79.2 GiB");
    let said = cluster.done("project add vision --quota 3 --namespace vision --gpu-size 80G");
    assert!(
        said.err.contains(
            "warning: the quotas of all projects are 3 GPUs together, but the nodes publish 1.284"
        ),
        "{}",
        said.err
    );
}

#[test]
fn names_and_amounts_out_of_bounds_are_mistakes_of_usage() {
    let cluster = Cluster::bare();
    let many = (0..65)
        .map(|n| format!("n{n}"))
        .collect::<Vec<_>>()
        .join(",");
    for (words, text) in [
        (
            "project add vision --namespace vision".to_owned(),
            "the quota of the project is missing",
        ),
        (
            "project add vision --quota 1".to_owned(),
            "the namespace of the project is missing",
        ),
        (
            "project add Vision --quota 1 --namespace a".to_owned(),
            "project `Vision`: not a name",
        ),
        (
            format!("project add {} --quota 1 --namespace a", "v".repeat(5000)),
            "not a name",
        ),
        (
            "project add bild\u{e4} --quota 1 --namespace a".to_owned(),
            "not a name",
        ),
        (
            "project add v --quota 0.0001 --namespace a".to_owned(),
            "--quota",
        ),
        (
            "project add v --quota 100001 --namespace a".to_owned(),
            "more than 100000 GPUs",
        ),
        (
            "project add v --quota 2 --limit 1 --namespace a".to_owned(),
            "below the quota",
        ),
        (
            "project add v --quota 2 --weight 1.5 --namespace a".to_owned(),
            "--weight 1.5",
        ),
        (
            format!("project add v --quota 1 --namespace {many}"),
            "at most 64 namespaces",
        ),
        (
            "department add divvy --quota 1".to_owned(),
            "the cohort of all projects has this name",
        ),
    ] {
        cluster.refused(&words, 2, text);
    }
    let said = cluster.run("project add Vision --quota 1 --namespace a -o json");
    assert_eq!(said.code, Some(2));
    let error: Value = serde_json::from_str(&said.err).unwrap();
    assert!(error.to_string().contains("not a name"), "{error}");
}

#[test]
fn a_project_with_workloads_stays_and_names_them() {
    let cluster = Cluster::start();
    cluster.done("project add vision --quota 1 --namespace vision");
    let admitted = json!([
        condition("QuotaReserved", "True", "QuotaReserved", ""),
        condition("Admitted", "True", "Admitted", ""),
    ]);
    cluster
        .server
        .create(workload("vision", "train", &admitted));
    cluster
        .server
        .create(workload("vision", "eval", &json!([])));
    cluster.server.create(workload(
        "vision",
        "old",
        &json!([condition("Finished", "True", "Succeeded", "")]),
    ));
    let text = "the project vision has 2 workloads: job eval (waiting), job train (running)";
    cluster.refused("project rm vision", 8, text);
    cluster.refused("project set vision --namespace nlp", 8, text);
    cluster.server.merge(
        "clusterqueues",
        "",
        "vision",
        &json!({ "status": { "reservingWorkloads": 0 } }),
    );
    cluster.done("project rm vision --force");
    assert_eq!(cluster.objects(), Vec::<Value>::new());
}

#[test]
fn a_department_has_what_its_projects_do_not() {
    let cluster = Cluster::start();
    cluster.done("department add research --quota 4 --no-over-quota");
    cluster.done("project add vision --quota 1 --namespace vision --department research");
    cluster.done("project add nlp --quota 1.5 --namespace nlp --department research");
    let own = || {
        let cohort = cluster.get("cohorts", "", "research").unwrap();
        assert_eq!(faults(&cohort), Vec::<String>::new());
        memory(&cohort)["nominalQuota"].clone()
    };
    assert_eq!(own(), "121575Mi");
    let queue = cluster.get("clusterqueues", "", "vision").unwrap();
    assert_eq!(queue["spec"]["cohortName"], "research");
    assert_eq!(
        cluster.done("department ls").out,
        "DEPARTMENT  QUOTA  PROMISED  LIMIT  USED  OVER  WEIGHT  RUNNING  WAITING  PROJECTS\n\
         research    4      2.5       4      0     0     quota   0        0        nlp,vision\n"
    );
    cluster.refused(
        "project set vision --quota 3",
        8,
        "would have 4.5 GPUs, but its quota is 4",
    );
    cluster.refused(
        "department set research --quota 2",
        8,
        "would have 2.5 GPUs, but its quota is 2",
    );
    cluster.refused("department rm research", 8, "has projects: nlp, vision");
    cluster.done("project set nlp --department none");
    assert_eq!(own(), "243150Mi");
    cluster.done("project rm vision");
    assert_eq!(
        own(),
        "316.6015625Gi"
            .replace("316.6015625Gi", "324200Mi")
            .as_str()
    );
    cluster.done("department rm research");
    cluster.done("project rm nlp");
    assert_eq!(cluster.objects(), Vec::<Value>::new());
}

#[test]
fn kueues_configuration_is_printed_for_the_published_devices() {
    let cluster = Cluster::start();
    let said = cluster
        .done("project config --configuration -o json")
        .json();
    let resources = &said["items"][0]["resources"];
    let classes = resources["deviceClassMappings"][0]["deviceClassNames"]
        .as_array()
        .unwrap();
    assert!(
        classes.contains(&json!("fraction.gpu.divvy.dev")),
        "{classes:?}"
    );
    cluster.namespace("kueue-system");
    cluster.server.create(json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": "divvy", "labels": { "app.kubernetes.io/name": "divvy" } },
        "webhooks": [{
            "name": "pods.inject.divvy.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": { "service": { "namespace": "gpus", "name": "divvy-webhook" } },
        }],
    }));
    cluster.server.create(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "kueue-manager-config", "namespace": "kueue-system" },
        "data": { "controller_manager_config.yaml": "manageJobsWithoutQueueName: true\n" },
    }));
    let text = cluster.done("project config").out;
    let values: Value = yaml_serde::from_str(&text).unwrap();
    let file = values["managerConfig"]["controllerManagerConfigYaml"]
        .as_str()
        .unwrap();
    let file: Value = yaml_serde::from_str(file).unwrap();
    assert_eq!(file["manageJobsWithoutQueueName"], true);
    assert_eq!(
        file["managedJobsNamespaceSelector"]["matchExpressions"][0]["values"],
        json!(["kube-system", "kueue-system", "gpus"])
    );
    assert_eq!(
        file["resources"]["deviceClassMappings"][0]["name"],
        "gpu.memory"
    );
}
