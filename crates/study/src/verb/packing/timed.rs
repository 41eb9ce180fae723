//! Jobs that arrive as they did, with their own times.

use crate::engine::departures::Timed as Arrival;
use crate::engine::workload::Workload;
use divvy_packing::Cluster;

use crate::verb::count_of;
use crate::verb::input::Job;
use divvy_cli::error_output::{Result, usage};

/// The jobs of the pods, each with its pod's shape and its own times, in seconds from the first; with a load, closer together or
/// further apart.
///
/// # Errors
/// Jobs without times, and a load for jobs that bring none.
pub fn timed(jobs: &[&Job], workload: &Workload, load: Option<f64>) -> Result<Vec<Arrival>> {
    let mut arrivals = Vec::new();
    let (mut volume, mut without) = (0.0, 0_usize);
    let cluster = Cluster::new(workload.nodes.iter().cloned());
    for (job, pod) in jobs.iter().zip(&workload.pods) {
        let (Some(submitted), Some(ran)) = (job.submitted, job.ran_ms()) else {
            without += 1;
            continue;
        };
        let holding = ran as f64 / 1000.0;
        volume += holding * cluster.asked_milli(&pod.shape) as f64;
        arrivals.push((submitted, holding, pod.shape));
    }
    if without > 0 {
        let jobs = count_of(without, "job");
        divvy_cli::output::say(&format!("skipped {jobs} without start and end"));
    }
    arrivals.sort_by_key(|(submitted, _, _)| *submitted);
    let (Some(first), Some(last)) = (arrivals.first(), arrivals.last()) else {
        return Err(usage(
            "--order given: no job has a submission, a start and an end",
            "omit --order, so that jobs arrive at random",
        ));
    };
    let (start, span) = (first.0, (last.0 - first.0) as f64 / 1000.0);
    let brought = volume / span / cluster.capacity_milli() as f64;
    let scale = match load {
        None => 1.0,
        Some(load) if brought.is_finite() && brought > 0.0 => brought / load,
        Some(_) => {
            return Err(usage(
                "--load is not possible: all jobs arrive at once or have duration 0",
                "omit --load",
            ));
        }
    };
    let arrival = |(submitted, holding, shape): (i64, f64, _)| Arrival {
        at: (submitted - start) as f64 / 1000.0 * scale,
        holding,
        shape,
    };
    Ok(arrivals.into_iter().map(arrival).collect())
}
