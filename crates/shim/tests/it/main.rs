//! The preload library over the simulated driver: C programs that use the driver as programs do, and a slice to hold
//! them to. Everything here runs without a GPU.

#![warn(clippy::disallowed_methods)]

mod binding;
mod books;
mod calls;
mod checkpoint;
mod damage;
mod differential;
mod exports;
mod forms;
mod fuzz;
mod graphs;
mod hooks;
mod life;
mod limits;
mod matrix;
mod mig;
mod model;
mod monitor;
mod oversize;
mod park;
mod programs;
mod races;
mod refusals;
mod routing;
mod sharing;
mod standing;
mod storm;
mod support;
mod turns;
mod views;
