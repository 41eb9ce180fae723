//! Request bodies, paths and queries; every failure is in the API's own form.

use axum::Json;
use axum::body::{Body as HttpBody, Bytes};
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, OptionalFromRequest, Request};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use divvy_api::v1::{self, Error, ErrorBody, ErrorCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::internal;
use super::upload::{LARGE, SMALL, Upload};
use crate::model::validate::limits::CheckLimits;

/// A JSON body, in and out; what comes in is within its bounds.
pub struct Body<T>(pub T);

/// A path parameter.
pub struct Path<T>(pub T);

/// Query parameters.
pub struct Query<T>(pub T);

/// A failed call.
#[derive(Debug)]
pub struct ApiError(Error);

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.code.http_status())
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(ErrorBody { error: self.0 })).into_response();
        if status == StatusCode::TOO_MANY_REQUESTS {
            let second = HeaderValue::from_static("1");
            response.headers_mut().insert(RETRY_AFTER, second);
        }
        response
    }
}

impl<T: Serialize> IntoResponse for Body<T> {
    fn into_response(self) -> Response {
        Json(self.0).into_response()
    }
}

/// What a call brings.
pub trait Brought: DeserializeOwned + CheckLimits {
    /// Bytes of it, as JSON.
    const MOST: usize;
}

macro_rules! brought {
    ($($most:ident: $($kind:ident)+;)+) => {
        $($(impl Brought for v1::$kind {
            const MOST: usize = $most;
        })+)+
    };
}

brought! {
    LARGE: Submit Confirm Exec JobsChange;
    SMALL: CancelJob Claim Drain GpuChange JobChange MigGc MigWanted ProjectChange Resize SignalJob Suspend Undrain;
}

/// A request's whole body, in its user's budget from now on.
async fn bytes<T: Brought>(request: Request) -> Result<(Parts, Bytes), ApiError> {
    let (parts, body) = request.into_parts();
    let Some(upload) = parts.extensions.get::<Upload>() else {
        return Err(internal(&std::io::Error::other(
            "the request was not authenticated",
        )));
    };
    let bytes = upload.read(body, T::MOST).await?;
    Ok((parts, bytes))
}

impl<T: Brought, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let (parts, bytes) = bytes::<T>(request).await?;
        let request = Request::from_parts(parts, HttpBody::from(bytes));
        let Json(body) = <Json<T> as FromRequest<S>>::from_request(request, state)
            .await
            .map_err(|error: JsonRejection| refused(&error))?;
        body.check_limits()?;
        Ok(Self(body))
    }
}

/// None where nothing is sent, or something that is no JSON by its type: forms, as which `curl -d` sends even nothing.
impl<T: Brought, S: Send + Sync> OptionalFromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _state: &S) -> Result<Option<Self>, ApiError> {
        let named = request.headers().get(CONTENT_TYPE);
        let is_json = named.is_some_and(|named| is_json(named.as_bytes()));
        let (_, sent) = bytes::<T>(request).await?;
        if sent.is_empty() || !is_json {
            return Ok(None);
        }
        let body = Json::<T>::from_bytes(&sent);
        let Json(body) = body.map_err(|error: JsonRejection| refused(&error))?;
        body.check_limits()?;
        Ok(Some(Self(body)))
    }
}

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = axum::extract::Path::from_request_parts(parts, state).await;
        path.map(|axum::extract::Path(path)| Self(path))
            .map_err(|error: PathRejection| refused(&error))
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let query = axum::extract::Query::from_request_parts(parts, state).await;
        query
            .map(|axum::extract::Query(query)| Self(query))
            .map_err(|error: QueryRejection| refused(&error))
    }
}

/// Whether this is a media type of JSON (RFC 8259, RFC 6839), with any parameters.
fn is_json(content_type: &[u8]) -> bool {
    let essence = content_type.split(|byte| *byte == b';').next();
    let essence = essence
        .unwrap_or_default()
        .trim_ascii()
        .to_ascii_lowercase();
    essence == b"application/json" || essence.ends_with(b"+json")
}

/// What axum refuses is a mistake in the request.
fn refused(error: &dyn std::error::Error) -> ApiError {
    Error::new(ErrorCode::Usage, crate::host::error::error_chain(error)).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::upload::Uploads;

    impl Brought for bool {
        const MOST: usize = SMALL;
    }

    impl CheckLimits for bool {
        fn check_limits(&self) -> Result<(), Error> {
            Ok(())
        }
    }

    async fn sent(content_type: Option<&str>, body: &'static str) -> Result<Option<bool>, u16> {
        let mut request = Request::builder().extension(Uploads::new(0).of(0));
        if let Some(named) = content_type {
            request = request.header(CONTENT_TYPE, named);
        }
        let request = request.body(axum::body::Body::from(body)).unwrap();
        let extracted = <Body<bool> as OptionalFromRequest<()>>::from_request(request, &()).await;
        match extracted {
            Ok(body) => Ok(body.map(|Body(body)| body)),
            Err(ApiError(error)) => Err(error.code.http_status()),
        }
    }

    #[tokio::test]
    async fn whoever_sends_nothing_or_a_form_has_sent_nothing() {
        let json = Some("application/json; charset=utf-8");
        assert_eq!(sent(json, "true").await, Ok(Some(true)));
        assert_eq!(
            sent(Some("application/problem+json"), "true").await,
            Ok(Some(true))
        );
        assert_eq!(sent(json, "").await, Ok(None));
        assert_eq!(sent(None, "").await, Ok(None));
        let form = Some("application/x-www-form-urlencoded");
        assert_eq!(sent(form, "").await, Ok(None));
        assert_eq!(sent(form, "a=b").await, Ok(None));
        assert_eq!(sent(json, "sorry").await, Err(400));
    }
}
