//! The log of a task on its way to the server: lines joined into events, as the stock agent joins them. It ends when
//! the task's own agent reports by itself. Pure.

use crate::server::Event;

/// Bytes of one event at most, as the stock agent sends them.
const MOST: usize = 64 << 10;

/// The part of a job's output that goes to the server.
#[derive(Clone, Debug)]
pub struct Lines {
    task: String,
    /// Whether the task's own agent is to take over.
    hands_over: bool,
    /// It has begun to: what it writes from here on it sends itself.
    begun: bool,
    /// A line whose end has not come.
    rest: Vec<u8>,
    /// Bytes of the job's log that were read.
    read: u64,
}

impl Lines {
    /// Of a task's job, from byte `read` of its log; `hands_over` unless no agent in it reports.
    pub fn new(task: &str, read: u64, hands_over: bool) -> Self {
        Self {
            task: task.to_owned(),
            hands_over,
            begun: false,
            rest: Vec::new(),
            read,
        }
    }

    /// More of the log; what of it goes to the server.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.read += bytes.len() as u64;
        self.rest.extend_from_slice(bytes);
        let end = self
            .rest
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        // A line without end is not kept for ever.
        let end = if self.rest.len() - end > MOST {
            self.rest.len()
        } else {
            end
        };
        let whole: Vec<u8> = self.rest.drain(..end).collect();
        self.sift(&whole)
    }

    /// The rest, when no more output comes.
    pub fn end(&mut self) -> String {
        let rest = std::mem::take(&mut self.rest);
        self.sift(&rest)
    }

    /// How much of the log is dealt with: from there a later reader goes on.
    pub fn dealt_with(&self) -> u64 {
        self.read - self.rest.len() as u64
    }

    /// Whether the task's own agent reports.
    pub fn is_handed_over(&self) -> bool {
        self.begun
    }

    fn sift(&mut self, bytes: &[u8]) -> String {
        if self.begun {
            return String::new();
        }
        let mut out = String::new();
        for line in String::from_utf8_lossy(bytes).split_inclusive('\n') {
            out.push_str(&visible(line));
            if self.hands_over && self.is_start(line) {
                self.begun = true;
                break;
            }
        }
        out
    }

    /// The lines with which the stock agent says that it runs the task.
    fn is_start(&self, line: &str) -> bool {
        line.starts_with(&format!("Running task '{}'", self.task))
            || line.starts_with(&format!("Running task id [{}]:", self.task))
    }
}

/// A line as a page shows it: of what carriage returns wrote over each other the last, no backspaces, no lone terminal reset.
fn visible(line: &str) -> String {
    let (body, end) = line
        .strip_suffix('\n')
        .map_or((line, ""), |body| (body, "\n"));
    let body = body.trim_end_matches('\r');
    let last = body
        .rsplit('\r')
        .next()
        .unwrap_or(body)
        .replace('\u{8}', "");
    if last == "\u{1b}[0m" {
        return String::new();
    }
    last + end
}

/// A text as events of bounded size, each a millisecond after the one before it.
pub fn events(task: &str, worker: &str, level: &'static str, text: &str, at_ms: i64) -> Vec<Event> {
    let mut events = Vec::new();
    let mut left = text;
    while !left.is_empty() {
        let mut end = left.len().min(MOST);
        while !left.is_char_boundary(end) {
            end -= 1;
        }
        let (msg, after) = left.split_at(end);
        events.push(Event {
            kind: "log",
            level,
            task: task.to_owned(),
            worker: worker.to_owned(),
            msg: msg.to_owned(),
            timestamp: at_ms + events.len() as i64,
        });
        left = after;
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_sent_whole_and_what_is_not_sent_is_read_again() {
        let mut lines = Lines::new("t", 100, true);
        assert_eq!(lines.push(b"one\ntw"), "one\n");
        assert_eq!(lines.dealt_with(), 104);
        assert_eq!(lines.push(b"o\n"), "two\n");
        assert_eq!(lines.push(b"three"), "");
        assert_eq!(lines.end(), "three");
        assert_eq!(lines.dealt_with(), 113);
    }

    #[test]
    fn the_tasks_own_agent_takes_over_with_the_line_that_says_so() {
        let log = b"Collecting clearml-agent\nRunning task 'abc'\nits own\n";
        let mut lines = Lines::new("abc", 0, true);
        assert_eq!(
            lines.push(log),
            "Collecting clearml-agent\nRunning task 'abc'\n"
        );
        assert!(lines.is_handed_over());
        assert_eq!(lines.push(b"more\n"), "");
        let mut alone = Lines::new("abc", 0, false);
        assert_eq!(alone.push(log).lines().count(), 3);
        let mut other = Lines::new("xyz", 0, true);
        assert_eq!(other.push(log).lines().count(), 3);
    }

    #[test]
    fn what_a_terminal_would_not_show_is_left_out() {
        let mut lines = Lines::new("t", 0, false);
        assert_eq!(
            lines.push(b" 10%\r 90%\r100%\r\nab\x08c\n\x1b[0m\nend\n"),
            "100%\nabc\nend\n"
        );
    }

    #[test]
    fn a_long_text_is_several_events_and_loses_nothing() {
        let text = "ü".repeat(100_000);
        let events = events("t", "w", "DEBUG", &text, 5);
        assert!(events.iter().all(|event| event.msg.len() <= MOST));
        assert_eq!(
            events
                .iter()
                .map(|event| event.msg.as_str())
                .collect::<String>(),
            text
        );
        assert_eq!(
            events
                .iter()
                .map(|event| event.timestamp)
                .collect::<Vec<_>>(),
            [5, 6, 7, 8]
        );
    }
}
