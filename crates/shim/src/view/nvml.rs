//! The view through NVML: the slice's memory on its own GPUs, and the slice's processes on every GPU.
//!
//! ```text
//! memory       total, free, used         lists   processes, their samples and sessions      members  whose processes
//! accounting   statistics and names      smi     the lists of nvidia-smi
//! ```
//! A GPU is recognised by asking the driver for its UUID, each time: handles come from several functions and change when
//! the library is started anew. A process that only looks (a monitor) takes no slot for it. How busy the GPU is stays what
//! the driver says: that is what a program on it competes with.

pub mod accounting;
pub mod lists;
pub mod members;
pub mod memory;
pub mod smi;

use std::ffi::{CStr, c_char, c_uint};

use divvy_driver::sys::nvml::{NVML_DEVICE_UUID_V2_BUFFER_SIZE, nvmlDevice_t, nvmlReturn_t};

use crate::account::ProcessAccount;
use crate::process::{self, LimiterState};
use crate::route::function::driver;

fn limited() -> Option<&'static ProcessAccount> {
    match process::limiter_state() {
        LimiterState::Limited(account) => Some(account),
        LimiterState::Off | LimiterState::Refused(_) => None,
    }
}

/// The structure that the driver has just filled in for the program, if it has.
fn filled<'a, T>(result: nvmlReturn_t, place: *mut T) -> Option<&'a mut T> {
    if result != nvmlReturn_t::SUCCESS {
        return None;
    }
    // SAFETY: null, or the program's place for the answer, which the driver has filled.
    unsafe { place.as_mut() }
}

/// The GPU's place in the slice.
fn gpu_of(account: &ProcessAccount, device: nvmlDevice_t) -> Option<usize> {
    account.slice().gpu_by_uuid(&uuid_of(device)?)
}

/// The UUID of a device; `None` if the driver knows no such device.
fn uuid_of(device: nvmlDevice_t) -> Option<[u8; 16]> {
    let mut answer = [0 as c_char; NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    // SAFETY: a value that is only compared, and room for the longest UUID.
    let result = unsafe {
        driver::nvmlDeviceGetUUID.get()?(device, answer.as_mut_ptr(), answer.len() as c_uint)
    };
    if result != nvmlReturn_t::SUCCESS {
        return None;
    }
    parse_uuid(text(&answer).as_bytes())
}

/// The text that the driver wrote into a buffer that is never full; empty if it is no text.
fn text(buffer: &[c_char]) -> &str {
    // SAFETY: the same bytes under another name.
    let bytes = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast(), buffer.len()) };
    let text = CStr::from_bytes_until_nul(bytes).unwrap_or_default();
    text.to_str().unwrap_or_default()
}

/// `GPU-` or `MIG-`, then 32 hexadecimal digits with dashes between groups.
fn parse_uuid(text: &[u8]) -> Option<[u8; 16]> {
    let digits = text
        .strip_prefix(b"GPU-")
        .or_else(|| text.strip_prefix(b"MIG-"))?;
    let mut values = digits
        .iter()
        .filter(|byte| **byte != b'-')
        .map(|byte| (*byte as char).to_digit(16));
    let mut uuid = [0; 16];
    for byte in &mut uuid {
        *byte = (values.next()?? << 4 | values.next()??) as u8;
    }
    values.next().is_none().then_some(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_read_as_nvml_writes_it() {
        let bytes = [
            0xb6, 0xe8, 0x4e, 0x58, 0xc6, 0x1f, 0x13, 0x99, 0x7a, 0xd6, 0x50, 0xf1, 0x81, 0xfc,
            0x44, 0xb6,
        ];
        assert_eq!(
            parse_uuid(b"GPU-b6e84e58-c61f-1399-7ad6-50f181fc44b6"),
            Some(bytes)
        );
        assert_eq!(
            parse_uuid(b"MIG-b6e84e58-c61f-1399-7ad6-50f181fc44b6"),
            Some(bytes)
        );
        assert_eq!(parse_uuid(b"GPU-b6e84e58-c61f-1399-7ad6-50f181fc44"), None);
        assert_eq!(
            parse_uuid(b"GPU-b6e84e58-c61f-1399-7ad6-50f181fc44b6aa"),
            None
        );
        assert_eq!(parse_uuid(b"b6e84e58-c61f-1399-7ad6-50f181fc44b6"), None);
        assert_eq!(parse_uuid(b""), None);
    }
}
