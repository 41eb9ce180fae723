//! Kinds of GPUs, which differ in what they can be cut into.

use divvy_api::v1::JobState;
use divvy_testkit::in_state;

use super::*;

/// As many of the smallest as there can be, of memory slices and starts as in `data/mig.toml`: side by side, and no more.
#[tokio::test]
async fn a_gpu_of_each_kind_is_filled_with_jobs_on_its_smallest_profile() {
    if !is_root() {
        return;
    }
    let sevenths = vec![0, 1, 2, 3, 4, 5, 6];
    let kinds = [
        ("a30-24gb:1", "1g.6gb", 4, 5952, vec![0, 1, 2, 3]),
        ("rtxpro6000-96gb:1", "1g.24gb", 12, 24_192, vec![0, 3, 6, 9]),
        ("h200-141gb:1", "1g.18gb", 8, 16_384, sevenths.clone()),
        ("b200-180gb:1", "1g.23gb", 8, 22_528, sevenths),
    ];
    for (gpus, profile, slices, memory, starts) in kinds {
        let home = served(gpus, ENABLED);
        let client = home.connect();
        let gpu = client.gpus().await.unwrap().remove(0);
        assert_eq!(gpu.mig.unwrap().memory_slices, slices, "{gpus}");
        let sleep = on(profile, &["sleep", "600"]);
        let mut jobs = Vec::new();
        for _ in &starts {
            jobs.push(client.submit(&sleep).await.unwrap().id);
        }
        let mut taken = Vec::new();
        for job in &jobs {
            let job = in_state(&client, job, JobState::Running).await;
            assert_eq!(job.slices[0].memory_limit_bytes, memory << 20, "{gpus}");
            taken.push(job.slices[0].mig.as_ref().unwrap().start);
        }
        taken.sort_unstable();
        assert_eq!(taken, starts, "{gpus}");
        let lie: Vec<u32> = driver::places(&home, 0).iter().map(|one| one.1).collect();
        assert!(lie.into_iter().eq(starts.into_iter().map(u32::from)));
        let one_more = client.submit(&sleep).await.unwrap();
        assert_eq!(one_more.state, JobState::Queued, "{gpus}");
    }
}
