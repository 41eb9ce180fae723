//! The preload library over the simulated driver: C programs that use the driver as programs do, and a slice to hold
//! them to. Everything here runs without a GPU.

mod binding;
mod exports;
mod life;
mod limits;
mod races;
mod routing;
mod standing;
mod support;
mod views;
