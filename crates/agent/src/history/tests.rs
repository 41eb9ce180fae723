//! The ring against a plain model: a table of seconds.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::*;

/// A time that is no multiple of any step.
const START: i64 = 1_790_000_003;

fn values(memory: f32) -> Values {
    Values::default().with(Figure::MemoryUsed, memory)
}

fn sample(at: i64, series: &[(&str, f32)]) -> Sample {
    Sample {
        at,
        lasts: 3,
        is_busy: true,
        series: series
            .iter()
            .map(|(name, memory)| ((*name).to_owned(), values(*memory)))
            .collect(),
    }
}

fn read(ring: &Mutex<Ring>, subject: &str, step: u32, now: i64) -> BTreeMap<i64, f64> {
    let window = read_since(ring, subject, None, step, now);
    let points = window.figures.first().map(|(_, values)| values.clone());
    let times = (window.from..).step_by(step as usize);
    let points = times.zip(points.unwrap_or_default());
    points
        .filter_map(|(at, value)| Some((at, value?)))
        .collect()
}

fn read_since(
    ring: &Mutex<Ring>,
    subject: &str,
    since: Option<i64>,
    step: u32,
    now: i64,
) -> Window {
    super::read(ring, subject, since, Some(step), now)
}

fn open(folder: &Path) -> Mutex<Ring> {
    Mutex::new(Ring::open(folder))
}

fn bytes(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).unwrap();
    files
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum()
}

#[derive(Clone, Debug)]
enum Step {
    /// So many seconds later; some subjects have a value.
    Sample {
        after: i64,
        lasts: i64,
        is_busy: bool,
        values: [Option<u8>; 3],
    },
    Read,
    Flush,
    Stop,
    Kill,
}

const SUBJECTS: [&str; 3] = ["gpu:0", "job:7", "user:ana"];

fn step() -> impl Strategy<Value = Step> {
    let value = prop_oneof![Just(None), (0..3_u8).prop_map(Some)];
    let sample = (
        prop_oneof![6 => Just(1_i64), 2 => 2..5_i64, 1 => 5..400_i64],
        1..12_i64,
        any::<bool>(),
        proptest::array::uniform3(value),
    );
    prop_oneof![
        20 => sample.prop_map(|(after, lasts, is_busy, values)| Step::Sample { after, lasts, is_busy, values }),
        2 => Just(Step::Read),
        2 => Just(Step::Flush),
        1 => Just(Step::Stop),
        1 => Just(Step::Kill),
    ]
}

/// What is known of each second, and which seconds a crash may have lost.
#[derive(Default)]
struct Model {
    seconds: BTreeMap<i64, [Option<f32>; 3]>,
    last: Option<(i64, i64, [Option<f32>; 3])>,
    /// Seconds that may be missing.
    lost: std::collections::BTreeSet<i64>,
    /// Every second up to this one is on disk.
    flushed: i64,
}

impl Model {
    fn advance(&mut self, to: i64) {
        if let Some((next, until, values)) = &mut self.last {
            for second in *next..to.min(*until) {
                self.seconds.insert(second, *values);
                *next = second + 1;
            }
        }
    }

    fn kill(&mut self) {
        let lost = self.seconds.range(self.flushed..).map(|(at, _)| *at);
        self.lost.extend(lost.collect::<Vec<_>>());
        self.last = None;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// For samples with gaps, of subjects that come and go, with stops and kills between.
    #[test]
    fn every_point_is_the_mean_of_its_seconds(steps in proptest::collection::vec(step(), 1..120)) {
        let folder = tempfile::tempdir().unwrap();
        let mut ring = open(folder.path());
        let (mut model, mut now) = (Model::default(), START);
        // Steps that a restart fell into have only a part of their seconds.
        let mut cuts = Vec::new();
        for step in steps {
            match step {
                Step::Sample { after, lasts, is_busy, values: of } => {
                    now += after;
                    model.advance(now);
                    let of = of.map(|value| value.map(f32::from));
                    model.last = Some((now, now + lasts, of));
                    let series = SUBJECTS.iter().zip(of);
                    let series = series.filter_map(|(name, value)| Some(((*name).to_owned(), values(value?))));
                    let series = series.collect();
                    lock(&ring).record(Sample { at: now, lasts, is_busy, series });
                }
                Step::Read => {
                    model.advance(now);
                    read(&ring, SUBJECTS[0], 1, now);
                }
                Step::Flush => {
                    lock(&ring).is_busy = true;
                    lock(&ring).flush();
                    model.flushed = model.seconds.keys().next_back().map_or(0, |last| last + 1);
                }
                Step::Stop => {
                    lock(&ring).close();
                    model.flushed = model.seconds.keys().next_back().map_or(0, |last| last + 1);
                    model.last = None;
                    cuts.push(model.flushed);
                    ring = open(folder.path());
                }
                Step::Kill => {
                    model.kill();
                    cuts.push(now);
                    cuts.push(model.flushed);
                    ring = open(folder.path());
                }
            }
        }
        now += 5;
        model.advance(now);
        for (place, subject) in SUBJECTS.iter().enumerate() {
            for (step, kept) in STEPS {
                let (length, found) = (i64::from(step), read(&ring, subject, step, now));
                let oldest = (now - i64::from(kept)).max(START) / length * length;
                for at in (oldest..now / length * length).step_by(step as usize) {
                    let seconds = at..at + length;
                    if length > 1 && cuts.iter().any(|cut| seconds.contains(cut) || *cut == seconds.end) {
                        continue;
                    }
                    let known: Vec<f32> = seconds.clone().filter_map(|second| model.seconds.get(&second)?[place]).collect();
                    let may_be_lost = seconds.clone().any(|second| model.lost.contains(&second));
                    let mean = known.iter().sum::<f32>() / known.len() as f32;
                    match found.get(&at) {
                        None => prop_assert!(known.is_empty() || may_be_lost, "{subject} step {step} at {at}: {known:?}"),
                        Some(point) => prop_assert!(
                            !known.is_empty() && (may_be_lost || (*point - f64::from(mean)).abs() < 1e-5),
                            "{subject} step {step} at {at}: {point}, not the mean of {known:?}"
                        ),
                    }
                }
            }
        }
    }
}

/// A ring with two files of step 1, and its points.
fn written(folder: &Path) -> (i64, BTreeMap<i64, f64>) {
    let ring = open(folder);
    let mut at = START;
    for part in 0..2_i64 {
        for second in 0..60 {
            let memory = (second % 7 + part * 100) as f32;
            lock(&ring).record(sample(at, &[("gpu:0", memory), ("job:7", 5.0)]));
            if second % 10 == 9 {
                lock(&ring).flush();
            }
            at += 1;
        }
        at += 50;
    }
    let points = read(&ring, "gpu:0", 1, at);
    lock(&ring).close();
    (at, points)
}

#[test]
fn a_file_that_is_cut_or_changed_anywhere_gives_no_wrong_point_and_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (at, whole) = written(folder.path());
    assert_eq!(
        whole.len(),
        124,
        "each part, and what its last value lasted"
    );
    let mut files: Vec<PathBuf> = fs::read_dir(folder.path())
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| {
            path.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with("1s-")
        })
        .collect();
    files.sort();
    assert_eq!(files.len(), 2);
    let last = files.pop().unwrap();
    let content = fs::read(&last).unwrap();
    let check = |what: &str, damaged: &[u8]| {
        fs::write(&last, damaged).unwrap();
        let ring = open(folder.path());
        let found = read(&ring, "gpu:0", 1, at);
        let wrong = found
            .iter()
            .find(|(at, value)| whole.get(at) != Some(value));
        assert_eq!(wrong, None, "{what}");
        lock(&ring).record(sample(at, &[("gpu:0", 77.0)]));
        lock(&ring).close();
        let later = read(&ring, "gpu:0", 1, at + 1);
        assert_eq!(later.get(&at), Some(&77.0), "{what}");
        let again = open(folder.path());
        lock(&again).record(sample(at + 1, &[("gpu:0", 78.0)]));
        assert_eq!(
            read(&again, "gpu:0", 1, at + 2).get(&(at + 1)),
            Some(&78.0),
            "{what}"
        );
        for file in fs::read_dir(folder.path()).unwrap() {
            let path = file.unwrap().path();
            if path > last
                && path
                    .file_name()
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .starts_with("1s-")
            {
                fs::remove_file(path).unwrap();
            }
        }
    };
    for cut in (0..content.len()).step_by(3).chain([content.len() - 1]) {
        check(&format!("cut at {cut}"), &content[..cut]);
    }
    for place in (0..content.len()).step_by(5) {
        let mut damaged = content.clone();
        damaged[place] ^= 0x10;
        check(&format!("byte {place}"), &damaged);
    }
}

#[test]
fn values_that_stay_are_written_once() {
    let folder = tempfile::tempdir().unwrap();
    let ring = open(folder.path());
    let idle = |at| Sample {
        lasts: 75,
        is_busy: false,
        ..sample(at, &[("node", 1.0), ("gpu:0", 0.0)])
    };
    for minute in 0..5 {
        lock(&ring).record(idle(START + minute * 30));
        lock(&ring).flush();
    }
    let before = bytes(folder.path());
    let mut at = START;
    for half_minute in 5..3000 {
        at = START + half_minute * 30;
        lock(&ring).record(idle(at));
        lock(&ring).flush();
    }
    assert_eq!(bytes(folder.path()), before, "25 hours later");
    let day = read(&ring, "gpu:0", 60, at);
    assert_eq!(
        day.len(),
        usize::try_from((at / 60) - (START / 60)).unwrap()
    );
    assert_eq!(read(&ring, "gpu:0", 1, at).len(), 600);
}

#[test]
fn a_clock_that_is_set_leaves_gaps_and_the_later_record_counts() {
    let folder = tempfile::tempdir().unwrap();
    let ring = open(folder.path());
    let run = |from: i64, seconds: i64, memory: f32| {
        for at in from..from + seconds {
            lock(&ring).record(sample(at, &[("gpu:0", memory)]));
        }
        lock(&ring).flush();
    };
    run(START, 100, 1.0);
    // An hour ahead, and back again.
    run(START + 3600, 20, 2.0);
    run(START + 60, 60, 3.0);
    let now = START + 120;
    let found = read(&ring, "gpu:0", 1, now);
    let expected = (0..120).map(|second| (START + second, if second < 60 { 1.0 } else { 3.0 }));
    assert_eq!(found, expected.collect());
    let again = open(folder.path());
    assert_eq!(read(&again, "gpu:0", 1, now - 1), {
        let mut before = found;
        before.remove(&(now - 1));
        before
    });
    // Ten years ahead: what is too old goes, and what is new is there.
    let later = START + 10 * 365 * 86_400;
    run(later, 30, 4.0);
    assert_eq!(read(&ring, "gpu:0", 1, later + 30).len(), 30);
}

#[test]
fn files_never_take_more_than_their_room() {
    let folder = tempfile::tempdir().unwrap();
    let most: u64 = MOST_BYTES.iter().sum();
    assert_eq!(most, 64 << 20, "as the documentation says");
    let ring = open(folder.path());
    let frame = vec![1; FLUSH_BYTES];
    let mut at = START;
    for _ in 0..200 {
        at += 1;
        for level in &mut lock(&ring).levels {
            level.pending.clone_from(&frame);
            level.flush(at, false).unwrap();
        }
    }
    let taken = bytes(folder.path());
    let frames = STEPS.len() as u64 * 2 * (FLUSH_BYTES as u64 + 64);
    assert!(taken <= most + frames, "{taken} of {most}");
    assert!(taken > most / 2, "{taken} of {most}: too much has gone");
}

#[test]
fn a_sample_has_a_thousand_series_at_most() {
    let folder = tempfile::tempdir().unwrap();
    let ring = open(folder.path());
    for at in START..START + 70 {
        let jobs = (0..1500).map(|job| (format!("job:{job}"), values((at % 5) as f32)));
        lock(&ring).record(Sample {
            at,
            lasts: 3,
            is_busy: true,
            series: jobs.collect(),
        });
    }
    lock(&ring).flush();
    assert!(lock(&ring).is_crowded, "the log has reported it");
    assert_eq!(read(&ring, "job:999", 1, START + 70).len(), 70);
    assert!(read(&ring, "job:1000", 1, START + 70).is_empty());
    let long = "x".repeat(MOST_NAME + 1);
    lock(&ring).record(sample(START + 70, &[(&long, 1.0), ("user:a/../b\n", 2.0)]));
    assert!(read(&ring, &long, 1, START + 71).is_empty());
    assert_eq!(read(&ring, "user:a/../b\n", 1, START + 71).len(), 1);
}

#[test]
fn what_is_no_segment_is_neither_read_nor_removed() {
    let folder = tempfile::tempdir().unwrap();
    let named = |name: &str| folder.path().join(name);
    fs::write(named("notes.txt"), "mine").unwrap();
    fs::write(named("1s-0000000003"), "not a segment").unwrap();
    fs::write(named("1s-3"), "mine").unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        named("1s-0000000009"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    fs::create_dir(named("10s-0000000001")).unwrap();
    let (at, points) = written(folder.path());
    assert_eq!(points.len(), 124);
    let ring = open(folder.path());
    assert_eq!(read(&ring, "gpu:0", 1, at), points);
    assert!(named("notes.txt").exists() && named("1s-3").exists());
    assert!(named("1s-0000000009").exists());
}

#[test]
fn a_folder_that_cannot_be_used_stops_the_history_alone_until_it_can() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("history");
    fs::write(&folder, "in the way").unwrap();
    let ring = open(&folder);
    for at in START..START + 30 {
        lock(&ring).record(sample(at, &[("gpu:0", 1.0)]));
    }
    lock(&ring).flush();
    assert!(lock(&ring).failed_at.is_some());
    assert!(lock(&ring).time_to_flush() > FLUSH, "it rests");
    assert!(read(&ring, "gpu:0", 1, START + 29).is_empty());
    fs::remove_file(&folder).unwrap();
    for at in START + 30..START + 60 {
        lock(&ring).record(sample(at, &[("gpu:0", 1.0)]));
    }
    lock(&ring).flush();
    assert!(lock(&ring).failed_at.is_none());
    assert_eq!(read(&open(&folder), "gpu:0", 1, START + 59).len(), 30);
}

#[test]
fn a_deleted_job_leaves_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let ring = open(folder.path());
    let at_once = |name: &str, memory: f32, at: i64| {
        lock(&ring).record(sample(
            at,
            &[
                ("gpu:0", memory),
                ("job:7", memory),
                ("job:77", memory),
                (name, memory),
            ],
        ));
    };
    for second in 0..70 {
        at_once("slice:7/gpu0.5a", (second % 3) as f32, START + second);
    }
    lock(&ring).flush();
    let now = START + 69;
    let kept = read(&ring, "job:77", 1, now);
    assert_eq!(kept.len(), 69);
    let holds = |text: &str| {
        let files = fs::read_dir(folder.path()).unwrap();
        files.into_iter().any(|file| {
            let content = fs::read(file.unwrap().path()).unwrap();
            divvy_testkit::mentions(&content, text)
        })
    };
    assert!(holds("slice:7/gpu0.5a"));
    {
        let mut ring = lock(&ring);
        ring.forgotten.insert("7".to_owned());
        ring.forgot_at = Instant::now().checked_sub(FORGET).unwrap();
        ring.forget_jobs();
    }
    assert!(!holds("slice:7/"));
    assert!(read(&ring, "job:7", 1, now).is_empty());
    assert_eq!(read(&ring, "job:77", 1, now), kept);
    at_once("job:8", 2.0, START + 70);
    assert_eq!(
        read(&ring, "job:8", 1, START + 71).len(),
        1,
        "and it goes on"
    );
}

#[test]
fn an_answer_has_the_finest_step_that_reaches_back() {
    let now = 1_790_000_007;
    assert_eq!(window(None, None, now), (1, now - 600, now));
    assert_eq!(window(Some(now - 30), None, now), (1, now - 30, now));
    assert_eq!(window(Some(now - 700), None, now).0, 10);
    assert_eq!(window(Some(now - 30_000), None, now).0, 60);
    let (step, from, to) = window(Some(0), None, now);
    assert_eq!((step, to % 60, from % 60), (60, 0, 0));
    assert_eq!((to - from) / 60, 7 * 1440, "as much as is kept");
    assert_eq!(
        window(Some(now - 30_000), Some(1), now),
        (1, now - 600, now)
    );
    assert_eq!(window(Some(now), Some(60), now), (60, to, to));
}

/// The figure of docs/decisions/040-history-ring.md: every measured figure changes every second, for 8 GPUs and 64 jobs of
/// 8 users in 4 projects.
#[test]
fn eight_gpus_and_64_jobs_fit_with_room_to_spare() {
    let folder = tempfile::tempdir().unwrap();
    let ring = open(folder.path());
    let seconds = 660;
    let began = Instant::now();
    for second in 0..seconds {
        let noise = |of: i64| ((second * 31 + of * 17) % 97) as f32;
        let job = |of: i64| {
            values(noise(of) * 1e8)
                .with(Figure::MemoryLimit, 10e9)
                .with(Figure::Share, 125.0)
                .with(Figure::ShareUsed, noise(of + 1))
        };
        let mut series = vec![("node".to_owned(), job(0).with(Figure::Power, noise(3)))];
        series.extend((0..8).map(|gpu| {
            let measured = job(gpu).with(Figure::Utilization, noise(gpu + 2));
            let measured = measured.with(Figure::Power, noise(gpu + 3));
            (
                format!("gpu:{gpu}"),
                measured.with(Figure::Temperature, noise(gpu + 4)),
            )
        }));
        let counts = |of| {
            job(of)
                .with(Figure::Running, 8.0)
                .with(Figure::Waiting, 1.0)
        };
        series.extend((0..8).map(|user| (format!("user:user-{user}"), counts(user))));
        series.extend((0..4).map(|one| (format!("project:project-{one}"), counts(one))));
        series.extend((100..164).map(|number| (format!("job:{number}"), job(number))));
        lock(&ring).record(Sample {
            at: START + second,
            lasts: 3,
            is_busy: true,
            series,
        });
    }
    let took = began.elapsed();
    let of_step = |level: &Level, (step, kept): (u32, u32)| {
        let rows = u64::try_from(seconds).unwrap() / u64::from(step);
        level.pending.len() as u64 / rows * u64::from(kept / step)
    };
    let ring = lock(&ring);
    let taken: Vec<u64> = ring
        .levels
        .iter()
        .zip(STEPS)
        .map(|(level, step)| of_step(level, step))
        .collect();
    let all: u64 = taken.iter().sum();
    println!(
        "{taken:?}, {all} bytes in all; {:?} a sample",
        took / u32::try_from(seconds).unwrap()
    );
    assert!(all < 16 << 20, "{taken:?}");
    assert!(
        taken
            .iter()
            .zip(MOST_BYTES)
            .all(|(taken, most)| *taken < most),
        "{taken:?}"
    );
}
