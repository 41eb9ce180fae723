//! CUDA version numbers, as the driver encodes them.

use std::fmt;

/// 1000 times the major version and 10 times the minor one: 12080 is CUDA 12.8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion(pub u32);

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_written_as_people_write_it() {
        assert_eq!(CudaVersion(12_080).to_string(), "12.8");
        assert_eq!(CudaVersion(13_000).to_string(), "13.0");
    }
}
