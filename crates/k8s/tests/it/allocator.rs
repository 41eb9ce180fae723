//! What the stock scheduler makes of our slices: a model of it, held to what was recorded of the real one, and our slices in
//! front of that.

#![allow(clippy::unwrap_used)]

mod cel;
mod change;
mod gpus;
mod model;
mod properties;
mod recorded;
mod shape;
