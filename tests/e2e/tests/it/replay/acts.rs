//! The acts: each makes the calls of one step, and compares their answers with what the program expects.

mod host;
mod linear;
mod physical;
mod processes;
mod views;

use super::stage::Stage;
use super::step::{Act, Seen};

/// Makes the calls of one act.
pub fn run(stage: &Stage, act: Act) -> Seen {
    match act {
        Act::Views => views::views(stage),
        Act::NvidiaSmi => views::nvidia_smi(stage),
        Act::EqualGpus => views::equal_gpus(stage),
        Act::Steady => views::steady(stage),
        Act::Listed => views::listed(stage),
        Act::AsNeighbour(part) => linear::as_neighbour(stage, part),
        Act::Utilisation { default } => linear::utilisation(stage, default),
        Act::Take { way, amount } => linear::take(stage, way, amount),
        Act::Fill { way, block } => linear::fill(stage, way, block),
        Act::BackOff { way, from, keeps } => linear::back_off(stage, way, from, keeps),
        Act::Layers { layer, margin } => linear::layers(stage, layer, margin),
        Act::Pool { own, amount } => linear::pool(stage, own, amount),
        Act::Capture => linear::capture(stage),
        Act::GrowWithoutContext { piece, pieces } => {
            physical::grow_without_context(stage, piece, pieces)
        }
        Act::GrowUntilRefused { piece } => physical::grow_until_refused(stage, piece),
        Act::GrowMappedOnly { piece, pieces } => physical::grow_mapped_only(stage, piece, pieces),
        Act::Sleep { piece, pieces } => physical::sleep(stage, piece, pieces),
        Act::RefusedSoon => physical::refused_soon(stage),
        Act::HostPhysical(place) => host::physical(stage, place),
        Act::Pinned(bytes) => host::pinned(stage, bytes),
        Act::Processes { count, part } => processes::sum(stage, count, part),
        Act::Glances(count) => processes::glances(stage, count),
        Act::Killed => processes::killed(stage),
        Act::SharedOnce(by) => processes::shared_once(stage, by),
    }
}
