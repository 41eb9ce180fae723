//! The allowed dependencies between our crates, and between the rooms of a crate. Tests compare the tables with what Cargo says of the
//! workspace and with the imports in the code, and fail on any other dependency.
#![cfg(test)]

use std::collections::BTreeMap;

use serde_json::Value;

use crate::cargo::cargo;
use crate::rooms::{self, Tree};
use crate::steps::answer;

/// Crate → our crates that it may use. The reasons are in ARCHITECTURE.md.
const ARROWS: [(&str, &[&str]); 25] = [
    ("divvy-core", &[]),
    ("divvy-packing", &["divvy-core"]),
    ("divvy-driver", &["divvy-testkit"]),
    ("divvy-ledger", &["divvy-testkit"]),
    ("divvy-fork", &["divvy-testkit"]),
    (
        "divvy-shim",
        &["divvy-driver", "divvy-ledger", "divvy-testkit"],
    ),
    ("divvy-preload", &["divvy-shim"]),
    ("divvy-wrapper-cuda", &["divvy-driver", "divvy-shim"]),
    ("divvy-wrapper-nvml", &["divvy-driver", "divvy-shim"]),
    ("divvy-sim", &["divvy-driver", "divvy-testkit"]),
    ("divvy-api", &["divvy-core"]),
    ("divvy-web", &[]),
    (
        "divvy-agent",
        &[
            "divvy-api",
            "divvy-core",
            "divvy-driver",
            "divvy-fork",
            "divvy-ledger",
            "divvy-testkit",
            "divvy-web",
        ],
    ),
    (
        "divvy-clearml",
        &[
            "divvy-api",
            "divvy-clearml-stub",
            "divvy-core",
            "divvy-testkit",
        ],
    ),
    ("divvy-cli", &["divvy-api", "divvy-core", "divvy-web"]),
    (
        "divvy-study",
        &["divvy-api", "divvy-cli", "divvy-core", "divvy-packing"],
    ),
    (
        "divvy-k8s",
        &[
            "divvy-api",
            "divvy-clearml",
            "divvy-clearml-stub",
            "divvy-cli",
            "divvy-core",
            "divvy-packing",
            "divvy-testkit",
        ],
    ),
    (
        "divvy",
        &[
            "divvy-agent",
            "divvy-api",
            "divvy-clearml",
            "divvy-clearml-stub",
            "divvy-cli",
            "divvy-core",
            "divvy-study",
            "divvy-testkit",
        ],
    ),
    (
        "divvy-slurm",
        &["divvy-api", "divvy-core", "divvy-fork", "divvy-testkit"],
    ),
    ("divvy-clients", &[]),
    ("divvy-clearml-stub", &["divvy-testkit"]),
    (
        "divvy-e2e",
        &[
            "divvy-api",
            "divvy-clearml-stub",
            "divvy-driver",
            "divvy-testkit",
        ],
    ),
    ("divvy-browser", &["divvy-api", "divvy-testkit"]),
    ("divvy-testkit", &["divvy-api"]),
    ("xtask", &[]),
];

/// The node agent, from the ground up. The header of each room names its neighbours.
const AGENT: Tree = Tree {
    root: "crates/agent/src/lib.rs",
    module: &[],
    rows: &[
        ("host", &[]),
        ("registry", &["host"]),
        ("auth", &["host"]),
        ("compute", &["host"]),
        ("history", &["host"]),
        ("model", &["host", "auth"]),
        ("gpu", &["host", "model"]),
        ("job_dir", &["host", "model"]),
        ("checkpoint", &["host", "gpu"]),
        ("config", &["host", "auth", "model", "job_dir"]),
        ("exec", &["host", "job_dir"]),
        ("journal", &["host", "model", "job_dir"]),
        (
            "supervisor",
            &["host", "registry", "model", "job_dir", "exec"],
        ),
        (
            "container",
            &["host", "model", "job_dir", "exec", "supervisor"],
        ),
        (
            "controller",
            &[
                "host",
                "registry",
                "auth",
                "compute",
                "history",
                "model",
                "gpu",
                "job_dir",
                "checkpoint",
                "config",
                "journal",
                "supervisor",
                "container",
            ],
        ),
        (
            "http",
            &[
                "host",
                "auth",
                "history",
                "model",
                "gpu",
                "job_dir",
                "exec",
                "journal",
                "container",
                "controller",
            ],
        ),
        (
            "daemon",
            &[
                "host",
                "registry",
                "auth",
                "compute",
                "history",
                "model",
                "gpu",
                "job_dir",
                "checkpoint",
                "config",
                "journal",
                "supervisor",
                "container",
                "controller",
                "http",
            ],
        ),
        (
            "diagnostics",
            &[
                "host",
                "registry",
                "gpu",
                "job_dir",
                "config",
                "supervisor",
                "daemon",
            ],
        ),
        (
            "standalone",
            &[
                "host",
                "registry",
                "model",
                "gpu",
                "job_dir",
                "config",
                "journal",
                "supervisor",
                "container",
                "controller",
                "daemon",
            ],
        ),
    ],
    has_headers: true,
};

/// The planner and the rest of the core. `explain` words what `plan` decides: no deciding room may use it.
const CORE: Tree = Tree {
    root: "crates/core/src/lib.rs",
    module: &[],
    rows: &[
        ("units", &[]),
        ("docker", &[]),
        ("lease", &["units"]),
        ("mig", &["units"]),
        ("model", &["units", "mig"]),
        ("reconcile", &["units", "model"]),
        ("placement", &["units", "mig", "model"]),
        ("project", &["units", "model", "placement"]),
        ("plan", &["units", "mig", "model", "placement", "project"]),
        ("resize", &["units", "model", "placement", "project"]),
        (
            "explain",
            &[
                "units",
                "mig",
                "model",
                "placement",
                "project",
                "plan",
                "resize",
            ],
        ),
    ],
    has_headers: true,
};

/// The engine of the simulated driver.
const SIM: Tree = Tree {
    root: "crates/sim/src/engine.rs",
    module: &["engine"],
    rows: &[
        ("time", &[]),
        ("mig", &[]),
        ("machine", &["mig", "time"]),
        ("objects", &["machine", "mig", "time"]),
        ("process", &["machine", "mig", "objects", "time"]),
        ("memory", &["machine", "mig", "objects", "process"]),
        ("module", &["objects", "process"]),
        ("work", &["machine", "objects", "process", "time"]),
        ("context", &["objects", "process"]),
    ],
    has_headers: true,
};

/// The trees of rooms. `cargo xtask arrows` prints their figures.
const TREES: [&Tree; 3] = [&AGENT, &CORE, &SIM];

#[test]
fn no_room_uses_another_that_it_may_not() {
    let mut faults = Vec::new();
    for tree in TREES {
        let report = rooms::check(tree);
        println!("{}: {}", tree.root, report.figures);
        faults.extend(report.faults);
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn no_crate_uses_another_that_it_may_not() {
    let said = answer(&mut cargo(&[
        "metadata",
        "--no-deps",
        "--offline",
        "--format-version",
        "1",
    ]))
    .expect("cargo describes the workspace");
    let metadata: Value = serde_json::from_str(&said).expect("cargo prints JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let allowed: BTreeMap<&str, &[&str]> = ARROWS.into_iter().collect();
    let mut seen = 0;
    for package in packages {
        let name = package["name"].as_str().expect("a package has a name");
        let may = allowed
            .get(name)
            .unwrap_or_else(|| panic!("{name} is not in the table of arrows"));
        // A path is what makes a dependency ours; a dev-dependency is an arrow like any other.
        let uses = package["dependencies"]
            .as_array()
            .expect("dependencies")
            .iter()
            .filter(|used| used["path"].is_string());
        for used in uses.map(|used| used["name"].as_str().expect("a dependency has a name")) {
            assert!(may.contains(&used), "{name} must not use {used}");
        }
        seen += 1;
    }
    assert_eq!(seen, ARROWS.len(), "the table names a crate that is gone");
}
