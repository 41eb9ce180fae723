//! Sixteenths, the units of carrier mode: the number and memory for a request, and the device ids for kubelet.

use std::fmt;
use std::str::FromStr;

use divvy_core::units::Bytes;

use crate::base::pod_request::Fraction;

/// Of one GPU: the smallest part that ClearML's injector knows is one of them. Each is a device in the plugin's list,
/// so twice as many would double what kubelet reads.
pub const UNITS: u8 = 16;
/// The granularity of a slice's memory, as everywhere in Divvy: the size of the driver's own blocks. A smaller one
/// would charge less than the driver maps.
const STEP: Bytes = Bytes::mib(2);
/// Millionths of a GPU: the unit of labels (`fraction.rs`), so that both agree.
const MILLIONTHS: u32 = 1_000_000;

/// How much memory so many sixteenths of a GPU are.
pub fn memory(units: u8, usable: Bytes) -> Bytes {
    let part = u128::from(usable.get()) * u128::from(units) / u128::from(UNITS);
    Bytes::new(u64::try_from(part).unwrap_or(u64::MAX)).round_down(STEP)
}

/// Sixteenths that have at least this part.
pub fn of_fraction(part: Fraction) -> u8 {
    let units = (part.millionths() * u32::from(UNITS)).div_ceil(MILLIONTHS);
    u8::try_from(units).unwrap_or(UNITS)
}

/// Sixteenths that have at least so much, of every GPU from the smallest on that has it at all; `None` if none has.
pub fn of_memory(asked: Bytes, sizes: impl IntoIterator<Item = Bytes>) -> Option<u8> {
    let smallest = sizes
        .into_iter()
        .filter(|size| memory(UNITS, *size) >= asked)
        .min()?;
    (1..=UNITS).find(|units| memory(*units, smallest) >= asked)
}

/// One sixteenth of one GPU, as kubelet knows it: `GPU-…/7`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unit {
    /// UUID.
    pub gpu: String,
    /// Below [`UNITS`].
    pub number: u8,
}

/// A device id that is none of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the ID of a sixteenth of a GPU")]
pub struct NoUnit(String);

impl fmt::Display for Unit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.gpu, self.number)
    }
}

impl FromStr for Unit {
    type Err = NoUnit;

    fn from_str(text: &str) -> Result<Self, NoUnit> {
        let unit = text.rsplit_once('/').and_then(|(gpu, number)| {
            let number = number.parse().ok().filter(|number| *number < UNITS)?;
            (!gpu.is_empty()).then(|| Self {
                gpu: gpu.to_owned(),
                number,
            })
        });
        unit.ok_or_else(|| NoUnit(text.to_owned()))
    }
}

/// All of a GPU's.
pub fn of_gpu(gpu: &str) -> impl Iterator<Item = Unit> + use<'_> {
    (0..UNITS).map(move |number| Unit {
        gpu: gpu.to_owned(),
        number,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn part(text: &str) -> Fraction {
        Fraction::between_none_and_one(text).unwrap()
    }

    #[test]
    fn parts_are_rounded_up_to_sixteenths() {
        for (text, units) in [
            ("0.0625", 1),
            ("0.125", 2),
            ("0.5", 8),
            ("0.3", 5),
            ("0.999", 16),
            ("0.000001", 1),
        ] {
            assert_eq!(of_fraction(part(text)), units, "{text}");
        }
        assert_eq!(memory(4, Bytes::gib(80)), Bytes::gib(20));
    }

    #[test]
    fn memory_is_counted_by_the_smallest_gpu_that_has_it() {
        let sizes = [Bytes::gib(80), Bytes::gib(16)];
        assert_eq!(of_memory(Bytes::gib(4), sizes), Some(4));
        assert_eq!(of_memory(Bytes::gib(20), sizes), Some(4));
        assert_eq!(of_memory(Bytes::gib(81), sizes), None);
        assert_eq!(of_memory(Bytes::gib(1), []), None);
    }

    #[test]
    fn what_is_no_sixteenth_is_refused_by_name() {
        for text in ["", "GPU-1", "GPU-1/16", "/3", "GPU-1/-1", "GPU-1/x"] {
            assert!(text.parse::<Unit>().is_err(), "{text}");
        }
        assert_eq!(of_gpu("GPU-1").count(), 16);
    }

    proptest! {
        #[test]
        fn no_sum_of_sixteenths_is_more_than_the_gpu(usable in 0_u64..1 << 40, units in prop::collection::vec(1_u8..=5, 1..4)) {
            prop_assume!(units.iter().map(|units| u32::from(*units)).sum::<u32>() <= 16);
            let sum: Bytes = units.iter().map(|units| memory(*units, Bytes::new(usable))).sum();
            prop_assert!(sum.get() <= usable);
        }

        #[test]
        fn what_is_asked_for_is_had_on_every_gpu_that_could(asked in 1_u64..200 << 30, sizes in prop::collection::vec(1_u64..200 << 30, 1..5)) {
            let sizes: Vec<Bytes> = sizes.into_iter().map(Bytes::new).collect();
            if let Some(units) = of_memory(Bytes::new(asked), sizes.clone()) {
                let able = sizes.iter().filter(|size| memory(UNITS, **size).get() >= asked);
                for size in able {
                    prop_assert!(memory(units, *size).get() >= asked);
                }
            }
        }

        #[test]
        fn a_unit_reads_as_it_is_written(gpu in "GPU-[0-9a-f]{8}", number in 0_u8..16) {
            let unit = Unit { gpu, number };
            prop_assert_eq!(unit.to_string().parse::<Unit>().unwrap(), unit);
        }
    }
}
