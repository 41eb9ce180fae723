//! Delimited text (CSV, `sacct -P`): rows by the name of their columns, and errors with line, column and value.

use csv::{ByteRecord, Reader, ReaderBuilder};

use super::InputError;

/// Bytes that a line may have. More than 256 columns of text need; a longer one is no list.
const LONGEST_LINE: usize = 64 << 10;
/// Columns that a list may have. Lists of requests have tens, so a wider file is no list.
const MOST_COLUMNS: usize = 256;
/// The largest number of a list; no node has as many MiB or thousandths of a core.
const LARGEST: f64 = 1e15;

/// A list of rows under named columns.
pub struct Table<'a> {
    text: &'a [u8],
    reader: Reader<&'a [u8]>,
    columns: Vec<String>,
    quoted: bool,
    record: ByteRecord,
    /// The record's line, and the bytes up to which lines are counted. The reader's own count is one behind after lines
    /// that end in CR LF.
    line: u64,
    counted: usize,
    /// A first row that is no header, still to be returned.
    held: bool,
}

/// One row.
pub struct Row<'a> {
    pub line: u64,
    columns: &'a [String],
    record: &'a ByteRecord,
}

impl<'a> Table<'a> {
    fn open(text: &'a [u8], delimiter: u8, quoted: bool) -> Self {
        let reader = ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .delimiter(delimiter)
            .quoting(quoted)
            .trim(csv::Trim::All)
            .from_reader(text);
        Self {
            text,
            reader,
            columns: Vec::new(),
            quoted,
            record: ByteRecord::new(),
            line: 1,
            counted: 0,
            held: false,
        }
    }

    /// CSV with a header that names these columns, and perhaps others.
    ///
    /// # Errors
    /// No header, a column that is missing or named twice.
    pub fn csv(text: &'a [u8], needed: &[&str]) -> Result<Self, InputError> {
        let mut table = Self::open(text, b',', true);
        if !table.advance()? {
            return Err(InputError {
                place: "line 1".to_owned(),
                what: "the file is empty".to_owned(),
                hint: format!("begin with a header: {}", needed.join(",")),
            });
        }
        table.take_header(needed, |name| name.to_ascii_lowercase())?;
        Ok(table)
    }

    /// Fields between bars, as `sacct -P` writes them: with a header, or without one and then in this order.
    ///
    /// # Errors
    /// A header with a column that is missing or named twice.
    pub fn bars(text: &'a [u8], order: &[&str]) -> Result<Self, InputError> {
        let mut table = Self::open(text, b'|', false);
        if !table.advance()? {
            return Ok(table);
        }
        let is_header =
            (table.record.iter()).any(|field| field.eq_ignore_ascii_case(order[0].as_bytes()));
        if is_header {
            let canonical = |name: &str| {
                let known = order.iter().find(|known| known.eq_ignore_ascii_case(name));
                known.map_or_else(|| name.to_owned(), |known| (*known).to_owned())
            };
            table.take_header(order, canonical)?;
        } else {
            table.columns = order.iter().map(|name| (*name).to_owned()).collect();
            table.held = true;
        }
        Ok(table)
    }

    fn take_header(
        &mut self,
        needed: &[&str],
        name: impl Fn(&str) -> String,
    ) -> Result<(), InputError> {
        let line = self.line;
        let place = format!("line {line}");
        let begin = format!("the header needs the columns {}", needed.join(", "));
        let error = |what: String| InputError {
            place: place.clone(),
            what,
            hint: begin.clone(),
        };
        if self.record.len() > MOST_COLUMNS {
            let columns = self.record.len();
            return Err(error(format!(
                "{columns} columns, at most {MOST_COLUMNS} are possible"
            )));
        }
        for field in &self.record {
            let Ok(field) = std::str::from_utf8(field) else {
                return Err(error(format!("`{}`: not UTF-8", shown(field))));
            };
            let column = name(field);
            if !column.is_empty() && self.columns.contains(&column) {
                return Err(error(format!(
                    "the header names `{}` twice",
                    shown(field.as_bytes())
                )));
            }
            self.columns.push(column);
        }
        let missing = needed
            .iter()
            .find(|name| !self.columns.iter().any(|column| column == *name));
        match missing {
            Some(missing) => Err(error(format!("the header has no column `{missing}`"))),
            None => Ok(()),
        }
    }

    /// Whether the header names the column.
    pub fn has(&self, column: &str) -> bool {
        self.columns.iter().any(|name| name == column)
    }

    /// The next row; `None` after the last.
    ///
    /// # Errors
    /// A line that is too long, has broken quotes, or another number of fields than the header.
    pub fn next(&mut self) -> Result<Option<Row<'_>>, InputError> {
        if !std::mem::take(&mut self.held) && !self.advance()? {
            return Ok(None);
        }
        let line = self.line;
        let (fields, columns) = (self.record.len(), self.columns.len());
        let ends_open = fields == columns + 1 && self.record.get(columns) == Some(b"".as_slice());
        if fields != columns && !ends_open {
            return Err(InputError {
                place: format!("line {line}"),
                what: format!("{fields} fields, but the list has {columns} columns"),
                hint: format!("give each line {}", self.columns.join(", ")),
            });
        }
        Ok(Some(Row {
            line,
            columns: &self.columns,
            record: &self.record,
        }))
    }

    /// Reads one record, and checks its bytes.
    fn advance(&mut self) -> Result<bool, InputError> {
        let error = |line: u64, what: String, hint: &str| InputError {
            place: format!("line {line}"),
            what,
            hint: hint.to_owned(),
        };
        match self.reader.read_byte_record(&mut self.record) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(why) => {
                let hint = "write one row on each line";
                return Err(error(self.line + 1, format!("broken line: {why}"), hint));
            }
        }
        let at =
            |byte: u64| usize::try_from(byte).map_or(self.text.len(), |at| at.min(self.text.len()));
        let from = at(self.record.position().map_or(0, csv::Position::byte));
        let raw = &self.text[from..at(self.reader.position().byte()).max(from)];
        let start = from + raw.len() - raw.trim_ascii_start().len();
        let passed = self.text.get(self.counted..start).unwrap_or_default();
        self.line += passed.iter().filter(|byte| **byte == b'\n').count() as u64;
        self.counted = start;
        let raw = raw.trim_ascii();
        let quotes = raw.iter().filter(|byte| **byte == b'"').count();
        let breaks = self.record.iter().any(|field| field.contains(&b'\n'));
        if self.quoted && (quotes % 2 == 1 || breaks) {
            let what = "a quoted field does not end on its line".to_owned();
            let hint = "close the quotes; write a quote inside a field twice";
            return Err(error(self.line, what, hint));
        }
        if raw.len() > LONGEST_LINE {
            let what = format!("{} bytes, a line has at most {LONGEST_LINE}", raw.len());
            return Err(error(self.line, what, "check that each line is one row"));
        }
        Ok(true)
    }
}

impl Row<'_> {
    /// `line 7, column cpu_milli`
    pub fn place(&self, column: &str) -> String {
        format!("line {}, column {column}", self.line)
    }

    /// What is wrong with the value of a column.
    pub fn error(&self, column: &str, value: &str, why: &str, hint: &str) -> InputError {
        InputError {
            place: self.place(column),
            what: format!("`{}`: {why}", shown(value.as_bytes())),
            hint: hint.to_owned(),
        }
    }

    /// The text of a column; empty where the list has no such column.
    ///
    /// # Errors
    /// Bytes that are not UTF-8.
    pub fn text(&self, column: &str) -> Result<&str, InputError> {
        let at = self.columns.iter().position(|name| name == column);
        let field = at.and_then(|at| self.record.get(at)).unwrap_or_default();
        std::str::from_utf8(field).map_err(|_| InputError {
            place: self.place(column),
            what: format!("`{}`: not UTF-8", shown(field)),
            hint: "save the list in UTF-8".to_owned(),
        })
    }

    /// The whole number of a column: `4`, `4.0`; 0 where the field is empty.
    ///
    /// # Errors
    /// Any other text, a negative number, NaN, and numbers beyond what a node can have.
    pub fn count(&self, column: &str) -> Result<u64, InputError> {
        Ok(self.optional_count(column)?.unwrap_or(0))
    }

    /// As [`Row::count`]; `None` where the field is empty.
    pub fn optional_count(&self, column: &str) -> Result<Option<u64>, InputError> {
        let text = self.text(column)?;
        if text.is_empty() {
            return Ok(None);
        }
        let wrong = |why| self.error(column, text, why, "write a whole number, 0 or more");
        let number: f64 = text.parse().map_err(|_| wrong("not a number"))?;
        if !number.is_finite() {
            return Err(wrong("not a number"));
        }
        if number < 0.0 {
            return Err(wrong("negative"));
        }
        if number.fract() != 0.0 {
            return Err(wrong("not a whole number"));
        }
        if number > LARGEST {
            return Err(wrong("too large"));
        }
        Ok(Some(number as u64))
    }
}

/// A value in an error: its beginning, if it is long.
pub fn shown(value: &[u8]) -> String {
    /// A longer value would hide the message.
    const MOST: usize = 60;
    let text = String::from_utf8_lossy(value);
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into_owned(),
    }
}
