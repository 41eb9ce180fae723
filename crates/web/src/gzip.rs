//! Compression of answers for browsers: text of more than 4 KB, never a stream.
//!
//! A board of 8 GPUs is 6 KB of JSON and 1 KB compressed; a list of 10,000 jobs is 10 MB and a twentieth of that. Logs
//! and server-sent events pass as they come.

use std::convert::Infallible;
use std::future::pending;

use hyper::body::Body;
use hyper::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, VARY,
};
use hyper::{Request, Response};
use tower::{ServiceExt as _, service_fn};
pub use tower_http::compression::CompressionBody;
use tower_http::compression::predicate::{Predicate, SizeAbove};
use tower_http::compression::{Compression, CompressionLevel};

/// Bytes of the shortest answer that is compressed: 4 KiB fit into a few packets as they are.
const LEAST: u64 = (4 << 10) + 1;

const KINDS: [&[u8]; 5] = [
    b"application/json",
    b"application/x-ndjson",
    b"text/css",
    b"text/html",
    b"text/javascript",
];

/// The codings that a client takes; none for HEAD, whose answer has the length of a body that does not follow.
#[derive(Clone, Debug)]
pub struct Accepted(HeaderMap);

impl Accepted {
    pub fn of<B>(request: &Request<B>) -> Self {
        let mut taken = HeaderMap::new();
        if request.method() != hyper::Method::HEAD {
            for value in request.headers().get_all(ACCEPT_ENCODING) {
                taken.append(ACCEPT_ENCODING, value.clone());
            }
        }
        Self(taken)
    }
}

/// The answer, compressed if that helps and the client takes it.
pub async fn compress<B: Body>(
    accepted: Accepted,
    mut response: Response<B>,
) -> Response<CompressionBody<B>> {
    let status = response.status();
    let is_text = KINDS.contains(&kind(response.headers()));
    if is_text {
        // A cache between keeps both forms apart.
        let vary = HeaderValue::from_name(ACCEPT_ENCODING);
        response.headers_mut().insert(VARY, vary);
    }
    // A browser asks for a file of the page once, and for the board each second.
    let level = if kind(response.headers()).starts_with(b"text/") {
        CompressionLevel::Default
    } else {
        CompressionLevel::Fastest
    };
    let mut given = Some(response);
    let once = service_fn(move |_: Request<()>| {
        let given = given.take();
        async move {
            match given {
                Some(response) => Ok::<_, Infallible>(response),
                None => pending().await,
            }
        }
    });
    let compression = Compression::new(once)
        .quality(level)
        .compress_when(SizeAbove::new(LEAST).and(move |_: _, _: _, _: &_, _: &_| is_text));
    let mut question = Request::new(());
    *question.headers_mut() = accepted.0;
    let Ok(mut answer) = compression.oneshot(question).await;
    // A client that takes nothing gets the answer as it is: what it asked for may be done already.
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    // A strong tag names the bytes, which are others now (RFC 9110, section 8.8.3.3).
    if headers.contains_key(CONTENT_ENCODING)
        && let Some(tag) = headers.get(ETAG).and_then(|tag| tag.to_str().ok())
        && !tag.starts_with("W/")
        && let Ok(weak) = HeaderValue::from_str(&format!("W/{tag}"))
    {
        headers.insert(ETAG, weak);
    }
    answer
}

/// The content type without its parameters.
fn kind(headers: &HeaderMap) -> &[u8] {
    let kind = headers
        .get(CONTENT_TYPE)
        .map_or(&b""[..], HeaderValue::as_bytes);
    kind.split(|byte| *byte == b';').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;
    use http_body_util::{BodyExt as _, Full, StreamBody};
    use hyper::body::{Bytes, Frame};
    use hyper::header::CONTENT_LENGTH;
    use proptest::prelude::*;

    use super::*;

    fn of(kind: &'static str, body: Bytes) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(body));
        let kind = HeaderValue::from_static(kind);
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(future)
    }

    fn ask<B: Body>(given: &[&'static str], answer: Response<B>) -> Response<CompressionBody<B>> {
        let mut accepted = HeaderMap::new();
        for value in given {
            accepted.append(ACCEPT_ENCODING, HeaderValue::from_static(value));
        }
        run(compress(Accepted(accepted), answer))
    }

    fn whole<B>(answer: Response<CompressionBody<B>>) -> Bytes
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
    {
        run(answer.into_body().collect()).unwrap().to_bytes()
    }

    fn read<B>(answer: Response<CompressionBody<B>>) -> Vec<u8>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
    {
        let bytes = whole(answer);
        let mut text = Vec::new();
        GzDecoder::new(&bytes[..]).read_to_end(&mut text).unwrap();
        text
    }

    #[test]
    fn a_client_takes_gzip_only_if_it_says_so() {
        for (given, takes) in [
            (&["gzip"][..], true),
            (&["deflate, GZIP;q=0.5"], true),
            (&["br", "x-gzip"], true),
            (&["*"], true),
            (&["gzip;q=0"], false),
            (&["gzip; q=0.000, *"], false),
            (&["*;q=0, gzip"], true),
            (&["br"], false),
            (&["gzipped"], false),
            // Such a client accepts no form at all; it gets the plain one, and the status of what it asked for.
            (&["*;q=0"], false),
            (&[""], false),
            (&[], false),
        ] {
            let answer = ask(given, of("application/json", vec![b' '; 5000].into()));
            assert_eq!(
                answer.headers().contains_key(CONTENT_ENCODING),
                takes,
                "{given:?}"
            );
            assert_eq!(answer.status(), 200, "{given:?}");
        }
    }

    #[test]
    fn an_answer_to_head_is_not_compressed() {
        let mut request = Request::head("/").body(()).unwrap();
        let gzip = HeaderValue::from_static("gzip");
        request.headers_mut().insert(ACCEPT_ENCODING, gzip);
        assert!(Accepted::of(&request).0.is_empty());
    }

    #[test]
    fn only_long_text_is_compressed() {
        let long = Bytes::from(vec![b' '; 5000]);
        for (kind, body, accepts, is_short) in [
            ("application/json", long.clone(), true, true),
            ("application/x-ndjson", long.clone(), true, true),
            ("application/json", long.clone(), false, false),
            ("application/json", long.slice(..4096), true, false),
            ("text/javascript; charset=utf-8", long.clone(), true, true),
            ("text/event-stream", long.clone(), true, false),
            ("application/octet-stream", long.clone(), true, false),
        ] {
            let given: &[&str] = if accepts { &["gzip"] } else { &[] };
            let answer = ask(given, of(kind, body.clone()));
            let is_gzip = answer.headers().contains_key(CONTENT_ENCODING);
            assert_eq!(is_gzip, is_short, "{kind} {accepts} {}", body.len());
            let is_text = kind.contains("json") || kind.starts_with("text/javascript");
            assert_eq!(answer.headers().contains_key(VARY), is_text);
            if is_short {
                assert_eq!(read(answer), body)
            } else {
                assert_eq!(whole(answer), body)
            }
        }
    }

    #[test]
    fn a_compressed_answer_has_a_weak_tag_and_no_length() {
        let mut response = of("application/json", vec![b'1'; 9000].into());
        let headers = response.headers_mut();
        headers.insert(ETAG, HeaderValue::from_static("\"a\""));
        headers.insert(CONTENT_LENGTH, HeaderValue::from(9000));
        let answer = ask(&["gzip"], response);
        assert_eq!(answer.headers()[ETAG], "W/\"a\"");
        assert!(!answer.headers().contains_key(CONTENT_LENGTH));
        assert!(!answer.body().is_end_stream());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn any_body_in_any_pieces_is_the_same_afterwards(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..8),
            repeats in 1_usize..600,
        ) {
            let pieces: Vec<Bytes> = pieces.iter().map(|piece| piece.repeat(repeats).into()).collect();
            let frames = pieces.clone().into_iter().map(|piece| Ok::<_, Infallible>(Frame::data(piece)));
            let body = StreamBody::new(futures_util::stream::iter(frames));
            let mut response = Response::new(body);
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            let answer = ask(&["gzip"], response);
            prop_assert_eq!(&answer.headers()[CONTENT_ENCODING], "gzip");
            prop_assert_eq!(read(answer), pieces.concat());
        }
    }
}
