//! Container edits: the environment variables, devices and mounts that give a container its GPU and hold it to its
//! slice.
//!
//! ```text
//! /run/divvy-job                      a folder of the job's, read-only
//!   libdivvy_preload.so               the limiter; /etc/ld.so.preload names it, so every program has it
//!   libcuda_real.so.1, …              the driver's own files, under the names that the wrappers need
//!   slice/control                     the limits, read-only
//!   slice/slots                       the slice's ledger
//! /usr/lib/ARCHITECTURE-linux-gnu, /usr/lib64
//!   libcuda.so.1, libnvidia-ml.so.1   the wrappers; the driver's other libraries beside them
//! ```
//! Both folders are ones that glibc's loader searches by default, in Debian's family and in the others; so the daemon
//! need not know the image, set a variable or run a program in the container. The limits are in a file that is mounted
//! read-only, and what the container's variables say of them does not count.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use divvy_driver::load::{BEHIND, CUDA, CUDA_BEHIND, NVML, NVML_BEHIND};
use divvy_ledger::MOUNTED;

use crate::job_dir::container_spec::ContainerSlice;
use crate::job_dir::container_spec::{Device, Driver};

/// Folders that glibc's loader searches by itself.
pub const LIBRARY_FOLDERS: [&str; 2] = [DEBIAN_LIBRARIES, "/usr/lib64"];

/// Debian's folder of libraries, by architecture (<https://wiki.debian.org/Multiarch/Tuples>).
#[cfg(target_arch = "x86_64")]
pub const DEBIAN_LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";
#[cfg(target_arch = "aarch64")]
pub const DEBIAN_LIBRARIES: &str = "/usr/lib/aarch64-linux-gnu";

/// Names in the folder that is mounted at [`BEHIND`].
const PRELOAD: &str = "libdivvy_preload.so";
const SIM_STATE: &str = "sim-state";

/// The loader's list of libraries that come before all others (ld.so(8)).
pub const LD_SO_PRELOAD: &str = "/etc/ld.so.preload";

/// The name by which some programs ask for the CUDA driver.
const CUDA_UNVERSIONED: &str = "libcuda.so";

/// What is added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    pub variables: BTreeMap<String, String>,
    pub devices: Vec<Device>,
    /// Folders before what lies in them.
    pub mounts: Vec<BindMount>,
}

/// A file or folder of the host, and where it lies in the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindMount {
    pub host: PathBuf,
    pub container: PathBuf,
    pub read_only: bool,
}

/// Two things that the job's folder has to hold for its container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFiles {
    /// Mounted at [`BEHIND`]: empty files, over which others are mounted.
    pub folder: PathBuf,
    /// Mounted as `/etc/ld.so.preload`.
    pub preload_list: PathBuf,
}

impl JobFiles {
    /// Below a job's folder.
    pub fn of(job: &Path) -> Self {
        Self {
            folder: job.join("container/mounts"),
            preload_list: job.join("container/ld.so.preload"),
        }
    }

    /// The account files of a container that runs as its submitter.
    pub fn passwd(&self) -> PathBuf {
        self.preload_list.with_file_name("passwd")
    }

    pub fn group(&self) -> PathBuf {
        self.preload_list.with_file_name("group")
    }

    /// What the loader's list says.
    pub fn preloads() -> String {
        format!("{BEHIND}/{PRELOAD}\n")
    }
}

/// What a container needs for this slice.
pub fn edits(held: &ContainerSlice, files: &JobFiles) -> Edits {
    let mut mounts = Mounts(Vec::new());
    let behind = |name: &str| format!("{BEHIND}/{name}");
    mounts.read_only(&files.folder, BEHIND);
    if let Some(limiter) = &held.limiter {
        let slice = &limiter.slice;
        mounts.read_only(&slice.join("control"), format!("{MOUNTED}/control"));
        mounts.writable(&slice.join("slots"), format!("{MOUNTED}/slots"));
        mounts.read_only(&limiter.preload, behind(PRELOAD));
        mounts.read_only(&files.preload_list, LD_SO_PRELOAD);
    }
    let (cuda, nvml) = match &held.driver {
        Driver::Simulated { library, .. } => (library, Some(library)),
        Driver::Installed { cuda, nvml, .. } => (cuda, nvml.as_ref()),
    };
    let wrappers = held.limiter.as_ref().map(|limiter| &limiter.wrappers);
    let (shown_cuda, shown_nvml) = match wrappers {
        Some(Ok((wrapper_cuda, wrapper_nvml))) => {
            mounts.read_only(cuda, behind(CUDA_BEHIND));
            if let Some(nvml) = nvml {
                mounts.read_only(nvml, behind(NVML_BEHIND));
            }
            (wrapper_cuda, nvml.map(|_| wrapper_nvml))
        }
        Some(Err(_)) | None => (cuda, nvml),
    };
    for folder in LIBRARY_FOLDERS {
        let at = |name: &str| format!("{folder}/{name}");
        mounts.read_only(shown_cuda, at(CUDA));
        mounts.read_only(shown_cuda, at(CUDA_UNVERSIONED));
        if let Some(shown) = shown_nvml {
            mounts.read_only(shown, at(NVML));
        }
        if let Driver::Installed { others, .. } = &held.driver {
            for library in others {
                mounts.read_only(&library.file, at(&library.name));
            }
        }
    }
    let mut devices = Vec::new();
    let mut variables = held.variables.clone();
    match &held.driver {
        Driver::Simulated { state, .. } => {
            mounts.writable(state, behind(SIM_STATE));
            variables.insert("DIVVY_SIM_STATE".to_owned(), behind(SIM_STATE));
        }
        Driver::Installed {
            programs,
            devices: nodes,
            ..
        } => {
            for program in programs {
                mounts.read_only(program, program);
            }
            devices.clone_from(nodes);
        }
    }
    // What names places of the host says nothing in a container.
    for name in ["DIVVY_SLICE", "LD_PRELOAD", "LD_LIBRARY_PATH"] {
        variables.remove(name);
    }
    // An image may bring variables of its own; this one would switch its limiter off.
    if held.limiter.is_some() {
        variables.insert("DIVVY_SHIM".to_owned(), "on".to_owned());
    }
    Edits {
        variables,
        devices,
        mounts: mounts.0,
    }
}

struct Mounts(Vec<BindMount>);

impl Mounts {
    fn read_only(&mut self, host: &Path, container: impl Into<PathBuf>) {
        self.add(host, container, true);
    }

    fn writable(&mut self, host: &Path, container: impl Into<PathBuf>) {
        self.add(host, container, false);
    }

    fn add(&mut self, host: &Path, container: impl Into<PathBuf>, read_only: bool) {
        self.0.push(BindMount {
            host: host.to_owned(),
            container: container.into(),
            read_only,
        });
    }
}

impl Edits {
    /// As flags of `docker run`.
    pub fn flags(&self) -> Vec<String> {
        let mut flags = Vec::new();
        for (name, value) in &self.variables {
            flags.push(format!("--env={name}={value}"));
        }
        for Device { path, permissions } in &self.devices {
            let path = path.display();
            flags.push(format!("--device={path}:{path}:{permissions}"));
        }
        for bind in &self.mounts {
            let (host, container) = (bind.host.display(), bind.container.display());
            let mode = if bind.read_only { ",readonly" } else { "" };
            flags.push(format!(
                "--mount=type=bind,source={host},target={container}{mode}"
            ));
        }
        flags
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::job_dir::container_spec::Library;
    use crate::job_dir::container_spec::Limiter;

    pub fn files() -> JobFiles {
        JobFiles::of(Path::new("/state/jobs/7"))
    }

    pub fn simulated() -> ContainerSlice {
        ContainerSlice {
            limiter: Some(Limiter {
                slice: "/run/divvy/slices/7".into(),
                preload: "/lib/divvy/libdivvy_preload.so".into(),
                wrappers: Ok((
                    "/lib/divvy/libdivvy_cuda.so".into(),
                    "/lib/divvy/libdivvy_nvml.so".into(),
                )),
            }),
            driver: Driver::Simulated {
                library: "/lib/divvy/libdivvy_sim.so".into(),
                state: "/state/sim/state".into(),
            },
            variables: [
                ("CUDA_VISIBLE_DEVICES", "GPU-1"),
                ("DIVVY_SIM", "a100-80gb:1"),
                ("DIVVY_SLICE", "/run/divvy/slices/7"),
                ("LD_PRELOAD", "/lib/divvy/libdivvy_preload.so"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        }
    }

    pub fn installed() -> ContainerSlice {
        ContainerSlice {
            driver: Driver::Installed {
                cuda: "/usr/lib/x86_64-linux-gnu/libcuda.so.580.65".into(),
                nvml: Some("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.65".into()),
                others: vec![Library {
                    name: "libnvidia-ptxjitcompiler.so.1".into(),
                    file: "/usr/lib/x86_64-linux-gnu/libnvidia-ptxjitcompiler.so.580.65".into(),
                }],
                programs: vec!["/usr/bin/nvidia-smi".into()],
                devices: vec![
                    Device::new("/dev/nvidiactl", "rw"),
                    Device::new("/dev/nvidia0", "rw"),
                    Device::new("/dev/nvidia-caps/nvidia-cap12", "r"),
                ],
            },
            ..simulated()
        }
    }

    fn lines(edits: &Edits) -> String {
        edits.flags().join("\n") + "\n"
    }

    #[test]
    fn a_simulated_slice_adds_these_flags() {
        let expected = "\
--env=CUDA_VISIBLE_DEVICES=GPU-1
--env=DIVVY_SHIM=on
--env=DIVVY_SIM=a100-80gb:1
--env=DIVVY_SIM_STATE=/run/divvy-job/sim-state
--mount=type=bind,source=/state/jobs/7/container/mounts,target=/run/divvy-job,readonly
--mount=type=bind,source=/run/divvy/slices/7/control,target=/run/divvy-job/slice/control,readonly
--mount=type=bind,source=/run/divvy/slices/7/slots,target=/run/divvy-job/slice/slots
--mount=type=bind,source=/lib/divvy/libdivvy_preload.so,target=/run/divvy-job/libdivvy_preload.so,readonly
--mount=type=bind,source=/state/jobs/7/container/ld.so.preload,target=/etc/ld.so.preload,readonly
--mount=type=bind,source=/lib/divvy/libdivvy_sim.so,target=/run/divvy-job/libcuda_real.so.1,readonly
--mount=type=bind,source=/lib/divvy/libdivvy_sim.so,target=/run/divvy-job/libnvidia-ml_real.so.1,readonly
--mount=type=bind,source=/lib/divvy/libdivvy_cuda.so,target=/usr/lib/x86_64-linux-gnu/libcuda.so.1,readonly
--mount=type=bind,source=/lib/divvy/libdivvy_cuda.so,target=/usr/lib/x86_64-linux-gnu/libcuda.so,readonly
--mount=type=bind,source=/lib/divvy/libdivvy_nvml.so,target=/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1,readonly
--mount=type=bind,source=/lib/divvy/libdivvy_cuda.so,target=/usr/lib64/libcuda.so.1,readonly
--mount=type=bind,source=/lib/divvy/libdivvy_cuda.so,target=/usr/lib64/libcuda.so,readonly
--mount=type=bind,source=/lib/divvy/libdivvy_nvml.so,target=/usr/lib64/libnvidia-ml.so.1,readonly
--mount=type=bind,source=/state/sim/state,target=/run/divvy-job/sim-state
";
        let expected = expected.replace("/usr/lib/x86_64-linux-gnu", DEBIAN_LIBRARIES);
        assert_eq!(lines(&edits(&simulated(), &files())), expected);
    }

    #[test]
    fn an_installed_driver_comes_with_its_libraries_programs_and_devices() {
        let edits = edits(&installed(), &files());
        let text = lines(&edits);
        for line in [
            "--device=/dev/nvidia0:/dev/nvidia0:rw\n",
            "--device=/dev/nvidia-caps/nvidia-cap12:/dev/nvidia-caps/nvidia-cap12:r\n",
            "source=/usr/lib/x86_64-linux-gnu/libcuda.so.580.65,target=/run/divvy-job/libcuda_real.so.1,readonly\n",
            "source=/lib/divvy/libdivvy_cuda.so,target=/usr/lib64/libcuda.so.1,readonly\n",
            "libnvidia-ptxjitcompiler.so.580.65,target=/usr/lib64/libnvidia-ptxjitcompiler.so.1,readonly\n",
            "source=/usr/bin/nvidia-smi,target=/usr/bin/nvidia-smi,readonly\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        assert!(!text.contains("sim-state"), "{text}");
    }

    #[test]
    fn without_wrappers_the_driver_lies_there_itself_and_the_preload_holds_it() {
        let mut held = installed();
        held.limiter.as_mut().unwrap().wrappers = Err("DIVVY_FORM=preload".into());
        let text = lines(&edits(&held, &files()));
        assert!(text.contains("libcuda.so.580.65,target=/usr/lib64/libcuda.so.1,readonly"));
        assert!(text.contains("target=/etc/ld.so.preload,readonly"));
        assert!(!text.contains("_real.so"), "{text}");
    }

    #[test]
    fn where_the_hardware_holds_a_slice_the_driver_lies_there_and_no_limiter() {
        let mut held = installed();
        held.limiter = None;
        let text = lines(&edits(&held, &files()));
        assert!(text.contains("libcuda.so.580.65,target=/usr/lib64/libcuda.so.1,readonly"));
        for absent in ["ld.so.preload", "slots", "_real.so", "divvy_preload"] {
            assert!(!text.contains(absent), "{absent}: {text}");
        }
    }

    #[test]
    fn only_the_account_and_the_simulated_machine_can_be_written() {
        for held in [simulated(), installed()] {
            let edits = edits(&held, &files());
            let writable = edits.mounts.iter().filter(|bind| !bind.read_only);
            for bind in writable {
                let name = bind.container.file_name().unwrap().to_str().unwrap();
                assert!(matches!(name, "slots" | "sim-state"), "{bind:?}");
            }
            for name in ["DIVVY_SLICE", "LD_PRELOAD", "LD_LIBRARY_PATH"] {
                assert!(!edits.variables.contains_key(name), "{name}");
            }
        }
    }
}
