//! The container of a submitter: what the supervisor forces on it, and what it checks before it creates it.
//!
//! ```text
//! options, image ──► forced options: ids, groups, no capabilities, no-new-privileges, home
//!                    a bare container of the image ──► its groups, its folders, its symlinks ──► removed
//!                    sources of mounts ──► opened as the submitter, staged
//! ```
//! The bare container has no mounts and is never started, so the engine shows the files that it will read itself. It
//! and the job's container are of the same image by its digest: a tag can be changed meanwhile.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use bollard::Docker;
use bollard::models::{ContainerCreateBody, HostConfig, ImageConfig, SystemInfo};
use divvy_core::docker::submitter::{GROUP, PASSWD, bind_around, is_working_folder};
use divvy_core::docker::{Mount, Options, Ulimit, paths};

use super::make::{ContainerCreation, judge};
use crate::container::account_files::{AccountFiles, numeric_group, numeric_group_refusal};
use crate::container::create_request::{SubmitterContainer, identity_labels};
use crate::container::edits::{BindMount, Edits, JobFiles};
use crate::container::engine::{self, EngineFailure};
use crate::container::image::{ContainerFiles, Owned};
use crate::container::job_files;
use crate::container::resolve_mounts::Resolved;
use crate::container::user_mounts::{MountRoot, SourceRequest, StagedMounts};
use crate::host::account::UserAccount;
use crate::host::error::error_chain;
use crate::host::task_limits::{max_tasks_per_job, max_tasks_per_user};
use crate::job_dir::container_spec::ContainerSubmitter;

/// Home of a submitter whose own cannot be a folder of a container.
const OTHER_HOME: &str = "/tmp";

/// Files that the engine mounts into each container itself.
const ENGINES: [&str; 3] = ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf"];

/// Files and folders that decide the groups which the engine gives to programs, also to those of `exec`.
const GROUP_PATHS: [&str; 3] = ["/", "/etc", GROUP];

/// An image, by the digest that was found for its name.
#[derive(Clone, Debug)]
pub(super) struct FoundImage {
    pub id: String,
    pub config: ImageConfig,
}

impl ContainerCreation<'_> {
    /// Forces, checks and stages; adds the account files to `edits`.
    pub(super) async fn prepare_submitter(
        &mut self,
        docker: &Docker,
        submitter: &ContainerSubmitter,
        image: &FoundImage,
        (info, storage): (&SystemInfo, &[PathBuf]),
        edits: &mut Edits,
    ) -> Result<SubmitterContainer, EngineFailure> {
        if !image.id.starts_with("sha256:") {
            let why = "the container engine does not report the digest of the image";
            return Err(why.to_owned().into());
        }
        if engine::podman(&docker.version().await?).is_some() {
            let why = "containers that run as their submitters need Docker: Podman was not tested";
            return Err(why.to_owned().into());
        }
        let mut account = UserAccount::lookup(submitter.identity.uid, submitter.identity.gid)
            .map_err(|error| error_chain(&error))?;
        let groups = submitter.identity.groups();
        let groups = groups.map_err(|error| error_chain(&error))?;
        account
            .join(groups.iter().copied())
            .map_err(|error| error_chain(&error))?;
        let home = home_inside(&account);
        let mut options = forced(&self.job.plan.options, submitter, &groups, &home);
        TaskBounds {
            counts_pids: info.pids_limit == Some(true),
            per_job: max_tasks_per_job(),
            per_user: max_tasks_per_user(),
        }
        .apply(&mut options);
        check_image(&options, &image.config)?;
        let mut points: Vec<PathBuf> = edits
            .mounts
            .iter()
            .map(|bind| bind.container.clone())
            .collect();
        points.extend(ENGINES.iter().chain(&[PASSWD, GROUP]).map(PathBuf::from));
        let files = self
            .look_at_image(docker, image, &options, &points, (&account, &home))
            .await?;
        let kept = JobFiles::of(self.job.dir.path());
        for (path, file, text) in [
            (kept.passwd(), PASSWD, &files.passwd),
            (kept.group(), GROUP, &files.group),
        ] {
            job_files::write_file(&path, text).map_err(|error| error_chain(&error))?;
            edits.mounts.push(BindMount {
                host: path,
                container: file.into(),
                read_only: true,
            });
        }
        let sources = self.stage(submitter, &account, &options, storage)?;
        let variables = [
            ("HOME", home.display().to_string()),
            ("USER", account.name.clone()),
            ("LOGNAME", account.name),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value));
        Ok(SubmitterContainer {
            options,
            image: image.id.clone(),
            sources,
            variables: variables.into(),
        })
    }

    /// Opens and stages the sources of the bind mounts.
    fn stage(
        &self,
        submitter: &ContainerSubmitter,
        account: &UserAccount,
        options: &Options,
        storage: &[PathBuf],
    ) -> Result<Vec<PathBuf>, String> {
        let (job, staged) = (self.job, StagedMounts::at(&submitter.staging));
        let home = account.home.as_deref();
        let roots = submitter.folders.iter().filter_map(|folder| {
            // A folder that is not there opens nothing.
            match folder.is_absolute() {
                true => MountRoot::open(folder).ok(),
                false => MountRoot::open_home(home?, account.uid).ok(),
            }
        });
        let roots: Vec<MountRoot> = roots.collect();
        let requests = options.mounts.iter().filter_map(|mount| match mount {
            Mount::Bind {
                source, read_only, ..
            } => Some(SourceRequest {
                path: paths::plain(&job.spec.cwd.join(source)),
                read_only: *read_only,
            }),
            Mount::Volume { .. } | Mount::Tmpfs { .. } => None,
        });
        let requests: Vec<SourceRequest> = requests.collect();
        let kept = [&job.plan.kept[..], storage].concat();
        let sources = staged
            .stage(&requests, &submitter.identity, &roots, &kept)
            .map_err(|error| error_chain(&error))?;
        staged
            .check_seen(&sources, &job.plan.socket)
            .map_err(|error| error_chain(&error))?;
        Ok(sources)
    }

    /// Creates a bare container of the image, looks into it and removes it. It has the name of the job's container, so
    /// that one that a dead supervisor left is found like that.
    async fn look_at_image(
        &mut self,
        docker: &Docker,
        image: &FoundImage,
        options: &Options,
        points: &[PathBuf],
        (account, home): (&UserAccount, &Path),
    ) -> Result<AccountFiles, EngineFailure> {
        let body = ContainerCreateBody {
            image: Some(image.id.clone()),
            // Never started; without a command of the image's the engine wants one.
            cmd: Some(vec!["-".to_owned()]),
            labels: Some(identity_labels(
                self.job.spec,
                self.job.plan,
                HashMap::new(),
            )),
            host_config: Some(HostConfig {
                network_mode: Some("none".to_owned()),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let made = self.create_named(docker, body).await?;
        let files = ContainerFiles {
            socket: &self.job.plan.socket,
            docker,
            podman: false,
            container: &made.id,
        };
        let seen = self.judge_image(&files, image, options, points).await;
        self.clear_leftover(docker).await?;
        self.asked = false;
        let (passwd, group) = seen?;
        Ok(AccountFiles::with_user(&passwd, &group, account, home))
    }

    /// Judges the image's groups and symlinks; its passwd(5) and group(5).
    async fn judge_image(
        &self,
        files: &ContainerFiles<'_>,
        image: &FoundImage,
        options: &Options,
        points: &[PathBuf],
    ) -> Result<(Vec<u8>, Vec<u8>), EngineFailure> {
        let name = &self.job.plan.image;
        for path in GROUP_PATHS {
            let owned = files.owner(path).await?;
            if owned == Owned::ByOthers || (owned == Owned::Missing && path != GROUP) {
                let why = format!(
                    "the image {name} cannot run as its submitter: users other than root can change {path} in it, or \
                     it is a symlink"
                );
                return Err(why.into());
            }
        }
        let group = files.contents(GROUP).await?.unwrap_or_default();
        if let Some(group) = numeric_group(&group) {
            return Err(numeric_group_refusal(name, &group).into());
        }
        self.judge_mount_points(files, image, options, points)
            .await?;
        let passwd = files.contents(PASSWD).await?.unwrap_or_default();
        Ok((passwd, group))
    }

    /// Refuses a mount that a symlink of the image leads over the limiter, and each mount point and working folder
    /// inside a bind mount: the engine, as root, would make it in the folder of the host.
    async fn judge_mount_points(
        &self,
        files: &ContainerFiles<'_>,
        image: &FoundImage,
        options: &Options,
        points: &[PathBuf],
    ) -> Result<(), EngineFailure> {
        let mut resolved = Vec::new();
        for mount in &options.mounts {
            let target = paths::plain(Path::new(mount.target()));
            let leads = files.resolve_mount(&target, true).await?;
            judge(mount.target(), leads.clone())?;
            let mut mount = mount.clone();
            if let Resolved::Target(path) = leads {
                let (Mount::Bind { target, .. }
                | Mount::Volume { target, .. }
                | Mount::Tmpfs { target, .. }) = &mut mount;
                *target = path.display().to_string();
            }
            resolved.push(mount);
        }
        let is_bind = |mount: &Mount| matches!(mount, Mount::Bind { .. });
        if !resolved.iter().any(is_bind) {
            return Ok(());
        }
        let mut all: Vec<PathBuf> = points.to_vec();
        let volumes = image.config.volumes.iter().flatten();
        all.extend(volumes.map(|volume| paths::plain(Path::new(volume))));
        all.push(working_folder(options, &image.config));
        let mut leads: Vec<PathBuf> = resolved
            .iter()
            .map(|mount| paths::plain(Path::new(mount.target())))
            .collect();
        for point in all {
            leads.push(match files.resolve_mount(&point, true).await? {
                Resolved::Target(path) => path,
                Resolved::Unchanged | Resolved::Unknown(_) => point,
            });
        }
        match leads
            .iter()
            .find_map(|point| bind_around(&resolved, point).map(|outer| (point.clone(), outer)))
        {
            Some((inner, outer)) => Err(inside(&inner, &outer).into()),
            None => Ok(()),
        }
    }
}

/// The bounds on processes and threads that a process job of the user has too.
#[derive(Clone, Copy, Debug)]
struct TaskBounds {
    /// The engine's kernel counts the tasks of a control group.
    counts_pids: bool,
    per_job: Option<u64>,
    per_user: Option<u64>,
}

impl TaskBounds {
    fn apply(self, options: &mut Options) {
        let number = |most: Option<u64>| most.and_then(|most| i64::try_from(most).ok());
        match self.counts_pids {
            true => {
                let given = options.pids_limit.filter(|given| *given > 0);
                let bounds = given.into_iter().chain(number(self.per_job));
                options.pids_limit = bounds.min();
            }
            // Counts all tasks of the user, in containers or not.
            false => {
                let limit = |most| Ulimit {
                    name: "nproc".to_owned(),
                    soft: most,
                    hard: most,
                };
                options.ulimits.extend(number(self.per_user).map(limit));
            }
        }
    }
}

/// What the image itself says, by text.
fn check_image(options: &Options, config: &ImageConfig) -> Result<(), String> {
    let folder = working_folder(options, config);
    if !is_working_folder(&folder) {
        return Err(format!(
            "the image cannot run as its submitter: a program cannot work in {}",
            folder.display()
        ));
    }
    let volumes = config.volumes.iter().flatten();
    let volumes = volumes.map(|volume| paths::plain(Path::new(volume)));
    for point in volumes.chain([folder]) {
        if let Some(outer) = bind_around(&options.mounts, &point) {
            return Err(inside(&point, &outer));
        }
    }
    Ok(())
}

fn inside(inner: &Path, outer: &Path) -> String {
    format!(
        "{} is inside the mount at {}, where the container engine would create it as root; name the mount itself as \
         the working folder (-w {}), or mount the folder somewhere else",
        inner.display(),
        outer.display(),
        outer.display()
    )
}

/// The folder in which the container's program starts.
fn working_folder(options: &Options, config: &ImageConfig) -> PathBuf {
    let given = options.workdir.as_deref();
    let folder = given.or(config.working_dir.as_deref()).unwrap_or_default();
    Path::new("/").join(folder)
}

/// Where a submitter's home is in the container: at its path on the host.
fn home_inside(account: &UserAccount) -> PathBuf {
    let home = account.home.as_deref().map(paths::plain);
    let home = home.filter(|home| paths::target(&home.display().to_string()).is_ok());
    home.unwrap_or_else(|| OTHER_HOME.into())
}

/// The options with what a submitter's container always has. Where nothing else is mounted at or around its home, the
/// home is an empty one in memory.
fn forced(
    options: &Options,
    submitter: &ContainerSubmitter,
    groups: &[u32],
    home: &Path,
) -> Options {
    let mut forced = options.clone();
    let others = groups.iter().filter(|gid| **gid != submitter.identity.gid);
    forced.group_add = others.map(ToString::to_string).collect();
    forced.user = Some(submitter.user());
    forced.cap_drop = vec!["ALL".to_owned()];
    forced.no_new_privileges = true;
    // The engine's own default may be one that others can join.
    forced.ipc = Some(options.ipc.clone().unwrap_or_else(|| "private".to_owned()));
    let mut targets = options
        .mounts
        .iter()
        .map(|mount| paths::plain(Path::new(mount.target())));
    if home != Path::new(OTHER_HOME) && !targets.any(|target| home.starts_with(&target)) {
        let (uid, gid) = (submitter.identity.uid, submitter.identity.gid);
        forced.mounts.push(Mount::Tmpfs {
            target: home.display().to_string(),
            options: format!("nosuid,nodev,exec,mode=0700,uid={uid},gid={gid}"),
        });
    }
    forced
}

#[cfg(test)]
mod tests {
    use divvy_core::docker::{options, words};

    use super::*;
    use crate::host::run_as::Identity;

    fn submitter() -> ContainerSubmitter {
        ContainerSubmitter {
            identity: Identity {
                uid: 1001,
                gid: 1002,
                groups: None,
                account: None,
            },
            folders: Vec::new(),
            staging: PathBuf::new(),
        }
    }

    fn of(line: &str, home: &str) -> Options {
        let options = options(&words::split(line).unwrap()).unwrap();
        forced(&options, &submitter(), &[1002, 100, 77], Path::new(home))
    }

    #[test]
    fn whatever_the_flags_say_the_ids_are_the_submitters_and_no_capability_stays() {
        for line in ["", "-u 0:0 --group-add 0 --cap-drop CHOWN", "-u root"] {
            let forced = of(line, "/home/lee");
            assert_eq!(forced.user.as_deref(), Some("1001:1002"));
            assert_eq!(forced.group_add, ["100", "77"]);
            assert_eq!(forced.cap_drop, ["ALL"]);
            assert!(forced.no_new_privileges);
            assert_eq!(forced.ipc.as_deref(), Some("private"));
        }
        assert_eq!(of("--ipc none", "/x").ipc.as_deref(), Some("none"));
    }

    #[test]
    fn the_tasks_of_a_container_are_bounded_as_those_of_a_process_job() {
        let bounded = |line: &str, counts_pids| {
            let mut options = of(line, "/x");
            TaskBounds {
                counts_pids,
                per_job: Some(100),
                per_user: Some(200),
            }
            .apply(&mut options);
            (options.pids_limit, options.ulimits)
        };
        for (line, limit) in [
            ("", 100),
            ("--pids-limit 10", 10),
            ("--pids-limit 1000", 100),
            ("--pids-limit -1", 100),
            ("--pids-limit 0", 100),
        ] {
            assert_eq!(bounded(line, true), (Some(limit), Vec::new()), "{line}");
        }
        let (pids, ulimits) = bounded("", false);
        assert_eq!(
            (pids, ulimits[0].name.as_str(), ulimits[0].hard),
            (None, "nproc", 200)
        );
    }

    #[test]
    fn the_home_is_in_memory_unless_a_mount_is_there() {
        let has_home = |line: &str, home: &str| {
            let mounts = of(line, home).mounts;
            mounts.iter().any(|mount| {
                matches!(mount, Mount::Tmpfs { target, options }
                    if target == home && options.contains("uid=1001"))
            })
        };
        assert!(has_home(
            "-v /data:/data -v /data/x:/home/lee/x",
            "/home/lee"
        ));
        assert!(!has_home("-v /home/lee:/home/lee", "/home/lee"));
        assert!(!has_home("-v /data/homes:/home", "/home/lee"));
        assert!(!has_home("", OTHER_HOME));
        let account = |home: Option<&str>| UserAccount {
            uid: 1001,
            gid: 1002,
            name: "lee".into(),
            groups: Vec::new(),
            home: home.map(PathBuf::from),
        };
        for (home, inside) in [
            (Some("/home/lee"), "/home/lee"),
            (Some("/"), OTHER_HOME),
            (Some("/dev/x"), OTHER_HOME),
            (None, OTHER_HOME),
        ] {
            assert_eq!(home_inside(&account(home)), Path::new(inside), "{home:?}");
        }
    }

    #[test]
    fn a_working_folder_or_volume_inside_a_bind_mount_is_refused_and_proc_as_well() {
        let image = |workdir: &str, volumes: &[&str]| ImageConfig {
            working_dir: Some(workdir.to_owned()),
            volumes: Some(volumes.iter().map(ToString::to_string).collect()),
            ..ImageConfig::default()
        };
        let judged = |line: &str, image: &ImageConfig| {
            let options = options(&words::split(line).unwrap()).unwrap();
            check_image(&options, image)
        };
        for (line, workdir, volumes) in [
            ("-v /data:/work", "/work/new", &[][..]),
            ("-v /data:/work -w /work/../work/new", "/", &[]),
            ("-v /data:/work", "/", &["/work/cache"]),
            ("", "/proc/self/fd/7", &[]),
            ("", "proc/self/fd/7", &[]),
        ] {
            assert!(
                judged(line, &image(workdir, volumes)).is_err(),
                "{line} {workdir}"
            );
        }
        for (line, workdir, volumes) in [
            ("-v /data:/work", "/work", &["/work2"][..]),
            ("-v /data:/work -w /work", "/work/new", &[]),
            ("--tmpfs /work", "/work/new", &[]),
            ("", "", &[]),
        ] {
            assert_eq!(
                judged(line, &image(workdir, volumes)),
                Ok(()),
                "{line} {workdir}"
            );
        }
    }
}
