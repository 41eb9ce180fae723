//! Other queues beside ours, in the same round, where they are installed; nothing is installed for it.
//!
//! Slurm (Debian's `slurmctld`, `slurmd`, `slurm-client` and `munge`) is a cluster of this one machine, in a folder of its own, with eight
//! pretended GPUs of eight shards: it counts them, and holds nobody to anything. HyperQueue (`hyperqueue` of PyPI, for the `python3` of
//! the caller) has fractions, here of processors, and its server and worker in one process with whoever submits. Of both only the time
//! from the first start to the last exit counts, so that how they come to it is their own affair.

use std::fs;
use std::io::Read as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use divvy_e2e::{Home, client_script, until};
use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::queue::read_log;

/// What Slurm needs, by name.
const SLURM: [&str; 6] = ["munged", "slurmctld", "slurmd", "sbatch", "sinfo", "mknod"];

/// Eager: it looks for what can start at every change, and at as many jobs as there are.
const CONFIGURATION: &str = "\
ClusterName=bench
SlurmctldHost=HOST(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=FOLDER/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPort=PORT0
SlurmdPort=PORT1
StateSaveLocation=FOLDER/state
SlurmdSpoolDir=FOLDER/spool
SlurmctldPidFile=FOLDER/slurmctld.pid
SlurmdPidFile=FOLDER/slurmd.pid
SlurmctldLogFile=FOLDER/slurmctld.log
SlurmdLogFile=FOLDER/slurmd.log
SlurmctldDebug=error
SlurmdDebug=error
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,default_queue_depth=10000
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu,shard
SlurmdParameters=config_overrides
NodeName=HOST NodeAddr=127.0.0.1 CPUs=64 Boards=1 SocketsPerBoard=1 CoresPerSocket=64 RealMemory=1000 Gres=gpu:8,shard:64 State=UNKNOWN
PartitionName=main Nodes=HOST Default=YES MaxTime=INFINITE State=UP
";

/// What there is beside us here.
pub struct Peers {
    slurm: Option<Vec<PathBuf>>,
    hyperqueue: bool,
}

impl Peers {
    /// Looks, and says what there is not.
    pub fn find() -> Self {
        let is_root = geteuid().is_root();
        let slurm: Option<Vec<PathBuf>> = SLURM.into_iter().map(found).collect();
        let slurm = slurm.filter(|_| is_root);
        if slurm.is_none() {
            eprintln!(
                "   SKIPPED: Slurm is not beside it: it takes root, slurmctld, slurmd, slurm-client and munge"
            );
        }
        let import = Command::new("python3")
            .args(["-c", "import hyperqueue"])
            .stderr(Stdio::null())
            .status();
        let hyperqueue = import.is_ok_and(|status| status.success());
        if !hyperqueue {
            eprintln!("   SKIPPED: HyperQueue is not beside it: python3 has no module hyperqueue");
        }
        Self { slurm, hyperqueue }
    }

    /// Jobs a second through Slurm's shards, as one array.
    pub fn slurm(&self, home: &Home, jobs: usize) -> Result<Option<f64>> {
        let Some(programs) = &self.slurm else {
            return Ok(None);
        };
        let [munged, slurmctld, slurmd, sbatch, sinfo, mknod] = &programs[..] else {
            return Ok(None);
        };
        let folder = home.scratch().join("slurm");
        let configured = configure(&folder, mknod)?;
        let with = |program: &Path| {
            let mut command = home.command(program);
            command
                .env("SLURM_CONF", &configured)
                .stderr(Stdio::null())
                .stdout(Stdio::null());
            command
        };
        let at = |name: &str| folder.join(name).display().to_string();
        let mut running = Running(Vec::new());
        let mut keys = with(munged);
        // --force: the folder is nobody else's, which it finds too strict.
        keys.args(["--foreground", "--force", "--key-file", &at("key")]);
        keys.args(["--socket", &at("munge"), "--pid-file", &at("munged.pid")]);
        keys.args(["--log-file", &at("munged.log"), "--seed-file", &at("seed")]);
        running.start(&mut keys)?;
        let socket = folder.join("munge");
        until("munge listens", || socket.exists().then_some(()));
        for daemon in [slurmctld, slurmd] {
            running.start(with(daemon).args(["-D", "-c"]))?;
        }
        until("Slurm's node is idle", || {
            let mut ask = with(sinfo);
            ask.args(["-h", "-o", "%T"]).stdout(Stdio::piped());
            let said = ask.output().ok()?;
            (said.stdout == b"idle\n").then_some(())
        });
        let log = folder.join("jobs");
        let script = folder.join("job.sh");
        let job = home.program("job_start");
        fs::write(
            &script,
            format!("#!/bin/sh\nexec {job} {}\n", log.display()),
        )?;
        let mut submit = with(sbatch);
        submit.arg(format!("--array=0-{}", jobs - 1));
        submit.args(["--gres=shard:1", "--ntasks=1", "--output=/dev/null"]);
        ensure!(submit.arg(&script).status()?.success(), "sbatch fails");
        rate(&log, jobs).map(Some)
    }

    /// Tasks a second through HyperQueue, each a job of its own.
    pub fn hyperqueue(&self, home: &Home, jobs: usize) -> Result<Option<f64>> {
        if !self.hyperqueue {
            return Ok(None);
        }
        let log = home.scratch().join("hyperqueue");
        let script = client_script("hyperqueue_jobs.py");
        let status = home
            .command("python3")
            .args([&script, &jobs.to_string(), &home.program("job_start")])
            .arg(&log)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        ensure!(status.success(), "{script} fails");
        rate(&log, jobs).map(Some)
    }
}

/// From the first start to the last exit, once all have run.
fn rate(log: &Path, jobs: usize) -> Result<f64> {
    let lines = until("all jobs have run", || {
        thread::sleep(Duration::from_millis(50));
        let lines = read_log(log);
        (lines.iter().filter(|line| !line.start).count() == jobs).then_some(lines)
    });
    let moments = || lines.iter().map(|line| line.nanoseconds);
    let (first, last) = (moments().min(), moments().max());
    let took = last.zip(first).context("jobs ran")?;
    Ok(jobs as f64 / ((took.0 - took.1) as f64 / 1e9))
}

/// The program of that name, where programs of administrators are, too.
fn found(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    let mut files = folders.map(|folder| folder.join(name));
    files.find(|file| file.is_file())
}

/// A folder for a cluster of this machine; its configuration.
fn configure(folder: &Path, mknod: &Path) -> Result<PathBuf> {
    fs::create_dir_all(folder.join("state"))?;
    fs::create_dir_all(folder.join("spool"))?;
    let mut key = [0; 1024];
    fs::File::open("/dev/urandom")?.read_exact(&mut key)?;
    let key_file = folder.join("key");
    fs::write(&key_file, key)?;
    fs::set_permissions(
        &key_file,
        std::os::unix::fs::PermissionsExt::from_mode(0o400),
    )?;
    for gpu in 0..8 {
        let device = folder.join(format!("gpu{gpu}"));
        // /dev/null's numbers: a GPU of Slurm's is a device, and this one is never opened.
        let made = Command::new(mknod)
            .arg(device)
            .args(["c", "1", "3"])
            .status()?;
        ensure!(made.success(), "mknod fails");
    }
    let host = fs::read_to_string("/proc/sys/kernel/hostname")?;
    let ports = [
        TcpListener::bind("127.0.0.1:0")?,
        TcpListener::bind("127.0.0.1:0")?,
    ];
    let mut text = CONFIGURATION
        .replace("HOST", host.trim())
        .replace("FOLDER", &folder.display().to_string());
    for (number, port) in ports.iter().enumerate() {
        let port = port.local_addr()?.port().to_string();
        text = text.replace(&format!("PORT{number}"), &port);
    }
    let gres = format!(
        "AutoDetect=off\nName=gpu File={}/gpu[0-7]\nName=shard Count=64\n",
        folder.display()
    );
    fs::write(folder.join("gres.conf"), gres)?;
    fs::write(folder.join("cgroup.conf"), "CgroupPlugin=cgroup/v1\n")?;
    let file = folder.join("slurm.conf");
    fs::write(&file, text)?;
    Ok(file)
}

/// Daemons, ended in the reverse order when dropped.
struct Running(Vec<Child>);

impl Running {
    fn start(&mut self, command: &mut Command) -> Result<()> {
        self.0.push(
            command
                .spawn()
                .with_context(|| format!("start {command:?}"))?,
        );
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for mut child in self.0.drain(..).rev() {
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            let _ = child.wait();
        }
    }
}
