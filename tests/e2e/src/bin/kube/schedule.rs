//! Where the stock scheduler puts pods, from what the nodes publish.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::cluster::until;
use crate::report::{CaseOutcome, Report};
use crate::stage::Stage;

const FRACTION: &str = "clearml-injector/fraction";
const NODE: &str = "divvy.dev/suite-node";
/// A pod that waits for so long does wait: the scheduler looks again within a second or two of something having become free.
const GOES_ON: Duration = Duration::from_secs(4);

/// What a pod was given: a device for each of its GPUs, or why it waits.
#[derive(Clone, Debug)]
enum Given {
    Devices(Vec<Device>),
    Waits(String),
}

#[derive(Clone, Debug)]
struct Device {
    name: String,
    /// Mebibytes of a part; `None` of what is nobody else's.
    memory: Option<u64>,
}

impl Device {
    /// The GPU that it is on or of: `gpu-0123…` of `gpu-0123…-mig-1g-10gb-0`.
    fn gpu(&self) -> &str {
        self.name.split("-mig-").next().unwrap_or(&self.name)
    }

    /// `1g-10gb-0`.
    fn instance(&self) -> Option<&str> {
        self.name.split_once("-mig-").map(|(_, place)| place)
    }
}

/// The nodes that these cases want, by their short names: two 80 GB GPUs, one of 24 GB, one carved, one of 40 GB.
pub fn all(report: &mut Report, stage: &Stage) {
    let mut case = |name: &str, what: &str, check: &dyn Fn() -> Result<CaseOutcome>| {
        report.case(name, what, || {
            let came = check();
            // The next case finds empty GPUs, whatever became of this one.
            stage.clear()?;
            came
        });
    };
    case(
        "D1",
        ".5 .25 .25 fill one GPU, .75 goes to the other, .5 waits",
        &|| filled(stage),
    );
    case(
        "D2",
        "a quarter is a quarter of the GPU that it is on",
        &|| quarters(stage),
    );
    case("D3", "a quarter and 4 GiB share a GPU", &|| {
        let quarter = fraction(stage, "d3-quarter", "0.250", "small")?;
        let memory = memory(stage, "d3-memory", 4096, "small")?;
        let (one, other) = (part(&quarter)?, part(&memory)?);
        ensure!(one.gpu() == other.gpu(), "{one:?} {other:?}");
        Ok(CaseOutcome::Held(json!([one.memory, other.memory])))
    });
    case(
        "D4",
        "nvidia.com/mig-1g.10gb: 1 without a webhook is one placement",
        &|| extended(stage),
    );
    case(
        "D5",
        "a carved GPU takes no parts, and a shared one no instances",
        &|| modes(stage),
    );
    case(
        "D6",
        "15 GiB anywhere: instances and parts while they last",
        &|| anywhere(stage),
    );
    case(
        "D10",
        "memory is the smallest instance that has it, where only instances are",
        &|| smallest(stage),
    );
    case("D7", "nvidia.com/gpu: 1 is a GPU alone", &|| whole(stage));
    case("D8", "two pods of one claim share its part", &|| {
        shared(stage)
    });
    case(
        "D9",
        "seven instances leave no room; three leave the other half",
        &|| geometry(stage),
    );
}

fn on(mut pod: Value, node: &str) -> Value {
    pod["spec"]["nodeSelector"][NODE] = json!(node);
    pod
}

fn make(stage: &Stage, pod: &Value) -> Result<Given> {
    let made = stage.cluster.create(pod, false)?.object()?;
    let name = made["metadata"]["name"]
        .as_str()
        .context("a pod has a name")?;
    let namespace = made["metadata"]["namespace"]
        .as_str()
        .context("a pod has a namespace")?;
    given(stage, namespace, name)
}

fn fraction(stage: &Stage, name: &str, part: &str, node: &str) -> Result<Given> {
    make(
        stage,
        &on(
            stage.pod(name, &json!({ FRACTION: part }), &json!({}), &json!({})),
            node,
        ),
    )
}

fn memory(stage: &Stage, name: &str, mib: u64, node: &str) -> Result<Given> {
    make(
        stage,
        &on(
            stage.pod(
                name,
                &json!({}),
                &json!({ "gpu-memory": mib.to_string() }),
                &json!({}),
            ),
            node,
        ),
    )
}

/// Waits until the scheduler has decided about a pod. That it waits is believed when it goes on: what the case before had may not be free in
/// the scheduler's own books yet, and then it looks again by itself.
fn given(stage: &Stage, namespace: &str, name: &str) -> Result<Given> {
    let mut waits_since = None;
    let decided = until(&format!("the scheduler has looked at {name}"), || {
        let pod = stage
            .cluster
            .get("pod", namespace, name)?
            .context("the pod is there")?;
        let conditions = pod["status"]["conditions"].as_array();
        let scheduled = conditions
            .into_iter()
            .flatten()
            .find(|one| one["type"] == "PodScheduled");
        let Some(scheduled) = scheduled else {
            return Ok(None);
        };
        let why = scheduled["message"].as_str().unwrap_or_default().to_owned();
        match scheduled["status"].as_str() {
            Some("True") => Ok(Some(Ok(pod))),
            // Until its claim is made it waits for that alone.
            _ if why.contains("waiting for") || why.contains("not found") => Ok(None),
            _ => {
                let since = waits_since.get_or_insert_with(Instant::now);
                Ok((since.elapsed() > GOES_ON).then_some(Err(why)))
            }
        }
    })?;
    let pod = match decided {
        Ok(pod) => pod,
        Err(why) => return Ok(Given::Waits(why)),
    };
    let status = &pod["status"];
    let named = status["resourceClaimStatuses"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|claim| &claim["resourceClaimName"]);
    let direct = pod["spec"]["resourceClaims"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|claim| &claim["resourceClaimName"]);
    let extended = [&status["extendedResourceClaimStatus"]["resourceClaimName"]];
    let mut devices = Vec::new();
    for claim in named
        .chain(direct)
        .chain(extended)
        .filter_map(Value::as_str)
    {
        let claim = stage
            .cluster
            .get("resourceclaim", namespace, claim)?
            .context("the pod's claim is there")?;
        let results = claim["status"]["allocation"]["devices"]["results"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        for result in results {
            devices.push(Device {
                name: result["device"].as_str().unwrap_or_default().to_owned(),
                memory: result["consumedCapacity"]["memory"]
                    .as_str()
                    .map(mebibytes)
                    .transpose()?,
            });
        }
    }
    Ok(Given::Devices(devices))
}

/// A quantity of memory as the API server writes it, rounded down.
fn mebibytes(text: &str) -> Result<u64> {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let number: u64 = digits
        .parse()
        .with_context(|| format!("a quantity of memory: {text}"))?;
    Ok(match &text[digits.len()..] {
        "Ti" => number << 20,
        "Gi" => number << 10,
        "Mi" => number,
        "Ki" => number >> 10,
        "" => number >> 20,
        other => anyhow::bail!("a quantity of memory in {other}"),
    })
}

/// The one device that it was given.
fn part(given: &Given) -> Result<Device> {
    match given {
        Given::Devices(devices) if devices.len() == 1 => Ok(devices[0].clone()),
        other => anyhow::bail!("not one device: {other:?}"),
    }
}

fn waits(given: &Given) -> Result<()> {
    match given {
        Given::Waits(why) if why.contains("cannot allocate") => Ok(()),
        other => anyhow::bail!("it does not wait for a device: {other:?}"),
    }
}

fn filled(stage: &Stage) -> Result<CaseOutcome> {
    let mut gpus = Vec::new();
    for (at, size) in ["0.500", "0.250", "0.250", "0.750"].iter().enumerate() {
        gpus.push(part(&fraction(stage, &format!("d1-{at}"), size, "pair")?)?);
    }
    waits(&fraction(stage, "d1-last", "0.500", "pair")?)?;
    ensure!(
        gpus[..3].iter().all(|one| one.gpu() == gpus[0].gpu()),
        "{gpus:?}"
    );
    ensure!(gpus[3].gpu() != gpus[0].gpu(), "{gpus:?}");
    Ok(CaseOutcome::Held(json!(
        gpus.iter().map(|one| one.memory).collect::<Vec<_>>()
    )))
}

fn quarters(stage: &Stage) -> Result<CaseOutcome> {
    let small = part(&fraction(stage, "d2-small", "0.250", "small")?)?;
    let large = part(&fraction(stage, "d2-large", "0.250", "pair")?)?;
    for (node, part) in [("small", &small), ("pair", &large)] {
        let size = size_of(stage, node)?;
        let memory = part.memory.context("a part has a size")?;
        // Memory goes in steps of 2 MiB.
        ensure!(memory.abs_diff(size / 4) <= 2, "{memory} MiB of {size} MiB");
    }
    Ok(CaseOutcome::Held(json!([small.memory, large.memory])))
}

/// Mebibytes of the first GPU that a node publishes.
fn size_of(stage: &Stage, node: &str) -> Result<u64> {
    let slices = crate::node::slices(&stage.cluster, &format!("{}-{node}", stage.release))?;
    let mut devices = slices
        .iter()
        .flat_map(|slice| slice["spec"]["devices"].as_array().into_iter().flatten());
    let first = devices.find(|device| device["capacity"]["memory"]["value"].is_string());
    mebibytes(
        first
            .and_then(|device| device["capacity"]["memory"]["value"].as_str())
            .context("a GPU has memory")?,
    )
}

/// A pod in a namespace that nobody looks at, with this limit.
fn plain(stage: &Stage, name: &str, limit: &str, node: &str) -> Result<Given> {
    let mut pod = on(
        stage.pod(name, &json!({}), &json!({}), &json!({ limit: 1 })),
        node,
    );
    pod["metadata"]["namespace"] = json!(stage.aside);
    make(stage, &pod)
}

fn extended(stage: &Stage) -> Result<CaseOutcome> {
    let given = part(&plain(stage, "d4", "nvidia.com/mig-1g.10gb", "carved")?)?;
    ensure!(
        given
            .instance()
            .is_some_and(|place| place.starts_with("1g-10gb")),
        "{given:?}"
    );
    Ok(CaseOutcome::Held(json!(given.name)))
}

fn modes(stage: &Stage) -> Result<CaseOutcome> {
    waits(&fraction(stage, "d5-part", "0.250", "carved")?)?;
    waits(&plain(
        stage,
        "d5-instance",
        "nvidia.com/mig-1g.10gb",
        "pair",
    )?)?;
    Ok(CaseOutcome::Held(json!(
        "one kind for each GPU, by its mode"
    )))
}

fn smallest(stage: &Stage) -> Result<CaseOutcome> {
    let mut instances = Vec::new();
    for (mib, profile) in [(4096, "1g-10gb-"), (15360, "1g-20gb-"), (30720, "3g-40gb-")] {
        let given = memory(stage, &format!("d10-{mib}"), mib, "carved")?;
        let Given::Devices(devices) = &given else {
            anyhow::bail!("{mib} MiB: {given:?}")
        };
        let instance = devices[0].instance().unwrap_or_default().to_owned();
        ensure!(instance.starts_with(profile), "{mib} MiB: {devices:?}");
        instances.push(instance);
    }
    Ok(CaseOutcome::Held(json!(instances)))
}

fn anywhere(stage: &Stage) -> Result<CaseOutcome> {
    let (mut instances, mut parts, mut waiting) = (Vec::new(), Vec::new(), 0);
    for at in 0..8 {
        let mut pod = stage.pod(
            &format!("d6-{at}"),
            &json!({}),
            &json!({ "gpu-memory": "15360" }),
            &json!({}),
        );
        pod["spec"]["affinity"] = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
            { "matchExpressions": [{ "key": NODE, "operator": "In", "values": ["carved", "middle"] }] },
        ] } } });
        match make(stage, &pod)? {
            Given::Devices(devices) => match &devices[..] {
                [one] if one.instance().is_some() => instances.push(one.name.clone()),
                [one] => parts.push(one.memory.unwrap_or(0)),
                other => anyhow::bail!("not one device: {other:?}"),
            },
            waits @ Given::Waits(_) => {
                self::waits(&waits)?;
                waiting += 1;
            }
        }
    }
    let size = size_of(stage, "middle")?;
    ensure!(parts.iter().sum::<u64>() <= size, "{parts:?} of {size}");
    ensure!(parts.len() as u64 == size / 15360, "{parts:?} of {size}");
    let distinct: BTreeSet<&String> = instances.iter().collect();
    ensure!(
        distinct.len() == instances.len() && instances.len() >= 3,
        "{instances:?}"
    );
    ensure!(
        waiting == 8 - instances.len() - parts.len() && waiting > 0,
        "{waiting} wait"
    );
    Ok(CaseOutcome::Held(
        json!({ "instances": instances, "parts": parts, "waiting": waiting }),
    ))
}

fn whole(stage: &Stage) -> Result<CaseOutcome> {
    let mut gpus = BTreeMap::new();
    for at in 0..2 {
        let given = plain(stage, &format!("d7-{at}"), "nvidia.com/gpu", "pair")?;
        *gpus.entry(part(&given)?.gpu().to_owned()).or_insert(0) += 1;
    }
    ensure!(gpus.len() == 2, "{gpus:?}");
    let third = plain(stage, "d7-2", "nvidia.com/gpu", "pair")?;
    ensure!(matches!(third, Given::Waits(_)), "{third:?}");
    waits(&memory(stage, "d7-part", 4096, "pair")?)?;
    Ok(CaseOutcome::Held(json!(gpus)))
}

fn shared(stage: &Stage) -> Result<CaseOutcome> {
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": { "name": "d8", "namespace": stage.aside },
        "spec": { "devices": { "requests": [{ "name": "gpu", "exactly": {
            "deviceClassName": "fraction.gpu.divvy.dev", "capacity": { "requests": { "memory": "8Gi" } },
        } }] } },
    });
    stage.cluster.create(&claim, false)?.object()?;
    let mut found = Vec::new();
    for name in ["d8-one", "d8-other"] {
        let mut pod = on(stage.pod(name, &json!({}), &json!({}), &json!({})), "small");
        pod["metadata"]["namespace"] = json!(stage.aside);
        pod["spec"]["resourceClaims"] = json!([{ "name": "gpu", "resourceClaimName": "d8" }]);
        pod["spec"]["containers"][0]["resources"] = json!({ "claims": [{ "name": "gpu" }] });
        found.push(part(&make(stage, &pod)?)?);
    }
    ensure!(
        found[0].name == found[1].name && found[0].memory == Some(8192),
        "{found:?}"
    );
    // It counts once: what is left of the GPU but 8 GiB is free.
    let size = size_of(stage, "small")?;
    part(&memory(stage, "d8-rest", size - 8192, "small")?)?;
    Ok(CaseOutcome::Held(json!(found[0].memory)))
}

fn geometry(stage: &Stage) -> Result<CaseOutcome> {
    let small = |at: usize| {
        plain(
            stage,
            &format!("d9-{at}"),
            "nvidia.com/mig-1g.10gb",
            "carved",
        )
    };
    let half = |name: &str| plain(stage, name, "nvidia.com/mig-3g.40gb", "carved");
    let mut places = Vec::new();
    for at in 0..7 {
        places.push(part(&small(at)?)?.instance().unwrap_or_default().to_owned());
    }
    let refused = half("d9-full")?;
    ensure!(matches!(refused, Given::Waits(_)), "{refused:?}");
    stage.clear()?;
    let mut first = Vec::new();
    for at in 0..3 {
        first.push(part(&small(at)?)?.instance().unwrap_or_default().to_owned());
    }
    let large = part(&half("d9-half")?)?;
    // Which half the small ones are in is the driver's to say: by the order in which it lists places.
    let low = |place: &String| start(place).is_some_and(|at| at < 4);
    let halves: BTreeSet<bool> = first.iter().map(low).collect();
    ensure!(halves.len() == 1, "one in each half: {first:?}");
    let other = large.instance().and_then(start);
    ensure!(
        other == Some(if halves.contains(&true) { 4 } else { 0 }),
        "{large:?} beside {first:?}"
    );
    Ok(CaseOutcome::Held(
        json!({ "seven": places, "three": first, "half": large.instance() }),
    ))
}

/// The memory slice where an instance begins: 4 of `3g-40gb-4`.
fn start(place: &str) -> Option<u32> {
    place.rsplit('-').next()?.parse().ok()
}
