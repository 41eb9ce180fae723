//! Slices of an engine: claims that end with a process or with a control group, whatever dies when.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use divvy_api::v1::{Claim, ClaimDevice, ClaimEnd};
use divvy_core::{JobId, JobState};
use tokio::sync::oneshot;

use super::kernel::Kind;
use super::run::{DIVIDED, Run};
use super::{World, accounts, gpus, with};
use crate::controller::mailbox::Message;
use crate::model::claim::end::End;
use divvy_testkit::Rng;

/// Names of slices. The first ends with a process, the second with a control group, the third by hand or with either.
pub const NAMES: [&str; 3] = ["job-1", "job-2", "job-3"];

/// What the engine of a machine has made.
#[derive(Default)]
pub struct Engines {
    /// The process of each slice, by its name.
    processes: BTreeMap<String, u32>,
    /// Control groups, with their inodes.
    groups: BTreeMap<PathBuf, u64>,
    made: u64,
}

/// What the run knows of its slices.
#[derive(Default)]
pub struct Lent {
    jobs: BTreeMap<JobId, (String, Option<End>)>,
    given_back: BTreeSet<String>,
}

/// The group with this folder in a simulation; `None` where there is none.
pub fn cgroup_id(folder: &Path) -> Option<io::Result<Option<u64>>> {
    with(|world| Ok(world.engines.groups.get(folder).copied()))
}

fn group_of(name: &str) -> PathBuf {
    Path::new("/sys/fs/cgroup").join(name)
}

impl Run {
    /// An engine asks for a slice, perhaps once more, perhaps another way.
    pub fn slice(&mut self, gpu: usize, dice: &mut Rng) {
        let name = dice.one(&NAMES).unwrap_or_default().to_owned();
        let owner = dice.one(accounts::all()).unwrap_or(accounts::ME);
        let ends = with(|world| world.end_of(&name, dice)).flatten();
        let gpu = match DIVIDED.contains(&gpu) && !dice.once_in(3) {
            true => ClaimDevice::profile(gpu.to_string(), "1g.10gb"),
            false => ClaimDevice::share(gpus::uuid(gpu).to_string(), 250),
        };
        let mut devices = vec![gpu];
        if dice.once_in(4) {
            devices.push(ClaimDevice::share("0", 125));
        }
        self.inbox.push(Message::HoldClaim {
            uid: name,
            claim: Box::new(Claim {
                devices,
                ends,
                ..Claim::default()
            }),
            by: Box::new(accounts::caller(owner)),
            maker: None,
            reply: oneshot::channel().0,
        });
    }

    /// What a slice ends with comes or goes, or its engine releases it.
    pub fn slice_ends(&mut self, dice: &mut Rng) {
        let name = dice.one(&NAMES).unwrap_or_default();
        match dice.below(3) {
            0 => {
                self.end_pods(name);
                with(|world| world.engine_ends(name));
            }
            1 => {
                let group = group_of(name);
                let appears = with(|world| world.group_appears(&group)).unwrap_or_default();
                if !appears {
                    self.end_pods(name);
                    with(|world| world.group_goes(&group));
                }
            }
            _ => self.releases_slice(name),
        }
    }

    fn releases_slice(&mut self, name: &str) {
        self.end_pods(name);
        self.lent.given_back.insert(name.to_owned());
        self.inbox.push(Message::ReleaseClaim {
            uid: name.to_owned(),
            by: Box::new(accounts::caller(accounts::ME)),
            reply: oneshot::channel().0,
        });
    }

    /// All engines end, without a call to the daemon but for the slices that end by hand or whose group never came.
    pub fn engines_end(&mut self) {
        for name in NAMES {
            self.end_pods(name);
            with(|world| {
                world.engine_ends(name);
                world.group_goes(&group_of(name));
            });
        }
        let by_hand = self.living().into_values().filter_map(|job| {
            let claim = job.spec.policy.claim.as_ref()?;
            let waits = match &claim.ends {
                None => true,
                Some(end) => matches!(end, End::Cgroup { id: None, .. }),
            };
            (claim.is_slice() && waits).then(|| claim.uid.clone())
        });
        for name in by_hand.collect::<BTreeSet<_>>() {
            self.releases_slice(&name);
        }
    }

    /// Whether a claim may get programs: the engine of a slice that has ended starts none.
    pub fn may_be_entered(claim: &crate::model::claim::Claim) -> bool {
        // The programs of a simulated pod know one namespace as the owner of an instance.
        let is_divided = claim.devices.iter().any(|device| device.mig.is_some());
        let is_over = with(|world| claim.ends.as_ref().is_some_and(|end| world.is_over(end)));
        !claim.is_slice() || !is_divided && !is_over.unwrap_or_default()
    }

    /// After a round: a lent slice ends only if it was released, or its process or control group is gone; and while it
    /// is lent, its entry is there.
    ///
    /// # Errors
    /// Which ended too early, or has no entry.
    pub fn slices_end_with_their_ends(&mut self) -> Result<(), String> {
        let living = self.living();
        let mut bound = BTreeMap::new();
        for (id, job) in &living {
            if let (Some(claim), JobState::Bound { .. }) = (&job.spec.policy.claim, &job.state)
                && claim.is_slice()
            {
                bound.insert(*id, (claim.uid.clone(), claim.ends.clone()));
            }
        }
        for (id, (name, end)) in &self.lent.jobs {
            let is_over = with(|world| end.as_ref().is_some_and(|end| world.is_over(end)));
            let may_end = self.lent.given_back.contains(name) || is_over.unwrap_or_default();
            if !bound.contains_key(id) && !may_end {
                return Err(format!("slice {name} (job {id}) ended before {end:?}"));
            }
        }
        let me = accounts::uid(accounts::ME);
        for (name, _) in bound.values() {
            let entry = crate::job_dir::slice_entry::path(&self.home, me, name);
            // One that was released may be taken back by a daemon that died before it journaled that.
            if !entry.exists() && !self.lent.given_back.contains(name) {
                let is_over = bound.values().any(|(other, end)| {
                    let over = |end: &End| with(|world| world.is_over(end)).unwrap_or_default();
                    other == name && end.as_ref().is_some_and(over)
                });
                if !is_over {
                    return Err(format!("the lent slice {name} has no entry"));
                }
            }
        }
        self.lent.jobs = bound;
        Ok(())
    }
}

impl World {
    /// What an engine's request names as the end of a slice.
    fn end_of(&mut self, name: &str, dice: &mut Rng) -> Option<ClaimEnd> {
        let kind = match name {
            "job-1" => 0,
            "job-2" => 1,
            _ => dice.below(3),
        };
        match kind {
            0 => Some(ClaimEnd::with_process(self.engine_of(name), None)),
            1 => Some(ClaimEnd::with_cgroup(group_of(name).display().to_string())),
            _ => None,
        }
    }

    fn engine_of(&mut self, name: &str) -> u32 {
        let before = self.engines.processes.get(name).copied();
        if let Some(pid) = before.filter(|pid| self.processes.contains_key(pid)) {
            return pid;
        }
        let pid = self.spawn(1, None, Kind::Engine);
        self.engines.processes.insert(name.to_owned(), pid);
        pid
    }

    fn engine_ends(&mut self, name: &str) {
        if let Some(pid) = self.engines.processes.remove(name) {
            self.trace(|| format!("  the engine of {name} ends"));
            self.kill(pid);
        }
    }

    /// Whether the group was not there, and is now.
    pub fn group_appears(&mut self, group: &Path) -> bool {
        if self.engines.groups.contains_key(group) {
            return false;
        }
        self.engines.made += 1;
        let id = self.engines.made;
        self.engines.groups.insert(group.to_owned(), id);
        self.trace(|| format!("  {} appears", group.display()));
        true
    }

    pub fn group_goes(&mut self, group: &Path) {
        if self.engines.groups.remove(group).is_some() {
            self.trace(|| format!("  {} is removed", group.display()));
        }
    }

    fn is_over(&self, end: &End) -> bool {
        match end {
            End::Process { pid, .. } => !self.processes.contains_key(pid),
            // The daemon gives the group some minutes to appear.
            End::Cgroup { id: None, .. } => true,
            End::Cgroup { folder, id } => self.engines.groups.get(folder) != id.as_ref(),
        }
    }
}
