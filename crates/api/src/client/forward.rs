//! Calls that another program has made, passed on as they are.

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};

use super::Client;
use super::liveness::Patience;
use crate::v1::Error;

impl Client {
    /// Sends a request over a connection of its own, and returns the answer, whatever its status, as it begins. The
    /// body comes as the daemon writes it; dropping it ends the connection.
    ///
    /// # Errors
    /// As [`Client::node`] when there is no answer.
    pub async fn forward(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, Error> {
        let connect = self.liveness.attend(Patience::Bounded, self.connect());
        let mut sender = connect.await??;
        let sent = sender.send_request(request);
        // An answer may take its time as long as the daemon answers probes.
        let response = self.liveness.attend(Patience::Bounded, sent).await?;
        response.map_err(|error| self.lost(&error))
    }
}
