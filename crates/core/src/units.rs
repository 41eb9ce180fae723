//! Quantities that must never be confused: memory, shares of a GPU, and how compute is divided.
//!
//! Integers inside, one `FromStr` and one `Display` each, and `parse(display(x)) == x`. Floats are for drawing.

mod bytes;
mod compute;
mod decimal;
mod gpus;
mod share;

pub use bytes::{Bytes, BytesError};
pub use compute::{Compute, ComputeMode, ComputeModeError};
pub(crate) use decimal::Decimal;
pub use gpus::{Gpus, GpusError};
pub use share::{Share, ShareError, gpus};
