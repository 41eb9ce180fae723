//! The HOCON grammar: pyhocon's parsing expressions, in its order of alternatives.
//!
//! Each function reads one expression at the cursor. `Ok(None)` and `false` mean that the expression is not there; an
//! error ends the whole text, where pyhocon's `-` does. Blanks before an expression are skipped, as pyparsing does.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::assign::{joined, put};
use super::scan::{expand_tabs, is_space, number, number_length, quoted_length, unescaped};
use super::{DEEPEST, Failure, Fault, MOST_FILES, Node, Open, Part, Reference, Table};

/// The files of one configuration.
pub(super) struct Files {
    folder: PathBuf,
    left: usize,
    /// Brackets that are open.
    depth: usize,
}

impl Files {
    /// `folder` is where included files are looked for.
    pub(super) fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            left: MOST_FILES,
            depth: 0,
        }
    }

    /// Reads a text.
    ///
    /// # Errors
    /// The first place that the grammar does not take.
    pub(super) fn parse(&mut self, text: &str) -> Result<Table, Fault> {
        let text = expand_tabs(text);
        Parser {
            text: &text,
            at: 0,
            files: self,
        }
        .document()
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    files: &'a mut Files,
}

/// A key, as it is written or, for a number, as Python's `str` writes it.
enum Key {
    Path(String),
    Number(String),
}

impl Key {
    fn keys(&self) -> Vec<String> {
        match self {
            Self::Path(text) => super::keys(text),
            Self::Number(text) => vec![text.clone()],
        }
    }
}

type Read<T> = Result<Option<T>, Fault>;

impl Parser<'_> {
    fn document(mut self) -> Result<Table, Fault> {
        while self.comment_behind_newlines()? || self.run("\n\r") {}
        self.blanks();
        if self.rest().starts_with('[') {
            return Err(self.fault("the file contains a list, but a section is required"));
        }
        let table = if self.sign("{") {
            self.nested(|parser| parser.section('}'))?
        } else {
            self.fields()?
        };
        while self.comment_behind_newlines()? || self.run("\n\r,") {}
        self.blanks();
        match self.rest().chars().next() {
            None => Ok(table),
            Some(letter) => Err(self.unexpected("a key, a value or the end", letter)),
        }
    }

    /// The fields of a section, up to its sign at the end.
    fn section(&mut self, end: char) -> Result<Table, Fault> {
        let table = self.fields()?;
        self.needed(end)?;
        Ok(table)
    }

    fn fields(&mut self) -> Result<Table, Fault> {
        let mut table = Table::new();
        loop {
            if self.comment_behind_newlines()? {
                continue;
            }
            if let Some(included) = self.include()? {
                for (key, node) in included {
                    self.assign(&mut table, &Key::Path(key), node)?;
                }
                continue;
            }
            let Some(key) = self.key()? else {
                if self.run("\n\r,") {
                    continue;
                }
                return Ok(table);
            };
            while self.comment()? || self.run("\n\r") {}
            if self.sign("{") {
                let section = self.nested(|parser| parser.section('}'))?;
                self.assign(&mut table, &key, Node::Table(section))?;
                continue;
            }
            let adds = match () {
                () if self.sign("=") || self.sign(":") => false,
                () if self.sign("+=") => true,
                () => {
                    return Err(self.fault("expected \":\", \"=\", \"+=\" or \"{\" after a key"));
                }
            };
            while self.comment()? || self.run("\n\r") {}
            let at = self.at;
            let value = self.value()?;
            let value = if adds {
                self.added(&key, value, at)
            } else {
                value
            };
            self.assign(&mut table, &key, value)?;
        }
    }

    /// `key += value` for lists and texts: what the key had, and the value. pyhocon looks for the key from the root.
    fn added(&self, key: &Key, value: Node, at: usize) -> Node {
        let value = match value {
            Node::Scalar(Value::String(text)) => {
                Part::Node(Node::Scalar(Value::String(format!(" {text}"))))
            }
            value @ Node::List(_) => Part::Node(value),
            value => return value,
        };
        let path = match key {
            Key::Path(text) | Key::Number(text) => text.trim().to_owned(),
        };
        let (line, column) = self.position(at);
        let before = Part::Reference(Reference {
            path,
            optional: true,
            blanks: String::new(),
            line,
            column,
        });
        Node::Open(Box::new(Open {
            parts: vec![before, value],
            under: None,
        }))
    }

    fn assign(&self, table: &mut Table, key: &Key, value: Node) -> Result<(), Fault> {
        let keys = key.keys();
        let exists = |found: fn(&Node) -> bool| {
            let (last, above) = keys.split_last()?;
            let mut table = &*table;
            for key in above {
                let Some(Node::Table(inner)) = table.get(key) else {
                    return None;
                };
                table = inner;
            }
            table.get(last).map(found)
        };
        let append = match value {
            Node::Table(_) => exists(|node| matches!(node, Node::List(_))) != Some(true),
            Node::Open(_) => {
                exists(|node| matches!(node, Node::List(_) | Node::Table(_))) == Some(true)
            }
            _ => false,
        };
        put(table, &keys, value, append).map_err(|why| self.fault(why))
    }

    fn include(&mut self) -> Read<Table> {
        let before = self.at;
        if !self.keyword("include", true) {
            return Ok(None);
        }
        let (required, content) = match self.included_name()? {
            Some(name) => (false, Some(name)),
            None if self.keyword("required", false) => {
                self.needed('(')?;
                let name = self.included_name()?;
                if name.is_none() {
                    return Err(self.fault("expected a file name in double quotes"));
                }
                self.needed(')')?;
                (true, name)
            }
            None => (false, None),
        };
        let Some(name) = content else {
            // A key may have this name.
            self.at = before;
            return Ok(None);
        };
        self.included(before, &name, required).map(Some)
    }

    fn included_name(&mut self) -> Read<String> {
        let url = self.keyword("url", false);
        if !url && !self.keyword("file", false) {
            return Ok(self.quoted().map(|(name, _)| name));
        }
        self.needed('(')?;
        let Some((name, _)) = self.quoted() else {
            return Err(self.fault("expected a name in double quotes"));
        };
        self.needed(')')?;
        Ok(Some(if url && !name.contains("://") {
            format!("url://{name}")
        } else {
            name
        }))
    }

    fn included(&mut self, at: usize, name: &str, required: bool) -> Result<Table, Fault> {
        let fault = |parser: &Self, why: String| parser.fault_at(at, why);
        let name = name.strip_prefix("file://").unwrap_or(name);
        if name.contains("://") {
            let why = format!(
                "cannot include {name:?}: only local files can be included; copy it to this machine and include the copy"
            );
            return Err(fault(self, why));
        }
        if self.files.left == 0 {
            let why =
                format!("cannot include {name:?}: at most {MOST_FILES} files can be included");
            return Err(fault(self, why));
        }
        self.files.left -= 1;
        let path = self.files.folder.join(name);
        let text = match super::read_text(&path) {
            Ok(text) => text,
            Err(Failure::Read(error)) if !required => {
                tracing::warn!(file = %path.display(), %error, "cannot read an included file; ignoring it");
                return Ok(Table::new());
            }
            Err(Failure::Read(error)) => {
                return Err(fault(
                    self,
                    format!("cannot include {}: {error}", path.display()),
                ));
            }
            Err(Failure::Text(inner)) => {
                return Err(fault(self, format!("{}: {inner}", path.display())));
            }
        };
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        let outer = std::mem::replace(&mut self.files.folder, folder);
        let table = self.files.parse(&text);
        self.files.folder = outer;
        table.map_err(|inner| fault(self, format!("{}: {inner}", path.display())))
    }

    fn key(&mut self) -> Read<Key> {
        self.blanks();
        if self.rest().starts_with('"') {
            let Some(length) = quoted_length(self.rest(), "\"\n\r") else {
                return Ok(None);
            };
            let text = self.take(length).trim().to_owned();
            return Ok(Some(Key::Path(text)));
        }
        if let Some(length) = number_length(self.rest()) {
            let number = super::written(&number(self.take(length)));
            return Ok(Some(Key::Number(number)));
        }
        let letter = |letter: char| {
            letter.is_ascii_alphanumeric()
                || "._- /".contains(letter)
                || ('\u{c0}'..='\u{ff}').contains(&letter) && letter != '×' && letter != '÷'
        };
        let length = self.rest().find(|found| !letter(found));
        let text = self.take(length.unwrap_or(self.rest().len())).trim();
        Ok((!text.is_empty()).then(|| Key::Path(text.to_owned())))
    }

    /// The pieces of a value up to the end of its line, a comma or a closing bracket.
    fn value(&mut self) -> Result<Node, Fault> {
        let at = self.at;
        let mut parts = Vec::new();
        loop {
            if self.comment_behind_newlines()? {
                continue;
            }
            let before = self.at;
            if self.include()?.is_some() {
                return Err(
                    self.fault_at(before, "include must stand on a line of its own".to_owned())
                );
            }
            let Some(part) = self.part()? else {
                if !self.rest().starts_with('\\') {
                    return joined(parts).map_err(|why| self.fault_at(at, why));
                }
                self.at += 1;
                if !self.run("\n\r") {
                    return Err(self.fault("expected the end of the line after a backslash"));
                }
                continue;
            };
            parts.push(part);
        }
    }

    fn part(&mut self) -> Read<Part> {
        self.blanks();
        if let Some(reference) = self.reference() {
            return Ok(Some(Part::Reference(reference)));
        }
        if self.sign("{") {
            let table = self.nested(|parser| parser.section('}'))?;
            return Ok(Some(Part::Node(Node::Table(table))));
        }
        if self.sign("[") {
            let list = self.nested(Self::list)?;
            return Ok(Some(Part::Node(Node::List(list))));
        }
        let scalar = |value| Ok(Some(Part::Node(Node::Scalar(value))));
        if let Some(length) = number_length(self.rest()) {
            return scalar(number(self.take(length)));
        }
        for (word, value) in [
            ("true", Value::Bool(true)),
            ("false", Value::Bool(false)),
            ("null", Value::Null),
        ] {
            if self.keyword(word, true) {
                return scalar(value);
            }
        }
        if let Some(text) = self.multiline() {
            return scalar(Value::String(text));
        }
        if let Some((text, blanks)) = self.quoted() {
            return Ok(Some(Part::Quoted(text, blanks)));
        }
        Ok(self.bare().map(Part::Bare))
    }

    fn list(&mut self) -> Result<Vec<Node>, Fault> {
        let mut list = Vec::new();
        loop {
            let item = self.value()?;
            // pyhocon keeps no empty text in a list.
            if !matches!(&item, Node::Scalar(Value::String(text)) if text.is_empty()) {
                list.push(item);
            }
            if !self.run("\n\r,") {
                self.needed(']')?;
                return Ok(list);
            }
        }
    }

    fn reference(&mut self) -> Option<Reference> {
        let inner = self.rest().strip_prefix("${")?;
        let length = inner.find('}').filter(|length| *length > 0)?;
        let written = &inner[..length];
        let path = written.strip_prefix('?').filter(|path| !path.is_empty());
        let (line, column) = self.position(self.at);
        let reference = Reference {
            path: path.unwrap_or(written).to_owned(),
            optional: path.is_some(),
            blanks: String::new(),
            line,
            column,
        };
        self.at += length + 3;
        let blanks = self.taken_blanks();
        Some(Reference {
            blanks,
            ..reference
        })
    }

    fn multiline(&mut self) -> Option<String> {
        let inner = self.rest().strip_prefix("\"\"\"")?;
        let close = inner.find("\"\"\"")?;
        // More quotes than three at the end belong to the text.
        let quotes = inner[close..].len() - inner[close..].trim_start_matches('"').len();
        let text = inner[..close + quotes - 3].to_owned();
        self.at += text.len() + 6;
        Some(text)
    }

    fn quoted(&mut self) -> Option<(String, String)> {
        self.blanks();
        let length = quoted_length(self.rest(), "\"\n")?;
        let text = self.take(length);
        let text = unescaped(&text[1..length - 1]);
        Some((text, self.taken_blanks()))
    }

    fn bare(&mut self) -> Option<String> {
        let mut length = 0;
        let mut letters = self.rest().chars();
        while let Some(letter) = letters.next() {
            if letter == '\\' {
                match letters.next().filter(|next| *next != '\n') {
                    Some(next) => length += next.len_utf8(),
                    None => break,
                }
            } else if is_space(letter) || "^`+?!@*&\"[{]}#,=$".contains(letter) {
                break;
            }
            length += letter.len_utf8();
        }
        if length == 0 {
            return None;
        }
        let text = unescaped(self.take(length));
        Some(text + &self.taken_blanks())
    }

    /// A comment, with the newlines and commas before it. Without one, nothing is read.
    fn comment_behind_newlines(&mut self) -> Result<bool, Fault> {
        let before = self.at;
        self.run("\n\r,");
        let found = self.comment()?;
        if !found {
            self.at = before;
        }
        Ok(found)
    }

    fn comment(&mut self) -> Result<bool, Fault> {
        self.blanks();
        let found = self.rest().starts_with('#') || self.rest().starts_with("//");
        if found {
            let length = self.rest().find(['\n', '\r']);
            self.take(length.unwrap_or(self.rest().len()));
        }
        Ok(found)
    }

    /// A word, in any case if so asked, that no letter, digit, `_` or `$` continues on either side.
    fn keyword(&mut self, word: &str, any_case: bool) -> bool {
        self.blanks();
        let continues = |letter: char| letter.is_ascii_alphanumeric() || "_$".contains(letter);
        let Some(there) = self.rest().get(..word.len()) else {
            return false;
        };
        let same = there == word || any_case && there.eq_ignore_ascii_case(word);
        let alone = !self.rest()[word.len()..].starts_with(continues)
            && !self.text[..self.at].ends_with(continues);
        if same && alone {
            self.at += word.len();
        }
        same && alone
    }

    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, Fault>) -> Result<T, Fault> {
        if self.files.depth == DEEPEST {
            return Err(self.fault(&format!("brackets are nested deeper than {DEEPEST} levels")));
        }
        self.files.depth += 1;
        let value = read(self)?;
        self.files.depth -= 1;
        Ok(value)
    }

    fn needed(&mut self, sign: char) -> Result<(), Fault> {
        let mut bytes = [0; 4];
        if self.sign(sign.encode_utf8(&mut bytes)) {
            return Ok(());
        }
        Err(match self.rest().chars().next() {
            None => self.fault(&format!("expected {sign:?}, found the end of the file")),
            Some(letter) => self.unexpected(&format!("{sign:?}"), letter),
        })
    }

    fn unexpected(&self, wanted: &str, letter: char) -> Fault {
        let why = match letter {
            '"' => "the closing double quote is missing on this line".to_owned(),
            _ => format!(
                "expected {wanted}, found {letter:?}: put strings with special characters into double quotes"
            ),
        };
        self.fault(&why)
    }

    fn sign(&mut self, sign: &str) -> bool {
        self.blanks();
        let found = self.rest().starts_with(sign);
        if found {
            self.at += sign.len();
        }
        found
    }

    fn run(&mut self, of: &str) -> bool {
        self.blanks();
        let rest = self.rest();
        let length = rest.len() - rest.trim_start_matches(|letter| of.contains(letter)).len();
        self.at += length;
        length > 0
    }

    fn blanks(&mut self) {
        self.taken_blanks();
    }

    fn taken_blanks(&mut self) -> String {
        let rest = self.rest();
        let length = rest.len() - rest.trim_start_matches(' ').len();
        self.take(length).to_owned()
    }

    fn take(&mut self, length: usize) -> &str {
        let taken = &self.text[self.at..self.at + length];
        self.at += length;
        taken
    }

    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn fault(&self, why: &str) -> Fault {
        self.fault_at(self.at, why.to_owned())
    }

    fn fault_at(&self, at: usize, why: String) -> Fault {
        let (line, column) = self.position(at);
        Fault { line, column, why }
    }

    fn position(&self, at: usize) -> (usize, usize) {
        let before = &self.text[..at];
        let line = before.rfind('\n').map_or(0, |end| end + 1);
        (
            1 + before.matches('\n').count(),
            1 + before[line..].chars().count(),
        )
    }
}
