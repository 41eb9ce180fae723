//! The bound of a page: however many jobs, queues and projects there are, it has a limited number of series.

use super::{Family, JobRow, Page, family};
use crate::controller::query::metrics::Omitted;

/// Slices that have series. A job without a slice, such as a suspended one, counts as one. So a scrape stays below a
/// few megabytes, which Prometheus reads in its ten seconds.
const MOST_SLICES: usize = 1000;

/// Queues that have series; the same number of projects. The same as [`MAX_NAMES`](crate::model::usage::MAX_NAMES):
/// more series are of no use in a dashboard.
const MOST_NAMES: usize = 256;

/// Removes from a page what exceeds the bounds, and notes how much that was.
pub(super) fn limit(page: &mut Page) {
    page.omitted = Omitted {
        jobs: keep_jobs(&mut page.jobs),
        queues: keep_first(&mut page.queues),
        projects: keep_first(&mut page.daemon_stats.projects),
    };
    let queues = &page.queues;
    let waits = &mut page.daemon_stats.counted.waits;
    waits.retain(|name, _| queues.iter().any(|queue| queue.name == *name));
}

/// Keeps the oldest jobs, and of these first the ones with slices. The number of jobs that were removed.
fn keep_jobs(jobs: &mut Vec<JobRow>) -> usize {
    let before = jobs.len();
    jobs.sort_by_key(|job| job.slices.is_empty());
    let mut room = MOST_SLICES;
    jobs.retain(|job| {
        let left = room.checked_sub(job.slices.len().max(1));
        room = left.unwrap_or(room);
        left.is_some()
    });
    before - jobs.len()
}

fn keep_first<T>(items: &mut Vec<T>) -> usize {
    let beyond = items.len().saturating_sub(MOST_NAMES);
    items.truncate(MOST_NAMES);
    beyond
}

pub(super) fn about_the_page(page: &Page) -> Family {
    let mut omitted = family(
        "divvy_metrics_omitted",
        "gauge",
        "Jobs, queues and projects without series of their own, because the page is bounded.",
    );
    let Omitted {
        jobs,
        queues,
        projects,
    } = page.omitted;
    for (kind, count) in [("job", jobs), ("queue", queues), ("project", projects)] {
        omitted.sample(vec![("kind", kind.to_owned())], count);
    }
    omitted
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::{job, page_of};
    use super::super::text;
    use super::*;
    use crate::model::usage::{GpuEnergySums, GpuTime, MAX_NAMES, OTHER};

    /// GPUs of the largest machine that is counted on.
    const GPUS: usize = 16;

    /// Series of a page at most, as docs/reference.md says.
    const MOST_SERIES: usize = 28_000;

    const REFERENCE: &str = include_str!("../../../../../docs/reference.md");

    fn series(text: &str) -> usize {
        text.lines().filter(|line| !line.starts_with('#')).count()
    }

    fn without_slices(id: u32) -> JobRow {
        let mut job = job(id);
        job.slices.clear();
        job
    }

    /// A page with more of everything than it shows.
    fn crowded() -> Page {
        let mut jobs: Vec<JobRow> = (0..50).map(without_slices).collect();
        jobs.extend((50..3000).map(job));
        let mut page = page_of(jobs);
        let gpu = serde_json::to_value(&page.gpus[0]).unwrap();
        page.gpus = (0..GPUS)
            .map(|index| {
                let mut gpu = gpu.clone();
                gpu["index"] = index.into();
                gpu["uuid"] = format!("GPU-{index}").into();
                serde_json::from_value(gpu).unwrap()
            })
            .collect();
        let queue = serde_json::to_value(&page.queues[0]).unwrap();
        page.queues = (0..300)
            .map(|number| {
                let mut queue = queue.clone();
                queue["name"] = format!("q{number}").into();
                serde_json::from_value(queue).unwrap()
            })
            .collect();
        let stats = &mut page.daemon_stats;
        let project = serde_json::to_value(&stats.projects[0]).unwrap();
        stats.projects = (0..300)
            .map(|number| {
                let mut project = project.clone();
                project["name"] = format!("p{number}").into();
                serde_json::from_value(project).unwrap()
            })
            .collect();
        for number in 0..300 {
            stats.entitled.insert(format!("p{number}"), 1);
        }
        for number in 0..3000 {
            stats.held.insert(number.to_string(), 1);
            stats.energy.insert(number.to_string(), 1);
        }
        for queue in &page.queues {
            let waits = stats.counted.waits.entry(queue.name.clone()).or_default();
            waits.add(Duration::from_secs(7));
        }
        // The journal keeps no more names.
        let names = (0..MAX_NAMES).map(|number| format!("n{number}"));
        let spent = names
            .chain([OTHER.to_owned()])
            .map(|name| (name, GpuTime::default()));
        page.gpu_time.users = spent.clone().collect();
        page.gpu_time.projects = spent.collect();
        let gpus = page.gpus.iter().map(|gpu| gpu.uuid.clone());
        page.gpu_time.gpus = gpus.map(|gpu| (gpu, GpuEnergySums::default())).collect();
        page
    }

    #[test]
    fn a_page_has_a_limited_number_of_series_and_says_what_has_none() {
        let mut page = crowded();
        assert!(series(&text(&page)) > 2 * MOST_SERIES);
        limit(&mut page);
        let omitted = Omitted {
            jobs: 2000,
            queues: 44,
            projects: 44,
        };
        assert_eq!(page.omitted, omitted);
        let text = text(&page);
        let count = series(&text);
        assert!(
            count < MOST_SERIES && count > MOST_SERIES * 9 / 10,
            "{count} series"
        );
        for line in [
            r#"divvy_metrics_omitted{kind="job"} 2000"#,
            r#"divvy_metrics_omitted{kind="queue"} 44"#,
            r#"divvy_metrics_omitted{kind="project"} 44"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line}");
        }
        // The oldest with a slice, and none that holds nothing.
        for (id, is_shown) in [(0, false), (50, true), (1049, true), (1050, false)] {
            let begins = format!("divvy_job_state{{job=\"{id}\",");
            assert_eq!(
                text.lines().any(|line| line.starts_with(&begins)),
                is_shown,
                "job {id}"
            );
        }
        assert!(REFERENCE.contains("at most 28,000 series"));
    }

    #[test]
    fn jobs_on_many_gpus_count_with_each_slice_and_small_ones_take_the_room_that_is_left() {
        let mut wide = job(1);
        let slice = wide.slices[0].clone();
        wide.slices = vec![slice; MOST_SLICES - 1];
        let mut jobs = vec![without_slices(7), without_slices(8), wide, job(2), job(3)];
        assert_eq!(keep_jobs(&mut jobs), 3);
        let kept: Vec<&str> = jobs.iter().map(|job| job.labels.id.as_str()).collect();
        assert_eq!(kept, ["1", "2"]);

        let mut few = vec![without_slices(7), job(2)];
        assert_eq!(keep_jobs(&mut few), 0);
        assert_eq!(few.len(), 2);
    }
}
