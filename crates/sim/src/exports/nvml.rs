//! NVML. Each submodule has the table of its functions and their handlers.
//!
//! NVML sees all GPUs of the machine, whatever CUDA_VISIBLE_DEVICES says, needs no slot and works in fork children.

mod accounting;
mod device;
mod event;
mod library;
mod memory;
mod memory_limits;
mod mig;
mod power;
mod process;
mod sample;
mod scope;
mod setting;
mod table;

use crate::engine::machine::gpu::Gpu;
use crate::engine::machine::opened::machine;
use crate::engine::machine::state::{Locked, State};
use crate::exports::out_ptr::OutPtr;
use crate::model::Model;
use divvy_driver::sys::nvml::{nvmlDevice_t, nvmlReturn_t};
use std::ffi::{CStr, c_char};
use std::ptr::without_provenance_mut;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

type Done<T = ()> = Result<T, nvmlReturn_t>;

/// `nvmlInit` calls without their `nvmlShutdown`.
static USERS: AtomicU32 = AtomicU32::new(0);

fn state() -> Done<&'static State> {
    if USERS.load(SeqCst) == 0 {
        return Err(nvmlReturn_t::UNINITIALIZED);
    }
    machine()
        .map(|machine| &machine.state)
        .ok_or(nvmlReturn_t::DRIVER_NOT_LOADED)
}

/// The first device's handle; the others follow. Nothing like it is an address of ours.
const HANDLE_BASE: usize = 0x6100_0000_0000;
const HANDLE_STEP: usize = 0x100;

/// How far the count of a GPU's bindings is from its index in a handle; it has eight bits. So the index of a GPU has
/// sixteen bits, more than there are GPUs.
const BINDING_SHIFT: u32 = 16;

fn to_handle(index: usize) -> nvmlDevice_t {
    let bindings = state().map_or(0, |state| state.gpus()[index].mig.bindings());
    let binding = (bindings as usize & 0xff) << BINDING_SHIFT;
    without_provenance_mut(HANDLE_BASE + binding + index * HANDLE_STEP)
}

/// One GPU as NVML sees it.
#[derive(Clone, Copy)]
struct Device {
    state: &'static State,
    index: usize,
}

impl Device {
    /// A handle of this machine's GPUs, whether the GPU answers or not. A MIG device has what asks for it by itself,
    /// and nothing else (*guess*).
    fn of(handle: nvmlDevice_t) -> Done<Device> {
        let state = state()?;
        if mig::MigDevice::of(handle)?.is_some() {
            return Err(nvmlReturn_t::NOT_SUPPORTED);
        }
        let index = (handle.addr() & ((1 << BINDING_SHIFT) - 1)) / HANDLE_STEP;
        let index = Some(index).filter(|index| *index < state.gpu_count());
        let index = index.filter(|index| to_handle(*index) == handle);
        Ok(Device {
            state,
            index: index.ok_or(nvmlReturn_t::INVALID_ARGUMENT)?,
        })
    }

    /// A handle of a GPU that answers.
    fn answering(handle: nvmlDevice_t) -> Done<Device> {
        let device = Device::of(handle)?;
        if device.gpu().health.is_lost() {
            Err(nvmlReturn_t::GPU_IS_LOST)
        } else {
            Ok(device)
        }
    }

    fn gpu(&self) -> &'static Gpu {
        &self.state.gpus()[self.index]
    }

    fn model(&self) -> &'static Model {
        self.state.model(self.index)
    }

    /// The machine brought up to date: dead processes collected, the GPU advanced to now.
    fn fresh(&self) -> Locked<'static> {
        let locked = self.state.lock();
        locked.reap();
        locked.advance(self.index);
        locked
    }

    /// Percent of the last sample period in which the GPU worked.
    fn utilization(&self) -> u32 {
        let locked = self.fresh();
        self.gpu().engine.windows().percent(locked.now(), 1)
    }
}

type Out<T> = OutPtr<T, nvmlReturn_t>;

fn out<T>(place: *mut T) -> Done<Out<T>> {
    OutPtr::new(place)
}

/// Writes a text with its end into a buffer of `length` characters.
fn set_text(buffer: *mut c_char, length: u32, text: &str) -> Done {
    out(buffer)?;
    if text.len() >= length as usize {
        return Err(nvmlReturn_t::INSUFFICIENT_SIZE);
    }
    // SAFETY: text and terminator fit the room the caller says there is.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), text.len());
        buffer.add(text.len()).write(0);
    }
    Ok(())
}

fn name<'a>(text: *const c_char) -> Done<&'a str> {
    out(text.cast_mut())?;
    // SAFETY: not null, and zero-terminated by the API's contract.
    unsafe { CStr::from_ptr(text) }
        .to_str()
        .map_err(|_| nvmlReturn_t::INVALID_ARGUMENT)
}

/// Fills a caller's array in the way all of NVML's lists work: a count comes in as room and goes out as need.
///
/// # Safety
/// `entries` is null or has room for as many entries as `count` says.
unsafe fn set_list<T>(count: *mut u32, entries: *mut T, list: &[T]) -> Done
where
    T: Copy,
{
    out(count)?;
    // SAFETY: not null; the caller's room.
    let room = unsafe { count.replace(list.len() as u32) } as usize;
    if list.len() > room {
        return Err(nvmlReturn_t::INSUFFICIENT_SIZE);
    }
    if !list.is_empty() {
        out(entries)?;
        // SAFETY: there is room for `room` entries, and no more are written.
        unsafe { std::ptr::copy_nonoverlapping(list.as_ptr(), entries, list.len()) };
    }
    Ok(())
}
