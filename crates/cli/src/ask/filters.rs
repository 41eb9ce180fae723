//! Filters of job lists: the words of the flags as a query of the API.

use divvy_api::v1::job_query::{MARKS, SORTS};
use divvy_api::v1::{EndReason, JobQuery, JobState};
use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use jiff::{Span, SpanRelativeTo, Timestamp, Zoned};

use crate::args::JobFilter;
use crate::error_output::{Result, usage};

/// States and ways to end, as the API calls them.
pub fn states_and_ends() -> Vec<&'static str> {
    let ends = EndReason::ALL.into_iter().map(EndReason::name);
    let states = JobState::ALL.into_iter().map(JobState::name);
    states.chain(MARKS).chain(ends).collect()
}

/// Words of tables and of Slurm for some of them.
const OTHER_WORDS: [(&str, &str); 10] = [
    // Tables print one word for both.
    ("failed", "failed,launch_failed"),
    ("pending", "queued"),
    ("pd", "queued"),
    ("waiting", "queued"),
    ("r", "running"),
    ("lost", "supervisor_lost"),
    ("killed", "bypass"),
    ("timed_out", "time_limit"),
    ("timeout", "time_limit"),
    ("idle", "idle_timeout"),
];

/// The query for these flags; `all`: ended jobs, too.
///
/// # Errors
/// [`ErrorCode::Usage`](divvy_api::v1::ErrorCode::Usage), for a word that is none.
pub fn query(filter: &JobFilter, all: bool, now: Timestamp) -> Result<JobQuery> {
    let me = || rustix::process::getuid().as_raw().to_string();
    let since = filter.since.as_deref();
    Ok(JobQuery {
        all,
        state: filter.state.as_deref().map(states).transpose()?,
        user: filter.user.clone().or_else(|| filter.me.then(me)),
        project: filter.project.clone(),
        queue: filter.queue.clone(),
        name: filter.name.clone(),
        since: since.map(|text| moment("--since", text, now)).transpose()?,
        sort: filter.sort.as_deref().map(sort).transpose()?,
        limit: filter.limit.as_deref().map_or(Ok(0), limit)?,
        ..JobQuery::default()
    })
}

/// Whether the query asks for jobs that have ended.
pub fn is_past(query: &JobQuery) -> bool {
    let living = JobState::ALL
        .into_iter()
        .filter(|state| *state != JobState::Ended);
    let living: Vec<&str> = living.map(JobState::name).chain(MARKS).collect();
    let ended = |word: &str| !living.contains(&word);
    let states = query.state.as_deref().unwrap_or_default();
    let asks = states
        .split(',')
        .any(|word| !word.is_empty() && ended(word));
    query.all || query.since.is_some() || asks
}

/// The filters of a query as the user typed them: `--user ana --state failed`.
pub fn in_words(filter: &JobFilter) -> String {
    let flags = [
        ("--user", &filter.user),
        ("--queue", &filter.queue),
        ("--project", &filter.project),
        ("--state", &filter.state),
        ("--since", &filter.since),
        ("--name", &filter.name),
    ];
    let me = filter.me.then(|| "--me".to_owned());
    let flag = |(flag, value): (&str, &Option<String>)| {
        let value = value.as_deref()?;
        let words = crate::text::command_line(&[value.to_owned()]);
        Some(format!("{flag} {words}"))
    };
    let flags = flags.into_iter().filter_map(flag);
    me.into_iter().chain(flags).collect::<Vec<_>>().join(" ")
}

/// States and ends, separated by commas.
///
/// # Errors
/// For an unknown word.
pub fn states(text: &str) -> Result<String> {
    let word = |typed: &str| {
        let word = typed.trim().to_lowercase().replace(['-', ' '], "_");
        let other = OTHER_WORDS.iter().find(|(other, _)| *other == word);
        let known = states_and_ends();
        match other {
            Some((_, words)) => Ok((*words).to_owned()),
            None if known.contains(&&*word) => Ok(word),
            None => Err(usage(
                format!("--state {text}: no state {typed:?}"),
                format!("use {}", known.join(", ")),
            )),
        }
    };
    let words: Vec<String> = text.split(',').map(word).collect::<Result<_>>()?;
    Ok(words.join(","))
}

fn sort(text: &str) -> Result<String> {
    let key = text.strip_prefix('-').unwrap_or(text);
    if SORTS.contains(&key) {
        Ok(text.to_owned())
    } else {
        Err(usage(
            format!("--sort {text}: no order {key:?}"),
            format!("use {}; -{} is reversed", SORTS.join(", "), SORTS[0]),
        ))
    }
}

fn limit(text: &str) -> Result<usize> {
    match text.parse() {
        Ok(limit) => Ok(limit),
        Err(_) => Err(usage(
            format!("--limit {text}: not a number of jobs"),
            "use a whole number, as in -n 20; 0 lists all",
        )),
    }
}

/// A moment: so long before `end`, the beginning of a day here, or a time.
///
/// # Errors
/// For a text that is no time.
pub fn moment(flag: &str, text: &str, end: Timestamp) -> Result<Timestamp> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    // A time of day would be cut off.
    if text.len() == "2026-11-01".len()
        && let Ok(day) = text.parse::<Date>()
        && let Ok(day) = day.to_zoned(TimeZone::system())
    {
        return Ok(day.timestamp());
    }
    let length = text.parse::<Span>().ok();
    let length = length.and_then(|span| span.to_duration(SpanRelativeTo::days_are_24_hours()).ok());
    length
        .filter(|length| !length.is_negative())
        .and_then(|length| end.checked_sub(length).ok())
        .ok_or_else(|| {
            usage(
                format!("{flag} {text}: not a time"),
                "use 30d, 12h, 2026-11-01 or 2026-11-01T09:00:00Z",
            )
        })
}

/// A time to come: so long from now, a time of day here (the next one), the beginning of a day here, or a time.
///
/// # Errors
/// For a text that is no time.
pub fn later(flag: &str, text: &str, now: &Zoned) -> Result<Timestamp> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    let next = |time: Time| {
        let today = now.date().to_datetime(time);
        let days = [Ok(today), today.tomorrow()].into_iter().flatten();
        let mut times = days.flat_map(|at| at.to_zoned(now.time_zone().clone()));
        times.find(|at| at > now)
    };
    if text.len() == "18:00".len()
        && let Ok(time) = Time::strptime("%H:%M", text)
        && let Some(at) = next(time)
    {
        return Ok(at.timestamp());
    }
    if text.len() == "2026-11-01".len()
        && let Ok(day) = text.parse::<Date>()
        && let Ok(day) = day.to_zoned(now.time_zone().clone())
    {
        return Ok(day.timestamp());
    }
    let length = text.parse::<Span>().ok();
    let length = length.filter(|length| length.is_positive());
    length
        .and_then(|length| now.checked_add(length).ok())
        .map(|at| at.timestamp())
        .ok_or_else(|| {
            usage(
                format!("{flag} {text}: not a time"),
                "use 18:00, 2h, 2026-11-30 or 2026-11-30T09:00:00Z",
            )
        })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use divvy_api::v1::ErrorCode;

    use super::*;
    use crate::args::{Verb, parse};
    use crate::rejection::from_clap;

    fn now() -> Timestamp {
        "2026-11-21T16:00:00Z".parse().unwrap()
    }

    /// The query of `divvy ps` and these words.
    fn of(line: &str) -> Result<JobQuery> {
        let line = format!("divvy ps {line}");
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        match parse(&words)
            .map_err(|error| from_clap(&error, &words))?
            .verb
        {
            Verb::Ps(args) => query(&args.filter, args.all, now()),
            verb => panic!("another verb: {verb:?}"),
        }
    }

    #[test]
    fn every_filter_becomes_its_parameter() {
        let me = rustix::process::getuid().as_raw().to_string();
        let none = JobQuery::default;
        let some = |text: &str| Some(text.to_owned());
        for (line, expected) in [
            ("", none()),
            (
                "-a",
                JobQuery {
                    all: true,
                    ..none()
                },
            ),
            (
                "--me",
                JobQuery {
                    user: Some(me),
                    ..none()
                },
            ),
            (
                "-u ana",
                JobQuery {
                    user: some("ana"),
                    ..none()
                },
            ),
            (
                "--user 1001",
                JobQuery {
                    user: some("1001"),
                    ..none()
                },
            ),
            (
                "-q half",
                JobQuery {
                    queue: some("half"),
                    ..none()
                },
            ),
            (
                "-p vision",
                JobQuery {
                    project: some("vision"),
                    ..none()
                },
            ),
            (
                "--project=",
                JobQuery {
                    project: some(""),
                    ..none()
                },
            ),
            (
                "--name train*",
                JobQuery {
                    name: some("train*"),
                    ..none()
                },
            ),
            (
                "-s running,FAILED",
                JobQuery {
                    state: some("running,failed,launch_failed"),
                    ..none()
                },
            ),
            (
                "-s PD,timed-out",
                JobQuery {
                    state: some("queued,time_limit"),
                    ..none()
                },
            ),
            (
                "-n 20",
                JobQuery {
                    limit: 20,
                    ..none()
                },
            ),
            (
                "--sort -memory",
                JobQuery {
                    sort: some("-memory"),
                    ..none()
                },
            ),
            (
                "--sort ended",
                JobQuery {
                    sort: some("ended"),
                    ..none()
                },
            ),
            (
                "--since 2h",
                JobQuery {
                    since: "2026-11-21T14:00:00Z".parse().ok(),
                    ..none()
                },
            ),
            (
                "--since 2026-11-01T09:00:00+01:00 -q half",
                JobQuery {
                    since: "2026-11-01T08:00:00Z".parse().ok(),
                    queue: some("half"),
                    ..none()
                },
            ),
        ] {
            assert_eq!(of(line).unwrap(), expected, "{line}");
        }
    }

    #[test]
    fn a_wrong_word_is_named_with_the_right_ones() {
        for (line, named, hint) in [
            ("-s sleeping", "sleeping", "queued, starting"),
            ("-s running,", "--state running,", "queued"),
            ("--since yesterday", "--since yesterday", "2026-11-01"),
            ("--since -3d", "-3", ""),
            ("-n -1", "-1", ""),
            ("-n many", "--limit many", "-n 20"),
            ("--sort size", "size", "memory"),
            ("--sort=-", "--sort -", "memory"),
            ("--me -u ana", "cannot be used with", ""),
            ("7 --me", "cannot be used with", ""),
            ("--watch=0", "0.1", ""),
            ("--watch=soon", "soon", ""),
        ] {
            let error = of(line).unwrap_err();
            assert_eq!(error.code, ErrorCode::Usage, "{line}");
            assert!(error.message.contains(named), "{line}: {}", error.message);
            let told = error.hint.unwrap_or_default();
            assert!(told.contains(hint), "{line}: {told}");
        }
    }

    #[test]
    fn every_state_and_every_end_of_the_api_is_a_word() {
        // The refusal of another word lists all of them.
        let told = [
            serde_json::from_str::<JobState>("\"\"")
                .unwrap_err()
                .to_string(),
            serde_json::from_str::<EndReason>("\"\"")
                .unwrap_err()
                .to_string(),
        ];
        let words = told
            .iter()
            .flat_map(|text| text.split('`').skip(3).step_by(2));
        let (states, ends) = (JobState::ALL.len(), EndReason::ALL.len());
        let mut words: Vec<&str> = words.collect();
        assert_eq!(words.len(), states + ends);
        words.splice(states..states, MARKS);
        assert_eq!(words, states_and_ends());
    }

    #[test]
    fn ended_jobs_are_asked_for_by_state_or_time() {
        for (line, past) in [
            ("", false),
            ("-s queued,running", false),
            ("-s held,suspended", false),
            ("-s running,failed", true),
            ("-s ended", true),
            ("-a", true),
            ("--since 1h", true),
            ("--me", false),
        ] {
            assert_eq!(is_past(&of(line).unwrap()), past, "{line}");
        }
    }

    #[test]
    fn what_was_asked_is_said_as_it_was_typed() {
        let filter = JobFilter {
            me: true,
            state: Some("failed".to_owned()),
            name: Some("a b*".to_owned()),
            ..JobFilter::default()
        };
        assert_eq!(in_words(&filter), "--me --state failed --name 'a b*'");
    }

    #[test]
    fn a_drain_ends_at_a_time_of_day_after_a_length_of_time_or_at_a_time() {
        let now: Zoned = "2026-11-21T16:00:00+01:00[Europe/Berlin]".parse().unwrap();
        let of = |text| later("--until", text, &now).unwrap().to_string();
        assert_eq!(of("18:00"), "2026-11-21T17:00:00Z");
        assert_eq!(of("09:30"), "2026-11-22T08:30:00Z");
        assert_eq!(of("16:00"), "2026-11-22T15:00:00Z");
        assert_eq!(of("2h"), "2026-11-21T17:00:00Z");
        assert_eq!(of("2d"), "2026-11-23T15:00:00Z");
        assert_eq!(of("2026-11-30"), "2026-11-29T23:00:00Z");
        assert_eq!(of("2026-11-30T09:00:00+01:00"), "2026-11-30T08:00:00Z");
        for wrong in ["", "25:00", "6pm", "-2h", "0s", "tomorrow", "99999999d"] {
            let error = later("--until", wrong, &now).unwrap_err();
            assert!(error.message.contains("--until") && error.hint.is_some());
        }
    }

    #[test]
    fn a_moment_is_a_length_of_time_a_day_or_a_time() {
        let end = now();
        let of = |text| moment("--since", text, end).unwrap();
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        assert_eq!(of("30d"), time("2026-10-22T16:00:00Z"));
        assert_eq!(of("1w"), time("2026-11-14T16:00:00Z"));
        assert_eq!(of("90m"), time("2026-11-21T14:30:00Z"));
        assert_eq!(
            of("2026-11-01T09:00:00+01:00"),
            time("2026-11-01T08:00:00Z")
        );
        let day = of("2026-11-01").to_zoned(TimeZone::system());
        assert_eq!(day.strftime("%F %T").to_string(), "2026-11-01 00:00:00");
        for wrong in [
            "",
            "yesterday",
            "-3d",
            "30",
            "2026-13-01",
            "99999999d",
            "2026-11-01 09:00",
        ] {
            let error = moment("--since", wrong, end).unwrap_err();
            assert!(
                error.message.contains("--since") && error.hint.is_some(),
                "{wrong}"
            );
        }
    }
}
