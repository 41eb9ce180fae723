//! The embedded files of the page.
//!
//! The build computes the ETag of each file, and [`crate::gzip`] compresses it. A path is looked up whole in the table of files: no path of a
//! request reaches a file system.

use hyper::body::Bytes;
use hyper::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH, VARY,
};
use hyper::{Response, StatusCode};

/// One embedded file.
struct File {
    path: &'static str,
    kind: &'static str,
    /// A weak tag: both encodings have the same.
    etag: &'static str,
    bytes: &'static [u8],
}

const FILES: &[File] = include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// A new program has new files under the old names, so that a browser asks each time and gets 304.
const CACHE: HeaderValue = HeaderValue::from_static("no-cache");

/// Whether the path can only be one of a file: the page's own, or one below `/assets/`.
pub fn is_static(path: &str) -> bool {
    path == "/" || path.starts_with("/assets/")
}

/// The answer to `GET path`, or `None` where no file has this path.
pub fn answer(path: &str, request: &HeaderMap) -> Option<Response<Bytes>> {
    let file = FILES.iter().find(|file| file.path == path)?;
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(ETAG, HeaderValue::from_static(file.etag));
    headers.insert(CACHE_CONTROL, CACHE);
    headers.insert(VARY, HeaderValue::from_name(ACCEPT_ENCODING));
    if is_known(request, file.etag) {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        return Some(response);
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(file.kind));
    *response.body_mut() = Bytes::from_static(file.bytes);
    Some(response)
}

/// Whether the client has the file with this tag (RFC 9110, section 13.1.2: weak comparison).
fn is_known(request: &HeaderMap, etag: &str) -> bool {
    let opaque = |tag: &str| tag.strip_prefix("W/").unwrap_or(tag).to_owned();
    let given = request.get_all(IF_NONE_MATCH).iter();
    let mut given = given
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim);
    given.any(|known| known == "*" || opaque(known) == opaque(etag))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;

    use super::*;

    fn asked(pairs: &[(hyper::header::HeaderName, &str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap()))
            .collect()
    }

    #[test]
    fn every_file_is_served_and_known_tags_get_no_body() {
        let paths: Vec<&str> = FILES.iter().map(|file| file.path).collect();
        assert!(paths.contains(&"/") && paths.is_sorted(), "{paths:?}");
        for file in FILES {
            let whole = answer(file.path, &HeaderMap::new()).unwrap();
            assert_eq!(whole.body(), file.bytes);
            assert_eq!(whole.headers()[CONTENT_TYPE], file.kind);
            let tag = whole.headers()[ETAG].to_str().unwrap();
            for known in [tag, "*", &format!("\"x\", {tag}"), &tag[2..]] {
                let known = answer(file.path, &asked(&[(IF_NONE_MATCH, known)])).unwrap();
                assert_eq!(known.status(), StatusCode::NOT_MODIFIED);
                assert!(known.body().is_empty());
            }
            let other = answer(file.path, &asked(&[(IF_NONE_MATCH, "W/\"x\"")])).unwrap();
            assert_eq!(other.status(), StatusCode::OK);
        }
    }

    #[test]
    fn all_files_stay_within_the_budget_of_the_page() {
        let short = |bytes: &[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap().len()
        };
        let size: usize = FILES.iter().map(|file| short(file.bytes)).sum();
        assert!(size <= 74 << 10, "{size} bytes compressed, at most 74 KiB");
    }

    #[test]
    fn no_spelling_of_a_path_leaves_the_table() {
        for path in [
            "",
            "//",
            "/index.html",
            "/assets",
            "/assets/",
            "/assets/../",
            "/assets/../build.rs",
            "/assets/%2e%2e/Cargo.toml",
            "/assets/..%2fCargo.toml",
            "/assets/./index.html",
            "/assets//etc/passwd",
            "/etc/passwd",
            "/assets/index.html\0",
            "/Assets/index.html",
        ] {
            assert!(answer(path, &HeaderMap::new()).is_none(), "{path}");
        }
    }

    proptest! {
        #[test]
        fn any_other_path_has_no_file(path in "/?[ -~]{0,40}") {
            let is_there = FILES.iter().any(|file| file.path == path);
            prop_assert_eq!(answer(&path, &HeaderMap::new()).is_some(), is_there);
        }
    }
}
