//! Parsing of a pod's GPU request.

use divvy_core::units::{Bytes, Share};
use divvy_core::{Compute, ComputeMode};
use serde_json::Value;

use super::fraction::Portion;
use super::{
    COMPUTE, CONTAINER, ContainerRef, DEVICES, FRACTION, FRACTION_LABEL, Fraction, GPU, GPU_SIZE,
    HAMI_CORES, HAMI_MEMORY, HAMI_PERCENT, MEMORY, MOST_GPUS, MOST_MIB, PodRequest, Refusal, Rules,
    Size, SkipReason, Steps, fixed_limit, text,
};
use crate::base::claim::PREFIX;
use crate::base::inject::{ASKED, CLAIM, is_clearml_fraction};
use crate::base::quantity::Quantity;

/// Annotations and a variable that ask for bursting beyond the guarantee, which Divvy does not support.
const BURSTS: [&str; 3] = ["gpu-fraction-limit", "gpu-memory.limit", "gpu-memory-limit"];
const BURST_VARIABLE: &str = "RUNAI_GPU_MEMORY_LIMIT";
/// HAMi's variable of a container, and the values that it has beside `default` (HAMi-core: `set_env_utilization_switch`).
const HAMI_POLICY: &str = "GPU_CORE_UTILIZATION_POLICY";
const HAMI_FORCE: &str = "force";
const HAMI_DISABLE: &str = "disable";
/// The variable that selects a container's GPUs under NVIDIA's runtime.
pub(crate) const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
/// Its value for no GPU (`void` in NVIDIA's container toolkit).
pub(crate) const NO_GPUS: &str = "void";

/// A container, and what it lists of ours.
struct Container<'a> {
    place: ContainerRef,
    name: &'a str,
    object: &'a Value,
}

/// Parses a pod's request, or says why it is left as it is. `rules` are what the cluster's admin allows.
///
/// # Errors
/// It asks for something that cannot be, or that would not be held.
pub fn parse_pod_request<'r>(
    pod: &Value,
    rules: impl Into<Rules<'r>>,
) -> Result<Result<PodRequest, SkipReason>, Refusal> {
    let rules = rules.into();
    let containers = containers(pod);
    let claimed = has_claim(pod);
    let marked = is_marked(pod, &containers);
    let fixed = if marked || claimed {
        None
    } else {
        by_image(pod, &containers)?
    };
    if !claimed && !marked && fixed.is_none() {
        return Ok(Err(SkipReason::Unmarked));
    }
    let spec = &pod["spec"];
    let scheduler = spec["schedulerName"].as_str();
    if !rules.serves(scheduler) {
        let other = scheduler.unwrap_or_default().to_owned();
        return Ok(Err(SkipReason::Scheduler(other)));
    }
    if claimed {
        check(spec, &containers)?;
        return Ok(Err(SkipReason::Done));
    }
    let mut warnings = warnings(pod, &containers);
    let (container, gpus) = match fixed {
        Some((container, mib)) => {
            warnings.push(format!(
                "the image of container `{}` has a fixed limit, so the pod requests {} of GPU memory",
                container.name,
                Bytes::mib(mib).human()
            ));
            (container, vec![Size::Memory(mib)])
        }
        None => {
            let container = requesting_container(pod, &containers)?;
            (container, sizes(pod, container, &containers, rules.steps)?)
        }
    };
    check(spec, &containers)?;
    let compute = compute(pod, container)?;
    let cores = container.resource(HAMI_CORES).is_some();
    let is_all = compute.and_then(|compute| compute.share) == Share::from_thousandths(1000);
    if cores && is_all && gpus.iter().any(|size| *size != Size::Whole) {
        warnings.push(format!(
            "{HAMI_CORES}: 100 does not reserve the GPU for this pod; request a whole GPU for that"
        ));
    }
    let gpu_size = gpu_size(pod)?;
    if gpu_size.is_some() && gpus.iter().any(|size| matches!(size, Size::Memory(_))) {
        warnings.push(format!(
            "{GPU_SIZE} has no effect on a request for an amount of memory"
        ));
    }
    Ok(Ok(PodRequest {
        container: container.place,
        gpus,
        gpu_size,
        compute,
        warnings,
    }))
}

/// Whether a pod, or a template, has the webhook's claim, or one of its name.
fn has_claim(pod: &Value) -> bool {
    let claims = pod["spec"]["resourceClaims"].as_array();
    claims.is_some_and(|claims| claims.iter().any(|claim| claim["name"] == CLAIM))
}

/// The warning for a pod whose claim of the webhook's name is of its author: the claim decides, whatever the pod requests
/// beside it.
pub(crate) fn ignored_request(pod: &Value) -> Option<String> {
    let claims = pod["spec"]["resourceClaims"].as_array()?;
    let claim = claims.iter().find(|claim| claim["name"] == CLAIM)?;
    let template = claim["resourceClaimTemplateName"].as_str();
    if template.is_some_and(|name| name.starts_with(PREFIX)) {
        return None;
    }
    let annotations = [ASKED, FRACTION, MEMORY, DEVICES];
    let annotations = annotations.map(|key| ("annotations", key));
    let marks = [("labels", FRACTION_LABEL)].into_iter().chain(annotations);
    let ignored: Vec<&str> = marks
        .filter(|(map, key)| text(pod, map, key).is_some())
        .map(|(_, key)| key)
        .collect();
    (!ignored.is_empty()).then(|| {
        format!(
            "the pod's own claim `{CLAIM}` decides which GPUs it gets, so {} has no effect; remove it, or the claim",
            ignored.join(", ")
        )
    })
}

/// A pod that asks for a GPU only by its image, and how many MiB of it that is.
fn by_image<'c, 'a>(
    pod: &Value,
    containers: &'c [Container<'a>],
) -> Result<Option<(&'c Container<'a>, u64)>, Refusal> {
    let claims = pod["spec"]["resourceClaims"].as_array();
    let has_gpus = claims.is_some_and(|claims| !claims.is_empty())
        || containers.iter().any(|one| {
            one.resources()
                .any(|(key, _)| key.starts_with("nvidia.com/"))
        });
    if has_gpus {
        return Ok(None);
    }
    let mut limited = containers.iter().filter_map(|one| {
        let image = one.object["image"].as_str()?;
        Some((one, fixed_limit::limit(image)?))
    });
    match (limited.next(), limited.next()) {
        (Some((one, _)), Some((other, _))) => Err(Refusal::TwoContainers(
            one.name.to_owned(),
            other.name.to_owned(),
        )),
        (found, _) => Ok(found),
    }
}

fn gpu_size(pod: &Value) -> Result<Option<Bytes>, Refusal> {
    let Some(text) = text(pod, "annotations", GPU_SIZE) else {
        return Ok(None);
    };
    let size: Option<Quantity> = text.parse().ok();
    let size = size.filter(|size| *size > Quantity::ZERO);
    let size = size.ok_or_else(|| Refusal::GpuSize(text.to_owned()))?;
    let size = Bytes::new(size.rounded_down());
    if size >= Bytes::MIB {
        Ok(Some(size))
    } else {
        Err(Refusal::SmallGpu(text.to_owned()))
    }
}

/// The part of the compute time by annotation, or by HAMi's limit.
fn compute(pod: &Value, container: &Container<'_>) -> Result<Option<Compute>, Refusal> {
    let limit = cores(container)?;
    let Some(text) = text(pod, "annotations", COMPUTE) else {
        return Ok(limit);
    };
    let compute: Compute = text.parse().map_err(|error| Refusal::Compute { error })?;
    match compute.mode {
        ComputeMode::None => Err(Refusal::NoCompute),
        ComputeMode::Fair | ComputeMode::Strict => match limit {
            Some(limit) if limit != compute => Err(Refusal::TwoShares {
                annotation: compute,
                limit,
            }),
            _ => Ok(Some(compute)),
        },
    }
}

/// HAMi's per cent of compute time. By default HAMi holds it only while other pods use the GPU, which is `fair`; with the
/// policy `force` always, which is `strict`. It ignores 0, and every value with the policy `disable`.
fn cores(container: &Container<'_>) -> Result<Option<Compute>, Refusal> {
    let Some(value) = container.resource(HAMI_CORES) else {
        return Ok(None);
    };
    let percent = Quantity::of(value).ok().and_then(Quantity::count);
    let percent = percent.filter(|percent| *percent <= 100);
    let percent = percent.and_then(|percent| u16::try_from(percent).ok());
    let percent = percent.ok_or_else(|| Refusal::Cores(shown(value)))?;
    let variables = container.object["env"].as_array().into_iter().flatten();
    let mut policies = variables.filter(|variable| variable["name"] == HAMI_POLICY);
    let policy = policies.next_back().and_then(|one| one["value"].as_str());
    let is = |word: &str| policy.is_some_and(|policy| policy.eq_ignore_ascii_case(word));
    let mode = if is(HAMI_FORCE) {
        ComputeMode::Strict
    } else {
        ComputeMode::Fair
    };
    let share = Share::from_thousandths(percent * 10).filter(|_| !is(HAMI_DISABLE));
    Ok(share.map(|share| Compute {
        mode,
        share: Some(share),
        latency: None,
    }))
}

fn containers(pod: &Value) -> Vec<Container<'_>> {
    let list = |key: &str, place: fn(usize) -> ContainerRef| {
        let objects = pod["spec"][key].as_array().into_iter().flatten();
        objects
            .enumerate()
            .map(move |(index, object)| Container {
                place: place(index),
                name: object["name"].as_str().unwrap_or_default(),
                object,
            })
            .collect::<Vec<_>>()
    };
    let mut all = list("containers", ContainerRef::Container);
    all.extend(list("initContainers", ContainerRef::InitContainer));
    all
}

impl<'a> Container<'a> {
    /// Its resources, each once: the API requires limits and requests of these to be equal.
    fn resources(&self) -> impl Iterator<Item = (&'a str, &'a Value)> + use<'a> {
        let resources = &self.object["resources"];
        let limits = resources["limits"].as_object();
        let requests = resources["requests"].as_object();
        let more = requests.into_iter().flatten();
        let more = more.filter(move |(key, _)| !limits.is_some_and(|has| has.contains_key(*key)));
        let all = limits.into_iter().flatten().chain(more);
        all.map(|(key, value)| (key.as_str(), value))
    }

    fn resource(&self, name: &str) -> Option<&'a Value> {
        self.resources()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value)
    }

    /// Its `clear.ml/fraction-N`, in the order of N.
    fn fractions(&self) -> Vec<(&'a str, &'a Value)> {
        let ours = self.resources().filter(|(key, _)| is_clearml_fraction(key));
        let mut fractions: Vec<_> = ours.collect();
        fractions.sort_by_key(|(key, _)| (key.len(), *key));
        fractions
    }

    fn asks_for_a_part(&self) -> bool {
        let parts = [HAMI_MEMORY, HAMI_PERCENT];
        self.resources()
            .any(|(key, _)| is_clearml_fraction(key) || parts.contains(&key))
    }
}

fn is_marked(pod: &Value, containers: &[Container<'_>]) -> bool {
    let annotations = [FRACTION, MEMORY, DEVICES];
    text(pod, "labels", FRACTION_LABEL).is_some()
        || annotations
            .iter()
            .any(|key| text(pod, "annotations", key).is_some())
        || containers.iter().any(Container::asks_for_a_part)
}

/// Whether something other than a claim says which container of a pod gets the GPU.
pub(crate) fn names_container(pod: &Value) -> bool {
    let containers = containers(pod);
    let mut listing = containers.iter();
    text(pod, "annotations", CONTAINER).is_some()
        || listing.any(|one| one.asks_for_a_part() || one.resource(GPU).is_some())
        || !is_marked(pod, &containers)
}

/// The container that lists GPUs, else the one that is named, else the first.
fn requesting_container<'c, 'a>(
    pod: &Value,
    containers: &'c [Container<'a>],
) -> Result<&'c Container<'a>, Refusal> {
    let mut listing = containers
        .iter()
        .filter(|one| one.asks_for_a_part() || one.resource(GPU).is_some());
    if let Some(one) = listing.next() {
        return match listing.next() {
            Some(other) => Err(Refusal::TwoContainers(
                one.name.to_owned(),
                other.name.to_owned(),
            )),
            None => Ok(one),
        };
    }
    match text(pod, "annotations", CONTAINER) {
        Some(name) => containers
            .iter()
            .find(|one| one.name == name)
            .ok_or_else(|| Refusal::NoContainer(name.to_owned())),
        None => containers.first().ok_or(Refusal::Empty),
    }
}

fn sizes(
    pod: &Value,
    container: &Container<'_>,
    containers: &[Container<'_>],
    steps: Steps,
) -> Result<Vec<Size>, Refusal> {
    let label = text(pod, "labels", FRACTION_LABEL);
    let fraction = text(pod, "annotations", FRACTION);
    let memory = text(pod, "annotations", MEMORY);
    let devices = devices(
        pod,
        label.is_some() || fraction.is_some() || memory.is_some(),
    )?;
    let read = |from: &str, value: &str| {
        Portion::read(value, steps).map_err(|error| Refusal::Fraction {
            from: from.to_owned(),
            error,
        })
    };
    let label = match label {
        Some(value) => Some((value, read(&format!("the label {FRACTION_LABEL}"), value)?)),
        None => None,
    };
    if fraction.is_some() && memory.is_some() {
        return Err(Refusal::Both(FRACTION, MEMORY));
    }
    let limits = container.fractions();
    if let Some(sizes) = hami(container)? {
        return match (label, fraction, memory, &limits[..]) {
            (None, None, None, []) => Ok(sizes),
            (Some(_), ..) => Err(Refusal::Both(FRACTION_LABEL, HAMI_MEMORY)),
            (_, Some(_), ..) => Err(Refusal::Both(FRACTION, HAMI_MEMORY)),
            (_, _, Some(_), _) => Err(Refusal::Both(MEMORY, HAMI_MEMORY)),
            _ => Err(Refusal::Both("clear.ml/fraction", HAMI_MEMORY)),
        };
    }
    let agrees = |from: String, other: &str, portion: Portion| match label {
        Some((value, label)) if label != portion => Err(Refusal::Contradiction {
            label: value.to_owned(),
            from,
            other: other.to_owned(),
        }),
        _ => Ok(()),
    };
    if !limits.is_empty() {
        let mut sizes = Vec::new();
        for (key, value) in limits {
            let shown = shown(value);
            let from = format!("the limit {key}");
            let portion = read(&from, &shown)?;
            agrees(from.clone(), &shown, portion)?;
            add(&mut sizes, portion, 1, &from)?;
        }
        return Ok(sizes);
    }
    let annotated = match (fraction, memory) {
        (Some(text), _) => Some((FRACTION, Size::Fraction(annotated_fraction(text)?))),
        (None, Some(text)) => Some((MEMORY, Size::Memory(annotated_memory(text)?))),
        (None, None) => None,
    };
    if let Some((_, label)) = label {
        match (annotated, fraction) {
            (Some((_, Size::Fraction(part))), Some(text)) => {
                agrees(
                    format!("the annotation {FRACTION}"),
                    text,
                    Portion::Part(part),
                )?;
            }
            (Some((from, _)), _) => return Err(Refusal::Both(FRACTION_LABEL, from)),
            (None, _) => {}
        }
        let mut sizes = Vec::new();
        add(
            &mut sizes,
            label,
            devices,
            &format!("the label {FRACTION_LABEL}"),
        )?;
        return Ok(sizes);
    }
    let (from, size) = annotated.ok_or(Refusal::DevicesAlone)?;
    if containers.iter().any(|one| one.resource(GPU).is_some()) {
        return Err(Refusal::FractionAndWhole { from });
    }
    Ok(vec![size; devices])
}

/// So many of a portion more; counted before there is room made for them, for a count can be anything.
fn add(sizes: &mut Vec<Size>, portion: Portion, times: usize, from: &str) -> Result<(), Refusal> {
    let (size, count) = match portion {
        Portion::Whole(count) => (Size::Whole, usize::try_from(count).unwrap_or(usize::MAX)),
        Portion::Part(part) => (Size::Fraction(part), 1),
    };
    let more = count.saturating_mul(times);
    if sizes.len().saturating_add(more) > MOST_GPUS {
        return Err(Refusal::TooMany {
            from: from.to_owned(),
        });
    }
    sizes.extend(std::iter::repeat_n(size, more));
    Ok(())
}

fn annotated_fraction(text: &str) -> Result<Fraction, Refusal> {
    Fraction::between_none_and_one(text).map_err(|error| Refusal::Fraction {
        from: format!("the annotation {FRACTION}"),
        error,
    })
}

fn annotated_memory(text: &str) -> Result<u64, Refusal> {
    let mib = digits(text).ok_or_else(|| Refusal::Memory(text.to_owned()))?;
    bounded(MEMORY, mib, text)
}

/// A number above nothing in digits alone; one that is too large is the largest there is.
fn digits(text: &str) -> Option<u64> {
    let all = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = all.then(|| text.parse().unwrap_or(u64::MAX));
    number.filter(|number| *number > 0)
}

fn bounded(from: &'static str, mib: u64, text: &str) -> Result<u64, Refusal> {
    if mib <= MOST_MIB {
        Ok(mib)
    } else {
        Err(Refusal::TooMuch {
            from,
            value: text.to_owned(),
        })
    }
}

/// How many GPUs a fraction or memory by label or annotation is wanted of.
fn devices(pod: &Value, has_size: bool) -> Result<usize, Refusal> {
    let Some(text) = text(pod, "annotations", DEVICES) else {
        return Ok(1);
    };
    if !has_size {
        return Err(Refusal::DevicesAlone);
    }
    let count = digits(text).ok_or_else(|| Refusal::Count {
        from: DEVICES.to_owned(),
        value: text.to_owned(),
    })?;
    gpus(count, DEVICES)
}

fn gpus(count: u64, from: &str) -> Result<usize, Refusal> {
    let count = usize::try_from(count).ok();
    (count.filter(|count| *count <= MOST_GPUS)).ok_or_else(|| Refusal::TooMany {
        from: from.to_owned(),
    })
}

/// HAMi's own: `nvidia.com/gpu` GPUs with so much memory of each.
fn hami(container: &Container<'_>) -> Result<Option<Vec<Size>>, Refusal> {
    let shown = |name: &str| container.resource(name).map(shown).unwrap_or_default();
    let count = |name: &str| match container.resource(name) {
        None => Ok(None),
        Some(value) => {
            let count = Quantity::of(value).ok().and_then(Quantity::count);
            let count = count.filter(|count| *count > 0);
            count.map(Some).ok_or_else(|| Refusal::Count {
                from: name.to_owned(),
                value: shown(name),
            })
        }
    };
    let size = match (
        container.resource(HAMI_MEMORY),
        container.resource(HAMI_PERCENT),
    ) {
        (Some(_), Some(_)) => return Err(Refusal::Both(HAMI_MEMORY, HAMI_PERCENT)),
        (Some(_), None) => {
            let mib = count(HAMI_MEMORY)?.unwrap_or_default();
            Size::Memory(bounded(HAMI_MEMORY, mib, &shown(HAMI_MEMORY))?)
        }
        (None, Some(_)) => match count(HAMI_PERCENT) {
            Ok(Some(100)) => Size::Whole,
            percent => (percent.ok().flatten().and_then(Fraction::percent))
                .map(Size::Fraction)
                .ok_or_else(|| Refusal::Percent(shown(HAMI_PERCENT)))?,
        },
        (None, None) => return Ok(None),
    };
    let count = count(GPU)?.unwrap_or(1);
    Ok(Some(vec![size; gpus(count, &format!("the limit {GPU}"))?]))
}

/// A resource's amount as the pod has it.
fn shown(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// Capabilities with which a container reaches its mounts or the node's memory and files: mount(2), kernel modules, /dev/mem,
/// open_by_handle_at(2). The chart's policy on pods has the same.
const UNHELD: [&str; 5] = [
    "ALL",
    "SYS_ADMIN",
    "SYS_MODULE",
    "SYS_RAWIO",
    "DAC_READ_SEARCH",
];
/// ptrace(2) of all processes that share the container's PID namespace: of other pods and of the node with `hostPID`.
const PTRACE: &str = "SYS_PTRACE";

/// The setting of a security context that would let its container unmount its mounts.
fn lets_go(context: &Value, has_host_pids: bool) -> Option<String> {
    let added = context["capabilities"]["add"].as_array();
    let mut added = added.into_iter().flatten().filter_map(Value::as_str);
    // Runtimes take both spellings, in capitals or not.
    let is_unheld = |name: &&str| {
        let name = name.to_ascii_uppercase();
        let name = name.strip_prefix("CAP_").unwrap_or(&name);
        UNHELD.contains(&name) || has_host_pids && name == PTRACE
    };
    if let Some(name) = added.find(is_unheld) {
        return Some(format!("capability {name}"));
    }
    let mount = context["procMount"].as_str();
    mount
        .filter(|mount| *mount == "Unmasked")
        .map(|mount| format!("procMount: {mount}"))
}

/// Refuses settings that would let a container past its limit.
fn check(spec: &Value, containers: &[Container<'_>]) -> Result<(), Refusal> {
    if spec["nodeName"]
        .as_str()
        .is_some_and(|name| !name.is_empty())
    {
        return Err(Refusal::NodeName);
    }
    for container in containers {
        if container.object["securityContext"]["privileged"] == true {
            return Err(Refusal::Privileged(container.name.to_owned()));
        }
        if let Some(what) = lets_go(
            &container.object["securityContext"],
            spec["hostPID"] == true,
        ) {
            return Err(Refusal::Unheld {
                container: container.name.to_owned(),
                what,
            });
        }
        let set = container.object["env"].as_array().into_iter().flatten();
        let mut set = set.filter(|variable| variable["name"] == VISIBLE);
        if set.any(|variable| variable["value"] != NO_GPUS) {
            return Err(Refusal::Visible {
                container: container.name.to_owned(),
                variable: VISIBLE,
            });
        }
    }
    Ok(())
}

fn variables<'a>(container: &Container<'a>) -> impl Iterator<Item = &'a str> {
    let variables = container.object["env"].as_array().into_iter().flatten();
    variables.filter_map(|variable| variable["name"].as_str())
}

fn warnings(pod: &Value, containers: &[Container<'_>]) -> Vec<String> {
    let mut warnings = Vec::new();
    if pod["spec"]["hostPID"] == true {
        warnings.push(
            "hostPID is not needed for GPU fractions, and Pod Security Standards reject it; remove it"
                .to_owned(),
        );
    }
    let annotated = BURSTS
        .into_iter()
        .filter(|key| text(pod, "annotations", key).is_some());
    let set = containers
        .iter()
        .any(|one| variables(one).any(|name| name == BURST_VARIABLE))
        .then_some(BURST_VARIABLE);
    for key in annotated.chain(set) {
        warnings.push(format!(
            "{key} has no effect: bursting above the requested fraction is not supported"
        ));
    }
    warnings
}
