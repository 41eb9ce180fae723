//! Bodies, paths and queries, with failures in the API's own form whoever found them.

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, OptionalFromRequest, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use divvy_api::v1::{Error, ErrorBody, ErrorCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A JSON body, in and out.
pub struct Body<T>(pub T);

/// A path parameter.
pub struct Path<T>(pub T);

/// Query parameters.
pub struct Query<T>(pub T);

/// A failed call.
#[derive(Debug)]
pub struct Failure(Error);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.code.http_status())
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(ErrorBody { error: self.0 })).into_response()
    }
}

impl<T: Serialize> IntoResponse for Body<T> {
    fn into_response(self) -> Response {
        Json(self.0).into_response()
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let Json(body) = <Json<T> as FromRequest<S>>::from_request(request, state)
            .await
            .map_err(|error: JsonRejection| refused(&error))?;
        Ok(Self(body))
    }
}

/// None where nothing is sent.
impl<T: DeserializeOwned, S: Send + Sync> OptionalFromRequest<S> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Option<Self>, Failure> {
        let body = <Json<T> as OptionalFromRequest<S>>::from_request(request, state).await;
        let body = body.map_err(|error: JsonRejection| refused(&error))?;
        Ok(body.map(|Json(body)| Self(body)))
    }
}

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let path = axum::extract::Path::from_request_parts(parts, state).await;
        path.map(|axum::extract::Path(path)| Self(path))
            .map_err(|error: PathRejection| refused(&error))
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let query = axum::extract::Query::from_request_parts(parts, state).await;
        query
            .map(|axum::extract::Query(query)| Self(query))
            .map_err(|error: QueryRejection| refused(&error))
    }
}

/// What axum refuses is a mistake in the request.
fn refused(error: &dyn std::error::Error) -> Failure {
    Error::new(ErrorCode::Usage, crate::supervise::chain(error)).into()
}
