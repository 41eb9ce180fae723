//! What is done about every function of the driver, hooked or not: `classes.toml`, held to the table of hooks and to the symbols
//! of NVIDIA's headers. Nothing of it is in the library.

use std::collections::{BTreeMap, BTreeSet};

use divvy_driver::sys::symbols;
use serde::Deserialize;

use crate::page;
use crate::table::HOOKS;

const FILE: &str = include_str!("../classes.toml");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    row: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    class: Class,
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

/// What the page says of each class.
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
    let mut table = String::from("| | functions | what it is about |\n|---|---|---|\n");
    let mut shown = BTreeSet::new();
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
        let of_row = |symbol: &&str| {
            rows_of(&rows, symbol)
                .iter()
                .any(|of| std::ptr::eq(*of, row))
        };
        shown.extend(symbols().filter(of_row));
    }
    let others = symbols().filter(|symbol| !shown.contains(symbol)).count();
    let all = symbols().count();
    table
        + &format!(
            "\nThat is {} of {all} functions; the other {others} take no memory, and are in the file too.\n",
            all - others
        )
}

#[test]
fn the_reference_page_says_what_is_done_about_memory() {
    page::holds("crates/shim/classes.toml", &as_markdown());
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
