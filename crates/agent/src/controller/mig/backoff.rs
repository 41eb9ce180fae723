//! Where nothing is made or handed on for a time, as the driver refused to.

use std::time::Duration;

use divvy_core::GpuUuid;
use divvy_core::mig::Placement;

use crate::controller::effects::Effects;
use crate::controller::mig::MigManager;
use crate::host::clock::Instant;

/// How long nothing is made where the driver refused to: whoever is in the way is most often a program that looks at GPUs now and
/// then, and one that stays is asked again about as often as people look.
const BASE_BACKOFF: Duration = Duration::from_secs(10);

/// And it doubles so many times while nothing but refusals comes: to five minutes.
const MAX_DOUBLINGS: u32 = 5;

/// Nothing is made or handed on in a place for a time, or anywhere on the GPU: longer each time, where the same `grows`.
pub(super) fn back_off(mig: &mut MigManager, gpu: &GpuUuid, place: Option<Placement>, grows: bool) {
    let of_gpu = mig.gpu(gpu);
    let until = Instant::now() + backoff_delay(of_gpu.busy_refusals);
    of_gpu.busy_refusals += u32::from(grows);
    of_gpu.backoff_until.insert(place, until);
}

/// Gives back what was barred for a time, and forgets what has long been told.
pub(in crate::controller) fn expire_backoffs(mig: &mut MigManager, fx: &mut Effects) {
    for of_gpu in mig.gpus.values_mut() {
        let before = of_gpu.backoff_until.len();
        of_gpu
            .backoff_until
            .retain(|_, until| Instant::now() < *until);
        fx.replan |= of_gpu.backoff_until.len() < before;
    }
}

/// For how long nothing is tried again after so many refusals: who has a GPU open for days must not fill the journal.
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
