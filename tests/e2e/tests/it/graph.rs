//! CUDA graphs as programs use them: captured from streams, with memory of their own, launched again and again.

use divvy_e2e::{Home, client_script, python};
use serde_json::{Value, json};

/// The kernels that the simulator's own tests load.
const KERNELS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../crates/sim/tests/driver/kernels.ptx"
);

/// What the script prints, run beside Divvy on the whole GPU and as a job with 4 GiB of it.
fn outside_and_inside(script: &str) -> [Value; 2] {
    let (home, python) = (Home::new("a100-80gb:1"), python());
    let python = python.to_str().expect("a path");
    let _daemon = home.daemon(&[]);
    let script = client_script(script);
    let outside = home.look(python, &[&script, KERNELS]).ok().json();
    let command = ["run", "--gpu-memory", "4G", "--", python, &script, KERNELS];
    [outside, home.divvy(&command).ok().json()]
}

#[test]
fn cuda_bindings_captures_allocates_and_launches() {
    for report in outside_and_inside("bindings_graph.py") {
        assert_eq!(
            report["seen"],
            json!([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]),
            "{report}"
        );
        let kinds = ["MEM_ALLOC", "KERNEL", "KERNEL", "MEM_FREE", "MEMCPY"];
        let kinds = kinds.map(|kind| format!("CU_GRAPH_NODE_TYPE_{kind}"));
        assert_eq!(report["kinds"], json!(kinds), "{report}");
        assert_eq!(
            report["reserved_bytes"], report["scratch_bytes"],
            "{report}"
        );
    }
}

#[test]
fn cuda_core_builds_a_graph_with_branches() {
    for report in outside_and_inside("core_graph.py") {
        let took = report["took_ms"].as_f64().expect("a figure");
        let launches = report["launches"].as_f64().expect("a figure");
        assert!(
            took >= launches * 0.75,
            "three kernels of 250 µs each: {report}"
        );
    }
}
