//! The claims of an API token, read without checking its signature. Its signature is the server's to check.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use crate::secret::Secret;

/// A session with the server.
#[derive(Clone, Debug)]
pub struct Token {
    pub text: Secret,
    pub facts: Facts,
}

/// The claims of a token that we read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// Seconds since 1970; absent: for ever.
    pub exp: Option<f64>,
    pub api_version: Option<String>,
    pub server_version: Option<String>,
    pub feature_set: Option<String>,
}

impl Token {
    /// A token whose claims cannot be read counts as valid for ever: the server says 401 when it is not.
    pub fn new(text: &str) -> Self {
        Self {
            facts: facts(text).unwrap_or_default(),
            text: Secret::new(text),
        }
    }

    /// Whether it is valid for `threshold` more at `now`, seconds since 1970.
    pub fn lasts(&self, now: Duration, threshold: Duration) -> bool {
        let left = |exp: f64| exp - now.as_secs_f64() > threshold.as_secs_f64();
        self.facts.exp.is_none_or(left)
    }
}

fn facts(text: &str) -> Option<Facts> {
    let claims = text.split('.').nth(1)?;
    let claims = URL_SAFE_NO_PAD.decode(claims.trim_end_matches('=')).ok()?;
    serde_json::from_slice(&claims).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(claims: &str) -> Token {
        Token::new(&format!("e30.{}.sig", URL_SAFE_NO_PAD.encode(claims)))
    }

    #[test]
    fn a_token_is_renewed_before_it_ends() {
        let token = token(
            r#"{"exp": 100000, "api_version": "2.34", "identity": {"user": "u"}, "feature_set": "basic"}"#,
        );
        assert_eq!(token.facts.api_version.as_deref(), Some("2.34"));
        let threshold = Duration::from_secs(43_200);
        assert!(token.lasts(Duration::from_secs(50_000), threshold));
        assert!(!token.lasts(Duration::from_secs(60_000), threshold));
        assert!(!format!("{token:?}").contains("e30."));
    }

    #[test]
    fn what_cannot_be_read_is_left_to_the_server() {
        for text in ["", "opaque", "a.b.c", "a.e30.c"] {
            assert!(
                Token::new(text).lasts(Duration::from_secs(1 << 40), Duration::ZERO),
                "{text}"
            );
        }
    }
}
