//! Which GPUs a request gets: whole GPUs by lowest index; parts by best fit, so that large gaps stay large.

use crate::board::{Board, Tile};
use crate::fit::{Need, Size, fit};
use crate::request::Request;
use crate::units::{Bytes, Share};

/// What one GPU of the board would give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Place on the board.
    pub(crate) tile: usize,
    pub(crate) share: Share,
    pub(crate) memory: Bytes,
}

/// The best GPUs for a request among those that fit and are admitted; `None` when they are too few.
///
/// A part goes where the least share is left over, then the least memory, then the lowest index; a part is never spread
/// over GPUs, and equal parts go to different ones.
pub(crate) fn place(
    board: &Board<'_>,
    request: &Request,
    admit: impl Fn(&Tile<'_>, Size) -> bool,
) -> Option<Vec<Offer>> {
    let offer = |(tile, on): (usize, &Tile<'_>)| {
        let size = fit(on, request).ok().filter(|size| admit(on, *size))?;
        Some(Offer {
            tile,
            share: size.share,
            memory: size.memory,
        })
    };
    let mut offers: Vec<Offer> = board.tiles.iter().enumerate().filter_map(offer).collect();
    let (least, most) = match Need::of(request.amount) {
        Need::Whole { min, max } => (min, max),
        Need::Parts { count, .. } => {
            let left_over = |offer: &Offer| {
                let tile = &board.tiles[offer.tile];
                let share = tile.free_share() - u64::from(offer.share.thousandths());
                (share, tile.free_memory().saturating_sub(offer.memory))
            };
            offers.sort_by_key(left_over); // Stable, and the board is in order of index.
            (count, count)
        }
    };
    offers.truncate(usize::try_from(most).unwrap_or(usize::MAX));
    let enough = u32::try_from(offers.len()).is_ok_and(|found| found >= least);
    enough.then_some(offers)
}
