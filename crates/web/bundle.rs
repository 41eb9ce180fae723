//! The bundle of the page: one script for the browser, joined from the ES modules below `assets`.
//!
//! Thirty modules in one file need one request and compress to two thirds. Each module becomes a function that returns
//! its exports, after the modules that it imports. Comments and indentation go. The modules keep to a small part of the
//! language, and everything else stops the build:
//!
//! - an import names what it takes: `import { a, b as c } from "./d.js";`
//! - an export stands before its declaration: `export const`, `export function`, `export async function`, `export class`
//! - a comment is `/** … */`, or `//` on a line of its own

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// The modules that were read, in the order of the bundle.
#[derive(Debug, Default)]
struct Bundle {
    text: String,
    /// The variable of each module, by its path.
    names: BTreeMap<String, String>,
    /// Modules whose imports are being read.
    open: Vec<String>,
}

/// The bundle that begins with this module of a folder. Modules below `vendor` stay files of their own.
///
/// # Errors
/// Names the module and the line that is outside the small part of the language.
pub fn bundle(root: &Path, entry: &str) -> Result<String, String> {
    let mut bundle = Bundle::default();
    bundle.add(root, entry)?;
    Ok(bundle.text)
}

impl Bundle {
    fn add(&mut self, root: &Path, path: &str) -> Result<(), String> {
        if self.names.contains_key(path) {
            return Ok(());
        }
        if self.open.iter().any(|open| open == path) {
            return Err(format!(
                "{path} imports itself, through {}",
                self.open.join(", ")
            ));
        }
        if path.contains("vendor/") {
            let name = format!("m{}", self.names.len());
            writeln!(self.text, "import * as {name} from \"./{path}\";")
                .map_err(|error| error.to_string())?;
            self.names.insert(path.to_owned(), name);
            return Ok(());
        }
        let source =
            fs::read_to_string(root.join(path)).map_err(|error| format!("{path}: {error}"))?;
        let module = Module::read(path, &source)?;
        self.open.push(path.to_owned());
        let mut head = String::new();
        for (wanted, from) in &module.imports {
            self.add(root, from)?;
            let from = self.names.get(from).map_or("", String::as_str);
            head += &format!("const {{{wanted}}} = {from};\n");
        }
        self.open.pop();
        let is_entry = self.open.is_empty();
        let name = format!("m{}", self.names.len());
        let exports = module.exports.join(", ");
        self.text += &if is_entry {
            format!("{head}{}", module.body)
        } else {
            format!(
                "const {name} = (() => {{\n{head}{}return {{{exports}}};\n}})();\n",
                module.body
            )
        };
        self.names.insert(path.to_owned(), name);
        Ok(())
    }
}

/// A module in parts.
#[derive(Debug, Default, PartialEq, Eq)]
struct Module {
    /// The names of each import, and the path of its module.
    imports: Vec<(String, String)>,
    exports: Vec<String>,
    body: String,
}

impl Module {
    fn read(path: &str, source: &str) -> Result<Self, String> {
        let mut module = Self::default();
        let text = without_comments(source);
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        while let Some(line) = lines.next() {
            let wrong = || format!("{path}: `{line}` is outside what crates/web/bundle.rs joins");
            if line.starts_with("import ") {
                let mut whole = line.to_owned();
                while !whole.ends_with(';') {
                    whole += " ";
                    whole += lines.next().ok_or_else(wrong)?;
                }
                module.imports.push(import(path, &whole).ok_or_else(wrong)?);
            } else if let Some(declared) = line.strip_prefix("export ") {
                module.exports.push(name(declared).ok_or_else(wrong)?);
                module.body += declared;
                module.body.push('\n');
            } else {
                module.body += line;
                module.body.push('\n');
            }
        }
        Ok(module)
    }
}

/// The text without the comments that begin with `opening` and end with `*/`.
fn without_blocks(source: &str, opening: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, after)) = rest.split_once(opening) {
        text += before;
        rest = after.split_once("*/").map_or("", |(_, rest)| rest);
    }
    text + rest
}

/// The text without `/** … */`, and without lines that are a comment.
fn without_comments(source: &str) -> String {
    let text = without_blocks(source, "/**");
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    text.lines()
        .filter(is_code)
        .map(|line| format!("{line}\n"))
        .collect()
}

/// `a, b` and the path of the module, from the root, of `import { a, b } from "../c.js";`.
fn import(path: &str, line: &str) -> Option<(String, String)> {
    let (names, from) = line.strip_prefix("import {")?.split_once("} from \"")?;
    let from = from.strip_suffix("\";")?;
    let names = names
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty());
    let names: Vec<String> = names.map(|name| name.replace(" as ", ": ")).collect();
    let mut folder: Vec<&str> = path.split('/').collect();
    folder.pop();
    for part in from.split('/') {
        match part {
            "." => {}
            ".." => drop(folder.pop()?),
            part => folder.push(part),
        }
    }
    Some((names.join(", "), folder.join("/")))
}

/// The name of a declaration.
fn name(declared: &str) -> Option<String> {
    let declared = declared.strip_prefix("async ").unwrap_or(declared);
    let kinds = ["const ", "function ", "class "];
    let after = kinds.iter().find_map(|kind| declared.strip_prefix(kind))?;
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
    let name: String = after.chars().take_while(|c| is_part(*c)).collect();
    (!name.is_empty()).then_some(name)
}

/// A style sheet without comments and indentation.
pub fn style(source: &str) -> String {
    let text = without_blocks(source, "/*");
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(|line| format!("{line}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_taken_apart() {
        let source = "/** What it is.\n * More. */\n\nimport { a,\n  b as c, } from \"../c.js\";\n// why\n\
            export const d = /** @type {any} */ (a);\nexport async function e() {\n  // Why here.\n  return c;\n}\n\
            class F {}\n";
        let module = Module::read("lib/x.js", source).unwrap();
        assert_eq!(module.imports, [("a, b: c".to_owned(), "c.js".to_owned())]);
        assert_eq!(module.exports, ["d", "e"]);
        assert_eq!(
            module.body,
            "const d =  (a);\nasync function e() {\nreturn c;\n}\nclass F {}\n"
        );
    }

    #[test]
    fn what_is_not_understood_stops_the_build() {
        for line in [
            "import a from \"./a.js\";",
            "import * as a from \"./a.js\";",
            "import { a } from './a.js';",
            "import { a } from \"../../a.js\";",
            "import { a }",
            "export default 1;",
            "export { a };",
            "export * from \"./a.js\";",
            "export let a = 1;",
            "export const { a } = b;",
        ] {
            let error = Module::read("lib/x.js", line).unwrap_err();
            assert!(
                error.contains("lib/x.js") && error.contains(line),
                "{error}"
            );
        }
    }

    #[test]
    fn a_module_stands_once_and_after_what_it_imports() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write(
            "main.js",
            "import { a } from \"./a.js\";\nimport { b } from \"./b.js\";\nuse(a, b);\n",
        );
        write(
            "a.js",
            "import { b } from \"./b.js\";\nimport { h } from \"./vendor/p.js\";\nexport const a = h(b);\n",
        );
        write("b.js", "export const b = 1;\n");
        let text = bundle(folder.path(), "main.js").unwrap();
        assert_eq!(
            text,
            "const m0 = (() => {\nconst b = 1;\nreturn {b};\n})();\nimport * as m1 from \"./vendor/p.js\";\n\
             const m2 = (() => {\nconst {b} = m0;\nconst {h} = m1;\nconst a = h(b);\nreturn {a};\n})();\n\
             const {a} = m2;\nconst {b} = m0;\nuse(a, b);\n"
        );
        write(
            "b.js",
            "import { a } from \"./a.js\";\nexport const b = a;\n",
        );
        let error = bundle(folder.path(), "main.js").unwrap_err();
        assert!(error.contains("imports itself"), "{error}");
        fs::remove_file(folder.path().join("b.js")).unwrap();
        assert!(
            bundle(folder.path(), "main.js")
                .unwrap_err()
                .starts_with("b.js: ")
        );
    }

    #[test]
    fn a_style_sheet_loses_comments_and_indentation() {
        assert_eq!(
            style("/* a\n b */\n:root {\n  --c: #fff; /* c */\n}\n"),
            ":root {\n--c: #fff;\n}\n"
        );
    }
}
