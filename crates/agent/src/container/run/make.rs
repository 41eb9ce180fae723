//! Creation of the container, and all checks before its start: image, request, limiter, slice.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use bollard::Docker;
use bollard::models::{
    ContainerCreateBody, ContainerCreateResponse, ImageConfig, SystemInfo,
    SystemInfoCgroupDriverEnum,
};
use bollard::query_parameters::{CreateContainerOptions, CreateImageOptions};
use divvy_core::docker::{Mount, Options, Pull, paths};
use divvy_driver::load::BEHIND;
use futures_util::StreamExt as _;

use super::follow::CreatedContainer;
use super::signals::Signals;
use super::submitter::FoundImage;
use super::{AGAIN, ContainerJob, launch_failed, withdrawn};
use crate::container::create_request::{CreateContext, SubmitterContainer, create_request};
use crate::container::edits::{Edits, JobFiles, LD_SO_PRELOAD, edits};
use crate::container::engine::EngineFailure;
use crate::container::image::{self, Runs};
use crate::container::resolve_mounts::Resolved;
use crate::container::{cdi, elf, engine, job_files};
use crate::host::device_nodes::{DeviceGroups, SLICE};
use crate::host::error::error_chain;
use crate::job_dir::container_spec::{self, OnUnlimited};
use crate::job_dir::injection::{InjectedLimiter, InjectionMode};
use crate::job_dir::{ContainerRecord, RunOutcome};
use crate::supervisor::{StdioMode, log_record_error, write_stderr};

/// How often a name may be given to what an unanswered call has made, [`AGAIN`] apart: a minute. An engine may keep a
/// name for nothing. So more would hold a job's slice without its program.
const GIVEN: u32 = 120;

/// How it ended before it began, and what was made by then.
pub(super) type Ended<'a> = (RunOutcome, Option<CreatedContainer<'a>>);

/// The creation of a job's container, and its removal.
pub(super) struct ContainerCreation<'a> {
    pub(super) job: ContainerJob<'a>,
    /// The create call was made, so a container may exist whose id is unknown.
    pub(super) asked: bool,
    /// So often in a row the engine said that the name is given, since it was asked without an answer.
    given: u32,
    /// Of a container that must run as its submitter, once it was prepared.
    submitter: Option<SubmitterContainer>,
}

impl ContainerJob<'_> {
    /// Returns once it is to stop. A daemon that did not start this supervisor leaves a note, as it has no process to
    /// signal.
    pub(super) async fn is_unwanted(self, signals: &mut Signals) {
        let told = signals.stop();
        tokio::pin!(told);
        while !self.dir.is_stop_requested() {
            tokio::select! {
                () = &mut told => return,
                () = tokio::time::sleep(AGAIN) => {}
            }
        }
    }
}

impl<'a> ContainerCreation<'a> {
    pub(super) fn new(job: ContainerJob<'a>) -> Self {
        Self {
            job,
            asked: false,
            given: 0,
            submitter: None,
        }
    }

    /// The options of the container: the job's, or with what its submitter's container always has.
    fn options(&self) -> &Options {
        let submitter = self.submitter.as_ref();
        submitter.map_or(&self.job.plan.options, |submitter| &submitter.options)
    }

    /// A container that only has to be started.
    pub(super) async fn make(
        &mut self,
        signals: &mut Signals,
    ) -> Result<CreatedContainer<'a>, Ended<'a>> {
        let job = self.job;
        tokio::select! {
            made = self.make_at_last() => made,
            () = job.is_unwanted(signals) => Err((withdrawn(), None)),
        }
    }

    /// The same with an engine that may be away for a while. What was begun before is found by its name, and begun anew.
    async fn make_at_last(&mut self) -> Result<CreatedContainer<'a>, Ended<'a>> {
        let mut told = false;
        loop {
            let (trouble, made) = match self.make_once().await {
                Ok(made) => return Ok(made),
                Err(failed) => failed,
            };
            let why = trouble.message();
            if matches!(trouble, EngineFailure::Unavailable(_)) && self.job.may_wait() {
                if !told {
                    write_stderr(&format!("{why}; waiting for the container engine"));
                    told = true;
                }
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            write_stderr(why);
            return Err((launch_failed(125, why), made));
        }
    }

    async fn make_once(
        &mut self,
    ) -> Result<CreatedContainer<'a>, (EngineFailure, Option<CreatedContainer<'a>>)> {
        let (made, config) = self.create_anew().await.map_err(|why| (why, None))?;
        match self.look(&made, &config).await {
            Ok(()) => Ok(made),
            Err(why) => Err((why, Some(made))),
        }
    }

    /// The new container, and what its image says of itself.
    async fn create_anew(&mut self) -> Result<(CreatedContainer<'a>, ImageConfig), EngineFailure> {
        let docker = engine::connect(&self.job.plan.socket).await;
        let docker = docker.map_err(|error| {
            let why = format!(
                "the container engine at {} does not respond: {}",
                self.job.plan.socket.display(),
                engine::describe_error(&error)
            );
            match engine::is_unavailable(&error) {
                true => EngineFailure::Unavailable(why),
                false => EngineFailure::Refused(why),
            }
        })?;
        let info = docker.info().await?;
        if let Some(why) = unfit(&info) {
            return Err(why.into());
        }
        self.clear_leftover(&docker).await?;
        let image = self.image(&docker).await?;
        let files = JobFiles::of(self.job.dir.path());
        let mut edits = edits(&self.job.plan.held, &files);
        job_files::write(&edits, &files).map_err(|error| error_chain(&error))?;
        let storage = storage(&info);
        let cgroup_parent = DeviceGroups::are_restricted().then(|| jobs_slice(&info));
        self.submitter = match &self.job.plan.submitter {
            Some(submitter) => Some(
                self.prepare_submitter(&docker, submitter, &image, (&info, &storage), &mut edits)
                    .await?,
            ),
            None => None,
        };
        let around = CreateContext {
            attached: self.job.place != StdioMode::Background,
            by_cdi: self.job.plan.cdi.is_some() && engine::takes_cdi(&docker.version().await?),
            runtime: plain_runtime(&info),
            storage: &storage,
            cgroup_parent,
            submitter: None,
        };
        if around.by_cdi {
            self.offer(&edits)?;
        }
        self.look_at_volumes(&docker, &storage).await?;
        let id = self.create(&docker, &edits, around).await?;
        Ok((CreatedContainer::new(self.job, docker, id), image.config))
    }

    /// What the image says of itself, fetched where it is not here.
    async fn image(&self, docker: &Docker) -> Result<FoundImage, EngineFailure> {
        let image = &self.job.plan.image;
        let pull = self.job.plan.options.pull;
        if pull == Pull::Always {
            self.fetch(docker).await?;
        }
        let found = match docker.inspect_image(image).await {
            Err(error) if engine::status(&error) == Some(404) && pull == Pull::Missing => {
                self.fetch(docker).await?;
                docker.inspect_image(image).await
            }
            found => found,
        };
        let found = found?;
        Ok(FoundImage {
            id: found.id.unwrap_or_else(|| image.clone()),
            config: found.config.unwrap_or_default(),
        })
    }

    async fn fetch(&self, docker: &Docker) -> Result<(), EngineFailure> {
        let image = &self.job.plan.image;
        write_stderr(&format!("pulling the image {image}"));
        // Without a tag the engine would fetch every one there is.
        let name = image.rsplit('/').next().unwrap_or(image);
        let tagged = name.contains([':', '@']);
        let options = CreateImageOptions {
            from_image: Some(image.clone()),
            tag: (!tagged).then(|| "latest".to_owned()),
            ..CreateImageOptions::default()
        };
        let mut progress = docker.create_image(Some(options), None, None);
        while let Some(step) = progress.next().await {
            let failed = match step {
                Ok(step) => step.error_detail.and_then(|error| error.message),
                Err(error) if engine::is_unavailable(&error) => return Err(error.into()),
                Err(error) => Some(engine::describe_error(&error)),
            };
            if let Some(why) = failed {
                return Err(format!("cannot pull the image {image}: {why}").into());
            }
        }
        Ok(())
    }

    /// Where the slice gets in by CDI, as a file for the engine.
    fn offer(&self, edits: &Edits) -> Result<(), String> {
        let Some(folder) = &self.job.plan.cdi else {
            return Ok(());
        };
        let name = &self.job.plan.name;
        cdi::write(folder, name, &cdi::cdi(name, edits))
            .map_err(|error| format!("cannot write a CDI file to {}: {error}", folder.display()))
    }

    async fn create(
        &mut self,
        docker: &Docker,
        edits: &Edits,
        around: CreateContext<'_>,
    ) -> Result<String, EngineFailure> {
        let resolve = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let around = CreateContext {
            submitter: self.submitter.as_ref(),
            ..around
        };
        let body = create_request(self.job.spec, self.job.plan, edits, around, &resolve)
            .map_err(|kept| kept.to_string())?;
        let made = self.create_named(docker, body).await?;
        for warning in made.warnings {
            write_stderr(&warning);
        }
        Ok(made.id)
    }

    /// Creates a container with the name of the job's.
    pub(super) async fn create_named(
        &mut self,
        docker: &Docker,
        body: ContainerCreateBody,
    ) -> Result<ContainerCreateResponse, EngineFailure> {
        let options = CreateContainerOptions {
            name: Some(self.job.plan.name.clone()),
            ..CreateContainerOptions::default()
        };
        let was_asked = std::mem::replace(&mut self.asked, true);
        match docker.create_container(Some(options), body).await {
            Ok(made) => Ok(made),
            // The engine has heard what it did not answer, and is about to have made it.
            Err(error) if was_asked && engine::is_name_given(&error) => {
                self.given += 1;
                Err(is_given(self.given, engine::describe_error(&error)))
            }
            Err(error) => {
                let is_away = engine::is_unavailable(&error);
                if is_away {
                    self.given = 0;
                }
                // The result of an earlier call is not known yet.
                self.asked = was_asked || is_away;
                Err(error.into())
            }
        }
    }

    /// The facts that have to be known before its start: whether the limiter can hold it, its user, the start of its
    /// log.
    async fn look(
        &self,
        made: &CreatedContainer<'_>,
        config: &ImageConfig,
    ) -> Result<(), EngineFailure> {
        if let Some(limiter) = &self.job.plan.held.limiter {
            self.look_inside(made, config, limiter).await?;
        }
        log_record_error(self.job.dir.write_container(&ContainerRecord {
            name: self.job.plan.name.clone(),
            id: made.id.clone(),
            log_from: self.job.log_size(),
        }));
        Ok(())
    }

    /// A volume may be a folder of the host by another name: what it is was said when it was made.
    async fn look_at_volumes(
        &self,
        docker: &Docker,
        storage: &[PathBuf],
    ) -> Result<(), EngineFailure> {
        let all_kept = [&self.job.plan.kept[..], storage].concat();
        for mount in &self.job.plan.options.mounts {
            let Mount::Volume {
                name: Some(name), ..
            } = mount
            else {
                continue;
            };
            let volume = match docker.inspect_volume(name).await {
                Ok(volume) => volume,
                Err(error) if engine::status(&error) == Some(404) => continue,
                Err(error) => return Err(error.into()),
            };
            if let Some(folder) = folder_of(&volume.options) {
                let folder = fs::canonicalize(&folder).unwrap_or(folder);
                paths::source(&folder, &all_kept).map_err(|kept| {
                    let folder = folder.display();
                    format!(
                        "the volume {name} may not be mounted: it is the folder {folder}, and {}",
                        kept.why
                    )
                })?;
            }
        }
        Ok(())
    }

    /// What is mounted by name may lie elsewhere: links of the image lead there.
    async fn check_mount_symlinks(
        &self,
        files: &image::ContainerFiles<'_>,
        config: &ImageConfig,
    ) -> Result<(), EngineFailure> {
        let mounts = &self.options().mounts;
        let own = mounts.iter().map(Mount::target);
        let images = config.volumes.iter().flatten().map(String::as_str);
        let all: Vec<&str> = own.chain(images).collect();
        if all.is_empty() {
            return Ok(());
        }
        if files.podman
            && let Some((inner, outer)) = nested(mounts, config)
        {
            let why = format!(
                "{} may not be mounted: it is inside the mount at {}, where Podman does not report the targets of \
                 symlinks",
                inner.display(),
                outer.display()
            );
            return Err(why.into());
        }
        // Where they led elsewhere, a mount could lie over that.
        for ours in [BEHIND, LD_SO_PRELOAD] {
            if files.resolve_mount(Path::new(ours), true).await? != Resolved::Unchanged {
                let why = format!(
                    "containers of {} with mounts or volumes cannot be limited: the image has a symlink in the path \
                     {ours}",
                    self.job.plan.image
                );
                return Err(why.into());
            }
        }
        let filled = filled(mounts, config);
        for target in all {
            let plain = paths::plain(Path::new(target));
            let is_alone = filled.iter().all(|other| *other == plain);
            judge(target, files.resolve_mount(&plain, is_alone).await?)?;
        }
        Ok(())
    }

    async fn look_inside(
        &self,
        made: &CreatedContainer<'_>,
        config: &ImageConfig,
        limiter: &container_spec::Limiter,
    ) -> Result<(), EngineFailure> {
        let options = self.options();
        let files = image::ContainerFiles {
            socket: &self.job.plan.socket,
            docker: &made.docker,
            podman: engine::podman(&made.docker.version().await?).is_some(),
            container: &made.id,
        };
        self.check_mount_symlinks(&files, config).await?;
        let library = fs::read(&limiter.preload).ok();
        let runs = Runs {
            image: config,
            entrypoint: options.entrypoint.as_deref(),
            command: &self.job.spec.command,
            user: options.user.as_deref(),
            workdir: options.workdir.as_deref(),
            needs: library.and_then(|library| elf::glibc(&library)),
        };
        let seen = image::inspect_image(&files, &runs).await?;
        if let Some(why) = &seen.unlimited {
            let why = format!(
                "the limiter does not work in a container of {}: {why}",
                self.job.plan.image
            );
            match self.job.plan.on_unlimited {
                OnUnlimited::Deny => {
                    let why = format!(
                        "{why}; the key containers.deny-unlimited = false starts it without a limit"
                    );
                    return Err(why.into());
                }
                OnUnlimited::Warn => write_stderr(&format!("{why}; its GPU memory is not limited")),
            }
        }
        if let Some(user) = seen.user.filter(|user| *user != 0)
            && let Err(error) = chown(limiter.slice.join("slots"), Some(user), None)
        {
            write_stderr(&format!(
                "the container cannot allocate GPU memory: its user {user} cannot become the owner of the slice's \
                 ledger ({error})"
            ));
        }
        let form = match &limiter.wrappers {
            Ok(_) => InjectionMode::Wrapper,
            Err(_) => InjectionMode::Preload,
        };
        log_record_error(self.job.dir.write_limiter(&InjectedLimiter {
            form,
            failed: seen.unlimited.is_some(),
            because: seen.unlimited.or_else(|| limiter.wrappers.clone().err()),
        }));
        Ok(())
    }
}

/// Whether something may be mounted at a path that leads there.
///
/// # Errors
/// Why not.
pub(super) fn judge(target: &str, leads: Resolved) -> Result<(), String> {
    match leads {
        Resolved::Unchanged => Ok(()),
        Resolved::Target(path) => {
            let path = path.display().to_string();
            paths::target(&path).map_err(|kept| {
                format!(
                    "{target} may not be mounted: a symlink of the image leads to {path}, where {}",
                    kept.why
                )
            })
        }
        Resolved::Unknown(None) => Err(format!(
            "{target} may not be mounted: it is a symlink of the image, and Podman does not report its target. Mount \
             it at the path of the target"
        )),
        Resolved::Unknown(Some(path)) => Err(format!(
            "{target} may not be mounted together with other mounts: a symlink leads to {path}, and Podman does \
             not report the targets of the others. Mount it at {path}",
            path = path.display()
        )),
    }
}

/// What is mounted and may have links in it.
fn filled(mounts: &[Mount], config: &ImageConfig) -> Vec<PathBuf> {
    let own = mounts
        .iter()
        .filter(|mount| !matches!(mount, Mount::Tmpfs { .. }))
        .map(Mount::target);
    let images = config.volumes.iter().flatten().map(String::as_str);
    own.chain(images)
        .map(|target| paths::plain(Path::new(target)))
        .collect()
}

/// A mount that lies in a folder or volume which is mounted as well, and that one: links in there may lead it elsewhere.
fn nested(mounts: &[Mount], config: &ImageConfig) -> Option<(PathBuf, PathBuf)> {
    let outer = filled(mounts, config);
    let images = config.volumes.iter().flatten().map(String::as_str);
    let mut inner = mounts
        .iter()
        .map(Mount::target)
        .chain(images)
        .map(|target| paths::plain(Path::new(target)));
    inner.find_map(|inner| {
        let around = outer
            .iter()
            .find(|outer| inner != **outer && inner.starts_with(outer))?;
        Some((inner.clone(), around.clone()))
    })
}

/// What is to be thought of an engine that gave the name away in a call it did not answer, and has said so that often.
fn is_given(times: u32, why: String) -> EngineFailure {
    match times < GIVEN {
        true => EngineFailure::Unavailable(why),
        false => EngineFailure::Refused(why),
    }
}

/// The folder of the host that a volume of the local driver is (`docker volume create --opt o=bind --opt device=FOLDER`).
fn folder_of(options: &HashMap<String, String>) -> Option<PathBuf> {
    let says = |name: &str, word: &str| {
        let words = options.get(name).map(String::as_str).unwrap_or_default();
        words.split(',').any(|found| found == word)
    };
    let is_folder = says("o", "bind") || says("o", "rbind") || says("type", "none");
    let device = options.get("device").filter(|_| is_folder)?;
    Some(PathBuf::from(device))
}

/// Why no slice can be brought into this engine's containers.
fn unfit(info: &SystemInfo) -> Option<String> {
    let options = info.security_options.iter().flatten();
    let mut names = options.flat_map(|option| option.split(','));
    names.any(|name| name == "name=userns").then(|| {
        "the container engine maps users (userns-remap), so no container could write the slice's ledger; jobs cannot \
         run in its containers"
            .to_owned()
    })
}

/// The runtime to name: NVIDIA's would put GPUs and libraries of its own over what the slice has.
fn plain_runtime(info: &SystemInfo) -> Option<&str> {
    let default = info.default_runtime.as_deref().unwrap_or_default();
    let known = info.runtimes.as_ref()?;
    let plain = ["runc", "crun"]
        .into_iter()
        .find(|name| known.contains_key(*name));
    plain.filter(|_| default.contains("nvidia"))
}

/// The slice of jobs, as the engine's cgroup driver takes it: systemd's by name, the other by path.
fn jobs_slice(info: &SystemInfo) -> &'static str {
    match info.cgroup_driver {
        Some(SystemInfoCgroupDriverEnum::CGROUPFS) => "/divvy.slice",
        _ => SLICE,
    }
}

/// Where the engine keeps images, containers and volumes: as it says, and where that leads. Both are the same unless it lies behind a link.
/// Podman answers with its `graphRoot`.
fn storage(info: &SystemInfo) -> Vec<PathBuf> {
    let root = info.docker_root_dir.as_deref().map(PathBuf::from);
    let Some(root) = root.filter(|root| root.parent().is_some_and(|above| above != Path::new("")))
    else {
        return Vec::new();
    };
    let real = fs::canonicalize(&root).unwrap_or_else(|_| root.clone());
    vec![root, real]
}

#[cfg(test)]
mod tests {
    use divvy_core::docker::{options, words};

    use super::*;

    #[test]
    fn a_mount_in_another_is_found_whoever_asks_for_either() {
        let of = |line: &str, volumes: &[&str]| {
            let options = options(&words::split(line).unwrap()).unwrap();
            let config = ImageConfig {
                volumes: Some(volumes.iter().map(ToString::to_string).collect()),
                ..ImageConfig::default()
            };
            nested(&options.mounts, &config)
        };
        let found = |inner: &str, outer: &str| Some((inner.into(), outer.into()));
        assert_eq!(of("-v /a:/data -v /b:/data2", &["/srv"]), None);
        assert_eq!(
            of("-v /a:/data -v /b:/data/./x/", &[]),
            found("/data/x", "/data")
        );
        assert_eq!(
            of("-v vol:/data --tmpfs /data/x", &[]),
            found("/data/x", "/data")
        );
        assert_eq!(of("-v /a:/srv/x", &["/srv"]), found("/srv/x", "/srv"));
        assert_eq!(of("-v /a:/srv", &["/srv/x"]), found("/srv/x", "/srv"));
        // A new folder contains no symlink.
        assert_eq!(of("--tmpfs /data -v /b:/data/x", &[]), None);
        // The same place twice is for the engine to judge.
        assert_eq!(of("-v /a:/srv", &["/srv"]), None);
    }

    #[test]
    fn where_the_image_leads_it_decides_and_what_nobody_says_is_refused() {
        let to = |path: &str| judge("/x", Resolved::Target(path.into()));
        assert_eq!(judge("/x", Resolved::Unchanged), Ok(()));
        assert_eq!(to("/usr/lib/mine"), Ok(()));
        assert!(to("/run/divvy-job/slice").unwrap_err().contains("limiter"));
        assert!(judge("/x", Resolved::Unknown(None)).is_err());
        let beside = judge("/lib/a", Resolved::Unknown(Some("/usr/lib/a".into())));
        assert!(beside.unwrap_err().ends_with("Mount it at /usr/lib/a"));
    }

    #[test]
    fn a_name_that_is_given_for_a_minute_is_not_waited_for_any_longer() {
        let why = || "the name is in use".to_owned();
        assert_eq!(is_given(1, why()), EngineFailure::Unavailable(why()));
        assert_eq!(
            is_given(GIVEN - 1, why()),
            EngineFailure::Unavailable(why())
        );
        assert_eq!(is_given(GIVEN, why()), EngineFailure::Refused(why()));
        assert_eq!(super::AGAIN * GIVEN, std::time::Duration::from_secs(60));
    }

    #[test]
    fn nvidias_runtime_is_not_used_and_others_stay() {
        let info = |default: &str| SystemInfo {
            default_runtime: Some(default.to_owned()),
            runtimes: Some(
                ["runc", "nvidia"]
                    .map(|name| (name.to_owned(), bollard::models::Runtime::default()))
                    .into(),
            ),
            ..SystemInfo::default()
        };
        assert_eq!(plain_runtime(&info("nvidia")), Some("runc"));
        assert_eq!(plain_runtime(&info("runc")), None);
        assert_eq!(plain_runtime(&SystemInfo::default()), None);
    }

    #[test]
    fn the_engines_own_folder_is_where_it_says_and_where_that_leads() {
        let dir = tempfile::tempdir().unwrap();
        let (root, link) = (dir.path().join("root"), dir.path().join("link"));
        fs::create_dir(&root).unwrap();
        std::os::unix::fs::symlink(&root, &link).unwrap();
        let said = |root: &Path| {
            storage(&SystemInfo {
                docker_root_dir: Some(root.display().to_string()),
                ..SystemInfo::default()
            })
        };
        assert_eq!(said(&link), [link.clone(), root]);
        // Nothing would be left to mount.
        assert!(said(Path::new("/")).is_empty() && said(Path::new("")).is_empty());
        assert!(storage(&SystemInfo::default()).is_empty());
    }

    #[test]
    fn a_volume_that_is_a_folder_of_the_host_is_known_by_how_it_was_made() {
        let of = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter();
            folder_of(
                &pairs
                    .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                    .collect(),
            )
        };
        let bind = [("type", "none"), ("o", "bind"), ("device", "/run")];
        assert_eq!(of(&bind), Some("/run".into()));
        assert_eq!(
            of(&[("o", "ro,rbind"), ("device", "/x")]),
            Some("/x".into())
        );
        let nfs = [("type", "nfs"), ("o", "addr=1.2.3.4,rw"), ("device", ":/x")];
        assert_eq!(of(&nfs), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn an_engine_that_maps_users_is_unfit() {
        let info = |options: &[&str]| SystemInfo {
            security_options: Some(options.iter().map(ToString::to_string).collect()),
            ..SystemInfo::default()
        };
        assert!(unfit(&info(&["name=seccomp,profile=default", "name=userns"])).is_some());
        assert!(unfit(&info(&["name=seccomp,profile=default", "name=rootless"])).is_none());
    }
}
