//! The outcome of a request of the scheduler, as its metric counts it.

use super::view::NoShape;

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Chosen,
    /// The pod wants no GPU of Divvy.
    NotOurs,
    /// The pod's claim is not visible yet.
    UnknownClaim,
    /// The pod's claim has devices already.
    Allocated,
    /// The pod wants a MIG instance.
    Instance,
    /// As far as the extender sees, the pod fits on none of the nodes.
    NoRoom,
    /// The objects of the cluster are not listed yet.
    NotReady,
    Invalid,
}

impl Outcome {
    pub const ALL: [Self; 8] = [
        Self::Chosen,
        Self::NotOurs,
        Self::UnknownClaim,
        Self::Allocated,
        Self::Instance,
        Self::NoRoom,
        Self::NotReady,
        Self::Invalid,
    ];

    /// The value of the metric's label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chosen => "chosen",
            Self::NotOurs => "not-ours",
            Self::UnknownClaim => "unknown-claim",
            Self::Allocated => "allocated",
            Self::Instance => "instance",
            Self::NoRoom => "no-room",
            Self::NotReady => "not-ready",
            Self::Invalid => "invalid",
        }
    }
}

impl From<NoShape> for Outcome {
    fn from(why: NoShape) -> Self {
        match why {
            NoShape::NotOurs => Self::NotOurs,
            NoShape::UnknownClaim => Self::UnknownClaim,
            NoShape::Allocated => Self::Allocated,
            NoShape::Instance => Self::Instance,
        }
    }
}
