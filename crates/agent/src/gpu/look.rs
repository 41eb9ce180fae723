//! One look at everything: the slices' accounts, the driver, the accounts again, and who the listed processes are.
//!
//! ```text
//! accounts ──► driver ──► accounts ──► /proc ──► a sight of each GPU, for `divvy_core::reconcile`
//! ```
//! The driver's figures are compared only with accounts that were the same before and after it was asked. Where nobody was in a slice and the
//! driver lists nobody on its GPUs there is nothing to compare, and the account is read once.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use divvy_core::mig::Placement;
use divvy_core::reconcile::{self, Account, Of, ProcessSight, Sight, SliceSight};
use divvy_core::{Bytes, JobId};
use divvy_ledger::{OpenError, Owner, ProcessState, ProcessUsage, SliceSpec, Snapshot, is_settled};

use super::kin::{Kin, Kinship, Met, Person};
use super::roster::{self, Roster};
use super::{GpuProcess, Observation, Observed, Trouble};
use crate::clock::boot_ns;
use crate::process::inside::{Inside, Marks, has_mapped};
use crate::process::{self, Process};

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// When the driver was asked (CLOCK_BOOTTIME, nanoseconds).
    pub at: reconcile::Moment,
    pub gpus: Vec<Seen>,
    /// GPUs that do not answer.
    pub troubles: Vec<Trouble>,
    pub people: HashMap<u32, Person>,
    /// What was seen inside those without an account.
    pub insides: HashMap<u32, Inside>,
    pub books: BTreeMap<JobId, Book>,
    /// Processes of containers that have ended, by what they called themselves.
    pub gone: HashSet<Owner>,
}

/// One GPU.
#[derive(Clone, Debug)]
pub struct Seen {
    pub observed: Observed,
    pub sight: Sight,
    /// Pids of those that are no job's.
    pub strangers: Vec<u32>,
    /// Who is in its MIG instances.
    pub tenants: Vec<Tenant>,
}

/// A process in a MIG instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenant {
    pub placement: Placement,
    pub pid: u32,
    /// The job that it is of.
    pub job: Option<JobId>,
}

/// A slice and its account.
#[derive(Clone, Debug)]
pub struct Book {
    spec: SliceSpec,
    /// Why the account cannot be read, where it cannot.
    pub pages: Result<Pages, String>,
}

/// A slice's account around one question to the driver.
#[derive(Clone, Debug)]
pub struct Pages {
    before: Snapshot,
    after: Snapshot,
    then: Vec<ProcessUsage>,
    now: Vec<ProcessUsage>,
    /// Somebody in it has ended, and may have something to give back.
    pub has_dead: bool,
}

/// The accounts before the driver is asked.
pub type Before = BTreeMap<JobId, Result<Snapshot, OpenError>>;

/// Reads the accounts of all slices.
pub fn before(roster: &Roster) -> Before {
    roster
        .accounts()
        .map(|(job, account)| (job, account.slice.read()))
        .collect()
}

/// Puts together what the driver answered at `at` and the accounts of `before`.
pub fn put_together(
    at: reconcile::Moment,
    observation: Observation,
    before: Before,
    roster: &Roster,
    kin: &mut Kin,
    marks: &Marks,
) -> Look {
    let owners = before.values().flatten().flat_map(Snapshot::processes);
    let gone = kin.gone_abroad(
        owners.map(|process| process.owner),
        &met(&before, roster),
        roster,
    );
    let mut look = Look {
        at,
        books: books(before, roster, &gone, &inhabited(&observation)),
        gone,
        ..Look::default()
    };
    let listed = |pid: u32| {
        let lists = |gpu: &Observed| inhabitants(gpu).any(|process| process.pid == pid);
        observation.gpus.iter().any(lists)
    };
    kin.retain(listed);
    let mut gpus = Vec::new();
    for observed in &observation.gpus {
        if observed.divided().is_some() {
            gpus.push(look.divided(observed, roster, kin));
            continue;
        }
        let context = look.slices_on(observed).map(|(_, context)| context).max();
        let mut seen = Seen {
            sight: Sight {
                used: observed.used,
                context: context.unwrap_or_default(),
                slices: look.slices_on(observed).map(|(slice, _)| slice).collect(),
                processes: Vec::new(),
            },
            strangers: Vec::new(),
            tenants: Vec::new(),
            observed: observed.clone(),
        };
        for process in &observed.processes {
            let sight = look.process(observed, process, roster, kin, marks);
            if sight.of == Of::Nobody {
                seen.strangers.push(process.pid);
            }
            seen.sight.processes.push(sight);
        }
        gpus.push(seen);
    }
    look.gpus = gpus;
    look.troubles = observation.troubles;
    look
}

/// PID namespaces that processes of jobs without a supervisor say they are in.
fn met(before: &Before, roster: &Roster) -> BTreeSet<u64> {
    let here = process::here();
    let lent = roster.iter().filter(|(_, entry)| entry.mounted.is_some());
    let accounts = lent.filter_map(|(job, _)| before.get(&job)?.as_ref().ok());
    let owners = accounts.flat_map(Snapshot::processes);
    let namespaces = owners.map(|process| process.owner.pid_namespace);
    namespaces.filter(|namespace| *namespace != here).collect()
}

/// Every process of a GPU; one that is listed for the GPU and for an instance of it comes twice.
fn inhabitants(gpu: &Observed) -> impl Iterator<Item = &GpuProcess> {
    let instances = gpu.divided().into_iter().flat_map(|mig| &mig.instances);
    let devices = instances.flat_map(|instance| &instance.devices);
    gpu.processes
        .iter()
        .chain(devices.flat_map(|device| &device.processes))
}

/// Now, as [`Look::at`] has it.
pub fn now() -> reconcile::Moment {
    boot_ns()
}

/// The GPUs on which the driver lists somebody.
fn inhabited(observation: &Observation) -> HashSet<[u8; 16]> {
    let gpus = observation.gpus.iter();
    gpus.filter(|gpu| inhabitants(gpu).next().is_some())
        .map(|gpu| gpu.uuid.to_bytes())
        .collect()
}

/// Whether an account can be compared with nothing: nobody was in it, and nobody is on its GPUs.
fn is_deserted(before: &Snapshot, inhabited: &HashSet<[u8; 16]>) -> bool {
    let mut gpus = before.spec().gpus.iter();
    before.is_empty() && !gpus.any(|gpu| inhabited.contains(&gpu.uuid))
}

fn books(
    mut before: Before,
    roster: &Roster,
    gone: &HashSet<Owner>,
    inhabited: &HashSet<[u8; 16]>,
) -> BTreeMap<JobId, Book> {
    let mut book = |(job, account): (JobId, &roster::Account)| {
        let before = before.remove(&job);
        let after = match &before {
            Some(Ok(before)) if is_deserted(before, inhabited) => Ok(before.clone()),
            _ => account.slice.read(),
        };
        let spec = account.slice.granted();
        let pages = match (before, after) {
            (Some(Ok(before)), Ok(after)) => Ok(Pages::new(before, after, gone)),
            (_, Err(error)) | (Some(Err(error)), _) => Err(error.to_string()),
            (None, _) => Err("the slice did not exist at the previous observation".to_owned()),
        };
        (job, Book { spec, pages })
    };
    roster.accounts().map(&mut book).collect()
}

impl Pages {
    fn new(before: Snapshot, after: Snapshot, gone: &HashSet<Owner>) -> Self {
        let (then, mut now) = (before.processes(), after.processes());
        let here = process::here();
        let lives = |process: &ProcessUsage| {
            let Owner {
                pid,
                start_time,
                pid_namespace,
            } = process.owner;
            process.state == ProcessState::Live
                && match pid_namespace == here {
                    true => Process { pid, start_time }.is_alive(),
                    // Of the pids of other namespaces only a container's are known here.
                    false => !gone.contains(&process.owner),
                }
        };
        let all = now.len();
        now.retain(lives);
        Self {
            has_dead: now.len() < all,
            before,
            after,
            then,
            now,
        }
    }

    /// How often the limiter came upon what it could not count, or should not be.
    pub fn alarms(&self) -> u64 {
        self.after.alarms()
    }

    /// The slot of a process.
    fn slot(&self, person: &Person) -> Option<&ProcessUsage> {
        self.now.iter().find(|slot| owns(&slot.owner, person))
    }

    /// What a slot says of a GPU.
    fn account(&self, slot: &ProcessUsage, gpu: usize) -> Account {
        let figure = |slot: &ProcessUsage| {
            let gpu = slot.gpus.get(gpu).copied().unwrap_or_default();
            Bytes::new(gpu.charged.saturating_add(gpu.overhead))
        };
        let then = self
            .then
            .iter()
            .find(|then| then.slot == slot.slot && then.owner == slot.owner);
        let words = [&self.before, &self.after].map(|snapshot| snapshot.word(slot.slot, gpu));
        Account {
            charged: figure(slot).max(then.map(figure).unwrap_or_default()),
            steady: then.is_some() && words[0] == words[1] && is_settled(words[0]),
        }
    }

    /// What living processes are charged for.
    fn charged(&self, gpu: usize) -> Bytes {
        let figure = |slot: &ProcessUsage| {
            let gpu = slot.gpus.get(gpu).copied().unwrap_or_default();
            Bytes::new(gpu.charged.saturating_add(gpu.overhead))
        };
        self.now.iter().map(figure).sum()
    }
}

/// Whether a slot's owner is this process. Its pid there is the one that it has in its own namespace.
pub fn owns(owner: &Owner, person: &Person) -> bool {
    owner.pid == person.own.pid
        && owner.start_time == person.process.start_time
        && person
            .own
            .namespace
            .is_none_or(|namespace| namespace == owner.pid_namespace)
}

impl Look {
    /// Slices that have a part of a GPU, and what a context there is taken to cost.
    fn slices_on(&self, gpu: &Observed) -> impl Iterator<Item = (SliceSight, Bytes)> {
        self.books.iter().filter_map(|(job, book)| {
            let at = book.place(gpu)?;
            let spec = book.spec.gpus.get(at)?;
            let slice = SliceSight {
                job: *job,
                granted: Bytes::new(spec.limit),
                lately: Some(Bytes::new(spec.limit)),
                tampered: false,
                charged: book
                    .pages
                    .as_ref()
                    .map_or(Bytes::ZERO, |pages| pages.charged(at)),
            };
            Some((slice, Bytes::new(spec.overhead)))
        })
    }

    /// A GPU in MIG mode: its memory is the instances', and the hardware keeps them apart, so that there is nothing to weigh.
    fn divided(&mut self, gpu: &Observed, roster: &Roster, kin: &mut Kin) -> Seen {
        let (mut strangers, mut tenants) = (Vec::new(), Vec::new());
        for process in inhabitants(gpu) {
            if let Some(None) = self.job_of(process.pid, roster, kin) {
                strangers.push(process.pid);
            }
        }
        strangers.sort_unstable();
        strangers.dedup();
        for instance in gpu.divided().iter().flat_map(|mig| &mig.instances) {
            let processes = instance.devices.iter().flat_map(|device| &device.processes);
            for GpuProcess { pid, .. } in processes {
                if let Some(job) = self.job_of(*pid, roster, kin) {
                    tenants.push(Tenant {
                        placement: instance.placement,
                        pid: *pid,
                        job,
                    });
                }
            }
        }
        Seen {
            observed: gpu.clone(),
            sight: Sight::default(),
            strangers,
            tenants,
        }
    }

    /// The job that a listed process is of, if it is of any; `None` for one that has ended.
    fn job_of(&mut self, pid: u32, roster: &Roster, kin: &mut Kin) -> Option<Option<JobId>> {
        match kin.meet(pid, process::ticks(self.at), roster) {
            Met::Here(person) => {
                self.people.insert(pid, person);
                Some(person.kinship.job().filter(|job| roster.has(*job)))
            }
            Met::Departed => None,
            Met::Unheard => Some(None),
        }
    }

    fn process(
        &mut self,
        gpu: &Observed,
        seen: &GpuProcess,
        roster: &Roster,
        kin: &mut Kin,
        marks: &Marks,
    ) -> ProcessSight {
        let sight = |process: Process, of| ProcessSight {
            process: process.into(),
            used: seen.used,
            of,
        };
        let person = match kin.meet(seen.pid, process::ticks(self.at), roster) {
            Met::Here(person) => person,
            met => {
                let nobody = Process {
                    pid: seen.pid,
                    start_time: 0,
                };
                let of = match met {
                    Met::Unheard if !self.has_slot(seen.pid) => Of::Nobody,
                    _ => Of::Departed,
                };
                return sight(nobody, of);
            }
        };
        let person = match person.kinship {
            Kinship::None => self.perhaps_joined(person, roster, kin),
            _ => person,
        };
        self.people.insert(seen.pid, person);
        // A job that has ended has nobody left: what it could not be rid of is nobody's.
        let job = person.kinship.job();
        let Some(job) = job.filter(|job| roster.has(*job)) else {
            return sight(person.process, Of::Nobody);
        };
        let account = self.account(job, &person, gpu);
        let limiter = match account {
            Some(_) => reconcile::Limiter::Loaded,
            None => {
                let inside = kin.inside(seen.pid, seen.used, marks);
                self.insides.insert(seen.pid, inside);
                if inside.has_driver == Some(false) {
                    // Whoever holds this memory, it is not the process that has this pid here.
                    return sight(person.process, Of::Nobody);
                }
                inside.limiter
            }
        };
        let of = Of::Job {
            job,
            account,
            limiter,
        };
        sight(person.process, of)
    }

    /// What the process's slot says; nothing, for sure, where its slice cannot be read.
    fn account(&self, job: JobId, person: &Person, gpu: &Observed) -> Option<Account> {
        let book = self.books.get(&job)?;
        let at = book.place(gpu)?;
        match &book.pages {
            Ok(pages) => Some(pages.account(pages.slot(person)?, at)),
            Err(_) => Some(Account {
                charged: Bytes::ZERO,
                steady: true,
            }),
        }
    }

    fn perhaps_joined(&self, person: Person, roster: &Roster, kin: &mut Kin) -> Person {
        let joined = roster.accounts().find(|(job, account)| {
            self.pages(*job)
                .is_some_and(|pages| pages.slot(&person).is_some())
                && has_mapped(person.process.pid, &account.slots)
        });
        match joined {
            Some((job, _)) => kin.joined(person, job, roster),
            None => person,
        }
    }

    /// Whether a slot names this pid: somebody of ours who has ended.
    fn has_slot(&self, pid: u32) -> bool {
        let here = process::here();
        let names = |slot: &ProcessUsage| slot.owner.pid == pid && slot.owner.pid_namespace == here;
        let pages = self.books.values().flat_map(|book| &book.pages);
        pages.flat_map(|pages| &pages.then).any(names)
    }

    fn pages(&self, job: JobId) -> Option<&Pages> {
        self.books.get(&job)?.pages.as_ref().ok()
    }

    /// Whether the driver lists the owner of a slot.
    pub fn lists(&self, owner: &Owner) -> divvy_ledger::Listed {
        use divvy_ledger::Listed;
        let here = process::here();
        if owner.pid_namespace == here {
            let pid = |process: &GpuProcess| process.pid == owner.pid;
            let listed = |gpu: &Seen| inhabitants(&gpu.observed).any(pid);
            return match self.gpus.iter().any(listed) {
                true => Listed::Yes,
                false => Listed::No,
            };
        }
        match self.people.values().any(|person| owns(owner, person)) {
            true => Listed::Yes,
            false if self.gone.contains(owner) => Listed::No,
            // It has ended or never used a GPU, or cannot be told from others.
            false => Listed::Unknown,
        }
    }
}

impl Book {
    fn place(&self, gpu: &Observed) -> Option<usize> {
        let uuid = gpu.uuid.to_bytes();
        self.spec.gpus.iter().position(|spec| spec.uuid == uuid)
    }
}

#[cfg(test)]
mod tests;
