//! What a real client does with its slice, as usage and the idle rule see it.

use divvy_e2e::{Home, Tenant, until};
use divvy_testkit::call;

/// Long enough for a busy machine to come round to a program that wants to work.
const IDLE: &str = "4s";

fn last(home: &Home) -> serde_json::Value {
    home.items(&["ps", "-a"]).pop().expect("a job")
}

#[test]
fn what_a_program_does_is_used_and_keeps_its_job_from_being_idle_until_it_stops() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let flags = [
        "-g",
        "0.25",
        "--idle-timeout",
        IDLE,
        "--idle-action",
        "cancel",
    ];
    let mut tenant = Tenant::run(&home, &flags);
    // For longer than its time, and with pauses. It comes to its end, so nobody has ended it.
    tenant.begin("loop 50000 20000", 6000);
    tenant.hear();
    until("it is found idle", || {
        (last(&home)["state"] == "ended").then_some(())
    });
    assert_eq!(last(&home)["end_reason"], "idle_timeout");
    let mut rows = home.items(&["usage", "--by", "job"]);
    rows.retain(|row| row["idle"] != true);
    let [row] = &rows[..] else { panic!("{rows:?}") };
    let figure = |name: &str| row[name].as_u64().expect("a figure");
    let (held, used, loaned) = (
        figure("allocated_gpu_ms"),
        figure("used_gpu_ms"),
        figure("loaned_gpu_ms"),
    );
    // Alone it may use the whole GPU; most of the time it does.
    assert!(used > 500 && loaned > 0, "{row}");
    assert!(figure("idle_gpu_ms") > 0, "{row}");
    assert_eq!(
        held,
        used - loaned + figure("idle_gpu_ms") + figure("unknown_gpu_ms"),
        "{row}"
    );
}

/// Millijoules, from joules with at most three decimals.
fn millijoules(text: &str) -> u64 {
    let joules: f64 = text.parse().expect("a number");
    (joules * 1000.0).round() as u64
}

/// Energy of jobs, and of idle GPUs.
fn of_csv(home: &Home) -> (u64, u64) {
    let words = ["usage", "--by", "user,day", "--since", "1d", "-o", "csv"];
    let text = home.divvy(&words).ok().stdout;
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().expect("a head").split(',').collect();
    let place = |name| head.iter().position(|one| *one == name).expect("a column");
    let (is_idle, energy) = (place("idle"), place("energy_joules"));
    let mut sums = (0, 0);
    for line in lines {
        let cells: Vec<&str> = line.split(',').collect();
        let sum = if cells[is_idle] == "true" {
            &mut sums.1
        } else {
            &mut sums.0
        };
        *sum += millijoules(cells[energy]);
    }
    sums
}

/// The sum of a metric's series.
fn of_metric(page: &str, name: &str) -> u64 {
    let series = page
        .lines()
        .filter(|line| line.starts_with(&format!("{name}{{")));
    let values = series.map(|line| line.rsplit_once(' ').expect("a sample").1);
    values.map(millijoules).sum()
}

#[test]
fn energy_of_jobs_and_idle_gpus_is_the_same_in_csv_and_in_metrics_after_a_kill() {
    let mut home = Home::new("a100-80gb:2");
    home.start(&[]);
    let held = home.submit(&["-g", "0.5", "-p", "vision"], &["sleep", "1000"]);
    let _ = home.running(&held);
    let ended = home.submit(&["-g", "1"], &["sleep", "1.5"]);
    home.ended(&ended);
    home.kill();
    home.start(&[]);
    // The daemon divides energy between two answers as well.
    let sums = until("both show the same", || {
        let sums = of_csv(&home);
        let (_, page) = call(&home.socket(), "GET", "/metrics", "");
        let of = |name| of_metric(&page, name);
        let same = sums.0 == of("divvy_user_energy_joules_total")
            && sums.0 == of("divvy_project_energy_joules_total")
            && sums.1 == of("divvy_gpu_energy_idle_joules_total")
            && sums.0 + sums.1 == of("divvy_gpu_energy_counted_joules_total");
        (same && sums.0 > 0 && sums.1 > 0).then_some(sums)
    });
    // A board of 50 W at least, since a job holds half of one.
    assert!(sums.0 > 20_000, "{sums:?}");
    for job in [&held, &ended] {
        until("its energy is shown", || {
            let said = home.divvy(&["describe", job]).ok().stdout;
            let used = said.lines().find(|line| line.starts_with("used"))?;
            used.ends_with("Wh").then_some(())
        });
    }
    let said = home.divvy(&["usage", "--by", "user", "--since", "1d"]).ok();
    assert!(said.stdout.contains("ENERGY"), "{}", said.stdout);
    assert!(said.stderr.contains("and idle"), "{}", said.stderr);
}

#[test]
fn usage_by_what_is_no_column_or_in_no_format_is_refused_with_a_hint() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    for (words, message) in [
        (&["usage", "--by", "user,week"][..], "\"week\""),
        (&["usage", "--by", "user,day,month"], "by day and by month"),
        (&["usage", "-o", "cvs"], "csv"),
        (&["ps", "-o", "csv"], "csv"),
    ] {
        let said = home.divvy(words).exits(2);
        assert!(said.stderr.contains(message), "{words:?}: {}", said.stderr);
        assert!(said.stdout.is_empty(), "{words:?}: {}", said.stdout);
    }
    let words = ["usage", "--by", "day,month", "-o", "json"];
    let said = home.divvy(&words).exits(2);
    let error: serde_json::Value = serde_json::from_str(&said.stderr).expect("JSON");
    assert_eq!(error["error"]["code"], "usage");
    let months = home.items(&["usage", "--by", "user,month", "--since", "40d"]);
    assert!(months.iter().all(|row| row["idle"] == true), "{months:?}");
}
