//! The container engine of this machine: its socket, and the connection to it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use bollard::errors::Error;
use bollard::models::SystemVersion;
use bollard::{API_DEFAULT_VERSION, Docker};

use super::gc::{self, ContainerGc};

/// Seconds that one answer of the engine may take. Streams that are open for longer are asked for again.
pub const TIMEOUT: u64 = 120;

/// The sockets of Docker and Podman, the system-wide ones first.
const SOCKETS: [&str; 2] = ["/run/docker.sock", "/run/podman/podman.sock"];

/// No engine can be asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoEngine {
    #[error("neither Docker nor Podman listens on this machine ({0} do not exist)")]
    Nowhere(String),
    #[error(
        "DOCKER_HOST={0} is not a local socket; containers with a slice run on this machine only"
    )]
    Elsewhere(String),
}

impl NoEngine {
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Nowhere(_) => {
                "start one (`systemctl start docker`), or set its socket: DOCKER_HOST=unix:///path"
            }
            Self::Elsewhere(_) => {
                "unset DOCKER_HOST, or set it to a local socket: DOCKER_HOST=unix:///path"
            }
        }
    }
}

/// The daemon's access to the engine; the supervisors of containers have their own.
pub trait Engine: Sync {
    /// The engine's socket.
    ///
    /// # Errors
    /// [`NoEngine`].
    fn socket(&self) -> Result<PathBuf, NoEngine>;

    /// Removes leftover containers in the background, as [`gc::start`].
    ///
    /// # Errors
    /// When there are no more threads.
    fn collect(&self, socket: PathBuf, instance: String, gc: ContainerGc) -> io::Result<()>;
}

/// The engine that tests have installed.
pub static INSTALLED: OnceLock<&'static dyn Engine> = OnceLock::new();

/// The engine.
pub fn engine() -> &'static dyn Engine {
    INSTALLED.get().copied().unwrap_or(&LocalEngine)
}

/// Docker or Podman on this machine.
#[derive(Debug)]
pub struct LocalEngine;

impl Engine for LocalEngine {
    /// By `DOCKER_HOST` (as `docker` reads it) or where engines listen.
    fn socket(&self) -> Result<PathBuf, NoEngine> {
        let host = std::env::var("DOCKER_HOST").ok();
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        find(host.as_deref(), runtime.as_deref(), &|path| path.exists())
    }

    fn collect(&self, socket: PathBuf, instance: String, gc: ContainerGc) -> io::Result<()> {
        gc::collect(socket, instance, gc)
    }
}

/// The engine's socket.
///
/// # Errors
/// [`NoEngine`].
pub fn socket() -> Result<PathBuf, NoEngine> {
    engine().socket()
}

fn find(
    host: Option<&str>,
    runtime: Option<&Path>,
    exists: &dyn Fn(&Path) -> bool,
) -> Result<PathBuf, NoEngine> {
    if let Some(host) = host.filter(|host| !host.is_empty()) {
        let path = host.strip_prefix("unix://").map(PathBuf::from);
        return path.ok_or_else(|| NoEngine::Elsewhere(host.to_owned()));
    }
    let own = runtime
        .iter()
        .flat_map(|folder| ["docker.sock", "podman/podman.sock"].map(|name| folder.join(name)));
    let all: Vec<PathBuf> = SOCKETS.iter().map(PathBuf::from).chain(own).collect();
    let found = all.iter().find(|path| exists(path)).cloned();
    found.ok_or_else(|| {
        let names: Vec<String> = all.iter().map(|path| path.display().to_string()).collect();
        NoEngine::Nowhere(names.join(", "))
    })
}

/// Speaks to the engine at that socket, in a version that both know.
///
/// # Errors
/// When it does not answer.
pub async fn connect(socket: &Path) -> Result<Docker, Error> {
    let path = socket.to_string_lossy();
    let docker = Docker::connect_with_unix(&path, TIMEOUT, API_DEFAULT_VERSION)?;
    docker.negotiate_version().await
}

/// What an engine did not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineFailure {
    /// The engine does not answer, or broke off its answer: it may be back.
    Unavailable(String),
    /// It answers that it does not, or something else stands in the way.
    Refused(String),
}

impl EngineFailure {
    pub fn message(&self) -> &str {
        match self {
            Self::Unavailable(words) | Self::Refused(words) => words,
        }
    }
}

impl From<String> for EngineFailure {
    fn from(words: String) -> Self {
        Self::Refused(words)
    }
}

impl From<Error> for EngineFailure {
    fn from(error: Error) -> Self {
        match is_unavailable(&error) {
            true => Self::Unavailable(describe_error(&error)),
            false => Self::Refused(describe_error(&error)),
        }
    }
}

/// Whether the result of a call is unknown: there was no answer, or not all of one.
pub fn is_unavailable(error: &Error) -> bool {
    let is_broken_off = matches!(
        error,
        Error::HyperResponseError { .. }
            | Error::HyperLegacyError { .. }
            | Error::IOError { .. }
            | Error::RequestTimeoutError
            | Error::SocketNotFoundError(_)
    );
    let cause: &(dyn std::error::Error + 'static) = match error {
        // It hides itself among its causes.
        Error::IOError { err } => err,
        other => other,
    };
    is_broken_off && !is_denied(cause)
}

/// Whether the engine refuses this user: waiting changes nothing about that.
fn is_denied(error: &(dyn std::error::Error + 'static)) -> bool {
    let denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    error.downcast_ref().is_some_and(denied) || error.source().is_some_and(is_denied)
}

/// The engine's own words, without the library's.
pub fn describe_error(error: &Error) -> String {
    match error {
        // An answer to HEAD has none.
        Error::DockerResponseServerError { message, .. } if !message.trim().is_empty() => {
            message.trim().to_owned()
        }
        Error::DockerStreamError { error } => error.trim().to_owned(),
        other => crate::host::error::error_chain(other),
    }
}

/// What the engine answered, where it did answer.
pub fn status(error: &Error) -> Option<u16> {
    match error {
        Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

/// Whether what was to be made has a name that is given. Podman's own words count as well: with them it answers 500, in
/// releases before it answered 409.
pub fn is_name_given(error: &Error) -> bool {
    status(error) == Some(409) || describe_error(error).contains("that name is already in use")
}

/// The release of Podman, its first two numbers, by the answer to `GET /version`; `None` for other engines.
pub fn podman(version: &SystemVersion) -> Option<(u32, u32)> {
    let mut components = version.components.iter().flatten();
    let engine = components.find(|component| component.name == "Podman Engine")?;
    let mut numbers = engine.version.split('.').map(|number| number.parse().ok());
    // One that cannot be read is taken for an old one.
    let mut next = || numbers.next().flatten().unwrap_or(0);
    Some((next(), next()))
}

/// Whether the engine knows CDI devices by the request that asks for one; Podman passed over such requests before 5.5.0
/// and made the container without. Docker refuses what it does not know.
pub fn takes_cdi(version: &SystemVersion) -> bool {
    podman(version).is_none_or(|release| release >= (5, 5))
}

#[cfg(test)]
mod tests {
    use bollard::models::SystemVersionComponents;

    use super::*;

    #[test]
    fn a_refused_client_does_not_wait() {
        let of = |kind: io::ErrorKind| Error::from(io::Error::from(kind));
        assert!(is_unavailable(&of(io::ErrorKind::ConnectionRefused)));
        assert!(!is_unavailable(&of(io::ErrorKind::PermissionDenied)));
    }

    #[test]
    fn podman_is_known_by_its_name_and_an_old_one_is_not_asked_for_cdi() {
        let of = |name: &str, version: &str| SystemVersion {
            components: Some(vec![SystemVersionComponents {
                name: name.to_owned(),
                version: version.to_owned(),
                details: None,
            }]),
            ..SystemVersion::default()
        };
        for (version, release, takes) in [
            ("4.3.1", (4, 3), false),
            ("5.4.2", (5, 4), false),
            ("5.5.0", (5, 5), true),
            ("5.10.1-rc1", (5, 10), true),
            ("6.0.0-dev", (6, 0), true),
            ("", (0, 0), false),
        ] {
            let version = of("Podman Engine", version);
            assert_eq!(podman(&version), Some(release));
            assert_eq!(takes_cdi(&version), takes, "{release:?}");
        }
        assert_eq!(podman(&of("Engine", "20.10.24")), None);
        assert!(takes_cdi(&of("Engine", "20.10.24")));
        assert!(takes_cdi(&SystemVersion::default()));
    }

    #[test]
    fn a_name_that_is_given_is_known_by_either_engines_answer() {
        let of = |status_code, message: &str| Error::DockerResponseServerError {
            status_code,
            message: message.to_owned(),
        };
        let podmans = "creating container storage: the container name \"x\" is already in use by 12. You have to remove that \
                       container to be able to reuse that name: that name is already in use";
        assert!(is_name_given(&of(409, "Conflict.")));
        assert!(is_name_given(&of(500, podmans)));
        assert!(!is_name_given(&of(500, "no space left on device")));
    }

    #[test]
    fn the_engine_is_where_docker_says_or_where_engines_listen() {
        let only = |there: &'static str| move |path: &Path| path == Path::new(there);
        let runtime = Some(Path::new("/run/user/7"));
        assert_eq!(
            find(Some("unix:///x.sock"), None, &only("/run/docker.sock")),
            Ok("/x.sock".into())
        );
        for there in [
            "/run/docker.sock",
            "/run/podman/podman.sock",
            "/run/user/7/podman/podman.sock",
        ] {
            assert_eq!(find(Some(""), runtime, &only(there)), Ok(there.into()));
        }
        assert!(matches!(
            find(Some("tcp://host:2375"), None, &only("/run/docker.sock")),
            Err(NoEngine::Elsewhere(_))
        ));
        assert!(matches!(
            find(None, None, &only("/elsewhere")),
            Err(NoEngine::Nowhere(_))
        ));
    }
}
