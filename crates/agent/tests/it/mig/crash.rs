//! The daemon dies by SIGKILL after every step of every change, and another goes on: nothing is leaked, nothing of anybody else's is
//! touched, and nothing is tried more than once again.

use divvy_api::v1::{GpuChange, GpuMode, MigState};
use divvy_testkit::ended;
use divvy_testkit::failpoints::{MIG_CREATE, MIG_DESTROY};

use super::*;

/// What somebody else has on the GPU all the while.
const FOREIGN: (u32, u32, u32) = (THREE, 4, 4);

/// Every instance that the driver has is the stranger's, or one that the daemon shows as idle; and the reverse.
async fn nothing_is_leaked(home: &Home, client: &Client, point: &str) {
    let settled = |all: &Vec<(String, u8, MigState)>| {
        let done = [MigState::Idle, MigState::Unmanaged];
        all.iter().all(|one| done.contains(&one.2))
    };
    let shown = until("nothing is on its way", || shown(client), settled).await;
    let there = driver::layout(home, 0);
    let (profile, start, _) = FOREIGN;
    let foreign = there
        .iter()
        .find(|one| (one.profile, one.start) == (profile, start));
    assert!(
        foreign.is_some_and(|one| one.device.is_some()),
        "{point}: {there:?}"
    );
    let mut starts: Vec<u32> = shown.iter().map(|one| u32::from(one.1)).collect();
    starts.sort_unstable();
    let mut all: Vec<u32> = there.iter().map(|one| one.start).collect();
    all.sort_unstable();
    assert_eq!(starts, all, "{point}: {shown:?} {there:?}");
    // What is idle has a device, and so is of use.
    assert!(
        there.iter().all(|one| one.device.is_some()),
        "{point}: {there:?}"
    );
}

fn a100() -> Home {
    let (profile, start) = ("3g.20gb", FOREIGN.1);
    let foreign = format!("[[mig.instance]]\ngpu = 0\nprofile = '{profile}'\nstart = {start}\n");
    machine("a100-40gb:1", &format!("{ENABLED}{foreign}"))
}

const A100: &str = "a100-40gb:1";

/// Instances made since the journal began.
async fn times(client: &Client, kind: &str) -> usize {
    told(client, kind).await.len()
}

#[tokio::test]
async fn after_every_step_of_making_one() {
    if !is_root() {
        return;
    }
    for point in MIG_CREATE {
        let mut home = a100();
        home.crash_at(point, &["--sim", A100], async |home| {
            // The daemon may die before it answers.
            let _ = home.connect().submit(&on("1g.5gb", &["true"])).await;
        })
        .await;
        let client = home.connect();
        let job = ended(&client, "last").await;
        assert_eq!(job.exit_code, Some(0), "{point}: {job:#?}");
        nothing_is_leaked(&home, &client, point).await;
        assert_eq!(driver::layout(&home, 0).len(), 2, "{point}");
        assert!(times(&client, "mig_created").await <= 2, "{point}");
    }
}

#[tokio::test]
async fn after_every_step_of_giving_one_back() {
    if !is_root() {
        return;
    }
    for point in MIG_DESTROY {
        let mut home = a100();
        home.start(&["--sim", A100]);
        run(&home.connect(), "1g.5gb").await;
        home.kill();
        home.crash_at(point, &["--sim", A100], async |home| {
            let _ = home
                .connect()
                .mig_gc(&divvy_api::v1::MigGc::default())
                .await;
        })
        .await;
        let client = home.connect();
        until("it is gone", || shown(&client), |all| all.len() == 1).await;
        assert_eq!(
            driver::places(&home, 0),
            [(FOREIGN.0, FOREIGN.1)],
            "{point}"
        );
    }
}

mod exhaustive {
    use super::*;

    #[tokio::test]
    async fn after_every_step_of_handing_one_on() {
        if !is_root() {
            return;
        }
        for point in [
            "mig.reuse.intent",
            "mig.reuse.begin",
            "mig.reuse.done",
            "mig.reuse.kept",
        ] {
            let mut home = a100();
            home.start(&["--sim", A100]);
            run(&home.connect(), "1g.5gb").await;
            home.kill();
            home.crash_at(point, &["--sim", A100], async |home| {
                let _ = home.connect().submit(&on("1g.5gb", &["true"])).await;
            })
            .await;
            let client = home.connect();
            let job = ended(&client, "last").await;
            assert_eq!(
                (job.id.as_str(), job.exit_code),
                ("2", Some(0)),
                "{point}: {job:#?}"
            );
            nothing_is_leaked(&home, &client, point).await;
            assert_eq!(times(&client, "mig_created").await, 1, "{point}");
        }
    }

    /// Who had it before was another user, or somebody destroyed it just before it is looked at.
    #[tokio::test]
    async fn after_every_step_of_making_one_anew() {
        if !is_root() {
            return;
        }
        for point in MIG_DESTROY.into_iter().chain(MIG_CREATE) {
            for by_hand in [false, true] {
                if by_hand && ["mig.destroy.ci", "mig.destroy.gi"].contains(&point) {
                    // Nothing is left to be destroyed.
                    continue;
                }
                let mut home = a100();
                home.start(&["--sim", A100]);
                run(&home.connect(), "1g.5gb").await;
                home.kill();
                if !by_hand {
                    was_somebodys(&home);
                }
                home.crash_at(point, &["--sim", A100], async |home| {
                    let lock = held_up(home).await;
                    let _ = home.connect().submit(&on("1g.5gb", &["true"])).await;
                    if by_hand {
                        let there = driver::places(home, 0);
                        let (profile, start) = *there.iter().find(|one| one.0 == ONE).unwrap();
                        driver::destroy(home, 0, profile, start);
                    }
                    drop(lock);
                })
                .await;
                let client = home.connect();
                let job = ended(&client, "last").await;
                let story = format!("{point}, by hand: {by_hand}");
                assert_eq!(
                    (job.id.as_str(), job.exit_code),
                    ("2", Some(0)),
                    "{story}: {job:#?}"
                );
                nothing_is_leaked(&home, &client, &story).await;
                assert_eq!(driver::layout(&home, 0).len(), 2, "{story}");
                // The first job's, the second's, and at most once more.
                assert!(times(&client, "mig_created").await <= 3, "{story}");
            }
        }
    }

    #[tokio::test]
    async fn after_every_step_of_making_room() {
        if !is_root() {
            return;
        }
        for point in MIG_DESTROY {
            let mut home = a100();
            home.start(&["--sim", A100]);
            run(&home.connect(), "1g.5gb").await;
            home.kill();
            home.crash_at(point, &["--sim", A100], async |home| {
                let _ = home.connect().submit(&on("4g.20gb", &["true"])).await;
            })
            .await;
            let client = home.connect();
            let job = ended(&client, "last").await;
            assert_eq!(
                (job.id.as_str(), job.exit_code),
                ("2", Some(0)),
                "{point}: {job:#?}"
            );
            nothing_is_leaked(&home, &client, point).await;
            let mut places = driver::places(&home, 0);
            places.sort_unstable();
            assert_eq!(places, [(FOUR, 0), (FOREIGN.0, FOREIGN.1)], "{point}");
            assert!(times(&client, "mig_created").await <= 3, "{point}");
        }
    }

    #[tokio::test]
    async fn after_every_step_of_dividing_a_gpu_and_of_making_it_whole() {
        if !is_root() {
            return;
        }
        let gpus = "h100-80gb:1";
        let points = [
            "mig.mode.intent",
            "mig.mode.begin",
            "mig.mode.set",
            "mig.mode.done",
            "mig.mode.kept",
        ];
        for (from, to, on) in [("", GpuMode::Mig, true), (ENABLED, GpuMode::Shared, false)] {
            for point in points {
                let mut home = machine(gpus, from);
                home.crash_at(point, &["--sim", gpus], async |home| {
                    let change = GpuChange {
                        mode: to,
                        dry_run: false,
                    };
                    let _ = home.connect().change_gpu("0", &change).await;
                })
                .await;
                let client = home.connect();
                let word = if on { "mig" } else { "shared" };
                let mode = || async { client.gpus().await.unwrap()[0].mode.clone() };
                until("it is as it was wanted", mode, |mode| mode == word).await;
                assert_eq!(driver::modes(&home), [on], "{point}");
            }
        }
    }

    /// The wish is written down together with the end of what is idle, and comes after it.
    #[tokio::test]
    async fn after_every_step_of_making_a_gpu_whole_on_which_something_idle_lies() {
        if !is_root() {
            return;
        }
        let gpus = "h100-80gb:1";
        for point in MIG_DESTROY {
            let mut home = machine(gpus, ENABLED);
            home.start(&["--sim", gpus]);
            run(&home.connect(), "1g.10gb").await;
            home.kill();
            let change = |mode| GpuChange {
                mode,
                dry_run: false,
            };
            home.crash_at(point, &["--sim", gpus], async |home| {
                let to = change(GpuMode::Shared);
                let _ = home.connect().change_gpu("0", &to).await;
            })
            .await;
            let client = home.connect();
            let mode = || async { client.gpus().await.unwrap()[0].mode.clone() };
            until("it is whole", mode, |mode| mode == "shared").await;
            assert_eq!(driver::modes(&home), [false], "{point}");
            // Nothing that is remembered of it is in the way of another change.
            let to = change(GpuMode::Mig);
            client.change_gpu("0", &to).await.expect(point);
            assert!(driver::layout(&home, 0).is_empty(), "{point}");
            assert!(shown(&client).await.is_empty(), "{point}");
        }
    }
}
