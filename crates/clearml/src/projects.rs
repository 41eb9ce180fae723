//! The project mapping: from a task's user and project on the server to a project of this node, as the administrator
//! writes it.
//!
//! ```toml
//! by      = "user"            # user, project or none: what holds for a task that no line below names
//! default = "guests"          # for tasks without a project, and where the mapped project does not exist here
//!
//! [users]                     # by name or id; before the server's projects, which a task's user may choose
//! "Ana Ruiz" = "vision"
//!
//! [projects]                  # by name or id, with all below it: "Vision" is "Vision/Deep" too
//! "Vision" = "vision"
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Deserialize;

use crate::facts::Facts;

/// Bytes of the file: some ten thousand lines.
const LARGEST: u64 = 1 << 20;

/// The value of `clearml.project-by`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Source {
    #[default]
    None,
    User,
    Project,
    /// Read again whenever it changes.
    File(PathBuf),
}

impl Source {
    /// `user`, `project`, `none`; anything else names a file.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text {
            "none" => Self::None,
            "user" => Self::User,
            "project" => Self::Project,
            file => Self::File(PathBuf::from(file)),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum By {
    #[default]
    None,
    User,
    Project,
}

/// The rules that give each task a project of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mapping {
    by: By,
    default: Option<String>,
    users: BTreeMap<String, String>,
    projects: BTreeMap<String, String>,
}

/// The project of this node that a task is to run in.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProjectPlacement {
    /// `None`: outside all projects.
    pub project: Option<String>,
    /// The project that the mapping names, if it does not exist here.
    pub missing: Option<String>,
}

impl ProjectPlacement {
    /// A note on it for people, in a sentence.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        let missing = self.missing.as_ref()?;
        Some(match &self.project {
            Some(project) => {
                format!("there is no project {missing} on this node; the task runs in {project}")
            }
            None => format!(
                "there is no project {missing} on this node; the task runs outside all projects"
            ),
        })
    }
}

/// Why a mapping cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} has more than {LARGEST} bytes")]
    Large { path: PathBuf },
    #[error(
        "{path} belongs to uid {owner}, but must belong to uid {me} (the daemon's user) or to root"
    )]
    Owner { path: PathBuf, owner: u32, me: u32 },
    #[error("other users can write {path} (mode {mode:o})")]
    Open { path: PathBuf, mode: u32 },
    #[error("{path} is not a valid project mapping: {why}")]
    Wrong { path: PathBuf, why: String },
}

impl MappingError {
    /// The remedy.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Read { .. } => {
                "clearml.project-by takes user, project, none, or the path of an existing file"
            }
            Self::Large { .. } => "map projects instead of single users",
            Self::Owner { .. } => "change its owner with `chown`",
            Self::Open { .. } => {
                "run `chmod go-w` on it: a user with write access could choose any project's quota"
            }
            Self::Wrong { .. } => {
                "use the keys `by` (user, project or none) and `default`, and the tables [users] and [projects]"
            }
        }
    }
}

impl Mapping {
    /// # Errors
    /// [`MappingError`].
    pub fn read(path: &Path) -> Result<Self, MappingError> {
        let failed = |source| MappingError::Read {
            path: path.to_owned(),
            source,
        };
        // A pipe would keep the reader waiting for its writer.
        let meta = fs::metadata(path).map_err(failed)?;
        if !meta.is_file() {
            return Err(failed(io::Error::other("not a regular file")));
        }
        let file = File::open(path).map_err(failed)?;
        let me = rustix::process::geteuid().as_raw();
        if ![0, me].contains(&meta.uid()) {
            return Err(MappingError::Owner {
                path: path.to_owned(),
                owner: meta.uid(),
                me,
            });
        }
        let mode = meta.mode() & 0o777;
        if mode & 0o022 != 0 {
            return Err(MappingError::Open {
                path: path.to_owned(),
                mode,
            });
        }
        let mut text = String::new();
        file.take(LARGEST + 1)
            .read_to_string(&mut text)
            .map_err(failed)?;
        if text.len() as u64 > LARGEST {
            return Err(MappingError::Large {
                path: path.to_owned(),
            });
        }
        text.parse().map_err(|why| MappingError::Wrong {
            path: path.to_owned(),
            why,
        })
    }

    fn by(by: By) -> Self {
        Self {
            by,
            ..Self::default()
        }
    }

    /// Whether it gives no task a project.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Where a task runs on a node with these projects. Without any, a project is a mere label.
    #[must_use]
    pub fn place(&self, facts: &Facts, there: &BTreeSet<String>) -> ProjectPlacement {
        let is_there = |name: &String| there.is_empty() || there.contains(name);
        let wanted = self.wanted(facts);
        let found = wanted.iter().find(|name| is_there(name)).cloned();
        let default = || self.default.clone().filter(is_there);
        match (found, wanted.into_iter().next()) {
            (Some(project), _) => ProjectPlacement {
                project: Some(project),
                missing: None,
            },
            (None, missing) => ProjectPlacement {
                project: default(),
                // One that nothing maps goes where the administrator says, and misses nothing.
                missing: missing.or_else(|| self.default.clone().filter(|name| !is_there(name))),
            },
        }
    }

    /// The names that would do, the best one first.
    fn wanted(&self, facts: &Facts) -> Vec<String> {
        let user = [&facts.user_id, &facts.user];
        if let Some(project) = named(&self.users, user) {
            return vec![project];
        }
        if let Some(project) = named(&self.projects, [&facts.project_id]) {
            return vec![project];
        }
        let above = || facts.project.iter().flat_map(|name| with_those_above(name));
        if let Some(project) = above().find_map(|name| self.projects.get(name)) {
            return vec![project.clone()];
        }
        match self.by {
            By::None => Vec::new(),
            By::User => facts.user.iter().cloned().collect(),
            By::Project => above().map(str::to_owned).collect(),
        }
    }
}

impl std::str::FromStr for Mapping {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mapping: Self = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        let named = mapping.users.values().chain(mapping.projects.values());
        for name in named.chain(&mapping.default) {
            if name.parse::<divvy_core::ProjectName>().is_err() {
                return Err(format!("{name:?} is not a valid project name"));
            }
        }
        Ok(mapping)
    }
}

fn named<const N: usize>(
    lines: &BTreeMap<String, String>,
    names: [&Option<String>; N],
) -> Option<String> {
    let mut names = names.into_iter().flatten();
    names.find_map(|name| lines.get(name)).cloned()
}

/// `a/b/c`, `a/b`, `a`.
fn with_those_above(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(name), |name| {
        name.rsplit_once('/').map(|(above, _)| above)
    })
}

/// The mapping as it stands, read again whenever its file changes.
#[derive(Debug)]
pub struct Projects {
    file: Option<PathBuf>,
    /// The file's metadata at its last read.
    stamp: Option<Stamp>,
    mapping: Mapping,
}

type Stamp = (Option<SystemTime>, u64, u64);

impl Projects {
    /// # Errors
    /// A file that cannot be used.
    pub fn open(source: &Source) -> Result<Self, MappingError> {
        let (file, mapping) = match source {
            Source::None => (None, Mapping::default()),
            Source::User => (None, Mapping::by(By::User)),
            Source::Project => (None, Mapping::by(By::Project)),
            Source::File(path) => (Some(path.clone()), Mapping::read(path)?),
        };
        Ok(Self {
            stamp: file.as_deref().and_then(stamp),
            file,
            mapping,
        })
    }

    /// The mapping now. A file that became unusable leaves it as it was, and the log says so once.
    pub fn now(&mut self) -> &Mapping {
        if let Some(path) = &self.file {
            let stamp = stamp(path);
            if stamp != self.stamp {
                self.stamp = stamp;
                match Mapping::read(path) {
                    Ok(mapping) => {
                        tracing::info!(path = %path.display(), "reloaded the project mapping");
                        self.mapping = mapping;
                    }
                    Err(error) => {
                        let hint = error.hint();
                        tracing::warn!(%error, hint, "keeping the previous project mapping");
                    }
                }
            }
        }
        &self.mapping
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let meta = fs::metadata(path).ok()?;
    Some((meta.modified().ok(), meta.len(), meta.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn facts(user: &str, project: &str) -> Facts {
        Facts {
            user: Some(user.to_owned()),
            user_id: Some(format!("id of {user}")),
            project: Some(project.to_owned()),
            project_id: Some(format!("id of {project}")),
            ..Facts::default()
        }
    }

    fn there(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn placed(mapping: &Mapping, user: &str, project: &str) -> (String, String) {
        let place = mapping.place(
            &facts(user, project),
            &there(&["vision", "nlp", "guests", "Bob"]),
        );
        (
            place.project.unwrap_or_default(),
            place.missing.unwrap_or_default(),
        )
    }

    #[test]
    fn lines_of_users_come_first_then_projects_with_all_below_then_the_rule() {
        let mapping: Mapping = "by = \"user\"\ndefault = \"guests\"\n\
                                [users]\nAna = \"nlp\"\n\"id of Lee\" = \"nlp\"\n\
                                [projects]\nVision = \"vision\"\n\"Vision/Text\" = \"nlp\""
            .parse()
            .unwrap();
        for (user, project, to) in [
            ("Ana", "Vision/Deep", ("nlp", "")),
            ("Lee", "x", ("nlp", "")),
            ("Bob", "Vision/Deep/er", ("vision", "")),
            ("Bob", "Vision/Text/a", ("nlp", "")),
            ("Bob", "Visionary", ("Bob", "")),
            ("Eve", "x", ("guests", "Eve")),
        ] {
            let to = (to.0.to_owned(), to.1.to_owned());
            assert_eq!(placed(&mapping, user, project), to, "{user} {project}");
        }
    }

    #[test]
    fn the_nearest_project_above_that_exists_here_is_the_one() {
        let by = Mapping::by(By::Project);
        let pair = |one: &str, two: &str| (one.to_owned(), two.to_owned());
        assert_eq!(placed(&by, "Bob", "vision/a/b"), pair("vision", ""));
        assert_eq!(placed(&by, "Bob", "other/a"), pair("", "other/a"));
        let none = Mapping::default();
        assert!(none.is_none());
        assert_eq!(placed(&none, "Bob", "vision"), pair("", ""));
        // Where there are no projects the name is a label.
        let place = by.place(&facts("Bob", "other/a"), &BTreeSet::new());
        assert_eq!(place.project.as_deref(), Some("other/a"));
        let lost = ProjectPlacement {
            project: None,
            missing: Some("x".into()),
        };
        let note = lost.note().unwrap();
        assert!(note.contains("no project x") && note.contains("outside all projects"));
    }

    #[test]
    fn a_file_is_read_again_when_it_changes_and_a_bad_one_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("projects.toml");
        let write = |text: &str| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        };
        write("by = \"user\"");
        let mut projects = Projects::open(&Source::File(path.clone())).unwrap();
        assert_eq!(*projects.now(), Mapping::by(By::User));
        write("by = \"project\"  # other");
        assert_eq!(*projects.now(), Mapping::by(By::Project));
        write("by = \"nobody\"");
        assert_eq!(*projects.now(), Mapping::by(By::Project));
        fs::remove_file(&path).unwrap();
        assert_eq!(*projects.now(), Mapping::by(By::Project));
    }

    #[test]
    fn what_is_no_mapping_is_refused_with_what_would_be() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("projects.toml");
        let refused = |text: &str, mode: u32| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Mapping::read(&path).unwrap_err()
        };
        for text in [
            "by = 3",
            "x = 1",
            "[users]\na = \"b\\nc\"",
            "default = \"\"",
            "[users",
        ] {
            assert!(
                matches!(refused(text, 0o600), MappingError::Wrong { .. }),
                "{text}"
            );
        }
        assert!(matches!(
            refused("", 0o666),
            MappingError::Open { mode: 0o666, .. }
        ));
        let large = format!("# {}", "x".repeat(1 << 20));
        assert!(matches!(refused(&large, 0o600), MappingError::Large { .. }));
        fs::remove_file(&path).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        assert!(matches!(
            Mapping::read(&path),
            Err(MappingError::Read { .. })
        ));
        fs::remove_file(&path).unwrap();
        let error = Mapping::read(&path).unwrap_err();
        assert!(error.hint().contains("user, project, none"), "{error}");
        assert_eq!(Source::parse("user"), Source::User);
        assert_eq!(Source::parse("./user"), Source::File("./user".into()));
    }
}
