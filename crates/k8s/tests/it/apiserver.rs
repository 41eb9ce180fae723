//! An API server in memory, over loopback HTTP: for tests of whatever talks to a cluster, in this process or another.
//!
//! ```text
//!   let server = ApiServer::start();
//!   server.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}));   behind the API's back
//!   Command::new(bin).env("KUBECONFIG", server.kubeconfig(dir.path()))                       any program
//!   server.client()                                                                           kube, in this process
//!   server.until("a slice", |store| store.all("resourceslices").pop())                        waits for an event
//! ```
//!
//! Generic over kinds: those of `kinds.rs`, and what CustomResourceDefinitions define. It has versions and conflicts, watches with
//! selectors and bookmarks, merge, JSON and (simple) server-side apply, finalizers, status doors, dry runs and mutating webhooks. It has no
//! schemas, no access rules, no `managedFields` and no garbage collection by owners; strategic merges know lists by `name` alone.
//! `defaults.rs` fills in what a real server does; `recorded.json` holds both to answers of a real one.
//!
//! A pod with a `nodeName` that is deleted stays, as a kubelet has it, until it is deleted with `gracePeriodSeconds: 0`.

#![allow(dead_code, clippy::unwrap_used)]

pub mod admission;
mod defaults;
pub mod exec;
mod http;
mod kinds;
mod logs;
mod recorded;
mod selector;
mod store;
mod watch;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::http::Method;
use divvy_testkit::{PATIENCE, join};
use hyper::client::conn::http1::SendRequest;
use serde_json::{Value, json};
use tokio::sync::watch as channel;

use kinds::{Kind, Target};
use selector::Selector;
pub use store::Fail;
use store::Store;

/// A call that came.
#[derive(Clone, Debug)]
pub struct Call {
    pub method: String,
    pub path: String,
    pub query: BTreeMap<String, String>,
    pub body: Value,
}

/// Where a client's writes are held for good: before one has its effect, or before its answer goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    Before,
    After,
}

type Hook = Box<dyn FnMut(&str, &mut Value) -> Result<(), String> + Send>;

struct State {
    store: Store,
    calls: Vec<Call>,
    writes: usize,
    cut: Option<(usize, Cut)>,
    held: bool,
    /// Counts up when all watches are to end.
    epoch: u64,
    faults: Vec<(String, String, Fail, usize)>,
    logs: BTreeMap<(String, String), String>,
    /// What commands in pods come to.
    on_exec: Option<exec::Hook>,
    /// Resources whose calls by kind of verb are denied: `("list", "resourceslices")`.
    denied: Vec<(String, String)>,
    release: String,
    on_create: Vec<Hook>,
    /// Where the services are that webhooks name, by namespace and name.
    services: HashMap<(String, String), VecDeque<SocketAddr>>,
    forbidden: Vec<(String, String)>,
    /// Connections to webhooks, by address and bundle, that nothing is asked over now.
    idle: HashMap<(SocketAddr, Vec<u8>), Vec<SendRequest<Body>>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    wake: channel::Sender<u64>,
}

impl Shared {
    /// Writes a call down; whether it is the one to be held at.
    fn called(&self, call: Call, writes: bool) -> Option<Cut> {
        let mut state = self.state.lock().unwrap();
        state.calls.push(call);
        state.writes += usize::from(writes);
        let (writes_now, cut) = (state.writes, state.cut);
        drop(state);
        self.tell();
        match cut {
            Some((at, cut)) if writes && writes_now == at => Some(cut),
            Some((at, _)) if writes && writes_now > at => Some(Cut::Before),
            _ => None,
        }
    }

    /// Does not come back: whoever waits for the answer is to be killed.
    async fn hold(&self) {
        self.state.lock().unwrap().held = true;
        self.tell();
        std::future::pending::<()>().await;
    }

    fn fault(&self, method: &Method, path: &str) -> Option<Fail> {
        let mut state = self.state.lock().unwrap();
        let at = state.faults.iter().position(|(on, part, _, left)| {
            on == method.as_str() && path.contains(part.as_str()) && *left > 0
        })?;
        state.faults[at].3 -= 1;
        Some(state.faults[at].2.clone())
    }

    fn change<T>(&self, work: impl FnOnce(&mut Store) -> Result<T, Fail>) -> Result<T, Fail> {
        let done = work(&mut self.state.lock().unwrap().store);
        self.tell();
        done
    }

    fn tell(&self) {
        self.wake.send_modify(|count| *count += 1);
        self.changed.notify_all();
    }
}

/// The server; it ends with this.
pub struct ApiServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ApiServer {
    /// On a port of its own, in a thread of its own.
    pub fn start() -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                store: Store::new(),
                calls: Vec::new(),
                writes: 0,
                cut: None,
                held: false,
                epoch: 0,
                faults: Vec::new(),
                logs: BTreeMap::new(),
                on_exec: None,
                denied: Vec::new(),
                release: "v1.36.2".to_owned(),
                on_create: Vec::new(),
                services: HashMap::new(),
                forbidden: Vec::new(),
                idle: HashMap::new(),
            }),
            changed: Condvar::new(),
            wake: channel::Sender::new(0),
        });
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let router = Router::new()
            .fallback(http::answer)
            .with_state(Arc::clone(&shared));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                tokio::select! {
                    served = axum::serve(listener, router).into_future() => served.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        Self {
            shared,
            address,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A file for `KUBECONFIG`, in this folder; its context is the namespace `divvy-system`.
    pub fn kubeconfig(&self, folder: &Path) -> PathBuf {
        let path = folder.join("kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{ "name": "test", "cluster": { "server": self.url() } }],
            "users": [{ "name": "test", "user": {} }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test", "namespace": "divvy-system" } }],
        });
        // Whole at every moment: a program that was started before may be reading it.
        let mut file = tempfile::NamedTempFile::new_in(folder).unwrap();
        std::io::Write::write_all(&mut file, config.to_string().as_bytes()).unwrap();
        file.persist(&path).unwrap();
        path
    }

    pub fn client(&self) -> kube::Client {
        divvy_k8s::base::cluster::use_ring();
        let mut config = kube::Config::new(self.url().parse().unwrap());
        config.default_namespace = "divvy-system".to_owned();
        kube::Client::try_from(config).unwrap()
    }

    /// Puts an object there behind the API's back, status and all; what is there goes first.
    pub fn create(&self, object: Value) -> Value {
        let made = self.shared.change(|store| {
            let at = at_of(store, &object)?;
            if store.get(&at).is_ok() {
                store.delete(&at, &json!({ "gracePeriodSeconds": 0 }), false)?;
            }
            let status = object.get("status").cloned();
            let mut made = store.create(&at, object, false)?;
            if let Some(status) = status {
                made["status"] = status;
                let mut door = at;
                door.name = made["metadata"]["name"].as_str().map(str::to_owned);
                door.subresource = Some("status".to_owned());
                made = store.update(&door, made, false)?;
            }
            Ok(made)
        });
        made.unwrap_or_else(|fail| panic!("{}", fail.message))
    }

    /// Merges into an object, its status too.
    pub fn merge(&self, plural: &str, namespace: &str, name: &str, patch: &Value) -> Value {
        let done = self.merged(plural, namespace, name, patch);
        done.unwrap_or_else(|fail| panic!("{}", fail.message))
    }

    /// The same where somebody else may remove it meanwhile; `false`: it is gone.
    pub fn merge_if_there(&self, plural: &str, namespace: &str, name: &str, patch: &Value) -> bool {
        self.merged(plural, namespace, name, patch).is_ok()
    }

    fn merged(
        &self,
        plural: &str,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<Value, Fail> {
        self.shared.change(|store| {
            let mut at = at(store, plural, namespace, name)?;
            let done = store.patch(&at, &store::PatchKind::Merge, patch, false)?;
            if patch.get("status").is_none() {
                return Ok(done);
            }
            at.subresource = Some("status".to_owned());
            store.patch(&at, &store::PatchKind::Merge, patch, false)
        })
    }

    /// Removes an object at once, finalizers and all.
    pub fn remove(&self, plural: &str, namespace: &str, name: &str) {
        let done = self.shared.change(|store| {
            let at = at(store, plural, namespace, name)?;
            let none = json!({ "metadata": { "finalizers": null } });
            store.patch(&at, &store::PatchKind::Merge, &none, false)?;
            store.delete(&at, &json!({ "gracePeriodSeconds": 0 }), false)
        });
        done.unwrap_or_else(|fail| panic!("{}", fail.message));
    }

    pub fn look<T>(&self, look: impl FnOnce(&View<'_>) -> T) -> T {
        let state = self.shared.state.lock().unwrap();
        look(&View { state: &state })
    }

    /// Waits until there is what is looked for; panics, with the last calls, where that does not come.
    pub fn until<T>(&self, what: &str, mut look: impl FnMut(&View<'_>) -> Option<T>) -> T {
        let ends = Instant::now() + PATIENCE;
        let mut state = self.shared.state.lock().unwrap();
        loop {
            if let Some(found) = look(&View { state: &state }) {
                return found;
            }
            let left = ends.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let last = state.calls.iter().rev().take(20).rev();
                let last: Vec<String> = last
                    .map(|call| format!("{} {}", call.method, call.path))
                    .collect();
                drop(state);
                panic!(
                    "waited in vain for {what}; the last calls:\n{}",
                    last.join("\n")
                );
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap().0;
        }
    }

    /// Holds the client at its nth write from now on: nothing that it writes later is answered.
    pub fn cut(&self, nth: usize, cut: Cut) {
        let mut state = self.shared.state.lock().unwrap();
        state.cut = Some((state.writes + nth, cut));
        state.held = false;
    }

    /// Nobody is held any more; who was gets no answer all the same.
    pub fn release(&self) {
        let mut state = self.shared.state.lock().unwrap();
        state.cut = None;
        state.held = false;
    }

    /// Answers the next calls of a method whose path has this part with an error, so many times.
    pub fn fail(&self, method: &str, part: &str, code: u16, times: usize) {
        let fail = Fail {
            code,
            reason: "InternalError",
            message: "the test wants it so".to_owned(),
        };
        let mut state = self.shared.state.lock().unwrap();
        state
            .faults
            .push((method.to_owned(), part.to_owned(), fail, times));
    }

    /// Answers as it should again.
    pub fn heal(&self) {
        self.shared.state.lock().unwrap().faults.clear();
    }

    /// Ends all watches, as a restart of the server does.
    pub fn cut_watches(&self) {
        self.shared.state.lock().unwrap().epoch += 1;
        self.shared.tell();
    }

    /// Ends all watches, and lets nobody go on from where they were.
    pub fn forget_history(&self) {
        self.shared.state.lock().unwrap().store.forget();
        self.cut_watches();
    }

    /// As `/version` has it, `v1.35.0`.
    pub fn set_release(&self, release: &str) {
        release.clone_into(&mut self.shared.state.lock().unwrap().release);
    }

    /// Serves no resource of this group any more.
    pub fn without_group(&self, group: &str) {
        self.shared
            .state
            .lock()
            .unwrap()
            .store
            .kinds
            .retain(|kind| kind.group != group);
    }

    /// Called with the kind and the object before one is created over the API; may change it, or refuse it with a text.
    pub fn on_create(
        &self,
        hook: impl FnMut(&str, &mut Value) -> Result<(), String> + Send + 'static,
    ) {
        self.shared
            .state
            .lock()
            .unwrap()
            .on_create
            .push(Box::new(hook));
    }

    /// Answers SelfSubjectAccessReviews of this verb and resource with no; all others are yes.
    pub fn forbid(&self, verb: &str, resource: &str) {
        let mut state = self.shared.state.lock().unwrap();
        state.forbidden.push((verb.to_owned(), resource.to_owned()));
    }

    /// The same, and denies the calls themselves with 403, as RBAC does.
    pub fn deny(&self, verb: &str, resource: &str) {
        self.forbid(verb, resource);
        let mut state = self.shared.state.lock().unwrap();
        state.denied.push((verb.to_owned(), resource.to_owned()));
    }

    /// Called with the pod and the command of each exec.
    pub fn on_exec(&self, hook: impl Fn(&str, &[String]) -> exec::Ran + Send + Sync + 'static) {
        self.shared.state.lock().unwrap().on_exec = Some(Arc::new(hook));
    }

    /// Where the service is that a webhook's configuration names. Without, the webhook is unreachable.
    pub fn set_service(&self, namespace: &str, name: &str, address: SocketAddr) {
        self.set_endpoints(namespace, name, &[address]);
    }

    /// The same with several, which are called in turn.
    pub fn set_endpoints(&self, namespace: &str, name: &str, addresses: &[SocketAddr]) {
        let mut state = self.shared.state.lock().unwrap();
        let endpoints = addresses.iter().copied().collect();
        state
            .services
            .insert((namespace.to_owned(), name.to_owned()), endpoints);
    }

    /// More of what a pod prints.
    pub fn print(&self, namespace: &str, pod: &str, text: &str) {
        let mut state = self.shared.state.lock().unwrap();
        let log = state
            .logs
            .entry((namespace.to_owned(), pod.to_owned()))
            .or_default();
        log.push_str(text);
        drop(state);
        self.shared.tell();
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // Err says that it has ended by itself.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            join("the API server", thread);
        }
    }
}

/// What there is at one moment.
pub struct View<'a> {
    state: &'a State,
}

impl View<'_> {
    /// All objects of a kind, in all namespaces.
    pub fn all(&self, plural: &str) -> Vec<Value> {
        let of_name = self
            .state
            .store
            .kinds
            .iter()
            .filter(|kind| kind.plural == plural);
        of_name
            .flat_map(|kind| {
                self.state
                    .store
                    .list(&target(kind, "", None), &Selector::default())
            })
            .collect()
    }

    pub fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let at = at(&self.state.store, plural, namespace, name).ok()?;
        self.state.store.get(&at).ok().cloned()
    }

    pub fn calls(&self) -> &[Call] {
        &self.state.calls
    }

    /// Whether a client is held at the write that was asked for.
    pub fn held(&self) -> Option<()> {
        self.state.held.then_some(())
    }

    /// How many objects of a kind were ever made, since the history was last forgotten.
    pub fn made(&self, plural: &str) -> usize {
        self.state.store.made(plural)
    }

    /// How many calls that write there were.
    pub fn writes(&self) -> usize {
        self.state.writes
    }
}

fn target(kind: &Kind, namespace: &str, name: Option<&str>) -> Target {
    Target {
        kind: kind.clone(),
        namespace: namespace.to_owned(),
        name: name.map(str::to_owned),
        subresource: None,
    }
}

fn at(store: &Store, plural: &str, namespace: &str, name: &str) -> Result<Target, Fail> {
    let kind = store.kinds.iter().find(|kind| kind.plural == plural);
    let kind = kind.ok_or_else(|| Fail::not_found(format!("no kind {plural}")))?;
    Ok(target(kind, namespace, Some(name)))
}

/// Where an object of a test belongs; in `default` where it does not say and its kind has namespaces.
fn at_of(store: &Store, object: &Value) -> Result<Target, Fail> {
    let kind = store.kinds.iter().find(|kind| {
        object["kind"] == kind.kind.as_str()
            && object["apiVersion"] == store::api_version(kind).as_str()
    });
    let kind = kind.ok_or_else(|| {
        Fail::not_found(format!(
            "no kind {} {}",
            object["apiVersion"], object["kind"]
        ))
    })?;
    let namespace = if kind.namespaced {
        object["metadata"]["namespace"]
            .as_str()
            .unwrap_or("default")
    } else {
        ""
    };
    Ok(target(kind, namespace, object["metadata"]["name"].as_str()))
}
