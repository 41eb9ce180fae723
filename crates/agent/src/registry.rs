//! The registry of allocations: what each daemon of this machine holds of each GPU, so that none gives it out twice.
//!
//! ```text
//! /run/lock (a folder of root's, sticky)
//!   divvy.1000.HOME.NONCE        ana's daemon: amounts for each GPU; locked while the daemon lives
//!   divvy-hold.1000.HOME.NONCE   locked while a supervisor of it lives
//!   divvy.1001.HOME.NONCE        ben's daemon
//! ```
//! There is no common lock, as any user could keep it. A daemon publishes what it is about to grant, then reads the
//! others' entries, and goes on only if the sum fits each GPU ([`contention`]). Of two daemons that publish at the same
//! time, at least one reads the other's amount. An entry shrinks only after the journal has the release.
//!
//! An entry counts while its daemon or one of its supervisors lives ([`files`]). What has no process that could hold a
//! lock counts for longer ([`entry::Record::kept`]). [`entry`] treats the content of a file as hostile.
//!
//! May use: `host`.
//! Used by: `supervisor`, `controller`, `daemon`, `diagnostics`, `standalone`.

pub mod contention;
pub mod entry;
pub mod files;
#[cfg(test)]
mod model;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use divvy_api::sync;
use divvy_core::{Bytes, GpuUuid, HeldElsewhere};

use crate::host::account::UserAccount;
use crate::host::clock::Instant;
use contention::{Claim, Verdict, judge};
use entry::{Amount, Driver, Entry, Writer};
use files::{Hold, Listing, Owner, Place, Position, Published};

/// How often a daemon waits for the others to take their intents back, and how long each time.
const LOOKS: u32 = 5;
const LOOK: Duration = Duration::from_millis(1);

/// How often a daemon removes its user's files that count no more. They are small and count no more, so ten minutes are
/// soon enough.
const SWEEP: Duration = Duration::from_secs(600);

/// What this daemon holds of one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub amount: Amount,
    /// The part of it that counts without a living process (`Record::kept`).
    pub kept: Amount,
    /// The driver's figure of what its jobs use.
    pub used: Bytes,
}

/// More of one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub amount: Amount,
    pub usable: Bytes,
}

/// Another daemon's hold on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Other {
    owner: Owner,
    writer: Writer,
    held: Amount,
    intent: Amount,
    used: Bytes,
}

/// What the other daemons hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Others {
    gpus: BTreeMap<GpuUuid, Vec<Other>>,
    /// Owners of entries that live and cannot be read: they count as holding every GPU.
    unreadable: BTreeSet<Owner>,
}

/// This daemon's entry, and what it last read of the others.
pub struct Registry {
    inner: Option<Mutex<Inner>>,
}

struct Inner {
    place: Place,
    owner: Owner,
    file: Published,
    entry: Entry,
    /// The file may say more than the entry: a write failed.
    is_stale: bool,
    takes_over: bool,
    /// When files that count no more were removed.
    swept: Instant,
    others: Others,
    names: BTreeMap<u32, String>,
}

/// How a daemon takes part in the registry.
#[derive(Clone, Debug)]
pub struct Membership {
    /// Its state folder.
    pub home: PathBuf,
    pub writer: Writer,
    /// The state file of the simulated driver whose GPUs it serves; `None` for the machine's own driver.
    pub simulated: Option<PathBuf>,
}

impl Membership {
    /// Publishes what the journal says that the daemon holds. A machine without a place for a registry has daemons that
    /// do not see each other, which the log says.
    pub fn join(&self, held: &BTreeMap<GpuUuid, Held>) -> Registry {
        Registry::open(self, held).unwrap_or_else(|why| {
            tracing::warn!(
                why,
                "no registry of allocations: this daemon does not see GPUs that other daemons hold"
            );
            Registry::absent()
        })
    }
}

/// The sum does not fit: another daemon holds or wants the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contended;

impl Registry {
    /// A registry with no other daemon in it, for a machine without a place for one.
    pub fn absent() -> Self {
        Self { inner: None }
    }

    /// Publishes an entry for this home. A daemon's says what its journal says that it holds, and what its entry of
    /// before says if a supervisor may still hold it; until [`settle`](Self::settle).
    ///
    /// # Errors
    /// In words, when there is no folder that the users of this machine can share.
    pub fn open(membership: &Membership, held: &BTreeMap<GpuUuid, Held>) -> Result<Self, String> {
        let Membership {
            home,
            writer,
            simulated,
        } = membership;
        let mut place = Place::find()?;
        let owner = Owner::of(home).map_err(|error| format!("{}: {error}", home.display()))?;
        place.watch();
        let mut entry = Entry::new(*writer, Driver::of(simulated.as_deref()));
        entry.set(held);
        let takes_over = *writer != Writer::Run;
        if takes_over {
            for before in place.own(owner) {
                entry.keep(&before);
            }
        }
        let file = place.publish(owner, &mut entry)?;
        place.remove_dead(owner, takes_over);
        Ok(Self {
            inner: Some(Mutex::new(Inner {
                place,
                owner,
                file,
                entry,
                is_stale: false,
                takes_over,
                swept: Instant::now(),
                others: Others::default(),
                names: BTreeMap::new(),
            })),
        })
    }

    /// Reads the entries of the others; whether they have changed since the last time.
    pub fn refresh(&self) -> bool {
        self.inner
            .as_ref()
            .is_some_and(|inner| sync::lock(inner).refresh())
    }

    /// What the others hold of a GPU, as of the last look.
    pub fn elsewhere(&self, gpu: &GpuUuid) -> Vec<HeldElsewhere> {
        let inner = self.inner.as_ref();
        inner.map_or_else(Vec::new, |inner| sync::lock(inner).elsewhere(gpu))
    }

    /// Publishes the intent to grant these amounts beside what is held and intended. The caller journals them, and then
    /// calls [`settle`](Self::settle).
    ///
    /// # Errors
    /// [`Contended`] when they do not fit beside the others' amounts; then the intent is taken back.
    pub fn acquire(&self, wanted: &BTreeMap<GpuUuid, Wanted>) -> Result<(), Contended> {
        match &self.inner {
            Some(inner) if !wanted.is_empty() => sync::lock(inner).acquire(wanted),
            _ => Ok(()),
        }
    }

    /// Publishes what is held, once the journal has it. All intents end. `reserved`: what the others are not to get,
    /// held or not.
    pub fn settle(&self, held: &BTreeMap<GpuUuid, Held>, reserved: &BTreeMap<GpuUuid, Amount>) {
        if let Some(inner) = &self.inner {
            sync::lock(inner).settle(held, reserved);
        }
    }
}

impl Inner {
    fn refresh(&mut self) -> bool {
        if self.swept.elapsed() > SWEEP {
            self.swept = Instant::now();
            // Files that were never renamed to their place have no report.
            self.place.watch();
            self.place.remove_dead(self.owner, self.takes_over);
        }
        let mut others = Others::default();
        for Listing { owner, position } in self.place.others(self.owner) {
            match position {
                Position::Unreadable => {
                    others.unreadable.insert(owner);
                }
                Position::Holds(entry) if entry.driver == self.entry.driver => {
                    for (gpu, record) in entry.records() {
                        others.gpus.entry(gpu).or_default().push(Other {
                            owner,
                            writer: entry.writer,
                            held: record.held,
                            intent: record.intent,
                            used: record.used,
                        });
                    }
                }
                Position::Holds(_) => {}
            }
        }
        std::mem::replace(&mut self.others, others.clone()) != others
    }

    fn elsewhere(&mut self, gpu: &GpuUuid) -> Vec<HeldElsewhere> {
        let mut all = Vec::new();
        for other in self.others.gpus.get(gpu).cloned().unwrap_or_default() {
            // An intent counts as held: it mostly is a moment later.
            let amount = other.held.plus(other.intent);
            if !amount.is_zero() {
                all.push(HeldElsewhere {
                    holder: holder(&mut self.names, other.owner.uid, other.writer),
                    share: amount.share,
                    memory: amount.memory,
                    used: other.used,
                });
            }
        }
        for owner in self.others.unreadable.clone() {
            let holder = holder(&mut self.names, owner.uid, Writer::Daemon);
            all.push(HeldElsewhere {
                holder: format!("{holder}, with an entry that this build cannot read"),
                share: Amount::WHOLE.share,
                memory: Amount::WHOLE.memory,
                used: Bytes::ZERO,
            });
        }
        all
    }

    fn acquire(&mut self, wanted: &BTreeMap<GpuUuid, Wanted>) -> Result<(), Contended> {
        let before = self.entry.clone();
        for (gpu, wanted) in wanted {
            if self.entry.intend(gpu, wanted.amount).is_err() {
                self.entry = before;
                return Err(Contended);
            }
        }
        let mut fits = self.publish().is_ok();
        if fits {
            fits = self.wait_for_verdict(wanted);
        }
        if fits {
            return Ok(());
        }
        self.entry.take_back(&before);
        self.is_stale = self.publish().is_err();
        Err(Contended)
    }

    fn wait_for_verdict(&mut self, wanted: &BTreeMap<GpuUuid, Wanted>) -> bool {
        for look in 0..LOOKS {
            self.refresh();
            match self.verdict(wanted) {
                Verdict::Fits => return true,
                Verdict::Taken => return false,
                Verdict::Ahead if look + 1 < LOOKS => std::thread::sleep(LOOK),
                Verdict::Ahead => {}
            }
        }
        false
    }

    fn verdict(&self, wanted: &BTreeMap<GpuUuid, Wanted>) -> Verdict {
        if !self.others.unreadable.is_empty() {
            return Verdict::Taken;
        }
        let verdicts = wanted.iter().map(|(gpu, wanted)| {
            let record = self.entry.record(gpu);
            let mine = Claim {
                rank: self.owner,
                held: record.held,
                intent: record.intent,
            };
            let others = self.others.gpus.get(gpu).into_iter().flatten();
            let others = others.map(|other| Claim {
                rank: other.owner,
                held: other.held,
                intent: other.intent,
            });
            judge(wanted.usable, mine, others)
        });
        verdicts.max().unwrap_or(Verdict::Fits)
    }

    fn settle(&mut self, held: &BTreeMap<GpuUuid, Held>, reserved: &BTreeMap<GpuUuid, Amount>) {
        if !self.takes_over {
            // A run looks at the others until it has its part.
            self.place.unwatch();
        }
        let before = self.entry.clone();
        self.entry.set(held);
        self.entry.reserve(reserved);
        if !self.is_stale && self.entry == before {
            return;
        }
        self.is_stale = self.publish().is_err();
        if self.is_stale {
            // The file still says more than is held.
            self.entry = before;
        }
    }

    /// Whether no amount of the entry outlives this process.
    fn is_over(&self) -> bool {
        !self.takes_over || self.entry.records().next().is_none()
    }

    fn publish(&mut self) -> Result<(), String> {
        self.file.write(&mut self.entry)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.is_over() {
            self.place.remove(&self.file);
        }
    }
}

/// The name of a holder: `ana's daemon`.
fn holder(names: &mut BTreeMap<u32, String>, uid: u32, writer: Writer) -> String {
    let look_up = || match UserAccount::lookup(uid, uid) {
        Ok(account) if account.name != uid.to_string() => account.name,
        _ => format!("uid {uid}"),
    };
    match writer {
        Writer::SystemDaemon if uid == 0 => "the system's daemon".to_owned(),
        Writer::SystemDaemon | Writer::Daemon => {
            format!("{}'s daemon", names.entry(uid).or_insert_with(look_up))
        }
        Writer::Run => format!("{}'s run", names.entry(uid).or_insert_with(look_up)),
    }
}

/// What the daemons of other users hold together, by holder. `simulated`: as in [`Membership`].
pub fn held_by_other_users(simulated: Option<&Path>) -> BTreeMap<String, Amount> {
    let me = rustix::process::geteuid().as_raw();
    let driver = Driver::of(simulated);
    let mut names = BTreeMap::new();
    let mut all: BTreeMap<String, Amount> = BTreeMap::new();
    let listed = Place::find().map_or_else(
        |_| Vec::new(),
        |mut place| place.listed(|owner| owner.uid != me),
    );
    for Listing { owner, position } in listed {
        let Position::Holds(entry) = position else {
            continue;
        };
        if entry.driver != driver {
            continue;
        }
        for (_, record) in entry.records() {
            let sum = all
                .entry(holder(&mut names, owner.uid, entry.writer))
                .or_default();
            *sum = sum.plus(record.held);
        }
    }
    all.retain(|_, amount| !amount.is_zero());
    all
}

/// Marks the daemon of this home as having a living supervisor, while this process or a copy of it lives. `None` for
/// another user's daemon, and where the machine has no place for a registry.
pub fn hold(home: &Path) -> Option<Hold> {
    let owner = Owner::of(home).ok()?;
    let is_mine = std::fs::metadata(home).is_ok_and(|meta| meta.uid() == owner.uid);
    is_mine.then(|| Place::find().ok()?.hold(owner)).flatten()
}
