//! How a call comes to a hook and from there to the driver: by symbol, by `dlsym`, by `cuGetProcAddress`.

pub mod elf;
pub mod form;
pub mod function;
pub mod hook;
pub mod lookup;
pub mod procaddress;
pub mod unknown;
