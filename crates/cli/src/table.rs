//! Text tables that fit a given width. The last column is the reason: it shrinks first, and wraps where other columns are
//! cut.

use std::borrow::Cow;

use unicode_width::UnicodeWidthChar as _;

/// Between two columns.
const GAP: usize = 2;
/// Least width of the last column while other columns are not cut.
const LAST_WANTS: usize = 32;
/// What any column that can be made narrower keeps, unless the table is still too wide then. Below this it keeps the width of its title.
const LEAST: usize = 8;
/// Lines of one row at most.
const LINES: usize = 3;

/// How a column may be drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Never cut: ids, states, figures.
    Fixed(&'static str),
    /// Never cut, right-aligned.
    Right(&'static str),
    /// Cut with `…` when the table is too wide, or wrapped in the last column: names, reasons.
    Text(&'static str),
}

impl Column {
    fn title(self) -> &'static str {
        match self {
            Self::Fixed(title) | Self::Right(title) | Self::Text(title) => title,
        }
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
}

impl Cells {
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
        let titles = || columns.iter().map(|column| column.title());
        let mut widths: Vec<usize> = titles().map(taken).collect();
        for row in self.rows() {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(taken(cell));
            }
        }
        match fit {
            Fit::Uncut => {}
            Fit::Table(limit) => fit_table(columns, &mut widths, limit),
            Fit::Cells(limit) => fit_cells(columns, &mut widths, limit),
        }
        let mut text = String::with_capacity(self.text.len() * 2);
        draw(columns, titles(), &widths, &mut text);
        for row in self.rows() {
            draw(columns, row, &widths, &mut text);
        }
        text
    }
}

/// Adds one row: its line, and one more for each that the last cell needs.
fn draw<'a>(
    columns: &[Column],
    cells: impl ExactSizeIterator<Item = &'a str>,
    widths: &[usize],
    text: &mut String,
) {
    let last = cells.len().saturating_sub(1);
    let mut indent = 0;
    for (at, ((column, cell), width)) in columns.iter().zip(cells).zip(widths).enumerate() {
        if at == last {
            for (line, piece) in wrap(cell, *width).iter().enumerate() {
                if line > 0 {
                    pad(text, indent);
                }
                text.push_str(piece);
                text.truncate(text.trim_end_matches(' ').len());
                text.push('\n');
            }
            return;
        }
        let cell = cut(cell, *width);
        let rest = width - taken(&cell);
        if matches!(column, Column::Right(_)) {
            pad(text, rest);
            text.push_str(&cell);
        } else {
            text.push_str(&cell);
            pad(text, rest);
        }
        pad(text, GAP);
        indent += width + GAP;
    }
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
    match text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        true => text.len(),
        false => text.chars().filter_map(|c| c.width()).sum(),
    }
}

/// Fits a table by [`LEAST`], and where that is too little by the titles.
fn fit_table(columns: &[Column], widths: &mut [usize], limit: usize) {
    narrow(columns, widths, limit, |_| LEAST);
    narrow(columns, widths, limit, |column| {
        taken(column.title()).min(LEAST)
    });
}

/// Fits each text cell by itself. Nothing stands behind the last column, so that it widens no other row.
fn fit_cells(columns: &[Column], widths: &mut [usize], limit: usize) {
    let last = columns.len().saturating_sub(1);
    for (column, width) in columns.iter().zip(widths).take(last) {
        if matches!(column, Column::Text(_)) {
            *width = (*width).min(limit / 2);
        }
    }
}

/// Takes what is too much from the last column down to [`LAST_WANTS`], then from the widest text column down to
/// its floor, then from the last again.
fn narrow(columns: &[Column], widths: &mut [usize], limit: usize, floor: impl Fn(Column) -> usize) {
    let Some(last) = columns.len().checked_sub(1) else {
        return;
    };
    let is_text = |at: usize| matches!(columns[at], Column::Text(_));
    let gaps = GAP * last;
    loop {
        let over = (widths.iter().sum::<usize>() + gaps).saturating_sub(limit);
        let room = |at: usize, floor: usize| {
            if is_text(at) {
                widths[at].saturating_sub(floor)
            } else {
                0
            }
        };
        let widest = (0..last)
            .filter(|at| room(*at, floor(columns[*at])) > 0)
            .max_by_key(|at| widths[*at]);
        let (giver, room) = match (room(last, LAST_WANTS), widest) {
            (1.., _) => (last, room(last, LAST_WANTS)),
            (0, Some(widest)) => (widest, 1),
            (0, None) => (last, room(last, floor(columns[last]))),
        };
        if over == 0 || room == 0 {
            return;
        }
        widths[giver] -= over.min(room);
    }
}

/// The text in at most `width` columns, with `…` where something was left out.
fn cut(text: &str, width: usize) -> Cow<'_, str> {
    if taken(text) <= width {
        return text.into();
    }
    let (kept, _) = text.split_at(split(text, width.saturating_sub(1)));
    format!("{}…", kept.trim_end()).into()
}

/// The text in at most [`LINES`] lines of at most `width` columns, broken between words where there are any.
fn wrap(text: &str, width: usize) -> Vec<Cow<'_, str>> {
    let mut lines = Vec::new();
    let mut rest = text;
    while taken(rest) > width && lines.len() + 1 < LINES {
        let most = split(rest, width).max(rest.chars().next().map_or(0, char::len_utf8));
        // A word that ends where the line does needs no break before it.
        let words = if rest[most..].starts_with(' ') {
            Some(most)
        } else {
            rest[..most].rfind(' ')
        };
        let (line, left) = rest.split_at(words.filter(|at| *at > 0).unwrap_or(most));
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
                "124  a-rathe…  queued   needs 1 whole GPU;\n\
                 \u{20}                       2.75 of 3 GPUs in\n\
                 \u{20}                       use\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_reason_has_three_lines_at_most() {
        assert_eq!(
            wrap("one two three four five six", 10),
            ["one two", "three four", "five six"]
        );
        assert_eq!(
            wrap("one two three four five six", 8),
            ["one two", "three", "four fi…"]
        );
        assert_eq!(
            wrap("unbreakable-at-spaces", 8),
            ["unbreaka", "ble-at-s", "paces"]
        );
        assert_eq!(wrap("", 8), [""]);
        assert_eq!(wrap("訓練訓練訓練", 5), ["訓練", "訓練", "訓練"]);
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
        crate::render::jobs::columns(false)
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
