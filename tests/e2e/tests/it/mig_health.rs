//! The doctor and the self-test where GPUs are divided (MIG).

use std::fs;

use divvy_e2e::{Home, MIB};
use serde_json::Value;

/// GPU 0 has a 3g and a 1g, GPU 1 is divided and has nothing on it, GPU 2 is not divided.
const DIVIDED: &str = "[mig]\nenabled = [0, 1]\n\
    [[mig.instance]]\ngpu = 0\nprofile = '3g.20gb'\nstart = 4\n\
    [[mig.instance]]\ngpu = 0\nprofile = '1g.5gb'\nstart = 1\n";

fn home(sim: &str, config: &str) -> Home {
    let home = Home::new(sim);
    let path = home.scratch().join("sim.toml");
    fs::write(&path, config).expect("the folder is the test's own");
    home.variable("DIVVY_SIM_CONFIG", path.to_str().expect("a path"))
}

fn finding<'a>(findings: &'a [Value], check: &str) -> &'a Value {
    let found = findings.iter().find(|finding| finding["check"] == check);
    found.unwrap_or_else(|| panic!("no finding {check} in {findings:?}"))
}

#[test]
fn the_doctor_tells_what_is_on_divided_gpus() {
    let home = home("a100-40gb:3", DIVIDED);
    let findings = home.divvy(&["doctor", "-o", "json"]).items();
    let text = |check: &str| finding(&findings, check)["found"].as_str().expect("text");
    assert!(text("gpu.0").contains("in MIG mode"), "{}", text("gpu.0"));
    let instances = text("gpu.0.instances");
    for word in ["1g.5gb@1 MIG-", "3g.20gb@4 MIG-", "idle"] {
        assert!(instances.contains(word), "{instances}");
    }
    assert_eq!(text("gpu.1.instances"), "no MIG instances yet");
    assert!(
        findings
            .iter()
            .all(|finding| finding["check"] != "gpu.2.instances")
    );
    assert!(text("gpu.2.enforcement").contains("limiter"));
    let expected = if rustix::process::geteuid().is_root() {
        "ok"
    } else {
        "warn"
    };
    assert_eq!(finding(&findings, "gpu.0.enforcement")["status"], expected);
}

#[test]
fn the_doctor_is_content_with_a_machine_whose_gpus_are_all_divided_and_empty() {
    let home = home("a100-40gb:1", "[mig]\nenabled = [0]\n");
    let findings = home.divvy(&["doctor", "-o", "json"]).items();
    assert_eq!(finding(&findings, "driver.cuda")["status"], "ok");
    assert!(
        findings.iter().all(|finding| finding["status"] != "fail"),
        "{findings:?}"
    );
}

#[test]
fn the_self_test_tries_an_instance_to_its_end() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root may divide a GPU");
        return;
    }
    let home = home("a100-40gb:1", "[mig]\nenabled = [0]\n");
    let _daemon = home.daemon(&[]);
    let said = home.divvy(&["selftest", "--gpu-memory", "2G", "-o", "json"]);
    let tests = said.items();
    let test = &tests[0];
    assert_eq!(
        (
            &test["enforcement"],
            &test["form"],
            &test["memory_limit_bytes"]
        ),
        (&"mig".into(), &Value::Null, &(4864 * MIB).into()),
        "{said:?}"
    );
    let checks = test["checks"].as_array().expect("a list");
    let result = |name: &str| {
        let check = checks.iter().find(|check| check["name"] == name);
        check.unwrap_or_else(|| panic!("{name} was not tried: {test}"))["result"].clone()
    };
    for name in [
        "cuMemAlloc_v2",
        "cuMemAllocManaged",
        "cuMemCreate",
        "cuMemAllocAsync",
        "cuMemAlloc_v2 by several processes",
    ] {
        assert_eq!(result(name), "enforced", "{name}");
    }
    for name in ["cuMemGetInfo total", "NVML total", "NVML process list"] {
        assert_eq!(result(name), "agrees", "{name}");
    }
    assert_eq!(test["passed"], true, "{test}");
    assert_eq!(said.code, 0);
    let said = home.divvy(&["selftest", "--gpu-memory", "2G"]).ok();
    assert!(
        said.stdout
            .contains("enforced by the driver (a MIG instance)"),
        "{said:?}"
    );
}
