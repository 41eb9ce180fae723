//! The Pod Security Standards as a table: what each level refuses in a pod (kubernetes.io, "Pod Security Standards", for 1.36).

use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Baseline,
    Restricted,
}

type Violates = fn(&Pod<'_>) -> bool;

/// Level, control, and whether a pod violates it.
const CONTROLS: [(Level, &str, Violates); 17] = [
    (Level::Baseline, "host process", |pod| {
        pod.any_context(|context| context["windowsOptions"]["hostProcess"] == true)
    }),
    (Level::Baseline, "host namespaces", |pod| {
        ["hostNetwork", "hostPID", "hostIPC"]
            .iter()
            .any(|key| pod.spec()[key] == true)
    }),
    (Level::Baseline, "privileged containers", |pod| {
        pod.containers()
            .any(|one| one["securityContext"]["privileged"] == true)
    }),
    (Level::Baseline, "capabilities", |pod| {
        pod.added()
            .any(|name| !BASELINE_CAPABILITIES.contains(&name))
    }),
    (Level::Baseline, "host path volumes", |pod| {
        pod.volumes().any(|volume| !volume["hostPath"].is_null())
    }),
    (Level::Baseline, "host ports", |pod| {
        let mut ports = pod.containers().flat_map(|one| list(&one["ports"]));
        ports.any(|port| port["hostPort"].as_u64().unwrap_or(0) != 0)
    }),
    (Level::Baseline, "probes and hooks of other hosts", |pod| {
        pod.containers().any(|one| {
            let probes = ["livenessProbe", "readinessProbe", "startupProbe"].map(|key| &one[key]);
            let hooks = ["postStart", "preStop"].map(|key| &one["lifecycle"][key]);
            let mut all = probes.into_iter().chain(hooks);
            all.any(|probe| {
                ["httpGet", "tcpSocket"].iter().any(|key| {
                    probe[key]["host"]
                        .as_str()
                        .is_some_and(|host| !host.is_empty())
                })
            })
        })
    }),
    (Level::Baseline, "AppArmor", |pod| {
        pod.any_context(|context| context["appArmorProfile"]["type"] == "Unconfined")
    }),
    (Level::Baseline, "SELinux", |pod| {
        pod.any_context(|context| {
            let options = &context["seLinuxOptions"];
            let of = options["type"].as_str().unwrap_or_default();
            ![
                "",
                "container_t",
                "container_init_t",
                "container_kvm_t",
                "container_engine_t",
            ]
            .contains(&of)
                || options["user"].is_string()
                || options["role"].is_string()
        })
    }),
    (Level::Baseline, "/proc mount type", |pod| {
        pod.any_context(|context| {
            context["procMount"]
                .as_str()
                .is_some_and(|kind| kind != "Default")
        })
    }),
    (Level::Baseline, "seccomp unconfined", |pod| {
        pod.any_context(|context| context["seccompProfile"]["type"] == "Unconfined")
    }),
    (Level::Baseline, "sysctls", |pod| {
        list(&pod.spec()["securityContext"]["sysctls"])
            .any(|one| !SAFE_SYSCTLS.contains(&one["name"].as_str().unwrap_or_default()))
    }),
    (Level::Restricted, "volume types", |pod| {
        pod.volumes().any(|volume| {
            let mut kinds = volume
                .as_object()
                .into_iter()
                .flatten()
                .map(|(key, _)| key.as_str());
            !kinds.any(|kind| RESTRICTED_VOLUMES.contains(&kind))
        })
    }),
    (Level::Restricted, "privilege escalation", |pod| {
        pod.containers()
            .any(|one| one["securityContext"]["allowPrivilegeEscalation"] != false)
    }),
    (Level::Restricted, "running as non-root", |pod| {
        let of_pod = pod.spec()["securityContext"]["runAsNonRoot"] == true;
        let root = pod.any_context(|context| context["runAsUser"] == 0);
        root || pod.containers().any(
            |one| match one["securityContext"]["runAsNonRoot"].as_bool() {
                Some(own) => !own,
                None => !of_pod,
            },
        )
    }),
    (Level::Restricted, "seccomp", |pod| {
        let good = |context: &Value| {
            let kind = context["seccompProfile"]["type"].as_str()?;
            Some(["RuntimeDefault", "Localhost"].contains(&kind))
        };
        let of_pod = good(&pod.spec()["securityContext"]).unwrap_or(false);
        pod.containers()
            .any(|one| !good(&one["securityContext"]).unwrap_or(of_pod))
    }),
    (Level::Restricted, "capabilities dropped", |pod| {
        let drops = |one: &Value| {
            list(&one["securityContext"]["capabilities"]["drop"]).any(|name| name == "ALL")
        };
        pod.containers().any(|one| !drops(one))
            || pod.added().any(|name| name != "NET_BIND_SERVICE")
    }),
];

const BASELINE_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
const SAFE_SYSCTLS: [&str; 10] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
];
const RESTRICTED_VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

struct Pod<'a>(&'a Value);

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

impl<'a> Pod<'a> {
    fn spec(&self) -> &'a Value {
        &self.0["spec"]
    }

    fn containers(&self) -> impl Iterator<Item = &'a Value> {
        let spec = self.spec();
        ["containers", "initContainers", "ephemeralContainers"]
            .into_iter()
            .flat_map(move |key| list(&spec[key]))
    }

    fn volumes(&self) -> impl Iterator<Item = &'a Value> {
        list(&self.spec()["volumes"])
    }

    fn added(&self) -> impl Iterator<Item = &'a str> {
        let added = self
            .containers()
            .flat_map(|one| list(&one["securityContext"]["capabilities"]["add"]));
        added.filter_map(Value::as_str)
    }

    fn any_context(&self, is: impl Fn(&Value) -> bool) -> bool {
        is(&self.spec()["securityContext"])
            || self.containers().any(|one| is(&one["securityContext"]))
    }
}

/// The controls of this level, and of those below, that a pod violates.
pub fn violations(pod: &Value, level: Level) -> Vec<&'static str> {
    let pod = Pod(pod);
    let held = CONTROLS.iter().filter(|(of, ..)| *of <= level);
    held.filter(|(_, _, violates)| violates(&pod))
        .map(|(_, name, _)| *name)
        .collect()
}
