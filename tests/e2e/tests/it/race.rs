//! Eight processes of one slice race to its limit. Two referees look on: the driver (NVML, from outside) and the ledger.

use divvy_e2e::{Daemon, Dialog, GIB, Home, MIB, until};
use divvy_testkit::Rng;
use serde_json::Value;

const PROCESSES: u64 = 8;
/// Rounds in the first tier and in the second.
const FEW: u64 = 60;
const MANY: u64 = 1000;
const GRANULE: u64 = 2 * MIB;

/// A race under way: the racers in their slice, and NVML outside.
struct Race {
    home: Home,
    _daemon: Daemon,
    job: String,
    racers: Dialog,
    nvml: Dialog,
    limit: u64,
    overhead: u64,
    /// What the driver had in use before anybody came.
    idle: u64,
}

impl Race {
    /// A slice for eight contexts and 4 GiB, on a GPU where nobody else is.
    fn start(route: &str) -> Self {
        let home = Home::new("a100-80gb:1");
        let daemon = home.daemon(&["--set", "on-bypass=kill"]);
        let gpu = home.items(&["gpus"]).remove(0);
        let overhead = gpu["context_overhead_bytes"].as_u64().expect("a figure");
        let limit = (PROCESSES * overhead + 4 * GIB).next_multiple_of(GRANULE);
        let mut nvml = Dialog::start(home.outside(&home.program("nvml_probe")).arg("watch"));
        let idle = used(&nvml.ask("look")["gpus"][0]);
        let (memory, probe, processes) = (
            format!("{}M", limit / MIB),
            home.program("cudarc_probe"),
            PROCESSES.to_string(),
        );
        let words = [
            "run",
            "--gpu-memory",
            &memory,
            "--",
            &probe,
            "race",
            "--processes",
            &processes,
            "--route",
            route,
        ];
        let mut racers = Dialog::start(&mut home.divvy_command(&words));
        assert_eq!(racers.listen()["ready"], true);
        let job = home.job("last").id;
        Self {
            home,
            _daemon: daemon,
            job,
            racers,
            nvml,
            limit,
            overhead,
            idle,
        }
    }

    /// What the driver says is in use by the slice: now, and at most since it was last asked.
    fn truth(&mut self) -> (u64, u64) {
        let said = self.nvml.ask("look");
        (
            used(&said["gpus"][0]) - self.idle,
            said["peak_used_bytes"][0].as_u64().expect("a figure") - self.idle,
        )
    }

    fn ledger(&self) -> u64 {
        self.home.job(&self.job).slices[0].memory_used_bytes
    }

    /// All is given back; and all this while the daemon, with orders to kill, compared the account with the driver.
    #[track_caller]
    fn finish(self) {
        let Self {
            home,
            job,
            racers,
            mut nvml,
            idle,
            ..
        } = self;
        assert_eq!(racers.finish(), 0);
        let job = home.ended(&job);
        assert_eq!(job.bypasses, [], "{job:?}");
        assert_eq!(job.slices[0].memory_unaccounted_bytes, 0, "{job:?}");
        until("the driver has everything back", || {
            (used(&nvml.ask("look")["gpus"][0]) == idle).then_some(())
        });
    }

    #[track_caller]
    fn never_over(&mut self, round: u64) -> u64 {
        let (now, peak) = self.truth();
        assert!(
            peak <= self.limit,
            "round {round}: {} bytes over the limit",
            peak - self.limit
        );
        now
    }

    /// The driver, the racers and the ledger say the same, and nothing is left that anybody could have had.
    #[track_caller]
    fn all_agree(&self, round: u64, held: u64, answer: &Value) {
        assert_eq!(
            held,
            got(answer) + self.contexts(),
            "round {round}: the driver and the racers disagree"
        );
        assert!(
            held + GRANULE > self.limit,
            "round {round}: all were refused with {} bytes left",
            self.limit - held
        );
        assert_eq!(
            self.ledger(),
            held,
            "round {round}: the ledger and the driver disagree"
        );
    }

    fn contexts(&self) -> u64 {
        PROCESSES * self.overhead
    }
}

fn used(gpu: &Value) -> u64 {
    gpu["used_bytes"].as_u64().expect("a figure")
}

/// Bytes that the racers who answered hold; none of them may have met another error than the limit.
#[track_caller]
fn got(answer: &Value) -> u64 {
    let answers = answer["answers"].as_array().expect("one for each racer");
    let living = answers.iter().filter(|answer| !answer.is_null());
    living
        .map(|answer| {
            assert_eq!(answer["out_of_memory"], true, "{answer}");
            answer["got_bytes"].as_u64().expect("a figure")
        })
        .sum()
}

fn race_to_the_limit(route: &str, rounds: u64) {
    let mut race = Race::start(route);
    for round in 0..rounds {
        let answer = race.racers.ask(&format!("go {round}"));
        let held = race.never_over(round);
        race.all_agree(round, held, &answer);
        race.racers.ask("free");
        assert_eq!(
            race.never_over(round),
            race.contexts(),
            "round {round}: the driver still holds memory"
        );
        assert_eq!(
            race.ledger(),
            race.contexts(),
            "round {round}: the ledger leaked"
        );
    }
    race.finish();
}

#[test]
fn in_many_rounds_of_plain_allocations_not_one_byte_is_over_and_none_leaks() {
    race_to_the_limit("linear", FEW);
}

#[test]
fn in_many_rounds_of_physical_handles_not_one_byte_is_over_and_none_leaks() {
    race_to_the_limit("vmm", FEW);
}

#[test]
fn with_random_kills_not_one_byte_is_over_and_none_leaks() {
    race_with_kills(FEW);
}

mod exhaustive {
    use super::{MANY, race_to_the_limit, race_with_kills};

    #[test]
    fn in_a_thousand_rounds_of_plain_allocations_not_one_byte_is_over_and_none_leaks() {
        race_to_the_limit("linear", MANY);
    }

    #[test]
    fn in_a_thousand_rounds_of_physical_handles_not_one_byte_is_over_and_none_leaks() {
        race_to_the_limit("vmm", MANY);
    }

    #[test]
    fn in_a_thousand_rounds_with_random_kills_not_one_byte_is_over_and_none_leaks() {
        race_with_kills(MANY);
    }
}

fn race_with_kills(rounds: u64) {
    let mut race = Race::start("linear");
    let mut random = Rng::new(0);
    for round in 0..rounds {
        let kills = round % 20 == 7;
        let command = if kills {
            format!(
                "go {round} kill {} after_us {}",
                random.below(PROCESSES),
                random.below(3000)
            )
        } else {
            format!("go {round}")
        };
        let answer = race.racers.ask(&command);
        let held = race.never_over(round);
        if !kills {
            race.all_agree(round, held, &answer);
        }
        race.racers.ask("free");
        race.never_over(round);
        // The dead one's bytes come back, and its successor's context is there.
        until("the ledger has what the driver has", || {
            (race.ledger() == race.contexts()).then_some(())
        });
        assert_eq!(
            race.never_over(round),
            race.contexts(),
            "round {round}: the driver still holds memory"
        );
    }
    race.finish();
}
