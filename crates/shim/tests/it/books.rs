//! What is charged is what the driver gave, in the orders of calls in which the differential test (`differential`) once found it otherwise.

use crate::support::{CONTEXT, MIB, Probe, ROOM, Rig, compiled, structure};

const SEGMENT: u64 = 32 * MIB;
const PAGE: u64 = 2 * MIB;

/// A limited process with the first GPU's primary context, and room for another context.
struct Books {
    rig: Rig,
    actor: Probe,
}

impl Books {
    fn new() -> Self {
        Self::with("")
    }

    /// The same over a driver with these faults.
    fn with(faults: &str) -> Self {
        let rig = Rig::on(faults, 2, ROOM);
        let actor = Probe::start(&mut rig.limited(&compiled("actor.c", "actor", &[])));
        let mut books = Books { rig, actor };
        books.must("cuInit 0");
        let context = books.must("cuDevicePrimaryCtxRetain & 0")[0];
        books.must(&format!("cuCtxSetCurrent {context}"));
        books
    }

    /// Makes a call that has to succeed. Returns what it wrote.
    #[track_caller]
    fn must(&mut self, call: &str) -> Vec<u64> {
        let said = self.actor.ask(call);
        assert_eq!(said[0], 0, "{call}");
        said[1..].to_vec()
    }

    /// Both books, once the limiter has had an occasion to look at its pools.
    #[track_caller]
    fn agree_on(&mut self, bytes: u64) {
        self.must("cuMemGetInfo_v2 & &");
        assert_eq!((self.rig.charged(), self.rig.truth()), (bytes, bytes));
    }
}

/// `CUmemAllocationProp`, or the beginning of `CUmemPoolProps`: pinned memory of device 0 that can be exported as a descriptor.
fn exportable() -> String {
    structure(&[1 | 1u64 << 32, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0])
}

#[test]
fn a_context_that_outlives_the_first_one_is_charged_once() {
    let mut books = Books::new();
    books.must("cuCtxCreate_v2 & 0 0");
    books.agree_on(2 * CONTEXT);
    books.must("cuDevicePrimaryCtxRelease_v2 0");
    books.agree_on(CONTEXT);
}

#[test]
fn a_handle_that_is_released_too_often_dies_with_its_mapping() {
    let mut books = Books::new();
    let handle = books.must(&format!("cuMemCreate & {PAGE} {} 0", exportable()))[0];
    let range = books.must(&format!("cuMemAddressReserve & {PAGE} 0 0 0"))[0];
    books.must(&format!("cuMemMap {range} {PAGE} 0 {handle} 0"));
    books.must(&format!("cuMemRelease {handle}"));
    assert_ne!(books.actor.ask(&format!("cuMemRelease {handle}")), [0]);
    books.agree_on(CONTEXT + PAGE);
    books.must(&format!("cuMemUnmap {range} {PAGE}"));
    books.agree_on(CONTEXT);
}

#[test]
fn an_unmap_that_the_driver_refuses_ends_no_charge() {
    let mut books = Books::new();
    let handle = books.must(&format!("cuMemCreate & {PAGE} {} 0", exportable()))[0];
    let range = books.must(&format!("cuMemAddressReserve & {} 0 0 0", 2 * PAGE))[0];
    for start in [range, range + PAGE] {
        books.must(&format!("cuMemMap {start} {PAGE} 0 {handle} 0"));
    }
    books.must(&format!("cuMemRelease {handle}"));
    assert_ne!(
        books.actor.ask(&format!("cuMemUnmap {range} {}", 3 * PAGE)),
        [0]
    );
    books.must(&format!("cuMemUnmap {} {PAGE}", range + PAGE));
    books.agree_on(CONTEXT + PAGE);
    books.must(&format!("cuMemUnmap {range} {PAGE}"));
    books.agree_on(CONTEXT);
}

#[test]
fn a_pool_that_has_shrunk_by_itself_is_destroyed_with_what_it_has() {
    let mut books = Books::new();
    let pool = books.must(&format!("cuMemPoolCreate & {}", exportable()))[0];
    let allocate = format!("cuMemAllocFromPoolAsync & {SEGMENT} {pool} 0");
    let pieces = [(); 2].map(|()| books.must(&allocate)[0]);
    books.must(&format!("cuMemFreeAsync {} 0", pieces[0]));
    // The driver takes a whole free segment back here.
    books.must("cuStreamSynchronize 0");
    books.must(&format!("cuMemPoolDestroy {pool}"));
    books.agree_on(CONTEXT + SEGMENT);
    books.must(&format!("cuMemFree_v2 {}", pieces[1]));
    books.agree_on(CONTEXT);
}

#[test]
fn a_shared_piece_of_a_destroyed_pool_is_charged_until_the_pool_ends() {
    let mut books = Books::new();
    let pool = books.must(&format!("cuMemPoolCreate & {}", exportable()))[0];
    let allocate = format!("cuMemAllocFromPoolAsync & {MIB} {pool} 0");
    let pieces = [(); 2].map(|()| books.must(&allocate)[0]);
    books.must(&format!("cuMemPoolExportToShareableHandle & {pool} 1 0"));
    let data = "+".to_owned() + &"0".repeat(128);
    books.must(&format!("cuMemPoolExportPointer {data} {}", pieces[0]));
    books.must(&format!("cuMemPoolDestroy {pool}"));
    books.agree_on(CONTEXT + SEGMENT);
    books.must(&format!("cuMemFree_v2 {}", pieces[0]));
    books.agree_on(CONTEXT + SEGMENT);
    books.must(&format!("cuMemFree_v2 {}", pieces[1]));
    books.agree_on(CONTEXT);
}

#[test]
fn a_destroyed_pool_is_charged_until_the_stream_reaches_its_last_free() {
    // The stream is not there when the piece is freed, and is at the next look.
    let mut books = Books::with("[[fault]]\nfunction = 'cuEventQuery'\ncall = 1\ncode = 600\n");
    let pool = books.must(&format!("cuMemPoolCreate & {}", exportable()))[0];
    let allocate = format!("cuMemAllocFromPoolAsync & {SEGMENT} {pool} 0");
    let piece = books.must(&allocate)[0];
    books.must(&format!("cuMemPoolDestroy {pool}"));
    books.must(&format!("cuMemFreeAsync {piece} 0"));
    assert_eq!(books.rig.charged(), CONTEXT + SEGMENT);
    books.agree_on(CONTEXT);
}

#[test]
fn a_mapped_import_is_charged_as_long_as_the_context_it_was_imported_in() {
    const OPAQUE_FD: u64 = 1;
    let mut books = Books::new();
    let handle = books.must(&format!("cuMemCreate & {PAGE} {} 0", exportable()))[0];
    let descriptor =
        books.must(&format!("cuMemExportToShareableHandle & {handle} 1 0"))[0] & 0xffff_ffff;
    let import = structure(&[OPAQUE_FD, descriptor, 0, PAGE, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let memory = books.must(&format!("cuImportExternalMemory & {import}"))[0];
    books.must(&format!("cuMemRelease {handle}"));
    let second = books.must("cuCtxCreate_v2 & 0 0")[0];
    let part = structure(&[0, PAGE, 0, 0, 0, 0, 0, 0, 0, 0]);
    books.must(&format!(
        "cuExternalMemoryGetMappedBuffer & {memory} {part}"
    ));
    books.must(&format!("cuDestroyExternalMemory {memory}"));
    books.agree_on(2 * CONTEXT + PAGE);
    books.must(&format!("cuCtxDestroy_v2 {second}"));
    books.agree_on(CONTEXT + PAGE);
}
