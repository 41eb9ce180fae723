//! The pacing law, driven by loads in simulated time: shares, caps, work conservation, latency, gangs, and tenants that
//! die, sleep or lie.

mod latency;
mod properties;
mod shares;
mod trouble;
mod world;
