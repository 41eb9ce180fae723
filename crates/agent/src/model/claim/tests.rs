//! Tests of the validation of claims.

use divvy_core::pinned::Device;
use divvy_core::{Bytes, GpuUuid};

use super::*;
use crate::model::validate::limits::MOST_DEVICES;

const GPU: &str = "GPU-01010101-0101-0101-0101-010101010101";

fn body(devices: Vec<ClaimDevice>) -> v1::Claim {
    v1::Claim {
        namespace: "team".into(),
        name: "train".into(),
        pods: Vec::new(),
        devices,
        ..v1::Claim::default()
    }
}

#[test]
fn a_body_becomes_devices_and_an_amount_for_people() {
    let gpu: GpuUuid = GPU.parse().unwrap();
    for (device, exact, amount) in [
        (
            ClaimDevice::part(GPU, 1 << 30),
            Device::Part {
                gpu: gpu.clone(),
                memory: Bytes::gib(1),
            },
            "1GiB",
        ),
        (
            ClaimDevice::instance(GPU, "1g.5gb", 3),
            Device::Instance {
                gpu: gpu.clone(),
                profile: "1g.5gb".parse().unwrap(),
                start: 3,
            },
            "1g.5gb",
        ),
        (
            ClaimDevice::whole(GPU),
            Device::Whole { gpu: gpu.clone() },
            "1",
        ),
    ] {
        let asked = parse("u-1", body(vec![device]), "boot", |_| None).unwrap();
        let device = devices::to_planner(&asked.claim.devices[0]).unwrap();
        assert_eq!(device, exact);
        assert_eq!(asked.amount.to_string(), amount);
        assert_eq!(asked.claim.label(), "team/train");
    }
}

#[test]
fn what_no_claim_can_look_like_is_a_wrong_call() {
    let part = || ClaimDevice::part(GPU, 1 << 30);
    let both = ClaimDevice {
        whole: true,
        ..part()
    };
    let neither = ClaimDevice {
        memory_bytes: None,
        ..part()
    };
    let compute = |text: &str, device| v1::Claim {
        compute: Some(text.into()),
        ..body(vec![device])
    };
    let unnamed = v1::Claim {
        name: String::new(),
        ..body(vec![part()])
    };
    for (uid, body) in [
        ("", body(vec![part()])),
        ("a/b", body(vec![part()])),
        ("a.", body(vec![part()])),
        ("u", unnamed),
        ("u", body(vec![both])),
        ("u", body(vec![neither])),
        ("u", body(vec![ClaimDevice::part("GPU-x", 1)])),
        ("u", body(vec![ClaimDevice::instance(GPU, "1g", 0)])),
        ("u", body(vec![part(); MOST_DEVICES + 1])),
        ("u", compute("often", part())),
        (
            "u",
            compute("none", ClaimDevice::instance(GPU, "1g.5gb", 0)),
        ),
    ] {
        let error = parse(uid, body, "boot", |_| None).unwrap_err();
        assert_eq!(error.code, ErrorCode::Usage, "{error}");
    }
}

#[test]
fn the_users_of_a_claim_do_not_make_it_another() {
    let claim = |pods: &[&str], bytes| {
        let body = v1::Claim {
            pods: pods.iter().map(ToString::to_string).collect(),
            ..body(vec![ClaimDevice::part(GPU, bytes)])
        };
        parse("u", body, "boot", |_| None).unwrap().claim
    };
    assert!(claim(&["a"], 1).is_met_by(&claim(&["a", "b"], 1)));
    assert!(!claim(&["a"], 1).is_met_by(&claim(&["a"], 2)));
}

#[test]
fn a_claim_without_a_namespace_is_a_slice_with_its_own_name() {
    let slice = |body| parse("slurm-7", body, "boot", |_| None);
    let plain = || v1::Claim {
        devices: vec![ClaimDevice::part(GPU, 1)],
        ..v1::Claim::default()
    };
    let claim = slice(plain()).unwrap().claim;
    assert!(claim.is_slice());
    assert_eq!(
        (claim.name.as_str(), claim.label().as_str()),
        ("slurm-7", "slurm-7")
    );
    for body in [
        v1::Claim {
            namespace: "team".into(),
            name: "train".into(),
            owner: Some("ana".into()),
            ..plain()
        },
        v1::Claim {
            namespace: "team".into(),
            name: "train".into(),
            ends: Some(v1::ClaimEnd::with_process(7, None)),
            ..plain()
        },
        v1::Claim {
            name: "a\nb".into(),
            ..plain()
        },
    ] {
        let error = slice(body).unwrap_err();
        assert_eq!(error.code, ErrorCode::Usage, "{error}");
    }
}

#[test]
fn an_index_names_the_gpu_and_what_is_held_meets_the_same_words_again() {
    let uuid_of = |index| (index == 3).then(|| GPU.parse::<GpuUuid>().unwrap());
    let parsed = |device| {
        let body = v1::Claim {
            devices: vec![device],
            ..v1::Claim::default()
        };
        parse("a", body, "boot", uuid_of)
    };
    let asked = parsed(ClaimDevice::share("3", 500)).unwrap().claim;
    assert_eq!(asked.devices[0].gpu, GPU);
    let mut held = asked.clone();
    held.devices[0].memory_bytes = Some(1 << 30);
    assert!(asked.is_met_by(&held));
    assert!(
        !parsed(ClaimDevice::share("3", 501))
            .unwrap()
            .claim
            .is_met_by(&held)
    );
    assert!(
        !parsed(ClaimDevice::part("3", 1 << 30))
            .unwrap()
            .claim
            .is_met_by(&held)
    );
    let wherever = parsed(ClaimDevice::profile("3", "1g.5gb")).unwrap().claim;
    let placed = parsed(ClaimDevice::instance("3", "1g.5gb", 2))
        .unwrap()
        .claim;
    assert!(wherever.is_met_by(&placed));
    assert!(!placed.is_met_by(&wherever));
    let other = parsed(ClaimDevice::profile("3", "2g.10gb")).unwrap().claim;
    assert!(!other.is_met_by(&placed));
    for (device, code) in [
        (ClaimDevice::share("4", 500), ErrorCode::NotFound),
        (ClaimDevice::share("3", 0), ErrorCode::Usage),
        (ClaimDevice::share("3", 1000), ErrorCode::Usage),
        (ClaimDevice::share("x", 500), ErrorCode::Usage),
        (
            ClaimDevice {
                memory_bytes: Some(1),
                ..ClaimDevice::share("3", 500)
            },
            ErrorCode::Usage,
        ),
    ] {
        let error = parsed(device).unwrap_err();
        assert_eq!(error.code, code, "{error}");
    }
}
