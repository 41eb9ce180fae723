//! Symlink resolution of mount targets: the real path of a mount in the image, as far as the engine reports symlinks.
//!
//! Docker tells of a container as it will be, its mounts in their places. Podman tells of the image, and below a mount of what is mounted:
//! where a link of the image leads into another mount it does not know, and at the very path of a mount only that there is a link.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::path_stat::PathKind;

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolved {
    Unchanged,
    Target(PathBuf),
    /// The engine does not say; as far as it does, to the path.
    Unknown(Option<PathBuf>),
}

/// A path on the way from the root.
#[derive(Clone, Debug)]
pub struct Walk {
    reached: PathBuf,
    /// The last part first.
    rest: Vec<OsString>,
    is_linked: bool,
    context: MountContext,
}

/// What is to be known of a mount and its engine.
#[derive(Clone, Copy, Debug)]
pub struct MountContext {
    pub podman: bool,
    /// Nothing else is mounted that a link could lead into.
    pub is_only_mount: bool,
}

impl Walk {
    /// `path`: without `.` and `..`.
    pub fn new(path: &Path, of: MountContext) -> Self {
        let mut rest: Vec<OsString> = path.iter().skip(1).map(OsString::from).collect();
        rest.reverse();
        Self {
            reached: PathBuf::from("/"),
            rest,
            is_linked: false,
            context: of,
        }
    }

    /// What to ask for next, and whether that is the path of the mount itself.
    pub fn next(&self) -> Option<(PathBuf, bool)> {
        let next = self.rest.last()?;
        Some((self.reached.join(next), self.rest.len() == 1))
    }

    /// Takes what lies there; where the path leads, once that is known.
    pub fn visit(&mut self, there: PathKind) -> Option<Resolved> {
        let part = self.rest.pop()?;
        match there {
            PathKind::FileOrDir => self.reached.push(part),
            PathKind::Missing => {
                self.reached.push(part);
                self.reached.extend(self.rest.drain(..).rev());
            }
            PathKind::Symlink(_) if self.context.podman && self.rest.is_empty() => {
                return Some(Resolved::Unknown(None));
            }
            PathKind::Symlink(target) => {
                self.reached = PathBuf::from(target);
                self.is_linked = true;
                if self.context.podman && !self.context.is_only_mount {
                    self.reached.extend(self.rest.drain(..).rev());
                    return Some(Resolved::Unknown(Some(self.reached.clone())));
                }
            }
        }
        match (self.rest.is_empty(), self.is_linked) {
            (false, _) => None,
            (true, false) => Some(Resolved::Unchanged),
            (true, true) => Some(Resolved::Target(self.reached.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a path leads in an image that has these, links with where they lead.
    fn leads(image: &[(&str, &str)], path: &str, of: MountContext) -> Resolved {
        let mut way = Walk::new(Path::new(path), of);
        loop {
            let (next, is_own) = way.next().expect("a way has an end");
            assert_eq!(is_own, next.file_name() == Path::new(path).file_name());
            let found = image.iter().find(|(at, _)| Path::new(at) == next);
            let there = match found {
                Some((_, "")) => PathKind::FileOrDir,
                Some((_, target)) => PathKind::Symlink((*target).to_owned()),
                None => PathKind::Missing,
            };
            if let Some(leads) = way.visit(there) {
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
        let docker = MountContext {
            podman: false,
            is_only_mount: false,
        };
        for (path, to) in [
            ("/data/x", None),
            ("/usr/lib/mine", None),
            ("/lib/a/b", Some("/usr/lib/a/b")),
            ("/lib/own", Some("/run/divvy-job/slice")),
            ("/lib/own/slots", Some("/run/divvy-job/slice/slots")),
            ("/free", Some("/run/divvy-job")),
        ] {
            let expected = to.map_or(Resolved::Unchanged, |to| Resolved::Target(to.into()));
            assert_eq!(leads(IMAGE, path, docker), expected, "{path}");
        }
    }

    #[test]
    fn podman_says_where_a_link_leads_that_is_not_the_mounts_own_path() {
        let podman = MountContext {
            podman: true,
            is_only_mount: true,
        };
        for (path, expected) in [
            ("/data/x", Resolved::Unchanged),
            ("/lib/a/b", Resolved::Target("/usr/lib/a/b".into())),
            (
                "/free/slice",
                Resolved::Target("/run/divvy-job/slice".into()),
            ),
            ("/free", Resolved::Unknown(None)),
            ("/usr/lib/own", Resolved::Unknown(None)),
            ("/lib/own", Resolved::Unknown(None)),
        ] {
            assert_eq!(leads(IMAGE, path, podman), expected, "{path}");
        }
    }

    #[test]
    fn podman_does_not_say_what_is_mounted_where_a_link_leads() {
        let podman = MountContext {
            podman: true,
            is_only_mount: false,
        };
        let expected = Resolved::Unknown(Some("/usr/lib/a/b/c/z/l".into()));
        assert_eq!(leads(IMAGE, "/lib/a/b/c/z/l", podman), expected);
        assert_eq!(leads(IMAGE, "/usr/lib/a/b/c", podman), Resolved::Unchanged);
    }
}
