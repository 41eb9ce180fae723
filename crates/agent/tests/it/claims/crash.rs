//! The daemon dies by SIGKILL at every point of a claim's way, and the machine is started anew.

use divvy_api::v1::{JobState, MigState};
use divvy_ledger::Slice;
use divvy_testkit::{failpoints, until_async};

use super::*;
use crate::oom::use_and_be_refused;

/// Has a daemon die at `point`, and starts another.
async fn crash_at(home: &mut Home, point: &str, work: impl AsyncFnOnce(&Client)) {
    let words = words(home);
    let words = words.each_ref().map(String::as_str);
    home.crash_at(point, &words, async |home| work(&home.connect()).await)
        .await;
}

/// One claim is held, and what it holds is all there is.
async fn one_is_held(home: &Home, client: &Client, held: &HeldClaim, point: &str) {
    assert_eq!(held.state, JobState::Running, "{point}");
    assert_eq!(client.claims().await.unwrap().len(), 1, "{point}");
    assert_eq!(devices(home), [held.cdi_device.as_str()], "{point}");
    all_mounts_are_there(home, held);
    let jobs = client.jobs(false).await.unwrap();
    assert_eq!(jobs.len(), 1, "{point}: {jobs:#?}");
}

#[tokio::test]
async fn killed_at_any_point_of_making_one_it_is_made_once_when_it_is_asked_for_again() {
    for point in failpoints::CLAIM_PUT.into_iter().chain(["start.slice"]) {
        let mut home = machine("a100-80gb:1", "");
        let part =
            async |client: &Client| claim(vec![ClaimDevice::part(gpu(client, 0).await, 60 * GIB)]);
        crash_at(&mut home, point, async |client| {
            // The daemon may die before it answers.
            let _ = client.put_claim("u-1", &part(client).await).await;
        })
        .await;
        let client = home.connect();
        let held = client.put_claim("u-1", &part(&client).await).await.unwrap();
        one_is_held(&home, &client, &held, point).await;
        assert_eq!(home.slices(), [held.job.as_str()], "{point}");
        client.delete_claim("u-1").await.unwrap();
        assert!(
            devices(&home).is_empty() && home.slices().is_empty(),
            "{point}"
        );
    }
}

#[tokio::test]
async fn killed_at_any_point_of_giving_one_back_it_goes_and_its_room_is_the_next_ones() {
    for point in
        failpoints::CLAIM_DELETE
            .into_iter()
            .chain(["stop.told", "end.freed", "end.forgotten"])
    {
        let mut home = machine("a100-80gb:1", "");
        start(&mut home);
        let client = home.connect();
        let body = claim(vec![ClaimDevice::part(gpu(&client, 0).await, 60 * GIB)]);
        let job = client.put_claim("u-1", &body).await.unwrap().job;
        let slice = Slice::open(&home.path().join("slices").join(&job)).unwrap();
        use_and_be_refused(&slice.join().unwrap(), 6 * GIB, 60 * GIB);
        home.kill();
        crash_at(&mut home, point, async |client| {
            let _ = client.delete_claim("u-1").await;
        })
        .await;
        let client = home.connect();
        // The kubelet asks until it is told that it is done.
        client.delete_claim("u-1").await.unwrap();
        assert!(client.claims().await.unwrap().is_empty(), "{point}");
        let part = &client.job(&job).await.unwrap().slices[0];
        let kept = (part.memory_peak_bytes, part.denials);
        assert_eq!(kept, (6 * GIB, 1), "{point}: peak and refusals");
        assert!(
            devices(&home).is_empty() && home.slices().is_empty(),
            "{point}"
        );
        let held = client.put_claim("u-2", &body).await.unwrap();
        one_is_held(&home, &client, &held, point).await;
    }
}

#[tokio::test]
async fn after_a_lost_journal_a_claim_is_held_as_it_was() {
    let mut home = machine("a100-80gb:1", "");
    start(&mut home);
    let client = home.connect();
    let body = claim(vec![ClaimDevice::part(gpu(&client, 0).await, 60 * GIB)]);
    let before = client.put_claim("u-1", &body).await.unwrap();
    home.kill();
    for file in ["state.db", "state.db-wal", "state.db-shm"] {
        let _ = fs::remove_file(home.path().join(file));
    }
    start(&mut home);
    let client = home.connect();
    let after = client.claims().await.unwrap().remove(0);
    assert_eq!((&after.uid, &after.job), (&before.uid, &before.job));
    let again = client.put_claim("u-1", &body).await.unwrap();
    one_is_held(&home, &client, &again, "a lost journal").await;
    assert_eq!(again.cdi_device, before.cdi_device);
    client.delete_claim("u-1").await.unwrap();
    assert!(devices(&home).is_empty() && home.slices().is_empty());
}

#[tokio::test]
async fn after_a_reboot_claims_are_gone_and_their_instances_made_again_for_the_next_claim() {
    if !is_root() {
        return;
    }
    let mut home = machine("a100-40gb:2", ENABLED);
    home.set("DIVVY_TEST_BOOT", "first".to_owned());
    start(&mut home);
    let client = home.connect();
    let (divided, shared) = (gpu(&client, 0).await, gpu(&client, 1).await);
    let instance = claim(vec![ClaimDevice::instance(&divided, "2g.10gb", 0)]);
    let part = claim(vec![ClaimDevice::part(&shared, 8 * GIB)]);
    client.put_claim("mig", &instance).await.unwrap();
    let before = client.put_claim("part", &part).await.unwrap();
    home.kill();
    driver::happen(&home, "reboot");
    fs::remove_dir_all(home.path().join("slices")).unwrap();
    home.set("DIVVY_TEST_BOOT", "second".to_owned());
    start(&mut home);
    let client = home.connect();
    assert!(client.claims().await.unwrap().is_empty());
    assert!(devices(&home).is_empty() && home.slices().is_empty());
    let events = client.events(0).await.unwrap();
    let told = events
        .iter()
        .filter(|event| event.text.contains("was restarted"));
    assert_eq!(told.count(), 2, "{events:#?}");
    // The kubelet prepares again for the pods that it starts again.
    let after = client.put_claim("part", &part).await.unwrap();
    assert_ne!(after.job, before.job);
    let held = client.put_claim("mig", &instance).await.unwrap();
    assert_eq!(held.slices[0].label, "gpu0.2g.10gb@0");
    assert_eq!(driver::layout(&home, 0).len(), 1);
}

#[tokio::test]
async fn what_lies_in_the_devices_folder_of_a_job_that_is_no_more_is_swept_at_the_next_start() {
    let mut home = machine("a100-80gb:1", "");
    start(&mut home);
    let client = home.connect();
    let body = claim(vec![ClaimDevice::part(gpu(&client, 0).await, GIB)]);
    let held = client.put_claim("u-1", &body).await.unwrap();
    let (_, name) = held.cdi_device.split_once('=').unwrap();
    let stem = name.strip_suffix("u-1.claim").unwrap();
    home.kill();
    let at = |name: &str| folder(&home).join(name);
    fs::write(at(&format!("{stem}99.json")), "{}").unwrap();
    fs::write(at(&format!(".{stem}98.new")), "{}").unwrap();
    fs::write(at(&format!("{stem}u-2.claim.json")), "{}").unwrap();
    fs::write(at("nvidia.json"), "{}").unwrap();
    start(&mut home);
    // It answers once journal and world agree.
    home.connect().claims().await.unwrap();
    let entries = fs::read_dir(folder(&home)).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, [format!("{name}.json"), "nvidia.json".to_owned()]);
}

mod exhaustive {
    use super::*;

    #[tokio::test]
    async fn killed_while_an_instance_is_made_or_destroyed_for_one_nothing_is_leaked() {
        if !is_root() {
            return;
        }
        let points = [
            "claim.kept",
            "mig.create.intent",
            "mig.create.gi",
            "mig.create.ci",
            "mig.create.done",
            "mig.create.kept",
            "claim.lent",
            "mig.destroy.intent",
            "mig.destroy.ci",
            "mig.destroy.gi",
            "mig.destroy.done",
        ];
        for point in points {
            let mut home = machine("a100-40gb:1", ENABLED);
            let at = async |client: &Client, profile: &str, start| {
                claim(vec![ClaimDevice::instance(
                    gpu(client, 0).await,
                    profile,
                    start,
                )])
            };
            // An idle one in the way.
            start(&mut home);
            let client = home.connect();
            client
                .put_claim("before", &at(&client, "1g.5gb", 2).await)
                .await
                .unwrap();
            client.delete_claim("before").await.unwrap();
            home.kill();
            crash_at(&mut home, point, async |client| {
                let _ = client
                    .put_claim("u-1", &at(client, "3g.20gb", 0).await)
                    .await;
            })
            .await;
            let client = home.connect();
            let body = at(&client, "3g.20gb", 0).await;
            // An unfinished claim blocks the request for a moment; the client asks again.
            let held = until_async(format!("{point}: the claim is held"), async || {
                client.put_claim("u-1", &body).await.ok()
            })
            .await;
            one_is_held(&home, &client, &held, point).await;
            let there = driver::layout(&home, 0);
            assert_eq!(there.len(), 1, "{point}: {there:?}");
            let shown = client.mig_instances().await.unwrap();
            assert_eq!(shown[0].state, MigState::InUse, "{point}: {shown:?}");
        }
    }
}
