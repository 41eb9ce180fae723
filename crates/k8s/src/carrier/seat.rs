//! Which sixteenths may be given out, and for whom they turned out to be. Pure.
//!
//! Kubelet asks for ids and names no pod. So a seat is only so many sixteenths of a GPU: every assignment makes one, every claim
//! fills one, and whoever comes with ids of an open seat gets it. Seats of one size on a node are alike, and so are their limits; if
//! two pods sit down in each other's, both are served. Who has which ids kubelet says a moment later, and that is written down.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::units::{UNITS, Unit};

/// How long kubelet may not show ids that it has asked for: it writes them down as soon as it is answered, and a pod that it
/// then refuses it never shows.
pub const YOUNG: Duration = Duration::from_secs(10);

/// A pod that is assigned part of a GPU here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    pub gpu: String,
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub units: u8,
}

/// What kubelet says that a pod has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub namespace: String,
    pub name: String,
    pub units: BTreeSet<Unit>,
}

/// What the node's agent holds for ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub claim: String,
    /// UUID.
    pub gpu: String,
    /// The pod's uid, once kubelet has said whose it is.
    pub pod: Option<String>,
    /// Programs of it that use the GPU.
    pub processes: u32,
    pub age: Duration,
}

/// So much of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub gpu: String,
    pub units: u8,
}

/// Why ids are not given out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("no ids")]
    Nothing,
    #[error("{0}")]
    Unknown(String),
    #[error(
        "sixteenths of {} GPUs in one container: {}; a part is of one GPU", .0.len(), .0.iter().cloned().collect::<Vec<_>>().join(", ")
    )]
    SeveralGpus(BTreeSet<String>),
    #[error(
        "no pod is assigned {units} sixteenths of {gpu}: parts of GPUs are asked for as Divvy's webhook knows it, not by this resource"
    )]
    NoneOpen { gpu: String, units: usize },
}

/// Ids of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ids {
    pub gpu: String,
    pub numbers: BTreeSet<u8>,
}

impl Ids {
    /// # Errors
    /// They are none, not all ours, or of several GPUs.
    pub fn read(ids: &[String]) -> Result<Self, Refused> {
        let units: Vec<Unit> = ids
            .iter()
            .map(|id| {
                id.parse()
                    .map_err(|error: super::units::NoUnit| Refused::Unknown(error.to_string()))
            })
            .collect::<Result<_, _>>()?;
        let gpus: BTreeSet<String> = units.iter().map(|unit| unit.gpu.clone()).collect();
        if gpus.len() > 1 {
            return Err(Refused::SeveralGpus(gpus));
        }
        let gpu = gpus.into_iter().next().ok_or(Refused::Nothing)?;
        Ok(Self {
            gpu,
            numbers: units.into_iter().map(|unit| unit.number).collect(),
        })
    }

    /// The claim that stands for exactly these: `carrier-gpu-…-00f0`.
    pub fn claim(&self) -> String {
        let mask = self
            .numbers
            .iter()
            .fold(0_u16, |mask, number| mask | 1 << number);
        format!("{PREFIX}{}-{mask:04x}", self.gpu.to_ascii_lowercase())
    }

    /// How many, 1 to [`UNITS`].
    pub fn units(&self) -> u8 {
        u8::try_from(self.numbers.len()).unwrap_or(UNITS)
    }
}

/// What claims of carrier mode begin with.
pub const PREFIX: &str = "carrier-";

/// Whether a claim is for ids of these units.
fn is_for(claim: &str, units: &BTreeSet<Unit>) -> bool {
    let ids: Vec<String> = units.iter().map(ToString::to_string).collect();
    Ids::read(&ids).is_ok_and(|ids| ids.claim() == claim)
}

/// How many sixteenths a claim's name says.
pub fn units_of(claim: &str) -> u8 {
    let mask = claim
        .rsplit('-')
        .next()
        .and_then(|text| u16::from_str_radix(text, 16).ok());
    mask.map_or(UNITS, |mask| {
        u8::try_from(mask.count_ones()).unwrap_or(UNITS)
    })
}

impl Held {
    fn shown<'s>(&self, shown: &'s [Shown]) -> Option<&'s Shown> {
        shown.iter().find(|pod| is_for(&self.claim, &pod.units))
    }

    /// Whose it is: kubelet's word, else what it said before.
    pub fn holder(&self, seats: &[Seat], shown: &[Shown]) -> Option<String> {
        match self.shown(shown) {
            Some(pod) => seats
                .iter()
                .find(|seat| seat.namespace == pod.namespace && seat.name == pod.name)
                .map(|seat| seat.uid.clone()),
            None => self.pod.clone(),
        }
    }

    /// Whether somebody has it, or nobody knows yet.
    fn is_live(&self, seats: &[Seat], shown: &[Shown]) -> bool {
        self.shown(shown).is_some()
            || match &self.pod {
                Some(uid) => seats.iter().any(|seat| seat.uid == *uid),
                None => self.age < YOUNG,
            }
    }

    fn place(&self) -> Place {
        Place {
            gpu: self.gpu.clone(),
            units: units_of(&self.claim),
        }
    }
}

/// Seats that nobody sits in.
pub fn open(seats: &[Seat], held: &[Held], shown: &[Shown]) -> Vec<Place> {
    let places = seats.iter().map(|seat| Place {
        gpu: seat.gpu.clone(),
        units: seat.units,
    });
    let mut open: Vec<Place> = places.collect();
    for held in held.iter().filter(|held| held.is_live(seats, shown)) {
        let place = held.place();
        if let Some(at) = open.iter().position(|one| *one == place) {
            open.remove(at);
        }
    }
    open
}

/// Whether these ids may be given out.
///
/// # Errors
/// No seat is open for them.
pub fn choose(ids: &Ids, open: &[Place]) -> Result<(), Refused> {
    let fits = |place: &Place| place.gpu == ids.gpu && place.units == ids.units();
    match open.iter().any(fits) {
        true => Ok(()),
        false => Err(Refused::NoneOpen {
            gpu: ids.gpu.clone(),
            units: ids.numbers.len(),
        }),
    }
}

/// The ids that a container had best get of those that are free: all of a GPU with an open seat of that size. Empty where there
/// are none, which leaves the choice to kubelet.
pub fn prefer(available: &[String], must: &[String], size: usize, open: &[Place]) -> Vec<String> {
    let mut free: BTreeMap<String, BTreeSet<u8>> = BTreeMap::new();
    for unit in available.iter().filter_map(|id| id.parse::<Unit>().ok()) {
        free.entry(unit.gpu).or_default().insert(unit.number);
    }
    let musts = Ids::read(must);
    let wanted = open.iter().filter(|place| usize::from(place.units) == size);
    for Place { gpu, .. } in wanted {
        let Some(numbers) = free.get(gpu).filter(|numbers| numbers.len() >= size) else {
            continue;
        };
        let first: BTreeSet<u8> = match &musts {
            Err(Refused::Nothing) => BTreeSet::new(),
            Ok(ids) if ids.gpu == *gpu && ids.numbers.len() <= size => ids.numbers.clone(),
            _ => continue,
        };
        let more = numbers.difference(&first).copied();
        let chosen = first.iter().copied().chain(more).take(size);
        return chosen
            .map(|number| {
                let unit = Unit {
                    gpu: gpu.clone(),
                    number,
                };
                unit.to_string()
            })
            .collect();
    }
    Vec::new()
}

/// Claims that nobody has any more and in which nothing runs. What kubelet does not show is not gone for that: after a restart
/// it shows nothing for a moment. A pod that it named is gone when its seat is.
pub fn leftovers(seats: &[Seat], held: &[Held], shown: &[Shown]) -> Vec<String> {
    let over = held
        .iter()
        .filter(|held| held.processes == 0 && !held.is_live(seats, shown));
    over.map(|held| held.claim.clone()).collect()
}

/// For whom each claim counts where sixteenths are counted: a pod that is assigned so much of that GPU, its own one first, so
/// that two who sit in each other's seats count once each. Without such a pod it counts for itself.
pub fn counted(seats: &[Seat], held: &[Held], shown: &[Shown]) -> Vec<(String, String)> {
    let mut free: Vec<&Seat> = seats.iter().collect();
    let mut counted = Vec::new();
    let mut rest = Vec::new();
    for held in held {
        let holder = held.holder(seats, shown);
        let own = free
            .iter()
            .position(|seat| seat.gpu == held.gpu && Some(&seat.uid) == holder.as_ref());
        match own {
            Some(at) => counted.push((held.claim.clone(), free.remove(at).uid.clone())),
            None => rest.push((held, holder)),
        }
    }
    for (held, holder) in rest {
        let place = held.place();
        let like = free
            .iter()
            .position(|seat| seat.gpu == place.gpu && seat.units == place.units);
        let uid = match like {
            Some(at) => free.remove(at).uid.clone(),
            None => holder.unwrap_or_else(|| held.claim.clone()),
        };
        counted.push((held.claim.clone(), uid));
    }
    counted.sort();
    counted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seat(gpu: &str, uid: &str, units: u8) -> Seat {
        Seat {
            gpu: gpu.to_owned(),
            uid: uid.to_owned(),
            namespace: "team".to_owned(),
            name: format!("pod-{uid}"),
            units,
        }
    }

    fn ids(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn shown(uid: &str, text: &str) -> Shown {
        Shown {
            namespace: "team".to_owned(),
            name: format!("pod-{uid}"),
            units: ids(text).iter().map(|id| id.parse().unwrap()).collect(),
        }
    }

    fn held(text: &str, pod: Option<&str>) -> Held {
        let ids = Ids::read(&ids(text)).unwrap();
        Held {
            claim: ids.claim(),
            gpu: ids.gpu,
            pod: pod.map(str::to_owned),
            processes: 0,
            age: YOUNG * 2,
        }
    }

    #[test]
    fn ids_of_two_gpus_are_refused_and_named() {
        let refused = Ids::read(&ids("GPU-a/0 GPU-b/1")).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "sixteenths of 2 GPUs in one container: GPU-a, GPU-b; a part is of one GPU"
        );
        assert_eq!(Ids::read(&[]), Err(Refused::Nothing));
        assert!(matches!(
            Ids::read(&ids("GPU-a/16")),
            Err(Refused::Unknown(_))
        ));
        let four = Ids::read(&ids("GPU-A/4 GPU-A/5 GPU-A/7 GPU-A/6")).unwrap();
        assert_eq!(
            (four.claim().as_str(), four.units()),
            ("carrier-gpu-a-00f0", 4)
        );
        assert_eq!(units_of(&four.claim()), 4);
    }

    #[test]
    fn only_so_much_as_somebody_is_assigned_is_given_out() {
        let seats = [seat("GPU-a", "1", 4), seat("GPU-b", "2", 2)];
        let free = open(&seats, &[], &[]);
        let choose = |text: &str| choose(&Ids::read(&ids(text)).unwrap(), &free);
        assert_eq!(choose("GPU-b/0 GPU-b/9"), Ok(()));
        assert!(
            matches!(choose("GPU-b/0"), Err(Refused::NoneOpen { .. })),
            "another size"
        );
        assert!(
            matches!(choose("GPU-a/0 GPU-a/1"), Err(Refused::NoneOpen { .. })),
            "another GPU's"
        );
        assert!(
            matches!(choose("GPU-c/0"), Err(Refused::NoneOpen { .. })),
            "a GPU of others"
        );
    }

    #[test]
    fn two_pods_in_each_others_seats_are_both_served_and_count_once_each() {
        let seats = [seat("GPU-a", "1", 2), seat("GPU-b", "2", 2)];
        let made = [held("GPU-b/0 GPU-b/1", Some("1"))];
        let list = [shown("1", "GPU-b/0 GPU-b/1")];
        let left = Place {
            gpu: "GPU-a".to_owned(),
            units: 2,
        };
        assert_eq!(
            open(&seats, &made, &list),
            [left],
            "the other one's seat is left"
        );
        assert_eq!(counted(&seats, &made, &list)[0].1, "2");
        let both = [made[0].clone(), held("GPU-a/5 GPU-a/6", Some("2"))];
        let list = [list[0].clone(), shown("2", "GPU-a/5 GPU-a/6")];
        assert!(open(&seats, &both, &list).is_empty());
        let uids: BTreeSet<String> = counted(&seats, &both, &list)
            .into_iter()
            .map(|(_, uid)| uid)
            .collect();
        assert_eq!(uids.len(), 2);
        assert_eq!(
            counted(&seats[1..], &both, &list)[0].1,
            "2",
            "its own, once the other is over"
        );
    }

    #[test]
    fn kubelet_is_asked_to_stay_on_the_gpu_where_a_seat_is_open() {
        let open = [Place {
            gpu: "GPU-b".to_owned(),
            units: 2,
        }];
        let available = ids("GPU-a/0 GPU-a/1 GPU-b/3 GPU-b/5 GPU-b/7");
        assert_eq!(prefer(&available, &[], 2, &open), ids("GPU-b/3 GPU-b/5"));
        assert_eq!(
            prefer(&available, &ids("GPU-b/7"), 2, &open),
            ids("GPU-b/7 GPU-b/3")
        );
        assert!(prefer(&available, &ids("GPU-a/0"), 2, &open).is_empty());
        assert!(prefer(&available, &[], 3, &open).is_empty());
    }

    #[test]
    fn a_claim_is_left_over_when_neither_kubelet_nor_a_seat_nor_a_process_has_it() {
        let made = [held("GPU-a/0", Some("1"))];
        assert_eq!(leftovers(&[], &made, &[]).len(), 1);
        let seats = [seat("GPU-a", "1", 1)];
        assert!(
            leftovers(&seats, &made, &[]).is_empty(),
            "kubelet has only just started"
        );
        assert!(leftovers(&[], &made, &[shown("x", "GPU-a/0")]).is_empty());
        let busy = [Held {
            processes: 1,
            ..made[0].clone()
        }];
        assert!(leftovers(&[], &busy, &[]).is_empty());
        let unknown = held("GPU-a/0", None);
        assert_eq!(
            leftovers(&seats, std::slice::from_ref(&unknown), &[]).len(),
            1,
            "kubelet refused the pod after all"
        );
        let young = [Held {
            age: Duration::ZERO,
            ..unknown
        }];
        assert!(leftovers(&seats, &young, &[]).is_empty());
        assert!(open(&seats, &young, &[]).is_empty());
    }

    proptest! {
        /// Kubelet admits pods in any order: everybody who is assigned is seated, and nobody beyond.
        #[test]
        fn everybody_who_is_assigned_is_seated_in_any_order(
            sizes in prop::collection::vec((0_usize..2, 1_u8..8), 1..10),
            order in prop::collection::vec(any::<prop::sample::Index>(), 10),
        ) {
            let gpus = ["GPU-a", "GPU-b"];
            let mut used = [0_u8; 2];
            let mut seats = Vec::new();
            for (at, (gpu, units)) in sizes.into_iter().enumerate() {
                if used[gpu] + units <= UNITS {
                    used[gpu] += units;
                    seats.push(seat(gpus[gpu], &at.to_string(), units));
                }
            }
            let units = gpus.iter().flat_map(|gpu| crate::carrier::units::of_gpu(gpu));
            let mut free: Vec<String> = units.map(|unit| unit.to_string()).collect();
            let mut left: Vec<Seat> = seats.clone();
            let (mut claims, mut list) = (Vec::new(), Vec::new());
            for index in order {
                if left.is_empty() {
                    break;
                }
                let pod = left.remove(index.index(left.len()));
                let size = usize::from(pod.units);
                let chosen = prefer(&free, &[], size, &open(&seats, &claims, &list));
                prop_assert_eq!(chosen.len(), size, "a seat of this size is open, and has ids");
                let ids = Ids::read(&chosen).unwrap();
                prop_assert_eq!(choose(&ids, &open(&seats, &claims, &list)), Ok(()));
                claims.push(Held { claim: ids.claim(), gpu: ids.gpu, pod: Some(pod.uid.clone()), processes: 0, age: YOUNG });
                let units = chosen.iter().map(|id| id.parse().unwrap()).collect();
                list.push(Shown { namespace: pod.namespace, name: pod.name, units });
                free.retain(|id| !chosen.contains(id));
                let uids: BTreeSet<String> = counted(&seats, &claims, &list).into_iter().map(|(_, uid)| uid).collect();
                prop_assert_eq!(uids.len(), claims.len(), "each counts once");
                prop_assert!(uids.iter().all(|uid| seats.iter().any(|seat| seat.uid == *uid)));
            }
            prop_assert!(leftovers(&seats, &claims, &list).is_empty());
            if left.is_empty() {
                prop_assert!(open(&seats, &claims, &list).is_empty());
            }
        }
    }
}
