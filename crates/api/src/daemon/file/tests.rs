use std::fmt::Write as _;
use std::path::Path;

use divvy_core::{Gpus, Order};

use super::*;
use crate::daemon::keys::written;
use crate::daemon::{Others, Principal};

/// Broken files: each has the problem that its first line names, and often others.
const BROKEN: &[(&str, &str)] = &[
    (
        "a string that does not end",
        "gpus = \"all\ngrace = \"10s\"\n",
    ),
    ("an array that does not end", "queues = [\"a\", \"b\"\n"),
    ("a key twice", "backfill = true\nbackfill = false\n"),
    ("a table twice", "[limits]\nmax-jobs = 1\n[limits]\n"),
    (
        "unknown keys, with the nearest known ones",
        "queue = [\"a\"]\ngrase = \"1s\"\n[limits]\nmax_jobs = 5\n[retension]\njobs-for = \"1d\"\n[roles]\nadmins = []\n",
    ),
    (
        "the name of a flag in place of a key",
        "keep = \"30d\"\nlog-size = \"64M\"\nsystem = true\n[limits]\nqueues = []\n",
    ),
    (
        "values of another type",
        "gpus = 0\nqueues = \"a\"\nbackfill = \"yes\"\ngrace = 10\n[limits]\nmax-jobs = -1\nlog-size = 64\n[listen]\nlisten = \"7070\"\n",
    ),
    (
        "unknown words",
        "order = \"fair\"\non-bypass = \"stop\"\npreemption = true\n[idle]\nafter = \"1h\"\naction = \"kill\"\n[roles]\nothers = \"all\"\ncontainers = \"none\"\n",
    ),
    (
        "durations and sizes without a unit",
        "grace = \"10\"\n[idle]\nafter = \"soon\"\n[limits]\nlog-size = \"64\"\nmax-texts = \"64MB\"\n[retention]\njobs-for = \"-1d\"\n",
    ),
    (
        "a size that refuses every job",
        "[limits]\nmax-jobs = 0\nlog-size = \"1K\"\n",
    ),
    (
        "queues: amounts, names, duplicates",
        "queues = [\n  \"half=0.3\",\n  \"\",\n  \"none=\",\n  \"a=half\",\n]\n",
    ),
    ("a queue twice", "queues = [\"a=1\", \"b\",\n  \"a=0.5\"]\n"),
    ("GPUs", "gpus = \"0-x\"\nsim = \"a100-80gb\"\n"),
    (
        "projects",
        "[projects.vision]\nlimit = 1\nmembers = [\"ana\", \"a b\"]\nquotta = 2\n[projects.nlp]\nquota = 2\nlimit = 1\n[projects.\" x\"]\nquota = 0.0001\n",
    ),
    (
        "roles without a name",
        "[roles]\nadmin = [\"ana\", \"@\", 1.5]\nviewer = [\"\"]\n",
    ),
    (
        "a value in place of a table",
        "limits = 5\nprojects = [\"vision\"]\n",
    ),
    (
        "paths that depend on the working directory",
        "[listen]\naccess = \"access.toml\"\n[clearml]\nproject-by = \"rules\"\n",
    ),
    (
        "a problem before an error of syntax, and lines after it",
        "grase = \"1s\"\nbackfill = tru\norder = \"fair\"\n",
    ),
    (
        "letters before the problem",
        "\"größe\" = 1 # ä\n[projects.\"ö\"]\nquota = \"ä\"\n",
    ),
];

fn problems(text: &[u8]) -> ConfigError {
    ConfigError {
        path: "/etc/divvy/config.toml".into(),
        code: ErrorCode::Usage,
        problems: parse(text).unwrap_err(),
    }
}

#[test]
fn every_problem_of_a_broken_file_has_its_line_and_column() {
    let mut shown = String::new();
    for (about, text) in BROKEN {
        let _ = writeln!(shown, "# {about}");
        for (number, line) in text.lines().enumerate() {
            let _ = writeln!(shown, "{:>4} | {line}", number + 1);
        }
        let error = problems(text.as_bytes());
        for problem in &error.problems {
            assert!(problem.place.is_some(), "{about}: {problem:?}");
            let _ = writeln!(
                shown,
                "{}",
                error.error_of(problem).render(false, str::to_owned)
            );
        }
        shown.push('\n');
    }
    insta::assert_snapshot!(shown);
}

#[test]
fn odd_bytes_and_large_files_are_refused_with_a_place() {
    let place = |text: &[u8]| {
        let error = problems(text);
        let place = error.problems[0].place.unwrap();
        (place.line, place.column)
    };
    assert_eq!(place(b"gpus = \"all\"\nsim = \"\xff\""), (2, 8));
    assert_eq!(place(b"a\0b = 1"), (1, 1));
    assert_eq!(place("grace = \"1s\"\r\nx = 1\r\n".as_bytes()), (2, 1));
    assert!(parse("\u{feff}grace = \"1s\"\r\n".as_bytes()).is_ok());
    assert!(parse(b"").is_ok());
    // As deep as a hostile file can be.
    let deep = format!("gpus = {}", "[".repeat(100_000));
    assert!(parse(deep.as_bytes()).is_err());
    let tables = format!("[{}]", vec!["a"; 50_000].join("."));
    assert!(parse(tables.as_bytes()).is_err());
    // Of ten thousand wrong lines fifty are reported.
    let many: String = (0..10_000).map(|n| format!("key{n} = 1\n")).collect();
    assert_eq!(parse(many.as_bytes()).unwrap_err().len(), MOST_PROBLEMS);
    // A message repeats the middle of no long value.
    let long = format!("gpus = \"{}\"", "x".repeat(100_000));
    let error = problems(long.as_bytes());
    assert!(error.problems[0].message.chars().count() < 2 * LONGEST_MESSAGE);
}

#[test]
fn a_file_is_read_with_the_place_of_each_key() {
    let text = "gpus = \"0,2\"\nqueues = [\n  \"dual=2\",\n  \"open\",\n]\norder = \"fairness\"\n\n[limits]\nmax-texts = \"none\"\n\
                [roles]\nadmin = [\"ana\", \"@wheel\", 1004]\nothers = \"none\"\n\
                [projects.vision]\nquota = 2.5\nlimit = \"none\"\nmin-runtime = \"10m\"\n";
    let Parsed { options, places } = parse(text.as_bytes()).unwrap();
    assert_eq!(options.order, Order::Fairness);
    assert_eq!(options.limits.max_texts, None);
    let roles = options.roles.unwrap();
    let name = Principal::named;
    assert_eq!(
        roles.admin,
        [name("ana"), name("@wheel"), Principal::Uid(1004)]
    );
    assert_eq!(roles.others, Others::None);
    let (name, project) = options.projects.into_iter().next().unwrap();
    let project = project.project(name);
    assert_eq!(project.quota.gpus, "2.5".parse::<Gpus>().unwrap());
    assert_eq!((project.limit.gpus, project.min_runtime_s), (None, 600));
    let place = |path: &str| {
        let path: Vec<String> = path.split('.').map(str::to_owned).collect();
        let place = places[&path];
        (place.line, place.column)
    };
    assert_eq!(place("gpus"), (1, 8));
    assert_eq!(place("queues.1"), (4, 3));
    assert_eq!(place("limits"), (8, 2));
    assert_eq!(place("projects.vision.limit"), (15, 9));
    assert_eq!(
        written(&["projects".into(), "a b".into()]),
        "projects.\"a b\""
    );
}

#[test]
fn the_first_problem_tells_how_many_there_are_and_the_details_have_all() {
    let error = Error::from(&problems(b"grase = 1\n[limits]\nmax-jobs = 0\n"));
    assert_eq!(error.code.exit_code(), 2);
    assert_eq!(
        error.message,
        "/etc/divvy/config.toml:1:1: unknown key `grase`"
    );
    let hint = error.hint.as_deref().unwrap();
    assert!(hint.contains("did you mean `grace`?"), "{hint}");
    assert!(hint.contains("1 further problem"), "{hint}");
    let details = &error.details;
    assert_eq!(
        (&details["line"], &details["column"]),
        (&1.into(), &1.into())
    );
    let again = ConfigError::of(&error).unwrap();
    assert_eq!(again, problems(b"grase = 1\n[limits]\nmax-jobs = 0\n"));
    let second = &details["problems"][1];
    assert_eq!(
        (&second["line"], &second["key"]),
        (&3.into(), &"limits.max-jobs".into())
    );
}

/// The example file with a few random changes, so that most of it is still understood.
#[test]
fn no_change_of_a_file_does_harm_and_each_problem_has_a_place_and_a_hint() {
    const PIECES: &[&str] = &[
        "[",
        "]",
        "\"",
        "'",
        "=",
        "\n",
        "{",
        "}",
        ".",
        ",",
        "#",
        "\"\"\"",
        "ü",
        "\u{0}",
        "\u{feff}",
        "\\",
        "-1",
        "1e9",
        "[[",
        "]]",
        "true",
        "none",
        "[projects.x]",
        "quota = nan",
        "9999999999999999999",
        "1979-05-27",
    ];
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/config.toml");
    let example = std::fs::read_to_string(path).unwrap().replace("\n#", "\n");
    let mut seed: u64 = 1;
    let mut below = |bound: usize| {
        // Knuth's generator: the high bits are good enough.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(seed >> 33).unwrap() % bound
    };
    let (mut right, mut wrong) = (0, 0);
    for _ in 0..400 {
        let mut text = example.clone();
        for _ in 0..=below(3) {
            let letters: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
            if letters.is_empty() {
                break;
            }
            let at = letters[below(letters.len())];
            match below(3) {
                0 => text.insert_str(at, PIECES[below(PIECES.len())]),
                1 => drop(text.remove(at)),
                _ => text.truncate(at),
            }
        }
        match parse(text.as_bytes()) {
            Ok(_) => right += 1,
            Err(problems) => {
                wrong += 1;
                assert!(!problems.is_empty());
                let lines = text.split('\n').count();
                for problem in problems {
                    let place = problem.place.unwrap();
                    assert!(
                        (1..=lines).contains(&place.line) && place.column > 0,
                        "{text}"
                    );
                    assert!(problem.hint.is_some_and(|hint| !hint.is_empty()), "{text}");
                    assert!(!problem.message.contains(HINT), "{text}");
                }
            }
        }
    }
    assert!(right > 0 && wrong > 100, "{right} right, {wrong} wrong");
}
