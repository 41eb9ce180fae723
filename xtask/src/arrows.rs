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
                "checkpoint",
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
    back: &[],
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
        (
            "resize",
            &["units", "model", "placement", "plan", "project"],
        ),
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
    back: &[],
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
    back: &[],
    has_headers: true,
};

/// The limiter. `account` and `table` are hubs: the process reaches its state and its hooks through them.
const SHIM: Tree = Tree {
    root: "crates/shim/src/lib.rs",
    module: &[],
    rows: &[
        ("park", &[]),
        ("account", &["park"]),
        ("log", &[]),
        ("process", &["account", "log", "park"]),
        ("oom_report", &["account", "process"]),
        ("route", &["park", "process", "oom_report"]),
        ("device", &["account", "process", "oom_report", "route"]),
        (
            "charge",
            &["account", "process", "oom_report", "route", "device"],
        ),
        (
            "compute",
            &["account", "process", "route", "device", "charge"],
        ),
        (
            "context",
            &[
                "account",
                "process",
                "oom_report",
                "route",
                "device",
                "charge",
            ],
        ),
        ("visible_devices", &["log", "process", "route"]),
        (
            "table",
            &["route", "charge", "compute", "context", "visible_devices"],
        ),
        (
            "view",
            &[
                "account", "log", "park", "process", "route", "device", "table",
            ],
        ),
    ],
    back: &[
        ("account", "charge"),
        ("account", "compute"),
        ("account", "context"),
        ("account", "device"),
        ("account", "oom_report"),
        ("account", "process"),
        ("charge", "table"),
        ("charge", "compute"),
        ("oom_report", "charge"),
        ("oom_report", "device"),
        ("oom_report", "table"),
        ("process", "compute"),
        ("process", "device"),
        ("process", "route"),
        ("route", "table"),
        ("table", "view"),
    ],
    has_headers: false,
};

/// The ledger of a slice: shared memory, from its layout up to its views.
const LEDGER: Tree = Tree {
    root: "crates/ledger/src/lib.rs",
    module: &[],
    rows: &[
        ("account", &[]),
        ("layout", &[]),
        ("kept", &["layout"]),
        ("map", &["layout", "kept"]),
        ("control", &["layout", "kept", "map"]),
        ("syscall", &[]),
        ("fork", &["syscall"]),
        ("futex", &["syscall"]),
        ("lock", &["fork"]),
        ("process", &["syscall"]),
        ("reap", &["account", "layout", "map", "lock", "process"]),
        (
            "slice",
            &[
                "account", "layout", "kept", "map", "control", "lock", "process", "reap",
            ],
        ),
        ("reader", &["map", "slice"]),
        (
            "slot",
            &[
                "account", "layout", "map", "syscall", "fork", "lock", "process", "reap", "slice",
            ],
        ),
        (
            "compute",
            &[
                "layout", "map", "control", "futex", "process", "slice", "slot",
            ],
        ),
        ("denial", &["layout", "map", "process", "slice", "slot"]),
        ("hold", &["account", "layout", "syscall", "process", "slot"]),
        ("integrity", &["layout", "kept", "slot"]),
        (
            "join",
            &[
                "account",
                "layout",
                "map",
                "fork",
                "lock",
                "process",
                "reap",
                "slice",
                "slot",
                "compute",
                "integrity",
            ],
        ),
        (
            "shared",
            &[
                "account", "layout", "map", "lock", "reap", "slice", "slot", "hold",
            ],
        ),
    ],
    back: &[
        ("control", "compute"),
        ("reap", "shared"),
        ("slice", "shared"),
        ("slot", "integrity"),
        ("fork", "lock"),
    ],
    has_headers: false,
};

/// The command line. `call` has what the verbs share, and `verbs` chooses among them.
const CLI: Tree = Tree {
    root: "crates/cli/src/lib.rs",
    module: &[],
    rows: &[
        ("colour", &[]),
        ("table", &["colour"]),
        ("text", &["colour"]),
        ("error_output", &["colour", "table", "text"]),
        ("args", &["error_output"]),
        ("manual", &["args"]),
        ("rejection", &["args", "error_output"]),
        ("render", &["colour", "table", "text", "args"]),
        (
            "output",
            &["colour", "table", "text", "error_output", "render"],
        ),
        ("call", &["args", "output"]),
        ("container", &["text", "error_output", "output"]),
        ("script", &["error_output", "args", "rejection", "output"]),
        ("start", &["text", "error_output", "args", "output", "call"]),
        (
            "ask",
            &[
                "text",
                "error_output",
                "args",
                "output",
                "container",
                "start",
            ],
        ),
        ("complete", &["text", "args", "ask"]),
        ("serve", &["error_output", "args", "container"]),
        (
            "top",
            &["text", "error_output", "args", "render", "output", "ask"],
        ),
        ("watch", &["text", "error_output", "args", "output", "call"]),
        ("web", &["args", "render", "output", "call"]),
        (
            "verbs",
            &[
                "text",
                "error_output",
                "args",
                "manual",
                "rejection",
                "render",
                "output",
                "call",
                "container",
                "start",
                "ask",
                "complete",
                "serve",
                "top",
                "watch",
                "web",
            ],
        ),
    ],
    back: &[],
    has_headers: false,
};

/// The front end to a ClearML Server.
const CLEARML: Tree = Tree {
    root: "crates/clearml/src/lib.rs",
    module: &[],
    rows: &[
        ("facts", &[]),
        ("projects", &["facts"]),
        ("secret", &[]),
        ("config", &["secret"]),
        ("server", &["facts", "secret", "config"]),
        ("error", &["projects", "config", "server"]),
        ("slot", &[]),
        ("container", &["config", "server", "slot"]),
        ("options", &["projects", "config", "slot", "container"]),
        ("stop", &[]),
        (
            "frontend",
            &[
                "facts",
                "projects",
                "config",
                "server",
                "error",
                "slot",
                "container",
                "options",
                "stop",
            ],
        ),
    ],
    back: &[],
    has_headers: false,
};

/// The SPANK plugin.
const SLURM_PLUGIN: Tree = Tree {
    root: "crates/slurm/src/lib.rs",
    module: &[],
    rows: &[
        ("record", &[]),
        ("mounts", &["record"]),
        ("spank", &[]),
        ("visible", &[]),
        ("hooks", &["record", "mounts", "spank", "visible"]),
        ("plugin", &["spank", "hooks"]),
    ],
    back: &[],
    has_headers: false,
};

/// The commands of a Slurm node.
const SLURM_NODE: Tree = Tree {
    root: "crates/slurm/src/node.rs",
    module: &["node"],
    rows: &[
        ("allocation", &[]),
        ("config", &[]),
        ("environment", &[]),
        ("gpus", &[]),
        ("programs", &["config", "environment"]),
        ("gres", &["allocation", "config", "programs"]),
        ("amounts", &["allocation", "gres"]),
        (
            "daemon",
            &["config", "environment", "gpus", "programs", "amounts"],
        ),
        ("closing", &["config", "environment", "programs", "daemon"]),
    ],
    back: &[],
    has_headers: false,
};

/// Divvy on Kubernetes.
const K8S: Tree = Tree {
    root: "crates/k8s/src/lib.rs",
    module: &[],
    rows: &[
        ("base", &[]),
        ("carrier", &["base"]),
        ("glue", &["base"]),
        ("node", &["base", "carrier"]),
        ("teams", &["base"]),
        ("controller", &["base", "carrier", "teams"]),
        ("extender", &["base", "carrier", "controller"]),
        (
            "tools",
            &["base", "carrier", "node", "teams", "controller", "extender"],
        ),
    ],
    back: &[],
    has_headers: false,
};

/// The trees of rooms. `cargo xtask arrows` prints their figures.
const TREES: [&Tree; 10] = [
    &AGENT,
    &CORE,
    &SIM,
    &SHIM,
    &LEDGER,
    &CLI,
    &CLEARML,
    &K8S,
    &SLURM_PLUGIN,
    &SLURM_NODE,
];

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
