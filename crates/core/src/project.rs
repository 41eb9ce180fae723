//! Project accounting: quotas, fair shares, scheduling order between projects, and preemption.
//!
//! ```text
//!   quota          limit
//!     │              │
//!   ██████████░░░░░░░│        ██ within quota: served first, never preempted
//!   └─────────┘└─────┘        ░░ over quota: idle GPUs, by weight; preemptible jobs can be preempted
//! ```
//!
//! Everything is counted in thousandths of GPUs and bytes of GPU memory, as granted. The jobs of a project have a rank:
//! jobs that are not preemptible first, then by priority, then by age. A job is within the quota if the quota holds it
//! and all jobs before it. Only preemptible jobs go over quota. A user's limit holds over all projects, and also where
//! there are none.
//!
//! | module | decides |
//! |---|---|
//! | [`fair`] | each project's fair share: quota first, the rest by weight |
//! | `quota` | usage and quota of each project |
//! | `order` | which project's job is considered next |
//! | `preemption` | the victims that make room for a job within quota |
//! | `quota_check` | requests that a project can never serve, or a user never run |
//! | `user_limit` | usage of each user with a limit, over all projects |
//!
//! May use: `units`, `model`, `placement`.
//! Used by: `plan`, `resize`, `explain`.

pub mod fair;

mod allowance;
mod nearest;
mod order;
mod preemption;
mod quota;
mod quota_check;
mod quota_cost;
mod quota_exceeded;
mod user_limit;

pub use crate::model::project::{
    Limit, Project, Quota, Resources, SchedulingClass, is_account_name,
};
pub(crate) use allowance::{of_offers, place_within};
pub(crate) use order::{QueuePosition, SchedulingOrder, delays_same_project};
pub(crate) use preemption::{QuotaRequest, Victims, find_victims};
pub(crate) use quota::QuotaLedger;
pub use quota::{QuotaStatus, quota_status};
pub(crate) use quota_check::quota_exceeded_by;
pub use quota_check::{check_quota, check_user_limit, quota_exceeded_by_resize};
pub(crate) use quota_cost::quota_cost;
pub use quota_exceeded::{
    OutOfQuota, PendingPreemption, QuotaAhead, QuotaExceeded, QuotaRule, QuotaSum,
};
pub(crate) use user_limit::{UserLedger, can_delay};
