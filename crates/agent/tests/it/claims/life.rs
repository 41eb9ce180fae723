//! What a claim is while nothing goes wrong, and what is refused.

use divvy_api::v1::{
    Amount, EndReason, ErrorCode, Exec, GpuChange, GpuMode, JobState, MigState, Resize, Runner,
    Signal, Submit,
};
use std::os::unix::fs::PermissionsExt;

use divvy_testkit::{quarter, refused, until, until_async};

use super::*;

#[tokio::test]
async fn the_same_claim_twice_is_one_and_what_is_missing_of_its_files_is_made_anew() {
    let mut home = machine("a100-80gb:2", "");
    start(&mut home);
    let client = home.connect();
    let (one, two) = (gpu(&client, 0).await, gpu(&client, 1).await);
    let body = claim(vec![
        ClaimDevice::part(&one, 8 * GIB),
        ClaimDevice::part(&two, 4 * GIB),
    ]);
    let held = client.put_claim("u-1", &body).await.unwrap();
    assert_eq!(held.state, JobState::Running);
    assert_eq!(devices(&home), [held.cdi_device.as_str()]);
    let limits: Vec<u64> = held
        .slices
        .iter()
        .map(|one| one.memory_limit_bytes)
        .collect();
    assert_eq!(limits, [8 * GIB, 4 * GIB]);
    let text = cdi(&home, &held).to_string();
    assert!(
        text.contains(&format!("CUDA_VISIBLE_DEVICES={one},{two}")),
        "{text}"
    );
    assert!(text.contains("NVIDIA_VISIBLE_DEVICES=void"), "{text}");
    all_mounts_are_there(&home, &held);

    // More pods, and nothing else: the same claim.
    let more = Claim {
        pods: vec!["pod-1".into(), "pod-2".into()],
        ..body.clone()
    };
    let again = client.put_claim("u-1", &more).await.unwrap();
    assert_eq!(
        (&again.job, &again.cdi_device),
        (&held.job, &held.cdi_device)
    );
    assert_eq!(client.claims().await.unwrap()[0].pods, ["pod-1", "pod-2"]);
    let other = claim(vec![ClaimDevice::part(&one, 9 * GIB)]);
    let error = refused(client.put_claim("u-1", &other).await);
    assert_eq!(error.code, ErrorCode::Conflict, "{error}");

    // As after a tmpfs was emptied.
    fs::remove_dir_all(folder(&home)).unwrap();
    fs::remove_dir_all(home.path().join("slices").join(&held.job)).unwrap();
    fs::remove_dir_all(home.path().join("jobs").join(&held.job)).unwrap();
    let anew = client.put_claim("u-1", &body).await.unwrap();
    assert_eq!(anew.cdi_device, held.cdi_device);
    assert_eq!(devices(&home), [held.cdi_device.as_str()]);
    all_mounts_are_there(&home, &anew);

    // A daemon that comes after has it as it was.
    home.kill();
    start(&mut home);
    let client = home.connect();
    let after = client.put_claim("u-1", &body).await.unwrap();
    assert_eq!((&after.job, after.state), (&held.job, JobState::Running));
    assert_eq!(client.claims().await.unwrap().len(), 1);

    let gone = client.delete_claim("u-1").await.unwrap().unwrap();
    assert_eq!((gone.state, &gone.job), (JobState::Ended, &held.job));
    assert!(client.delete_claim("u-1").await.unwrap().is_none());
    assert!(devices(&home).is_empty() && home.slices().is_empty());
    assert_eq!(client.gpus().await.unwrap()[0].memory_allocated_bytes, 0);
    // And once more, as for the next pod: another job.
    let next = client.put_claim("u-1", &body).await.unwrap();
    assert_ne!(next.job, held.job);
    assert_eq!(
        next.cdi_device, held.cdi_device,
        "a kubelet may remember it"
    );
}

#[tokio::test]
async fn a_claim_beyond_the_gpu_holds_nothing_until_another_claim_is_released() {
    let mut home = machine("a100-80gb:1", "");
    start(&mut home);
    let client = home.connect();
    let uuid = gpu(&client, 0).await;
    let part = |gib: u64| claim(vec![ClaimDevice::part(&uuid, gib * GIB)]);
    client.put_claim("a", &part(50)).await.unwrap();
    let error = refused(client.put_claim("b", &part(40)).await);
    assert_eq!(error.code, ErrorCode::WouldWait, "{error}");
    assert!(error.message.contains("40.0 GiB needed"), "{error}");
    let whole = claim(vec![ClaimDevice::whole(&uuid)]);
    let error = refused(client.put_claim("b", &whole).await);
    assert_eq!(error.code, ErrorCode::WouldWait, "{error}");
    assert_eq!((devices(&home).len(), home.slices().len()), (1, 1));
    assert_eq!(client.claims().await.unwrap().len(), 1);

    // A job is placed beside it, and waits where there is no room beside it.
    let job = client.submit(&quarter(&["true"])).await.unwrap();
    assert_eq!(
        divvy_testkit::ended(&client, &job.id).await.exit_code,
        Some(0)
    );
    let large = Submit {
        amount: Some(Amount::Share { thousandths: 500 }),
        no_wait: true,
        ..quarter(&["true"])
    };
    assert_eq!(
        refused(client.submit(&large).await).code,
        ErrorCode::WouldWait
    );

    client.delete_claim("a").await.unwrap();
    let held = client.put_claim("b", &whole).await.unwrap();
    assert_eq!(held.slices[0].label, "gpu0");
    client.delete_claim("b").await.unwrap();

    for (body, code) in [
        (part(200), ErrorCode::NeverFits),
        (
            claim(vec![ClaimDevice::instance(&uuid, "1g.10gb", 0)]),
            ErrorCode::NeverFits,
        ),
        (claim(Vec::new()), ErrorCode::Usage),
        (
            claim(vec![ClaimDevice::part(
                "GPU-00000000-0000-0000-0000-000000000000",
                GIB,
            )]),
            ErrorCode::NotFound,
        ),
    ] {
        let error = refused(client.put_claim("c", &body).await);
        assert_eq!(error.code, code, "{error}");
    }
    assert!(client.claims().await.unwrap().is_empty() && devices(&home).is_empty());
}

#[tokio::test]
async fn a_claim_is_shown_as_a_job_and_nothing_that_is_done_to_jobs_is_done_to_it() {
    let mut home = machine("a100-80gb:1", "");
    start(&mut home);
    let client = home.connect();
    let uuid = gpu(&client, 0).await;
    let body = Claim {
        compute: Some("strict=0.25".into()),
        ..claim(vec![ClaimDevice::part(&uuid, 8 * GIB)])
    };
    let held = client.put_claim("u-1", &body).await.unwrap();
    let job = client.job("team/train").await.unwrap();
    assert_eq!(
        (&job.id, job.runner, job.state),
        (&held.job, Runner::Claim, JobState::Running)
    );
    assert_eq!(job.compute, "strict=0.25");
    let shown = job.claim.unwrap();
    assert_eq!(
        (shown.uid.as_str(), shown.cdi_device),
        ("u-1", held.cdi_device.clone())
    );
    let id = held.job.as_str();
    let resize = Resize {
        amount: Some(Amount::Memory { bytes: GIB }),
        compute: None,
    };
    let exec = Exec {
        command: vec!["true".into()],
        ..Exec::default()
    };
    let errors = [
        refused(client.cancel(id).await),
        refused(client.suspend(id).await),
        refused(client.requeue(id).await),
        refused(client.resize(id, &resize).await),
        refused(client.signal(id, Signal::Int).await),
        refused(client.exec(id, &exec).await.map(drop)),
    ];
    for error in errors {
        assert_eq!(error.code, ErrorCode::Conflict, "{error}");
        assert!(error.message.contains("the claim team/train"), "{error}");
    }
    assert_eq!(
        refused(client.log(id, 0, false).await.map(drop)).code,
        ErrorCode::NotFound
    );
    let submit = Submit {
        runner: Runner::Claim,
        ..quarter(&["true"])
    };
    assert_eq!(refused(client.submit(&submit).await).code, ErrorCode::Usage);
    // Nor is its GPU taken from under it.
    let change = GpuChange {
        mode: GpuMode::Unmanaged,
        dry_run: false,
    };
    let _ = client.change_gpu("0", &change).await;
    assert_eq!(client.job(id).await.unwrap().state, JobState::Running);

    let described = home.run(&["describe", id]);
    let text = String::from_utf8_lossy(&described.stdout).into_owned();
    for word in ["team/train", "u-1", "divvy.dev/slice=", "pod-1"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let listed = String::from_utf8_lossy(&home.run(&["ps"]).stdout).into_owned();
    assert!(listed.contains("team/train"), "{listed}");

    client.delete_claim("u-1").await.unwrap();
    let ended = client.job(id).await.unwrap();
    assert_eq!(ended.end_reason, Some(EndReason::Released), "{ended:#?}");
    assert_eq!(
        client
            .wait(
                id,
                divvy_api::client::WaitFor::Ended,
                divvy_testkit::PATIENCE
            )
            .await
            .unwrap()
            .id,
        id
    );
    assert_eq!(home.run(&["wait", id]).status.code(), Some(0));
}

#[tokio::test]
async fn the_ledger_of_a_claim_is_open_to_every_user_of_a_pod_and_its_limits_to_none() {
    let mut home = machine("a100-80gb:1", "");
    start(&mut home);
    let client = home.connect();
    let body = claim(vec![ClaimDevice::part(gpu(&client, 0).await, GIB)]);
    let held = client.put_claim("u-1", &body).await.unwrap();
    let folder = home.path().join("slices").join(&held.job);
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(folder.join("control")), 0o644);
    let root = rustix::process::geteuid().is_root();
    assert_eq!(mode(folder.join("slots")), if root { 0o666 } else { 0o600 });
    assert_eq!(mode(folder), 0o700, "nobody else of the machine gets there");
}

#[tokio::test]
async fn instances_lie_where_the_claim_says_and_are_kept_for_the_next_that_says_the_same() {
    let Some((home, client)) = divided() else {
        return;
    };
    let uuid = gpu(&client, 0).await;
    let at = |profile: &str, start| claim(vec![ClaimDevice::instance(&uuid, profile, start)]);
    let held = client.put_claim("a", &at("2g.10gb", 2)).await.unwrap();
    assert_eq!(held.slices[0].label, "gpu0.2g.10gb@2");
    let made = held.slices[0].mig.clone().unwrap().uuid.unwrap();
    let text = cdi(&home, &held).to_string();
    assert!(
        text.contains(&format!("CUDA_VISIBLE_DEVICES={made}")),
        "{text}"
    );
    assert!(
        !text.contains("slots") && home.slices().is_empty(),
        "the hardware holds it"
    );
    all_mounts_are_there(&home, &held);

    let error = refused(client.put_claim("b", &at("1g.5gb", 3)).await);
    assert_eq!(error.code, ErrorCode::WouldWait, "{error}");
    assert!(error.message.contains("2g.10gb is at 2-3"), "{error}");
    let error = refused(client.put_claim("b", &at("3g.20gb", 2)).await);
    assert_eq!(error.code, ErrorCode::NeverFits, "{error}");
    assert_eq!(driver::layout(&home, 0).len(), 1, "nothing was made");

    // Two of one GPU in one claim, and their one device.
    let two = claim(vec![
        ClaimDevice::instance(&uuid, "1g.5gb", 0),
        ClaimDevice::instance(&uuid, "1g.5gb", 1),
    ]);
    let both = client.put_claim("two", &two).await.unwrap();
    assert_eq!(both.slices.len(), 2);
    client.delete_claim("two").await.unwrap();

    // Given back, it lies there for the next; and goes when its slices are needed.
    client.delete_claim("a").await.unwrap();
    let idle = client.mig_instances().await.unwrap();
    assert!(
        idle.iter().all(|one| one.state == MigState::Idle),
        "{idle:?}"
    );
    assert_eq!(idle.len(), 3);
    let again = client.put_claim("c", &at("2g.10gb", 2)).await.unwrap();
    assert_eq!(again.slices[0].mig.as_ref().unwrap().uuid, Some(made));
    client.delete_claim("c").await.unwrap();
    client.put_claim("d", &at("4g.20gb", 0)).await.unwrap();
    assert_eq!(driver::places(&home, 0).len(), 1);

    let placements = client.placements("0").await.unwrap();
    let all: usize = placements
        .iter()
        .filter(|one| one.profile == "1g.5gb")
        .count();
    assert_eq!(all, 7);
    let first = placements
        .iter()
        .find(|one| one.profile == "1g.5gb")
        .unwrap();
    assert_eq!(
        (first.start, first.memory_slices, first.compute_slices),
        (6, 1, 1)
    );
}

#[tokio::test]
async fn an_instance_is_reused_within_a_namespace_and_made_anew_for_another() {
    let Some((_home, client)) = divided() else {
        return;
    };
    let uuid = gpu(&client, 0).await;
    // The account of whoever brings the claims is called as the last.
    for (uid, namespace) in [("a", "blue"), ("b", "blue"), ("c", "root")] {
        let body = Claim {
            namespace: namespace.to_owned(),
            ..claim(vec![ClaimDevice::instance(&uuid, "2g.10gb", 2)])
        };
        client.put_claim(uid, &body).await.unwrap();
        client.delete_claim(uid).await.unwrap();
    }
    let job = Submit {
        amount: Some(Amount::Mig {
            profile: "2g.10gb".to_owned(),
        }),
        ..quarter(&["true"])
    };
    let job = client.submit(&job).await.unwrap();
    let job = divvy_testkit::ended(&client, &job.id).await;
    assert_eq!((job.user.as_str(), job.exit_code), ("root", Some(0)));
    let events = client.events(0).await.unwrap().into_iter();
    let kinds = events.map(|event| event.kind);
    let story: Vec<String> = kinds.filter(|kind| kind.starts_with("mig_")).collect();
    let anew = ["mig_destroyed", "mig_created"];
    let told = [&["mig_created", "mig_reused"][..], &anew, &anew].concat();
    assert_eq!(story, told);
}

#[tokio::test]
async fn a_claim_on_a_gpu_that_is_lost_is_kept_and_says_so() {
    let mut home = machine("a100-80gb:2", "");
    start(&mut home);
    let client = home.connect();
    let body = claim(vec![ClaimDevice::part(gpu(&client, 1).await, GIB)]);
    let held = client.put_claim("u-1", &body).await.unwrap();
    driver::happen(&home, "lose:1");
    let trouble = until_async("the claim reports the lost GPU", async || {
        client.claims().await.unwrap().remove(0).problem
    })
    .await;
    assert_eq!(trouble, "GPU 1 is lost");
    let job = client.job(&held.job).await.unwrap();
    assert_eq!(
        (job.state, job.reason.as_deref()),
        (JobState::Running, Some("GPU 1 is lost"))
    );
    let shown = &client.gpus().await.unwrap()[1];
    assert_eq!(shown.problem.as_deref(), Some("it does not respond"));
    // It is there for whoever asks again, and goes when it is given back.
    assert_eq!(client.put_claim("u-1", &body).await.unwrap().job, held.job);
    client.delete_claim("u-1").await.unwrap();
    until("its slice is gone", || home.slices().is_empty());
}
