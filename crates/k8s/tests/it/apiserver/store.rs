//! What the server holds, and what each verb does to it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::defaults::fill_in;
use super::kinds::{Kind, Target, built_in, defined};
use super::selector::Selector;

/// Group, plural, namespace, name.
pub type Key = (String, String, String, String);

/// Why a call is refused, as the API has it.
#[derive(Clone, Debug)]
pub struct Fail {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
}

impl Fail {
    pub fn not_found(message: String) -> Self {
        Self {
            code: 404,
            reason: "NotFound",
            message,
        }
    }

    pub fn invalid(message: String) -> Self {
        Self {
            code: 422,
            reason: "Invalid",
            message,
        }
    }

    fn conflict(message: String) -> Self {
        Self {
            code: 409,
            reason: "Conflict",
            message,
        }
    }
}

/// One object's way from one state to the next.
#[derive(Clone, Debug)]
pub struct Change {
    pub version: u64,
    pub key: Key,
    pub before: Option<Value>,
    pub after: Option<Value>,
}

/// How a patch is written.
#[derive(Clone, Debug)]
pub enum PatchKind {
    Json,
    Merge,
    /// Lists of what has names are merged by name; nothing else of what the real one can.
    Strategic,
    Apply {
        manager: String,
    },
}

pub struct Store {
    pub version: u64,
    pub kinds: Vec<Kind>,
    objects: BTreeMap<Key, Value>,
    changes: Vec<Change>,
    /// Changes up to this version can no longer be watched from.
    forgotten: u64,
    applied: BTreeMap<(Key, String), Value>,
    named: u64,
}

impl Store {
    pub fn new() -> Self {
        Self {
            version: 1,
            kinds: built_in(),
            objects: BTreeMap::new(),
            changes: Vec::new(),
            forgotten: 0,
            applied: BTreeMap::new(),
            named: 0,
        }
    }

    pub fn get(&self, at: &Target) -> Result<&Value, Fail> {
        let key = key(at, at.name.as_deref().unwrap_or_default());
        self.objects.get(&key).ok_or_else(|| missing(&key))
    }

    /// All of a kind, in the order of namespace and name.
    pub fn list(&self, at: &Target, selector: &Selector) -> Vec<Value> {
        self.matching(at, selector).cloned().collect()
    }

    pub fn matching<'s>(
        &'s self,
        at: &'s Target,
        selector: &'s Selector,
    ) -> impl Iterator<Item = &'s Value> {
        let of_kind = self
            .objects
            .iter()
            .filter(|(key, _)| in_collection(key, at));
        let taken = of_kind.filter(|(_, object)| selector.takes(object));
        taken.map(|(_, object)| object)
    }

    /// What happened in a collection after a version.
    pub fn since(&self, at: &Target, version: u64) -> Result<Vec<Change>, Fail> {
        if version < self.forgotten {
            return Err(Fail {
                code: 410,
                reason: "Expired",
                message: format!(
                    "version {version} is too old: {} is the oldest",
                    self.forgotten
                ),
            });
        }
        let later = self
            .changes
            .iter()
            .filter(|change| change.version > version);
        Ok(later
            .filter(|change| in_collection(&change.key, at))
            .cloned()
            .collect())
    }

    /// How many objects of a kind were made.
    pub fn made(&self, plural: &str) -> usize {
        let of_kind = self.changes.iter().filter(|change| change.key.1 == plural);
        of_kind.filter(|change| change.before.is_none()).count()
    }

    /// Nobody can go on watching from before now.
    pub fn forget(&mut self) {
        self.version += 1;
        self.forgotten = self.version;
        self.changes.clear();
    }

    pub fn create(&mut self, at: &Target, mut object: Value, dry: bool) -> Result<Value, Fail> {
        let said = object["metadata"]["name"].as_str().map(str::to_owned);
        let name = match (said, object["metadata"]["generateName"].as_str()) {
            (Some(name), _) => name,
            _ if at.kind.kind.ends_with("Review") => String::new(),
            (None, Some(prefix)) => {
                self.named += 1;
                format!("{prefix}{:05x}", self.named)
            }
            (None, None) => {
                let (kind, group) = (&at.kind.kind, &at.kind.group);
                return Err(Fail::invalid(format!(
                    "{kind}.{group} \"\" is invalid: metadata.name: Required value: name or generateName is required"
                )));
            }
        };
        let key = key(at, &name);
        if self.objects.contains_key(&key) {
            return Err(Fail {
                code: 409,
                reason: "AlreadyExists",
                message: format!("{} {name:?} already exists", resource(&key)),
            });
        }
        if !object["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or_default()
            .is_empty()
        {
            return Err(Fail {
                code: 500,
                reason: "",
                message: "resourceVersion should not be set on objects to be created".to_owned(),
            });
        }
        object["apiVersion"] = json!(api_version(&at.kind));
        object["kind"] = json!(at.kind.kind);
        let uid = format!("00000000-0000-4000-8000-{:012x}", self.version + 1);
        let metadata = &mut object["metadata"];
        metadata["name"] = json!(name);
        metadata["uid"] = json!(uid);
        metadata["creationTimestamp"] = json!(now());
        if at.kind.kind != "ResourceClaimTemplate" {
            metadata["generation"] = json!(1);
        }
        if at.kind.namespaced {
            metadata["namespace"] = json!(at.namespace);
        }
        if at.kind.status
            && let Some(fields) = object.as_object_mut()
        {
            fields.remove("status");
        }
        match at.kind.kind.as_str() {
            "Pod" => object["status"] = json!({ "phase": "Pending" }),
            // An answer, nothing that is kept.
            "SelfSubjectAccessReview" => return Ok(object),
            "CustomResourceDefinition" if !dry => {
                let kinds = defined(&object);
                self.kinds.extend(kinds);
                let established = json!([{ "type": "Established", "status": "True" }]);
                object["status"] = json!({ "conditions": established });
            }
            _ => {}
        }
        fits(&object)?;
        fill_in(&at.kind, &mut object);
        if dry {
            Ok(object)
        } else {
            Ok(self.put(key, object))
        }
    }

    pub fn update(&mut self, at: &Target, mut object: Value, dry: bool) -> Result<Value, Fail> {
        let before = self.get(at)?.clone();
        let (had, has) = (&before["metadata"], &object["metadata"]);
        let name = had["name"].as_str().unwrap_or_default().to_owned();
        let differs = |field: &str| !has[field].is_null() && has[field] != had[field];
        if differs("name") {
            return Err(Fail::invalid("the name in the object is another".into()));
        }
        if differs("uid") || (differs("resourceVersion") && has["resourceVersion"] != "") {
            let resource = resource(&key(at, &name));
            return Err(Fail::conflict(format!(
                "Operation cannot be fulfilled on {resource} {name:?}: the object has been modified; \
                 please apply your changes to the latest version and try again"
            )));
        }
        match at.subresource.as_deref() {
            Some("status") => {
                let status = object["status"].take();
                object = before.clone();
                object["status"] = status;
            }
            _ => {
                // What the server keeps, whatever the caller writes.
                for field in [
                    "uid",
                    "creationTimestamp",
                    "deletionTimestamp",
                    "generation",
                    "namespace",
                    "name",
                ] {
                    match before["metadata"].get(field) {
                        Some(kept) => object["metadata"][field] = kept.clone(),
                        None => drop(
                            object["metadata"]
                                .as_object_mut()
                                .map(|all| all.remove(field)),
                        ),
                    }
                }
                object["apiVersion"] = before["apiVersion"].clone();
                object["kind"] = before["kind"].clone();
                if at.kind.status {
                    match before.get("status") {
                        Some(status) => object["status"] = status.clone(),
                        None => drop(object.as_object_mut().map(|all| all.remove("status"))),
                    }
                }
                fill_in(&at.kind, &mut object);
                if object["spec"] != before["spec"] && at.kind.kind == "ResourceClaimTemplate" {
                    return Err(Fail::invalid(format!(
                        "ResourceClaimTemplate.resource.k8s.io {name:?} is invalid: spec: Invalid value: \
                         {}: field is immutable",
                        object["spec"]
                    )));
                }
                if object["spec"] != before["spec"] {
                    let generation = before["metadata"]["generation"].as_u64().unwrap_or(0);
                    object["metadata"]["generation"] = json!(generation + 1);
                }
            }
        }
        object["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
        fits(&object)?;
        if dry || object == before {
            return Ok(object);
        }
        let key = key(at, &name);
        let leaving = !object["metadata"]["deletionTimestamp"].is_null();
        if leaving && !has_finalizers(&object) && !is_on_a_node(&object) {
            return Ok(self.remove(&key));
        }
        Ok(self.put(key, object))
    }

    pub fn patch(
        &mut self,
        at: &Target,
        kind: &PatchKind,
        patch: &Value,
        dry: bool,
    ) -> Result<Value, Fail> {
        let there = self.get(at).cloned();
        let changed = match (kind, there) {
            (PatchKind::Apply { .. }, Err(_)) => {
                let mut object = patch.clone();
                object["metadata"]["name"] = json!(at.name);
                let object = self.create(at, object, dry)?;
                self.remember_applied(at, kind, patch);
                return Ok(object);
            }
            (_, Err(fail)) => return Err(fail),
            (PatchKind::Json, Ok(mut object)) => {
                let patch: json_patch::Patch = serde_json::from_value(patch.clone())
                    .map_err(|error| Fail::invalid(format!("no JSON patch: {error}")))?;
                json_patch::patch(&mut object, &patch)
                    .map_err(|error| Fail::invalid(format!("the patch does not fit: {error}")))?;
                object
            }
            (PatchKind::Merge, Ok(mut object)) => {
                // A merge says nothing of the version, unless it names one.
                clear_version(&mut object);
                json_patch::merge(&mut object, patch);
                object
            }
            (PatchKind::Strategic, Ok(mut object)) => {
                clear_version(&mut object);
                merge_by_name(&mut object, patch);
                object
            }
            (PatchKind::Apply { manager }, Ok(mut object)) => {
                let at_key = (
                    key(at, at.name.as_deref().unwrap_or_default()),
                    manager.clone(),
                );
                if let Some(earlier) = self.applied.get(&at_key) {
                    let earlier = earlier.clone();
                    take_back(&mut object, &earlier, patch);
                }
                clear_version(&mut object);
                json_patch::merge(&mut object, patch);
                object
            }
        };
        let object = self.update(at, changed, dry)?;
        self.remember_applied(at, kind, patch);
        Ok(object)
    }

    fn remember_applied(&mut self, at: &Target, kind: &PatchKind, patch: &Value) {
        if let PatchKind::Apply { manager } = kind {
            let key = key(at, at.name.as_deref().unwrap_or_default());
            self.applied.insert((key, manager.clone()), patch.clone());
        }
    }

    /// `options` is the call's DeleteOptions, or null.
    pub fn delete(&mut self, at: &Target, options: &Value, dry: bool) -> Result<Value, Fail> {
        let mut object = self.get(at)?.clone();
        for (field, called, why) in [
            ("uid", "UID", "deleted and then recreated"),
            ("resourceVersion", "ResourceVersion", "modified"),
        ] {
            let wanted = options["preconditions"][field].as_str();
            let found = object["metadata"][field].as_str().unwrap_or_default();
            if let Some(wanted) = wanted.filter(|wanted| *wanted != found) {
                let name = at.name.as_deref().unwrap_or_default();
                let Kind { kind, group, .. } = &at.kind;
                return Err(Fail::conflict(format!(
                    "Operation cannot be fulfilled on {kind}.{group} {name:?}: the {called} in the precondition \
                     ({wanted}) does not match the {called} in record ({found}). The object might have been {why}"
                )));
            }
        }
        if dry {
            return Ok(object);
        }
        let key = key(at, at.name.as_deref().unwrap_or_default());
        let at_once = options["gracePeriodSeconds"] == 0 || !is_on_a_node(&object);
        if at_once && !has_finalizers(&object) {
            if at.kind.kind == "Namespace" {
                let inside: Vec<Key> = self
                    .objects
                    .keys()
                    .filter(|other| other.2 == key.3)
                    .cloned()
                    .collect();
                for inner in inside {
                    self.remove(&inner);
                }
            }
            return Ok(self.remove(&key));
        }
        if object["metadata"]["deletionTimestamp"].is_null() {
            let grace = options["gracePeriodSeconds"].as_u64().unwrap_or(30);
            object["metadata"]["deletionTimestamp"] = json!(now());
            object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
            return Ok(self.put(key, object));
        }
        Ok(object)
    }

    fn put(&mut self, key: Key, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let before = self.objects.insert(key.clone(), object.clone());
        self.changes.push(Change {
            version: self.version,
            key,
            before,
            after: Some(object.clone()),
        });
        object
    }

    fn remove(&mut self, key: &Key) -> Value {
        self.version += 1;
        let mut before = self.objects.remove(key).unwrap_or_default();
        self.applied.retain(|(applied, _), _| applied != key);
        before["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.changes.push(Change {
            version: self.version,
            key: key.clone(),
            before: Some(before.clone()),
            after: None,
        });
        before
    }
}

pub fn api_version(kind: &Kind) -> String {
    match kind.group.as_str() {
        "" => kind.version.clone(),
        group => format!("{group}/{}", kind.version),
    }
}

fn key(at: &Target, name: &str) -> Key {
    let namespace = if at.kind.namespaced {
        at.namespace.clone()
    } else {
        String::new()
    };
    (
        at.kind.group.clone(),
        at.kind.plural.clone(),
        namespace,
        name.to_owned(),
    )
}

fn in_collection(key: &Key, at: &Target) -> bool {
    key.0 == at.kind.group
        && key.1 == at.kind.plural
        && (at.namespace.is_empty() || !at.kind.namespaced || key.2 == at.namespace)
}

fn missing(key: &Key) -> Fail {
    Fail::not_found(format!("{} {:?} not found", resource(key), key.3))
}

/// `pods`, `resourceclaims.resource.k8s.io`: as the API's messages call a kind.
fn resource(key: &Key) -> String {
    match key.0.as_str() {
        "" => key.1.clone(),
        group => format!("{}.{group}", key.1),
    }
}

fn has_finalizers(object: &Value) -> bool {
    let finalizers = object["metadata"]["finalizers"].as_array();
    finalizers.is_some_and(|all| !all.is_empty())
}

/// A pod that a kubelet has goes when the kubelet says so, by deleting it with no grace.
fn is_on_a_node(object: &Value) -> bool {
    object["kind"] == "Pod"
        && object["spec"]["nodeName"]
            .as_str()
            .is_some_and(|node| !node.is_empty())
}

fn clear_version(object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
    }
}

/// A Secret has 1 MiB at most (`MaxSecretSize`, core/v1).
fn fits(object: &Value) -> Result<(), Fail> {
    let values = object["data"].as_object().into_iter().flatten();
    // Four letters of base64 are three bytes.
    let bytes: usize = values
        .map(|(_, value)| value.as_str().map_or(0, str::len) / 4 * 3)
        .sum();
    if object["kind"] == "Secret" && bytes > 1 << 20 {
        return Err(Fail::invalid(
            "Secret is invalid: data: Too long: may not be more than 1048576 bytes".into(),
        ));
    }
    Ok(())
}

fn merge_by_name(object: &mut Value, patch: &Value) {
    match (object, patch) {
        (Value::Object(fields), Value::Object(patch)) => {
            for (field, value) in patch {
                match value {
                    Value::Null => drop(fields.remove(field)),
                    value => merge_by_name(fields.entry(field).or_insert(Value::Null), value),
                }
            }
        }
        (Value::Array(items), Value::Array(patches))
            if patches.iter().all(|one| one["name"].is_string()) =>
        {
            for patch in patches {
                match items.iter_mut().find(|item| item["name"] == patch["name"]) {
                    Some(item) => merge_by_name(item, patch),
                    None => items.push(patch.clone()),
                }
            }
        }
        (object, patch) => *object = patch.clone(),
    }
}

/// Removes what a manager had applied and applies no longer.
fn take_back(object: &mut Value, earlier: &Value, now: &Value) {
    let (Some(fields), Some(earlier)) = (object.as_object_mut(), earlier.as_object()) else {
        return;
    };
    let nothing = Map::new();
    let now = now.as_object().unwrap_or(&nothing);
    for (field, was) in earlier {
        match (now.get(field), fields.get_mut(field)) {
            (None, Some(_)) => drop(fields.remove(field)),
            (Some(is), Some(inner)) => take_back(inner, was, is),
            (_, None) => {}
        }
    }
}

fn now() -> String {
    jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string()
}
