//! Waiting jobs that are moved, held, released and changed, and the commands that `why` names.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use crate::users::{LEE, as_user};

use std::fs;
use std::os::unix::fs::PermissionsExt;

use divvy_api::client::{Act, Client, JobSelection};
use divvy_api::v1::{self, Amount, Array, ErrorCode, Job, JobChange, JobState, ReasonCode, Submit};
use divvy_testkit::{Home, SEED, call, ended, in_state, quarter, refused};

/// Numbers that no user database has.
const ANA: u32 = 60_121;
const KIM: u32 = 60_123;

/// A job in a queue with an amount of its own.
fn queued(queue: &str) -> Submit {
    Submit {
        queue: Some(queue.to_owned()),
        amount: None,
        ..quarter(&["sleep", "1000"])
    }
}

/// A job for this part of a GPU, in thousandths; 1000 is a whole one.
fn part(thousandths: u16) -> Submit {
    let amount = match thousandths {
        1000 => Amount::Whole { count: 1 },
        thousandths => Amount::Share { thousandths },
    };
    Submit {
        amount: Some(amount),
        ..quarter(&["sleep", "1000"])
    }
}

/// The only job that was meant.
fn one(meant: JobSelection) -> Job {
    let Ok([job]) = <[Job; 1]>::try_from(meant.jobs) else {
        panic!("not one job is meant");
    };
    job
}

fn change() -> JobChange {
    JobChange::default()
}

fn to(queue: &str) -> JobChange {
    JobChange {
        queue: Some(queue.to_owned()),
        ..change()
    }
}

fn top() -> JobChange {
    JobChange {
        top: true,
        ..change()
    }
}

async fn runs(client: &Client, submit: &Submit) -> Job {
    let job = client.submit(submit).await.unwrap();
    in_state(client, &job.id, JobState::Running).await
}

async fn cancel(client: &Client, id: &str) {
    client.cancel(id).await.unwrap();
    ended(client, id).await;
}

/// Numbers of the waiting jobs of a queue, by their places.
async fn order(client: &Client, queue: &str) -> Vec<String> {
    let jobs = client.jobs(false).await.unwrap();
    let jobs = jobs.into_iter().filter(|job| job.queue == queue);
    let mut places: Vec<(u32, String)> =
        jobs.filter_map(|job| Some((job.place?, job.id))).collect();
    places.sort();
    places.into_iter().map(|(_, id)| id).collect()
}

/// How many events of these kinds there are, and the text of the last.
async fn told(client: &Client, id: &str, kinds: &[&str]) -> Vec<String> {
    let events = client.events(0).await.unwrap();
    let its = events
        .into_iter()
        .filter(|event| event.job.as_deref() == Some(id));
    its.filter(|event| kinds.contains(&&*event.kind))
        .map(|event| event.text)
        .collect()
}

/// The commands that `why` names, with `N` for the job's number.
async fn commands(client: &Client, id: &str) -> Vec<Vec<String>> {
    let why = client.why(id).await.unwrap();
    let texts: Vec<&String> = why
        .suggested_changes
        .iter()
        .map(|change| &change.text)
        .collect();
    assert_eq!(texts, why.suggestions.iter().collect::<Vec<_>>());
    let changes = why.suggested_changes.into_iter();
    let commands = changes.map(|change| change.command);
    commands.filter(|command| !command.is_empty()).collect()
}

#[tokio::test]
async fn every_command_that_why_names_starts_the_job_when_it_is_typed() {
    let home = Home::started(&SEED);
    let client = home.connect();
    runs(&client, &queued("dual_gpus")).await;
    runs(&client, &queued("half_gpu")).await;
    runs(&client, &queued("quarter_gpu")).await;
    let mut typed = Vec::new();
    for submit in [
        queued("single_gpu"),
        part(750),
        Submit {
            hold: true,
            ..part(250)
        },
    ] {
        for at in 0.. {
            let job = client.submit(&submit).await.unwrap();
            assert_eq!(job.state, JobState::Queued);
            let named = commands(&client, &job.id).await;
            let Some(command) = named.get(at) else {
                assert!(at > 0, "{job:?} has no command");
                cancel(&client, &job.id).await;
                break;
            };
            let (divvy, words) = command.split_first().unwrap();
            assert_eq!(divvy, "divvy");
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let said = home.run(&words);
            assert!(said.status.success(), "{command:?}: {said:?}");
            in_state(&client, &job.id, JobState::Running).await;
            cancel(&client, &job.id).await;
            typed.push(command.join(" ").replace(&format!(" {}", job.id), " N"));
        }
    }
    assert_eq!(
        typed,
        [
            "divvy move N -q quarter_gpu",
            "divvy resize N -g 0.25",
            "divvy move N -q quarter_gpu -g 0.25",
            "divvy release N",
        ]
    );
}

#[tokio::test]
async fn backfill_is_named_where_the_plan_with_it_starts_the_job_and_nowhere_else() {
    let home = Home::started(&["--sim", "a100-80gb:2"]);
    let client = home.connect();
    let on = |gpu, thousandths| Submit {
        gpus_on: vec![gpu],
        ..part(thousandths)
    };
    let named = async |id: &str| {
        let sooner = client.why(id).await.unwrap().suggestions;
        sooner
            .iter()
            .any(|text| text == "would start now if the daemon had the key backfill = true")
    };
    runs(&client, &on(0, 1000)).await;
    let head = client.submit(&on(0, 500)).await.unwrap();
    let elsewhere = client.submit(&on(1, 500)).await.unwrap();
    assert!(!named(&head.id).await && named(&elsewhere.id).await);
    // It would keep the head from a GPU that the head may get.
    cancel(&client, &head.id).await;
    in_state(&client, &elsewhere.id, JobState::Running).await;
    let head = client.submit(&part(1000)).await.unwrap();
    let small = client.submit(&on(1, 250)).await.unwrap();
    assert!(!named(&small.id).await, "{head:?}");
}

/// GPU 0 is for a head, GPU 1 is free soon, and these jobs wait for it: of a part that leaves a gap, and of two halves.
async fn behind_a_head(client: &Client) -> (String, [String; 3]) {
    let on = |gpu, thousandths| Submit {
        gpus_on: vec![gpu],
        ..part(thousandths)
    };
    runs(client, &on(0, 1000)).await;
    let holder = runs(client, &on(1, 1000)).await;
    client.submit(&on(0, 500)).await.unwrap();
    let large = client.submit(&on(1, 700)).await.unwrap();
    let half = client.submit(&on(1, 500)).await.unwrap();
    let other = client.submit(&on(1, 500)).await.unwrap();
    (holder.id, [large.id, half.id, other.id])
}

#[tokio::test]
async fn with_backfill_young_jobs_that_fill_a_gpu_start_before_one_that_leaves_a_gap() {
    let home = Home::started(&["--sim", "a100-80gb:2", "--set", "backfill=true"]);
    let client = home.connect();
    let (holder, [large, half, other]) = behind_a_head(&client).await;
    cancel(&client, &holder).await;
    in_state(&client, &half, JobState::Running).await;
    in_state(&client, &other, JobState::Running).await;
    assert_eq!(client.job(&large).await.unwrap().state, JobState::Queued);
}

#[tokio::test]
async fn a_job_that_was_put_first_yields_to_no_other() {
    let home = Home::started(&["--sim", "a100-80gb:2", "--set", "backfill=true"]);
    let client = home.connect();
    let (holder, [large, half, other]) = behind_a_head(&client).await;
    client.change(&large, &top()).await.unwrap();
    cancel(&client, &holder).await;
    in_state(&client, &large, JobState::Running).await;
    for id in [half, other] {
        assert_eq!(client.job(&id).await.unwrap().state, JobState::Queued);
    }
}

#[tokio::test]
async fn a_held_job_waits_delays_no_job_and_survives_the_end_of_the_daemon() {
    let mut home = Home::started(&SEED);
    let client = home.connect();
    let first = runs(&client, &queued("dual_gpus")).await;
    let head = client.submit(&queued("dual_gpus")).await.unwrap();
    let behind = client.submit(&queued("quarter_gpu")).await.unwrap();
    assert_eq!(behind.reason_code, Some(ReasonCode::Behind));
    let follows = Submit {
        after: vec![v1::After {
            job: head.id.clone(),
            ok: false,
        }],
        ..part(250)
    };
    let follows = client.submit(&follows).await.unwrap();

    let held = one(client.act(&head.id, Act::Hold).await.unwrap());
    assert_eq!((held.state, held.place), (JobState::Queued, None));
    assert_eq!(held.reason_code, Some(ReasonCode::Held));
    let words = format!("; `divvy release {}` releases it", head.id);
    let reason = held.reason.unwrap();
    assert!(
        reason.starts_with("held by ") && reason.ends_with(&words),
        "{reason}"
    );
    // The one behind it starts, and the one after it waits on.
    in_state(&client, &behind.id, JobState::Running).await;
    let follows = client.job(&follows.id).await.unwrap();
    assert_eq!(follows.reason_code, Some(ReasonCode::Dependency));
    // The same again changes nothing.
    client.act(&head.id, Act::Hold).await.unwrap();
    assert_eq!(told(&client, &head.id, &["held"]).await.len(), 1);
    let (_, page) = call(&home.socket(), "GET", "/metrics", "");
    // Each pending job counts once, also if the planner leaves it out.
    for line in [
        "divvy_pending_jobs{reason=\"held\"} 1\n",
        "divvy_pending_jobs{reason=\"dependency\"} 1\n",
        "divvy_pending_jobs{reason=\"behind\"} 0\n",
        "divvy_pending_jobs{reason=\"other\"} 0\n",
    ] {
        assert!(page.contains(line), "{line}{page}");
    }

    let running = refused(client.act(&behind.id, Act::Hold).await);
    assert_eq!(running.code, ErrorCode::Conflict);
    let words = format!(
        "job {} is running, but only pending jobs can be held",
        behind.id
    );
    assert_eq!(running.message, words);
    assert!(running.hint.unwrap().contains("divvy suspend"));

    home.kill();
    home.start(&SEED);
    let client = home.connect();
    let held = client.job(&head.id).await.unwrap();
    assert_eq!(held.reason_code, Some(ReasonCode::Held));
    let why = client.why(&head.id).await.unwrap();
    assert!(why.summary.starts_with("held by "), "{}", why.summary);
    cancel(&client, &first.id).await;
    assert_eq!(client.job(&head.id).await.unwrap().state, JobState::Queued);
    client.act(&head.id, Act::Unhold).await.unwrap();
    in_state(&client, &head.id, JobState::Running).await;
    // A job that goes on is released already.
    assert_eq!(
        one(client.act(&head.id, Act::Unhold).await.unwrap()).hold,
        None
    );
    assert_eq!(told(&client, &head.id, &["released"]).await.len(), 1);
    client.suspend(&head.id).await.unwrap();
    let suspended = refused(client.act(&head.id, Act::Unhold).await);
    assert!(suspended.hint.unwrap().contains("divvy resume"));
    // One that went back into its queue can be held, too.
    client.resume(&head.id).await.unwrap();
    let urgent = Submit {
        priority: 1,
        ..queued("dual_gpus")
    };
    let urgent = client.submit(&urgent).await.unwrap();
    client.requeue(&head.id).await.unwrap();
    in_state(&client, &urgent.id, JobState::Running).await;
    client.act(&head.id, Act::Hold).await.unwrap();
    cancel(&client, &urgent.id).await;
    let held = client.job(&head.id).await.unwrap();
    assert_eq!(
        (held.reason_code, held.runs_before),
        (Some(ReasonCode::Held), 1)
    );
    cancel(&client, &head.id).await;
    assert_eq!(client.job(&head.id).await.unwrap().hold, None);
    let ended = refused(client.act(&head.id, Act::Hold).await);
    assert!(ended.message.ends_with("has ended already"));
}

#[tokio::test]
async fn a_submit_is_held_with_all_jobs_of_its_array() {
    let home = Home::started(&["--sim", "a100-80gb:1"]);
    let client = home.connect();
    let held = Submit {
        hold: true,
        array: Some(Array {
            indices: vec![0, 1],
            max_running: Some(1),
        }),
        ..quarter(&["true"])
    };
    let dry = Submit {
        dry_run: true,
        ..held.clone()
    };
    let would = client.submit(&dry).await.unwrap();
    assert_eq!(
        (would.state, would.reason_code),
        (JobState::Queued, Some(ReasonCode::Held))
    );
    let first = client.submit(&held).await.unwrap();
    let all = client.jobs(false).await.unwrap();
    assert_eq!(all.len(), 2);
    for job in &all {
        assert_eq!(job.reason_code, Some(ReasonCode::Held), "{job:?}");
        // The number of the first job means all of them.
        let command = format!("`divvy release {}`", job.reference());
        let reason = job.reason.as_deref().unwrap();
        assert!(
            job.reference().contains('_') && reason.contains(&command),
            "{reason}"
        );
    }
    let later = JobChange {
        priority: Some(-3),
        ..change()
    };
    let changed = client.change(&first.id, &later).await.unwrap();
    assert_eq!(changed.array.as_deref(), Some(&*first.id));
    let priorities = changed.jobs.iter().map(|job| job.priority);
    assert_eq!(priorities.collect::<Vec<_>>(), [-3, -3]);
    // A held task takes no room of its array.
    client.act(&all[1].id, Act::Unhold).await.unwrap();
    assert_eq!(ended(&client, &all[1].id).await.exit_code, Some(0));
    client.act(&first.id, Act::Unhold).await.unwrap();
    assert_eq!(ended(&client, &first.id).await.exit_code, Some(0));
    let both = Submit {
        hold: true,
        no_wait: true,
        ..quarter(&["true"])
    };
    let both = refused(client.submit(&both).await);
    assert_eq!(both.code, ErrorCode::Usage);
    assert!(both.message.contains("--no-wait"), "{}", both.message);
}

#[tokio::test]
async fn a_job_moves_with_its_queues_amount_and_the_order_survives_the_end_of_the_daemon() {
    let mut home = Home::started(&SEED);
    let client = home.connect();
    runs(&client, &queued("dual_gpus")).await;
    runs(&client, &queued("single_gpu")).await;
    let mut ids = Vec::new();
    for queue in ["half_gpu", "quarter_gpu", "quarter_gpu", "default"] {
        let submit = match queue {
            "default" => part(500),
            queue => queued(queue),
        };
        ids.push(client.submit(&submit).await.unwrap().id);
    }
    let [half, two, three, own] = &ids[..] else {
        unreachable!()
    };
    // By its age it stands before those that were submitted later.
    let moved = one(client.change(half, &to("quarter_gpu")).await.unwrap());
    assert_eq!(moved.request, Amount::Share { thousandths: 250 });
    assert_eq!(
        order(&client, "quarter_gpu").await,
        [half, two, three].map(String::clone)
    );
    let texts = told(&client, half, &["moved", "resized"]).await;
    assert_eq!(
        texts,
        [
            "queue: half_gpu -> quarter_gpu",
            "requests 0.25 of a GPU instead of 0.5 of a GPU"
        ]
    );
    client.change(half, &to("quarter_gpu")).await.unwrap();
    assert_eq!(told(&client, half, &["moved", "resized"]).await.len(), 2);

    let contradicts = refused(client.change(own, &to("quarter_gpu")).await);
    assert_eq!(contradicts.code, ErrorCode::Usage);
    let words = format!(
        "queue quarter_gpu allocates 0.25 of a GPU to each of its jobs, but job {own} requests 0.5 of a GPU"
    );
    assert_eq!(contradicts.message, words);
    let hint = contradicts.hint.unwrap();
    assert!(
        hint.contains(&format!("divvy move {own} -q quarter_gpu -g 0.25")),
        "{hint}"
    );
    let resize = v1::Resize {
        amount: Some(Amount::Share { thousandths: 500 }),
        compute: None,
    };
    let asks = JobChange {
        amount: resize.amount.clone(),
        ..change()
    };
    for fixed in [
        refused(client.resize(two, &resize).await),
        refused(client.change(two, &asks).await),
    ] {
        assert_eq!(fixed.code, ErrorCode::Usage);
        let hint = fixed.hint.unwrap();
        let command = format!("divvy move {two} -q default -g 0.5");
        assert!(hint.ends_with(&command), "{hint}");
    }
    let nowhere = refused(client.change(own, &to("nowhere")).await);
    assert_eq!(nowhere.code, ErrorCode::NotFound);
    // Into a queue without an amount of its own it takes what it has.
    let open = one(client.change(two, &to("default")).await.unwrap());
    assert_eq!(open.request, Amount::Share { thousandths: 250 });

    let moved = one(client.change(three, &top()).await.unwrap());
    assert_eq!(moved.place, Some(1));
    let expected = [three, half].map(String::clone);
    client.change(three, &top()).await.unwrap();
    assert_eq!(
        told(&client, three, &["moved"]).await,
        ["moved to the front of queue quarter_gpu"]
    );
    home.kill();
    home.start(&SEED);
    let client = home.connect();
    assert_eq!(order(&client, "quarter_gpu").await, expected);
    // Elsewhere it is not first, and neither once it is back.
    client.change(three, &to("half_gpu")).await.unwrap();
    client.change(three, &to("quarter_gpu")).await.unwrap();
    assert_eq!(
        order(&client, "quarter_gpu").await,
        [half, three].map(String::clone)
    );
}

#[tokio::test]
async fn a_change_is_done_as_a_whole_or_not_at_all() {
    let home = Home::started(&["--sim", "a100-80gb:1"]);
    let client = home.connect();
    let first = runs(&client, &part(1000)).await;
    let job = client.submit(&part(500)).await.unwrap();
    let all = JobChange {
        amount: Some(Amount::Memory { bytes: 4 << 30 }),
        priority: Some(-5),
        time_limit_s: Some(5400),
        name: Some("eval".to_owned()),
        ..change()
    };
    let changed = one(client.change(&job.id, &all).await.unwrap());
    assert_eq!(changed.request, Amount::Memory { bytes: 4 << 30 });
    assert_eq!((changed.priority, changed.time_limit_s), (-5, Some(5400)));
    assert_eq!(changed.name, "eval");
    let texts = [
        "requests 4 GiB on one GPU instead of 0.5 of a GPU",
        "priority: 0 -> -5",
        "time limit: none -> 1h30m",
        "name: sleep -> eval",
    ];
    let kinds = ["changed", "resized"];
    assert_eq!(told(&client, "eval", &kinds).await, [""; 0]);
    assert_eq!(told(&client, &job.id, &kinds).await, texts);
    client.change("eval", &all).await.unwrap();
    assert_eq!(told(&client, &job.id, &kinds).await.len(), 4);

    let name = || Some("other".to_owned());
    let wrong = [
        (change(), ErrorCode::Usage, "no change requested"),
        (
            JobChange {
                amount: Some(Amount::Whole { count: 8 }),
                name: name(),
                ..change()
            },
            ErrorCode::NeverFits,
            "8 whole GPUs",
        ),
        (
            JobChange {
                priority: Some(1001),
                name: name(),
                ..change()
            },
            ErrorCode::Usage,
            "1001",
        ),
        (
            JobChange {
                time_limit_s: Some(u64::MAX),
                name: name(),
                ..change()
            },
            ErrorCode::Usage,
            "100 years",
        ),
        (
            JobChange {
                name: Some("7".to_owned()),
                priority: Some(-7),
                ..change()
            },
            ErrorCode::Usage,
            "\"7\"",
        ),
        (
            JobChange {
                amount: Some(Amount::Share { thousandths: 0 }),
                ..change()
            },
            ErrorCode::Usage,
            "0",
        ),
        (
            JobChange {
                name: Some("x".repeat(201)),
                ..change()
            },
            ErrorCode::Usage,
            "201",
        ),
    ];
    for (change, code, named) in wrong {
        let error = refused(client.change(&job.id, &change).await);
        assert_eq!(error.code, code, "{change:?}");
        assert!(error.message.contains(named), "{}", error.message);
    }
    let same = client.job(&job.id).await.unwrap();
    assert_eq!((same.name.as_str(), same.priority), ("eval", -5));

    // Of a job that runs only the time limit and the name.
    let later = JobChange {
        time_limit_s: Some(3600),
        name: Some("runs".to_owned()),
        ..change()
    };
    let running = one(client.change(&first.id, &later).await.unwrap());
    assert_eq!(
        (running.time_limit_s, running.name.as_str()),
        (Some(3600), "runs")
    );
    for (change, hint) in [
        (to("default"), "divvy requeue"),
        (top(), "divvy requeue"),
        (
            JobChange {
                priority: Some(-1),
                time_limit_s: Some(60),
                ..change()
            },
            "divvy requeue",
        ),
        (
            JobChange {
                amount: Some(Amount::Share { thousandths: 500 }),
                ..change()
            },
            "divvy resize",
        ),
    ] {
        let error = refused(client.change(&first.id, &change).await);
        assert_eq!(error.code, ErrorCode::Conflict, "{change:?}");
        assert!(error.hint.unwrap().contains(hint), "{change:?}");
    }
    let same = client.job(&first.id).await.unwrap();
    assert_eq!(same.time_limit_s, Some(3600));
    cancel(&client, &job.id).await;
    cancel(&client, &first.id).await;
    let gone = refused(client.change(&first.id, &later).await);
    assert_eq!(gone.code, ErrorCode::Conflict);

    // Whose queue a server owns.
    let blocks = runs(&client, &part(1000)).await;
    let task = Submit {
        labels: [("clearml.task".to_owned(), "7".to_owned())].into(),
        ..part(500)
    };
    let task = client.submit(&task).await.unwrap();
    for error in [
        refused(client.change(&task.id, &top()).await),
        refused(client.act(&task.id, Act::Hold).await),
        refused(client.act(&task.id, Act::Unhold).await),
    ] {
        assert_eq!(error.code, ErrorCode::Conflict);
        assert!(
            error
                .message
                .contains("ClearML server, which owns its queue")
        );
    }
    cancel(&client, &blocks.id).await;
}

#[test]
fn users_order_and_hold_their_own_jobs_and_operators_everybodys() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can start a daemon for every user");
        return;
    }
    let mut home = Home::empty();
    let access = home.path().join("access.toml");
    fs::write(&access, format!("operator = [{KIM}]")).unwrap();
    fs::set_permissions(&access, PermissionsExt::from_mode(0o600)).unwrap();
    let access = format!("listen.access={}", access.display());
    home.start(&["--system", "--sim", "a100-80gb:1", "--set", &access]);
    let submit = |uid, submit: Submit| {
        as_user(&home, uid, async |client| {
            client.submit(&submit).await.unwrap().id
        })
    };
    let first = submit(ANA, part(1000));
    as_user(&home, ANA, async |client| {
        in_state(&client, &first, JobState::Running).await;
    });
    let (one, lees, two) = (
        submit(ANA, part(750)),
        submit(LEE, part(750)),
        submit(ANA, part(1000)),
    );
    let order = || as_user(&home, LEE, async |client| order(&client, "default").await);
    assert_eq!(order(), [&one, &lees, &two].map(String::clone));
    let not_allowed = |answer: Result<JobSelection, v1::Error>| {
        let error = refused(answer);
        assert_eq!(error.code, ErrorCode::NotAllowed, "{error:?}");
        assert_eq!(error.code.exit_code(), 4);
        (error.message, error.hint.unwrap())
    };
    // The own jobs exchange their places; the other user's keeps its own.
    as_user(&home, ANA, async |client| {
        client.change(&two, &top()).await.unwrap();
        let high = JobChange {
            priority: Some(1),
            name: Some("other".into()),
            ..change()
        };
        let (message, _) = not_allowed(client.change(&two, &high).await);
        assert!(message.contains("operator"), "{message}");
        assert_eq!(client.job(&two).await.unwrap().name, "sleep");
    });
    assert_eq!(order(), [&two, &lees, &one].map(String::clone));
    as_user(&home, LEE, async |client| {
        not_allowed(client.change(&one, &top()).await);
        not_allowed(client.act(&one, Act::Hold).await);
        not_allowed(client.act(&one, Act::Unhold).await);
        let why = client.why(&one).await.unwrap();
        assert!(
            why.suggested_changes
                .iter()
                .all(|change| change.command.is_empty())
        );
        // The own job's user holds and releases it, and finds the command.
        client.act(&lees, Act::Hold).await.unwrap();
        client.act(&lees, Act::Unhold).await.unwrap();
    });
    as_user(&home, KIM, async |client| {
        client.act(&one, Act::Hold).await.unwrap();
        client.change(&lees, &top()).await.unwrap();
    });
    assert_eq!(order(), [&lees, &two].map(String::clone));
    as_user(&home, ANA, async |client| {
        let held = client.job(&one).await.unwrap();
        assert!(held.hold.unwrap().operator);
        let (message, hint) = not_allowed(client.act(&one, Act::Unhold).await);
        assert!(message.contains("requires the role operator"), "{message}");
        assert!(hint.contains("another operator"), "{hint}");
        // To hold it once more does not make it the user's own hold.
        client.act(&one, Act::Hold).await.unwrap();
        not_allowed(client.act(&one, Act::Unhold).await);
    });
    as_user(&home, KIM, async |client| {
        client.act(&one, Act::Unhold).await.unwrap();
        let texts = told(&client, &lees, &["moved"]).await;
        assert_eq!(
            texts,
            [format!("moved to the front of queue default, by {KIM}")]
        );
    });
    // Others were told when the running job ends at the latest.
    let limit = |seconds| JobChange {
        time_limit_s: Some(seconds),
        ..change()
    };
    as_user(&home, ANA, async |client| {
        client.change(&first, &limit(3600)).await.unwrap();
        client.change(&first, &limit(1800)).await.unwrap();
        for longer in [3600, 0] {
            let (message, _) = not_allowed(client.change(&first, &limit(longer)).await);
            assert!(message.contains("from 30m to "), "{message}");
        }
        // Of a waiting job it is its user's.
        client.change(&two, &limit(60)).await.unwrap();
        client.change(&two, &limit(0)).await.unwrap();
    });
    as_user(&home, KIM, async |client| {
        client.change(&first, &limit(7200)).await.unwrap();
    });
    // What an operator put first is moved by no user, but to another place of the own jobs.
    as_user(&home, LEE, async |client| {
        client.change(&lees, &top()).await.unwrap();
    });
    assert_eq!(order(), [&lees, &two, &one].map(String::clone));
}
