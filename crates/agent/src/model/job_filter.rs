//! The filters and the order of a list of jobs, parsed from the query of `GET /v1/jobs`.
//!
//! The controller applies them to jobs that have not ended, and the journal says the same in SQL for ended ones. None
//! of them reads what redaction hides: a filter must not tell what another user's job runs.

use divvy_api::v1::job_query::MARKS;
use divvy_api::v1::{EndReason, Error, JobQuery, JobState};
use divvy_core::JobId;
use jiff::Timestamp;

use super::validate::limits::LONGEST_NAME;
use super::validate::usage;
use crate::model::job::Job;

/// Most words of a list of states: more than there are.
const MOST_WORDS: usize = 64;

/// The order of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Order {
    pub by: Field,
    pub descending: bool,
}

/// What a list is sorted by. Jobs with equal values are sorted by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Field {
    #[default]
    Id,
    Name,
    User,
    Queue,
    Project,
    State,
    Memory,
    Peak,
    Share,
    Submitted,
    Started,
    Ended,
    Elapsed,
    Place,
}

impl Field {
    const ALL: [(&'static str, Self); 14] = [
        ("id", Self::Id),
        ("name", Self::Name),
        ("user", Self::User),
        ("queue", Self::Queue),
        ("project", Self::Project),
        ("state", Self::State),
        ("memory", Self::Memory),
        ("peak", Self::Peak),
        ("share", Self::Share),
        ("submitted", Self::Submitted),
        ("started", Self::Started),
        ("ended", Self::Ended),
        ("elapsed", Self::Elapsed),
        ("place", Self::Place),
    ];
}

/// The value of a job that a list is sorted by. Jobs without a value are last in both directions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Number(i64),
    Text(String),
}

/// Which jobs a list has. All filters must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFilter {
    pub states: Option<States>,
    pub user: Option<UserFilter>,
    /// Empty: jobs without a project.
    pub project: Option<String>,
    pub queue: Option<String>,
    /// As it was given, and for an index the number.
    pub gpu: Option<GpuFilter>,
    pub name: Option<Pattern>,
    pub text: Option<SearchText>,
    /// Jobs that had not ended at this time.
    pub since: Option<Timestamp>,
    all: bool,
}

/// States of jobs, and reasons why jobs ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct States {
    states: Vec<JobState>,
    /// Queued jobs on hold.
    held: bool,
    /// Running jobs with stopped processes.
    suspended: bool,
    /// Parked running jobs.
    parked: bool,
    /// Empty together with [`JobState::Ended`] in `states`: for any reason.
    pub reasons: Vec<EndReason>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserFilter {
    Name(String),
    Uid(u32),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuFilter {
    Index(u32),
    Uuid(String),
}

/// A name in which `*` stands for any text and `?` for one character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

/// A text to find, without regard to case. Only letters of ASCII are compared one by one; a text with other letters is
/// found as it was given, in small letters, and in capitals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchText {
    /// With small letters of ASCII.
    forms: Vec<String>,
}

impl JobFilter {
    /// The filters of a query.
    ///
    /// # Errors
    /// [`ErrorCode::Usage`](divvy_api::v1::ErrorCode::Usage) for a value that no job can have, with the words that are
    /// known.
    pub fn parse(query: &JobQuery) -> Result<Self, Error> {
        for (name, value) in [
            ("user", &query.user),
            ("project", &query.project),
            ("queue", &query.queue),
            ("gpu", &query.gpu),
            ("name", &query.name),
            ("text", &query.text),
            ("sort", &query.sort),
            ("after", &query.after),
        ] {
            check_length(name, value.as_deref())?;
        }
        let user = |user: &String| match user.parse() {
            Ok(uid) => UserFilter::Uid(uid),
            Err(_) => UserFilter::Name(user.clone()),
        };
        let gpu = |gpu: &String| match gpu.parse() {
            Ok(index) => GpuFilter::Index(index),
            Err(_) => GpuFilter::Uuid(gpu.clone()),
        };
        Ok(Self {
            states: query.state.as_deref().map(States::parse).transpose()?,
            user: query.user.as_ref().map(user),
            project: query.project.clone(),
            queue: query.queue.clone(),
            gpu: query.gpu.as_ref().map(gpu),
            name: query.name.clone().map(Pattern),
            text: (query.text.as_deref().filter(|text| !text.is_empty())).map(SearchText::new),
            since: query.since,
            all: query.all,
        })
    }

    /// Whether a job that has ended can match.
    pub fn wants_ended(&self) -> bool {
        match &self.states {
            Some(states) => states.has(JobState::Ended),
            None => self.all || self.since.is_some(),
        }
    }

    /// Whether this job matches.
    pub fn matches(&self, job: &Job) -> bool {
        let spec = &job.spec;
        (self.states.as_ref()).is_none_or(|states| states.match_job(job))
            && (self.user.as_ref()).is_none_or(|user| match user {
                UserFilter::Name(name) => *name == spec.user,
                UserFilter::Uid(uid) => *uid == spec.credentials.uid,
            })
            && (self.queue.as_ref()).is_none_or(|queue| *queue == spec.queue.as_str())
            && (self.project.as_ref())
                .is_none_or(|project| *project == spec.project.as_deref().unwrap_or_default())
            && (self.gpu.as_ref()).is_none_or(|gpu| gpu.matches(job))
            && (self.name.as_ref()).is_none_or(|name| name.matches(&spec.name))
            && (self.text.as_ref()).is_none_or(|text| text.matches_job(job))
            && (self.since).is_none_or(|since| job.ended_at.is_none_or(|ended| ended > since))
    }
}

impl Order {
    /// The order that `sort` names.
    ///
    /// # Errors
    /// [`ErrorCode::Usage`](divvy_api::v1::ErrorCode::Usage) with the words that are known.
    pub fn parse(sort: &str) -> Result<Self, Error> {
        let (descending, word) = match sort.strip_prefix('-') {
            Some(word) => (true, word),
            None => (false, sort),
        };
        let known = Field::ALL.iter().find(|(name, _)| *name == word);
        match known {
            Some((_, by)) => Ok(Self {
                by: *by,
                descending,
            }),
            None => {
                let words = Field::ALL.map(|(name, _)| name).join(", ");
                Err(usage(format!("sort={sort:?} is unknown")).hint(format!(
                    "use one of {words}; `-` before it reverses the order"
                )))
            }
        }
    }

    /// Sorts jobs by their values, and leaves their numbers.
    pub fn sort(self, mut jobs: Vec<(JobId, Option<Key>)>) -> Vec<JobId> {
        jobs.sort_unstable_by(|(one, one_key), (next, next_key)| {
            let (one_key, next_key) = (one_key.as_ref(), next_key.as_ref());
            let by_key = match self.descending {
                false => one_key.cmp(&next_key),
                true => next_key.cmp(&one_key),
            };
            let by_id = match self.descending {
                false => one.cmp(next),
                true => next.cmp(one),
            };
            let by_presence = one_key.is_none().cmp(&next_key.is_none());
            by_presence.then(by_key).then(by_id)
        });
        let mut ids: Vec<JobId> = jobs.into_iter().map(|(id, _)| id).collect();
        // A job that ended while the list was read is in both of its parts, perhaps with two values.
        let mut seen = std::collections::HashSet::with_capacity(ids.len());
        ids.retain(|id| seen.insert(*id));
        ids
    }
}

impl States {
    fn parse(words: &str) -> Result<Self, Error> {
        let mut found = Self::default();
        for (at, word) in words.split(',').map(str::trim).enumerate() {
            if at == MOST_WORDS {
                return Err(usage(format!(
                    "state has more than {MOST_WORDS} words, which is the limit"
                )));
            }
            let state = JobState::ALL.into_iter().find(|one| one.name() == word);
            let reason = EndReason::ALL.into_iter().find(|one| one.name() == word);
            match (state, reason) {
                (Some(state), _) => found.states.push(state),
                (None, Some(reason)) => found.reasons.push(reason),
                (None, None) => match MARKS.iter().position(|mark| *mark == word) {
                    Some(0) => found.held = true,
                    Some(1) => found.suspended = true,
                    Some(_) => found.parked = true,
                    None => return Err(unknown_state(word)),
                },
            }
        }
        if found.states.contains(&JobState::Ended) {
            found.reasons.clear();
        }
        Ok(found)
    }

    fn has(&self, state: JobState) -> bool {
        self.states.contains(&state) || state == JobState::Ended && !self.reasons.is_empty()
    }

    fn match_job(&self, job: &Job) -> bool {
        use divvy_core::JobState as Life;
        let state = match &job.state {
            Life::Queued => JobState::Queued,
            Life::Starting { .. } => JobState::Starting,
            Life::Running { .. } | Life::Bound { .. } => JobState::Running,
            Life::Stopping { .. } => JobState::Stopping,
            Life::Ended { outcome } => {
                let reason = EndReason::from(outcome);
                return self.states.contains(&JobState::Ended) || self.reasons.contains(&reason);
            }
        };
        self.states.contains(&state)
            || self.held && state == JobState::Queued && job.run_state.hold.is_some()
            || self.suspended && state == JobState::Running && job.run_state.suspended
            || self.parked && state == JobState::Running && job.run_state.aside.is_parked()
    }
}

fn unknown_state(word: &str) -> Error {
    let states = JobState::ALL.map(JobState::name).join(", ");
    let marks = MARKS.join(", ");
    let reasons = EndReason::ALL.map(EndReason::name).join(", ");
    let word: String = word.chars().take(LONGEST_NAME).collect();
    usage(format!("state={word:?} is unknown")).hint(format!(
        "use states ({states}, {marks}) or reasons of the end ({reasons}), separated by commas"
    ))
}

fn check_length(name: &str, value: Option<&str>) -> Result<(), Error> {
    let length = value.map_or(0, str::len);
    if length <= LONGEST_NAME {
        return Ok(());
    }
    Err(usage(format!(
        "{name} has {length} bytes, but at most {LONGEST_NAME} are allowed"
    )))
}

impl GpuFilter {
    fn matches(&self, job: &Job) -> bool {
        let mut grants = job.allocations.iter().map(|holding| &holding.grant);
        grants.any(|grant| match self {
            Self::Index(index) => grant.index == *index,
            Self::Uuid(uuid) => grant.gpu.as_str() == uuid,
        })
    }
}

impl Pattern {
    /// Whether this name matches.
    pub fn matches(&self, name: &str) -> bool {
        let (mut pattern, mut rest) = (self.0.chars(), name.chars());
        // After a mismatch the last `*` takes one character more.
        let mut retry = None;
        loop {
            match (pattern.next(), rest.clone().next()) {
                (Some('*'), _) => retry = Some((pattern.clone(), rest.clone())),
                (None, None) => return true,
                (Some(wanted), Some(found)) if wanted == '?' || wanted == found => {
                    rest.next();
                }
                _ => {
                    let Some((after, from)) = &mut retry else {
                        return false;
                    };
                    if from.next().is_none() {
                        return false;
                    }
                    (pattern, rest) = (after.clone(), from.clone());
                }
            }
        }
    }

    /// The same as a pattern of SQLite's `GLOB`.
    pub fn glob(&self) -> String {
        self.0.replace('[', "[[]")
    }
}

impl SearchText {
    fn new(text: &str) -> Self {
        let mut forms: Vec<String> = [text.to_owned(), text.to_lowercase(), text.to_uppercase()]
            .iter()
            .map(|form| form.to_ascii_lowercase())
            .collect();
        forms.sort_unstable();
        forms.dedup();
        Self { forms }
    }

    /// The forms to look for in a text with small letters of ASCII.
    pub fn forms(&self) -> &[String] {
        &self.forms
    }

    /// Whether it may be a part of a handle such as `12_3`.
    pub fn is_of_handle(&self) -> bool {
        let mut forms = self.forms.iter();
        forms.any(|form| {
            form.contains('_')
                && form
                    .bytes()
                    .all(|byte| byte == b'_' || byte.is_ascii_digit())
        })
    }

    fn matches_job(&self, job: &Job) -> bool {
        let spec = &job.spec;
        self.is_in(&spec.name)
            || self.is_in(&spec.user)
            || self.is_in(spec.queue.as_str())
            || (spec.project.as_deref()).is_some_and(|project| self.is_in(project))
            || self.is_in_number(job.id)
            || self.is_of_handle()
                && (spec.policy.array).is_some_and(|task| self.is_in(&task.handle(job.id)))
    }

    fn is_in(&self, text: &str) -> bool {
        let text = text.as_bytes();
        self.forms.iter().any(|form| {
            let form = form.as_bytes();
            (text.windows(form.len())).any(|part| part.eq_ignore_ascii_case(form))
        })
    }

    fn is_in_number(&self, id: JobId) -> bool {
        let mut forms = self.forms.iter();
        forms.any(|form| {
            form.bytes().all(|byte| byte.is_ascii_digit()) && id.to_string().contains(form.as_str())
        })
    }
}

#[cfg(test)]
mod tests {
    use divvy_api::v1::job_query::SORTS;

    use super::*;

    #[test]
    fn every_order_of_the_api_is_a_field() {
        assert_eq!(Field::ALL.map(|(name, _)| name), SORTS);
    }

    #[test]
    fn a_pattern_matches_as_the_journal_does() {
        let db = rusqlite::Connection::open_in_memory().unwrap();
        let names = [
            "", "a", "train", "train-7", "[x]", "tr*n", "größe", "a?b", "TRAIN", "aab", "abcabx",
        ];
        let patterns = [
            "", "*", "train", "train*", "*7", "t*n", "t*-*", "[x]", "[*", "gr?ße", "**", "a*b",
            "*abx", "?", "a?b",
        ];
        for pattern in patterns {
            let pattern = Pattern(pattern.to_owned());
            for name in names {
                let glob = "SELECT ?1 GLOB ?2";
                let found: bool = db
                    .query_row(glob, [name, &pattern.glob()], |row| row.get(0))
                    .unwrap();
                assert_eq!(pattern.matches(name), found, "{pattern:?} {name:?}");
            }
        }
        assert!(Pattern("t*n".into()).matches("train"));
    }

    #[test]
    fn a_text_is_found_without_regard_to_case() {
        for (text, found) in [
            ("TRAIN", "my-train"),
            ("größe", "GRÖSSE GRÖßE"),
            ("ÜB", "übung"),
        ] {
            assert!(SearchText::new(text).is_in(found), "{text}");
        }
        assert!(!SearchText::new("x").is_in(""));
    }

    #[test]
    fn values_that_no_job_has_are_refused_with_the_known_words() {
        let long = "x".repeat(LONGEST_NAME + 1);
        let query = |set: fn(&mut JobQuery, String), value: &str| {
            let mut query = JobQuery::default();
            set(&mut query, value.to_owned());
            JobFilter::parse(&query)
        };
        let sets: [fn(&mut JobQuery, String); 8] = [
            |query, value| query.user = Some(value),
            |query, value| query.project = Some(value),
            |query, value| query.queue = Some(value),
            |query, value| query.gpu = Some(value),
            |query, value| query.name = Some(value),
            |query, value| query.text = Some(value),
            |query, value| query.sort = Some(value),
            |query, value| query.after = Some(value),
        ];
        for set in sets {
            query(set, &long).unwrap_err();
            query(set, &long[1..]).unwrap();
        }
        let state: fn(&mut JobQuery, String) = |query, value| query.state = Some(value);
        for wrong in [
            "",
            "waiting",
            "queued,waiting",
            &"queued,".repeat(MOST_WORDS),
            &long,
        ] {
            let error = query(state, wrong).unwrap_err();
            assert!(error.message.len() < 300, "{}", error.message);
        }
        let error = query(state, "queued,waiting").unwrap_err();
        assert_eq!(error.message, "state=\"waiting\" is unknown");
        let hint = error.hint.unwrap();
        assert!(
            hint.contains("stopping") && hint.contains("dependency_failed"),
            "{hint}"
        );
        query(state, "queued, running,failed").unwrap();
        let error = Order::parse("-size").unwrap_err();
        assert!(error.message.contains("-size") && error.hint.unwrap().contains("elapsed"));
    }

    #[test]
    fn jobs_without_a_value_are_last_in_both_directions() {
        let jobs = || {
            let key = |number| Some(Key::Number(number));
            vec![
                (JobId(1), None),
                (JobId(2), key(5)),
                (JobId(3), key(5)),
                (JobId(4), key(1)),
                (JobId(2), None),
            ]
        };
        let sorted = |descending| {
            let order = Order {
                by: Field::Peak,
                descending,
            };
            order.sort(jobs()).iter().map(|id| id.0).collect::<Vec<_>>()
        };
        assert_eq!(sorted(false), [4, 2, 3, 1]);
        assert_eq!(sorted(true), [3, 2, 4, 1]);
    }
}
