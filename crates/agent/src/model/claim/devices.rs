//! The devices of a claim: the validation of what a client names, and their sizes on this node.

use std::num::NonZeroU32;

use divvy_api::v1::{ClaimDevice, ClaimInstance, Error, ErrorCode};
use divvy_core::mig::{MigProfile, MigProfileError};
use divvy_core::pinned::Device;
use divvy_core::units::IdError;
use divvy_core::{Amount, Bytes, Gpu, GpuUuid, Share};

use crate::model::validate::usage;

/// What one device is.
enum Kind {
    Memory(Bytes),
    Share(Share),
    Instance(MigProfile, Option<u8>),
    Whole,
}

fn kind(asked: &ClaimDevice) -> Result<Kind, Error> {
    let gpu = &asked.gpu;
    let profile = |text: &str| -> Result<MigProfile, Error> {
        text.parse()
            .map_err(|error: MigProfileError| usage(error.to_string()).hint(error.hint()))
    };
    match (asked.memory_bytes, asked.share, &asked.mig, asked.whole) {
        (Some(bytes), None, None, false) => Ok(Kind::Memory(Bytes::new(bytes))),
        (_, Some(share), None, false) => Share::from_thousandths(share)
            .filter(|share| *share < Share::FULL)
            .map(Kind::Share)
            .ok_or_else(|| {
                usage(format!("a share of {share} thousandths of {gpu}"))
                    .hint("use 1 to 999 thousandths, or `whole` for the whole GPU")
            }),
        (None, None, Some(mig), false) => Ok(Kind::Instance(profile(&mig.profile)?, mig.start)),
        (None, None, None, true) => Ok(Kind::Whole),
        _ => Err(usage(format!(
            "the device of {gpu} needs exactly one of memory_bytes, share, mig and whole"
        ))
        .hint("use several devices to claim several parts")),
    }
}

/// Checks one device, and replaces the index of its GPU by the UUID.
///
/// # Errors
/// [`ErrorCode::Usage`], and [`ErrorCode::NotFound`] for an index without a GPU.
pub fn check(
    asked: &mut ClaimDevice,
    uuid_of: impl Fn(u32) -> Option<GpuUuid>,
) -> Result<(), Error> {
    if let Ok(index) = asked.gpu.parse::<u32>() {
        let uuid = uuid_of(index).ok_or_else(|| {
            Error::new(ErrorCode::NotFound, format!("there is no GPU {index}"))
                .hint("list the GPUs: divvy gpus -o wide")
        })?;
        asked.gpu = uuid.to_string();
    }
    uuid(asked)?;
    if asked.share.is_some() && asked.memory_bytes.is_some() {
        let why = "a device has a share or an amount of memory, not both";
        return Err(usage(why).hint("leave `memory_bytes` out: it follows from the share"));
    }
    kind(asked).map(drop)
}

fn uuid(asked: &ClaimDevice) -> Result<GpuUuid, Error> {
    let wrong = |error: IdError| usage(error.to_string()).hint(error.hint());
    asked.gpu.parse().map_err(wrong)
}

/// The nearest amount, for users: of several devices, the first counts.
///
/// # Errors
/// [`ErrorCode::Usage`] for devices that [`check`] refuses.
pub fn amount(devices: &[ClaimDevice]) -> Result<Amount, Error> {
    let count = u32::try_from(devices.len()).ok().and_then(NonZeroU32::new);
    let count = count.unwrap_or(NonZeroU32::MIN);
    Ok(match devices.first().map(kind).transpose()? {
        Some(Kind::Memory(memory)) if memory > Bytes::ZERO => Amount::Memory(memory),
        Some(Kind::Share(share)) => Amount::Shares { count, share }.plain(),
        Some(Kind::Instance(profile, _)) => Amount::Mig(profile),
        _ => Amount::Whole(count),
    })
}

/// Whether the devices that a repeated request names are those that are held.
pub fn are_met_by(asked: &[ClaimDevice], held: &[ClaimDevice]) -> bool {
    asked.len() == held.len()
        && asked
            .iter()
            .zip(held)
            .all(|(asked, held)| is_met(asked, held))
}

fn is_met(asked: &ClaimDevice, held: &ClaimDevice) -> bool {
    let is_same_instance = match (&asked.mig, &held.mig) {
        (Some(asked), Some(held)) => {
            asked.profile == held.profile && (asked.start.is_none() || asked.start == held.start)
        }
        (None, None) => true,
        _ => false,
    };
    let is_same_size = match asked.share {
        Some(_) => asked.share == held.share,
        None => held.share.is_none() && asked.memory_bytes == held.memory_bytes,
    };
    asked.gpu == held.gpu && asked.whole == held.whole && is_same_size && is_same_instance
}

/// The places that an instance of a device can start at, in the order in which Divvy prefers them; `None` for a device
/// that is no instance, or that names its start.
pub fn open_starts(asked: &ClaimDevice, gpus: &[Gpu]) -> Option<Vec<u8>> {
    let ClaimInstance {
        profile,
        start: None,
    } = asked.mig.as_ref()?
    else {
        return None;
    };
    let mut gpus = gpus.iter();
    let gpu = gpus.find(|gpu| gpu.uuid.as_str() == asked.gpu);
    let table = gpu.and_then(|gpu| gpu.mig.as_ref()).map(|mig| &mig.table);
    let Some(table) = table else {
        // Without a table, the allocation words the refusal.
        return Some(vec![0]);
    };
    let placements = divvy_core::mig::all_placements(table).into_iter();
    let starts = placements.filter_map(|placement| {
        let found = table.profile(placement.profile)?;
        (found.name.to_string() == *profile).then_some(placement.start)
    });
    let starts: Vec<u8> = starts.collect();
    Some(match starts.is_empty() {
        true => vec![0],
        false => starts,
    })
}

/// Gives a device its size on this node: the memory of a share.
pub fn resolve_share(asked: &mut ClaimDevice, gpus: &[Gpu]) {
    let share = asked.share.and_then(Share::from_thousandths);
    let mut gpus = gpus.iter();
    let gpu = gpus.find(|gpu| gpu.uuid.as_str() == asked.gpu);
    if let (Some(share), Some(gpu)) = (share, gpu) {
        asked.memory_bytes = Some(gpu.memory_of(share).get());
    }
}

/// A resolved device in the planner's terms.
///
/// # Errors
/// [`ErrorCode::Usage`] for a device that [`check`] refuses.
pub fn to_planner(device: &ClaimDevice) -> Result<Device, Error> {
    let gpu = uuid(device)?;
    Ok(match kind(device)? {
        Kind::Memory(memory) => Device::Part { gpu, memory },
        // A GPU that the daemon does not know has no memory; the allocation refuses it by its UUID.
        Kind::Share(_) => Device::Part {
            gpu,
            memory: Bytes::new(device.memory_bytes.unwrap_or_default()),
        },
        Kind::Instance(profile, start) => Device::Instance {
            gpu,
            profile,
            start: start.unwrap_or_default(),
        },
        Kind::Whole => Device::Whole { gpu },
    })
}
