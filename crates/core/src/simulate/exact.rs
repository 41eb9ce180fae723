//! Exact analysis of one GPU: the Markov chain over all its layouts, without sampling.
//!
//! Requests arrive as a Poisson process, hold for an exponential time of mean 1, and are lost when refused. A policy's
//! figures follow from one linear solve; the bound for any policy follows from value iteration.

use super::chain::{self, Rates};
use super::layouts::Layouts;
use super::mix::Demand;
use super::policy::{Placer, Policy};
use crate::mig::{MigGpu, ProfileTable};

/// What a policy does in the long run, as parts of 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Exact {
    /// Of all requests, those refused.
    pub refused: f64,
    /// Of the requests for each profile, those refused, in the order of the demand.
    pub refused_of: Vec<f64>,
    /// Of all requests, those refused that would have fitted had the instances lain otherwise. Part of `refused`.
    pub by_layout: f64,
    /// Of the time, that in which some request would be refused because of the layout alone.
    pub blocked: f64,
    /// Of the compute slices, those in use, over time.
    pub in_use: f64,
    /// When an empty GPU is filled and nothing leaves: how often the first refusal is because of the layout alone.
    pub first_by_layout: f64,
    /// Layouts that the policy can come to, the empty one included.
    pub layouts: usize,
}

/// One GPU with its demand, ready to be solved for any policy.
pub struct OneGpu<'a> {
    layouts: Layouts<'a>,
    demand: Demand,
    /// Requests per unit of time, in which an instance is held once on average.
    rate: f64,
}

/// Which way each request goes in each layout: the layout that follows, or a refusal.
type Choices = Vec<Vec<Option<usize>>>;

impl<'a> OneGpu<'a> {
    /// `load` is the work that comes, as a part of the compute slices there are.
    pub fn new(table: &'a ProfileTable, demand: &Demand, load: f64) -> Self {
        Self {
            layouts: Layouts::of(table, demand),
            demand: demand.clone(),
            rate: super::arrivals::rate(table, demand, 1, load),
        }
    }

    /// The figures of the policy. Without idle instances, so that the planner is least loss.
    pub fn solve(&self, policy: Policy) -> Exact {
        match Placer::of(policy, &self.demand) {
            Some(placer) => self.follow(&self.choices(&placer)),
            None if policy == Policy::Optimal => self.follow(&self.best()),
            None => self.repacked(),
        }
    }

    fn choices(&self, placer: &Placer) -> Choices {
        let layouts = &self.layouts;
        let choose = |site: MigGpu<'_>, layout: usize, wanted: usize| {
            let (_, chosen) = placer.place(&[site], layouts.wanted[wanted].0)?;
            let mut starts = layouts.more[layout][wanted].iter();
            let next = starts.find(|(start, _)| *start == chosen.placement.start);
            Some(next.expect("a policy chooses a legal start").1)
        };
        let of_layout = |layout: usize| {
            let site = MigGpu::new(layouts.table, layouts.all[layout].iter().copied(), &[]);
            (0..layouts.wanted.len())
                .map(|wanted| choose(site, layout, wanted))
                .collect()
        };
        (0..layouts.all.len()).map(of_layout).collect()
    }

    /// The long run under these choices.
    fn follow(&self, choices: &Choices) -> Exact {
        let layouts = &self.layouts;
        // Number the layouts that can be come to from the empty one, which can be come to from all.
        let mut numbers = vec![None; layouts.all.len()];
        numbers[0] = Some(0);
        let mut reached = vec![0];
        let mut rates: Rates = Vec::new();
        while let Some(layout) = reached.get(rates.len()).copied() {
            let comes = choices[layout]
                .iter()
                .zip(&layouts.wanted)
                .filter_map(|(next, (_, part))| Some(((*next)?, self.rate * part)));
            let goes = layouts.fewer[layout].iter().map(|next| (*next, 1.0));
            let mut changes = Vec::new();
            for (next, rate) in comes.chain(goes) {
                let number = *numbers[next].get_or_insert_with(|| {
                    reached.push(next);
                    reached.len() - 1
                });
                changes.push((number, rate));
            }
            rates.push(changes);
        }
        let mut exact = Exact {
            first_by_layout: self.first_by_layout(choices),
            ..Exact::none(reached.len(), layouts.wanted.len())
        };
        for (layout, time) in reached.into_iter().zip(chain::stationary(&rates)) {
            let mut blocked = false;
            for (wanted, (_, part)) in layouts.wanted.iter().enumerate() {
                if choices[layout][wanted].is_none() {
                    exact.refused += time * part;
                    exact.refused_of[wanted] += time;
                }
                if layouts.is_blocked(layout, wanted) {
                    exact.by_layout += time * part;
                    blocked = true;
                }
            }
            exact.blocked += if blocked { time } else { 0.0 };
            exact.in_use += time * layouts.in_use(layout);
        }
        exact
    }

    /// How often the first refusal is the layout's fault when an empty GPU is filled and nothing leaves.
    fn first_by_layout(&self, choices: &Choices) -> f64 {
        let layouts = &self.layouts;
        let mut chance = vec![0.0; layouts.all.len()];
        chance[0] = 1.0;
        let mut by_layout = 0.0;
        // A layout that follows has a higher number.
        for layout in 0..layouts.all.len() {
            for (wanted, (_, part)) in layouts.wanted.iter().enumerate() {
                match choices[layout][wanted] {
                    Some(next) => chance[next] += chance[layout] * part,
                    None if layouts.is_blocked(layout, wanted) => {
                        by_layout += chance[layout] * part
                    }
                    None => {}
                }
            }
        }
        by_layout
    }

    /// The long run if instances could be moved at will. What is held is then a vector of counts that comes and goes
    /// with each of its entries by itself within a set closed downwards, so its law is the product of Poisson laws, cut
    /// to the set (Kaufman, IEEE Transactions on Communications 29, 1981).
    fn repacked(&self) -> Exact {
        let wanted = &self.layouts.wanted;
        let fitting = self.layouts.fitting();
        let weight = |counts: &[u8]| -> f64 {
            let of = |(count, (_, part)): (&u8, &(u32, f64))| -> f64 {
                (1..=*count)
                    .map(|nth| self.rate * part / f64::from(nth))
                    .product()
            };
            counts.iter().zip(wanted).map(of).product()
        };
        let total: f64 = fitting.all().map(weight).sum();
        let mut exact = Exact::none(fitting.all().count(), wanted.len());
        for counts in fitting.all() {
            let time = weight(counts) / total;
            let mut more = counts.to_vec();
            for (at, (id, part)) in wanted.iter().enumerate() {
                more[at] += 1;
                if !fitting.fits(&more) {
                    exact.refused += time * part;
                    exact.refused_of[at] += time;
                }
                more[at] -= 1;
                let profile = self
                    .layouts
                    .table
                    .profile(*id)
                    .expect("it is of this table");
                exact.in_use += time * f64::from(counts[at]) * f64::from(profile.compute_slices)
                    / f64::from(self.layouts.table.compute_slices);
            }
        }
        exact
    }

    /// The choices that refuse fewest in the long run, of those that refuse nothing that has a place: by relative value
    /// iteration on the chain made uniform.
    fn best(&self) -> Choices {
        /// No layout's value is further off than this when it ends, of a refusal being 1.
        const CLOSE: f64 = 1e-10;
        let layouts = &self.layouts;
        let most = layouts.all.iter().map(Vec::len).max().unwrap_or(0);
        let clock = self.rate + most as f64;
        let mut value = vec![0.0_f64; layouts.all.len()];
        loop {
            let step = |layout: usize| -> f64 {
                let comes = layouts.more[layout].iter().zip(&layouts.wanted);
                let comes = comes.map(|(starts, (_, part))| {
                    let best = starts.iter().map(|(_, next)| 1.0 + value[*next]);
                    self.rate * part * best.reduce(f64::max).unwrap_or(value[layout])
                });
                let goes = layouts.fewer[layout].iter().map(|next| value[*next]);
                let idle = most - layouts.fewer[layout].len();
                (comes.sum::<f64>() + goes.sum::<f64>() + idle as f64 * value[layout]) / clock
            };
            let next: Vec<f64> = (0..value.len()).map(step).collect();
            let gains = next.iter().zip(&value).map(|(next, value)| next - value);
            let (least, greatest) = gains.fold((f64::MAX, f64::MIN), |(least, greatest), gain| {
                (least.min(gain), greatest.max(gain))
            });
            let empty = next[0];
            value = next.into_iter().map(|value| value - empty).collect();
            if greatest - least < CLOSE {
                break;
            }
        }
        let best = |starts: &Vec<(u8, usize)>| {
            let lowest_first = starts.iter().rev();
            let best = lowest_first.max_by(|a, b| value[a.1].total_cmp(&value[b.1]));
            best.map(|(_, next)| *next)
        };
        layouts
            .more
            .iter()
            .map(|columns| columns.iter().map(best).collect())
            .collect()
    }
}

impl Exact {
    /// Nothing refused and nothing in use.
    fn none(layouts: usize, wanted: usize) -> Self {
        Self {
            refused: 0.0,
            refused_of: vec![0.0; wanted],
            by_layout: 0.0,
            blocked: 0.0,
            in_use: 0.0,
            first_by_layout: 0.0,
            layouts,
        }
    }
}
