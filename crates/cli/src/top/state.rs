//! The state of the live view: the last answers of the daemon, and what the user chose.

use std::collections::{BTreeMap, VecDeque};

use divvy_api::daemon::Role;
use divvy_api::v1::{Board, BoardJob, BoardWaitingJob, Event, Oom, Project, Why};
use divvy_api::v1::{History, Job};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::call::{Action, Question, Span, Topic};
use super::filter::Filter;
use super::look::Look;
use super::rows::Sort;

/// Intervals between two boards, in milliseconds, in the order of the keys + and -.
pub const INTERVALS: [i64; 5] = [500, 1000, 2000, 5000, 10_000];

/// Events that the view keeps. Five screens of 60 lines; `divvy events` has all, and the view takes no more memory over
/// days.
pub const MOST_EVENTS: usize = 300;

/// Bytes of output that the view keeps of one job. Some hundred lines, more than the page shows; `divvy logs` has all.
pub const MOST_LOG: usize = 32 << 10;

/// Jobs of a page of the pending jobs. More than a screen, so that the next page is there before the user is; a larger
/// one would slow each poll.
pub const PAGE: usize = 100;

/// Points of a GPU's sparkline, one a second. A minute: half would hide the steps of a training, and more points than
/// cells would not be seen.
const TREND: i64 = 60;

/// What the command line says.
#[derive(Clone, Debug)]
pub struct Options {
    pub is_readonly: bool,
    pub interval: SignedDuration,
    pub look: Look,
    pub zone: fn() -> TimeZone,
    /// One drawing of everything, for `-1`: no selection, no keys.
    pub is_once: bool,
}

/// The lists between which Tab moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pane {
    Gpus,
    Jobs,
    Waiting,
    Events,
    Shares,
}

impl Pane {
    pub const ALL: [Self; 5] = [
        Self::Gpus,
        Self::Jobs,
        Self::Waiting,
        Self::Events,
        Self::Shares,
    ];

    /// The pane after this one, or before it.
    pub fn beside(self, is_next: bool) -> Self {
        let step = if is_next { 1 } else { Self::ALL.len() - 1 };
        let at = Self::ALL.iter().position(|pane| *pane == self);
        Self::ALL[(at.unwrap_or(0) + step) % Self::ALL.len()]
    }
}

/// The meaning of the next key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    #[default]
    Normal,
    /// After `o`: the letter of a column, or `o` for the report on refused memory.
    Order,
    /// The filter is being typed; what was in force before.
    Filter {
        before: String,
    },
    /// The new size of a job is being typed.
    Size {
        job: String,
        typed: String,
    },
    /// The command waits for `y`.
    Confirm(Action),
    Help,
}

/// The text below the memory curve of a job's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Section {
    #[default]
    Log,
    Why,
    Oom,
    Events,
    Facts,
}

impl Section {
    pub const ALL: [Self; 5] = [Self::Log, Self::Why, Self::Oom, Self::Events, Self::Facts];

    pub fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Why => "why",
            Self::Oom => "out of memory",
            Self::Events => "events",
            Self::Facts => "facts",
        }
    }

    pub fn beside(self, is_next: bool) -> Self {
        let step = if is_next { 1 } else { Self::ALL.len() - 1 };
        let at = Self::ALL.iter().position(|section| *section == self);
        Self::ALL[(at.unwrap_or(0) + step) % Self::ALL.len()]
    }
}

/// Output of a job that the view has.
#[derive(Clone, Debug, Default)]
pub struct Log {
    pub bytes: VecDeque<u8>,
    /// Position after the last byte in the whole output.
    pub end: u64,
}

/// One job in full.
#[derive(Clone, Debug)]
pub struct Page {
    /// Reference of the job.
    pub job: String,
    /// The page has the screen for itself. Otherwise it stands beside the list and follows the selection.
    pub is_open: bool,
    pub section: Section,
    pub span: Span,
    /// First line of the section on the screen. Of the log: lines above its end.
    pub scroll: usize,
    pub facts: Option<Box<Job>>,
    pub curve: Option<Box<History>>,
    pub why: Option<Box<Why>>,
    pub oom: Option<Box<Oom>>,
    pub events: Option<Vec<Event>>,
    pub log: Option<Log>,
    /// Refusals that the report covers.
    pub denials: Option<u64>,
    /// The daemon's refusal of the last question on a topic.
    pub refused: BTreeMap<Topic, String>,
}

impl Page {
    pub fn new(job: String, section: Section, is_open: bool) -> Self {
        Self {
            job,
            is_open,
            section,
            span: Span::default(),
            scroll: 0,
            facts: None,
            curve: None,
            why: None,
            oom: None,
            events: None,
            log: None,
            denials: None,
            refused: BTreeMap::new(),
        }
    }
}

/// The pages of pending jobs that the daemon sent.
#[derive(Clone, Debug, Default)]
pub struct Waiting {
    /// Pages near the ones on the screen, by number.
    pub pages: BTreeMap<usize, Vec<BoardWaitingJob>>,
    /// Where each known page begins, as the daemon wants it. The first one begins at the top.
    pub after: Vec<Option<String>>,
    /// Number of jobs that match the filter.
    pub total: Option<u64>,
    /// Number of their rows.
    pub items: Option<u64>,
}

/// Use of a GPU in the last minute, by second.
#[derive(Clone, Debug, Default)]
pub struct Trend {
    pub points: VecDeque<(i64, u8)>,
    /// The stored history was added.
    pub has_history: bool,
}

impl Trend {
    pub fn add(&mut self, second: i64, percent: u8) {
        self.points.retain(|(at, _)| *at != second);
        self.points.push_back((second, percent));
        let newest = self.points.iter().map(|(at, _)| *at).max();
        let oldest = newest.unwrap_or(second) - TREND;
        self.points.retain(|(at, _)| *at > oldest);
        self.points.make_contiguous().sort_unstable();
    }

    /// The largest use in each of so many parts of the last minute, the newest last.
    pub fn buckets(&self, count: usize, now: i64) -> Vec<Option<u8>> {
        let mut buckets = vec![None; count];
        let length = usize::try_from(TREND).unwrap_or(1);
        for (at, percent) in &self.points {
            let age = usize::try_from(now - at).unwrap_or(0);
            if age < length && count > 0 {
                let bucket: &mut Option<u8> = &mut buckets[count - 1 - age * count / length];
                *bucket = (*bucket).max(Some(*percent));
            }
        }
        buckets
    }
}

/// A line above the keys, until the next key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub text: String,
    pub is_refusal: bool,
}

/// The user that the daemon sees, and its role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub user: String,
    pub role: Option<Role>,
}

/// When a question of a topic was asked.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub at: Timestamp,
    pub is_open: bool,
}

/// Everything that the view knows.
#[derive(Debug)]
pub struct State {
    pub options: Options,
    pub now: Timestamp,
    /// Columns and lines of the terminal.
    pub size: (u16, u16),
    pub board: Option<Box<Board>>,
    /// Time at which the last board arrived.
    pub board_at: Timestamp,
    /// Why there is no newer board.
    pub trouble: Option<String>,
    pub is_frozen: bool,
    pub simulated: Option<String>,
    pub caller: Option<Caller>,
    pub asked: BTreeMap<Topic, Asked>,
    pub trends: BTreeMap<u32, Trend>,
    /// The newest events, the oldest first.
    pub events: VecDeque<Event>,
    pub projects: Vec<Project>,
    pub waiting: Waiting,
    pub pane: Pane,
    pub mode: Mode,
    pub page: Option<Page>,
    pub sort: Sort,
    pub is_tree: bool,
    /// Each pending task of an array has a row.
    pub is_unfolded: bool,
    pub typed_filter: String,
    pub filter: Filter,
    pub is_mine: bool,
    pub picked_gpu: usize,
    pub picked_job: Option<String>,
    /// Row of the picked job, for when that job has gone.
    pub job_row: usize,
    pub waiting_row: usize,
    pub picked_waiting: Option<String>,
    /// Rows above the end of the events.
    pub events_up: usize,
    pub shares_row: usize,
    pub help_row: usize,
    pub notice: Option<Notice>,
    /// The command of what was done last.
    pub done: Option<String>,
    /// Whether the screen no longer shows this state.
    pub is_changed: bool,
}

impl State {
    pub fn new(options: Options, now: Timestamp, size: (u16, u16)) -> Self {
        Self {
            options,
            now,
            size,
            board: None,
            board_at: now,
            trouble: None,
            is_frozen: false,
            simulated: None,
            caller: None,
            asked: BTreeMap::new(),
            trends: BTreeMap::new(),
            events: VecDeque::new(),
            projects: Vec::new(),
            waiting: Waiting::default(),
            pane: Pane::Jobs,
            mode: Mode::Normal,
            page: None,
            sort: Sort::default(),
            is_tree: false,
            is_unfolded: false,
            typed_filter: String::new(),
            filter: Filter::default(),
            is_mine: false,
            picked_gpu: 0,
            picked_job: None,
            job_row: 0,
            waiting_row: 0,
            picked_waiting: None,
            events_up: 0,
            shares_row: 0,
            help_row: 0,
            notice: None,
            done: None,
            is_changed: true,
        }
    }

    /// How old the figures are, if they are older than they should be.
    pub fn lateness(&self) -> Option<SignedDuration> {
        let age = self.now.duration_since(self.board_at);
        let allowed = self.options.interval * 3 + SignedDuration::from_secs(1);
        (self.board.is_some() && !self.is_frozen && age > allowed).then_some(age)
    }

    /// Whether the figures are out of date.
    pub fn is_stale(&self) -> bool {
        self.trouble.is_some() || self.lateness().is_some()
    }

    /// The filter in force: what was typed, and the own user with `m`.
    pub fn filter(&self) -> Filter {
        let mut filter = self.filter.clone();
        if self.is_mine
            && let Some(caller) = &self.caller
        {
            filter.user = Some(caller.user.clone());
        }
        filter
    }

    /// A job that holds slices, by its reference or number.
    pub fn job(&self, reference: &str) -> Option<&BoardJob> {
        let jobs = self.board.as_ref()?.jobs.iter();
        jobs.into_iter()
            .find(|job| job.reference() == reference || job.id == reference)
    }

    pub fn is_open(&self, topic: Topic) -> bool {
        self.asked.get(&topic).is_some_and(|asked| asked.is_open)
    }

    /// Marks a question as asked, unless one of its topic is on its way or was asked less than `pause` ago.
    pub fn may_ask(&mut self, question: &Question, pause: SignedDuration) -> bool {
        let topic = question.topic();
        let is_due = self.asked.get(&topic).is_none_or(|asked| {
            // A clock that was set back does not stop the view.
            let since = self.now.duration_since(asked.at).abs();
            !asked.is_open && since >= pause
        });
        if is_due {
            let asked = Asked {
                at: self.now,
                is_open: true,
            };
            self.asked.insert(topic, asked);
        }
        is_due
    }

    /// Why the caller may not act on a job of this user, if that is known.
    pub fn forbidden(&self, owner: Option<&str>) -> Option<String> {
        if self.options.is_readonly {
            return Some("this view was started with --readonly".to_owned());
        }
        let caller = self.caller.as_ref()?;
        let role = caller.role?;
        let is_others = owner.is_some_and(|owner| owner != caller.user);
        match role {
            Role::Viewer => Some("your role is viewer; the role user is required".to_owned()),
            Role::User if is_others => {
                let owner = crate::text::clean(owner.unwrap_or_default());
                Some(format!(
                    "the job belongs to {owner}; the role operator is required"
                ))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trend_keeps_a_minute_and_shows_its_peaks() {
        let mut trend = Trend::default();
        for second in 0..200 {
            trend.add(second, u8::try_from(second % 50).unwrap());
        }
        assert_eq!(trend.points.len(), 60);
        // Seconds 140 to 199 in ten parts; the newest part is 194 to 199.
        let buckets = trend.buckets(10, 199);
        assert_eq!(buckets.len(), 10);
        assert_eq!(buckets[9], Some(49));
        assert_eq!(buckets[0], Some(45));
        assert_eq!(trend.buckets(10, 300), vec![None; 10]);
        assert_eq!(trend.buckets(0, 199), vec![]);
    }

    #[test]
    fn a_trend_takes_history_that_arrives_after_the_first_board() {
        let mut trend = Trend::default();
        trend.add(100, 9);
        (60..100).for_each(|second| trend.add(second, 1));
        trend.add(100, 5);
        let seconds: Vec<i64> = trend.points.iter().map(|(at, _)| *at).collect();
        assert_eq!(seconds, (60..=100).collect::<Vec<_>>());
        assert_eq!(trend.points.back(), Some(&(100, 5)));
    }
}
