//! Slices of `divvy slice` through the API: many at once, names at their bounds, and instances that Divvy places.

use std::collections::BTreeSet;

use divvy_api::v1::claim::LONGEST_UID;
use divvy_api::v1::{Claim, ClaimDevice, ClaimEnd, ErrorCode, JobState};
use divvy_testkit::{Bounded as _, call, refused, until_async};

use super::*;

fn slice(devices: Vec<ClaimDevice>) -> Claim {
    Claim {
        devices,
        ..Claim::default()
    }
}

#[tokio::test]
async fn a_name_at_its_bound_is_held_and_every_other_one_is_refused() {
    let mut home = machine("a100-80gb:1", "");
    start(&mut home);
    let client = home.connect();
    let body = slice(vec![ClaimDevice::share("0", 100)]);
    let longest = "x".repeat(LONGEST_UID);
    for name in ["a", "-", "A.b_c-9", longest.as_str()] {
        match name {
            "-" => {
                let error = refused(client.put_claim(name, &body).await);
                assert_eq!(error.code, ErrorCode::Usage, "{error}");
            }
            name => assert_eq!(client.put_claim(name, &body).await.unwrap().uid, name),
        }
    }
    let megabyte = "x".repeat(1 << 20);
    for name in [
        "a.",
        "ü",
        "a b",
        "%",
        "a%2Fb",
        "\u{1b}[31m",
        &longest.repeat(2),
        &megabyte,
    ] {
        let refusal = client.put_claim(name, &body).await.unwrap_err();
        // A path of a megabyte does not reach the daemon's own answer.
        let is_short = refusal.message.len() < 1000 || name.len() == megabyte.len();
        assert!(is_short, "the error repeats the name");
    }
    // Long texts of the body; the server refuses a body above 1 MiB before it has read all of it.
    let long = "x".repeat(1 << 18);
    for body in [
        Claim {
            owner: Some(long.clone()),
            ..body.clone()
        },
        Claim {
            name: long.clone(),
            ..body.clone()
        },
        Claim {
            ends: Some(ClaimEnd::with_cgroup(format!("/sys/fs/cgroup/{long}"))),
            ..body.clone()
        },
        slice(vec![ClaimDevice::share(long.as_str(), 100)]),
        slice(vec![ClaimDevice::share("0", 1); 65]),
    ] {
        let error = refused(client.put_claim("b", &body).await);
        assert_eq!(error.code, ErrorCode::Usage, "{}", error.message.len());
    }
    let (status, said) = call(
        &home.socket(),
        "PUT",
        "/v1/claims/b",
        r#"{"devices":[],"x":1}"#,
    );
    assert_eq!(status, 400, "{said}");
    assert_eq!(client.claims().await.unwrap().len(), 3);
}

#[tokio::test]
async fn an_instance_without_a_start_is_placed_where_there_is_room() {
    let Some((home, client)) = divided() else {
        return;
    };
    let one = |profile: &str| slice(vec![ClaimDevice::profile("0", profile)]);
    let mut starts = BTreeSet::new();
    for number in 0..4 {
        let name = format!("small-{number}");
        let held = client.put_claim(&name, &one("1g.5gb")).await.unwrap();
        let again = client.put_claim(&name, &one("1g.5gb")).await.unwrap();
        assert_eq!(held.job, again.job);
        let mig = held.devices[0].mig.as_ref().unwrap();
        assert!(starts.insert(mig.start.unwrap()), "{starts:?}");
    }
    let other = refused(client.put_claim("small-0", &one("2g.10gb")).await);
    assert_eq!(other.code, ErrorCode::Conflict, "{other}");
    let error = refused(client.put_claim("large", &one("7g.40gb")).await);
    assert_eq!(error.code, ErrorCode::WouldWait, "{error}");
    for body in [one("7g.80gb"), slice(vec![ClaimDevice::share("0", 500)])] {
        let error = refused(client.put_claim("never", &body).await);
        assert_eq!(error.code, ErrorCode::NeverFits, "{error}");
        assert!(
            error.message.contains("MIG") || error.message.contains("7g.80gb"),
            "{error}"
        );
    }
    drop(home);
}

#[tokio::test]
async fn a_daemon_that_dies_at_any_step_releases_a_slice_whose_process_has_ended() {
    for point in [
        "claim.kept",
        "claim.cdi",
        "claim.lent",
        "claim.released",
        "claim.closed",
        "claim.freed",
    ] {
        let mut home = machine("a100-80gb:1", "");
        let mut engine = std::process::Command::new("sleep");
        let mut engine = engine.arg("1000").spawn().unwrap();
        let body = Claim {
            ends: Some(ClaimEnd::with_process(engine.id(), None)),
            ..slice(vec![ClaimDevice::share("0", 500)])
        };
        let words = words(&home);
        let words = words.each_ref().map(String::as_str);
        home.die_at(point, &words, async |home| {
            let client = home.connect();
            let held = client.put_claim("a", &body).await;
            if held.is_ok() {
                engine.kill().unwrap();
                engine.wait_bounded().unwrap();
            }
        })
        .await;
        let _ = engine.kill();
        let _ = engine.wait_bounded();
        start(&mut home);
        let client = home.connect();
        until_async(format!("{point}: the slice is released"), async || {
            let claims = client.claims().await.ok()?;
            claims.is_empty().then_some(())
        })
        .await;
        assert!(
            home.slices().is_empty() && devices(&home).is_empty(),
            "{point}"
        );
        let entries = home.path().join("claims");
        let me = rustix::process::geteuid().as_raw().to_string();
        let entries = entries.join(me);
        assert!(
            fs::read_dir(entries).into_iter().flatten().next().is_none(),
            "{point}"
        );
    }
}

/// Second tier: longer than two seconds.
mod exhaustive {
    use super::*;

    /// Two hundred engines call at once, and each call comes twice.
    #[tokio::test]
    async fn two_hundred_slices_that_are_asked_for_at_once_are_each_held_once() {
        let mut home = machine("a100-80gb:4", "");
        start(&mut home);
        let client = home.connect();
        let calls = (0..400).map(|call| {
            let (client, number) = (home.connect(), call / 2);
            async move {
                let body = slice(vec![ClaimDevice::part((number % 4).to_string(), GIB)]);
                client.put_claim(&format!("many-{number}"), &body).await
            }
        });
        let tasks: Vec<_> = calls.map(tokio::spawn).collect();
        let mut jobs = BTreeSet::new();
        for task in tasks {
            let held = task.await.unwrap().unwrap();
            assert_eq!(held.state, JobState::Running);
            jobs.insert(held.job);
        }
        assert_eq!(jobs.len(), 200);
        assert_eq!(client.claims().await.unwrap().len(), 200);
        for gpu in client.gpus().await.unwrap() {
            assert_eq!(gpu.memory_allocated_bytes, 50 * GIB);
        }
        home.kill();
        start(&mut home);
        let client = home.connect();
        assert_eq!(client.claims().await.unwrap().len(), 200);
        for number in 0..200 {
            client
                .delete_claim(&format!("many-{number}"))
                .await
                .unwrap();
        }
        assert!(client.claims().await.unwrap().is_empty() && home.slices().is_empty());
    }
}
