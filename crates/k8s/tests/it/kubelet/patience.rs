//! Waiting for what is to come, and no longer than that.

use std::time::{Duration, Instant};

use tokio::time::sleep;

/// Longer than anything takes on a machine that is busy with something else.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// Waits until a look finds something.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < end, "it never came that {what}");
        sleep(LOOK).await;
    }
}
