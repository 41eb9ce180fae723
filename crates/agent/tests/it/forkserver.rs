//! The process that supervisors are copies of, and what becomes of jobs without it.

use divvy_api::v1::JobState;
use divvy_testkit::{Bounded as _, Home, ended, in_state, is_alive, quarter, signal};

/// The parent of a job's supervisor.
fn nursery(home: &Home, job: &str) -> u32 {
    let supervisor = home.pid(job, "launch");
    let parent = || {
        let stat = std::fs::read_to_string(format!("/proc/{supervisor}/stat")).ok()?;
        let (_, fields) = stat.rsplit_once(')')?;
        fields.split_whitespace().nth(1)?.parse().ok()
    };
    parent().expect("a process says whose it is")
}

#[tokio::test]
async fn supervisors_of_all_jobs_are_copies_of_one_process_and_live_on_without_it() {
    let home = Home::started(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    let lasts = ["sh", "-c", "read line < go; exit 7"];
    let mut job = quarter(&lasts);
    job.cwd = home.path().display().to_string();
    let fifo = std::process::Command::new("mkfifo")
        .arg(home.path().join("go"))
        .wait_bounded();
    assert!(fifo.unwrap().success());
    let first = client.submit(&job).await.unwrap().id;
    in_state(&client, &first, JobState::Running).await;
    let second = client
        .submit(&quarter(&["sleep", "1000"]))
        .await
        .unwrap()
        .id;
    let program = in_state(&client, &second, JobState::Running)
        .await
        .pid
        .unwrap();
    let nursery_pid = nursery(&home, &first);
    assert_eq!(nursery(&home, &second), nursery_pid);

    signal(nursery_pid, "KILL");
    let third = client
        .submit(&quarter(&["sh", "-c", "exit 3"]))
        .await
        .unwrap()
        .id;
    assert_eq!(ended(&client, &third).await.exit_code, Some(3));
    assert!(is_alive(program));
    std::fs::write(home.path().join("go"), "on\n").unwrap();
    assert_eq!(ended(&client, &first).await.exit_code, Some(7));
    client.cancel(&second).await.unwrap();
    ended(&client, &second).await;
    assert!(!is_alive(program));
}

#[tokio::test]
async fn a_nursery_that_has_stopped_is_replaced_and_no_job_is_lost_over_it() {
    let home = Home::started(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    let first = client
        .submit(&quarter(&["sleep", "1000"]))
        .await
        .unwrap()
        .id;
    in_state(&client, &first, JobState::Running).await;
    signal(nursery(&home, &first), "STOP");
    let second = client
        .submit(&quarter(&["sh", "-c", "exit 3"]))
        .await
        .unwrap()
        .id;
    assert_eq!(ended(&client, &second).await.exit_code, Some(3));
    client.cancel(&first).await.unwrap();
    ended(&client, &first).await;
}
