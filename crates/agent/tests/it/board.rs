//! `GET /v1/board`: what it says, its tag, its stream, and that it is the same for every role.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use divvy_api::client::Client;
use divvy_api::v1::{Amount, Array, Board, ErrorCode, JobState, ReasonCode, Submit};
use divvy_testkit::{
    Home, PATIENCE, call, ended, in_state, let_pass, quarter, refused, until_async, written,
};
use jiff::Timestamp;

use crate::users::{ANA, LEE, as_user, system};

/// Longer than a board serves all requests.
const STALE: Duration = Duration::from_millis(600);

fn sleeper(name: &str, thousandths: u16) -> Submit {
    Submit {
        name: Some(name.into()),
        amount: Some(Amount::Share { thousandths }),
        ..quarter(&["sleep", "1000"])
    }
}

/// Status, value of `ETag`, and body.
fn get(home: &Home, known: &str) -> (u16, String, String) {
    let mut stream = UnixStream::connect(home.socket()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!(
        "GET /v1/board HTTP/1.1\r\nhost: divvy\r\nconnection: close\r\nif-none-match: {known}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let tag = head.lines().find_map(|line| line.strip_prefix("etag: "));
    (status, tag.unwrap_or_default().to_owned(), body.to_owned())
}

async fn board_with(client: &Client, is_so: impl Fn(&Board) -> bool) -> Board {
    until_async("the board shows it", async || {
        let board = client.board().await.unwrap();
        is_so(&board).then_some(board)
    })
    .await
}

#[tokio::test]
async fn a_board_says_what_runs_and_what_waits_for_what() {
    let home = Home::started(&[
        "--sim",
        "l4-24gb:2",
        "--queue",
        "default=1",
        "fast=0.5",
        "--dynamic-gpus",
    ]);
    let client = home.connect();
    let mut running = Vec::new();
    for (name, queue) in [
        ("train", "default"),
        ("train-b", "fast"),
        ("train-c", "fast"),
    ] {
        let job = Submit {
            queue: Some(queue.into()),
            project: Some("vision".into()),
            amount: None,
            time_limit_s: Some(600),
            ..sleeper(name, 0)
        };
        let id = client.submit(&job).await.unwrap().id;
        in_state(&client, &id, JobState::Running).await;
        running.push(id);
    }
    let array = Submit {
        array: Some(Array {
            indices: (0..20).collect(),
            max_running: None,
        }),
        time_limit_s: Some(60),
        amount: None,
        ..sleeper("sweep", 0)
    };
    let first = client.submit(&array).await.unwrap().id;
    let fast = Submit {
        queue: Some("fast".into()),
        amount: None,
        ..sleeper("late", 0)
    };
    let late = client.submit(&fast).await.unwrap().id;
    let held = Submit {
        amount: None,
        ..sleeper("held", 0)
    };
    let held = client.submit(&held).await.unwrap().id;
    let (status, body) = call(&home.socket(), "POST", &format!("/v1/jobs/{held}/hold"), "");
    assert_eq!(status, 200, "{body}");
    let board = board_with(&client, |board| {
        board.waiting.count == 22 && board.waiting.reasons.values().sum::<u64>() == 22
    })
    .await;
    assert_eq!(board.gpus.len(), 2);
    assert_eq!(
        board.gpus.iter().map(|gpu| gpu.share).collect::<Vec<_>>(),
        [1000, 1000]
    );
    let jobs: Vec<&str> = board.jobs.iter().map(|job| job.id.as_str()).collect();
    assert_eq!(jobs, running);
    let train = &board.jobs[0];
    let whole = client.job(&running[0]).await.unwrap();
    assert_eq!((train.name.as_str(), &train.user), ("train", &whole.user));
    assert_eq!(
        (&train.queue, &train.state, &train.compute),
        (&None, &None, &None)
    );
    assert_eq!(train.slices[0].label, whole.slices[0].label);
    assert_eq!(
        train.slices[0].limit_bytes,
        whole.slices[0].memory_limit_bytes
    );
    let ends = train
        .ends_by
        .unwrap()
        .duration_since(whole.started_at.unwrap());
    assert!((599..=600).contains(&ends.as_secs()), "{ends:?}");
    assert_eq!(board.jobs[1].queue.as_deref(), Some("fast"));
    assert_eq!(board.waiting.reasons["held"], 1);
    // One row stands for the array.
    let counts = board.waiting.first.iter().map(|job| job.count());
    assert_eq!(counts.collect::<Vec<_>>(), [20, 1, 1]);
    let head = &board.waiting.first[0];
    assert_eq!(
        (head.task.clone(), head.request.as_str()),
        (Some(format!("{first}_0")), "1")
    );
    assert_eq!(head.reason_code, Some(ReasonCode::Insufficient));
    assert!(
        board
            .waiting
            .first
            .is_sorted_by_key(|job| job.id.parse::<u64>().unwrap())
    );
    let queues: Vec<_> = board
        .queues
        .iter()
        .map(|queue| (&*queue.name, queue.waiting, queue.running))
        .collect();
    assert_eq!(queues, [("default", 21, 1), ("fast", 1, 2)]);
    assert_eq!((board.users.len(), board.projects.len()), (1, 1));
    let (user, project) = (&board.users[0], &board.projects[0]);
    assert_eq!((user.running, user.waiting, user.share), (3, 22, 2000));
    assert_eq!(
        (&*project.name, project.running, project.waiting),
        ("vision", 3, 0)
    );
    assert!(board.last_event > 3);
    // The time limits of the jobs ahead bound the starts of the first ones.
    let known = board_with(&client, |board| {
        board.waiting.first[0].expected_start.is_some()
    })
    .await;
    let head = &known.waiting.first[0];
    let within = head
        .expected_start
        .unwrap()
        .duration_since(Timestamp::now());
    assert!((500..=600).contains(&within.as_secs()), "{within:?}");
    client.cancel(&first).await.unwrap();
    let board = board_with(&client, |board| board.waiting.count == 2).await;
    let first: Vec<&str> = board
        .waiting
        .first
        .iter()
        .map(|job| job.id.as_str())
        .collect();
    assert_eq!(first, [late.as_str(), held.as_str()]);
    assert!(
        board.waiting.first[1]
            .reason
            .as_deref()
            .unwrap()
            .contains("held")
    );
}

#[tokio::test]
async fn a_board_that_has_not_changed_is_not_sent_again() {
    let home = Home::started(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    // The first observation of the GPU.
    let (_, tag, _) = until_async("the board rests", async || {
        let before = get(&home, "");
        let_pass(STALE);
        let now = get(&home, "");
        (before == now).then_some(now)
    })
    .await;
    assert_eq!(get(&home, &tag), (304, tag.clone(), String::new()));
    let id = client.submit(&sleeper("one", 250)).await.unwrap().id;
    in_state(&client, &id, JobState::Running).await;
    let_pass(STALE);
    let (status, now, body) = get(&home, &tag);
    assert_eq!(status, 200);
    assert_ne!(now, tag);
    assert!(body.contains("\"one\""), "{body}");
}

#[tokio::test]
async fn a_follower_sees_each_change_until_the_daemon_stops() {
    let mut home = Home::started(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    let mut stream = client.follow_board().await.unwrap();
    let mut other = client.follow_board().await.unwrap();
    let first = stream.next().await.unwrap().unwrap();
    assert_eq!((first.gpus.len(), first.jobs.len()), (1, 0));
    other.next().await.unwrap().unwrap();
    let id = client.submit(&sleeper("one", 250)).await.unwrap().id;
    for stream in [&mut stream, &mut other] {
        let mut board = stream.next().await.unwrap().unwrap();
        while board.jobs.iter().all(|job| job.state.is_some()) {
            board = stream.next().await.unwrap().unwrap();
        }
        assert_eq!(board.jobs[0].id, id);
    }
    client.cancel(&id).await.unwrap();
    ended(&client, &id).await;
    let board = loop {
        let board = stream.next().await.unwrap().unwrap();
        if board.jobs.is_empty() {
            break board;
        }
    };
    // What the changes add up to is what a new request gets.
    let whole = board_with(&client, |whole| whole.last_event >= board.last_event).await;
    assert_eq!((whole.jobs.len(), whole.waiting.count), (0, 0));
    let mut streams = vec![stream, other];
    while streams.len() < 32 {
        streams.push(client.follow_board().await.unwrap());
    }
    let error = refused(client.follow_board().await.map(drop));
    assert_eq!(error.code, ErrorCode::TooMany, "{error:?}");
    assert!(error.message.contains("32"), "{error:?}");
    drop(streams.split_off(1));
    // The daemon sees that a client has gone when it sends the next change.
    client.submit(&sleeper("two", 250)).await.unwrap();
    until_async("a closed stream makes room", async || {
        client.follow_board().await.ok()
    })
    .await;
    assert_eq!(home.stop(), 0);
    let mut stream = streams.remove(0);
    let end = loop {
        match stream.next().await {
            Ok(Some(_)) => {}
            end => break end,
        }
    };
    assert!(end.is_ok_and(|end| end.is_none()), "the stream has an end");
}

#[test]
fn every_role_gets_the_same_bytes() {
    let roles = written(
        "board-roles",
        &format!("viewer = [{LEE}]\nuser = [{ANA}]\n"),
    );
    let roles = roles.display().to_string();
    let Some(home) = system(&["--set", &format!("listen.access={roles}")]) else {
        return;
    };
    let id = as_user(&home, ANA, async |client| {
        let secret = Submit {
            name: Some("shown".into()),
            ..quarter(&["sh", "-c", "sleep 1000; echo hidden-from-others"])
        };
        let id = client.submit(&secret).await.unwrap().id;
        in_state(&client, &id, JobState::Running).await;
        client
            .submit(&Submit {
                amount: Some(Amount::Whole { count: 1 }),
                ..secret
            })
            .await
            .unwrap();
        id
    });
    let boards = || {
        let of = |uid| as_user(&home, uid, async |client| client.board().await.unwrap());
        [of(0), of(ANA), of(LEE)]
    };
    // Three requests within half a second.
    let [admin, owner, viewer] = boards();
    assert_eq!(admin.jobs[0].id, id);
    let all = serde_json::to_string(&admin).unwrap();
    assert!(
        all.contains("shown") && !all.contains("hidden") && !all.contains("sleep"),
        "{all}"
    );
    let without_figures = |board: Board| {
        (
            board.jobs,
            board.waiting,
            board.queues,
            board.users,
            board.projects,
        )
    };
    let admin = without_figures(admin);
    assert_eq!(admin, without_figures(owner));
    assert_eq!(admin, without_figures(viewer));
}

mod exhaustive {
    use super::*;

    #[tokio::test]
    async fn a_board_of_ten_thousand_waiting_jobs_is_small_and_soon_there() {
        let home = Home::started(&["--sim", "a100-80gb:8"]);
        let client = home.connect();
        let many = |count, job: Submit| Submit {
            array: Some(Array {
                indices: (0..count).collect(),
                max_running: None,
            }),
            ..job
        };
        client
            .submit(&many(64, sleeper("train", 125)))
            .await
            .unwrap();
        client
            .submit(&many(10_000, sleeper("sweep", 125)))
            .await
            .unwrap();
        let board = board_with(&client, |board| {
            board.waiting.count == 10_000
                && board.jobs.iter().filter(|job| job.state.is_none()).count() == 64
        })
        .await;
        // One row stands for the array.
        assert_eq!(board.waiting.first.len(), 1);
        assert_eq!(board.waiting.first[0].count(), 10_000);
        let mut took = Vec::new();
        for _ in 0..10 {
            let_pass(STALE);
            let begun = Instant::now();
            let (status, _, body) = get(&home, "");
            took.push(begun.elapsed());
            assert_eq!(status, 200);
            assert!(body.len() <= 20_000, "{}", body.len());
        }
        took.sort_unstable();
        println!(
            "board: {} bytes; median {:?}, longest {:?}",
            get(&home, "").2.len(),
            took[5],
            took[9]
        );
    }
}
