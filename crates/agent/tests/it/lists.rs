//! Long lists of jobs, which come in pieces: whole and in brief they have the same jobs and say the same of them.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use divvy_api::v1::{Amount, Array, Brief, Job, JobState, Resize, Submit};
use divvy_testkit::{Home, ended, in_state, quarter};
use serde_json::Value;

/// More than fit into one piece, also in brief.
const MANY: u32 = 1500;

/// What is said of a job in brief, without what changes while it runs.
fn said(job: &Brief<'_>) -> Value {
    let mut said = serde_json::to_value(job).unwrap();
    if let Some(said) = said.as_object_mut() {
        said.remove("slices");
    }
    said
}

#[tokio::test]
async fn a_long_list_says_the_same_of_every_job_whole_and_in_brief() {
    let home = Home::started(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    let whole = Submit {
        amount: Some(Amount::Whole { count: 1 }),
        ..quarter(&["sleep", "1000"])
    };
    let runs = client.submit(&whole).await.unwrap().id;
    in_state(&client, &runs, JobState::Running).await;
    let cancelled = client.submit(&whole).await.unwrap().id;
    client.cancel(&cancelled).await.unwrap();
    ended(&client, &cancelled).await;
    let array = Array {
        indices: (0..MANY).collect(),
        max_running: None,
    };
    let many = Submit {
        array: Some(array),
        ..whole.clone()
    };
    let first = client.submit(&many).await.unwrap().id;
    let less = Resize {
        amount: Some(Amount::Share { thousandths: 500 }),
        compute: None,
    };
    client.resize(&format!("{first}_0"), &less).await.unwrap();
    // A page of a state: the newest, oldest first, however many there are.
    for (state, limit, expected) in [
        (JobState::Queued, 5, 5),
        (JobState::Queued, 0, MANY as usize),
        (JobState::Ended, 50, 1),
    ] {
        let mut page = Vec::new();
        let take = |job: Brief<'_>| page.push((job.state, job.id.parse::<u64>().unwrap()));
        client.newest_briefly(state, limit, take).await.unwrap();
        assert_eq!(page.len(), expected, "{state:?}");
        assert!(page.iter().all(|(found, _)| *found == state), "{state:?}");
        assert!(page.is_sorted_by_key(|(_, id)| *id));
        if limit == 5 {
            let newest = first.parse::<u64>().unwrap() + u64::from(MANY) - 1;
            assert_eq!(page.last().unwrap().1, newest);
        }
    }
    for (all, besides) in [(false, 1), (true, 2)] {
        let jobs: Vec<Job> = client.jobs(all).await.unwrap();
        assert_eq!(jobs.len(), MANY as usize + besides);
        let number = |job: &Job| job.id.parse::<u64>().unwrap();
        assert!(jobs.is_sorted_by(|one, next| number(one) < number(next)));
        let mut brief = Vec::new();
        let take = |job: Brief<'_>| brief.push(said(&job));
        client.jobs_briefly(all, take).await.unwrap();
        assert_eq!(brief.len(), jobs.len());
        for (job, brief) in jobs.iter().zip(brief) {
            assert_eq!(said(&Brief::from(job)), brief);
            let (waits, asks_less) = (job.state == JobState::Queued, job.id == first);
            assert_eq!(
                waits,
                job.reason.is_some() && job.place.is_some(),
                "{}",
                job.id
            );
            assert_eq!(brief["request"], if asks_less { "0.5" } else { "1" });
            assert_eq!(job.command, ["sleep", "1000"]);
        }
    }
}
