//! Packing: policies that choose nodes, on small clusters and on the lists of the published comparison.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "what goes wrong here fails the test, with figures to look at"
)]

mod bench;
mod fill;
mod learned;
mod leaving;
mod openb;
mod orders;
mod policies;
mod small;
