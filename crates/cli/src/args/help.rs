//! Help texts besides the flags: groups of verbs, examples, exit codes.

/// Every visible verb, in one group.
pub const GROUPS: &[(&str, &[&str])] = &[
    (
        "Run programs",
        &[
            "run", "submit", "docker", "slice", "shell", "exec", "attach",
        ],
    ),
    (
        "Show state",
        &[
            "top", "web", "ps", "gpus", "queues", "projects", "usage", "describe", "logs", "events",
        ],
    ),
    (
        "Explain and change",
        &[
            "why", "oom", "advise", "resize", "move", "hold", "release", "change", "wait",
            "cancel", "requeue", "suspend", "resume",
        ],
    ),
    (
        "Serve and check",
        &[
            "daemon",
            "config",
            "doctor",
            "selftest",
            "simulate",
            "admin",
            "completion",
        ],
    ),
];

pub(super) const EXAMPLES: &str = "\
Examples:
  divvy run --gpu-memory 4G -- python train.py
  divvy run --sim a100-80gb:3 -g 0.25 -- nvidia-smi -L   without a GPU
Environment: DIVVY_HOME=DIR (private instance), DIVVY_SIM=MODEL:N (no GPUs).";

pub(super) const RUN: &str = "\
Starts a daemon for you if none runs. Ctrl-C removes a pending job from the queue.
Exit code: the program's; 125 if Divvy could not start it, 126 if it is not executable, 127 if it does not exist, \
128+N if signal N ended it.

  divvy run -g 0.25 -- python train.py            a quarter of a GPU
  divvy run --gpu-memory 4G -- python train.py    4 GiB of a GPU
  divvy run -g 2 -- torchrun train.py             two whole GPUs
  divvy run -g 1-4 -- python sweep.py             one to four whole GPUs, as many as are free
  divvy run --mig-profile 2g.10gb -- ./serve      a MIG instance of that profile";

pub(super) const PS: &str = "\
-a, --since and ended states show STARTED, ENDED, ELAPSED (how long the program ran) and PEAK (the most GPU memory it used). A \
pipe gets every column. In a narrow terminal REASON moves below its row; then QUEUE, REQ, STARTED, ENDED and USER go. NO_COLOR=1 \
turns colours off, CLICOLOR_FORCE=1 keeps them in a pipe.

  divvy ps --me                       your own jobs
  divvy ps -s failed --since 2d       what failed since the day before yesterday
  divvy ps -a -n 20 --sort -ended     the last 20 jobs to end
  divvy ps --watch                    a table that stays up to date";

pub(super) const USAGE: &str = "\
GPU HOURS: held hours; a quarter of a GPU for four hours counts as one. IDLE: held, measured and not used. UNKNOWN: held and \
not measured. USED: hours in which a kernel ran, by the driver's samples; it can exceed the held hours. You see your own \
jobs, operators see all jobs. OF MACHINE: part of the time of all GPUs. UNUSED: held memory beyond the job's highest use. \
ENERGY: of the GPUs, by share and time; ~ is partly an estimate. Days are those of this machine's time zone (TZ).

  divvy usage --by user,project --since 30d
  divvy usage --by day,user --since 7d
  divvy usage --by user,month --since 365d -o csv
  divvy usage --by job --since 2026-11-01 --until 2026-12-01 -o json";

pub(super) const TOP: &str = "\
h lists all keys, and q leaves. Enter opens the page of a job, / filters, o and a letter sort. x cancels, s suspends and r resizes \
the selected job: each shows its command and asks once.

  divvy top
  divvy top --filter user:ana --readonly
  divvy top -1
  divvy top -o ndjson --interval 10s";

pub(super) const WEB: &str = "\
Prints an address with a fresh token, and serves the page until Ctrl-C. The page calls the daemon as you, so it shows what `divvy ps` \
shows you. From a laptop, type the second line there first. Without --allow-actions the page changes nothing.

  divvy web
  divvy web --port 8080 --allow-actions
  divvy web -o json";

pub(super) const SUBMIT: &str = "\
#DIVVY and #SBATCH lines of a script are flags. Starts a daemon if none runs.
  divvy submit --gpu-memory 4G --name eval --after-ok train -- python eval.py
  id=$(divvy submit --parsable --array 0-9%2 job.sh) && divvy wait $id";

pub(super) const EXEC: &str = "\
The program runs with the job's limits, GPUs, user, variables, folder and container. Its memory counts against the job's limit. \
It ends with the job, or when the connection breaks. Only the owner of the job and admins may use this.
Exit code: the program's; 125, 126 and 127 as for `divvy run`.

  divvy exec train -- nvidia-smi
  divvy exec 7 -- py-spy dump --pid 1234";

pub(super) const SLICE_CREATE: &str = "\
Holds exactly these GPUs, or fails at once: exit code 5 if the slice can never fit, 6 if it does not fit now. The same call again \
changes nothing; another request under the name of a held slice fails with 8. With --wait, a call that would fail with 6 is repeated. \
Without --pid and --cgroup, only `divvy slice rm` and a reboot release it. Processes that still use a GPU keep their limit until they are gone. Requires the role admin, which you have in a \
daemon of your own.

  divvy slice create eval --gpus-on 0 -g 0.25 --pid $$
  divvy slice create slurm-7 --gpus-on 0,1 --gpu-memory 8G --user ana \\
                     --cgroup /sys/fs/cgroup/system.slice/slurmstepd.scope/job_7";

pub(super) const SLICE_ENTER: &str = "\
The process becomes the program, with your user and folder. As root, the limiter lies in front of the driver in a mount namespace of \
the program's own; otherwise LD_PRELOAD loads the limiter. Needs no running daemon. Any number of processes may enter.
Exit code: the program's; 125, 126 and 127 as for `divvy run`; 3 if there is no such slice.

  divvy slice enter eval -- python eval.py
  divvy slice enter slurm-7 -- setpriv --reuid ana --regid ana --init-groups ./step";

pub(super) const SLICE_ENV: &str = "\
shell: export lines with the preload. json: the form, the variables and, for root, the mounts in order, for a program that makes them \
itself.

  eval \"$(divvy slice env eval)\"
  divvy slice env slurm-7 -o json";

pub(super) const SLICE_LS: &str = "\
ENDS: what releases the slice besides `divvy slice rm`. Below the role operator you see your own slices.

  divvy slice ls
  divvy slice ls -o json";

pub(super) const SLICE_RM: &str = "\
Releases your own slices, with the role operator all. Processes that still use a GPU get the daemon's grace, and then SIGKILL.

  divvy slice rm slurm-7";

pub(super) const SHELL: &str = "\
The prompt of bash, zsh, fish and sh shows the job. Divvy releases the slice when the shell ends. With the system's daemon and in \
containers the shell opens inside the job, as with `divvy exec`.

  divvy shell -g 0.25      a shell with a quarter of a GPU
  divvy shell train        a shell inside job `train`";

pub(super) const ATTACH: &str = "\
Prints the job's output from now on. Ctrl-C and other signals go to the program; to leave without stopping it, close the terminal \
or use --no-signals. The input of a submitted job is empty; `divvy shell JOB` opens a shell inside it.
Exit code: the job's.";

pub(super) const DOCKER_RUN: &str = "\
Slice flags: -g, --gpu, --gpu-memory, --gpu-memory-exact, --mig-profile, --isolation, --compute, --latency, --name, --queue, --project, \
--gpus-on, --no-wait, --sim; see `divvy run --help`. All other flags before the image are those of `docker run`. Divvy refuses \
flags that would bypass the slice (--gpus, --privileged, --device, …: exit code 4). It removes the container when it has ended; \
with -d it prints the container's id and returns.

  divvy docker run --gpu-memory 8G -it --rm nvidia/cuda:12.3.2-base-ubuntu22.04
  divvy docker run -g 0.5 -v $PWD:/work -w /work my/image python train.py";

pub(super) const DOCKER_SLICE: &str = "\
For programs that start containers themselves. Waits for the slice, adds its flags after `run` and becomes `docker run`. The slice is \
released when the container has ended. Slice flags: -g, --gpu, --gpu-memory, --compute, --latency, --name, --queue, --project, --gpus-on, \
--no-wait, --sim; see `divvy run --help`. With --no-daemon, only programs started with that flag count each other's slices. \
Divvy refuses flags that would bypass the slice (exit code 4), also --gpus; use --gpus-on instead.

  divvy docker slice -g 0.5 --gpus-on 2 -- docker run --rm my/image";

pub(super) const DOCKER_ARGS: &str = "\
For containers that another program starts: the slice of an existing job limits them. Divvy neither stops nor removes them.

  eval docker run $(divvy docker args 7) my/image python train.py";

pub(super) const WAIT: &str = "\
Exit code: the job's; for several jobs the first that is not 0, in the given order. An array has ended when all of its jobs \
have ended; its exit code is that of the lowest index that failed.";

pub(super) const ADVISE: &str = "\
The advice is the largest need of the newest 50 ended runs of the same program, refused allocations included. Divvy adds a tenth \
and rounds up to 256 MiB. Without earlier runs there is no advice (exit code 3). Without arguments: every program that has run.

  divvy advise last
  divvy advise --name 'train*'
  divvy advise -- python train.py";

pub(super) const RESIZE: &str = "\
A larger size takes effect at once if the GPU has room (else exit code 6). A smaller limit takes effect at once too, but the \
job keeps the memory that it uses. Other jobs get the difference when the job's use fits the new size.

  divvy resize last --gpu-memory 12G
  divvy resize train -g 0.5
  divvy resize train --compute strict=0.25";

pub(super) const MOVE: &str = "\
A job keeps its age: in the new queue it comes before jobs that were submitted later. A job with the fixed amount of its old queue \
gets that of the new one. --top moves a job before all jobs of equal priority if an operator uses it, else before your own other jobs.

  divvy move 12 -q quarter_gpu
  divvy move train --top
  divvy move 12 -q half_gpu -g 0.5";

pub(super) const HOLD: &str = "\
A held job delays no other jobs, except those that depend on it. If an operator has held another user's job, only operators can \
release it. For a running job use `divvy suspend`.

  divvy hold 12 13
  divvy release 12";

pub(super) const CHANGE: &str = "\
Applies all changes or none. For a running job, only the time limit and the name can change; only operators can extend the limit. \
To change the amount of a running job, use `divvy resize`.

  divvy change 12 --priority -5 --time 2h
  divvy change last -g 0.25";

pub(super) const SUSPEND: &str = "\
With --release-memory the driver copies the job's GPU memory to host memory (from driver 570; not verified on hardware). \
`divvy resume` restores it to the same GPUs as soon as they have room. Memory that the driver cannot copy stays on the GPU; \
`divvy describe` shows why.

  divvy suspend --release-memory train
  divvy resume train";

pub(super) const PARK: &str = "\
The driver copies the memory to host memory, and the job holds no GPU until `divvy wake` (not verified on hardware). Its next \
call that needs the GPU waits until then. Divvy refuses jobs that the driver cannot save: those with managed memory or memory \
shared between processes, in MIG instances or in containers.

  divvy park notebook
  divvy wake notebook";

pub(super) const DAEMON: &str = "\
Queues are served in the order of --queue, then `default`. All other options are keys of the file, which \
`divvy config init` lists and --set sets.

  divvy daemon --gpus 0-2 --queue dual_gpus=2 half_gpu=0.5 open
  divvy daemon --dynamic-gpus --gpus 0-2 --queue half_gpu=0.5 --docker --clearml
  divvy daemon --sim a100-80gb:3 --detached";

pub(super) const CONFIG_INIT: &str = "\
Each key has its meaning, and its default or an example. The file changes nothing until you remove the `#` before a key. Exit code: 8 if \
the file exists.

  divvy config init
  divvy config init ./config.toml";

pub(super) const CONFIG_CHECK: &str = "\
Needs no daemon. Prints each problem with file, line and column. A queue that can never start a job is found when the daemon \
reads the file, because this depends on its GPUs. Exit code: 2 if the file has problems.

  divvy config check
  divvy config check --system ./config.toml";

pub(super) const CONFIG_SHOW: &str = "\
Shows the values of the running daemon, else those of the file. ORIGIN: the line of the file, the flag, or default. A value that \
the daemon applies with its next start is marked `after a restart`. Only admins can see the values of the system's daemon.

  divvy config show --defaults
  divvy config show --config ./config.toml -o json";

pub(super) const CONFIG_RELOAD: &str = "\
If anything in the file is wrong, the daemon keeps all former values (exit code 2 or 8). Running jobs continue. Some keys need a \
restart of the daemon; the command names them. SIGHUP to the daemon does the same. Needs the role admin.

  divvy config check && divvy config reload";

pub(super) const DOCTOR: &str = "\
Changes nothing, and needs neither a daemon nor a GPU. Each finding is ok, warn or fail, with its effect and a remedy. Exit code: 1 \
if a problem keeps jobs from running or limits from holding, else 0.";

pub(super) const SELFTEST: &str = "\
Runs a program in a new slice. It allocates memory through each function of the driver until an allocation is refused. Memory that \
processes share is not tested. Exit code: 0 if the limit held for every function and every view shows the slice, else 1.

  divvy selftest                     on the GPU that a job would get
  divvy selftest --all -o json       on every GPU, for programs
  divvy selftest --sim a100-80gb:1   without a GPU";

pub(super) const SIMULATE: &str = "\
Needs no GPU. The manual page, divvy-simulate(1), has all flags and policies.

  divvy simulate pods.csv --nodes nodes.csv --policy best-fit,fgd,learned
  divvy ps -a -o ndjson | divvy simulate - --gpus a100-80gb:2,+2xa100-80gb
  divvy simulate --job -g 0.5              how long would this job wait?";

pub(super) const SIMULATE_STUDIES: &str = "\
Two studies, with the code that places real jobs. Neither needs a GPU.

Packing: which node each job goes to. fill: no job leaves; GPUs unallocated in % when jobs have asked for 90 to 130 % of them. \
departures: jobs come and go. DIFFERENCE: to the first row, in percentage points. Policies: best-fit, fgd (USENIX ATC 2023), \
learned, queue (all jobs wait, and patterns choose).

Waits: p50 and p90 by queue and amount, before a change and after it. Without JOBS, the daemon's own jobs and GPUs.

  divvy simulate pods.csv --nodes nodes.csv --policy best-fit,fgd,learned
  divvy simulate pods.csv --nodes nodes.csv --mode departures --load 0.9
  divvy ps -a -o ndjson | divvy simulate - --gpus a100-80gb:2,+2xa100-80gb
  divvy simulate --job -g 0.5                    how long would this job wait?";

pub(super) const ADMIN_INIT: &str = "\
Keys without a flag keep their defaults. As root it writes the file of the system's daemon, else the file of your own daemon. Then it \
starts the daemon by systemd, or prints the command, and prints a message for users.

  divvy admin init --queue half=0.5 whole=1 --admin ana --project vision=2.5:@vision --motd /etc/motd.d/divvy";

pub(super) const ADMIN_GPU: &str = "\
The driver changes MIG mode only while no process uses the GPU, and other modes need a GPU without jobs. If jobs or processes use it, \
Divvy lists them and changes nothing (exit code 8). Needs root for MIG.
`--mode unmanaged` has no such condition: running jobs continue, no job starts, and requests that only this GPU fits are refused. For a \
time, as for a driver update, use `divvy admin drain`: then jobs wait.

  divvy admin gpu 0 --mode mig --dry-run
  divvy admin gpu 0 --mode mig";

pub(super) const ADMIN_DRAIN: &str = "\
Running jobs continue. Jobs that only these GPUs fit wait, and `divvy why` shows the reason. It lasts until `divvy admin undrain` or the \
time of `--until`, also over restarts of the daemon and of the machine.

  divvy admin drain 0 --reason \"driver update\" --until 18:00
  divvy admin drain --reason \"maintenance\"";

pub(super) const ADMIN_UNDRAIN: &str = "\
Returns GPUs that the daemon took out of service for a fault, too. If their contexts still fail, the daemon takes them out again.

  divvy admin undrain 0
  divvy admin undrain";

pub(super) const JOURNAL_COPY: &str = "\
Writes the copy into the folder `copies` next to the journal, whether or not a daemon runs. Keeps the newest three copies.

  divvy admin journal copy";

pub(super) const JOURNAL_RESTORE: &str = "\
Keeps the old journal under another name. When the daemon starts, it recovers newer changes from the job records: running jobs keep \
their GPUs, and no job runs twice. Jobs that were submitted after the copy and have not started are lost. Exit code: 8 while a \
daemon runs.

  divvy daemon --stop
  divvy admin journal restore ~/.local/state/divvy/copies/state-20260102T030405Z.db";

pub(super) const PROJECT: &str = "\
Jobs within their project's quota are served first and never preempted. Projects share the GPUs beyond all quotas by weight, for \
jobs that may be preempted: `divvy submit --preemptible`.

  divvy admin project add vision --quota 3 --limit 6 --members ana,@vision
  divvy admin project set vision --quota 2.5 --weight 2
  divvy projects";

pub(super) const MIG_PLAN: &str = "\
Changes and reserves nothing. Idle instances count as free. Exit code: 6 if the instances do not all fit now, 5 if they never fit.

  divvy admin mig plan 1g.5gb 1g.5gb 3g.20gb";

pub(super) const COMPLETION: &str = "\
Completes verbs, flags, and the jobs, queues, projects and GPUs of the running daemon. Add the line for your shell to its start file:

  ~/.bashrc                    source <(divvy completion bash)
  ~/.zshrc                     source <(divvy completion zsh)
  ~/.config/fish/config.fish   divvy completion fish | source";

/// Command lines of the parser's examples.
pub fn examples() -> impl Iterator<Item = &'static str> {
    let lines = EXAMPLES.lines().filter(|line| line.starts_with("  "));
    lines.map(str::trim)
}
