//! The check of a table on the last requests.

use divvy_packing::learned::{
    Fallback, Form, Guarded, Learned, Mix, REQUESTS_NEEDED, Training, Verdict, check,
};
use divvy_packing::{BestFit, Cluster, NodePolicy, NodeSpec};

use super::{mix, nodes, shape, trained, with_departures};

/// The mix often enough for a check.
fn recent() -> Mix {
    mix()
        .iter()
        .map(|(shape, count)| (*shape, 2 * count))
        .collect()
}

#[test]
fn a_table_for_these_requests_is_used() {
    let table = trained(8, Form::Departures, 7);
    let verdict = check(&table, &recent(), &nodes(8), 1);
    println!("{verdict}");
    assert!(verdict.is_learned(), "{verdict}");
}

#[test]
fn too_few_requests_fall_back() {
    let few = Mix::from_iter(vec![shape(1, 1, 300); 299]);
    let verdict = check(&with_departures(), &few, &nodes(8), 1);
    let (seen, needed) = (299, REQUESTS_NEEDED);
    let fallback = Fallback::TooFewRequests { seen, needed };
    assert_eq!(verdict, Verdict::BestFit(fallback));
    assert_eq!(
        verdict.to_string(),
        "best fit: the history has 299 requests, the check needs 300"
    );
}

#[test]
fn requests_that_fit_nowhere_and_a_table_for_fills_fall_back() {
    let huge = Mix::from_iter(vec![shape(1, 16, 1000); 400]);
    let verdict = check(&with_departures(), &huge, &nodes(8), 1);
    assert_eq!(
        verdict,
        Verdict::BestFit(Fallback::NothingFits { seen: 400 })
    );
    let verdict = check(&trained(1, Form::Fill, 1), &recent(), &nodes(2), 1);
    assert_eq!(verdict, Verdict::BestFit(Fallback::TrainedOnFill));
}

/// Trained where CPU is what runs out, used where requests ask for several GPUs.
#[test]
fn a_table_for_other_requests_falls_back_and_says_so() {
    let specs: Vec<NodeSpec> = (0..4)
        .map(|nth| NodeSpec {
            name: format!("n{nth}"),
            gpus: 4,
            cpu_milli: 64_000,
            model: 0,
            ..nodes(1)[0].clone()
        })
        .collect();
    let training = Training {
        form: Form::Departures,
        seed: 3,
    };
    let trained_on = Mix::from_iter([(shape(16, 1, 200), 90), (shape(1, 1, 1000), 10)]);
    let learned = Learned::train(&trained_on, &specs, training, &mut |_| ()).unwrap();
    let never_seen = Mix::from_iter([(shape(1, 1, 500), 200), (shape(4, 4, 1000), 200)]);
    let mut guarded = Guarded::new(learned, &never_seen, &specs, 1);
    println!("{}", guarded.verdict());
    let Verdict::BestFit(Fallback::BehindBestFit { learned, best_fit }) = *guarded.verdict() else {
        panic!("{}", guarded.verdict());
    };
    assert!(learned > best_fit);
    let cluster = Cluster::new(specs.clone());
    let part = shape(1, 1, 500);
    assert_eq!(
        guarded.choose(&cluster, &part),
        BestFit::default().choose(&cluster, &part)
    );
    let scores = guarded.scores(&cluster, &part, &[0, 99]);
    assert!(
        scores[0].is_finite() && scores[1] == f32::INFINITY,
        "{scores:?}"
    );
    // The requests it was trained on come back.
    let back = trained_on
        .iter()
        .map(|(shape, count)| (*shape, 4 * count))
        .collect();
    assert!(
        guarded.check(&back, &specs, 1).is_learned(),
        "{}",
        guarded.verdict()
    );
}
