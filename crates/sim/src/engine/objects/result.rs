//! Results of calls: a value, or the code that the call answers.

use divvy_driver::sys::cuda::CUresult;

pub type Done<T = ()> = Result<T, CUresult>;
