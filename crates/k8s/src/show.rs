//! `divvy-k8s inject`: a dry run of the admission webhook.

use std::fs;
use std::io::{self, Read, Write};
use std::path::PathBuf;

use divvy_core::units::Bytes;
use divvy_k8s::base::claim::Inventory;
use divvy_k8s::base::inject::{InjectError, inject, inject_workload};
use divvy_k8s::base::pod_request::{SkipReason, Steps};
use divvy_k8s::base::yaml;
use serde_json::Value;

#[derive(clap::Args)]
pub struct Args {
    /// YAML or JSON file with one or more documents; - reads standard input
    #[arg(short, long, value_name = "FILE")]
    filename: PathBuf,
    /// Memory of a GPU model in the cluster, such as 80G; repeat it for each size
    #[arg(long = "gpu", value_name = "SIZE", required = true)]
    gpus: Vec<Bytes>,
    /// Accepts any GPU fraction, not only 1/16 and multiples of 1/8
    #[arg(long)]
    any_fraction: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{path}: {error}")]
    Read { path: PathBuf, error: io::Error },
    #[error("{path}: document {number}: {error}")]
    Syntax {
        path: PathBuf,
        number: usize,
        error: String,
    },
    #[error("{object} is refused: {error}")]
    Refused { object: String, error: InjectError },
    #[error("cannot write to standard output: {0}")]
    Write(#[from] io::Error),
    #[error("cannot write the result as YAML: {0}")]
    Print(#[from] yaml_serde::Error),
}

impl Failure {
    /// As the command line's reference has it: 2 wrong input, 5 can never fit, 1 otherwise.
    pub fn code(&self) -> u8 {
        match self {
            Self::Refused {
                error: InjectError::NoTemplate(_),
                ..
            } => 5,
            Self::Read { .. } | Self::Syntax { .. } | Self::Refused { .. } => 2,
            Self::Write(_) | Self::Print(_) => 1,
        }
    }
}

pub fn show(args: &Args) -> Result<(), Failure> {
    let inventory = Inventory {
        sizes: args.gpus.iter().copied().collect(),
        ..Inventory::default()
    };
    let steps = if args.any_fraction {
        Steps::Any
    } else {
        Steps::Eighths
    };
    let mut out = io::stdout().lock();
    for object in objects(args)? {
        for shown in become_of(&object, &inventory, steps)? {
            writeln!(out, "---")?;
            out.write_all(yaml_serde::to_string(&shown)?.as_bytes())?;
        }
    }
    Ok(())
}

fn objects(args: &Args) -> Result<Vec<Value>, Failure> {
    let path = &args.filename;
    let mut text = String::new();
    let read = if path.as_os_str() == "-" {
        io::stdin().read_to_string(&mut text).map(drop)
    } else {
        fs::read_to_string(path).map(|all| text = all)
    };
    read.map_err(|error| Failure::Read {
        path: path.clone(),
        error,
    })?;
    let mut objects = Vec::new();
    let syntax = |number: usize, error: String| Failure::Syntax {
        path: path.clone(),
        number,
        error,
    };
    let documents = yaml::documents(&text);
    let documents = documents.map_err(|(number, error)| syntax(number, error.to_string()))?;
    for (at, document) in documents.into_iter().enumerate() {
        let object = serde_json::to_value(document);
        let object = object.map_err(|error| syntax(at + 1, error.to_string()))?;
        match object["kind"].as_str() {
            Some("List") => objects.extend(object["items"].as_array().cloned().unwrap_or_default()),
            _ if object.is_null() => {}
            _ => objects.push(object),
        }
    }
    Ok(objects)
}

/// The object as it is to be, behind what it needs.
fn become_of(object: &Value, inventory: &Inventory, steps: Steps) -> Result<Vec<Value>, Failure> {
    let refused = |error| Failure::Refused {
        object: called(object),
        error,
    };
    let namespace = object["metadata"]["namespace"].as_str();
    let namespace = namespace.unwrap_or("default");
    let warn = |warnings: &[String]| {
        for warning in warnings {
            eprintln!("warning: {}: {warning}", called(object));
        }
    };
    if object["kind"] != "Pod" {
        let injection = inject_workload(object, None, inventory, steps).map_err(refused)?;
        let Some(injection) = injection else {
            return Ok(vec![object.clone()]);
        };
        warn(&injection.warnings);
        let templates = injection.templates.iter();
        let templates = templates.map(|template| template.object(namespace));
        return Ok(templates.chain([injection.object]).collect());
    }
    match inject(object, inventory, steps).map_err(refused)? {
        Ok(injection) => {
            warn(&injection.warnings);
            let template = injection.template;
            let template = template.map(|template| template.object(namespace));
            Ok(template.into_iter().chain([injection.pod]).collect())
        }
        Err(untouched) => {
            let why = match untouched {
                SkipReason::Unmarked => "it requests no GPU fraction".to_owned(),
                SkipReason::Scheduler(name) => format!("it uses the scheduler {name}"),
                SkipReason::Done => "it already has its claim".to_owned(),
            };
            eprintln!("{} is unchanged: {why}", called(object));
            Ok(vec![object.clone()])
        }
    }
}

/// `Pod train`.
fn called(object: &Value) -> String {
    let metadata = &object["metadata"];
    let name = metadata["name"]
        .as_str()
        .or(metadata["generateName"].as_str());
    format!(
        "{} {}",
        object["kind"].as_str().unwrap_or("object"),
        name.unwrap_or("without a name")
    )
}
