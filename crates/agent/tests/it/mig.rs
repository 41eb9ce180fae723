//! MIG through the daemon: instances made for jobs, kept, handed on, given up; what others made; what goes wrong.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

mod crash;
pub mod driver;
mod keep;
mod kinds;
mod mode;
mod trouble;
mod way;

use divvy_api::client::Client;
use divvy_api::v1::{Amount, Event, Job, MigInstance, MigState, Submit};
use divvy_testkit::{Home, quarter, until_async};

/// GPU 0 is divided from the beginning.
const ENABLED: &str = "[mig]\nenabled = [0]\n";

/// Profile ids of an A100: 1g.5gb, 2g.10gb, 3g.20gb, 4g.20gb.
const ONE: u32 = 19;
const TWO: u32 = 14;
const THREE: u32 = 9;
const FOUR: u32 = 5;

/// Whether these tests may change a GPU: as on real ones, only root may.
pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    let root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    if !root {
        eprintln!("skipped: only root divides a GPU");
    }
    root
}

/// A home whose simulated machine has these GPUs and this configuration; no daemon yet.
fn machine(gpus: &str, config: &str) -> Home {
    let mut home = Home::empty();
    let file = home.path().join("sim.toml");
    std::fs::write(&file, config).unwrap();
    home.set("DIVVY_SIM_CONFIG", file.to_str().unwrap().to_owned());
    home.set("DIVVY_TEST_GPUS", gpus.to_owned());
    home
}

/// The same with a daemon.
fn served(gpus: &str, config: &str) -> Home {
    let mut home = machine(gpus, config);
    home.start(&["--sim", gpus]);
    home
}

/// A daemon over an A100 that is divided; `None` where these tests may not divide one, which was said.
fn divided() -> Option<(Home, Client)> {
    let home = is_root().then(|| served("a100-40gb:1", ENABLED))?;
    let client = home.connect();
    Some((home, client))
}

/// A job on an instance of a profile.
fn on(profile: &str, command: &[&str]) -> Submit {
    Submit {
        amount: Some(Amount::Mig {
            profile: profile.parse().unwrap(),
        }),
        ..quarter(command)
    }
}

/// Keeps what is ordered for GPU 0 from being done while it is held: whoever changes a GPU takes its lock first.
async fn held_up(home: &Home) -> std::fs::File {
    let gpu = home.connect().gpus().await.unwrap().remove(0).uuid;
    let folder = home.path().join("mig");
    std::fs::create_dir_all(&folder).unwrap();
    let lock = std::fs::File::create(folder.join(format!("{gpu}.lock"))).unwrap();
    lock.lock().unwrap();
    lock
}

/// Has all instances remember another user, while no daemon runs.
fn was_somebodys(home: &Home) {
    let db = rusqlite::Connection::open(home.path().join("state.db")).unwrap();
    let changed = db.execute("UPDATE mig_instance SET user = 'somebody'", []);
    assert!(changed.unwrap() > 0);
}

/// Runs a job to its end.
async fn run(client: &Client, profile: &str) -> Job {
    let job = client.submit(&on(profile, &["true"])).await.unwrap();
    divvy_testkit::ended(client, &job.id).await
}

/// The instances that the daemon shows, as (profile, start, state).
async fn shown(client: &Client) -> Vec<(String, u8, MigState)> {
    let all = client.mig_instances().await.unwrap();
    let one = |one: MigInstance| (one.profile, one.start, one.state);
    all.into_iter().map(one).collect()
}

/// The kinds of events about MIG, in their order.
async fn story(client: &Client) -> Vec<String> {
    let events = client.events(0).await.unwrap();
    let kinds = events.into_iter().map(|event| event.kind);
    kinds.filter(|kind| kind.starts_with("mig_")).collect()
}

async fn told(client: &Client, kind: &str) -> Vec<Event> {
    let events = client.events(0).await.unwrap();
    events
        .into_iter()
        .filter(|event| event.kind == kind)
        .collect()
}

/// Asks until it is so.
async fn until<T, F: Future<Output = T>>(
    what: &str,
    ask: impl Fn() -> F,
    is: impl Fn(&T) -> bool,
) -> T {
    until_async(what, async || Some(ask().await).filter(&is)).await
}
