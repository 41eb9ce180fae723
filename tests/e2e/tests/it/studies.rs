//! `divvy simulate` for the packing of nodes and for waits in queues: the real program on the data of `tests/data`, and on
//! a daemon's own jobs.

use std::fs;
use std::path::{Path, PathBuf};

use divvy_e2e::{CommandOutput, Home};
use divvy_testkit::Bounded as _;
use serde_json::Value;

use crate::shown::shown;

mod live;
mod packing;
mod refused;
mod waits;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn data(name: &str) -> String {
    root().join("tests/data").join(name).display().to_string()
}

/// Runs `divvy simulate` with these words; `openb/` and `simulate/` name files of `tests/data`.
fn simulate(home: &Home, words: &str) -> CommandOutput {
    let word = |word: &str| {
        if word.starts_with("openb/") || word.starts_with("simulate/") {
            data(word)
        } else {
            word.to_owned()
        }
    };
    let words: Vec<String> = words.split_whitespace().map(word).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    home.divvy(&[&["simulate"], words.as_slice()].concat())
}

const PACKING: &str = "openb/pods.csv --nodes openb/nodes.csv";
const WAITS: &str =
    "simulate/history.ndjson --mode waits --gpus a100-80gb:2 --queues pair,whole,half,quarter";

/// At 100 %, in percent.
fn unallocated(item: &Value) -> f64 {
    let points = item["points"].as_array().expect("points");
    let point = points
        .iter()
        .find(|point| point["arrived_percent"] == 100)
        .expect("a point at 100 %");
    point["unallocated"]["ratio"].as_f64().expect("a ratio") * 100.0
}

/// `shown.rs` compares the words of all pages; here each figure counts, since equal seeds give equal figures.
#[test]
fn the_page_shows_exactly_what_its_commands_print() {
    let page = fs::read_to_string(root().join("docs/simulate.md")).expect("a page");
    let home = Home::new("a100-80gb:2");
    let folder = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink(root().join("tests"), folder.path().join("tests"))
        .expect("a new folder");
    let all = shown(&page);
    assert!(all.len() >= 11, "{} commands", all.len());
    let (divvy, path) = (
        PathBuf::from(home.program("divvy")),
        std::env::var("PATH").unwrap_or_default(),
    );
    let path = format!("{}:{path}", divvy.parent().expect("a folder").display());
    for shown in all {
        let mut shell = home.command("bash");
        shell
            .args(["-c", &shown.command])
            .current_dir(folder.path())
            .env("PATH", &path);
        let output = shell.output_bounded().expect("the shell runs");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let expected = shown.output.join("\n");
        assert_eq!(
            printed.trim_end(),
            expected.trim_end(),
            "`{}`",
            shown.command
        );
    }
}
