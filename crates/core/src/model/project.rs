//! Projects as data: quota, limit, members, and the scheduling class of a job.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use crate::model::slice::Grant;
use crate::units::{Bytes, Gpus, JobId, ProjectName, UserName};

/// A group of users, and the amount of GPU that they may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Project {
    pub name: ProjectName,
    /// Guaranteed.
    pub quota: Quota,
    /// Its part of what is over quota, against the other projects' weights: 1 weighs as much as a quota of one GPU.
    /// `None`: in proportion to its quota; 0: only what no other project wants.
    pub weight: Option<u32>,
    /// Never more than this.
    pub limit: Limit,
    /// Jobs of projects with higher priority are considered first, within quota and over it.
    pub priority: i32,
    /// Its jobs are not preempted before they have run this long.
    pub min_runtime_s: u64,
    /// Users, and groups with an `@` before them; empty means every user.
    pub members: Vec<String>,
}

/// The guaranteed resources of a project. It is over quota as soon as it uses more of any of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    pub gpus: Gpus,
    /// `None`: memory is not divided.
    pub memory: Option<Bytes>,
}

/// The maximum of a project; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    pub gpus: Option<Gpus>,
    pub memory: Option<Bytes>,
}

impl Project {
    /// A project without quota and limit.
    pub fn new(name: ProjectName) -> Self {
        Self {
            name,
            quota: Quota::default(),
            weight: None,
            limit: Limit::default(),
            priority: 0,
            min_runtime_s: 0,
            members: Vec::new(),
        }
    }

    /// Whether a user of these groups may submit to it.
    pub fn admits<'a>(&self, user: &str, groups: impl IntoIterator<Item = &'a str>) -> bool {
        let is_member = |who: &str| self.members.iter().any(|member| member == who);
        self.members.is_empty()
            || (!user.starts_with('@') && is_member(user))
            || groups
                .into_iter()
                .any(|group| is_member(&format!("@{group}")))
    }

    /// Its weight in the division of what is over quota, in thousandths.
    pub(crate) fn weighs(&self) -> u64 {
        self.weight.map_or(self.quota.gpus.thousandths(), |weight| {
            u64::from(weight) * 1000
        })
    }
}

/// Whether a text can name a user (`ana`) or a group (`@vision`, or by a directory service `@domain users`). Groups of a
/// directory may have blanks within their names; users cannot.
pub fn is_account_name(text: &str) -> bool {
    let (name, is_group) = match text.strip_prefix('@') {
        Some(group) => (group, true),
        None => (text, false),
    };
    let is_wrong = |letter: char| {
        letter.is_control() || letter.is_whitespace() && !(is_group && letter == ' ')
    };
    !name.is_empty() && name.trim() == name && !name.contains(is_wrong)
}

/// An amount of both resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    pub gpus: Gpus,
    pub memory: Bytes,
}

impl Resources {
    pub fn of(grants: &[Grant]) -> Self {
        Self {
            gpus: grants.iter().map(|grant| Gpus::from(grant.share)).sum(),
            memory: grants.iter().map(|grant| grant.memory).sum(),
        }
    }

    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            gpus: self.gpus.saturating_add(other.gpus),
            memory: self.memory.saturating_add(other.memory),
        }
    }
}

impl Quota {
    /// Whether it holds so much.
    pub fn holds(&self, used: Resources) -> bool {
        used.gpus <= self.gpus && self.memory.is_none_or(|memory| used.memory <= memory)
    }
}

impl Limit {
    /// Whether it allows so much.
    pub fn holds(&self, used: Resources) -> bool {
        self.gpus.is_none_or(|gpus| used.gpus <= gpus)
            && self.memory.is_none_or(|memory| used.memory <= memory)
    }
}

impl From<Quota> for Limit {
    fn from(quota: Quota) -> Self {
        Self {
            gpus: Some(quota.gpus),
            memory: quota.memory,
        }
    }
}

/// The project and the user of a job, and its rank among the jobs of that project.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SchedulingClass {
    /// `None`: outside all projects.
    #[serde(default)]
    pub project: Option<ProjectName>,
    /// Higher first among the jobs of its queue, and of its project.
    #[serde(default)]
    pub priority: i32,
    /// A job within its project's quota can preempt it, which requeues it; in return it may use quota that other
    /// projects leave.
    #[serde(default)]
    pub preemptible: bool,
    /// The user whose limit the job counts for. `None`: another scheduler allocated it, so no limit of a user applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<UserName>,
}

impl SchedulingClass {
    /// The rank of a holder in its project: jobs that are not preemptible first, then by priority, then by age.
    pub(crate) fn rank(&self, job: JobId) -> impl Ord + Copy + use<> {
        (self.preemptible, Reverse(self.priority), job)
    }

    /// Whether a pending job of this class ranks before a holder of the same project: by priority, and among equals a
    /// job that is not preemptible before one that is. Age alone displaces no holder.
    pub(crate) fn displaces(&self, holder: &Self) -> bool {
        holder.preemptible
            && (self.priority > holder.priority
                || (self.priority == holder.priority && !self.preemptible))
    }

    /// The rank of a pending job in its project: a job that displaces another comes before it.
    pub(crate) fn precedence(&self) -> impl Ord + Copy + use<> {
        (Reverse(self.priority), self.preemptible)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_may_have_blanks_within_its_name_and_a_user_may_not() {
        for text in [
            "ana",
            "@vision",
            "@domain users",
            "@domänen-benutzer der uni",
            "@1004",
        ] {
            assert!(is_account_name(text), "{text:?}");
        }
        for text in [
            "",
            "@",
            "a b",
            "@ users",
            "@users ",
            "@a\tb",
            "@a\nb",
            "@a\u{a0}b",
            "a\0",
        ] {
            assert!(!is_account_name(text), "{text:?}");
        }
    }

    #[test]
    fn members_of_a_project_are_users_and_groups_and_no_member_means_all_users() {
        let mut project = Project::new("vision".parse().unwrap());
        assert!(project.admits("ana", []));
        project.members = vec!["ana".into(), "@lab".into()];
        assert!(project.admits("ana", []));
        assert!(project.admits("lee", ["users", "lab"]));
        assert!(!project.admits("lee", ["users"]));
        assert!(!project.admits("lab", []), "a group is not a user");
        assert!(!project.admits("@lab", []), "no user is called that");
    }

    #[test]
    fn over_quota_is_over_in_any_resource() {
        let quota = Quota {
            gpus: Gpus::whole(2),
            memory: Some(Bytes::gib(80)),
        };
        let used = |gpus, gib| Resources {
            gpus: Gpus::whole(gpus),
            memory: Bytes::gib(gib),
        };
        assert!(quota.holds(used(2, 80)));
        assert!(!quota.holds(used(1, 81)) && !quota.holds(used(3, 10)));
        assert!(
            Quota {
                memory: None,
                ..quota
            }
            .holds(used(2, 1000))
        );
    }
}
