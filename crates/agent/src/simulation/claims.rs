//! Claims of another scheduler, and the pods that use them: programs that are no children of the daemon, in foreign
//! containers, with the edits of the claim's device.

use std::fs;
use std::time::Duration;

use divvy_api::home::Home;
use divvy_api::v1::{Claim, ClaimDevice};
use divvy_core::{JobId, JobState};
use serde_json::Value;
use tokio::sync::oneshot;

use super::accounts::{self, ME};
use super::kernel::{Kind, Within};
use super::program::Program;
use super::run::{DIVIDED, Run};
use super::{World, clock, gpus, mig, with};
use crate::container::edits::JobFiles;
use crate::controller::mailbox::Message;
use crate::job_dir::JobDir;
use divvy_testkit::Rng;

/// Claims that there may be, by uid.
pub const UIDS: [&str; 4] = ["one", "two", "three", "four"];

/// The namespaces of claims: programs of one must not find what another's have left.
const NAMESPACES: [&str; 2] = ["team", "crew"];

/// What the device of a claim makes visible in a container, by its file.
pub fn visible(home: &Home, uid: &str) -> Option<String> {
    let files = fs::read_dir(home.state().join("cdi")).ok()?;
    let mut files = files.flatten().map(|entry| entry.path());
    let end = format!("-{uid}.claim.json");
    let file = files.find(|path| path.to_string_lossy().ends_with(&end))?;
    let cdi: Value = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
    let variables = cdi["devices"][0]["containerEdits"]["env"].as_array()?;
    let mut variables = variables.iter().filter_map(Value::as_str);
    let visible = variables.find_map(|text| text.strip_prefix("CUDA_VISIBLE_DEVICES="));
    visible.map(str::to_owned)
}

impl Run {
    /// Another scheduler wants something held, perhaps once more, perhaps with another body.
    pub fn claims(&mut self, gpu: usize, dice: &mut Rng) {
        let gib = dice.one(&[4, 16, 40, 0]);
        let uid = dice.one(&UIDS).unwrap_or_default().to_owned();
        let mut devices = match gib {
            Some(gib) if gib > 0 => vec![ClaimDevice::part(gpus::uuid(gpu).to_string(), gib << 30)],
            _ => vec![ClaimDevice::whole(gpus::uuid(gpu).to_string())],
        };
        if DIVIDED.contains(&gpu) && !dice.once_in(3) {
            devices = instances(gpu, dice);
        } else if dice.once_in(4) {
            devices.push(ClaimDevice::part(gpus::uuid(0).to_string(), 4 << 30));
        }
        self.asked_again.insert(uid.clone());
        self.inbox.push(Message::HoldClaim {
            uid,
            claim: Box::new(Claim {
                namespace: dice.one(&NAMESPACES).unwrap_or_default().to_owned(),
                name: "train".to_owned(),
                pods: Vec::new(),
                devices,
                ..Claim::default()
            }),
            by: Box::new(accounts::caller(ME)),
            maker: None,
            reply: oneshot::channel().0,
        });
    }

    /// kubelet releases the claim: it has seen all its pods end, except one that hangs in the driver and that
    /// observations have shown.
    pub fn gives_back(&mut self, uid: &str) {
        self.end_pods(uid);
        self.given_back.insert(uid.to_owned());
        self.asked_again.remove(uid);
        self.inbox.push(Message::ReleaseClaim {
            uid: uid.to_owned(),
            by: Box::new(accounts::caller(ME)),
            reply: oneshot::channel().0,
        });
    }

    /// The pods of a claim end, whether there is a daemon or not.
    pub fn end_pods(&mut self, uid: &str) {
        let job = self.pods.remove(uid);
        with(|world| {
            for pid in job.map(|id| world.pods_of(id)).unwrap_or_default() {
                world.ends_pod(pid);
            }
        });
    }

    /// What was given back and is asked for once more counts again when its device is there.
    pub fn has_again(&mut self) {
        let (home, given_back) = (&self.home, &mut self.given_back);
        self.asked_again.retain(|uid| {
            let is_there = visible(home, uid).is_some();
            given_back.contains(uid) && !(is_there && given_back.remove(uid))
        });
    }

    /// A pod that uses a claim starts.
    pub fn pod(&mut self, dice: &mut Rng) {
        let bound: Vec<JobId> = self.bound().map(|(id, _)| id).collect();
        let Some(id) = dice.one(&bound) else { return };
        let Some(job) = self.living().remove(&id) else {
            return;
        };
        let claim = job.spec.policy.claim.as_ref();
        let Some(claim) = claim
            .filter(|claim| !self.given_back.contains(&claim.uid) && Self::may_be_entered(claim))
        else {
            return;
        };
        let visible = visible(&self.home, &claim.uid).unwrap_or_default();
        let dir = JobDir::new(self.home.job(&id.to_string()));
        let mounted = JobFiles::of(dir.path()).folder;
        let program = Program::of_pod(id.0, &claim.namespace, &mounted, &visible);
        self.pods.insert(claim.uid.clone(), id);
        with(|world| world.pod_comes(program));
    }

    /// Claims that may be used, with their uids.
    fn bound(&self) -> impl Iterator<Item = (JobId, String)> {
        let is_bound = |life: &JobState| matches!(life, JobState::Bound { .. });
        let all = self.living().into_iter();
        all.filter_map(move |(id, job)| {
            let claim = job
                .spec
                .policy
                .claim
                .as_ref()
                .filter(|_| is_bound(&job.state))?;
            Some((id, claim.uid.clone()))
        })
    }
}

/// One instance or two, somewhere on a GPU.
fn instances(gpu: usize, dice: &mut Rng) -> Vec<ClaimDevice> {
    let table = mig::table();
    let count = if dice.once_in(3) { 2 } else { 1 };
    let mut one = || {
        let names = ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb"];
        let name = dice.one(&names).unwrap_or_default();
        let mut profiles = table.profiles.iter();
        let profile = profiles.find(|profile| profile.name.to_string() == name);
        let starts = profile.map(|profile| profile.starts.clone());
        let start = dice.one(&starts.unwrap_or_default()).unwrap_or_default();
        ClaimDevice::instance(gpus::uuid(gpu).to_string(), name, start)
    };
    (0..count).map(|_| one()).collect()
}

impl World {
    fn pod_comes(&mut self, program: Program) {
        for device in program.devices.clone() {
            self.has_its_device(program.job, &program.tenant.clone(), &device);
        }
        let namespace = self.engine.next_namespace();
        let within = Within { namespace, pid: 1 };
        self.trace(|| format!("  a pod of the claim of job {} starts", program.job));
        self.spawn_within(1, None, Kind::Program(Box::new(program)), Some(within));
        // Ticks of the clock tell the start of a process from an observation, and no process uses a GPU in its first
        // tick.
        clock::advance(Duration::from_millis(20));
    }

    fn pods_of(&self, job: JobId) -> Vec<u32> {
        self.pids(|kind| match kind {
            Kind::Program(program) => program.mounted.is_some() && program.job == job.0,
            _ => false,
        })
    }

    fn ends_pod(&mut self, pid: u32) {
        let Some(proc) = self.processes.get_mut(&pid) else {
            return;
        };
        proc.told = true;
        if !self.listed.contains(&pid) {
            self.kill(pid);
        }
    }

    /// What they had on a GPU that is lost is gone, and they end of it.
    pub fn pods_fail(&mut self, gpu: usize) {
        let is_on = |kind: &Kind| match kind {
            Kind::Program(program) => program.mounted.is_some() && program.held.contains_key(&gpu),
            _ => false,
        };
        for pid in self.pids(is_on) {
            self.kill(pid);
        }
    }

    /// The kubelet has ended all of them.
    pub fn pods_end(&mut self) {
        for pid in
            self.pids(|kind| matches!(kind, Kind::Program(program) if program.mounted.is_some()))
        {
            self.kill(pid);
        }
    }
}
