//! The reader of a module tree: follows `mod` items from the root file and collects each module's imports.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprLit, ImplItem, Item, Lit, Meta, Stmt, TraitItem, UseTree};

use crate::tests_only::is_tests_only;

/// A path in a module, from the root of its crate.
pub struct Import {
    pub line: usize,
    pub path: Vec<String>,
}

impl Display for Import {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "crate::{}", self.path.join("::"))
    }
}

/// A module of production code.
pub struct Module {
    /// From the root of its crate.
    pub path: Vec<String>,
    pub file: String,
    /// Its `//!` comment, with single spaces.
    pub header: String,
    pub imports: Vec<Import>,
    /// Names that its `use` items bring in, and where each leads.
    names: BTreeMap<String, Vec<String>>,
}

/// The modules of a tree, the root first.
pub struct Modules {
    pub all: Vec<Module>,
    /// Children of the root that only tests compile.
    pub tests_only: BTreeSet<String>,
    by_path: BTreeMap<Vec<String>, usize>,
}

/// The folder of the child modules of a file.
pub fn folder(file: &str) -> &str {
    let stem = file.strip_suffix(".rs").expect("a Rust file");
    ["/lib", "/main", "/mod"]
        .into_iter()
        .find_map(|name| stem.strip_suffix(name))
        .unwrap_or(stem)
}

impl Modules {
    /// # Panics
    /// When a file is missing or is not Rust.
    pub fn read(root: &str, module: &[&str], read: &dyn Fn(&str) -> Option<String>) -> Self {
        let mut modules = Self {
            all: Vec::new(),
            tests_only: BTreeSet::new(),
            by_path: BTreeMap::new(),
        };
        let path = module.iter().map(|name| (*name).to_owned()).collect();
        modules.add_file(root, path, read);
        modules
    }

    fn add_file(&mut self, file: &str, path: Vec<String>, read: &dyn Fn(&str) -> Option<String>) {
        let text = read(file).unwrap_or_else(|| panic!("{file} is missing"));
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
        self.add(
            file,
            folder(file),
            path,
            (&parsed.attrs, &parsed.items),
            read,
        );
    }

    fn add(
        &mut self,
        file: &str,
        folder: &str,
        path: Vec<String>,
        (attributes, items): (&[Attribute], &[Item]),
        read: &dyn Fn(&str) -> Option<String>,
    ) {
        let mut reader = Reader::default();
        items.iter().for_each(|item| reader.visit_item(item));
        let Reader { paths, names, .. } = reader;
        let mods = items.iter().filter_map(|item| match item {
            Item::Mod(child) => Some(child),
            _ => None,
        });
        let (tests, mods): (Vec<_>, Vec<_>) = mods.partition(|child| is_tests_only(&child.attrs));
        if self.all.is_empty() {
            let names = tests.iter().map(|child| child.ident.to_string());
            self.tests_only = names.collect();
        }
        let children: BTreeSet<String> = mods.iter().map(|child| child.ident.to_string()).collect();
        let imports = paths.into_iter().filter_map(|(line, segments)| {
            absolute(&path, &children, &segments).map(|path| Import { line, path })
        });
        let names = names
            .into_iter()
            .filter_map(|(name, segments)| Some((name, absolute(&path, &children, &segments)?)));
        self.by_path.insert(path.clone(), self.all.len());
        self.all.push(Module {
            file: file.to_owned(),
            header: header(attributes),
            imports: imports.collect(),
            names: names.collect(),
            path: path.clone(),
        });
        for child in mods {
            let name = child.ident.to_string();
            let mut path = path.clone();
            path.push(name.clone());
            let below = format!("{folder}/{name}");
            match &child.content {
                Some((_, items)) => self.add(file, &below, path, (&child.attrs, items), read),
                None => {
                    let file = [format!("{below}.rs"), format!("{below}/mod.rs")]
                        .into_iter()
                        .find(|file| read(file).is_some());
                    let file = file.unwrap_or_else(|| panic!("{below}.rs is missing"));
                    self.add_file(&file, path, read);
                }
            }
        }
    }

    /// The module that defines the item of a path, through re-exports; none outside the tree.
    pub fn target(&self, path: &[String]) -> Option<usize> {
        self.target_within(path, 8)
    }

    fn target_within(&self, path: &[String], hops: u32) -> Option<usize> {
        let depth = self.all[0].path.len();
        if path.len() < depth {
            return None;
        }
        let mut found = *self.by_path.get(&path[..depth])?;
        for end in depth + 1..=path.len() {
            if let Some(child) = self.by_path.get(&path[..end]) {
                found = *child;
                continue;
            }
            if let (Some(leads), Some(hops)) = (
                self.all[found].names.get(&path[end - 1]),
                hops.checked_sub(1),
            ) {
                let path: Vec<String> = leads.iter().chain(&path[end..]).cloned().collect();
                return self.target_within(&path, hops);
            }
            break;
        }
        Some(found)
    }
}

/// A path from the root of the crate; none for another crate's, and for a name of this module that is no child module.
fn absolute(
    module: &[String],
    children: &BTreeSet<String>,
    segments: &[String],
) -> Option<Vec<String>> {
    let mut at = module.to_vec();
    let mut segments = segments.iter().peekable();
    match segments.peek()?.as_str() {
        "crate" => {
            at.clear();
            segments.next();
        }
        "self" => {
            segments.next();
        }
        "super" => {}
        child => {
            if !children.contains(child) {
                return None;
            }
        }
    }
    while segments.next_if(|segment| *segment == "super").is_some() {
        at.pop()?;
    }
    at.extend(segments.cloned());
    Some(at)
}

/// The text of doc comments.
fn header(attributes: &[Attribute]) -> String {
    let lines = attributes
        .iter()
        .filter_map(|attribute| match &attribute.meta {
            Meta::NameValue(doc) if doc.path.is_ident("doc") => match &doc.value {
                Expr::Lit(ExprLit {
                    lit: Lit::Str(text),
                    ..
                }) => Some(text.value()),
                _ => None,
            },
            _ => None,
        });
    let text = lines.collect::<Vec<_>>().join(" ");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Collects the paths of one module, without those of its child modules.
#[derive(Default)]
struct Reader {
    /// Line and segments, as written.
    paths: Vec<(usize, Vec<String>)>,
    names: BTreeMap<String, Vec<String>>,
}

/// The attributes of a node, for kinds that have them in a field.
macro_rules! attributes {
    ($node:expr, $kind:ident: $($variant:ident)*) => {
        match $node {
            $($kind::$variant(node) => &node.attrs[..],)*
            _ => &[],
        }
    };
}

impl Reader {
    fn add(&mut self, at: Span, segments: Vec<String>) {
        self.paths.push((at.start().line, segments));
    }

    fn add_tree(&mut self, before: &[String], tree: &UseTree) {
        let with = |name: String| {
            let mut path = before.to_vec();
            path.push(name);
            path
        };
        match tree {
            UseTree::Path(part) => self.add_tree(&with(part.ident.to_string()), &part.tree),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_tree(before, tree);
                }
            }
            UseTree::Name(name) => self.add_use(&name.ident, &name.ident, before),
            UseTree::Rename(name) => self.add_use(&name.ident, &name.rename, before),
            UseTree::Glob(glob) => self.add(glob.star_token.spans[0], before.to_vec()),
        }
    }

    /// `use before::ident as name`.
    fn add_use(&mut self, ident: &syn::Ident, name: &syn::Ident, before: &[String]) {
        let mut path = before.to_vec();
        let name = if ident == "self" {
            before.last().cloned().unwrap_or_default()
        } else {
            path.push(ident.to_string());
            name.to_string()
        };
        self.add(ident.span(), path.clone());
        self.names.insert(name, path);
    }

    /// The paths of a macro's or an attribute's arguments; also those in strings, as serde has them.
    fn add_tokens(&mut self, tokens: &TokenStream) {
        let mut open: Option<(Span, Vec<String>)> = None;
        let mut colons = 0;
        for token in tokens.clone() {
            match token {
                TokenTree::Ident(ident) => {
                    match &mut open {
                        Some((_, path)) if colons == 2 => path.push(ident.to_string()),
                        _ => {
                            self.close(open.take());
                            open = Some((ident.span(), vec![ident.to_string()]));
                        }
                    }
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.close(open.take());
                    self.add_tokens(&group.stream());
                }
                TokenTree::Literal(literal) => {
                    self.close(open.take());
                    let text = literal.to_string();
                    let text = text.trim_matches('"');
                    if ["crate::", "super::"]
                        .iter()
                        .any(|start| text.starts_with(start))
                    {
                        let segments = text.split("::").map(str::to_owned).collect();
                        self.add(literal.span(), segments);
                    }
                }
                TokenTree::Punct(_) => self.close(open.take()),
            }
        }
        self.close(open);
    }

    fn close(&mut self, path: Option<(Span, Vec<String>)>) {
        if let Some((at, segments)) = path
            && segments.len() > 1
        {
            self.add(at, segments);
        }
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = attributes!(item, Item: Const Enum ExternCrate Fn ForeignMod Impl Macro Mod Static Struct Trait TraitAlias Type Union Use);
        // A child module is read on its own.
        if !is_tests_only(attributes) && !matches!(item, Item::Mod(_)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        if !is_tests_only(attributes!(item, ImplItem: Const Fn Type Macro)) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        if !is_tests_only(attributes!(item, TraitItem: Const Fn Type Macro)) {
            visit::visit_trait_item(self, item);
        }
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        if !is_tests_only(attributes!(statement, Stmt: Local Macro)) {
            visit::visit_stmt(self, statement);
        }
    }

    fn visit_expr(&mut self, expression: &'ast Expr) {
        let attributes = attributes!(expression, Expr: Array Assign Async Await Binary Block Break Call Cast Closure Const Continue Field ForLoop If Index Let Lit Loop Macro Match MethodCall Paren Path Range Reference Repeat Return Struct Try Tuple Unary Unsafe While);
        if !is_tests_only(attributes) {
            visit::visit_expr(self, expression);
        }
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if !is_tests_only(&arm.attrs) {
            visit::visit_arm(self, arm);
        }
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        if !is_tests_only(&variant.attrs) {
            visit::visit_variant(self, variant);
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !is_tests_only(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_field_value(&mut self, field: &'ast syn::FieldValue) {
        if !is_tests_only(&field.attrs) {
            visit::visit_field_value(self, field);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.add_tree(&[], &item.tree);
    }

    /// `pub(super)` limits the visibility of an item; it imports nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Meta::List(list) = &attribute.meta {
            self.add_tokens(&list.tokens);
        }
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.add_tokens(&call.tokens);
        visit::visit_macro(self, call);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none()
            && path.segments.len() > 1
            && let Some(first) = path.segments.first()
        {
            let segments = path
                .segments
                .iter()
                .map(|segment| segment.ident.to_string());
            self.add(first.ident.span(), segments.collect());
        }
        visit::visit_path(self, path);
    }
}
