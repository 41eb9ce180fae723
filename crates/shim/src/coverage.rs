//! The coverage table: the treatment of every driver function, hooked or not. Tests compare `coverage.toml` with the
//! table of hooks and with the symbols of NVIDIA's headers. The library contains nothing of it.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use divvy_driver::sys::symbols;
use divvy_testkit::Bounded as _;
use serde::Deserialize;

use crate::page;
use crate::park;
use crate::table::HOOKS;

const FILE: &str = include_str!("../coverage.toml");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    row: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    class: Class,
    parked: Parked,
    functions: Vec<String>,
    why: String,
    /// It has to do with memory, though nothing is counted.
    #[serde(default)]
    memory: bool,
    /// Exported, but in no header that the tables were made from.
    #[serde(default)]
    undeclared: bool,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[serde(rename_all = "lowercase")]
enum Class {
    Counted,
    Freed,
    Followed,
    Gated,
    Shown,
    Routed,
    Refused,
    Passed,
}

/// What a call does while its job is parked.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum Parked {
    Wakes,
    Answered,
    Passes,
}

impl Class {
    fn has_hook(self) -> bool {
        self != Class::Passed
    }
}

/// How exactly a pattern means a symbol; `None` when it does not. A name means itself, then all revisions and forms of its
/// function; a beginning means everything that begins so, the longest most exactly.
fn match_of(pattern: &str, symbol: &str) -> Option<(u8, usize)> {
    if let Some(beginning) = pattern.strip_suffix('*') {
        return symbol
            .starts_with(beginning)
            .then_some((0, beginning.len()));
    }
    if pattern == symbol && base(symbol) != symbol {
        return Some((2, 0));
    }
    (pattern == base(symbol)).then_some((1, 0))
}

/// `cuMemAllocAsync` of `cuMemAllocAsync_v2_ptsz`.
fn base(symbol: &str) -> &str {
    let symbol = symbol.strip_suffix("_ptsz").unwrap_or(symbol);
    let symbol = symbol.strip_suffix("_ptds").unwrap_or(symbol);
    match symbol.rsplit_once("_v") {
        Some((base, number)) if number.parse::<u8>().is_ok() => base,
        _ => symbol,
    }
}

fn rows() -> Vec<Row> {
    toml::from_str::<File>(FILE)
        .expect("a table of classes")
        .row
}

/// The rows that mean a symbol most exactly: one, if the file is right.
fn rows_of<'a>(rows: &'a [Row], symbol: &str) -> Vec<&'a Row> {
    let exact = |row: &Row| {
        let patterns = row.functions.iter();
        patterns
            .filter_map(|pattern| match_of(pattern, symbol))
            .max()
    };
    let most = rows.iter().filter_map(exact).max();
    rows.iter()
        .filter(|row| most.is_some() && exact(row) == most)
        .collect()
}

fn symbols() -> impl Iterator<Item = &'static str> {
    symbols::CUDA.iter().chain(symbols::NVML).copied()
}

fn hooks() -> BTreeSet<&'static str> {
    let names = HOOKS.iter().map(|hook| hook.real.name.to_str());
    names.map(|name| name.expect("names are text")).collect()
}

#[test]
fn every_function_of_the_driver_is_in_one_class() {
    let rows = rows();
    let wrong: BTreeMap<_, _> = symbols()
        .map(|symbol| (symbol, rows_of(&rows, symbol)))
        .filter(|(_, found)| found.len() != 1)
        .map(|(symbol, found)| (symbol, found.iter().map(|row| &row.why).collect::<Vec<_>>()))
        .collect();
    assert!(wrong.is_empty(), "not in exactly one row: {wrong:#?}");
}

/// Names that libcuda and libnvidia-ml of drivers 535.261.03 and 550.163.01 export (`nm --dynamic`) and that no header of
/// CUDA 13.5 declares, without those of graphics interfaces. Two stand for the 28 of the debugger (`cudbg…`).
const ONLY_IN_LIBRARIES: [&str; 9] = [
    "cuMemGetAttribute",
    "cuMemGetAttribute_v2",
    "cuProfilerInitialize",
    "cuProfilerStart",
    "cuProfilerStop",
    "cudbgGetAPI",
    "cudbgMain",
    "nvmlGetBlacklistDeviceCount",
    "nvmlGetBlacklistDeviceInfoByIndex",
];

fn not_in_one_row<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let rows = rows();
    let wrong = |name: &&str| rows_of(&rows, name).len() != 1;
    names.into_iter().filter(wrong).collect()
}

#[test]
fn functions_of_older_drivers_without_a_declaration_are_in_one_class() {
    assert_eq!(not_in_one_row(ONLY_IN_LIBRARIES), [""; 0]);
}

/// Names a folder with genuine driver libraries: `libcuda.so.1` and `libnvidia-ml.so.1`, or files with a version behind `.so.`.
const LIBRARIES: &str = "DIVVY_TEST_DRIVER_LIBRARIES";

/// The driver libraries of this machine: those in the named folder, or those that the loader knows.
fn genuine_libraries() -> Vec<PathBuf> {
    let is_library = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libcuda.so.") || name.starts_with("libnvidia-ml.so.")
    };
    let Some(folder) = env::var_os(LIBRARIES) else {
        let cache = Command::new("ldconfig").arg("-p").output_bounded();
        let cache = cache.map_or(Vec::new(), |output| output.stdout);
        let known = String::from_utf8_lossy(&cache).into_owned();
        let paths = known.lines().filter_map(|line| line.split(" => ").nth(1));
        return paths.map(PathBuf::from).filter(is_library).collect();
    };
    let entries = std::fs::read_dir(&folder).expect("the folder can be read");
    let paths = entries.map(|entry| entry.expect("it can be read").path());
    paths.filter(is_library).collect()
}

fn exported(library: &Path) -> Vec<String> {
    let mut nm = Command::new("nm");
    nm.args(["--dynamic", "--defined-only", "--format=posix"]);
    let output = nm
        .arg(library)
        .output_bounded()
        .expect("binutils are there");
    assert!(output.status.success(), "{}", library.display());
    let text = String::from_utf8(output.stdout).expect("names are text");
    let names = text
        .lines()
        .filter_map(|line| line.split([' ', '@']).next());
    // Absolute symbols are the versions of the library.
    let names = names.filter(|name| name.starts_with("cu") || name.starts_with("nvml"));
    names.map(str::to_owned).collect()
}

#[test]
fn every_name_that_a_genuine_library_exports_is_in_one_class() {
    let libraries = genuine_libraries();
    if libraries.is_empty() {
        eprintln!(
            "skipped: this machine has no libcuda.so.1, and {LIBRARIES} names no folder with one"
        );
    }
    for library in libraries {
        let names = exported(&library);
        assert!(names.len() > 100, "{}: {names:?}", library.display());
        let wrong = not_in_one_row(names.iter().map(String::as_str));
        assert!(
            wrong.is_empty(),
            "{}: not in exactly one row of coverage.toml: {wrong:?}",
            library.display()
        );
    }
}

#[test]
fn every_name_in_the_table_means_a_function() {
    for row in rows().iter().filter(|row| !row.undeclared) {
        for pattern in &row.functions {
            let meant = symbols().any(|symbol| match_of(pattern, symbol).is_some());
            assert!(meant, "{pattern} is no function of this driver");
        }
    }
}

#[test]
fn what_is_not_passed_has_a_hook_and_what_has_a_hook_is_not_passed() {
    let (rows, hooks) = (rows(), hooks());
    let wrong = symbols().filter(|symbol| {
        rows_of(&rows, symbol)
            .iter()
            .any(|row| row.class.has_hook() != hooks.contains(symbol))
    });
    let wrong: Vec<_> = wrong
        .map(|symbol| (symbol, hooks.contains(symbol)))
        .collect();
    assert!(wrong.is_empty(), "class and hook differ: {wrong:#?}");
}

#[test]
fn every_function_wakes_a_parked_job_or_not_as_its_row_says() {
    let rows = rows();
    let wakes = |symbol: &str| {
        let mut rows = rows_of(&rows, symbol).into_iter();
        rows.any(|row| row.parked == Parked::Wakes)
    };
    let wrong: Vec<_> = symbols()
        .filter(|symbol| park::wakes(symbol) != wakes(symbol))
        .collect();
    assert!(wrong.is_empty(), "row and code differ: {wrong:#?}");
    for row in rows.iter().filter(|row| row.parked == Parked::Answered) {
        assert_eq!(row.class, Class::Shown, "{}: no hook answers", row.why);
    }
}

/// Functions whose names say that they make or take memory are not passed without a word about it.
#[test]
fn what_sounds_like_taking_memory_is_counted_or_says_why_not() {
    let rows = rows();
    let takes = |symbol: &&str| {
        symbol.starts_with("cu")
            && ["Alloc", "Create", "Import", "Open", "Load", "Retain", "Map"]
                .iter()
                .any(|word| symbol.contains(word))
    };
    const NO_MEMORY: [&str; 16] = [
        "cuGraphCreate",
        "cuGraphConditionalHandleCreate",
        "cuGraphMemAllocNodeGetParams",
        "cuGraphRetainUserObject",
        "cuUserObjectCreate",
        "cuUserObjectRetain",
        "cuLinkCreate",
        "cuMemGetAllocationGranularity",
        "cuMemGetAllocationPropertiesFromHandle",
        "cuModuleGetLoadingMode",
        "cuFuncIsLoaded",
        "cuTensorMapEncodeIm2col",
        "cuTensorMapEncodeIm2colWide",
        "cuTensorMapEncodeTiled",
        "cuTensorMapReplaceAddress",
        "cuTensorMapSetAllocationClass",
    ];
    for symbol in symbols().filter(takes) {
        let silent = rows_of(&rows, symbol)
            .iter()
            .any(|row| row.class == Class::Passed && !row.memory);
        assert_eq!(silent, NO_MEMORY.contains(&base(symbol)), "{symbol}");
    }
}

/// The heading of each class on the page.
fn heading(class: Class) -> &'static str {
    match class {
        Class::Counted => "counted",
        Class::Freed => "ends a charge",
        Class::Followed => "followed",
        Class::Refused => "refused",
        _ => "passed",
    }
}

/// The rows that have to do with memory, as the page shows them.
fn as_markdown() -> String {
    let rows = rows();
    let mut table = String::from("| class | functions | subject |\n|---|---|---|\n");
    let mut shown = BTreeSet::new();
    let rows_of_symbols: Vec<_> = symbols()
        .map(|symbol| (symbol, rows_of(&rows, symbol)))
        .collect();
    for row in &rows {
        let is_charged = matches!(row.class, Class::Counted | Class::Freed | Class::Followed);
        if !is_charged && !row.memory {
            continue;
        }
        let names: Vec<_> = row
            .functions
            .iter()
            .map(|name| format!("`{name}`"))
            .collect();
        table += &format!(
            "| {} | {} | {} |\n",
            heading(row.class),
            names.join(", "),
            row.why
        );
        let of_row = rows_of_symbols
            .iter()
            .filter(|(_, rows)| rows.iter().any(|of| std::ptr::eq(*of, row)));
        shown.extend(of_row.map(|(symbol, _)| *symbol));
    }
    let others = symbols().filter(|symbol| !shown.contains(symbol)).count();
    let all = symbols().count();
    table
        + &format!(
            "\nThat is {} of {all} functions. The other {others} take no memory; the file lists them too.\n",
            all - others
        )
}

#[test]
fn the_reference_page_says_what_is_done_about_memory() {
    page::holds("crates/shim/coverage.toml", &as_markdown());
}

#[test]
fn the_most_exact_name_counts() {
    assert_eq!(
        match_of("cuMemAlloc", "cuMemAlloc"),
        Some((1, 0)),
        "all revisions"
    );
    assert_eq!(match_of("cuMemAlloc", "cuMemAlloc_v2"), Some((1, 0)));
    assert_eq!(match_of("cuMemAlloc", "cuMemAllocAsync"), None);
    assert_eq!(match_of("cuMemAlloc_v2", "cuMemAlloc"), None);
    assert!(match_of("cuMemAlloc_v2", "cuMemAlloc_v2") > match_of("cuMemAlloc", "cuMemAlloc_v2"));
    assert!(match_of("cuMemAlloc", "cuMemAlloc_v2") > match_of("cuMem*", "cuMemAlloc_v2"));
    assert!(match_of("cuMemAl*", "cuMemAlloc") > match_of("cuMem*", "cuMemAlloc"));
    assert_eq!(base("cuMemAllocAsync_v2_ptsz"), "cuMemAllocAsync");
}
