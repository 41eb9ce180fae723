//! Claims, as far as the model knows them: exact counts, alternatives, `distinctAttribute`.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    CapacityRequirements, DeviceConstraint, DeviceSelector, DeviceToleration, ResourceClaimSpec,
};

/// A request, or each of its alternatives.
pub(super) struct Request {
    pub(super) name: String,
    pub(super) alternatives: Option<Vec<Exact>>,
    pub(super) exactly: Option<Exact>,
}

pub(super) struct Exact {
    /// Of an alternative.
    pub(super) name: Option<String>,
    pub(super) class: String,
    pub(super) count: usize,
    pub(super) selectors: Vec<DeviceSelector>,
    pub(super) capacity: Option<CapacityRequirements>,
    pub(super) tolerations: Vec<DeviceToleration>,
}

pub(super) fn requests(spec: &ResourceClaimSpec) -> Vec<Request> {
    let requests = spec
        .devices
        .iter()
        .flat_map(|devices| devices.requests.iter().flatten());
    let counted = |mode: &Option<String>, count: Option<i64>| {
        assert!(
            mode.as_deref().is_none_or(|mode| mode == "ExactCount"),
            "the model knows no {mode:?}"
        );
        usize::try_from(count.unwrap_or(1)).unwrap()
    };
    requests
        .map(|request| Request {
            name: request.name.clone(),
            exactly: request.exactly.as_ref().map(|exact| Exact {
                name: None,
                class: exact.device_class_name.clone(),
                count: counted(&exact.allocation_mode, exact.count),
                selectors: exact.selectors.clone().unwrap_or_default(),
                capacity: exact.capacity.clone(),
                tolerations: exact.tolerations.clone().unwrap_or_default(),
            }),
            alternatives: request.first_available.as_ref().map(|all| {
                let one = all.iter().map(|one| Exact {
                    name: Some(one.name.clone()),
                    class: one.device_class_name.clone(),
                    count: counted(&one.allocation_mode, one.count),
                    selectors: one.selectors.clone().unwrap_or_default(),
                    capacity: one.capacity.clone(),
                    tolerations: one.tolerations.clone().unwrap_or_default(),
                });
                one.collect()
            }),
        })
        .collect()
}

/// `distinctAttribute`, and what has it so far: of each request only the last device counts, and of one whose last device was
/// taken back none does (`constraint.go`).
pub(super) struct Distinct {
    pub(super) attribute: String,
    pub(super) requests: Vec<String>,
    pub(super) seen: BTreeMap<String, String>,
    pub(super) devices: usize,
}

impl Distinct {
    pub(super) fn is_for(&self, base: &str, named: &str) -> bool {
        let mut of = self.requests.iter();
        self.requests.is_empty() || of.any(|request| request == base || request == named)
    }
}

pub(super) fn constraints(spec: &ResourceClaimSpec) -> Vec<Distinct> {
    let all = spec
        .devices
        .iter()
        .flat_map(|devices| devices.constraints.iter().flatten());
    let distinct = |constraint: &DeviceConstraint| Distinct {
        attribute: constraint
            .distinct_attribute
            .clone()
            .expect("the model knows no other constraint"),
        requests: constraint.requests.clone().unwrap_or_default(),
        seen: BTreeMap::new(),
        devices: 0,
    };
    let all: Vec<Distinct> = all.map(distinct).collect();
    assert!(all.len() < 2, "the model knows one constraint of a claim");
    all
}
