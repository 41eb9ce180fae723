//! Registration of the DRA driver at kubelet, through a socket in `plugins_registry`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::base::claim::{DRIVER, TICKETS};
use crate::node::protocol::registration::registration_server::Registration;
use crate::node::protocol::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};

/// The plugin type of DRA drivers in kubelet's plugin manager (`DRAPlugin`, pluginregistration/v1).
const TYPE: &str = "DRAPlugin";
/// The services behind the driver's socket, as kubelet names versions.
const SERVICES: [&str; 2] = ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"];

/// One of several drivers of a node, by the uid of its pod: in a rolling update the old and the new pod serve kubelet
/// side by side, each on sockets of its own.
///
/// It has the first part of the uid alone, because the path of a socket has at most 107 bytes (unix(7)) and some
/// distributions have a long kubelet directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance(String);

/// Why a text names no instance.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the uid of a pod")]
pub struct NoInstance(String);

impl FromStr for Instance {
    type Err = NoInstance;

    fn from_str(uid: &str) -> Result<Self, NoInstance> {
        let first = uid.split('-').next().unwrap_or_default();
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        if (1..=8).contains(&first.len()) && first.bytes().all(is_plain) {
            Ok(Self(first.to_owned()))
        } else {
            Err(NoInstance(uid.to_owned()))
        }
    }
}

/// As it stands in the name of a socket: `-1a2b3c4d`.
impl fmt::Display for Instance {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "-{}", self.0)
    }
}

/// The suffix of the names of the sockets; empty for a driver that is alone on its node.
pub fn suffix(instance: Option<&Instance>) -> String {
    instance.map(Instance::to_string).unwrap_or_default()
}

/// Where kubelet finds the driver: `plugins_registry/gpu.divvy.dev-1a2b3c4d@reg.sock`.
///
/// Kubelet dials a registration socket by its path alone, so that its gRPC library sends the path, percent-encoded, as
/// `:authority`; the HTTP/2 library here takes that for no authority and resets the stream. An `@` is left as it is, and what
/// is before it may be percent-encoded (RFC 3986: it is user information). With `gpu.divvy.dev-reg.sock`, as others name
/// theirs, registration fails. Seen with kubelet 1.36.2.
pub fn registration_socket(kubelet: &Path, driver: &str, instance: Option<&Instance>) -> PathBuf {
    kubelet
        .join("plugins_registry")
        .join(format!("{driver}{}{REGISTRATION_END}", suffix(instance)))
}

/// Where the driver itself is served: `plugins/gpu.divvy.dev/dra-1a2b3c4d.sock`.
pub fn driver_socket(kubelet: &Path, driver: &str, instance: Option<&Instance>) -> PathBuf {
    kubelet
        .join("plugins")
        .join(driver)
        .join(format!("dra{}.sock", suffix(instance)))
}

/// The drivers of Divvy: the one of its own devices, and the one of tickets.
pub const DRIVERS: [&str; 2] = [DRIVER, TICKETS];

const REGISTRATION_END: &str = "@reg.sock";

/// Whether a file of `plugins_registry` is the registration socket of a driver of this kind.
pub fn is_registration_socket(name: &str) -> bool {
    let middle = DRIVERS.iter().find_map(|driver| name.strip_prefix(driver));
    middle
        .and_then(|rest| rest.strip_suffix(REGISTRATION_END))
        .is_some_and(|middle| middle.is_empty() || middle.starts_with('-'))
}

/// Whether a file of `plugins/gpu.divvy.dev` is the socket of a driver.
pub fn is_driver_socket(name: &str) -> bool {
    name.strip_prefix("dra")
        .and_then(|rest| rest.strip_suffix(".sock"))
        .is_some_and(|middle| middle.is_empty() || middle.starts_with('-'))
}

/// Answers kubelet's question for the driver's name and socket.
#[derive(Debug)]
pub struct Registrar {
    driver: &'static str,
    endpoint: String,
    registered: watch::Sender<bool>,
}

impl Registrar {
    /// For a driver that is served on `endpoint`, a path as kubelet sees it. `registered` learns kubelet's answer.
    pub fn new(driver: &'static str, endpoint: &Path, registered: watch::Sender<bool>) -> Self {
        Self {
            driver,
            endpoint: endpoint.display().to_string(),
            registered,
        }
    }
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: TYPE.to_owned(),
            name: self.driver.to_owned(),
            endpoint: self.endpoint.clone(),
            supported_versions: SERVICES.map(str::to_owned).to_vec(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if status.plugin_registered {
            tracing::info!("registered with kubelet");
            self.registered.send_replace(true);
        } else {
            // It tries again by itself.
            tracing::error!("kubelet refused to register this driver: {}", status.error)
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sockets_of_an_instance_have_the_first_part_of_its_pods_uid() {
        let uid = "1a2b3c4d-0000-4000-8000-123456789abc".parse::<Instance>();
        let kubelet = Path::new("/var/snap/microk8s/common/var/lib/kubelet");
        let instance = uid.unwrap();
        let registration = registration_socket(kubelet, DRIVER, Some(&instance));
        assert!(registration.ends_with("plugins_registry/gpu.divvy.dev-1a2b3c4d@reg.sock"));
        let driver = driver_socket(kubelet, DRIVER, Some(&instance));
        assert!(driver.ends_with("plugins/gpu.divvy.dev/dra-1a2b3c4d.sock"));
        for socket in [registration, driver] {
            assert!(socket.as_os_str().len() < 108, "{}", socket.display());
        }
        for no in ["", "-", "../../etc", "1A2B", "123456789", "a/b"] {
            assert_eq!(no.parse::<Instance>(), Err(NoInstance(no.to_owned())));
        }
    }

    #[test]
    fn sockets_of_other_drivers_are_not_this_drivers() {
        let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        let instance = "1a2b3c4d".parse::<Instance>().unwrap();
        for instance in [None, Some(&instance)] {
            let kubelet = Path::new("/k");
            for driver in DRIVERS {
                let socket = registration_socket(kubelet, driver, instance);
                assert!(is_registration_socket(&name(socket)));
                assert!(is_driver_socket(&name(driver_socket(
                    kubelet, driver, instance
                ))));
            }
        }
        for other in [
            "gpu.nvidia.com-reg.sock",
            "gpu.divvy.dev.other@reg.sock",
            "gpu.divvy.dev",
        ] {
            assert!(!is_registration_socket(other));
        }
        for other in ["lock", "drake.sock", "dra-1.socket"] {
            assert!(!is_driver_socket(other));
        }
    }
}
