//! The random workload: submissions of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use divvy_api::daemon::{ParkOptions, ParkWhen, PerUser, ProjectRules};
use divvy_api::v1::{
    self, Amount, Container, Idle, IdleAction, Isolation, JobChange, Runner, Submit,
};
use divvy_core::JobId;

use super::program::{OWNER, SECRET, TO_CONFIRM};
use crate::model::idle::Rule;
use divvy_testkit::Rng;

/// A submission, and what its job is in for.
#[derive(Default)]
pub struct Workload {
    pub submit: Submit,
    /// It takes MIG instances.
    pub wants_mig: bool,
    /// It starts once it is confirmed.
    pub to_confirm: bool,
    /// Under which rule about doing nothing it is, in seconds.
    pub rule: Option<u64>,
}

/// In some of the runs a limit of GPUs for each user: smaller than what one job may ask for, and larger.
pub fn rules_of_users(dice: &mut Rng) -> ProjectRules {
    let limits: [&[(&str, &str)]; 8] = [
        &[],
        &[],
        &[],
        &[],
        &[],
        &[("others", "1.5")],
        &[("others", "2")],
        &[("others", "1"), ("lee", "2.25")],
    ];
    let mut max_gpus = PerUser::default();
    for (user, most) in dice.one(&limits).unwrap_or_default() {
        let most = most.parse().expect("a number");
        max_gpus.insert(user, most).expect("a user");
    }
    ProjectRules {
        max_gpus,
        ..ProjectRules::default()
    }
}

/// The daemon's rule for idle jobs.
pub fn idle_park(dice: &mut Rng) -> Rule {
    Rule {
        after_s: 1 + dice.below(2),
        action: IdleAction::Park,
    }
}

pub fn parking(dice: &mut Rng) -> ParkOptions {
    let when = dice.one(&[ParkWhen::Need, ParkWhen::Need, ParkWhen::Idle]);
    ParkOptions {
        when: when.unwrap_or_default(),
        wake: (!dice.once_in(3)).then_some(WAKE),
        ..ParkOptions::default()
    }
}

/// The bound of wakes: jobs that end within it are among those with a time limit.
pub const WAKE: Duration = Duration::from_secs(30);

/// Gives the submit an owner, with a secret that no other user may see.
pub fn owned(submit: &mut Submit, who: &str) {
    submit.env.insert(OWNER.to_owned(), who.to_owned());
    for secret in submit.secrets.values_mut() {
        *secret = secret_of(who);
    }
}

pub fn secret_of(who: &str) -> String {
    format!("{who} says hush")
}

/// An ordinary job. `known`: those that it may run after.
pub fn plain(runner: Runner, dice: &mut Rng, known: &BTreeMap<String, JobId>) -> Submit {
    let amounts = [
        None,
        Some(Amount::Share { thousandths: 125 }),
        Some(Amount::Share { thousandths: 400 }),
        Some(Amount::Memory { bytes: 20 << 30 }),
        Some(Amount::Whole { count: 1 }),
        Some(Amount::Range { min: 1, max: 3 }),
        Some(Amount::Shares {
            count: 2,
            thousandths: 300,
        }),
    ];
    let amount = usize::try_from(dice.below(7)).unwrap_or(0);
    let amount = amounts.into_iter().nth(amount).flatten();
    let queue = dice.one(&["dual", "half", "quarter"]);
    let before = known.values().copied().collect::<Vec<_>>();
    let after = dice.once_in(8).then(|| dice.one(&before)).flatten();
    Submit {
        command: vec!["true".to_owned()],
        // A queue with an amount has its own.
        queue: queue.filter(|_| amount.is_none()).map(str::to_owned),
        amount,
        project: dice
            .one(&[None, Some("red"), Some("blue")])
            .flatten()
            .map(str::to_owned),
        cwd: "/".to_owned(),
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin".to_owned())]),
        runner,
        priority: dice.one(&[0, 0, 1]).unwrap_or(0),
        preemptible: dice.once_in(2),
        time_limit_s: dice.once_in(5).then_some(20),
        retries: u32::try_from(dice.below(3)).unwrap_or(0),
        secrets: match dice.once_in(4) {
            true => BTreeMap::from([(SECRET.to_owned(), String::new())]),
            false => BTreeMap::new(),
        },
        after: after
            .map(|job| v1::After {
                job: job.to_string(),
                ok: dice.once_in(2),
            })
            .into_iter()
            .collect(),
        ..Submit::default()
    }
}

/// Where a waiting job is to wait.
pub fn a_move(dice: &mut Rng) -> JobChange {
    let queues = ["dual", "half", "quarter", "default", "nowhere"];
    let queue = dice.one(&queues).filter(|_| dice.once_in(2));
    JobChange {
        top: queue.is_none() || dice.once_in(2),
        queue: queue.map(str::to_owned),
        amount: dice
            .once_in(3)
            .then_some(Amount::Share { thousandths: 250 }),
        ..JobChange::default()
    }
}

/// What a job is to be from now on; some of it is refused, and then all of it.
pub fn a_change(dice: &mut Rng) -> JobChange {
    JobChange {
        amount: dice
            .once_in(3)
            .then_some(Amount::Share { thousandths: 125 }),
        priority: dice
            .one(&[None, Some(-1), Some(0), Some(1), Some(2000)])
            .flatten(),
        time_limit_s: dice.one(&[None, Some(0), Some(5), Some(20)]).flatten(),
        name: dice.once_in(4).then(|| "renamed".to_owned()),
        ..JobChange::default()
    }
}

/// A job of one of the kinds that [`plain`] has not.
pub fn other(dice: &mut Rng, known: &BTreeMap<String, JobId>) -> Workload {
    let mut wish = Workload {
        submit: plain(Runner::Supervisor, dice, known),
        ..Workload::default()
    };
    let submit = &mut wish.submit;
    let kind = dice.below(8);
    if kind < 4 {
        submit.container = Some(Container {
            image: "image".to_owned(),
            arguments: Vec::new(),
            starter: None,
            as_submitter: false,
        });
    }
    if (3..7).contains(&kind) {
        let profiles = ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb"];
        submit.queue = None;
        wish.wants_mig = true;
        submit.amount = Some(Amount::Mig {
            profile: dice.one(&profiles).unwrap_or_default().to_owned(),
        });
    }
    if dice.once_in(3) {
        submit.confirm = true;
        submit.confirm_within_s = Some(10);
        submit.env.insert(TO_CONFIRM.to_owned(), "yes".to_owned());
        wish.to_confirm = true;
    }
    if dice.once_in(3) {
        let after_s = dice.one(&[1, 2, 4]).unwrap_or(1);
        let actions = [
            IdleAction::Notify,
            IdleAction::Suspend,
            IdleAction::Cancel,
            IdleAction::Park,
        ];
        let action = dice.one(&actions).unwrap_or(IdleAction::Notify);
        submit.idle = Some(Idle { after_s, action });
        wish.rule = Some(after_s);
    }
    if wish.wants_mig && dice.once_in(3) {
        // An instance on each of two GPUs.
        submit.isolation = Isolation::Hardware;
        submit.amount = Some(Amount::Shares {
            count: 2,
            thousandths: dice.one(&[100, 250, 400]).unwrap_or(100),
        });
    }
    wish
}
