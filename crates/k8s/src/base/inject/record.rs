//! The request record: annotations on a pod with the parsed request, for people and to create a lost claim template
//! again.

use crate::base::pod_request::{Fraction, MOST_GPUS, Size};

/// The annotation of an admitted pod: `0.500`, `2000Mi`, or `1.000,1.000` for two whole GPUs.
pub const ASKED: &str = "divvy.dev/gpus";

/// As the annotation has it.
pub(super) fn record(gpus: &[Size]) -> String {
    let each = gpus.iter().map(|size| match size {
        Size::Whole => WHOLE.to_owned(),
        Size::Fraction(part) => part.to_string(),
        Size::Memory(mib) => format!("{mib}Mi"),
    });
    each.collect::<Vec<_>>().join(",")
}

const WHOLE: &str = "1.000";

/// Parses an annotation; `None` if it does not have our form.
pub fn parse_request(text: &str) -> Option<Vec<Size>> {
    let gpus = text.split(',').take(MOST_GPUS + 1);
    let gpus: Vec<Size> = gpus.map(size).collect::<Option<_>>()?;
    (gpus.len() <= MOST_GPUS).then_some(gpus)
}

fn size(text: &str) -> Option<Size> {
    if text == WHOLE {
        return Some(Size::Whole);
    }
    match text.strip_suffix("Mi") {
        Some(mib) => mib.parse().ok().filter(|mib| *mib > 0).map(Size::Memory),
        None => Fraction::between_none_and_one(text)
            .ok()
            .map(Size::Fraction),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_is_read_again_and_nothing_else_is() {
        let part = |text| Size::Fraction(Fraction::between_none_and_one(text).unwrap());
        for (gpus, text) in [
            (vec![part("0.5"), part("0.0625")], "0.500,0.0625"),
            (vec![Size::Whole, Size::Whole], "1.000,1.000"),
            (vec![Size::Memory(2000)], "2000Mi"),
        ] {
            assert_eq!(record(&gpus), text);
            assert_eq!(parse_request(text), Some(gpus));
        }
        for text in ["", "2", "0Mi", "0.5,", "half", "-1Mi", "1.5"] {
            assert_eq!(parse_request(text), None, "{text}");
        }
        assert!(parse_request(&vec!["1Mi"; 32].join(",")).is_some());
        assert_eq!(parse_request(&vec!["1Mi"; 65_536].join(",")), None);
    }
}
