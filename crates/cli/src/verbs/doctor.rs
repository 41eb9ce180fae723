//! `doctor`: diagnostics of this machine from the agent's side of the program, and of the running daemon.

mod engines;

use std::process::ExitCode;

use divvy_api::home::Home;
use divvy_api::v1::{Error, ErrorCode, Finding, FindingStatus, Gpu, Node, UnknownJob};

use crate::call::{Outcome, block_on, client};
use crate::output::{print, view};
use crate::{Backend, args, render, text};

pub fn doctor(args: &args::Doctor, backend: Backend) -> Outcome {
    // Without a home there is no daemon to call, which another finding already reports.
    let (node, gpus) = match client() {
        Ok(client) => block_on(async {
            let node = client.node().await;
            let gpus = match &node {
                Ok(_) => client.gpus().await.unwrap_or_default(),
                Err(_) => Vec::new(),
            };
            Ok((Some(node), gpus))
        })?,
        Err(_) => (None, Vec::new()),
    };
    // Jobs of a daemon with simulated GPUs need no driver on this machine.
    let served = node
        .iter()
        .flatten()
        .find_map(|node| node.simulated.clone());
    let sim = args.sim.clone().or(served);
    let mut findings = (backend.doctor)(sim.as_deref());
    let is_installed = Home::to_call().is_ok_and(|home| home.is_systems());
    findings.extend(node.as_ref().map(|node| daemon(node, is_installed)));
    let running = node.as_ref().and_then(|node| node.as_ref().ok());
    let (configured, absent) = config(running, backend);
    findings.extend(configured);
    findings.extend(accounts(&absent));
    findings.extend(node.iter().flatten().filter_map(journal));
    findings.extend(node.iter().flatten().filter_map(start));
    findings.extend(node.iter().flatten().filter_map(not_ready));
    findings.extend(node.iter().flatten().filter_map(listener));
    findings.extend(limits(&gpus));
    findings.extend(out_of_service(&gpus));
    findings.extend(
        (node.iter().flatten()).filter_map(|node| engines::finding(node, &engines::found())),
    );
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

/// What holds the memory limits on each GPU of the daemon, and why it is not the driver.
fn limits(gpus: &[Gpu]) -> Option<Finding> {
    let one = |gpu: &Gpu| {
        let reason = gpu.enforcement_reason.as_ref();
        let reason = reason.map_or(String::new(), |why| format!(" ({})", text::clean(why)));
        format!(
            "GPU {}: {}{reason}",
            gpu.index,
            text::enforcer(&gpu.enforcement)
        )
    };
    let all: Vec<String> = gpus.iter().map(one).collect();
    (!all.is_empty()).then(|| Finding {
        check: "limits".to_owned(),
        status: FindingStatus::Ok,
        found: format!("memory limits are held by: {}", all.join("; ")),
        means: String::new(),
        fix: String::new(),
    })
}

/// Whether a daemon serves this instance, and whether it is this program's. `is_installed`: where it is the system's and none serves.
fn daemon(node: &Result<Node, Error>, is_installed: bool) -> Finding {
    let ours = divvy_api::version::program();
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
                None => format!("running (pid {}), version {ours}", node.pid),
                Some(models) => format!(
                    "running (pid {}), version {ours}, with simulated GPUs ({models}); doctor checked simulated GPUs, too",
                    node.pid
                ),
            },
            "",
            "",
        ),
        Ok(node) => finding(
            FindingStatus::Warn,
            format!(
                "running (pid {}), version {}; this client is {ours}",
                node.pid, node.version
            ),
            "features of the client's version are missing until the daemon is restarted",
            "divvy daemon --stop, then start it again; running jobs are not affected",
        ),
        Err(error) if error.code == ErrorCode::NoDaemon && is_installed => finding(
            FindingStatus::Fail,
            error.message.clone(),
            "the system's daemon is installed but not running, so `divvy run` and `submit` fail",
            error.hint.as_deref().unwrap_or("systemctl status divvy"),
        ),
        Err(error) if error.code == ErrorCode::NoDaemon => finding(
            FindingStatus::Ok,
            "not running; `divvy run` and `submit` start it".to_owned(),
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

/// The configuration file of the running daemon; without one, whether the next daemon could read its file. And what it
/// names that the user database does not have.
fn config(node: Option<&Node>, backend: Backend) -> (Option<Finding>, Vec<String>) {
    let finding = |status, found: String, means: &str, fix: String| Finding {
        check: "config".to_owned(),
        status,
        found,
        means: means.to_owned(),
        fix,
    };
    if let Some(node) = node {
        let found = (node.config_file.as_ref()).map(|file| {
            let found = format!("the daemon has read {file}");
            finding(FindingStatus::Ok, found, "", String::new())
        });
        return (found, node.config_warnings.clone());
    }
    match super::config::of_next_daemon() {
        Ok(configured) => {
            let found = configured.file().map(|file| {
                let found = format!("{} is correct", file.display());
                finding(FindingStatus::Ok, found, "", String::new())
            });
            (found, (backend.absent_accounts)(&configured))
        }
        Err(error) => {
            let fix = format!(
                "divvy config check {} shows all problems",
                error.path.display()
            );
            let means = "the daemon refuses to start";
            let found = Error::from(&error).message;
            let failed = finding(FindingStatus::Fail, found, means, fix);
            (Some(failed), Vec::new())
        }
    }
}

/// Users and groups of the configuration that do not exist.
fn accounts(absent: &[String]) -> Option<Finding> {
    (!absent.is_empty()).then(|| Finding {
        check: "config.accounts".to_owned(),
        status: FindingStatus::Warn,
        found: absent.join("; "),
        means: "the roles, projects and rules for these names apply to no account".to_owned(),
        fix: format!("{}; then divvy config reload", super::config::ABSENT_HINT),
    })
}

/// Whether the daemon found jobs that its journal did not have when it started.
fn journal(node: &Node) -> Option<Finding> {
    let journal = node.journal.as_ref()?;
    let restore = format!(
        "`divvy daemon --stop`, then `divvy admin journal restore FILE` with a copy from {}/copies",
        node.home
    );
    let (status, found, means, fix) = match (journal.unknown.as_slice(), journal.recovered) {
        ([], 0) => (
            FindingStatus::Ok,
            "it contains every running job".to_owned(),
            "",
            String::new(),
        ),
        ([], count) => (
            FindingStatus::Warn,
            format!(
                "at its start, the daemon recovered {count} jobs from their records, because the journal lacked them"
            ),
            "the journal was lost, truncated or restored; newer pending or ended jobs may be missing",
            restore,
        ),
        (unknown, _) => (
            FindingStatus::Warn,
            unknown
                .iter()
                .map(unknown_job)
                .collect::<Vec<_>>()
                .join("; "),
            "the journal lacks these jobs, and their records are incomplete; their GPUs stay reserved until they end",
            format!("end their processes, or {restore}"),
        ),
    };
    Some(Finding {
        check: "journal".to_owned(),
        status,
        found,
        means: means.to_owned(),
        fix,
    })
}

/// What the daemon found missing when it started, or different from the start before.
fn start(node: &Node) -> Option<Finding> {
    (!node.start_warnings.is_empty()).then(|| Finding {
        check: "start".to_owned(),
        status: FindingStatus::Warn,
        found: node.start_warnings.join("; "),
        means: "the daemon serves the other GPUs; jobs that need a missing one wait for it".to_owned(),
        fix: "nvidia-smi -L lists the GPUs of this machine, and divvy gpus those of the daemon; it forgets a missing one \
              after 30 days"
            .to_owned(),
    })
}

/// Why the daemon starts no job now, by its own word: it looks at its own folders.
fn not_ready(node: &Node) -> Option<Finding> {
    let why = node.not_ready.clone()?;
    Some(Finding {
        check: "daemon.ready".to_owned(),
        status: FindingStatus::Fail,
        found: why,
        means: "the daemon starts no job; running jobs continue".to_owned(),
        fix: format!(
            "look at the disk (df -h {0}; df -i {0}) and the driver (nvidia-smi)",
            node.home
        ),
    })
}

/// The TCP address that the system's daemon cannot have.
fn listener(node: &Node) -> Option<Finding> {
    node.listen_error.as_ref().map(|why| Finding {
        check: "listen".to_owned(),
        status: FindingStatus::Warn,
        found: format!("the daemon {why}"),
        means: "clients over TCP do not reach the daemon, which tries again every few seconds; commands and jobs work"
            .to_owned(),
        fix: "`ss -ltnp` as root names the program: end it, or set listen.listen to a port below 1024, which only root's \
              programs can hold"
            .to_owned(),
    })
}

/// GPUs that get no jobs for a time.
fn out_of_service(gpus: &[Gpu]) -> Option<Finding> {
    let out = gpus.iter().filter_map(|gpu| {
        let why = gpu.out_of_service.as_ref()?;
        Some((gpu, why))
    });
    let out: Vec<_> = out.collect();
    let is_fault = out.iter().any(|(_, why)| why.by.is_none());
    let lines = out.iter().map(|(gpu, why)| {
        let by = why.by.as_deref().unwrap_or("the daemon");
        format!("GPU {} by {by}: {}", gpu.index, why.reason)
    });
    (!out.is_empty()).then(|| Finding {
        check: "gpus.service".to_owned(),
        status: FindingStatus::Warn,
        found: format!("out of service: {}", lines.collect::<Vec<_>>().join("; ")),
        means: "running jobs continue there, and no job starts".to_owned(),
        fix: if is_fault {
            "dmesg and `nvidia-smi -q` say more of a fault; the daemon tests such a GPU again and again, and \
             `divvy admin undrain` returns it at once"
                .to_owned()
        } else {
            "divvy admin undrain".to_owned()
        },
    })
}

/// `#3 runs (pid 4242) and holds GPU 0`
fn unknown_job(unknown: &UnknownJob) -> String {
    let list = |numbers: &[u32]| {
        let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
        numbers.join(", ")
    };
    let pids = match unknown.pids.as_slice() {
        [] => String::new(),
        pids => format!(" (pid {})", list(pids)),
    };
    let gpus = match unknown.gpus.as_slice() {
        [] => "no GPU".to_owned(),
        gpus => format!("GPU {}", list(gpus)),
    };
    format!("#{} runs{pids} and holds {gpus}", unknown.job)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_start_found_missing_is_a_warning_that_names_the_gpu() {
        let text = r#"{"hostname":"h","version":"1","pid":7,"driver_version":"1","simulated":null,
            "order":"strict","backfill":false,"home":"/h"}"#;
        let mut node: Node = serde_json::from_str(text).unwrap();
        assert!(start(&node).is_none());
        node.start_warnings = vec!["GPU 2 (L4, GPU-1) is missing".to_owned()];
        let found = start(&node).unwrap();
        assert_eq!(
            (found.status, found.found.as_str()),
            (FindingStatus::Warn, "GPU 2 (L4, GPU-1) is missing")
        );
    }

    #[test]
    fn a_full_disk_of_the_daemon_is_a_failure_in_the_words_of_the_node() {
        let text = r#"{"hostname":"h","version":"1","pid":7,"driver_version":"1","simulated":null,
            "order":"strict","backfill":false,"home":"/h"}"#;
        let mut node: Node = serde_json::from_str(text).unwrap();
        assert!(not_ready(&node).is_none());
        node.not_ready = Some("the disk is full: 3.0 MiB is free".to_owned());
        let found = not_ready(&node).unwrap();
        assert_eq!(found.status, FindingStatus::Fail);
        assert!(found.fix.contains("df -i /h"), "{}", found.fix);
    }

    #[test]
    fn users_and_groups_that_do_not_exist_are_one_warning_with_their_places() {
        assert!(accounts(&[]).is_none());
        let absent = ["/c.toml:2:1: no user anna", "/c.toml:3:1: no group b"].map(str::to_owned);
        let found = accounts(&absent).unwrap();
        assert_eq!(found.status, FindingStatus::Warn);
        assert_eq!(found.found, absent.join("; "));
    }

    #[test]
    fn jobs_that_the_journal_lacked_are_a_warning_with_a_way_out() {
        let node = |journal: &str| -> Node {
            let node = format!(
                r#"{{"hostname":"h","version":"1","pid":7,"driver_version":"1","simulated":null,
                "order":"strict","backfill":false,"home":"/h","journal":{journal}}}"#
            );
            serde_json::from_str(&node).unwrap()
        };
        assert!(journal(&node("null")).is_none());
        let whole = journal(&node(r#"{"recovered":0,"unknown":[]}"#)).unwrap();
        assert_eq!(whole.status, FindingStatus::Ok);
        let recovered = journal(&node(r#"{"recovered":2,"unknown":[]}"#)).unwrap();
        assert_eq!(recovered.status, FindingStatus::Warn);
        assert!(
            recovered
                .fix
                .contains("restore FILE` with a copy from /h/copies")
        );
        let unknown = r#"{"recovered":0,"unknown":[{"job":"3","pids":[4,5],"gpus":[0]}]}"#;
        let unknown = journal(&node(unknown)).unwrap();
        assert_eq!(unknown.found, "#3 runs (pid 4, 5) and holds GPU 0");
        assert_eq!(unknown.status, FindingStatus::Warn);
    }

    #[test]
    fn a_daemon_of_another_version_is_a_warning_and_none_is_not() {
        let node = |version: &str| {
            let node = format!(
                r#"{{"hostname":"h","version":"{version}","pid":7,"driver_version":"1","simulated":null,
                "order":"strict","backfill":false,"home":"/h"}}"#
            );
            Ok(serde_json::from_str(&node).unwrap())
        };
        assert_eq!(daemon(&node("0.0.1"), false).status, FindingStatus::Warn);
        assert_eq!(
            daemon(&node(&divvy_api::version::program()), false).status,
            FindingStatus::Ok
        );
        let none = Err(Error::new(ErrorCode::NoDaemon, "nobody answers"));
        assert_eq!(daemon(&none, false).status, FindingStatus::Ok);
        assert_eq!(daemon(&none, true).status, FindingStatus::Fail);
        let broken = Err(Error::new(ErrorCode::Internal, "it talks nonsense"));
        assert_eq!(daemon(&broken, false).status, FindingStatus::Fail);
    }
}
