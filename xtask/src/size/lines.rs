//! The lines of one Rust file that the product compiles.

use std::collections::BTreeSet;

use anyhow::Result;
use proc_macro2::{Span, TokenStream, TokenTree};
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{Attribute, ItemMod};

use crate::tests_only::is_tests_only;

/// The lines of a file, and the modules for tests that it declares.
pub struct Source {
    /// Lines with code that the product compiles.
    pub lines: usize,
    /// Paths without `.rs` of the modules in other files that only tests compile.
    pub tests: Vec<String>,
}

impl Source {
    /// # Errors
    /// The text is not Rust.
    pub fn read(path: &str, text: &str) -> Result<Self> {
        let file = syn::parse_file(text)?;
        // The guards of xtask run as tests, and are what it is for.
        if is_tests_only(&file.attrs) && !path.starts_with("xtask/") {
            let stem = path.strip_suffix(".rs").unwrap_or(path);
            return Ok(Self {
                lines: 0,
                tests: vec![stem.to_owned()],
            });
        }
        let mut finder = Finder {
            folder: folder(path).to_owned(),
            ..Finder::default()
        };
        finder.visit_file(&file);
        let texts: Vec<&str> = text.lines().collect();
        let mut code = BTreeSet::new();
        let tokens: TokenStream = text.parse().map_err(syn::Error::from)?;
        add(tokens, &texts, &mut code);
        for (first, last) in &finder.spans {
            code.retain(|line| !(first..=last).contains(&line));
        }
        Ok(Self {
            lines: code.len(),
            tests: finder.tests,
        })
    }
}

/// The folder of the child modules of a file.
pub fn folder(file: &str) -> &str {
    let stem = file.strip_suffix(".rs").unwrap_or(file);
    ["/lib", "/main", "/mod"]
        .into_iter()
        .find_map(|name| stem.strip_suffix(name))
        .unwrap_or(stem)
}

/// Adds the lines of tokens that are no comment. A text may span several lines; its blank lines do not count.
fn add(tokens: TokenStream, texts: &[&str], code: &mut BTreeSet<usize>) {
    for token in tokens {
        let span = token.span();
        if is_comment(span, texts) {
            continue;
        }
        match token {
            TokenTree::Group(group) => {
                for end in [group.span_open(), group.span_close()] {
                    code.insert(end.start().line);
                }
                add(group.stream(), texts, code);
            }
            TokenTree::Literal(_) => {
                let lines = span.start().line..=span.end().line;
                let is_blank = |line: &usize| {
                    texts
                        .get(line - 1)
                        .is_none_or(|text| text.trim().is_empty())
                };
                code.extend(lines.filter(|line| !is_blank(line)));
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) => {
                code.insert(span.start().line);
            }
        }
    }
}

/// Whether the token is part of a doc comment, which the reader of tokens turns into an attribute.
fn is_comment(span: Span, texts: &[&str]) -> bool {
    let start = span.start();
    let Some(line) = start.line.checked_sub(1).and_then(|line| texts.get(line)) else {
        return false;
    };
    let mut rest = line.chars().skip(start.column);
    rest.next() == Some('/') && matches!(rest.next(), Some('/' | '*'))
}

/// Finds what only tests compile.
#[derive(Default)]
struct Finder {
    /// The folder of the child modules here.
    folder: String,
    /// First and last lines.
    spans: Vec<(usize, usize)>,
    tests: Vec<String>,
}

impl Finder {
    /// Whether only tests compile the node, which then is not read further.
    fn is_test(&mut self, attributes: &[Attribute], whole: Span) -> bool {
        if !is_tests_only(attributes) {
            return false;
        }
        // The attribute stays: it is a line of the product's file.
        let decides = |one: &&Attribute| is_tests_only(std::slice::from_ref(*one));
        let after = attributes
            .iter()
            .find(decides)
            .map(|one| one.span().end().line + 1);
        let first = after.unwrap_or(whole.start().line);
        self.spans.push((first, whole.end().line));
        true
    }
}

/// The attributes of a node, for kinds that have them in a field.
macro_rules! attributes {
    ($node:expr, $kind:ident: $($variant:ident)*) => {
        match $node {
            $(syn::$kind::$variant(node) => &node.attrs[..],)*
            _ => &[],
        }
    };
}

/// Visits a node unless only tests compile it.
macro_rules! visits {
    ($($visit:ident($node:ident: $type:ident) by $attributes:expr;)*) => {
        $(fn $visit(&mut self, $node: &'ast syn::$type) {
            if !self.is_test($attributes, $node.span()) {
                visit::$visit(self, $node);
            }
        })*
    };
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        let above = self.folder.clone();
        self.folder = format!("{above}/{}", item.ident);
        visit::visit_item_mod(self, item);
        self.folder = above;
    }

    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = attributes!(item, Item: Const Enum ExternCrate Fn ForeignMod Impl Macro Mod Static Struct Trait TraitAlias Type Union Use);
        if !self.is_test(attributes, item.span()) {
            visit::visit_item(self, item);
        } else if let syn::Item::Mod(child) = item
            && child.content.is_none()
        {
            self.tests.push(format!("{}/{}", self.folder, child.ident));
        }
    }

    visits! {
        visit_impl_item(node: ImplItem) by attributes!(node, ImplItem: Const Fn Type Macro);
        visit_trait_item(node: TraitItem) by attributes!(node, TraitItem: Const Fn Type Macro);
        visit_stmt(node: Stmt) by attributes!(node, Stmt: Local Macro);
        visit_expr(node: Expr) by attributes!(node, Expr: Array Assign Async Await Binary Block Break Call Cast Closure Const Continue Field ForLoop If Index Let Lit Loop Macro Match MethodCall Paren Path Range Reference Repeat Return Struct Try Tuple Unary Unsafe While);
        visit_arm(node: Arm) by &node.attrs;
        visit_variant(node: Variant) by &node.attrs;
        visit_field(node: Field) by &node.attrs;
        visit_field_value(node: FieldValue) by &node.attrs;
    }
}
