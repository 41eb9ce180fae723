//! The container create request to the engine.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use bollard::models::{
    ContainerCreateBody, DeviceMapping, DeviceRequest, HealthConfig, HostConfig,
    HostConfigLogConfig, Mount as EngineMount, MountType, PortBinding, PortMap, ResourcesUlimits,
    RestartPolicy, RestartPolicyNameEnum,
};
use divvy_core::docker::{self, Mount, Options};

use super::cdi;
use super::edits::Edits;
use crate::job_dir::LaunchSpec;
use crate::job_dir::container_spec::{INSTANCE, JOB, JOURNAL, Plan};

/// Differences between containers by their starter and place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreateContext<'a> {
    /// A terminal is attached to its input and output.
    pub attached: bool,
    /// The slice gets in as a device of the plan's CDI folder, and not by flags of the engine's.
    pub by_cdi: bool,
    /// The runtime to name, where the engine's own choice would be one that adds GPUs.
    pub runtime: Option<&'a str>,
    /// Folders of the engine's own, which no job may mount.
    pub storage: &'a [PathBuf],
    /// The parent control group, where the engine's own cannot open the GPUs' device nodes.
    pub cgroup_parent: Option<&'a str>,
    /// What a container that must run as its submitter has instead of the plan's.
    pub submitter: Option<&'a SubmitterContainer>,
}

/// A container that must run as its submitter, before the engine has made it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubmitterContainer {
    /// The plan's, with what is forced.
    pub options: Options,
    /// The image by its digest.
    pub image: String,
    /// The staged sources of the options' bind mounts, in their order.
    pub sources: Vec<PathBuf>,
    /// Variables with the submitter's home and name. The job's own take precedence.
    pub variables: BTreeMap<String, String>,
}

/// A folder of the host that a job may not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} may not be mounted: {why}", path.display())]
pub struct KeptSource {
    pub path: PathBuf,
    pub why: &'static str,
}

/// The request. `resolve` follows links of the host: where a mount's source really is.
///
/// # Errors
/// [`KeptSource`].
pub fn create_request(
    spec: &LaunchSpec,
    plan: &Plan,
    edits: &Edits,
    around: CreateContext<'_>,
    resolve: &dyn Fn(&Path) -> PathBuf,
) -> Result<ContainerCreateBody, KeptSource> {
    let submitter = around.submitter;
    let options = submitter.map_or(&plan.options, |submitter| &submitter.options);
    let kept = [&plan.kept[..], around.storage].concat();
    // What is staged for the submitter was judged when it was opened.
    let source = |number: usize, path: &Path| match submitter {
        Some(submitter) => (submitter.sources.get(number).cloned())
            .ok_or_else(|| refused_source(path, "it was not opened as its submitter")),
        None => {
            let path = resolve(path);
            docker::paths::source(&path, &kept)
                .map_err(|kept| refused_source(&path, kept.why))
                .map(|()| path)
        }
    };
    let (mut mounts, tmpfs) = own_mounts(options, &spec.cwd, &source)?;
    let own = submitter.map(|submitter| &submitter.variables);
    let mut all: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, value) in own.into_iter().flatten().chain(&spec.env) {
        all.insert(name, value);
    }
    let each = all.into_iter();
    let mut variables: Vec<String> = each.map(|(name, value)| joined(name, value)).collect();
    let (mut devices, mut requests) = (None, None);
    if around.by_cdi {
        requests = Some(vec![DeviceRequest {
            driver: Some("cdi".to_owned()),
            device_ids: Some(vec![cdi::device(&plan.name)]),
            ..DeviceRequest::default()
        }]);
    } else {
        let slice = edits.variables.iter();
        variables.extend(slice.map(|(name, value)| joined(name, value)));
        mounts.extend(edits.mounts.iter().map(|bind| EngineMount {
            typ: Some(MountType::BIND),
            source: Some(text(&bind.host)),
            target: Some(text(&bind.container)),
            read_only: Some(bind.read_only),
            ..EngineMount::default()
        }));
        let mapped = edits.devices.iter().map(|device| DeviceMapping {
            path_on_host: Some(text(&device.path)),
            path_in_container: Some(text(&device.path)),
            cgroup_permissions: Some(device.permissions.clone()),
        });
        devices = Some(mapped.collect());
    }
    let labels = identity_labels(spec, plan, options.labels.clone().into_iter().collect());
    let interactive = around.attached && options.interactive;
    let host = HostConfig {
        mounts: Some(mounts),
        tmpfs: Some(tmpfs),
        devices,
        device_requests: requests,
        runtime: around.runtime.map(str::to_owned),
        cgroup_parent: around.cgroup_parent.map(str::to_owned),
        // The engine's log is where the job's comes from: its way of keeping logs must be one that can be read.
        log_config: Some(HostConfigLogConfig {
            typ: Some("json-file".to_owned()),
            config: None,
        }),
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        security_opt: options
            .no_new_privileges
            .then(|| vec!["no-new-privileges:true".to_owned()]),
        port_bindings: Some(ports(options)),
        ..limits(options)
    };
    Ok(ContainerCreateBody {
        image: Some(
            submitter
                .map_or(&plan.image, |submitter| &submitter.image)
                .clone(),
        ),
        cmd: filled(spec.command.clone()),
        entrypoint: options.entrypoint.clone().map(|program| vec![program]),
        env: Some(variables),
        labels: Some(labels),
        hostname: options.hostname.clone(),
        domainname: options.domainname.clone(),
        user: options.user.clone(),
        working_dir: options.workdir.clone(),
        stop_signal: options.stop_signal.clone(),
        exposed_ports: filled(exposed(options)),
        healthcheck: options.no_healthcheck.then(|| HealthConfig {
            test: Some(vec!["NONE".to_owned()]),
            ..HealthConfig::default()
        }),
        tty: Some(around.attached && options.tty),
        open_stdin: Some(interactive),
        stdin_once: Some(interactive),
        attach_stdin: Some(interactive),
        attach_stdout: Some(around.attached),
        attach_stderr: Some(around.attached),
        host_config: Some(host),
        ..ContainerCreateBody::default()
    })
}

/// The labels by which Divvy knows the container, added to `labels`.
pub fn identity_labels(
    spec: &LaunchSpec,
    plan: &Plan,
    mut labels: HashMap<String, String>,
) -> HashMap<String, String> {
    labels.insert(JOB.to_owned(), spec.job.clone());
    labels.insert(INSTANCE.to_owned(), plan.instance.clone());
    labels.extend(plan.journal.clone().map(|name| (JOURNAL.to_owned(), name)));
    labels
}

fn refused_source(path: &Path, why: &'static str) -> KeptSource {
    KeptSource {
        path: path.to_owned(),
        why,
    }
}

/// What is passed on as it is.
fn limits(options: &Options) -> HostConfig {
    let ulimits = options.ulimits.iter().map(|limit| ResourcesUlimits {
        name: Some(limit.name.clone()),
        soft: Some(limit.soft),
        hard: Some(limit.hard),
    });
    HostConfig {
        cap_drop: filled(options.cap_drop.clone()),
        cpu_period: options.cpu_period,
        cpu_quota: options.cpu_quota,
        cpu_shares: options.cpu_shares,
        cpuset_cpus: options.cpuset_cpus.clone(),
        cpuset_mems: options.cpuset_mems.clone(),
        dns: filled(options.dns.clone()),
        dns_options: filled(options.dns_options.clone()),
        dns_search: filled(options.dns_search.clone()),
        extra_hosts: filled(options.add_hosts.clone()),
        group_add: filled(options.group_add.clone()),
        init: options.init.then_some(true),
        ipc_mode: options.ipc.clone(),
        memory: options.memory,
        memory_reservation: options.memory_reservation,
        memory_swap: options.memory_swap,
        nano_cpus: options.nano_cpus,
        network_mode: options.network.clone(),
        pids_limit: options.pids_limit,
        publish_all_ports: options.publish_all.then_some(true),
        readonly_rootfs: options.read_only.then_some(true),
        shm_size: options.shm_size,
        sysctls: Some(options.sysctls.clone().into_iter().collect()),
        ulimits: filled(ulimits.collect()),
        ..HostConfig::default()
    }
}

type Tmpfs = HashMap<String, String>;

/// The mounts that the job names; `source_of` gives the place of each bind mount's source, by its number.
fn own_mounts(
    options: &Options,
    cwd: &Path,
    source_of: &dyn Fn(usize, &Path) -> Result<PathBuf, KeptSource>,
) -> Result<(Vec<EngineMount>, Tmpfs), KeptSource> {
    let (mut mounts, mut tmpfs) = (Vec::new(), Tmpfs::new());
    let mut numbers = 0_usize..;
    for mount in &options.mounts {
        let common = EngineMount {
            target: Some(mount.target().to_owned()),
            ..EngineMount::default()
        };
        match mount {
            Mount::Bind {
                source, read_only, ..
            } => {
                let number = numbers.next().unwrap_or_default();
                let path = source_of(number, &docker::paths::normal(&cwd.join(source)))?;
                mounts.push(EngineMount {
                    typ: Some(MountType::BIND),
                    source: Some(text(&path)),
                    read_only: Some(*read_only),
                    ..common
                });
            }
            Mount::Volume {
                name, read_only, ..
            } => mounts.push(EngineMount {
                typ: Some(MountType::VOLUME),
                source: name.clone(),
                read_only: Some(*read_only),
                ..common
            }),
            Mount::Tmpfs { target, options } => {
                tmpfs.insert(target.clone(), options.clone());
            }
        }
    }
    Ok((mounts, tmpfs))
}

fn ports(options: &Options) -> PortMap {
    let mut ports = PortMap::new();
    for port in &options.publish {
        let binding = PortBinding {
            host_ip: port.host_ip.clone(),
            host_port: port.host_port.clone(),
        };
        ports
            .entry(port.container.clone())
            .or_default()
            .get_or_insert_default()
            .push(binding);
    }
    ports
}

fn exposed(options: &Options) -> Vec<String> {
    let published = options.publish.iter().map(|port| &port.container);
    let mut all: Vec<String> = options.expose.iter().chain(published).cloned().collect();
    all.sort();
    all.dedup();
    all
}

fn filled<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

fn joined(name: &str, value: &str) -> String {
    format!("{name}={value}")
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
pub mod tests {
    use divvy_core::docker::{options, words};
    use serde_json::{Value, json};

    use super::*;
    use crate::container::edits::{edits, tests as added};
    use crate::job_dir::container_spec::OnUnlimited;

    /// Of job 7.
    pub fn plan(line: &str) -> Plan {
        Plan {
            socket: "/run/docker.sock".into(),
            name: "divvy-0badcafe-7".into(),
            instance: "0badcafe".into(),
            journal: Some("11".into()),
            began: Some(1_767_323_045),
            image: "u22".into(),
            options: options(&words::split(line).unwrap()).unwrap(),
            kept: vec!["/state".into()],
            held: added::installed(),
            on_unlimited: OnUnlimited::Deny,
            cdi: None,
            starter: None,
            submitter: None,
        }
    }

    fn spec(command: &[&str]) -> LaunchSpec {
        LaunchSpec {
            job: "7".into(),
            command: command.iter().map(ToString::to_string).collect(),
            cwd: "/home/u".into(),
            env: [("A".to_owned(), "1".to_owned())].into(),
            grace_ms: 1,
            ..LaunchSpec::default()
        }
    }

    fn request_of(
        plan: &Plan,
        command: &[&str],
        around: CreateContext<'_>,
    ) -> Result<Value, KeptSource> {
        let edits = edits(&plan.held, &added::files());
        let body = create_request(&spec(command), plan, &edits, around, &Path::to_owned)?;
        Ok(serde_json::to_value(body).unwrap())
    }

    #[test]
    fn the_request_has_what_was_asked_for_and_what_holds_it() {
        let plan = plan(
            "-it -m 8g --shm-size=1g -v ./data:/data:ro -v vol:/v --tmpfs /t -p 8080:80 -u 7 --label a=b --rm",
        );
        let body = request_of(&plan, &["python", "x.py"], CreateContext::default()).unwrap();
        let host = &body["HostConfig"];
        assert_eq!(body["Image"], "u22");
        assert_eq!(body["Cmd"], json!(["python", "x.py"]));
        assert_eq!(body["User"], "7");
        assert_eq!(
            body["Labels"],
            json!({"a": "b", "divvy.job": "7", "divvy.instance": "0badcafe", "divvy.journal": "11"})
        );
        assert_eq!(
            body["Env"],
            json!([
                "A=1",
                "CUDA_VISIBLE_DEVICES=GPU-1",
                "DIVVY_SHIM=on",
                "DIVVY_SIM=a100-80gb:1"
            ])
        );
        // No terminal is attached.
        assert_eq!(
            (&body["Tty"], &body["OpenStdin"]),
            (&json!(false), &json!(false))
        );
        assert_eq!(host["Memory"], json!(8_u64 << 30));
        assert_eq!(host["ShmSize"], json!(1 << 30));
        assert_eq!(host["Tmpfs"], json!({"/t": ""}));
        assert_eq!(
            host["PortBindings"],
            json!({"80/tcp": [{"HostPort": "8080"}]})
        );
        assert_eq!(body["ExposedPorts"], json!({"80/tcp": {}}));
        let mounts = host["Mounts"].as_array().unwrap();
        assert_eq!(
            mounts[0],
            json!({"Type": "bind", "Source": "/home/u/data", "Target": "/data", "ReadOnly": true})
        );
        assert_eq!(mounts[1]["Type"], "volume");
        let preload = mounts
            .iter()
            .find(|mount| mount["Target"] == "/etc/ld.so.preload");
        assert_eq!(preload.unwrap()["ReadOnly"], true);
        let devices = host["Devices"].as_array().unwrap();
        assert_eq!(
            devices[2],
            json!({"PathOnHost": "/dev/nvidia-caps/nvidia-cap12", "PathInContainer": "/dev/nvidia-caps/nvidia-cap12", "CgroupPermissions": "r"})
        );
        for absent in [
            "Privileged",
            "PidMode",
            "CapAdd",
            "DeviceRequests",
            "Runtime",
            "IpcMode",
        ] {
            assert!(host.get(absent).is_none(), "{absent}");
        }
    }

    #[test]
    fn a_terminal_is_requested_and_an_image_keeps_its_own_command() {
        let around = CreateContext {
            attached: true,
            runtime: Some("runc"),
            ..CreateContext::default()
        };
        let body = request_of(&plan("-it"), &[], around).unwrap();
        assert!(body.get("Cmd").is_none() && body.get("Entrypoint").is_none());
        for name in [
            "Tty",
            "OpenStdin",
            "StdinOnce",
            "AttachStdin",
            "AttachStdout",
        ] {
            assert_eq!(body[name], true, "{name}");
        }
        assert_eq!(body["HostConfig"]["Runtime"], "runc");
        let body = request_of(&plan("--entrypoint /bin/x"), &["-a"], around).unwrap();
        assert_eq!(
            (&body["Entrypoint"], &body["Cmd"]),
            (&json!(["/bin/x"]), &json!(["-a"]))
        );
    }

    #[test]
    fn where_a_link_leads_is_what_counts() {
        let plan = plan("-v /home/u/link:/x");
        let edits = edits(&plan.held, &added::files());
        for (leads, may) in [
            ("/run/docker.sock", false),
            ("/state/jobs", false),
            ("/srv", true),
        ] {
            let resolve = |_: &Path| PathBuf::from(leads);
            let body = create_request(
                &spec(&[]),
                &plan,
                &edits,
                CreateContext::default(),
                &resolve,
            );
            assert_eq!(body.is_ok(), may, "{leads}");
        }
    }

    #[test]
    fn nothing_is_mounted_from_where_the_engine_keeps_its_containers() {
        let storage = [PathBuf::from("/data/docker")];
        let around = CreateContext {
            storage: &storage,
            ..CreateContext::default()
        };
        for (source, may) in [
            ("/data/docker", false),
            ("/data/docker/overlay2", false),
            ("/data", false),
            ("/data/sets", true),
            ("/data/docker-sets", true),
        ] {
            let plan = plan(&format!("-v {source}:/x"));
            assert_eq!(
                request_of(&plan, &["true"], around).is_ok(),
                may,
                "{source}"
            );
            assert!(request_of(&plan, &["true"], CreateContext::default()).is_ok());
        }
    }

    #[test]
    fn a_container_joins_the_control_group_that_can_open_the_device_nodes() {
        let around = CreateContext {
            cgroup_parent: Some("divvy.slice"),
            ..CreateContext::default()
        };
        let body = request_of(&plan(""), &["true"], around).unwrap();
        assert_eq!(body["HostConfig"]["CgroupParent"], "divvy.slice");
        let body = request_of(&plan(""), &["true"], CreateContext::default()).unwrap();
        assert!(body["HostConfig"].get("CgroupParent").is_none());
    }

    #[test]
    fn a_submitters_container_has_what_was_staged_and_checked_and_not_what_was_named() {
        let plan = plan("-v /state:/a -v vol:/v -v /b:/b:ro");
        let submitter = SubmitterContainer {
            options: Options {
                user: Some("7:8".to_owned()),
                group_add: vec!["9".to_owned()],
                cap_drop: vec!["ALL".to_owned()],
                no_new_privileges: true,
                ..plan.options.clone()
            },
            image: "sha256:1".to_owned(),
            sources: ["/run/divvy/mounts/x/0", "/run/divvy/mounts/x/1"]
                .map(PathBuf::from)
                .into(),
            variables: [("HOME", "/home/u"), ("A", "other")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
        };
        let around = CreateContext {
            submitter: Some(&submitter),
            ..CreateContext::default()
        };
        let body = request_of(&plan, &["true"], around).unwrap();
        let host = &body["HostConfig"];
        assert_eq!(
            (&body["Image"], &body["User"]),
            (&json!("sha256:1"), &json!("7:8"))
        );
        assert_eq!(host["CapDrop"], json!(["ALL"]));
        assert_eq!(host["SecurityOpt"], json!(["no-new-privileges:true"]));
        assert_eq!(host["GroupAdd"], json!(["9"]));
        let mounts = host["Mounts"].as_array().unwrap();
        let sources = mounts.iter().map(|mount| &mount["Source"]);
        let sources: Vec<_> = sources.take(3).collect();
        assert_eq!(
            sources,
            ["/run/divvy/mounts/x/0", "vol", "/run/divvy/mounts/x/1"]
        );
        assert_eq!(mounts[2]["ReadOnly"], true);
        // The job's own variable wins.
        let env = body["Env"].as_array().unwrap();
        assert!(
            env.contains(&json!("A=1")) && env.contains(&json!("HOME=/home/u")),
            "{env:?}"
        );
        // What was not staged is not mounted.
        let few = SubmitterContainer {
            sources: Vec::new(),
            ..submitter.clone()
        };
        let around = CreateContext {
            submitter: Some(&few),
            ..CreateContext::default()
        };
        assert!(request_of(&plan, &["true"], around).is_err());
    }

    #[test]
    fn by_cdi_the_slice_is_one_device_and_nothing_else_is_said() {
        let mut plan = plan("");
        plan.cdi = Some("/run/cdi".into());
        let around = |by_cdi| CreateContext {
            by_cdi,
            ..CreateContext::default()
        };
        let body = request_of(&plan, &["true"], around(true)).unwrap();
        let host = &body["HostConfig"];
        assert_eq!(
            host["DeviceRequests"],
            json!([{"Driver": "cdi", "DeviceIDs": ["divvy.dev/slice=divvy-0badcafe-7"]}])
        );
        assert_eq!(host["Mounts"], json!([]));
        assert_eq!(body["Env"], json!(["A=1"]));
        assert!(host.get("Devices").is_none());

        // An engine that would pass over that is told the rest.
        let body = request_of(&plan, &["true"], around(false)).unwrap();
        let host = &body["HostConfig"];
        assert!(host.get("DeviceRequests").is_none());
        assert!(!host["Mounts"].as_array().unwrap().is_empty());
        assert!(host["Devices"].is_array());
    }
}
