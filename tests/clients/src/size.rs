//! Sizes on the command line: `4G`, `64M`, `512K`, or plain bytes; binary units only.

/// Bytes named by `text`.
///
/// # Errors
/// Says what was wrong with the text.
pub fn parse(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'T') => (&text[..text.len() - 1], 40),
        Some(b'G') => (&text[..text.len() - 1], 30),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'K') => (&text[..text.len() - 1], 10),
        _ => (text, 0),
    };
    let number: u64 = digits
        .parse()
        .map_err(|error| format!("{text:?}: {error}"))?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("{text:?} is more than 2^64 bytes"))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_letter_is_a_binary_unit() {
        assert_eq!(parse("4G"), Ok(4 << 30));
        assert_eq!(parse("64M"), Ok(64 << 20));
        assert_eq!(parse("7"), Ok(7));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "G", "4X", "-1", "1.5G", "99999999T"] {
            assert!(parse(text).is_err(), "{text} was taken");
        }
    }
}
