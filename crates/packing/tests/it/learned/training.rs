//! Trainings.

use divvy_packing::learned::{
    Form, Learned, MOST_KINDS, MOST_NODES, Mix, Progress, Training, TrainingError,
};
use divvy_packing::{NodeSpec, Shape};

use super::{mix, nodes, shape, trained, with_departures};

const TRAINING: Training = Training {
    form: Form::Departures,
    seed: 7,
};

#[test]
fn equal_seeds_give_equal_bytes_and_others_do_not() {
    let bytes = with_departures().to_bytes();
    assert_eq!(trained(2, Form::Departures, 7).to_bytes(), bytes);
    assert_ne!(trained(2, Form::Departures, 8).to_bytes(), bytes);
}

#[test]
fn the_order_of_nodes_and_requests_plays_no_part() {
    let mut reversed = nodes(2);
    reversed.reverse();
    let requests: Vec<(Shape, u64)> = mix().iter().map(|(shape, count)| (*shape, count)).collect();
    let mix = requests.into_iter().rev().collect();
    let learned = Learned::train(&mix, &reversed, TRAINING, &mut |_| ()).unwrap();
    assert_eq!(learned.to_bytes(), with_departures().to_bytes());
}

#[test]
fn progress_counts_to_the_end() {
    let mut seen: Vec<Progress> = Vec::new();
    let one = [(shape(1, 1, 1000), 1)].into_iter().collect();
    Learned::train(&one, &nodes(1), TRAINING, &mut |progress| {
        seen.push(progress)
    })
    .unwrap();
    assert!(seen.len() > 40, "{}", seen.len());
    for (nth, progress) in (1..).zip(&seen) {
        assert_eq!((progress.done, progress.of), (nth, seen.len()));
    }
}

#[test]
fn what_cannot_be_trained_is_refused_with_the_reason() {
    let train = |mix: &Mix, nodes: &[NodeSpec]| {
        let error = Learned::train(mix, nodes, TRAINING, &mut |_| ()).unwrap_err();
        assert!(!error.to_string().is_empty());
        error
    };
    let mut no_gpus = nodes(2);
    no_gpus.iter_mut().for_each(|spec| spec.gpus = 0);
    assert_eq!(train(&mix(), &no_gpus), TrainingError::NoGpus);
    assert_eq!(train(&mix(), &[]), TrainingError::NoGpus);
    for shape in [shape(1, 0, 0), shape(99, 1, 500), shape(1, 9, 1000)] {
        let error = train(&Mix::from_iter([shape, shape]), &nodes(2));
        assert_eq!(error, TrainingError::NothingFits { requests: 2 });
    }
    let nothing = TrainingError::NothingFits { requests: 0 };
    assert_eq!(train(&Mix::default(), &nodes(2)), nothing);
    let mut strange = nodes(1);
    strange[0].model = 64;
    let error = train(&mix(), &strange);
    assert_eq!(
        error.to_string(),
        "node n0 has a GPU of model 64: a table has at most 64 models"
    );
    let many = vec![nodes(1)[0].clone(); MOST_NODES + 1];
    assert_eq!(
        train(&mix(), &many),
        TrainingError::TooManyNodes {
            nodes: MOST_NODES + 1
        }
    );
}

#[test]
fn a_mix_of_too_many_shapes_is_trained_with_coarser_ones() {
    let shapes = (0..3 * MOST_KINDS as u64).map(|nth| {
        let mut shape = shape(1, 1, 500);
        shape.cpu_milli += nth;
        shape
    });
    let mix: Mix = shapes.collect();
    assert_eq!(mix.kinds(), 3 * MOST_KINDS);
    let learned = Learned::train(&mix, &nodes(1), TRAINING, &mut |_| ()).unwrap();
    assert_eq!(learned.requests(), 3 * MOST_KINDS as u64);
}
