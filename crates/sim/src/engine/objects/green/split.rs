//! Splits of a GPU's multiprocessors, by the rules of its compute capability, as cuda.h and the CUDA programming guide
//! give them.

/// Sizes of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// The smallest part.
    pub least: u32,
    /// Parts are multiples of this; multiprocessors so many at a time can run a cluster.
    pub step: u32,
    /// The largest group that can be asked for to run together.
    pub most_together: u32,
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
        let (least, step, most_together) = match capability.0 {
            ..=6 => (1, 1, 2),
            7 => (2, 2, 2),
            8 => (4, 2, 2),
            _ => (8, 8, 32),
        };
        Rules {
            least,
            step,
            most_together,
        }
    }

    /// Without regard to which multiprocessors belong together (inferred: pairs remain).
    pub fn unscheduled(self) -> Rules {
        Rules {
            least: self.least.min(2),
            step: self.step.min(2),
            ..self
        }
    }

    /// For the largest clusters, of 16 blocks (compute capability 9.0 and later; inferred).
    pub fn for_clusters(self) -> Rules {
        Rules {
            least: 16,
            step: 16,
            ..self
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

    /// What one of several groups gets when so many are left. `wanted` 0 is as many as there are; with `backfill` the
    /// group need not run together.
    pub fn take(
        self,
        left: u32,
        wanted: u32,
        together: u32,
        backfill: bool,
    ) -> Result<u32, BadSplit> {
        let together = if together == 0 {
            self.step.max(2)
        } else {
            together
        };
        if together > self.most_together || !together.is_multiple_of(2) {
            return Err(BadSplit::Value);
        }
        if wanted == 0 {
            return Ok(if backfill {
                left
            } else {
                left - left % together
            });
        }
        let fits = wanted.is_multiple_of(2) && (backfill || wanted.is_multiple_of(together));
        if !fits {
            return Err(BadSplit::Value);
        }
        if wanted > left {
            return Err(BadSplit::Configuration);
        }
        Ok(wanted)
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

    #[test]
    fn groups_take_what_is_left_in_order() {
        let hopper = Rules::of((9, 0));
        assert_eq!(hopper.take(132, 64, 0, false), Ok(64));
        assert_eq!(
            hopper.take(68, 0, 0, false),
            Ok(64),
            "as many as run together"
        );
        assert_eq!(hopper.take(4, 0, 0, true), Ok(4));
        assert_eq!(hopper.take(4, 8, 0, false), Err(BadSplit::Configuration));
        assert_eq!(hopper.take(132, 10, 0, false), Err(BadSplit::Value));
        assert_eq!(hopper.take(132, 10, 0, true), Ok(10));
        assert_eq!(hopper.take(132, 10, 2, false), Ok(10));
        assert_eq!(hopper.take(132, 10, 64, false), Err(BadSplit::Value));
        assert_eq!(Rules::of((8, 9)).take(58, 58, 0, false), Ok(58));
    }
}
