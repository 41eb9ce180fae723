//! Bind mounts of a submitter's container: links, exchanged folders, other owners' files, mounts below mounts.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{RenameFlags, renameat_with};
use rustix::mount::{UnmountFlags, unmount};
use tempfile::TempDir;

use super::*;

const UID: u32 = 60_106;

/// Folders `data` and `home`, the second the submitter's, and `closed`, which only root may enter.
struct Scene {
    dir: TempDir,
    roots: Vec<MountRoot>,
    submitter: Identity,
}

impl Scene {
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root can become another user and mount");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        for (name, mode) in [
            ("", 0o755),
            ("data", 0o755),
            ("data/closed", 0o700),
            ("home", 0o755),
            ("closed", 0o700),
            ("closed/open", 0o755),
            ("engine", 0o755),
            ("engine/volumes", 0o755),
        ] {
            let path = dir.path().join(name);
            fs::create_dir_all(&path).unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        }
        for file in [
            "data/file",
            "home/file",
            "data/closed/file",
            "closed/open/secret",
        ] {
            fs::write(dir.path().join(file), file).unwrap();
        }
        chown(dir.path().join("home"), Some(UID), Some(UID)).unwrap();
        let roots = vec![
            MountRoot::open(&dir.path().join("data")).unwrap(),
            MountRoot::open_home(&dir.path().join("home"), UID).unwrap(),
        ];
        Some(Self {
            dir,
            roots,
            submitter: Identity {
                uid: UID,
                gid: UID,
                groups: Some(vec![UID]),
                account: None,
            },
        })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    fn staged(&self) -> StagedMounts {
        StagedMounts::at(&self.at("staged/divvy-7"))
    }

    fn stage(&self, sources: &[&str]) -> Result<Vec<PathBuf>, MountError> {
        let requests: Vec<SourceRequest> = sources
            .iter()
            .map(|name| SourceRequest {
                path: self.at(name.trim_end_matches(":ro")),
                read_only: name.ends_with(":ro"),
            })
            .collect();
        let kept = [self.at("engine")];
        self.staged()
            .stage(&requests, &self.submitter, &self.roots, &kept)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.staged().clear();
    }
}

#[test]
fn what_is_staged_is_what_the_submitter_named_and_goes_without_a_trace() {
    let Some(scene) = Scene::new() else { return };
    let staged = scene
        .stage(&["data", "home/file", "home:ro"])
        .expect("all three are open to the submitter");
    assert_eq!(
        fs::read_to_string(staged[0].join("file")).unwrap(),
        "data/file"
    );
    assert_eq!(fs::read_to_string(&staged[1]).unwrap(), "home/file");
    fs::write(staged[0].join("new"), "").unwrap();
    let refused = fs::write(staged[2].join("new"), "").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ReadOnlyFilesystem);
    let mode = fs::metadata(scene.at("staged/divvy-7")).unwrap().mode();
    assert_eq!(mode & 0o777, 0o700);
    let flags = fstatvfs(File::open(&staged[0]).unwrap()).unwrap().f_flag;
    assert!(flags.contains(StatVfsMountFlags::NOSUID | StatVfsMountFlags::NODEV));
    assert!(scene.staged().has(3) && !scene.staged().has(4));
    let me = std::process::id();
    assert!(is_mount_point(me, &staged[0]));

    // Again, as after a supervisor that died: nothing is mounted twice.
    scene.stage(&["data"]).unwrap();
    assert!(!scene.staged().has(2));
    let sweep = |living: &str| {
        let living = BTreeSet::from([living.to_owned()]);
        for folder in stale(&scene.at("staged"), &living) {
            remove_mounts_in(&folder);
        }
    };
    sweep("divvy-7");
    assert!(scene.staged().has(1));
    sweep("divvy-8");
    assert!(!scene.at("staged/divvy-7").exists());
    for kept in ["data/file", "data/new", "home/file"] {
        assert!(scene.at(kept).exists(), "{kept}");
    }
    assert!(scene.staged().has(0));
}

#[test]
fn symlinks_lead_from_one_opened_folder_to_another_and_nowhere_else() {
    let Some(scene) = Scene::new() else { return };
    for (name, target) in [
        ("home/to-data", scene.at("data")),
        ("home/relative", PathBuf::from("../data/./file")),
        ("home/out", scene.at("closed/open")),
        ("home/up", PathBuf::from("../closed/open")),
        ("home/root", PathBuf::from("/proc/self/root")),
        ("home/etc", PathBuf::from("/etc")),
        ("home/loop", PathBuf::from("loop")),
        ("home/engine", scene.at("engine")),
    ] {
        symlink(target, scene.at(name)).unwrap();
    }
    for (source, holds) in [
        ("home/to-data/file", "data/file"),
        ("home/relative", "data/file"),
    ] {
        let staged = scene.stage(&[source]).unwrap();
        assert_eq!(fs::read_to_string(&staged[0]).unwrap(), holds, "{source}");
    }
    for source in [
        "home/out",
        "home/up",
        "home/root/etc",
        "home/etc/shadow",
        "home/engine",
    ] {
        let refused = scene.stage(&[source]).unwrap_err();
        assert!(
            matches!(refused, MountError::Outside { .. }),
            "{source}: {refused}"
        );
        assert!(!scene.at("staged/divvy-7").exists(), "{source}");
    }
    let refused = scene.stage(&["home/loop"]).unwrap_err();
    assert!(matches!(refused, MountError::Links { .. }), "{refused}");
}

#[test]
fn a_source_is_opened_with_the_submitters_rights_and_is_a_folder_or_a_file() {
    let Some(scene) = Scene::new() else { return };
    for source in ["data/closed", "data/closed/file", "data/missing"] {
        let refused = scene.stage(&[source]).unwrap_err();
        assert!(
            matches!(refused, MountError::Open { .. }),
            "{source}: {refused}"
        );
    }
    let _socket = std::os::unix::net::UnixListener::bind(scene.at("data/sock")).unwrap();
    let refused = scene.stage(&["data/sock"]).unwrap_err();
    assert!(matches!(refused, MountError::Kind { .. }), "{refused}");
    // The first could be staged; nothing of it stays.
    assert!(scene.stage(&["data", "data/sock"]).is_err());
    assert!(!scene.at("staged/divvy-7").exists());
    assert!(MountRoot::open_home(&scene.at("data"), UID).is_err());
}

#[test]
fn folders_of_the_engine_are_refused_by_whatever_name() {
    let Some(scene) = Scene::new() else { return };
    let alias = scene.at("data/alias");
    fs::create_dir(&alias).unwrap();
    for (source, inside) in [
        ("engine", "volumes"),
        ("engine/volumes", ""),
        ("", "engine/volumes"),
    ] {
        mount_bind(scene.at(source), &alias).unwrap();
        let named = Path::new("data/alias").join(inside);
        let refused = scene.stage(&[named.to_str().unwrap()]);
        let above = scene.stage(&["data"]);
        unmount(&alias, UnmountFlags::DETACH).unwrap();
        let refused = refused.unwrap_err();
        assert!(
            matches!(refused, MountError::Kept { .. }),
            "{source}: {refused}"
        );
        assert!(
            matches!(above, Err(MountError::MountBelow { .. })),
            "{source}"
        );
    }
    scene.stage(&["data"]).expect("nothing is mounted below it");
}

#[test]
fn an_engine_in_another_mount_namespace_is_found() {
    let Some(scene) = Scene::new() else { return };
    let staged = scene.stage(&["data"]).unwrap();
    let socket = scene.at("sock");
    let _engine = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let seen = |staged: &[PathBuf]| scene.staged().check_seen(staged, &socket);
    // This process is the engine.
    seen(&staged).unwrap();
    assert!(matches!(
        seen(&[scene.at("home")]),
        Err(MountError::Unseen { .. })
    ));
    let without_engine = scene.staged().check_seen(&staged, &scene.at("none"));
    assert!(matches!(without_engine, Err(MountError::Unseen { .. })));
}

#[test]
fn a_source_that_is_exchanged_all_the_time_is_never_one_that_the_submitter_may_not_have() {
    let Some(scene) = Scene::new() else { return };
    fs::create_dir_all(scene.at("home/a/deep")).unwrap();
    fs::write(scene.at("home/a/deep/mine"), "").unwrap();
    symlink(scene.at("closed/open"), scene.at("home/b")).unwrap();
    fs::create_dir(scene.at("closed/open/deep")).unwrap();
    let done = AtomicBool::new(false);
    let (mut opened, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let (a, b) = (scene.at("home/a"), scene.at("home/b"));
                renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).unwrap();
            }
        });
        for round in 0..400 {
            let source = ["home/a", "home/a/deep"][round % 2];
            match scene.stage(&[source]) {
                Ok(staged) => {
                    let shown: Vec<_> = fs::read_dir(&staged[0]).unwrap().flatten().collect();
                    let name = shown[0].file_name();
                    assert!(name == "mine" || name == "deep", "{name:?}");
                    assert!(!staged[0].join("secret").exists());
                    opened += 1;
                }
                Err(MountError::Outside { .. }) => refused += 1,
                Err(other) => panic!("{other}"),
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(
        opened > 0 && refused > 0,
        "{opened} opened, {refused} refused"
    );
}
