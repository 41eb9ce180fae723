//! The query of `GET /v1/jobs`: filters, order and page.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Job;

/// Header of a list of jobs: number of jobs that match the query, on all pages.
pub const TOTAL: &str = "divvy-total";

/// Header of a page of jobs: `after` of the next page. Absent on the last page.
pub const NEXT: &str = "divvy-next";

/// Header of a list of jobs with `fold=true`: number of items on all pages.
pub const ITEMS: &str = "divvy-items";

/// Words for jobs of one state: pending jobs with a hold, running jobs with stopped processes, parked running jobs.
pub const MARKS: [&str; 3] = ["held", "suspended", "parked"];

/// Orders of a list of jobs; with `-` before it the other way round.
pub const SORTS: [&str; 14] = [
    "id",
    "name",
    "user",
    "queue",
    "project",
    "state",
    "memory",
    "peak",
    "share",
    "submitted",
    "started",
    "ended",
    "elapsed",
    "place",
];

/// Query of `GET /v1/jobs`. All filters must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JobQuery {
    /// Include jobs that have ended.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// One line for each job (`Brief`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub brief: bool,
    /// States and end reasons, separated by commas, whatever `all` is: `queued,running`, `failed`. `held` selects pending
    /// jobs with a hold, `suspended` running jobs with stopped processes, `parked` those that are parked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Name or number (uid) of the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Project; empty: jobs without a project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Index or UUID of a GPU on which the job holds a slice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// Name of the job; `*` stands for any text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Text in the number, name, user, queue or project, without regard to case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Only jobs that had not ended at this time; includes jobs that have ended since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Order: `id`, `name`, `user`, `queue`, `project`, `state`, `memory`, `peak`, `share`, `submitted`, `started`,
    /// `ended`, `elapsed`, `place`; with `-` before it the other way round. Absent: `id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort: Option<String>,
    /// Queued tasks of an array with one queue and one request are one item, at the place of the first. Only with the
    /// state `queued` and the order `place`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fold: bool,
    /// At most this many jobs; 0: all. Without `sort` and `after` the newest ones, otherwise the first ones.
    #[serde(skip_serializing_if = "is_zero")]
    pub limit: usize,
    /// Go on after this job, in this order: the header `divvy-next` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

impl JobQuery {
    /// Names and values of the parameters that differ from their defaults.
    pub fn pairs(&self) -> Vec<(&'static str, String)> {
        let flag = |is_set: bool| is_set.then(|| "true".to_owned());
        let limit = (self.limit > 0).then(|| self.limit.to_string());
        let pairs = [
            ("all", flag(self.all)),
            ("brief", flag(self.brief)),
            ("state", self.state.clone()),
            ("user", self.user.clone()),
            ("project", self.project.clone()),
            ("queue", self.queue.clone()),
            ("gpu", self.gpu.clone()),
            ("name", self.name.clone()),
            ("text", self.text.clone()),
            ("since", self.since.map(|since| since.to_string())),
            ("sort", self.sort.clone()),
            ("fold", flag(self.fold)),
            ("limit", limit),
            ("after", self.after.clone()),
        ];
        let given = |(name, value)| Option::map(value, |value| (name, value));
        pairs.into_iter().filter_map(given).collect()
    }
}

/// One page of jobs.
#[derive(Clone, Debug)]
pub struct JobPage {
    pub jobs: Vec<Job>,
    /// Number of jobs that match the query, on all pages.
    pub total: u64,
    /// Number of items on all pages: fewer than jobs if the query folds arrays.
    pub items: u64,
    /// `after` of the next page; `None` on the last page.
    pub next: Option<String>,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}
