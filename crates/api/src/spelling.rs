//! Spelling: names that a slip or two turn into the one that was written.

/// A name is searched up to this length, in bytes, which bounds the time of a comparison. The comparison takes time by
/// the square of the length, so a longer one is not compared.
const LONGEST_NAME: usize = 64;

/// Returns the names near the wanted one, nearest first, then by alphabet. A slip is a letter too many, too few, another
/// one, or two that changed places.
pub fn nearest(wanted: &str, names: impl IntoIterator<Item = String>) -> Vec<String> {
    if wanted.len() > LONGEST_NAME {
        return Vec::new();
    }
    let most = match wanted.chars().count() {
        0..3 => 0,
        3..6 => 1,
        _ => 2,
    };
    let mut near: Vec<(usize, String)> = names
        .into_iter()
        .filter(|name| name.len().abs_diff(wanted.len()) <= most)
        .map(|name| (strsim::osa_distance(wanted, &name), name))
        .filter(|(distance, _)| *distance <= most)
        .collect();
    near.sort_unstable();
    near.dedup();
    near.into_iter().map(|(_, name)| name).collect()
}

/// The hint of a refused name: the nearest one, if there is one, and all names up to a bound.
pub fn hint(wanted: &str, what: &str, names: &[&str]) -> String {
    /// More names are no help in a hint. More than a screen's half: a longer list hides the message itself.
    const MOST_NAMES: usize = 20;
    let list = match names.split_at_checked(MOST_NAMES) {
        Some((first, rest)) if !rest.is_empty() => {
            format!("{}, and {} more", first.join(", "), rest.len())
        }
        _ => names.join(", "),
    };
    let all = format!("the {what} are {list}");
    let near = nearest(wanted, names.iter().map(|name| (*name).to_owned()));
    match near.first() {
        Some(near) => format!("did you mean {near}? {all}"),
        None => all,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_or_two_lead_to_the_name_that_was_meant() {
        let names = ["half_gpu", "dual_gpus", "default", "nlp"];
        let near = |wanted: &str| nearest(wanted, names.map(str::to_owned));
        assert_eq!(near("hlaf_gpu"), ["half_gpu"]);
        assert_eq!(near("dual-gpu"), ["dual_gpus"]);
        assert_eq!(near("nlpp"), ["nlp"]);
        for none in ["vision", "np", "", &"x".repeat(65)] {
            assert_eq!(near(none), [""; 0], "{none}");
        }
    }

    #[test]
    fn a_hint_names_the_nearest_and_a_bounded_number_of_names() {
        let hint = |names: &[&str]| super::hint("hlaf", "queues", names);
        assert_eq!(
            hint(&["half", "dual"]),
            "did you mean half? the queues are half, dual"
        );
        assert_eq!(hint(&["dual"]), "the queues are dual");
        let many: Vec<String> = (0..25).map(|nth| format!("q{nth}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(hint(&many).ends_with("q19, and 5 more"));
    }
}
