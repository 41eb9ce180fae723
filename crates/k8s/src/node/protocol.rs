//! kubelet's gRPC protocols of DRA plugins, compiled from `proto`. Field numbers and meanings are Kubernetes' own.

#![allow(clippy::all, reason = "generated from proto/*.proto")]

/// `pluginregistration`: kubelet calls a plugin that it found.
pub mod registration {
    tonic::include_proto!("pluginregistration");
}

/// `dra/v1`: kubelet has claims prepared.
pub mod dra {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
}

/// `dra-health/v1alpha1`: kubelet watches devices.
pub mod health {
    tonic::include_proto!("v1alpha1");
}
