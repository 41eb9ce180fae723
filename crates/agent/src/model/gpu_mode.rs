//! The mode of a GPU: from the administrator's request and the driver's MIG mode.

use divvy_core::Mode;
use divvy_driver::nvml::mig::MigMode;

/// The mode that an administrator gave a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedMode {
    pub mode: Mode,
    /// A worker applies the mode; the driver may not have it yet.
    pub is_pending: bool,
}

impl RequestedMode {
    /// The same mode once the driver has it, or needs no change for it.
    pub fn confirmed(self) -> Self {
        Self {
            is_pending: false,
            ..self
        }
    }
}

/// The mode in which a GPU is allocated. The driver's mode takes precedence over the request: a GPU in MIG mode has no
/// shared memory, and one that is not has no instances. A GPU that is to be in MIG mode and is not, or that waits for
/// the reset that leaves MIG mode, is not allocated.
pub fn effective_mode(wanted: Option<Mode>, mig: Option<MigMode>) -> Mode {
    let on = mig.is_some_and(|mig| mig.current);
    let stays = mig.is_some_and(|mig| mig.pending);
    match (wanted, on) {
        (Some(Mode::Unmanaged), _) | (Some(Mode::Mig), false) => Mode::Unmanaged,
        (Some(Mode::Shared | Mode::Exclusive), true) if !stays => Mode::Unmanaged,
        (_, true) => Mode::Mig,
        (wanted, false) => wanted.unwrap_or(Mode::Shared),
    }
}

/// What a daemon that has just started has to tell the driver for a GPU to be as it is wanted: a command that an
/// earlier one did not bring to its end, or MIG, which Hopper and newer lose with a reboot.
pub fn pending_switch(wanted: Option<RequestedMode>, mig: Option<MigMode>) -> Option<bool> {
    let (wanted, mig) = (wanted?, mig?);
    match (wanted.mode, mig.current) {
        // Where it waits for a reset, telling it again changes nothing.
        (Mode::Mig, false) => (!mig.pending).then_some(true),
        (Mode::Shared | Mode::Exclusive, _) => (wanted.is_pending && mig.pending).then_some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mig(current: bool, pending: bool) -> Option<MigMode> {
        Some(MigMode { current, pending })
    }

    #[test]
    fn without_a_wish_the_driver_says_what_a_gpu_is() {
        assert_eq!(effective_mode(None, None), Mode::Shared);
        assert_eq!(effective_mode(None, mig(false, false)), Mode::Shared);
        assert_eq!(effective_mode(None, mig(true, true)), Mode::Mig);
    }

    #[test]
    fn a_wish_that_the_driver_does_not_follow_gives_nothing_out_wrongly() {
        assert_eq!(
            effective_mode(Some(Mode::Mig), mig(false, true)),
            Mode::Unmanaged
        );
        assert_eq!(effective_mode(Some(Mode::Mig), None), Mode::Unmanaged);
        assert_eq!(
            effective_mode(Some(Mode::Shared), mig(true, true)),
            Mode::Mig
        );
        assert_eq!(
            effective_mode(Some(Mode::Exclusive), mig(true, false)),
            Mode::Unmanaged
        );
        assert_eq!(effective_mode(Some(Mode::Exclusive), None), Mode::Exclusive);
        assert_eq!(
            effective_mode(Some(Mode::Unmanaged), mig(true, true)),
            Mode::Unmanaged
        );
    }

    #[test]
    fn only_what_was_begun_is_brought_to_its_end() {
        let wanted = |mode, pending| {
            Some(RequestedMode {
                mode,
                is_pending: pending,
            })
        };
        for pending in [true, false] {
            assert_eq!(
                pending_switch(wanted(Mode::Mig, pending), mig(false, false)),
                Some(true)
            );
        }
        assert_eq!(
            pending_switch(wanted(Mode::Mig, true), mig(false, true)),
            None
        );
        assert_eq!(
            pending_switch(wanted(Mode::Mig, true), mig(true, true)),
            None
        );
        // An administrator turned it on by hand since.
        assert_eq!(
            pending_switch(wanted(Mode::Shared, false), mig(true, true)),
            None
        );
        assert_eq!(
            pending_switch(wanted(Mode::Shared, true), mig(true, true)),
            Some(false)
        );
        assert_eq!(
            pending_switch(wanted(Mode::Shared, true), mig(false, true)),
            Some(false)
        );
        assert_eq!(pending_switch(None, mig(true, true)), None);
    }
}
