//! MIG preview: where MIG instances would go, before a job is submitted.

use divvy_api::v1::{Error, ErrorCode, MigPlanned, MigWanted};
use divvy_core::MigProfile;
use divvy_core::mig::MigProfileError;
use divvy_core::mig_preview::{PlannedInstance, PreviewError, preview};

use crate::controller::io::Io;
use crate::controller::query::estimate;
use crate::controller::state::State;
use crate::model::validate::limits::CheckLimits as _;
use crate::model::validate::usage;

/// The placements of instances of these profiles, all of them together.
///
/// # Errors
/// [`ErrorCode::WouldWait`] if they do not all fit now, [`ErrorCode::NeverFits`] if they never will.
pub fn preview_mig(state: &State, io: &Io, wanted: &MigWanted) -> Result<Vec<MigPlanned>, Error> {
    wanted.check_limits()?;
    if wanted.profiles.is_empty() {
        return Err(
            usage("no MIG profile given").hint("give a profile for each instance, such as 1g.5gb")
        );
    }
    let known = |index: &&u32| {
        state
            .gpus
            .devices
            .iter()
            .any(|device| device.gpu.index == **index)
    };
    if let Some(index) = wanted.gpus_on.iter().find(|index| !known(index)) {
        return Err(usage(format!("there is no GPU {index} here")));
    }
    let profiles = wanted.profiles.iter().map(|name| name.parse());
    let profiles: Vec<MigProfile> = profiles
        .collect::<Result<_, _>>()
        .map_err(|error: MigProfileError| usage(error.to_string()).hint(error.hint()))?;
    let input = estimate::input(state, io);
    match preview(input.snapshot(), &profiles, &wanted.gpus_on) {
        Ok(instances) => Ok(instances.into_iter().map(planned).collect()),
        Err(no_room) => Err(refusal(&no_room)),
    }
}

fn planned(planned_instance: PlannedInstance) -> MigPlanned {
    MigPlanned {
        profile: planned_instance.profile.to_string(),
        gpu_uuid: planned_instance.gpu.to_string(),
        gpu_index: planned_instance.index,
        start: planned_instance.placement.start,
        memory_slices: planned_instance.slices,
        memory_bytes: planned_instance.memory.get(),
        reuses: planned_instance.reuse,
        removes: planned_instance.reclaim,
    }
}

fn refusal(no_room: &PreviewError) -> Error {
    let (code, hint) = match no_room {
        PreviewError::NoGpu => (
            ErrorCode::NeverFits,
            "put a GPU into MIG mode: divvy admin gpu INDEX --mode mig",
        ),
        PreviewError::Unknown(_) | PreviewError::Never(..) => (
            ErrorCode::NeverFits,
            "`divvy gpus -o json` lists the profiles of each GPU",
        ),
        PreviewError::Now(..) => (
            ErrorCode::WouldWait,
            "`divvy admin mig ls` lists the present instances",
        ),
    };
    Error::new(code, no_room.to_string()).hint(hint)
}
