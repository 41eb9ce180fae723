//! Where a mount's path leads by links of the image, as far as an engine says so.
//!
//! Docker tells of a container as it will be, its mounts in their places. Podman tells of the image, and below a mount of what is mounted:
//! where a link of the image leads into another mount it does not know, and at the very path of a mount only that there is a link.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::archive::There;

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leads {
    Itself,
    To(PathBuf),
    /// The engine does not say; as far as it does, to the path.
    Unsaid(Option<PathBuf>),
}

/// A path on the way from the root.
#[derive(Clone, Debug)]
pub struct Way {
    reached: PathBuf,
    /// The last part first.
    rest: Vec<OsString>,
    is_linked: bool,
    of: Of,
}

/// What is to be known of a mount and its engine.
#[derive(Clone, Copy, Debug)]
pub struct Of {
    pub podman: bool,
    /// Nothing else is mounted that a link could lead into.
    pub is_alone: bool,
}

impl Way {
    /// `path`: without `.` and `..`.
    pub fn new(path: &Path, of: Of) -> Self {
        let mut rest: Vec<OsString> = path.iter().skip(1).map(OsString::from).collect();
        rest.reverse();
        Self {
            reached: PathBuf::from("/"),
            rest,
            is_linked: false,
            of,
        }
    }

    /// What to ask for next, and whether that is the path of the mount itself.
    pub fn next(&self) -> Option<(PathBuf, bool)> {
        let next = self.rest.last()?;
        Some((self.reached.join(next), self.rest.len() == 1))
    }

    /// Takes what lies there; where the path leads, once that is known.
    pub fn hear(&mut self, there: There) -> Option<Leads> {
        let part = self.rest.pop()?;
        match there {
            There::Itself => self.reached.push(part),
            There::Nothing => {
                self.reached.push(part);
                self.reached.extend(self.rest.drain(..).rev());
            }
            There::Link(_) if self.of.podman && self.rest.is_empty() => {
                return Some(Leads::Unsaid(None));
            }
            There::Link(target) => {
                self.reached = PathBuf::from(target);
                self.is_linked = true;
                if self.of.podman && !self.of.is_alone {
                    self.reached.extend(self.rest.drain(..).rev());
                    return Some(Leads::Unsaid(Some(self.reached.clone())));
                }
            }
        }
        match (self.rest.is_empty(), self.is_linked) {
            (false, _) => None,
            (true, false) => Some(Leads::Itself),
            (true, true) => Some(Leads::To(self.reached.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a path leads in an image that has these, links with where they lead.
    fn leads(image: &[(&str, &str)], path: &str, of: Of) -> Leads {
        let mut way = Way::new(Path::new(path), of);
        loop {
            let (next, is_own) = way.next().expect("a way has an end");
            assert_eq!(is_own, next.file_name() == Path::new(path).file_name());
            let found = image.iter().find(|(at, _)| Path::new(at) == next);
            let there = match found {
                Some((_, "")) => There::Itself,
                Some((_, target)) => There::Link((*target).to_owned()),
                None => There::Nothing,
            };
            if let Some(leads) = way.hear(there) {
                return leads;
            }
        }
    }

    const IMAGE: &[(&str, &str)] = &[
        ("/lib", "/usr/lib"),
        ("/usr", ""),
        ("/usr/lib", ""),
        ("/usr/lib/own", "/run/divvy-job/slice"),
        ("/free", "/run/divvy-job"),
    ];

    #[test]
    fn links_are_followed_one_after_the_other() {
        let docker = Of {
            podman: false,
            is_alone: false,
        };
        for (path, to) in [
            ("/data/x", None),
            ("/usr/lib/mine", None),
            ("/lib/a/b", Some("/usr/lib/a/b")),
            ("/lib/own", Some("/run/divvy-job/slice")),
            ("/lib/own/slots", Some("/run/divvy-job/slice/slots")),
            ("/free", Some("/run/divvy-job")),
        ] {
            let expected = to.map_or(Leads::Itself, |to| Leads::To(to.into()));
            assert_eq!(leads(IMAGE, path, docker), expected, "{path}");
        }
    }

    #[test]
    fn podman_says_where_a_link_leads_that_is_not_the_mounts_own_path() {
        let podman = Of {
            podman: true,
            is_alone: true,
        };
        for (path, expected) in [
            ("/data/x", Leads::Itself),
            ("/lib/a/b", Leads::To("/usr/lib/a/b".into())),
            ("/free/slice", Leads::To("/run/divvy-job/slice".into())),
            ("/free", Leads::Unsaid(None)),
            ("/usr/lib/own", Leads::Unsaid(None)),
            ("/lib/own", Leads::Unsaid(None)),
        ] {
            assert_eq!(leads(IMAGE, path, podman), expected, "{path}");
        }
    }

    #[test]
    fn podman_does_not_say_what_is_mounted_where_a_link_leads() {
        let podman = Of {
            podman: true,
            is_alone: false,
        };
        let expected = Leads::Unsaid(Some("/usr/lib/a/b/c/z/l".into()));
        assert_eq!(leads(IMAGE, "/lib/a/b/c/z/l", podman), expected);
        assert_eq!(leads(IMAGE, "/usr/lib/a/b/c", podman), Leads::Itself);
    }
}
