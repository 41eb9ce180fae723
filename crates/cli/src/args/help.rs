//! What `--help` says beyond each flag's own line: verbs in groups, examples, exit codes.

use std::fmt::Write as _;

use clap::CommandFactory;

/// Every visible verb, in one group.
const GROUPS: &[(&str, &[&str])] = &[
    (
        "Run programs",
        &["run", "submit", "docker", "shell", "exec", "attach"],
    ),
    (
        "Look",
        &[
            "ps", "gpus", "queues", "projects", "usage", "describe", "logs", "events",
        ],
    ),
    (
        "Understand and act",
        &[
            "why", "oom", "advise", "resize", "move", "hold", "release", "change", "wait",
            "cancel", "requeue", "suspend", "resume",
        ],
    ),
    (
        "Serve and check",
        &[
            "daemon",
            "doctor",
            "selftest",
            "simulate",
            "admin",
            "completion",
        ],
    ),
];

const EXAMPLES: &str = "\
Examples:
  divvy run --gpu-memory 4G -- python train.py
  divvy run --sim a100-80gb:3 -g 0.25 -- nvidia-smi -L   without a GPU
  divvy submit -q half_gpu -- python train.py
  divvy why last
Environment: DIVVY_HOME=DIR, a private instance; DIVVY_SIM=MODEL:N, no GPUs.";

pub(super) const RUN: &str = "\
Starts a per-user daemon when there is none. Ctrl-C while the job waits takes it out of the queue.
Passes the program's exit code; 125 when Divvy could not start it, 126 or 127 when it is not executable or not \
there, 128+N when signal N ended it.

  divvy run -g 0.25 -- python train.py            a quarter of a GPU
  divvy run --gpu-memory 4G -- python train.py    4 GiB of a GPU
  divvy run -g 2 -- torchrun train.py             two whole GPUs
  divvy run -g 1-4 -- python sweep.py             as many whole GPUs as are free, at most four
  divvy run --mig-profile 2g.10gb -- ./serve      a MIG instance of that profile";

pub(super) const USAGE: &str = "\
GPU HOURS are what was held, a quarter of a GPU for four hours being one: IDLE of them were measured and not used, UNKNOWN \
were not measured. USED is when a kernel of theirs ran, by the driver's samples; it may be more than was held. You see your \
own jobs, operators everybody's.

  divvy usage --by user,project --since 30d
  divvy usage --by job --since 2026-11-01 --until 2026-12-01 -o json";

pub(super) const SUBMIT: &str = "\
#DIVVY and #SBATCH lines of a script are flags. Starts a daemon if none runs.

  divvy submit -q half_gpu -- python train.py
  divvy submit --gpu-memory 4G --name eval --after-ok train -- python eval.py
  id=$(divvy submit --parsable --array 0-9%2 job.sh) && divvy wait $id";

pub(super) const EXEC: &str = "\
The program gets what the job's own has: limits, GPUs, user, variables, folder, container. It counts in the job's slice and ends with the \
job, or when the connection breaks. On a terminal it gets one of its own. Only the job's owner and admins may.
Passes the program's exit code; 125, 126 and 127 as `divvy run`.

  divvy exec train -- nvidia-smi
  divvy exec 7 -- py-spy dump --pid 1234";

pub(super) const SHELL: &str = "\
The prompt says which job it is, in bash, zsh, fish and sh. The slice is given back when the shell ends. On the system's daemon and in \
containers the shell is opened inside of the job as by `divvy exec`.

  divvy shell -g 0.25      a shell with a quarter of a GPU
  divvy shell train        a shell beside what job `train` runs";

pub(super) const ATTACH: &str = "\
Prints what the job says from now on. Ctrl-C and other signals go to its program; to leave it alone, close the terminal or use \
--no-signals. Input is not passed on: that of a submitted job is empty. `divvy shell JOB` opens a shell beside it.
Passes the job's exit code.";

pub(super) const DOCKER_RUN: &str = "\
Slice flags: -g, --gpu, --gpu-memory, --gpu-memory-exact, --mig-profile, --isolation, --compute, --name, --queue, --project, \
--gpus-on, --no-wait, --sim; as `divvy run` has them. All others before the image are those of `docker run`, less those that would \
let the container out of its slice (--gpus, --privileged, --device, …: exit code 4). The container is taken away when it has ended; \
with -d it runs on its own, and its id is printed.

  divvy docker run --gpu-memory 8G -it --rm nvidia/cuda:12.3.2-base-ubuntu22.04
  divvy docker run -g 0.5 -v $PWD:/work -w /work my/image python train.py";

pub(super) const DOCKER_SLICE: &str = "\
For whatever starts containers by itself. Waits for the slice, adds its flags behind `run` and becomes `docker run`; the slice is \
free when the container has ended. Slice flags: -g, --gpu, --gpu-memory, --compute, --name, --queue, --project, --gpus-on, --no-wait, \
--sim; as `divvy run` has them. With --no-daemon only runs started this way know of it. \
What would let the container out of its slice is refused (exit code 4), also --gpus: say which GPUs with --gpus-on.

  divvy docker slice -g 0.5 --gpus-on 2 -- docker run --rm my/image";

pub(super) const DOCKER_ARGS: &str = "\
For containers that something else starts: they are held to the slice of a job that is there, and Divvy does not see to them.

  eval docker run $(divvy docker args 7) my/image python train.py";

pub(super) const WAIT: &str = "\
Passes the job's exit code, for several jobs the first that is not 0 in the order given. An array has ended when all of its jobs \
have, and its code is that of the lowest index that is not 0.";

pub(super) const ADVISE: &str = "\
From the newest 50 ended runs of the same program: the most that any of them needed, refused memory included, a tenth more, in \
steps of 256 MiB. Without history there is no advice (exit code 3). Without words: every program that has run.

  divvy advise last
  divvy advise --name 'train*'
  divvy advise -- python train.py";

pub(super) const RESIZE: &str = "\
More is given at once where the GPU has room (else exit code 6). Of less, the limit is in force at once, and what is in use \
stays in use: the rest is given to others when the job uses no more than the new size.

  divvy resize last --gpu-memory 12G
  divvy resize train -g 0.5
  divvy resize train --compute strict=0.25";

pub(super) const MOVE: &str = "\
A job keeps its age: in the other queue it stands before jobs that were submitted later. It gets that queue's own \
amount if it had its queue's own. With --top an operator's job goes before all jobs of equal priority, a user's before the user's other jobs.

  divvy move 12 -q quarter_gpu
  divvy move train --top
  divvy move 12 -q half_gpu -g 0.5";

pub(super) const HOLD: &str = "\
A held job waits and holds up no other; jobs that run after it wait on. What an operator holds of another user's, only \
operators release. A running job is not held: see `divvy suspend`.

  divvy hold 12 13
  divvy release 12";

pub(super) const CHANGE: &str = "\
All of it is done, or nothing. Of a running job only the time limit and the name change; only operators make that \
limit longer. What a running job has is changed by `divvy resize`.

  divvy change 12 --priority -5 --time 2h
  divvy change last -g 0.25";

pub(super) const SUSPEND: &str = "\
With --release-memory the driver copies what a job has on its GPUs into the host's memory (from driver 570; not verified on \
hardware). The job gets its own GPUs back, as soon as they have room. What cannot be released stays, and `divvy describe` says why.

  divvy suspend --release-memory train
  divvy resume train";

pub(super) const DAEMON: &str = "\
Queues listed first are served first; `default`, for the rest, is last.

  divvy daemon --dynamic-gpus --gpus 0-2 --queue dual_gpus=2 half_gpu=0.5
  divvy daemon --dynamic-gpus --gpus 0-2 --queue half_gpu=0.5 --docker --clearml
  divvy daemon --sim a100-80gb:3 --detached";

pub(super) const DOCTOR: &str = "\
Changes nothing and needs no daemon and no GPU. Exits with 1 when something keeps jobs from running or from being held to their \
limits, else with 0. Each finding is ok, warn or fail, with what it means and what to do.";

pub(super) const SELFTEST: &str = "\
A program in a slice of its own takes memory through every function that gives it some of its own (that shared between processes is not \
tried), until it is refused. Exits with 0 when every \
function that this driver offers was refused at the limit and every view shows the slice, else with 1.

  divvy selftest                     on the GPU that a job would get
  divvy selftest --all -o json       on every GPU, for programs
  divvy selftest --sim a100-80gb:1   without a GPU";

pub(super) const SIMULATE: &str = "\
MIG instances come and go on simulated GPUs, placed by the functions that place them on real ones. Needs no daemon and no GPU. A \
request that finds no room is refused and lost. BY LAYOUT: of all requests, those refused though they would have fitted on a GPU had its \
instances lain otherwise. REUSED: of those served, who got an idle instance. DIFFERENCE: of REFUSED to the first row, in points.

Policies: first-fit, spread (emptiest GPU), driver-default (the driver's own start), least-loss (keeps most possible), \
demand-weighted, planner (least-loss with idle instances kept: what the daemon does), optimal (--exact alone), free-repack (all \
instances laid anew at will: a bound).
Mixes: uniform, small, middle, thirds, openb.

  divvy simulate --gpus a100-40gb:8 --load 0.7 --mix small
  divvy simulate --gpus h100-80gb:1 --exact --policy first-fit,least-loss,optimal
  divvy ps -a -o ndjson | divvy simulate - --gpus a30-24gb:2";

pub(super) const ADMIN_GPU: &str = "\
The driver switches MIG mode on and off only while nothing runs on the GPU; what has to end first is named, and nothing is changed \
while there is any (exit code 8). Needs root for MIG.

  divvy admin gpu 0 --mode mig --dry-run
  divvy admin gpu 0 --mode mig";

pub(super) const JOURNAL_COPY: &str = "\
The copy is written beside the journal, in the folder copies, whether or not a daemon serves. The newest three stay.

  divvy admin journal copy";

pub(super) const JOURNAL_RESTORE: &str = "\
The journal that was there is kept under another name. When the daemon starts, it takes what has happened since from the records of \
jobs: jobs that run keep their GPUs, and no job runs twice. Jobs that were submitted since and have not started are lost. Exits \
with 8 while a daemon serves.

  divvy daemon --stop
  divvy admin journal restore ~/.local/state/divvy/copies/state-20260102T030405Z.db";

pub(super) const PROJECT: &str = "\
Within its quota a project is served first, and nobody is stopped for others. What is over goes by weight, to jobs that may be stopped \
again: `divvy submit --preemptible`.

  divvy admin project add vision --quota 3 --limit 6 --members ana,@vision
  divvy admin project set vision --quota 2.5 --weight 2
  divvy projects";

pub(super) const MIG_PLAN: &str = "\
Changes nothing and holds nothing. Idle instances count as room. Exits with 6 when they do not all fit now, with 5 when they \
never will.

  divvy admin mig plan 1g.5gb 1g.5gb 3g.20gb";

pub(super) const COMPLETION: &str = "\
Completes verbs, flags, and the jobs, queues, projects and GPUs of the daemon that serves. Have the shell read it when it starts:

  ~/.bashrc                    source <(divvy completion bash)
  ~/.zshrc                     source <(divvy completion zsh)
  ~/.config/fish/config.fish   divvy completion fish | source";

/// The parser, with its help grouped.
pub fn command() -> clap::Command {
    let command = super::Cli::command();
    let mut template = String::from("{about}\n\nUsage: divvy VERB [OPTIONS]\n\n");
    for (title, verbs) in GROUPS {
        let _ = writeln!(template, "{title}:");
        for verb in *verbs {
            let about = command
                .find_subcommand(verb)
                .and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(template, "  {verb:<11} {about}");
        }
    }
    let _ = write!(
        template,
        "\nEvery verb has its own --help. Answers come as -o table|wide|json|ndjson|name.\n\n{EXAMPLES}\n"
    );
    short(command.help_template(template).max_term_width(110))
}

/// Has `--help` give each flag one line: all of them fit a screen then. Their whole text is in the manual pages.
fn short(command: clap::Command) -> clap::Command {
    let command = command.mut_subcommands(short);
    if command.is_disable_help_flag_set() {
        return command;
    }
    let help = clap::Arg::new("help")
        .short('h')
        .long("help")
        .action(clap::ArgAction::HelpShort)
        .help("Print help");
    command.disable_help_flag(true).arg(help)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_verb_is_in_exactly_one_group() {
        let command = super::super::Cli::command();
        let mut visible: Vec<&str> = command
            .get_subcommands()
            .filter(|verb| !verb.is_hide_set())
            .map(clap::Command::get_name)
            .collect();
        let mut grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, verbs)| verbs.iter().copied())
            .collect();
        visible.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(visible, grouped);
    }

    /// A terminal's usual width, and the height that is left where it is twice as high as the usual 24 lines.
    const SCREEN: (usize, usize) = (80, 50);

    #[test]
    fn every_help_fits_a_screen() {
        fn look(command: &mut clap::Command, path: &str, wrong: &mut Vec<String>) {
            let help = command.render_help().to_string();
            let height = help.lines().count();
            let width = help.lines().map(|line| line.chars().count()).max();
            if width > Some(SCREEN.0) || height > SCREEN.1 {
                wrong.push(format!("{path}: {width:?} × {height}\n{help}"));
            }
            for verb in command.get_subcommands_mut() {
                let path = format!("{path} {}", verb.get_name());
                look(verb, &path, wrong);
            }
        }
        let mut command = command().term_width(SCREEN.0);
        command.build();
        let mut wrong = Vec::new();
        look(&mut command, "divvy", &mut wrong);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn the_parser_is_sound() {
        command().debug_assert();
    }
}
