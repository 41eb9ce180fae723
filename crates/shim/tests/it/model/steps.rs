//! What can happen. Each step is what programs do, with sizes around those that matter: small, around a page, around what is
//! left, beyond it, absurd.

mod graphs;
mod handles;
mod life;
mod memory;
mod pools;
mod sharing;

use crate::model::actor::{Actor, Answer, Arg, Array, Graph, Linear, Mapped, Reference};
use crate::model::world::World;
use crate::support::MIB;
use divvy_testkit::Rng;

use graphs::{
    capture, end_capture, end_graph, free_what_is_left, graph, invalidate, launch, trim_graphs,
};
use handles::{create, map, property, release, retain, unmap};
use life::{busy, context, exit, kill, limit, nonsense, race, reset};
pub use life::{end_context, give_all_back};
use memory::{array, end_array, free, heap, linear};
use pools::{
    end_pool, free_pooled, keep, make_pool, pool_properties, pooled, short_pool, synchronize,
    trim_pool,
};
use sharing::{close, hand_over, open};

const PAGE: u64 = 2 * MIB;

/// Pools and graphs are charged by segments until the driver has said how much they took.
const SEGMENT: u64 = 32 * MIB;

/// More than this many of a kind are freed before another is made.
const ENOUGH: usize = 12;

/// A step that one process takes by itself; `None` when there is nothing to take it with.
type Step = fn(&mut World, usize) -> Option<()>;

/// The steps, and how often each is chosen, relative to the others.
const STEPS: &[(&str, u64, Step)] = &[
    ("linear", 6, linear),
    ("free", 5, free),
    ("array", 3, array),
    ("end array", 3, end_array),
    ("heap", 1, heap),
    ("create", 4, create),
    ("map", 4, map),
    ("retain", 2, retain),
    ("unmap", 3, unmap),
    ("release", 4, release),
    ("hand over", 3, hand_over),
    ("open", 3, open),
    ("close", 2, close),
    ("make pool", 1, make_pool),
    ("pooled", 6, pooled),
    ("free pooled", 5, free_pooled),
    ("synchronize", 2, synchronize),
    ("trim pool", 1, trim_pool),
    ("keep", 1, keep),
    ("end pool", 1, end_pool),
    ("short pool", 4, short_pool),
    ("graph", 4, graph),
    ("capture", 2, capture),
    ("invalidate", 2, invalidate),
    ("end capture", 1, end_capture),
    ("launch", 6, launch),
    ("trim graphs", 1, trim_graphs),
    ("end graph", 3, end_graph),
    ("busy", 2, busy),
    ("context", 1, context),
    ("reset", 1, reset),
    ("nonsense", 2, nonsense),
    ("race", 4, race),
    ("kill", 1, kill),
    ("exit", 1, exit),
    ("limit", 1, limit),
];

/// Takes one step that can be taken, and says which, and who took it.
pub fn take(world: &mut World) -> (&'static str, u64) {
    let total = STEPS.iter().map(|(_, weight, _)| weight).sum();
    loop {
        let mut at = world.random.below(total);
        let actor = world.random.below(world.actors.len() as u64) as usize;
        let (name, _, step) = STEPS
            .iter()
            .find(|(_, weight, _)| match at.checked_sub(*weight) {
                None => true,
                Some(rest) => {
                    at = rest;
                    false
                }
            })
            .expect("`at` is below the sum of all weights");
        let who = world.actors[actor].pid;
        if step(world, actor).is_some() {
            return (name, who);
        }
    }
}

fn size(random: &mut Rng, free: u64) -> u64 {
    match random.below(12) {
        0..3 => 1 + random.below(4096),
        3..6 => 1 + random.below(4 * MIB),
        6..9 => (1 + random.below(32)) * PAGE,
        9 => free.max(1),
        10 => free + 1 + random.below(64 * MIB),
        _ => u64::MAX - random.below(4) * PAGE,
    }
}

/// What the driver takes for one allocation, as the limiter believes too.
fn granted(bytes: u64) -> u64 {
    let unit = if bytes >= MIB { PAGE } else { 512 };
    bytes.checked_next_multiple_of(unit).unwrap_or(u64::MAX)
}

/// A refusal is right only if it did not fit, and no other failure is right at all.
#[track_caller]
fn is_fair(answer: &Answer, most: u64, free: u64) {
    assert!(
        answer.is_granted() || answer.is_refused(),
        "the driver answered {}",
        answer.result
    );
    assert!(
        !answer.is_refused() || most > free,
        "{most} of {free} bytes were refused"
    );
}

fn segments(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(SEGMENT).unwrap_or(u64::MAX)
}

/// The process, with a context to work in; makes one if there is room for it.
fn ready(world: &mut World, at: usize) -> Option<&mut Actor> {
    if world.actors[at].context.is_none() {
        context(world, at)?;
    }
    let actor = &mut world.actors[at];
    actor.context.is_some().then_some(actor)
}

fn pick<T>(random: &mut Rng, from: &mut Vec<T>) -> Option<T> {
    let index = random.index(from.len())?;
    Some(from.swap_remove(index))
}
