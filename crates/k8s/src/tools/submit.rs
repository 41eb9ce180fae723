//! `divvy-k8s submit`: creates a pod or a Job that asks for part of a GPU, and follows its output if wanted.
//!
//! It creates nothing that a user could not write by hand: the object asks by the labels, annotations and limits that the
//! webhook knows. A dry run first checks that the webhook covers the namespace, for a pod whose annotation no webhook
//! reads would run without its limit.

pub mod follow;
pub mod object;
pub mod stage;

use std::path::Path;
use std::process::ExitCode;

use divvy_api::v1::{Error, ErrorCode};
use divvy_core::units::Bytes;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::Client;
use kube::api::{Api, ListParams, PostParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::base::claim::Inventory;
use crate::base::error_output::{self, Format};
use crate::base::inject::{InjectError, inject, inject_workload};
use crate::base::pod_request::Steps;
use crate::base::slices;
use object::{Amount, Kind, Submission};

#[derive(clap::Args)]
pub struct Args {
    /// Fraction of one GPU, such as 0.2, or a number of whole GPUs
    #[arg(short = 'g', long, value_name = "AMOUNT")]
    gpu: Option<String>,
    /// Memory of one GPU, such as 4G: a fraction of a shared GPU, or a MIG instance on nodes that allow it
    #[arg(long, value_name = "SIZE")]
    gpu_memory: Option<String>,
    /// One MIG instance of this profile, such as 2g.10gb
    #[arg(long, value_name = "PROFILE")]
    mig_profile: Option<String>,
    /// Name of the pod or Job [default: the image's name and a random suffix]
    #[arg(long)]
    name: Option<String>,
    /// Namespace [default: that of your kubeconfig's context]
    #[arg(short, long)]
    namespace: Option<String>,
    /// Creates a Job instead of a pod; a Job replaces its pod if the node fails
    #[arg(long)]
    job: bool,
    /// Environment variable of the container; can be repeated
    #[arg(short, long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// CPU request, as a Kubernetes quantity
    #[arg(long, value_name = "QUANTITY")]
    cpu: Option<String>,
    /// Request and limit of host memory, as a Kubernetes quantity
    #[arg(long, value_name = "QUANTITY")]
    memory: Option<String>,
    /// Runs as root, which some images need; namespaces with the restricted Pod Security Standard reject it
    #[arg(long)]
    root: bool,
    /// Prints the object and the webhook's changes to it, and creates nothing
    #[arg(long, conflicts_with = "follow")]
    dry_run: bool,
    /// With --dry-run: assumes GPUs of this memory size, without a cluster; can be repeated
    #[arg(long, value_name = "SIZE", requires = "dry_run")]
    gpu_size: Vec<Bytes>,
    /// Shows why the pod waits, then its output, and exits with its exit code
    #[arg(short, long)]
    follow: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    /// Image of the container
    image: String,
    /// Command to run instead of the image's own program
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Args {
    pub fn is_json(&self) -> bool {
        self.output.is_json()
    }

    /// Whether a cluster has to be asked.
    pub fn needs_cluster(&self) -> bool {
        self.gpu_size.is_empty()
    }
}

/// The created object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct CreatedObject {
    object: &'static str,
    name: String,
    namespace: String,
    uid: String,
    asks: String,
}

/// `client` only where [`Args::needs_cluster`]. With `--follow`, the exit code is the program's.
///
/// # Errors
/// The request is invalid, or the cluster refuses it; then nothing was created.
pub async fn run(args: &Args, client: Option<&Client>) -> Result<ExitCode, Error> {
    let amount = Amount::read(
        args.gpu.as_deref(),
        args.gpu_memory.as_deref(),
        args.mig_profile.as_deref(),
    )?;
    let namespace = match (&args.namespace, client) {
        (Some(name), _) => name.clone(),
        (None, Some(client)) => client.default_namespace().to_owned(),
        (None, None) => "default".to_owned(),
    };
    let mut wish = Submission {
        amount,
        name: args.name.clone(),
        namespace,
        image: args.image.clone(),
        command: args.command.clone(),
        env: object::variables(&args.env)?,
        cpu: args.cpu.clone(),
        memory: args.memory.clone(),
        root: args.root,
        whole_by_label: matches!(amount, Amount::Whole(_)),
    };
    wish.check()?;
    let inventory = match client {
        None => Some(Inventory {
            sizes: args.gpu_size.iter().copied().collect(),
            ..Inventory::default()
        }),
        Some(client) => known(client).await,
    };
    let kind = if args.job { Kind::Job } else { Kind::Pod };
    if args.dry_run {
        let inventory = inventory.ok_or_else(|| {
            Error::new(
                ErrorCode::NotAllowed,
                "cannot read the ResourceSlices of the cluster, so its GPU sizes are unknown",
            )
            .hint("add the memory size of the cluster's GPUs, such as --gpu-size 80G")
        })?;
        return print_dry_run(&wish, kind, &inventory, args.output);
    }
    let Some(client) = client else {
        return Err(error_output::usage(
            "no cluster configured",
            "set KUBECONFIG to the cluster's kubeconfig file",
        ));
    };
    if let Some(inventory) = &inventory {
        never_fits(&wish, inventory)?;
    }
    wish.whole_by_label = try_out(&wish, client).await? == Trial::Claim;
    let made = make(&wish, kind, client).await?;
    if args.follow {
        error_output::say(&format!(
            "{}/{} in {}",
            made.object, made.name, made.namespace
        ));
        follow::follow(client, kind, &made.namespace, &made.name).await
    } else {
        error_output::print(&render_created(&made, args.output)?)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Which GPUs there are; `None` where the caller may not read it. Then the webhook judges alone.
async fn known(client: &Client) -> Option<Inventory> {
    let slices = Api::<ResourceSlice>::all(client.clone())
        .list(&ListParams::default())
        .await
        .ok()?;
    let inventory = slices::inventory_of(slices.items.iter());
    let known = !inventory.sizes.is_empty() || !inventory.profiles.is_empty();
    known.then_some(inventory)
}

/// Refuses what no GPU here could ever serve, with what there is.
fn never_fits(wish: &Submission, inventory: &Inventory) -> Result<(), Error> {
    if let Amount::Mig(profile) = wish.amount
        && !inventory.profiles.contains_key(&profile)
    {
        let there: Vec<String> = inventory.profiles.keys().map(ToString::to_string).collect();
        let hint = if there.is_empty() {
            "no node allows MIG instances; `divvy-k8s admin set node-role --dynamic-mig-enabled NODE` allows them".to_owned()
        } else {
            format!("the profiles in this cluster are {}", there.join(", "))
        };
        let message = format!(
            "a {profile} MIG instance requested, but no GPU of the cluster has this profile"
        );
        return Err(Error::new(ErrorCode::NeverFits, message).hint(hint));
    }
    match inject(&wish.pod(), inventory, Steps::Any) {
        Ok(_) => Ok(()),
        Err(error) => Err(refused(&error)),
    }
}

fn refused(error: &InjectError) -> Error {
    match error {
        InjectError::Refused(refusal) => {
            error_output::usage(refusal.to_string(), "change the flags as the message says")
        }
        InjectError::NoTemplate(reason) => Error::new(ErrorCode::NeverFits, reason.to_string())
            .hint("`divvy-k8s admin nodes` lists the GPUs of the cluster"),
    }
}

/// Prints the object of a dry run, and behind it the webhook's result for its pod.
fn print_dry_run(
    wish: &Submission,
    kind: Kind,
    inventory: &Inventory,
    format: Format,
) -> Result<ExitCode, Error> {
    never_fits(wish, inventory)?;
    let object = wish.object(kind);
    let (template, object, warnings) = match kind {
        Kind::Pod => match inject(&object, inventory, Steps::Any) {
            Ok(Ok(done)) => (done.template, done.pod, done.warnings),
            _ => (None, object, Vec::new()),
        },
        Kind::Job => match inject_workload(&object, None, inventory, Steps::Any) {
            Ok(Some(done)) => (
                done.templates.into_iter().next(),
                done.object,
                done.warnings,
            ),
            _ => (None, object, Vec::new()),
        },
    };
    for warning in &warnings {
        error_output::say(warning);
    }
    let template = template.map(|template| template.object(&wish.namespace));
    let objects: Vec<Value> = template.into_iter().chain([object]).collect();
    let text = match format {
        Format::Json => error_output::json("ObjectList", objects)?,
        Format::Table => yaml(&objects)?,
    };
    error_output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn yaml(objects: &[Value]) -> Result<String, Error> {
    let documents = objects.iter().map(|object| {
        yaml_serde::to_string(object)
            .map(|text| format!("---\n{text}"))
            .map_err(|error| {
                Error::new(
                    ErrorCode::Internal,
                    format!("cannot write the object as YAML: {error}"),
                )
            })
    });
    documents.collect()
}

/// What the API server made of a pod in a dry run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    /// The webhook gave it a claim or a reservation; in carrier mode it gave whole GPUs NVIDIA's limit.
    Claim,
    /// No webhook serves it; its limits are those of another device plugin or of a device class.
    Limits,
}

/// Tries the pod by a dry run.
///
/// # Errors
/// The API server refuses the pod, or the pod would run without the limit that it needs.
async fn try_out(wish: &Submission, client: &Client) -> Result<Trial, Error> {
    let pods = Api::<Pod>::namespaced(client.clone(), &wish.namespace);
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let pod = pods
        .create(&dry, &typed(wish.trial())?)
        .await
        .map_err(|error| {
            error_output::of_kube(error, &format!("create a pod in {}", wish.namespace))
        })?;
    if object::is_held(&pod) || wish.whole_by_label && object::has_gpu_limit(&pod) {
        return Ok(Trial::Claim);
    }
    if wish.whole_by_label {
        error_output::say(&format!(
            "Divvy's webhook does not serve namespace {}: the pod requests nvidia.com/gpu instead",
            wish.namespace
        ));
    }
    if wish.amount.needs_webhook() {
        let message = format!(
            "Divvy's webhook does not serve namespace {}: the pod would run without its GPU fraction; nothing was created",
            wish.namespace
        );
        let hint = format!(
            "run `kubectl label namespace {} divvy.dev/inject=enabled`; `divvy-k8s doctor` checks the rest",
            wish.namespace
        );
        return Err(Error::new(ErrorCode::NotAllowed, message).hint(hint));
    }
    Ok(Trial::Limits)
}

async fn make(wish: &Submission, kind: Kind, client: &Client) -> Result<CreatedObject, Error> {
    let post = PostParams::default();
    let what = format!("create the {} in {}", kind.as_str(), wish.namespace);
    let metadata = match kind {
        Kind::Pod => {
            let pods = Api::<Pod>::namespaced(client.clone(), &wish.namespace);
            let pod = pods.create(&post, &typed(wish.object(kind))?).await;
            pod.map_err(|error| error_output::of_kube(error, &what))?
                .metadata
        }
        Kind::Job => {
            let jobs = Api::<Job>::namespaced(client.clone(), &wish.namespace);
            let job = jobs.create(&post, &typed(wish.object(kind))?).await;
            job.map_err(|error| error_output::of_kube(error, &what))?
                .metadata
        }
    };
    Ok(CreatedObject {
        object: kind.as_str(),
        name: metadata.name.unwrap_or_default(),
        namespace: wish.namespace.clone(),
        uid: metadata.uid.unwrap_or_default(),
        asks: wish.amount.to_string(),
    })
}

fn typed<T: DeserializeOwned>(object: Value) -> Result<T, Error> {
    serde_json::from_value(object).map_err(|error| {
        Error::new(
            ErrorCode::Internal,
            format!("the object does not match the Kubernetes API: {error}"),
        )
    })
}

fn render_created(made: &CreatedObject, format: Format) -> Result<String, Error> {
    match format {
        Format::Json => error_output::json("SubmissionList", vec![made.clone()]),
        Format::Table => Ok(format!(
            "{}/{} created in {}\n",
            made.object, made.name, made.namespace
        )),
    }
}

/// The name of an image without registry, tag and digest, as a name of an object may be.
pub(crate) fn stem(image: &str) -> String {
    let last = Path::new(image).file_name().and_then(|name| name.to_str());
    let name = last
        .unwrap_or("job")
        .split(['@', ':'])
        .next()
        .unwrap_or("job");
    let word: String = name
        .to_ascii_lowercase()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    let word = word.trim_matches('-');
    if word.is_empty() {
        "job".to_owned()
    } else {
        word.chars().take(40).collect()
    }
}
