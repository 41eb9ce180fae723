//! Checks of what the views and Prometheus need: nodes whose daemon answers, and pods that serve metrics.

use k8s_openapi::api::core::v1::Pod;

use super::facts::ClusterFacts;
use super::row::{Row, Status};
use crate::base::error_output::few;

/// Labels of Divvy's own pods, by the chart.
const NAME: (&str, &str) = ("app.kubernetes.io/name", "divvy");
const COMPONENT: &str = "app.kubernetes.io/component";

/// None for a cluster without pods of Divvy; other checks say so.
pub fn rows(facts: &ClusterFacts) -> Vec<Row> {
    daemons(facts).into_iter().chain(metrics(facts)).collect()
}

fn daemons(facts: &ClusterFacts) -> Option<Row> {
    const CHECK: &str = "nodes.daemon";
    const READ: &str = "`divvy gpus` in the container plugin of each node pod";
    let answers = match &facts.daemons {
        Ok(answers) => answers,
        Err(why) => return Some(Row::unknown(CHECK, READ, why)),
    };
    let silent: Vec<String> = answers
        .iter()
        .filter_map(|(node, answer)| Some(format!("{node}: {}", answer.as_ref().err()?)))
        .collect();
    match (answers.len(), silent.is_empty()) {
        (0, _) => None,
        (count, true) => Some(Row::ok(
            CHECK,
            READ,
            format!("the daemons of {count} nodes answer"),
        )),
        (_, false) => Some(Row::ok(CHECK, READ, few(&silent)).but(
            Status::Fail,
            "claims on these nodes cannot be prepared, and the lists lack their figures",
            format!(
                "kubectl logs -n {} -l {COMPONENT}=node -c agent",
                facts.system
            ),
        )),
    }
}

/// By the flag `--metrics` of Divvy's pods.
fn metrics(facts: &ClusterFacts) -> Option<Row> {
    const CHECK: &str = "metrics";
    const READ: &str = "the arguments of Divvy's pods";
    let pods = match &facts.pods {
        Ok(pods) => pods,
        Err(why) => return Some(Row::unknown(CHECK, READ, why)),
    };
    let of = |component: &str| -> Vec<bool> {
        let pods = pods.iter().filter(|pod| {
            let labels = pod.metadata.labels.as_ref();
            let label = |name: &str| labels.and_then(|labels| labels.get(name).map(String::as_str));
            pod.metadata.namespace.as_deref() == Some(&facts.system)
                && label(NAME.0) == Some(NAME.1)
                && label(COMPONENT) == Some(component)
        });
        pods.map(serves).collect()
    };
    let controllers = [of("controller"), of("reconciler")].concat();
    let nodes = of("node");
    let count = |pods: &[bool]| pods.iter().filter(|serves| **serves).count();
    let serving = (count(&controllers), count(&nodes));
    match serving {
        _ if controllers.is_empty() && nodes.is_empty() => None,
        (0, 0) => Some(Row::ok(CHECK, READ, "off (metrics.enabled of the chart)")),
        (of_controllers, of_nodes)
            if (of_controllers, of_nodes) == (controllers.len(), nodes.len()) =>
        {
            let found =
                format!("{of_controllers} controllers and {of_nodes} node pods serve /metrics");
            Some(Row::ok(CHECK, READ, found))
        }
        (of_controllers, of_nodes) => {
            let found = format!(
                "{of_controllers} of {} controllers and {of_nodes} of {} node pods serve /metrics",
                controllers.len(),
                nodes.len()
            );
            Some(Row::ok(CHECK, READ, found).but(
                Status::Warn,
                "series of the other pods are missing in Prometheus",
                format!(
                    "kubectl rollout status -n {} daemonset,deployment",
                    facts.system
                ),
            ))
        }
    }
}

/// Whether a container has the flag.
fn serves(pod: &Pod) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut args = containers.flat_map(|container| container.args.iter().flatten());
    args.any(|arg| arg == "--metrics")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tools::doctor::facts::tests::facts;

    fn pod(component: &str, args: &[&str]) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": component, "namespace": "divvy-system", "labels": {
                "app.kubernetes.io/name": "divvy", "app.kubernetes.io/component": component,
            } },
            "spec": { "containers": [{ "name": "c", "args": args }] },
        }))
        .unwrap()
    }

    #[test]
    fn a_daemon_that_does_not_answer_fails_the_check_and_is_named() {
        let mut facts = facts();
        assert_eq!(
            daemons(&facts).unwrap().found,
            "the daemons of 1 nodes answer"
        );
        let hung = ("b".to_owned(), Err("no answer within 5 s".to_owned()));
        facts.daemons.as_mut().unwrap().extend([hung]);
        let row = daemons(&facts).unwrap();
        assert_eq!(
            (row.status, &*row.found),
            (Status::Fail, "b: no answer within 5 s")
        );
        facts.daemons = Err("you may not create pods/exec".to_owned());
        assert_eq!(daemons(&facts).unwrap().status, Status::Unknown);
    }

    #[test]
    fn pods_that_serve_no_metrics_beside_others_are_counted() {
        let mut facts = facts();
        let found = |facts: &ClusterFacts| {
            let row = metrics(facts).unwrap();
            (row.status, row.found)
        };
        facts.pods = Ok(vec![pod("controller", &[]), pod("node", &[])]);
        assert_eq!(found(&facts).0, Status::Ok);
        facts.pods = Ok(vec![pod("controller", &["--metrics"]), pod("node", &[])]);
        let (status, text) = found(&facts);
        assert_eq!(status, Status::Warn);
        assert_eq!(
            text,
            "1 of 1 controllers and 0 of 1 node pods serve /metrics"
        );
        facts.pods = Ok(vec![
            pod("controller", &["--metrics"]),
            pod("node", &["--metrics"]),
        ]);
        assert_eq!(
            found(&facts),
            (
                Status::Ok,
                "1 controllers and 1 node pods serve /metrics".to_owned()
            )
        );
    }
}
