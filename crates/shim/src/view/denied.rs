//! Denied functions: calls that would change a GPU or the machine for all its users.
//!
//! Modes, clocks, power, fans, ECC, MIG, NVLink, virtual GPUs, counters that others read, taking a device away. Most of it needs
//! an administrator anyway; inside a slice an administrator is refused too. A process whose slice is broken is refused as well.

use divvy_driver::sys::nvml::nvmlReturn_t;

use crate::process::{self, LimiterState};
use crate::route::hook::Real;

fn refuse<F>(real: &Real<'_, F, nvmlReturn_t>) -> nvmlReturn_t {
    match process::limiter_state() {
        LimiterState::Off => real.call(),
        LimiterState::Limited(_) | LimiterState::Refused(_) => nvmlReturn_t::NO_PERMISSION,
    }
}

/// A handler for each number of arguments, of any type.
macro_rules! handlers {
    ($($name:ident($($argument:ident),*);)*) => {$(
        pub fn $name<F, $($argument),*>(real: Real<'_, F, nvmlReturn_t>, $(_: $argument),*) -> nvmlReturn_t {
            refuse(&real)
        }
    )*};
}
handlers! {
    set1(A);
    set2(A, B);
    set3(A, B, C);
    set4(A, B, C, D);
    set5(A, B, C, D, E);
}
