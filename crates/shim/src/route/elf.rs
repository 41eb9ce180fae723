//! Lookup of the loaded driver object in the dynamic loader's list (ELF), without `dlopen` and without allocation, so
//! that the `dlsym` override can use it. Objects in other `dlmopen` namespaces are not in the list and are never taken
//! for ours.

use std::ffi::{CStr, c_char, c_int, c_void};

use libc::{Elf64_Addr, dl_phdr_info};

/// The names by which NVIDIA's libraries (and the simulated one) call themselves.
pub const CUDA: &CStr = c"libcuda.so.1";
pub const NVML: &CStr = c"libnvidia-ml.so.1";

/// Tags of elf.h.
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_SONAME: u64 = 14;

#[repr(C)]
struct Dynamic {
    tag: u64,
    value: u64,
}

/// One loaded object, for as long as the loader's list is held.
pub struct Object<'a> {
    info: &'a dl_phdr_info,
}

impl<'a> Object<'a> {
    /// The path it was loaded from; empty for the program itself.
    pub fn path(&self) -> &'a CStr {
        if self.info.dlpi_name.is_null() {
            return c"";
        }
        // SAFETY: the loader keeps the name while the object is loaded, and the list is held for 'a.
        unsafe { CStr::from_ptr(self.info.dlpi_name) }
    }

    /// The name it gives itself (DT_SONAME).
    pub fn soname(&self) -> Option<&'a CStr> {
        let (_, offset) = self.dynamic().find(|(tag, _)| *tag == DT_SONAME)?;
        self.string(offset)
    }

    /// Whether it names that library among those it needs (DT_NEEDED).
    pub fn needs(&self, library: &CStr) -> bool {
        self.dynamic()
            .filter(|(tag, _)| *tag == DT_NEEDED)
            .any(|(_, offset)| self.string(offset) == Some(library))
    }

    /// Tags and values of the dynamic section.
    fn dynamic(&self) -> impl Iterator<Item = (u64, u64)> + use<'a> {
        let section = self
            .headers()
            .iter()
            .find(|header| header.p_type == libc::PT_DYNAMIC);
        let mut entry = section.map(|header| self.at(header.p_vaddr) as *const Dynamic);
        std::iter::from_fn(move || {
            let at = entry?;
            // SAFETY: PT_DYNAMIC of a loaded object is mapped and ends with DT_NULL, behind which nothing is read.
            let Dynamic { tag, value } = unsafe { at.read() };
            // SAFETY: not at DT_NULL, so another entry follows.
            entry = (tag != DT_NULL).then(|| unsafe { at.add(1) });
            entry.map(|_| (tag, value))
        })
    }

    /// The text at an offset into the string table.
    fn string(&self, offset: u64) -> Option<&'a CStr> {
        let (_, strings) = self.dynamic().find(|(tag, _)| *tag == DT_STRTAB)?;
        // glibc rewrites DT_STRTAB to an address, except in objects it cannot write to (the vDSO).
        let strings = if strings < self.info.dlpi_addr {
            self.at(strings)
        } else {
            strings
        };
        // SAFETY: the dynamic section's offsets lie in the string table, which is mapped and NUL-terminated.
        Some(unsafe { CStr::from_ptr((strings + offset) as *const c_char) })
    }

    fn is_driver(&self) -> bool {
        self.soname()
            .is_some_and(|name| name == CUDA || name == NVML)
    }

    /// Whether `address` lies in it.
    pub fn contains(&self, address: *const c_void) -> bool {
        self.headers()
            .iter()
            .filter(|header| header.p_type == libc::PT_LOAD)
            .any(|header| (address as u64).wrapping_sub(self.at(header.p_vaddr)) < header.p_memsz)
    }

    /// The protection of the page at `address` (`PROT_…`), by the object's own headers; `None` if it is not in it.
    pub fn protection(&self, address: *const c_void) -> Option<c_int> {
        let around = |kind: u32| {
            self.headers().iter().find(move |header| {
                header.p_type == kind
                    && (address as u64).wrapping_sub(self.at(header.p_vaddr)) < header.p_memsz
            })
        };
        let segment = around(libc::PT_LOAD)?;
        // The loader has made it read-only once it was done with it.
        let writable = around(libc::PT_GNU_RELRO).is_none();
        let flag = |flag: u32, protection: c_int| {
            if segment.p_flags & flag != 0 {
                protection
            } else {
                0
            }
        };
        let write = if writable {
            flag(libc::PF_W, libc::PROT_WRITE)
        } else {
            0
        };
        Some(flag(libc::PF_R, libc::PROT_READ) | write | flag(libc::PF_X, libc::PROT_EXEC))
    }

    fn headers(&self) -> &'a [libc::Elf64_Phdr] {
        if self.info.dlpi_phdr.is_null() {
            return &[];
        }
        // SAFETY: the loader describes `dlpi_phnum` headers there, valid while the list is held.
        unsafe { std::slice::from_raw_parts(self.info.dlpi_phdr, self.info.dlpi_phnum.into()) }
    }

    fn at(&self, address: Elf64_Addr) -> u64 {
        self.info.dlpi_addr.wrapping_add(address)
    }
}

/// Whether `address` lies in a loaded driver library.
pub fn in_driver(address: *const c_void) -> bool {
    find(|object| (object.contains(address) && object.is_driver()).then_some(())).is_some()
}

/// Whether any driver library is loaded.
pub fn driver_is_loaded() -> bool {
    find(|object| object.is_driver().then_some(())).is_some()
}

/// The first answer of `question` over the loaded objects, in load order. `question` must not panic, load or unload.
pub fn find<T, F: FnMut(&Object<'_>) -> Option<T>>(question: F) -> Option<T> {
    struct Search<T, F> {
        question: F,
        answer: Option<T>,
    }
    unsafe extern "C" fn visit<T, F: FnMut(&Object<'_>) -> Option<T>>(
        info: *mut dl_phdr_info,
        _size: usize,
        search: *mut c_void,
    ) -> c_int {
        // SAFETY: `search` is the `Search<T, F>` below, alive and used by this callback alone.
        let search = unsafe { &mut *search.cast::<Search<T, F>>() };
        // SAFETY: the loader passes a description that is valid during the callback.
        let info = unsafe { &*info };
        search.answer = (search.question)(&Object { info });
        search.answer.is_some().into()
    }
    let mut search = Search {
        question,
        answer: None,
    };
    // SAFETY: callback and data agree on their types by construction.
    unsafe { libc::dl_iterate_phdr(Some(visit::<T, F>), (&raw mut search).cast()) };
    search.answer
}
