//! Constants of a time, size or count, and the reasons for their figures.
//!
//! A reason says why this figure, and not half or double of it, or names the decision that does. The syntax tree gives the
//! constants, and the lines around each give its comments. A constant without a blank line or a comment between it and the one
//! above shares the comment of that one.
//!
//! No program can judge a reason. This one asks for a word that reasons have: a cause, a comparison, a source. Bit masks and
//! numbers in hexadecimal name something, and need none.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::LazyLock;

use anyhow::{Context, Result};
use regex::Regex;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, ExprBinary, Lit, Type};

use crate::cargo::root;
use crate::size;
use crate::tests_only::is_tests_only;

/// A constant without a reason.
struct Constant {
    path: String,
    line: usize,
    name: String,
}

/// Prints each constant without a reason, and their number in each crate.
///
/// # Errors
/// A file is not Rust.
#[expect(clippy::print_stdout, reason = "the list is this command's data")]
pub fn show() -> Result<()> {
    let found = without_reason(&root())?;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for one in &found {
        println!("{}:{}: {}", one.path, one.line, one.name);
        *counts.entry(size::crate_of(&one.path)).or_default() += 1;
    }
    for (name, count) in &counts {
        println!("{name:<22} {count:>5}");
    }
    println!("{:<22} {:>5}", "all", found.len());
    Ok(())
}

/// The constants of a checkout's product that have no reason. Only files with a constant of such a type are parsed, for
/// to parse all takes half a minute.
fn without_reason(folder: &Path) -> Result<Vec<Constant>> {
    let mut texts = BTreeMap::new();
    for path in size::files_of(folder)? {
        let text = std::fs::read_to_string(folder.join(&path))?;
        texts.insert(path, text);
    }
    let tests: Vec<String> = texts
        .iter()
        .flat_map(|(path, text)| {
            let names = TEST_MODULE.captures_iter(text);
            names.map(|name| format!("{}/{}", size::folder(path), &name[1]))
        })
        .collect();
    let tests: BTreeSet<&str> = tests.iter().map(String::as_str).collect();
    texts.retain(|path, text| FIGURE.is_match(text) && !size::is_of(path, &tests));
    let mut all = Vec::new();
    for (path, text) in &texts {
        all.extend(of_text(path, text).with_context(|| format!("parse {path}"))?);
    }
    Ok(all)
}

/// A module in another file that only tests compile.
static TEST_MODULE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"#\[cfg\(test\)\]\s*(?:pub )?mod (\w+);").expect("a correct expression")
});
/// A constant that may be a figure.
static FIGURE: LazyLock<Regex> = LazyLock::new(|| {
    let types = TYPES.join("|");
    Regex::new(&format!(r"const \w+:\s*(?:\w+::)*(?:{types})\b")).expect("a correct expression")
});

/// The constants of a file that have no reason.
fn of_text(path: &str, text: &str) -> Result<Vec<Constant>> {
    let mut finder = Finder::default();
    finder.visit_file(&syn::parse_file(text)?);
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for one in finder.all.iter().filter(|one| one.is_figure) {
        let is_numbered = above(one, &finder.all).is_some_and(|before| {
            one.value.is_some() && before.value.map(|value| value + 1) == one.value
        });
        if !is_numbered && !REASON.is_match(&comment(&lines, one, &finder.all)) {
            found.push(Constant {
                path: path.to_owned(),
                line: one.first,
                name: one.name.clone(),
            });
        }
    }
    Ok(found)
}

/// A constant of any type, with its first and last line. The first is that of `const`, below attributes and comments.
struct Place {
    name: String,
    first: usize,
    last: usize,
    is_figure: bool,
    /// The value, if it is a number without a unit.
    value: Option<u64>,
}

#[derive(Default)]
struct Finder {
    all: Vec<Place>,
}

impl Finder {
    fn add(
        &mut self,
        name: &syn::Ident,
        first: proc_macro2::Span,
        last: usize,
        figure: (&Type, &Expr),
    ) {
        self.all.push(Place {
            name: name.to_string(),
            first: first.start().line,
            last,
            is_figure: is_figure(figure.0, figure.1),
            value: match figure.1 {
                Expr::Lit(value) => number(&value.lit),
                _ => None,
            },
        });
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_file(&mut self, file: &'ast syn::File) {
        if !is_tests_only(&file.attrs) {
            visit::visit_file(self, file);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_tests_only(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_tests_only(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        let last = item.span().end().line;
        self.add(
            &item.ident,
            item.const_token.span(),
            last,
            (&item.ty, &item.expr),
        );
        visit::visit_item_const(self, item);
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        let last = item.span().end().line;
        self.add(
            &item.ident,
            item.const_token.span(),
            last,
            (&item.ty, &item.expr),
        );
    }
}

fn number(literal: &Lit) -> Option<u64> {
    match literal {
        Lit::Int(number) => number.base10_parse().ok(),
        _ => None,
    }
}

/// The constant in the line above.
fn above<'a>(one: &Place, all: &'a [Place]) -> Option<&'a Place> {
    all.iter().find(|other| other.last + 1 == one.first)
}

/// Types of a figure. Another type, such as an enum of result codes, has values with a name.
const TYPES: [&str; 19] = [
    "Bytes",
    "Duration",
    "SignedDuration",
    "Share",
    "Gpus",
    "Option",
    "NonZero",
    "NonZeroU16",
    "NonZeroU32",
    "NonZeroU64",
    "NonZeroUsize",
    "u8",
    "u16",
    "u32",
    "u64",
    "usize",
    "i64",
    "f64",
    "f32",
];

/// Whether the constant is a time, size or count: its type counts something, and its value has a decimal number of two or
/// more, or a time of one. A value that is made of other constants has their reasons.
fn is_figure(kind: &Type, value: &Expr) -> bool {
    let Type::Path(path) = kind else { return false };
    let Some(last) = path.path.segments.last() else {
        return false;
    };
    let name = last.ident.to_string();
    let is_time = name.ends_with("Duration");
    let mut literals = Literals::default();
    literals.visit_expr(value);
    let least = if is_time { 1.0 } else { 2.0 };
    TYPES.contains(&&*name) && !literals.is_mask && literals.greatest >= least
}

/// The numbers of a value.
#[derive(Default)]
struct Literals {
    greatest: f64,
    /// A mask or a number in another base names something.
    is_mask: bool,
}

impl<'ast> Visit<'ast> for Literals {
    fn visit_lit(&mut self, literal: &'ast Lit) {
        let value = match literal {
            Lit::Int(number) => {
                let text = number.token().to_string();
                self.is_mask |= ["0x", "0o", "0b"].iter().any(|base| text.starts_with(base));
                number.base10_parse().unwrap_or(f64::MAX)
            }
            Lit::Float(number) => number
                .base10_parse::<f64>()
                .map_or(f64::MAX, |value| value.max(2.0)),
            _ => 0.0,
        };
        self.greatest = self.greatest.max(value);
    }

    fn visit_expr_binary(&mut self, binary: &'ast ExprBinary) {
        let is_one = matches!(&*binary.left, Expr::Lit(left) if number(&left.lit) == Some(1));
        self.is_mask |=
            matches!(binary.op, BinOp::Shl(_)) && is_one || matches!(binary.op, BinOp::BitOr(_));
        visit::visit_expr_binary(self, binary);
    }
}

/// The text of all comments of a constant: above it, in it, behind it.
fn comment(lines: &[&str], one: &Place, all: &[Place]) -> String {
    let mut text = String::new();
    for line in &lines[one.first - 1..one.last] {
        if let Some((_, behind)) = line.split_once("// ") {
            text = text + " " + behind;
        }
    }
    for line in lines[..one.first - 1].iter().rev() {
        let line = line.trim();
        match line.strip_prefix("//") {
            Some(rest) => text = format!("{} {text}", rest.trim_start_matches('/')),
            None if line.starts_with("#[") || line.ends_with(")]") => {}
            None => break,
        }
    }
    match above(one, all) {
        Some(before) if text.is_empty() => comment(lines, before, all),
        _ => text,
    }
}

/// Words of a cause, of a comparison with another figure, and of a source.
static REASON: LazyLock<Regex> = LazyLock::new(|| {
    let words = [
        // Causes.
        r"because|so that|\b[Ss]o\b|since|would|could|\bmust\b|needs?\b|leaves?\b|\broom\b|takes?\b|allows?\b|spares",
        // Comparisons.
        r"enough|(longer|shorter|smaller|larger|bigger|fewer|wider|stricter)\b|(more|less) (than|would)|within|below|beyond|half|\b[Dd]ouble|twice|Twice|\b(of|from) the same|hides?\b|(third|quarter|tenth|twentieth|fortieth|hundredth|thousandth) of",
        r"times (as|the)|same as|\bas (in|of|long|many|much|the)\b|fits?\b|[Oo]ur choice|measured|inferred",
        // Decisions, pages, headers and manuals.
        r"\(0\d\d\)|decisions/0\d\d|docs/\w+|\w+\.h\b|\w\([2-8]\)|RFC|k8s\.io|`ResourceSlice|DNS|default of",
        // Programs that set the figure.
        r"Linux|kernel|kubelet|Kubernetes|client-go|NVIDIA|CUDA|NVML|Docker|Slurm|stock agent|pyhocon|Kueue|HTTP|systemd|Podman",
    ];
    Regex::new(&words.join("|")).expect("the list makes an expression")
});

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let found = of_text("crates/a/src/lib.rs", text).expect("Rust");
        found.into_iter().map(|one| one.name).collect()
    }

    #[test]
    fn each_constant_of_a_time_size_or_count_has_a_reason() {
        let found = without_reason(&root()).expect("the tree is Rust");
        let found: Vec<String> = found
            .iter()
            .map(|one| format!("{}:{}: {}", one.path, one.line, one.name))
            .collect();
        assert!(
            found.is_empty(),
            "say in the comment why this figure, and not half or double of it: {found:#?}"
        );
    }

    #[test]
    fn a_constant_with_a_figure_needs_a_reason() {
        for (text, expected) in [
            (
                "/// Pause.\nconst A: Duration = Duration::from_secs(1);",
                vec!["A"],
            ),
            ("/// Names at most.\npub const A: usize = 8;", vec!["A"]),
            (
                "impl T {\n    /// Most.\n    const A: Bytes = Bytes::mib(2);\n}",
                vec!["A"],
            ),
            ("fn f() {\n    const A: u64 = 64 << 10;\n}", vec!["A"]),
            (
                "/// Pause. A longer one would be seen.\nconst A: u64 = 5;\n\nconst B: u64 = 6;",
                vec!["B"],
            ),
        ] {
            assert_eq!(names(text), expected, "{text}");
        }
        for text in [
            "/// Pause: a longer one would be seen.\nconst A: Duration = Duration::from_secs(1);",
            "/// Of cuda.h.\nconst A: u32 = 2;\nconst B: u32 = 7;",
            "const A: u32 = 8; // A longer list hides the message.",
            "const A: u8 = 1;\nconst B: u8 = 2;\nconst C: u8 = 3;",
            "const A: u32 = 1 << 4;\n\nconst B: u32 = 0x20;\n\nconst C: u64 = OTHER * 1;",
            "#[cfg(test)]\nmod tests {\n    const A: u32 = 8;\n}\n#[test]\nfn f() {\n    const A: u32 = 8;\n}",
            "const A: &str = \"8\";\n\nconst B: [u8; 2] = [2, 3];",
        ] {
            assert_eq!(names(text), Vec::<String>::new(), "{text}");
        }
    }
}
