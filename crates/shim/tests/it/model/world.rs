//! The processes, the slice they share, and the two books that have to agree.

use std::collections::BTreeMap;

use divvy_ledger::{Control, Snapshot};

use crate::model::actor::{Actor, Arg};
use crate::model::steps;
use crate::support::{MIB, Probe, Rig};
use divvy_testkit::Rng;

const ACTORS: usize = 3;
const ROOM: u64 = 512 * MIB;

pub struct World {
    seed: u64,
    pub random: Rng,
    /// Whether processes share memory in this run. Then what each has is told apart differently by the driver and the ledger.
    pub shares: bool,
    pub rig: Rig,
    pub actors: Vec<Actor>,
    /// A process outside the slice, that only looks.
    observer: Probe,
    idle: u64,
    pub limit: u64,
    /// What may be charged now: the limit, or what was charged when it was lowered.
    ceiling: u64,
    taken: BTreeMap<&'static str, u64>,
    last: String,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let rig = Rig::new(ACTORS as u64, ROOM);
        let mut observer = rig.outside();
        assert_eq!(observer.ask("init"), [0]);
        let idle = observer.ask("nvml 0")[3];
        let actors = (0..ACTORS).map(|_| Actor::start(&rig)).collect();
        World {
            seed,
            random: Rng::new(seed),
            shares: !seed.is_multiple_of(2),
            limit: rig.limit,
            ceiling: rig.limit,
            rig,
            actors,
            observer,
            idle,
            taken: BTreeMap::new(),
            last: String::new(),
        }
    }

    /// Something happens, and is looked at.
    pub fn step(&mut self) {
        let (name, who) = steps::take(self);
        *self.taken.entry(name).or_default() += 1;
        self.last = format!("{name}, by process {who}");
        self.check();
    }

    /// Bytes that would be granted to one who asks now, if nothing cached were given back.
    pub fn free(&self) -> u64 {
        self.limit.saturating_sub(self.rig.charged())
    }

    /// An actor is gone, whatever it was doing; another takes its place.
    pub fn replace(&mut self, gone: usize) {
        self.rig.settle_the_dead();
        self.actors[gone] = Actor::start(&self.rig);
    }

    pub fn set_limit(&mut self, limit: u64) {
        Control::open_writable(&self.rig.slice_folder())
            .expect("a sound slice")
            .set_limit(0, limit);
        self.limit = limit;
    }

    /// What is charged, what the driver gave, and the slice.
    fn books(&mut self) -> (u64, u64, Snapshot) {
        // What pools and graphs gave back by themselves is noticed when somebody asks.
        for actor in &mut self.actors {
            if actor.context.is_some() {
                let info = actor.must("cuMemGetInfo_v2", &[Arg::Out, Arg::Out]);
                assert_eq!(info.out[1], self.limit, "the total that a program sees");
            }
        }
        let snapshot = self.rig.slice().read().expect("a sound slice");
        let usage = snapshot.usage(0);
        let truth = self.observer.ask("nvml 0")[3] - self.idle;
        (usage.charged + usage.overhead, truth, snapshot)
    }

    pub fn check(&mut self) {
        let (mut charged, truth, mut snapshot) = self.books();
        assert!(
            charged >= truth,
            "{charged} bytes are charged, the driver gave {truth}"
        );
        if charged > truth {
            // What is freed in the order of a stream stays charged until the stream has come so far.
            for actor in &mut self.actors {
                if actor.context.is_some() {
                    actor.must("cuStreamSynchronize", &[Arg::Value(0)]);
                }
            }
            let truth;
            (charged, truth, snapshot) = self.books();
            assert_eq!(charged, truth, "charged, and given by the driver");
        }
        assert!(
            charged <= self.ceiling.max(self.limit),
            "{charged} bytes are charged, beyond {}",
            self.ceiling.max(self.limit)
        );
        self.ceiling = charged.max(self.limit);
        assert_eq!(
            snapshot.alarms(),
            0,
            "the limiter found an error of its own"
        );
        let said = self.observer.ask("processes 0 3 32");
        let given: BTreeMap<u64, u64> = said[2..said.len() - 1]
            .chunks(2)
            .map(|pair| (pair[0], pair[1]))
            .collect();
        for process in snapshot.processes() {
            let pid = u64::from(process.owner.pid);
            let charged = process.gpus[0].charged + process.gpus[0].overhead;
            // The driver does not list a process without a context.
            if let Some(given) = given.get(&pid).filter(|_| !self.shares) {
                assert_eq!(charged, *given, "process {pid}");
            }
        }
    }

    /// Everything is given back, and then there is nothing left.
    pub fn end(mut self) {
        self.set_limit(self.rig.limit);
        for actor in &mut self.actors {
            steps::give_all_back(actor);
        }
        self.check();
        for actor in &mut self.actors {
            steps::end_context(actor);
        }
        self.check();
        assert_eq!(self.rig.charged(), 0);
        for actor in std::mem::take(&mut self.actors) {
            actor.end();
        }
        self.rig.settle_the_dead();
        assert_eq!(self.rig.charged(), 0);
        assert_eq!(self.rig.truth(), 0);
        eprintln!("{:?}", self.taken);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for actor in &self.actors {
                eprintln!("process {}:\n{}\n", actor.pid, actor.story());
            }
            eprintln!(
                "after {} steps, the last: {}",
                self.taken.values().sum::<u64>(),
                self.last
            );
            eprintln!("again: cargo xtask soak --seed {}", self.seed);
        }
    }
}
