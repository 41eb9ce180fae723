//! What could be asked for instead: the largest parts that a board has room for.

use std::num::NonZeroU32;

use crate::board::{Board, Tile};
use crate::gpu::{GRANULE, Mode};
use crate::request::{Amount, Request};
use crate::units::{Bytes, Share};

/// Smaller requests that may find room where this one does not, nearest first. For a part, one whole GPU comes last, in
/// case exclusive GPUs are all that is left. Being listed promises nothing: place it.
pub(crate) fn smaller(board: &Board<'_>, request: &Request) -> Vec<Request> {
    let part_of_one = |most: Share| {
        let part = shared(board, request).filter_map(largest_share).max();
        part.map(|share| share.min(most)).map(Amount::Share)
    };
    let there = u32::try_from(board.tiles.len()).unwrap_or(u32::MAX);
    let fewer = |count: NonZeroU32| {
        (1..=there.min(count.get() - 1))
            .rev()
            .filter_map(NonZeroU32::new)
    };
    let mut amounts = Vec::new();
    match request.amount {
        Amount::Memory(wanted) => {
            let memory = shared(board, request).map(largest_memory).max();
            amounts.extend(
                memory
                    .filter(|memory| (Bytes::new(1)..wanted).contains(memory))
                    .map(Amount::Memory),
            );
            amounts.push(Amount::ONE_GPU);
        }
        Amount::Share(wanted) => {
            amounts.extend(less_than(wanted).and_then(part_of_one));
            amounts.push(Amount::ONE_GPU);
        }
        Amount::Shares { count, share } => {
            let on_fewer = |count| match count {
                NonZeroU32::MIN => Amount::Share(share),
                count => Amount::Shares { count, share },
            };
            amounts.extend(fewer(count).map(on_fewer));
            amounts.extend(less_than(share).and_then(part_of_one));
            amounts.push(Amount::ONE_GPU);
        }
        Amount::Whole(count) | Amount::Range { min: count, .. } => {
            amounts.extend(fewer(count).map(Amount::Whole));
            amounts.extend(less_than(Share::FULL).and_then(part_of_one));
        }
        Amount::Mig(_) => {}
    }
    amounts
        .into_iter()
        .map(|amount| request.with_amount(amount))
        .collect()
}

/// The GPUs that the request may have parts of.
pub(crate) fn shared<'b, 'a>(
    board: &'b Board<'a>,
    request: &'b Request,
) -> impl Iterator<Item = &'b Tile<'a>> {
    let may = |tile: &&Tile<'_>| tile.gpu.mode == Mode::Shared && request.allows(tile.gpu.index);
    board.tiles.iter().filter(may)
}

fn less_than(share: Share) -> Option<Share> {
    Share::from_thousandths(share.thousandths() - 1)
}

/// The largest share that fits the GPU now.
pub(crate) fn largest_share(tile: &Tile<'_>) -> Option<Share> {
    let fits = |share: &Share| {
        let memory = tile.gpu.memory_of(*share);
        Bytes::ZERO < memory && memory <= tile.free_memory()
    };
    let free = u16::try_from(tile.free_share()).ok()?;
    (1..=free)
        .rev()
        .filter_map(Share::from_thousandths)
        .find(fits)
}

/// The largest amount of memory, in steps of 2 MiB, that fits the GPU now; zero when nothing does.
pub(crate) fn largest_memory(tile: &Tile<'_>) -> Bytes {
    let by_share = u128::from(tile.gpu.usable().get()) * u128::from(tile.free_share()) / 1000;
    let by_share = Bytes::new(u64::try_from(by_share).unwrap_or(u64::MAX));
    tile.free_memory().min(by_share).round_down(GRANULE)
}
