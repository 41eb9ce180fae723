//! Checks of Kueue, where it is installed: whether it counts the memory of Divvy's claims.

use super::facts::ClusterFacts;
use super::row::{Row, Status};
use crate::base::slices::inventory_of;
use crate::teams::kueue::configuration::{Counted, problems};
use crate::teams::kueue::store::Served;
use crate::teams::kueue::{GROUP, VERSION};

const READ: &str = "API group of Kueue, its ConfigMap in kueue-system, ResourceSlices";

/// No row without Kueue: projects are optional.
pub fn rows(facts: &ClusterFacts) -> Vec<Row> {
    const CHECK: &str = "kueue.configuration";
    let row = match &facts.kueue {
        Ok(Served::Absent) => return Vec::new(),
        Err(why) => Row::unknown(CHECK, READ, why),
        Ok(Served::Other(versions)) => Row::ok(
            CHECK,
            READ,
            format!(
                "Kueue serves {GROUP} in {}, not in {VERSION}",
                versions.join(", ")
            ),
        )
        .but(
            Status::Warn,
            "projects cannot be added",
            "update Kueue to 0.19 or newer",
        ),
        Ok(Served::Ours) => match (&facts.kueue_configuration, &facts.slices, &facts.classes) {
            (Ok(Some(configuration)), Ok(slices), Ok(classes)) => {
                let counted =
                    Counted::of(&inventory_of(slices), Counted::serves_nvidia_gpu(classes));
                let found = problems(configuration, &counted);
                if found.is_empty() {
                    Row::ok(
                        CHECK,
                        READ,
                        "Kueue counts the GPU memory of claims and of MIG requests",
                    )
                } else {
                    Row::ok(CHECK, READ, found.join("; ")).but(
                        Status::Warn,
                        "Kueue does not admit workloads with such requests to projects",
                        "divvy-k8s project config > values.yaml, then helm upgrade kueue with these values",
                    )
                }
            }
            (Ok(None), ..) => Row::unknown(
                CHECK,
                READ,
                "the namespace kueue-system has no configuration of Kueue",
            ),
            (Err(why), ..) | (_, Err(why), _) | (.., Err(why)) => Row::unknown(CHECK, READ, why),
        },
    };
    vec![row]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::facts::tests::facts;
    use super::*;
    use crate::teams::kueue::configuration::merged;

    #[test]
    fn a_configuration_that_counts_too_little_is_a_warning() {
        let mut facts = facts();
        assert!(rows(&facts).is_empty());
        facts.kueue = Ok(Served::Ours);
        facts.kueue_configuration = Ok(Some(json!({})));
        let row = &rows(&facts)[0];
        assert_eq!(row.status, Status::Warn);
        assert!(
            row.found.contains("fraction.gpu.divvy.dev"),
            "{}",
            row.found
        );
        let counted = Counted::of(&inventory_of(facts.slices.as_ref().unwrap()), false);
        facts.kueue_configuration = Ok(Some(merged(None, &counted, &[])));
        assert_eq!(rows(&facts)[0].status, Status::Ok);
        facts.kueue_configuration = Err("forbidden".to_owned());
        assert_eq!(rows(&facts)[0].status, Status::Unknown);
    }
}
