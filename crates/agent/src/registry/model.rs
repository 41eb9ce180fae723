//! Every interleaving of two and three daemons over the steps of the protocol: publish, read each other entry, journal,
//! settle, take back, release, and a kill between any two steps.
//!
//! The decision is the real one ([`judge`]). A daemon is a small program, and the search visits every state that any
//! order of steps reaches.

use std::collections::HashSet;

use divvy_core::Bytes;

use super::contention::{Claim, Verdict, judge};
use super::entry::Amount;

/// Shares of the one GPU; memory is not scarce.
const fn share(share: u64) -> Amount {
    Amount {
        share,
        memory: Bytes::ZERO,
    }
}

const USABLE: Bytes = Bytes::gib(80);

/// Where a daemon is between two steps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum At {
    Idle,
    /// It has published its intent, and has read so many of the others.
    Reading(Vec<(u64, u64)>),
    /// All entries fit; the journal comes next.
    Granted,
    /// The journal has the grant, the entry has the intent.
    Journaled,
    /// The journal has the release, the entry does not.
    Released,
    /// It was killed. Its entry counts: a supervisor lives, or the entry keeps its amounts.
    Dead,
    /// It has published an entry that says what the journal and the entry of before say.
    TakenOver,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Daemon {
    at: At,
    /// What each attempt asks for, the next one last.
    plans: Vec<u64>,
    journal: u64,
    /// Held and intended, as the entry says.
    entry: (u64, u64),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    daemons: Vec<Daemon>,
    kills: u32,
}

/// How the daemons of a search behave.
#[derive(Clone, Copy)]
struct Manner {
    /// The right order; otherwise a daemon reads before it publishes.
    publishes_first: bool,
    releases: bool,
}

impl World {
    fn new(plans: &[&[u64]], kills: u32) -> Self {
        let daemon = |plans: &&[u64]| Daemon {
            at: At::Idle,
            plans: plans.to_vec(),
            journal: 0,
            entry: (0, 0),
        };
        Self {
            daemons: plans.iter().map(daemon).collect(),
            kills,
        }
    }

    fn others(&self, me: usize) -> Vec<usize> {
        (0..self.daemons.len())
            .filter(|other| *other != me)
            .collect()
    }

    fn verdict(&self, me: usize, read: &[(u64, u64)]) -> Verdict {
        let wanted = self.daemons[me].plans.last().copied().unwrap_or_default();
        let claim = |rank: usize, (held, intent): (u64, u64)| Claim {
            rank,
            held: share(held),
            intent: share(intent),
        };
        let (held, _) = self.daemons[me].entry;
        let others = self.others(me).into_iter().zip(read);
        let others = others.map(|(other, entry)| claim(other, *entry));
        judge(USABLE, claim(me, (held, wanted)), others)
    }

    /// The states after one step of this daemon.
    fn after(&self, me: usize, manner: Manner) -> Vec<Self> {
        let mut all = Vec::new();
        let mut step = |change: &dyn Fn(&mut Daemon)| {
            let mut next = self.clone();
            change(&mut next.daemons[me]);
            all.push(next);
        };
        let daemon = &self.daemons[me];
        let wanted = daemon.plans.last().copied();
        match &daemon.at {
            At::Idle => {
                if let Some(wanted) = wanted {
                    step(&|daemon| {
                        daemon.at = At::Reading(Vec::new());
                        daemon.entry.1 = if manner.publishes_first { wanted } else { 0 };
                    });
                }
                if manner.releases && daemon.journal > 0 {
                    step(&|daemon| {
                        daemon.at = At::Released;
                        daemon.journal = 0;
                    });
                }
            }
            At::Reading(read) => {
                let others = self.others(me);
                match others.get(read.len()) {
                    Some(other) => {
                        let entry = self.daemons[*other].entry;
                        step(&|daemon| {
                            if let At::Reading(read) = &mut daemon.at {
                                read.push(entry);
                            }
                        });
                    }
                    None => match self.verdict(me, read) {
                        Verdict::Fits => step(&|daemon| {
                            daemon.at = At::Granted;
                            daemon.entry.1 = wanted.unwrap_or_default();
                        }),
                        Verdict::Ahead => step(&|daemon| daemon.at = At::Reading(Vec::new())),
                        Verdict::Taken => step(&|daemon| {
                            daemon.at = At::Idle;
                            daemon.entry.1 = 0;
                            daemon.plans.pop();
                        }),
                    },
                }
            }
            At::Granted => step(&|daemon| {
                daemon.at = At::Journaled;
                daemon.journal += daemon.plans.pop().unwrap_or_default();
            }),
            At::Journaled | At::Released | At::TakenOver => step(&|daemon| {
                daemon.at = At::Idle;
                daemon.entry = (daemon.journal, 0);
            }),
            At::Dead => step(&|daemon| {
                daemon.at = At::TakenOver;
                let (held, intent) = daemon.entry;
                daemon.entry = (daemon.journal.max(held + intent), 0);
            }),
        }
        if self.kills > 0 && daemon.at != At::Dead {
            let mut next = self.clone();
            next.kills -= 1;
            next.daemons[me].at = At::Dead;
            all.push(next);
        }
        all
    }

    fn granted(&self) -> u64 {
        self.daemons.iter().map(|daemon| daemon.journal).sum()
    }
}

/// Visits every state. Returns how many there are, or the first in which more than one GPU is granted; `at_end` checks
/// the states without a next step.
fn search(world: World, manner: Manner, at_end: impl Fn(&World)) -> Result<usize, World> {
    let mut seen = HashSet::from([world.clone()]);
    let mut open = vec![world];
    while let Some(world) = open.pop() {
        if world.granted() > 1000 {
            return Err(world);
        }
        let next: Vec<World> = (0..world.daemons.len())
            .flat_map(|me| world.after(me, manner))
            .collect();
        if next.is_empty() {
            at_end(&world);
        }
        for next in next {
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    Ok(seen.len())
}

const RIGHT: Manner = Manner {
    publishes_first: true,
    releases: true,
};

#[test]
fn no_order_of_steps_and_kills_grants_more_than_one_gpu() {
    let two = World::new(&[&[500, 1000, 600], &[1000, 500, 400]], 2);
    let three = World::new(&[&[1000, 500], &[500], &[600]], 1);
    let states = [two, three].map(|world| search(world, RIGHT, |_| ()).expect("at most one GPU"));
    assert!(states.iter().all(|count| *count > 10_000), "{states:?}");
}

#[test]
fn the_search_finds_the_fault_of_daemons_that_read_before_they_publish() {
    let wrong = Manner {
        publishes_first: false,
        ..RIGHT
    };
    let world = World::new(&[&[1000], &[1000]], 0);
    let over = search(world, wrong, |_| ()).expect_err("both read an empty registry");
    assert_eq!(over.granted(), 2000);
}

#[test]
fn of_daemons_that_want_one_gpu_at_once_one_gets_it() {
    let stays = Manner {
        releases: false,
        ..RIGHT
    };
    for plans in [
        &[&[1000_u64][..], &[1000]][..],
        &[&[1000], &[1000], &[1000]],
        &[&[600], &[1000], &[500]],
    ] {
        let ends =
            |world: &World| assert!(world.granted() >= 500, "nothing was granted: {world:?}");
        search(World::new(plans, 0), stays, ends).expect("at most one GPU");
    }
}
