//! DeviceClasses: one for fractions and whole GPUs, one for each MIG profile in the cluster.
//!
//! `slices` defines the content of a class; this module decides which ones are written and which removed. A class goes
//! when its profile has not been offered for a while and no claim names it: a restarting node withdraws its slices, and
//! a new leader knows no history.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::resource::v1::{DeviceClass, DeviceRequest};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::{Client, Resource as _, ResourceExt as _};

use super::capacity::ClaimFacts;
use super::templates::TemplateFacts;
use crate::base::claim::DRIVER;
use crate::base::cluster::{MANAGED_BY, is_missing};

const MANAGER: &str = "divvy-controller";

#[derive(Clone, Debug, PartialEq)]
pub enum ClassChange {
    Write(Box<DeviceClass>),
    Remove(String),
    /// A foreign object that has the name of one of ours.
    Leave(String),
}

/// How long a class stays that is of no use. An hour is longer than a pod takes from its template to its claim; a class
/// costs nothing meanwhile.
const KEPT: Duration = Duration::from_secs(3600);
/// Since when which classes have been of no use, as far as this replica has seen.
pub type IdleSince = BTreeMap<String, Timestamp>;

/// The writes for the existing classes; `idle` is carried from one round to the next.
pub fn steps<'c>(
    there: impl IntoIterator<Item = &'c DeviceClass>,
    wanted: Vec<DeviceClass>,
    named: &BTreeSet<String>,
    owner: Option<&OwnerReference>,
    now: Timestamp,
    idle: &mut IdleSince,
) -> Vec<ClassChange> {
    let there: Vec<&DeviceClass> = there.into_iter().collect();
    let mut steps = Vec::new();
    let mut names = BTreeSet::new();
    for mut class in wanted {
        class.meta_mut().owner_references = owner.map(|owner| vec![owner.clone()]);
        let name = class.name_any();
        names.insert(name.clone());
        match there.iter().find(|one| one.name_any() == name) {
            Some(one) if !is_ours(one) => steps.push(ClassChange::Leave(name)),
            Some(one) if one.spec == class.spec && owned(one, owner) => {}
            _ => steps.push(ClassChange::Write(Box::new(class))),
        }
    }
    let ours = there.iter().filter(|one| is_ours(one));
    let useless = ours.map(|one| one.name_any());
    let useless = useless.filter(|name| !names.contains(name) && !named.contains(name));
    let since = |name: String| {
        let since = *idle.get(&name).unwrap_or(&now);
        (name, since)
    };
    let useless: IdleSince = useless.map(since).collect();
    let over = useless.iter().filter(|(_, since)| now >= **since + KEPT);
    steps.extend(over.map(|(name, _)| ClassChange::Remove(name.clone())));
    *idle = useless;
    steps
}

fn is_ours(class: &DeviceClass) -> bool {
    let (key, value) = MANAGED_BY;
    class.labels().get(key).is_some_and(|found| found == value)
}

fn owned(class: &DeviceClass, owner: Option<&OwnerReference>) -> bool {
    owner.is_none_or(|owner| {
        class
            .owner_references()
            .iter()
            .any(|one| one.uid == owner.uid)
    })
}

/// The classes that claims and templates name.
pub fn named<'c>(
    claims: impl IntoIterator<Item = &'c ClaimFacts>,
    templates: impl IntoIterator<Item = &'c TemplateFacts>,
) -> BTreeSet<String> {
    let claims = claims.into_iter().flat_map(|claim| &claim.classes);
    let templates = templates.into_iter().flat_map(|template| &template.classes);
    claims.chain(templates).cloned().collect()
}

/// Divvy's classes that a request names.
pub fn classes_of(request: &DeviceRequest) -> Vec<String> {
    let exactly = request.exactly.iter().map(|one| &one.device_class_name);
    let either = request.first_available.iter().flatten();
    let all = exactly.chain(either.map(|one| &one.device_class_name));
    all.filter(|name| is_name(name)).cloned().collect()
}

/// Whether a class has a name of Divvy's.
fn is_name(name: &str) -> bool {
    name.ends_with(DRIVER)
}

/// The part of a class that an informer keeps; `None` for a class of another driver.
pub fn kept(class: DeviceClass) -> Option<DeviceClass> {
    let is_kept = is_name(&class.name_any()) || is_ours(&class);
    is_kept.then(|| {
        let mut class = class;
        class.metadata.managed_fields = None;
        class
    })
}

impl ClassChange {
    /// # Errors
    /// A call failed.
    pub async fn run(&self, client: &Client) -> Result<(), kube::Error> {
        let api: Api<DeviceClass> = Api::all(client.clone());
        match self {
            Self::Write(class) => {
                let name = class.name_any();
                tracing::info!(class = name, "written");
                let params = PatchParams::apply(MANAGER).force();
                api.patch(&name, &params, &Patch::Apply(class))
                    .await
                    .map(drop)
            }
            Self::Remove(name) => {
                tracing::info!(
                    class = name,
                    "removed: no node offers a device of this class"
                );
                match api.delete(name, &DeleteParams::default()).await {
                    Err(error) if !is_missing(&error) => Err(error),
                    _ => Ok(()),
                }
            }
            Self::Leave(name) => {
                tracing::warn!(
                    class = name,
                    "this DeviceClass is not Divvy's: delete it, and Divvy creates its own"
                );
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use divvy_core::units::Bytes;
    use serde_json::json;

    use super::*;
    use crate::base::claim::Inventory;
    use crate::base::slices::classes;

    fn wanted(profiles: &[&str]) -> Vec<DeviceClass> {
        let profiles = profiles
            .iter()
            .map(|name| (name.parse().unwrap(), Bytes::gib(9)));
        let inventory = Inventory {
            profiles: profiles.collect(),
            ..Inventory::default()
        };
        classes(&inventory, false)
    }

    fn owner() -> OwnerReference {
        OwnerReference {
            uid: "chart".into(),
            ..OwnerReference::default()
        }
    }

    /// At once, and an hour later.
    fn steps(
        there: &[DeviceClass],
        wanted: Vec<DeviceClass>,
        named: &BTreeSet<String>,
    ) -> Vec<ClassChange> {
        let (owner, start, mut idle) = (owner(), Timestamp::UNIX_EPOCH, IdleSince::new());
        let at = |now, idle: &mut IdleSince| {
            super::steps(there, wanted.clone(), named, Some(&owner), now, idle)
        };
        let first = at(start, &mut idle);
        assert!(
            !first
                .iter()
                .any(|step| matches!(step, ClassChange::Remove(_)))
        );
        at(start + KEPT, &mut idle)
    }

    /// As the first run of a controller leaves them.
    fn written(profiles: &[&str]) -> Vec<DeviceClass> {
        let steps = steps(&[], wanted(profiles), &BTreeSet::new());
        let written = steps.into_iter().map(|step| match step {
            ClassChange::Write(class) => *class,
            other => panic!("{other:?}"),
        });
        written.collect()
    }

    #[test]
    fn what_is_as_it_should_be_is_left() {
        let there = written(&["1g.10gb"]);
        assert_eq!(there.len(), 3);
        assert_eq!(steps(&there, wanted(&["1g.10gb"]), &BTreeSet::new()), []);
    }

    #[test]
    fn what_was_changed_or_belongs_to_no_chart_is_written_again() {
        let mut there = written(&[]);
        there[0].spec.selectors = None;
        let again = steps(&there, wanted(&[]), &BTreeSet::new());
        assert!(matches!(&again[..], [ClassChange::Write(_)]), "{again:?}");
        let mut there = written(&[]);
        there[0].metadata.owner_references = None;
        let again = steps(&there, wanted(&[]), &BTreeSet::new());
        assert!(matches!(&again[..], [ClassChange::Write(_)]), "{again:?}");
    }

    #[test]
    fn a_profile_that_is_gone_goes_once_no_claim_names_it() {
        let there = written(&["1g.10gb"]);
        let claim = serde_json::from_value(json!({
            "metadata": { "name": "c" },
            "spec": { "devices": { "requests": [{ "name": "r", "firstAvailable": [
                { "name": "a", "deviceClassName": "mig-1g-10gb.gpu.divvy.dev" },
            ] }] } },
        }))
        .unwrap();
        let named = named([&ClaimFacts::of(&claim).unwrap()], []);
        assert_eq!(steps(&there, wanted(&[]), &named), []);
        assert_eq!(
            steps(&there, wanted(&[]), &BTreeSet::new()),
            [ClassChange::Remove("mig-1g-10gb.gpu.divvy.dev".into())]
        );
    }

    #[test]
    fn a_foreign_class_is_neither_written_nor_removed() {
        let mut there = written(&["1g.10gb"]);
        for class in &mut there {
            class.metadata.labels = None;
        }
        let left = steps(&there, wanted(&[]), &BTreeSet::new());
        let names = ["fraction.gpu.divvy.dev", "memory.gpu.divvy.dev"];
        assert_eq!(left, names.map(|name| ClassChange::Leave(name.into())));
    }
}
