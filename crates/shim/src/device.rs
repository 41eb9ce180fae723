//! The device lookup: which GPU of the slice a driver call refers to. GPUs are known by UUID alone: ordinals differ
//! with `CUDA_VISIBLE_DEVICES`.

use std::sync::atomic::{AtomicI32, AtomicU8, Ordering::Relaxed};

use divvy_driver::sys::cuda::{CUcontext, CUdevice, CUdevice_attribute, CUresult, CUuuid};

use crate::account::{GpuAccount, ProcessAccount};
use crate::oom_report;
use crate::process::{self, LimiterState};
use crate::route::function::driver;

/// More ordinals than a machine has; others are asked for each time. Four times the most GPUs of a slice, so that no
/// machine in use exceeds it.
pub const ORDINALS: usize = 64;

/// A slice is a part of a whole GPU.
const INSTANCE_IN_SLICE: &str = "GPU memory is refused: this slice is on a MIG device, whose memory the driver limits; \
    run the job without a slice, on its own MIG device";

/// The known state of each ordinal: its position in the slice, `FOREIGN` or `UNKNOWN`.
pub struct Devices([AtomicI32; ORDINALS]);

const UNKNOWN: i32 = -2;
const FOREIGN: i32 = -1;

impl Devices {
    pub fn new() -> Self {
        Devices(std::array::from_fn(|_| AtomicI32::new(UNKNOWN)))
    }
}

/// Where a device belongs.
pub enum DeviceMembership {
    /// To the slice, at this place.
    InSlice(GpuAccount),
    /// A GPU outside this slice; nothing may be allocated there.
    OutsideSlice,
    /// The driver does not know such a device and will say so itself.
    Unknown,
}

/// The decision on an allocation.
pub enum Admission {
    /// The driver answers alone.
    Pass,
    /// It fails with OUT_OF_MEMORY.
    Refuse,
    /// It is charged there first.
    Charge(GpuAccount),
}

/// Admits an allocation on the current context's device. Says why, once, when nothing at all is admitted.
pub fn admit_current() -> Admission {
    admit(current, |account| match current() {
        // The context exists, however it came to be; what it costs is charged now if it was not before.
        Some(device) => admit_and_note(account, device),
        None => {
            if driver::cuCtxGetDevice.get().is_none() {
                account.cannot_tell();
            }
            Admission::Pass
        }
    })
}

/// As [`admit_current`], for a call that the driver refuses where there is no current context. A driver with one device is not asked
/// for it once the process has a context there, so a thread may be admitted that has no context.
pub fn admit_with_context() -> Admission {
    if let (Some(device), LimiterState::Limited(account)) = (sole(), process::limiter_state())
        && let DeviceMembership::InSlice(place) = account.belongs(device)
        && place.slot.has_overhead(place.gpu)
    {
        return Admission::Charge(place);
    }
    admit_current()
}

/// Admits an allocation on a device that the call itself names; there need not be a context.
pub fn admit_on(device: CUdevice) -> Admission {
    admit(|| Some(device), |account| account.admit(device))
}

/// Where `device` belongs, for calls that allocate nothing. `None` when this process is not limited.
pub fn belongs(device: CUdevice) -> Option<DeviceMembership> {
    match process::limiter_state() {
        LimiterState::Off => None,
        LimiterState::Refused(refusal) if refusal.spares(Some(device)) => None,
        LimiterState::Refused(_) => Some(DeviceMembership::OutsideSlice),
        LimiterState::Limited(account) => Some(account.belongs(device)),
    }
}

fn admit(
    device: impl FnOnce() -> Option<CUdevice>,
    decide: impl FnOnce(&'static ProcessAccount) -> Admission,
) -> Admission {
    match process::limiter_state() {
        LimiterState::Limited(account) => decide(account),
        LimiterState::Off => {
            process::log_off();
            Admission::Pass
        }
        LimiterState::Refused(refusal) if refusal.spares(device()) => Admission::Pass,
        LimiterState::Refused(refusal) => {
            process::log_refusal(&refusal.cause);
            Admission::Refuse
        }
    }
}

fn admit_and_note(account: &'static ProcessAccount, device: CUdevice) -> Admission {
    let admission = account.admit(device);
    if let Admission::Charge(place) = &admission {
        account.contexts.note(place);
    }
    admission
}

impl ProcessAccount {
    fn admit(&'static self, device: CUdevice) -> Admission {
        match self.belongs(device) {
            DeviceMembership::InSlice(place) => Admission::Charge(place),
            DeviceMembership::OutsideSlice => {
                oom_report::record_foreign_gpu();
                Admission::Refuse
            }
            DeviceMembership::Unknown => Admission::Pass,
        }
    }

    /// A driver that cannot be asked which GPU is meant is let alone, and the agent hears of it.
    #[cold]
    fn cannot_tell(&'static self) {
        if let Some(slot) = self.slot() {
            slot.alarm();
        }
    }

    /// Where `device` belongs. A process that can take no slot has nothing.
    pub fn belongs(&'static self, device: CUdevice) -> DeviceMembership {
        let known = usize::try_from(device)
            .ok()
            .and_then(|ordinal| self.devices.0.get(ordinal));
        let mut gpu = known.map_or(UNKNOWN, |known| known.load(Relaxed));
        if gpu == UNKNOWN {
            let Some(uuid) = uuid(device) else {
                if driver::cuDeviceGetUuid_v2.get().is_none()
                    && driver::cuDeviceGetUuid.get().is_none()
                {
                    self.cannot_tell();
                }
                return DeviceMembership::Unknown;
            };
            gpu = match self.slice().gpu_by_uuid(&uuid) {
                Some(_) if is_instance(device) => {
                    process::log_once(|| INSTANCE_IN_SLICE.to_owned());
                    FOREIGN
                }
                found => found.map_or(FOREIGN, |gpu| gpu as i32),
            };
            if let Some(known) = known {
                known.store(gpu, Relaxed);
            }
        }
        match (usize::try_from(gpu), self.slot()) {
            (Ok(gpu), Some(slot)) => DeviceMembership::InSlice(GpuAccount {
                account: self,
                slot,
                gpu,
            }),
            _ => DeviceMembership::OutsideSlice,
        }
    }
}

/// The current context's device, where a call has shown that there is a current context. A driver with one device is not asked.
pub fn of_context() -> Option<CUdevice> {
    sole().or_else(current)
}

/// The driver's device, where it has one alone: which devices there are is fixed when the process initialises CUDA.
pub fn sole() -> Option<CUdevice> {
    const UNKNOWN: u8 = 0;
    const SOLE: u8 = 1;
    const SEVERAL: u8 = 2;
    static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
    let ask = || {
        let mut count = 0;
        // SAFETY: the driver's function, with a place for its answer.
        let result = unsafe { driver::cuDeviceGetCount.get()?(&mut count) };
        (result == CUresult::SUCCESS).then_some(if count == 1 { SOLE } else { SEVERAL })
    };
    let known = match KNOWN.load(Relaxed) {
        UNKNOWN => ask().inspect(|known| KNOWN.store(*known, Relaxed))?,
        known => known,
    };
    (known == SOLE).then_some(0)
}

/// Whether the driver says that there is no current context.
pub fn lacks_context() -> bool {
    driver::cuCtxGetDevice.get().is_some() && current().is_none()
}

/// The current context's device; `None` without one.
pub fn current() -> Option<CUdevice> {
    let mut device = 0;
    // SAFETY: the driver's function, with a place for its answer.
    let result = unsafe { driver::cuCtxGetDevice.get()?(&mut device) };
    (result == CUresult::SUCCESS).then_some(device)
}

/// The current context; null without one.
pub fn current_context() -> CUcontext {
    let mut context = std::ptr::null_mut();
    if let Some(get) = driver::cuCtxGetCurrent.get() {
        // SAFETY: the driver's function, with a place for its answer.
        unsafe { get(&mut context) };
    }
    context
}

/// An attribute of a device.
pub fn attribute(device: CUdevice, attribute: CUdevice_attribute) -> Option<i32> {
    let mut value = 0;
    let ask = driver::cuDeviceGetAttribute.get()?;
    // SAFETY: the driver's function, with a place for its answer.
    let result = unsafe { ask(&mut value, attribute, device) };
    (result == CUresult::SUCCESS).then_some(value)
}

/// Whether the device has no memory but the host's.
pub fn is_integrated(device: CUdevice) -> bool {
    attribute(device, CUdevice_attribute::INTEGRATED).is_some_and(|value| value != 0)
}

/// The device's UUID, that of the MIG instance where it is one; `None` when the driver knows no such device.
fn uuid(device: CUdevice) -> Option<[u8; 16]> {
    let get = driver::cuDeviceGetUuid_v2
        .get()
        .or_else(|| driver::cuDeviceGetUuid.get())?;
    answered(get, device)
}

/// Whether the device is an instance of a divided GPU: then the second version of `cuDeviceGetUuid` answers with the instance's UUID (cuda.h) and
/// the first with the GPU's (inferred).
pub fn is_instance(device: CUdevice) -> bool {
    let (Some(of_gpu), Some(own)) = (
        driver::cuDeviceGetUuid.get(),
        driver::cuDeviceGetUuid_v2.get(),
    ) else {
        return false;
    };
    match (answered(of_gpu, device), answered(own, device)) {
        (Some(of_gpu), Some(own)) => of_gpu != own,
        _ => false,
    }
}

type GetUuid = unsafe extern "C" fn(*mut CUuuid, CUdevice) -> CUresult;

fn answered(get: GetUuid, device: CUdevice) -> Option<[u8; 16]> {
    let mut uuid = CUuuid::default();
    // SAFETY: the driver's function, with a place for its answer.
    let result = unsafe { get(&mut uuid, device) };
    (result == CUresult::SUCCESS).then_some(uuid.bytes)
}
