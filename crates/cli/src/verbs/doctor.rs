//! `doctor`: what the agent's side of the program finds out about this machine, and whether a daemon serves.

use std::process::ExitCode;

use divvy_api::v1::{Error, ErrorCode, Finding, FindingStatus, Node};

use super::{Outcome, block_on, client};
use crate::output::{print, view};
use crate::{Backend, args, render};

pub fn doctor(args: &args::Doctor, backend: Backend) -> Outcome {
    // Without a home there is nobody to ask, which is a finding already.
    let node = match client() {
        Ok(client) => Some(block_on(async { Ok(client.node().await) })?),
        Err(_) => None,
    };
    // What the daemon serves is what its jobs get: simulated GPUs need no driver here.
    let served = node
        .iter()
        .flatten()
        .find_map(|node| node.simulated.clone());
    let sim = args.sim.clone().or(served);
    let mut findings = (backend.doctor)(sim.as_deref());
    findings.extend(node.as_ref().map(daemon));
    print(render::list(
        &findings,
        args.read.output,
        view(),
        render::findings,
    )?)?;
    let failed = |finding: &Finding| finding.status == FindingStatus::Fail;
    Ok(if findings.iter().any(failed) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Whether a daemon serves this instance, and whether it is this program's.
fn daemon(node: &Result<Node, Error>) -> Finding {
    let ours = env!("CARGO_PKG_VERSION");
    let finding = |status, found: String, means: &str, fix: &str| Finding {
        check: "daemon".to_owned(),
        status,
        found,
        means: means.to_owned(),
        fix: fix.to_owned(),
    };
    match node {
        Ok(node) if node.version == ours => finding(
            FindingStatus::Ok,
            match &node.simulated {
                None => format!("pid {} serves, version {ours}", node.pid),
                Some(models) => format!(
                    "pid {} serves, version {ours}; its GPUs are simulated ({models}), and such were looked at",
                    node.pid
                ),
            },
            "",
            "",
        ),
        Ok(node) => finding(
            FindingStatus::Warn,
            format!(
                "pid {} serves, version {}; this is {ours}",
                node.pid, node.version
            ),
            "what is new in this version is not there until the daemon is",
            "divvy daemon --stop, then start it again: jobs that run go on",
        ),
        Err(error) if error.code == ErrorCode::NoDaemon => finding(
            FindingStatus::Ok,
            "none runs; `divvy run` and `submit` start one".to_owned(),
            "",
            "",
        ),
        Err(error) => finding(
            FindingStatus::Fail,
            error.message.clone(),
            "commands cannot reach the daemon",
            error
                .hint
                .as_deref()
                .unwrap_or("divvy daemon --stop, then start it again"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_of_another_version_is_a_warning_and_none_is_not() {
        let node = |version: &str| {
            let node = format!(
                r#"{{"hostname":"h","version":"{version}","pid":7,"driver_version":"1","simulated":null,
                "order":"strict","backfill":false,"home":"/h"}}"#
            );
            Ok(serde_json::from_str(&node).unwrap())
        };
        assert_eq!(daemon(&node("0.0.1")).status, FindingStatus::Warn);
        assert_eq!(
            daemon(&node(env!("CARGO_PKG_VERSION"))).status,
            FindingStatus::Ok
        );
        let none = Err(Error::new(ErrorCode::NoDaemon, "nobody answers"));
        assert_eq!(daemon(&none).status, FindingStatus::Ok);
        let broken = Err(Error::new(ErrorCode::Internal, "it talks nonsense"));
        assert_eq!(daemon(&broken).status, FindingStatus::Fail);
    }
}
