//! The pool: requests for whole GPUs, and sets of parts that together are nearly one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Waiting;
use divvy_core::Bytes;
use divvy_packing::{ModelSet, WHOLE};

/// Parts in a set at most. The same as the product's planner (`core::plan::patterns`).
const MOST_PARTS: usize = 5;

/// Different sizes of parts at most; beyond, sizes are rounded up to coarser steps.
const MOST_SIZES: usize = 24;

/// Steps of sizes in thousandths.
const STEPS: [u32; 5] = [1, 10, 20, 40, 100];

/// Sets whose unused thousandths lie in the same step of this size count as equally good. A fiftieth of a GPU: smaller
/// steps would prefer young sets for a difference that no request can use.
const WASTE_STEP: u32 = 20;

/// Requests that take idle GPUs together: one request for whole GPUs, or a set of parts of one GPU.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// Places in the list of waiting requests.
    pub(super) members: Vec<usize>,
    pub(super) gpus: u32,
    pub(super) cpu_milli: u64,
    pub(super) memory: Bytes,
    pub(super) models: ModelSet,
    /// Whether one of the members is due.
    is_due: bool,
    /// Thousandths of the GPU that no member asks for.
    waste: u32,
}

impl Group {
    fn new(members: Vec<usize>, waiting: &[Waiting], gpus: u32, waste: u32) -> Self {
        let shapes = members.iter().map(|member| waiting[*member].shape);
        Self {
            gpus,
            cpu_milli: shapes.clone().map(|shape| shape.cpu_milli).sum(),
            memory: shapes.clone().map(|shape| shape.memory).sum(),
            models: shapes
                .clone()
                .next()
                .map_or(ModelSet::ANY, |shape| shape.models),
            is_due: members.iter().any(|member| waiting[*member].is_due),
            waste,
            members,
        }
    }

    /// What it takes of a node for each GPU: CPU in thousandths of a core, or memory where that is more. Nodes have
    /// about 4 GiB for each core.
    pub(super) fn weight(&self) -> u64 {
        self.cpu_milli.max(self.memory.whole_mib() / 4)
    }
}

/// The groups that fill about so many GPUs best: due ones first, then by least waste, more GPUs and age. Requests in
/// `apart` have been started.
pub(super) fn pool(waiting: &[Waiting], apart: &BTreeSet<usize>, gpus: u64) -> Vec<Group> {
    let mut groups = Vec::new();
    let mut parts: BTreeMap<ModelSet, Vec<(usize, u32)>> = BTreeMap::new();
    for (at, request) in waiting.iter().enumerate() {
        let shape = &request.shape;
        if apart.contains(&at) || shape.gpus == 0 || shape.share.is_none() {
            continue;
        }
        if shape.is_whole() {
            groups.push(Group::new(vec![at], waiting, shape.gpus, 0));
        } else if shape.gpus == 1 {
            let parts = parts.entry(shape.models).or_default();
            parts.push((at, milli(request)));
        }
    }
    for parts in parts.values() {
        groups.extend(sets(parts, waiting));
    }
    groups.sort_by_key(|group| {
        let waste = group.waste / WASTE_STEP;
        let gpus = std::cmp::Reverse(group.gpus);
        (!group.is_due, waste, gpus, group.members[0])
    });
    let mut taken = 0;
    groups.retain(|group| {
        let enters = taken < gpus;
        taken += u64::from(group.gpus);
        enters
    });
    groups
}

/// Thousandths of a GPU that a request for a part takes.
fn milli(request: &Waiting) -> u32 {
    let share = request.shape.share;
    share.map_or(0, |share| share.thousandths().into())
}

/// Sets of these parts, the fullest first, until each part is in one. Of equal sizes the oldest goes first.
fn sets(parts: &[(usize, u32)], waiting: &[Waiting]) -> Vec<Group> {
    let mut by_size: BTreeMap<u32, VecDeque<usize>> = BTreeMap::new();
    for step in STEPS {
        by_size.clear();
        for (at, share) in parts {
            let size = share.next_multiple_of(step).min(WHOLE);
            by_size.entry(size).or_default().push_back(*at);
        }
        if by_size.len() <= MOST_SIZES {
            break;
        }
    }
    let sizes: Vec<u32> = by_size.keys().rev().copied().collect();
    let mut queues: Vec<VecDeque<usize>> = by_size.into_values().rev().collect();
    let mut patterns = Vec::new();
    fill(&sizes, 0, WHOLE, &mut Vec::new(), &mut patterns);
    patterns.sort();
    let mut groups = Vec::new();
    for (_, _, pattern) in &patterns {
        let mut asked = vec![0; sizes.len()];
        for size in pattern {
            asked[*size] += 1;
        }
        while asked
            .iter()
            .zip(&queues)
            .all(|(asked, queue)| queue.len() >= *asked)
        {
            let members = pattern.iter().filter_map(|size| queues[*size].pop_front());
            let members: Vec<usize> = members.collect();
            let shares = members.iter().map(|member| milli(&waiting[*member]));
            let waste = WHOLE.saturating_sub(shares.sum());
            groups.push(Group::new(members, waiting, 1, waste));
        }
    }
    groups
}

/// Unused thousandths, number of parts, and the parts by the index of their size.
type Pattern = (u32, usize, Vec<usize>);

/// All multisets of at most [`MOST_PARTS`] sizes that fit, of sizes from this one on, which descend.
fn fill(
    sizes: &[u32],
    from: usize,
    free: u32,
    taken: &mut Vec<usize>,
    patterns: &mut Vec<Pattern>,
) {
    if taken.len() == MOST_PARTS {
        return;
    }
    for (size, share) in sizes.iter().enumerate().skip(from) {
        if let Some(free) = free.checked_sub(*share) {
            taken.push(size);
            patterns.push((free, taken.len(), taken.clone()));
            fill(sizes, size, free, taken, patterns);
            taken.pop();
        }
    }
}
