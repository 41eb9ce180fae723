//! The check of the cluster's Kubernetes version, with the alternatives for an old one.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::version::Info;

use super::row::{Row, Status};

const CHECK: &str = "server.version";
const READ: &str = "GET /version, and the API server's /metrics for its feature gates";

/// The first release whose scheduler counts shared devices right beside MIG placements (kubernetes#139040, backported by
/// #139211); gates are on from 1.36.0.
const WANTED: (u32, u32, u32) = (1, 36, 2);
/// The first with `resource.k8s.io/v1`, where the gates exist as alpha.
const WITH_GATES: (u32, u32) = (1, 34);
/// The first where scheduling gates are in for good, which carrier mode is made of.
const FOR_CARRIERS: (u32, u32) = (1, 30);
/// The feature gates that claims need, by the names of releases 1.34 to 1.36.
const GATES: [&str; 3] = [
    "DRAConsumableCapacity",
    "DRAPartitionableDevices",
    "DRAExtendedResource",
];

const CARRIERS: &str = "install in carrier mode (fractions in sixteenths of a GPU, no MIG; controller and node with --carrier)";

/// `v1.36.2-gke.100` as numbers.
pub fn parse(version: &str) -> Option<(u32, u32, u32)> {
    let text = version.strip_prefix('v').unwrap_or(version);
    let mut numbers = text.splitn(3, '.').map(|part| {
        let end = part
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(part.len());
        part[..end].parse::<u32>().ok()
    });
    Some((
        numbers.next()??,
        numbers.next()??,
        numbers.next().flatten().unwrap_or(0),
    ))
}

/// Which gates are off among [`GATES`], where the API server's own figures say.
fn missing(gates: &BTreeMap<String, bool>) -> Vec<&'static str> {
    GATES
        .into_iter()
        .filter(|gate| gates.get(*gate) != Some(&true))
        .collect()
}

/// `kubernetes_feature_enabled{name="X",stage="BETA"} 1` lines of the API server's metrics.
pub fn gates(metrics: &str) -> BTreeMap<String, bool> {
    metrics
        .lines()
        .filter_map(|line| {
            let rest = line.strip_prefix("kubernetes_feature_enabled{")?;
            let (labels, value) = rest.split_once('}')?;
            let name = labels.split("name=\"").nth(1)?.split('"').next()?;
            Some((name.to_owned(), value.trim().starts_with('1')))
        })
        .collect()
}

/// Whether the release has what is used: claims, or by carriers nothing of them.
pub fn server(
    version: &Result<Info, String>,
    gates: &Result<BTreeMap<String, bool>, String>,
    by_carriers: bool,
) -> Row {
    let info = match version {
        Ok(info) => info,
        Err(why) => return Row::unknown(CHECK, READ, why),
    };
    let said = &info.git_version;
    let row = |found: String| Row::ok(CHECK, READ, found);
    let Some(real) = parse(said) else {
        return row(format!("cannot parse the version `{said}`")).but(
            Status::Unknown,
            "",
            "Divvy needs Kubernetes 1.36.2 or newer",
        );
    };
    // A server that emulates an older one has that one's gates.
    let minor = info
        .emulation_minor
        .as_deref()
        .and_then(|minor| minor.parse().ok());
    let emulates = minor.filter(|minor| *minor < real.1);
    let (major, minor, patch) = (real.0, emulates.unwrap_or(real.1), real.2);
    let emulating = emulates.map_or_else(String::new, |minor| format!(", emulating 1.{minor}"));
    if by_carriers && (major, minor) >= FOR_CARRIERS {
        return row(format!("{said}{emulating}: new enough for carrier mode"));
    }
    let off = gates.as_ref().ok().map(missing);
    let gates_said = match (gates, &off) {
        (Err(why), _) => format!("; cannot read its feature gates: {why}"),
        (Ok(_), Some(off)) if off.is_empty() => "; its feature gates are on".to_owned(),
        (Ok(_), off) => format!(
            "; feature gates that are off: {}",
            off.iter().flatten().copied().collect::<Vec<_>>().join(", ")
        ),
    };
    let found = format!("{said}{emulating}{gates_said}");
    let is_off = off.is_some_and(|off| !off.is_empty());
    let list = GATES.join(", ");
    if (major, minor) >= (WANTED.0, WANTED.1) {
        if is_off {
            return row(found).but(
                Status::Fail,
                "without these feature gates, Kubernetes does not support claims for GPU fractions",
                format!("turn on {list} in API server, scheduler, controller manager and kubelets, or {CARRIERS}"),
            );
        }
        return if (major, minor, patch) >= WANTED {
            row(found)
        } else {
            row(found).but(
                Status::Warn,
                "if one GPU has MIG instances and fractions, the scheduler may allocate it twice (kubernetes#139040); the node then refuses the second pod",
                "upgrade to 1.36.2 or newer, or use each GPU either for MIG instances or for fractions",
            )
        };
    }
    if (major, minor) >= WITH_GATES {
        let (status, means) = match gates {
            Ok(_) if !is_off => (
                Status::Warn,
                "the feature gates are alpha in this release, and Divvy is not tested with them",
            ),
            _ => (
                Status::Fail,
                "claims for GPU fractions need feature gates that are alpha and off by default in this release",
            ),
        };
        return row(found).but(
            status,
            means,
            format!("upgrade to 1.36.2, or {CARRIERS}, or turn on {list} in all components (not possible in managed clusters)"),
        );
    }
    if (major, minor) >= FOR_CARRIERS {
        row(found).but(
            Status::Fail,
            "this release has no claims for GPU fractions",
            format!("upgrade to 1.36.2, or {CARRIERS}"),
        )
    } else {
        row(found).but(
            Status::Fail,
            "this release supports neither claims for GPU fractions nor carrier mode",
            "upgrade to 1.36.2; carrier mode needs 1.30",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(version: &str) -> Result<Info, String> {
        Ok(Info {
            git_version: version.to_owned(),
            ..Info::default()
        })
    }

    fn unread() -> Result<BTreeMap<String, bool>, String> {
        Err("forbidden".to_owned())
    }

    fn with(on: &[&str]) -> Result<BTreeMap<String, bool>, String> {
        Ok(on.iter().map(|gate| ((*gate).to_owned(), true)).collect())
    }

    #[test]
    fn versions_are_read_as_vendors_write_them() {
        assert_eq!(parse("v1.36.2"), Some((1, 36, 2)));
        assert_eq!(parse("v1.35.0-eks-113cf36"), Some((1, 35, 0)));
        assert_eq!(parse("1.34"), Some((1, 34, 0)));
        assert_eq!(parse("v1.36.2+k3s1"), Some((1, 36, 2)));
        assert_eq!(parse("main"), None);
    }

    #[test]
    fn each_release_has_its_way_or_is_said_to_have_none() {
        let status = |version: &str| server(&info(version), &unread(), false).status;
        assert_eq!(status("v1.36.2"), Status::Ok);
        assert_eq!(status("v1.37.0"), Status::Ok);
        assert_eq!(status("v1.36.1"), Status::Warn);
        for (version, advice) in [
            ("v1.35.3", "carrier mode"),
            ("v1.34.2", "DRAConsumableCapacity"),
            ("v1.31.0", "carrier mode"),
            ("v1.29.0", "carrier mode needs 1.30"),
        ] {
            let row = server(&info(version), &unread(), false);
            assert_eq!(row.status, Status::Fail, "{version}");
            assert!(row.fix.contains(advice), "{version}: {}", row.fix);
        }
        assert_eq!(status("unknown"), Status::Unknown);
        assert_eq!(
            server(&Err("no".to_owned()), &unread(), false).status,
            Status::Unknown
        );
    }

    #[test]
    fn carriers_need_no_claims() {
        assert_eq!(server(&info("v1.31.0"), &unread(), true).status, Status::Ok);
        assert_eq!(
            server(&info("v1.29.0"), &unread(), true).status,
            Status::Fail
        );
    }

    #[test]
    fn gates_that_can_be_read_count() {
        let row = server(&info("v1.36.2"), &with(&["DRAConsumableCapacity"]), false);
        assert_eq!(row.status, Status::Fail);
        assert!(
            row.found
                .contains("off: DRAPartitionableDevices, DRAExtendedResource"),
            "{}",
            row.found
        );
        assert_eq!(
            server(&info("v1.34.2"), &with(&GATES), false).status,
            Status::Warn
        );
        let metrics = "# HELP x\nkubernetes_feature_enabled{name=\"A\",stage=\"BETA\"} 1\n\
                       kubernetes_feature_enabled{name=\"B\",stage=\"\"} 0\nother 1\n";
        assert_eq!(
            gates(metrics),
            BTreeMap::from([("A".to_owned(), true), ("B".to_owned(), false)])
        );
    }

    #[test]
    fn a_server_that_emulates_an_older_one_is_that_one() {
        let emulating = Info {
            emulation_minor: Some("35".to_owned()),
            ..info("v1.36.2").unwrap()
        };
        let row = server(&Ok(emulating), &unread(), false);
        assert_eq!(row.status, Status::Fail);
        assert!(row.found.contains("emulating 1.35"));
    }
}
