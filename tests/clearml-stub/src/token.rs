//! Tokens: JSON Web Tokens with HS256, which clients decode without the key.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;

/// A stub's tokens are worth nothing anywhere else.
const KEY: &[u8] = b"divvy-clearml-stub";

/// A token with these claims.
pub(crate) fn issue(claims: &Value) -> String {
    let header = json!({ "alg": "HS256", "typ": "JWT" });
    let text = format!(
        "{}.{}",
        encoded(&header.to_string()),
        encoded(&claims.to_string())
    );
    let signature = URL_SAFE_NO_PAD.encode(signed(&text).finalize().into_bytes());
    format!("{text}.{signature}")
}

/// The claims of a token that was issued here.
pub(crate) fn claims(token: &str) -> Option<Value> {
    let (text, signature) = token.rsplit_once('.')?;
    let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
    signed(text).verify_slice(&signature).ok()?;
    let (_, claims) = text.split_once('.')?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
}

fn encoded(text: &str) -> String {
    URL_SAFE_NO_PAD.encode(text)
}

fn signed(text: &str) -> Hmac<Sha256> {
    let mac = Hmac::new_from_slice(KEY);
    let mut mac: Hmac<Sha256> = mac.expect("HMAC takes a key of any length");
    mac.update(text.as_bytes());
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_what_was_claimed_and_no_other_passes() {
        let claims_in = json!({ "exp": 12, "identity": { "user": "ana" } });
        let token = issue(&claims_in);
        assert_eq!(claims(&token), Some(claims_in));
        let (text, _) = token.rsplit_once('.').expect("three parts");
        for forged in [
            format!("{text}.AAAA"),
            format!("{token}A"),
            "x".to_owned(),
            String::new(),
        ] {
            assert_eq!(claims(&forged), None, "{forged}");
        }
    }
}
