//! The reader of clearml.conf beside pyhocon, over the files that ClearML's wizards write, its templates, and
//! generated files.
//!
//! Each file is read by both. What this reader made of it goes to a task as JSON, which pyhocon reads there; so
//! pyhocon reads that JSON here, and all three have to be equal. A file that pyhocon refuses has to be refused.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use divvy_clearml::config::{Tree, Variables};
use divvy_testkit::{Bounded as _, Rng};
use serde_json::{Value, json};

/// Generated files, and as many again with one sign added, changed or left out. `DIVVY_HOCON_SEEDS=N` tries more, and
/// `DIVVY_HOCON_SEED=N` one of them. pyhocon does not end, or finds a cycle, where a key means an empty value of its
/// own above; no seed below 275 leads there.
const FILES: u64 = 60;

const VARIABLES: [(&str, &str); 4] = [
    ("PATH", "/usr/bin:/bin"),
    ("CLEARML_TEST_HOST", "http://10.1.2.3:8008"),
    ("CLEARML_TEST_PORT", "8081"),
    ("CLEARML_TEST_EMPTY", ""),
];

/// One Python for all files.
struct Pyhocon {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    home: tempfile::TempDir,
}

impl Pyhocon {
    fn start() -> Self {
        let python = std::env::var_os("DIVVY_TEST_PYTHON").expect(
            "DIVVY_TEST_PYTHON names no Python with tests/e2e/requirements.txt installed; run `cargo xtask test`, which makes \
             one, or set it to target/clients-venv/bin/python",
        );
        let home = tempfile::tempdir().expect("the test can go on");
        let mut child = Command::new(python)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/pyhocon.py"))
            .env_clear()
            .env("HOME", home.path())
            .envs(VARIABLES)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the test can go on");
        Self {
            input: child.stdin.take(),
            output: BufReader::new(child.stdout.take().expect("the test can go on")),
            child,
            home,
        }
    }

    fn ask(&mut self, command: &[&str]) -> Value {
        let mut line = json!(command).to_string();
        line.push('\n');
        self.input
            .as_mut()
            .expect("the test can go on")
            .write_all(line.as_bytes())
            .expect("the test can go on");
        let mut answer = String::new();
        self.output
            .read_line(&mut answer)
            .expect("the test can go on");
        serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{command:?}: {answer:?}"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn read(&mut self, path: &Path) -> Result<Value, String> {
        let mut answer = self.ask(&["read", path.to_str().expect("the test can go on")]);
        match answer["value"].take() {
            // Null in a text is the address of an object there.
            value if value.to_string().contains("NoneValue object at") => Err("null".to_owned()),
            Value::Null => Err(answer["error"].to_string()),
            value => Ok(value),
        }
    }

    /// What is different, if anything is.
    fn compare(&mut self, path: &Path) -> Result<Outcome, String> {
        let (ours, theirs) = (read(path), self.read(path));
        let (ours, theirs) = match (ours, theirs) {
            (Err(_), Err(_)) => return Ok(Outcome::Refused),
            (Err(ours), Ok(theirs)) => return Err(format!("refused: {ours}\npyhocon: {theirs}")),
            (Ok(ours), Err(theirs)) => return Err(format!("read: {ours}\npyhocon: {theirs}")),
            (Ok(ours), Ok(theirs)) => (ours, theirs),
        };
        if ours != theirs {
            return Err(format!("read: {ours}\npyhocon: {theirs}"));
        }
        let sent = self.path("sent.conf");
        fs::write(
            &sent,
            serde_json::to_string_pretty(&ours).expect("the test can go on"),
        )
        .expect("the test can go on");
        match self.read(&sent) {
            Ok(inside) if inside == without_empty_texts(&theirs) => Ok(Outcome::Read),
            inside => Err(format!("read: {ours}\nin the task: {inside:?}")),
        }
    }
}

/// A list as pyhocon reads it from JSON: the stock agent's JSON loses the same.
fn without_empty_texts(value: &Value) -> Value {
    match value {
        Value::Array(items) => {
            let kept = items.iter().filter(|item| item.as_str() != Some(""));
            kept.map(without_empty_texts).collect()
        }
        Value::Object(fields) => {
            let fields = fields.iter();
            fields
                .map(|(key, value)| (key.clone(), without_empty_texts(value)))
                .collect()
        }
        value => value.clone(),
    }
}

impl Drop for Pyhocon {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait_bounded();
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Read,
    Refused,
}

fn read(path: &Path) -> Result<Value, String> {
    let vars: BTreeMap<String, String> = VARIABLES
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    let tree = Tree::read(Some(path), &Variables::new(vars)).map_err(|error| error.to_string())?;
    Ok(tree.root().clone())
}

#[test]
fn every_file_of_clearmls_own_is_read_as_pyhocon_reads_it() {
    let mut pyhocon = Pyhocon::start();
    let mut files = Vec::new();
    for command in ["init", "clearml-init"] {
        let path = pyhocon.path(&format!("{command}.written"));
        pyhocon.ask(&[command, path.to_str().expect("the test can go on")]);
        files.push(path);
    }
    let templates = pyhocon.ask(&["templates"]);
    for template in templates.as_array().expect("the test can go on") {
        files.push(PathBuf::from(
            template.as_str().expect("the test can go on"),
        ));
    }
    // What the web page gives to be copied, and lines as users write them.
    for (index, text) in AS_TYPED.iter().enumerate() {
        let path = pyhocon.path(&format!("typed{index}.conf"));
        fs::write(&path, text).expect("the test can go on");
        files.push(path);
    }
    for path in &files {
        assert_eq!(
            pyhocon.compare(path),
            Ok(Outcome::Read),
            "{}",
            path.display()
        );
    }
    let init = read(&files[0]).expect("the test can go on");
    assert_eq!(init["api"]["files_server"], "http://clearml.example:8081");
    assert_eq!(
        init["sdk"]["development"]["default_output_uri"],
        "http://clearml.example:8081"
    );
    println!("{} files, 0 differences", files.len());
}

const AS_TYPED: [&str; 12] = [
    "api {\n  web_server: https://app.clear.ml\n  api_server: https://api.clear.ml\n  files_server: https://files.clear.ml\n  \
     credentials {\n    \"access_key\" = \"A\"\n    \"secret_key\"  = \"S\"\n  }\n}\n",
    "agent { package_manager { extra_index_url: [https://my.index/simple, http://b:80/x // c\n] } default_docker: { image: a:b } }",
    "agent { git { x: 1 } worker_name: node1 }\nagent.default_docker.arguments = [\"--ipc=host\", -v, /data:/data]",
    "api { api_server: ${CLEARML_TEST_HOST}\nfiles_server: \"http://h:\"${CLEARML_TEST_PORT}/files, web_server: ${?NOWHERE} }",
    "list = [a]\nlist += [b]\nlist = ${list} [c]\nbase { x: 1, y: 2 }\nmore = ${base} { y: 3 }\n",
    "script: \"\"\"echo \"a\"\n  echo b # no comment\"\"\"\nfilters = [\"^--env$\", \"^\\d+\\.x\", \"\"]",
    "\ttabs\t=\t\"a\tb\" # c\n\n\n,\r\na: TRUE, b: Null, c: no, d: .5, e: 007, f: -1.50e+3, g: 12.10, h: 1.2.3",
    "a: b // c\na2: b//c\n// c, d\n# d { e\nx: [1 # one\n 2, // two\n, 3]\n",
    "include \"nowhere.conf\"\ninclude: 1\ninclude_all: include\n",
    "long: one \\\n  two \\\n  three\npath: C:\\\\dir\\new, q: 'single', r: (a;b|c~d%e>f)\n",
    "\"a.b\": 1\nc.d.e: {f: 2}\nc.d { g: 3 }\nk l-m/n_o: x\n",
    "a: ${b}, b: ${c}, c: 5, d: [${a}, ${?x}], e: ${b} ${c}, f: \"q\"  ${a}, PATH: ${PATH}\":/x\", g { h: [1] }, g.h: ${g.h} [2]\n",
];

#[test]
fn every_generated_file_is_read_as_pyhocon_reads_it_or_refused_with_it() {
    let mut pyhocon = Pyhocon::start();
    let seeds = match std::env::var("DIVVY_HOCON_SEED") {
        Ok(seed) => {
            seed.parse().expect("the test can go on")..=seed.parse().expect("the test can go on")
        }
        Err(_) => {
            1..=std::env::var("DIVVY_HOCON_SEEDS")
                .map_or(FILES, |seeds| seeds.parse().expect("the test can go on"))
        }
    };
    fs::write(
        pyhocon.path("more.conf"),
        "included { url: http://x:1, k: 1 }\nk1 { i: [a] }\n",
    )
    .expect("the test can go on");
    let (mut outcomes, mut differences) = ([[0; 2]; 2], Vec::new());
    for seed in seeds {
        let mut random = Random(Rng::new(seed));
        let text = Writer::write(&mut random);
        let broken = random.broken(&text);
        for (kind, text) in [text, broken].iter().enumerate() {
            let path = pyhocon.path("generated.conf");
            fs::write(&path, text).expect("the test can go on");
            match pyhocon.compare(&path) {
                Ok(Outcome::Read) => outcomes[kind][0] += 1,
                Ok(Outcome::Refused) => outcomes[kind][1] += 1,
                Err(why) => differences.push(format!(
                    "DIVVY_HOCON_SEED={seed}, {}:\n{text}\n----\n{why}\n",
                    ["whole", "broken"][kind]
                )),
            }
        }
    }
    let [whole, broken] = outcomes;
    println!(
        "whole: read, refused {whole:?}; broken: {broken:?}; different {}",
        differences.len()
    );
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// What the texts are made of, by a seed.
struct Random(Rng);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.0.below(end as u64)).expect("the test can go on")
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len())]
    }

    /// The text with one sign added, changed or left out.
    fn broken(&mut self, text: &str) -> String {
        const SIGNS: &[&str] = &[
            "{", "}", "[", "]", "\"", ":", "=", ",", "#", "//", "\\", "${", "?", "*", "\n", " ",
            "+=", "a",
        ];
        let mut letters: Vec<String> = text.chars().map(String::from).collect();
        let at = self.below(letters.len());
        match self.below(3) {
            0 => letters[at] = self.of(SIGNS).to_owned(),
            1 => letters.insert(at, self.of(SIGNS).to_owned()),
            _ => drop(letters.remove(at)),
        }
        letters.concat()
    }
}

/// Writes files as they are met, and as HOCON allows them.
struct Writer<'a> {
    random: &'a mut Random,
    text: String,
    /// Keys at the top that later values can mean.
    known: Vec<String>,
}

impl Writer<'_> {
    fn write(random: &mut Random) -> String {
        let mut writer = Writer {
            random,
            text: String::new(),
            known: Vec::new(),
        };
        let braces = writer.random.one_in(12);
        if braces {
            writer.text += "{";
        }
        for index in 0..2 + writer.random.below(7) {
            writer.field(&format!("k{index}"), 0);
        }
        if braces {
            writer.text += "}\n";
        }
        // pyhocon takes a number with a letter at the very end for a length of time.
        writer.text += "# the end\n";
        writer.text
    }

    fn field(&mut self, key: &str, depth: usize) {
        let key = match self.random.below(10) {
            0 => format!("{key}.inner"),
            1 => format!("\"{key}\""),
            2 if depth > 0 => format!("\"{key}.dotted\""),
            3 => format!("{key} x-y/z"),
            _ => key.to_owned(),
        };
        let indent = self.random.of(&["", "  ", "\t", "    "]);
        self.text += indent;
        if depth == 0 && self.random.one_in(20) {
            self.text += "include \"more.conf\"\n";
        }
        self.text += &key;
        match self.random.below(6) {
            0 | 1 if depth < 3 => {
                self.text += self.random.of(&[" ", "", " : ", " = ", ": "]);
                self.section(depth + 1);
            }
            _ => {
                self.text += self.random.of(&[": ", " = ", ":", "=", " : ", "=\n  "]);
                self.value(depth);
            }
        }
        self.text += self.random.of(&[
            "\n",
            "\n",
            "\n",
            ",\n",
            " # a comment: {\n",
            "\n\n// http://no.value\n",
            "\r\n",
            ", ",
        ]);
        if depth == 0 && !key.contains(['"', ' ']) {
            match self.random.below(24) {
                // The key again, out of itself.
                0 => {
                    self.text += &format!(
                        "{key} = ${{{key}}}{}\n",
                        self.random.of(&["", " [z]", " {z: 1}", " z"])
                    )
                }
                1 => {
                    self.text += &format!(
                        "{key} += {}\n",
                        self.random.of(&["[z]", "z", "\"z\"", "5", "[{a: 1}]"])
                    )
                }
                2 => {
                    self.text += &format!(
                        "{key} {{ again: {} }}\n",
                        self.random.of(&["1", "${?NOWHERE}", "[]"])
                    )
                }
                _ => {}
            }
            self.known.push(key);
        }
    }

    fn section(&mut self, depth: usize) {
        self.text += self.random.of(&["{", "{ ", "{\n", "{ # a comment\n"]);
        for index in 0..self.random.below(4) {
            self.field(&format!("s{index}"), depth);
        }
        self.text += "}";
    }

    fn value(&mut self, depth: usize) {
        match self.random.below(14) {
            0 | 1 => self.list(depth),
            2 if depth < 3 => {
                self.section(depth + 1);
                if self.random.one_in(3) {
                    self.section(depth + 1);
                }
            }
            3 => {
                self.word();
                self.text += self.random.of(&["", " ", "  "]);
                self.reference();
                if self.random.one_in(2) {
                    self.text += self.random.of(&["", " ", "/x"]);
                }
            }
            4 => self.reference(),
            5 => {
                for _ in 0..2 + self.random.below(2) {
                    self.word();
                    self.text += self.random.of(&["", " ", "  ", "\t"]);
                }
            }
            6 => {
                self.list(depth);
                self.text += self.random.of(&["", " "]);
                self.list(depth);
            }
            _ => self.word(),
        }
    }

    fn list(&mut self, depth: usize) {
        self.text += self.random.of(&["[", "[ ", "[\n", "[ // of these\n"]);
        for _ in 0..self.random.below(5) {
            match self.random.below(8) {
                0 if depth < 3 => self.section(depth + 1),
                1 if depth < 3 => self.list(depth + 1),
                2 => self.reference(),
                _ => self.word(),
            }
            self.text +=
                self.random
                    .of(&[", ", ",\n", "\n", ",", " , ", " # each\n", ",\n  # why\n  "]);
        }
        self.text += "]";
    }

    fn reference(&mut self) {
        let (mark, path) = match self.random.below(8) {
            0 => (self.random.of(&["", "?"]), "CLEARML_TEST_HOST".to_owned()),
            1 => ("", "CLEARML_TEST_PORT".to_owned()),
            2 => (
                "?",
                self.random
                    .of(&["NOWHERE", "CLEARML_TEST_EMPTY"])
                    .to_owned(),
            ),
            3 if self.random.one_in(4) => (
                "",
                self.random.of(&["NOWHERE", "k1.s0", "k2.inner"]).to_owned(),
            ),
            _ if self.known.is_empty() => ("?", "CLEARML_TEST_HOST".to_owned()),
            _ => {
                let known = self.random.below(self.known.len());
                (self.random.of(&["", "?"]), self.known[known].clone())
            }
        };
        self.text += &format!("${{{mark}{path}}}");
    }

    fn word(&mut self) {
        self.text += self.random.of(&[
            "http://clearml.example:8008",
            "https://files.clear.ml/a/b",
            "s3://bucket/a//b",
            "nvidia/cuda:12.3.2-base-ubuntu22.04",
            "\"http://quoted:8080/#x\"",
            "\"a \\\"b\\\" \\\\ \\d \\n \\u00e9\"",
            "\"tab\tin it\"",
            "\"\"",
            "\"${NO_SUBSTITUTION}\"",
            "\"--ipc=host\"",
            "--shm-size",
            "-v",
            "~/.clearml/cache",
            "C:\\\\dir\\x",
            "a\\=b\\#c",
            "true",
            "False",
            "TRUE",
            "yes",
            "0",
            "-12",
            "+7",
            "15728640",
            "1.0",
            "0.25",
            ".5",
            "1e3",
            "2.5E-7",
            "1e17",
            "12.",
            "1.2.3",
            "007",
            "null",
            "node-1_a:b",
            "'single quotes'",
            "ümläut",
            "\"ключ ☃\"",
            "\"\"\"three\n \"quotes\" // here\"\"\"",
            "\"\"\"ends in one\"\"\"\"",
            "(a;b|c)",
            "10s",
            "two words",
            "line \\\n  goes on",
        ]);
    }
}
