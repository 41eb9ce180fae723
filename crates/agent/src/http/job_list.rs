//! `GET /v1/jobs`: filters, order and pages of the list of jobs.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::{Arc, LazyLock, Mutex};

use axum::Extension;
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use divvy_api::sync::lock;
use divvy_api::v1::job_query::{ITEMS, NEXT, TOTAL};
use divvy_api::v1::{Error, ErrorCode, JobQuery};
use divvy_core::JobId;
use serde::Deserialize;

use super::body::{ApiError, Query};
use super::kept_orders::{Cursor, KeptOrders};
use super::list_writer::{brief_list_response, job_list_response};
use super::redact::Visibility;
use super::{Api, internal};
use crate::auth::Caller;
use crate::controller::query::folds::ListItem;
use crate::controller::query::job_page::{LivingPage, Matches};
use crate::controller::query::job_summary::JobSummary;
use crate::journal::{self, Span};
use crate::model::job::Job;
use crate::model::job_filter::{Field, JobFilter, Order};
use crate::model::validate::usage;

/// Orders of lists of which a client has read the first page.
static ORDERS: LazyLock<KeptOrders> = LazyLock::new(KeptOrders::default);

/// The query as it came, so that a refusal names the value.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawQuery {
    all: Option<String>,
    brief: Option<String>,
    state: Option<String>,
    user: Option<String>,
    project: Option<String>,
    queue: Option<String>,
    gpu: Option<String>,
    name: Option<String>,
    text: Option<String>,
    since: Option<String>,
    sort: Option<String>,
    fold: Option<String>,
    limit: Option<String>,
    after: Option<String>,
}

impl RawQuery {
    fn parse(self) -> Result<JobQuery, Error> {
        Ok(JobQuery {
            all: value("all", self.all, "use true or false")?.unwrap_or(false),
            brief: value("brief", self.brief, "use true or false")?.unwrap_or(false),
            state: self.state,
            user: self.user,
            project: self.project,
            queue: self.queue,
            gpu: self.gpu,
            name: self.name,
            text: self.text,
            since: value("since", self.since, "use RFC 3339: 2026-11-21T16:00:00Z")?,
            sort: self.sort,
            fold: value("fold", self.fold, "use true or false")?.unwrap_or(false),
            limit: value("limit", self.limit, "use a number; 0 stands for all jobs")?.unwrap_or(0),
            after: self.after,
        })
    }
}

/// A value that is no text.
pub(super) fn value<T: std::str::FromStr>(
    name: &str,
    text: Option<String>,
    hint: &str,
) -> Result<Option<T>, Error> {
    /// Letters of a wrong value in the refusal. So a refusal stays a line; the value itself may have kilobytes.
    const SHOWN: usize = 100;
    let Some(text) = text else { return Ok(None) };
    text.parse().map(Some).map_err(|_| {
        let shown: String = text.chars().take(SHOWN).collect();
        usage(format!("{name}={shown:?} is invalid")).hint(hint)
    })
}

/// Filters whose matches are kept. More would keep lists of many jobs for views that are closed.
const MOST_FILTERS: usize = 8;

/// The matches of the last filters, so that a page of a long list costs as much as one of a short list while no job
/// changes. The last used is at the end.
#[derive(Default)]
pub struct KeptMatches(Mutex<VecDeque<(Arc<JobFilter>, Matches)>>);

impl KeptMatches {
    fn find(&self, filter: &JobFilter) -> Option<Matches> {
        let kept = lock(&self.0);
        let mut kept = kept.iter();
        let found = kept.find(|(known, _)| **known == *filter);
        found.map(|(_, matches)| matches.clone())
    }

    fn keep(&self, filter: Arc<JobFilter>, matches: Matches) {
        let mut kept = lock(&self.0);
        kept.retain(|(known, _)| *known != filter);
        kept.push_back((filter, matches));
        if kept.len() > MOST_FILTERS {
            kept.pop_front();
        }
    }
}

/// Jobs of an answer, in their order.
struct Page {
    jobs: Vec<ListItem>,
    /// Number of jobs that match, on all pages.
    total: u64,
    /// Number of items on all pages, where arrays are folded.
    items: Option<u64>,
    next: Option<String>,
}

pub async fn jobs(
    api: Api,
    Extension(sight): Extension<Visibility>,
    Extension(caller): Extension<Caller>,
    Query(raw): Query<RawQuery>,
) -> Result<Response, ApiError> {
    let query = raw.parse()?;
    let is_pending = query.state.as_deref() == Some("queued");
    if query.fold && !(is_pending && query.sort.as_deref() == Some("place")) {
        let why = "fold=true needs state=queued and sort=place: only pending jobs are folded";
        return Err(usage(why).into());
    }
    let filter = Arc::new(JobFilter::parse(&query)?);
    let order = query.sort.as_deref().map(Order::parse).transpose()?;
    let page = match order.unwrap_or_default() {
        Order {
            by: Field::Id,
            descending,
        } => page_by_number(&api, &query, filter, descending).await?,
        order => page_by_value(&api, &query, filter, order, caller.account.uid).await?,
    };
    let (total, items, next) = (page.total, page.items, page.next);
    let mut response = match query.brief {
        true => brief_list_response(&api, sight, page.jobs).await?,
        false => job_list_response(&api, sight, page.jobs).await?,
    };
    let headers = response.headers_mut();
    headers.insert(HeaderName::from_static(TOTAL), HeaderValue::from(total));
    if let Some(items) = items {
        headers.insert(HeaderName::from_static(ITEMS), HeaderValue::from(items));
    }
    if let Some(next) = next {
        let next = HeaderValue::try_from(next).map_err(|error| internal(&error))?;
        headers.insert(HeaderName::from_static(NEXT), next);
    }
    Ok(response)
}

/// A page of a list by number, which goes on after a number. Without an order and a place to go on it has the newest
/// jobs.
async fn page_by_number(
    api: &Api,
    query: &JobQuery,
    filter: Arc<JobFilter>,
    descending: bool,
) -> Result<Page, ApiError> {
    let after = match &query.after {
        None => None,
        Some(after) => match after.parse() {
            Ok(after) => Some(after),
            Err(_) => return Err(invalid_after(after).into()),
        },
    };
    let is_newest = query.limit > 0 && query.sort.is_none() && after.is_none();
    let descending = descending || is_newest;
    let limit = NonZeroUsize::new(query.limit);
    let span = Span {
        after,
        descending,
        // One more than the page has says whether another page follows.
        most: limit.map(|limit| limit.get().saturating_add(1)),
    };
    let asked = Arc::clone(&filter);
    let known = api.matches.find(&filter);
    let living = api
        .mailbox
        .query(move |queries| queries.job_page(&asked, span, known));
    let LivingPage { mut jobs, matches } = living.await?;
    let mut total = matches.count() as u64;
    api.matches.keep(Arc::clone(&filter), matches);
    if filter.wants_ended() {
        let database = api.home.database();
        let ended = api
            .budget
            .run(move || journal::listed(&database, &filter, span))
            .await?;
        let (ended, count) = ended.map_err(|error| internal(&error))?;
        let before = jobs.len() + ended.len();
        jobs.extend(summaries(api, ended).await?);
        jobs.sort_by_key(JobSummary::id);
        // A job that ended in between is in both.
        jobs.dedup_by_key(|job| job.id());
        let twice = (before - jobs.len()) as u64;
        total = (total + count).saturating_sub(twice);
        if descending {
            jobs.reverse();
        }
    }
    let mut next = None;
    if let Some(limit) = limit
        && jobs.len() > limit.get()
    {
        jobs.truncate(limit.get());
        next = jobs.last().map(|job| job.id().to_string());
    }
    if is_newest {
        jobs.reverse();
        // The list ends with these.
        next = None;
    }
    Ok(Page {
        jobs: jobs.into_iter().map(ListItem::from).collect(),
        total,
        items: None,
        next,
    })
}

/// A page of a list that is sorted by a value.
async fn page_by_value(
    api: &Api,
    query: &JobQuery,
    filter: Arc<JobFilter>,
    order: Order,
    uid: u32,
) -> Result<Page, ApiError> {
    let name = name_of(query);
    let (cursor, ids) = match &query.after {
        None => (None, sorted(api, &filter, order).await?),
        Some(after) => {
            let cursor = Cursor::parse(after).ok_or_else(|| invalid_after(after))?;
            let ids = ORDERS.find(cursor.order, uid, &name);
            (Some(cursor), ids.ok_or_else(|| forgotten(after))?)
        }
    };
    let (ids, total, items) = match query.fold {
        false => {
            let total = ids.len() as u64;
            (ids, total, None)
        }
        true => folded(api, &filter, order, cursor.is_some(), ids).await?,
    };
    let most = NonZeroUsize::new(query.limit).map_or(usize::MAX, NonZeroUsize::get);
    let mut at = cursor.map_or(0, |cursor| cursor.at).min(ids.len());
    let mut jobs = Vec::new();
    // Jobs that do not match any more leave room for others.
    while jobs.len() < most && at < ids.len() {
        let end = at.saturating_add(most - jobs.len()).min(ids.len());
        let part = ids.get(at..end).unwrap_or_default().to_vec();
        let filter = Arc::clone(&filter);
        match query.fold {
            false => jobs.extend(
                rows(api, filter, part)
                    .await?
                    .into_iter()
                    .map(ListItem::from),
            ),
            true => {
                let read =
                    (api.mailbox).query(move |queries| Ok(queries.folded_items(&part, &filter)));
                jobs.extend(read.await?);
            }
        }
        at = end;
    }
    let next = (at < ids.len()).then(|| {
        let order = match cursor {
            Some(cursor) => cursor.order,
            None => ORDERS.keep(uid, name, ids),
        };
        Cursor { order, at }.to_string()
    });
    Ok(Page {
        jobs,
        total,
        items,
        next,
    })
}

/// The rows of a list with folded arrays, the number of jobs that match, and the number of rows. `is_kept`: the order is
/// one of rows already.
async fn folded(
    api: &Api,
    filter: &Arc<JobFilter>,
    order: Order,
    is_kept: bool,
    ids: Arc<[JobId]>,
) -> Result<(Arc<[JobId]>, u64, Option<u64>), ApiError> {
    let (jobs, rows) = match is_kept {
        true => (sorted(api, filter, order).await?.len(), ids),
        false => {
            let jobs = ids.len();
            let rows = (api.mailbox).query(move |queries| Ok(queries.folded_rows(&ids)));
            (jobs, Arc::from(rows.await?))
        }
    };
    let items = rows.len() as u64;
    Ok((rows, jobs as u64, Some(items)))
}

/// The numbers of all jobs that match, in this order.
async fn sorted(
    api: &Api,
    filter: &Arc<JobFilter>,
    order: Order,
) -> Result<Arc<[JobId]>, ApiError> {
    let asked = Arc::clone(filter);
    let living = api
        .mailbox
        .query(move |queries| queries.job_keys(&asked, order.by));
    let mut keys = living.await?;
    let (database, filter) = (api.home.database(), Arc::clone(filter));
    let sorted = api.budget.run(move || {
        if filter.wants_ended() {
            keys.extend(journal::listed_keys(&database, &filter, order.by)?);
        }
        Ok::<_, journal::StoreError>(order.sort(keys).into())
    });
    sorted.await?.map_err(|error| internal(&error))
}

/// Those of these jobs that match, in their order.
async fn rows(
    api: &Api,
    filter: Arc<JobFilter>,
    ids: Vec<JobId>,
) -> Result<Vec<JobSummary>, ApiError> {
    let ids = Arc::<[JobId]>::from(ids);
    let (asked, wanted) = (Arc::clone(&filter), Arc::clone(&ids));
    let living = api
        .mailbox
        .query(move |queries| Ok(queries.job_rows(&wanted, &asked)));
    let living = living.await?.into_iter().map(|job| (job.id(), job));
    let mut found: HashMap<JobId, JobSummary> = living.collect();
    if filter.wants_ended() {
        let missing = ids.iter().filter(|id| !found.contains_key(id));
        let missing: Vec<JobId> = missing.copied().collect();
        let database = api.home.database();
        let ended = api
            .budget
            .run(move || journal::listed_of(&database, &missing, &filter))
            .await?;
        let ended = summaries(api, ended.map_err(|error| internal(&error))?).await?;
        found.extend(ended.into_iter().map(|job| (job.id(), job)));
    }
    Ok(ids.iter().filter_map(|id| found.remove(id)).collect())
}

async fn summaries(api: &Api, ended: Vec<Job>) -> Result<Vec<JobSummary>, ApiError> {
    if ended.is_empty() {
        return Ok(Vec::new());
    }
    let read = api.mailbox.query(move |queries| {
        let seen = ended.iter().map(|job| queries.view(job, None, None));
        Ok(seen.map(JobSummary::from).collect())
    });
    Ok(read.await?)
}

/// The query without its page and its form.
fn name_of(query: &JobQuery) -> String {
    let query = JobQuery {
        brief: false,
        limit: 0,
        after: None,
        ..query.clone()
    };
    let pairs = query.pairs().into_iter();
    pairs
        .map(|(name, value)| format!("{name}={value:?}&"))
        .collect()
}

fn invalid_after(after: &str) -> Error {
    usage(format!("after={after:?} is invalid")).hint(format!(
        "use the header {NEXT} of the page before, with the same sort"
    ))
}

fn forgotten(after: &str) -> Error {
    let why = format!(
        "after={after:?}: the order of this list is no longer kept, or is of another query"
    );
    Error::new(ErrorCode::Gone, why)
        .hint("read the list again from its first page, without `after`")
}
