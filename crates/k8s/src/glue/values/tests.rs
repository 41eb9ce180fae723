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
fn anchors_and_merge_keys_of_a_queues_template_are_those_of_helm() {
    let half = "{labels: {clearml-injector/fraction: \"0.500\"}}";
    let queues = format!("half: &h {{templateOverrides: &t {half}}}");
    for (text, names) in [
        // The two files of the report (R17).
        (
            format!("agentk8sglue: {{queues: {{{queues}, other: {{<<: *h}}}}}}"),
            "half other",
        ),
        (
            format!(
                "x-common: &res\n  templateOverrides: {half}\nagentk8sglue:\n  queues:\n    half: *res\n"
            ),
            "half",
        ),
        // A list of merges, a merge within a merge, and templates under the root.
        (
            format!(
                "agentk8sglue:\n  x-low: &low\n    queueSettings: {{maxPods: 1}}\n  x-half: &half\n    <<: *low\n    templateOverrides: {half}\n  \
                 queues:\n    zeta: {{<<: [*half, *low]}}\n    alpha: {{<<: *half, queueSettings: {{maxPods: 2}}}}\n"
            ),
            "zeta alpha",
        ),
        // Helm ignores a key of any name. This one has an anchor that the root uses.
        (
            format!(
                "# shared\ndefaults:\n  half: &half\n    templateOverrides: {half}\nagentk8sglue:\n  queues:\n    <<: {{one: *half}}\n    two: *half\n"
            ),
            "two one",
        ),
    ] {
        let values = Values::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let found: Vec<&str> = values
            .queues
            .iter()
            .map(|queue| queue.name.as_str())
            .collect();
        assert_eq!(found, names.split(' ').collect::<Vec<_>>(), "{text}");
        for queue in &values.queues {
            let labels = &queue.overrides["labels"];
            assert_eq!(labels["clearml-injector/fraction"], "0.500", "{text}");
        }
        assert_eq!(values.notes, Vec::<String>::new(), "{text}");
    }
    let limits = "agentk8sglue: {x-a: &a {queueSettings: {maxPods: 1}}, queues: {b: {<<: *a, queueSettings: {maxPods: 2}}}}";
    assert_eq!(Values::parse(limits).unwrap().queues[0].max_pods, Some(2));
    // A key without an anchor that is used is still a mistake.
    for text in [
        "defaults: &d {}\nagentk8sglue: {queue: a}",
        "defaults: {a: \"&d\"}\nagentk8sglue: {queue: a}",
        "defaults:\n  a: &d {}\n  b: *d\nagentk8sglue: {queue: a}",
    ] {
        assert!(refused(text).contains("defaults: unknown key"), "{text}");
    }
    assert!(refused("agentk8sglue: {queues: {a: {<<: 1}}}").contains("`<<` is not a mapping"));
}

#[test]
fn every_problem_of_a_values_file_is_told_up_to_a_screen() {
    let text = "clearmll: {}\nagentk8sglue:\n  createQueueIfNotExists: maybe\n  basePodTemplates: {}\n  basePodTemplate: {label: {}}\n  \
                queue: [1]\n  queues:\n    a:\n      templateOverride: {}\n      queueSettings: {maxPods: 0}\n    b:\n      templateOverrides:\n        \
                labels: {x: 0.5, y: 1}\n        env: [{value: x}]\n        resources: {limits: {gpu: half}}\n";
    let said = refused(text);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 12, "{said}");
    assert_eq!(lines[0], "11 problems");
    for named in [
        "  clearmll: unknown key; did you mean `clearml`?",
        "  agentk8sglue.basePodTemplates: unknown key; did you mean `basePodTemplate`?",
        "  agentk8sglue.basePodTemplate.label: ",
        "  agentk8sglue.queue: must be",
        "  agentk8sglue.queues.a.templateOverride: ",
        "  agentk8sglue.queues.a.queueSettings.maxPods: ",
        "  agentk8sglue.queues.b.templateOverrides.labels.x: ",
        "  agentk8sglue.queues.b.templateOverrides.labels.y: ",
        "  agentk8sglue.queues.b.templateOverrides.env[0]: ",
        "  agentk8sglue.queues.b.templateOverrides.resources.limits.gpu: `half`",
        "  agentk8sglue.createQueueIfNotExists: must be true or false",
    ] {
        assert!(
            lines.iter().any(|line| line.starts_with(named)),
            "{named}: {said}"
        );
    }
    let many: String = (0..30).map(|at| format!("  k{at}: 1\n")).collect();
    let said = refused(&format!("agentk8sglue:\n  queue: a\n{many}"));
    assert_eq!(said.lines().count(), 22, "{said}");
    assert!(
        said.starts_with("30 problems\n") && said.ends_with("\n  and 10 more"),
        "{said}"
    );
}

#[test]
fn the_nearest_key_is_offered_and_none_that_is_far() {
    assert_eq!(distance("labels", "label"), 1);
    assert_eq!(distance("NodeSelector", "nodeSelector"), 0);
    assert_eq!(distance("", "abc"), 3);
    assert!(!refused("agentk8sglue: {queue: a, something: 1}").contains("did you mean"));
}
