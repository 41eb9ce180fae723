//! A machine of a lab, from a seed: four GPUs, one of them in MIG mode, six users, jobs that run and wait, and a week of
//! figures behind them. Pictures of two runs differ in times only.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use divvy_api::v1::{Amount, Submit};
use divvy_testkit::{Daemon, Home, Programs, Rng, until};

use crate::Browser;
use crate::past::{self, Figures, Subject};

const GPUS: &str = "h100-80gb:3,a100-80gb:1";
const GIB: f32 = (1_u64 << 30) as f32;

/// A job of the lab.
struct Plan {
    user: &'static str,
    name: &'static str,
    project: &'static str,
    amount: Amount,
    /// Memory that it takes, in MiB.
    mebibytes: u64,
    minutes: u64,
}

fn share(thousandths: u16) -> Amount {
    Amount::Share { thousandths }
}

fn whole(count: u32) -> Amount {
    Amount::Whole { count }
}

fn profile(name: &str) -> Amount {
    Amount::Mig {
        profile: name.to_owned(),
    }
}

fn plans() -> Vec<Plan> {
    let plan = |user, name, project, amount, mebibytes, minutes| Plan {
        user,
        name,
        project,
        amount,
        mebibytes,
        minutes,
    };
    vec![
        plan("ana", "train-vit", "vision", share(500), 31_000, 240),
        plan("lee", "notebook", "nlp", share(250), 11_500, 480),
        plan("ana", "evaluate", "vision", share(125), 6_000, 30),
        plan("bo", "pretrain", "nlp", whole(1), 70_000, 2880),
        plan("kim", "serve", "serving", share(500), 30_000, 10_080),
        plan("eva", "embed", "nlp", share(250), 9_000, 60),
        plan("kim", "sweep-lr", "serving", profile("3g.40gb"), 24_000, 90),
        plan("zoe", "tests", "vision", profile("1g.10gb"), 3_000, 20),
        plan("eva", "finetune", "nlp", whole(2), 0, 600),
        plan("bo", "eval-all", "nlp", share(500), 0, 45),
        plan("lee", "embed-2", "nlp", share(250), 0, 45),
        plan("zoe", "render", "vision", whole(1), 0, 30),
    ]
}

/// A running lab.
pub struct Lab {
    pub home: Home,
    pub daemon: Daemon,
    /// Ids of the jobs that run, then of the jobs that wait.
    pub jobs: Vec<String>,
}

impl Lab {
    /// Starts it, and waits until its jobs hold their memory.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start(programs: Programs) -> Self {
        let home = Home::with(programs, Some(GPUS));
        let config = home.scratch().join("sim.toml");
        fs::write(&config, "[mig]\nenabled = [3]\n").expect("the folder is ours");
        let config = config.to_str().expect("a readable name").to_owned();
        let home = home.variable("DIVVY_SIM_CONFIG", &config);
        past::write(&home.path().join("history"), now(), &subjects());
        let daemon = home.daemon(&[]);
        let (mut jobs, plans) = (Vec::new(), plans());
        for plan in &plans {
            let job = home.call(home.client().submit(&submission(&home, plan)));
            jobs.push(
                job.unwrap_or_else(|error| panic!("{}: {error}", plan.name))
                    .id,
            );
        }
        until("the running jobs hold their memory", || {
            let board = home.call(home.client().board()).ok()?;
            let is_held = |id: &String, plan: &Plan| {
                let job = board.jobs.iter().find(|job| job.id == *id);
                job.is_some_and(|job| {
                    job.slices
                        .iter()
                        .all(|slice| slice.used_bytes >= plan.mebibytes << 20)
                })
            };
            let mut all = jobs
                .iter()
                .zip(&plans)
                .filter(|(_, plan)| plan.mebibytes > 0);
            all.all(|(id, plan)| is_held(id, plan)).then_some(())
        });
        Self { home, daemon, jobs }
    }

    /// Each page: its name and its route.
    #[must_use]
    pub fn routes(&self) -> Vec<(&'static str, String)> {
        let job = format!("#/job/{}", self.jobs[0]);
        vec![
            ("overview", "#/overview".to_owned()),
            ("queue", "#/queue".to_owned()),
            ("job", job),
            ("people", "#/people".to_owned()),
            ("mig", "#/mig".to_owned()),
            ("doctor", "#/doctor".to_owned()),
        ]
    }

    /// Shows the folders of an installation in the place of the build's.
    pub fn hide_folders(&self, browser: &Browser, programs: &Path) {
        let folders = [
            (programs, "/usr/lib/divvy"),
            (self.home.path(), "/var/lib/divvy"),
        ];
        for (folder, installed) in folders {
            let script = "const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT); \
                while (walk.nextNode()) { \
                    const text = walk.currentNode.data.replaceAll(arguments[0], arguments[1]); \
                    if (text !== walk.currentNode.data) walk.currentNode.data = text; \
                }";
            let folder = folder.to_string_lossy();
            browser.js(script, &[folder.as_ref().into(), installed.into()]);
        }
    }

    /// Waits until a page shows what a picture of it needs.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn is_drawn(&self, browser: &Browser, page: &str) {
        if page == "overview" || page == "job" {
            let drawn = "const all = [...document.querySelectorAll('[data-chart] canvas')]; \
                         return all.length > 0 && all.every(one => one.width > 0 && one.clientWidth <= innerWidth)";
            browser.until("the charts are drawn", drawn, &[]);
        }
        if page == "doctor" {
            let found = "return document.querySelectorAll('main tbody tr').length > 10";
            browser.until("the findings are there", found, &[]);
        }
        // One frame more: a new size has been laid out and drawn.
        browser.js_async(
            "await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))",
            &[],
        );
    }
}

fn submission(home: &Home, plan: &Plan) -> Submit {
    let bytes = (plan.mebibytes << 20).to_string();
    let probe = home.program("cudarc_probe");
    let gate = home.gate("the-end");
    let script = format!(
        "i=1; while [ $i -le 40 ]; do echo \"step $((i * 25))  loss 2.$((900 - i * 17))  3.1 it/s\"; i=$((i + 1)); done; \
         exec {probe} hold --bytes {bytes} --until-file {gate}"
    );
    Submit {
        command: ["sh", "-c", &script].map(str::to_owned).into(),
        name: Some(plan.name.to_owned()),
        user: Some(plan.user.to_owned()),
        project: Some(plan.project.to_owned()),
        amount: Some(plan.amount.clone()),
        time_limit_s: Some(plan.minutes * 60),
        cwd: "/tmp".to_owned(),
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        ..Submit::default()
    }
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(0))
}

/// What a subject of the past used at most: memory in GiB, and GPUs.
const PAST: [(&str, f32, f32); 23] = [
    ("node", 200.0, 3.4),
    ("gpu:0", 62.0, 0.9),
    ("gpu:1", 72.0, 1.0),
    ("gpu:2", 50.0, 0.75),
    ("gpu:3", 36.0, 0.6),
    ("user:ana", 70.0, 1.1),
    ("user:bo", 72.0, 1.0),
    ("user:eva", 22.0, 0.5),
    ("user:kim", 56.0, 0.9),
    ("user:lee", 20.0, 0.4),
    ("user:zoe", 9.0, 0.2),
    ("project:nlp", 104.0, 1.7),
    ("project:serving", 56.0, 0.9),
    ("project:vision", 78.0, 1.2),
    ("queue:default", 220.0, 3.4),
    ("job:1", 31.0, 0.5),
    ("job:2", 11.5, 0.25),
    ("job:3", 6.0, 0.125),
    ("job:4", 70.0, 1.0),
    ("job:5", 30.0, 0.5),
    ("job:6", 9.0, 0.25),
    ("job:7", 24.0, 0.5),
    ("job:8", 3.0, 0.125),
];

fn subjects() -> Vec<Subject<'static>> {
    let subject = |(place, (name, gibibytes, gpus)): (u64, &(&str, f32, f32))| -> Subject<'static> {
        let (name, gibibytes, gpus) = ((*name).to_owned(), *gibibytes, *gpus);
        let is_job = name.starts_with("job:");
        let figures = move |before: i64| figures(place, gibibytes, gpus, is_job, before);
        (name, Box::new(figures))
    };
    (0..).zip(&PAST).map(subject).collect()
}

/// Work of one hour or so goes up and down by a step; days are busier than nights.
fn figures(place: u64, gibibytes: f32, gpus: f32, is_job: bool, before: i64) -> Figures {
    // The jobs of the present began some hours ago.
    let is_steady = before <= 5 * 3600;
    if is_job && !is_steady {
        return past::NONE;
    }
    let hour = u64::try_from(before / 2700).unwrap_or(0);
    let minute = u64::try_from(before / 300).unwrap_or(0);
    let mut of_hour = Rng::new(place * 1_000_003 + hour);
    let mut of_minute = Rng::new(place * 7_777_777 + minute);
    let steady = f32::from(u16::try_from(of_hour.below(60)).unwrap_or(0)) / 100.0;
    let noise = f32::from(u16::try_from(of_minute.below(12)).unwrap_or(0)) / 100.0;
    let time_of_day = (before as f32 / 86_400.0 * std::f32::consts::TAU).cos() * 0.12;
    let level = if is_steady {
        0.85 + noise
    } else {
        (0.28 + steady + noise + time_of_day).clamp(0.0, 1.0)
    };
    let mut figures = past::NONE;
    figures[0] = level * gibibytes * GIB;
    figures[1] = if is_job {
        gibibytes * 1.3
    } else {
        (level + 0.1).min(1.1) * gibibytes
    } * GIB;
    figures[2] = ((level + 0.1).min(1.0) * gpus * 1000.0).round();
    figures[3] = (level * gpus * 900.0).round();
    figures[4] = (level * 92.0).round();
    figures[5] = (110.0 + level * 420.0).round();
    figures[6] = (38.0 + level * 30.0).round();
    figures[7] = (level * 3.0 * gpus).round();
    figures[8] = (steady * 9.0).round();
    figures
}
