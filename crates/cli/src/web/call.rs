//! The call to the daemon that a request of the page stands for: its method, path and body, and a few of its headers.

use std::time::Duration;

use divvy_api::v1::{Error, ErrorCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::Request;
use hyper::body::{Body, Bytes};
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderName, HeaderValue, IF_NONE_MATCH, UPGRADE};
use tokio::time::timeout;

/// Bytes of a body: the page sends changes of a job.
const MOST: usize = 1 << 20;

/// How long a body may take.
pub const WITHIN: Duration = Duration::from_secs(30);

/// Headers that the daemon gets. The token is not one of them.
const PASSED: [HeaderName; 3] = [ACCEPT, CONTENT_TYPE, IF_NONE_MATCH];

/// Reads the body and makes the call.
///
/// # Errors
/// [`ErrorCode::NotAllowed`] for another protocol than HTTP, [`ErrorCode::Usage`] for a body that is too long or breaks
/// off, [`ErrorCode::TimedOut`] for one that does not come in time.
pub async fn call<B>(request: Request<B>, within: Duration) -> Result<Request<Full<Bytes>>, Error>
where
    B: Body<Data = Bytes, Error: std::error::Error + Send + Sync + 'static>,
{
    let (parts, body) = request.into_parts();
    if parts.headers.contains_key(UPGRADE) {
        let why = "`divvy web` passes on no other protocol than HTTP";
        return Err(Error::new(ErrorCode::NotAllowed, why).hint("use `divvy exec` on this machine"));
    }
    let Ok(body) = timeout(within, Limited::new(body, MOST).collect()).await else {
        let why = format!(
            "the request's body did not arrive within {} s",
            within.as_secs()
        );
        return Err(Error::new(ErrorCode::TimedOut, why));
    };
    let body = body.map_err(|error| {
        let why = format!("cannot read the request's body of at most {MOST} bytes: {error}");
        Error::new(ErrorCode::Usage, why)
    })?;
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut call = Request::new(Full::new(body.to_bytes()));
    *call.method_mut() = parts.method;
    *call.uri_mut() = path
        .parse()
        .map_err(|error| Error::new(ErrorCode::Usage, format!("{path} is not a path: {error}")))?;
    let headers = call.headers_mut();
    headers.insert(HOST, HeaderValue::from_static("divvy"));
    for name in PASSED {
        if let Some(value) = parts.headers.get(&name) {
            headers.insert(name, value.clone());
        }
    }
    Ok(call)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use hyper::body::Frame;

    use super::*;

    /// A client that is silent.
    struct Silent;

    impl Body for Silent {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Pending
        }
    }

    #[tokio::test]
    async fn the_daemon_gets_the_call_without_the_token_and_other_headers_of_the_browser() {
        let request = Request::post("http://127.0.0.1:8080/v1/jobs/7/cancel?x=1")
            .header("host", "127.0.0.1:8080")
            .header("authorization", "Bearer secret")
            .header("cookie", "a=b")
            .header("origin", "http://127.0.0.1:8080")
            .header("transfer-encoding", "chunked")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from_static(b"{}")))
            .unwrap();
        let call = call(request, WITHIN).await.unwrap();
        assert_eq!(
            (call.method().as_str(), call.uri()),
            ("POST", &"/v1/jobs/7/cancel?x=1".parse().unwrap())
        );
        let mut names: Vec<&str> = call.headers().keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-type", "host"]);
        assert_eq!(call.headers()[HOST], "divvy");
        assert_eq!(call.into_body().collect().await.unwrap().to_bytes(), "{}");
    }

    #[tokio::test]
    async fn a_body_that_is_too_long_or_does_not_come_is_refused() {
        let whole = |length| Request::new(Full::new(Bytes::from(vec![b' '; length])));
        assert!(call(whole(MOST), WITHIN).await.is_ok());
        let long = call(whole(MOST + 1), WITHIN).await.unwrap_err();
        assert_eq!(long.code, ErrorCode::Usage);
        assert!(long.message.contains("1048576"), "{}", long.message);
        let late = call(Request::new(Silent), Duration::from_millis(10))
            .await
            .unwrap_err();
        assert_eq!(late.code, ErrorCode::TimedOut);
    }

    #[tokio::test]
    async fn another_protocol_is_refused() {
        let mut request = Request::new(Full::new(Bytes::new()));
        request
            .headers_mut()
            .insert(UPGRADE, HeaderValue::from_static("divvy-exec"));
        assert_eq!(
            call(request, WITHIN).await.unwrap_err().code,
            ErrorCode::NotAllowed
        );
    }
}
