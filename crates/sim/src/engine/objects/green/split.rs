//! Splits of a GPU's multiprocessors, by the rules of its compute capability, as cuda.h and the CUDA programming guide
//! give them.

/// Sizes of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// The smallest part.
    pub least: u32,
    /// Parts are multiples of this; multiprocessors so many at a time can run a cluster.
    pub step: u32,
}

/// Why a split cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadSplit {
    /// No GPU could do it.
    Value,
    /// There are not so many multiprocessors, or not in such groups.
    Configuration,
}

impl Rules {
    pub fn of(capability: (i32, i32)) -> Rules {
        let (least, step) = match capability.0 {
            ..=6 => (1, 1),
            7 => (2, 2),
            8 => (4, 2),
            _ => (8, 8),
        };
        Rules { least, step }
    }

    /// Without regard to which multiprocessors belong together (inferred: pairs remain).
    pub fn unscheduled(self) -> Rules {
        Rules {
            least: self.least.min(2),
            step: self.step.min(2),
        }
    }

    /// For the largest clusters, of 16 blocks (compute capability 9.0 and later; inferred).
    pub fn for_clusters(self) -> Rules {
        Rules {
            least: 16,
            step: 16,
        }
    }

    /// Groups of at least `wanted` out of `have`: how many multiprocessors each has, and how many groups there can be.
    pub fn by_count(self, have: u32, wanted: u32) -> Result<(u32, u32), BadSplit> {
        if wanted > have {
            return Err(BadSplit::Value);
        }
        let size = wanted.max(self.least).next_multiple_of(self.step);
        match have / size {
            0 => Err(BadSplit::Configuration),
            groups => Ok((size, groups)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_as_large_as_their_architecture_wants_them() {
        let (ampere, hopper) = (Rules::of((8, 0)), Rules::of((9, 0)));
        assert_eq!(ampere.by_count(108, 1), Ok((4, 27)));
        assert_eq!(ampere.by_count(108, 5), Ok((6, 18)));
        assert_eq!(hopper.by_count(132, 16), Ok((16, 8)));
        assert_eq!(hopper.by_count(132, 17), Ok((24, 5)));
        assert_eq!(
            hopper.by_count(132, 132),
            Err(BadSplit::Configuration),
            "136 at a step of 8"
        );
        assert_eq!(hopper.by_count(132, 133), Err(BadSplit::Value));
        assert_eq!(hopper.unscheduled().by_count(132, 1), Ok((2, 66)));
        assert_eq!(hopper.for_clusters().by_count(132, 1), Ok((16, 8)));
        assert_eq!(Rules::of((7, 5)).by_count(40, 0), Ok((2, 20)));
    }
}
