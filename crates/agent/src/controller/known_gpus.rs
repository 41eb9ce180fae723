//! The identity of GPUs over starts: a GPU is its UUID, and its index is a number for people.
//!
//! ```text
//! journal: GPUs of the last start ─┐
//! driver: GPUs that are listed ────┼─► numbers, missing GPUs, differences ─► journal, event, `doctor`
//! --gpus ──────────────────────────┘
//! ```
//! A listed GPU has the driver's index as its number for as long as the daemon runs. A missing one keeps its number, or
//! gets a free one.

use std::collections::{BTreeMap, BTreeSet};

use divvy_core::{Gpu, GpuSelection, GpuUuid, Mode, SelectionError};
use jiff::SignedDuration;

use crate::gpu::{Device, Observation, ObservedGpu};
use crate::host::clock::now;
use crate::journal::{Store, StoreError};
use crate::model::known_gpu::KnownGpu;

/// How long a missing GPU is remembered that no job holds or asks for: longer than a repair takes.
const REMEMBERED: SignedDuration = SignedDuration::from_hours(30 * 24);

/// The journal's settings with the last start's `--gpus` and simulated models.
const SELECTION: &str = "gpus";
const SIMULATED: &str = "sim";

/// How often the journal notes that a GPU is still listed, so that most starts write nothing about it.
const NOTED: SignedDuration = SignedDuration::from_hours(24);

/// Most differences that one event, and most lines that the node, tells. More than eight GPUs have as a rule; a longer
/// text hides the first difference.
const MOST_TOLD: usize = 16;

/// The GPUs of this start, and what is different since the last one.
#[derive(Debug, Default)]
pub struct KnownGpus {
    gpus: Vec<KnownGpu>,
    /// The settings that a later start compares with its own.
    settings: [(&'static str, String); 2],
    /// No GPU responds: which of them are here is not known, and the journal keeps what it says.
    is_blind: bool,
    pub start: StartDifferences,
}

/// What a start found different.
#[derive(Clone, Debug, Default)]
pub struct StartDifferences {
    /// The GPUs of the last start with the numbers of this one, if one of them is missing or has lost its MIG mode: a
    /// request that fits them waits.
    pub before: Vec<Gpu>,
    /// Differences since the last start, for an event.
    pub changes: Vec<String>,
    /// What is missing now, or different since the last start.
    pub warnings: Vec<String>,
}

/// `all` but the first lines, and how many are left out.
pub fn told(mut all: Vec<String>) -> Vec<String> {
    let more = all.len().saturating_sub(MOST_TOLD);
    all.truncate(MOST_TOLD);
    all.extend((more > 0).then(|| format!("and {more} more")));
    all
}

impl KnownGpus {
    /// Compares the GPUs that the driver lists with those of the last start. `sim`: the simulated models, which are
    /// another machine when they change.
    ///
    /// # Errors
    /// When the journal fails.
    pub fn compare(
        store: &Store,
        observation: &Observation,
        selection: &GpuSelection,
        sim: Option<&str>,
    ) -> Result<Self, StoreError> {
        let settings = settings(selection, sim);
        let last = LastStart::read(store, &settings)?;
        let modes = store.modes()?;
        let wants_mig = |gpu: &GpuUuid| modes.get(gpu).is_some_and(|to| to.mode == Mode::Mig);
        Ok(Self {
            settings,
            ..compare(&last, observation, selection, wants_mig)
        })
    }

    /// The GPUs of the last start, for a start at which none responds; `None` if the last start served none of this
    /// machine.
    ///
    /// # Errors
    /// When the journal fails.
    pub fn of_last_start(
        store: &Store,
        selection: &GpuSelection,
        sim: Option<&str>,
    ) -> Result<Option<Self>, StoreError> {
        let settings = settings(selection, sim);
        let mut last = LastStart::read(store, &settings)?;
        let mut before = Vec::new();
        for gpu in &mut last.gpus {
            gpu.is_listed = false;
            if !last.has_selection {
                gpu.is_served = selection.names(gpu.number, &gpu.uuid);
            }
            let record = gpu.record.clone().filter(|_| gpu.is_served);
            before.extend(record.map(|record| Gpu {
                index: gpu.number,
                ..record
            }));
        }
        let is_any = last.is_same_machine && !before.is_empty();
        Ok(is_any.then(|| Self {
            gpus: last.gpus,
            is_blind: true,
            start: StartDifferences {
                before,
                ..StartDifferences::default()
            },
            ..Self::default()
        }))
    }

    /// The same with the driver's words.
    #[must_use]
    pub fn warned(mut self, why: &str) -> Self {
        let words =
            format!("{why}; until a GPU responds, the jobs for the GPUs of the last start wait");
        self.start.warnings.push(words);
        self
    }

    /// Whether `--gpus` gives this GPU to the daemon.
    pub fn serves(&self, gpu: &GpuUuid) -> bool {
        let mut gpus = self.gpus.iter();
        gpus.any(|known| known.uuid == *gpu && known.is_served)
    }

    /// Takes a GPU out of service that the last daemon had taken out.
    pub fn apply_service(&self, device: &mut Device) {
        let mut gpus = self.gpus.iter();
        let known = gpus.find(|known| known.uuid == device.gpu.uuid);
        device.out = known.and_then(|known| known.out.clone());
        device.accepted_fault = known.and_then(|known| known.accepted_fault.clone());
        device.apply_mode();
    }

    /// Refuses a list without any GPU to serve, now or later: it is no matter of this boot.
    ///
    /// # Errors
    /// The list's own.
    pub fn check(&self, selection: &GpuSelection) -> Result<(), SelectionError> {
        match self.gpus.iter().any(|known| known.is_served) {
            true => Ok(()),
            false => selection.check(self.gpus.iter().map(|known| (known.number, &known.uuid))),
        }
    }

    /// The missing GPUs that the daemon serves once they are back.
    pub fn missing(&self) -> impl Iterator<Item = Device> {
        let missing = self
            .gpus
            .iter()
            .filter(|gpu| gpu.is_served && !gpu.is_listed);
        missing.filter_map(|gpu| {
            let mut last = gpu.record.clone()?;
            last.index = gpu.number;
            let mut device = Device {
                is_lost: !self.is_blind,
                ..Device::missing(&last, &gpu.bus)
            };
            self.apply_service(&mut device);
            Some(device)
        })
    }

    /// Stores the GPUs of this start, and brings what the journal says of GPUs to their numbers.
    ///
    /// # Errors
    /// When the journal fails.
    pub fn save(
        mut self,
        store: &Store,
        devices: &[Device],
    ) -> Result<StartDifferences, StoreError> {
        if self.is_blind {
            return Ok(self.start);
        }
        for gpu in self.gpus.iter_mut().filter(|gpu| gpu.is_listed) {
            let Some(device) = devices.iter().find(|device| device.gpu.uuid == gpu.uuid) else {
                continue;
            };
            let requested = device.mode.requested.map(|requested| requested.mode);
            let is_restored = requested == Some(Mode::Mig) && device.mode.assigned != Mode::Mig;
            // The daemon turns MIG mode on again: what the GPU is then cut into is known from before.
            let keeps = |last: &Gpu| is_restored && last.mode == Mode::Mig;
            if !gpu.record.as_ref().is_some_and(keeps) {
                gpu.record = Some(device.record());
            }
        }
        store.begin()?;
        for (name, value) in self.settings {
            if store.setting(name)?.as_ref() != Some(&value) {
                store.set_setting(name, &value)?;
            }
        }
        store.save_known_gpus(&self.gpus)?;
        store.commit()?;
        Ok(self.start)
    }
}

/// What the journal has of the last start.
#[derive(Debug, Default)]
struct LastStart {
    gpus: Vec<KnownGpu>,
    in_use: BTreeSet<GpuUuid>,
    /// It had the same `--gpus`.
    has_selection: bool,
    is_same_machine: bool,
}

fn settings(selection: &GpuSelection, sim: Option<&str>) -> [(&'static str, String); 2] {
    [
        (SELECTION, selection.to_string()),
        (SIMULATED, sim.unwrap_or_default().to_owned()),
    ]
}

impl LastStart {
    /// `settings` are those of this start.
    fn read(store: &Store, settings: &[(&'static str, String); 2]) -> Result<Self, StoreError> {
        let is_as_before =
            |(name, value): &(&str, String)| Ok(store.setting(name)?.as_ref() == Some(value));
        Ok(Self {
            gpus: store.known_gpus()?,
            in_use: store.gpus_in_use()?,
            has_selection: is_as_before(&settings[0])?,
            is_same_machine: is_as_before(&settings[1])?,
        })
    }

    fn find(&self, gpu: &GpuUuid) -> Option<&KnownGpu> {
        self.gpus.iter().find(|known| known.uuid == *gpu)
    }

    /// The missing GPUs that are not forgotten. One in whose place another is counts as replaced.
    fn missing(&self, seen: &[ObservedGpu]) -> Vec<KnownGpu> {
        let is_seen = |known: &&KnownGpu| seen.iter().any(|gpu| gpu.uuid == known.uuid);
        let is_replaced = |known: &KnownGpu| {
            let mut others = seen.iter().filter(|gpu| self.find(&gpu.uuid).is_none());
            others.any(|gpu| gpu.bus == known.bus)
        };
        let mut missing = Vec::new();
        for known in self.gpus.iter().filter(|known| !is_seen(known)) {
            // A daemon may have served it for longer than that.
            let seen = match known.is_listed {
                true => now(),
                false => known.seen,
            };
            let is_gone = is_replaced(known)
                || !self.is_same_machine
                || known.record.is_none()
                || now().duration_since(seen) > REMEMBERED;
            if !is_gone || self.in_use.contains(&known.uuid) {
                missing.push(KnownGpu {
                    seen,
                    is_listed: false,
                    is_served: known.is_served && !is_gone,
                    ..known.clone()
                });
            }
        }
        missing
    }
}

fn compare(
    last: &LastStart,
    observation: &Observation,
    selection: &GpuSelection,
    wants_mig: impl Fn(&GpuUuid) -> bool,
) -> KnownGpus {
    let seen = &observation.gpus;
    let mut missing = last.missing(seen);
    let listed: BTreeSet<u32> = seen.iter().map(|gpu| gpu.index).collect();
    let mut numbers = listed.clone();
    numbers.extend(missing.iter().map(|gpu| gpu.number));
    // Indices mean the GPUs that had them when the list was first used; a new list means those that have them now.
    let keeps = last.has_selection && matches!(selection, GpuSelection::Indices(_));
    for gpu in &mut missing {
        if !last.has_selection {
            gpu.is_served &=
                !listed.contains(&gpu.number) && selection.names(gpu.number, &gpu.uuid);
        }
        if listed.contains(&gpu.number) {
            let mut free = (0..).filter(|number| !numbers.contains(number));
            gpu.number = free.next().unwrap_or(u32::MAX);
            numbers.insert(gpu.number);
        }
    }
    missing.retain(|gpu| gpu.is_served || last.in_use.contains(&gpu.uuid));
    let known = |gpu: &ObservedGpu| last.find(&gpu.uuid);
    let mut served: BTreeMap<&GpuUuid, bool> = BTreeMap::new();
    for gpu in seen {
        let before = known(gpu).filter(|_| keeps).map(|known| known.is_served);
        served.insert(
            &gpu.uuid,
            before.unwrap_or_else(|| selection.names(gpu.index, &gpu.uuid)),
        );
    }
    if keeps {
        // A new GPU takes the place of one that never was here, or was replaced, and no more places.
        let count = |new: bool| {
            seen.iter()
                .filter(|gpu| known(gpu).is_none() == new && served[&gpu.uuid])
                .count()
        };
        let taken = count(false) + missing.iter().filter(|gpu| gpu.is_served).count();
        let room = selection
            .count()
            .unwrap_or(usize::MAX)
            .saturating_sub(taken);
        let new = seen
            .iter()
            .filter(|gpu| known(gpu).is_none() && served[&gpu.uuid]);
        for gpu in new.skip(room).collect::<Vec<_>>() {
            served.insert(&gpu.uuid, false);
        }
    }
    let mut gpus: Vec<KnownGpu> = seen
        .iter()
        .map(|gpu| KnownGpu {
            uuid: gpu.uuid.clone(),
            number: gpu.index,
            record: match known(gpu).and_then(|known| known.record.clone()) {
                Some(record) => Some(record),
                None => Some(Device::new(gpu, Mode::Unmanaged, divvy_core::Bytes::ZERO).gpu),
            },
            bus: gpu.bus.clone(),
            is_served: served[&gpu.uuid],
            is_listed: true,
            seen: match known(gpu) {
                Some(known) if now().duration_since(known.seen).abs() < NOTED => known.seen,
                _ => now(),
            },
            out: known(gpu).and_then(|known| known.out.clone()),
            accepted_fault: known(gpu).and_then(|known| known.accepted_fault.clone()),
        })
        .collect();
    gpus.extend(missing);
    gpus.sort_by_key(|gpu| gpu.number);
    let start = differences(last, &gpus, observation, selection, wants_mig);
    KnownGpus {
        gpus,
        start,
        ..KnownGpus::default()
    }
}

fn differences(
    last: &LastStart,
    gpus: &[KnownGpu],
    observation: &Observation,
    selection: &GpuSelection,
    wants_mig: impl Fn(&GpuUuid) -> bool,
) -> StartDifferences {
    let mut start = StartDifferences::default();
    // The journal of an earlier version knows allocations alone.
    let compares = last.is_same_machine && last.gpus.iter().any(|gpu| gpu.record.is_some());
    let is_missing = match observation.troubles.is_empty() {
        true => "is missing",
        // A GPU that does not respond has no UUID.
        false => "does not respond, or is missing",
    };
    let mut has_less = false;
    for gpu in gpus {
        let (what, before) = (gpu.describe(), last.find(&gpu.uuid));
        let of_seen = observation.gpus.iter().find(|seen| seen.uuid == gpu.uuid);
        let in_mig = of_seen.and_then(|seen| seen.active_mig()).is_some();
        let was_mig = before.and_then(|before| Some(before.record.as_ref()?.mode == Mode::Mig));
        let lost_mig = gpu.is_listed && was_mig == Some(true) && !in_mig;
        let ended_mig = lost_mig && !wants_mig(&gpu.uuid);
        has_less |= gpu.is_served && (lost_mig || !gpu.is_listed);
        let change = match before {
            None if gpu.is_served => format!("{what} is new"),
            None => format!("{what} is new, and --gpus does not name it"),
            Some(before) if before.is_listed != gpu.is_listed => match gpu.is_listed {
                true => format!("{what} is back"),
                false => format!("{what} {is_missing}"),
            },
            Some(before) if before.number != gpu.number => {
                format!("{what} was GPU {}", before.number)
            }
            Some(_) if ended_mig => format!("{what} was in MIG mode, and is not now"),
            Some(_) => String::new(),
        };
        if compares && !change.is_empty() {
            start.changes.push(change);
        } else if gpu.is_served && !gpu.is_listed {
            start.warnings.push(format!("{what} {is_missing}"));
        }
        if let Some(mut record) = before
            .and_then(|before| before.record.clone())
            .filter(|_| gpu.is_served)
        {
            record.index = gpu.number;
            start.before.push(record);
        }
    }
    start.before.retain(|_| has_less);
    let served = gpus.iter().filter(|gpu| gpu.is_served).count();
    if let Some(count) = selection.count().filter(|count| *count > served) {
        let words =
            format!("--gpus {selection} names {count} GPUs, and the daemon knows {served} of them");
        start.warnings.push(words);
    }
    start.warnings.splice(0..0, start.changes.iter().cloned());
    start
}

#[cfg(test)]
mod tests;
