//! MIG through the real commands: the smallest instance that is enough beside neighbours that go on, instances that stay and go,
//! shared GPUs and queues on the same node, what `why` and `admin mig` say.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use divvy_api::v1::{Job, JobState};
use divvy_e2e::{Home, MIB, until};
use divvy_testkit::compiled;
use serde_json::Value;

/// A home whose GPU 0 is in MIG mode; `None` where these tests may not change it: only root divides a GPU, as on real ones.
fn home(gpus: &str) -> Option<Home> {
    if fs::metadata("/proc/self").is_ok_and(|file| file.uid() != 0) {
        eprintln!("skipped: only root divides a GPU");
        return None;
    }
    let home = Home::new(gpus);
    let file = home.scratch().join("sim.toml");
    fs::write(&file, "[mig]\nenabled = [0]\n").expect("the folder is ours");
    Some(home.variable("DIVVY_SIM_CONFIG", file.to_str().expect("a readable name")))
}

/// A job that holds next to nothing of what it has until its gate opens.
#[track_caller]
fn put(home: &Home, flags: &[&str], gate: &str) -> String {
    home.submit_holder(flags, 2 * MIB, gate)
}

/// The label of what the job holds, once it runs.
#[track_caller]
fn label(home: &Home, job: &str) -> String {
    home.running(job).slices[0].label.clone()
}

/// Instances as `PROFILE@START STATE`, by place.
#[track_caller]
fn instances(home: &Home) -> Vec<String> {
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    home.items(&["admin", "mig", "ls"])
        .iter()
        .map(|one| {
            let (profile, state) = (text(&one["profile"]), text(&one["state"]));
            format!("{profile}@{} {state}", one["start"])
        })
        .collect()
}

#[track_caller]
fn instance_uuid(job: &Job) -> String {
    let mig = job.slices[0].mig.clone().expect("an instance");
    mig.uuid.expect("it is made, for the job runs")
}

#[test]
fn four_gibibytes_get_the_smallest_instance_while_neighbours_run() {
    let Some(home) = home("a100-40gb:1") else {
        return;
    };
    let _daemon = home.daemon(&[]);
    let large = put(&home, &["--mig-profile", "3g.20gb"], "large");
    let quarter = put(&home, &["-g", "0.25"], "quarter");
    let neighbours = [home.running(&large), home.running(&quarter)];
    assert_eq!(neighbours[0].slices[0].label, "gpu0.3g.20gb@4");
    assert!(neighbours[1].slices[0].label.starts_with("gpu0.1g.10gb@"));

    let small = put(&home, &["--gpu-memory", "4G"], "small");
    let job = home.running(&small);
    let slice = &job.slices[0];
    let mig = slice.mig.as_ref().expect("an instance");
    assert_eq!(
        (mig.profile.as_str(), slice.enforcement.as_str()),
        ("1g.5gb", "mig")
    );
    assert_eq!(slice.memory_limit_bytes, 4864 * MIB);
    assert_eq!(slice.device_uuid.as_ref(), mig.uuid.as_ref());
    // The program sees its instance.
    let (seen, uuid) = (home.first_words(&small), instance_uuid(&job));
    assert_eq!(seen["device"]["total_bytes"], 4864 * MIB, "{seen}");
    assert!(uuid.starts_with("MIG-"), "{uuid}");

    let described = home.divvy(&["describe", &small]).ok().stdout;
    assert!(
        described.contains("4.0 GiB requested, 1g.5gb has 4.8 GiB"),
        "{described}"
    );
    assert!(
        described.contains(&uuid) && described.contains("enforced by the driver (a MIG instance)"),
        "{described}"
    );
    let wide = home.divvy(&["gpus", "-o", "wide"]).ok().stdout;
    assert!(
        wide.contains(&format!("[1g@{} #{small}]", mig.start)),
        "{wide}"
    );
    assert!(wide.contains(&format!("[3g@4 #{large}]")), "{wide}");

    // Neither of the neighbours was stopped, moved or made anew.
    for before in &neighbours {
        let now = home.job(&before.id);
        assert_eq!((now.state, now.pid), (JobState::Running, before.pid));
        assert_eq!(now.slices[0].mig, before.slices[0].mig);
    }
    for (job, gate) in [(&small, "small"), (&quarter, "quarter"), (&large, "large")] {
        home.end(job, gate);
    }
}

/// A job on GPU 0's instance, beside a GPU 1 that is not its own.
#[test]
fn a_job_counts_its_instance_from_0_and_no_value_leads_to_another_gpu() {
    let Some(home) = home("a100-40gb:2") else {
        return;
    };
    let _daemon = home.daemon(&["--set", "on-bypass=kill"]);
    let other = "echo $NVIDIA_VISIBLE_DEVICES";
    let other = ["run", "-g", "1", "--", "sh", "-c", other];
    let other = home.divvy(&other).ok().stdout.trim().to_owned();
    assert!(other.starts_with("GPU-"), "{other}");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients/c/visible.c");
    let program = compiled(&source, "visible", &[]).display().to_string();
    let kept = home.submit(&["--mig-profile", "1g.5gb"], &["sleep", "1000"]);
    let uuid = instance_uuid(&home.running(&kept));
    let command = |values: &[&str]| {
        let values = values.iter().map(|value| (*value).to_owned());
        std::iter::once(program.clone())
            .chain(values)
            .collect::<Vec<_>>()
    };
    let beginning = &uuid[..9];
    let rows = [
        ("kept", "0", None),
        ("unset", "unset", None),
        ("0", "0", None),
        (&uuid, &uuid, None),
        (beginning, beginning, None),
        ("0,1", "0,1", Some("1")),
        ("1", "1", Some("1")),
        (&other, &other, Some(other.as_str())),
        ("none", "none", None),
    ];
    let values = rows.map(|(value, ..)| value);
    let words = command(&values);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let job = home.submit(&["--mig-profile", "1g.5gb"], &words);
    assert_eq!(home.ended(&job).exit_code, Some(0), "{}", home.log(&job));
    let own = instance_uuid(&home.job(&job));
    let inside = home.divvy(&[&["exec", &kept, "--"], &words[..]].concat());
    for (front_end, printed, instance) in [
        ("submit", home.log(&job), own),
        ("exec", inside.ok().stdout, uuid.clone()),
    ] {
        assert_eq!(
            printed.lines().count(),
            rows.len(),
            "{front_end}: {printed}"
        );
        for (line, (value, after, named)) in printed.lines().zip(&rows) {
            let what = format!("{front_end}: {line}");
            let is_hidden = match *value {
                "kept" | "unset" | "0" | "0,1" => false,
                // A UUID of the other job is not this one's.
                value if value.starts_with("MIG-") => instance != uuid,
                _ => true,
            };
            let (result, sees, got) = if is_hidden {
                ("100", "", "-1")
            } else {
                ("0", &instance["MIG-".len()..], "0")
            };
            let sees = if is_hidden {
                String::new()
            } else {
                format!("GPU-{sees}")
            };
            let begins = format!("{value}|{result}|{sees}|{got}|{after}|");
            let said = line.strip_prefix(&begins);
            let said = said.unwrap_or_else(|| panic!("{what}, not {begins}"));
            match named {
                Some(entry) => assert!(
                    said.contains(&format!(
                        ": {entry} is not a GPU of this job, which has GPU 0"
                    )),
                    "{what}"
                ),
                None if is_hidden && value.starts_with("MIG-") => {
                    assert!(said.contains("is not a GPU of this job"), "{what}");
                }
                None => assert_eq!(said, "", "{what}"),
            }
        }
    }
    let events = home.items(&["events"]);
    assert!(
        events.iter().all(|event| event["kind"] != "bypass"),
        "{events:?}"
    );
    assert_eq!(home.job(&kept).state, JobState::Running);
    let _ = home.divvy(&["cancel", &kept]).ok();
}

#[test]
fn memory_ends_where_the_instance_ends() {
    let Some(home) = home("a100-40gb:1") else {
        return;
    };
    let _daemon = home.daemon(&[]);
    let probe = home.program("cudarc_probe");
    let fill = [probe.as_str(), "fill", "--step", "64M", "--route", "linear"];
    let job = home.submit(&["--mig-profile", "1g.5gb"], &fill);
    assert_eq!(home.ended(&job).exit_code, Some(0), "{}", home.log(&job));
    let said = home.first_words(&job);
    let taken = said["got_bytes"].as_u64().expect("a figure");
    assert!(taken <= 4864 * MIB && taken > 4000 * MIB, "{said}");
}

#[test]
fn an_instance_stays_for_the_next_job_and_goes_when_its_place_is_needed() {
    let Some(home) = home("a100-40gb:1") else {
        return;
    };
    let _daemon = home.daemon(&[]);
    let first = put(&home, &["--mig-profile", "1g.5gb"], "first");
    let uuid = instance_uuid(&home.running(&first));
    home.end(&first, "first");
    until("the instance is idle", || {
        (instances(&home) == ["1g.5gb@6 idle"]).then_some(())
    });

    let second = put(&home, &["--gpu-memory", "5G"], "second");
    assert_eq!(instance_uuid(&home.running(&second)), uuid);
    assert_eq!(instances(&home), ["1g.5gb@6 in_use"]);
    home.end(&second, "second");

    // All of the GPU is needed, so what is idle goes.
    let all = put(&home, &["--mig-profile", "7g.40gb"], "all");
    assert_eq!(label(&home, &all), "gpu0.7g.40gb@0");
    assert_eq!(instances(&home), ["7g.40gb@0 in_use"]);
    home.end(&all, "all");

    until("the large one is idle", || {
        (instances(&home) == ["7g.40gb@0 idle"]).then_some(())
    });
    let would = home.divvy(&["admin", "mig", "gc", "--dry-run"]).ok().stdout;
    assert!(would.contains("7g.40gb"), "{would}");
    assert_eq!(instances(&home), ["7g.40gb@0 idle"]);
    let gone = home
        .divvy(&["admin", "mig", "gc", "-o", "name"])
        .ok()
        .stdout;
    assert!(gone.starts_with("MIG-"), "{gone}");
    until("no instance is left", || {
        instances(&home).is_empty().then_some(())
    });
}

#[test]
fn parts_and_instances_stand_side_by_side() {
    let Some(home) = home("a100-40gb:2") else {
        return;
    };
    let _daemon = home.daemon(&[]);
    // A part goes where it is exact; who wants hardware gets the other GPU.
    let part = put(&home, &["-g", "0.5"], "part");
    let instance = put(&home, &["-g", "0.5", "--isolation", "hardware"], "instance");
    let more = put(
        &home,
        &["--gpu-memory", "10G", "--isolation", "cooperative"],
        "more",
    );
    assert_eq!(label(&home, &part), "gpu1.5a");
    assert_eq!(label(&home, &instance), "gpu0.3g.20gb@4");
    assert!(label(&home, &more).starts_with("gpu1."));
    let held = |job: &str| home.job(job).slices[0].enforcement.clone();
    assert_eq!(
        [held(&part), held(&instance), held(&more)],
        ["interposer", "mig", "interposer"]
    );
    // With the shared GPU full, what says nothing goes to the instances.
    let rest = put(&home, &["--gpu-memory", "12G"], "rest");
    assert_eq!(label(&home, &rest), "gpu0.3g.20gb@0");
    let footer = home.divvy(&["gpus"]).ok().stdout;
    assert!(footer.contains("memory limits: limiter, mig"), "{footer}");
    for (job, gate) in [
        (&part, "part"),
        (&instance, "instance"),
        (&more, "more"),
        (&rest, "rest"),
    ] {
        home.end(job, gate);
    }
}

#[test]
fn a_queues_quarter_is_an_instance_where_the_gpu_is_cut() {
    let Some(home) = home("a100-40gb:1") else {
        return;
    };
    let strict = "daemon --set strict-start=true --dynamic-gpus --queue single_gpu=1";
    let refused = home.divvy(&strict.split(' ').collect::<Vec<_>>());
    assert_eq!(refused.code, 5, "{}", refused.stderr);
    assert!(
        refused.stderr.contains("all are in MIG mode"),
        "{}",
        refused.stderr
    );
    assert!(
        refused.stderr.contains("--mig-profile 7g.40gb"),
        "{}",
        refused.stderr
    );

    let _daemon = home.daemon(&[
        "--dynamic-gpus",
        "--queue",
        "quarter_gpu=0.25",
        "half_gpu=0.5",
    ]);
    let jobs: Vec<String> = (0..4)
        .map(|nth| put(&home, &["-q", "quarter_gpu"], &format!("gate{nth}")))
        .collect();
    let labels: Vec<String> = jobs.iter().map(|job| label(&home, job)).collect();
    let mut starts: Vec<&str> = labels
        .iter()
        .map(|label| label.strip_prefix("gpu0.1g.10gb@").expect("a quarter"))
        .collect();
    starts.sort_unstable();
    assert_eq!(starts, ["0", "2", "4", "6"]);
    let half = put(&home, &["-q", "half_gpu"], "half");
    let reason = home.waits(&half);
    assert!(
        reason.contains("needs 0.5 of a GPU; 1 of 1 GPU in use"),
        "{reason}"
    );
    for (nth, job) in jobs.iter().enumerate() {
        home.end(job, &format!("gate{nth}"));
    }
    assert_eq!(label(&home, &half), "gpu0.3g.20gb@4");
    home.end(&half, "half");
}

#[test]
fn a_reason_names_the_memory_slices_and_the_jobs_there() {
    let Some(home) = home("a100-40gb:1") else {
        return;
    };
    let _daemon = home.daemon(&[]);
    // Two halves, then small ones in the place of one of them; the other half is taken.
    let jobs: Vec<String> = (0..7)
        .map(|nth| put(&home, &["--mig-profile", "1g.5gb"], &format!("gate{nth}")))
        .collect();
    let labels: Vec<String> = jobs.iter().map(|job| label(&home, job)).collect();
    // One is left in each half.
    let keep = ["gpu0.1g.5gb@1", "gpu0.1g.5gb@5"];
    for (nth, (job, label)) in jobs.iter().zip(&labels).enumerate() {
        if !keep.contains(&label.as_str()) {
            home.end(job, &format!("gate{nth}"));
        }
    }
    let holder = |label: &str| {
        let place = labels.iter().position(|one| one == label);
        place.expect("seven places were taken")
    };
    let [low, high] = keep.map(holder);

    let job = put(&home, &["--mig-profile", "3g.20gb"], "large");
    let reason = home.waits(&job);
    let why = home.divvy(&["why", &job]).ok().stdout;
    let lies = format!(
        "3g.20gb needs memory slices 0-3 or 4-7; #{} 1g.5gb is at 1, #{} 1g.5gb at 5; another layout of the instances would have room",
        jobs[low], jobs[high]
    );
    assert!(reason.contains(&lies), "{reason}");
    assert!(why.contains(&lies), "{why}");
    let mut either = [&jobs[low], &jobs[high]].map(|job| job.parse::<u64>().expect("a number"));
    either.sort_unstable();
    let [one, other] = either;
    let ends = format!("would start when any one of #{one} or #{other} ends");
    assert!(why.contains(&ends), "{why}");
    assert!(why.contains("would start now with --mig-profile"), "{why}");

    // Who looks ahead is told the same by exit codes.
    let now = home.divvy(&["admin", "mig", "plan", "3g.20gb"]);
    assert_eq!(now.code, 6, "{}", now.stderr);
    let never = home.divvy(&["admin", "mig", "plan", "4g.20gb", "4g.20gb"]);
    assert_eq!(never.code, 5, "{}", never.stderr);
    let no_name = home.divvy(&["admin", "mig", "plan", "big"]);
    assert_eq!(no_name.code, 2, "{}", no_name.stderr);
    let fits = home.items(&["admin", "mig", "plan", "2g.10gb", "1g.5gb"]);
    assert_eq!(fits.len(), 2, "{fits:?}");

    home.end(&jobs[high], &format!("gate{high}"));
    assert_eq!(label(&home, &job), "gpu0.3g.20gb@4");
    home.end(&jobs[low], &format!("gate{low}"));
    home.end(&job, "large");
}

#[test]
fn a_change_of_mode_names_what_is_in_the_way() {
    // Ampere would have to be reset besides.
    let Some(home) = home("h100-80gb:2") else {
        return;
    };
    let _daemon = home.daemon(&[]);
    let job = put(&home, &["-g", "0.5"], "job");
    assert_eq!(label(&home, &job), "gpu1.5a");

    let would = home.divvy(&["admin", "gpu", "1", "--mode", "mig", "--dry-run"]);
    assert_eq!(would.code, 8, "{}", would.stdout);
    assert!(would.stdout.contains("stays shared"), "{}", would.stdout);
    assert!(
        would.stdout.contains(&format!("#{job}")),
        "{}",
        would.stdout
    );
    let refused = home.divvy(&["admin", "gpu", "1", "--mode", "mig"]);
    assert_eq!(refused.code, 8, "{}", refused.stderr);
    let unknown = home.divvy(&["admin", "gpu", "7", "--mode", "mig"]);
    assert_eq!(unknown.code, 3, "{}", unknown.stderr);
    let no_mode = home.divvy(&["admin", "gpu", "1", "--mode", "whole"]);
    assert_eq!(no_mode.code, 2, "{}", no_mode.stderr);

    home.end(&job, "job");
    let done = home
        .divvy(&["admin", "gpu", "1", "--mode", "mig"])
        .ok()
        .stdout;
    assert!(done.contains("GPU 1 changed from shared to mig"), "{done}");
    let modes = |home: &Home| -> Vec<String> {
        let mode = |gpu: &Value| gpu["mode"].as_str().expect("text").to_owned();
        home.items(&["gpus"]).iter().map(mode).collect()
    };
    assert_eq!(modes(&home), ["mig", "mig"]);
    let back = home
        .divvy(&["admin", "gpu", "0", "--mode", "exclusive"])
        .ok()
        .stdout;
    assert!(
        back.contains("GPU 0 changed from mig to exclusive"),
        "{back}"
    );
    assert_eq!(modes(&home), ["exclusive", "mig"]);
}
