//! The keys of the live view: one table for the handler, the help and the documentation.

/// A key as a terminal reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Char(char),
    Control(char),
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    Tab,
    BackTab,
    Enter,
    Escape,
    Backspace,
}

/// What a key does in a list or on a job's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Quit,
    Help,
    Tree,
    Order,
    Refusals,
    Unfold,
    Filter,
    Freeze,
    Faster,
    Slower,
    Mine,
    Open,
    Why,
    Log,
    Events,
    Facts,
    Resize,
    Suspend,
    Resume,
    Cancel,
    Copy,
    Next,
    Before,
    Pane(usize),
    Move(Motion),
    Back,
    Stop,
    Redraw,
}

/// A movement in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Motion {
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
}

/// A key, its command, its name, and its meaning in the lists and on a page.
pub struct Row {
    pub keys: &'static [Key],
    pub command: Command,
    pub name: &'static str,
    pub meaning: &'static str,
}

const fn row(
    keys: &'static [Key],
    command: Command,
    name: &'static str,
    meaning: &'static str,
) -> Row {
    Row {
        keys,
        command,
        name,
        meaning,
    }
}

use Key::{
    BackTab, Backspace, Char, Control, Down, End, Enter, Escape, Home, Left, PageDown, PageUp,
    Right, Tab, Up,
};

/// Every key. A row without a name belongs to the row above it.
pub const KEYS: &[Row] = &[
    row(
        &[Char('q'), Control('c')],
        Command::Quit,
        "q, Ctrl-C",
        "leave; on a job's page q goes back to the lists",
    ),
    row(&[Char('h'), Char('?')], Command::Help, "h, ?", "this help"),
    row(
        &[Enter],
        Command::Open,
        "Enter",
        "the page of the selected job",
    ),
    row(
        &[Escape, Backspace],
        Command::Back,
        "Esc",
        "back to the lists; removes the filter there",
    ),
    row(
        &[Tab, Right],
        Command::Next,
        "Tab",
        "the next list, or the next part of a job's page",
    ),
    row(
        &[BackTab, Left],
        Command::Before,
        "Shift-Tab",
        "the one before",
    ),
    row(
        &[Char('1')],
        Command::Pane(0),
        "1 to 5",
        "GPUs, jobs, pending jobs, events, users and projects",
    ),
    row(&[Char('2')], Command::Pane(1), "", ""),
    row(&[Char('3')], Command::Pane(2), "", ""),
    row(&[Char('4')], Command::Pane(3), "", ""),
    row(&[Char('5')], Command::Pane(4), "", ""),
    row(
        &[Up, Char('k')],
        Command::Move(Motion::Up),
        "arrows",
        "move; PgUp, PgDn, Home and End too",
    ),
    row(&[Down, Char('j')], Command::Move(Motion::Down), "", ""),
    row(&[PageUp], Command::Move(Motion::PageUp), "", ""),
    row(
        &[PageDown, Char(' ')],
        Command::Move(Motion::PageDown),
        "",
        "",
    ),
    row(&[Home], Command::Move(Motion::First), "", ""),
    row(&[End], Command::Move(Motion::Last), "", ""),
    row(
        &[Char('/')],
        Command::Filter,
        "/",
        "filter: user:ana queue:half gpu:2 state:queued text",
    ),
    row(&[Char('m')], Command::Mine, "m", "only your jobs"),
    row(
        &[Char('o')],
        Command::Order,
        "o LETTER",
        "sort; a capital letter reverses the order",
    ),
    row(
        &[Char('t')],
        Command::Tree,
        "t",
        "jobs by GPU; on a job's page 10 min or 6 h",
    ),
    row(
        &[Char('a')],
        Command::Unfold,
        "a",
        "arrays: a row for each pending task, or one row",
    ),
    row(
        &[Char('O')],
        Command::Refusals,
        "O",
        "refused memory of the job",
    ),
    row(&[Char('w')], Command::Why, "w", "why the job waits"),
    row(
        &[Char('l')],
        Command::Log,
        "l",
        "the end of the job's output",
    ),
    row(&[Char('e')], Command::Events, "e", "events of the job"),
    row(
        &[Char('d')],
        Command::Facts,
        "d",
        "everything about the job",
    ),
    row(&[Char('x')], Command::Cancel, "x", "cancel the job"),
    row(&[Char('s')], Command::Suspend, "s", "suspend the job"),
    row(&[Char('R')], Command::Resume, "R", "resume the job"),
    row(
        &[Char('r')],
        Command::Resize,
        "r",
        "resize the job: 12G, 0.5, fair=0.25",
    ),
    row(
        &[Char('y')],
        Command::Copy,
        "y",
        "copy the command of what was just done",
    ),
    row(&[Char('f')], Command::Freeze, "f", "freeze the figures"),
    row(
        &[Char('+')],
        Command::Slower,
        "+ -",
        "interval: 0.5, 1, 2, 5 or 10 s",
    ),
    row(&[Char('-')], Command::Faster, "", ""),
    row(
        &[Control('l')],
        Command::Redraw,
        "Ctrl-L",
        "draw the screen again",
    ),
    row(&[Control('z')], Command::Stop, "Ctrl-Z", "stop; fg goes on"),
];

/// The command of a key.
pub fn command(key: Key) -> Option<Command> {
    let found = KEYS.iter().find(|row| row.keys.contains(&key));
    found.map(|row| row.command)
}

/// Lines of the help: a key and its meaning.
pub fn help() -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    for row in KEYS.iter().filter(|row| !row.name.is_empty()) {
        lines.push((row.name, row.meaning.to_owned()));
        if row.command == Command::Order {
            let letters = super::rows::Key::ALL.iter();
            let letters: Vec<String> = letters
                .map(|(letter, _, name)| format!("{letter} {name}"))
                .collect();
            for some in letters.chunks(6) {
                lines.push(("", some.join(", ")));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_one_command() {
        let keys: Vec<Key> = KEYS
            .iter()
            .flat_map(|row| row.keys.iter().copied())
            .collect();
        for (at, key) in keys.iter().enumerate() {
            assert!(!keys[..at].contains(key), "{key:?}");
        }
    }

    #[test]
    fn the_documentation_lists_every_key() {
        let page = include_str!("../../../../docs/top.md");
        let section = page.split_once("## Keys\n").unwrap().1;
        let section = section
            .split_once("\n## ")
            .map_or(section, |(keys, _)| keys);
        for (name, meaning) in help().iter().filter(|(name, _)| !name.is_empty()) {
            let row = format!("| `{name}` | {meaning} |");
            assert!(section.contains(&row), "docs/top.md lacks: {row}");
        }
    }
}
