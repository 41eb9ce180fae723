//! The scheduler extender, where it runs: which policy chooses nodes, and why.

use super::facts::ClusterFacts;
use super::row::Row;

const CHECK: &str = "extender.policy";
const READ: &str = "ConfigMap of the extender";

/// No row without an extender: it is optional. Best fit is no fault, so the row shows only its reason.
pub fn row(facts: &ClusterFacts) -> Option<Row> {
    let status = facts.extender.as_ref()?;
    let found = match &status.reason {
        None => format!(
            "the learned table chooses nodes, by {} requests of {} kinds",
            status.requests, status.kinds
        ),
        Some(reason) => format!("best fit chooses nodes: {reason}"),
    };
    Some(Row::ok(CHECK, READ, found))
}

#[cfg(test)]
mod tests {
    use super::super::facts::tests::facts;
    use super::*;
    use crate::extender::Status;

    #[test]
    fn the_policy_in_use_is_said_with_its_reason() {
        let mut facts = facts();
        assert_eq!(row(&facts), None);
        let status = Status {
            policy: "best-fit".to_owned(),
            reason: Some("the history has 12 requests, the check needs 300".to_owned()),
            requests: 12,
            kinds: 2,
            nodes: 1,
            gpu_milli: 1000,
            free_gpu_milli: 0,
            assumed: 0,
        };
        facts.extender = Some(status.clone());
        let found = row(&facts).unwrap().found;
        assert!(
            found.ends_with(
                "best fit chooses nodes: the history has 12 requests, the check needs 300"
            )
        );
        facts.extender = Some(Status {
            reason: None,
            ..status
        });
        let found = row(&facts).unwrap().found;
        assert_eq!(
            found,
            "the learned table chooses nodes, by 12 requests of 2 kinds"
        );
    }
}
