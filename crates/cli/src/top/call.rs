//! The calls that the live view makes: questions, which change nothing, and actions, each with its command line.

use std::collections::VecDeque;

use divvy_api::v1::{
    Board, Error, Event, History, Job, JobPage, JobQuery, Node, Oom, Project, Why,
};

/// A question to the daemon. At most one of each topic is on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    Node,
    Board,
    Projects,
    /// Use of a GPU in the last minute.
    Trend(u32),
    Events {
        after: u64,
    },
    /// A page of the pending jobs.
    Waiting {
        page: usize,
        query: Box<JobQuery>,
    },
    Job(String),
    Why(String),
    Oom(String),
    /// The last events of a job.
    JobEvents(String),
    /// The memory curve of a job.
    Curve {
        job: String,
        span: Span,
    },
    /// The end of a job's output; what is before `from` is known.
    Log {
        job: String,
        from: u64,
    },
}

/// The subject of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    Node,
    Board,
    Projects,
    Trend(u32),
    Events,
    Waiting(usize),
    Job,
    Why,
    Oom,
    JobEvents,
    Curve,
    Log,
}

impl Question {
    pub fn topic(&self) -> Topic {
        match self {
            Self::Node => Topic::Node,
            Self::Board => Topic::Board,
            Self::Projects => Topic::Projects,
            Self::Trend(gpu) => Topic::Trend(*gpu),
            Self::Events { .. } => Topic::Events,
            Self::Waiting { page, .. } => Topic::Waiting(*page),
            Self::Job(_) => Topic::Job,
            Self::Why(_) => Topic::Why,
            Self::Oom(_) => Topic::Oom,
            Self::JobEvents(_) => Topic::JobEvents,
            Self::Curve { .. } => Topic::Curve,
            Self::Log { .. } => Topic::Log,
        }
    }
}

/// Length of a memory curve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Span {
    #[default]
    TenMinutes,
    SixHours,
}

impl Span {
    pub fn seconds(self) -> i64 {
        match self {
            Self::TenMinutes => 600,
            Self::SixHours => 6 * 3600,
        }
    }

    /// The step of the stored history that covers the span, in seconds.
    pub fn step(self) -> u32 {
        match self {
            Self::TenMinutes => 1,
            Self::SixHours => 10,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::TenMinutes => "10 min",
            Self::SixHours => "6 h",
        }
    }
}

/// An answer to a question.
#[derive(Clone, Debug)]
pub enum Data {
    Node(Box<Node>),
    Board(Box<Board>),
    Projects(Vec<Project>),
    History(Box<History>),
    Events(Vec<Event>),
    Page(Box<JobPage>),
    Job(Box<Job>),
    Why(Box<Why>),
    Oom(Box<Oom>),
    Log(LogPiece),
}

/// A piece of a job's output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPiece {
    /// Position of the first byte in the whole output.
    pub from: u64,
    pub bytes: VecDeque<u8>,
    /// Position after the last byte.
    pub end: u64,
}

/// A change of a job. The view asks for a confirmation first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Cancel(String),
    Suspend(String),
    Resume(String),
    Resize(String, NewSize),
}

/// The new size of a job, as typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewSize {
    /// `0.5`, `2`.
    Gpu(String),
    /// `12G`.
    Memory(String),
    /// `strict=0.25`.
    Compute(String),
}

impl NewSize {
    /// Reads what a user typed. The text is checked as the command line checks it.
    ///
    /// # Errors
    /// As those of the flags of `divvy resize`.
    pub fn parse(typed: &str) -> Result<Self, Error> {
        let typed = typed.trim();
        let starts_with_letter = typed.starts_with(|c: char| c.is_ascii_alphabetic());
        if starts_with_letter {
            crate::ask::compute(typed)?;
            return Ok(Self::Compute(typed.to_owned()));
        }
        let has_unit = typed.ends_with(|c: char| c.is_ascii_alphabetic());
        if has_unit {
            crate::ask::amount(None, Some(typed)).map(|_| Self::Memory(typed.to_owned()))
        } else {
            crate::ask::amount(Some(typed), None).map(|_| Self::Gpu(typed.to_owned()))
        }
    }

    fn flag(&self) -> (&'static str, &str) {
        match self {
            Self::Gpu(value) => ("-g", value),
            Self::Memory(value) => ("--gpu-memory", value),
            Self::Compute(value) => ("--compute", value),
        }
    }
}

impl Action {
    /// The job that changes.
    pub fn job(&self) -> &str {
        match self {
            Self::Cancel(job) | Self::Suspend(job) | Self::Resume(job) | Self::Resize(job, _) => {
                job
            }
        }
    }

    pub fn verb(&self) -> &'static str {
        match self {
            Self::Cancel(_) => "cancel",
            Self::Suspend(_) => "suspend",
            Self::Resume(_) => "resume",
            Self::Resize(..) => "resize",
        }
    }

    /// The command that does the same.
    pub fn command(&self) -> String {
        let mut words = vec![
            "divvy".to_owned(),
            self.verb().to_owned(),
            self.job().to_owned(),
        ];
        if let Self::Resize(_, size) = self {
            let (flag, value) = size.flag();
            words.extend([flag.to_owned(), value.to_owned()]);
        }
        crate::text::command_line(&words)
    }
}

/// What the program does for the view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    Ask(Question),
    /// Changes a job. Only a confirmation leads to it.
    Act(Action),
    /// Puts a text into the terminal's clipboard.
    Copy(String),
    /// Stops the program, as Ctrl-Z does.
    Stop,
    Quit,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_has_the_command_line_that_does_the_same() {
        let size = |typed| NewSize::parse(typed).unwrap();
        for (action, command) in [
            (Action::Cancel("12_3".to_owned()), "divvy cancel 12_3"),
            (Action::Suspend("7".to_owned()), "divvy suspend 7"),
            (Action::Resume("7".to_owned()), "divvy resume 7"),
            (
                Action::Resize("7".to_owned(), size(" 12G ")),
                "divvy resize 7 --gpu-memory 12G",
            ),
            (
                Action::Resize("7".to_owned(), size("0.5")),
                "divvy resize 7 -g 0.5",
            ),
            (
                Action::Resize("7".to_owned(), size("strict=0.25")),
                "divvy resize 7 --compute strict=0.25",
            ),
        ] {
            assert_eq!(action.command(), command);
            let words = std::iter::once("divvy").chain(command.split(' ').skip(1));
            let words: Vec<std::ffi::OsString> = words.map(Into::into).collect();
            crate::args::parse(&words).unwrap();
        }
    }

    #[test]
    fn a_wrong_size_is_refused_before_it_is_asked_for() {
        for typed in ["", "half", "1.5", "12Q", "strict=9", "$(reboot)", "-1"] {
            NewSize::parse(typed).unwrap_err();
        }
    }
}
