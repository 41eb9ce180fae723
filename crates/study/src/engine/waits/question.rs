//! Questions: the same submissions before and after a change.

use super::change::Change;
use super::figures::{Answer, Figures};
use super::run::{Outcome, Plan, queues};
use super::scene::{Scene, SceneError};
use super::tally::{Counted, Paired, Tally};
use super::work::{Source, Submission};
use divvy_core::units::QueueName;

/// How far a simulation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Jobs that have ended, over all runs.
    pub done: usize,
    pub of: usize,
}

/// A report is made after so many jobs.
const STEP: usize = 256;

/// Of drawn submissions, the first of so many parts warms the nodes up and does not count.
const WARM_UP: usize = 10;

/// Simulates the scene.
///
/// # Errors
/// [`SceneError`], for a scene or work that cannot be simulated.
pub fn simulate(
    scene: &Scene,
    source: &Source,
    progress: &mut dyn FnMut(Progress),
) -> Result<Figures, SceneError> {
    let mut runs = Runs::new(source, 1)?;
    let mut tally: Option<Tally> = None;
    while let Some(submissions) = runs.next() {
        let counted = runs.counted(scene, &submissions);
        let outcome = runs.run(scene, &submissions, progress)?;
        tally
            .get_or_insert_with(|| Tally::new(names(scene, &submissions)))
            .add(counted, &outcome);
    }
    Ok(tally.map(Tally::figures).unwrap_or_default())
}

/// Simulates the scene without and with the changes, on the same submissions.
///
/// # Errors
/// [`SceneError`], also for a change that names a GPU, queue or project that the scene does not have.
pub fn ask(
    scene: &Scene,
    source: &Source,
    changes: &[Change],
    progress: &mut dyn FnMut(Progress),
) -> Result<Answer, SceneError> {
    let mut runs = Runs::new(source, 2)?;
    let mut tallies: Option<[Tally; 2]> = None;
    let mut paired = Paired::default();
    while let Some(submissions) = runs.next() {
        let (mut changed, mut work) = (scene.clone(), submissions.clone());
        // A queue that only jobs name can be changed too.
        changed.queues = queues(scene, &submissions);
        for change in changes {
            change.apply(&mut changed, &mut work)?;
        }
        let before = runs.run(scene, &submissions, progress)?;
        let after = runs.run(&changed, &work, progress)?;
        let counted = runs.counted(scene, &submissions);
        let of_changed = runs.counted(&changed, &work);
        paired.add(counted, &before, &after);
        let tallies = tallies.get_or_insert_with(|| {
            let names = || names(scene, &submissions);
            [Tally::new(names()), Tally::new(names())]
        });
        tallies[0].add(counted, &before);
        tallies[1].add(of_changed, &after);
    }
    let figures = tallies.map(|tallies| tallies.map(Tally::figures));
    let [before, after] = figures.unwrap_or_default();
    Ok(paired.answer(before, after))
}

fn names(scene: &Scene, submissions: &[Submission]) -> Vec<QueueName> {
    let queues = queues(scene, submissions).into_iter();
    queues.map(|queue| queue.name).collect()
}

/// The runs of a source, one after another.
struct Runs<'a> {
    source: &'a Source,
    next: u32,
    done: usize,
    of: usize,
}

impl<'a> Runs<'a> {
    /// `scenes`: how many scenes each run simulates.
    fn new(source: &'a Source, scenes: usize) -> Result<Self, SceneError> {
        let jobs = match source {
            Source::Listed(jobs) => jobs.len(),
            Source::Drawn(draw) => {
                draw.check()?;
                let jobs = u64::from(draw.jobs) * u64::from(draw.runs);
                usize::try_from(jobs).unwrap_or(usize::MAX)
            }
        };
        Ok(Self {
            source,
            next: 0,
            done: 0,
            of: jobs * scenes,
        })
    }

    fn next(&mut self) -> Option<Vec<Submission>> {
        let run = self.next;
        self.next += 1;
        match self.source {
            Source::Listed(jobs) => {
                let mut jobs = (run == 0).then(|| jobs.clone())?;
                jobs.sort_by_key(|job| job.at_ms);
                Some(jobs)
            }
            Source::Drawn(draw) => (run < draw.runs).then(|| draw.run(run)),
        }
    }

    fn first(&self, submissions: &[Submission]) -> usize {
        match self.source {
            Source::Listed(_) => 0,
            Source::Drawn(_) => submissions.len() / WARM_UP,
        }
    }

    fn window(&self, submissions: &[Submission]) -> (u64, u64) {
        let at = |nth: usize| submissions.get(nth).map_or(0, |job| job.at_ms);
        let last = submissions.len().saturating_sub(1);
        (at(self.first(submissions)), at(last))
    }

    fn counted<'s>(&self, scene: &Scene, submissions: &'s [Submission]) -> Counted<'s> {
        let (from, to) = self.window(submissions);
        Counted {
            submissions,
            first: self.first(submissions),
            capacity: 1000 * scene.gpus() as u64,
            span_ms: to - from,
        }
    }

    fn run(
        &mut self,
        scene: &Scene,
        submissions: &[Submission],
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Outcome, SceneError> {
        let (before, of) = (self.done, self.of);
        let mut told = 0;
        let mut tick = |done: usize| {
            if done >= told + STEP {
                told = done;
                progress(Progress {
                    done: before + done,
                    of,
                });
            }
        };
        let plan = Plan {
            scene,
            submissions,
            running: &[],
            starts_at: 0,
            counted: self.window(submissions),
            until: None,
        };
        let outcome = plan.run(&mut tick)?;
        self.done += submissions.len();
        progress(Progress {
            done: self.done,
            of,
        });
        Ok(outcome)
    }
}
