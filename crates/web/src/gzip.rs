//! Compression of answers for browsers: JSON of more than 4 KB, never a stream.
//!
//! A board of 8 GPUs is 6 KB of JSON and 1 KB compressed; a list of 10,000 jobs is 10 MB and a twentieth of that. Logs
//! and server-sent events pass as they come.

use std::io::Write as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::Response;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue,
    VARY,
};

/// Shorter answers fit into a few packets as they are.
const LEAST: u64 = 4 << 10;

/// So many bytes are compressed at once: other connections wait for less than a millisecond.
const PIECE: usize = 64 << 10;

const KINDS: [&str; 2] = ["application/json", "application/x-ndjson"];

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Whether the client takes gzip (RFC 9110, section 12.5.3).
pub fn accepts_gzip(request: &HeaderMap) -> bool {
    let given = request.get_all(ACCEPT_ENCODING).iter();
    let given = given
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    let (mut of_gzip, mut of_any) = (None, None);
    for coding in given {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let weight: String = weight.split_whitespace().collect();
        let is_taken = !matches!(&*weight, "q=0" | "q=0." | "q=0.0" | "q=0.00" | "q=0.000");
        match name.trim().to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => of_gzip = Some(is_taken),
            "*" => of_any = Some(is_taken),
            _ => {}
        }
    }
    of_gzip.or(of_any).unwrap_or(false)
}

/// The answer, compressed if that helps and `accepts` the client it.
pub fn compress<B: Body<Data = Bytes>>(
    accepts: bool,
    response: Response<B>,
) -> Response<Answer<B>> {
    let kind = response.headers().get(CONTENT_TYPE);
    let kind = kind.map_or(&b""[..], HeaderValue::as_bytes);
    let may = KINDS.iter().any(|one| one.as_bytes() == kind)
        && !response.headers().contains_key(CONTENT_ENCODING);
    let (mut parts, body) = response.into_parts();
    if may {
        // A cache between keeps both forms apart.
        parts
            .headers
            .insert(VARY, HeaderValue::from_name(ACCEPT_ENCODING));
    }
    // A list of unknown length is one that was too long for its first piece.
    let is_long = body.size_hint().exact().is_none_or(|length| length > LEAST);
    if !may || !accepts || !is_long {
        return Response::from_parts(parts, Answer::Plain(body));
    }
    let headers = &mut parts.headers;
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.remove(CONTENT_LENGTH);
    // A strong tag names the bytes, which are others now (RFC 9110, section 8.8.3.3).
    if let Some(tag) = headers.get(ETAG).and_then(|tag| tag.to_str().ok())
        && !tag.starts_with("W/")
        && let Ok(weak) = HeaderValue::from_str(&format!("W/{tag}"))
    {
        headers.insert(ETAG, weak);
    }
    let gzip = Gzip {
        body,
        rest: Bytes::new(),
        encoder: Some(GzEncoder::new(Vec::new(), Compression::fast())),
    };
    Response::from_parts(parts, Answer::Gzip(Box::new(gzip)))
}

/// The body of an answer.
#[derive(Debug)]
pub enum Answer<B> {
    Plain(B),
    Gzip(Box<Gzip<B>>),
}

/// A body that compresses another.
#[derive(Debug)]
pub struct Gzip<B> {
    body: B,
    /// What came of it and is not compressed yet.
    rest: Bytes,
    /// `None` at the end.
    encoder: Option<GzEncoder<Vec<u8>>>,
}

impl<B> Body for Answer<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Plain(body) => {
                let frame = ready!(Pin::new(body).poll_frame(context));
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Self::Gzip(gzip) => gzip.poll(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Plain(body) => body.is_end_stream(),
            Self::Gzip(gzip) => gzip.encoder.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Plain(body) => body.size_hint(),
            Self::Gzip(_) => SizeHint::default(),
        }
    }
}

impl<B> Gzip<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            let Some(encoder) = &mut self.encoder else {
                return Poll::Ready(None);
            };
            if !self.rest.is_empty() {
                let piece = self.rest.split_to(self.rest.len().min(PIECE));
                if let Err(error) = encoder.write_all(&piece) {
                    return Poll::Ready(Some(Err(error.into())));
                }
                let short = std::mem::take(encoder.get_mut());
                if !short.is_empty() {
                    return Poll::Ready(Some(Ok(Frame::data(short.into()))));
                }
                // It is still in the encoder. Others have their turn before the next piece.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                // What follows a body is no part of it, and the API sends nothing there.
                Some(Ok(frame)) => self.rest = frame.into_data().unwrap_or_default(),
                Some(Err(error)) => {
                    self.encoder = None;
                    return Poll::Ready(Some(Err(error.into())));
                }
                None => {
                    let encoder = self.encoder.take();
                    let end = encoder.map(GzEncoder::finish).transpose();
                    let frame = end.map(|end| Frame::data(Bytes::from(end.unwrap_or_default())));
                    return Poll::Ready(Some(frame.map_err(Into::into)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::io::Read as _;

    use flate2::read::GzDecoder;
    use http_body_util::{BodyExt as _, Full, StreamBody};
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

    fn read<B>(answer: Response<Answer<B>>) -> Vec<u8>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
    {
        let bytes = run(answer.into_body().collect()).unwrap().to_bytes();
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
            (&["*;q=0"], false),
            (&["gzip;q=0"], false),
            (&["gzip; q=0.000, *"], false),
            (&["*;q=0, gzip"], true),
            (&["br"], false),
            (&["gzipped"], false),
            (&[""], false),
            (&[], false),
        ] {
            let mut headers = HeaderMap::new();
            for value in given {
                headers.append(ACCEPT_ENCODING, HeaderValue::from_static(value));
            }
            assert_eq!(accepts_gzip(&headers), takes, "{given:?}");
        }
    }

    #[test]
    fn only_long_json_is_compressed() {
        let long = Bytes::from(vec![b' '; 5000]);
        for (kind, body, accepts, is_short) in [
            ("application/json", long.clone(), true, true),
            ("application/x-ndjson", long.clone(), true, true),
            ("application/json", long.clone(), false, false),
            ("application/json", long.slice(..4096), true, false),
            ("text/event-stream", long.clone(), true, false),
            ("application/octet-stream", long.clone(), true, false),
        ] {
            let answer = compress(accepts, of(kind, body.clone()));
            let is_gzip = answer.headers().contains_key(CONTENT_ENCODING);
            assert_eq!(is_gzip, is_short, "{kind} {accepts} {}", body.len());
            assert_eq!(answer.headers().contains_key(VARY), kind.contains("json"));
            match is_short {
                true => assert_eq!(read(answer), body),
                false => assert_eq!(run(answer.into_body().collect()).unwrap().to_bytes(), body),
            }
        }
    }

    #[test]
    fn a_compressed_answer_has_a_weak_tag_and_no_length() {
        let mut response = of("application/json", vec![b'1'; 9000].into());
        let headers = response.headers_mut();
        headers.insert(ETAG, HeaderValue::from_static("\"a\""));
        headers.insert(CONTENT_LENGTH, HeaderValue::from(9000));
        let answer = compress(true, response);
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
            let answer = compress(true, response);
            prop_assert_eq!(&answer.headers()[CONTENT_ENCODING], "gzip");
            prop_assert_eq!(read(answer), pieces.concat());
        }
    }
}
