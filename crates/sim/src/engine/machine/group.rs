//! Control groups (cgroups): the driver's own memory limit of a group on each GPU, since r615.
//!
//! A row is a group's folder, known by its inode, with the row of the group above it. What a process was charged stands
//! in its slot, and what processes share in the share, each with the group; the sums are computed on every question, so
//! a dead process leaves nothing. Under `dmem` the kernel's counters nest (Linux, kernel/cgroup/dmem.c); under `misc`
//! the nearest limited group alone counts.

use crate::config::Backend;
use crate::engine::machine::gpu::NoRoom;
use crate::engine::machine::slots::ProcessSlot;
use crate::engine::machine::state::{Locked, State};
use crate::engine::mig::partition::instance_of;
use crate::model::MAX_GPUS;
use std::collections::HashSet;
use std::ffi::{CString, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU8, AtomicU64};

/// Groups that are limited, hold memory or lie above such a one. Four for each process slot leave room for a group of
/// its own and those above it; a real driver's bound is unknown.
pub const GROUPS: usize = 4096;

/// The longest path of a group's folder: a Kubernetes container's has about 200 bytes.
pub const LONGEST_PATH: usize = 256;

/// Groups in which one process holds memory of one GPU; it is out of memory in a further one. Programs take memory in
/// one group or two, so eight are enough.
const GROUPS_OF_PROCESS: usize = 8;

/// No limit, as in NVML.
pub const UNLIMITED: u64 = u64::MAX;

/// The group that memory is charged to: its row plus one, or 0 for memory that no limit counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupId(pub u64);

impl GroupId {
    pub const NONE: GroupId = GroupId(0);

    fn of(row: usize) -> GroupId {
        GroupId(row as u64 + 1)
    }

    fn row(self) -> Option<usize> {
        (self.0 as usize).checked_sub(1)
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum GroupError {
    NotFound,
    PathTooLong,
    TableFull,
}

#[repr(C)]
pub struct Group {
    /// Inode of the folder; 0 is a free row.
    inode: AtomicU64,
    /// The group above it; none for the root, and until a process that can see it has named the group.
    parent: AtomicU64,
    path: [AtomicU8; LONGEST_PATH],
    limits: [Limit; MAX_GPUS],
}

/// Zeroed memory is no limit.
#[repr(C)]
struct Limit {
    soft: AtomicU64,
    /// Soft limits of groups below that were deleted with them.
    left_soft: AtomicU64,
    /// What the hard limit lacks to [`UNLIMITED`].
    below_unlimited: AtomicU64,
}

impl Limit {
    fn hard(&self) -> u64 {
        UNLIMITED - self.below_unlimited.load(SeqCst)
    }

    /// What this group adds to the soft limit of each group above it.
    fn soft(&self) -> u64 {
        let left = self.left_soft.load(SeqCst);
        self.soft.load(SeqCst).saturating_add(left)
    }

    fn is_set(&self) -> bool {
        self.soft() != 0 || self.hard() != UNLIMITED
    }
}

impl Group {
    fn parent(&self) -> GroupId {
        GroupId(self.parent.load(SeqCst))
    }

    fn is_used(&self) -> bool {
        self.inode.load(SeqCst) != 0
    }

    fn set_place(&self, parent: GroupId, folder: &Path) {
        let bytes = folder.as_os_str().as_bytes().iter().copied();
        for (place, byte) in self.path.iter().zip(bytes.chain(std::iter::repeat(0))) {
            place.store(byte, SeqCst);
        }
        self.parent.store(parent.0, SeqCst);
    }

    /// Whether its folder is still there.
    fn exists(&self) -> bool {
        let bytes = self.path.iter().map(|byte| byte.load(SeqCst));
        let path: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
        let found = inode_of(Path::new(&OsString::from_vec(path)));
        found == Some(self.inode.load(SeqCst))
    }

    fn is_limited(&self) -> bool {
        self.limits.iter().any(Limit::is_set)
    }
}

/// What one process was charged on one GPU, by group.
#[repr(C)]
pub struct GroupCharges([GroupCharge; GROUPS_OF_PROCESS]);

#[repr(C)]
struct GroupCharge {
    group: AtomicU64,
    bytes: AtomicU64,
}

impl GroupCharges {
    pub fn clear(&self) {
        self.0
            .iter()
            .for_each(|charge| charge.bytes.store(0, SeqCst));
    }

    pub fn iter(&self) -> impl Iterator<Item = (GroupId, u64)> + '_ {
        let charges = self.0.iter().map(|charge| {
            let group = GroupId(charge.group.load(SeqCst));
            (group, charge.bytes.load(SeqCst))
        });
        charges.filter(|(_, bytes)| *bytes != 0)
    }

    fn add(&self, group: GroupId, bytes: u64) -> Result<(), NoRoom> {
        let mut charges = self.0.iter();
        let free = || self.0.iter().find(|charge| charge.bytes.load(SeqCst) == 0);
        let known = charges
            .find(|charge| charge.group.load(SeqCst) == group.0 && charge.bytes.load(SeqCst) != 0);
        let charge = known.or_else(free).ok_or(NoRoom)?;
        charge.group.store(group.0, SeqCst);
        charge.bytes.fetch_add(bytes, SeqCst);
        Ok(())
    }

    pub fn remove(&self, group: GroupId, bytes: u64) {
        for charge in &self.0 {
            if charge.group.load(SeqCst) == group.0 {
                // A process that lost its slot returns what is no longer counted.
                let left = charge.bytes.load(SeqCst).saturating_sub(bytes);
                charge.bytes.store(left, SeqCst);
            }
        }
    }
}

/// Figures of a group on one GPU, in bytes.
pub struct GroupFigures {
    /// Under `dmem` with those of the groups below it, which the driver adds.
    pub soft: u64,
    pub hard: u64,
    pub used: u64,
    /// What is free of both the limit and the GPU.
    pub free: u64,
}

impl State {
    fn nests(&self) -> bool {
        self.memory_limits()
            .is_some_and(|limits| limits.backend == Backend::Dmem)
    }

    /// The folder of the calling process's group; None where the driver has no limits. A group with too long a path
    /// cannot be limited itself: what is above it stands for it.
    pub fn own_folder(&self) -> Option<PathBuf> {
        let limits = self.memory_limits()?;
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let folder = limits.root.join(path);
        let mut fitting = folder.ancestors();
        let folder = fitting.find(|folder| folder.as_os_str().len() <= LONGEST_PATH)?;
        is_group(folder).then(|| folder.to_owned())
    }
}

impl Locked<'_> {
    /// The row of a folder at or below the root, made with those above it where they are missing.
    pub fn group_at(&self, folder: &Path) -> Result<GroupId, GroupError> {
        let limits = self.memory_limits().ok_or(GroupError::NotFound)?;
        let inode = inode_of(folder).ok_or(GroupError::NotFound)?;
        let parent = match folder.parent() {
            Some(parent) if folder != limits.root => self.group_at(parent)?,
            _ => GroupId::NONE,
        };
        let mut groups = self.groups().iter();
        if let Some(row) = groups.position(|group| group.inode.load(SeqCst) == inode) {
            let group = &self.groups()[row];
            // In a namespace of control groups, a process sees nothing above its own group.
            if group.parent() != parent && parent != GroupId::NONE {
                group.set_place(parent, folder);
            }
            return Ok(GroupId::of(row));
        }
        if folder.as_os_str().len() > LONGEST_PATH {
            return Err(GroupError::PathTooLong);
        }
        let row = self.free_group(parent).ok_or(GroupError::TableFull)?;
        let group = &self.all_groups()[row];
        for limit in &group.limits {
            limit.soft.store(0, SeqCst);
            limit.left_soft.store(0, SeqCst);
            limit.below_unlimited.store(0, SeqCst);
        }
        group.set_place(parent, folder);
        self.raise_groups(row);
        group.inode.store(inode, SeqCst);
        Ok(GroupId::of(row))
    }

    /// A free row, after forgetting the groups that need none if there is no other.
    fn free_group(&self, keep: GroupId) -> Option<usize> {
        let mut groups = self.all_groups().iter();
        let free = groups.position(|group| !group.is_used());
        if free.is_none() {
            self.reap();
            return self.forget_group(keep);
        }
        free
    }

    /// Frees a row without memory and without groups below it, of a group whose folder is gone or that has no limit.
    /// The soft limits of a deleted group stay with the group above it.
    fn forget_group(&self, keep: GroupId) -> Option<usize> {
        let gpus = 0..self.gpu_count();
        let charges = gpus.flat_map(|gpu| self.charges(gpu, ProcessSlot::is_live));
        let charged = charges.map(|(group, _)| group);
        let used = self.groups().iter().filter(|group| group.is_used());
        let needed: HashSet<usize> = charged
            .chain(used.map(Group::parent))
            .chain([keep])
            .filter_map(GroupId::row)
            .collect();
        let mut idle = self.groups().iter().enumerate();
        let (row, group) = idle.find(|(row, group)| {
            let is_needed = needed.contains(row) || group.is_limited() && group.exists();
            !is_needed
        })?;
        if let Some(parent) = group.parent().row().filter(|_| self.nests()) {
            let above = self.groups()[parent].limits.iter();
            for (limit, above) in group.limits.iter().zip(above) {
                above.left_soft.fetch_add(limit.soft(), SeqCst);
            }
        }
        group.inode.store(0, SeqCst);
        Some(row)
    }

    fn limit(&self, group: GroupId, gpu: usize) -> Option<&Limit> {
        Some(&self.groups()[group.row()?].limits[gpu])
    }

    fn hard_limit(&self, group: GroupId, gpu: usize) -> u64 {
        self.limit(group, gpu).map_or(UNLIMITED, Limit::hard)
    }

    /// A group and those above it.
    fn lineage(&self, group: GroupId) -> impl Iterator<Item = GroupId> + '_ {
        std::iter::successors(group.row().map(|_| group), |group| {
            let parent = self.groups()[group.row()?].parent();
            parent.row().map(|_| parent)
        })
    }

    /// What shares and some of the processes were charged on a GPU.
    fn charges(
        &self,
        gpu: usize,
        counts: fn(&ProcessSlot) -> bool,
    ) -> impl Iterator<Item = (GroupId, u64)> + '_ {
        let slots = self.slots().iter().filter(move |slot| counts(slot));
        let alone = slots.flat_map(move |slot| slot.group_charges(gpu).iter());
        let shares = self.shares().iter();
        let shared = shares
            .filter(move |share| share.gpu() == Some(gpu))
            .map(|share| (share.group(), share.bytes()));
        alone.chain(shared)
    }

    /// Bytes that count against a group: those of the groups below it too, but under `misc` of none with a limit of its
    /// own.
    fn used_by(&self, group: GroupId, gpu: usize) -> u64 {
        let counts = |charged: GroupId| {
            let mut lineage = self.lineage(charged);
            let is_last = |at: &GroupId| !self.nests() && self.hard_limit(*at, gpu) != UNLIMITED;
            lineage.find(|at| *at == group || is_last(at)) == Some(group)
        };
        // Checkpointed memory is not on the GPU.
        let on_gpu =
            |slot: &ProcessSlot| slot.is_live() && !slot.checkpoint_state.is_checkpointed();
        let charges = self.charges(gpu, on_gpu);
        let counted = charges.filter(|(charged, _)| counts(*charged));
        counted.map(|(_, bytes)| bytes).sum()
    }

    /// Bytes that the limits leave to a group.
    fn room(&self, group: GroupId, gpu: usize) -> u64 {
        let limited = self.lineage(group);
        let limited = limited.filter(|at| self.hard_limit(*at, gpu) != UNLIMITED);
        let bounds = limited.take(if self.nests() { usize::MAX } else { 1 });
        let rooms = bounds.map(|at| {
            let hard = self.hard_limit(at, gpu);
            hard.saturating_sub(self.used_by(at, gpu))
        });
        rooms.min().unwrap_or(UNLIMITED)
    }

    /// Takes bytes for a slot, charged to the group with this folder.
    pub fn charge_bytes(
        &self,
        slot: usize,
        gpu: usize,
        bytes: u64,
        folder: Option<&Path>,
    ) -> Result<GroupId, NoRoom> {
        let Some(folder) = folder.filter(|_| instance_of(gpu).is_none()) else {
            self.take_bytes(slot, gpu, bytes)?;
            return Ok(GroupId::NONE);
        };
        // The process may have moved, and its old group may be gone, since it looked.
        let group = self.group_at(folder).map_err(|_| NoRoom)?;
        if bytes > self.room(group, gpu) {
            self.reap();
        }
        if bytes > self.room(group, gpu) {
            return Err(NoRoom);
        }
        self.take_bytes(slot, gpu, bytes)?;
        let charges = self.slots()[slot].group_charges(gpu);
        charges
            .add(group, bytes)
            .inspect_err(|_| self.return_bytes(slot, gpu, bytes))?;
        Ok(group)
    }

    pub fn return_charged(&self, slot: usize, gpu: usize, bytes: u64, group: GroupId) {
        self.uncharge(slot, gpu, bytes, group);
        self.return_bytes(slot, gpu, bytes);
    }

    /// A slot is charged for bytes no longer: they are a share's, or the GPU's again.
    pub fn uncharge(&self, slot: usize, gpu: usize, bytes: u64, group: GroupId) {
        if group != GroupId::NONE {
            self.slots()[slot].group_charges(gpu).remove(group, bytes);
        }
    }

    /// Whether what a checkpointed process holds fits below the limits again.
    pub fn fits_groups(&self, slot: usize, gpu: usize) -> bool {
        let mut charges = self.slots()[slot].group_charges(gpu).iter();
        charges.all(|(group, bytes)| bytes <= self.room(group, gpu))
    }

    /// What a process in the group with this folder sees. A limit of a group above it is enforced and not shown.
    pub fn group_view(&self, folder: Option<&Path>, gpu: usize) -> Option<GroupFigures> {
        let group = self.group_at(folder?).ok()?;
        let limited = self.hard_limit(group, gpu) != UNLIMITED;
        limited.then(|| self.group_figures(group, gpu))
    }

    pub fn set_limit(&self, group: GroupId, gpu: usize, soft: u64, hard: u64) {
        self.reap();
        let Some(limit) = self.limit(group, gpu) else {
            return;
        };
        // Linux 6.14 accepts a `dmem.max` below what the group uses, and keeps the old one (page_counter_set_max).
        if !self.nests() || hard >= self.used_by(group, gpu) {
            limit.below_unlimited.store(UNLIMITED - hard, SeqCst);
        }
        limit.soft.store(soft, SeqCst);
    }

    pub fn group_figures(&self, group: GroupId, gpu: usize) -> GroupFigures {
        self.reap();
        let rows = self.groups().iter().enumerate();
        let used = rows.filter(|(_, row)| row.is_used());
        let below = used.map(|(row, _)| GroupId::of(row)).filter(|at| {
            *at == group || (self.nests() && self.lineage(*at).any(|above| above == group))
        });
        let soft = below.filter_map(|at| Some(self.limit(at, gpu)?.soft()));
        let (hard, used) = (self.hard_limit(group, gpu), self.used_by(group, gpu));
        GroupFigures {
            soft: soft.fold(0, u64::saturating_add),
            hard,
            used,
            free: hard.saturating_sub(used).min(self.free(gpu)),
        }
    }
}

fn inode_of(folder: &Path) -> Option<u64> {
    Some(fs::metadata(folder).ok()?.ino())
}

/// Whether a folder is a control group of version 2, by the kind of its file system.
pub fn is_group(folder: &Path) -> bool {
    let Ok(path) = CString::new(folder.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: plain data; zeroed bytes are a value of it.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a valid path, and a structure that outlives the call.
    let answer = unsafe { libc::statfs(path.as_ptr(), &raw mut found) };
    answer == 0 && found.f_type == libc::CGROUP2_SUPER_MAGIC && folder.is_dir()
}
