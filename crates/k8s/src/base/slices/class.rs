//! DeviceClasses, which claims and extended-resource requests name.
//!
//! A class with an extended resource's name serves pods that ask for that resource, `nvidia.com/mig-1g.10gb: 1`,
//! without a webhook: the scheduler makes the claim.

use k8s_openapi::api::resource::v1::{
    CELDeviceSelector, DeviceClass, DeviceClassSpec, DeviceSelector,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::pool::managed;
use super::{FRACTION, MIG, TYPE, WHOLE};
use crate::base::claim::{DRIVER, FRACTION_CLASS, Inventory, MEMORY_CLASS, mig_class};
use divvy_core::mig::MigProfile;

/// The classes of a cluster with this inventory: one for parts and whole GPUs, one for memory of whatever kind, one for each
/// profile. `nvidia_gpu` is whether
/// `nvidia.com/gpu` is ours to serve too, which it is not while NVIDIA's device plugin or driver serves it.
pub fn classes(inventory: &Inventory, nvidia_gpu: bool) -> Vec<DeviceClass> {
    let gpu = nvidia_gpu.then(|| crate::base::pod_request::GPU.to_owned());
    let kinds = format!("{} in ['{FRACTION}', '{WHOLE}']", attribute(TYPE));
    let fraction = class(FRACTION_CLASS.to_owned(), gpu, &kinds);
    let profiles = inventory.profiles.keys().map(|profile| {
        let (kind, of) = (attribute(TYPE), attribute("profile"));
        let expression = format!("{kind} == '{MIG}' && {of} == '{profile}'");
        class(mig_class(*profile), Some(resource(*profile)), &expression)
    });
    [fraction, memory()].into_iter().chain(profiles).collect()
}

/// Parts of GPUs, and instances. Those of profiles with a suffix (`1g.10gb+me`, `-me`) only serve requests that name them.
fn memory() -> DeviceClass {
    let (kind, of) = (attribute(TYPE), attribute("profile"));
    // Without brackets `&&` would bind to the first alternative alone. A part has no profile: CEL does not look at the right of
    // an `||` whose left is true.
    let plain = format!("{kind} == '{MIG}' && !{of}.contains('+') && !{of}.contains('-')");
    let expression = format!("({kind} == '{FRACTION}' || {plain})");
    class(MEMORY_CLASS.to_owned(), None, &expression)
}

/// `nvidia.com/mig-1g.10gb`, and for `1g.10gb+me` `nvidia.com/mig-1g.10gb.me`, as NVIDIA's plugin calls them: a resource's name
/// has no plus.
fn resource(profile: MigProfile) -> String {
    let profile = profile.to_string().replace('+', ".");
    format!("nvidia.com/mig-{profile}")
}

fn attribute(name: &str) -> String {
    format!("device.attributes['{DRIVER}'].{name}")
}

fn class(name: String, resource: Option<String>, expression: &str) -> DeviceClass {
    let expression = format!("device.driver == '{DRIVER}' && {expression}");
    let selector = DeviceSelector {
        cel: Some(CELDeviceSelector { expression }),
    };
    DeviceClass {
        metadata: ObjectMeta {
            name: Some(name),
            labels: Some(managed()),
            ..ObjectMeta::default()
        },
        spec: DeviceClassSpec {
            config: None,
            extended_resource_name: resource,
            selectors: Some(vec![selector]),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_core::units::Bytes;

    fn named(nvidia_gpu: bool) -> Vec<(String, Option<String>)> {
        let profiles = ["1g.10gb", "1g.10gb+me"];
        let inventory = Inventory {
            sizes: [Bytes::gib(80)].into(),
            profiles: profiles
                .map(|name| (name.parse().unwrap(), Bytes::mib(9728)))
                .into(),
        };
        let classes = classes(&inventory, nvidia_gpu).into_iter();
        classes
            .map(|class| {
                (
                    class.metadata.name.unwrap(),
                    class.spec.extended_resource_name,
                )
            })
            .collect()
    }

    #[test]
    fn a_profile_is_asked_for_as_from_nvidias_plugin() {
        let text = |text: &str| text.to_owned();
        assert_eq!(
            named(false),
            [
                (text("fraction.gpu.divvy.dev"), None),
                (text("memory.gpu.divvy.dev"), None),
                (
                    text("mig-1g-10gb.gpu.divvy.dev"),
                    Some(text("nvidia.com/mig-1g.10gb"))
                ),
                (
                    text("mig-1g-10gb-with-me.gpu.divvy.dev"),
                    Some(text("nvidia.com/mig-1g.10gb.me"))
                ),
            ]
        );
    }

    #[test]
    fn whole_gpus_by_their_usual_name_are_served_only_when_told_to() {
        assert_eq!(named(true)[0].1.as_deref(), Some("nvidia.com/gpu"));
        assert_eq!(named(false)[0].1, None);
    }
}
