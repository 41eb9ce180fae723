//! User limits: what the jobs of each user hold together, over all projects and queues.

use std::collections::BTreeMap;

use super::quota_cost::most_cost;
use super::{Limit, QuotaExceeded, QuotaRule, QuotaSum, Resources, SchedulingClass};
use crate::model::snapshot::Snapshot;
use crate::placement::occupancy::NodeUsage;
use crate::units::{Gpus, UserName};

/// The usage of the users that have a limit.
#[derive(Clone)]
pub(crate) struct UserLedger<'a> {
    limits: &'a BTreeMap<UserName, Gpus>,
    used: BTreeMap<&'a UserName, Gpus>,
}

impl<'a> UserLedger<'a> {
    /// `None` where no user has a limit.
    pub(crate) fn of(snapshot: &'a Snapshot) -> Option<Self> {
        if snapshot.user_limits.is_empty() {
            return None;
        }
        let mut ledger = Self {
            limits: &snapshot.user_limits,
            used: BTreeMap::new(),
        };
        for held in &snapshot.held {
            ledger.add(&held.owner, Resources::of(&held.grants).gpus);
        }
        Some(ledger)
    }

    /// The user of a job, if that user has a limit.
    pub(crate) fn limited_user(&self, owner: &SchedulingClass) -> Option<&'a UserName> {
        let (user, _) = self.limits.get_key_value(owner.user.as_ref()?)?;
        Some(user)
    }

    /// Adds the usage of a job.
    pub(crate) fn add(&mut self, owner: &SchedulingClass, gpus: Gpus) {
        if let Some(user) = self.limited_user(owner) {
            let used = self.used.entry(user).or_default();
            *used = used.saturating_add(gpus);
        }
    }

    /// What the user of a job may still take; `None` without a limit.
    pub(crate) fn remaining(&self, owner: &SchedulingClass) -> Option<Gpus> {
        let user = self.limited_user(owner)?;
        Some(self.limits[user].saturating_sub(self.used(user)))
    }

    /// The limit that keeps a job waiting, whether or not there is room.
    pub(crate) fn exceeded(&self, owner: &SchedulingClass, need: Gpus) -> Option<QuotaExceeded> {
        let user = self.limited_user(owner)?;
        exceeded_with(user, self.limits[user], self.used(user), need)
    }

    /// The limit that the job exceeds even without another job of its user: it never starts.
    pub(crate) fn never(&self, owner: &SchedulingClass, need: Gpus) -> Option<QuotaExceeded> {
        let user = self.limited_user(owner)?;
        exceeded_with(user, self.limits[user], Gpus::ZERO, need)
    }

    fn used(&self, user: &UserName) -> Gpus {
        self.used.get(user).copied().unwrap_or_default()
    }
}

/// The refusal of a request beyond the user's limit of `most`.
pub(super) fn exceeded_with(
    user: &UserName,
    most: Gpus,
    used: Gpus,
    need: Gpus,
) -> Option<QuotaExceeded> {
    let most = Limit {
        gpus: Some(most),
        memory: None,
    };
    let [used, need] = [used, need].map(|gpus| Resources {
        gpus,
        ..Resources::default()
    });
    let resource = QuotaSum::exceeding(most, used, need)?;
    Some(QuotaExceeded {
        rule: QuotaRule::UserLimit(user.clone()),
        resource,
    })
}

/// Whether a limit of a user can delay a job of the snapshot: all jobs of one user together may exceed it.
pub(crate) fn can_delay(snapshot: &Snapshot) -> bool {
    let Some(mut ledger) = UserLedger::of(snapshot) else {
        return false;
    };
    let empty = NodeUsage::empty(&snapshot.gpus);
    for waiting in snapshot.queues.iter().flat_map(|queue| &queue.waiting) {
        if ledger.limited_user(&waiting.owner).is_some() {
            ledger.add(&waiting.owner, most_cost(&empty, &waiting.request));
        }
    }
    let mut used = ledger.used.iter();
    used.any(|(user, used)| *used > ledger.limits[*user])
}
