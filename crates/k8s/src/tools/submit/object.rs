//! The pod or Job of a submission, built from command-line arguments.

use std::fmt;

use divvy_api::v1::Error;
use divvy_core::mig::MigProfile;
use divvy_core::units::Bytes;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::stem;
use crate::base::error_output::usage;
use crate::base::inject::CLAIM;
use crate::base::pod_request::{FRACTION, FRACTION_LABEL, Fraction, GPU, MEMORY};
use crate::base::quantity::Quantity;
use crate::carrier;

/// The container's name, which logs are asked by.
pub const CONTAINER: &str = "main";
/// The user id of a program that need not be root; any number but 0 will do.
const USER: u32 = 1000;
/// The longest label of Kubernetes, which most names have to be (RFC 1123).
const LONGEST_NAME: usize = 63;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Pod,
    Job,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Job => "job",
        }
    }
}

/// How much of the GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    Part(Fraction),
    Whole(u32),
    /// MiB of one GPU's memory.
    Memory(u64),
    Mig(MigProfile),
}

impl Amount {
    /// Of exactly one of the three flags.
    ///
    /// # Errors
    /// None or several of them are there, or the one is no amount.
    pub fn read(gpu: Option<&str>, memory: Option<&str>, mig: Option<&str>) -> Result<Self, Error> {
        match (gpu, memory, mig) {
            (Some(text), None, None) => gpus(text),
            (None, Some(text), None) => {
                let bytes: Bytes =
                    text.parse()
                        .map_err(|error: divvy_core::units::BytesError| {
                            usage(format!("--gpu-memory: {error}"), error.hint())
                        })?;
                whole_mib(bytes)
            }
            (None, None, Some(text)) => text.parse().map(Self::Mig).map_err(|error| {
                usage(
                    format!("--mig-profile: {error}"),
                    "write a profile such as 1g.5gb, 2g.10gb or 1g.10gb+me",
                )
            }),
            (None, None, None) => Err(usage(
                "no GPU amount is given",
                "add --gpu 0.2, --gpu-memory 4G or --mig-profile 2g.10gb",
            )),
            _ => Err(usage(
                "several GPU amounts are given",
                "use only one of --gpu, --gpu-memory and --mig-profile",
            )),
        }
    }

    /// Whether it means something to Divvy's webhook alone.
    pub fn needs_webhook(self) -> bool {
        matches!(self, Self::Part(_) | Self::Memory(_))
    }
}

fn gpus(text: &str) -> Result<Amount, Error> {
    let wrong = |message: String| {
        usage(
            message,
            "write a fraction below 1 such as 0.25, or a whole number of GPUs",
        )
    };
    let quantity: Option<Quantity> = if text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.')
    {
        text.parse().ok()
    } else {
        None
    };
    let quantity =
        quantity.ok_or_else(|| wrong(format!("--gpu: `{text}` is not an amount of GPUs")))?;
    if let Some(count) = quantity.count() {
        let count = u32::try_from(count).ok().filter(|count| *count > 0);
        return count
            .map(Amount::Whole)
            .ok_or_else(|| wrong(format!("--gpu: `{text}` is not a number of GPUs")));
    }
    Fraction::between_none_and_one(text)
        .map(Amount::Part)
        .map_err(|error| wrong(format!("--gpu: {error}")))
}

/// The annotation counts MiB, and nothing is rounded when read.
fn whole_mib(bytes: Bytes) -> Result<Amount, Error> {
    let (mib, rest) = (bytes.get() >> 20, bytes.get() & (Bytes::MIB.get() - 1));
    match (mib, rest) {
        (0, 0) => Err(usage(
            "--gpu-memory: must be above 0",
            "write a size such as 4G",
        )),
        (mib, 0) => Ok(Amount::Memory(mib)),
        (mib, _) => Err(usage(
            format!(
                "--gpu-memory: {bytes} is not a whole number of MiB, the unit of the pod's annotation"
            ),
            format!("write `{}M`", mib + 1),
        )),
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Part(part) => write!(out, "{part} of a GPU"),
            Self::Whole(1) => write!(out, "1 GPU"),
            Self::Whole(count) => write!(out, "{count} GPUs"),
            Self::Memory(mib) => write!(out, "{} of GPU memory", Bytes::mib(*mib)),
            Self::Mig(profile) => write!(out, "a {profile} instance"),
        }
    }
}

/// The extended resource of a MIG profile, as NVIDIA's own device plugin names it: `+` may not be in such a name.
pub fn mig_resource(profile: MigProfile) -> String {
    format!("nvidia.com/mig-{}", profile.to_string().replace('+', "."))
}

/// A submission.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    pub amount: Amount,
    pub name: Option<String>,
    pub namespace: String,
    pub image: String,
    /// Empty for the image's own.
    pub command: Vec<String>,
    pub env: Vec<(String, String)>,
    pub cpu: Option<String>,
    pub memory: Option<String>,
    pub root: bool,
    /// Whole GPUs by the webhook's label, and not by NVIDIA's limit.
    pub whole_by_label: bool,
}

impl Submission {
    /// # Errors
    /// A word is none that Kubernetes takes.
    pub fn check(&self) -> Result<(), Error> {
        let names = [
            ("--name", self.name.as_deref()),
            ("--namespace", Some(self.namespace.as_str())),
        ];
        for (flag, name) in names {
            if let Some(name) = name
                && !is_name(name)
            {
                return Err(usage(
                    format!("{flag}: `{name}` is not a valid Kubernetes name"),
                    "use at most 63 lower-case letters, digits and -, without a - at either end",
                ));
            }
        }
        for (flag, value) in [("--cpu", &self.cpu), ("--memory", &self.memory)] {
            if let Some(text) = value {
                text.parse::<Quantity>().map_err(|error| {
                    usage(
                        format!("{flag}: {error}"),
                        "write a quantity such as 500m, 2 or 8Gi",
                    )
                })?;
            }
        }
        if self.image.trim().is_empty() {
            Err(usage(
                "the image name is empty",
                "write the image after the flags",
            ))
        } else {
            Ok(())
        }
    }

    /// The object to make.
    pub fn object(&self, kind: Kind) -> Value {
        match kind {
            Kind::Pod => self.pod(),
            Kind::Job => {
                let mut template = json!({ "metadata": {}, "spec": self.spec() });
                self.mark(&mut template["metadata"]);
                json!({
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "metadata": self.metadata(),
                    "spec": { "backoffLimit": 0, "template": template },
                })
            }
        }
    }

    /// The pod, or what the Job's pod is made of.
    pub fn pod(&self) -> Value {
        let mut metadata = self.metadata();
        self.mark(&mut metadata);
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": self.spec() })
    }

    /// The same pod under no name, to be tried: the name may be taken.
    pub fn trial(&self) -> Value {
        let mut pod = self.pod();
        pod["metadata"]["generateName"] = json!(format!("{}-", stem(&self.image)));
        if let Some(metadata) = pod["metadata"].as_object_mut() {
            metadata.remove("name");
        }
        pod
    }

    fn metadata(&self) -> Value {
        let mut metadata = json!({ "namespace": self.namespace });
        match &self.name {
            Some(name) => metadata["name"] = json!(name),
            None => metadata["generateName"] = json!(format!("{}-", stem(&self.image))),
        }
        metadata
    }

    /// Adds the annotation or label of a request that is no limit.
    fn mark(&self, metadata: &mut Value) {
        match self.amount {
            Amount::Part(part) => {
                metadata["annotations"] = json!({ FRACTION: part.to_string() });
            }
            Amount::Memory(mib) => metadata["annotations"] = json!({ MEMORY: mib.to_string() }),
            Amount::Whole(count) if self.whole_by_label => {
                metadata["labels"] = json!({ FRACTION_LABEL: count.to_string() });
            }
            Amount::Whole(_) | Amount::Mig(_) => {}
        }
    }

    fn spec(&self) -> Value {
        let mut container = json!({ "name": CONTAINER, "image": self.image });
        if !self.command.is_empty() {
            container["command"] = json!(self.command);
        }
        if !self.env.is_empty() {
            let each = self.env.iter();
            container["env"] = each
                .map(|(name, value)| json!({ "name": name, "value": value }))
                .collect();
        }
        let resources = self.resources();
        if resources != json!({}) {
            container["resources"] = resources;
        }
        let mut security = json!({ "seccompProfile": { "type": "RuntimeDefault" } });
        if !self.root {
            security["runAsNonRoot"] = json!(true);
            security["runAsUser"] = json!(USER);
            container["securityContext"] = json!({
                "allowPrivilegeEscalation": false,
                "capabilities": { "drop": ["ALL"] },
            });
        }
        json!({
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "securityContext": security,
            "containers": [container],
        })
    }

    fn resources(&self) -> Value {
        let mut resources = json!({});
        match self.amount {
            Amount::Whole(count) if !self.whole_by_label => {
                resources["limits"][GPU] = json!(count);
            }
            Amount::Mig(profile) => resources["limits"][mig_resource(profile)] = json!(1),
            Amount::Part(_) | Amount::Memory(_) | Amount::Whole(_) => {}
        }
        if let Some(cpu) = &self.cpu {
            resources["requests"]["cpu"] = json!(cpu);
        }
        if let Some(memory) = &self.memory {
            resources["requests"]["memory"] = json!(memory);
            resources["limits"]["memory"] = json!(memory);
        }
        resources
    }
}

fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=LONGEST_NAME).contains(&name.len())
        && name.bytes().all(allowed)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// `NAME=VALUE`, each name once.
///
/// # Errors
/// A word without `=`, without a name, or a name twice.
pub fn variables(words: &[String]) -> Result<Vec<(String, String)>, Error> {
    let mut variables: Vec<(String, String)> = Vec::new();
    for word in words {
        let (name, value) = word
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| {
                usage(
                    format!("--env: `{word}` is not NAME=VALUE"),
                    "write a variable such as EPOCHS=3",
                )
            })?;
        if variables.iter().any(|(other, _)| other == name) {
            return Err(usage(
                format!("--env: {name} is set twice"),
                "remove one of them",
            ));
        }
        variables.push((name.to_owned(), value.to_owned()));
    }
    Ok(variables)
}

/// Whether the webhook saw to it that the pod's part of a GPU is held: a claim, or the gate of carrier mode.
pub fn is_held(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else {
        return false;
    };
    let claims = spec.resource_claims.iter().flatten();
    let gates = spec.scheduling_gates.iter().flatten();
    claims.into_iter().any(|claim| claim.name == CLAIM)
        || gates.into_iter().any(|gate| gate.name == carrier::GATE)
}

/// Whether a container has NVIDIA's limit for whole GPUs.
pub fn has_gpu_limit(pod: &Pod) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let resources = containers.filter_map(|container| container.resources.as_ref());
    let mut limits = resources.filter_map(|resources| resources.limits.as_ref());
    limits.any(|limits| limits.contains_key(GPU))
}

#[cfg(test)]
mod tests;
