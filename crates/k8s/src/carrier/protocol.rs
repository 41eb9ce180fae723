//! kubelet's gRPC protocols of device plugins and of pod-resources, compiled from `proto`.

#![allow(clippy::all, reason = "generated from proto/*.proto")]

/// `deviceplugin/v1beta1`.
pub mod plugin {
    tonic::include_proto!("v1beta1");
}

/// `podresources/v1`.
pub mod resources {
    tonic::include_proto!("v1");
}
