//! The macros behind the tables, and the trait that takes a C signature apart.

use crate::trace::{self, Answer};

/// A C function pointer type, parameter by parameter; those it does not have are `()`.
pub trait Signature {
    type Answer;
    type P0;
    type P1;
    type P2;
    type P3;
    type P4;
    type P5;
    type P6;
    type P7;
    type P8;
    type P9;
    type P10;
}

macro_rules! signature {
    ($($has:ident)* | $($lacks:ident)*) => {
        impl<Answer, $($has),*> Signature for unsafe extern "C" fn($($has),*) -> Answer {
            type Answer = Answer;
            $(type $has = $has;)*
            $(type $lacks = ();)*
        }
    };
}

signature!(| P0 P1 P2 P3 P4 P5 P6 P7 P8 P9 P10);
signature!(P0 | P1 P2 P3 P4 P5 P6 P7 P8 P9 P10);
signature!(P0 P1 | P2 P3 P4 P5 P6 P7 P8 P9 P10);
signature!(P0 P1 P2 | P3 P4 P5 P6 P7 P8 P9 P10);
signature!(P0 P1 P2 P3 | P4 P5 P6 P7 P8 P9 P10);
signature!(P0 P1 P2 P3 P4 | P5 P6 P7 P8 P9 P10);
signature!(P0 P1 P2 P3 P4 P5 | P6 P7 P8 P9 P10);
signature!(P0 P1 P2 P3 P4 P5 P6 | P7 P8 P9 P10);
signature!(P0 P1 P2 P3 P4 P5 P6 P7 | P8 P9 P10);
signature!(P0 P1 P2 P3 P4 P5 P6 P7 P8 | P9 P10);
signature!(P0 P1 P2 P3 P4 P5 P6 P7 P8 P9 | P10);
signature!(P0 P1 P2 P3 P4 P5 P6 P7 P8 P9 P10 |);

/// `api { name, name_ptsz: (parameter, …) => handler; … }`: exports each name with the signature that
/// `divvy_driver::sys::api::pfn` gives it. The handler takes the parameters and answers `Result<(), api's result>`. In
/// its place `{ call }` says which function is called with what.
macro_rules! exports {
    ($api:ident { $($($name:ident),+: $parameters:tt => $handler:tt;)* }) => {
        $($(exports!(@row $api $name $handler; $parameters);)+)*
    };
    (@call { $call:expr } $($parameter:ident)*) => { $call };
    (@call $handler:ident $($parameter:ident)*) => { self::$handler($($parameter),*) };
    (@row $api:ident $name:ident $handler:tt; ($($parameter:ident),*)) => {
        exports!(@zip $api $name $handler; [] [$($parameter)*] [P0 P1 P2 P3 P4 P5 P6 P7 P8 P9 P10]);
    };
    (@zip $api:ident $name:ident $handler:tt; [$($done:tt)*] [$parameter:ident $($parameters:ident)*] [$slot:ident $($slots:ident)*]) => {
        exports!(@zip $api $name $handler; [$($done)* ($parameter $slot)] [$($parameters)*] [$($slots)*]);
    };
    (@zip $api:ident $name:ident $handler:tt; [$(($parameter:ident $slot:ident))*] [] $slots:tt) => {
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe)]
        unsafe extern "C" fn $name(
            $($parameter: <divvy_driver::sys::$api::pfn::$name as $crate::exports::table::Signature>::$slot),*
        ) -> <divvy_driver::sys::$api::pfn::$name as $crate::exports::table::Signature>::Answer {
            let call = || $crate::trace::call(
                stringify!($name),
                || {
                    // A locked process's calls wait, and those under way are waited for.
                    let _inside = const { $crate::engine::process::checkpoint_lock::is_locked_out(stringify!($name)) }
                        .then($crate::engine::process::checkpoint_lock::enter);
                    // SAFETY: the caller's arguments, which the API's documentation vouches for.
                    unsafe { exports!(@call $handler $($parameter)*) }
                },
                |_line| { $(_line.argument($parameter);)* },
            );
            if const { $crate::exports::table::is_per_thread(stringify!($name)) } {
                $crate::engine::work::stream::with_per_thread_default(call)
            } else {
                call()
            }
        }
        const _: divvy_driver::sys::$api::pfn::$name = $name;
    };
}

/// Whether NULL means the calling thread's default stream in a function of this name: it ends with `_ptds` or `_ptsz`.
pub const fn is_per_thread(name: &str) -> bool {
    let name = name.as_bytes();
    let Some(at) = name.len().checked_sub(5) else {
        return false;
    };
    let end = (name[at], name[at + 1], name[at + 2], name[at + 3]);
    matches!(end, (b'_', b'p', b't', b'd' | b's'))
}

/// Exports names that nothing implements.
macro_rules! stubs {
    ($answer:ident: $($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> $answer {
            stub(stringify!($name))
        }
    )*};
}

/// A function we export, as `cuGetProcAddress` hands it out.
pub struct Address(pub *const ());

// SAFETY: the address of code.
unsafe impl Sync for Address {}

macro_rules! addresses {
    ($($name:ident)*) => {
        /// Every exported CUDA function, sorted by name.
        static ADDRESSES: &[(&str, Address)] = {
            // The symbols are this library's own; only their addresses matter, so the signatures are left out.
            #[allow(clashing_extern_declarations)]
            mod symbols {
                unsafe extern "C" { $(pub fn $name();)* }
            }
            &[$((stringify!($name), Address(symbols::$name as *const ()))),*]
        };
    };
}

/// What a function without a handler answers.
pub fn stub<A: Answer>(name: &str) -> A {
    trace::call(name, || Err(A::NOT_SUPPORTED), |_| ())
}
