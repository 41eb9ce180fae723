//! The usage report: GPU time that users held and used, also by day of the caller's calendar. Every user sees their own; operators see all.

use axum::Extension;
use divvy_api::v1;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

use super::body::{ApiError, Query};
use super::{Answer, Api, internal, list};
use crate::auth::{Caller, Role};
use crate::host::clock::now;
use crate::journal;
use crate::model::usage::calendar::{self, Period};
use crate::model::usage::{GroupBy, UsageReport};
use crate::model::validate::usage;

/// The default window: a month, the most common request. So a longer one is given by `since`.
const DAYS: i64 = 30;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UsageQuery {
    #[serde(default)]
    by: Option<String>,
    #[serde(default)]
    since: Option<String>,
    #[serde(default)]
    until: Option<String>,
    /// Time zone of days.
    #[serde(default)]
    zone: Option<String>,
}

pub async fn usages(
    api: Api,
    Extension(caller): Extension<Caller>,
    Query(which): Query<UsageQuery>,
) -> Answer<v1::Usage> {
    let by = GroupBy::parse(which.by.as_deref().unwrap_or("user,project"))?;
    let until = time("until", which.until.as_deref())?.unwrap_or_else(now);
    let before = until.checked_sub(SignedDuration::from_hours(24 * DAYS));
    let since = time("since", which.since.as_deref())?.or(before.ok());
    let since = since.unwrap_or(Timestamp::MIN);
    if since >= until {
        return Err(usage(format!("since={since} is not before until={until}"))
            .hint("give a `since` that is earlier than `until`")
            .into());
    }
    let zone = which.zone.as_deref().map(calendar::time_zone);
    let zone = zone.transpose()?.unwrap_or(TimeZone::UTC);
    // Future time has no usage.
    let end = until.min(now());
    let periods = if by.contains(&GroupBy::Day) {
        calendar::days(since, end, &zone)?
    } else if by.contains(&GroupBy::Month) {
        calendar::months(since, end, &zone)?
    } else {
        vec![Period {
            day: None,
            from: since.as_microsecond(),
            to: end.as_microsecond(),
        }]
    };
    let gpus = api.mailbox.query(|queries| Ok(queries.managed_gpu_uuids()));
    let mut report = UsageReport::new(by, periods, gpus.await?);
    let uid = (caller.role < Role::Operator).then_some(caller.account.uid);
    let database = api.home.database();
    let read = api.budget.run(move || {
        journal::usage_between(&database, (since, end), uid, |row| report.add(row))?;
        Ok::<_, journal::StoreError>(report.items())
    });
    let items = read.await?;
    list("UsageList", items.map_err(|error| internal(&error))?)
}

pub(super) fn time(name: &str, text: Option<&str>) -> Result<Option<Timestamp>, ApiError> {
    let Some(text) = text else { return Ok(None) };
    match text.parse() {
        Ok(time) => Ok(Some(time)),
        Err(_) => Err(usage(format!("{name}={text} is not a time"))
            .hint("use RFC 3339: 2026-11-21T16:00:00Z")
            .into()),
    }
}
