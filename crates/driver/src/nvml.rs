//! The safe NVML layer: identity, memory, processes, utilisation and errors of GPUs.
//!
//! Not nvml-wrapper: the shim and the simulator need the raw table anyway, and that one is held against the headers by a
//! compiler; what the agent asks is a dozen calls, each of which has to fail alone and say which call and which GPU it was.
//!
//! Reads only, but for [`mig`] and [`memory_limits`]. What is on a GPU changes between two calls; nothing here is a
//! consistent picture of two figures.

pub mod entries;
pub mod health;
pub mod memory_limits;
pub mod mig;

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_uint};
use std::path::Path;

use self::entries::Entries;
use crate::load::{Function, Library, Lookup, NVML, library};
use crate::sys::nvml::*;
use crate::{CudaVersion, Error};

library! {
    /// The driver functions that this module calls.
    struct Functions {
        nvmlInit_v2,
        nvmlShutdown,
        nvmlErrorString,
        nvmlSystemGetDriverVersion,
        nvmlSystemGetCudaDriverVersion_v2,
        nvmlDeviceGetCount_v2,
        nvmlDeviceGetHandleByIndex_v2,
        nvmlDeviceGetHandleByUUID,
        nvmlDeviceGetIndex,
        nvmlDeviceGetUUID,
        nvmlDeviceGetName,
        nvmlDeviceGetPciInfo_v3,
        nvmlDeviceGetMinorNumber,
        nvmlDeviceGetMigMode,
        nvmlDeviceGetComputeMode,
        nvmlDeviceGetPersistenceMode,
        nvmlDeviceGetMemoryInfo,
        nvmlDeviceGetMemoryInfo_v2,
        nvmlDeviceGetUtilizationRates,
        nvmlDeviceGetTemperature,
        nvmlDeviceGetPowerUsage,
        nvmlDeviceGetTotalEnergyConsumption,
        nvmlDeviceGetComputeRunningProcesses_v3,
        nvmlDeviceGetGraphicsRunningProcesses_v3,
        nvmlDeviceGetMPSComputeRunningProcesses_v3,
        nvmlDeviceGetProcessUtilization,
        nvmlDeviceSetMigMode,
        nvmlDeviceGetGpuInstanceProfileInfo,
        nvmlDeviceGetGpuInstanceProfileInfoV,
        nvmlDeviceGetGpuInstancePossiblePlacements_v2,
        nvmlDeviceGetGpuInstanceRemainingCapacity,
        nvmlDeviceGetGpuInstances,
        nvmlDeviceGetGpuInstanceById,
        nvmlDeviceCreateGpuInstanceWithPlacement,
        nvmlGpuInstanceGetInfo,
        nvmlGpuInstanceDestroy,
        nvmlGpuInstanceGetComputeInstanceProfileInfo,
        nvmlGpuInstanceGetComputeInstanceById,
        nvmlGpuInstanceCreateComputeInstance,
        nvmlComputeInstanceGetInfo_v2,
        nvmlComputeInstanceDestroy,
        nvmlDeviceIsMigDeviceHandle,
        nvmlDeviceGetMaxMigDeviceCount,
        nvmlDeviceGetMigDeviceHandleByIndex,
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle,
        nvmlDeviceGetGpuInstanceId,
        nvmlDeviceGetComputeInstanceId,
        nvmlDeviceGetTotalEccErrors,
        nvmlDeviceGetRemappedRows,
        nvmlDeviceGetSupportedEventTypes,
        nvmlDeviceRegisterEvents,
        nvmlEventSetCreate,
        nvmlEventSetWait_v2,
        nvmlEventSetFree,
        nvmlDeviceGetMemoryLimits_v1,
        nvmlDeviceSetMemoryLimits_v1,
    }
}

/// The commonest shape: fills one structure about one device.
type Getter<T> = unsafe extern "C" fn(nvmlDevice_t, *mut T) -> nvmlReturn_t;

/// Bytes of the longest text that NVML writes, NUL included.
const TEXT: usize = NVML_DEVICE_UUID_V2_BUFFER_SIZE;

/// NVML, initialised; shut down when dropped.
pub struct Nvml {
    functions: Functions,
}

/// A GPU that NVML has a handle of.
#[derive(Clone, Copy)]
pub struct Device<'a> {
    nvml: &'a Nvml,
    handle: nvmlDevice_t,
    index: u32,
}

/// The attributes that never change while the GPU is present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// `GPU-…`
    pub uuid: String,
    /// Place in NVML's order, which is that of PCI bus ids and disregards `CUDA_VISIBLE_DEVICES`.
    pub index: u32,
    /// `NVIDIA A100-SXM4-80GB`
    pub name: String,
    /// `00000000:07:00.0`
    pub pci_bus_id: String,
}

/// The modes an administrator sets; `None` where the GPU has no such mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Modes {
    /// Multi-instance GPU: memory is had through instances only.
    pub mig: Option<bool>,
    pub compute: Option<ComputeMode>,
    /// Whether the driver stays loaded while no process uses the GPU (persistence mode).
    pub persistence: Option<bool>,
}

/// The compute mode: which processes may create contexts on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComputeMode {
    Default,
    /// One process at a time.
    ExclusiveProcess,
    /// No process.
    Prohibited,
    /// One that we do not know.
    Other(u32),
}

/// A GPU's memory, in bytes; `total` is the sum of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    pub total: u64,
    /// Reserved by the driver for itself, independent of load.
    pub reserved: u64,
    /// Held by processes.
    pub used: u64,
    pub free: u64,
}

/// A process with a context on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// In the PID namespace that NVML answers in, which is the one of the caller on bare metal.
    pub pid: u32,
    /// Bytes of the GPU's memory; `None` where the driver cannot tell (WSL, some virtual GPUs).
    pub used: Option<u64>,
}

/// How much of a GPU's time one process had, by the driver's own samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessUse {
    /// As [`Process::pid`].
    pub pid: u32,
    /// When the sample was taken: the driver's clock, in microseconds.
    pub at_us: u64,
    /// Percent of the sample's period in which a kernel of it ran.
    pub sm_percent: u32,
}

/// Percent of the driver's last sample period, 1/6 s to 1 s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Utilization {
    /// Of the time, a kernel was running.
    pub gpu: u32,
    /// Of the time, memory was read or written.
    pub memory: u32,
}

impl Functions {
    /// Calls `function`; anything but success becomes an error that names it, and `device`.
    fn call<F: Copy>(
        &self,
        device: Option<u32>,
        function: &Function<F>,
        call: impl FnOnce(F) -> nvmlReturn_t,
    ) -> Result<(), Error> {
        match call(function.get()?) {
            nvmlReturn_t::SUCCESS => Ok(()),
            code => Err(Error::Nvml {
                function: function.name,
                device: device.map(|index| format!("GPU {index}")),
                code,
                text: self.text(code),
            }),
        }
    }

    fn text(&self, code: nvmlReturn_t) -> String {
        let Some(error_string) = self.nvmlErrorString.address else {
            return format!("{code:?}");
        };
        // SAFETY: takes any code.
        let text = unsafe { error_string(code) };
        if text.is_null() {
            return format!("{code:?}");
        }
        // SAFETY: not NULL, so one of the library's own strings, which are never freed.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    }
}

impl Nvml {
    /// Loads and initialises NVML: the file `path`, or where there is none the library that the loader finds.
    ///
    /// # Errors
    /// [`Error::Load`] when there is no such library, [`Error::Nvml`] when there is one but no working driver.
    pub fn load(path: Option<&Path>) -> Result<Self, Error> {
        let functions = Functions::find(&Library::open(path, NVML)?, Lookup::Handle);
        // SAFETY: takes nothing.
        functions.call(None, &functions.nvmlInit_v2, |init| unsafe { init() })?;
        Ok(Self { functions })
    }

    /// `570.86.15`
    pub fn driver_version(&self) -> Result<String, Error> {
        let f = &self.functions;
        let mut text = [0; TEXT];
        // SAFETY: a buffer of the length that is passed.
        let get = |get: pfn::nvmlSystemGetDriverVersion| unsafe {
            get(text.as_mut_ptr(), TEXT as c_uint)
        };
        f.call(None, &f.nvmlSystemGetDriverVersion, get)?;
        Ok(text_of(&text))
    }

    /// The newest CUDA that the driver supports.
    pub fn cuda_version(&self) -> Result<CudaVersion, Error> {
        let f = &self.functions;
        let mut version = 0;
        // SAFETY: writes one number.
        let get = |get: pfn::nvmlSystemGetCudaDriverVersion_v2| unsafe { get(&raw mut version) };
        f.call(None, &f.nvmlSystemGetCudaDriverVersion_v2, get)?;
        Ok(CudaVersion(version.cast_unsigned()))
    }

    /// Every GPU, in NVML's order. One that is lost is an error in its own place.
    ///
    /// # Errors
    /// When not even their number can be had.
    pub fn devices(&self) -> Result<Vec<Result<Device<'_>, Error>>, Error> {
        let count = self.device_count()?;
        Ok((0..count).map(|index| self.device(index)).collect())
    }

    /// The number of GPUs. It wakes none.
    ///
    /// # Errors
    /// When the driver does not report it.
    pub fn device_count(&self) -> Result<u32, Error> {
        let mut count = 0;
        let f = &self.functions;
        // SAFETY: writes one number.
        f.call(None, &f.nvmlDeviceGetCount_v2, |get| unsafe {
            get(&raw mut count)
        })?;
        Ok(count)
    }

    /// The GPU with this index. A powered-down GPU wakes.
    ///
    /// # Errors
    /// When it does not respond.
    pub fn device(&self, index: u32) -> Result<Device<'_>, Error> {
        let mut handle = std::ptr::null_mut();
        let f = &self.functions;
        // SAFETY: writes one handle.
        let get = |get: pfn::nvmlDeviceGetHandleByIndex_v2| unsafe { get(index, &raw mut handle) };
        f.call(Some(index), &f.nvmlDeviceGetHandleByIndex_v2, get)?;
        Ok(Device {
            nvml: self,
            handle,
            index,
        })
    }

    /// The GPU with this UUID, or the MIG device as which CUDA shows an instance of one.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`] when none of those that answer has it.
    pub fn device_by_uuid(&self, uuid: crate::Uuid) -> Result<Device<'_>, Error> {
        let has_it = |device: &Device<'_>| device.uuid().is_ok_and(|text| text.parse() == Ok(uuid));
        let mut devices = self.devices()?.into_iter().flatten();
        let instance = || {
            let text = uuid.to_string().replacen("GPU", "MIG", 1);
            self.mig_device(&text).ok().map(|(own, _)| own.into())
        };
        devices
            .find(has_it)
            .or_else(instance)
            .ok_or(Error::NoSuchDevice(uuid))
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: takes nothing; pairs with the init in `load`.
        let shutdown = self
            .functions
            .call(None, &self.functions.nvmlShutdown, |f| unsafe { f() });
        // A driver that is gone has nothing left to shut down.
        drop(shutdown);
    }
}

impl Device<'_> {
    /// Place in NVML's order.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// `GPU-…`
    pub fn uuid(&self) -> Result<String, Error> {
        self.text(&self.nvml.functions.nvmlDeviceGetUUID)
    }

    /// The identity of this GPU.
    pub fn identity(&self) -> Result<Identity, Error> {
        let f = &self.nvml.functions;
        let pci = self.read(&f.nvmlDeviceGetPciInfo_v3, nvmlPciInfo_t::default())?;
        Ok(Identity {
            uuid: self.uuid()?,
            index: self.index,
            name: self.text(&f.nvmlDeviceGetName)?,
            pci_bus_id: text_of(&pci.busId),
        })
    }

    /// The number in `/dev/nvidiaN`.
    pub fn minor_number(&self) -> Result<u32, Error> {
        self.read(&self.nvml.functions.nvmlDeviceGetMinorNumber, 0)
    }

    /// MIG, compute and persistence mode, as they are now.
    pub fn modes(&self) -> Result<Modes, Error> {
        let f = &self.nvml.functions;
        let compute = self.read(&f.nvmlDeviceGetComputeMode, nvmlComputeMode_t::default());
        let persistence = self.read(
            &f.nvmlDeviceGetPersistenceMode,
            nvmlEnableState_t::default(),
        );
        Ok(Modes {
            mig: self.mig_mode()?.map(|mode| mode.current),
            compute: offered(compute)?.map(|mode| match mode {
                nvmlComputeMode_t::DEFAULT => ComputeMode::Default,
                nvmlComputeMode_t::EXCLUSIVE_PROCESS => ComputeMode::ExclusiveProcess,
                nvmlComputeMode_t::PROHIBITED => ComputeMode::Prohibited,
                other => ComputeMode::Other(other.0),
            }),
            persistence: offered(persistence)?.map(|mode| mode == nvmlEnableState_t::ENABLED),
        })
    }

    /// Drivers before 510 do not say what they reserve: then `reserved` is 0 and `used` has it in.
    pub fn memory(&self) -> Result<Memory, Error> {
        let f = &self.nvml.functions;
        let version = struct_version::<nvmlMemory_v2_t>(2);
        let blank = nvmlMemory_v2_t {
            version,
            ..Default::default()
        };
        let (total, reserved, used, free) = match self.read(&f.nvmlDeviceGetMemoryInfo_v2, blank) {
            Ok(memory) => (memory.total, memory.reserved, memory.used, memory.free),
            Err(error) if error.is_unsupported() => {
                let memory = self.read(&f.nvmlDeviceGetMemoryInfo, nvmlMemory_t::default())?;
                (memory.total, 0, memory.used, memory.free)
            }
            Err(error) => return Err(error),
        };
        Ok(Memory {
            total,
            reserved,
            used,
            free,
        })
    }

    /// `None` where the GPU does not measure it, as when it is in MIG mode.
    pub fn utilization(&self) -> Result<Option<Utilization>, Error> {
        match self.read(
            &self.nvml.functions.nvmlDeviceGetUtilizationRates,
            nvmlUtilization_t::default(),
        ) {
            Ok(rates) => Ok(Some(Utilization {
                gpu: rates.gpu,
                memory: rates.memory,
            })),
            Err(error) if error.is_unsupported() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Degrees Celsius of the die; `None` where the GPU does not say.
    pub fn temperature(&self) -> Result<Option<u32>, Error> {
        let get = &self.nvml.functions.nvmlDeviceGetTemperature;
        let mut celsius = 0;
        // SAFETY: our own handle, and a number to write into.
        match self.call(get, |get| unsafe {
            get(self.handle, nvmlTemperatureSensors_t::GPU, &raw mut celsius)
        }) {
            Ok(()) => Ok(Some(celsius)),
            Err(error) if error.is_unsupported() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Milliwatts that the board draws: now, or over the last second, as the GPU has it (nvml.h, nvmlDeviceGetPowerUsage). `None`
    /// where it does not say.
    pub fn power(&self) -> Result<Option<u32>, Error> {
        offered(self.read(&self.nvml.functions.nvmlDeviceGetPowerUsage, 0))
    }

    /// Millijoules since the driver was loaded; `None` where the GPU does not say.
    pub fn energy(&self) -> Result<Option<u64>, Error> {
        let get = &self.nvml.functions.nvmlDeviceGetTotalEnergyConsumption;
        offered(self.read(get, 0))
    }

    /// The samples that were taken after `since` (as [`ProcessUse::at_us`]; 0: all that are kept), of the processes that had
    /// anything to do. `None` where the driver does not tell, as of a GPU in MIG mode (nvml.h, nvmlDeviceGetProcessUtilization).
    pub fn process_utilization(&self, since: u64) -> Result<Option<Vec<ProcessUse>>, Error> {
        let get = &self.nvml.functions.nvmlDeviceGetProcessUtilization;
        let mut samples = vec![nvmlProcessUtilizationSample_t::default(); 64];
        loop {
            let mut count = samples.len() as c_uint;
            let into = samples.as_mut_ptr();
            // SAFETY: our own handle, and as many samples as `count` says.
            match self.call(get, |get| unsafe {
                get(self.handle, into, &raw mut count, since)
            }) {
                Ok(()) => samples.truncate(count as usize),
                Err(Error::Nvml {
                    code: nvmlReturn_t::NOT_FOUND,
                    ..
                }) => samples.clear(),
                Err(Error::Nvml {
                    code: nvmlReturn_t::INSUFFICIENT_SIZE,
                    ..
                }) if count as usize > samples.len() => {
                    samples.resize(count as usize + 16, Default::default());
                    continue;
                }
                // Some drivers tell it to root alone.
                Err(Error::Nvml {
                    code: nvmlReturn_t::NO_PERMISSION,
                    ..
                }) => return Ok(None),
                Err(error) if error.is_unsupported() => return Ok(None),
                Err(error) => return Err(error),
            }
            let read = |sample: &nvmlProcessUtilizationSample_t| ProcessUse {
                pid: sample.pid,
                at_us: sample.timeStamp,
                sm_percent: sample.smUtil,
            };
            return Ok(Some(samples.iter().map(read).collect()));
        }
    }

    /// Every process with a context on this GPU, once, by ascending pid.
    pub fn processes(&self) -> Result<Vec<Process>, Error> {
        let f = &self.nvml.functions;
        let mut lists = vec![self.list(&f.nvmlDeviceGetComputeRunningProcesses_v3)?];
        for others in [
            &f.nvmlDeviceGetGraphicsRunningProcesses_v3,
            &f.nvmlDeviceGetMPSComputeRunningProcesses_v3,
        ] {
            match self.list(others) {
                Err(error) if error.is_unsupported() => {}
                list => lists.push(list?),
            }
        }
        Ok(merged(&lists))
    }

    /// One process list. It may grow between the call that says how long it is and the one that reads it.
    fn list(
        &self,
        function: &Function<pfn::nvmlDeviceGetComputeRunningProcesses_v3>,
    ) -> Result<Vec<nvmlProcessInfo_t>, Error> {
        let mut room = 64;
        loop {
            let mut entries = Entries::<nvmlProcessInfo_t>::with_room(room);
            let mut count = room as c_uint;
            let into = entries.as_mut_ptr();
            // SAFETY: our own handle, and room for as many entries as `count` says, of any layout.
            match self.call(function, |get| unsafe {
                get(self.handle, &raw mut count, into)
            }) {
                Ok(()) => {
                    let count = count as usize;
                    // SAFETY: integers only.
                    let read = unsafe { entries.read(count, entries.stride(count)) };
                    return Ok(read.into_iter().map(|(entry, _)| entry).collect());
                }
                Err(Error::Nvml {
                    code: nvmlReturn_t::INSUFFICIENT_SIZE,
                    ..
                }) if count as usize > room => room = count as usize + 16,
                Err(error) => return Err(error),
            }
        }
    }

    /// Calls `function` with `value` as its out parameter.
    fn read<T>(&self, function: &Function<Getter<T>>, mut value: T) -> Result<T, Error> {
        // SAFETY: our own handle, and a value of the type that the function's signature says.
        self.call(function, |get| unsafe { get(self.handle, &raw mut value) })?;
        Ok(value)
    }

    fn text(&self, function: &Function<pfn::nvmlDeviceGetName>) -> Result<String, Error> {
        let mut text = [0; TEXT];
        // SAFETY: our own handle, and a buffer of the length that is passed.
        self.call(function, |get| unsafe {
            get(self.handle, text.as_mut_ptr(), TEXT as c_uint)
        })?;
        Ok(text_of(&text))
    }

    fn call<F: Copy>(
        &self,
        function: &Function<F>,
        call: impl FnOnce(F) -> nvmlReturn_t,
    ) -> Result<(), Error> {
        self.nvml.functions.call(Some(self.index), function, call)
    }
}

/// `None` for a feature that this GPU does not offer.
fn offered<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_unsupported() => Ok(None),
        Err(error) => Err(error),
    }
}

/// One entry per process. A process that is in several lists has the same memory in each; one that is in a list several times
/// has memory in several MIG instances.
fn merged(lists: &[Vec<nvmlProcessInfo_t>]) -> Vec<Process> {
    let mut processes = BTreeMap::<u32, Option<u64>>::new();
    for list in lists {
        let mut sums = BTreeMap::<u32, Option<u64>>::new();
        for entry in list {
            let known =
                (entry.usedGpuMemory != MEMORY_NOT_AVAILABLE).then_some(entry.usedGpuMemory);
            let sum = sums.entry(entry.pid).or_default();
            *sum = sum
                .iter()
                .chain(&known)
                .copied()
                .reduce(u64::saturating_add);
        }
        for (pid, sum) in sums {
            let used = processes.entry(pid).or_default();
            *used = (*used).max(sum);
        }
    }
    processes
        .into_iter()
        .map(|(pid, used)| Process { pid, used })
        .collect()
}

/// The text up to the first NUL.
fn text_of(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer
        .iter()
        .map(|c| *c as u8)
        .take_while(|c| *c != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(pid: u32, used: u64, instance: u32) -> nvmlProcessInfo_t {
        nvmlProcessInfo_t {
            pid,
            usedGpuMemory: used,
            gpuInstanceId: instance,
            computeInstanceId: 0,
        }
    }

    #[test]
    fn a_process_that_computes_and_draws_is_counted_once() {
        let lists = [
            vec![entry(7, 100, NO_INSTANCE)],
            vec![entry(7, 100, NO_INSTANCE), entry(5, 1, NO_INSTANCE)],
        ];
        let expected = [
            Process {
                pid: 5,
                used: Some(1),
            },
            Process {
                pid: 7,
                used: Some(100),
            },
        ];
        assert_eq!(merged(&lists), expected);
    }

    #[test]
    fn memory_in_several_instances_adds_up() {
        assert_eq!(
            merged(&[vec![entry(7, 100, 1), entry(7, 20, 2)]]),
            [Process {
                pid: 7,
                used: Some(120)
            }]
        );
    }

    #[test]
    fn memory_that_is_not_available_is_not_a_huge_number() {
        let lists = [vec![entry(7, MEMORY_NOT_AVAILABLE, NO_INSTANCE)]];
        assert_eq!(merged(&lists), [Process { pid: 7, used: None }]);
        let lists = [lists[0].clone(), vec![entry(7, 3, NO_INSTANCE)]];
        assert_eq!(
            merged(&lists),
            [Process {
                pid: 7,
                used: Some(3)
            }]
        );
    }
}
