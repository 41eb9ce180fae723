//! `cargo xtask bless`: writes every generated file anew.
//!
//! Most of them are what a test compares with the code. With `DIVVY_RECORD` such a test writes its file instead, and with
//! `INSTA_UPDATE` insta does. The table has the files, and what writes each.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::cargo::{self, root};
use crate::nextest::{self, Run};
use crate::steps::{answer, step};
use crate::test::Engine;
use crate::{helm, symbols, tools, venv};

/// A file, or a folder of files.
struct Generated {
    path: &'static str,
    by: Writer,
}

/// The writer of a generated file.
enum Writer {
    /// Tests, by a filter of nextest. The source has the recording.
    Tests {
        source: &'static str,
        filter: &'static str,
    },
    /// This program, from the folder of NVIDIA's headers.
    Here(fn(&Path) -> Result<()>),
}

const fn recorded(path: &'static str, source: &'static str, filter: &'static str) -> Generated {
    let by = Writer::Tests { source, filter };
    Generated { path, by }
}

const TABLE: [Generated; 18] = [
    recorded(
        "openapi/v1.json",
        "crates/agent/tests/it/openapi.rs",
        "package(divvy-agent) and test(/^openapi::the_committed_document/)",
    ),
    recorded(
        "crates/core/tests/scenarios",
        "crates/core/tests/it/scenarios.rs",
        "package(divvy-core) and test(/^scenarios::/)",
    ),
    recorded(
        "docs/enforcement.md",
        "crates/shim/src/page.rs",
        "package(divvy-shim) and test(/the_reference_page_/)",
    ),
    recorded(
        "crates/shim/src/route/touch/list.rs",
        "crates/shim/src/route/touch.rs",
        "package(divvy-shim) and test(/every_function_that_wakes_a_parked_job_has/)",
    ),
    recorded(
        "docs/enforcement.md",
        "crates/shim/tests/it/matrix.rs",
        "package(divvy-shim) and test(/the_reference_page_/)",
    ),
    recorded(
        "deploy/helm/divvy/files/webhooks.json",
        "crates/k8s/tests/it/chart.rs",
        "package(divvy-k8s) and test(/^chart::the_charts_/)",
    ),
    recorded(
        "deploy/helm/divvy/templates/controller/projectreport.yaml",
        "crates/k8s/tests/it/chart.rs",
        "package(divvy-k8s) and test(/^chart::the_charts_/)",
    ),
    recorded(
        "tests/e2e/tests/verbs.txt",
        "tests/e2e/tests/it/verbs.rs",
        "package(divvy-e2e) and test(/^verbs::every_verb/)",
    ),
    recorded(
        "docs/web.md",
        "tests/e2e/tests/it/web/table.rs",
        "package(divvy-e2e) and test(/^web::table::/)",
    ),
    recorded(
        "docs/config.md",
        "crates/api/src/daemon/keys.rs",
        "package(divvy-api) and test(/^daemon::keys::/)",
    ),
    recorded(
        "deploy/config.toml",
        "crates/cli/src/render/config.rs",
        "package(divvy-cli) and test(/^render::config::/)",
    ),
    recorded(
        "crates/api/src/daemon/file/snapshots",
        "crates/api/src/daemon/file/tests.rs",
        "package(divvy-api) and test(/^daemon::file::/)",
    ),
    recorded(
        "crates/cli/src/top",
        "crates/cli/src/top",
        "package(divvy-cli) and test(/^top::/)",
    ),
    recorded(
        "crates/cli/tests/it/snapshots",
        "crates/cli/tests/it",
        "package(divvy-cli) and kind(test)",
    ),
    recorded(
        "crates/divvy/tests/it/surface/snapshots",
        "crates/divvy/tests/it/surface",
        "package(divvy) and test(/^surface::/)",
    ),
    recorded(
        "crates/k8s/tests/it/reviews",
        "crates/k8s/tests/it/reviews.rs",
        "package(divvy-k8s) and test(/^reviews::/)",
    ),
    recorded(
        "crates/study/tests/it/snapshots",
        "crates/study/tests/it/tables.rs",
        "package(divvy-study) and test(/^tables::/)",
    ),
    Generated {
        path: "crates/driver/src/sys/symbols/tables.rs",
        by: Writer::Here(symbols::write),
    },
];

/// The tests that write files, as one filter of nextest.
fn filter() -> String {
    let mut filters: Vec<&str> = TABLE.iter().filter_map(Generated::filter).collect();
    filters.dedup();
    let each: Vec<String> = filters.iter().map(|one| format!("({one})")).collect();
    each.join(" or ")
}

impl Generated {
    fn filter(&self) -> Option<&'static str> {
        match self.by {
            Writer::Tests { filter, .. } => Some(filter),
            Writer::Here(_) => None,
        }
    }
}

/// Writes the files, and names those that changed.
///
/// # Errors
/// The build fails, or a test that writes no file.
pub fn write() -> Result<()> {
    cargo::prepare(tools::all)?;
    let program = nextest::program()?;
    let venv = venv::make()?;
    let include = venv.cuda_include()?;
    for Generated { path, by } in &TABLE {
        match by {
            Writer::Here(write) => step(path, "from tables and headers", || write(&include))?,
            Writer::Tests { source, .. } => eprintln!("   {path}: by the tests of {source}"),
        }
    }
    step(
        "build",
        "the programs and tests whose output is recorded",
        cargo::build_all,
    )?;
    let programs = cargo::target().join("debug");
    let mut variables = vec![
        ("DIVVY_RECORD", "1".into()),
        ("INSTA_UPDATE", "always".into()),
        ("DIVVY_TEST_PROGRAMS", programs),
        ("DIVVY_TEST_PYTHON", venv.python()),
        ("DIVVY_CUDA_INCLUDE", include),
    ];
    variables.extend(helm::make().map(|found| ("DIVVY_TEST_HELM", found.helm)));
    // Without an engine the scenes of containers keep their record.
    let engine = Engine::start("docker", None)?;
    let folder = engine.as_ref().map(|engine| engine.folder.clone());
    variables.extend(folder.map(|folder| ("DIVVY_TEST_DOCKER", folder)));
    let filter = filter();
    step("record", "the tests that write their files", || {
        let words = ["--workspace", "--filterset", &filter];
        Run {
            program: &program,
            profile: "default",
            words: &words,
            variables,
        }
        .run()
    })?;
    drop(engine);
    let mut changed = Command::new("git");
    changed
        .args(["status", "--short", "--"])
        .args(TABLE.iter().map(|one| one.path));
    let changed = answer(changed.current_dir(root())).unwrap_or_default();
    if changed.is_empty() {
        eprintln!("every generated file is as it was")
    } else {
        eprintln!("changed:\n{changed}")
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::sources;

    /// Where a row has its recording.
    fn is_covered(source: &str) -> bool {
        TABLE.iter().any(|row| match row.by {
            Writer::Tests { source: known, .. } => source
                .strip_prefix(known)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
            Writer::Here(_) => false,
        })
    }

    #[test]
    fn the_table_of_bless_names_each_source_that_records_a_file() {
        let found = sources(&["crates", "tests"]);
        let records = |text: &str| {
            text.contains("var_os(\"DIVVY_RECORD\")")
                || text.contains("assert_snapshot!(")
                || text.contains("insta::assert_")
        };
        let sources: Vec<&String> = found
            .iter()
            .filter(|(_, text)| records(text))
            .map(|(path, _)| path)
            .collect();
        assert!(sources.len() > 8, "{sources:?}");
        let missing: Vec<&&String> = sources.iter().filter(|path| !is_covered(path)).collect();
        assert!(missing.is_empty(), "not in the table: {missing:?}");
        let is_used = |row: &&Generated| match row.by {
            Writer::Tests { source, .. } => sources.iter().any(|path| path.starts_with(source)),
            Writer::Here(_) => true,
        };
        let gone: Vec<&str> = TABLE
            .iter()
            .filter(|row| !is_used(row))
            .map(|row| row.path)
            .collect();
        assert!(gone.is_empty(), "no source records {gone:?}");
    }

    #[test]
    fn the_table_of_bless_names_each_snapshot_and_no_file_that_is_gone() {
        for row in &TABLE {
            assert!(root().join(row.path).exists(), "{} is gone", row.path);
        }
        let mut list = Command::new("git");
        list.args(["ls-files", "*.snap"]);
        let listed = answer(list.current_dir(root())).expect("git lists the snapshots");
        let snapshots: Vec<&str> = listed.lines().collect();
        assert!(snapshots.len() > 100, "{} snapshots", snapshots.len());
        for snapshot in snapshots {
            let is_known = TABLE.iter().any(|row| snapshot.starts_with(row.path));
            assert!(is_known, "{snapshot} is in no folder of the table");
        }
    }

    #[test]
    fn the_page_for_contributors_names_bless_alone_for_generated_files() {
        let page = std::fs::read_to_string(root().join("CONTRIBUTING.md")).expect("a page");
        assert!(page.contains("`cargo xtask bless`"));
        for word in ["DIVVY_RECORD", "INSTA_UPDATE", "UPDATE_OPENAPI"] {
            assert!(!page.contains(word), "CONTRIBUTING.md names {word}");
        }
    }
}
