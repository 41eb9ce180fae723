//! The ResourceClaimTemplate for a pod's GPU request.
//!
//! The size of a fraction in bytes is unknown before its placement, so the request has an alternative for each size of
//! GPU in the cluster, and the scheduler takes the first that fits. The name of a template is a digest of its content:
//! the same request finds it, and another cluster or inventory gets another one.

use std::collections::{BTreeMap, BTreeSet};

use divvy_core::mig::{Attribute, MigProfile};
use divvy_core::units::Bytes;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::pod_request::Size;

/// The driver's name, and the prefix of what it says of its devices.
pub const DRIVER: &str = "gpu.divvy.dev";
/// Parts of GPUs, and whole ones.
pub const FRACTION_CLASS: &str = "fraction.gpu.divvy.dev";
/// `firstAvailable` takes no more (`FirstAvailableDeviceRequestMaxSize`, resource.k8s.io/v1).
const MOST_ALTERNATIVES: usize = 8;

/// Which GPUs there are in a cluster, as far as a template depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Usable memory of the GPUs that are shared, each size once.
    pub sizes: BTreeSet<Bytes>,
    /// MIG profiles that can be carved somewhere, and what an instance has.
    pub profiles: BTreeMap<MigProfile, Bytes>,
}

/// A claim template.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    pub name: String,
    pub spec: Value,
}

/// Why there can be no template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTemplate {
    #[error(
        "no node publishes GPUs yet; `divvy-k8s doctor` checks the node pods and their ResourceSlices"
    )]
    NoGpus,
    #[error(
        "{} of GPU memory requested, but the largest GPU has {}",
        Bytes::mib(*asked).human_beside(*most)[0],
        Bytes::mib(*asked).human_beside(*most)[1]
    )]
    TooMuch { asked: u64, most: Bytes },
}

impl Template {
    /// Of these GPUs, each another one.
    ///
    /// # Errors
    /// No GPU of the inventory could ever serve it.
    pub fn of(gpus: &[Size], inventory: &Inventory) -> Result<Self, NoTemplate> {
        let mut sizes = gpus.to_vec();
        // Whole ones first: the scheduler of 1.36 does not come back to a GPU of which it has tried to give a part.
        sizes.sort_unstable();
        // Of a request for several devices only the last is compared with other requests' (`distinctAttribute` in
        // 1.36), so each fraction is a request. A whole GPU has no second request on it anyway.
        let mut requests = Vec::new();
        let kind = Kind::of(gpus, inventory);
        for same in sizes.chunk_by(|one, other| one == other && *one == Size::Whole) {
            let name = format!("gpu-{}", requests.len());
            requests.push(request(&name, same[0], same.len(), kind, inventory)?);
        }
        let mut devices = json!({ "requests": requests });
        if gpus.len() > 1 {
            devices["constraints"] = json!([{ "distinctAttribute": format!("{DRIVER}/uuid") }]);
        }
        let spec = json!({ "spec": { "devices": devices } });
        Ok(Self {
            name: format!("divvy-{}", hash(&spec)),
            spec,
        })
    }

    /// The object, for this namespace.
    pub fn object(&self, namespace: &str) -> Value {
        json!({
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {
                "name": self.name,
                "namespace": namespace,
                "labels": { "app.kubernetes.io/managed-by": "divvy" },
            },
            "spec": self.spec,
        })
    }
}

fn request(
    name: &str,
    size: Size,
    count: usize,
    kind: Kind,
    inventory: &Inventory,
) -> Result<Value, NoTemplate> {
    match size {
        Size::Whole => Ok(json!({
            "name": name,
            "exactly": { "deviceClassName": FRACTION_CLASS, "count": count },
        })),
        Size::Fraction(part) => {
            // Smaller GPUs first: a part of one costs less.
            let sizes = inventory.sizes.iter().take(MOST_ALTERNATIVES);
            let alternatives: Vec<Value> = sizes
                .map(|bytes| {
                    let mut alternative = part_of_memory(part.mib_of(bytes.get()));
                    alternative["name"] = json!(format!("of-{}mi", bytes.get() >> 20));
                    alternative["selectors"] = json!([of_size(*bytes)]);
                    alternative
                })
                .collect();
            match alternatives.is_empty() {
                true => Err(NoTemplate::NoGpus),
                false => Ok(json!({ "name": name, "firstAvailable": alternatives })),
            }
        }
        Size::Memory(mib) => by_memory(name, mib, kind, inventory),
    }
}

/// The devices that can serve a request by memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Either,
    Parts,
    Instances,
}

impl Kind {
    /// One GPU is either. Of several all are of one kind, for a slice is held by the hardware or by the limiter and no node holds
    /// a mixed claim: parts where they can serve every request, instances where they cannot.
    pub(crate) fn of(gpus: &[Size], inventory: &Inventory) -> Self {
        let largest = inventory.sizes.last().copied().unwrap_or_default();
        let is_instance =
            |size: &Size| matches!(size, Size::Memory(mib) if Bytes::mib(*mib) > largest);
        let by_memory = |size: &Size| matches!(size, Size::Memory(_));
        match gpus {
            [] | [_] => Self::Either,
            _ if gpus.iter().all(by_memory) && gpus.iter().any(is_instance) => Self::Instances,
            _ => Self::Parts,
        }
    }
}

/// The smallest MIG profile that has so much, then the larger ones, then a part of a shared GPU.
fn by_memory(name: &str, mib: u64, kind: Kind, inventory: &Inventory) -> Result<Value, NoTemplate> {
    let asked = Bytes::mib(mib);
    // Profiles with media engines and the like only serve requests that name them.
    let plain = inventory
        .profiles
        .iter()
        .filter(|(profile, _)| kind != Kind::Parts && profile.attribute() == Attribute::None)
        .map(|(profile, memory)| (*memory, *profile));
    let most = plain.clone().map(|(memory, _)| memory);
    let most = most.chain(inventory.sizes.iter().copied()).max();
    let mut fitting: Vec<(Bytes, MigProfile)> =
        plain.filter(|(memory, _)| *memory >= asked).collect();
    fitting.sort_unstable();
    let largest = inventory.sizes.last();
    let shared = kind != Kind::Instances && largest.is_some_and(|largest| *largest >= asked);
    let mut alternatives: Vec<Value> = fitting
        .into_iter()
        .take(MOST_ALTERNATIVES - usize::from(shared))
        .map(|(_, profile)| {
            json!({
                "name": format!("mig-{}", profile_slug(profile)),
                "deviceClassName": mig_class(profile),
                "count": 1,
            })
        })
        .collect();
    if shared {
        let mut part = part_of_memory(mib);
        part["name"] = json!("part");
        alternatives.push(part);
    }
    if alternatives.is_empty() {
        return Err(most.map_or(NoTemplate::NoGpus, |most| NoTemplate::TooMuch {
            asked: mib,
            most,
        }));
    }
    Ok(json!({ "name": name, "firstAvailable": alternatives }))
}

fn part_of_memory(mib: u64) -> Value {
    json!({
        "deviceClassName": FRACTION_CLASS,
        "count": 1,
        "capacity": { "requests": { "memory": format!("{mib}Mi") } },
    })
}

/// Selects the GPUs of one size. By their type first: to ask a device that only goes whole for a capacity that it does not
/// have would be an error, and end the search for a place altogether.
fn of_size(bytes: Bytes) -> Value {
    let mib = bytes.get() >> 20;
    json!({ "cel": { "expression": format!(
        "device.attributes['{DRIVER}'].type == 'fraction' && \
         device.capacity['{DRIVER}'].memory.compareTo(quantity('{mib}Mi')) == 0"
    ) } })
}

/// The device class of a MIG profile.
pub fn mig_class(profile: MigProfile) -> String {
    format!("mig-{}.gpu.divvy.dev", profile_slug(profile))
}

/// A profile's name as part of an object's: `1g-10gb`, `1g-5gb-with-me`.
fn profile_slug(profile: MigProfile) -> String {
    let name = profile.to_string();
    name.replace('.', "-").replace('+', "-with-")
}

/// Of what a template says, short enough for a name.
fn hash(spec: &Value) -> String {
    let digest = Sha256::digest(spec.to_string().as_bytes());
    digest[..6]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod_request::Fraction;

    fn inventory() -> Inventory {
        Inventory {
            sizes: [Bytes::gib(24), Bytes::gib(80)].into(),
            profiles: [("1g.10gb", 9728), ("2g.20gb", 19968), ("3g.40gb", 40448)]
                .map(|(name, mib)| (name.parse().unwrap(), Bytes::mib(mib)))
                .into(),
        }
    }

    fn quarter() -> Size {
        Size::Fraction(Fraction::between_none_and_one("0.25").unwrap())
    }

    #[test]
    fn a_fraction_is_so_much_of_each_size_of_gpu() {
        let template = Template::of(&[quarter()], &inventory()).unwrap();
        let alternatives = &template.spec["spec"]["devices"]["requests"][0]["firstAvailable"];
        let asked: Vec<&str> = alternatives
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["capacity"]["requests"]["memory"].as_str().unwrap())
            .collect();
        assert_eq!(asked, ["6144Mi", "20480Mi"]);
        assert_eq!(template.spec["spec"]["devices"].get("constraints"), None);
    }

    #[test]
    fn memory_is_the_smallest_profile_that_has_it_and_then_a_part() {
        let template = Template::of(&[Size::Memory(15 << 10)], &inventory()).unwrap();
        let alternatives = &template.spec["spec"]["devices"]["requests"][0]["firstAvailable"];
        let names: Vec<&str> = alternatives
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["mig-2g-20gb", "mig-3g-40gb", "part"]);
    }

    #[test]
    fn memory_of_several_gpus_is_parts_alone_or_instances_alone() {
        let classes = |gpus: &[Size], inventory: &Inventory| {
            let template = Template::of(gpus, inventory).unwrap();
            let requests = template.spec["spec"]["devices"]["requests"].clone();
            let alternatives = requests
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|request| request["firstAvailable"].as_array().cloned())
                .flatten();
            let class = |one: Value| one["deviceClassName"].as_str().unwrap().to_owned();
            alternatives.map(class).collect::<BTreeSet<_>>()
        };
        let [some, much] = [15 << 10, 30 << 10].map(Size::Memory);
        let parts = BTreeSet::from([FRACTION_CLASS.to_owned()]);
        assert_eq!(classes(&[some, much], &inventory()), parts);
        let small = Inventory {
            sizes: [Bytes::gib(24)].into(),
            ..inventory()
        };
        let instances = ["mig-2g-20gb", "mig-3g-40gb"].map(|name| format!("{name}.{DRIVER}"));
        assert_eq!(classes(&[some, much], &small), instances.into());
        // The rest of such a claim is no instance.
        assert_eq!(
            Template::of(&[quarter(), much], &small),
            Err(NoTemplate::TooMuch {
                asked: 30 << 10,
                most: Bytes::gib(24)
            })
        );
    }

    #[test]
    fn several_gpus_are_different_ones() {
        let asked = [quarter(), Size::Whole, quarter(), Size::Whole];
        let template = Template::of(&asked, &inventory()).unwrap();
        let devices = &template.spec["spec"]["devices"];
        let requests = devices["requests"].as_array().unwrap();
        assert_eq!(requests.len(), 3);
        assert_eq!(requests[0]["exactly"]["count"], 2);
        for part in &requests[1..] {
            assert_eq!(part["firstAvailable"][0]["count"], 1);
        }
        assert_eq!(
            devices["constraints"][0]["distinctAttribute"],
            "gpu.divvy.dev/uuid"
        );
    }

    #[test]
    fn the_name_is_what_it_says() {
        let one = Template::of(&[quarter()], &inventory()).unwrap();
        assert_eq!(one, Template::of(&[quarter()], &inventory()).unwrap());
        let smaller = Inventory {
            sizes: [Bytes::gib(24)].into(),
            ..inventory()
        };
        assert_ne!(one.name, Template::of(&[quarter()], &smaller).unwrap().name);
    }

    #[test]
    fn what_no_gpu_has_is_refused_with_the_most_there_is() {
        assert_eq!(
            Template::of(&[Size::Memory(90 << 10)], &inventory()),
            Err(NoTemplate::TooMuch {
                asked: 90 << 10,
                most: Bytes::gib(80)
            })
        );
        assert_eq!(
            Template::of(&[quarter()], &Inventory::default()),
            Err(NoTemplate::NoGpus)
        );
    }
}
