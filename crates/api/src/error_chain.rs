//! Error chains: an error and its causes as one line of text.

use std::error::Error;
use std::iter::successors;

/// Returns the causes of an error, the nearest first.
pub fn causes(error: &dyn Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    successors(error.source(), |&error| error.source())
}

/// Returns the texts of an error and its causes, joined by `: `.
pub fn error_chain(error: &dyn Error) -> String {
    causes(error).fold(error.to_string(), |line, cause| format!("{line}: {cause}"))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read the file")]
    struct Outer(#[source] io::Error);

    #[test]
    fn a_chain_names_each_cause_once() {
        let error = Outer(io::Error::other("the disk is gone"));
        assert_eq!(
            error_chain(&error),
            "cannot read the file: the disk is gone"
        );
        assert_eq!(causes(&error).count(), 1);
    }
}
