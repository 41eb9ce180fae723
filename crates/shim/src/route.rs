//! Dispatch of driver calls: the way of a call to its hook and on to the driver, by symbol, `dlsym` or
//! `cuGetProcAddress`.

pub mod elf;
pub mod form;
pub mod function;
pub mod hook;
pub mod lookup;
pub mod procaddress;
pub mod touch;
pub mod unknown;
