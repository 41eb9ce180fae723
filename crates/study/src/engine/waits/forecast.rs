//! Forecasts: when a job would start that is submitted now, beside the running and the waiting jobs.
//!
//! How long jobs run is drawn from the durations of like jobs: of the same queue and amount, then of the same amount,
//! then of all. A running job has one of the durations that are longer than it has run. If it has run longer than all
//! of them, it runs for as long again.

use std::collections::BTreeMap;

use super::figures::{Forecast, Wait};
use super::question::Progress;
use super::run::Plan;
use super::scene::{MOST_DRAWN, Scene, SceneError};
use super::work::{Draw, Present, Submission};
use divvy_core::request::Amount;
use divvy_core::units::{JobId, QueueName};
use divvy_packing::random::Random;

/// Fewer durations of like jobs say nothing. The same as the product's (`RUNS`, `LEAST` of
/// `core::explain::runtime_stats`), so that both agree.
const LEAST: usize = 3;

/// Durations of ended jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    of_kind: BTreeMap<(QueueName, Amount), Vec<u64>>,
    of_amount: BTreeMap<Amount, Vec<u64>>,
    all: Vec<u64>,
}

impl History {
    /// From ended jobs, in any order.
    pub fn of<'a>(jobs: impl IntoIterator<Item = &'a Submission>) -> Self {
        let mut history = Self::default();
        for job in jobs {
            let amount = job.request.amount.plain();
            let kind = (job.queue.clone(), amount);
            history.of_kind.entry(kind).or_default().push(job.runs_ms);
            history
                .of_amount
                .entry(amount)
                .or_default()
                .push(job.runs_ms);
            history.all.push(job.runs_ms);
        }
        let lists = history.of_kind.values_mut();
        let lists = lists.chain(history.of_amount.values_mut());
        lists
            .chain([&mut history.all])
            .for_each(|list| list.sort_unstable());
        history
    }

    /// The durations of like jobs, ascending; as few as there are where all together are too few.
    pub fn like(&self, job: &Submission) -> &[u64] {
        let amount = job.request.amount.plain();
        let kind = self.of_kind.get(&(job.queue.clone(), amount));
        let amount = self.of_amount.get(&amount);
        let lists = kind.into_iter().chain(amount);
        let mut enough = lists.filter(|durations| durations.len() >= LEAST);
        enough.next().unwrap_or(&self.all)
    }

    /// How long a job runs from now on that has run for so long.
    fn draw(&self, job: &Submission, ran_ms: u64, random: &mut Random) -> u64 {
        let like = self.like(job);
        let longer = &like[like.partition_point(|duration| *duration <= ran_ms)..];
        let drawn = match longer.len() {
            0 => ran_ms.saturating_mul(2),
            count => longer[random.below(count)],
        };
        let runs = job.limit_ms.map_or(drawn, |limit| limit.min(drawn));
        runs.saturating_sub(ran_ms)
    }
}

/// When `job` would start, over so many runs with seeds from `seed` on. `later`: jobs that are submitted from now on.
///
/// # Errors
/// [`SceneError`], for what cannot be simulated, and without any duration in the history.
pub fn forecast(
    scene: &Scene,
    present: &Present,
    job: &Submission,
    history: &History,
    later: Option<&Draw>,
    (runs, seed): (u32, u64),
    progress: &mut dyn FnMut(Progress),
) -> Result<Forecast, SceneError> {
    if history.all.is_empty() {
        return Err(SceneError::Nothing("ended jobs in its history"));
    }
    if runs == 0 {
        return Err(SceneError::Nothing("runs"));
    }
    let jobs = present.running.len() + present.waiting.len() + 1;
    let later_jobs = later.map_or(0, |draw| usize::try_from(draw.jobs).unwrap_or(usize::MAX));
    let of = usize::try_from(runs).unwrap_or(usize::MAX);
    let count = jobs.saturating_add(later_jobs).saturating_mul(of);
    if count > MOST_DRAWN {
        let (what, most) = ("jobs in all runs", MOST_DRAWN);
        return Err(SceneError::TooMany { what, count, most });
    }
    if let Some(draw) = later {
        draw.check()?;
    }
    let nth = jobs - 1;
    let (mut waits, mut stuck, mut refused) = (Vec::new(), 0, false);
    for run in 0..runs {
        let mut random = Random::seeded(seed.wrapping_add(run.into()));
        let mut work = work(present, job);
        for (nth, job) in work.iter_mut().enumerate() {
            let running = present.running.get(nth);
            job.runs_ms = history.draw(job, running.map_or(0, |job| job.ran_ms), &mut random);
            if running.is_some() {
                job.limit_ms = None;
            }
        }
        if let Some(draw) = later {
            work.extend(draw.run(run).into_iter().map(|job| Submission {
                at_ms: job.at_ms.saturating_add(present.now_ms),
                ..job
            }));
        }
        let plan = Plan {
            until: Some(JobId(nth as u64)),
            ..plan(scene, present, &work)
        };
        let outcome = plan.run(&mut |_| ())?.jobs[nth];
        refused = outcome.refused;
        match outcome.wait_ms {
            Some(wait) => waits.push(wait),
            None => stuck += u32::from(!refused),
        }
        let done = usize::try_from(run + 1).unwrap_or(usize::MAX);
        progress(Progress { done, of });
    }
    Ok(Forecast {
        runs,
        starts_now: !waits.is_empty() && waits.iter().all(|wait| *wait == 0),
        refused,
        stuck,
        wait: Wait::of(&mut waits),
    })
}

/// The jobs that run, those that wait by age, and the new one.
fn work(present: &Present, job: &Submission) -> Vec<Submission> {
    let running = present.running.iter().map(|running| &running.job);
    let mut waiting: Vec<&Submission> = present.waiting.iter().collect();
    waiting.sort_by_key(|waiting| waiting.at_ms);
    let mut work: Vec<Submission> = running.chain(waiting).cloned().collect();
    work.push(job.clone());
    for job in &mut work {
        job.at_ms = job.at_ms.min(present.now_ms);
    }
    if let Some(job) = work.last_mut() {
        job.at_ms = present.now_ms;
    }
    work
}

fn plan<'a>(scene: &'a Scene, present: &'a Present, work: &'a [Submission]) -> Plan<'a> {
    Plan {
        scene,
        submissions: work,
        running: &present.running,
        starts_at: present.now_ms,
        counted: (0, 0),
        until: None,
    }
}
