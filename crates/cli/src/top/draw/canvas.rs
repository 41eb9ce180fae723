//! A drawing surface: texts of users are cleaned by the caller, cut by their width in columns here.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::top::look::{Glyphs, Look, Tone};

/// Wider than every terminal, and small enough for sums.
const WIDEST: u16 = 4096;

/// Columns that a text takes, up to 4096.
pub fn width_of(text: &str) -> u16 {
    u16::try_from(text.width()).unwrap_or(WIDEST).min(WIDEST)
}

/// A buffer with a look.
pub struct Canvas<'a> {
    buffer: &'a mut Buffer,
    pub look: Look,
}

/// A place on a line at which texts follow each other.
pub struct Pen<'a, 'b> {
    canvas: &'a mut Canvas<'b>,
    x: u16,
    y: u16,
    end: u16,
}

impl Pen<'_, '_> {
    /// Writes a text; returns the column after it.
    pub fn write(&mut self, text: &str, tone: Tone) -> u16 {
        let width = self.end.saturating_sub(self.x);
        self.x += self.canvas.text(self.x, self.y, width, text, tone);
        self.x
    }
}

impl<'a> Canvas<'a> {
    pub fn new(buffer: &'a mut Buffer, look: Look) -> Self {
        Self { buffer, look }
    }

    pub fn glyphs(&self) -> &'static Glyphs {
        self.look.glyphs
    }

    pub fn pen(&mut self, x: u16, y: u16, width: u16) -> Pen<'_, 'a> {
        let end = x.saturating_add(width);
        Pen {
            canvas: self,
            x,
            y,
            end,
        }
    }

    /// Writes a text in at most `width` columns, with `…` where it was cut. Returns the columns that it takes.
    pub fn text(&mut self, x: u16, y: u16, width: u16, text: &str, tone: Tone) -> u16 {
        if width == 0 || y >= self.buffer.area.bottom() {
            return 0;
        }
        let width = width.min(self.buffer.area.right().saturating_sub(x));
        let style = self.look.style(tone);
        let shown = self.fit(text, width);
        let (end, _) = self
            .buffer
            .set_stringn(x, y, &shown, usize::from(width), style);
        end.saturating_sub(x)
    }

    /// A text in at most `width` columns, in the characters of the terminal.
    fn fit(&self, text: &str, width: u16) -> String {
        let shown = |c: char| {
            if self.look.is_ascii() && !c.is_ascii() {
                // As wide as the character is elsewhere, so that columns stay where they are.
                "?".repeat(c.width().unwrap_or(0))
            } else {
                c.to_string()
            }
        };
        if width_of(text) <= width {
            return if self.look.is_ascii() && !text.is_ascii() {
                text.chars()
                    .map(|c| glyph(c).map_or_else(|| shown(c), str::to_owned))
                    .collect()
            } else {
                text.to_owned()
            };
        }
        let mut kept = String::new();
        let mut used = 1;
        for c in text.chars() {
            used += u16::try_from(c.width().unwrap_or(0)).unwrap_or(0);
            if used > width {
                break;
            }
            match glyph(c).filter(|_| self.look.is_ascii()) {
                Some(glyph) => kept.push_str(glyph),
                None => kept.push_str(&shown(c)),
            }
        }
        kept + self.look.glyphs.cut
    }

    /// Writes a text at the right end of a line.
    pub fn right(&mut self, area: Rect, text: &str, tone: Tone) {
        let width = width_of(text).min(area.width);
        self.text(area.right() - width, area.y, width, text, tone);
    }

    /// Adds a modifier to all cells of an area.
    pub fn add(&mut self, area: Rect, modifier: Modifier) {
        self.buffer
            .set_style(area, ratatui::style::Style::new().add_modifier(modifier));
    }

    /// Marks the picked line.
    pub fn select(&mut self, area: Rect) {
        let style = self.look.style(Tone::Selected);
        self.buffer.set_style(area, style);
    }

    /// A cell that stands for the cursor of a typed text.
    pub fn cursor(&mut self, x: u16, y: u16) {
        let area = Rect::new(x, y, 1, 1).intersection(self.buffer.area);
        self.select(area);
    }

    pub fn clear(&mut self, area: Rect) {
        for position in area.intersection(self.buffer.area).positions() {
            if let Some(cell) = self.buffer.cell_mut(position) {
                cell.reset();
            }
        }
    }
}

/// What a sign of ours is in ASCII. Other characters, those of names, have no stand-in.
fn glyph(c: char) -> Option<&'static str> {
    match c {
        '…' => Some("~"),
        '–' => Some("-"),
        '×' => Some("x"),
        '·' => Some("."),
        _ => None,
    }
}
