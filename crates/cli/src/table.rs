//! Text tables that fit a given width. The last column is the reason: it shrinks first, and wraps where other columns are
//! cut.
//!
//! A table that is too wide gives up room in this order:
//! 1. the last column, down to 32 columns of the terminal;
//! 2. spare columns that say the same in every row, such as QUEUE when all jobs are in `default`;
//! 3. names, down to 16;
//! 4. the last column, down to 24;
//! 5. the last column leaves its row and gets the lines below it;
//! 6. spare columns that other columns make up for, such as REQ;
//! 7. names, down to 8 and then to the width of their titles.

use std::borrow::Cow;

use unicode_width::UnicodeWidthChar as _;

use crate::colour::{Palette, Tone};

/// Least width that a text is fitted to, however narrow the terminal. Half of the usual 80 columns: a narrower one
/// would break words of the titles.
pub const NARROWEST: usize = 40;
/// Between two columns. One would not be enough where a text has spaces; three take room from texts.
const GAP: usize = 2;
/// Width of the last column for which other columns give up nothing. Four or five words: enough for a reason to be read
/// without breaks.
const LAST_WANTS: usize = 32;
/// Least width of the last column in its row. With less, it gets lines of its own. Three words; in a narrower column
/// each word would stand alone.
const LAST_LEAST: usize = 24;
/// Width of a name for which the last column leaves its row.
const NAME_WANTS: usize = 16;
/// What any column that can be made narrower keeps, unless the table is still too wide then. Below this it keeps the
/// width of its title. Enough for a short name or an id; half would leave three letters and an ellipsis.
const LEAST: usize = 8;
/// Lines of one row at most. A longer row hides the rows below it; the text ends with an ellipsis.
const LINES: usize = 3;
/// Indent of the last column on lines of its own. Enough to tell the line from a row, and no more room than that.
const INDENT: usize = 4;

/// How a column may be drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Never cut: ids, states, figures.
    Fixed(&'static str),
    /// Never cut, right-aligned.
    Right(&'static str),
    /// Cut with `…` when the table is too wide, or wrapped in the last column: names, reasons.
    Text(&'static str),
    /// Left out of a table that is too wide; a name or a figure that is never cut otherwise.
    Spare(&'static str, Spare),
    /// A figure, right-aligned, that a table which is too wide leaves out late.
    SpareRight(&'static str),
}

/// When a table that is too wide leaves a column out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spare {
    /// Early, if every cell is this text or empty.
    If(&'static str),
    /// Late, if every cell is the same.
    Same,
    /// Late.
    Late,
}

impl Column {
    fn title(self) -> &'static str {
        match self {
            Self::Fixed(title)
            | Self::Right(title)
            | Self::Text(title)
            | Self::Spare(title, _)
            | Self::SpareRight(title) => title,
        }
    }

    fn spare(self) -> Option<Spare> {
        match self {
            Self::Spare(_, spare) => Some(spare),
            Self::SpareRight(_) => Some(Spare::Late),
            _ => None,
        }
    }

    /// Whether it may be cut.
    fn is_text(self) -> bool {
        matches!(
            self,
            Self::Text(_) | Self::Spare(_, Spare::If(_) | Spare::Same)
        )
    }
}

/// How much of a terminal a table may take, in terminal columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// Cuts nothing: no terminal.
    Uncut,
    /// The whole table takes so many. Fixed columns are never cut, so it may still be wider.
    Table(usize),
    /// The table may be wider, but a text column before the last takes no more than half of so many.
    Cells(usize),
}

/// The table as lines, each ended by a newline, without trailing spaces.
pub fn render(columns: &[Column], rows: &[Vec<String>], fit: Fit) -> String {
    let mut cells = Cells::default();
    for row in rows {
        row.iter().for_each(|cell| cells.add(cell));
        cells.end_row();
    }
    cells.render(columns, fit)
}

/// Cells, row by row, as one text: of a long table a text for each would take longer to make than the table.
#[derive(Debug, Default)]
pub struct Cells {
    text: String,
    /// Where each cell ends in the text.
    ends: Vec<usize>,
    /// How many cells there are at the end of each row.
    rows: Vec<usize>,
    palette: Palette,
    /// Cells with a tone, by position.
    tones: Vec<(usize, Tone)>,
}

impl Cells {
    /// No cells, to be drawn in these colours.
    pub fn coloured(palette: Palette) -> Self {
        Self {
            palette,
            ..Self::default()
        }
    }

    pub fn add_in(&mut self, tone: Option<Tone>, cell: &str) {
        let tone = tone.filter(|_| self.palette != Palette::Off);
        self.tones.extend(tone.map(|tone| (self.ends.len(), tone)));
        self.add(cell);
    }

    pub fn add(&mut self, cell: &str) {
        self.text.push_str(cell);
        self.ends.push(self.text.len());
    }

    pub fn end_row(&mut self) {
        self.rows.push(self.ends.len());
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The rows, each with its cells.
    fn rows(&self) -> impl Iterator<Item = impl ExactSizeIterator<Item = &str>> {
        let cell = |at: usize| {
            let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
            &self.text[start..self.ends[at]]
        };
        let starts = std::iter::once(0).chain(self.rows.iter().copied());
        (starts.zip(&self.rows)).map(move |(start, end)| (start..*end).map(cell))
    }

    /// Each row in a line, one cell after the other, without columns.
    pub fn lines(&self) -> String {
        let mut text = String::with_capacity(self.text.len() + self.rows.len());
        for row in self.rows() {
            text.extend(row);
            text.push('\n');
        }
        text
    }

    /// The table, as [`render`] draws it.
    pub fn render(&self, columns: &[Column], fit: Fit) -> String {
        let mut widths: Vec<usize> = columns.iter().map(|column| taken(column.title())).collect();
        for row in self.rows() {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(taken(cell));
            }
        }
        let mut layout = Layout {
            columns,
            widths,
            shown: vec![true; columns.len()],
            is_below: false,
            limit: match fit {
                Fit::Uncut => usize::MAX,
                Fit::Table(limit) | Fit::Cells(limit) => limit,
            },
        };
        match fit {
            Fit::Uncut => {}
            Fit::Table(_) => self.fit_table(&mut layout),
            Fit::Cells(_) => layout.fit_cells(),
        }
        let mut text = String::with_capacity(self.text.len() * 2);
        let titles = columns
            .iter()
            .map(|column| (column.title(), Some(Tone::Title)));
        layout.draw(titles, self.palette, true, &mut text);
        let mut at = 0;
        let mut tones = self.tones.iter().peekable();
        for row in self.rows() {
            let cells = row.map(|cell| {
                let tone = tones.next_if(|(toned, _)| *toned == at);
                at += 1;
                (cell, tone.map(|(_, tone)| *tone))
            });
            layout.draw(cells, self.palette, false, &mut text);
        }
        text
    }

    /// Whether every cell of a column satisfies this.
    fn all(&self, column: usize, is: impl Fn(&str) -> bool) -> bool {
        self.rows().all(|mut row| row.nth(column).is_none_or(&is))
    }

    /// Gives up room in the order of this module's text until the table fits.
    fn fit_table(&self, layout: &mut Layout<'_>) {
        let natural = layout.widths.clone();
        layout.narrow_last(LAST_WANTS);
        for at in 0..layout.columns.len() {
            if let Column::Spare(_, Spare::If(usual)) = layout.columns[at]
                && layout.over() > 0
                && self.all(at, |cell| cell.is_empty() || cell == usual)
            {
                layout.leave_out(at, &natural);
            }
        }
        layout.narrow_names(|_| NAME_WANTS);
        layout.narrow_last(LAST_LEAST);
        if layout.over() > 0 && layout.can_be_below() {
            layout.widths.clone_from(&natural);
            layout.is_below = true;
            layout.narrow_names(|_| NAME_WANTS);
        }
        let is_same = |at: &usize| {
            let first = self.rows().next().and_then(|mut row| row.nth(*at));
            self.all(*at, |cell| Some(cell) == first)
        };
        let spare = |spare| {
            let columns = layout.columns.iter().enumerate();
            let found = columns.filter(move |(_, column)| column.spare() == Some(spare));
            found.map(|(at, _)| at)
        };
        let late = spare(Spare::Late).chain(spare(Spare::Same).filter(is_same));
        for at in late.collect::<Vec<_>>() {
            if layout.over() > 0 {
                layout.leave_out(at, &natural);
            }
        }
        layout.narrow_names(|_| LEAST);
        layout.narrow_last(LEAST);
        let title = |column: Column| taken(column.title()).min(LEAST);
        layout.narrow_names(title);
        layout.narrow_last(taken(layout.last().title()).min(LEAST));
    }
}

/// The columns of a table as they are drawn.
struct Layout<'a> {
    columns: &'a [Column],
    widths: Vec<usize>,
    shown: Vec<bool>,
    /// The last column has lines of its own below each row.
    is_below: bool,
    /// Columns of the terminal.
    limit: usize,
}

impl Layout<'_> {
    fn last(&self) -> Column {
        self.columns.last().copied().unwrap_or(Column::Fixed(""))
    }

    /// Whether the column is drawn in the row.
    fn is_in_row(&self, at: usize) -> bool {
        self.shown[at] && !(self.is_below && at + 1 == self.columns.len())
    }

    /// By how much the rows are too wide.
    fn over(&self) -> usize {
        let shown = (0..self.columns.len()).filter(|at| self.is_in_row(*at));
        let widths = shown.map(|at| self.widths[at] + GAP).sum::<usize>();
        widths.saturating_sub(GAP).saturating_sub(self.limit)
    }

    /// Whether the last column is a text that may leave its row.
    fn can_be_below(&self) -> bool {
        self.columns.len() > 2 && self.last().is_text()
    }

    /// Leaves a column out, and lets the others have its room.
    fn leave_out(&mut self, at: usize, natural: &[usize]) {
        self.shown[at] = false;
        self.widths.clone_from_slice(natural);
        if self.is_below {
            self.narrow_names(|_| NAME_WANTS)
        } else {
            self.narrow_last(LAST_WANTS)
        }
    }

    fn narrow_last(&mut self, floor: usize) {
        let over = self.over();
        let is_text = self.last().is_text() && !self.is_below;
        if let Some(last) = self.widths.last_mut().filter(|_| is_text) {
            *last -= over.min(last.saturating_sub(floor));
        }
    }

    /// Takes what is too much from the widest text column before the last, as long as one is wider than its floor.
    fn narrow_names(&mut self, floor: impl Fn(Column) -> usize) {
        let last = self.columns.len().saturating_sub(1);
        for _ in 0..self.over() {
            let wider = |at: &usize| {
                let column = self.columns[*at];
                self.shown[*at] && column.is_text() && self.widths[*at] > floor(column)
            };
            let widest = (0..last).filter(wider).max_by_key(|at| self.widths[*at]);
            match widest {
                Some(at) => self.widths[at] -= 1,
                None => return,
            }
        }
    }

    /// Fits each text cell by itself. Nothing stands behind the last column, so that it widens no other row.
    fn fit_cells(&mut self) {
        let last = self.columns.len().saturating_sub(1);
        for (column, width) in self.columns.iter().zip(&mut self.widths).take(last) {
            if column.is_text() {
                *width = (*width).min(self.limit / 2);
            }
        }
    }

    /// Adds one row: its line, and one more for each that the last cell needs.
    fn draw<'b>(
        &self,
        cells: impl ExactSizeIterator<Item = (&'b str, Option<Tone>)>,
        palette: Palette,
        is_title: bool,
        text: &mut String,
    ) {
        let last = cells.len().saturating_sub(1);
        let mut indent = 0;
        for (at, (cell, tone)) in cells.enumerate().take(self.columns.len()) {
            let width = self.widths[at];
            let put = |text: &mut String, piece: &str| match tone {
                Some(tone) if palette != Palette::Off => {
                    text.push_str(&palette.paint(tone, piece));
                }
                _ => text.push_str(piece),
            };
            if at == last && !self.is_below {
                for (line, piece) in wrap(cell, width, LINES).iter().enumerate() {
                    if line > 0 {
                        pad(text, indent);
                    }
                    put(text, piece);
                    end_line(text);
                }
                return;
            }
            if at == last {
                end_line(text);
                if !is_title && !cell.is_empty() {
                    let cell = named(self.last().title(), cell);
                    for piece in wrap(&cell, self.limit.saturating_sub(INDENT), LINES) {
                        pad(text, INDENT);
                        put(text, &piece);
                        end_line(text);
                    }
                }
                return;
            }
            if !self.shown[at] {
                continue;
            }
            let cell = cut(cell, width);
            let rest = width - taken(&cell);
            if matches!(self.columns[at], Column::Right(_) | Column::SpareRight(_)) {
                pad(text, rest);
                put(text, &cell);
            } else {
                put(text, &cell);
                pad(text, rest);
            }
            pad(text, GAP);
            indent += width + GAP;
        }
    }
}

/// The text of the last column below its row; with its title, unless it is a sentence.
fn named<'a>(title: &str, cell: &'a str) -> Cow<'a, str> {
    match title {
        "REASON" | "NOTE" => cell.into(),
        title => format!("{}: {cell}", title.to_lowercase()).into(),
    }
}

/// Ends a line without spaces at its end.
fn end_line(text: &mut String) {
    text.truncate(text.trim_end_matches(' ').len());
    text.push('\n');
}

/// A text for people in lines of at most `width` columns, broken between words. Later lines of a line begin at `hang`. A
/// word that is too long has a line of its own. `None`: as it is.
pub fn wrapped(text: &str, width: Option<usize>, hang: usize) -> String {
    let Some(width) = width else {
        return text.to_owned();
    };
    let mut all = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (mut rest, mut used) = (line, 0);
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(piece(rest, width.saturating_sub(hang)));
            rest = behind;
            let word = piece.trim_start_matches(' ');
            if used > hang && used + taken(piece.trim_end()) > width && !word.is_empty() {
                all.push('\n');
                pad(&mut all, hang);
                all.push_str(word);
                used = hang + taken(word);
            } else {
                all.push_str(piece);
                used += taken(piece);
            }
        }
    }
    all
}

/// Bytes of the blanks at the beginning and of what follows them and has to stay on one line: a command of at most
/// `room` columns, in backquotes or from `divvy` to the end, otherwise a word.
fn piece(rest: &str, room: usize) -> usize {
    let blanks = rest.len() - rest.trim_start_matches(' ').len();
    let text = &rest[blanks..];
    let end_of_word = |from: usize| text[from..].find(' ').map_or(text.len(), |at| from + at);
    let word = end_of_word(0);
    let command = match text[..word].matches('`').count() {
        1 => text[word..].find('`').map(|at| end_of_word(word + at)),
        _ => text.starts_with("divvy ").then_some(text.len()),
    };
    let command = command.filter(|end| taken(text[..*end].trim_end()) <= room);
    blanks + command.unwrap_or(word)
}

fn pad(text: &mut String, mut width: usize) {
    const BLANKS: &str = "                                                                ";
    while width > 0 {
        let some = width.min(BLANKS.len());
        text.push_str(&BLANKS[..some]);
        width -= some;
    }
}

/// Columns of a terminal that the text takes: those of its characters, as `wcwidth` of most terminals adds them. A terminal that draws a
/// sequence as one glyph (an emoji with a skin tone) takes fewer. Most texts are plain, and of those it is their length.
fn taken(text: &str) -> usize {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        text.len()
    } else {
        text.chars().filter_map(|c| c.width()).sum()
    }
}

/// The text in at most `width` columns, with `…` where something was left out.
pub fn cut(text: &str, width: usize) -> Cow<'_, str> {
    if taken(text) <= width {
        return text.into();
    }
    let (kept, _) = text.split_at(split(text, width.saturating_sub(1)));
    format!("{}…", kept.trim_end()).into()
}

/// The text in at most `most` lines of at most `width` columns, broken between words where there are any.
fn wrap(text: &str, width: usize, most: usize) -> Vec<Cow<'_, str>> {
    let mut lines = Vec::new();
    let mut rest = text;
    while taken(rest) > width && lines.len() + 1 < most {
        let end = split(rest, width).max(rest.chars().next().map_or(0, char::len_utf8));
        // A word that ends where the line does needs no break before it.
        let words = if rest[end..].starts_with(' ') {
            Some(end)
        } else {
            rest[..end].rfind(' ')
        };
        let (line, left) = rest.split_at(words.filter(|at| *at > 0).unwrap_or(end));
        lines.push(line.trim_end().into());
        rest = left.trim_start();
    }
    lines.push(cut(rest, width));
    lines
}

/// How many bytes of the text fit in `width` columns.
fn split(text: &str, width: usize) -> usize {
    let mut used = 0;
    for (at, c) in text.char_indices() {
        used += c.width().unwrap_or(0);
        if used > width {
            return at;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const COLUMNS: &[Column] = &[
        Column::Right("ID"),
        Column::Text("NAME"),
        Column::Fixed("STATE"),
        Column::Text("REASON"),
    ];

    fn rows() -> Vec<Vec<String>> {
        let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
        vec![
            row(["7", "short", "running", ""]),
            row([
                "124",
                "a-rather-long-name-indeed",
                "queued",
                "needs 1 whole GPU; 2.75 of 3 GPUs in use",
            ]),
        ]
    }

    #[test]
    fn an_unbounded_table_cuts_nothing_and_ends_no_line_in_spaces() {
        let text = render(COLUMNS, &rows(), Fit::Uncut);
        assert_eq!(
            text,
            " ID  NAME                       STATE    REASON\n  \
               7  short                      running\n\
             124  a-rather-long-name-indeed  queued   needs 1 whole GPU; 2.75 of 3 GPUs in use\n"
        );
    }

    #[test]
    fn the_reason_gives_first_and_then_the_name() {
        let text = render(COLUMNS, &rows(), Fit::Table(74));
        assert!(
            text.ends_with(
                "124  a-rather-long-name-indeed  queued   needs 1 whole GPU; 2.75 of 3 GPUs\n\
                 \u{20}                                        in use\n"
            ),
            "{text}"
        );
        let text = render(COLUMNS, &rows(), Fit::Table(44));
        assert!(
            text.ends_with(
                "124  a-rather-long-name-indeed  queued\n\
                 \u{20}   needs 1 whole GPU; 2.75 of 3 GPUs in use\n"
            ),
            "{text}"
        );
    }

    /// The titles that a table of this width has, with this queue, as far as they are drawn.
    fn titles(width: usize, queue: &str) -> String {
        let rows = [
            job(&"n".repeat(40), queue, &"needs a whole GPU ".repeat(9)),
            job("b", "default", ""),
        ];
        let text = render(&jobs(), &rows, Fit::Table(width));
        assert!(widest(&text) <= width, "{text}");
        let titles = text.lines().next().unwrap_or_default();
        titles.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn columns_give_up_room_in_the_stated_order() {
        let all = "ID NAME USER QUEUE REQ STATE FOR USED/LIMIT REASON";
        assert_eq!(titles(200, "default"), all);
        // QUEUE goes before a name is cut, unless it says something.
        let without_queue = all.replace(" QUEUE", "");
        assert_eq!(titles(120, "default"), without_queue);
        assert_eq!(titles(120, "half"), all);
        // REASON goes below the row before the name has less than 16.
        let below = without_queue.replace(" REASON", "");
        assert_eq!(titles(80, "default"), below);
        // REQ goes before USER, and USER before the name has less than 8.
        assert_eq!(titles(58, "default"), below.replace(" REQ", ""));
        let least = below.replace(" REQ", "").replace(" USER", "");
        assert_eq!(titles(50, "default"), least);
    }

    #[test]
    fn a_reason_below_its_row_has_the_width_of_the_terminal() {
        let rows = [
            job("train", "default", &"needs a whole GPU ".repeat(5)),
            job("b", "x", ""),
        ];
        let text = render(&jobs(), &rows, Fit::Table(60));
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            lines[..2],
            [
                "    needs a whole GPU needs a whole GPU needs a whole GPU",
                "    needs a whole GPU needs a whole GPU"
            ],
            "{text}"
        );
        // A row without a reason has no line for it.
        assert_eq!(lines.len(), 3, "{text}");
    }

    /// The text without colours.
    fn stripped(text: &str) -> String {
        let mut parts = text.split('\u{1b}');
        let first = parts.next().unwrap_or_default().to_owned();
        let rest = parts.map(|part| part.split_once('m').map_or("", |(_, text)| text));
        first + &rest.collect::<String>()
    }

    #[test]
    fn colours_change_no_width_and_end_with_their_cell() {
        let mut plain = Cells::default();
        let mut coloured = Cells::coloured(Palette::Many);
        for cells in [&mut plain, &mut coloured] {
            for state in ["running", "failed (1)"] {
                cells.add("1");
                cells.add("train");
                cells.add_in(Some(Tone::Bad), state);
                cells.add_in(Some(Tone::Bad), "needs 1 whole GPU; 2.75 of 3 GPUs in use");
                cells.end_row();
            }
        }
        for fit in [Fit::Uncut, Fit::Table(50), Fit::Table(30), Fit::Cells(50)] {
            let text = coloured.render(COLUMNS, fit);
            assert!(text.contains("\u{1b}[38;5;166m"), "{text:?}");
            let bare = stripped(&text);
            assert_eq!(bare, plain.render(COLUMNS, fit));
            let lines = text.lines().filter(|line| line.contains('\u{1b}'));
            lines.for_each(|line| assert!(line.contains("\u{1b}[0m"), "{line:?}"));
        }
    }

    #[test]
    fn a_line_for_people_wraps_at_words() {
        let text = "memory limits: limiter (on bypass: warn) · compute: time slices by share\n";
        assert_eq!(
            wrapped(text, Some(40), 0),
            "memory limits: limiter (on bypass: warn)\n· compute: time slices by share\n"
        );
        assert_eq!(wrapped(text, None, 0), text);
    }

    #[test]
    fn a_wrapped_hint_breaks_no_word_and_no_command_that_fits() {
        let path = format!("/{}", "long/".repeat(30));
        let texts = [
            "#12 waits in queue default, place 1: needs 40.0 GiB on one GPU; the largest shared GPU has 19.8 GiB free\n  \
             gpu 0   0.5 of 1 in use by #3 train of ana (the limiter, managed by another daemon)\n  options request 0.5 \
             of a GPU: divvy resize 12 -g 0.5\n"
                .to_owned(),
            format!("error: cannot read {path}: No such file or directory\nhint: `divvy config check {path}`"),
            "divvy: 3 jobs wait for 訓練 GPUs; `divvy resize 3 --gpu-memory 8G` starts one (`divvy why 3` shows more)".to_owned(),
        ];
        for text in &texts {
            for (width, hang) in [(40, 10), (60, 10), (80, 7), (120, 0)] {
                let shown = wrapped(text, Some(width), hang);
                for line in shown.lines() {
                    let is_word = !line.trim_start().contains(' ');
                    assert!(taken(line) <= width || is_word, "{width}: {line:?}");
                }
                let words = |text: &str| -> Vec<String> {
                    text.split_whitespace().map(str::to_owned).collect()
                };
                assert_eq!(words(&shown), words(text), "{width}");
                let joined = shown.replace(&format!("\n{}", " ".repeat(hang)), " ");
                assert!(
                    hang == 0 || joined == text.replace(&format!("\n{}", " ".repeat(hang)), " "),
                    "{joined:?}"
                );
            }
        }
        let shown = wrapped(&texts[2], Some(60), 7);
        assert!(
            shown.contains("`divvy resize 3 --gpu-memory 8G`"),
            "{shown}"
        );
        let shown = wrapped(&texts[0], Some(40), 10);
        assert!(
            shown.contains("\n          divvy resize 12 -g 0.5\n"),
            "{shown}"
        );
    }

    #[test]
    fn a_reason_has_three_lines_at_most() {
        assert_eq!(
            wrap("one two three four five six", 10, LINES),
            ["one two", "three four", "five six"]
        );
        assert_eq!(
            wrap("one two three four five six", 8, LINES),
            ["one two", "three", "four fi…"]
        );
        assert_eq!(
            wrap("unbreakable-at-spaces", 8, LINES),
            ["unbreaka", "ble-at-s", "paces"]
        );
        assert_eq!(wrap("", 8, LINES), [""]);
        assert_eq!(wrap("訓練訓練訓練", 5, LINES), ["訓練", "訓練", "訓練"]);
    }

    #[test]
    fn wide_characters_keep_the_columns_straight() {
        let rows = vec![
            vec!["訓練".to_owned(), "x".to_owned()],
            vec!["abcd".to_owned(), "x".to_owned()],
        ];
        let text = render(&[Column::Text("A"), Column::Fixed("B")], &rows, Fit::Uncut);
        assert_eq!(text, "A     B\n訓練  x\nabcd  x\n");
    }

    fn job(name: &str, queue: &str, reason: &str) -> Vec<String> {
        let cells = [
            "1024",
            name,
            "ana",
            queue,
            "0.25",
            "running",
            "12s",
            "0.5/4.0 GiB",
            reason,
        ];
        cells.map(crate::text::clean).to_vec()
    }

    fn jobs() -> Vec<Column> {
        crate::render::jobs::columns(false, crate::render::Span::Present)
    }

    fn widest(text: &str) -> usize {
        text.lines().map(taken).max().unwrap_or_default()
    }

    #[test]
    fn a_long_name_is_cut_where_the_table_has_a_width_and_nowhere_else() {
        let long = "n".repeat(200);
        let rows = [job(&long, "default", "needs 1 whole GPU")];
        for width in [60, 80] {
            let text = render(&jobs(), &rows, Fit::Table(width));
            assert!(widest(&text) <= width, "{width}:\n{text}");
            assert!(text.contains("n…"), "{text}");
        }
        assert!(render(&jobs(), &rows, Fit::Uncut).contains(&long));
        let wide = render(&jobs(), &rows, Fit::Cells(80));
        let cut = format!("{}…", "n".repeat(39));
        assert!(wide.contains(&format!(" {cut} ")), "{wide}");
        assert!(wide.contains("needs 1 whole GPU"), "{wide}");
    }

    proptest! {
        #[test]
        fn no_text_of_a_user_makes_a_table_wider_than_its_terminal(
            names in proptest::collection::vec((any::<String>(), any::<String>(), any::<String>()), 1..4),
            width in 62usize..200,
        ) {
            let rows: Vec<_> = names.iter().map(|(name, queue, reason)| job(name, queue, reason)).collect();
            let text = render(&jobs(), &rows, Fit::Table(width));
            prop_assert!(widest(&text) <= width, "{}\n{}", width, text);
            prop_assert!(!text.replace('\n', "").contains(divvy_core::escape::is_hidden), "{text:?}");
            let cells = render(&jobs(), &rows, Fit::Cells(width));
            prop_assert!(!cells.replace('\n', "").contains(divvy_core::escape::is_hidden), "{cells:?}");
        }
    }
}
