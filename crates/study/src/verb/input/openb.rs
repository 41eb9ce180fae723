//! openb (Alibaba cluster-trace-gpu-v2023, USENIX ATC 2023): nodes and pods as CSV.
//!
//! Numbers may be written as decimals and fields may be empty. The list of many multi-GPU pods has five columns only.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use divvy_core::{Amount, Bytes, Share};
use divvy_packing::{ModelSet, NodeSpec};

use super::table::{Row, Table};
use super::{InputError, Job, Jobs, MOST_NODES, bound, without_mark};

/// GPUs that a node or a pod may have. More than any machine has, so that a wrong column is found.
const MOST_GPUS: u64 = 1024;

/// Reads nodes: `sn,cpu_milli,memory_mib,gpu,model`, and `gpu_memory_mib` where shares and memory are two limits. The
/// second value names the models, in the order of their indices.
///
/// # Errors
/// [`InputError`].
pub fn nodes(text: &[u8]) -> Result<(Vec<NodeSpec>, Vec<String>), InputError> {
    let mut table = Table::csv(
        without_mark(text),
        &["sn", "cpu_milli", "memory_mib", "gpu", "model"],
    )?;
    let (mut nodes, mut models, mut names) = (Vec::new(), Vec::new(), BTreeSet::new());
    while let Some(row) = table.next()? {
        let name = named(&row, "sn")?;
        if !names.insert(name.clone()) {
            return Err(row.error("sn", &name, "listed twice", "give each node its own name"));
        }
        if nodes.len() == MOST_NODES {
            return Err(InputError {
                place: format!("line {}", row.line),
                what: format!("more than {MOST_NODES} nodes"),
                hint: "simulate a part of them".to_owned(),
            });
        }
        let gpus = gpus(&row, "gpu")?;
        let model = row.text("model")?;
        if gpus > 0 && model.is_empty() {
            return Err(row.error("model", model, "empty", "name the model of the node's GPUs"));
        }
        nodes.push(NodeSpec {
            name,
            cpu_milli: row.count("cpu_milli")?,
            memory: Bytes::mib(row.count("memory_mib")?),
            gpus,
            model: match gpus {
                0 => 0,
                _ => index(&row, model, &mut models)?,
            },
            gpu_memory: Some(row.count("gpu_memory_mib")?)
                .filter(|mib| *mib > 0)
                .map(Bytes::mib),
        });
    }
    if nodes.is_empty() {
        return Err(InputError {
            place: "line 2".to_owned(),
            what: "no node".to_owned(),
            hint: "list one node on each line below the header".to_owned(),
        });
    }
    Ok((nodes, models))
}

/// The index of a model, a new one where the list has not named it yet.
fn index(row: &Row<'_>, model: &str, models: &mut Vec<String>) -> Result<usize, InputError> {
    if let Some(index) = models.iter().position(|known| known == model) {
        return Ok(index);
    }
    if models.len() == ModelSet::MOST {
        let why = format!("more than {} models", ModelSet::MOST);
        return Err(row.error("model", model, &why, "simulate a part of the nodes"));
    }
    models.push(model.to_owned());
    Ok(models.len() - 1)
}

/// Reads pods: `name,cpu_milli,memory_mib,num_gpu,gpu_milli`, and `gpu_spec`, `qos` and three times where the list has
/// them.
///
/// # Errors
/// [`InputError`].
pub fn pods(text: &[u8]) -> Result<Jobs, InputError> {
    let needed = ["name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"];
    let mut table = Table::csv(text, &needed)?;
    let times = ["creation_time", "deletion_time", "scheduled_time"];
    let has_times = times.iter().all(|column| table.has(column));
    let mut jobs = Jobs::default();
    let mut names = BTreeSet::new();
    while let Some(row) = table.next()? {
        bound(jobs.jobs.len(), &format!("line {}", row.line))?;
        let name = named(&row, "name")?;
        if !names.insert(name.clone()) {
            return Err(row.error("name", &name, "listed twice", "give each pod its own name"));
        }
        let models = row.text("gpu_spec")?.split('|').map(str::trim);
        let queue = row.text("qos")?;
        let [submitted, started, ended] = if has_times {
            read_times(&row)?
        } else {
            [None; 3]
        };
        jobs.jobs.push(Job {
            name,
            line: row.line,
            amount: amount(&row)?,
            cpu_milli: row.count("cpu_milli")?,
            memory_mib: row.count("memory_mib")?,
            models: models
                .filter(|model| !model.is_empty())
                .map(str::to_owned)
                .collect(),
            queue: (!queue.is_empty()).then(|| queue.to_owned()),
            submitted,
            started,
            ended,
            ..Job::default()
        });
    }
    Ok(jobs)
}

fn named(row: &Row<'_>, column: &str) -> Result<String, InputError> {
    match row.text(column)? {
        "" => Err(row.error(column, "", "empty", "give each line a name")),
        name => Ok(name.to_owned()),
    }
}

fn gpus(row: &Row<'_>, column: &str) -> Result<u32, InputError> {
    let count = row.count(column)?;
    let value = row.text(column)?;
    let few = u32::try_from(count).ok().filter(|_| count <= MOST_GPUS);
    few.ok_or_else(|| {
        let hint = format!("write a number of GPUs from 0 to {MOST_GPUS}");
        row.error(column, value, "too many GPUs", &hint)
    })
}

fn amount(row: &Row<'_>) -> Result<Option<Amount>, InputError> {
    let Some(count) = NonZeroU32::new(gpus(row, "num_gpu")?) else {
        return Ok(None);
    };
    let milli = row.count("gpu_milli")?;
    let share = u16::try_from(milli).ok().and_then(Share::from_thousandths);
    match share {
        Some(share) => Ok(Some(Amount::Shares { count, share }.plain())),
        None => Err(row.error(
            "gpu_milli",
            row.text("gpu_milli")?,
            "not within 1 to 1000",
            "write thousandths of each GPU; 1000 is a whole one",
        )),
    }
}

/// Submission, start and end, in milliseconds from the trace's start.
fn read_times(row: &Row<'_>) -> Result<[Option<i64>; 3], InputError> {
    let time = |column| -> Result<Option<i64>, InputError> {
        let seconds = row.optional_count(column)?;
        Ok(seconds.map(|seconds| i64::try_from(seconds).unwrap_or(i64::MAX / 1000) * 1000))
    };
    let (created, scheduled) = (time("creation_time")?, time("scheduled_time")?);
    let deleted = time("deletion_time")?;
    let follows = |column, later: Option<i64>, earlier: Option<i64>, what| match (later, earlier) {
        (Some(later), Some(earlier)) if later < earlier => Err(row.error(
            column,
            row.text(column)?,
            what,
            "check the times of the pod",
        )),
        _ => Ok(()),
    };
    follows("scheduled_time", scheduled, created, "before creation_time")?;
    follows("deletion_time", deleted, scheduled, "before scheduled_time")?;
    Ok([created, scheduled, scheduled.and(deleted)])
}
