//! A kubelet, as far as a device plugin sees one: it is registered with, asks for ids to be preferred and allocated, and says who has
//! which.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use divvy_k8s::carrier::protocol::plugin::device_plugin_client::DevicePluginClient;
use divvy_k8s::carrier::protocol::plugin::registration_server::{Registration, RegistrationServer};
use divvy_k8s::carrier::protocol::plugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerPreferredAllocationRequest, Empty,
    PreStartContainerRequest, PreferredAllocationRequest, RegisterRequest,
};
use divvy_k8s::carrier::protocol::resources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use divvy_k8s::carrier::protocol::resources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices,
    ContainerResources, ListPodResourcesRequest, ListPodResourcesResponse, PodResources,
};
use divvy_k8s::carrier::{NAMESPACE, RESOURCE};
use futures_util::stream::unfold;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

#[derive(Default)]
struct State {
    endpoint: Option<PathBuf>,
    registrations: usize,
    /// Ids that the plugin lists.
    devices: BTreeSet<String>,
    /// Ids that other plugins list, of resources of NVIDIA.
    allocatable: Vec<String>,
    /// By namespace and name: the resource and its ids.
    pods: BTreeMap<(String, String), (String, Vec<String>)>,
}

#[derive(Clone)]
struct Shared {
    folder: PathBuf,
    state: Arc<Mutex<State>>,
}

pub struct Kubelet {
    shared: Shared,
    servers: Vec<JoinHandle<()>>,
}

impl Kubelet {
    pub fn start(folder: &Path) -> Self {
        fs::create_dir_all(folder.join("device-plugins")).unwrap();
        fs::create_dir_all(folder.join("pod-resources")).unwrap();
        let shared = Shared {
            folder: folder.to_owned(),
            state: Arc::default(),
        };
        let mut kubelet = Self {
            shared,
            servers: Vec::new(),
        };
        kubelet.serve();
        kubelet
    }

    fn serve(&mut self) {
        let plugins = listen(&self.shared.folder.join("device-plugins/kubelet.sock"));
        let resources = listen(&self.shared.folder.join("pod-resources/kubelet.sock"));
        let registration = RegistrationServer::new(self.shared.clone());
        let lister = PodResourcesListerServer::new(self.shared.clone());
        let plugins = Server::builder()
            .add_service(registration)
            .serve_with_incoming(plugins);
        let resources = Server::builder()
            .add_service(lister)
            .serve_with_incoming(resources);
        self.servers = vec![
            tokio::spawn(async { plugins.await.unwrap() }),
            tokio::spawn(async { resources.await.unwrap() }),
        ];
    }

    /// As kubelet does it: the plugins' sockets are removed, and its own is another; what pods have it remembers.
    pub async fn restart(&mut self) {
        for server in self.servers.drain(..) {
            server.abort();
            let _ = server.await;
        }
        for entry in fs::read_dir(self.shared.folder.join("device-plugins")).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        self.shared.state.lock().unwrap().devices.clear();
        self.serve();
    }

    pub fn registrations(&self) -> usize {
        self.shared.state.lock().unwrap().registrations
    }

    pub fn devices(&self) -> BTreeSet<String> {
        self.shared.state.lock().unwrap().devices.clone()
    }

    /// NVIDIA's plugin gives a carrier this GPU.
    pub fn give_gpu(&self, carrier: &str, gpu: &str) {
        let key = (NAMESPACE.to_owned(), carrier.to_owned());
        let value = ("nvidia.com/gpu".to_owned(), vec![gpu.to_owned()]);
        self.shared.state.lock().unwrap().pods.insert(key, value);
    }

    /// NVIDIA's plugin lists these ids, and the pod gets one of them.
    pub fn give_replica(&self, (namespace, pod): (&str, &str), id: &str, all: &[String]) {
        let key = (namespace.to_owned(), pod.to_owned());
        let value = ("nvidia.com/gpu.shared".to_owned(), vec![id.to_owned()]);
        let mut state = self.shared.state.lock().unwrap();
        state.pods.insert(key, value);
        state.allocatable = all.to_vec();
    }

    /// GPUs that carriers have.
    pub fn given(&self) -> Vec<String> {
        let state = self.shared.state.lock().unwrap();
        let gpus = state
            .pods
            .values()
            .filter(|(resource, _)| resource == "nvidia.com/gpu");
        gpus.flat_map(|(_, ids)| ids.clone()).collect()
    }

    pub fn ids(&self, namespace: &str, pod: &str) -> Vec<String> {
        let key = (namespace.to_owned(), pod.to_owned());
        let state = self.shared.state.lock().unwrap();
        state
            .pods
            .get(&key)
            .map(|(_, ids)| ids.clone())
            .unwrap_or_default()
    }

    pub fn ends(&self, namespace: &str, pod: &str) {
        let key = (namespace.to_owned(), pod.to_owned());
        self.shared.state.lock().unwrap().pods.remove(&key);
    }

    pub fn plugin(&self) -> Plugin {
        let endpoint = self.shared.state.lock().unwrap().endpoint.clone().unwrap();
        Plugin(unix(&endpoint).connect_lazy())
    }

    /// Admits a pod that wants so many sixteenths: its CDI device.
    pub async fn admit(&self, namespace: &str, pod: &str, units: usize) -> Result<String, String> {
        let (plugin, free) = (self.plugin(), self.free());
        if free.len() < units {
            return Err(format!("only {} sixteenths are free", free.len()));
        }
        let mut ids = plugin.prefer(&free, units).await?;
        if ids.len() != units {
            ids = free.into_iter().take(units).collect();
        }
        let device = plugin.allocate(&ids).await?;
        let key = (namespace.to_owned(), pod.to_owned());
        let value = (RESOURCE.to_owned(), ids.clone());
        self.shared.state.lock().unwrap().pods.insert(key, value);
        plugin.pre_start(&ids).await?;
        Ok(device)
    }

    fn free(&self) -> Vec<String> {
        let state = self.shared.state.lock().unwrap();
        let used: BTreeSet<&String> = state.pods.values().flat_map(|(_, ids)| ids).collect();
        state
            .devices
            .iter()
            .filter(|id| !used.contains(id))
            .cloned()
            .collect()
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.servers.iter().for_each(JoinHandle::abort);
    }
}

type Connections = std::pin::Pin<
    Box<dyn futures_util::Stream<Item = std::io::Result<tokio::net::UnixStream>> + Send>,
>;

fn listen(socket: &Path) -> Connections {
    let _ = fs::remove_file(socket);
    let listener = UnixListener::bind(socket).unwrap();
    Box::pin(unfold(listener, |listener| async {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    }))
}

fn unix(socket: &Path) -> Endpoint {
    Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap()
}

/// A device plugin, as kubelet calls it.
pub struct Plugin(Channel);

fn said(status: Status) -> String {
    status.message().to_owned()
}

impl Plugin {
    async fn prefer(&self, available: &[String], units: usize) -> Result<Vec<String>, String> {
        let wish = ContainerPreferredAllocationRequest {
            available_device_ids: available.to_vec(),
            must_include_device_ids: Vec::new(),
            allocation_size: i32::try_from(units).unwrap(),
        };
        let request = PreferredAllocationRequest {
            container_requests: vec![wish],
        };
        let answer = DevicePluginClient::new(self.0.clone())
            .get_preferred_allocation(request)
            .await;
        Ok(answer
            .map_err(said)?
            .into_inner()
            .container_responses
            .remove(0)
            .device_ids)
    }

    /// The CDI device.
    pub async fn allocate(&self, ids: &[String]) -> Result<String, String> {
        let wish = ContainerAllocateRequest {
            device_ids: ids.to_vec(),
        };
        let request = AllocateRequest {
            container_requests: vec![wish],
        };
        let answer = DevicePluginClient::new(self.0.clone())
            .allocate(request)
            .await;
        let mut answer = answer
            .map_err(said)?
            .into_inner()
            .container_responses
            .remove(0);
        Ok(answer.cdi_devices.remove(0).name)
    }

    pub async fn pre_start(&self, ids: &[String]) -> Result<(), String> {
        let request = PreStartContainerRequest {
            device_ids: ids.to_vec(),
        };
        let answer = DevicePluginClient::new(self.0.clone())
            .pre_start_container(request)
            .await;
        answer.map(drop).map_err(said)
    }
}

#[tonic::async_trait]
impl Registration for Shared {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        assert_eq!(
            (request.version.as_str(), request.resource_name.as_str()),
            ("v1beta1", RESOURCE)
        );
        assert!(request.options.unwrap().pre_start_required);
        let endpoint = self.folder.join("device-plugins").join(request.endpoint);
        let state = Arc::clone(&self.state);
        {
            let mut state = state.lock().unwrap();
            state.endpoint = Some(endpoint.clone());
            state.registrations += 1;
        }
        tokio::spawn(async move {
            let channel = unix(&endpoint).connect_lazy();
            let listed = DevicePluginClient::new(channel)
                .list_and_watch(Empty {})
                .await;
            let Ok(listed) = listed else {
                return;
            };
            let mut lists = listed.into_inner();
            while let Ok(Some(list)) = lists.message().await {
                let healthy = list
                    .devices
                    .into_iter()
                    .filter(|device| device.health == "Healthy");
                state.lock().unwrap().devices = healthy.map(|device| device.id).collect();
            }
        });
        Ok(Response::new(Empty {}))
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Shared {
    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        let devices = ContainerDevices {
            resource_name: "nvidia.com/gpu.shared".to_owned(),
            device_ids: self.state.lock().unwrap().allocatable.clone(),
        };
        Ok(Response::new(AllocatableResourcesResponse {
            devices: vec![devices],
        }))
    }

    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        let state = self.state.lock().unwrap();
        let pods = state
            .pods
            .iter()
            .map(|((namespace, name), (resource, ids))| PodResources {
                name: name.clone(),
                namespace: namespace.clone(),
                containers: vec![ContainerResources {
                    name: "c".to_owned(),
                    devices: vec![ContainerDevices {
                        resource_name: resource.clone(),
                        device_ids: ids.clone(),
                    }],
                }],
            });
        Ok(Response::new(ListPodResourcesResponse {
            pod_resources: pods.collect(),
        }))
    }
}
