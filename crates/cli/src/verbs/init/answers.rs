//! The answers to the questions of `admin init`, from flags or from a terminal, and the file that they make.

use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::path::Path;

use divvy_api::daemon::file;
use divvy_api::v1::{Error, ErrorCode};

use crate::args::AdminInit;
use crate::error_output::{Result, usage};

/// Wrong answers to one question before the command gives up.
const TRIES: usize = 5;

/// Bytes of one line of an answer.
const LONGEST: u64 = 64 << 10;

/// What the file will contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    pub gpus: Option<String>,
    pub queues: Vec<String>,
    /// Only for the system's daemon.
    pub admins: Vec<String>,
    pub projects: Vec<Project>,
    /// The most GPUs of one user.
    pub max_gpus: Option<String>,
    /// Users, `@groups` or `others`, with the project of their jobs that name none.
    pub default_projects: Vec<(String, String)>,
    /// Only jobs may open the GPUs' device nodes. Only for the system's daemon.
    pub nodes_for_jobs: bool,
    pub listen: Option<SocketAddr>,
    system: bool,
    /// Questions that flags have answered.
    given: Vec<&'static str>,
}

/// `vision=2.5:ana,@vision`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project {
    name: String,
    quota: String,
    members: Vec<String>,
}

/// A question: the text, the answer for an empty line, and what an answer does.
struct Question {
    flag: &'static str,
    text: &'static str,
    default: &'static str,
    take: fn(&mut Answers, &[&str]) -> Result<()>,
}

const QUESTIONS: &[Question] = &[
    Question {
        flag: "--gpus",
        text: "GPUs to serve: all, or a list such as 0,2 or 0-3",
        default: "all",
        take: Answers::take_gpus,
    },
    Question {
        flag: "--queue",
        text: "Queues in the order to serve them: NAME, or NAME=AMOUNT (half=0.5 whole=1)",
        default: "none",
        take: Answers::take_queues,
    },
    Question {
        flag: "--admin",
        text: "Admins besides root: users, and groups as @group",
        default: "none",
        take: Answers::take_admins,
    },
    Question {
        flag: "--project",
        text: "Projects: NAME=QUOTA:MEMBERS (vision=2.5:ana,@vision)",
        default: "none",
        take: Answers::take_projects,
    },
    Question {
        flag: "--default-project",
        text: "Project of jobs that name none: NAME for all, USER=NAME, @GROUP=NAME",
        default: "none",
        take: Answers::take_default_project,
    },
    Question {
        flag: "--max-gpus",
        text: "Most GPUs that the jobs of one user hold together (2, 0.5)",
        default: "none",
        take: Answers::take_max_gpus,
    },
    Question {
        flag: "--device-nodes",
        text: "Users' programs that may open the GPUs: open for all, or jobs",
        default: "open",
        take: Answers::take_device_nodes,
    },
    Question {
        flag: "--listen",
        text: "Address for metrics and the API over TCP, with a token (127.0.0.1:7070)",
        default: "none",
        take: Answers::take_listen,
    },
];

impl Answers {
    /// The answers of the flags.
    ///
    /// # Errors
    /// [`ErrorCode::Usage`] with the flag and what is wrong with its value.
    pub fn of(args: &AdminInit, system: bool) -> Result<Self> {
        let mut answers = Self {
            system,
            ..Self::default()
        };
        let words = |words: &[String]| words.to_vec();
        let address = args.listen.map(|address| address.to_string());
        let given: [(&'static str, Vec<String>); 8] = [
            ("--gpus", args.gpus.iter().cloned().collect()),
            ("--queue", words(&args.queue)),
            ("--admin", words(&args.admin)),
            ("--project", words(&args.project)),
            ("--default-project", words(&args.default_project)),
            ("--max-gpus", args.max_gpus.iter().cloned().collect()),
            (
                "--device-nodes",
                args.device_nodes.iter().cloned().collect(),
            ),
            ("--listen", address.into_iter().collect()),
        ];
        for (flag, words) in given {
            let question = QUESTIONS.iter().find(|question| question.flag == flag);
            let Some(question) = question.filter(|_| !words.is_empty()) else {
                continue;
            };
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            (question.take)(&mut answers, &words).map_err(|mut error| {
                error.message = format!("{flag}: {}", error.message);
                error
            })?;
            answers.given.push(flag);
        }
        Ok(answers)
    }

    /// Asks the questions that no flag has answered, and repeats a question after a wrong answer.
    ///
    /// # Errors
    /// [`ErrorCode::Usage`] at the end of the input, and after five wrong answers.
    pub fn ask(&mut self, input: &mut impl BufRead, output: &mut impl Write) -> Result<()> {
        for question in QUESTIONS {
            let concerns = self.system || !["--admin", "--device-nodes"].contains(&question.flag);
            if !concerns || self.given.contains(&question.flag) {
                continue;
            }
            self.ask_one(question, input, output)?;
        }
        Ok(())
    }

    fn ask_one(
        &mut self,
        question: &Question,
        input: &mut impl BufRead,
        output: &mut impl Write,
    ) -> Result<()> {
        for _ in 0..TRIES {
            let _ = write!(output, "{} [{}]: ", question.text, question.default);
            let _ = output.flush();
            let line = line(input)?;
            let words: Vec<&str> = line.split_whitespace().collect();
            let words = match words[..] {
                [] | ["none"] => vec![],
                _ => words,
            };
            match (question.take)(self, &words) {
                Ok(()) => return Ok(()),
                Err(error) => {
                    let _ = writeln!(output, "{}", error.render(false, crate::text::clean));
                }
            }
        }
        Err(usage(
            format!("no answer to {} after {TRIES} tries", question.flag),
            format!("give it as a flag: {}", question.flag),
        ))
    }

    fn take_gpus(&mut self, words: &[&str]) -> Result<()> {
        let gpus = words.join(",");
        let gpus = (!gpus.is_empty() && gpus != "all").then_some(gpus);
        check(
            &gpus
                .iter()
                .map(|gpus| key("gpus", gpus))
                .collect::<String>(),
        )?;
        self.gpus = gpus;
        Ok(())
    }

    fn take_queues(&mut self, words: &[&str]) -> Result<()> {
        let queues = owned(words);
        check(&array("queues", &queues))?;
        self.queues = queues;
        Ok(())
    }

    fn take_admins(&mut self, words: &[&str]) -> Result<()> {
        if !self.system && !words.is_empty() {
            return Err(usage(
                "only the system's daemon has roles",
                "run the command as root, or leave out the admins",
            ));
        }
        let admins: Vec<String> = words.iter().flat_map(|word| split(word)).collect();
        check(&format!("[roles]\n{}", array("admin", &admins)))?;
        self.admins = admins;
        Ok(())
    }

    fn take_projects(&mut self, words: &[&str]) -> Result<()> {
        let projects: Vec<Project> = words
            .iter()
            .map(|word| project(word))
            .collect::<Result<_>>()?;
        check(&projects.iter().map(Project::table).collect::<String>())?;
        self.projects = projects;
        Ok(())
    }

    fn take_default_project(&mut self, words: &[&str]) -> Result<()> {
        let rules = words
            .iter()
            .map(|word| default_project(word, &self.projects))
            .collect::<Result<Vec<_>>>()?;
        if !rules.is_empty() {
            check(&default_projects(&rules))?;
        }
        self.default_projects = rules;
        Ok(())
    }

    fn take_max_gpus(&mut self, words: &[&str]) -> Result<()> {
        let most = (!words.is_empty()).then(|| words.join(" "));
        let line = most.iter().map(|most| key("max-gpus", most));
        check(&format!("[project-rules]\n{}", line.collect::<String>()))?;
        self.max_gpus = most;
        Ok(())
    }

    fn take_device_nodes(&mut self, words: &[&str]) -> Result<()> {
        self.nodes_for_jobs = match words {
            [] | ["open"] => false,
            ["jobs"] if self.system => true,
            ["jobs"] => {
                return Err(usage(
                    "only the system's daemon can keep programs from the device nodes",
                    "run the command as root, or answer open",
                ));
            }
            other => {
                return Err(usage(
                    format!("{} is neither open nor jobs", other.join(" ")),
                    "use open, or jobs",
                ));
            }
        };
        Ok(())
    }

    fn take_listen(&mut self, words: &[&str]) -> Result<()> {
        let listen: Option<SocketAddr> = match words {
            [] => None,
            [address] => address
                .parse()
                .ok()
                .filter(|at: &SocketAddr| at.ip().is_loopback()),
            _ => None,
        };
        if listen.is_none() && !words.is_empty() {
            return Err(usage(
                format!(
                    "{} is not an address of this machine with a port",
                    words.join(" ")
                ),
                "use a loopback address such as 127.0.0.1:7070, behind a proxy with TLS or an SSH tunnel",
            ));
        }
        self.listen = listen;
        Ok(())
    }

    /// The text of the configuration file.
    pub fn file(&self, token: &Path) -> String {
        let mut text = "\
# The configuration of the Divvy daemon, written by `divvy admin init`. Every key: `divvy config show --defaults`.
# Packages have its page in /usr/share/doc/divvy/docs/config.md.
# After a change: divvy config check && divvy config reload
"
        .to_owned();
        if let Some(gpus) = &self.gpus {
            text += &key("gpus", gpus);
        }
        if !self.queues.is_empty() {
            text += "\n# In the order in which the daemon serves them: NAME, or NAME=AMOUNT of each job.\n";
            text += &array("queues", &self.queues);
        }
        if self.nodes_for_jobs {
            text += "\n# Programs of users outside jobs cannot open the GPUs.\n";
            text += &key("device-nodes", "jobs");
        }
        if let Some(address) = self.listen {
            text += "\n[listen]\n";
            text += &key("listen", &address.to_string());
            text += &key("token-file", &token.display().to_string());
        }
        if !self.admins.is_empty() {
            text += "\n# Root is an admin, too. Users by name, groups with @.\n[roles]\n";
            text += &array("admin", &self.admins);
        }
        if let Some(most) = &self.max_gpus {
            text += "\n[project-rules]\n";
            text += &key("max-gpus", most);
        }
        if !self.default_projects.is_empty() {
            text += "\n";
            text += &default_projects(&self.default_projects);
        }
        for project in &self.projects {
            text += &project.table();
        }
        text
    }
}

/// `vision`, `ana=vision` or `@staff=vision`; the project must be one of the file.
fn default_project(word: &str, projects: &[Project]) -> Result<(String, String)> {
    let (user, name) = word.split_once('=').unwrap_or(("others", word));
    if !projects.iter().any(|project| project.name == name) {
        return Err(usage(
            format!("{word}: there is no project {name} in this file"),
            format!("add it: --project {name}=QUOTA"),
        ));
    }
    Ok((user.to_owned(), name.to_owned()))
}

/// The table of default projects.
fn default_projects(rules: &[(String, String)]) -> String {
    let lines = rules
        .iter()
        .map(|(user, name)| key(&bare_or_quoted(user), name));
    format!(
        "[project-rules.default-project]\n{}",
        lines.collect::<String>()
    )
}

/// A name as a key of TOML.
fn bare_or_quoted(name: &str) -> String {
    let is_bare = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    match !name.is_empty() && name.chars().all(is_bare) {
        true => name.to_owned(),
        false => quoted(name),
    }
}

impl Project {
    fn table(&self) -> String {
        let name = bare_or_quoted(&self.name);
        let mut text = format!("\n[projects.{name}]\nquota = {}\n", self.quota);
        if !self.members.is_empty() {
            text += &array("members", &self.members);
        }
        text
    }
}

fn project(word: &str) -> Result<Project> {
    let wrong = || {
        usage(
            format!("{word}: not a project"),
            "use NAME=QUOTA or NAME=QUOTA:MEMBERS, for example vision=2.5:ana,@vision",
        )
    };
    let (name, rest) = word.rsplit_once('=').ok_or_else(wrong)?;
    let (quota, members) = rest.split_once(':').unwrap_or((rest, ""));
    if name.is_empty() || quota.is_empty() {
        return Err(wrong());
    }
    // A number as it is, so that the file has it as a user would write it.
    let quota = match quota.parse::<divvy_core::Gpus>() {
        Ok(gpus) => gpus.to_string(),
        Err(error) => return Err(usage(error.to_string(), error.hint())),
    };
    let members = match members {
        "all" => Vec::new(),
        members => split(members),
    };
    Ok(Project {
        name: name.to_owned(),
        quota,
        members,
    })
}

fn split(word: &str) -> Vec<String> {
    let names = word.split(',').filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// A string of TOML: JSON's strings are a part of them.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn key(name: &str, text: &str) -> String {
    format!("{name} = {}\n", quoted(text))
}

fn array(name: &str, items: &[String]) -> String {
    let items: Vec<String> = items.iter().map(|item| quoted(item)).collect();
    format!("{name} = [{}]\n", items.join(", "))
}

/// Judges an answer as the file's parser will.
fn check(text: &str) -> Result<()> {
    let problems = match file::parse(text.as_bytes()) {
        Ok(_) => return Ok(()),
        Err(problems) => problems,
    };
    let Some(problem) = problems.into_iter().next() else {
        return Ok(());
    };
    let error = Error::new(ErrorCode::Usage, problem.message);
    Err(match problem.hint {
        Some(hint) => error.hint(hint),
        None => error,
    })
}

/// One line of the input.
fn line(input: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    let read = std::io::Read::take(&mut *input, LONGEST).read_line(&mut line);
    match read {
        Ok(0) => Err(usage(
            "the input ended before the last question",
            "run it again, or give the answers as flags with --yes",
        )),
        Ok(_) => Ok(line),
        Err(error) => Err(Error::new(
            ErrorCode::Internal,
            format!("cannot read the answer: {error}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(input: &str, args: &AdminInit) -> (Result<Answers>, String) {
        let mut output = Vec::new();
        let answers = Answers::of(args, true).and_then(|mut answers| {
            answers.ask(&mut input.as_bytes(), &mut output)?;
            Ok(answers)
        });
        (answers, String::from_utf8(output).unwrap())
    }

    fn file(answers: &Answers) -> String {
        let text = answers.file(Path::new("/etc/divvy/token"));
        file::parse(text.as_bytes()).unwrap();
        text
    }

    #[test]
    fn empty_answers_give_a_file_with_defaults() {
        let (answers, shown) = asked(&"\n".repeat(QUESTIONS.len()), &AdminInit::default());
        let answers = answers.unwrap();
        assert_eq!(
            answers,
            Answers {
                system: true,
                ..Answers::default()
            }
        );
        assert_eq!(shown.matches("]: ").count(), QUESTIONS.len());
        assert!(file(&answers).lines().all(|line| line.starts_with('#')));
    }

    #[test]
    fn answers_become_the_file_and_a_wrong_one_is_asked_again() {
        let input = "0,1\nhalf=0.3\nhalf=0.5 whole=1\nana @wheel\nvision=2.5:ana,@vision nlp=x\n\
                     vision=2.5:ana,@vision nlp=0:all\nnlp @vision=cv\nnlp @vision=vision\nmany\n2\nsome\njobs\n8.8.8.8:80\n127.0.0.1:7070\n";
        let (answers, shown) = asked(input, &AdminInit::default());
        assert!(shown.contains("multiple of 0.125"), "{shown}");
        assert!(shown.contains("8.8.8.8:80"), "{shown}");
        let text = file(&answers.unwrap());
        for line in [
            "gpus = \"0,1\"",
            "queues = [\"half=0.5\", \"whole=1\"]",
            "listen = \"127.0.0.1:7070\"",
            "token-file = \"/etc/divvy/token\"",
            "admin = [\"ana\", \"@wheel\"]",
            "[projects.vision]",
            "quota = 2.5",
            "members = [\"ana\", \"@vision\"]",
            "[projects.nlp]",
            "quota = 0",
            "[project-rules.default-project]",
            "others = \"nlp\"",
            "\"@vision\" = \"vision\"",
            "max-gpus = \"2\"",
            "device-nodes = \"jobs\"",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}:\n{text}");
        }
    }

    #[test]
    fn a_flag_answers_its_question() {
        let args = AdminInit {
            queue: vec!["half=0.5".into()],
            gpus: Some("all".into()),
            ..AdminInit::default()
        };
        let (answers, shown) = asked(&"\n".repeat(6), &args);
        assert_eq!(answers.unwrap().queues, ["half=0.5"]);
        assert!(!shown.contains("Queues") && !shown.contains("GPUs to serve"));
    }

    #[test]
    fn wrong_flags_odd_names_and_an_early_end_are_refused() {
        for (args, named) in [
            (
                AdminInit {
                    queue: vec!["a=0.3".into()],
                    ..AdminInit::default()
                },
                "--queue",
            ),
            (
                AdminInit {
                    queue: vec!["a=1".into(), "a=2".into()],
                    ..AdminInit::default()
                },
                "twice",
            ),
            (
                AdminInit {
                    project: vec!["vision".into()],
                    ..AdminInit::default()
                },
                "vision",
            ),
            (
                AdminInit {
                    project: vec!["a=1:b c".into()],
                    ..AdminInit::default()
                },
                "b c",
            ),
            (
                AdminInit {
                    gpus: Some("0-x".into()),
                    ..AdminInit::default()
                },
                "--gpus",
            ),
            (
                AdminInit {
                    admin: vec!["@".into()],
                    ..AdminInit::default()
                },
                "--admin",
            ),
        ] {
            let error = asked("", &args).0.unwrap_err();
            assert_eq!(error.code, ErrorCode::Usage);
            assert!(error.message.contains(named), "{}", error.message);
            assert!(error.hint.is_some());
        }
        // A name cannot leave its string.
        let args = AdminInit {
            project: vec!["a\"]\nsim=\"x=1".into()],
            ..AdminInit::default()
        };
        assert!(asked("", &args).0.is_err());
        let error = asked("\n\n", &AdminInit::default()).0.unwrap_err();
        assert!(error.message.contains("ended"), "{}", error.message);
        let error = asked(&"x-1\n".repeat(9), &AdminInit::default())
            .0
            .unwrap_err();
        assert!(error.message.contains("5 tries"), "{}", error.message);
    }
}
