//! What a claim asks of the node's GPUs, as a shape of the placement's room.

use divvy_core::{Bytes, Share};
use divvy_packing::{ModelSet, Shape};
use k8s_openapi::api::resource::v1::{DeviceRequest, DeviceSelector, ResourceClaim};

use super::pod::Requests;
use crate::base::claim::{DRIVER, FRACTION_CLASS, MEMORY_CLASS, limited_to};
use crate::base::quantity::bytes;
use crate::base::slices::MEMORY;

/// The amount of each GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Amount {
    /// Of its memory, whatever its size: whole MiB, as the history of requests counts them.
    Memory(Bytes),
    /// Another amount of memory on each size of GPU.
    Share(Share),
    Whole,
}

/// What the claims of a pod ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    pub gpus: u32,
    /// The largest of its parts, which stands for all of them.
    pub amount: Option<Amount>,
    /// Sizes of GPU, smallest and largest, that serve it; empty for any.
    pub sizes: Vec<(Bytes, Bytes)>,
    /// Part of it is a MIG instance.
    pub instances: bool,
}

impl Asked {
    /// What a claim asks for; nothing where it asks no device of this driver.
    pub fn of(claim: &ResourceClaim) -> Self {
        let devices = claim.spec.devices.as_ref();
        let requests = devices.and_then(|devices| devices.requests.as_ref());
        let mut asked = Self::default();
        for request in requests.into_iter().flatten() {
            asked.add_request(request);
        }
        asked
    }

    /// Whole GPUs by an extended resource.
    pub fn whole(gpus: u64) -> Self {
        Self {
            gpus: u32::try_from(gpus).unwrap_or(u32::MAX),
            amount: Some(Amount::Whole),
            ..Self::default()
        }
    }

    pub fn add(&mut self, other: Self) {
        self.gpus = self.gpus.saturating_add(other.gpus);
        self.amount = self.amount.max(other.amount);
        self.sizes.extend(other.sizes);
        self.instances |= other.instances;
    }

    fn add_request(&mut self, request: &DeviceRequest) {
        let in_mib = limited_to(request).into_iter();
        let sizes: Vec<(Bytes, Bytes)> = in_mib
            .map(|(least, most)| (Bytes::mib(least), Bytes::mib(most)))
            .collect();
        if let Some(exactly) = &request.exactly {
            if !exactly.device_class_name.ends_with(DRIVER) {
                return;
            }
            let kind = kind(&exactly.device_class_name, exactly.selectors.as_deref());
            let capacity = exactly.capacity.as_ref();
            let memory = capacity.and_then(|capacity| capacity.requests.as_ref()?.get(MEMORY));
            let count = exactly.count.unwrap_or(1);
            self.add(match kind {
                Kind::Instance => Self {
                    instances: true,
                    ..Self::default()
                },
                Kind::Part => Self {
                    gpus: u32::try_from(count).unwrap_or(0),
                    amount: Some(match memory.and_then(bytes) {
                        Some(memory) => Amount::Memory(memory.round_up(Bytes::MIB)),
                        None => Amount::Whole,
                    }),
                    sizes,
                    instances: false,
                },
            });
            return;
        }
        let alternatives = request.first_available.as_deref().unwrap_or_default();
        let Some(first) = alternatives
            .iter()
            .find(|one| one.device_class_name.ends_with(DRIVER))
        else {
            return;
        };
        if let Kind::Instance = kind(&first.device_class_name, first.selectors.as_deref()) {
            self.instances = true;
            return;
        }
        let capacity = first.capacity.as_ref();
        let memory = capacity.and_then(|capacity| capacity.requests.as_ref()?.get(MEMORY));
        let memory = memory.and_then(bytes);
        let memory = memory.map(|memory| memory.round_down(Bytes::MIB));
        let amount = match (memory, sizes.first()) {
            (None, _) => Amount::Whole,
            // The same part of each size; rounded down, as the scheduler has left only nodes where it fits.
            (Some(memory), Some((size, _))) if alternatives.len() > 1 && *size > Bytes::ZERO => {
                let share = (memory.get().saturating_mul(1000) / size.get()).clamp(1, 1000);
                let share = u16::try_from(share).ok().and_then(Share::from_thousandths);
                Amount::Share(share.unwrap_or(Share::FULL))
            }
            (Some(memory), _) => Amount::Memory(memory),
        };
        self.add(Self {
            gpus: u32::try_from(first.count.unwrap_or(1)).unwrap_or(0),
            amount: Some(amount),
            sizes,
            instances: false,
        });
    }

    /// The shape for a pod with these requests, on GPUs of these models; `None` where it asks for no part of a GPU.
    pub fn shape(&self, requests: Requests, models: ModelSet) -> Option<Shape> {
        let (share, gpu_memory) = match self.amount? {
            Amount::Whole => (Some(Share::FULL), None),
            Amount::Share(share) => (Some(share), None),
            Amount::Memory(memory) => (None, Some(memory)),
        };
        (self.gpus > 0).then_some(Shape {
            cpu_milli: requests.cpu_milli,
            memory: requests.memory,
            gpus: self.gpus,
            share,
            gpu_memory,
            models,
        })
    }
}

enum Kind {
    Part,
    Instance,
}

/// A class of a profile, or a selector of instances, asks for an instance.
fn kind(class: &str, selectors: Option<&[DeviceSelector]>) -> Kind {
    let mut selectors = selectors.into_iter().flatten();
    let selects_instances = selectors.any(|selector| {
        let cel = selector.cel.as_ref();
        cel.is_some_and(|cel| cel.expression.contains("type == 'mig'"))
    });
    if [FRACTION_CLASS, MEMORY_CLASS].contains(&class) && !selects_instances {
        Kind::Part
    } else {
        Kind::Instance
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::claim::{Inventory, Template};
    use crate::base::pod_request::{Fraction, Size};
    use serde_json::json;

    fn asked(sizes: &[Size], gpus_mib: &[u64]) -> Asked {
        let inventory = Inventory {
            sizes: gpus_mib.iter().map(|mib| Bytes::mib(*mib)).collect(),
            ..Inventory::default()
        };
        let template = Template::of(sizes, &inventory).unwrap();
        let claim = json!({ "metadata": { "name": "c" }, "spec": template.spec["spec"] });
        Asked::of(&serde_json::from_value(claim).unwrap())
    }

    /// GPUs, then thousandths or MiB of each.
    fn shape(asked: &Asked) -> (u32, Option<u16>, Option<u64>) {
        let shape = asked.shape(Requests::default(), ModelSet::ANY).unwrap();
        let thousandths = shape.share.map(Share::thousandths);
        (
            shape.gpus,
            thousandths,
            shape.gpu_memory.map(Bytes::whole_mib),
        )
    }

    /// The webhook's own templates, so that both change together.
    #[test]
    fn the_webhooks_claims_are_shapes() {
        let part = |text| Size::Fraction(Fraction::between_none_and_one(text).unwrap());
        assert_eq!(
            shape(&asked(&[part("0.25")], &[81920])),
            (1, None, Some(20480))
        );
        assert_eq!(
            shape(&asked(&[part("0.25")], &[81920, 24576])),
            (1, Some(250), None)
        );
        assert_eq!(
            shape(&asked(&[Size::Memory(2000)], &[81920])),
            (1, None, Some(2000))
        );
        let whole = [Size::Whole, Size::Whole];
        assert_eq!(shape(&asked(&whole, &[81920])), (2, Some(1000), None));
        let mixed = [part("0.25"), part("0.5")];
        assert_eq!(shape(&asked(&mixed, &[81920])), (2, None, Some(40960)));
    }

    #[test]
    fn instances_and_devices_of_other_drivers_are_no_shapes() {
        let of_class = |class: &str| {
            let claim = json!({ "metadata": { "name": "c" }, "spec": { "devices": { "requests": [
                { "name": "a", "exactly": { "deviceClassName": class } },
            ] } } });
            Asked::of(&serde_json::from_value(claim).unwrap())
        };
        assert!(of_class("mig-1g-10gb.gpu.divvy.dev").instances);
        assert_eq!(of_class("nic.example.com"), Asked::default());
        assert_eq!(shape(&of_class(FRACTION_CLASS)), (1, Some(1000), None));
    }
}
