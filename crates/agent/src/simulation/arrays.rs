//! Arrays in a run, and the jobs that run after them.

use crate::controller::request::{Act, MatchingJobs, Selection};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use divvy_api::v1::{After, Array, JobQuery, Runner, Submit};
use divvy_core::job::Outcome;
use divvy_core::{JobId, JobState};
use tokio::sync::oneshot;

use super::accounts::ME;
use super::run::Run;
use super::{accounts, with, workload};
use crate::controller::mailbox::Message;
use crate::model::job::Job;
use crate::model::job_filter::JobFilter;
use divvy_testkit::Rng;

/// What the clients of a run know of their arrays.
#[derive(Default)]
pub struct Arrays {
    /// How many jobs each has, by the number of its first.
    sizes: BTreeMap<JobId, u32>,
    /// The dependencies of each job, and whether these have to end well.
    follows: BTreeMap<JobId, Vec<(JobId, bool)>>,
    /// Jobs that were placed, and rightly.
    looked_at: BTreeSet<JobId>,
}

impl Run {
    /// An array, or something that runs after one.
    pub fn submits_array(&mut self, dice: &mut Rng) {
        let mut submit = workload::plain(Runner::Supervisor, dice, &self.keys);
        let arrays: Vec<JobId> = self.arrays.sizes.keys().copied().collect();
        let before = dice.one(&arrays).filter(|_| dice.once_in(2));
        if let Some(array) = before {
            submit.after = vec![After {
                job: array.to_string(),
                ok: dice.once_in(2),
            }];
        }
        if before.is_none() || dice.once_in(3) {
            let count = 2 + u32::try_from(dice.below(3)).unwrap_or(0);
            submit.array = Some(Array {
                indices: (0..count).collect(),
                max_running: dice.one(&[None, Some(1), Some(2)]).flatten(),
            });
        }
        let (key, who) = self.next_key(dice);
        self.sends(key, who, submit);
    }

    /// A client acts on a whole array.
    pub fn acts_on_array(&mut self, dice: &mut Rng) {
        let arrays: Vec<JobId> = self.arrays.sizes.keys().copied().collect();
        let Some(array) = dice.one(&arrays) else {
            return;
        };
        let acts = [
            Act::Cancel,
            Act::Requeue,
            Act::Suspend,
            Act::Resume,
            Act::Hold,
            Act::Release,
        ];
        let places: Vec<usize> = (0..acts.len()).collect();
        let act = dice.one(&places).and_then(|place| acts.get(place).cloned());
        let act = act.unwrap_or(Act::Cancel);
        let owner = self.owners.get(&array).copied().unwrap_or(ME);
        let selection = match dice.once_in(3) {
            false => Selection::Array(array),
            true => self.matching(dice, owner),
        };
        let shown = match &selection {
            Selection::Array(array) => format!("array {array}"),
            Selection::Matching(matching) => format!("by filter {matching:?}"),
        };
        with(|world| world.trace(|| format!("  {act:?} {shown}")));
        self.inbox.push(Message::Act {
            selection,
            act,
            by: Box::new(accounts::caller(owner)),
            reply: oneshot::channel().0,
        });
    }

    /// Jobs by a filter: those of a user, perhaps in one state, perhaps only some that the user has agreed to.
    fn matching(&self, dice: &mut Rng, user: &str) -> Selection {
        let states = ["queued", "running", "starting,running,stopping"];
        let query = JobQuery {
            user: Some(user.to_owned()),
            state: dice
                .one(&states)
                .filter(|_| dice.once_in(2))
                .map(str::to_owned),
            ..JobQuery::default()
        };
        let known = self.owners.keys().copied();
        let only = dice
            .once_in(2)
            .then(|| known.filter(|job| job.0 % 2 == 0).collect());
        Selection::Matching(MatchingJobs {
            filter: Arc::new(JobFilter::parse(&query).expect("words of the API")),
            only,
        })
    }

    /// A submission was answered with this job: all of an array are there from now on.
    pub fn knows_array(
        &mut self,
        key: &str,
        first: JobId,
        submit: &Submit,
    ) -> Vec<(String, JobId)> {
        let count = submit.array.as_ref().map_or(1, |array| array.indices.len());
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let jobs = (0..count).map(|index| JobId(first.0 + u64::from(index)));
        let mut before = Vec::new();
        for after in &submit.after {
            let Ok(job) = after.job.parse::<JobId>() else {
                continue;
            };
            let size = self.arrays.sizes.get(&job).copied().unwrap_or(1);
            let all = (0..size).map(|index| JobId(job.0 + u64::from(index)));
            before.extend(all.map(|job| (job, after.ok)));
        }
        for job in jobs.clone() {
            self.arrays.follows.insert(job, before.clone());
        }
        if submit.array.is_some() {
            self.arrays.sizes.insert(first, count);
        }
        let named = jobs.skip(1).map(|job| (format!("{key}#{job}"), job));
        named.collect()
    }

    /// What refers to this job and to no other.
    pub fn reference(&self, id: JobId) -> String {
        match self.arrays.sizes.contains_key(&id) {
            true => format!("{id}_0"),
            false => id.to_string(),
        }
    }

    /// A job that runs after others is not placed before they have ended, each of an array included.
    ///
    /// # Errors
    /// Which was.
    pub fn no_job_starts_early(&mut self, living: &BTreeMap<JobId, Job>) -> Result<(), String> {
        let Some(daemon) = &self.daemon else {
            return Ok(());
        };
        let is_new = |job: &&Job| job.attempt > 0 && !self.arrays.looked_at.contains(&job.id);
        let placed: Vec<&Job> = living.values().filter(is_new).collect();
        for job in placed {
            let Some(before) = self.arrays.follows.get(&job.id).cloned() else {
                continue;
            };
            for (other, ok) in &before {
                let end = match living.get(other) {
                    Some(other) => other.state.clone(),
                    None => {
                        let job = daemon.cycle.journal().job(*other);
                        let job = job.map_err(|error| error.to_string())?;
                        job.map_or(JobState::Queued, |job| job.state)
                    }
                };
                let is_right = match end.outcome() {
                    None => false,
                    Some(outcome) => !ok || *outcome == Outcome::Exited(0),
                };
                if !is_right {
                    return Err(format!(
                        "job {} runs after {other}, and was placed while that is {}",
                        job.id,
                        end.state()
                    ));
                }
            }
            if before.len() > 1 {
                let id = job.id;
                with(|world| world.trace(|| format!("  job {id} comes after an array")));
            }
            self.arrays.looked_at.insert(job.id);
        }
        Ok(())
    }
}
