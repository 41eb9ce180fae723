//! Secret text that is never printed: keys and tokens.

use std::fmt;

/// A secret. Neither `Debug` nor any other output shows it; code that needs it calls [`Secret::expose`].
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for a header or a child's environment.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("****")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown() {
        let secret = Secret::new("s3cr3t");
        assert_eq!(
            format!("{secret:?} {:#?}", [&secret]),
            "**** [\n    ****,\n]"
        );
        assert_eq!(secret.expose(), "s3cr3t");
    }
}
