//! Double results: a `Result` within the `Ok` of another one, which a caller unpacks twice. An enum of failures and `?`
//! say the same, as `Halt` does in the controller.
//!
//! This test reads syntax alone. It resolves the aliases of a crate by name: `type Answer = Result<…>`.
#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Expr, ExprCall, GenericArgument, ImplItemFn, Item, ItemType, Pat, PatTupleStruct,
    PathArguments, Type,
};

use crate::sources::sources;
use crate::tests_only::is_tests_only;

/// Double results of today. The list only shrinks.
const LEFT: [(&str, usize); 8] = [
    ("crates/cli/src/ask/program.rs", 1),
    ("crates/cli/src/verbs/docker/guest.rs", 2),
    ("crates/k8s/src/base/inject.rs", 1),
    ("crates/k8s/src/base/pod_request/read.rs", 1),
    ("crates/k8s/src/carrier/admission.rs", 1),
    ("crates/k8s/src/glue/controller/create_pod.rs", 1),
    ("crates/sim/src/engine/objects/graph.rs", 1),
    ("crates/sim/src/engine/objects/graph/plan.rs", 1),
];

/// Where no value or pattern is `Ok(Err(…))` or `Ok(Ok(…))` either, as those that a timeout gives.
const NO_VALUES: &str = "crates/agent/";

/// The names of `Result` and of its aliases in a crate.
fn result_names<'a>(files: impl Iterator<Item = &'a syn::File>) -> BTreeSet<String> {
    #[derive(Default)]
    struct Aliases<'a>(Vec<(String, &'a Type)>);
    impl<'a> Visit<'a> for Aliases<'a> {
        fn visit_item_type(&mut self, alias: &'a ItemType) {
            self.0.push((alias.ident.to_string(), &alias.ty));
        }
    }
    let mut aliases = Aliases::default();
    files.for_each(|file| aliases.visit_file(file));
    let mut names = BTreeSet::from(["Result".to_owned()]);
    loop {
        let before = names.len();
        let more = aliases.0.iter().filter(|(_, of)| is_result(of, &names));
        let more: Vec<String> = more.map(|(name, _)| name.clone()).collect();
        names.extend(more);
        if names.len() == before {
            return names;
        }
    }
}

fn is_result(of: &Type, names: &BTreeSet<String>) -> bool {
    let Type::Path(path) = of else { return false };
    let last = path.path.segments.last();
    last.is_some_and(|last| names.contains(&last.ident.to_string()))
}

/// Whether the first argument of a result is a result.
fn is_double(of: &Type, names: &BTreeSet<String>) -> bool {
    let Type::Path(path) = of else { return false };
    let arguments = path.path.segments.last().map(|last| &last.arguments);
    let Some(PathArguments::AngleBracketed(arguments)) = arguments else {
        return false;
    };
    let first = arguments.args.first();
    is_result(of, names)
        && matches!(first, Some(GenericArgument::Type(inner)) if is_result(inner, names))
}

/// The lines of the double results of one file.
struct Finder<'a> {
    names: &'a BTreeSet<String>,
    has_values: bool,
    lines: Vec<usize>,
}

fn is_named(path: &syn::Path, names: &[&str]) -> bool {
    names.iter().any(|name| path.is_ident(name))
}

/// The attributes of an item that may be for tests only.
fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        _ => &[],
    }
}

impl Visit<'_> for Finder<'_> {
    fn visit_item(&mut self, item: &Item) {
        if !is_tests_only(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &ImplItemFn) {
        if !is_tests_only(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_type(&mut self, found: &Type) {
        if is_double(found, self.names) {
            self.lines.push(found.span().start().line);
        }
        visit::visit_type(self, found);
    }

    fn visit_expr_call(&mut self, call: &ExprCall) {
        if self.has_values
            && let (Expr::Path(outer), Some(Expr::Call(inner))) = (&*call.func, call.args.first())
            && let Expr::Path(inner) = &*inner.func
            && is_named(&outer.path, &["Ok"])
            && is_named(&inner.path, &["Ok", "Err"])
        {
            self.lines.push(call.span().start().line);
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_pat_tuple_struct(&mut self, pattern: &PatTupleStruct) {
        if self.has_values
            && let Some(Pat::TupleStruct(inner)) = pattern.elems.first()
            && is_named(&pattern.path, &["Ok"])
            && is_named(&inner.path, &["Ok", "Err"])
        {
            self.lines.push(pattern.span().start().line);
        }
        visit::visit_pat_tuple_struct(self, pattern);
    }
}

/// `path:line` of each double result in the product code of these files, which belong to one crate.
fn double_results(files: &[(String, String)]) -> Vec<(String, usize)> {
    let parse = |(path, text): &(String, String)| {
        let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{path}: {error}"));
        (path.clone(), file)
    };
    // To parse all files takes six seconds, and few have an alias or a result behind another's bracket.
    let parsed = |expression: &str| -> Vec<(String, syn::File)> {
        let may_be = Regex::new(expression).expect("a correct expression");
        let files = files.iter().filter(|(_, text)| may_be.is_match(text));
        files.map(parse).collect()
    };
    let aliases = parsed(r"\btype \w+");
    let names = result_names(aliases.iter().map(|(_, file)| file));
    let any = names
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join("|");
    let nested = format!(r"\b(?:{any})\s*<\s*(?:\w+::)*(?:{any})\b|\bOk\(\s*(?:Ok|Err)\(");
    let mut found = Vec::new();
    for (path, file) in &parsed(&nested) {
        let mut finder = Finder {
            names: &names,
            has_values: path.starts_with(NO_VALUES),
            lines: Vec::new(),
        };
        if !is_tests_only(&file.attrs) {
            finder.visit_file(file);
        }
        found.extend(finder.lines.into_iter().map(|line| (path.clone(), line)));
    }
    found
}

#[test]
fn no_result_of_the_product_is_within_another() {
    let mut crates: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for (path, text) in sources(&["crates"]) {
        let is_product = path.contains("/src/")
            && !path.ends_with("/tests.rs")
            && !path.contains("/agent/src/simulation");
        let name = path.split('/').nth(1).unwrap_or_default().to_owned();
        if is_product {
            crates.entry(name).or_default().push((path, text));
        }
    }
    let found = crates.values().flat_map(|files| double_results(files));
    let mut by_file: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (path, line) in found {
        by_file.entry(path).or_default().push(line);
    }
    let found: Vec<(&str, usize)> = by_file
        .iter()
        .map(|(path, lines)| (path.as_str(), lines.len()))
        .collect();
    assert_eq!(
        found, LEFT,
        "double results are at these lines: {by_file:?}"
    );
}

#[test]
fn a_double_result_counts_in_a_type_an_alias_a_value_and_a_pattern() {
    let text = "
        type Answer = io::Result<u8>;
        type Twice<T> = Result<Result<T, A>, B>;
        fn aliased() -> Result<Answer, B> { Ok(Err(a)) }
        fn single() -> Result<Vec<Answer>, B> { match it { Ok(Ok(_)) => Ok(1), other => other } }
        #[cfg(test)] mod tests { fn tested() -> Result<Answer, B> { Ok(Ok(1)) } }
    ";
    let lines = |path: &str| {
        let found = double_results(&[(path.to_owned(), text.to_owned())]);
        found.into_iter().map(|(_, line)| line).collect::<Vec<_>>()
    };
    assert_eq!(lines("crates/agent/src/x.rs"), [3, 4, 4, 5]);
    assert_eq!(lines("crates/cli/src/x.rs"), [3, 4]);
}
