use super::*;
use crate::base::claim::Inventory;
use crate::base::inject::inject;
use crate::base::pod_request::Steps;

fn wish(amount: Amount) -> Submission {
    Submission {
        amount,
        name: Some("train".to_owned()),
        namespace: "team".to_owned(),
        image: "registry.example/ml/Train_GPU:1.2".to_owned(),
        command: vec!["python".to_owned(), "train.py".to_owned()],
        env: vec![("EPOCHS".to_owned(), "3".to_owned())],
        cpu: None,
        memory: Some("8Gi".to_owned()),
        root: false,
        whole_by_label: false,
    }
}

fn read(gpu: Option<&str>, memory: Option<&str>, mig: Option<&str>) -> Result<Amount, String> {
    Amount::read(gpu, memory, mig).map_err(|error| {
        assert_eq!(error.code.exit_code(), 2);
        format!("{} | {}", error.message, error.hint.unwrap_or_default())
    })
}

#[test]
fn each_flag_is_an_amount_and_anything_else_says_what_to_write() {
    let part = Fraction::between_none_and_one("0.2").unwrap();
    assert_eq!(read(Some("0.2"), None, None), Ok(Amount::Part(part)));
    assert_eq!(read(Some("2"), None, None), Ok(Amount::Whole(2)));
    assert_eq!(read(None, Some("4G"), None), Ok(Amount::Memory(4096)));
    let profile = "2g.10gb".parse().unwrap();
    assert_eq!(read(None, None, Some("2g.10gb")), Ok(Amount::Mig(profile)));
    for (gpu, memory, mig, said) in [
        (None, None, None, "no GPU amount is given"),
        (Some("1"), Some("4G"), None, "several GPU amounts"),
        (Some("0"), None, None, "--gpu: `0` is not a number"),
        (Some("1.5"), None, None, "--gpu: `1.5`"),
        (Some("half"), None, None, "--gpu: `half` is not an amount"),
        (Some("500m"), None, None, "--gpu: `500m` is not an amount"),
        (Some("-1"), None, None, "--gpu: `-1` is not an amount"),
        (None, Some("4"), None, "write `4G` or"),
        (None, Some("4GB"), None, "use a binary unit: `4GiB`"),
        (None, Some("100K"), None, "write `1M`"),
        (None, Some("0G"), None, "must be above 0"),
        (None, None, Some("big"), "--mig-profile: "),
    ] {
        let error = read(gpu, memory, mig).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn a_part_is_asked_for_by_annotation_and_the_webhook_understands_it() {
    let amount = read(Some("0.25"), None, None).unwrap();
    let inventory = Inventory {
        sizes: [Bytes::gib(80)].into(),
        ..Inventory::default()
    };
    let pod = wish(amount).pod();
    let injection = inject(&pod, &inventory, Steps::Eighths).unwrap().unwrap();
    assert!(
        injection
            .template
            .unwrap()
            .spec
            .to_string()
            .contains("20480Mi")
    );
    let typed: Pod = serde_json::from_value(injection.pod).unwrap();
    assert!(is_held(&typed));
    assert!(!is_held(&serde_json::from_value(pod).unwrap()));
}

#[test]
fn whole_gpus_and_instances_are_limits_that_need_no_webhook() {
    let limits = |amount: Amount| {
        assert!(!amount.needs_webhook());
        let pod = wish(amount).pod();
        assert_eq!(pod["metadata"].get("annotations"), None);
        pod["spec"]["containers"][0]["resources"]["limits"].clone()
    };
    assert_eq!(
        limits(Amount::Whole(2)),
        json!({ "nvidia.com/gpu": 2, "memory": "8Gi" })
    );
    let profile = "1g.10gb+me".parse().unwrap();
    assert_eq!(
        limits(Amount::Mig(profile)),
        json!({ "nvidia.com/mig-1g.10gb.me": 1, "memory": "8Gi" })
    );
}

#[test]
fn whole_gpus_become_the_label_where_the_webhook_serves_them() {
    let wish = Submission {
        whole_by_label: true,
        ..wish(Amount::Whole(2))
    };
    let pod = wish.pod();
    assert_eq!(
        pod["metadata"]["labels"],
        json!({ "clearml-injector/fraction": "2" })
    );
    let inventory = Inventory {
        sizes: [Bytes::gib(80)].into(),
        ..Inventory::default()
    };
    let injection = inject(&pod, &inventory, Steps::Eighths).unwrap().unwrap();
    assert_eq!(
        injection.pod["metadata"]["annotations"]["divvy.dev/gpus"],
        "1.000,1.000"
    );
    let limits = &injection.pod["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!(*limits, json!({ "memory": "8Gi" }));
}

#[test]
fn a_pod_passes_the_restricted_level_unless_it_has_to_be_root() {
    let spec = wish(Amount::Whole(1)).pod()["spec"].clone();
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    assert_eq!(
        spec["containers"][0]["securityContext"]["capabilities"]["drop"],
        json!(["ALL"])
    );
    assert_eq!(
        spec["containers"][0]["securityContext"]["allowPrivilegeEscalation"],
        false
    );
    assert_eq!(
        spec["securityContext"]["seccompProfile"]["type"],
        "RuntimeDefault"
    );
    for key in ["hostPID", "volumes", "nodeName", "schedulerName"] {
        assert_eq!(spec.get(key), None);
    }
    let root = Submission {
        root: true,
        ..wish(Amount::Whole(1))
    };
    assert_eq!(
        root.pod()["spec"]["securityContext"].get("runAsNonRoot"),
        None
    );
}

#[test]
fn a_job_marks_its_template_and_is_not_run_twice_by_itself() {
    let job = wish(Amount::Memory(4096)).object(Kind::Job);
    assert_eq!(job["spec"]["backoffLimit"], 0);
    assert_eq!(
        job["spec"]["template"]["metadata"]["annotations"]["gpu-memory"],
        "4096"
    );
    assert_eq!(job["metadata"].get("annotations"), None);
    let typed: k8s_openapi::api::batch::v1::Job = serde_json::from_value(job).unwrap();
    assert_eq!(typed.metadata.name.as_deref(), Some("train"));
}

#[test]
fn without_a_name_it_is_called_after_its_image() {
    for (image, name) in [
        ("registry.example/ml/Train_GPU:1.2", "train-gpu-"),
        ("ubuntu", "ubuntu-"),
        ("host:5000/x@sha256:abc", "x-"),
        ("___", "job-"),
    ] {
        let wish = Submission {
            name: None,
            image: image.to_owned(),
            ..wish(Amount::Whole(1))
        };
        assert_eq!(wish.pod()["metadata"]["generateName"], name);
        assert_eq!(wish.pod()["metadata"].get("name"), None);
    }
    assert_eq!(wish(Amount::Whole(1)).trial()["metadata"].get("name"), None);
}

#[test]
fn what_kubernetes_would_not_take_is_said_before_it_is_asked() {
    let check = |wish: Submission| wish.check().unwrap_err().message;
    let good = wish(Amount::Whole(1));
    assert!(good.check().is_ok());
    for name in ["Train", "-x", "x-", "", "a.b", &"x".repeat(64)] {
        let wish = Submission {
            name: Some((*name).to_owned()),
            ..good.clone()
        };
        assert!(check(wish).starts_with("--name: "), "{name}");
    }
    let wish = Submission {
        memory: Some("8 gigs".to_owned()),
        ..good.clone()
    };
    assert!(check(wish).starts_with("--memory: "));
    assert!(
        check(Submission {
            image: " ".to_owned(),
            ..good
        })
        .contains("image")
    );
    for (words, said) in [
        (vec!["A"], "`A` is not"),
        (vec!["=1"], "`=1`"),
        (vec!["A=1", "A=2"], "twice"),
    ] {
        let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        assert!(variables(&words).unwrap_err().message.contains(said));
    }
    let words = ["A=b=c".to_owned(), "B=".to_owned()];
    let read = variables(&words).unwrap();
    assert_eq!(read[0], ("A".to_owned(), "b=c".to_owned()));
}
