use super::*;

fn refused(text: &str) -> String {
    Values::parse(text).unwrap_err().to_string()
}

#[test]
fn queues_are_served_in_the_order_of_the_file() {
    let text = "agentk8sglue:\n  queues:\n    zeta: {}\n    alpha:\n      queueSettings: {maxPods: 3}\n    mid:\n";
    let values = Values::parse(text).unwrap();
    let names: Vec<(&str, Option<u32>)> = values
        .queues
        .iter()
        .map(|queue| (queue.name.as_str(), queue.max_pods))
        .collect();
    assert_eq!(names, [("zeta", None), ("alpha", Some(3)), ("mid", None)]);
    let one =
        Values::parse("agentk8sglue: {queue: \"a, b\", createQueueIfNotExists: true}").unwrap();
    assert_eq!(one.queues.len(), 2);
    assert!(one.create_queues);
}

#[test]
fn an_order_may_be_given_beside_the_queues() {
    // Helm sorts the keys of a section.
    let text = "agentk8sglue:\n  queue: zeta,bare\n  queues:\n    alpha: {}\n    zeta: {queueSettings: {maxPods: 1}}\n";
    let values = Values::parse(text).unwrap();
    let names: Vec<(&str, Option<u32>)> = values
        .queues
        .iter()
        .map(|queue| (queue.name.as_str(), queue.max_pods))
        .collect();
    assert_eq!(names, [("zeta", Some(1)), ("bare", None), ("alpha", None)]);
}

#[test]
fn a_charts_own_keys_are_passed_over_and_said() {
    let text = "global: {imageRegistry: docker.io}\nagentk8sglue:\n  replicaCount: 2\n  queue: default\n  \
                apiServerUrlReference: https://api.example\n  clearmlcheckCertificate: false\n  \
                defaultContainerImage: ubuntu:24.04\n  basePodTemplate: {}\n";
    let values = Values::parse(text).unwrap();
    assert_eq!(values.notes.len(), 2, "{:?}", values.notes);
    assert!(
        values
            .notes
            .iter()
            .any(|note| note.starts_with("agentk8sglue.replicaCount has no effect"))
    );
    assert_eq!(values.image.as_deref(), Some("ubuntu:24.04"));
    let set: Vec<&str> = values
        .addresses
        .iter()
        .map(|(variable, _)| *variable)
        .collect();
    assert_eq!(set, ["CLEARML_API_HOST", "CLEARML_API_HOST_VERIFY_CERT"]);
}

#[test]
fn what_means_nothing_is_named() {
    for (text, said) in [
        ("a: [1", "the values file: not valid YAML"),
        ("- a", "the values file: must be a mapping"),
        ("", "agentk8sglue: is missing"),
        (
            "agentk8sGlue: {queue: a}",
            "agentk8sGlue: unknown key; did you mean `agentk8sglue`?",
        ),
        (
            "devicePlugin: {config: {}}",
            "devicePlugin: unknown key; the known keys are agentk8sglue",
        ),
        (
            "agentk8sglue: {}",
            "agentk8sglue.queues: no queue is set, neither here nor in `queue`",
        ),
        (
            "agentk8sglue: {queue: \"a,a\"}",
            "agentk8sglue.queue: a is listed twice",
        ),
        (
            "agentk8sglue: {queue: a, basePodTemplates: {}}",
            "did you mean `basePodTemplate`?",
        ),
        (
            "agentk8sglue: {queues: {a: {templateOverride: {}}}}",
            "did you mean `templateOverrides`?",
        ),
        (
            "agentk8sglue: {queues: {a: {queueSettings: {maxpods: 1}}}}",
            "did you mean `maxPods`?",
        ),
        (
            "agentk8sglue: {queues: {a: {queueSettings: {maxPods: 0}}}}",
            "agentk8sglue.queues.a.queueSettings.maxPods: must be a whole number above 0",
        ),
        (
            "agentk8sglue: {queues: {a: {templateOverrides: {labels: {x: 0.5}}}}}",
            "agentk8sglue.queues.a.templateOverrides.labels.x: must be a string; write 0.5 in quotes",
        ),
        (
            "agentk8sglue: {queues: {a: {}}}\nb: {templateOverrides: {}}",
            "b: unknown key",
        ),
    ] {
        let found = refused(text);
        assert!(found.contains(said), "{text}: {found}");
    }
}

#[test]
fn the_nearest_key_is_offered_and_none_that_is_far() {
    assert_eq!(distance("labels", "label"), 1);
    assert_eq!(distance("NodeSelector", "nodeSelector"), 0);
    assert_eq!(distance("", "abc"), 3);
    assert!(!refused("agentk8sglue: {queue: a, something: 1}").contains("did you mean"));
}
