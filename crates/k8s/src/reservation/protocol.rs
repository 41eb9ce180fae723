//! What kubelet and a device plugin speak, and what kubelet says of its pods' devices, compiled from `proto`.

#![allow(clippy::all, reason = "generated from proto/*.proto")]

/// `deviceplugin/v1beta1`.
pub mod plugin {
    tonic::include_proto!("v1beta1");
}

/// `podresources/v1`.
pub mod resources {
    tonic::include_proto!("v1");
}
