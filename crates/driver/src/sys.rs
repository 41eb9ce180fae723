//! Raw bindings of NVIDIA's C interfaces as tables: types, constants and function signatures, each written once.
//!
//! ```text
//! handles!   opaque handles         structs!    layouts, listed in STRUCTS     defines!   #define values, listed in DEFINES
//! opaque!    structures without known fields
//! enums!     open enumerations, listed in ENUMS    functions!  pointer types (module pfn), listed in SIGNATURES
//! ```
//! The lists exist for `tests/headers.rs`, which has a C compiler hold every row against NVIDIA's own headers (CUDA 13.5).
//! Names are C's, so that a row can be found in the documentation and turned back into C mechanically. Enumerations are
//! integers with names, never Rust enums: a driver newer than the header may answer a value that is not listed.
//! Nothing here calls anything: [`crate::load`] finds libraries, [`crate::nvml`] and [`crate::cuda`] call them.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]

/// One function as we declare it. Types are in Rust's spelling with C's names: `*mut CUdeviceptr`, `c_uint`, `usize`.
#[derive(Debug, Clone, Copy)]
pub struct Signature {
    pub name: &'static str,
    pub parameters: &'static [&'static str],
    pub result: &'static str,
}

/// One structure as we lay it out: bytes of the whole, and of each field its offset and size.
#[derive(Debug, Clone, Copy)]
pub struct Struct {
    /// C's spelling of the type.
    pub name: &'static str,
    pub size: usize,
    /// Name, offset, size; a trailing underscore is ours, where C's name is a Rust keyword.
    pub fields: &'static [(&'static str, usize, usize)],
}

/// One enumeration: its type, and every enumerator we name with its value.
#[derive(Debug, Clone, Copy)]
pub struct Enum {
    pub name: &'static str,
    /// Enumerators in C's spelling, with a terminating NUL.
    pub values: &'static [(&'static str, u32)],
}

/// `NAME = tag;` declares `NAME`, a pointer to the incomplete C type `struct tag`.
macro_rules! handles {
    ($($name:ident = $tag:ident;)*) => {$(
        #[repr(C)]
        #[derive(Debug)]
        pub struct $tag {
            _opaque: [u8; 0],
        }
        pub type $name = *mut $tag;
    )*};
}

/// `TYPE, …` declares structures that we pass on unread: only pointers to them are of use.
macro_rules! opaque {
    ($($name:ident,)*) => {$(
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name {
            _opaque: [u8; 0],
        }
    )*};
}

/// `TYPE: PREFIX_ { NAME = value, … } …;` declares an open enumeration; C's enumerator is `PREFIX_NAME`.
macro_rules! enums {
    ($($(#[$doc:meta])* $name:ident: $($prefix:ident { $($value:ident = $number:literal,)* })*;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
            #[repr(transparent)]
            pub struct $name(pub u32);

            impl $name {
                $($(pub const $value: Self = Self($number);)*)*
                const VALUES: &'static [(&'static str, u32)] =
                    &[$($((concat!(stringify!($prefix), stringify!($value), "\0"), $number),)*)*];

                /// C's name of this value, such as `CUDA_ERROR_OUT_OF_MEMORY`; `None` for one we do not list.
                pub fn name(self) -> Option<&'static std::ffi::CStr> {
                    let (name, _) = Self::VALUES.iter().find(|(_, number)| *number == self.0)?;
                    std::ffi::CStr::from_bytes_with_nul(name.as_bytes()).ok()
                }
            }

            impl std::fmt::Debug for $name {
                fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    match self.name() {
                        Some(name) => write!(f, "{} ({})", name.to_string_lossy(), self.0),
                        None => write!(f, concat!(stringify!($name), "({})"), self.0),
                    }
                }
            }
        )*
        pub const ENUMS: &[crate::sys::Enum] =
            &[$(crate::sys::Enum { name: stringify!($name), values: $name::VALUES },)*];
    };
}

/// `TYPE { field: Type, … }` declares a structure; `TYPE as "C type" { … }` one that C leaves without a name.
macro_rules! structs {
    (@c $name:ident) => { stringify!($name) };
    (@c $name:ident $c:literal) => { $c };
    ($($(#[$doc:meta])* $name:ident $(as $c:literal)? { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy)]
            #[repr(C)]
            pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

            impl Default for $name {
                fn default() -> Self {
                    // SAFETY: every field is an integer, a raw pointer, a union or array of such, or another type of this
                    // table, and all of these may be all zero bits.
                    unsafe { std::mem::zeroed() }
                }
            }
        )*
        pub const STRUCTS: &[crate::sys::Struct] = &[$(crate::sys::Struct {
            name: structs!(@c $name $($c)?),
            size: size_of::<$name>(),
            fields: &[$((stringify!($field), std::mem::offset_of!($name, $field), size_of::<$type>()),)*],
        },)*];
    };
}

/// `NAME: Type = value;` declares the value of a C macro, an integer of any width.
macro_rules! defines {
    ($($name:ident: $type:ty = $value:expr;)*) => {
        $(pub const $name: $type = $value;)*
        /// C's name and value of each of the above.
        pub const DEFINES: &[(&str, i128)] = &[$((stringify!($name), $name as i128),)*];
    };
}

/// `=> Result { name, same_signature: (parameter: Type, …); … } …` declares the pointer type of each name.
macro_rules! functions {
    (@type $result:ty; $name:ident ($($parameter:ident: $type:ty),*)) => {
        pub type $name = unsafe extern "C" fn($($parameter: $type),*) -> $result;
    };
    (@signature $result:ty; $name:ident ($($parameter:ident: $type:ty),*)) => {
        crate::sys::Signature {
            name: stringify!($name),
            parameters: &[$(stringify!($type)),*],
            result: stringify!($result),
        }
    };
    ($(=> $result:ty { $($($name:ident),+: $parameters:tt;)* })*) => {
        $($($(functions!(@type $result; $name $parameters);)+)*)*
        pub const SIGNATURES: &[crate::sys::Signature] =
            &[$($($(functions!(@signature $result; $name $parameters),)+)*)*];
    };
}

pub mod cuda;
pub mod nvml;
pub mod symbols;
