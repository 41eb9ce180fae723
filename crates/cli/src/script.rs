//! Job files: scripts with `#DIVVY` and `#SBATCH` lines, which are flags of `divvy submit`.
//!
//! | submitted program | executed program |
//! |---|---|
//! | a script with `#!` and such lines in its header | a copy of it, with their flags |
//! | the same on standard input, where no program is named | the same |
//! | any other program, and every program after `--` | itself, once the job starts |
//!
//! The header ends with the first line that is neither blank nor a comment. Flags of the command line come before those
//! of `#DIVVY` lines, which come before those of `#SBATCH` lines; flags that may be repeated add up.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IsTerminal as _, Read};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches};
use divvy_api::v1::Script;
use divvy_core::docker::words;

use crate::args::sbatch::{self, Line};
use crate::args::{self, JobFile, Written};
use crate::error_output::{Result, usage};
use crate::output;
use crate::rejection::{from_clap, is_help};

/// Bytes of a script, as the daemon bounds them.
const LARGEST: u64 = 1 << 20;

/// Bytes and lines in which a header lies.
const HEADER: (u64, usize) = (64 << 10, 1000);

/// The lines of a script that are flags.
#[derive(Debug, Default)]
pub(crate) struct Header {
    divvy: Vec<Line>,
    pub(crate) sbatch: Vec<Line>,
    /// The first such line that comes too late to be read.
    late: Option<usize>,
    /// The first line that calls `srun`.
    srun: Option<usize>,
}

impl Header {
    pub(crate) fn of(text: &str) -> Self {
        let mut header = Self::default();
        let mut is_over = false;
        for (at, line) in text.lines().enumerate() {
            let number = at + 1;
            let line = line.trim_end();
            let rest = |prefix| {
                let rest: &str = line.strip_prefix(prefix)?;
                (rest.is_empty() || rest.starts_with(char::is_whitespace)).then(|| Line {
                    number,
                    text: rest.trim().to_owned(),
                })
            };
            is_over |= number > HEADER.1 || !(line.trim().is_empty() || line.starts_with('#'));
            match (rest("#DIVVY"), rest("#SBATCH")) {
                (None, None) => {}
                _ if is_over => header.late = header.late.or(Some(number)),
                (Some(line), _) => header.divvy.push(line),
                (_, Some(line)) => header.sbatch.push(line),
            }
            if is_over && line.trim_start().starts_with("srun ") {
                header.srun = header.srun.or(Some(number));
            }
        }
        header
    }

    fn is_empty(&self) -> bool {
        self.divvy.is_empty() && self.sbatch.is_empty()
    }
}

/// A script that was read whole.
#[derive(Debug)]
struct Source {
    /// As messages name it.
    shown: String,
    text: String,
    header: Header,
}

/// The submit that these words mean, `words` being the whole command line: with the flags of a job file, if one is
/// submitted.
///
/// # Errors
/// [`ErrorCode::Usage`](divvy_api::v1::ErrorCode::Usage) with the file and the number of the line.
pub fn expand(args: args::Submit, words: &[OsString]) -> Result<args::Submit> {
    if args.docker.is_some() || args.wrap.is_some() {
        return Ok(args);
    }
    let command = &args.job.command;
    let behind = words.len().saturating_sub(command.len());
    let before = behind.checked_sub(1).and_then(|at| words.get(at));
    let is_bare = before.is_none_or(|word| word != "--");
    let source = match command.first() {
        None if is_bare => from_stdin()?,
        Some(program) if is_bare => from_file(program)?,
        _ => None,
    };
    match source {
        None => Ok(args),
        Some(source) => with(&source, words, &args),
    }
}

/// The flags of a job file under those of the command line.
fn with(source: &Source, words: &[OsString], args: &args::Submit) -> Result<args::Submit> {
    let shown = &source.shown;
    let parser = args::command().mut_subcommand("submit", |submit| submit.args_override_self(true));
    let asked = sbatch::read(&source.header.sbatch, shown)?;
    report_ignored(source, &asked);
    let slurm = Layer::of(&parser, &asked.flags)
        .map_err(|error| usage(format!("{shown}: {}", error.message), hint_of(&error)))?;
    let own = divvy(&parser, &source.header.divvy, shown)?;
    let typed: Vec<OsString> = words.iter().skip(1).cloned().collect();
    let flags = &typed[..typed.len() - args.job.command.len()];
    let typed = Layer::typed(&parser, flags)?;
    let merged = typed.over(own.over(slurm));
    let mut line: Vec<OsString> = vec!["divvy".into(), "submit".into()];
    line.extend(merged.into_args());
    let mut merged = parse(&parser, &line)?;
    merged.job.command.clone_from(&args.job.command);
    if merged.job.command.is_empty() {
        merged.job.command.push(OsString::from(shown));
    }
    let env = if source.header.sbatch.is_empty() {
        BTreeMap::new()
    } else {
        variables(asked.env, &merged, shown)
    };
    merged.file = Some(JobFile {
        script: Script {
            text: source.text.clone(),
            slurm_names: !source.header.sbatch.is_empty(),
        },
        env,
    });
    Ok(merged)
}

fn parse(parser: &clap::Command, line: &[OsString]) -> Result<args::Submit> {
    let parsed = args::checked(parser.clone(), line).map_err(|error| from_clap(&error, line))?;
    match parsed.verb {
        args::Verb::Submit(args) => Ok(*args),
        // The line was put together as one of `submit`.
        verb => Err(usage(
            format!("not a submit: {verb:?}"),
            "divvy submit --help",
        )),
    }
}

/// What Slurm would tell the job.
fn variables(
    mut env: BTreeMap<String, String>,
    args: &args::Submit,
    shown: &str,
) -> BTreeMap<String, String> {
    let name = args.job.name.clone();
    let file = Path::new(shown).file_name().unwrap_or_default();
    let name = name.unwrap_or_else(|| file.to_string_lossy().into_owned());
    env.insert("SLURM_JOB_NAME".to_owned(), name);
    let folder = std::env::current_dir().ok();
    let folder = folder.and_then(|folder| folder.into_os_string().into_string().ok());
    env.extend(folder.map(|folder| ("SLURM_SUBMIT_DIR".to_owned(), folder)));
    env
}

/// Says what has no effect.
fn report_ignored(source: &Source, asked: &sbatch::SbatchFlags) {
    let shown = &source.shown;
    for (why, options) in &asked.ignored {
        let s = if options.len() == 1 { "has" } else { "have" };
        output::say(&format!(
            "{shown}: {} {s} no effect: {why}",
            options.join(", ")
        ));
    }
    if let Some(late) = source.header.late {
        report_late(shown, late);
    }
    if let Some(srun) = source.header.srun {
        output::say(&format!(
            "line {srun} of {shown} calls srun, a program of Slurm: remove `srun` and keep the command"
        ));
    }
}

fn report_late(shown: &str, late: usize) {
    output::say(&format!(
        "line {late} of {shown} is ignored: flags must come before the first command"
    ));
}

/// The flags of `#DIVVY` lines.
fn divvy(parser: &clap::Command, lines: &[Line], shown: &str) -> Result<Layer> {
    let mut all = Vec::new();
    let mut each = Vec::new();
    for line in lines {
        let words = words::split(&line.text).map_err(|error| {
            let why = format!("line {} of {shown}: {error}", line.number);
            usage(why, "close the quote")
        })?;
        all.extend(words.clone());
        each.push((line.number, words));
    }
    Layer::of(parser, &all).map_err(|error| {
        // The first line that is wrong for itself; a flag may need one of another line.
        let wrong = each.iter().find_map(|(number, words)| {
            let error = Layer::of(parser, words).err()?;
            (!error.message.contains("were not provided")).then_some((*number, error))
        });
        match wrong {
            Some((number, error)) => usage(
                format!("line {number} of {shown}: {}", error.message),
                hint_of(&error),
            ),
            None => usage(format!("{shown}: {}", error.message), hint_of(&error)),
        }
    })
}

fn hint_of(error: &divvy_api::v1::Error) -> String {
    error.hint.clone().unwrap_or_default()
}

/// The flags of one source, by their names.
#[derive(Debug, Default)]
struct Layer {
    flags: Vec<Flag>,
}

#[derive(Debug)]
struct Flag {
    name: String,
    /// It may be given more than once.
    repeats: bool,
    /// Flags that it cannot be given with.
    conflicts: Vec<String>,
    words: Vec<OsString>,
}

impl Layer {
    /// Of a file: flags, and no program.
    fn of(parser: &clap::Command, words: &[String]) -> Result<Self> {
        let typed: Vec<OsString> = std::iter::once("submit")
            .chain(words.iter().map(String::as_str))
            .map(OsString::from)
            .collect();
        Self::read(parser, &typed, true)
    }

    /// Of the command line, `submit` first.
    fn typed(parser: &clap::Command, words: &[OsString]) -> Result<Self> {
        Self::read(parser, words, false)
    }

    fn read(parser: &clap::Command, words: &[OsString], of_file: bool) -> Result<Self> {
        let line: Vec<OsString> = std::iter::once(OsString::from("divvy"))
            .chain(words.iter().cloned())
            .collect();
        let mut parser = parser.clone();
        let matches = match parser.try_get_matches_from_mut(&line) {
            Ok(matches) => matches,
            Err(error) if is_help(&error) => {
                return Err(usage(
                    "--help has no effect in a job file",
                    "divvy submit --help",
                ));
            }
            Err(error) => return Err(from_clap(&error, &line)),
        };
        let (Some(matches), Some(submit)) = (
            matches.subcommand_matches("submit"),
            parser.find_subcommand("submit"),
        ) else {
            return Err(usage(
                "these are not flags of `submit`",
                "divvy submit --help",
            ));
        };
        if of_file
            && let Some(word) = matches
                .get_raw("command")
                .and_then(|mut words| words.next())
        {
            let hint = "remove it: the job runs the script itself";
            return Err(usage(format!("{} is not a flag", word.display()), hint));
        }
        if of_file && matches.contains_id("wrap") {
            let hint = "remove it: the job runs the script itself";
            return Err(usage("--wrap has no effect in a job file", hint));
        }
        let given = |arg: &&Arg| {
            let is_typed =
                matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
            is_typed && arg.get_id() != "command"
        };
        let args = submit.get_arguments().filter(given);
        Ok(Self {
            flags: args.map(|arg| Flag::of(arg, submit, matches)).collect(),
        })
    }

    /// These flags, and those of a lower source that none of them replaces.
    fn over(self, lower: Self) -> Self {
        let replaced = |flag: &Flag| {
            self.flags.iter().any(|own| {
                (own.name == flag.name && !own.repeats)
                    || own.conflicts.contains(&flag.name)
                    || flag.conflicts.contains(&own.name)
            })
        };
        let mut flags: Vec<Flag> = lower
            .flags
            .into_iter()
            .filter(|flag| !replaced(flag))
            .collect();
        flags.extend(self.flags);
        Self { flags }
    }

    fn into_args(self) -> impl Iterator<Item = OsString> {
        self.flags.into_iter().flat_map(|flag| flag.words)
    }
}

impl Flag {
    fn of(arg: &Arg, submit: &clap::Command, matches: &ArgMatches) -> Self {
        let id = arg.get_id().as_str();
        let conflicts = submit.get_arg_conflicts_with(arg);
        let mut name = id.to_owned();
        let mut long = arg.get_long().unwrap_or(id).to_owned();
        // `-o FILE` and `-o json` are different flags.
        if let Some(Written::File(_)) = matches.try_get_one::<Written>(id).ok().flatten() {
            (name, long) = ("stdout".to_owned(), "stdout".to_owned());
        }
        let values = matches.get_raw(id).into_iter().flatten();
        let words = if arg.get_action().takes_values() {
            values.map(|value| joined(&long, value)).collect()
        } else {
            vec![OsString::from(format!("--{long}"))]
        };
        Self {
            name,
            repeats: matches!(arg.get_action(), ArgAction::Append),
            conflicts: conflicts
                .iter()
                .map(|arg| arg.get_id().to_string())
                .collect(),
            words,
        }
    }
}

fn joined(long: &str, value: &OsStr) -> OsString {
    let mut word = OsString::from(format!("--{long}="));
    word.push(value);
    word
}

/// The script on standard input, if that is a file or a pipe.
fn from_stdin() -> Result<Option<Source>> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        return Ok(None);
    }
    let Ok(meta) = File::open("/dev/stdin").and_then(|file| file.metadata()) else {
        return Ok(None);
    };
    if !meta.is_file() && !meta.file_type().is_fifo() {
        return Ok(None);
    }
    let text = whole(stdin.lock(), "stdin")?;
    if text.trim().is_empty() {
        return Ok(None);
    }
    if !text.starts_with("#!") {
        return Err(no_interpreter("stdin", text.as_bytes()));
    }
    let header = Header::of(&text);
    Ok(Some(Source {
        shown: "stdin".to_owned(),
        text,
        header,
    }))
}

fn no_interpreter(shown: &str, begin: &[u8]) -> divvy_api::v1::Error {
    let file = words::quoted(shown);
    let (why, hint) = match begin {
        [0xEF, 0xBB, 0xBF, ..] => (
            ": it begins with a byte order mark, which editors of Windows write",
            format!("sed -i '1s/^\\xEF\\xBB\\xBF//' {file}"),
        ),
        _ if is_utf16(begin) => (
            ": it is UTF-16",
            format!("iconv -f UTF-16 -t UTF-8 {file} > job.sh"),
        ),
        _ => ("", "make #!/bin/bash its first line".to_owned()),
    };
    usage(
        format!("{shown} does not begin with #! and an interpreter{why}"),
        hint,
    )
}

fn is_utf16(begin: &[u8]) -> bool {
    matches!(begin, [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..])
}

/// The job file that a program's name means; `None` where it means anything else.
fn from_file(program: &OsStr) -> Result<Option<Source>> {
    let path = Path::new(program);
    if is_on_path(program) {
        return Ok(None);
    }
    let Ok(meta) = std::fs::metadata(path) else {
        return Ok(None);
    };
    // Anything else is no file to be read: a device, a FIFO.
    if !meta.is_file() {
        return Ok(None);
    }
    // A user may execute a file that the user cannot read.
    let Ok(mut file) = File::open(path) else {
        return Ok(None);
    };
    let mut begin = Vec::new();
    if Read::by_ref(&mut file)
        .take(HEADER.0)
        .read_to_end(&mut begin)
        .is_err()
    {
        return Ok(None);
    }
    let shown = path.display().to_string();
    let header = match is_utf16(&begin) {
        // Of these letters every second byte is zero.
        true => Header::of(&String::from_utf8_lossy(&begin[2..]).replace('\0', "")),
        false if begin.contains(&0) => return Ok(None),
        false => Header::of(&String::from_utf8_lossy(&begin)),
    };
    let has_lines = !header.is_empty() || header.late.is_some();
    if has_lines && !begin.starts_with(b"#!") {
        return Err(no_interpreter(&shown, &begin));
    }
    if header.is_empty() {
        if let Some(late) = header.late {
            report_late(&shown, late);
        }
        return Ok(None);
    }
    if meta.len() > LARGEST {
        return Err(too_large(&shown));
    }
    let text = whole(io::Cursor::new(begin).chain(file), &shown)?;
    let header = Header::of(&text);
    Ok(Some(Source {
        shown,
        text,
        header,
    }))
}

/// The text of a script.
fn whole(source: impl Read, shown: &str) -> Result<String> {
    let mut bytes = Vec::new();
    let read = source.take(LARGEST + 1).read_to_end(&mut bytes);
    read.map_err(|error| {
        usage(
            format!("{shown} cannot be read: {error}"),
            "use the path of a script",
        )
    })?;
    if bytes.len() as u64 > LARGEST {
        return Err(too_large(shown));
    }
    let text = String::from_utf8(bytes).map_err(|_| {
        usage(
            format!("{shown} is not UTF-8"),
            "put `--` before it, to run the file without a copy",
        )
    })?;
    if text.contains("\r\n") {
        return Err(usage(
            format!("{shown} has Windows line ends, which interpreters refuse"),
            format!("sed -i 's/\\r$//' {}", words::quoted(shown)),
        ));
    }
    if text.contains('\0') {
        return Err(usage(format!("{shown} has a NUL byte"), "use a text file"));
    }
    Ok(text)
}

fn too_large(shown: &str) -> divvy_api::v1::Error {
    usage(
        format!("{shown} is larger than {} KiB", LARGEST >> 10),
        "move data into a file that the script reads",
    )
}

/// Whether a word without a slash is a program on this shell's path, as it was before there were job files.
fn is_on_path(program: &OsStr) -> bool {
    if program.as_encoded_bytes().contains(&b'/') {
        return false;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_program = |file: PathBuf| {
        let meta = std::fs::metadata(file);
        meta.is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(&path)
        .filter(|folder| folder.is_absolute())
        .any(|folder| is_program(folder.join(program)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Verb;

    /// What `divvy submit` and these words mean, `{}` being a file with this text.
    fn submitted(text: impl AsRef<[u8]>, line: &[&str]) -> Result<args::Submit> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.sh");
        std::fs::write(&path, text).unwrap();
        let file = path.display().to_string();
        let words: Vec<OsString> = ["divvy", "submit"]
            .iter()
            .chain(line)
            .map(|word| OsString::from(word.replace("{}", &file)))
            .collect();
        match args::parse(&words)
            .map_err(|error| from_clap(&error, &words))?
            .verb
        {
            Verb::Submit(args) => expand(*args, &words),
            verb => panic!("not submit: {verb:?}"),
        }
    }

    const FILE: &str = "#!/bin/bash -e\n# a job\n\n#SBATCH -J slurm -t 10 -o s.out\n#DIVVY --name train -g 0.25\n##SBATCH -J no\n#DIVVY --env 'A=a b' --after-ok first\necho $1\n#SBATCH -t 5\n";

    #[test]
    fn the_lines_of_a_job_file_are_flags_under_those_of_the_command_line() {
        let job = submitted(
            FILE,
            &["--after-ok", "second", "{}", "one", "--name", "two"],
        )
        .unwrap();
        assert_eq!(
            job.job.name.as_deref(),
            Some("train"),
            "#DIVVY before #SBATCH"
        );
        assert_eq!(job.job.gpu.as_deref(), Some("0.25"));
        assert_eq!(
            job.job.terms.time.as_deref(),
            Some("600s"),
            "a late line is not read"
        );
        assert_eq!(job.stdout.as_deref(), Some("s.out"));
        assert_eq!(job.job.terms.env, ["A=a b"]);
        assert_eq!(job.job.terms.after_ok, ["first", "second"]);
        assert_eq!(job.job.command[1..], ["one", "--name", "two"]);
        let file = job.file.unwrap();
        assert_eq!(
            (file.script.text.as_str(), file.script.slurm_names),
            (FILE, true)
        );
        assert_eq!(file.env["SLURM_JOB_NAME"], "train");
        assert!(file.env.contains_key("SLURM_SUBMIT_DIR"));

        let typed = [
            "--gpu-memory",
            "4G",
            "--name",
            "mine",
            "-o",
            "json",
            "--stdout=x.out",
            "--time=1h",
            "{}",
        ];
        let job = submitted(FILE, &typed).unwrap();
        assert_eq!(job.job.name.as_deref(), Some("mine"));
        assert_eq!(
            (job.job.gpu, job.job.gpu_memory.as_deref()),
            (None, Some("4G"))
        );
        assert_eq!(job.job.terms.time.as_deref(), Some("1h"));
        assert_eq!(job.stdout.as_deref(), Some("x.out"));
        assert!(matches!(job.output, Some(Written::Form(_))));
        let job = submitted(FILE, &["-o", "y.out", "{}"]).unwrap();
        assert_eq!(job.stdout.as_deref(), Some("y.out"), "-o FILE is --stdout");
    }

    #[test]
    fn what_is_no_job_file_keeps_its_meaning() {
        for (text, line) in [
            ("#!/bin/sh\necho\n", &["-g", "1", "{}"][..]),
            (
                "#!/bin/sh\n# SBATCH -t 5\n##SBATCH -t 5\n#SBATCHED\n",
                &["-g", "1", "{}"],
            ),
            (FILE, &["-g", "1", "--", "{}", "a"]),
            ("\u{7f}ELF\0\n#SBATCH -t 5\n", &["-g", "1", "{}"]),
            ("#!/bin/sh\necho\n#SBATCH -t 5\n", &["-g", "1", "{}"]),
            (FILE, &["-g", "1", "sh", "{}"]),
            (FILE, &["-g", "1", "--docker", "u22", "{}"]),
            (FILE, &["-g", "1", "{}/not/there"]),
        ] {
            let job = submitted(text, line).unwrap();
            assert!(job.file.is_none() && job.job.name.is_none(), "{line:?}");
        }
    }

    #[test]
    fn a_job_file_that_is_wrong_is_refused_with_its_line() {
        let refused = |text: &str| {
            let error = submitted(text, &["-g", "1", "{}"]).unwrap_err();
            assert_eq!(error.code.exit_code(), 2, "{}", error.message);
            assert!(error.hint.is_some(), "{}", error.message);
            error.message
        };
        for (text, said) in [
            ("#!/bin/sh\n#DIVVY --gpux 1\n", "line 2 of"),
            ("#!/bin/sh\n\n#DIVVY -g 0.5\n#DIVVY --name\n", "line 4 of"),
            (
                "#!/bin/sh\n#DIVVY python train.py\n",
                "python is not a flag",
            ),
            ("#!/bin/sh\n#DIVVY --name 'x\n", "a quote is not closed"),
            ("#!/bin/sh\n#DIVVY --help\n", "--help has no effect"),
            ("#!/bin/sh\n#DIVVY --wrap true\n", "--wrap has no effect"),
            (
                "#!/bin/sh\n#DIVVY --idle-action cancel\n",
                "were not provided",
            ),
            ("#!/bin/sh\r\n#DIVVY -g 1\r\n", "has Windows line ends"),
            ("\n#SBATCH -t 5\n", "does not begin with #!"),
            ("\t#!/bin/bash\n#SBATCH -t 5\n", "does not begin with #!"),
            ("\u{feff}#!/bin/bash\n#SBATCH -a 0-3\n", "a byte order mark"),
            ("echo\n#DIVVY -g 1\n", "does not begin with #!"),
            // Two public job files begin with a blank.
            (
                " #!/bin/bash\n#SBATCH --qos=regular\n#SBATCH --time=00:30:00\n#SBATCH --nodes=1\nmodule load python\n",
                "does not begin with #!",
            ),
            (
                " #!/bin/bash\n#SBATCH --partition=queue\n#SBATCH --time=14-00:00:00\n#SBATCH -N 1 # Nodes\n \n JolyTree.sh  -i /home\n",
                "does not begin with #!",
            ),
            // Of editors and web pages: a blank that is no ASCII, and a space of no width.
            (
                "\u{a0}#!/bin/bash\n#SBATCH -t 5\n",
                "does not begin with #!",
            ),
            (
                "\u{200b}#!/bin/bash\n#SBATCH -t 5\n",
                "does not begin with #!",
            ),
        ] {
            let message = refused(text);
            assert!(message.contains(said), "{message}");
        }
        let text = "\u{feff}#!/bin/bash\n#SBATCH -t 5\n";
        for order in [u16::to_le_bytes, u16::to_be_bytes] {
            let wide: Vec<u8> = text.encode_utf16().flat_map(order).collect();
            let error = submitted(&wide, &["-g", "1", "{}"]).unwrap_err();
            assert!(error.message.ends_with("it is UTF-16"), "{}", error.message);
        }
        let large = format!("#!/bin/sh\n#DIVVY -g 1\n{}", "x".repeat(1 << 20));
        assert!(refused(&large).contains("larger than 1024 KiB"));
        // A flag may need one of another line.
        let two = "#!/bin/sh\n#DIVVY --gpu-memory-exact\n#DIVVY --gpu-memory 4G\n";
        assert!(submitted(two, &["{}"]).unwrap().job.gpu_memory_exact);
    }

    #[test]
    fn a_header_ends_with_the_first_command_and_has_a_bound() {
        let header = Header::of("#!/bin/sh\n#SBATCH\n--mem=32G\n#SBATCH -t 5\n  srun a\n");
        assert_eq!(
            (header.sbatch.len(), header.late, header.srun),
            (1, Some(4), Some(5))
        );
        let many = "#SBATCH -t 5\n".repeat(2000);
        assert_eq!(Header::of(&many).sbatch.len(), HEADER.1);
    }
}
