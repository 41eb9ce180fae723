//! Lists in columns that fit a width: figures are never cut, names share what is left, the last text gets the rest.

use ratatui::layout::Rect;

use super::canvas::{Canvas, width_of};
use crate::top::look::Tone;

/// Least width of the text that gets the rest, if it wants as much.
const REST: u16 = 14;

/// A column of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    title: &'static str,
    kind: Kind,
    is_right: bool,
    /// Width of the list from which the column is shown.
    from: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Figure,
    /// Least and largest width.
    Name(u16, u16),
    Rest,
}

/// A column of figures or handles, as wide as its cells.
pub const fn figure(title: &'static str, from: u16) -> Column {
    Column {
        title,
        kind: Kind::Figure,
        is_right: false,
        from,
    }
}

/// A column of names, which are cut to at most `most` columns.
pub const fn name(title: &'static str, least: u16, most: u16, from: u16) -> Column {
    Column {
        title,
        kind: Kind::Name(least, most),
        is_right: false,
        from,
    }
}

/// The column that gets what the others leave.
pub const fn rest(title: &'static str) -> Column {
    Column {
        title,
        kind: Kind::Rest,
        is_right: false,
        from: 0,
    }
}

impl Column {
    pub const fn right(self) -> Self {
        Self {
            is_right: true,
            ..self
        }
    }
}

/// The cells of a row, each a text with its tone.
pub type Cells = Vec<(String, Tone)>;

/// The columns that are shown in a width, with the width of each. `wants`: the widest cell of each column.
fn widths(columns: &[Column], wants: &[u16], width: u16) -> Vec<(usize, u16)> {
    let shown: Vec<usize> = (0..columns.len())
        .filter(|at| width >= columns[*at].from)
        .collect();
    let gaps = u16::try_from(shown.len().saturating_sub(1)).unwrap_or(0);
    let mut left = width.saturating_sub(gaps);
    let mut widths = vec![0; columns.len()];
    let mut give = |at: usize, wanted: u16, left: &mut u16| {
        let more = wanted.saturating_sub(widths[at]).min(*left);
        widths[at] += more;
        *left -= more;
    };
    let rest_wants = (shown.iter())
        .filter(|at| columns[**at].kind == Kind::Rest)
        .map(|at| wants[*at].min(REST))
        .sum::<u16>();
    for at in &shown {
        if columns[*at].kind == Kind::Figure {
            give(*at, wants[*at], &mut left);
        }
    }
    for at in &shown {
        if let Kind::Name(least, _) = columns[*at].kind {
            give(*at, wants[*at].min(least), &mut left);
        }
    }
    // The rest is kept back, then names and titles grow.
    let mut spare = left.saturating_sub(rest_wants);
    let kept = left - spare;
    for at in &shown {
        let title = width_of(columns[*at].title);
        match columns[*at].kind {
            Kind::Name(_, most) => give(*at, title.max(wants[*at]).min(most), &mut spare),
            Kind::Figure | Kind::Rest => {}
        }
    }
    let mut left = spare + kept;
    for at in &shown {
        if columns[*at].kind == Kind::Rest {
            give(*at, u16::MAX, &mut left);
        }
    }
    shown.into_iter().map(|at| (at, widths[at])).collect()
}

/// Draws rows below each other, with the titles above them if there is a line for them. A row without cells is a line
/// that is not known yet.
pub fn draw(
    canvas: &mut Canvas<'_>,
    area: Rect,
    columns: &[Column],
    has_titles: bool,
    rows: &[Cells],
) {
    let titles = columns.iter().map(|column| match column.kind {
        Kind::Figure if has_titles => width_of(column.title),
        _ => 0,
    });
    let mut wants: Vec<u16> = titles.collect();
    for row in rows {
        for (want, (cell, _)) in wants.iter_mut().zip(row) {
            *want = width_of(cell).max(*want);
        }
    }
    let widths = widths(columns, &wants, area.width);
    let mut line = Rect { height: 1, ..area };
    if has_titles {
        if area.height == 0 {
            return;
        }
        let titles = columns
            .iter()
            .map(|column| (column.title.to_owned(), Tone::Faint));
        one(canvas, line, columns, &widths, &titles.collect::<Vec<_>>());
        line.y += 1;
    }
    for row in rows
        .iter()
        .take(usize::from(area.bottom().saturating_sub(line.y)))
    {
        if row.is_empty() {
            let cut = canvas.glyphs().cut;
            canvas.text(line.x, line.y, line.width, cut, Tone::Faint);
        } else {
            one(canvas, line, columns, &widths, row)
        }
        line.y += 1;
    }
}

fn one(
    canvas: &mut Canvas<'_>,
    line: Rect,
    columns: &[Column],
    widths: &[(usize, u16)],
    cells: &[(String, Tone)],
) {
    let mut x = line.x;
    for (at, width) in widths {
        let (text, tone) = &cells[*at];
        let area = Rect {
            x,
            width: *width,
            ..line
        };
        if columns[*at].is_right {
            canvas.right(area, text, *tone)
        } else {
            canvas.text(x, line.y, *width, text, *tone);
        }
        x += width + 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const COLUMNS: [Column; 4] = [
        figure("ID", 0),
        name("NAME", 5, 20, 30),
        figure("USED", 0),
        rest("NOTE"),
    ];

    #[test]
    fn figures_keep_their_width_and_names_share_the_rest() {
        let of = |width| widths(&COLUMNS, &[3, 16, 9, 30], width);
        assert_eq!(of(80), [(0, 3), (1, 16), (2, 9), (3, 49)]);
        assert_eq!(of(40), [(0, 3), (1, 11), (2, 9), (3, 14)]);
        assert_eq!(of(30), [(0, 3), (1, 5), (2, 9), (3, 10)]);
        assert_eq!(of(20), [(0, 3), (2, 9), (3, 6)]);
        assert_eq!(of(8), [(0, 3), (2, 3), (3, 0)]);
    }

    proptest! {
        #[test]
        fn no_list_is_wider_than_its_place(wants in proptest::array::uniform4(0u16..60), width in 0u16..200) {
            let widths = widths(&COLUMNS, &wants, width);
            let gaps = u16::try_from(widths.len() - 1).unwrap();
            let sum: u16 = widths.iter().map(|(_, width)| *width).sum();
            prop_assert!(sum + gaps <= width.max(gaps));
        }
    }
}
