//! Containers of ordinary users, which run as their submitters (`as = "submitter"`): three uses that work, and attacks.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use divvy_e2e::engine::door::{Call, Fault, FaultProxy};
use divvy_e2e::engine::{Engine, IMAGE, USERS_IMAGE};
use divvy_e2e::{CommandOutput, Daemon, GIB, Home, until};
use divvy_testkit::Bounded as _;
use tempfile::TempDir;

use super::{ENGINE, got, reports};

/// What only root may read; an attack that prints it is through.
const SECRET: &str = "the-secret-of-root";

/// A user of this machine for one test.
struct Account {
    name: String,
    uid: u32,
}

impl Account {
    /// `None`, said loudly, where this machine lets a test make no user.
    fn new(home: &Path, number: u32) -> Option<Self> {
        let account = Self {
            name: format!("divvy-e2e-{}-{number}", std::process::id()),
            uid: 60_000 + std::process::id() % 1_000 * 5 + number,
        };
        let status = Command::new("useradd")
            .args(["--no-create-home", "--user-group", "--shell", "/bin/sh"])
            .arg("--home-dir")
            .arg(home)
            .args(["--uid", &account.uid.to_string(), &account.name])
            .status_bounded();
        if !status.is_ok_and(|status| status.success()) {
            eprintln!(
                "SKIPPED, NOT TESTED: containers of users. It takes root and useradd to have a user."
            );
            return None;
        }
        fs::create_dir(home).expect("its place is free");
        chown(home, Some(account.uid), None).expect("root may");
        fs::set_permissions(home, fs::Permissions::from_mode(0o700)).expect("root may");
        Some(account)
    }

    fn gid(&self) -> u32 {
        let said = Command::new("id")
            .args(["-g", &self.name])
            .output_bounded()
            .expect("id starts");
        let said = String::from_utf8_lossy(&said.stdout);
        said.trim().parse().expect("a number")
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let _ = Command::new("userdel").arg(&self.name).status_bounded();
    }
}

/// Waits for a command of the machine.
trait StatusBounded {
    fn status_bounded(&mut self) -> std::io::Result<std::process::ExitStatus>;
}

impl StatusBounded for Command {
    fn status_bounded(&mut self) -> std::io::Result<std::process::ExitStatus> {
        self.stdin(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        self.wait_bounded()
    }
}

/// A daemon for all users, one of them, and these folders:
///
/// ```text
/// data/            opened for mounts
///   own/           the user's
///   closed/        root's alone
/// home/            the user's home, opened too
/// closed/open/     which the user cannot reach; secret in it
/// ```
struct Scene {
    account: Account,
    daemon: Option<Daemon>,
    home: Home,
    engine: Arc<Engine>,
    folder: TempDir,
}

impl Scene {
    fn new(number: u32) -> Option<Self> {
        let engine = Engine::shared(ENGINE)?;
        let variables = engine.variables();
        Self::with(number, engine, &variables)
    }

    /// One whose calls of the engine a proxy can lose. The proxy must outlive it.
    fn behind_proxy(number: u32) -> Option<(FaultProxy, Self)> {
        let engine = Engine::shared(ENGINE)?;
        let door = FaultProxy::before(&engine);
        let variables = [("DOCKER_HOST", door.host())];
        let scene = Self::with(number, engine, &variables)?;
        Some((door, scene))
    }

    fn with(
        number: u32,
        engine: Arc<Engine>,
        variables: &[(&'static str, String)],
    ) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let at = |name: &str| folder.path().join(name);
        for (name, mode) in [
            ("", 0o755),
            ("data", 0o755),
            ("data/own", 0o755),
            ("data/closed", 0o700),
            ("closed", 0o700),
            ("closed/open", 0o755),
        ] {
            fs::create_dir_all(at(name)).expect("the folder is ours");
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(at(name), mode).expect("the folder is ours");
        }
        for file in ["data/closed/secret", "closed/open/secret"] {
            fs::write(at(file), SECRET).expect("the folder is ours");
        }
        let account = Account::new(&at("home"), number)?;
        chown(at("data/own"), Some(account.uid), None).expect("root may");
        let home = Home::new("a100-80gb:1").variable("DIVVY_FORM", "");
        let home = variables
            .iter()
            .fold(home, |home, (name, value)| home.variable(name, value));
        // Opened as well: what lies there must be refused for what it is, and not for where it is.
        let divvy = home.path().parent().expect("it is in a folder");
        let roles = format!(
            "containers = {{ role = \"user\", as = \"submitter\", mounts = [{:?}, \"~\", {:?}, {:?}] }}\n",
            at("data"),
            engine.folder(),
            divvy
        );
        fs::write(at("roles.toml"), roles).expect("the folder is ours");
        let mut scene = Self {
            account,
            daemon: None,
            home,
            engine,
            folder,
        };
        scene.start();
        Some(scene)
    }

    fn start(&mut self) {
        let roles = self.at("roles.toml");
        let roles = format!("listen.access={}", roles.display());
        self.daemon = Some(self.home.daemon(&["--system", "--set", &roles]));
    }

    fn at(&self, name: &str) -> PathBuf {
        let folder = self.folder.path().canonicalize();
        folder.expect("it is there").join(name)
    }

    /// `divvy WORDS…` as the user.
    fn divvy(&self, words: &[&str]) -> CommandOutput {
        let mut command = self.home.command("setpriv");
        let (uid, gid) = (self.account.uid, self.account.gid());
        command.args([format!("--reuid={uid}"), format!("--regid={gid}")]);
        command.args(["--init-groups", "--no-new-privs"]);
        command.arg(self.home.program("divvy")).args(words);
        command.env("HOME", self.at("home"));
        let output = command.output_bounded().expect("setpriv starts");
        CommandOutput::new(words.join(" "), &output)
    }

    /// Places in flags of a container.
    fn filled(&self, text: &str) -> String {
        let places = [
            ("{data}", self.at("data")),
            ("{home}", self.at("home")),
            ("{closed}", self.at("closed")),
            ("{engine}", self.engine.folder().to_owned()),
            ("{divvy}", self.home.path().to_owned()),
        ];
        let named = places.iter().fold(text.to_owned(), |text, (name, path)| {
            text.replace(name, path.to_str().expect("a plain name"))
        });
        named.replace("{uid}", &self.account.uid.to_string())
    }

    fn submit(&self, image: &str, flags: &str, command: &[&str]) -> CommandOutput {
        let flags = self.filled(flags);
        let slice = ["submit", "--parsable", "--gpu-memory", "4G"];
        let container = ["--docker", image, "--docker-args", &flags, "--"];
        self.divvy(&[&slice[..], &container, command].concat())
    }

    /// Runs a container to its end; its log and exit code.
    fn run(&self, image: &str, flags: &str, script: &str) -> (String, Option<i32>) {
        let submitted = self.submit(image, flags, &["sh", "-c", script]).ok();
        let id = submitted.stdout.trim();
        let job = self.home.ended(id);
        (self.home.log(id), job.exit_code)
    }

    /// An image with these files over [`IMAGE`]'s, and these changes.
    fn image(&self, name: &str, files: &dyn Fn(&Path), changes: &[&str]) {
        let layer = tempfile::tempdir().expect("a folder can be made");
        let root = layer.path().join("root");
        fs::create_dir(&root).expect("the folder is ours");
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).expect("it is ours");
        files(&root);
        let made = self.engine.ask(&["create", IMAGE, "true"]);
        let (from, to) = (format!("{}/.", root.display()), format!("{made}:/"));
        let _ = self.engine.ask(&["cp", "--archive", &from, &to]);
        let mut commit = vec!["commit"];
        commit.extend(changes.iter().flat_map(|change| ["--change", change]));
        commit.extend([&*made, name]);
        let _ = self.engine.ask(&commit);
        let _ = self.engine.ask(&["rm", &made]);
    }

    /// Nothing of any job is left: no container, and no mount that was staged.
    fn nothing_stays(&self) {
        until("no container and no mount is left", || {
            let list = ["ps", "--all", "--no-trunc", "--filter", "label=divvy.job"];
            let containers = self
                .engine
                .ask(&[&list[..], &["--format", "{{.Mounts}}"]].concat());
            let home = self.home.path().to_str().expect("a plain name");
            let mounts = fs::read_dir(self.home.path().join("mounts")).expect("the daemon made it");
            let info = fs::read_to_string("/proc/self/mountinfo").expect("Linux has it");
            let staged = self.home.path().join("mounts");
            let is_mounted = info.contains(staged.to_str().expect("a plain name"));
            (!containers.contains(home) && mounts.count() == 0 && !is_mounted).then_some(())
        });
        let secrets = ["data/closed/secret", "closed/open/secret"];
        assert!(secrets.iter().all(|file| self.at(file).exists()));
    }
}

#[test]
fn a_users_container_has_the_users_files_rights_and_gpu() {
    let Some(scene) = Scene::new(0) else { return };
    let (uid, gid) = (scene.account.uid, scene.account.gid());

    // A data folder.
    let script = "echo x >own/result; touch new; cat closed/secret; cudarc_probe fill; cat /proc/self/status";
    let (log, _) = scene.run(IMAGE, "-v {data}:/data -w /data", script);
    let result = fs::metadata(scene.at("data/own/result")).expect("the container wrote it");
    assert_eq!((result.uid(), result.gid()), (uid, gid));
    assert!(
        !scene.at("data/new").exists() && !log.contains(SECRET),
        "{log}"
    );
    let report = &reports(&log)[0];
    assert!((3 * GIB..4 * GIB).contains(&got(report)), "{report}");
    for line in [
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
        &format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}"),
        &format!("Gid:\t{gid}\t{gid}\t{gid}\t{gid}"),
        &format!("Groups:\t{gid} \n"),
    ] {
        assert!(log.contains(line), "{line}\n{log}");
    }

    // The home.
    let script = "cd; touch made; echo $HOME $USER; id -un";
    let (log, code) = scene.run(IMAGE, "-v {home}:{home}", script);
    let home = scene.at("home");
    let name = &scene.account.name;
    assert_eq!(log, format!("{} {name}\n{name}\n", home.display()));
    assert_eq!(
        (code, fs::metadata(home.join("made")).unwrap().uid()),
        (Some(0), uid)
    );

    // An image with a user and a working folder of its own.
    let script = "pwd; touch mine; id -u; cd; touch cache; ls";
    let (log, code) = scene.run(USERS_IMAGE, "", script);
    assert_eq!((log, code), (format!("/tmp\n{uid}\ncache\n"), Some(0)));
    scene.nothing_stays();
}

/// How an attack ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// The daemon refuses the submission.
    Refused,
    /// The container is not started; the log has these words.
    NotStarted(&'static str),
    /// It runs, and gains nothing.
    Harmless,
}

use Held::{Harmless, NotStarted, Refused};

/// Prints the secret where it can be read.
const READ: &str = "cat /s /s/secret /s/*/secret /s/open/secret";
/// Prints the secret for a program with another user or group than the submitter's.
const IDS: &str = "test \"$(id -u)\" = UID && test \"$(id -G)\" = GID || echo the-secret-of-root";

/// Image, flags, script.
const ATTACKS: &[(&str, &str, &str, Held)] = &[
    // Folders of the host.
    (IMAGE, "-v {closed}/open:/s", READ, Refused),
    (IMAGE, "-v {closed}/open/secret:/s", READ, Refused),
    (IMAGE, "-v /etc/shadow:/s", READ, Refused),
    (IMAGE, "-v /:/s", READ, Refused),
    (IMAGE, "-v {data}/../closed/open:/s", READ, Refused),
    (IMAGE, "-v {data}/own/../../closed/open:/s", READ, Refused),
    (IMAGE, "-v /proc/self/root:/s", READ, Refused),
    (IMAGE, "-v /proc/1/root{closed}/open:/s", READ, Refused),
    (
        IMAGE,
        "--mount type=bind,src={closed}/open,dst=/s",
        READ,
        Refused,
    ),
    (
        IMAGE,
        "--mount=type=bind,readonly,target=/s,source={closed}/open",
        READ,
        Refused,
    ),
    (
        IMAGE,
        "--mount type=bind,src={data},dst=/s,bind-propagation=shared",
        READ,
        Refused,
    ),
    (IMAGE, "-v {data}:/s:shared", READ, Refused),
    (IMAGE, "-v {data}:/s:Z", READ, Refused),
    (
        IMAGE,
        "-v {data}/closed:/s",
        READ,
        NotStarted("Permission denied"),
    ),
    (
        IMAGE,
        "-v {data}/closed/secret:/s",
        READ,
        NotStarted("Permission denied"),
    ),
    (IMAGE, "-v {data}:/s", READ, Harmless),
    // Through links of the user's own.
    (
        IMAGE,
        "-v {home}/out:/s",
        READ,
        NotStarted("below no folder for mounts"),
    ),
    (
        IMAGE,
        "-v {home}/root{closed}/open:/s",
        READ,
        NotStarted("below no folder for mounts"),
    ),
    (
        IMAGE,
        "-v {home}/up/open:/s",
        READ,
        NotStarted("below no folder for mounts"),
    ),
    (
        IMAGE,
        "-v {home}/proc/etc:/s",
        READ,
        NotStarted("below no folder for mounts"),
    ),
    // The engine and Divvy, where they are and by their usual names.
    (IMAGE, "-v /var/run/docker.sock:/s", READ, Refused),
    (IMAGE, "-v /var/lib/docker:/s", READ, Refused),
    (
        IMAGE,
        "-v {engine}/sock:/s",
        READ,
        NotStarted("may not be mounted"),
    ),
    (
        IMAGE,
        "-v {engine}/data:/s",
        READ,
        NotStarted("may not be mounted"),
    ),
    (
        IMAGE,
        "-v {engine}:/s",
        READ,
        NotStarted("may not be mounted"),
    ),
    (
        IMAGE,
        "-v {home}/engine:/s",
        READ,
        NotStarted("may not be mounted"),
    ),
    (
        IMAGE,
        "-v {divvy}:/s",
        READ,
        NotStarted("may not be mounted"),
    ),
    (
        IMAGE,
        "-v {divvy}/jobs:/s",
        READ,
        NotStarted("may not be mounted"),
    ),
    // Users and groups.
    (IMAGE, "--user 0", IDS, Refused),
    (IMAGE, "--user root", IDS, Refused),
    (IMAGE, "-u 0:0", IDS, Refused),
    (IMAGE, "--user ana", IDS, Refused),
    (IMAGE, "--user {uid}:0", IDS, Refused),
    (IMAGE, "--group-add docker", IDS, Refused),
    (IMAGE, "--group-add 0", IDS, Refused),
    ("attack-root", "", IDS, Harmless),
    ("attack-names", "", IDS, Harmless),
    (
        "attack-numbers",
        "",
        IDS,
        NotStarted("takes that for a number"),
    ),
    ("attack-etc", "", IDS, NotStarted("can change /etc")),
    ("attack-link", "", IDS, NotStarted("can change /etc/group")),
    // Rights of programs.
    (
        "attack-setuid",
        "-v {data}:/s",
        "rootcat /s/closed/secret",
        Harmless,
    ),
    (
        "attack-setuid",
        "-v {data}:/s --entrypoint rootcat",
        "",
        Harmless,
    ),
    (IMAGE, "--privileged", IDS, Refused),
    (IMAGE, "--cap-add SYS_ADMIN", IDS, Refused),
    (IMAGE, "--cap-add=ALL", IDS, Refused),
    (IMAGE, "--security-opt seccomp=unconfined", IDS, Refused),
    (IMAGE, "--security-opt apparmor=unconfined", IDS, Refused),
    (
        IMAGE,
        "--security-opt no-new-privileges:false",
        IDS,
        Refused,
    ),
    (IMAGE, "--device /dev/kmsg", IDS, Refused),
    (IMAGE, "--device-cgroup-rule 'a *:* rwm'", IDS, Refused),
    (IMAGE, "--runtime other", IDS, Refused),
    (IMAGE, "--ulimit rtprio=99", IDS, Refused),
    (IMAGE, "--sysctl net.ipv4.ip_forward=1", IDS, Refused),
    (IMAGE, "--cgroup-parent /", IDS, Refused),
    (IMAGE, "--cpu-shares 262144", IDS, Refused),
    // Namespaces.
    (IMAGE, "--pid host", IDS, Refused),
    (IMAGE, "--ipc host", IDS, Refused),
    (IMAGE, "--uts host", IDS, Refused),
    (IMAGE, "--userns host", IDS, Refused),
    (IMAGE, "--cgroupns host", IDS, Refused),
    (IMAGE, "--network ns:/proc/1/ns/net", IDS, Refused),
    (IMAGE, "--network container:other", IDS, Refused),
    (IMAGE, "--network others", IDS, Refused),
    (IMAGE, "-p 80:80", IDS, Refused),
    // Volumes.
    (IMAGE, "--volumes-from other", READ, Refused),
    (IMAGE, "-v attack-volume:/s", READ, Refused),
    (
        IMAGE,
        "--mount type=volume,src=attack-volume,dst=/s",
        READ,
        Refused,
    ),
    (
        IMAGE,
        "--mount type=volume,src=new,dst=/s,volume-opt=type=none,volume-opt=o=bind,volume-opt=device=/",
        READ,
        Refused,
    ),
    (IMAGE, "--tmpfs /s:uid=0,suid", IDS, Refused),
    (IMAGE, "-v {data}:/s --tmpfs /s/own", READ, Refused),
    // What the engine, as root, would make in a mounted folder.
    (
        "attack-workdir",
        "-v {data}:/data",
        IDS,
        NotStarted("is inside the mount"),
    ),
    (
        "attack-workdir-link",
        "-v {data}:/data",
        IDS,
        NotStarted("is inside the mount"),
    ),
    (
        "attack-volume-point",
        "-v {data}:/data",
        IDS,
        NotStarted("is inside the mount"),
    ),
    (
        "attack-libraries",
        "-v {data}:/data",
        IDS,
        NotStarted("is inside the mount"),
    ),
    (
        "attack-workdir-proc",
        "",
        IDS,
        NotStarted("cannot work in /proc"),
    ),
    (IMAGE, "-w /proc/self/fd/7", IDS, Refused),
    // The limiter, and labels.
    (IMAGE, "-e LD_PRELOAD=/s.so", IDS, Refused),
    (IMAGE, "-e DIVVY_SHIM=off", IDS, Refused),
    (IMAGE, "--label divvy.job=1", IDS, Refused),
    (IMAGE, "--label traefik.enable=true", IDS, Refused),
    (IMAGE, "--restart always", IDS, Refused),
];

mod exhaustive {
    use super::*;

    /// The call that starts a container.
    fn starting() -> Call {
        Call {
            what: "POST /containers/*/start".to_owned(),
            once_started: false,
        }
    }

    /// Waits until the engine is asked to start the job's container, and goes away.
    #[track_caller]
    fn about_to_start(scene: &Scene, door: &FaultProxy, id: &str) {
        until("it is about to start", || {
            let log = scene.home.log(id);
            assert!(scene.home.job(id).exit_code.is_none(), "{log}");
            door.has_failed().then_some(())
        });
    }

    /// Links of the user's, and images that a user could bring.
    fn arm(scene: &Scene) {
        let (home, closed) = (scene.at("home"), scene.at("closed"));
        for (name, target) in [
            ("out", closed.join("open")),
            ("root", PathBuf::from("/")),
            ("up", PathBuf::from("../closed")),
            ("proc", PathBuf::from("/proc/self/root")),
            ("engine", scene.engine.folder().join("data")),
        ] {
            symlink(target, home.join(name)).expect("its place is free");
        }
        // Nothing but the judgement is to stand in the way.
        let divvy = scene.home.path();
        let open = [divvy, divvy.parent().expect("it is in a folder")];
        let storage = scene.engine.folder().join("data");
        for folder in open.into_iter().chain([scene.engine.folder(), &storage]) {
            let mode = fs::metadata(folder).expect("it is there").mode();
            let mode = fs::Permissions::from_mode(mode | 0o055);
            fs::set_permissions(folder, mode).expect("root may");
        }
        let nothing = |_: &Path| {};
        let gid = scene.account.gid();
        let etc = move |file: &'static str, text: String| {
            move |root: &Path| {
                fs::create_dir(root.join("etc")).expect("the folder is ours");
                fs::write(root.join("etc").join(file), &text).expect("the folder is ours");
            }
        };
        let uid = scene.account.uid;
        let name = &scene.account.name;
        scene.image("attack-root", &nothing, &["USER root"]);
        let names = format!("{name}:x:0:0::/:/bin/sh\nother:x:{uid}:0::/:/bin/sh\n");
        scene.image("attack-names", &etc("passwd", names), &["USER other"]);
        let numbers = format!("root:x:0:\n{gid}:x:42:\n");
        scene.image("attack-numbers", &etc("group", numbers), &[]);
        let open = |root: &Path| {
            fs::create_dir(root.join("etc")).expect("the folder is ours");
            let mode = fs::Permissions::from_mode(0o777);
            fs::set_permissions(root.join("etc"), mode).expect("the folder is ours");
        };
        scene.image("attack-etc", &open, &[]);
        let link = |root: &Path| {
            fs::create_dir(root.join("etc")).expect("the folder is ours");
            symlink("/tmp/group", root.join("etc/group")).expect("the folder is ours");
        };
        scene.image("attack-link", &link, &[]);
        let setuid = |root: &Path| {
            fs::create_dir_all(root.join("usr/bin")).expect("the folder is ours");
            let program = root.join("usr/bin/rootcat");
            fs::copy("/bin/cat", &program).expect("this machine has cat");
            let mode = fs::Permissions::from_mode(0o4755);
            fs::set_permissions(program, mode).expect("the folder is ours");
        };
        scene.image("attack-setuid", &setuid, &[r#"CMD ["/s/closed/secret"]"#]);
        scene.image("attack-workdir", &nothing, &["WORKDIR /data/new"]);
        let way = |root: &Path| symlink("/data", root.join("way")).expect("the folder is ours");
        scene.image("attack-workdir-link", &way, &["WORKDIR /way/new"]);
        scene.image("attack-volume-point", &nothing, &["VOLUME /data/new"]);
        scene.image(
            "attack-workdir-proc",
            &nothing,
            &["WORKDIR /proc/self/fd/7"],
        );
        let libraries = |root: &Path| {
            fs::create_dir(root.join("usr")).expect("the folder is ours");
            symlink("/data", root.join("usr/lib64")).expect("the folder is ours");
        };
        scene.image("attack-libraries", &libraries, &[]);
        let _ = scene.engine.ask(&["volume", "create", "attack-volume"]);
    }

    /// Tries an attack; what happened, if that was not what holds it.
    fn attack(
        scene: &Scene,
        (image, flags, script, held): (&str, &str, &str, Held),
    ) -> Option<String> {
        let (uid, gid) = (
            scene.account.uid.to_string(),
            scene.account.gid().to_string(),
        );
        let script = script.replace("UID", &uid).replace("GID", &gid);
        let command: &[&str] = if script.is_empty() {
            &[]
        } else {
            &["sh", "-c", &script]
        };
        let submitted = scene.submit(image, flags, command);
        let (log, found) = match submitted.code {
            0 => {
                let id = submitted.stdout.trim();
                let job = scene.home.ended(id);
                (scene.home.log(id), job.exit_code)
            }
            2 | 4 => (submitted.stderr.clone(), None),
            _ => return Some(format!("{submitted:?}")),
        };
        let is_held = match held {
            Refused => submitted.code != 0 && submitted.stderr.contains("hint:"),
            NotStarted(words) => submitted.code == 0 && found == Some(125) && log.contains(words),
            Harmless => submitted.code == 0 && found.is_some_and(|code| code < 125),
        };
        (!is_held || log.contains(SECRET)).then(|| format!("{held:?} {found:?}: {log}"))
    }

    #[test]
    fn no_flag_mount_or_image_gives_a_user_more_than_the_user_has() {
        let Some(scene) = Scene::new(1) else { return };
        arm(&scene);
        let before = fs::read_dir(scene.at("data")).expect("it is there").count();
        let found = ATTACKS.iter().filter_map(|one| {
            let (image, flags, ..) = one;
            attack(&scene, *one).map(|what| format!("{image} {flags}: {what}"))
        });
        let found: Vec<String> = found.collect();
        assert!(
            found.is_empty(),
            "{} of {}:\n{}",
            found.len(),
            ATTACKS.len(),
            found.join("\n")
        );
        eprintln!("{} attacks, 0 through", ATTACKS.len());
        let after = fs::read_dir(scene.at("data")).expect("it is there").count();
        assert_eq!(
            before, after,
            "the engine made nothing in the mounted folder"
        );
        scene.nothing_stays();
        let _ = scene.engine.ask(&["volume", "rm", "attack-volume"]);
    }

    #[test]
    fn programs_of_exec_are_the_submitters_too() {
        let Some(scene) = Scene::new(2) else { return };
        let id = scene.submit(USERS_IMAGE, "", &["sleep", "1000"]).ok();
        let id = id.stdout.trim();
        let _ = scene.home.running(id);
        let said = scene
            .divvy(&[
                "exec",
                id,
                "--",
                "sh",
                "-c",
                "id -u; id -G; cat /proc/self/status",
            ])
            .ok();
        let (uid, gid) = (scene.account.uid, scene.account.gid());
        assert!(
            said.stdout.starts_with(&format!("{uid}\n{gid}\n")),
            "{}",
            said.stdout
        );
        for line in [
            "CapEff:\t0000000000000000",
            "CapBnd:\t0000000000000000",
            "NoNewPrivs:\t1",
        ] {
            assert!(said.stdout.contains(line), "{}", said.stdout);
        }
        // Root is an administrator, and still enters as the submitter.
        let said = scene.home.divvy(&["exec", id, "--", "id", "-u"]).ok();
        assert_eq!(said.stdout.trim(), uid.to_string());
        let _ = scene.divvy(&["cancel", id]).ok();
        scene.nothing_stays();
    }

    #[test]
    fn a_folder_that_becomes_a_link_before_the_start_is_mounted_as_it_was() {
        let Some((door, scene)) = Scene::behind_proxy(3) else {
            return;
        };
        let folder = scene.at("home/work");
        fs::create_dir(&folder).expect("the folder is new");
        fs::write(folder.join("mine"), "").expect("the folder is new");
        let start = starting();
        door.fail(Some((&start, Fault::GoneForGood)));
        let id = scene.submit(
            IMAGE,
            "-v {home}/work:/s",
            &["sh", "-c", "ls /s; cat /s/secret"],
        );
        let id = id.ok().stdout.trim().to_owned();
        about_to_start(&scene, &door, &id);
        fs::rename(&folder, scene.at("home/moved")).expect("its place is free");
        symlink(scene.at("closed/open"), &folder).expect("its place is free");
        door.fail(None);
        let _ = scene.home.ended(&id);
        let log = scene.home.log(&id);
        assert!(log.contains("mine") && !log.contains(SECRET), "{log}");
        scene.nothing_stays();
    }

    #[test]
    fn a_folder_that_is_exchanged_all_the_time_never_shows_more() {
        use std::sync::atomic::{AtomicBool, Ordering};

        let Some(scene) = Scene::new(4) else { return };
        let (a, b) = (scene.at("home/a"), scene.at("home/b"));
        fs::create_dir(&a).expect("the folder is new");
        symlink(scene.at("closed/open"), &b).expect("its place is free");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                let here = rustix::fs::CWD;
                while !done.load(Ordering::Relaxed) {
                    rustix::fs::renameat_with(here, &a, here, &b, flags).expect("both are there");
                }
            });
            for _ in 0..10 {
                let (log, _) = scene.run(IMAGE, "-v {home}/a:/s", READ);
                assert!(!log.contains(SECRET), "{log}");
            }
            done.store(true, Ordering::Relaxed);
        });
        scene.nothing_stays();
    }

    #[test]
    fn whatever_call_of_the_engine_is_lost_a_users_container_runs_once() {
        let Some((door, scene)) = Scene::behind_proxy(0) else {
            return;
        };
        let run = |name: &str, fault: Option<(&Call, Fault)>| {
            door.fail(fault);
            let script = format!("echo ran >>/s/own/{name}");
            let (log, code) = scene.run(IMAGE, "-v {data}:/s", &script);
            let ran = fs::read_to_string(scene.at("data/own").join(name)).unwrap_or_default();
            let what = fault.map(|(call, fault)| format!("{fault:?}: {call}"));
            assert_eq!((ran.as_str(), code), ("ran\n", Some(0)), "{what:?}: {log}");
        };
        run("plain", None);
        let calls = door.kinds();
        for (number, call) in calls.iter().enumerate() {
            for fault in [Fault::Unheard, Fault::Unanswered] {
                run(&format!("{number}-{fault:?}"), Some((call, fault)));
            }
        }
        scene.nothing_stays();
    }

    #[test]
    fn what_a_dead_supervisor_staged_is_removed_and_the_users_files_stay() {
        let Some((door, mut scene)) = Scene::behind_proxy(0) else {
            return;
        };
        fs::write(scene.at("data/own/kept"), "").expect("the folder is ours");
        let start = starting();
        door.fail(Some((&start, Fault::GoneForGood)));
        let id = scene.submit(IMAGE, "-v {data}:/s", &["ls", "/s/own"]).ok();
        let id = id.stdout.trim().to_owned();
        about_to_start(&scene, &door, &id);
        super::super::scenes::kill(super::super::scenes::pid_in(&scene.home, &id, "launch"));
        drop(scene.daemon.take());
        door.fail(None);
        scene.start();
        // Another supervisor goes on with the mounts that are still there.
        let job = scene.home.ended(&id);
        assert_eq!(
            (job.exit_code, scene.home.log(&id)),
            (Some(0), "kept\n".to_owned())
        );
        scene.nothing_stays();
        assert!(scene.at("data/own/kept").exists());
    }
}
