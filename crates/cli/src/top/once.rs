//! `divvy top -1`: one drawing of everything as plain text, and `-o json|ndjson`: a board a tick.

use divvy_api::client::Client;
use divvy_api::v1::{Board, List};
use jiff::Timestamp;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::call::{Data, Question};
use super::draw::draw;
use super::fetch;
use super::layout;
use super::state::{Options, State};
use super::update::{Input, set_filter, update};
use crate::output::Stop;

/// Columns of the text where there is no terminal. Wide enough for all columns of a job, and within the width of a log
/// or a mail.
const COLUMNS: usize = 120;

/// Most columns of the text. Wider than any screen: a text that is wider would only be longer.
const MOST_COLUMNS: usize = 400;

/// The text of a buffer: no escapes, no trailing spaces.
pub fn text(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width).max(1);
    let mut text = String::new();
    for row in buffer.content.chunks(width) {
        let mut line = String::new();
        let mut covered = 0;
        for cell in row {
            // A wide character covers the cell after it.
            if covered > 0 {
                covered -= 1;
                continue;
            }
            let symbol = cell.symbol();
            covered = unicode_width::UnicodeWidthStr::width(symbol).saturating_sub(1);
            line.push_str(symbol);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Draws everything that one look at the daemon shows.
///
/// # Errors
/// When the daemon has no board. Without its other answers the drawing lacks their figures.
pub async fn once(
    client: &Client,
    options: Options,
    filter: &str,
    width: Option<usize>,
) -> Result<String, Stop> {
    let width = width.unwrap_or(COLUMNS).min(MOST_COLUMNS);
    let width = u16::try_from(width)
        .unwrap_or(u16::MAX)
        .max(layout::SMALLEST.0);
    let options = Options {
        is_once: true,
        ..options
    };
    let mut state = State::new(options, Timestamp::now(), (width, u16::MAX));
    let board = client.board().await?;
    let indices: Vec<u32> = board.gpus.iter().map(|gpu| gpu.index).collect();
    update(
        &mut state,
        Input::Answer(Question::Board, Ok(Data::Board(Box::new(board)))),
    );
    let questions = indices.into_iter().map(Question::Trend);
    for question in std::iter::once(Question::Node).chain(questions) {
        let answer = fetch::answer(client, &question, Timestamp::now()).await;
        update(&mut state, Input::Answer(question, answer));
    }
    set_filter(&mut state, filter);
    state.size.1 = layout::whole_height(&state);
    let mut buffer = Buffer::empty(Rect::new(0, 0, state.size.0, state.size.1));
    draw(&state, &mut buffer);
    Ok(text(&buffer).trim_end().to_owned() + "\n")
}

/// A board as the document of a tick.
///
/// # Errors
/// When it cannot be written as JSON, which no board allows.
pub fn document(board: &Board, is_line: bool) -> serde_json::Result<String> {
    let text = if is_line {
        serde_json::to_string(board)?
    } else {
        serde_json::to_string_pretty(&List::new("Board", vec![board]))?
    };
    Ok(text + "\n")
}
