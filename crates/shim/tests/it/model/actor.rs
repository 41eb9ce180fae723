//! One process of the slice, and what it holds. It makes the calls it is told to and remembers nothing itself.

use crate::support::{OUT_OF_MEMORY, Probe, Rig, compiled, structure};

const UNTOUCHED: u64 = 0x5afe_5afe_5afe_5afe;

/// One argument of a call.
#[derive(Clone, Debug)]
pub enum Arg {
    Value(u64),
    /// A place for an answer of 64 bits.
    Out,
    /// A structure, as 64-bit words that the call may change.
    Words(Vec<u64>),
    /// A structure of more than 16 bytes, by value.
    ByValue(Vec<u64>),
}

/// What a call came to: its result, and what was in places and structures afterwards.
#[derive(Clone, Debug)]
pub struct Answer {
    pub result: u64,
    pub out: Vec<u64>,
}

impl Answer {
    pub fn is_granted(&self) -> bool {
        self.result == 0
    }

    pub fn is_refused(&self) -> bool {
        self.result == OUT_OF_MEMORY
    }

    /// The first place, which has to be as it was when nothing was granted.
    #[track_caller]
    pub fn place(&self) -> Option<u64> {
        let place = self.out.first().copied();
        if self.is_refused() {
            assert_eq!(place, Some(UNTOUCHED), "a refused call wrote its answer");
        }
        place.filter(|_| self.is_granted())
    }
}

#[derive(Default)]
pub struct Holdings {
    pub linear: Vec<Linear>,
    pub arrays: Vec<Array>,
    /// Addresses that were opened, once for each time.
    pub opened: Vec<u64>,
    /// References to memory handles; a handle is there once for each.
    pub references: Vec<Reference>,
    pub ranges: Vec<Mapped>,
    pub pools: Vec<u64>,
    /// Addresses for `cuMemFreeAsync`.
    pub pooled: Vec<u64>,
    pub graphs: Vec<Graph>,
    /// Streams whose capture has become invalid, and was not ended.
    pub captured: Vec<u64>,
}

/// Memory for `cuMemFree`.
pub struct Linear {
    pub address: u64,
    pub bytes: u64,
    /// By `cuMemAlloc`, so that other processes may open it.
    pub is_plain: bool,
}

pub struct Array {
    pub handle: u64,
    pub is_mipmapped: bool,
}

#[derive(Clone, Copy)]
pub struct Reference {
    pub handle: u64,
    pub bytes: u64,
    pub is_shareable: bool,
}

#[derive(Clone, Copy)]
pub struct Mapped {
    pub address: u64,
    pub bytes: u64,
}

/// A graph of allocation nodes and its one executable.
pub struct Graph {
    pub handle: u64,
    pub exec: u64,
    /// What a launch leaves allocated.
    pub leaves: Vec<u64>,
    pub is_left: bool,
}

pub struct Actor {
    probe: Probe,
    pub pid: u64,
    /// The primary context, when it is current.
    pub context: Option<u64>,
    /// What the context's limit is for the heap of device-side `malloc`, once it was set.
    pub heap: u64,
    pub holds: Holdings,
    log: Vec<String>,
}

impl Actor {
    pub fn start(rig: &Rig) -> Self {
        let mut probe = Probe::start(&mut rig.limited(&compiled("actor.c", "actor", &[])));
        let pid = probe.ask("PID")[0];
        let mut actor = Actor {
            probe,
            pid,
            context: None,
            heap: 0,
            holds: Holdings::default(),
            log: Vec::new(),
        };
        assert!(actor.call("cuInit", &[Arg::Value(0)]).is_granted());
        actor
    }

    /// Makes a call without awaiting what it comes to.
    pub fn say(&mut self, name: &str, arguments: &[Arg]) {
        let words = arguments.iter().map(|argument| match argument {
            Arg::Value(value) => value.to_string(),
            Arg::Out => "&".into(),
            Arg::Words(words) => structure(words),
            Arg::ByValue(words) => structure(words).replace('+', "="),
        });
        let line = std::iter::once(name.to_owned())
            .chain(words)
            .collect::<Vec<_>>()
            .join(" ");
        self.probe.say(&line);
        self.log.push(line);
    }

    pub fn hear(&mut self) -> Answer {
        let said = self.probe.hear();
        self.log.push(format!("  = {said:?}"));
        Answer {
            result: said[0],
            out: said[1..].to_vec(),
        }
    }

    pub fn call(&mut self, name: &str, arguments: &[Arg]) -> Answer {
        self.say(name, arguments);
        self.hear()
    }

    /// A call that has to succeed.
    #[track_caller]
    pub fn must(&mut self, name: &str, arguments: &[Arg]) -> Answer {
        let answer = self.call(name, arguments);
        assert!(answer.is_granted(), "{name} answered {}", answer.result);
        answer
    }

    pub fn kill(&mut self) {
        self.probe.kill();
    }

    /// Lets it end by itself; it must not have said anything.
    pub fn end(self) {
        self.probe.ends_silently();
    }

    /// The calls it made, last ones last.
    pub fn story(&self) -> String {
        self.log.join("\n")
    }
}
