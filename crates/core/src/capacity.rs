//! Whether a request can ever be served by these GPUs, once everybody else is gone.

use crate::board::Board;
use crate::fit::{Need, Part, size};
use crate::gpu::{Gpu, Mode};
use crate::placement::place;
use crate::reason::indices;
use crate::request::Request;
use crate::smaller::{largest_memory, shared, smaller};
use crate::units::Bytes;

/// Whether these GPUs, empty and with no foreign process on them, can serve the request.
///
/// # Errors
/// [`NeverFits`], with the nearest request that can.
pub fn can_ever_fit(gpus: &[Gpu], request: &Request) -> Result<(), NeverFits> {
    let board = Board::empty(gpus);
    let absent: Vec<u32> = {
        let there = |index: &u32| gpus.iter().any(|gpu| gpu.index == *index);
        request
            .on
            .iter()
            .copied()
            .filter(|index| !there(index))
            .collect()
    };
    if absent.is_empty() {
        return fits_empty(&board, request);
    }
    let there: Vec<u32> = board.tiles.iter().map(|tile| tile.gpu.index).collect();
    let there = match there[..] {
        [] => "there are none".to_owned(),
        _ => format!("there are {}", indices(&there)),
    };
    let message = format!("there is no GPU {} here: {there}", indices(&absent));
    let on = request
        .on
        .iter()
        .copied()
        .filter(|index| !absent.contains(index))
        .collect();
    let nearest = Request {
        on,
        ..request.clone()
    };
    Err(NeverFits {
        message,
        nearest: Some(nearest).filter(|request| can_ever_fit(gpus, request).is_ok()),
    })
}

/// [`can_ever_fit`] on a board that is empty already, where GPUs asked for may have gone as long as enough are left.
pub(crate) fn fits_empty(empty: &Board<'_>, request: &Request) -> Result<(), NeverFits> {
    let fits = |request: &Request| place(empty, request, |_, _| true).is_some();
    if fits(request) {
        return Ok(());
    }
    let nearest = smaller(empty, request).into_iter().find(fits);
    Err(NeverFits {
        message: message(empty, request),
        nearest,
    })
}

fn message(empty: &Board<'_>, request: &Request) -> String {
    let words = request.amount.words();
    let among = match request.on[..] {
        [] => "here".to_owned(),
        _ => format!("among {}", indices(&request.on)),
    };
    let whole = empty
        .tiles
        .iter()
        .filter(|tile| tile.gpu.mode != Mode::Unmanaged);
    let whole = whole.filter(|tile| request.allows(tile.gpu.index)).count();
    let parts = shared(empty, request).count();
    let able = empty
        .tiles
        .iter()
        .filter(|tile| size(tile, request).is_ok())
        .count();
    let cause = match Need::of(request.amount) {
        _ if whole == 0 => format!("no GPU {among} is managed"),
        Need::Whole { .. } => format!("{able} managed {among}"),
        Need::Parts { .. } if parts == 0 => format!("no GPU {among} is shared, only given whole"),
        Need::Parts {
            part: Part::Memory(_),
            ..
        } => {
            let most = shared(empty, request)
                .map(largest_memory)
                .max()
                .unwrap_or(Bytes::ZERO);
            format!("the largest shared GPU {among} has {most}")
        }
        Need::Parts { .. } => format!("{able} shared {among} and large enough"),
    };
    format!("{words} can never be had: {cause}")
}

/// The request is beyond these GPUs, whoever ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct NeverFits {
    pub message: String,
    /// The nearest request that fits, if any does.
    pub nearest: Option<Request>,
}

impl NeverFits {
    /// What to ask for instead: `the nearest that fits is -g 1`.
    pub fn hint(&self) -> String {
        match &self.nearest {
            None => "`divvy gpus` shows what can be asked for".to_owned(),
            Some(Request { amount, on, .. }) if on.is_empty() => {
                format!("the nearest that fits is {}", amount.flag())
            }
            Some(Request { amount, on, .. }) => {
                format!(
                    "the nearest that fits is {} on GPU {}",
                    amount.flag(),
                    indices(on)
                )
            }
        }
    }
}
