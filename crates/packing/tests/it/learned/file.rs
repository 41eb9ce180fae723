//! Trained policies as bytes.

use divvy_packing::learned::{Learned, MOST_BYTES, TableError};
use divvy_packing::{Cluster, NodePolicy, NodeSpec};

use super::{mix, nodes, with_departures};

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn what_is_written_is_read() {
    let written = with_departures().named(&names(&["A100", "T4"]));
    let bytes = written.to_bytes();
    let mut read = Learned::from_bytes(&bytes).unwrap();
    assert_eq!(read.to_bytes(), bytes);
    assert_eq!(read.models(), ["A100", "T4"]);
    assert_eq!((read.form(), read.requests()), (written.form(), 180));
    let mut written = written;
    let mut cluster = Cluster::new(nodes(8));
    for (shape, _) in mix().iter() {
        let choice = written.choose(&cluster, shape);
        assert_eq!(read.choose(&cluster, shape), choice);
        assert!(cluster.take(shape, &choice.unwrap()));
    }
}

#[test]
fn a_broken_file_is_refused_with_the_reason() {
    let bytes = with_departures().to_bytes();
    let read = |bytes: &[u8]| Learned::from_bytes(bytes).map(|_| ()).unwrap_err();
    assert_eq!(read(b""), TableError::NotATable);
    assert_eq!(read(b"{\"version\": 1}"), TableError::NotATable);
    // The version before, and the next.
    for found in [1, 3] {
        let mut other = bytes.clone();
        other[11] = found;
        let found = u32::from(found);
        assert_eq!(read(&other), TableError::Version { found });
    }
    assert_eq!(
        read(&vec![0; MOST_BYTES + 1]),
        TableError::TooLarge {
            bytes: MOST_BYTES + 1
        }
    );
    for length in (0..bytes.len()).step_by(997).chain(11..80) {
        read(&bytes[..length]);
    }
    for at in (0..bytes.len()).step_by(613).chain(0..120) {
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        let error = read(&changed);
        assert!(!error.to_string().is_empty(), "{at}");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(matches!(read(&longer), TableError::Checksum { .. }));
}

/// FNV-1a over the file, as its end has it.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.len() - 8);
    let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// A file with a right checksum and impossible contents: form, mean, weight, axes, models, names.
#[test]
fn impossible_values_are_refused_even_with_a_right_checksum() {
    let bytes = with_departures().to_bytes();
    let end = bytes.len() - 8;
    let nan = f32::NAN.to_le_bytes();
    for (at, put) in [
        (15, vec![2]),
        (24, f64::NAN.to_le_bytes().to_vec()),
        (24, 0.5_f64.to_le_bytes().to_vec()),
        (32, nan.to_vec()),
        (36, (-1.0_f32).to_le_bytes().to_vec()),
        (40, vec![2]),
        (41, 65_u32.to_le_bytes().to_vec()),
        (41, 1_u32.to_le_bytes().to_vec()),
        (41, u32::MAX.to_le_bytes().to_vec()),
        (45, 3_u32.to_le_bytes().to_vec()),
        (49, u32::MAX.to_le_bytes().to_vec()),
        (end - 4, nan.to_vec()),
    ] {
        let mut changed = bytes.clone();
        changed[at..at + put.len()].copy_from_slice(&put);
        let error = Learned::from_bytes(&sealed(changed))
            .map(|_| ())
            .unwrap_err();
        println!("{at}: {error}");
        assert!(
            matches!(error, TableError::Value { .. } | TableError::Short { .. }),
            "{error}"
        );
    }
}

/// Another numbering of the models gives the same choices; a model that is new gets the mean.
#[test]
fn a_table_serves_a_cluster_with_another_numbering() {
    let mut learned = with_departures().named(&names(&["A100", "T4"]));
    let mut other = learned.renumbered(&names(&["H100", "T4", "A100"]));
    assert_eq!(other.models(), ["H100", "T4", "A100"]);
    let specs = nodes(8);
    let moved = |spec: &NodeSpec| NodeSpec {
        model: [2, 1][spec.model],
        ..spec.clone()
    };
    let (cluster, renumbered) = (
        Cluster::new(specs.clone()),
        Cluster::new(specs.iter().map(moved)),
    );
    let all: Vec<usize> = (0..8).collect();
    for (shape, _) in mix().iter() {
        let scores = learned.scores(&cluster, shape, &all);
        assert_eq!(other.scores(&renumbered, shape, &all), scores);
    }
    let new = Cluster::new(specs.iter().map(|spec| NodeSpec {
        model: 0,
        ..spec.clone()
    }));
    let scores = other.scores(&new, mix().iter().next().unwrap().0, &all);
    assert!(scores.iter().all(|score| score.is_finite()), "{scores:?}");
}
