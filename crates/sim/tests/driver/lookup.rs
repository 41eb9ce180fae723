//! `cuGetProcAddress` as observed on driver 535, and the library's exports.

use std::io::Write as _;
use std::process::Stdio;

use divvy_testkit::{Bounded as _, programs};

use crate::machine::{Client, Machine};
use divvy_driver::sys::symbols;

const FOUND: u32 = 0;
const SYMBOL_NOT_FOUND: u32 = 1;
const VERSION_NOT_SUFFICIENT: u32 = 2;

struct Lookup {
    client: Client,
    _machine: Machine,
}

impl Lookup {
    fn new() -> Lookup {
        let machine = Machine::new("l4-24gb:1");
        Lookup {
            client: machine.client(),
            _machine: machine,
        }
    }

    /// `(result, status, address)`; lookups work before `cuInit`.
    fn get(&mut self, name: &str, version: u32, flags: u32) -> (u32, u32, u64) {
        self.client.set("pfn", u64::MAX);
        self.client.set("status", 9u64);
        let result = self.client.call(&format!(
            "cuGetProcAddress_v2 \"{name}\" &pfn {version} {flags} &status"
        ));
        (
            result,
            self.client.value("status") as u32,
            self.client.value("pfn"),
        )
    }

    fn exported(&mut self, symbol: &str) -> u64 {
        self.client.ok(&[&format!("address &exported {symbol}")]);
        self.client.value("exported")
    }
}

#[test]
fn every_name_version_and_form_gives_the_exported_symbol() {
    let mut lookup = Lookup::new();
    for (name, version, per_thread, symbol) in symbols::proc_addresses() {
        let expected = lookup.exported(symbol);
        let flags = if per_thread { 2 } else { 0 };
        assert_eq!(
            lookup.get(name, version.min(13_050), flags),
            (0, FOUND, expected),
            "{name} {version} {symbol}"
        );
    }
}

#[test]
fn what_is_not_found_says_why_and_clears_the_pointer() {
    let mut lookup = Lookup::new();
    for name in ["cuNoSuchFunction", "cuMemAlloc_v2", ""] {
        assert_eq!(
            lookup.get(name, 13_000, 0),
            (0, SYMBOL_NOT_FOUND, 0),
            "{name:?}"
        );
    }
    assert_eq!(
        lookup.get("cuMemAllocAsync", 11_010, 0),
        (0, VERSION_NOT_SUFFICIENT, 0)
    );
    // The per-thread form appeared in CUDA 7.0; asked for an older version there is no falling back to the plain one.
    assert_eq!(
        lookup.get("cuMemcpyHtoD", 6_000, 2),
        (0, VERSION_NOT_SUFFICIENT, 0)
    );
    assert_eq!(lookup.get("cuMemcpyHtoD", 6_000, 0).1, FOUND);
    assert_eq!(lookup.get("cuInit", 13_000, 3).0, 1);
}

#[test]
fn the_lookup_finds_itself() {
    let mut lookup = Lookup::new();
    let (old, new) = (
        lookup.exported("cuGetProcAddress"),
        lookup.exported("cuGetProcAddress_v2"),
    );
    assert_eq!(lookup.get("cuGetProcAddress", 11_030, 0), (0, FOUND, old));
    assert_eq!(lookup.get("cuGetProcAddress", 12_000, 0), (0, FOUND, new));
}

#[test]
fn the_first_form_answers_with_an_error_code() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    client.ok(&["cuGetProcAddress \"cuInit\" &pfn 12000 0"]);
    assert_ne!(client.value("pfn"), 0);
    assert_eq!(
        client.call("cuGetProcAddress \"cuNoSuchFunction\" &pfn 12000 0"),
        500
    );
    assert_eq!(client.call("cuGetProcAddress_v2 0 &pfn 12000 0 0"), 1);
    assert_eq!(client.call("cuGetProcAddress_v2 \"cuInit\" 0 12000 0 0"), 1);
}

#[test]
fn a_driver_without_export_tables_says_once_why_the_runtime_fails() {
    let machine = Machine::new("l4-24gb:1");
    let mut command = machine.with("NOTHING", "").command();
    let mut child = command.stderr(Stdio::piped()).spawn().expect("starts");
    let ask = "cuGetExportTable &table &id\n";
    let orders = format!("bytes id 6bd5fb6c5bf4e74a8987d93912fd9df9\n{ask}{ask}get table\n");
    let mut listens = child.stdin.take().expect("piped");
    listens.write_all(orders.as_bytes()).expect("listens");
    drop(listens);
    let output = child.output_bounded().expect("ends");
    let answers = String::from_utf8_lossy(&output.stdout);
    let answers: Vec<&str> = answers.lines().collect();
    assert_eq!(answers[..3], ["0", "1", "1"]);
    assert!(answers[3].starts_with("0000000000000000"), "{answers:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.contains("CUDA runtime") && said.contains("simulated GPUs"),
        "{said}"
    );
}

#[test]
fn every_name_of_both_libraries_is_exported_and_nothing_else() {
    let library = programs::folder().join("libdivvy_sim.so");
    let output = std::process::Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library)
        .output_bounded()
        .expect("binutils");
    let text = String::from_utf8(output.stdout).expect("text");
    let mut exported: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .collect();
    exported.sort_unstable();
    let mut expected: Vec<&str> = symbols::CUDA.iter().chain(symbols::NVML).copied().collect();
    // What no driver has: how tests reset GPUs and restart the machine.
    expected.push("divvy_sim_control");
    expected.sort_unstable();
    assert_eq!(exported, expected);
}

#[test]
fn what_is_not_implemented_says_so() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    assert_eq!(client.call("cuCoredumpGetAttribute 0 0 0"), 801);
    assert_eq!(client.call("nvmlDeviceGetGspFirmwareMode 0 0 0"), 3);
}
