//! GPU occupancy: the GPUs of a snapshot with the slices that jobs hold on each, the planner's working state.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::mig::Placement;
use crate::mig::occupancy::MigOccupancy;
use crate::model::gpu::{Gpu, Mode};
use crate::model::request::Request;
use crate::model::slice::{Grant, label};
use crate::model::snapshot::{AllocatedJob, LatencyRule, ParkRule, Snapshot};
use crate::placement::fit::{GrantSize, UnmetConstraint};
use crate::placement::{MigPlacementChoice, Offer, place};
use crate::units::{Bytes, GpuUuid, JobId, QueueName, Share};

/// The GPUs of a node, in order of index.
#[derive(Clone)]
pub struct NodeUsage<'a> {
    pub(crate) gpus: Vec<GpuUsage<'a>>,
    /// Computed on first use.
    held_together: OnceCell<Vec<HeldTogether>>,
}

/// GPUs that jobs hold together: each of them has a job that holds another one of them, too.
#[derive(Clone)]
pub(crate) struct HeldTogether {
    /// Positions.
    pub(crate) gpus: BTreeSet<usize>,
    /// The holders of these GPUs.
    pub(crate) jobs: BTreeSet<JobId>,
}

/// One GPU and its holders.
#[derive(Clone)]
pub(crate) struct GpuUsage<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) unmanaged: Bytes,
    pub(crate) holders: Vec<Holder>,
    /// In MIG mode, its instances; `None` also where the driver does not list the profiles.
    pub(crate) mig: Option<MigOccupancy<'a>>,
    /// Sums over the holders. With reservations for resuming jobs they may exceed the GPU.
    used_share: u64,
    used_memory: Bytes,
    /// What other daemons of the machine hold.
    pub(crate) elsewhere: FreePart,
    /// `None` where only what can ever be is asked.
    latency: Option<&'a LatencyRule>,
    /// The same.
    parking: Option<&'a ParkRule>,
    /// Sums that the holders could release, computed on first use.
    releases: OnceCell<Option<Releases>>,
}

/// The free part of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreePart {
    /// Thousandths of the GPU.
    pub share: u64,
    pub memory: Bytes,
}

/// Sums of share and memory that some of a GPU's holders could release.
pub(crate) type Releases = BTreeSet<(u64, Bytes)>;

/// A job's hold on one GPU.
#[derive(Clone)]
pub(crate) struct Holder {
    pub(crate) job: JobId,
    pub(crate) queue: QueueName,
    pub(crate) grant: Grant,
    /// A reservation: the job is offloaded, and resumes here.
    pub(crate) is_reserved: bool,
}

/// What a job gets, and the idle MIG instances that are removed for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    pub grants: Vec<Grant>,
    pub reclaim: Vec<(GpuUuid, Placement)>,
}

impl<'a> NodeUsage<'a> {
    /// The GPUs without holders, other daemons and unmanaged processes: the most that can ever be free.
    pub fn empty(gpus: &'a [Gpu]) -> Self {
        let usage = |gpu: &'a Gpu| GpuUsage {
            gpu,
            unmanaged: Bytes::ZERO,
            holders: Vec::new(),
            mig: (gpu.mig.as_ref())
                .filter(|_| gpu.mode == Mode::Mig)
                .map(MigOccupancy::empty),
            used_share: 0,
            used_memory: Bytes::ZERO,
            elsewhere: FreePart {
                share: 0,
                memory: Bytes::ZERO,
            },
            latency: None,
            parking: None,
            releases: OnceCell::new(),
        };
        let mut usages: Vec<GpuUsage<'a>> = gpus.iter().map(usage).collect();
        usages.sort_by(|a, b| (a.gpu.index, &a.gpu.uuid).cmp(&(b.gpu.index, &b.gpu.uuid)));
        Self {
            gpus: usages,
            held_together: OnceCell::new(),
        }
    }

    /// The GPUs as observed. Grants on GPUs that are gone count nowhere.
    pub(crate) fn of(snapshot: &'a Snapshot) -> Self {
        let mut node = Self::empty(&snapshot.gpus);
        for usage in &mut node.gpus {
            usage.unmanaged = usage.gpu.unmanaged_outside();
            let (share, memory) = usage.gpu.held_elsewhere();
            usage.elsewhere = FreePart { share, memory };
            usage.latency = Some(&snapshot.latency);
            usage.parking = Some(&snapshot.parking);
            if let (Some(mig), Some(inventory)) = (&mut usage.mig, &usage.gpu.mig) {
                *mig = MigOccupancy::of(inventory);
            }
        }
        for AllocatedJob {
            job,
            queue,
            grants,
            resuming_since,
            ..
        } in &snapshot.held
        {
            for grant in grants {
                node.add_holder(*job, queue, grant.clone(), resuming_since.is_some());
            }
        }
        node
    }

    /// The best GPUs for a request; `None` where it does not fit.
    pub fn find(&self, request: &Request) -> Option<Vec<Offer>> {
        place(self, request, |_, _| true)
    }

    /// Thousandths of GPUs that no job holds.
    pub fn free_thousandths(&self) -> u64 {
        self.gpus.iter().map(GpuUsage::free_share).sum()
    }

    /// Allocates the offers to a job, and labels the grants.
    pub fn assign(&mut self, job: JobId, queue: &QueueName, offers: &[Offer]) -> Assignment {
        let mut given = Assignment::default();
        for Offer {
            position,
            size,
            mig: choice,
        } in offers
        {
            let usage = &mut self.gpus[*position];
            let taken = |label: &str| {
                let mut holders = usage.holders.iter();
                holders.any(|holder| holder.grant.label == label)
            };
            let index = usage.gpu.index;
            let grant = Grant {
                gpu: usage.gpu.uuid.clone(),
                index,
                memory: size.memory,
                share: size.share,
                label: match choice {
                    Some(choice) => choice.grant.label(index),
                    None => label(index, size.share, taken),
                },
                mig: choice.as_ref().map(|choice| choice.grant),
            };
            if let Some(MigPlacementChoice { candidate, .. }) = choice {
                let reclaim = candidate.reclaim.iter();
                given
                    .reclaim
                    .extend(reclaim.map(|idle| (grant.gpu.clone(), *idle)));
            }
            given.grants.push(grant);
        }
        self.allocate(job, queue, &given.grants, &given.reclaim);
        given
    }

    /// Allocates these grants to a job, and removes the idle MIG instances of `reclaim`.
    pub(crate) fn allocate(
        &mut self,
        job: JobId,
        queue: &QueueName,
        grants: &[Grant],
        reclaim: &[(GpuUuid, Placement)],
    ) {
        for (gpu, idle) in reclaim {
            let usage = self.gpus.iter_mut().find(|usage| usage.gpu.uuid == *gpu);
            if let Some(mig) = usage.and_then(|usage| usage.mig.as_mut()) {
                mig.remove(*idle);
            }
        }
        for grant in grants {
            self.add_holder(job, queue, grant.clone(), false);
        }
    }

    /// A job has ended. Its MIG instances stay, idle.
    pub fn release(&mut self, job: JobId, grants: &[Grant]) {
        for grant in grants {
            let its = |holder: &mut Holder| holder.job == job;
            let Some(position) = self.position(grant) else {
                continue;
            };
            self.held_together.take();
            let usage = &mut self.gpus[position];
            if usage.holders.extract_if(.., its).next().is_some() {
                usage.releases.take();
                usage.used_share -= u64::from(grant.share.thousandths());
                usage.used_memory = usage.used_memory.saturating_sub(grant.memory);
                if let (Some(mig), Some(instance)) = (&mut usage.mig, grant.mig) {
                    mig.release(job, instance.placement);
                }
            }
        }
    }

    /// The occupancy once these jobs have ended.
    #[must_use]
    pub fn without(&self, gone: &BTreeSet<JobId>) -> Self {
        let mut node = self.clone();
        node.held_together.take();
        let mut stay = Vec::new();
        for usage in &mut node.gpus {
            (usage.used_share, usage.used_memory) = (0, Bytes::ZERO);
            usage.releases.take();
            if let Some(mig) = &mut usage.mig {
                mig.vacate();
            }
            stay.append(&mut usage.holders);
        }
        for Holder {
            job,
            queue,
            grant,
            is_reserved,
        } in stay
        {
            if !gone.contains(&job) {
                node.add_holder(job, &queue, grant, is_reserved);
            }
        }
        node
    }

    /// The grants of a job.
    pub(crate) fn held_by(&self, job: JobId) -> Vec<Grant> {
        let holders = self.gpus.iter().flat_map(|usage| &usage.holders);
        let its = holders.filter(|holder| holder.job == job);
        its.map(|holder| holder.grant.clone()).collect()
    }

    /// The GPUs that jobs hold together, in groups that share no job.
    pub(crate) fn held_together(&self) -> &[HeldTogether] {
        self.held_together.get_or_init(|| {
            let mut gpus_of: BTreeMap<JobId, BTreeSet<usize>> = BTreeMap::new();
            for (position, usage) in self.gpus.iter().enumerate() {
                for holder in &usage.holders {
                    gpus_of.entry(holder.job).or_default().insert(position);
                }
            }
            let mut groups: Vec<BTreeSet<usize>> = Vec::new();
            for gpus in gpus_of.into_values().filter(|gpus| gpus.len() > 1) {
                let shares = |group: &mut BTreeSet<usize>| !group.is_disjoint(&gpus);
                let joined: Vec<_> = groups.extract_if(.., shares).flatten().collect();
                groups.push(gpus.into_iter().chain(joined).collect());
            }
            let group = |gpus: BTreeSet<usize>| {
                let holders = gpus.iter().flat_map(|at| &self.gpus[*at].holders);
                let jobs = holders.map(|holder| holder.job).collect();
                HeldTogether { gpus, jobs }
            };
            groups.into_iter().map(group).collect()
        })
    }

    /// The position of the GPU of a grant.
    fn position(&self, grant: &Grant) -> Option<usize> {
        let is_its = |usage: &GpuUsage<'_>| usage.gpu.uuid == grant.gpu;
        // GPUs are in order of index, so most are at their own.
        let hint = usize::try_from(grant.index).ok();
        let hint = hint.filter(|at| self.gpus.get(*at).is_some_and(is_its));
        hint.or_else(|| self.gpus.iter().position(is_its))
    }

    fn add_holder(&mut self, job: JobId, queue: &QueueName, grant: Grant, is_reserved: bool) {
        if let Some(position) = self.position(&grant) {
            self.held_together.take();
            let usage = &mut self.gpus[position];
            usage.releases.take();
            usage.used_share += u64::from(grant.share.thousandths());
            usage.used_memory = usage.used_memory.saturating_add(grant.memory);
            if let (Some(mig), Some(instance)) = (&mut usage.mig, grant.mig) {
                mig.hold(job, instance.placement);
            }
            usage.holders.push(Holder {
                job,
                queue: queue.clone(),
                grant,
                is_reserved,
            });
        }
    }
}

impl GpuUsage<'_> {
    /// Thousandths of the GPU that are held, here or elsewhere, or reserved.
    pub(crate) fn used_share(&self) -> u64 {
        (self.used_share + self.elsewhere.share).min(1000)
    }

    /// Thousandths that are held.
    pub(crate) fn held_share(&self) -> u64 {
        let held = self.holders.iter().filter(|holder| !holder.is_reserved);
        held.map(|holder| u64::from(holder.grant.share.thousandths()))
            .sum()
    }

    /// The thousandths that jobs with a latency goal have of the compute time, and the most that they may have.
    pub(crate) fn latency_shares(&self) -> Option<(u64, Share)> {
        let rule = self.latency?;
        let share = |holder: &Holder| {
            let own = rule.jobs.get(&holder.job)?;
            Some(u64::from(own.unwrap_or(holder.grant.share).thousandths()))
        };
        Some((self.holders.iter().filter_map(share).sum(), rule.most))
    }

    /// The parked jobs that are promised a part of the GPU, with that part.
    pub(crate) fn promised(&self) -> impl Iterator<Item = (JobId, &Grant)> {
        let promised = self.parking.into_iter().flat_map(|rule| &rule.promised);
        let grants = promised.flat_map(|(job, grants)| grants.iter().map(|grant| (*job, grant)));
        grants.filter(|(_, grant)| grant.gpu == self.gpu.uuid)
    }

    /// A parked job that would not get its part back in time, were so much held by a job that does not give way.
    pub(crate) fn broken_promise(&self, size: GrantSize) -> Option<JobId> {
        let rule = self.parking.filter(|rule| !rule.promised.is_empty())?;
        let firm = self
            .holders
            .iter()
            .filter(|holder| !rule.gives_way.contains(&holder.job));
        let start = (
            self.elsewhere.share + u64::from(size.share.thousandths()),
            self.elsewhere.memory.saturating_add(size.memory),
        );
        let (share, memory) = firm.fold(start, |(share, memory), holder| {
            let Grant {
                memory: more,
                share: part,
                ..
            } = &holder.grant;
            (
                share + u64::from(part.thousandths()),
                memory.saturating_add(*more),
            )
        });
        let mut promised = self.promised();
        let lacks = |grant: &Grant| {
            share + u64::from(grant.share.thousandths()) > 1000
                || memory.saturating_add(grant.memory) > self.gpu.usable()
        };
        promised.find(|(_, grant)| lacks(grant)).map(|(job, _)| job)
    }

    /// The jobs that room is reserved for.
    pub(crate) fn reserved_for(&self) -> impl Iterator<Item = JobId> {
        let reserved = self.holders.iter().filter(|holder| holder.is_reserved);
        reserved.map(|holder| holder.job)
    }

    /// Thousandths of the GPU that no job holds.
    pub(crate) fn free_share(&self) -> u64 {
        1000_u64.saturating_sub(self.used_share + self.elsewhere.share)
    }

    /// Share and memory that no job and no unmanaged process holds.
    pub(crate) fn free(&self) -> FreePart {
        FreePart {
            share: self.free_share(),
            memory: self.free_memory(),
        }
    }

    /// Memory that no slice and no unmanaged process holds.
    pub(crate) fn free_memory(&self) -> Bytes {
        self.unallocated_memory().saturating_sub(self.unmanaged)
    }

    /// Memory that no slice holds.
    pub(crate) fn unallocated_memory(&self) -> Bytes {
        let held = self.used_memory.saturating_add(self.elsewhere.memory);
        self.gpu.usable().saturating_sub(held)
    }

    /// What other daemons hold, and the first of them; `None` when they hold nothing.
    pub(crate) fn constraint_elsewhere(&self) -> Option<UnmetConstraint> {
        let FreePart { share, memory } = self.elsewhere;
        let first = self.gpu.elsewhere.first()?;
        (share > 0 || memory > Bytes::ZERO).then(|| UnmetConstraint::Elsewhere {
            share,
            memory,
            holder: first.holder.clone(),
            others: self.gpu.elsewhere.len() - 1,
        })
    }

    /// The sums that its holders could release, computed once for each set of holders.
    pub(crate) fn releases(
        &self,
        find: impl FnOnce(&Self) -> Option<Releases>,
    ) -> Option<&Releases> {
        self.releases.get_or_init(|| find(self)).as_ref()
    }

    /// In MIG mode, a job with a slice from before the change of mode.
    pub(crate) fn slice_before_mig(&self) -> Option<JobId> {
        let mut holders = self.holders.iter();
        self.mig.as_ref()?;
        let old = holders.find(|holder| holder.grant.mig.is_none())?;
        Some(old.job)
    }
}
