//! `GET /v1/jobs`: filters, orders, pages, and what a filter tells of other users' jobs.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::{BTreeMap, BTreeSet};

use divvy_api::client::Client;
use divvy_api::v1::{Amount, Array, ErrorCode, Job, JobQuery, JobState, Submit};
use divvy_testkit::{Home, Rng, call, ended, in_state, quarter, refused};
use jiff::Timestamp;

use crate::users::{ANA, LEE, as_user, system};

const QUEUES: [&str; 6] = [
    "--sim",
    "l4-24gb:2",
    "--queue",
    "default=1",
    "fast=1",
    "--dynamic-gpus",
];

fn query(pairs: &[(&str, &str)]) -> JobQuery {
    let mut query = JobQuery::default();
    for (name, value) in pairs {
        let text = Some((*value).to_owned());
        match *name {
            "all" => query.all = true,
            "state" => query.state = text,
            "user" => query.user = text,
            "project" => query.project = text,
            "queue" => query.queue = text,
            "gpu" => query.gpu = text,
            "name" => query.name = text,
            "text" => query.text = text,
            "since" => query.since = Some(value.parse().unwrap()),
            "sort" => query.sort = text,
            "limit" => query.limit = value.parse().unwrap(),
            "after" => query.after = text,
            other => panic!("{other}"),
        }
    }
    query
}

/// The numbers of a page, the same whole and in brief.
async fn ids(client: &Client, query: &JobQuery) -> Vec<u64> {
    let page = client.job_page(query).await.unwrap();
    let number = |id: &str| id.parse().unwrap();
    let whole: Vec<u64> = page.jobs.iter().map(|job| number(&job.id)).collect();
    let mut brief = Vec::new();
    let take = |job: divvy_api::v1::Brief<'_>| brief.push(number(&job.id));
    client.page_briefly(query, take).await.unwrap();
    assert_eq!(whole, brief, "{query:?}");
    assert!(page.total >= whole.len() as u64);
    whole
}

fn named(name: &str, queue: &str, project: Option<&str>, command: &[&str]) -> Submit {
    Submit {
        name: Some(name.to_owned()),
        queue: Some(queue.to_owned()),
        project: project.map(str::to_owned),
        amount: Some(Amount::Whole { count: 1 }),
        ..quarter(command)
    }
}

async fn submit(client: &Client, submit: &Submit) -> String {
    client.submit(submit).await.unwrap().id
}

/// Jobs 1 and 2 run, 3 has completed, 4 has failed, 5 is cancelled, and 6 to 9 wait; 8 and 9 are an array.
async fn scene(client: &Client) -> Timestamp {
    let done = submit(client, &named("prepare", "fast", None, &["true"])).await;
    ended(client, &done).await;
    let failed = submit(
        client,
        &named("Prepare-2", "default", Some("vision"), &["false"]),
    )
    .await;
    ended(client, &failed).await;
    let between = Timestamp::now();
    for (name, queue) in [("train", "default"), ("train-b", "fast")] {
        let id = submit(
            client,
            &named(name, queue, Some("vision"), &["sleep", "1000"]),
        )
        .await;
        in_state(client, &id, JobState::Running).await;
    }
    let gone = submit(client, &named("eval", "fast", None, &["sleep", "1000"])).await;
    client.cancel(&gone).await.unwrap();
    ended(client, &gone).await;
    submit(client, &named("eval", "fast", None, &["sleep", "1000"])).await;
    submit(
        client,
        &named("zeta[1]", "default", Some("speech"), &["sleep", "1000"]),
    )
    .await;
    let array = Array {
        indices: vec![3, 4],
        max_running: None,
    };
    let array = Submit {
        array: Some(array),
        ..named("sweep", "default", None, &["sleep", "1000"])
    };
    submit(client, &array).await;
    between
}

/// Parameters of a query.
type Filters = &'static [(&'static str, &'static str)];

/// Filters, and the jobs that match.
const ROWS: &[(Filters, &[u64])] = &[
    (&[], &[3, 4, 6, 7, 8, 9]),
    (&[("all", "")], &[1, 2, 3, 4, 5, 6, 7, 8, 9]),
    (&[("state", "running")], &[3, 4]),
    (&[("state", "queued,running")], &[3, 4, 6, 7, 8, 9]),
    (&[("state", "ended")], &[1, 2, 5]),
    (&[("state", "failed")], &[2]),
    (&[("state", "failed,cancelled,running")], &[2, 3, 4, 5]),
    (&[("state", "ended,completed")], &[1, 2, 5]),
    (&[("state", "launch_failed")], &[]),
    (&[("queue", "fast")], &[4, 6]),
    (&[("queue", "fast"), ("all", "")], &[1, 4, 5, 6]),
    (&[("queue", "nowhere")], &[]),
    (&[("project", "vision"), ("all", "")], &[2, 3, 4]),
    (&[("project", ""), ("all", "")], &[1, 5, 6, 8, 9]),
    (&[("gpu", "0")], &[3]),
    (&[("gpu", "1")], &[4]),
    (&[("gpu", "0"), ("all", "")], &[1, 2, 3]),
    (&[("name", "train")], &[3]),
    (&[("name", "train*")], &[3, 4]),
    (&[("name", "*re*"), ("all", "")], &[1, 2]),
    (&[("name", "zeta[1]"), ("all", "")], &[7]),
    (&[("text", "TRAIN")], &[3, 4]),
    (&[("text", "prepare"), ("all", "")], &[1, 2]),
    (&[("text", "vision"), ("state", "ended")], &[2]),
    (&[("text", "vision"), ("all", "")], &[2, 3, 4]),
    (&[("text", "fast"), ("state", "ended,queued")], &[1, 5, 6]),
    (&[("text", "7")], &[7]),
    (&[("text", "8_4")], &[9]),
    (&[("text", "sleep"), ("all", "")], &[]),
    (&[("text", "true"), ("all", "")], &[]),
    (&[("user", "no-such-user"), ("all", "")], &[]),
    (&[("user", "4000000000"), ("all", "")], &[]),
    (
        &[("since", "2020-01-01T00:00:00Z")],
        &[1, 2, 3, 4, 5, 6, 7, 8, 9],
    ),
    (
        &[("since", "2020-01-01T00:00:00Z"), ("state", "queued")],
        &[6, 7, 8, 9],
    ),
    (&[("since", "2100-01-01T00:00:00Z")], &[3, 4, 6, 7, 8, 9]),
    (&[("sort", "-id")], &[9, 8, 7, 6, 4, 3]),
    (
        &[("sort", "name"), ("all", "")],
        &[2, 5, 6, 1, 8, 9, 3, 4, 7],
    ),
    (
        &[("sort", "-name"), ("all", "")],
        &[7, 4, 3, 9, 8, 1, 6, 5, 2],
    ),
    (&[("sort", "queue")], &[3, 7, 8, 9, 4, 6]),
    (
        &[("sort", "project"), ("all", "")],
        &[7, 2, 3, 4, 1, 5, 6, 8, 9],
    ),
    (
        &[("sort", "-project"), ("all", "")],
        &[4, 3, 2, 7, 9, 8, 6, 5, 1],
    ),
    (
        &[("sort", "state"), ("all", "")],
        &[6, 7, 8, 9, 3, 4, 1, 2, 5],
    ),
    (&[("sort", "submitted")], &[3, 4, 6, 7, 8, 9]),
    (&[("sort", "-submitted"), ("state", "ended")], &[5, 2, 1]),
    (
        &[("sort", "started"), ("all", "")],
        &[1, 2, 3, 4, 5, 6, 7, 8, 9],
    ),
    (
        &[("sort", "-ended"), ("all", "")],
        &[5, 2, 1, 9, 8, 7, 6, 4, 3],
    ),
    (&[("sort", "-elapsed"), ("state", "running")], &[3, 4]),
    (
        &[("sort", "share"), ("state", "running,queued")],
        &[3, 4, 6, 7, 8, 9],
    ),
    (&[("sort", "memory")], &[3, 4, 6, 7, 8, 9]),
    (&[("sort", "peak")], &[3, 4, 6, 7, 8, 9]),
    (&[("sort", "user"), ("state", "running")], &[3, 4]),
    (&[("limit", "2")], &[8, 9]),
    (&[("limit", "2"), ("all", "")], &[8, 9]),
    (&[("limit", "2"), ("state", "ended")], &[2, 5]),
    (&[("limit", "2"), ("sort", "id"), ("all", "")], &[1, 2]),
    (
        &[
            ("limit", "2"),
            ("sort", "-id"),
            ("queue", "fast"),
            ("all", ""),
        ],
        &[6, 5],
    ),
    (&[("limit", "3"), ("after", "2"), ("all", "")], &[3, 4, 5]),
    (&[("after", "6")], &[7, 8, 9]),
    (&[("after", "6"), ("sort", "-id")], &[4, 3]),
    (&[("limit", "1"), ("sort", "-name")], &[7]),
];

#[tokio::test]
async fn every_filter_gives_the_jobs_that_match_it() {
    let home = Home::started(&QUEUES);
    let client = home.connect();
    let between = scene(&client).await;
    for (pairs, expected) in ROWS {
        let found = ids(&client, &query(pairs)).await;
        assert_eq!(found, *expected, "{pairs:?}");
    }
    let own = client.job("3").await.unwrap();
    let uid = own.uid.unwrap().to_string();
    for user in [own.user.as_str(), &uid] {
        let of_user = query(&[("user", user), ("state", "running,failed")]);
        assert_eq!(ids(&client, &of_user).await, [2, 3, 4], "{user}");
    }
    let uuid = own.slices[0].gpu_uuid.clone();
    let on = query(&[("gpu", &uuid), ("all", "")]);
    assert_eq!(ids(&client, &on).await, [1, 2, 3]);
    let since = query(&[("since", &between.to_string())]);
    assert_eq!(ids(&client, &since).await, [3, 4, 5, 6, 7, 8, 9]);
    // Places count in each queue.
    let by_place = ids(&client, &query(&[("sort", "place"), ("queue", "default")])).await;
    assert_eq!(by_place, [7, 8, 9, 3]);
    for (pairs, total, next) in [
        (&[("limit", "2"), ("sort", "id")][..], 6, Some("4")),
        (&[("limit", "2"), ("sort", "id"), ("all", "")], 9, Some("2")),
        (&[("limit", "2")], 6, None),
        (&[("limit", "2"), ("after", "7")], 6, None),
        (&[("limit", "9"), ("all", "")], 9, None),
        (
            &[("limit", "2"), ("state", "ended"), ("sort", "-id")],
            3,
            Some("2"),
        ),
        (
            &[("limit", "5"), ("sort", "name"), ("state", "ended")],
            3,
            None,
        ),
    ] {
        let page = client.job_page(&query(pairs)).await.unwrap();
        assert_eq!(
            (page.total, page.next.as_deref()),
            (total, next),
            "{pairs:?}"
        );
    }
}

#[tokio::test]
async fn a_wrong_value_is_refused_by_its_name() {
    let home = Home::started(&QUEUES);
    let client = home.connect();
    submit(&client, &named("a", "default", None, &["sleep", "1000"])).await;
    submit(&client, &named("b", "default", None, &["sleep", "1000"])).await;
    let long = "x".repeat(201);
    for (path, words) in [
        ("state=waiting", ["waiting", "launch_failed"]),
        ("sort=size", ["size", "elapsed"]),
        ("gpu=7", ["gpu=7", "0, 1"]),
        ("gpu=GPU-x", ["GPU-x", "0, 1"]),
        ("limit=-1", ["limit=\\\"-1", "number"]),
        ("all=yes", ["all=\\\"yes", "true"]),
        ("since=yesterday", ["yesterday", "RFC 3339"]),
        ("after=x", ["after=\\\"x", "divvy-next"]),
        ("after=7&sort=name", ["after=\\\"7", "divvy-next"]),
        ("nam=x", ["nam", "name"]),
        (&format!("text={long}"), ["text has 201 bytes", "200"]),
        (&format!("state={long}"), ["state", "queued"]),
    ] {
        let (status, body) = call(&home.socket(), "GET", &format!("/v1/jobs?{path}"), "");
        assert_eq!(status, 400, "{path}: {body}");
        for word in words {
            assert!(body.contains(word), "{path}: {word}: {body}");
        }
        assert!(body.len() < 1500, "{path}: {body}");
    }
    let first = query(&[("sort", "name"), ("limit", "1")]);
    let next = client.job_page(&first).await.unwrap().next.unwrap();
    for (sort, after) in [("name", "999999-1"), ("-name", next.as_str())] {
        let gone = query(&[("sort", sort), ("after", after), ("limit", "1")]);
        let error = refused(client.job_page(&gone).await);
        assert_eq!(error.code, ErrorCode::Gone, "{error:?}");
    }
    let second = query(&[("sort", "name"), ("after", &next), ("limit", "1")]);
    assert_eq!(ids(&client, &second).await, [2]);
}

/// Reads all pages; between two of them something changes.
async fn pages(client: &Client, first: &JobQuery, mut change: impl AsyncFnMut()) -> Vec<Job> {
    let (mut all, mut query) = (Vec::new(), first.clone());
    loop {
        let page = client.job_page(&query).await.unwrap();
        all.extend(page.jobs);
        match page.next {
            None => return all,
            Some(next) => query.after = Some(next),
        }
        change().await;
    }
}

#[tokio::test]
async fn pages_have_every_job_once_while_jobs_come_and_go() {
    let home = Home::started(&QUEUES);
    let client = home.connect();
    let mut rng = Rng::new(25);
    let names = ["a", "b", "c"];
    let mut living = BTreeSet::new();
    let enter = async |rng: &mut Rng, living: &mut BTreeSet<u64>| {
        let queue = rng.one(&["default", "fast"]).unwrap();
        let name = rng.one(&names).unwrap();
        let job = named(name, queue, None, &["sleep", "1000"]);
        living.insert(submit(&client, &job).await.parse().unwrap());
    };
    for _ in 0..24 {
        enter(&mut rng, &mut living).await;
    }
    for sort in ["id", "-id", "name", "place", "-state", "memory"] {
        for more in [&[][..], &[("all", "")], &[("state", "queued")]] {
            let before = living.clone();
            let first = query(&[&[("sort", sort), ("limit", "9")], more].concat());
            let mut gone = BTreeSet::new();
            let seen = pages(&client, &first, async || {
                for _ in 0..2 {
                    let leaves = rng.one(&living.iter().copied().collect::<Vec<_>>());
                    let leaves = leaves.unwrap();
                    client.cancel(&leaves.to_string()).await.unwrap();
                    living.remove(&leaves);
                    gone.insert(leaves);
                    enter(&mut rng, &mut living).await;
                }
            })
            .await;
            let mut count = BTreeMap::new();
            for job in &seen {
                *count.entry(job.id.parse::<u64>().unwrap()).or_insert(0) += 1;
            }
            assert!(
                count.values().all(|times| *times == 1),
                "{sort} {more:?}: {count:?}"
            );
            // A job that has started since is no match for `queued` any more.
            let started: BTreeSet<u64> = match more {
                [("state", _)] => {
                    let running = query(&[("state", "starting,running,stopping")]);
                    // One request: between two of them another job may start.
                    let page = client.job_page(&running).await.unwrap();
                    let numbers = page.jobs.iter().map(|job| job.id.parse().unwrap());
                    numbers.collect()
                }
                _ => BTreeSet::new(),
            };
            let lost = before
                .difference(&gone)
                .filter(|id| !count.contains_key(id));
            let lost: Vec<_> = lost.filter(|id| !started.contains(id)).collect();
            assert!(
                lost.is_empty(),
                "{sort} {more:?}: {lost:?} of {before:?} in {count:?}"
            );
        }
    }
}

#[test]
fn a_filter_tells_nothing_of_what_others_run() {
    let Some(home) = system(&[]) else { return };
    let hidden = "hidden-from-others";
    let ana = as_user(&home, ANA, async |client| {
        let job = Submit {
            name: Some("shown".into()),
            secrets: BTreeMap::from([(hidden.to_uppercase().replace('-', "_"), hidden.to_owned())]),
            labels: BTreeMap::from([("task".into(), hidden.into())]),
            ..quarter(&["sh", "-c", &format!("true {hidden}; exit 3")])
        };
        let id = client.submit(&job).await.unwrap().id;
        ended(&client, &id).await.id
    });
    let found = |uid: u32, pairs: &'static [(&'static str, &'static str)]| {
        as_user(&home, uid, async |client| ids(&client, &query(pairs)).await)
    };
    let id: u64 = ana.parse().unwrap();
    for uid in [ANA, LEE] {
        assert_eq!(found(uid, &[("all", ""), ("text", "SHOWN")]), [id]);
        assert_eq!(found(uid, &[("all", ""), ("user", "60101")]), [id]);
        for text in ["hidden", "task", "sleep", "exit", "60101/", "sh -c"] {
            let query = query(&[("all", ""), ("text", text)]);
            let seen = as_user(&home, uid, async |client| ids(&client, &query).await);
            assert_eq!(seen, [0; 0], "{text}");
        }
    }
    let page = as_user(&home, LEE, async |client| {
        let query = query(&[("all", ""), ("sort", "peak"), ("user", "60101")]);
        client.job_page(&query).await.unwrap()
    });
    assert!(page.jobs[0].redacted && page.jobs[0].command.is_empty());
    // An order is its user's.
    let mine = as_user(&home, ANA, async |client| {
        for _ in 0..2 {
            client.submit(&quarter(&["sleep", "1000"])).await.unwrap();
        }
        let first = query(&[("all", ""), ("sort", "peak"), ("limit", "1")]);
        client.job_page(&first).await.unwrap().next.unwrap()
    });
    let query = query(&[
        ("all", ""),
        ("sort", "peak"),
        ("limit", "1"),
        ("after", &mine),
    ]);
    let error = as_user(&home, LEE, async |client| {
        refused(client.job_page(&query).await)
    });
    assert_eq!(error.code, ErrorCode::Gone);
}

#[tokio::test]
async fn the_pending_tasks_of_an_array_are_one_item_of_a_folded_list() {
    let home = Home::started(&QUEUES);
    let client = home.connect();
    for name in ["a", "b"] {
        submit(&client, &named(name, "default", None, &["sleep", "1000"])).await;
    }
    let array = Submit {
        array: Some(Array {
            indices: (0..40).collect(),
            max_running: Some(2),
        }),
        ..named("sweep", "default", None, &["sleep", "1000"])
    };
    let array = submit(&client, &array).await;
    let last = submit(
        &client,
        &named("later", "default", None, &["sleep", "1000"]),
    )
    .await;
    let hold = format!("/v1/jobs/{array}_7/hold");
    let (status, body) = call(&home.socket(), "POST", &hold, "");
    assert_eq!(status, 200, "{body}");
    let folded = |after: Option<String>, limit| JobQuery {
        state: Some("queued".to_owned()),
        sort: Some("place".to_owned()),
        fold: true,
        limit,
        after,
        ..JobQuery::default()
    };
    let rows = |jobs: &[Job]| -> Vec<(String, Option<(u32, String)>)> {
        let fold = |job: &Job| job.folded.clone().map(|all| (all.count, all.indices));
        jobs.iter()
            .map(|job| (job.reference(), fold(job)))
            .collect()
    };
    let expected = [
        (format!("{array}_0"), Some((39, "0-6,8-39%2".to_owned()))),
        (last, None),
        // A task on hold waits for a user: it is a row of its own, behind those with a place.
        (format!("{array}_7"), None),
    ];
    let page = client.job_page(&folded(None, 0)).await.unwrap();
    assert_eq!(rows(&page.jobs), expected);
    assert_eq!((page.total, page.items), (41, 3));
    // The pages of the list have the same rows.
    let mut all = Vec::new();
    let mut next = None;
    loop {
        let page = client.job_page(&folded(next, 1)).await.unwrap();
        assert_eq!((page.total, page.items, page.jobs.len()), (41, 3, 1));
        all.extend(page.jobs);
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    assert_eq!(rows(&all), expected);
    let board = client.board().await.unwrap();
    let first = board.waiting.first.iter().map(|job| job.count());
    assert_eq!(
        (first.collect::<Vec<_>>(), board.waiting.count),
        (vec![39, 1, 1], 41)
    );
    let mut brief = Vec::new();
    let take = |job: divvy_api::v1::Brief<'_>| brief.push(job.folded.map(|all| all.count));
    client.page_briefly(&folded(None, 0), take).await.unwrap();
    assert_eq!(brief, [Some(39), None, None]);
    for wrong in [
        "fold=true",
        "fold=true&sort=place",
        "fold=true&state=queued",
    ] {
        let (status, body) = call(&home.socket(), "GET", &format!("/v1/jobs?{wrong}"), "");
        assert!(
            status == 400 && body.contains("sort=place"),
            "{wrong}: {body}"
        );
    }
}
