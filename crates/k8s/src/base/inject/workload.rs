//! The webhook's mutation of workloads: each pod template gets its claim at admission, so that queues count it.
//!
//! A template gets only what a queue reads: the claim, in place of the limits that it stands for, and the record of the
//! request. The rest is added to its pods. The rules for an update, in this order:
//!
//! ```text
//!   another controller owns the object                 its claims stay as they are
//!   no claim before, and the template is unchanged     left: a claim would replace every pod
//!   the same request as before                         the claim of before, byte for byte
//!   a kind whose templates are fixed                   the claim of before, with a warning
//!   another request, or none                           another claim, or none
//! ```

use std::collections::BTreeMap;

use json_patch::Patch;
use serde_json::{Value, json};

use super::template::{has_limits, is_partial, strip, unmake};
use super::{
    ASKED, CLAIM, CONTAINERS, InjectError, drop_ours, entry, is_clearml_fraction, parse_request,
    write_claim,
};
use crate::base::claim::{Inventory, PREFIX, Template};
use crate::base::pod_request::{
    ContainerRef, MOST_REQUESTS, PodRequest, Refusal, Rules, Size, SkipReason, Steps,
    names_container, parse_pod_request,
};
use crate::base::workload::{ClaimRule, Workload, is_owners_business};

/// The label of an object whose templates claim by templates of Divvy, and the annotation that lists them: a JSON object
/// of their names and requests. The controller keeps these claim templates while the object exists.
pub const CLAIM_TEMPLATES: &str = "divvy.dev/claim-templates";
const LABELLED: &str = "true";
/// The longest annotation of ours that is read; more is not of the webhook. A record has a line for each container. An
/// object's annotations have 256 KiB together (Kubernetes), so this leaves room for others.
const LONGEST_RECORD: usize = 16 << 10;

/// The result of the mutation.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadInjection {
    /// The object as it is to be.
    pub object: Value,
    /// From the object as it was.
    pub patch: Patch,
    /// New claim templates, which have to exist before the object does.
    pub templates: Vec<Template>,
    /// Warnings for the creator of the object.
    pub warnings: Vec<String>,
}

/// Mutates an object with pod templates; `None` if it stays as it is. `old` is the version that an update replaces.
/// Idempotent.
///
/// # Errors
/// A template asks for something that cannot be, that would not be held, or that no GPU could ever serve.
pub fn inject_workload<'r>(
    object: &Value,
    old: Option<&Value>,
    inventory: &Inventory,
    rules: impl Into<Rules<'r>>,
) -> Result<Option<WorkloadInjection>, InjectError> {
    let rules = rules.into();
    let kind = object["kind"].as_str().unwrap_or_default();
    let Some(workload) = Workload::of_kind(kind) else {
        return Ok(None);
    };
    let is_owned = is_owned(object);
    let mut changed = object.clone();
    let mut templates: Vec<Template> = Vec::new();
    let mut warnings: Vec<String> = Vec::new();
    for place in workload.places(object) {
        let Some(template) = changed.pointer_mut(&place.pointer) else {
            continue;
        };
        let has_claim = Claimed::of(template).is_some();
        if is_owners_business(object) || is_owned && has_claim {
            strip(template, rules, is_clearml_fraction)?;
            continue;
        }
        let before = old.and_then(|old| place.in_version(workload, old));
        let change = Change {
            workload,
            before,
            inventory,
            rules,
        };
        let done = change.run(template)?;
        let is_new = |one: &Template| !templates.iter().any(|made| made.name == one.name);
        templates.extend(done.made.filter(is_new));
        for warning in done.warnings {
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
    }
    if !is_owned || workload.kind == "Job" {
        record(&mut changed, workload)?;
    }
    Ok((changed != *object).then(|| WorkloadInjection {
        patch: json_patch::diff(object, &changed),
        object: changed,
        templates,
        warnings,
    }))
}

fn is_owned(object: &Value) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array();
    let mut owners = owners.into_iter().flatten();
    owners.any(|owner| owner["controller"] == true)
}

/// The change of one template.
struct Change<'a> {
    workload: &'static Workload,
    /// The template in the version that an update replaces.
    before: Option<&'a Value>,
    inventory: &'a Inventory,
    rules: Rules<'a>,
}

#[derive(Default)]
struct Done {
    made: Option<Template>,
    warnings: Vec<String>,
}

impl Change<'_> {
    fn run(&self, template: &mut Value) -> Result<Done, InjectError> {
        let original = template.clone();
        let own = Claimed::take(template);
        let before = self.before.and_then(Before::of);
        if let (Some(old), None, None) = (self.before, &before, &own) {
            if has_limits(template, is_clearml_fraction) {
                strip(template, self.rules, is_clearml_fraction)?;
            }
            if self.workload.claims == ClaimRule::Fixed || template == old {
                return Ok(Done::default());
            }
        }
        if let Some(before) = &before
            && let Some(kept) = before.kept(template, self.rules)
        {
            *template = kept;
            return Ok(Done::default());
        }
        let limits = strip(template, self.rules, is_partial);
        let found =
            limits.and_then(|limits| Ok((limits, parse_pod_request(template, self.rules)?)));
        if let (Some(before), ClaimRule::Fixed) = (&before, self.workload.claims) {
            let is_left = matches!(
                found,
                Ok((_, Err(SkipReason::Scheduler(_) | SkipReason::Done)))
            );
            if !is_left {
                before.claim.put(template, None);
                let warning = format!(
                    "a {} keeps the GPU request that it was created with; create it again to change the request",
                    self.workload.kind
                );
                return Ok(Done {
                    made: None,
                    warnings: vec![warning],
                });
            }
        }
        let (limits, found) = found?;
        let mut found = match found {
            Ok(found) => found,
            Err(SkipReason::Unmarked) => {
                if own.is_some() {
                    unmake(template);
                }
                return Ok(Done::default());
            }
            Err(SkipReason::Scheduler(_) | SkipReason::Done) => {
                *template = original;
                return Ok(Done::default());
            }
        };
        if let Some(container) = own.as_ref().and_then(|own| own.container(template))
            && !names_container(template)
        {
            found.container = container;
        }
        let made = Template::of_request(&found, self.inventory)?;
        write_claim(template, &found, &made.name);
        let mut warnings = found.warnings;
        warnings.extend(limits.into_iter().flat_map(|limits| limits.warnings));
        Ok(Done {
            made: Some(made),
            warnings,
        })
    }
}

/// A template with a claim of Divvy, in the version that an update replaces.
struct Before {
    claim: Claimed,
    request: Option<PodRequest>,
}

impl Before {
    fn of(template: &Value) -> Option<Self> {
        let mut bare = template.clone();
        let claim = Claimed::take(&mut bare)?;
        // What was admitted counts, whatever is allowed today.
        let any = Rules::from(Steps::Any);
        let request = parse_pod_request(&bare, any).ok().and_then(Result::ok);
        Some(Self { claim, request })
    }

    /// The new template with the old claim, if it requests the same.
    fn kept(&self, template: &Value, rules: Rules<'_>) -> Option<Value> {
        let any = Rules {
            steps: Steps::Any,
            ..rules
        };
        let mut kept = template.clone();
        strip(&mut kept, any, is_partial).ok()?;
        let found = parse_pod_request(&kept, any).ok()?.ok()?;
        let before = self.request.as_ref()?;
        let is_same = found.gpus == before.gpus
            && found.gpu_size == before.gpu_size
            && found.compute == before.compute;
        if !is_same {
            return None;
        }
        let named = names_container(&kept).then_some(found.container);
        self.claim.put(&mut kept, named).then_some(kept)
    }
}

/// The webhook's claim in a template.
struct Claimed {
    /// The claim template's name.
    template: String,
    /// Its place in the list of claims.
    at: usize,
    /// The list and the name of the container that has it, and its place among that container's claims.
    container: Option<(&'static str, String, usize)>,
    asked: Option<Value>,
}

impl Claimed {
    fn of(template: &Value) -> Option<Self> {
        let is_ours = |claim: &Value| claim["name"] == CLAIM;
        let claims = template["spec"]["resourceClaims"].as_array()?;
        let at = claims.iter().position(is_ours)?;
        let name = claims[at]["resourceClaimTemplateName"].as_str()?;
        let holder = CONTAINERS.into_iter().find_map(|list| {
            let mut containers = template["spec"][list].as_array()?.iter();
            containers.find_map(|container| {
                let at = container["resources"]["claims"].as_array()?.iter();
                let at = at.clone().position(is_ours)?;
                Some((list, container["name"].as_str()?.to_owned(), at))
            })
        });
        name.starts_with(PREFIX).then(|| Self {
            template: name.to_owned(),
            at,
            container: holder,
            asked: template["metadata"]["annotations"].get(ASKED).cloned(),
        })
    }

    /// Removes it from the template, with all that was written for it.
    fn take(template: &mut Value) -> Option<Self> {
        let claim = Self::of(template)?;
        remove(&mut template["spec"], "resourceClaims");
        for list in CONTAINERS {
            let containers = template["spec"].get_mut(list).and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten() {
                if let Some(resources) = container.get_mut("resources") {
                    remove(resources, "claims");
                }
            }
        }
        if let Some(metadata) = template.get_mut("metadata").and_then(Value::as_object_mut) {
            let annotations = metadata.get_mut("annotations");
            let annotations = annotations.and_then(Value::as_object_mut);
            let is_empty = annotations.is_some_and(|annotations| {
                annotations.remove(ASKED);
                annotations.is_empty()
            });
            if is_empty {
                metadata.remove("annotations");
            }
        }
        Some(claim)
    }

    /// Writes it where it was; into this container, or else into the one that had it. Returns whether there is such a one.
    fn put(&self, template: &mut Value, container: Option<ContainerRef>) -> bool {
        let Some(place) = container.or_else(|| self.container(template)) else {
            return false;
        };
        let Some(holder) = template.pointer_mut(&place.pointer()) else {
            return false;
        };
        let resources = entry(holder, "resources", json!({}));
        drop_ours(resources);
        let at = self.container.as_ref().map_or(usize::MAX, |(.., at)| *at);
        insert(resources, "claims", at, json!({ "name": CLAIM }));
        let claim = json!({ "name": CLAIM, "resourceClaimTemplateName": self.template });
        insert(&mut template["spec"], "resourceClaims", self.at, claim);
        if let Some(asked) = &self.asked {
            let metadata = entry(template, "metadata", json!({}));
            entry(metadata, "annotations", json!({}))[ASKED] = asked.clone();
        }
        true
    }

    /// The container of a template that has the name of the one that had the claim.
    fn container(&self, template: &Value) -> Option<ContainerRef> {
        let (list, name, _) = self.container.as_ref()?;
        let mut containers = template["spec"][list].as_array()?.iter();
        let at = containers.position(|container| container["name"] == **name)?;
        Some(match *list {
            "initContainers" => ContainerRef::InitContainer(at),
            _ => ContainerRef::Container(at),
        })
    }
}

/// Removes the claim of this name from a list, and the list with its last element.
fn remove(object: &mut Value, key: &str) {
    let Some(list) = object.get_mut(key).and_then(Value::as_array_mut) else {
        return;
    };
    list.retain(|one| one["name"] != CLAIM);
    if list.is_empty()
        && let Some(object) = object.as_object_mut()
    {
        object.remove(key);
    }
}

fn insert(object: &mut Value, key: &str, at: usize, value: Value) {
    if let Some(list) = entry(object, key, json!([])).as_array_mut() {
        list.insert(at.min(list.len()), value);
    }
}

/// Writes the object's claim templates into its label and annotation, or removes both.
fn record(object: &mut Value, workload: &Workload) -> Result<(), Refusal> {
    let places = workload.places(object);
    let templates = places
        .iter()
        .filter_map(|place| object.pointer(&place.pointer));
    let claims: BTreeMap<String, String> = templates
        .filter_map(Claimed::of)
        .map(|claim| {
            let asked = claim.asked.as_ref().and_then(Value::as_str);
            (claim.template, asked.unwrap_or_default().to_owned())
        })
        .collect();
    if claims.len() > MOST_REQUESTS {
        return Err(Refusal::ManyRequests(claims.len()));
    }
    let (label, list) = if claims.is_empty() {
        (None, None)
    } else {
        (Some(LABELLED.to_owned()), Some(json!(claims).to_string()))
    };
    for (map, value) in [("labels", label), ("annotations", list)] {
        let metadata = entry(object, "metadata", json!({}));
        match value {
            Some(value) => entry(metadata, map, json!({}))[CLAIM_TEMPLATES] = json!(value),
            None => {
                let map = metadata.get_mut(map).and_then(Value::as_object_mut);
                map.map(|map| map.remove(CLAIM_TEMPLATES));
            }
        }
    }
    Ok(())
}

/// The claim templates of an object by its annotation, each with its request; empty for an annotation that the webhook has not
/// written.
pub fn recorded_claims(annotation: &str) -> BTreeMap<String, Vec<Size>> {
    if annotation.len() > LONGEST_RECORD {
        return BTreeMap::new();
    }
    let claims: BTreeMap<String, String> = serde_json::from_str(annotation).unwrap_or_default();
    let ours = claims
        .into_iter()
        .filter(|(name, _)| name.starts_with(PREFIX));
    ours.take(MOST_REQUESTS)
        .map(|(name, asked)| (name, parse_request(&asked).unwrap_or_default()))
        .collect()
}
