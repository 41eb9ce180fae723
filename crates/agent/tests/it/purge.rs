//! A new installation beside jobs of a deleted one: a purge of the package, or `rm -rf` of the state, ends no job.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::fs;
use std::path::{Path, PathBuf};

use divvy_api::v1::{Amount, JobState, Submit};
use divvy_testkit::{Home, cgroup2_root, ended, in_state, is_alive, quarter, signal};
use rustix::process::geteuid;

use crate::users::{ANA, LEE, as_user};

const TWO: [&str; 5] = ["--system", "--sim", "a100-80gb:2", "--set", "grace=1s"];

fn half(script: &str) -> Submit {
    Submit {
        amount: Some(Amount::Share { thousandths: 500 }),
        cwd: "/tmp".into(),
        ..quarter(&["sh", "-c", script])
    }
}

/// Everything below a folder.
fn empty(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            fs::remove_dir_all(&path).unwrap()
        } else {
            fs::remove_file(&path).unwrap()
        }
    }
}

#[test]
fn jobs_of_a_purged_installation_keep_their_gpus_their_numbers_and_their_control_groups() {
    if !geteuid().is_root() || cgroup2_root().is_none() {
        eprintln!("SKIPPED: no control groups, or not root");
        return;
    }
    let mut home = Home::started(&TWO);
    let start = |uid: u32, home: &Home| {
        as_user(home, uid, async |client| {
            let id = client.submit(&half("exec sleep 1000")).await.unwrap().id;
            let job = in_state(&client, &id, JobState::Running).await;
            let group = job.group.and_then(|group| group.path).map(PathBuf::from);
            let label = job.slices[0].label.clone();
            (id, group, label)
        })
    };
    let (first, group, label) = start(ANA, &home);
    let Some(group) = group else {
        eprintln!("SKIPPED: jobs have no control groups here");
        return;
    };
    assert!(first == "1" && label.starts_with("gpu0."), "{label}");
    let pids = ["launch", "started"].map(|what| home.pid(&first, what));
    home.kill();
    empty(home.path());

    home.start(&TWO);
    let shown = as_user(&home, 0, async |client| {
        let unknown = client.node().await.unwrap().journal.unwrap().unknown;
        assert_eq!(unknown.len(), 1, "{unknown:?}");
        assert_eq!((unknown[0].job.as_str(), &unknown[0].gpus), ("1", &vec![0]));
        assert!(unknown[0].pids.contains(&pids[1]), "{unknown:?}");
        client.gpus().await.unwrap()
    });
    let held: Vec<u16> = shown.iter().map(|gpu| gpu.share_allocated).collect();
    assert_eq!(held, [1000, 0], "without a slice its GPU is reserved whole");
    // Of another user, and of the same number in a new journal.
    let (second, other, label) = start(LEE, &home);
    assert!(second == "2" && label.starts_with("gpu1."), "{label}");
    let other = other.unwrap();
    assert_ne!(other, group);
    assert_eq!(other.parent(), group.parent());
    let stem = |group: &Path| {
        let name = group.file_name().unwrap().to_str().unwrap().to_owned();
        name.rsplit_once('-').unwrap().0.to_owned()
    };
    assert_ne!(stem(&other), stem(&group), "each journal has its own names");
    as_user(&home, LEE, async |client| {
        client.cancel(&second).await.unwrap();
        ended(&client, &second).await;
        assert!(
            pids.iter().all(|pid| is_alive(*pid)),
            "nothing of ana's was killed"
        );
        let whole = Submit {
            amount: Some(Amount::Whole { count: 2 }),
            ..half("exec sleep 1000")
        };
        let waits = client.submit(&whole).await.unwrap();
        assert_eq!((waits.id.as_str(), waits.state), ("3", JobState::Queued));
    });
    signal(pids[1], "KILL");
    as_user(&home, LEE, async |client| {
        in_state(&client, "3", JobState::Running).await;
        client.cancel("3").await.unwrap();
        ended(&client, "3").await;
    });
}
