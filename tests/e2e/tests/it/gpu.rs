//! The program that tries a real GPU runs over the simulated one to its end, and says that it is one.

use std::time::Duration;

use divvy_e2e::{Home, Programs, python};
use divvy_testkit::bounded_for;
use serde_json::Value;

mod exhaustive {
    #[test]
    fn over_simulated_gpus_every_item_works_or_says_what_it_lacks() {
        super::every_item_works_or_says_what_it_lacks();
    }
}

fn every_item_works_or_says_what_it_lacks() {
    let home = Home::with(Programs::of_this_test(), None);
    let path = home.scratch().join("report.json");
    let mut gpu = home.command(home.program("gpu"));
    gpu.args(["--sim", "a100-80gb:1", "--quick", "--json"])
        .arg(&path);
    gpu.arg("--python").arg(python());
    // A busy machine leaves nothing out.
    gpu.args(["--seconds", "3600"]);
    let what = "the acceptance program has tried every item";
    #[expect(
        clippy::disallowed_methods,
        reason = "bounded by more than the usual minute"
    )]
    let output = bounded_for(Duration::from_secs(300), what, || gpu.output());
    let output = output.expect("the program starts");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        told.contains("nothing here was measured on hardware"),
        "{told}"
    );

    let report: Value = serde_json::from_str(&std::fs::read_to_string(path).expect("a report"))
        .expect("the report is JSON");
    assert_eq!(report["schema"], "divvy/gpu-report/v1");
    assert_eq!(report["simulated"], true);
    let items = report["items"].as_array().expect("items");
    assert!(items.iter().all(|item| item["simulated"] == true));
    let status = |name: &str| {
        let item = items.iter().find(|item| item["name"] == name);
        item.map(|item| item["status"].clone()).unwrap_or_default()
    };
    // What the self-test finds is held in `selftest.rs`; here, that it was run and that everything else works.
    let failed: Vec<&Value> = items
        .iter()
        .filter(|item| item["status"] == "failed")
        .filter(|item| {
            !item["name"]
                .as_str()
                .is_some_and(|name| name.starts_with("selftest."))
        })
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
    for name in ["selftest.preload", "selftest.wrapper", "selftest.daemon"] {
        assert_ne!(status(name), Value::Null, "{name}: {told}");
    }
    for name in [
        "doctor",
        "fill.linear",
        "fill.vmm",
        "race",
        "energy",
        "fact.alloc_sizes",
        "slice.alloc_sizes",
        "fact.pool_segments",
        "fact.kill_return",
        "overhead",
        "client.cuda_bindings",
        "client.numba",
    ] {
        assert_eq!(status(name), "ok", "{name}: {told}");
    }
    // A program that is not there is named as such.
    for name in ["program.sglang", "program.tritonserver"] {
        assert_eq!(status(name), "not_available", "{name}: {told}");
    }
    // What the simulator's driver does is what the simulator believes.
    let sizes = items.iter().find(|item| item["name"] == "fact.alloc_sizes");
    let rows = &sizes.expect("it was measured")["value"]["sizes"];
    assert_eq!(
        (&rows[0]["asked"], &rows[0]["each_by_cuda"]),
        (&1.into(), &512.0.into())
    );
}
