//! What Slurm gave a job on a node, as `scontrol -d show job` prints it.
//!
//! ```text
//! JOB_GRES=shard:6
//!   Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=shard:3(IDX:0)        to 23.02
//!   Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=shard:3(3/8,0/8)      from 23.11: of each GPU, the job's shards and all
//! ```

/// GPUs or shards of a job on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gres {
    pub kind: Kind,
    pub count: u64,
    /// Slurm's numbers of the GPUs.
    pub gpus: Vec<u32>,
    /// Of each of these GPUs, the shards of the job and all; `None` before Slurm 23.11, which does not tell.
    pub shards: Option<Vec<(u64, u64)>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Gpu,
    Shard,
}

/// GPUs and shards of a job on a node; other kinds are left out. For the first task of an array, and the first job of a
/// heterogeneous one, Slurm prints the others as well.
///
/// # Errors
/// In words, when the text has no line of this job and node.
pub fn on_node(text: &str, job: u32, node: &str) -> Result<Vec<Gres>, String> {
    let mut named = false;
    let begins = format!("JobId={job}");
    let mut of_the_job = false;
    for line in text.lines() {
        if let Some(first) = line
            .split_whitespace()
            .next()
            .filter(|word| word.starts_with("JobId="))
        {
            of_the_job = first == begins;
        }
        if !of_the_job {
            continue;
        }
        let Some(rest) = line.trim().strip_prefix("Nodes=") else {
            continue;
        };
        let mut words = rest.split_whitespace();
        let nodes = words.next().unwrap_or_default();
        if !hosts_contain(nodes, node) {
            continue;
        }
        named = true;
        let Some(list) = words.find_map(|word| word.strip_prefix("GRES=")) else {
            continue;
        };
        let found = outside_brackets(list)
            .into_iter()
            .filter(|item| !item.is_empty());
        let found = found.map(gres).collect::<Result<Vec<_>, _>>()?;
        return Ok(found.into_iter().flatten().collect());
    }
    Err(if named {
        format!("Slurm shows no GPU of the job on {node}, but gave Prolog one (SLURM_JOB_GPUS)")
    } else {
        format!("`scontrol -d show job {job}` has no line for job {job} on the node {node}")
    })
}

/// `gpu:a100:2(IDX:0-1)` or `shard:3(3/8,0/8)`; `None` for other kinds.
fn gres(item: &str) -> Result<Option<Gres>, String> {
    let wrong = || format!("{item:?}: not how this Slurm is known to print the GPUs of a job");
    let (name, places) = item.split_once('(').unwrap_or((item, ""));
    let mut words = name.split(':');
    let kind = match words.next() {
        Some("gpu") => Kind::Gpu,
        Some("shard") => Kind::Shard,
        _ => return Ok(None),
    };
    let count = words.next_back().and_then(|word| word.parse().ok());
    let count = count.ok_or_else(wrong)?;
    let places = places.trim_end_matches(')');
    let (gpus, shards) = match (places.strip_prefix("IDX:"), kind) {
        (Some(places), _) => (ranges(places).ok_or_else(wrong)?, None),
        (None, Kind::Shard) => {
            let held = held(places).ok_or_else(wrong)?;
            let (gpus, shards) = held.into_iter().unzip();
            (gpus, Some(shards))
        }
        (None, Kind::Gpu) => return Err(wrong()),
    };
    Ok(Some(Gres {
        kind,
        count,
        gpus,
        shards,
    }))
}

/// `3/8,0/8`: GPU 0, with 3 of its 8 shards. At least one GPU has shards of the job.
fn held(text: &str) -> Option<Vec<(u32, (u64, u64))>> {
    let mut all = Vec::new();
    for (gpu, part) in (0..).zip(text.split(',')) {
        let (of_job, of_gpu) = part.split_once('/')?;
        let shards: (u64, u64) = (of_job.parse().ok()?, of_gpu.parse().ok()?);
        if shards.0 > 0 {
            all.push((gpu, shards));
        }
    }
    (!all.is_empty()).then_some(all)
}

/// `0-1,3`.
fn ranges(text: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || last - first > 1024 {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

/// The parts of a list at its commas outside of brackets.
fn outside_brackets(list: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0_u32, 0, Vec::new());
    for (at, letter) in list.char_indices() {
        match letter {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[start..]);
    parts
}

/// Whether a list of hosts, `n[01-16,20],gpu7`, contains a name.
pub fn hosts_contain(list: &str, name: &str) -> bool {
    outside_brackets(list)
        .into_iter()
        .any(|one| matches(one, name))
}

fn matches(pattern: &str, name: &str) -> bool {
    let Some((before, rest)) = pattern.split_once('[') else {
        return pattern == name;
    };
    let (Some((list, after)), Some(name)) = (rest.split_once(']'), name.strip_prefix(before))
    else {
        return false;
    };
    list.split(',').any(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let digits = name.bytes().take_while(u8::is_ascii_digit).count();
        // A range without leading zeros has numbers of several lengths; the rest of the name may begin with a digit.
        (1..=digits).any(|length| {
            let (number, rest) = name.split_at(length);
            let is_padded = first.len() > 1 && first.starts_with('0');
            let fits = if is_padded || number.starts_with('0') {
                length == first.len()
            } else {
                true
            };
            let values = (
                number.parse::<u64>(),
                first.parse::<u64>(),
                last.parse::<u64>(),
            );
            let (Ok(number), Ok(first), Ok(last)) = values else {
                return false;
            };
            fits && (first..=last).contains(&number) && matches(after, rest)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_NODES: &str = include_str!("../../tests/it/data/job-two-nodes.txt");
    const TWO_NODES_26_05: &str = include_str!("../../tests/it/data/job-two-nodes-26.05.txt");
    const ARRAY_26_05: &str = include_str!("../../tests/it/data/job-array-26.05.txt");
    const WHOLE: &str = include_str!("../../tests/it/data/job-whole.txt");

    #[test]
    fn the_line_of_the_node_is_found_in_what_slurm_printed() {
        let shards = Gres {
            kind: Kind::Shard,
            count: 3,
            gpus: vec![0],
            shards: None,
        };
        assert_eq!(
            on_node(TWO_NODES, 6, "n2").unwrap(),
            std::slice::from_ref(&shards)
        );
        let newer = Gres {
            shards: Some(vec![(3, 8)]),
            ..shards
        };
        assert_eq!(on_node(TWO_NODES_26_05, 1, "n2").unwrap(), [newer]);
        let whole = Gres {
            kind: Kind::Gpu,
            count: 1,
            gpus: vec![0],
            shards: None,
        };
        assert_eq!(on_node(WHOLE, 5, "n1").unwrap(), [whole]);
        for (job, node) in [(5, "n2"), (55, "n1")] {
            let error = on_node(WHOLE, job, node).unwrap_err();
            let part = format!("no line for job {job} on the node {node}");
            assert!(error.contains(&part), "{error}");
        }
    }

    #[test]
    fn of_an_array_the_line_is_that_of_the_task() {
        for (job, node, gpu) in [(5, "n2", 1), (8, "n2", 0), (7, "n1", 1), (6, "n1", 0)] {
            let gres = on_node(ARRAY_26_05, job, node).unwrap();
            assert_eq!(gres[0].gpus, [gpu], "{job}");
        }
        assert!(on_node(ARRAY_26_05, 5, "n1").is_err());
    }

    #[test]
    fn lists_of_gres_are_read_and_unknown_forms_are_named() {
        let of = |list: &str| {
            on_node(
                &format!("JobId=1 JobName=x\n     Nodes=n1 CPU_IDs=0 Mem=0 GRES={list}\n"),
                1,
                "n1",
            )
        };
        let two = of("nic:1(IDX:0),gpu:a100:3(IDX:0-1,5),shard:h100:4(IDX:2)").unwrap();
        assert_eq!(two[0].gpus, [0, 1, 5]);
        assert_eq!((two[1].kind, two[1].count), (Kind::Shard, 4));
        assert_eq!(of("").unwrap(), []);
        let newer = of("gpu:1(IDX:0),shard:a100:11(3/8,0/8,8/8)").unwrap();
        assert_eq!(newer[0].shards, None);
        assert_eq!(
            (newer[1].count, newer[1].gpus.as_slice()),
            (11, [0, 2].as_slice())
        );
        assert_eq!(newer[1].shards, Some(vec![(3, 8), (8, 8)]));
        for wrong in [
            "gpu:a100:x(IDX:0)",
            "shard:2",
            "gpu:1(IDX:)",
            "gpu:1(IDX:5-2)",
            "gpu(CNT:1)",
            "gpu:1(1/1)",
            "shard:2(0/8,0/8)",
            "shard:2(2/8,)",
            "shard:2(2/-8)",
        ] {
            let error = of(wrong).unwrap_err();
            assert!(error.contains(&format!("{wrong:?}")), "{error}");
        }
    }

    #[test]
    fn lists_of_hosts_have_ranges_with_and_without_leading_zeros() {
        for (list, name, expected) in [
            ("n1", "n1", true),
            ("n1", "n11", false),
            ("n[1-3,7]", "n7", true),
            ("n[1-3,7]", "n4", false),
            ("n[8-12]", "n10", true),
            ("n[08-12]", "n08", true),
            ("n[08-12]", "n8", false),
            ("a,n[1-2]x,b", "n2x", true),
            ("r[1-2]c[01-04]", "r2c03", true),
            ("r[1-2]c[01-04]", "r3c03", false),
            ("n[1-2", "n1", false),
        ] {
            assert_eq!(hosts_contain(list, name), expected, "{list} {name}");
        }
    }
}
