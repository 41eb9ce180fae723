//! The processes that may call the daemon of a node: those of its node pods and of no pod.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use divvy_testkit::{Bounded as _, programs, until_async as until};

use crate::kubelet::machine::Machine;

/// A control group of a pod with this uid, in the first hierarchy of the machine that takes one.
pub fn pod_group(uid: &str) -> Option<PathBuf> {
    let parents = ["", "freezer", "pids", "systemd"];
    let mut parents = parents
        .iter()
        .map(|one| Path::new("/sys/fs/cgroup").join(one));
    parents.find_map(|parent| {
        let group = parent.join(format!("pod{uid}"));
        fs::create_dir(&group).ok()?;
        group.join("cgroup.procs").exists().then_some(group)
    })
}

/// The program in a control group from its start on.
pub fn inside(group: &Path, program: &Command) -> Command {
    let mut inside = Command::new("sh");
    inside
        .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
        .arg(group.join("cgroup.procs"))
        .arg(program.get_program())
        .args(program.get_args())
        .envs(
            program
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    inside
}

#[tokio::test(flavor = "current_thread")]
async fn the_daemon_of_a_node_pod_refuses_callers_in_other_pods() {
    let uid = |last: &str| format!("{last}f9a3c1e-5d0b-4a53-9a2e-{:012x}", std::process::id());
    let [own, next, other] = ["3", "4", "5"].map(uid);
    let groups = [&own, &next, &other].map(|uid| pod_group(uid));
    let [Some(in_own), Some(in_next), Some(in_other)] = &groups else {
        eprintln!("SKIPPED: no control groups here");
        return;
    };
    let machine = Machine::new();
    let flag = format!("--node-pod={own}");
    let _daemon = machine.daemon_with("l4-24gb:1", &[&flag], &[]).await;
    let mut ps = Command::new(programs::folder().join("divvy"));
    ps.arg("ps").env("DIVVY_HOME", machine.path().join("home"));
    let in_none = ps.output_bounded().unwrap();
    let call = |group: &Path| inside(group, &ps).output_bounded().unwrap();
    for caller in [in_none, call(in_own)] {
        assert!(caller.status.success(), "{caller:?}");
    }
    let refused = call(in_other);
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{text}");
    let why = format!("the caller runs in pod {other}, which is not the node pod of Divvy");
    assert!(
        text.contains(&why) && text.contains("divvy-k8s ps"),
        "{text}"
    );
    assert!(!call(in_next).status.success());
    // An update: the daemon of the next node pod waits, and the plugin beside it calls this one.
    let flag = format!("--node-pod={next}");
    let _successor = tokio::join!(
        async {
            until("the next node pod is served", async || {
                call(in_next).status.success().then_some(())
            })
            .await;
        },
        async {
            machine
                .daemon_with("l4-24gb:1", &[&flag, "--standby"], &[])
                .await
        },
    )
    .1;
    assert!(!call(in_other).status.success());
    for group in [in_own, in_next, in_other] {
        let _ = fs::remove_dir(group);
    }
}
