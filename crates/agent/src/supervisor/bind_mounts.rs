//! Bind mounts: mounts the wrappers over the driver's libraries, in a mount namespace of the job.
//!
//! ```text
//! /run/divvy-job                     a small file system of its own
//!   libcuda_real.so.1                ◄ the driver's own file, under the name that the wrapper needs
//!   libnvidia-ml_real.so.1           ◄ likewise
//!   slice/                           ◄ the slice's folder: the hooks search it first
//! /usr/lib/…/libcuda.so.580.65       ◄ the wrapper; all links to it stay as they are
//! DIVVY_HOME/sim/lib                 with simulated GPUs instead: a folder of its own, as both are one file there
//! ```
//! Nothing of this is seen outside: the namespace takes what is mounted outside later and gives nothing back. When a
//! step fails, the process goes back to the namespace from which it came.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use divvy_api::standalone::SliceMount;
use divvy_driver::load::{BEHIND, CUDA, CUDA_BEHIND, NVML, NVML_BEHIND};
use divvy_ledger::MOUNTED;
use rustix::fs::{CWD, Mode, OFlags, StatVfsMountFlags, openat, statvfs};
use rustix::mount::{
    MountFlags, MountPropagationFlags, mount, mount_bind, mount_change, mount_remount,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::ldso;
use crate::host::run_as::Identity;
use crate::job_dir::injection::Wrapper;

/// The files of a slice, and whether programs may only read them.
const SLICE_FILES: [(&str, bool); 2] = [("control", true), ("slots", false)];

/// The name by which some programs ask for the CUDA driver.
const CUDA_UNVERSIONED: &str = "libcuda.so";

/// Why the wrappers cannot be laid.
#[derive(Debug, thiserror::Error)]
pub enum BindMountError {
    #[error("only root may mount, and the job's supervisor does not run as root")]
    NotRoot,
    #[error("the dynamic loader does not find {CUDA}")]
    NoDriver,
    #[error("the bind mounts were changed: {0} is not the wrapper")]
    NotCovered(PathBuf),
    #[error("cannot {what} {}", path.display())]
    Step {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

fn failed<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl FnOnce(E) -> BindMountError {
    move |source| BindMountError::Step {
        what,
        path: path.to_owned(),
        source: source.into(),
    }
}

/// One library: its wrapper, what it needs, and where it is to lie.
#[derive(Debug, PartialEq, Eq)]
struct Library {
    wrapper: PathBuf,
    /// Name in [`BEHIND`].
    real_name: &'static str,
    /// The driver's own file.
    real: PathBuf,
    over: Vec<PathBuf>,
}

/// What is to be mounted.
#[derive(Debug, PartialEq, Eq)]
pub struct WrapperMounts {
    libraries: Vec<Library>,
    slice: PathBuf,
    slice_by_file: bool,
    /// Made anew with the libraries in it, under the names given.
    folder: Option<PathBuf>,
}

impl WrapperMounts {
    /// Finds the driver's files as the loader of a job of this process's own user will.
    ///
    /// # Errors
    /// [`BindMountError::NotRoot`], [`BindMountError::NoDriver`].
    pub fn find(wrapper: &Wrapper, library_path: Option<&str>) -> Result<Self, BindMountError> {
        Self::resolve(wrapper, |cache, name| {
            ldso::find_library_in(cache, name, library_path)
        })
    }

    /// Finds the driver's files for a job of another user: the installed ones, regardless of that user's environment,
    /// because root would search for and mount over the files that a user names.
    ///
    /// # Errors
    /// [`BindMountError::NotRoot`], [`BindMountError::NoDriver`].
    pub fn installed(wrapper: &Wrapper) -> Result<Self, BindMountError> {
        Self::resolve(wrapper, |cache, name| match &wrapper.simulated {
            // The daemon's own folder.
            Some(folder) => ldso::find_library_in(cache, name, folder.to_str()),
            None => ldso::installed(cache, name),
        })
    }

    fn resolve(
        wrapper: &Wrapper,
        files: impl Fn(&ldso::Cache, &str) -> Vec<PathBuf>,
    ) -> Result<Self, BindMountError> {
        if !rustix::process::geteuid().is_root() {
            return Err(BindMountError::NotRoot);
        }
        let cache = ldso::Cache::read();
        let library = |name, behind, file: &Path| {
            let over = files(&cache, name);
            let real = real_library(&over, behind)?;
            Some(Library {
                wrapper: file.to_owned(),
                real_name: behind,
                real,
                over,
            })
        };
        let cuda = library(CUDA, CUDA_BEHIND, &wrapper.cuda).ok_or(BindMountError::NoDriver)?;
        // Without NVML a program lacks only queries.
        let nvml = library(NVML, NVML_BEHIND, &wrapper.nvml);
        Ok(WrapperMounts {
            libraries: std::iter::once(cuda).chain(nvml).collect(),
            slice: wrapper.slice.clone(),
            slice_by_file: wrapper.slice_by_file,
            folder: wrapper.simulated.clone(),
        })
    }

    /// The mounts of [`Self::apply`], in an order in which another program can make them: nothing is bound from a folder
    /// that an earlier mount hides.
    pub fn steps(&self) -> Vec<SliceMount> {
        let bind = |source: &Path, target: PathBuf, read_only| SliceMount {
            source: Some(source.to_owned()),
            target,
            read_only,
        };
        let tmpfs = |folder: &Path| SliceMount {
            source: None,
            target: folder.to_owned(),
            read_only: true,
        };
        let behind = Path::new(BEHIND);
        let mut steps = vec![tmpfs(behind)];
        for library in &self.libraries {
            steps.push(bind(&library.real, behind.join(library.real_name), true));
        }
        match self.slice_by_file {
            true => steps.extend(SLICE_FILES.map(|(name, read_only)| {
                let target = Path::new(MOUNTED).join(name);
                bind(&self.slice.join(name), target, read_only)
            })),
            false => steps.push(bind(&self.slice, MOUNTED.into(), false)),
        }
        steps.extend(self.folder.as_deref().map(tmpfs));
        for library in &self.libraries {
            let wrapper = &library.wrapper;
            match &self.folder {
                Some(folder) => {
                    let unversioned = (library.name() == CUDA).then_some(CUDA_UNVERSIONED);
                    let names = std::iter::once(library.name()).chain(unversioned);
                    steps.extend(names.map(|name| bind(wrapper, folder.join(name), true)));
                }
                None => {
                    let over = library.over.iter();
                    steps.extend(over.map(|path| bind(wrapper, path.clone(), true)));
                }
            }
        }
        steps
    }

    /// Puts this process, and all that it starts from now on, in a namespace where the wrappers lie in front.
    ///
    /// # Errors
    /// When a step fails; the process is where it was then.
    pub fn apply(&self, user: Option<&Identity>) -> Result<(), BindMountError> {
        create_mount_point(Path::new(BEHIND))?;
        let before = SavedNamespace::save()?;
        unshare()?;
        let laid = make_propagation_slave().and_then(|()| self.mount(user));
        if laid.is_err() {
            before.restore()?;
        }
        laid
    }

    fn mount(&self, user: Option<&Identity>) -> Result<(), BindMountError> {
        let behind = Path::new(BEHIND);
        // Opened before anything hides them: the driver's file may lie in a folder that is about to be mounted over.
        let mut sources = Vec::new();
        for library in &self.libraries {
            sources.push((open_as(user, &library.real)?, open(&library.wrapper)?));
        }
        let slice = match self.slice_by_file {
            true => SLICE_FILES
                .map(|(name, _)| open(&self.slice.join(name)))
                .into_iter()
                .collect::<Result<Vec<_>, _>>()?,
            false => vec![open(&self.slice)?],
        };
        let folders: Vec<&Path> = std::iter::once(behind)
            .chain(self.folder.as_deref())
            .collect();
        for folder in &folders {
            mount_tmpfs(folder)?;
        }
        for (library, (real, wrapper)) in self.libraries.iter().zip(&sources) {
            let there = behind.join(library.real_name);
            bind_new(real, &there)?;
            remount_read_only(&there)?;
            let over = match &self.folder {
                Some(folder) => vec![folder.join(library.name())],
                None => library.over.clone(),
            };
            for path in over {
                if self.folder.is_some() {
                    bind_new(wrapper, &path)?;
                } else {
                    bind(wrapper, &path)?;
                }
                if !same(&path, &library.wrapper) {
                    return Err(BindMountError::NotCovered(path));
                }
                remount_read_only(&path)?;
            }
        }
        if let Some(folder) = &self.folder {
            let link = folder.join(CUDA_UNVERSIONED);
            symlink(CUDA, &link).map_err(failed("create", &link))?;
        }
        let mounted = Path::new(MOUNTED);
        fs::create_dir(mounted).map_err(failed("create", mounted))?;
        // Written by the job, as its user: the one mount that stays so.
        match &slice[..] {
            [folder] => bind(folder, mounted)?,
            files => {
                let open = fs::Permissions::from_mode(0o755);
                fs::set_permissions(mounted, open).map_err(failed("open", mounted))?;
                for (file, (name, read_only)) in files.iter().zip(SLICE_FILES) {
                    let there = mounted.join(name);
                    bind_new(file, &there)?;
                    if read_only {
                        remount_read_only(&there)?;
                    }
                }
            }
        }
        for folder in folders {
            let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
            mount_remount(folder, flags, c"").map_err(failed("write-protect", folder))?;
        }
        Ok(())
    }
}

/// Puts this process in a namespace where a folder lies at [`BEHIND`], and nothing else is changed: for a process in a
/// slice that the hardware holds.
///
/// # Errors
/// When a step fails; the process is where it was then.
pub fn mount_marker(marker: &Path) -> Result<(), BindMountError> {
    if !rustix::process::geteuid().is_root() {
        return Err(BindMountError::NotRoot);
    }
    let behind = Path::new(BEHIND);
    create_mount_point(behind)?;
    let before = SavedNamespace::save()?;
    unshare()?;
    let laid = make_propagation_slave()
        .and_then(|()| bind(&open(marker)?, behind))
        .and_then(|()| remount_read_only(behind));
    if laid.is_err() {
        before.restore()?;
    }
    laid
}

/// The mount point is all that is ever left outside, and it stays for the next job.
fn create_mount_point(behind: &Path) -> Result<(), BindMountError> {
    match fs::DirBuilder::new().mode(0o755).create(behind) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(failed("create", behind)(error))
        }
        _ => Ok(()),
    }
}

impl Library {
    /// The name under which programs ask for it.
    fn name(&self) -> &'static str {
        if self.real_name == CUDA_BEHIND {
            CUDA
        } else {
            NVML
        }
    }
}

/// The driver's own file: the one that the loader takes, or, in a job of a job, the one behind the wrapper that it
/// takes.
fn real_library(files: &[PathBuf], behind: &str) -> Option<PathBuf> {
    let first = files.first()?;
    let outer = Path::new(BEHIND).join(behind);
    let is_covered = is_mount_point(first) && outer.is_file();
    Some(if is_covered { outer } else { first.clone() })
}

fn is_mount_point(path: &Path) -> bool {
    use rustix::fs::{AtFlags, StatxAttributes, StatxFlags, statx};
    statx(CWD, path, AtFlags::empty(), StatxFlags::empty())
        .is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Where this process was before it went into a namespace of its own.
struct SavedNamespace {
    namespace: OwnedFd,
    folder: OwnedFd,
}

impl SavedNamespace {
    fn save() -> Result<Self, BindMountError> {
        let namespace = Path::new("/proc/thread-self/ns/mnt");
        let folder = Path::new(".");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(SavedNamespace {
            namespace: File::open(namespace)
                .map_err(failed("open", namespace))?
                .into(),
            folder: openat(CWD, folder, flags, Mode::empty()).map_err(failed("open", folder))?,
        })
    }

    /// Going back also leaves the working directory at the root.
    fn restore(self) -> Result<(), BindMountError> {
        let back =
            move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Mount));
        back.map_err(failed("leave", Path::new(BEHIND)))?;
        rustix::process::fchdir(&self.folder).map_err(failed("return to", Path::new(".")))
    }
}

/// Gives this thread a mount namespace of its own.
fn unshare() -> Result<(), BindMountError> {
    #[expect(
        deprecated,
        reason = "what is unsafe about it is sharing descriptors, which stay shared here"
    )]
    rustix::thread::unshare(UnshareFlags::NEWNS)
        .map_err(failed("create a mount namespace for", Path::new("/")))
}

/// Has it follow the one that it was made from, and not be followed.
fn make_propagation_slave() -> Result<(), BindMountError> {
    let (root, all) = (Path::new("/"), MountPropagationFlags::REC);
    mount_change(root, MountPropagationFlags::DOWNSTREAM | all)
        .map_err(failed("change the propagation of mounts below", root))
}

/// Opens a file that a job's environment names: with root's rights it could be one that its user must not reach.
fn open_as(user: Option<&Identity>, path: &Path) -> Result<OwnedFd, BindMountError> {
    match user {
        Some(user) => user.open(|| open(path)).map_err(failed("open", path))?,
        None => open(path),
    }
}

fn open(path: &Path) -> Result<OwnedFd, BindMountError> {
    openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(failed("open", path))
}

/// An empty file system on a folder, for a few names.
fn mount_tmpfs(folder: &Path) -> Result<(), BindMountError> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("divvy", folder, "tmpfs", flags, Some(c"mode=755,size=1m"))
        .map_err(failed("mount over", folder))
}

fn bind_new(source: &OwnedFd, target: &Path) -> Result<(), BindMountError> {
    File::create_new(target).map_err(failed("create", target))?;
    bind(source, target)
}

fn bind(source: &OwnedFd, target: &Path) -> Result<(), BindMountError> {
    let source = format!("/proc/self/fd/{}", source.as_raw_fd());
    mount_bind(source, target).map_err(failed("bind-mount over", target))
}

/// Makes a bind mount read-only, for root too: behind it is a file that other jobs share. Flags that the file's own
/// mount sets stay set, because a user namespace may not clear them (mount_namespaces(7)).
fn remount_read_only(path: &Path) -> Result<(), BindMountError> {
    let there = statvfs(path).map_err(failed("inspect", path))?.f_flag;
    let mut flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    for (is, stays) in [
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ] {
        flags.set(stays, there.contains(is));
    }
    mount_remount(path, flags, c"").map_err(failed("write-protect", path))
}

fn same(one: &Path, other: &Path) -> bool {
    let which = |path: &Path| rustix::fs::stat(path).map(|found| (found.st_dev, found.st_ino));
    which(one).is_ok_and(|one| which(other).is_ok_and(|other| one == other))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether this machine lets its root mount; without that these tests say so and check nothing.
    fn may_mount() -> bool {
        let may = rustix::process::geteuid().is_root()
            && std::thread::spawn(|| unshare().and_then(|()| make_propagation_slave()).is_ok())
                .join()
                .unwrap();
        if !may {
            eprintln!("skipped: nobody may make a mount namespace here");
        }
        may
    }

    /// A driver as it is installed, wrappers, and a slice.
    fn scene(dir: &Path) -> Wrapper {
        for (name, text) in [
            ("libcuda.so.99.1", "real cuda"),
            ("libnvidia-ml.so.99.1", "real nvml"),
            ("wrapper_cuda.so", "wrapper of cuda"),
            ("wrapper_nvml.so", "wrapper of nvml"),
        ] {
            fs::write(dir.join(name), text).unwrap();
        }
        for (link, target) in [
            ("libcuda.so.1", "libcuda.so.99.1"),
            ("libcuda.so", "libcuda.so.1"),
            ("libnvidia-ml.so.1", "libnvidia-ml.so.99.1"),
        ] {
            symlink(target, dir.join(link)).unwrap();
        }
        fs::create_dir(dir.join("slice")).unwrap();
        fs::write(dir.join("slice/control"), "the slice").unwrap();
        Wrapper {
            cuda: dir.join("wrapper_cuda.so"),
            nvml: dir.join("wrapper_nvml.so"),
            preload: "/no/such/preload.so".into(),
            slice: dir.join("slice"),
            slice_by_file: false,
            simulated: None,
        }
    }

    fn read(path: impl AsRef<Path>) -> String {
        fs::read_to_string(path.as_ref()).unwrap_or_else(|error| error.kind().to_string())
    }

    #[test]
    fn the_wrappers_lie_in_front_inside_and_nothing_is_seen_outside() {
        if !may_mount() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let wrapper = scene(dir.path());
        let folder = fs::canonicalize(dir.path()).unwrap();
        let inside = folder.clone();
        std::thread::spawn(move || {
            let cover = WrapperMounts::find(&wrapper, inside.to_str()).unwrap();
            cover.apply(None).unwrap();
            for name in ["libcuda.so", "libcuda.so.1", "libcuda.so.99.1"] {
                assert_eq!(read(inside.join(name)), "wrapper of cuda", "{name}");
            }
            assert_eq!(read(inside.join("libnvidia-ml.so.1")), "wrapper of nvml");
            let behind = Path::new(BEHIND);
            assert_eq!(read(behind.join(CUDA_BEHIND)), "real cuda");
            assert_eq!(read(behind.join(NVML_BEHIND)), "real nvml");
            assert_eq!(read(Path::new(MOUNTED).join("control")), "the slice");
            fs::write(Path::new(MOUNTED).join("slots"), "written").unwrap();
            fs::write(behind.join("x"), "").unwrap_err();
            let bound = [inside.join("libcuda.so.1"), behind.join(CUDA_BEHIND)];
            for file in bound {
                let error = fs::write(&file, "").unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem);
            }
            // A job of a job: its wrapper needs the driver, not the outer wrapper.
            let inner = WrapperMounts::find(&wrapper, inside.to_str()).unwrap();
            assert_eq!(inner.libraries[0].real, behind.join(CUDA_BEHIND));
            inner.apply(None).unwrap();
            assert_eq!(read(behind.join(CUDA_BEHIND)), "real cuda");
            assert_eq!(read(inside.join("libcuda.so.1")), "wrapper of cuda");
        })
        .join()
        .unwrap();
        assert_eq!(read(folder.join("libcuda.so.1")), "real cuda");
        assert_eq!(read(folder.join("slice/slots")), "written");
        assert_eq!(fs::read_dir(BEHIND).unwrap().count(), 0);
    }

    /// Makes the mounts of a list, as the page for integrators tells another program to.
    fn follow(steps: &[SliceMount]) {
        for step in steps {
            let target = &step.target;
            let Some(source) = &step.source else {
                mount_tmpfs(target).unwrap();
                continue;
            };
            if !target.exists() {
                fs::create_dir_all(target.parent().unwrap()).unwrap();
                match source.is_dir() {
                    true => fs::create_dir(target).unwrap(),
                    false => drop(File::create_new(target).unwrap()),
                }
            }
            bind(&open(source).unwrap(), target).unwrap();
            if step.read_only {
                remount_read_only(target).unwrap();
            }
        }
        for step in steps.iter().filter(|step| step.source.is_none()) {
            let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
            mount_remount(&step.target, flags, c"").unwrap();
        }
    }

    #[test]
    fn another_program_that_makes_the_listed_mounts_gets_what_a_job_gets() {
        if !may_mount() {
            return;
        }
        for (is_simulated, slice_by_file) in [(false, false), (true, false), (false, true)] {
            let dir = tempfile::tempdir().unwrap();
            let mut wrapper = Wrapper {
                slice_by_file,
                ..scene(dir.path())
            };
            fs::write(dir.path().join("slice/slots"), "").unwrap();
            let folder = fs::canonicalize(dir.path()).unwrap();
            let lib = folder.join("lib");
            if is_simulated {
                fs::create_dir(&lib).unwrap();
                for name in [CUDA, NVML] {
                    symlink(folder.join(name), lib.join(name)).unwrap();
                }
                wrapper.simulated = Some(lib.clone());
            }
            let searched = if is_simulated { lib } else { folder.clone() };
            let cover = WrapperMounts::find(&wrapper, searched.to_str()).unwrap();
            let seen = |lay: &(dyn Fn() + Sync)| {
                std::thread::scope(|scope| {
                    let seen = scope.spawn(|| {
                        lay();
                        let behind = Path::new(BEHIND);
                        let mut seen = vec![
                            read(behind.join(CUDA_BEHIND)),
                            read(behind.join(NVML_BEHIND)),
                            read(Path::new(MOUNTED).join("control")),
                            format!("{:?}", fs::write(behind.join("x"), "").is_err()),
                            format!(
                                "{:?}",
                                fs::write(Path::new(MOUNTED).join("control"), "the slice").is_ok()
                            ),
                            format!(
                                "{:?}",
                                fs::write(Path::new(MOUNTED).join("slots"), "").is_ok()
                            ),
                        ];
                        for name in [CUDA, CUDA_UNVERSIONED, NVML] {
                            let path = searched.join(name);
                            let cannot_write =
                                fs::OpenOptions::new().append(true).open(&path).is_err();
                            seen.push(format!("{} {cannot_write}", read(&path)));
                        }
                        seen
                    });
                    seen.join().unwrap()
                })
            };
            let applied = seen(&|| cover.apply(None).unwrap());
            let steps = cover.steps();
            let followed = seen(&|| {
                unshare().and_then(|()| make_propagation_slave()).unwrap();
                follow(&steps);
            });
            assert_eq!(followed, applied);
            assert_eq!(applied[0], "real cuda");
            let may_write = [(!slice_by_file).to_string(), "true".to_owned()];
            assert_eq!(applied[4..6], may_write);
            assert_eq!(applied[6], "wrapper of cuda true");
        }
    }

    #[test]
    fn a_step_that_fails_leaves_everything_as_it_was() {
        if !may_mount() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let mut wrapper = scene(dir.path());
        // The last step: by then all else is mounted.
        wrapper.slice = dir.path().join("libcuda.so");
        let folder = fs::canonicalize(dir.path()).unwrap();
        std::thread::spawn(move || {
            let namespace = || fs::read_link("/proc/thread-self/ns/mnt").unwrap();
            let before = (namespace(), std::env::current_dir().unwrap());
            let cover = WrapperMounts::find(&wrapper, folder.to_str()).unwrap();
            let error = cover.apply(None).unwrap_err();
            assert!(error.to_string().contains(MOUNTED), "{error}");
            assert_eq!((namespace(), std::env::current_dir().unwrap()), before);
            assert_eq!(read(folder.join("libcuda.so.1")), "real cuda");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn what_is_mounted_over_for_another_user_is_what_is_installed() {
        let dir = tempfile::tempdir().unwrap();
        let mut wrapper = scene(dir.path());
        match WrapperMounts::installed(&wrapper) {
            Err(BindMountError::NotRoot) => {
                eprintln!("skipped: only root looks");
                return;
            }
            Err(error) => assert!(matches!(error, BindMountError::NoDriver), "{error}"),
            Ok(cover) => {
                let mut over = cover.libraries.iter().flat_map(|library| &library.over);
                assert!(over.all(|file| !file.starts_with("/tmp")));
            }
        }
        // The folder of the simulated driver is the daemon's, and so is what lies in it.
        let folder = fs::canonicalize(dir.path()).unwrap();
        wrapper.simulated = Some(folder.clone());
        let cover = WrapperMounts::installed(&wrapper).unwrap();
        assert_eq!(cover.libraries[0].real, folder.join("libcuda.so.99.1"));
        assert_eq!(cover.folder, Some(folder));
    }

    #[test]
    fn a_machine_without_a_driver_has_nothing_to_cover() {
        let dir = tempfile::tempdir().unwrap();
        let wrapper = scene(dir.path());
        let found = WrapperMounts::find(&wrapper, Some("/no/such/folder"));
        let has_driver = !ldso::find_library(CUDA, None).is_empty();
        match found {
            Err(BindMountError::NotRoot) => assert!(!rustix::process::geteuid().is_root()),
            Err(BindMountError::NoDriver) => assert!(!has_driver),
            other => assert!(has_driver && other.is_ok()),
        }
    }
}
