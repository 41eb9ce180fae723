//! Budgets of a user: the bounds of a call, the texts of jobs that have not ended, the logs and the number of ended
//! ones.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::path::Path;

use divvy_api::client::Client;
use divvy_api::v1::{Amount, Array, Confirm, ErrorCode, Job, JobState, Submit};
use divvy_testkit::{Home, call, ended, in_state, log, quarter, refused, until};

const SIM: [&str; 2] = ["--sim", "l4-24gb:1"];

/// A job that waits for the GPU that another has, with so many bytes of environment. No variable is too long for exec
/// (`MAX_ARG_STRLEN` is 128 KiB), so that the job runs when its turn comes.
fn waiting(bytes: usize) -> Submit {
    let text = "x".repeat(bytes);
    let pieces = text.as_bytes().chunks(100_000).enumerate();
    let variable = |(at, piece): (usize, &[u8])| (format!("A{at}"), "x".repeat(piece.len()));
    Submit {
        amount: Some(Amount::Whole { count: 1 }),
        env: pieces.map(variable).collect(),
        ..quarter(&["/bin/sleep", "1000"])
    }
}

async fn is_refused(client: &Client, submit: &Submit) -> String {
    let error = refused(client.submit(submit).await);
    assert_eq!(error.code, ErrorCode::NotAllowed, "{error:?}");
    let hint = error.hint.unwrap();
    assert!(
        hint.contains("1.0 MiB") && hint.contains("limits.max-texts"),
        "{hint}"
    );
    error.message
}

#[tokio::test]
async fn texts_of_jobs_that_have_not_ended_have_a_budget_that_a_restart_finds_again() {
    let budget = [&SIM[..], &["--set", "limits.max-texts=1M"]].concat();
    let mut home = Home::started(&budget);
    let client = home.connect();
    let runs = client.submit(&waiting(10)).await.unwrap();
    in_state(&client, &runs.id, JobState::Running).await;
    let mut waits = Vec::new();
    for _ in 0..3 {
        waits.push(client.submit(&waiting(300_000)).await.unwrap());
    }
    let secret = Submit {
        secrets: waiting(300_000).env,
        ..waiting(1)
    };
    for large in [waiting(300_000), secret] {
        let message = is_refused(&client, &large).await;
        let sums = message.contains("have 8") && message.ends_with("would make it 1.1 MiB");
        assert!(sums, "{message}");
    }
    let array = |tasks, bytes| Submit {
        array: Some(Array {
            indices: (0..tasks).collect(),
            max_running: None,
        }),
        ..waiting(bytes)
    };
    is_refused(&client, &array(10, 20_000)).await;
    client.submit(&array(10, 10_000)).await.unwrap();
    let before = is_refused(&client, &waiting(50_000)).await;

    home.kill();
    home.start(&budget);
    let client = home.connect();
    assert_eq!(is_refused(&client, &waiting(50_000)).await, before);
    // A smaller job fits all the same, and a cancelled job makes room.
    client.submit(&waiting(1_000)).await.unwrap();
    client.cancel(&waits[0].id).await.unwrap();
    client.submit(&waiting(300_000)).await.unwrap();

    // A confirmation brings texts as well.
    let confirmed = Submit {
        confirm: true,
        ..waiting(1)
    };
    // The running job last: a waiting one that started would fail at once, as its variable is too long for exec.
    for one in client.jobs(false).await.unwrap().iter().rev() {
        client.cancel(&one.reference()).await.unwrap();
        ended(&client, &one.reference()).await;
    }
    let job = client.submit(&confirmed).await.unwrap();
    in_state(&client, &job.id, JobState::Starting).await;
    let mut confirm = Confirm {
        env: waiting(1_100_000).env,
        ..Confirm::default()
    };
    let error = refused(client.confirm(&job.id, &confirm).await);
    assert_eq!(error.code, ErrorCode::NotAllowed, "{error:?}");
    confirm.env = waiting(900_000).env;
    client.confirm(&job.id, &confirm).await.unwrap();
    is_refused(&client, &waiting(300_000)).await;
}

#[tokio::test]
async fn a_text_that_is_too_long_is_refused_where_it_is_read() {
    let home = Home::started(&SIM);
    let socket = home.socket();
    let long = |length: usize| "p".repeat(length);
    let project = |length| {
        let submit = Submit {
            project: Some(long(length)),
            ..quarter(&["true"])
        };
        serde_json::to_string(&submit).unwrap()
    };
    assert_eq!(call(&socket, "POST", "/v1/jobs", &project(200)).0, 200);
    for (method, path, body, message) in [
        ("POST", "/v1/jobs".to_owned(), project(201), "has 201 bytes"),
        (
            "POST",
            "/v1/jobs".to_owned(),
            project(7_900_000),
            "has 7900000 bytes",
        ),
        (
            "GET",
            format!("/v1/jobs/{}", long(5000)),
            String::new(),
            "the path",
        ),
        (
            "GET",
            format!("/v1/usage?by={}", long(20_000)),
            String::new(),
            "the query",
        ),
        (
            "GET",
            format!("/v1/advice?name={}", long(213)),
            String::new(),
            "the pattern",
        ),
        (
            "GET",
            format!("/v1/advice?program={}", long(8193)),
            String::new(),
            "the program",
        ),
    ] {
        let (status, answer) = call(&socket, method, &path, &body);
        assert_eq!(status, 400, "{answer}");
        assert!(answer.contains(message) && answer.len() < 1000, "{answer}");
    }
}

#[tokio::test]
async fn the_oldest_logs_of_ended_jobs_go_and_their_jobs_stay() {
    let mut home = Home::started(&SIM);
    let client = home.connect();
    let mut jobs: Vec<Job> = Vec::new();
    for _ in 0..3 {
        let says = quarter(&["head", "-c", "1000000", "/dev/zero"]);
        let job = client.submit(&says).await.unwrap();
        jobs.push(ended(&client, &job.id).await);
    }
    let lives = client
        .submit(&quarter(&["sh", "-c", "echo lives; sleep 1000"]))
        .await
        .unwrap();
    let says = |job: &Job| Path::new(&job.directory).join("log");
    until("it has a log", || {
        std::fs::metadata(says(&lives)).is_ok_and(|log| log.len() > 0)
    });
    home.kill();
    home.start(&[&SIM[..], &["--set", "retention.max-log-bytes=2M"]].concat());
    let client = home.connect();
    until("the oldest log has gone", || !says(&jobs[0]).exists());
    assert!(says(&jobs[1]).exists() && says(&jobs[2]).exists() && says(&lives).exists());
    let error = refused(client.log(&jobs[0].id, 0, false).await.map(drop));
    assert_eq!(error.code, ErrorCode::Gone, "{error:?}");
    assert_eq!(log(&client, &jobs[2].id).await.len(), 1_000_000);
    let job = client.job(&jobs[0].id).await.unwrap();
    assert_eq!(job.exit_code, Some(0), "its end is known");
}

#[tokio::test]
async fn a_user_whose_ended_jobs_cannot_be_forgotten_yet_submits_no_more() {
    let keep = [&SIM[..], &["--set", "retention.max-jobs=1"]].concat();
    let mut home = Home::started(&keep);
    let client = home.connect();
    for key in 0..6 {
        let keyed = Submit {
            idempotency_key: Some(key.to_string()),
            ..quarter(&["true"])
        };
        let job = client.submit(&keyed).await.unwrap();
        ended(&client, &job.id).await;
    }
    home.kill();
    // It looks when it begins, and then once a minute.
    home.start(&keep);
    let client = home.connect();
    divvy_testkit::until_async("the pruner has looked", async || {
        let answer = client.submit(&quarter(&["true"])).await;
        let error = answer.err()?;
        assert_eq!(error.code, ErrorCode::NotAllowed, "{error:?}");
        assert!(error.message.contains("idempotency keys"), "{error:?}");
        Some(())
    })
    .await;
    assert!(client.jobs(true).await.unwrap().len() >= 6);
    home.kill();
    home.start(&SIM);
    home.connect().submit(&quarter(&["true"])).await.unwrap();
}

#[tokio::test]
async fn the_default_queue_gives_its_amount_to_jobs_that_name_it() {
    let queue = ["--dynamic-gpus", "--queue", "default=0.5"];
    let home = Home::started(&[&SIM[..], &queue].concat());
    let said = home.run(&["submit", "-q", "default", "--parsable", "--", "true"]);
    assert!(said.status.success(), "{said:?}");
    let id = String::from_utf8(said.stdout).unwrap();
    let job = ended(&home.connect(), id.trim()).await;
    assert_eq!(job.request, Amount::Share { thousandths: 500 });
}
