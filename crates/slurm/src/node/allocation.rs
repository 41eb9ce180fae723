//! What Slurm gave a job on a node, as `scontrol -d show job` prints it.
//!
//! ```text
//! JOB_GRES=shard:6
//!   Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=shard:3(IDX:0)
//! ```

/// GPUs or shards of a job on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gres {
    pub kind: Kind,
    pub count: u64,
    /// Slurm's numbers of the GPUs.
    pub gpus: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Gpu,
    Shard,
}

/// GPUs and shards of a job on a node; other kinds are left out.
///
/// # Errors
/// In words, when the text has no line of this node.
pub fn on_node(text: &str, node: &str) -> Result<Vec<Gres>, String> {
    let mut named = false;
    for line in text.lines() {
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
    Err(match named {
        true => {
            format!("Slurm shows no GPU of the job on {node}, but gave Prolog one (SLURM_JOB_GPUS)")
        }
        false => format!("`scontrol -d show job` has no line for the node {node}"),
    })
}

/// `gpu:a100:2(IDX:0-1)`; `None` for other kinds.
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
    let places = places.trim_end_matches(')').strip_prefix("IDX:");
    Ok(Some(Gres {
        kind,
        count: count.ok_or_else(wrong)?,
        gpus: places.and_then(ranges).ok_or_else(wrong)?,
    }))
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
            let fits = match is_padded || number.starts_with('0') {
                true => length == first.len(),
                false => true,
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
    const WHOLE: &str = include_str!("../../tests/it/data/job-whole.txt");

    #[test]
    fn the_line_of_the_node_is_found_in_what_slurm_printed() {
        let shards = Gres {
            kind: Kind::Shard,
            count: 3,
            gpus: vec![0],
        };
        assert_eq!(on_node(TWO_NODES, "n2").unwrap(), [shards]);
        let whole = Gres {
            kind: Kind::Gpu,
            count: 1,
            gpus: vec![0],
        };
        assert_eq!(on_node(WHOLE, "n1").unwrap(), [whole]);
        let error = on_node(WHOLE, "n2").unwrap_err();
        assert!(error.contains("no line for the node n2"), "{error}");
    }

    #[test]
    fn lists_of_gres_are_read_and_unknown_forms_are_named() {
        let of = |list: &str| {
            on_node(
                &format!("     Nodes=n1 CPU_IDs=0 Mem=0 GRES={list}\n"),
                "n1",
            )
        };
        let two = of("nic:1(IDX:0),gpu:a100:3(IDX:0-1,5),shard:h100:4(IDX:2)").unwrap();
        assert_eq!(two[0].gpus, [0, 1, 5]);
        assert_eq!((two[1].kind, two[1].count), (Kind::Shard, 4));
        assert_eq!(of("").unwrap(), []);
        for wrong in [
            "gpu:a100:x(IDX:0)",
            "shard:2",
            "gpu:1(IDX:)",
            "gpu:1(IDX:5-2)",
            "gpu(CNT:1)",
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
