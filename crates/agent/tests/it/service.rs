//! GPUs out of service: an administrator drains them, or they have a fault. Running jobs continue, and others wait.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use divvy_api::client::Client;
use divvy_api::v1::{Amount, Drain, ErrorCode, Gpu, JobState, ReasonCode, Submit, Undrain};
use divvy_testkit::{Home, ended, in_state, quarter, refused, sim, until_async};
use jiff::{SignedDuration, Timestamp};

fn drain(gpus: &[&str], reason: &str) -> Drain {
    Drain {
        gpus: gpus.iter().map(|&gpu| gpu.to_owned()).collect(),
        reason: reason.to_owned(),
        until: None,
    }
}

fn whole() -> Submit {
    Submit {
        amount: Some(Amount::Whole { count: 1 }),
        ..quarter(&["sleep", "1000"])
    }
}

async fn gpu(client: &Client, index: usize) -> Gpu {
    client.gpus().await.unwrap().remove(index)
}

async fn events(client: &Client, kind: &str) -> Vec<String> {
    let events = client.events(0).await.unwrap().into_iter();
    let events = events.filter(|event| event.kind == kind);
    events.map(|event| event.text).collect()
}

#[tokio::test]
async fn a_drained_gpu_keeps_its_job_and_gets_no_other_over_a_restart() {
    let mut home = Home::started(&["--sim", "a100-80gb:2"]);
    let client = home.connect();
    let runs = client.submit(&whole()).await.unwrap();
    let runs = in_state(&client, &runs.id, JobState::Running).await;
    let out = client
        .drain(&drain(&["0", "0"], "driver update"))
        .await
        .unwrap();
    let [out] = &out[..] else {
        panic!("one GPU was drained: {out:?}")
    };
    assert_eq!((out.index, out.mode.as_str()), (0, "unmanaged"));
    let why = out.out_of_service.clone().unwrap();
    assert_eq!(
        (why.reason.as_str(), why.mode.as_str()),
        ("driver update", "shared")
    );
    assert!(why.by.is_some() && why.until.is_none());

    // A new job goes to the other GPU, and the next one waits.
    let other = client.submit(&whole()).await.unwrap();
    let other = in_state(&client, &other.id, JobState::Running).await;
    assert_eq!(other.slices[0].gpu_index, 1);
    let waits = client.submit(&whole()).await.unwrap();
    let reason = waits.reason.unwrap();
    assert!(reason.contains("GPU 0 is out of service since"), "{reason}");
    assert!(reason.ends_with(": driver update"), "{reason}");

    assert_eq!(home.stop(), 0);
    home.start(&["--sim", "a100-80gb:2"]);
    let client = home.connect();
    assert_eq!(gpu(&client, 0).await.out_of_service, Some(why));
    client.cancel(&other.id).await.unwrap();
    let starts = in_state(&client, &waits.id, JobState::Running).await;
    assert_eq!(starts.slices[0].gpu_index, 1);
    let still = client.job(&runs.id).await.unwrap();
    assert_eq!(still.state, JobState::Running);
    client.cancel(&runs.id).await.unwrap();

    let last = client.submit(&whole()).await.unwrap();
    client.undrain(&Undrain::default()).await.unwrap();
    let last = in_state(&client, &last.id, JobState::Running).await;
    assert_eq!(last.slices[0].gpu_index, 0);
    assert_eq!(events(&client, "gpu_out_of_service").await.len(), 1);
    assert_eq!(events(&client, "gpu_in_service").await.len(), 1);
}

#[tokio::test]
async fn jobs_wait_while_every_gpu_is_drained_until_its_time() {
    let home = Home::started(&["--sim", "a100-80gb:1"]);
    let client = home.connect();
    let until = Timestamp::now() + SignedDuration::from_secs(2);
    let out = Drain {
        until: Some(until),
        ..drain(&[], "a course")
    };
    client.drain(&out).await.unwrap();
    let waits = client.submit(&whole()).await.unwrap();
    assert_eq!(waits.reason_code, Some(ReasonCode::OutOfService));
    let reason = waits.reason.unwrap();
    assert!(
        reason.starts_with("1 whole GPU requested, but GPU 0 is out of service since"),
        "{reason}"
    );
    // What no GPU has when all are in service is refused as ever.
    let never = Submit {
        amount: Some(Amount::Whole { count: 2 }),
        ..whole()
    };
    let error = refused(client.submit(&never).await);
    assert_eq!(error.code, ErrorCode::NeverFits);
    in_state(&client, &waits.id, JobState::Running).await;
    assert!(Timestamp::now() >= until);
    let back = events(&client, "gpu_in_service").await;
    assert!(
        back[0].ends_with("is back in service, as planned"),
        "{back:?}"
    );
}

#[tokio::test]
async fn a_drain_without_a_reason_to_show_or_with_an_unknown_gpu_changes_nothing() {
    let home = Home::started(&["--sim", "a100-80gb:1"]);
    let client = home.connect();
    let past = Drain {
        until: Some(Timestamp::now() - SignedDuration::from_secs(60)),
        ..drain(&[], "late")
    };
    for (wrong, code) in [
        (drain(&[], "  "), ErrorCode::Usage),
        (drain(&[], "two\nlines"), ErrorCode::Usage),
        (drain(&[], &"x".repeat(201)), ErrorCode::Usage),
        (drain(&["0", "7"], "a test"), ErrorCode::NotFound),
        (past, ErrorCode::Usage),
    ] {
        assert_eq!(refused(client.drain(&wrong).await).code, code, "{wrong:?}");
    }
    let unknown = Undrain {
        gpus: vec!["GPU-1".to_owned()],
    };
    let error = refused(client.undrain(&unknown).await);
    assert_eq!(error.code, ErrorCode::NotFound);
    let gpu = gpu(&client, 0).await;
    assert_eq!((gpu.mode.as_str(), gpu.out_of_service), ("shared", None));
}

/// A program that makes a context, and lasts a moment.
fn uses_gpu(home: &Home) -> Submit {
    let program = home.program("cudarc_probe");
    let script = format!("{program} fill >/dev/null && sleep 0.3");
    Submit {
        amount: Some(Amount::Whole { count: 1 }),
        ..quarter(&["sh", "-c", &script])
    }
}

/// Gives the machine of a home orders that no driver call can give.
fn control(home: &Home, orders: &[&str]) {
    sim::control(&home.path().join("sim/state"), orders);
}

async fn is_out(client: &Client, reason: &str) {
    until_async("the GPU goes out of service", async || {
        let out = gpu(client, 0).await.out_of_service;
        out.filter(|out| out.by.is_none() && out.reason.contains(reason))
    })
    .await;
}

#[tokio::test]
async fn jobs_leave_a_sick_gpu_after_two_failures_and_return_after_its_cure() {
    let mut home = Home::started(&["--sim", "a100-80gb:2"]);
    let client = home.connect();
    control(&home, &["sick:0=214"]);
    let all = Submit {
        array: Some(divvy_api::v1::Array {
            indices: (0..15).collect(),
            max_running: None,
        }),
        ..uses_gpu(&home)
    };
    client.submit(&all).await.unwrap();
    until_async("all jobs end", async || {
        let left = client.jobs(false).await.unwrap();
        left.is_empty().then_some(())
    })
    .await;
    let jobs = client.jobs(true).await.unwrap();
    let failed = jobs.iter().filter(|job| job.exit_code != Some(0)).count();
    assert!(
        (2..=3).contains(&failed),
        "{failed} of {} failed",
        jobs.len()
    );
    is_out(
        &client,
        "CUDA_ERROR_ECC_UNCORRECTABLE (214), and the daemon's probe failed too",
    )
    .await;
    let page = home.divvy(&["doctor", "-o", "json"]);
    assert!(page.stdout.contains("gpus.service"), "{}", page.stdout);

    // The fault outlives the daemon, and the next one's probe finds the GPU cured.
    assert_eq!(home.stop(), 0);
    control(&home, &["sick:0=0"]);
    home.start(&["--sim", "a100-80gb:2"]);
    let client = home.connect();
    until_async("the GPU is back", async || {
        let out = gpu(&client, 0).await.out_of_service;
        out.is_none().then_some(())
    })
    .await;
    let again = client.submit(&uses_gpu(&home)).await.unwrap();
    let again = ended(&client, &again.id).await;
    assert_eq!((again.exit_code, again.slices[0].gpu_index), (Some(0), 0));
}

#[tokio::test]
async fn broken_programs_take_no_gpu_out_of_service() {
    let home = Home::started(&["--sim", "a100-80gb:1"]);
    let client = home.connect();
    // An illegal address, and contexts that fail for this process alone.
    let (faults, program) = (
        home.path().join("faults.toml"),
        home.program("cudarc_probe"),
    );
    let illegal = "[[fault]]\nfunction = 'cuMemAlloc_v2'\ntimes = 0\ncode = 700\n";
    let context = "[[fault]]\nfunction = 'cuDevicePrimaryCtxRetain'\ntimes = 0\ncode = 999\n";
    for (fault, programs) in [(illegal, 5), (context, 5)] {
        std::fs::write(&faults, fault).unwrap();
        for _ in 0..programs {
            let mut submit = uses_gpu(&home);
            submit.command = vec!["sh".into(), "-c".into(), format!("{program} fill; exit 1")];
            let config = faults.display().to_string();
            submit.env.insert("DIVVY_SIM_CONFIG".to_owned(), config);
            let job = client.submit(&submit).await.unwrap();
            assert_eq!(ended(&client, &job.id).await.exit_code, Some(1));
        }
    }
    for _ in 0..5 {
        let job = client.submit(&quarter(&["false"])).await.unwrap();
        ended(&client, &job.id).await;
    }
    assert_eq!(events(&client, "gpu_out_of_service").await, [""; 0]);
    assert_eq!(gpu(&client, 0).await.mode, "shared");
}

#[tokio::test]
async fn a_fault_that_the_driver_reports_takes_a_gpu_out_of_service() {
    let mut home = Home::started(&["--sim", "a100-80gb:1"]);
    let client = home.connect();
    control(&home, &["xid:0=13", "xid:0=48"]);
    is_out(&client, "double-bit ECC error (Xid 48)").await;
    client.undrain(&Undrain::default()).await.unwrap();
    assert_eq!(gpu(&client, 0).await.out_of_service, None);

    // The daemon asks for rows each 10 s, and at its start.
    control(&home, &["remap:0=failed"]);
    assert_eq!(home.stop(), 0);
    home.start(&["--sim", "a100-80gb:1"]);
    let client = home.connect();
    is_out(&client, "a failed remap of a memory row").await;
    client.undrain(&Undrain::default()).await.unwrap();
    assert_eq!(home.stop(), 0);
    home.start(&["--sim", "a100-80gb:1"]);
    let client = home.connect();
    // The samples after the start do not bring it back.
    let runs = client.submit(&uses_gpu(&home)).await.unwrap();
    assert_eq!(ended(&client, &runs.id).await.exit_code, Some(0));
    assert_eq!(gpu(&client, 0).await.out_of_service, None);
}

#[tokio::test]
async fn a_gpu_in_mig_mode_returns_to_service_by_undrain_alone() {
    if !crate::mig::is_root() {
        return;
    }
    let home = Home::started(&["--sim", "h100-80gb:1"]);
    let client = home.connect();
    let change = divvy_api::v1::GpuChange {
        mode: divvy_api::v1::GpuMode::Mig,
        dry_run: false,
    };
    client.change_gpu("0", &change).await.unwrap();
    control(&home, &["xid:0=48"]);
    is_out(&client, "double-bit ECC error").await;
    let waits = client.submit(&quarter(&["true"])).await.unwrap();
    assert_eq!(waits.reason_code, Some(ReasonCode::OutOfService));
    client.undrain(&Undrain::default()).await.unwrap();
    assert_eq!(ended(&client, &waits.id).await.exit_code, Some(0));
}
