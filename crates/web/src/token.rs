//! The bearer token: a secret that a client shows with each call.

use std::fs::File;
use std::io::{self, Read as _};

use hyper::header::{AUTHORIZATION, HeaderMap};
use subtle::ConstantTimeEq as _;

/// Bytes of a random token. 256 bits: as many as the security of TLS 1.3 rests on, so more would protect nothing.
const BYTES: usize = 32;

/// A secret. Its `Debug` form does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Vec<u8>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// A token of these visible characters.
    pub fn of(secret: Vec<u8>) -> Self {
        Self(secret)
    }

    /// 32 bytes of the kernel's random numbers, and the same as the 64 hexadecimal digits that a client sends.
    ///
    /// # Errors
    /// When `/dev/urandom` cannot be read.
    pub fn random() -> io::Result<(Self, String)> {
        let mut bytes = [0; BYTES];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((Self(text.clone().into_bytes()), text))
    }

    /// Whether the request shows it: in one header `Authorization: Bearer TOKEN`. The comparison takes the same time for
    /// every content; only the length shows.
    pub fn is_shown(&self, headers: &HeaderMap) -> bool {
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let (Some(value), None) = (given.next(), given.next()) else {
            return false;
        };
        let given = value.as_bytes().strip_prefix(b"Bearer ");
        given.is_some_and(|given| given.ct_eq(&self.0).into())
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn shown(values: &[&[u8]]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    #[test]
    fn a_random_token_is_new_each_time_and_never_shown() {
        let (token, text) = Token::random().unwrap();
        let (other, _) = Token::random().unwrap();
        assert_eq!(text.len(), 2 * BYTES);
        assert!(text.bytes().all(|digit| digit.is_ascii_hexdigit()));
        assert_ne!(token, other);
        assert!(!format!("{token:?}").contains(&text[..4]));
        assert!(token.is_shown(&shown(&[format!("Bearer {text}").as_bytes()])));
    }

    #[test]
    fn only_the_whole_token_in_one_header_is_the_token() {
        let token = Token::of(b"0123456789abcdef".to_vec());
        let right: &[u8] = b"Bearer 0123456789abcdef";
        assert!(token.is_shown(&shown(&[right])));
        let cases: [&[&[u8]]; 8] = [
            &[],
            &[b""],
            &[b"Bearer "],
            &[b"0123456789abcdef"],
            &[b"bearer 0123456789abcdef"],
            &[b"Basic 0123456789abcdef"],
            &[right, right],
            &[b"Bearer x", right],
        ];
        for wrong in cases {
            assert!(!token.is_shown(&shown(wrong)), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn no_other_text_is_the_token(text in "[ -~]{0,20}") {
            let token = Token::of(b"0123456789abcdef".to_vec());
            let is_it = text == "0123456789abcdef";
            prop_assert_eq!(token.is_shown(&shown(&[format!("Bearer {text}").as_bytes()])), is_it);
        }
    }
}
