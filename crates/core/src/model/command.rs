//! What a command runs: the default name of a job, without interpreters and launchers, and the program by which earlier
//! runs are compared.

/// Launchers behind launchers are followed this far; commands of users have two or three. So double of a deep one is
/// enough, and a command that names itself ends.
const DEPTH: usize = 8;

/// What a program does with the words behind it.
enum Kind {
    /// Runs the script that is its first argument. `-m` names a module instead, and `-c` a text.
    Interpreter,
    /// The same, but for a shell.
    Shell,
    /// Runs another command, behind its own options and so many other words.
    Wrapper { words: usize },
    /// Runs a Python script or, with `-m`, a module, behind its own options. The word is its subcommand.
    Launcher(&'static str),
}

/// Options that take no value, of launchers and wrappers whose other options take one.
const FLAGS: [&str; 24] = [
    // env, nice, nohup, timeout, time, setsid
    "-i",
    "-0",
    "-v",
    "-f",
    "-w",
    "--foreground",
    "--preserve-status",
    "--verbose",
    // uv, conda, poetry
    "--isolated",
    "--no-project",
    "--no-sync",
    "--frozen",
    "--locked",
    "--no-capture-output",
    "--live-stream",
    "--offline",
    // torchrun, accelerate, deepspeed
    "--standalone",
    "--no-python",
    "--no_python",
    "--multi_gpu",
    "--use_deepspeed",
    "--use_fsdp",
    "--cpu",
    // apptainer
    "--nv",
];

/// Endings of files that an interpreter runs. Launchers have other files as values of options (`config.yaml`).
const SCRIPTS: [&str; 14] = [
    "py", "pyz", "ipynb", "sh", "bash", "zsh", "R", "r", "jl", "js", "mjs", "pl", "rb", "lua",
];

/// `train.py` of `env A=1 python -u src/train.py --lr 1`, `package` of `python -m package`, `bench` of `./bench 12`.
/// `None` where the command has no word that could be a name.
pub fn name(command: &[String]) -> Option<String> {
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let first = last(words.first()?);
    let found = behind(&words, DEPTH).unwrap_or_else(|| first.to_owned());
    Some(found).filter(|name| !name.trim().is_empty() && !name.contains(char::is_control))
}

/// What these words run; `None` where only the first word tells it.
fn behind(words: &[&str], depth: usize) -> Option<String> {
    let (program, rest) = words.split_first()?;
    let program = last(program);
    let depth = depth.checked_sub(1)?;
    match kind(program) {
        None => Some(program.to_owned()).filter(|name| !name.is_empty()),
        Some(Kind::Interpreter) => interpreted(rest, depth),
        Some(Kind::Shell) => of_shell(rest, depth),
        Some(Kind::Wrapper { words }) => wrapped(rest, words, depth),
        Some(Kind::Launcher(subcommand)) => {
            let at = rest.iter().position(|word| *word == subcommand);
            match at {
                Some(at) => launched(&rest[at + 1..], depth),
                None if subcommand.is_empty() => launched(rest, depth),
                None => None,
            }
        }
    }
}

fn kind(program: &str) -> Option<Kind> {
    let stem = program.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
    Some(match stem {
        "python" | "pypy" | "ipython" | "Rscript" | "julia" | "node" | "perl" | "ruby" | "lua"
        | "papermill" => Kind::Interpreter,
        "sh" | "bash" | "zsh" | "dash" | "ksh" | "fish" => Kind::Shell,
        "env" | "nice" | "ionice" | "nohup" | "setsid" | "time" | "stdbuf" | "numactl"
        | "mpirun" | "mpiexec" | "horovodrun" | "xvfb-run" | "ncu" | "compute-sanitizer" => {
            Kind::Wrapper { words: 0 }
        }
        // A time, a mask, `profile`.
        "timeout" | "taskset" | "chrt" | "nsys" => Kind::Wrapper { words: 1 },
        // `exec image.sif`.
        "apptainer" | "singularity" => Kind::Wrapper { words: 2 },
        "torchrun" | "deepspeed" => Kind::Launcher(""),
        "accelerate" => Kind::Launcher("launch"),
        "uv" | "poetry" | "pipenv" | "pdm" | "hatch" | "pixi" | "conda" | "mamba"
        | "micromamba" => Kind::Launcher("run"),
        _ => return None,
    })
}

fn interpreted(words: &[&str], depth: usize) -> Option<String> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match *word {
            "-m" => return module(words.as_slice(), depth),
            "-c" | "-e" | "-" => return None,
            // Values of Python's options.
            "-W" | "-X" => drop(words.next()),
            option if option.starts_with('-') => {}
            script => return Some(last(script).to_owned()).filter(|name| !name.is_empty()),
        }
    }
    None
}

/// The module, or what it launches.
fn module(words: &[&str], depth: usize) -> Option<String> {
    let (module, rest) = words.split_first()?;
    let launcher = matches!(
        *module,
        "torch.distributed.run"
            | "torch.distributed.launch"
            | "accelerate.commands.launch"
            | "deepspeed"
    );
    let launched = launcher.then(|| launched(rest, depth)).flatten();
    launched.or_else(|| Some((*module).to_owned()))
}

fn of_shell(words: &[&str], depth: usize) -> Option<String> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match *word {
            option if option.starts_with('-') && option.ends_with('c') => {
                return of_text(words.next()?, depth);
            }
            "-o" | "-O" => drop(words.next()),
            option if option.starts_with('-') => {}
            script => return Some(last(script).to_owned()).filter(|name| !name.is_empty()),
        }
    }
    None
}

/// The last command of a text without quotes, variables and redirections: `cd run && python train.py`.
fn of_text(text: &str, depth: usize) -> Option<String> {
    let is_plain = |letter: char| letter.is_alphanumeric() || " &;-_./=,:+@%\n".contains(letter);
    let text = text.trim().trim_end_matches(';');
    let is_background = text.ends_with('&');
    if is_background || !text.chars().all(is_plain) {
        return None;
    }
    let command = text.rsplit([';', '&', '\n']).next()?;
    let words = command
        .split(' ')
        .filter(|word| !word.is_empty() && *word != "exec");
    let words: Vec<&str> = words.collect();
    let first = words.iter().find(|word| !word.contains('='))?;
    let found = wrapped(&words, 0, depth)?;
    // A word of the shell says less than the shell's name.
    let is_file = first.contains('/') || is_script(first);
    (is_file || found != last(first)).then_some(found)
}

/// The command behind options, variables and so many other words.
fn wrapped(words: &[&str], skipped: usize, depth: usize) -> Option<String> {
    let mut skipped = skipped;
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let is_program = kind(last(word)).is_some() || is_script(word);
        match *word {
            "--" => return behind(&words[at + 1..], depth),
            option if option.starts_with('-') => at += skip(option, words.get(at + 1)),
            variable if variable.contains('=') => {}
            _ if is_program => return behind(&words[at..], depth),
            _ if skipped > 0 => skipped -= 1,
            _ => return behind(&words[at..], depth),
        }
        at += 1;
    }
    None
}

/// The script, module or command behind the options of a launcher.
fn launched(words: &[&str], depth: usize) -> Option<String> {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        match *word {
            "--" => return behind(&words[at + 1..], depth),
            "-m" | "--module" => return module(&words[at + 1..], depth),
            option if option.starts_with('-') => at += skip(option, words.get(at + 1)),
            _ => return behind(&words[at..], depth),
        }
        at += 1;
    }
    None
}

/// How many words behind an option are its value.
fn skip(option: &str, next: Option<&&str>) -> usize {
    let is_flag = option.contains('=') || FLAGS.contains(&option);
    let takes = next.is_some_and(|next| {
        !next.starts_with('-') && !is_script(next) && kind(last(next)).is_none()
    });
    usize::from(takes && !is_flag)
}

fn is_script(word: &str) -> bool {
    word.rsplit_once('.')
        .is_some_and(|(stem, ending)| !stem.is_empty() && SCRIPTS.contains(&ending))
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// What a command runs, apart from its options: the program, and the script that is its first argument if it has one.
/// `/usr/bin/python -u train.py --lr 1` is `python train.py`; runs of the same are compared.
pub fn program(command: &[String]) -> String {
    let Some((program, arguments)) = command.split_first() else {
        return String::new();
    };
    let mut words = vec![last(program).to_owned()];
    let mut arguments = arguments.iter();
    while let Some(word) = arguments.next() {
        match word.as_str() {
            // `python -m package`: what follows is what runs.
            "-m" => {
                words.extend([word.clone()]);
                words.extend(arguments.next().cloned());
                break;
            }
            // `sh -c TEXT`, and whatever else has a text for a program: the text is too different from run to run.
            "-c" => {
                words.push(word.clone());
                break;
            }
            option if option.starts_with('-') => {}
            script if has_ending(script) => {
                words.push(last(script).to_owned());
                break;
            }
            _ => {}
        }
    }
    words.join(" ")
}

/// Whether a word is the name of a file that a program would run: it has an ending of letters.
fn has_ending(word: &str) -> bool {
    word.rsplit_once('.').is_some_and(|(stem, ending)| {
        !stem.is_empty()
            && !ending.is_empty()
            && ending.len() <= 5
            && ending.chars().all(|letter| letter.is_ascii_alphabetic())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_the_name_of_what_its_command_runs() {
        let rows = [
            ("python3 train.py", "train.py"),
            ("/usr/bin/python3.12 -u src/train.py --lr 1", "train.py"),
            ("python -W ignore -X dev train.py", "train.py"),
            ("python -m package.cli serve --port 1", "package.cli"),
            (
                "python -m torch.distributed.run --nproc-per-node 2 train.py",
                "train.py",
            ),
            (
                "python -m torch.distributed.run --nproc-per-node=2 -m pkg.train",
                "pkg.train",
            ),
            ("python -", "python"),
            ("python", "python"),
            ("python3.11", "python3.11"),
            ("bash job2.sh a b", "job2.sh"),
            ("bash -l ./run", "run"),
            ("bash -x -o pipefail job.sh", "job.sh"),
            ("sh", "sh"),
            ("env A=1 B=x python3 x.py", "x.py"),
            ("env -u LD_PRELOAD -i ./bench 3", "bench"),
            ("env", "env"),
            ("nice -n 5 python a.py", "a.py"),
            ("nohup ./bench 12 0.5", "bench"),
            ("timeout -k 5 10m python a.py", "a.py"),
            ("timeout 10m ./sim", "sim"),
            ("taskset -c 0-3 python a.py", "a.py"),
            ("torchrun train.py", "train.py"),
            (
                "torchrun --standalone --nproc-per-node 2 train.py a.txt",
                "train.py",
            ),
            (
                "torchrun --standalone --nproc-per-node=2 -m pkg.train --x",
                "pkg.train",
            ),
            (
                "accelerate launch --config_file cfg.yaml --multi_gpu train.py",
                "train.py",
            ),
            ("accelerate config", "accelerate"),
            (
                "deepspeed --num_gpus 2 train.py --deepspeed ds.json",
                "train.py",
            ),
            ("uv run train.py", "train.py"),
            ("uv run --with torch python -u train.py", "train.py"),
            ("uv run -m pkg", "pkg"),
            ("uv sync", "uv"),
            ("poetry run python train.py", "train.py"),
            ("poetry run serve --port 1", "serve"),
            (
                "conda run -n env --no-capture-output python train.py",
                "train.py",
            ),
            (
                "micromamba run -n env torchrun --nproc-per-node 2 train.py",
                "train.py",
            ),
            (
                "env A=1 nice -n 5 uv run torchrun --standalone train.py",
                "train.py",
            ),
            ("mpirun -np 4 python train.py", "train.py"),
            ("nsys profile -o out python train.py", "train.py"),
            ("apptainer exec --nv image.sif python train.py", "train.py"),
            ("Rscript fit.R", "fit.R"),
            ("julia --project=. fit.jl", "fit.jl"),
            ("papermill note.ipynb out.ipynb", "note.ipynb"),
            ("vllm serve model", "vllm"),
            ("./train --config run.py", "train"),
            ("env env env env env env env env env python a.py", "env"),
        ];
        for (line, expected) in rows {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(name(&words).as_deref(), Some(expected), "{line}");
        }
    }

    #[test]
    fn a_job_of_a_shells_text_has_the_name_of_its_last_command() {
        let rows = [
            ("python train.py", "train.py"),
            (
                "source venv/bin/activate && python -u train.py --lr 0.1",
                "train.py",
            ),
            ("cd run; A=1 ./bench 3;", "bench"),
            ("exec torchrun --standalone train.py", "train.py"),
            ("for i in 1 2; do python $i.py; done", "bash"),
            ("python train.py > log", "bash"),
            ("python train.py &", "bash"),
            ("echo 'python x.py'", "bash"),
            ("sleep 1; exit 3", "bash"),
            ("", "bash"),
        ];
        for (text, expected) in rows {
            let words = ["bash", "-lc", text].map(str::to_owned);
            assert_eq!(name(&words).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn a_command_without_a_word_for_a_name_has_none() {
        for words in [&[][..], &["/"], &[" "], &["python", "a\nb.py"]] {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            assert_eq!(name(&words), None, "{words:?}");
        }
    }

    #[test]
    fn a_program_is_what_runs_whatever_its_options() {
        let of = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            program(&words)
        };
        assert_eq!(of("/usr/bin/python -u train.py --lr 1"), "python train.py");
        assert_eq!(of("python src/train.py --lr 2"), "python train.py");
        assert_eq!(of("torchrun --nproc 2 train.py a.txt"), "torchrun train.py");
        assert_eq!(
            of("python -m vllm.entrypoints.api --port 1"),
            "python -m vllm.entrypoints.api"
        );
        assert_eq!(of("sh -c exit"), "sh -c");
        assert_eq!(of("./bench 12 0.5"), "bench");
        assert_eq!(program(&[]), "");
    }
}
