//! Batch placement: places several instances at once, as many as there is room for, by exact search.
//!
//! No rule that places instances one by one is safe. 1g, 1g, 2g and 3g fit together on an empty A100, and every rule
//! without knowledge of later requests refuses some order of them. A batch is small enough for an exact search: a GPU
//! has few legal sets (298 of the plain profiles), only the count per profile matters, and GPUs are added one after
//! another.

use std::collections::BTreeMap;

use super::layout::Layout;
use super::place::{MigGpu, PlacementPolicy, place};
use super::{MigProfile, Placement};

/// Where the instances of a batch go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    /// For each that was wanted, in order.
    pub placed: Vec<Option<PackedInstance>>,
    /// Idle instances that have to be destroyed before, by the GPU's place in the sites.
    pub reclaim: Vec<(usize, Placement)>,
    /// No packing has more. Not so where the batch was too large to try everything; then the largest profiles went
    /// first, each where it took away least.
    pub exact: bool,
}

/// Where one instance of a batch goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PackedInstance {
    /// The GPU's place in the sites.
    pub site: usize,
    pub placement: Placement,
    /// It takes over an idle instance.
    pub reuse: bool,
}

impl Packing {
    /// Whether every instance has a placement, for callers that want all or none.
    pub fn is_complete(&self) -> bool {
        self.placed.iter().all(Option::is_some)
    }
}

/// Steps after which trying everything is given up: some hundredths of a second. A batch of twenty of the five plain
/// profiles over 64 GPUs takes eight million.
const STEPS: usize = 1 << 23;

/// Packs as many of the wanted profiles as there is room for on these GPUs. A profile is known by its name: GPUs of
/// different models have the same ids for different profiles. Of several packings that have as many, the one that has
/// the first wanted ones; then as for one instance: the most idle ones taken as they are, the least loss, the fewest
/// reclaimed, the fullest and the first GPUs.
pub fn pack(sites: &[MigGpu<'_>], wanted: &[MigProfile]) -> Packing {
    let batch = Batch::of(wanted);
    batch
        .search(sites)
        .unwrap_or_else(|| one_by_one(sites, wanted))
}

/// What is wanted, counted.
struct Batch<'a> {
    wanted: &'a [MigProfile],
    /// Different profiles with the number of each, in order of first mention.
    kinds: Vec<(MigProfile, usize)>,
    /// What one more of each kind adds to the number by which a state is known: how many are placed of each kind.
    strides: Vec<usize>,
    /// How many states there are; none where they cannot be counted.
    states: Option<usize>,
}

/// What a GPU could give: one for each combination of numbers that it has room for, the best of those.
struct Combination {
    /// Of each kind.
    counts: Vec<usize>,
    placements: Vec<Placement>,
    cost: Cost,
}

/// What is paid for a packing; less is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    new: u32,
    loss: u32,
    reclaimed: u32,
    /// Free memory slices of the GPUs that are used: the fullest go first.
    room: u32,
}

/// How a state was come to: what it costs, and which offer of each GPU led there.
type Reached = Vec<Option<Cost>>;

impl<'a> Batch<'a> {
    fn of(wanted: &'a [MigProfile]) -> Self {
        let mut kinds: Vec<(MigProfile, usize)> = Vec::new();
        for name in wanted {
            match kinds.iter_mut().find(|(kind, _)| kind == name) {
                Some((_, count)) => *count += 1,
                None => kinds.push((*name, 1)),
            }
        }
        let mut strides = Vec::new();
        let mut states = Some(1_usize);
        for (_, count) in &kinds {
            strides.push(states.unwrap_or(0));
            states = states.and_then(|states| states.checked_mul(count + 1));
        }
        Self {
            wanted,
            kinds,
            strides,
            states,
        }
    }

    /// Every combination over every GPU, or `None` when these are too many.
    fn search(&self, sites: &[MigGpu<'_>]) -> Option<Packing> {
        let states = self.states.filter(|states| *states <= STEPS)?;
        let mut steps = STEPS;
        // GPUs that are alike offer alike.
        let mut offers: Vec<Vec<Combination>> = Vec::new();
        let mut offers_of: Vec<usize> = Vec::new();
        for (at, site) in sites.iter().enumerate() {
            let like = |before: &MigGpu<'_>| {
                before.held == site.held && before.idle == site.idle && before.table == site.table
            };
            match sites[..at].iter().position(like) {
                Some(before) => offers_of.push(offers_of[before]),
                None => {
                    offers_of.push(offers.len());
                    offers.push(self.offers(site));
                }
            }
        }
        let mut reached: Reached = vec![None; states];
        reached[0] = Some(Cost::default());
        // For each GPU and state, the offer by which the state was come to; none where the GPU gave nothing.
        let mut ways: Vec<Vec<Option<u32>>> = Vec::new();
        for offers_at in &offers_of {
            let offers = &offers[*offers_at];
            steps = steps.checked_sub(states.checked_mul(offers.len() + 1)?)?;
            let before = reached.clone();
            let mut way = vec![None; states];
            for (nth, offer) in (0..).zip(offers) {
                let step = self.number(&offer.counts);
                for from in 0..states - step {
                    let Some(cost) = before[from] else { continue };
                    if !self.has_room(from, &offer.counts) {
                        continue;
                    }
                    let cost = cost + offer.cost;
                    let there = &mut reached[from + step];
                    if there.is_none_or(|there| cost < there) {
                        *there = Some(cost);
                        way[from + step] = Some(nth);
                    }
                }
            }
            ways.push(way);
        }
        let best = (0..states)
            .filter_map(|state| Some((state, reached[state]?)))
            .min_by_key(|(state, cost)| self.preference(*state, *cost))?;
        Some(self.packing(sites, best.0, |site, state| {
            ways[site][state].map(|nth| {
                let offer = &offers[offers_of[site]][usize::try_from(nth).expect("a u32")];
                (self.number(&offer.counts), &offer.placements[..])
            })
        }))
    }

    /// What the GPU could give of what is wanted, the empty offer left out.
    fn offers(&self, site: &MigGpu<'_>) -> Vec<Combination> {
        let profiles: Vec<Option<u32>> = self
            .kinds
            .iter()
            .map(|(name, _)| site.table.named(*name).map(|profile| profile.id))
            .collect();
        let mut grow = Grow {
            batch: self,
            site,
            profiles,
            before: site.held.possible(site.table),
            found: BTreeMap::new(),
        };
        let counts = vec![0; self.kinds.len()];
        grow.from(site.held, &counts, &[]);
        let offer = |(counts, (cost, placements))| Combination {
            counts,
            placements,
            cost,
        };
        grow.found.into_iter().map(offer).collect()
    }

    fn number(&self, counts: &[usize]) -> usize {
        counts.iter().zip(&self.strides).map(|(n, s)| n * s).sum()
    }

    /// How many of the kind are placed in the state.
    fn count(&self, state: usize, kind: usize) -> usize {
        state / self.strides[kind] % (self.kinds[kind].1 + 1)
    }

    fn has_room(&self, state: usize, more: &[usize]) -> bool {
        (0..more.len()).all(|kind| self.count(state, kind) + more[kind] <= self.kinds[kind].1)
    }

    /// Whether each of the wanted is placed in the state: of a kind, the first.
    fn served(&self, state: usize) -> Vec<bool> {
        let mut left: Vec<usize> = (0..self.kinds.len())
            .map(|kind| self.count(state, kind))
            .collect();
        let serve = |name: &MigProfile| {
            let left = &mut left[self.kind(*name)];
            let served = *left > 0;
            *left -= usize::from(served);
            served
        };
        self.wanted.iter().map(serve).collect()
    }

    fn kind(&self, name: MigProfile) -> usize {
        let found = self.kinds.iter().position(|(kind, _)| *kind == name);
        found.expect("kinds are those of what is wanted")
    }

    /// The least is the best state to end in.
    fn preference(&self, state: usize, cost: Cost) -> (usize, Vec<bool>, Cost) {
        let refused: Vec<bool> = self.served(state).iter().map(|served| !served).collect();
        let count = refused.iter().filter(|refused| **refused).count();
        (count, refused, cost)
    }

    /// Walks back from the last state over all GPUs, and hands each placement to the first of the wanted that waits for
    /// it.
    fn packing<'o>(
        &self,
        sites: &[MigGpu<'_>],
        mut state: usize,
        way: impl Fn(usize, usize) -> Option<(usize, &'o [Placement])>,
    ) -> Packing {
        let mut by_site: Vec<&[Placement]> = vec![&[]; sites.len()];
        for site in (0..sites.len()).rev() {
            if let Some((step, placements)) = way(site, state) {
                by_site[site] = placements;
                state -= step;
            }
        }
        let mut placed = vec![None; self.wanted.len()];
        let mut reclaim = Vec::new();
        for (site, placements) in by_site.into_iter().enumerate() {
            let MigGpu { table, held, idle } = &sites[site];
            for placement in placements {
                let name = table.profile(placement.profile).map(|profile| profile.name);
                let mut waiting = (0..self.wanted.len())
                    .filter(|at| Some(self.wanted[*at]) == name && placed[*at].is_none());
                let first = waiting.next().expect("no more is placed than is wanted");
                placed[first] = Some(PackedInstance {
                    site,
                    placement: *placement,
                    reuse: idle.contains(placement),
                });
            }
            let after = placements
                .iter()
                .fold(*held, |layout, placement| layout.and(table, *placement));
            let others = idle.iter().filter(|idle| !placements.contains(idle));
            let (_, clash) = after.beside(table, others.copied());
            if !placements.is_empty() {
                reclaim.extend(clash.into_iter().map(|placement| (site, placement)));
            }
        }
        Packing {
            placed,
            reclaim,
            exact: true,
        }
    }
}

/// The search of one GPU.
struct Grow<'a> {
    batch: &'a Batch<'a>,
    site: &'a MigGpu<'a>,
    /// The id of each kind, where the GPU has it.
    profiles: Vec<Option<u32>>,
    before: u32,
    found: BTreeMap<Vec<usize>, (Cost, Vec<Placement>)>,
}

impl Grow<'_> {
    /// Notes all sets that this one grows to in ascending order.
    fn from(&mut self, layout: Layout, counts: &[usize], set: &[Placement]) {
        for kind in 0..counts.len() {
            let Some(profile) = self.profiles[kind] else {
                continue;
            };
            if counts[kind] == self.batch.kinds[kind].1 {
                continue;
            }
            for start in layout.starts(self.site.table, profile) {
                let next = Placement { profile, start };
                if set.last().is_some_and(|last| *last > next) {
                    continue;
                }
                let mut counts = counts.to_vec();
                counts[kind] += 1;
                let set = [set, &[next]].concat();
                let layout = layout.and(self.site.table, next);
                let cost = self.cost(layout, &set);
                let best = self.found.get(&counts);
                if best.is_none_or(|best| (cost, &set) < (best.0, &best.1)) {
                    self.found.insert(counts.clone(), (cost, set.clone()));
                }
                self.from(layout, &counts, &set);
            }
        }
    }

    fn cost(&self, after: Layout, set: &[Placement]) -> Cost {
        let MigGpu { table, held, idle } = self.site;
        let count = |number: usize| u32::try_from(number).expect("a GPU has at most 32 instances");
        let others = idle.iter().filter(|idle| !set.contains(idle));
        let (_, clash) = after.beside(table, others.copied());
        Cost {
            new: count(set.iter().filter(|one| !idle.contains(one)).count()),
            loss: self.before.saturating_sub(after.possible(table)),
            reclaimed: count(clash.len()),
            room: held.free_slices(table),
        }
    }
}

impl std::ops::Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            new: self.new + other.new,
            loss: self.loss + other.loss,
            reclaimed: self.reclaimed + other.reclaimed,
            room: self.room + other.room,
        }
    }
}

/// The largest first, each where it takes away least.
fn one_by_one(sites: &[MigGpu<'_>], wanted: &[MigProfile]) -> Packing {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    let size = |at: &usize| {
        let sizes = sites
            .iter()
            .filter_map(|site| site.table.named(wanted[*at]))
            .map(|profile| profile.memory_slices);
        std::cmp::Reverse(sizes.max())
    };
    order.sort_by_key(size);
    let mut idle: Vec<Vec<Placement>> = sites.iter().map(|site| site.idle.to_vec()).collect();
    let mut held: Vec<Layout> = sites.iter().map(|site| site.held).collect();
    let mut packing = Packing {
        placed: vec![None; wanted.len()],
        reclaim: Vec::new(),
        exact: false,
    };
    for at in order {
        let now: Vec<MigGpu<'_>> = (0..sites.len())
            .map(|site| MigGpu {
                table: sites[site].table,
                held: held[site],
                idle: &idle[site],
            })
            .collect();
        let profile = |site: usize| Some(sites[site].table.named(wanted[at])?.id);
        let Some((site, chosen)) = place(&now, profile, PlacementPolicy::LeastLoss) else {
            continue;
        };
        held[site] = held[site].and(sites[site].table, chosen.placement);
        idle[site].retain(|idle| *idle != chosen.placement && !chosen.reclaim.contains(idle));
        let gone = chosen.reclaim.iter().map(|placement| (site, *placement));
        packing.reclaim.extend(gone);
        packing.placed[at] = Some(PackedInstance {
            site,
            placement: chosen.placement,
            reuse: chosen.reuse,
        });
    }
    packing.reclaim.sort_unstable();
    packing
}
