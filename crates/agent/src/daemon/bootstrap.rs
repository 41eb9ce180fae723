//! Bootstrap of the daemon and of a run without one: installed files, driver, GPUs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use divvy_api::home::Home;
use divvy_api::v1::{Error, ErrorCode};
use divvy_core::Mode;

use crate::config::simulated_gpus;
use crate::config::{
    InjectionPreference, LibraryMissing, Programs, Simulated, Wrappers, library, loadable,
};
use crate::daemon::from_store;
use crate::gpu::absent::AbsentDriver;
use crate::gpu::overhead::Overhead;
use crate::gpu::sleep::PowerStates;
use crate::gpu::{
    Device, FaultyGpu, INTERVAL, Observation, ObservedGpu, Observer, Source, SourceError, overhead,
};
use crate::host::error::error_chain;
use crate::host::error::internal;
use crate::host::limiter_copies;
use crate::host::process::evidence::{KnownFile, KnownFiles};
use crate::journal::Store;

/// The interposer's file.
pub(crate) const PRELOAD: &str = "libdivvy_preload.so";
/// Those of its other form.
const WRAPPERS: [&str; 2] = ["libdivvy_cuda.so", "libdivvy_nvml.so"];

/// What to do on a machine without GPUs: what this instance did before, or the first try.
fn offer_sim() -> String {
    let home = Home::from_env().ok();
    match home.and_then(|home| simulated_gpus::last_models(&home.sim_state())) {
        Some(models) => format!("to simulate the same GPUs as before, add --sim {models}"),
        None => "to try Divvy without a GPU, add --sim a100-80gb:3".to_owned(),
    }
}

const PLAIN_LIBRARIES: &str =
    "put the libraries into a folder with a plain path and set DIVVY_LIB_DIR to it";
const PLAIN_HOME: &str = "set DIVVY_HOME to a folder with a plain path";

/// This machine, as the driver shows it.
pub struct NodeInventory {
    pub programs: Programs,
    pub simulated: Option<Simulated>,
    pub source: Arc<Source>,
    pub observation: Observation,
    pub driver_version: String,
    /// Why no GPU responds; `None` where one does.
    pub blind: Option<String>,
    /// Files of the limiter that processes may have mapped: the installed ones and all copies.
    limiters: Vec<PathBuf>,
}

/// The version of a driver that does not answer.
const NO_VERSION: &str = "unknown";

impl NodeInventory {
    /// Finds our libraries, prepares the simulated GPUs if they are wanted, and observes the GPUs. `copies`: the folder for
    /// the copies of the limiter that jobs load; without it nothing is copied. `in_use`: jobs hold simulated GPUs, which
    /// must not change under them. `waits`: a machine without a GPU that responds is no error.
    ///
    /// # Errors
    /// When a library is missing, or there is no GPU.
    pub fn open(
        simulated: Option<Simulated>,
        copies: Option<&Path>,
        in_use: bool,
        waits: bool,
    ) -> Result<Self, Error> {
        let divvy = std::env::current_exe()
            .map_err(|error| internal("cannot find the file of this program", &error))?;
        let form =
            InjectionPreference::from_env().map_err(|why| Error::new(ErrorCode::Usage, why))?;
        let preload = library(PRELOAD, &divvy)
            .map_err(|error| Error::new(ErrorCode::Internal, error_chain(&error)))?;
        let reachable = |path: &Path, variable, hint: &str| {
            loadable(path, variable)
                .map_err(|error| Error::new(ErrorCode::Internal, error_chain(&error)).hint(hint))
        };
        let installed = Programs {
            wrappers: wrappers(&divvy),
            injection_preference: form,
            divvy: divvy.clone(),
            preload,
        };
        let mut limiters: Vec<PathBuf> = installed.limiters().map(Path::to_owned).collect();
        let copied = copies.map(|copies| {
            loadable(copies, "LD_PRELOAD").map_err(|error| error_chain(&error))?;
            installed
                .copied(copies)
                .map_err(|error| error_chain(&error))
        });
        let plain = reachable(&installed.preload, "LD_PRELOAD", PLAIN_LIBRARIES);
        let programs = match copied {
            None => plain.map(|()| installed)?,
            Some(Ok(copied)) => copied,
            Some(Err(why)) => {
                plain.map_err(|error| Error {
                    message: format!("{}; there is no copy of it, since {why}", error.message),
                    ..error
                })?;
                tracing::warn!(
                    "{why}; jobs load the installed limiter, so an upgrade of Divvy can end processes of running jobs"
                );
                installed
            }
        };
        if let Some(copies) = copies {
            let files: Vec<&Path> = limiters.iter().map(PathBuf::as_path).collect();
            let copies = limiter_copies::all(copies, &files);
            limiters.extend(copies);
        }
        if let Some(simulated) = &simulated {
            reachable(&simulated.lib, "LD_LIBRARY_PATH", PLAIN_HOME)?;
            simulated_gpus::install(simulated, &divvy, in_use)?;
        }
        let lib = simulated.as_ref().map(|simulated| simulated.lib.clone());
        let unusable = |error: &dyn std::error::Error| match &simulated {
            Some(simulated) => no_such_gpus(&simulated.models, error),
            None => no_driver(error),
        };
        let (source, observation, driver_version, blind) = match ask(lib.as_deref()) {
            Ok((source, observation, version)) => {
                let has_none = observation.gpus.is_empty();
                let blind = has_none.then(|| no_gpu_error(&observation.troubles));
                (source, observation, version, blind)
            }
            Err(error) => {
                let driver = AbsentDriver::new(divvy.clone(), lib, error_chain(&error));
                let (none, version) = (Observation::default(), NO_VERSION.to_owned());
                (Source::new(driver), none, version, Some(unusable(&error)))
            }
        };
        if let Some(error) = blind.as_ref().filter(|_| !waits) {
            return Err(error.clone());
        }
        for trouble in observation.troubles.iter().filter(|_| blind.is_none()) {
            tracing::warn!(
                "GPU {} does not respond, so this daemon does not serve it: {}",
                trouble.index,
                trouble.message
            );
        }
        Ok(Self {
            programs,
            simulated,
            source: Arc::new(source),
            observation,
            driver_version,
            blind: blind.map(|error| error.message),
            limiters,
        })
    }

    /// The state file of the simulated driver that this process uses, by flag or through its environment.
    pub fn simulated_state(&self) -> Option<PathBuf> {
        let named = self
            .simulated
            .as_ref()
            .map(|simulated| simulated.state.clone());
        named.or_else(simulated_gpus::loaded_state)
    }

    /// Returns the observer of the GPUs.
    pub fn observer(&self) -> Observer {
        let marks = KnownFiles {
            limiters: self
                .limiters
                .iter()
                .map(|file| KnownFile::of(file))
                .collect(),
            driver: self
                .simulated
                .as_ref()
                .map(|simulated| KnownFile::of(&simulated.state)),
        };
        // The addresses of simulated GPUs may be those of other devices of this machine.
        let sysfs = match self.simulated_state() {
            Some(_) => simulated_gpus::root().map(|root| root.join("sys")),
            None => Some(PathBuf::from("/sys")),
        };
        Observer::new(Arc::clone(&self.source), marks, PowerStates::below(sysfs))
    }

    /// The GPUs for which there is a mode, with what a context costs on each.
    ///
    /// # Errors
    /// When the store fails.
    pub fn devices(
        &self,
        store: &Store,
        mode: impl Fn(&ObservedGpu) -> Option<Mode>,
    ) -> Result<Vec<Device>, Error> {
        let seen: Vec<(&ObservedGpu, Mode)> = self
            .observation
            .gpus
            .iter()
            .filter_map(|gpu| Some((gpu, mode(gpu)?)))
            .collect();
        // A simulated driver may claim the version of a real one, and costs something else.
        let driver = match &self.simulated {
            Some(_) => format!("simulated {}", self.driver_version),
            None => self.driver_version.clone(),
        };
        let gpus: Vec<&ObservedGpu> = seen.iter().map(|(gpu, _)| *gpu).collect();
        let overheads = overhead::overheads(
            &self.programs.divvy,
            (self.simulated.as_ref()).map(|simulated| simulated.lib.as_path()),
            &gpus,
            |model| store.overhead(model, &driver),
            |model, bytes| store.set_overhead(model, &driver, bytes),
        );
        let overheads = overheads.map_err(|error| from_store(&error))?;
        let device = |((gpu, mode), overhead): (&(&ObservedGpu, Mode), Overhead)| {
            let mut device = Device::new(gpu, *mode, overhead.bytes);
            // What is assumed is more than most take, and refuses no job.
            if overhead.is_measured {
                device.gpu.context = overhead.bytes;
            }
            device
        };
        Ok(seen.iter().zip(overheads).map(device).collect())
    }
}

/// The driver, its GPUs and its version.
fn ask(simulated: Option<&Path>) -> Result<(Source, Observation, String), SourceError> {
    let source = Source::load(simulated)?;
    let observation = observe_with_retries(&source)?;
    let version = source.driver_version()?;
    Ok((source, observation, version))
}

/// Attempts to observe the GPUs at start, at the usual interval, while one does not answer: most often another process
/// queries or changes it at that moment. A lost GPU stays lost. So more would only delay the start.
const OBSERVE_ATTEMPTS: u32 = 3;

/// Returns the observation with the most answers.
fn observe_with_retries(source: &Source) -> Result<Observation, SourceError> {
    let may_again = |looked: &Result<Observation, SourceError>| match looked {
        Ok(observation) => observation.troubles.iter().any(|trouble| !trouble.is_lost),
        Err(_) => true,
    };
    let mut best = source.observe();
    for _ in 1..OBSERVE_ATTEMPTS {
        if !may_again(&best) {
            break;
        }
        std::thread::sleep(INTERVAL);
        let looked = source.observe();
        if responding_gpus(&looked) >= responding_gpus(&best) {
            best = looked;
        }
    }
    best
}

/// How many GPUs did; none where not even their list could be had.
fn responding_gpus(looked: &Result<Observation, SourceError>) -> Option<usize> {
    looked.as_ref().ok().map(|seen| seen.gpus.len())
}

/// No GPU, or none that answers.
fn no_gpu_error(troubles: &[FaultyGpu]) -> Error {
    if troubles.is_empty() {
        return Error::new(ErrorCode::Internal, "the NVIDIA driver lists no GPU").hint(offer_sim());
    }
    let told = |FaultyGpu {
                    index,
                    message: what,
                    ..
                }: &FaultyGpu| match what.starts_with("GPU ") {
        true => what.clone(),
        false => format!("GPU {index}: {what}"),
    };
    let all: Vec<String> = troubles.iter().map(told).collect();
    Error::new(
        ErrorCode::Internal,
        format!("no GPU responds: {}", all.join("; ")),
    )
    .hint("check `nvidia-smi` and the kernel log (Xid); a lost GPU needs a reset or a reboot")
}

/// The simulator says on stderr what it does not like about them.
fn no_such_gpus(models: &str, error: &dyn std::error::Error) -> Error {
    let what = format!(
        "cannot simulate the GPUs `{models}`: {}",
        error_chain(error)
    );
    Error::new(ErrorCode::Usage, what).hint("use MODEL:N, as in --sim a100-80gb:3")
}

/// The wrappers, where they are installed.
pub(crate) fn wrappers(divvy: &Path) -> Result<Wrappers, String> {
    let [cuda, nvml] = WRAPPERS.map(|name| library(name, divvy));
    let missing = |error: LibraryMissing| error_chain(&error);
    Ok(Wrappers {
        cuda: cuda.map_err(missing)?,
        nvml: nvml.map_err(missing)?,
    })
}

fn no_driver(error: &dyn std::error::Error) -> Error {
    Error::new(
        ErrorCode::Internal,
        format!("no GPU found on this machine: {}", error_chain(error)),
    )
    .hint(offer_sim())
}
