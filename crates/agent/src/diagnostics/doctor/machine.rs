//! The driver and its GPUs as a new program finds them, queried in a child process with a job's environment, because a
//! broken driver may hang or crash it.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use divvy_driver::load::{Library, Lookup, NVML};
use divvy_driver::nvml::mig::{GpuInstance, GpuInstanceInfo};
use divvy_driver::nvml::{ComputeMode, Device, Nvml};
use divvy_driver::sys::cuda::CUresult;
use divvy_driver::{Error, probe};
use serde::{Deserialize, Serialize};

use crate::config::Simulated;
use crate::host::child_timeout::{failure_message, run_with_timeout};
use crate::host::error::error_chain;

/// A GPU that was asleep takes seconds to wake.
const PATIENCE: Duration = Duration::from_secs(30);

/// Everything the driver tells. Each part may fail alone, and then says why in its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub cuda: Result<Cuda, String>,
    pub nvml: Result<Management, String>,
    /// What the dynamic loader and the libraries said on stderr.
    #[serde(skip)]
    pub said: String,
}

/// The CUDA driver library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cuda {
    /// The file that `libcuda.so.1` is here.
    pub file: Option<PathBuf>,
    /// The file that a linked program's `cuMemAlloc` goes to.
    pub allocations: Option<PathBuf>,
    /// How many GPUs it shows once it is initialised.
    pub devices: Result<u32, String>,
}

/// NVML.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Management {
    pub file: Option<PathBuf>,
    pub driver_version: String,
    /// `13.0`
    pub cuda_version: String,
    pub gpus: Vec<Result<Gpu, String>>,
}

/// A GPU and its modes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    pub index: u32,
    pub uuid: String,
    pub name: String,
    /// The number in `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// `None` where this user is not told, as of a divided GPU.
    pub memory: Option<Memory>,
    /// `None` where it cannot be divided.
    pub mig: Option<Mig>,
    pub compute: Compute,
    pub persistence: Option<bool>,
}

/// A GPU's memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// What jobs can share.
    pub usable: u64,
    pub used: u64,
}

/// Whether a GPU is divided into instances, and into which.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mig {
    pub on: bool,
    /// What it will be after the next reset.
    pub pending: bool,
    /// Why they cannot be listed, else. None while it is off.
    pub instances: Result<Vec<Instance>, String>,
}

/// A GPU instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    pub id: u32,
    /// `1g.5gb@3`: its profile and its first memory slice.
    pub label: String,
    pub devices: Result<Vec<MigDevice>, String>,
}

/// A MIG device: a compute instance of a GPU instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigDevice {
    pub id: u32,
    pub uuid: String,
    /// Bytes in use now.
    pub used: u64,
    pub processes: usize,
}

/// The compute mode: which processes may create contexts on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compute {
    Anybody,
    OneProcess,
    Nobody,
}

impl Machine {
    /// Asks in a child process; `preload` is loaded into it as into a job.
    pub fn probe(simulated: Option<&Simulated>, preload: Option<&Path>) -> Self {
        let lost = |error: String| Self {
            cuda: Err(error.clone()),
            nvml: Err(error),
            said: String::new(),
        };
        let Ok(this) = std::env::current_exe() else {
            return lost("the path of the divvy program is unknown".to_owned());
        };
        let mut command = Command::new(this);
        command
            .arg("probe-driver")
            .env_remove("LD_PRELOAD")
            .env_remove("CUDA_VISIBLE_DEVICES");
        if let Some(preload) = preload {
            command.env("LD_PRELOAD", preload);
        }
        if let Some(simulated) = simulated {
            command
                .env("DIVVY_SIM", &simulated.models)
                .env("DIVVY_SIM_STATE", &simulated.state)
                .env("LD_LIBRARY_PATH", &simulated.lib);
        }
        match run_with_timeout(&mut command, PATIENCE) {
            Ok(output) => match serde_json::from_slice::<Self>(&output.stdout) {
                Ok(machine) => Self {
                    said: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
                    ..machine
                },
                Err(_) => lost(format!(
                    "the program that queried the driver failed ({})",
                    failure_message(&output)
                )),
            },
            Err(error) => lost(format!("the driver does not respond: {error}")),
        }
    }

    fn here() -> Self {
        Self {
            cuda: cuda().map_err(|error| error_chain(&error)),
            nvml: management().map_err(|error| error_chain(&error)),
            said: String::new(),
        }
    }
}

/// `divvy probe-driver`: prints what a program here meets, one line of JSON.
pub fn probe_driver() -> ExitCode {
    let line = serde_json::to_string(&Machine::here()).unwrap_or_default();
    match std::io::Write::write_all(&mut std::io::stdout(), line.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn cuda() -> Result<Cuda, Error> {
    let (file, allocations) = probe::library_files(None)?;
    let devices = match probe::device_count(None) {
        Err(Error::Cuda {
            code: CUresult::NO_DEVICE,
            ..
        }) => Ok(0),
        counted => counted.map_err(|error| error_chain(&error)),
    };
    Ok(Cuda {
        file,
        allocations,
        devices,
    })
}

fn management() -> Result<Management, Error> {
    let file = Library::open(None, NVML)?.file_of(Lookup::Handle, c"nvmlInit_v2");
    let nvml = Nvml::load(None)?;
    let gpu = |device: Result<Device<'_>, Error>| {
        device
            .and_then(|device| gpu(&device))
            .map_err(|error| error_chain(&error))
    };
    Ok(Management {
        file,
        driver_version: nvml.driver_version()?,
        cuda_version: nvml.cuda_version()?.to_string(),
        gpus: nvml.devices()?.into_iter().map(gpu).collect(),
    })
}

fn gpu(device: &Device<'_>) -> Result<Gpu, Error> {
    let identity = device.identity()?;
    let modes = device.modes()?;
    let mig = device.mig_mode()?.map(|mode| Mig {
        on: mode.current,
        pending: mode.pending,
        instances: if mode.current {
            instances(device).map_err(|error| error_chain(&error))
        } else {
            Ok(Vec::new())
        },
    });
    let memory = match device.memory() {
        Ok(memory) => Some(Memory {
            usable: memory.total.saturating_sub(memory.reserved),
            used: memory.used,
        }),
        // Of all instances, only those that the user may observe are reported.
        Err(_) if mig.as_ref().is_some_and(|mig| mig.on) => None,
        Err(error) => return Err(error),
    };
    Ok(Gpu {
        index: identity.index,
        uuid: identity.uuid,
        name: identity.name,
        minor: device.minor_number().ok(),
        memory,
        mig,
        compute: match modes.compute {
            None | Some(ComputeMode::Default) => Compute::Anybody,
            Some(ComputeMode::ExclusiveProcess | ComputeMode::Other(_)) => Compute::OneProcess,
            Some(ComputeMode::Prohibited) => Compute::Nobody,
        },
        persistence: modes.persistence,
    })
}

/// What is on a divided GPU. An instance that goes away in between is left out.
fn instances(device: &Device<'_>) -> Result<Vec<Instance>, Error> {
    let profiles = device.gpu_instance_profiles()?;
    let label = |info: &GpuInstanceInfo| {
        let known = profiles
            .iter()
            .find(|(profile, _)| profile.id == info.profile);
        let name = known.and_then(|(profile, _)| profile.name.clone());
        let name = name.unwrap_or_else(|| format!("profile {}", info.profile));
        format!("{name}@{}", info.placement.start)
    };
    let mut found: Vec<(u32, Instance)> = device
        .gpu_instances()?
        .into_iter()
        .map(|(instance, info)| {
            let own = Instance {
                id: info.id,
                label: label(&info),
                devices: mig_devices(&instance).map_err(|error| error_chain(&error)),
            };
            (info.placement.start, own)
        })
        .collect();
    found.sort_by_key(|(start, _)| *start);
    Ok(found.into_iter().map(|(_, instance)| instance).collect())
}

fn mig_devices(instance: &GpuInstance<'_>) -> Result<Vec<MigDevice>, Error> {
    let mut devices = Vec::new();
    for (compute, info) in instance.compute_instances()? {
        let device = compute.device()?;
        devices.push(MigDevice {
            id: info.id,
            used: device.memory()?.used,
            processes: device.processes()?.len(),
            uuid: info.uuid,
        });
    }
    Ok(devices)
}
