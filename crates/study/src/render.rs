//! What the studies print: rows as a table or as JSON, and the scene in one sentence.

mod figure;
mod packing;
mod waits;

pub use figure::{Figure, Ratio};
pub use packing::{
    Packing, PackingKinds, PackingPoint, PackingScene, PackingTiming, Spread, at as packing_at,
    packing_scene, packings,
};
pub use waits::{
    WaitDifference, WaitFigures, WaitForecast, WaitRow, WaitScene, wait_forecasts, wait_scene,
    waits,
};
