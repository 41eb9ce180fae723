//! The definition of a hook, and the macro that generates all hooks from one table (`table`).
//!
//! A row gives the exported symbol, the slot for the driver's own function, the entry for lookup by name and by address,
//! and the line of the reference page. Its signature must be the one of `divvy_driver`'s alias of that name.

use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use divvy_driver::sys::cuda::CUresult;

use crate::process;
use crate::route::function::LazySymbol;
use crate::route::touch::TOUCHES;
use crate::table::HOOKS;

/// One row of the table.
pub struct Hook {
    pub(crate) real: &'static LazySymbol,
    pub(crate) function: Address,
    /// The text about it on the reference page.
    #[cfg_attr(not(test), allow(dead_code))]
    pub(crate) does: &'static str,
}

/// The address of one of our exported functions.
pub struct Address(pub *const c_void);

// SAFETY: the address of a function; nothing is reached through it but code.
unsafe impl Sync for Address {}

impl Hook {
    /// Our function.
    pub fn function(&self) -> *mut c_void {
        self.function.0.cast_mut()
    }

    /// Our function if `found` is the driver's own of this name, else `found`. Safe inside `dlsym`.
    pub fn route(&self, found: *mut c_void) -> *mut c_void {
        if self.real.is(found) {
            self.function()
        } else {
            found
        }
    }
}

/// The hook of that name, or the touch stub.
pub fn named(name: &CStr) -> Option<&'static Hook> {
    let hook = HOOKS.iter().find(|hook| hook.real.name == name);
    hook.or_else(|| {
        let touch = TOUCHES.binary_search_by(|touch| touch.real.name.cmp(name));
        TOUCHES.get(touch.ok()?)
    })
}

/// The hook or touch stub of that name, if this driver has a function to go with it.
pub fn exported_as(name: &str) -> Option<&'static Hook> {
    let same = |hook: &&Hook| hook.real.name.to_bytes() == name.as_bytes();
    let mut all = HOOKS.iter().chain(TOUCHES);
    all.find(same).filter(|hook| hook.real.address().is_some())
}

/// The touch stub in front of the driver's function at that address, among the versions of the function `base`.
pub fn touch_at(base: &str, address: *mut c_void) -> Option<&'static Hook> {
    let first = TOUCHES.partition_point(|touch| touch.real.name.to_bytes() < base.as_bytes());
    let begins = |touch: &&Hook| touch.real.name.to_bytes().starts_with(base.as_bytes());
    let is_version = |touch: &&Hook| {
        let rest = touch.real.name.to_bytes().get(base.len()..);
        rest.is_some_and(|rest| matches!(rest, [] | [b'_', ..]))
    };
    let versions = TOUCHES.get(first..)?.iter().take_while(begins);
    let mut versions = versions.filter(is_version);
    versions.find(|touch| touch.real.address() == Some(address))
}

/// The hook in front of the driver's function at that address.
pub fn at(address: *mut c_void) -> Option<&'static Hook> {
    HOOKS
        .iter()
        .find(|hook| hook.real.address() == Some(address))
}

/// The driver's function behind a hook, as its handler sees it.
pub struct Real<'a, F, R = CUresult> {
    /// The function itself, for handlers that ask with arguments of their own.
    pub function: F,
    call: &'a dyn Fn() -> R,
}

impl<F, R> Real<'_, F, R> {
    /// Calls it with the program's own arguments.
    pub fn call(&self) -> R {
        (self.call)()
    }
}

/// Runs a handler so that nothing unwinds into the program. `call` calls the driver with the program's own arguments.
///
/// A handler that panics is an error of ours and not the program's: it raises the alarm counter, and the program gets
/// the driver's answer, from the handler's call if it came that far.
pub fn guarded<F, R: Copy>(
    function: F,
    call: impl Fn() -> R,
    handler: impl FnOnce(Real<'_, F, R>) -> R,
) -> R {
    let answer = Cell::new(None);
    let recorded = || {
        let given = call();
        answer.set(Some(given));
        given
    };
    match catch_unwind(AssertUnwindSafe(|| {
        handler(Real {
            function,
            call: &recorded,
        })
    })) {
        Ok(given) => given,
        Err(_) => {
            process::alarm();
            answer.get().unwrap_or_else(call)
        }
    }
}

/// Makes the table: `/// what it does` and `library name(arguments) -> result => handler;` for each hook; with
/// `=> handler, straight;` the call goes straight to the driver whenever `straight()` says so. The dollar in front is for the
/// macro `export!`, which is made from the same rows.
macro_rules! hooks {
    ($dollar:tt $(#[doc = $does:literal] $library:ident $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty => $handler:path $(, $straight:path)?;)*) => {
        /// Every hook, in the table's order.
        pub static HOOKS: &[$crate::route::hook::Hook] = &[$(
            $crate::route::hook::Hook {
                real: real::$name.slot(),
                function: $crate::route::hook::Address($name as sys::$library::pfn::$name as *const std::ffi::c_void),
                does: $does,
            },
        )*];

        /// The driver's own functions behind the hooks.
        #[allow(non_upper_case_globals)]
        pub mod real {
            $(pub static $name: $crate::route::function::Function<divvy_driver::sys::$library::pfn::$name> =
                $crate::route::function::Function::new($crate::route::function::Library::$library, concat!(stringify!($name), "\0"));)*
        }

        $(
            /// # Safety
            /// As for the driver's function of this name.
            #[allow(non_snake_case)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                let Some(function) = real::$name.get() else { return absent::$library };
                // SAFETY: the program's own arguments, passed on unchanged.
                let call = || unsafe { function($($argument),*) };
                $(if $straight() {
                    return call();
                })?
                if const { $crate::park::wakes(stringify!($name)) } {
                    $crate::park::hold(real::$name.slot().name);
                }
                $crate::oom_report::watched(real::$name.slot().name, || {
                    $crate::route::hook::guarded(function, call, |real| $handler(real, $($argument),*))
                })
            }
        )*

        /// Exports the hooks of one library (`cuda`, `nvml`), or those of `all`, from the library that uses this macro.
        #[macro_export]
        macro_rules! export {
            ($dollar chosen:ident) => {
                $($crate::jump_if_chosen!($dollar chosen $library $name);)*
            };
        }
    };
}
pub(crate) use hooks;

/// `CHOSEN LIBRARY NAME`: an exported function of that name that is one jump to the hook, if its library is the chosen one.
#[doc(hidden)]
#[macro_export]
macro_rules! jump_if_chosen {
    (all $library:ident $name:ident) => { $crate::jump!($name => $crate::table::$name); };
    (cuda cuda $name:ident) => { $crate::jump!($name => $crate::table::$name); };
    (nvml nvml $name:ident) => { $crate::jump!($name => $crate::table::$name); };
    ($chosen:ident $library:ident $name:ident) => {};
}

/// `NAME => FUNCTION`: an exported function that is one jump to another. The caller's frame stays on top.
#[doc(hidden)]
#[macro_export]
macro_rules! jump {
    ($name:ident => $function:path) => {
        /// # Safety
        /// As for the driver's function of this name.
        #[allow(non_snake_case)]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            ::core::arch::naked_asm!("endbr64", "jmp {function}", function = sym $function);
            // `bti c`, the same landing place.
            #[cfg(target_arch = "aarch64")]
            ::core::arch::naked_asm!("hint #34", "b {function}", function = sym $function);
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_that_fails_before_the_call_leaves_it_to_the_driver() {
        let calls = Cell::new(0);
        let call = || calls.replace(calls.get() + 1) + 7;
        assert_eq!(guarded((), call, |_| panic!("on purpose")), 7);
        assert_eq!(calls.get(), 1);
    }

    #[test]
    fn a_handler_that_fails_after_the_call_does_not_call_twice() {
        let calls = Cell::new(0);
        let call = || calls.replace(calls.get() + 1) + 7;
        let answer = guarded((), call, |real| {
            real.call();
            panic!("on purpose")
        });
        assert_eq!((answer, calls.get()), (7, 1));
    }
}
