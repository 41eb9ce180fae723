//! Terminal escaping of text that another user typed: names, commands, reasons.
//!
//! A character is escaped in these cases, so that two texts that differ also look different:
//!
//! - it moves the cursor (control characters),
//! - it reorders its neighbours (bidirectional controls),
//! - it is invisible (zero width, tags, variation selectors, unassigned, private use).

use std::borrow::Cow;

use icu_properties::props::{DefaultIgnorableCodePoint, GeneralCategory};
use icu_properties::{CodePointMapData, CodePointSetData};

/// Combining marks that one base may carry. Vietnamese needs 2 and pointed Hebrew 3; a tower of 99 covers the lines
/// above.
const MARKS: usize = 4;

/// The braille pattern without dots, the one blank that Unicode calls a symbol.
const BLANK_BRAILLE: char = '\u{2800}';

/// Whether a terminal does not show this character as a glyph of its own: a control, a format character, or a blank
/// other than the space.
pub fn is_hidden(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_control();
    }
    let category = CodePointMapData::<GeneralCategory>::new().get(c);
    let by_category = matches!(
        category,
        GeneralCategory::Control
            | GeneralCategory::Format
            | GeneralCategory::Surrogate
            | GeneralCategory::PrivateUse
            | GeneralCategory::Unassigned
            | GeneralCategory::LineSeparator
            | GeneralCategory::ParagraphSeparator
            | GeneralCategory::SpaceSeparator
    );
    by_category
        || c == BLANK_BRAILLE
        || CodePointSetData::new::<DefaultIgnorableCodePoint>().contains(c)
}

/// Whether this character is drawn over the one before it.
fn is_mark(c: char) -> bool {
    !c.is_ascii()
        && matches!(
            CodePointMapData::<GeneralCategory>::new().get(c),
            GeneralCategory::NonspacingMark | GeneralCategory::EnclosingMark
        )
}

/// The text with `\n` and `\u{202e}` in place of each hidden character, of each combining mark without a base, and of
/// each mark beyond [`MARKS`] over one base.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    // Marks that the last base can still carry.
    let mut room = 0;
    for c in text.chars() {
        let is_mark = is_mark(c);
        if is_hidden(c) || (is_mark && room == 0) {
            shown.extend(c.escape_default());
            room = 0;
        } else {
            shown.push(c);
            room = if is_mark { room - 1 } else { MARKS };
        }
    }
    shown.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn control_bidirectional_and_invisible_characters_are_escaped() {
        let ranges = [
            '\u{0}'..='\u{1f}',
            '\u{7f}'..='\u{a0}',
            '\u{ad}'..='\u{ad}',
            '\u{61c}'..='\u{61c}',
            '\u{3164}'..='\u{3164}',
            '\u{200b}'..='\u{200f}',
            '\u{2028}'..='\u{202e}',
            '\u{2060}'..='\u{206f}',
            '\u{2800}'..='\u{2800}',
            '\u{e000}'..='\u{f8ff}',
            '\u{fe00}'..='\u{fe0f}',
            '\u{feff}'..='\u{feff}',
            '\u{e0000}'..='\u{e0fff}',
        ];
        for c in ranges.into_iter().flatten() {
            assert!(is_hidden(c), "{c:?}");
            assert_eq!(
                escaped(&format!("a{c}b")),
                format!("a{}b", c.escape_default())
            );
        }
    }

    #[test]
    fn what_a_terminal_shows_stays_as_it_is() {
        for text in [
            "train --lr 3e-4",
            "größer",
            "訓練",
            "việt nam",
            "vie\u{302}\u{323}t",
            "שָׁלוֹם",
            "हिन्दी",
            "🚀",
        ] {
            assert_eq!(escaped(text), text);
        }
    }

    #[test]
    fn a_tower_of_combining_marks_ends_after_four() {
        let tower = format!("a{}b", "\u{301}".repeat(99));
        let shown = format!("a{}{}b", "\u{301}".repeat(4), r"\u{301}".repeat(95));
        assert_eq!(escaped(&tower), shown);
        assert_eq!(escaped("\u{301}a"), "\\u{301}a");
        assert_eq!(escaped("a\u{200b}\u{301}"), "a\\u{200b}\\u{301}");
    }

    proptest! {
        #[test]
        fn no_hidden_character_and_no_tower_gets_through(text in proptest::collection::vec(any::<char>(), 0..40)) {
            let text: String = text.into_iter().collect();
            let shown = escaped(&text);
            prop_assert!(!shown.contains(is_hidden), "{shown:?}");
            prop_assert!(!shown.starts_with(is_mark), "{shown:?}");
            let chars: Vec<char> = shown.chars().collect();
            prop_assert!(chars.windows(MARKS + 1).all(|some| !some.iter().copied().all(is_mark)), "{shown:?}");
            // Escaping twice is escaping once.
            prop_assert_eq!(escaped(&shown), shown.clone());
        }
    }
}
