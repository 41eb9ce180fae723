//! The end of a claim by itself: with a process, or with a control group.
//!
//! ```text
//! process   ─► gone, a zombie, or another process has its pid            ─► over
//! cgroup    ─► not there yet ─► appears (its id is journaled) ─► removed ─► over
//!                      └─ 5 minutes without it ──────────────────────────► over
//! ```
//! An error of the kernel releases nothing: only the absence of the object does.

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use divvy_api::v1::{ClaimEnd, Error, ErrorCode};
use divvy_core::job::StopReason;
use serde::{Deserialize, Serialize};

use crate::host::machine::machine;
use crate::host::process::Process;
use crate::model::validate::usage;

/// How long a control group may take to appear: Slurm's Prolog runs before the step makes the group of its job.
pub const APPEARS_WITHIN: Duration = Duration::from_secs(300);

/// What a claim ends with, as the journal has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// A request that is not held yet may lack the start time.
    Process {
        pid: u32,
        start_time: Option<u64>,
        /// Whether the end of the process, before a release, is a cancel.
        #[serde(default)]
        cancels: bool,
    },
    Cgroup {
        folder: PathBuf,
        /// The inode of the group that was seen there. A group that is made anew has another.
        id: Option<u64>,
    },
}

/// What a look at the end finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The claim stays.
    Nothing,
    /// The control group is there for the first time.
    Appeared(End),
    /// The claim is over: how, and why.
    Over(StopReason, String),
}

impl End {
    /// Reads what a client asks for, without a look at the machine.
    ///
    /// # Errors
    /// [`ErrorCode::Usage`].
    pub fn parse(asked: &ClaimEnd) -> Result<Self, Error> {
        match (asked.pid, &asked.cgroup) {
            (Some(pid), None) if i32::try_from(pid).is_ok_and(|pid| pid > 0) => Ok(Self::Process {
                pid,
                start_time: asked.start_time,
                cancels: asked.cancels,
            }),
            (Some(pid), None) => Err(usage(format!("{pid}: not a pid"))
                .hint("use the pid of a process, as `$$` in a shell")),
            (None, Some(_)) if asked.cancels => Err(usage(
                "the removal of a control group releases a slice, and cannot cancel it",
            )
            .hint("use `cancels` with a pid")),
            (None, Some(folder)) if asked.start_time.is_none() => Ok(Self::Cgroup {
                folder: cgroup_folder(folder)?,
                id: None,
            }),
            _ => Err(
                usage("the end of a claim needs exactly one of pid and cgroup")
                    .hint("leave `ends` out for a claim that only a call releases"),
            ),
        }
    }

    /// Whether a request for this end means one that is held.
    pub fn is_same(&self, held: &Self) -> bool {
        match (self, held) {
            (
                Self::Process {
                    pid,
                    start_time,
                    cancels,
                },
                Self::Process {
                    pid: held_pid,
                    start_time: held_start,
                    cancels: held_cancels,
                },
            ) => {
                let is_process =
                    pid == held_pid && (start_time.is_none() || start_time == held_start);
                is_process && cancels == held_cancels
            }
            (Self::Cgroup { folder, .. }, Self::Cgroup { folder: held, .. }) => folder == held,
            _ => false,
        }
    }

    /// The end as a new claim has it: with the process or the group that is there now.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`] without such a process, [`ErrorCode::Usage`] for a folder that can be no control group.
    pub fn begin(self) -> Result<Self, Error> {
        match self {
            Self::Process {
                pid,
                start_time,
                cancels,
            } => {
                let now = Process::with_pid(pid).filter(|process| process.is_alive());
                let is_it = |now: &Process| start_time.is_none_or(|start| start == now.start_time);
                match now {
                    Some(now) if is_it(&now) => Ok(Self::Process {
                        pid,
                        start_time: Some(now.start_time),
                        cancels,
                    }),
                    Some(_) => Err(Error::new(
                        ErrorCode::NotFound,
                        format!("process {pid} has ended, and another process has its pid"),
                    )),
                    None => Err(Error::new(
                        ErrorCode::NotFound,
                        format!("there is no process {pid}"),
                    )),
                }
                .map_err(|error| {
                    error.hint("use a process that runs where the daemon can see it, such as `$$`")
                })
            }
            Self::Cgroup { folder, .. } => match machine().cgroup_id(&folder) {
                Ok(id) => Ok(Self::Cgroup { folder, id }),
                Err(error) => Err(usage(format!("{}: {error}", folder.display())).hint(
                    "use a folder below /sys/fs/cgroup; `cat /proc/PID/cgroup` shows the group of a process",
                )),
            },
        }
    }

    /// Looks whether a claim of this age is over.
    pub fn look(&self, age: Duration) -> Found {
        match self {
            Self::Process {
                pid,
                start_time,
                cancels,
            } => {
                let process = Process {
                    pid: *pid,
                    start_time: start_time.unwrap_or_default(),
                };
                match process.has_ended() {
                    false => Found::Nothing,
                    true if *cancels => Found::Over(
                        StopReason::Cancel,
                        format!("process {pid} ended before `divvy slice rm`"),
                    ),
                    true => Found::Over(StopReason::Release, format!("process {pid} has ended")),
                }
            }
            Self::Cgroup { folder, id } => {
                let shown = folder.display();
                match (machine().cgroup_id(folder), id) {
                    (Ok(Some(now)), None) => Found::Appeared(Self::Cgroup {
                        folder: folder.clone(),
                        id: Some(now),
                    }),
                    (Ok(Some(now)), Some(before)) if now == *before => Found::Nothing,
                    (Ok(_), Some(_)) => {
                        let why = format!("the control group {shown} was removed");
                        Found::Over(StopReason::Release, why)
                    }
                    (Ok(None), None) if age > APPEARS_WITHIN => {
                        let limit = APPEARS_WITHIN.as_secs();
                        let why =
                            format!("the control group {shown} did not appear within {limit} s");
                        Found::Over(StopReason::Release, why)
                    }
                    (Ok(None), None) | (Err(_), _) => Found::Nothing,
                }
            }
        }
    }

    /// The folder of a control group.
    pub fn cgroup(&self) -> Option<&Path> {
        match self {
            Self::Cgroup { folder, .. } => Some(folder),
            Self::Process { .. } => None,
        }
    }

    pub fn to_api(&self) -> ClaimEnd {
        match self {
            Self::Process {
                pid,
                start_time,
                cancels,
            } => ClaimEnd::with_process(*pid, *start_time).cancelling(*cancels),
            Self::Cgroup { folder, .. } => ClaimEnd::with_cgroup(folder.display().to_string()),
        }
    }
}

/// An absolute path without `.`, `..` and a slash at its end, so that equal groups have equal paths.
fn cgroup_folder(text: &str) -> Result<PathBuf, Error> {
    let path = Path::new(text);
    let is_plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    if !path.is_absolute() || !path.components().all(is_plain) || text.contains(char::is_control) {
        return Err(
            usage(format!("{text:?}: not the folder of a control group"))
                .hint("use an absolute path below /sys/fs/cgroup, without `..`"),
        );
    }
    Ok(path.components().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, start_time: Option<u64>) -> End {
        End::Process {
            pid,
            start_time,
            cancels: false,
        }
    }

    #[test]
    fn an_end_is_a_process_or_a_control_group_and_never_both() {
        let of = |pid, start_time, cgroup: Option<&str>| {
            End::parse(&ClaimEnd {
                pid,
                start_time,
                cgroup: cgroup.map(str::to_owned),
                ..ClaimEnd::default()
            })
        };
        assert_eq!(of(Some(7), Some(9), None).unwrap(), process(7, Some(9)));
        let group = of(None, None, Some("/sys/fs/cgroup//a/b/")).unwrap();
        assert_eq!(group.cgroup(), Some(Path::new("/sys/fs/cgroup/a/b")));
        for (pid, start_time, cgroup) in [
            (None, None, None),
            (None, Some(1), None),
            (Some(7), None, Some("/sys/fs/cgroup/a")),
            (None, Some(1), Some("/sys/fs/cgroup/a")),
            (Some(0), None, None),
            (Some(u32::MAX), None, None),
            (None, None, Some("sys/fs/cgroup/a")),
            (None, None, Some("/sys/fs/cgroup/../a")),
            (None, None, Some("/sys/fs/cgroup/a\n")),
            (None, None, Some("")),
        ] {
            let error = of(pid, start_time, cgroup).unwrap_err();
            assert_eq!(error.code, ErrorCode::Usage, "{pid:?} {cgroup:?}: {error}");
        }
    }

    #[test]
    fn a_process_ends_a_claim_once_it_is_gone_or_another_has_its_pid() {
        let me = Process::this().unwrap();
        let held = process(me.pid, None).begin().unwrap();
        assert_eq!(held, process(me.pid, Some(me.start_time)));
        assert_eq!(held.look(Duration::MAX), Found::Nothing);
        let before = process(me.pid, Some(me.start_time + 1));
        assert_eq!(
            before.clone().begin().unwrap_err().code,
            ErrorCode::NotFound
        );
        assert!(matches!(
            before.look(Duration::ZERO),
            Found::Over(StopReason::Release, _)
        ));
        let cancelled = End::Process {
            pid: me.pid,
            start_time: Some(me.start_time + 1),
            cancels: true,
        };
        let found = cancelled.look(Duration::ZERO);
        let Found::Over(StopReason::Cancel, why) = found else {
            panic!("{found:?}");
        };
        assert_eq!(
            why,
            format!("process {} ended before `divvy slice rm`", me.pid)
        );
        assert_eq!(End::parse(&cancelled.to_api()).unwrap(), cancelled);
        let none = process(i32::MAX.unsigned_abs(), None);
        assert_eq!(none.begin().unwrap_err().code, ErrorCode::NotFound);
    }

    #[test]
    fn a_folder_outside_of_the_control_groups_is_refused_and_an_absent_group_may_come() {
        let folder = tempfile::tempdir().unwrap();
        let outside = folder.path().join("group");
        let end = End::Cgroup {
            folder: outside,
            id: None,
        };
        assert_eq!(end.begin().unwrap_err().code, ErrorCode::Usage);
    }

    #[test]
    fn a_repeated_request_means_what_is_held() {
        let group = |id| End::Cgroup {
            folder: "/g".into(),
            id,
        };
        assert!(process(7, None).is_same(&process(7, Some(1))));
        assert!(process(7, Some(1)).is_same(&process(7, Some(1))));
        assert!(!process(7, Some(2)).is_same(&process(7, Some(1))));
        assert!(!process(8, None).is_same(&process(7, Some(1))));
        let cancels = ClaimEnd::with_process(7, Some(1)).cancelling(true);
        let cancels = End::parse(&cancels).unwrap();
        assert!(!cancels.is_same(&process(7, Some(1))));
        assert!(cancels.is_same(&cancels));
        let group_cancels = ClaimEnd::with_cgroup("/sys/fs/cgroup/a").cancelling(true);
        let error = End::parse(&group_cancels).unwrap_err();
        assert_eq!(error.code, ErrorCode::Usage, "{error}");
        assert!(group(None).is_same(&group(Some(3))));
        assert!(!group(None).is_same(&process(7, Some(1))));
    }
}
