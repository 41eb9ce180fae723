//! The ResourceClaimTemplate for a pod's GPU request.
//!
//! A request is written as `exactly`, with an amount of memory: queues such as Kueue charge that amount, and count no
//! alternatives. Only the size of a fraction in bytes depends on the GPU, so on a cluster with GPUs of several sizes it
//! has an alternative for each size (`firstAvailable`), and the scheduler takes the first that fits.
//!
//! The name of a template is a digest of its content: the same request finds it, and another cluster or inventory gets
//! another one.

use std::collections::{BTreeMap, BTreeSet};

use divvy_core::Compute;
use divvy_core::mig::{Attribute, MigProfile};
use divvy_core::units::Bytes;
use k8s_openapi::api::resource::v1::{DeviceRequest, DeviceSelector};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::base::pod_request::{Fraction, GPU_SIZE, PodRequest, Size};

/// The driver's name, and the prefix of what it says of its devices.
pub const DRIVER: &str = "gpu.divvy.dev";
/// The driver of tickets: devices without a GPU, by which kubelet calls Divvy for a pod whose GPU another program
/// allocated. KAI counts a claim or a ResourceSlice as GPUs if the name of its class or driver contains `gpu`
/// (`IsGPUDeviceClass` in pkg/common/resources/dra.go, KAI d5bc503), so this name does not.
pub const TICKETS: &str = "limit.divvy.dev";
/// NVIDIA's DRA driver of GPUs.
pub const NVIDIA_DRIVER: &str = "gpu.nvidia.com";
/// Parts of GPUs, and whole ones.
pub const FRACTION_CLASS: &str = "fraction.gpu.divvy.dev";
/// Whatever can serve a request by memory: parts of GPUs, and MIG instances of plain profiles.
pub const MEMORY_CLASS: &str = "memory.gpu.divvy.dev";
/// All claim templates of the webhook are called so; the rest of a name is a digest.
pub const PREFIX: &str = "divvy-";
/// The claim's one parameter for the node's driver: the division of compute time, `fair=0.5`.
pub const COMPUTE_PARAMETER: &str = "compute";
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

impl Inventory {
    /// The smallest and the largest size of GPU that a user means by this size: within a tenth, for GPUs of 80 GB have a
    /// little less or more, and the reserved memory is not counted. `None` if there is none.
    fn near(&self, size: Bytes) -> Option<(Bytes, Bytes)> {
        let tenth = Bytes::new(size.get() / 10);
        let range = size.saturating_sub(tenth)..=size.saturating_add(tenth);
        let mut near = self.sizes.range(range);
        let least = *near.next()?;
        Some((least, near.next_back().copied().unwrap_or(least)))
    }
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
    #[error(
        "{GPU_SIZE}: no GPU of about {} in the cluster; the shared GPUs have {}",
        asked.human(),
        listed(there)
    )]
    NoSize {
        asked: Bytes,
        there: BTreeSet<Bytes>,
    },
}

/// The most sizes that a message lists. A line of the event; a longer list would not fit its 1,024 letters.
const MOST_LISTED: usize = 8;

/// `24.0 GiB, 80.0 GiB`.
fn listed(sizes: &BTreeSet<Bytes>) -> String {
    let each = sizes.iter().take(MOST_LISTED).map(|size| size.human());
    each.collect::<Vec<_>>().join(", ")
}

impl Template {
    /// Of these GPUs, each another one.
    ///
    /// # Errors
    /// No GPU of the inventory could ever serve it.
    pub fn of(gpus: &[Size], inventory: &Inventory) -> Result<Self, NoTemplate> {
        Self::new(gpus, None, None, inventory)
    }

    /// For a pod, with its size of GPU and its part of the compute time.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn of_request(request: &PodRequest, inventory: &Inventory) -> Result<Self, NoTemplate> {
        let PodRequest { gpus, compute, .. } = request;
        Self::new(gpus, request.gpu_size, *compute, inventory)
    }

    /// # Errors
    /// As [`Self::of`].
    pub(crate) fn new(
        gpus: &[Size],
        gpu_size: Option<Bytes>,
        compute: Option<Compute>,
        inventory: &Inventory,
    ) -> Result<Self, NoTemplate> {
        let is_sized = gpus.iter().any(|size| !matches!(size, Size::Memory(_)));
        let limits = match gpu_size.filter(|_| is_sized) {
            None => None,
            Some(_) if inventory.sizes.is_empty() => return Err(NoTemplate::NoGpus),
            Some(asked) => Some(inventory.near(asked).ok_or_else(|| NoTemplate::NoSize {
                asked,
                there: inventory.sizes.clone(),
            })?),
        };
        let mut sizes = gpus.to_vec();
        // Whole ones first: the scheduler of 1.36 does not come back to a GPU of which it has tried to give a part.
        sizes.sort_unstable();
        // Of a request for several devices only the last is compared with other requests' (`distinctAttribute` in
        // 1.36), so each fraction is a request. A whole GPU has no second request on it anyway.
        let mut requests = Vec::new();
        let kind = Kind::of(gpus, inventory);
        for same in sizes.chunk_by(|one, other| one == other && *one == Size::Whole) {
            let name = format!("gpu-{}", requests.len());
            requests.push(match (same[0], limits) {
                (Size::Memory(mib), _) => by_memory(&name, mib, kind, inventory)?,
                (Size::Whole, limits) => whole(&name, same.len(), limits),
                (Size::Fraction(part), Some(limits)) => part_of_one_size(&name, part, limits),
                (Size::Fraction(part), None) => part_of_any_size(&name, part, inventory)?,
            });
        }
        let mut devices = json!({ "requests": requests });
        if gpus.len() > 1 {
            devices["constraints"] = json!([{ "distinctAttribute": format!("{DRIVER}/uuid") }]);
        }
        if let Some(compute) = compute {
            let parameters = json!({ COMPUTE_PARAMETER: compute.to_string() });
            devices["config"] =
                json!([{ "opaque": { "driver": DRIVER, "parameters": parameters } }]);
        }
        let spec = json!({ "spec": { "devices": devices } });
        Ok(Self {
            name: format!("{PREFIX}{}", hash(&spec)),
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

fn whole(name: &str, count: usize, limits: Option<(Bytes, Bytes)>) -> Value {
    let mut exactly = json!({ "deviceClassName": FRACTION_CLASS, "count": count });
    if let Some(limits) = limits {
        let shared = of_size(limits);
        // A GPU that only goes whole has its memory as an attribute.
        let (attributes, mib) = (format!("device.attributes['{DRIVER}']"), mib_of(limits));
        let exclusive = format!(
            "{attributes}.type == 'whole' && {attributes}.memoryMi >= {} && {attributes}.memoryMi <= {}",
            mib.0, mib.1
        );
        exactly["selectors"] = selector(&format!("({shared}) || ({exclusive})"));
    }
    json!({ "name": name, "exactly": exactly })
}

/// Of the smallest of these sizes, so that as many parts fit on each of them.
fn part_of_one_size(name: &str, part: Fraction, limits: (Bytes, Bytes)) -> Value {
    let mut exactly = amount(FRACTION_CLASS, part.mib_of(limits.0.get()));
    // Also where all GPUs have one size: when GPUs of another size join, this amount is another part of them.
    exactly["selectors"] = selector(&of_size(limits));
    json!({ "name": name, "exactly": exactly })
}

fn part_of_any_size(
    name: &str,
    part: Fraction,
    inventory: &Inventory,
) -> Result<Value, NoTemplate> {
    // Smaller GPUs first: a part of one costs less.
    let sizes: Vec<Bytes> = inventory
        .sizes
        .iter()
        .take(MOST_ALTERNATIVES)
        .copied()
        .collect();
    match sizes[..] {
        [] => Err(NoTemplate::NoGpus),
        [only] => Ok(part_of_one_size(name, part, (only, only))),
        _ => {
            let alternatives = sizes.into_iter().map(|size| {
                let mut alternative = amount(FRACTION_CLASS, part.mib_of(size.get()));
                alternative["name"] = json!(format!("of-{}mi", size.get() >> 20));
                alternative["selectors"] = selector(&of_size((size, size)));
                alternative
            });
            let alternatives: Vec<Value> = alternatives.collect();
            Ok(json!({ "name": name, "firstAvailable": alternatives }))
        }
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

/// So much of whatever comes first in a node's order: of a shared GPU, or the smallest MIG instance that has it.
///
/// A device that goes to one claim alone only has to have the amount that is asked of it (`CapacityRequirements`,
/// resource.k8s.io/v1), so one request covers both.
fn by_memory(name: &str, mib: u64, kind: Kind, inventory: &Inventory) -> Result<Value, NoTemplate> {
    // Profiles with media engines and the like only serve requests that name them.
    let plain = inventory.profiles.iter();
    let plain = plain.filter(|(profile, _)| profile.attribute() == Attribute::None);
    let instances = plain.map(|(_, memory)| *memory).max();
    let parts = inventory.sizes.last().copied();
    let most = match kind {
        Kind::Either => parts.max(instances),
        Kind::Parts => parts,
        // Of several requests one is more than any shared GPU has.
        Kind::Instances => instances.or(parts),
    };
    match most {
        None => return Err(NoTemplate::NoGpus),
        Some(most) if Bytes::mib(mib) > most => {
            return Err(NoTemplate::TooMuch { asked: mib, most });
        }
        Some(_) => {}
    }
    let mut exactly = match kind {
        Kind::Either | Kind::Instances => amount(MEMORY_CLASS, mib),
        Kind::Parts => amount(FRACTION_CLASS, mib),
    };
    if kind == Kind::Instances {
        exactly["selectors"] = selector(&format!("device.attributes['{DRIVER}'].type == 'mig'"));
    }
    Ok(json!({ "name": name, "exactly": exactly }))
}

fn amount(class: &str, mib: u64) -> Value {
    json!({
        "deviceClassName": class,
        "count": 1,
        "capacity": { "requests": { "memory": format!("{mib}Mi") } },
    })
}

/// Selects the GPUs of these sizes, from the smallest to the largest. By their type first: a device that only goes whole has no
/// such capacity, and an expression that asks for one ends in an error, and with it the search for a place altogether.
fn of_size(limits: (Bytes, Bytes)) -> String {
    let (least, most) = mib_of(limits);
    let memory = format!("device.capacity['{DRIVER}'].memory");
    let compared = if least == most {
        format!("{memory}.compareTo(quantity('{least}Mi')) == 0")
    } else {
        format!(
            "{memory}.compareTo(quantity('{least}Mi')) >= 0 && {memory}.compareTo(quantity('{most}Mi')) <= 0"
        )
    };
    format!("device.attributes['{DRIVER}'].type == 'fraction' && {compared}")
}

fn mib_of(limits: (Bytes, Bytes)) -> (u64, u64) {
    (limits.0.get() >> 20, limits.1.get() >> 20)
}

fn selector(expression: &str) -> Value {
    json!([{ "cel": { "expression": expression } }])
}

/// The alternatives of a request (`FirstAvailableDeviceRequestMaxSize`, resource.k8s.io/v1). The webhook writes one selector
/// in each, and other authors 32.
const MOST_SIZES: usize = 8;

/// The sizes of GPUs, smallest and largest in MiB, to which each alternative of a request is limited; empty for a request
/// that any size serves.
pub(crate) fn limited_to(request: &DeviceRequest) -> Vec<(u64, u64)> {
    let exactly = request.exactly.iter().map(|one| &one.selectors);
    let alternatives = request.first_available.iter().flatten();
    let all = exactly.chain(alternatives.map(|one| &one.selectors));
    let selectors = all.flat_map(|selectors| selectors.iter().flatten());
    let sizes = |selector: &DeviceSelector| {
        let text = &selector.cel.as_ref()?.expression;
        let quantities = text.split("quantity('").skip(1);
        let sizes = quantities.filter_map(|rest| rest.split_once("Mi')")?.0.parse().ok());
        let sizes: Vec<u64> = sizes.collect();
        Some((*sizes.iter().min()?, *sizes.iter().max()?))
    };
    selectors.filter_map(sizes).take(MOST_SIZES).collect()
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

    /// What a GPU of 80 GB is called, and what those of two models have.
    fn sized(gpus: Vec<Size>, text: u64) -> PodRequest {
        PodRequest {
            container: crate::base::pod_request::ContainerRef::Container(0),
            gpus,
            gpu_size: Some(Bytes::gib(text)),
            compute: None,
            warnings: Vec::new(),
        }
    }

    #[test]
    fn a_size_of_gpu_makes_one_request_of_several_alternatives() {
        let mixed = Inventory {
            sizes: [22_500, 81_050, 81_558].map(Bytes::mib).into(),
            ..Inventory::default()
        };
        let template = Template::of_request(&sized(vec![quarter()], 80), &mixed).unwrap();
        let request = &template.spec["spec"]["devices"]["requests"][0]["exactly"];
        assert_eq!(request["capacity"]["requests"]["memory"], "20262Mi");
        let selector = request["selectors"][0]["cel"]["expression"]
            .as_str()
            .unwrap();
        assert!(
            selector.contains("quantity('81050Mi')) >= 0")
                && selector.contains("quantity('81558Mi')) <= 0"),
            "{selector}"
        );
        // With one size of that kind it is the claim that a cluster of this size alone would have.
        let of_24 = Template::of_request(&sized(vec![quarter()], 24), &mixed).unwrap();
        let alone = Inventory {
            sizes: [Bytes::mib(22_500)].into(),
            ..Inventory::default()
        };
        assert_eq!(of_24, Template::of(&[quarter()], &alone).unwrap());
        let whole = Template::of_request(&sized(vec![Size::Whole], 24), &mixed).unwrap();
        let request = &whole.spec["spec"]["devices"]["requests"][0]["exactly"];
        let selector = request["selectors"][0]["cel"]["expression"]
            .as_str()
            .unwrap();
        assert!(selector.contains("memoryMi >= 22500"), "{selector}");
        let none = Template::of_request(&sized(vec![quarter()], 48), &mixed).unwrap_err();
        assert_eq!(
            none.to_string(),
            "divvy.dev/gpu-size: no GPU of about 48.0 GiB in the cluster; the shared GPUs have 22.0 GiB, 79.2 GiB, 79.6 GiB"
        );
    }

    #[test]
    fn a_part_of_the_compute_time_is_a_parameter_and_another_template() {
        let half = PodRequest {
            gpu_size: None,
            compute: Some("fair=0.5".parse().unwrap()),
            ..sized(vec![quarter()], 1)
        };
        let template = Template::of_request(&half, &inventory()).unwrap();
        assert_eq!(
            template.spec["spec"]["devices"]["config"],
            json!([{ "opaque": { "driver": DRIVER, "parameters": { "compute": "fair=0.5" } } }])
        );
        let plain = Template::of(&[quarter()], &inventory()).unwrap();
        assert_ne!(template.name, plain.name);
    }

    /// The requests of a template, each as `exactly`.
    fn exactly(gpus: &[Size], inventory: &Inventory) -> Vec<Value> {
        let template = Template::of(gpus, inventory).unwrap();
        let requests = template.spec["spec"]["devices"]["requests"].as_array();
        let each = requests.unwrap().iter().map(|one| one["exactly"].clone());
        each.collect()
    }

    #[test]
    fn a_fraction_of_the_only_size_is_one_request_that_selects_this_size() {
        let of_80 = Inventory {
            sizes: [Bytes::gib(80)].into(),
            ..Inventory::default()
        };
        let [request] = &exactly(&[quarter()], &of_80)[..] else {
            panic!("one request");
        };
        assert_eq!(request["deviceClassName"], FRACTION_CLASS);
        assert_eq!(request["capacity"]["requests"]["memory"], "20480Mi");
        let selector = request["selectors"][0]["cel"]["expression"].as_str();
        assert!(selector.unwrap().contains("quantity('81920Mi')"));
    }

    #[test]
    fn memory_is_one_request_for_parts_and_instances_whatever_gpus_there_are() {
        let mib = 15 << 10;
        let expected = json!({
            "deviceClassName": MEMORY_CLASS, "count": 1,
            "capacity": { "requests": { "memory": "15360Mi" } },
        });
        let shared = Inventory {
            profiles: BTreeMap::new(),
            ..inventory()
        };
        let instances = Inventory {
            sizes: BTreeSet::new(),
            ..inventory()
        };
        for inventory in [inventory(), shared, instances] {
            let found = exactly(&[Size::Memory(mib)], &inventory);
            assert_eq!(found, std::slice::from_ref(&expected));
        }
    }

    #[test]
    fn memory_that_only_a_profile_with_media_engines_has_is_too_much() {
        let media = Inventory {
            sizes: [Bytes::gib(8)].into(),
            profiles: [("1g.10gb+me".parse().unwrap(), Bytes::mib(9728))].into(),
        };
        assert_eq!(
            Template::of(&[Size::Memory(9000)], &media),
            Err(NoTemplate::TooMuch {
                asked: 9000,
                most: Bytes::gib(8)
            })
        );
    }

    #[test]
    fn memory_of_several_gpus_is_parts_alone_or_instances_alone() {
        let [some, much] = [15 << 10, 30 << 10].map(Size::Memory);
        for part in exactly(&[some, much], &inventory()) {
            assert_eq!(part["deviceClassName"], FRACTION_CLASS);
        }
        let small = Inventory {
            sizes: [Bytes::gib(24)].into(),
            ..inventory()
        };
        for instance in exactly(&[some, much], &small) {
            assert_eq!(instance["deviceClassName"], MEMORY_CLASS);
            let selector = &instance["selectors"][0]["cel"]["expression"];
            assert_eq!(selector, "device.attributes['gpu.divvy.dev'].type == 'mig'");
        }
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
