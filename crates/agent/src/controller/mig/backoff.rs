//! Backoff: after the driver refused a MIG operation, the daemon waits before the next attempt at that place.

use std::time::Duration;

use divvy_core::GpuUuid;
use divvy_core::mig::Placement;

use crate::controller::effects::Effects;
use crate::controller::state::mig::MigManager;
use crate::host::clock::Instant;

/// The first delay. The obstacle is most often a program that polls the GPUs now and then. So a shorter delay would
/// meet the same poll, and a minute would leave the GPU undivided.
const BASE_BACKOFF: Duration = Duration::from_secs(10);

/// How often the delay doubles while refusals repeat: up to 320 s.
const MAX_DOUBLINGS: u32 = 5;

/// Starts a backoff for one placement, or for the whole GPU. With `grows`, the next one is longer.
pub(super) fn back_off(mig: &mut MigManager, gpu: &GpuUuid, place: Option<Placement>, grows: bool) {
    let of_gpu = mig.gpu(gpu);
    let until = Instant::now() + backoff_delay(of_gpu.busy_refusals);
    of_gpu.busy_refusals += u32::from(grows);
    of_gpu.backoff_until.insert(place, until);
}

/// Ends the backoffs that have expired.
pub(in crate::controller) fn expire_backoffs(mig: &mut MigManager, fx: &mut Effects) {
    for of_gpu in mig.gpus.values_mut() {
        let before = of_gpu.backoff_until.len();
        of_gpu
            .backoff_until
            .retain(|_, until| Instant::now() < *until);
        fx.replan |= of_gpu.backoff_until.len() < before;
    }
}

/// The delay after so many refusals. It grows, so that a process which has a GPU open for days does not fill the
/// journal.
fn backoff_delay(refused: u32) -> Duration {
    BASE_BACKOFF * (1 << refused.min(MAX_DOUBLINGS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_stays_in_the_way_is_asked_less_and_less_often() {
        let seconds: Vec<u64> = (0..8)
            .map(|refused| backoff_delay(refused).as_secs())
            .collect();
        assert_eq!(seconds, [10, 20, 40, 80, 160, 320, 320, 320]);
    }
}
