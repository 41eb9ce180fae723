//! The security headers of every answer to a browser.

use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderMap, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};

/// The page runs its own files alone, calls its own origin alone, and no other page frames it.
pub const CSP: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data:; font-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

const FIXED: [(HeaderName, &str); 5] = [
    (CONTENT_SECURITY_POLICY, CSP),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// Adds them. An answer that names no cache of its own is not stored: a browser keeps no user's jobs on disk.
pub fn secure(headers: &mut HeaderMap) {
    for (name, value) in FIXED {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let cache = headers.entry(CACHE_CONTROL);
    cache.or_insert(HeaderValue::from_static("no-store"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_keeps_its_own_cache_and_nothing_else_of_these() {
        let mut headers = HeaderMap::new();
        headers.insert(REFERRER_POLICY, HeaderValue::from_static("unsafe-url"));
        secure(&mut headers);
        assert_eq!(headers[REFERRER_POLICY], "no-referrer");
        assert_eq!(headers[CACHE_CONTROL], "no-store");
        assert_eq!(headers.len(), FIXED.len() + 1);
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        secure(&mut headers);
        assert_eq!(headers[CACHE_CONTROL], "no-cache");
    }

    #[test]
    fn the_policy_allows_no_inline_script_no_eval_and_no_other_origin() {
        for source in ["unsafe", "http", "*", "blob:"] {
            assert!(!CSP.contains(source), "{source}");
        }
        assert!(CSP.starts_with("default-src 'none'"));
    }
}
