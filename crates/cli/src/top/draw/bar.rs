//! The memory bar of a GPU: use drawn inside limits, from proportions to cells.

/// A part of a GPU's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub kind: Kind,
    pub limit: u64,
    pub used: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Slice,
    /// Held by another daemon.
    Elsewhere,
    /// Used by processes outside any slice.
    Outside,
}

/// A cell of the bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    Used,
    Limit,
    /// End of a slice that does not end the bar.
    Border,
    Elsewhere,
    Outside,
    Free,
}

/// The cells of a bar, and the first cell of each part.
#[derive(Debug, PartialEq, Eq)]
pub struct Bar {
    pub cells: Vec<Fill>,
    pub starts: Vec<usize>,
}

/// Rounds `part` of `whole` to cells.
fn share(part: u64, whole: u64, cells: usize) -> usize {
    let cells = u128::try_from(cells).unwrap_or(0);
    let whole = u128::from(whole.max(1));
    let share = (u128::from(part) * cells + whole / 2) / whole;
    usize::try_from(share.min(cells)).unwrap_or(0)
}

/// Draws the parts of a memory of `total` bytes. Ends are rounded from the left, so that rounding never adds up; each
/// part has a cell as long as there is one.
pub fn bar(total: u64, parts: &[Part], width: usize) -> Bar {
    let mut cells = vec![Fill::Free; width];
    let mut starts = Vec::with_capacity(parts.len());
    let (mut sum, mut at) = (0u64, 0usize);
    for (number, part) in parts.iter().enumerate() {
        sum = sum.saturating_add(part.limit);
        // The parts that follow need a cell each.
        let room = width.saturating_sub(parts.len() - number - 1);
        let end = share(sum, total, width).min(room).max(at + 1).min(width);
        starts.push(at);
        fill(&mut cells[at.min(width)..end], part, end < width);
        at = end;
    }
    Bar { cells, starts }
}

fn fill(cells: &mut [Fill], part: &Part, has_border: bool) {
    let length = cells.len();
    match part.kind {
        Kind::Elsewhere => return cells.fill(Fill::Elsewhere),
        Kind::Outside => return cells.fill(Fill::Outside),
        Kind::Slice => cells.fill(Fill::Limit),
    }
    // A border takes the place of one cell, if the use and the rest keep one each.
    let inner = if has_border && length >= 3 {
        length - 1
    } else {
        length
    };
    let mut used = share(part.used, part.limit, inner);
    if part.used > 0 {
        used = used.max(1).min(inner);
    }
    if part.used < part.limit && used == inner && inner > 1 {
        used -= 1;
    }
    cells[..used].fill(Fill::Used);
    if inner < length {
        cells[inner] = Fill::Border;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slice(limit: u64, used: u64) -> Part {
        Part {
            kind: Kind::Slice,
            limit,
            used,
        }
    }

    fn drawn(total: u64, parts: &[Part], width: usize) -> String {
        let cells = bar(total, parts, width).cells.into_iter();
        cells
            .map(|cell| match cell {
                Fill::Used => '#',
                Fill::Limit => '=',
                Fill::Border => '|',
                Fill::Elsewhere => 'o',
                Fill::Outside => 'x',
                Fill::Free => '.',
            })
            .collect()
    }

    #[test]
    fn use_is_drawn_inside_of_limits() {
        for (parts, expected) in [
            (&[slice(50, 25), slice(25, 5)][..], "#####====|#===|....."),
            (&[slice(100, 100)], "####################"),
            (&[slice(100, 99)], "###################="),
            (&[slice(100, 0)], "===================="),
            (&[slice(5, 1)], "#..................."),
            (&[], "...................."),
        ] {
            assert_eq!(drawn(100, parts, 20), expected);
        }
        let outside = Part {
            kind: Kind::Outside,
            limit: 10,
            used: 10,
        };
        let elsewhere = Part {
            kind: Kind::Elsewhere,
            limit: 50,
            used: 0,
        };
        assert_eq!(
            drawn(100, &[slice(25, 25), elsewhere, outside], 20),
            "####|ooooooooooxx..."
        );
    }

    proptest! {
        #[test]
        fn every_part_has_a_cell_and_none_leaves_the_bar(
            parts in proptest::collection::vec((0u64..1000, 0u64..2000), 0..70), width in 0usize..120, total in 0u64..5000,
        ) {
            let parts: Vec<Part> = parts.iter().map(|(limit, used)| slice(*limit, *used)).collect();
            let drawn = bar(total, &parts, width);
            prop_assert_eq!(drawn.cells.len(), width);
            prop_assert!(drawn.starts.is_sorted());
            if parts.len() <= width {
                let distinct: std::collections::BTreeSet<_> = drawn.starts.iter().collect();
                prop_assert_eq!(distinct.len(), parts.len());
                prop_assert!(drawn.starts.iter().all(|start| *start < width));
            }
        }
    }
}
