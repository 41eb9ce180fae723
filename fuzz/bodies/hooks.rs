//! Every hooked function of the driver, called with arguments that no program should pass: NULL where there should be a place,
//! sizes that do not exist, handles that are none. The limiter must neither crash nor let anything through that it would not
//! have let through otherwise.
//!
//! Addresses that are passed are NULL or good: a driver would write to any other as well.

use std::ffi::{c_int, c_void};

use super::input::Input;

/// The value of one parameter.
#[derive(Clone, Copy)]
pub enum Kind {
    /// An address where 64-bit answers fit.
    Place,
    /// Bytes, or how many of something there are.
    Size,
    /// A handle, address or stream: one seen before, or any number.
    Value,
    /// A small number: device, flags, count.
    Small,
    /// Nothing: the count of an array that is not given.
    Zero,
    /// `CUmemAllocationProp`, `CUmemPoolProps` and `CUDA_MEM_ALLOC_NODE_PARAMS` begin alike where it matters.
    Structure,
    /// `CUDA_ARRAY3D_DESCRIPTOR`, as which the shorter one begins.
    Description,
    /// Eight words by value: on the stack on x86-64, behind six registers, and by the address of a copy on arm64.
    Words,
}
use Kind::{Description, Place, Size, Small, Structure, Value, Words, Zero};

macro_rules! calls {
    ($($name:ident($($kind:ident),*);)*) => {
        /// The functions that are called.
        pub const CALLS: &[(&str, &[Kind])] = &[$((stringify!($name), &[$($kind),*])),*];

        /// `with!(NAME, NAME, …)` of all of them, for a program that links the hooks by name.
        #[allow(unused_macros, reason = "one of those who share this file looks functions up by name at run time")]
        macro_rules! for_each_call {
            ($with:ident) => { $with!($($name),*) };
        }
        #[allow(unused_imports, reason = "as above")]
        pub(crate) use for_each_call;
    };
}

calls! {
    cuMemAlloc_v2(Place, Size);
    cuMemAllocPitch_v2(Place, Place, Size, Size, Small);
    cuMemAllocManaged(Place, Size, Small);
    cuMemFree_v2(Value);
    cuMemCreate(Place, Size, Structure, Small);
    cuMemRelease(Value);
    cuMemRetainAllocationHandle(Place, Value);
    cuMemMap(Value, Size, Size, Value, Small);
    cuMemUnmap(Value, Size);
    cuMemAllocAsync(Place, Size, Value);
    cuMemAllocAsync_ptsz(Place, Size, Value);
    cuMemAllocFromPoolAsync(Place, Size, Value, Value);
    cuMemAllocFromPoolAsync_ptsz(Place, Size, Value, Value);
    cuMemFreeAsync(Value, Value);
    cuMemFreeAsync_ptsz(Value, Value);
    cuMemPoolCreate(Place, Structure);
    cuMemPoolDestroy(Value);
    cuMemPoolTrimTo(Value, Size);
    cuDeviceSetMemPool(Small, Value);
    cuStreamBeginCapture(Value);
    cuStreamBeginCapture_ptsz(Value);
    cuStreamBeginCapture_v2(Value, Small);
    cuStreamBeginCapture_v2_ptsz(Value, Small);
    cuStreamBeginCaptureToGraph(Value, Value, Structure, Structure, Small, Small);
    cuStreamBeginCaptureToGraph_ptsz(Value, Value, Structure, Structure, Small, Small);
    cuMemSetMemPool(Structure, Small, Value);
    cuGraphInstantiateWithFlags(Place, Value, Small);
    cuGraphInstantiateWithParams(Place, Value, Structure);
    cuGraphUpload(Value, Value);
    cuGraphLaunch(Value, Value);
    cuGraphLaunch_ptsz(Value, Value);
    cuGraphExecUpdate_v2(Value, Value, Place);
    cuGraphExecDestroy(Value);
    cuDeviceGraphMemTrim(Small);
    cuArrayCreate_v2(Place, Description);
    cuArray3DCreate_v2(Place, Description);
    cuMipmappedArrayCreate(Place, Description, Small);
    cuArrayDestroy(Value);
    cuMipmappedArrayDestroy(Value);
    cuCtxSetLimit(Small, Size);
    cuIpcGetMemHandle(Place, Value);
    cuIpcOpenMemHandle_v2(Place, Words, Small);
    cuIpcCloseMemHandle(Value);
    cuMemExportToShareableHandle(Place, Value, Small, Zero);
    cuMemImportFromShareableHandle(Place, Value, Small);
    cuMemPoolImportFromShareableHandle(Place, Value, Small, Zero);
    cuMemPoolExportPointer(Place, Value);
    cuMemPoolImportPointer(Place, Value, Place);
    cuMemAllocHost_v2(Place, Size);
    cuMemHostAlloc(Place, Size, Small);
    cuMemFreeHost(Value);
    cuLaunchKernel(Value, Small, Small, Small, Small, Small, Small, Small, Value, Zero, Zero);
    cuDevicePrimaryCtxRetain(Place, Small);
    cuDevicePrimaryCtxRelease_v2(Small);
    cuDevicePrimaryCtxReset_v2(Small);
    cuCtxCreate_v2(Place, Small, Small);
    cuCtxDestroy_v2(Value);
    cuMemGetInfo_v2(Place, Place);
    cuDeviceTotalMem_v2(Place, Small);
    nvmlDeviceGetMemoryInfo(Value, Place);
    nvmlDeviceGetComputeRunningProcesses_v3(Value, Place, Place);
}

/// Functions that make the values for the functions above: called now and then, and not hooked.
const HELPERS: &[(&str, &[Kind])] = &[
    ("cuCtxSetCurrent", &[Value]),
    ("cuMemAddressReserve", &[Place, Size, Small, Small, Small]),
    ("cuStreamCreate", &[Place, Small]),
    ("cuStreamDestroy_v2", &[Value]),
    ("cuStreamSynchronize", &[Value]),
    ("cuStreamBeginCapture_v2", &[Value, Small]),
    ("cuStreamEndCapture", &[Value, Place]),
    ("cuGraphCreate", &[Place, Small]),
    ("cuGraphDestroy", &[Value]),
    (
        "cuGraphAddMemAllocNode",
        &[Place, Value, Place, Zero, Structure],
    ),
    ("cuGraphAddMemFreeNode", &[Place, Value, Place, Zero, Value]),
    ("nvmlDeviceGetHandleByIndex_v2", &[Small, Place]),
];

/// Takes every value that was seen back, whatever it is.
const ENDS: &[&str] = &[
    "cuMemFree_v2",
    "cuMemFreeHost",
    "cuMemRelease",
    "cuArrayDestroy",
    "cuMipmappedArrayDestroy",
    "cuGraphExecDestroy",
    "cuGraphDestroy",
    "cuMemPoolDestroy",
    "cuStreamDestroy_v2",
];

const SIZES: [u64; 16] = [
    0,
    1,
    511,
    512,
    (1 << 20) - 1,
    1 << 20,
    2 << 20,
    (2 << 20) + 1,
    32 << 20,
    512 << 20,
    (512 << 20) + 1,
    1 << 40,
    i64::MAX as u64,
    u64::MAX - 511,
    u64::MAX - 1,
    u64::MAX,
];
const WORDS: usize = 32;
const MOST_SEEN: usize = 64;
/// Most parameters of a function, counting a structure of 64 bytes that is passed by value as eight behind the sixth.
const MOST: usize = 14;

type Arguments = [u64; MOST];
#[rustfmt::skip]
type Function = unsafe extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> c_int;

/// Calls functions that `find` knows by name, as `data` says.
pub fn run(find: &dyn Fn(&str) -> Option<*const c_void>, data: &[u8]) {
    let mut input = Input::new(data);
    let mut seen: Vec<u64> = Vec::new();
    while !input.is_empty() {
        let calls = if input.byte().is_multiple_of(3) {
            HELPERS
        } else {
            CALLS
        };
        let (name, kinds) = calls[usize::from(input.byte()) % calls.len()];
        let mut buffers = [[0u64; WORDS]; MOST];
        let mut arguments = [0u64; MOST];
        let mut registers = 0;
        for (kind, buffer) in kinds.iter().zip(&mut buffers) {
            let value = argument(&mut input, *kind, buffer, &seen);
            if matches!(kind, Words) && cfg!(target_arch = "x86_64") {
                arguments[6..].copy_from_slice(&buffer[..MOST - 6]);
            } else {
                arguments[registers] = value;
                registers += 1;
            }
        }
        call(find, name, arguments);
        let places = kinds.iter().zip(&buffers);
        for (_, buffer) in places.filter(|(kind, _)| matches!(kind, Place)) {
            if buffer[0] != 0 && seen.len() < MOST_SEEN {
                seen.push(buffer[0]);
            }
        }
    }
    for value in seen {
        for name in ENDS {
            let mut arguments = [0; MOST];
            arguments[0] = value;
            call(find, name, arguments);
        }
    }
    call(find, "cuStreamSynchronize", [0; MOST]);
    call(find, "cuDeviceGraphMemTrim", [0; MOST]);
    // Everything else goes with the context.
    call(find, "cuDevicePrimaryCtxReset_v2", [0; MOST]);
}

fn argument(input: &mut Input<'_>, kind: Kind, buffer: &mut [u64; WORDS], seen: &[u64]) -> u64 {
    let choice = input.byte();
    match kind {
        Place | Structure | Description if choice.is_multiple_of(8) => 0,
        Place => buffer.as_mut_ptr() as u64,
        Structure => {
            // Pinned memory, on device 0 as a rule.
            let odd = choice % 4 == 1;
            buffer[0] = if odd { input.word() } else { 1 };
            buffer[1] = if choice % 4 == 2 { input.word() } else { 1 };
            // Of a node: how many bytes. A pointer stays NULL.
            buffer[13] = SIZES[usize::from(input.byte()) % SIZES.len()];
            buffer.as_mut_ptr() as u64
        }
        Description => {
            const FLOAT: u64 = 0x20;
            for extent in &mut buffer[..3] {
                let choice = input.byte();
                *extent = match choice % 4 {
                    0 => SIZES[usize::from(choice / 4) % SIZES.len()],
                    _ => u64::from(choice),
                };
            }
            let odd = choice % 4 == 1;
            buffer[3] = if odd { input.word() } else { FLOAT | 1 << 32 };
            buffer[4] = u64::from(input.byte());
            buffer.as_mut_ptr() as u64
        }
        Size if choice.is_multiple_of(4) => input.word(),
        Size => SIZES[usize::from(choice) % SIZES.len()],
        Value if choice.is_multiple_of(8) => 0,
        Value if choice % 8 == 1 || seen.is_empty() => input.word() >> (choice % 64),
        Value => seen[usize::from(input.byte()) % seen.len()],
        Small => u64::from(choice % 4),
        Words => {
            for word in &mut buffer[..MOST - 6] {
                *word = argument(input, Value, &mut [0; WORDS], seen);
            }
            buffer.as_mut_ptr() as u64
        }
        Zero => 0,
    }
}

fn call(find: &dyn Fn(&str) -> Option<*const c_void>, name: &str, a: Arguments) {
    let Some(address) = find(name) else { return };
    // SAFETY: a function of the driver's, which takes at most so many integers and addresses; on x86-64 and
    // arm64 one signature does for all. The addresses are NULL or places of enough room.
    unsafe {
        let function = std::mem::transmute::<*const c_void, Function>(address);
        function(
            a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13],
        );
    }
}

/// The first calls of a program.
pub fn start(find: &dyn Fn(&str) -> Option<*const c_void>) {
    for name in ["cuInit", "nvmlInit_v2"] {
        call(find, name, [0; MOST]);
    }
}
