//! The front end itself.

use crate::{Error, Options, Stop};

/// Serves until told to stop.
pub(crate) async fn serve(_options: Options, stop: Stop) -> Result<(), Error> {
    stop.said().await;
    Ok(())
}
