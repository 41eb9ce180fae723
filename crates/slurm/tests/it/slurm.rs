//! A private Slurm on this machine: munged, slurmctld and slurmd in namespaces of their own, where they are installed.

mod exhaustive {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;
    use std::process::Command;

    use divvy_testkit::{Bounded as _, Home, Programs, can_be_users};

    use crate::kit::plugin;

    const NEEDED: [&str; 6] = ["munged", "slurmctld", "slurmd", "srun", "unshare", "ip"];

    fn can_run_slurm() -> bool {
        let is_there = |name: &str| {
            let mut found = Command::new("sh");
            found.args(["-c", "command -v \"$0\"", name]);
            found
                .output_bounded()
                .is_ok_and(|found| found.status.success())
        };
        if let Some(missing) = NEEDED.into_iter().find(|name| !is_there(name)) {
            eprintln!("SKIPPED: {missing} is not installed; no real Slurm is tested here");
            return false;
        }
        can_be_users("no real Slurm is tested here")
    }

    /// Starts everything, runs jobs, and prints a line for each; `$1` is the folder, `$2` the GPU program.
    const SCRIPT: &str = r#"
exec > "$1/out" 2>&1 < /dev/null
set -e
cd "$1"; hostname n1; ip link set lo up; ip addr add 10.9.9.1/24 dev lo; export SLURM_CONF=$1/slurm.conf
mknod dev/nvidia0 c 195 0; mknod dev/nvidia1 c 195 1
head -c 1024 /dev/urandom > munge.key; chmod 400 munge.key
munged --force --key-file=$1/munge.key --socket=$1/munge.socket --pid-file=$1/munged.pid --log-file=$1/munged.log --seed-file=$1/munge.seed
end() { kill $(cat munged.pid slurmctld.pid slurmd.pid 2>/dev/null) 2>/dev/null || true; }
trap end EXIT
slurmctld; slurmd
for try in $(seq 60); do [ "$(sinfo -h -o %T 2>/dev/null)" = idle ] && break; sleep 0.5; done
job() { echo "== $1"; shift; timeout 60 "$@" 2>&1 || true; }
job quarter srun -Q --gres=shard:2 "$2" fill
job eight srun -Q --gres=shard:4 --gpu-memory=8G "$2" fill
job more srun -Q --gres=shard:1 --gpu-memory=20G "$2" fill
job wrong srun -Q --gres=shard:1 --gpu-memory=8Q true
job none srun -Q echo started
job comment sh -c 'scontrol show job | grep -c "Comment=divvy n1: peak"'
for try in $(seq 60); do [ -z "$(squeue -h)" ] && break; sleep 0.5; done
"#;

    fn write(path: &Path, text: &str) {
        fs::write(path, text).expect("a temporary folder");
        let mode = if text.starts_with("#!") { 0o755 } else { 0o644 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a temporary folder");
    }

    fn lay(folder: &Path, home: &Home) {
        let here = folder.display();
        for name in ["dev", "state", "spool"] {
            fs::create_dir(folder.join(name)).expect("a temporary folder");
        }
        let slurm = format!(
            "ClusterName=divvy\nSlurmctldHost=n1(10.9.9.1)\nAuthType=auth/munge\nCredType=cred/munge\n\
             AuthInfo=socket={here}/munge.socket\nSlurmUser=root\nSlurmdUser=root\nStateSaveLocation={here}/state\n\
             SlurmdSpoolDir={here}/spool\nSlurmctldPidFile={here}/slurmctld.pid\nSlurmdPidFile={here}/slurmd.pid\n\
             SlurmctldLogFile={here}/slurmctld.log\nSlurmdLogFile={here}/slurmd.log\nProctrackType=proctrack/linuxproc\n\
             TaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\nSelectType=select/cons_tres\n\
             SelectTypeParameters=CR_CPU\nGresTypes=gpu,shard\nMpiDefault=none\nSlurmdParameters=config_overrides\n\
             PrologFlags=Alloc\nProlog={here}/prolog\nEpilog={here}/epilog\nPlugStackConfig={here}/plugstack.conf\n\
             NodeName=n1 NodeAddr=10.9.9.1 CPUs=4 Gres=gpu:2,shard:16\nPartitionName=p Nodes=n1 Default=YES\n"
        );
        write(&folder.join("slurm.conf"), &slurm);
        write(
            &folder.join("gres.conf"),
            &format!("Name=gpu File={here}/dev/nvidia[0-1]\nName=shard Count=16\n"),
        );
        let program = Programs::of_this_test().path("divvy-slurm");
        for verb in ["prolog", "epilog"] {
            let script = format!(
                "#!/bin/sh\nDIVVY_SLURM_CONFIG={here}/slurm.toml DIVVY_SLURM_RECORDS={here}/records exec {} {verb}\n",
                program.display()
            );
            write(&folder.join(verb), &script);
        }
        let plugstack = format!("required {} records={here}/records\n", plugin().display());
        write(&folder.join("plugstack.conf"), &plugstack);
        let home = home.path().display().to_string();
        write(&folder.join("slurm.toml"), &format!("home = {home:?}\n"));
    }

    #[test]
    fn a_real_slurm_holds_jobs_to_their_shards_and_releases_every_slice() {
        if !can_run_slurm() {
            return;
        }
        let mut home = Home::new("a100-80gb:2").variable("DIVVY_FORM", "");
        home.start(&["--system"]);
        let folder = tempfile::tempdir().expect("a temporary folder");
        lay(folder.path(), &home);
        let mut slurm = Command::new("unshare");
        // With a PID namespace nothing of it outlives the script.
        let apart = [
            "--net",
            "--uts",
            "--mount-proc",
            "--pid",
            "--fork",
            "--kill-child",
        ];
        slurm.args(apart).args(["sh", "-c", SCRIPT, "sh"]);
        slurm.arg(folder.path()).arg(home.program("cudarc_probe"));
        let output = slurm.output_bounded().expect("unshare starts");
        let text = fs::read_to_string(folder.path().join("out")).unwrap_or_default();
        let log = fs::read_to_string(folder.path().join("slurmd.log")).unwrap_or_default();
        let of = |job: &str| {
            let rest = text
                .split(&format!("== {job}\n"))
                .nth(1)
                .unwrap_or_default();
            rest.split("== ").next().unwrap_or_default().to_owned()
        };
        let said = String::from_utf8_lossy(&output.stderr);
        for (job, part) in [
            ("quarter", "refused at the limit of 19.8 GiB"),
            ("quarter", "CUDA_ERROR_OUT_OF_MEMORY"),
            ("eight", "refused at the limit of 8.0 GiB"),
            ("more", "20.0 GiB is more than the job's 1 of 8 shards"),
            ("wrong", "divvy: --gpu-memory 8Q"),
            ("none", "started"),
            ("comment", "2"),
        ] {
            assert!(
                of(job).contains(part),
                "{job}: {part}\n{text}\n{said}\n{log}"
            );
        }
        assert_eq!(home.items(&["slice", "ls"]).len(), 0, "{text}\n{log}");
    }
}
