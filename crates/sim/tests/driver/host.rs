//! Pinned host memory.

use crate::machine::Machine;

const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const ALREADY_REGISTERED: u32 = 712;
const NOT_REGISTERED: u32 = 713;

#[test]
fn pinned_memory_is_the_hosts_and_both_sides_reach_it() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    client.start();
    let free = client.memory().0;
    client.ok(&[
        "cuMemHostAlloc &p 1073741824 3",
        "cuMemHostGetDevicePointer_v2 &d $p 0",
        "cuMemHostGetFlags &flags $p",
        "cuMemAllocHost_v2 &q 4096",
        "cuMemAllocHost &r 4096",
        "cuMemsetD8_v2 $d 6 100",
    ]);
    assert_eq!(client.small_value("flags"), 3);
    assert_eq!(client.memory().0, free, "nothing of the GPU's");
    client.ok(&["cuMemcpyDtoH_v2 &seen $d 1"]);
    assert_eq!(client.bytes("seen")[0], 6);
    client.ok(&[
        "cuMemFreeHost $p",
        "cuMemFreeHost $q",
        "cuMemFreeHost $r",
        "cuMemFreeHost 0",
    ]);
    assert_eq!(client.call("cuMemFreeHost $p"), INVALID_VALUE);
    assert_eq!(
        client.call("cuMemHostGetDevicePointer_v2 &d $p 0"),
        INVALID_VALUE
    );
    for (order, error) in [
        ("cuMemHostAlloc &p 0 0", INVALID_VALUE),
        ("cuMemHostAlloc &p 4096 8", INVALID_VALUE),
        ("cuMemHostAlloc 0 4096 0", INVALID_VALUE),
        ("cuMemHostAlloc &p 18446744073709551615 0", OUT_OF_MEMORY),
        ("cuMemAllocHost_v2 &p 4611686018427387904", OUT_OF_MEMORY),
    ] {
        assert_eq!(client.call(order), error, "{order}");
    }
}

#[test]
fn the_programs_own_memory_is_registered_once_and_only_where_there_is_some() {
    let machine = Machine::new("a100-40gb:1");
    let mut client = machine.client();
    client.start();
    let free = client.memory().0;
    client.ok(&["cuMemHostAlloc &pinned 65536 0"]);
    let mine = client.address("buffer");
    client.ok(&[
        "cuMemHostRegister_v2 &buffer 512 3",
        "cuMemHostGetDevicePointer_v2 &d &buffer 0",
        "cuMemsetD8_v2 $d 9 512",
    ]);
    assert_eq!(client.value("d"), mine);
    assert_eq!(client.bytes("buffer")[511], 9);
    assert_eq!(
        client.call("cuMemHostGetFlags &flags &buffer"),
        INVALID_VALUE
    );
    for (from, size) in [(mine, 1), (mine + 511, 10), (mine - 8, 1024), (mine - 8, 9)] {
        let order = format!("cuMemHostRegister_v2 {from} {size} 0");
        assert_eq!(client.call(&order), ALREADY_REGISTERED, "{order}");
    }
    let nothing = 4096u64;
    for (order, error) in [
        ("cuMemHostRegister_v2 0 4096 0".to_owned(), INVALID_VALUE),
        (
            format!("cuMemHostRegister_v2 {} 0 0", mine + 512),
            INVALID_VALUE,
        ),
        (
            format!("cuMemHostRegister_v2 {} 64 16", mine + 512),
            INVALID_VALUE,
        ),
        (format!("cuMemHostRegister_v2 {} 64 4", mine + 512), 800),
        (format!("cuMemHostRegister_v2 {} 64 8", mine + 512), 801),
        (
            format!("cuMemHostRegister_v2 {} 18446744073709551615 0", mine + 512),
            INVALID_VALUE,
        ),
        (
            format!("cuMemHostRegister_v2 {nothing} 4096 0"),
            INVALID_VALUE,
        ),
        ("cuMemHostUnregister $pinned".to_owned(), NOT_REGISTERED),
        ("cuMemHostUnregister 0".to_owned(), NOT_REGISTERED),
    ] {
        assert_eq!(client.call(&order), error, "{order}");
    }
    client.ok(&["cuMemHostUnregister &buffer"]);
    assert_eq!(client.call("cuMemHostUnregister &buffer"), NOT_REGISTERED);
    client.ok(&[
        "cuMemHostRegister &buffer 512 0",
        "cuDevicePrimaryCtxReset_v2 0",
    ]);
    client.start();
    client.ok(&["cuMemHostRegister_v2 &buffer 512 0"]);
    assert_eq!(client.memory().0, free);
}
