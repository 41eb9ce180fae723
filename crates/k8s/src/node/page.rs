//! The daemon's page of metrics in the words of the cluster: each sample gets its node, and each sample of a job the
//! namespace, the claim and the pod that the job stands for. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The cluster's names for a job of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimLabels {
    pub namespace: String,
    pub claim: String,
    /// The pod, if exactly one uses the claim. A series for each pod would count the claim's memory several times.
    pub pod: String,
}

/// The daemon's page with the labels of `node`, and of the claims by their jobs.
///
/// A job that is no claim gets empty labels, as every job gets an empty `container`: Prometheus then does not give them
/// the namespace, the pod and the container of the driver (`honor_labels`).
pub fn labelled(page: &str, node: &str, claims: &BTreeMap<String, ClaimLabels>) -> String {
    // The labels of a claim are some 100 bytes.
    let mut text = String::with_capacity(page.len() * 2);
    let none = ClaimLabels::default();
    for line in page.lines() {
        if line.starts_with('#') || line.is_empty() {
            text.push_str(line);
            text.push('\n');
            continue;
        }
        let series = line.find(' ').map_or(line.len(), |space| space);
        let (name, labels, value) = match line[..series].find('{') {
            None => (&line[..series], "", &line[series..]),
            Some(start) => {
                let end =
                    end_of_labels(&line[start + 1..]).map_or(line.len(), |end| start + 1 + end);
                let value = line.get(end + 1..).unwrap_or_default();
                (&line[..start], &line[start + 1..end], value)
            }
        };
        text.push_str(name);
        text.push('{');
        text.push_str(labels);
        if !labels.is_empty() {
            text.push(',');
        }
        let _ = write!(text, "node=\"{}\"", escaped(node));
        if let Some(job) = label(labels, "job") {
            let claim = claims.get(&job).unwrap_or(&none);
            let described = [
                ("namespace", claim.namespace.as_str()),
                ("claim", &claim.claim),
                ("pod", &claim.pod),
                // Which containers use a claim, only their pod says.
                ("container", ""),
            ];
            for (name, value) in described {
                // `divvy_job_info` has the first two already.
                if label(labels, name).is_none() {
                    let _ = write!(text, ",{name}=\"{}\"", escaped(value));
                }
            }
        }
        text.push('}');
        text.push_str(value);
        text.push('\n');
    }
    text
}

/// Where the label set ends, at its `}`. A value may contain one, and escaped quotes.
fn end_of_labels(labels: &str) -> Option<usize> {
    let mut is_quoted = false;
    let mut is_escaped = false;
    for (at, byte) in labels.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b'}' if !is_quoted => return Some(at),
            _ => {}
        }
    }
    None
}

/// The value of a label of a set, as it is written.
fn label(labels: &str, wanted: &str) -> Option<String> {
    let mut rest = labels;
    while let Some((name, quoted)) = rest.split_once("=\"") {
        let mut is_escaped = false;
        let end = quoted.bytes().position(|byte| {
            let ends = byte == b'"' && !is_escaped;
            is_escaped = byte == b'\\' && !is_escaped;
            ends
        })?;
        if name.trim_start_matches(',') == wanted {
            return Some(quoted[..end].to_owned());
        }
        rest = &quoted[end + 1..];
    }
    None
}

/// A label's value as the text format writes it.
pub fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims() -> BTreeMap<String, ClaimLabels> {
        let train = ClaimLabels {
            namespace: "team".into(),
            claim: "train-x".into(),
            pod: "train".into(),
        };
        [("7".to_owned(), train)].into()
    }

    #[test]
    fn samples_of_a_claim_get_its_pod_and_all_get_the_node() {
        let page = "# HELP divvy_preemptions_total x\n# TYPE divvy_preemptions_total counter\n\
                    divvy_preemptions_total 0\n\
                    divvy_gpu_health{gpu=\"0\"} 1\n\
                    divvy_job_memory_used_bytes{job=\"7\",name=\"team/train-x\"} 5\n\
                    divvy_job_memory_used_bytes{job=\"8\",name=\"own\"} 6\n\
                    divvy_job_info{job=\"7\",namespace=\"team\",claim=\"train-x\"} 1\n";
        assert_eq!(
            labelled(page, "node-a", &claims()),
            "# HELP divvy_preemptions_total x\n# TYPE divvy_preemptions_total counter\n\
             divvy_preemptions_total{node=\"node-a\"} 0\n\
             divvy_gpu_health{gpu=\"0\",node=\"node-a\"} 1\n\
             divvy_job_memory_used_bytes{job=\"7\",name=\"team/train-x\",node=\"node-a\",namespace=\"team\",claim=\"train-x\",pod=\"train\",container=\"\"} 5\n\
             divvy_job_memory_used_bytes{job=\"8\",name=\"own\",node=\"node-a\",namespace=\"\",claim=\"\",pod=\"\",container=\"\"} 6\n\
             divvy_job_info{job=\"7\",namespace=\"team\",claim=\"train-x\",node=\"node-a\",pod=\"train\",container=\"\"} 1\n"
        );
    }

    #[test]
    fn a_name_that_imitates_labels_stays_a_name() {
        let page = "divvy_job_state{job=\"8\",name=\"a b\\\\\\\",job=\\\"7\\\"} 9 {\",state=\"running\"} 1\n";
        assert_eq!(
            labelled(page, "n", &claims()),
            "divvy_job_state{job=\"8\",name=\"a b\\\\\\\",job=\\\"7\\\"} 9 {\",state=\"running\",node=\"n\",namespace=\"\",claim=\"\",pod=\"\",container=\"\"} 1\n"
        );
        assert_eq!(labelled("cut{a=\"b", "n", &claims()).lines().count(), 1);
    }
}
