//! The linker. Its product is a fat binary of all that went in, which loads as if it had been linked.

use super::{name, out, set_if_wanted};
use crate::engine::objects::handles::{Handle, Handles};
use crate::engine::objects::image::{Bundle, Image};
use crate::engine::objects::result::Done;
use crate::engine::process::process;
use divvy_driver::sys::cuda::{CUjit_option, CUjitInputType, CUlinkState, CUresult};
use std::ffi::{c_char, c_void};
use std::ptr::without_provenance_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

exports! { cuda {
    cuLinkCreate_v2: (count, options, values, state) => create;
    cuLinkAddData_v2: (state, kind, data, size, text, count, options, values) => add_data;
    cuLinkAddFile_v2: (state, kind, path, count, options, values) => add_file;
    cuLinkComplete: (state, cubin, size) => complete;
    cuLinkDestroy: (state) => destroy;
} }

static LINKS: Mutex<Handles<Bundle>> = Mutex::new(Handles::new(0x58));

fn links() -> MutexGuard<'static, Handles<Bundle>> {
    LINKS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn handle(state: CUlinkState) -> Handle<Bundle> {
    Handle::from_value(state.addr())
}

fn create(
    _count: u32,
    _options: *mut CUjit_option,
    _values: *mut *mut c_void,
    state: *mut CUlinkState,
) -> Done {
    process()?;
    let state = out(state)?;
    state.set(without_provenance_mut(
        links().insert(Bundle::default()).value(),
    ))
}

fn add(state: CUlinkState, kind: CUjitInputType, content: &[u8]) -> Done {
    let mut links = links();
    let bundle = links
        .get_mut(handle(state))
        .ok_or(CUresult::INVALID_HANDLE)?;
    match kind {
        CUjitInputType::PTX => {
            let end = content.iter().position(|byte| *byte == 0);
            let text = &content[..end.unwrap_or(content.len())];
            Image::from_bytes(text)?;
            bundle.add_ptx(text);
        }
        CUjitInputType::CUBIN => {
            Image::from_bytes(content)?;
            bundle.add_cubin(content);
        }
        CUjitInputType::FATBINARY => bundle.add_fatbin(content)?,
        // Device code in host objects is not looked for.
        CUjitInputType::OBJECT | CUjitInputType::LIBRARY => bundle.add_opaque(content),
        _ => return Err(CUresult::INVALID_VALUE),
    }
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "the C signature")]
unsafe fn add_data(
    state: CUlinkState,
    kind: CUjitInputType,
    data: *mut c_void,
    size: usize,
    _text: *const c_char,
    _count: u32,
    _options: *mut CUjit_option,
    _values: *mut *mut c_void,
) -> Done {
    process()?;
    out(data)?;
    // SAFETY: the caller's `size` bytes.
    add(state, kind, unsafe {
        std::slice::from_raw_parts(data.cast(), size)
    })
}

fn add_file(
    state: CUlinkState,
    kind: CUjitInputType,
    path: *const c_char,
    _count: u32,
    _options: *mut CUjit_option,
    _values: *mut *mut c_void,
) -> Done {
    process()?;
    let content = std::fs::read(name(path)?).map_err(|_| CUresult::FILE_NOT_FOUND)?;
    add(state, kind, &content)
}

/// The product belongs to the link and goes with it.
fn complete(state: CUlinkState, cubin: *mut *mut c_void, size: *mut usize) -> Done {
    process()?;
    let cubin = out(cubin)?;
    let mut links = links();
    let bundle = links
        .get_mut(handle(state))
        .ok_or(CUresult::INVALID_HANDLE)?;
    let product = bundle.finish();
    set_if_wanted(size, product.len());
    cubin.set(product.as_ptr().cast_mut().cast())
}

fn destroy(state: CUlinkState) -> Done {
    process()?;
    links()
        .remove(handle(state))
        .map(drop)
        .ok_or(CUresult::INVALID_HANDLE)
}
