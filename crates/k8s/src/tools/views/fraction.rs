//! A part of a GPU as a pod requests it, found again from its memory.

use divvy_core::units::Bytes;

use crate::base::pod_request::{Fraction, Size};

/// Millionths of the fractions that people write, the usual first: sixteenths, hundredths, thousandths.
const STEPS: [u64; 3] = [62_500, 10_000, 1_000];

/// `0.25` for 20262 MiB of 81050 MiB: the fraction whose memory this is, else the part rounded down to a thousandth.
///
/// The webhook writes a fraction as memory, rounded down to 2 MiB, so the exact quotient is a little smaller.
pub fn text(memory: u64, total: u64) -> String {
    decimal(millionths(memory, total))
}

/// The same in millionths.
pub fn millionths(memory: u64, total: u64) -> u64 {
    if memory >= total {
        return 1_000_000;
    }
    let exact = u128::from(memory) * 1_000_000 / u128::from(total.max(1));
    let exact = u64::try_from(exact).unwrap_or_default();
    let asked = STEPS.into_iter().find_map(|step| {
        let millionths = exact.saturating_add(step / 2) / step * step;
        let fraction = Fraction::from_millionths(u32::try_from(millionths).ok()?)?;
        (fraction.mib_of(total) << 20 == memory).then_some(millionths)
    });
    asked.unwrap_or(exact / 1000 * 1000)
}

/// Millionths without zeros at the end.
pub fn decimal(millionths: u64) -> String {
    let (whole, part) = (millionths / 1_000_000, millionths % 1_000_000);
    match part {
        0 => whole.to_string(),
        part => format!("{whole}.{}", format!("{part:06}").trim_end_matches('0')),
    }
}

/// A request as a user types it: `0.25`, `2x0.5`, `2000MiB`, `2`.
pub fn request(gpus: &[Size]) -> String {
    let each = |size: &Size| match size {
        Size::Whole => "1".to_owned(),
        Size::Fraction(part) => decimal(u64::from(part.millionths())),
        Size::Memory(mib) => match (mib % 1024, mib / 1024) {
            (0, gib) => format!("{gib}GiB"),
            _ => format!("{}MiB", Bytes::mib(*mib).get() >> 20),
        },
    };
    match gpus {
        [] => "-".to_owned(),
        [first, rest @ ..] if rest.iter().all(|other| other == first) => {
            match (first, gpus.len()) {
                (Size::Whole, count) => count.to_string(),
                (size, 1) => each(size),
                (size, count) => format!("{count}x{}", each(size)),
            }
        }
        gpus => gpus.iter().map(each).collect::<Vec<_>>().join(","),
    }
}

/// An allocated device: its bytes, and the bytes of its GPU if it is a part of a shared one.
pub type Held = (Option<u64>, Option<u64>);

/// Whether allocated devices are what these sizes request.
pub fn is_allocation(gpus: &[Size], held: &[Held]) -> bool {
    // Capacity has steps of 2 MiB, and a request for less than a thousandth of a GPU gets that.
    let is_near = |bytes: u64, mib: u64, total: u64| {
        bytes >= mib << 20 && bytes - (mib << 20) <= (2 << 20) + total / 1000
    };
    let serves = |size: &Size, held: &Held| match (*size, *held) {
        (Size::Whole, (bytes, Some(total))) => bytes.is_none_or(|bytes| bytes >= total),
        (Size::Whole, (_, None)) => true,
        (Size::Fraction(part), (Some(bytes), Some(total))) => {
            is_near(bytes, part.mib_of(total), total)
        }
        (Size::Memory(mib), (Some(bytes), Some(total))) => is_near(bytes, mib, total),
        // An instance serves every request that it has room for.
        (Size::Memory(mib), (Some(bytes), None)) => bytes >= mib << 20,
        (Size::Fraction(_) | Size::Memory(_), _) => false,
    };
    let mut left = held.to_vec();
    let each = gpus.iter().all(|size| {
        let found = left.iter().position(|held| serves(size, held));
        found.map(|at| left.swap_remove(at)).is_some()
    });
    each && left.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The usable memory of an A100 80GB, H100 80GB, L4 and A100 40GB, in MiB.
    const GPUS: [u64; 4] = [81_050, 81_004, 23_034, 40_442];

    #[test]
    fn a_fraction_is_shown_as_it_was_asked_for_on_every_gpu() {
        for mib in GPUS {
            let total = mib << 20;
            for asked in [
                "0.0625", "0.125", "0.25", "0.375", "0.5", "0.75", "0.3", "0.1", "0.007",
            ] {
                let fraction = Fraction::between_none_and_one(asked).unwrap();
                assert_eq!(text(fraction.mib_of(total) << 20, total), asked, "{mib}");
            }
            assert_eq!(text(total, total), "1");
        }
        assert_eq!(
            text(4 << 30, 81_050 << 20),
            "0.05",
            "memory is rounded down"
        );
    }

    #[test]
    fn an_allocation_is_that_of_its_request_and_of_no_other() {
        let part = |text| Size::Fraction(Fraction::between_none_and_one(text).unwrap());
        let bytes = |mib: u64| Some(mib << 20);
        for mib in GPUS {
            let total = mib << 20;
            let of = |text| {
                let fraction = Fraction::between_none_and_one(text).unwrap();
                (bytes(fraction.mib_of(total)), Some(total))
            };
            let whole = (Some(total), Some(total));
            for (gpus, held) in [
                (vec![part("0.125")], vec![of("0.125")]),
                (
                    vec![part("0.125"), part("0.5")],
                    vec![of("0.5"), of("0.125")],
                ),
                (vec![Size::Whole], vec![whole]),
                (vec![Size::Whole], vec![(None, None)]),
                (vec![Size::Memory(2001)], vec![(bytes(2002), Some(total))]),
                (vec![Size::Memory(4096)], vec![(bytes(9984), None)]),
            ] {
                assert!(is_allocation(&gpus, &held), "{gpus:?} {held:?}");
            }
            for (gpus, held) in [
                (vec![part("0.125")], vec![whole]),
                (vec![part("0.125")], vec![of("0.25")]),
                (vec![part("0.125")], vec![of("0.125"), of("0.125")]),
                (vec![part("0.125"), part("0.125")], vec![of("0.125")]),
                (vec![Size::Whole], vec![of("0.875")]),
                (vec![Size::Memory(2000)], vec![(bytes(4096), Some(total))]),
            ] {
                assert!(!is_allocation(&gpus, &held), "{gpus:?} {held:?}");
            }
        }
    }

    #[test]
    fn a_request_is_written_as_a_user_types_it() {
        let half = Size::Fraction(Fraction::between_none_and_one("0.500").unwrap());
        for (gpus, expected) in [
            (vec![half], "0.5"),
            (vec![half, half], "2x0.5"),
            (vec![Size::Whole, Size::Whole], "2"),
            (vec![Size::Memory(2000)], "2000MiB"),
            (vec![Size::Memory(4096)], "4GiB"),
            (vec![Size::Whole, half], "1,0.5"),
        ] {
            assert_eq!(request(&gpus), expected);
        }
    }
}
