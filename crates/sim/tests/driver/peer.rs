//! Several GPUs of one process: who reaches whom. Contexts that are attached.

use crate::machine::{MIB, Machine};

const INVALID_VALUE: u32 = 1;
const INVALID_DEVICE: u32 = 101;
const INVALID_CONTEXT: u32 = 201;
const PEER_ACCESS_UNSUPPORTED: u32 = 217;
const PEER_ACCESS_ALREADY_ENABLED: u32 = 704;
const PEER_ACCESS_NOT_ENABLED: u32 = 705;

#[test]
fn peers_of_one_model_reach_each_other_once_they_are_let() {
    let machine = Machine::new("a100-40gb:2,l4-24gb:1");
    let mut client = machine.client();
    client.ok(&[
        "cuInit 0",
        "cuDeviceCanAccessPeer &near 0 1",
        "cuDeviceCanAccessPeer &far 0 2",
    ]);
    assert_eq!((client.value("near"), client.value("far")), (1, 0));
    client.ok(&[
        "cuCtxCreate_v2 &third 0 2",
        "cuCtxCreate_v2 &second 0 1",
        "cuCtxCreate_v2 &first 0 0",
    ]);
    assert_eq!(
        client.call("cuCtxDisablePeerAccess $second"),
        PEER_ACCESS_NOT_ENABLED
    );
    client.ok(&["cuCtxEnablePeerAccess $second 0"]);
    for (order, error) in [
        (
            "cuCtxEnablePeerAccess $second 0",
            PEER_ACCESS_ALREADY_ENABLED,
        ),
        ("cuCtxEnablePeerAccess $second 1", INVALID_VALUE),
        ("cuCtxEnablePeerAccess $first 0", INVALID_CONTEXT),
        ("cuCtxEnablePeerAccess 0 0", INVALID_CONTEXT),
        ("cuCtxEnablePeerAccess $third 0", PEER_ACCESS_UNSUPPORTED),
        ("cuDeviceGetP2PAttribute &value 2 0 0", INVALID_DEVICE),
        ("cuDeviceGetP2PAttribute &value 2 0 3", INVALID_DEVICE),
        ("cuDeviceGetP2PAttribute &value 9 0 1", INVALID_VALUE),
        ("cuDeviceGetP2PAttribute 0 2 0 1", INVALID_VALUE),
    ] {
        assert_eq!(client.call(order), error, "{order}");
    }
    client.ok(&[
        "cuCtxDisablePeerAccess $second",
        "cuDeviceGetP2PAttribute &value 2 0 1",
    ]);
    assert_eq!(client.value("value"), 1);
}

#[test]
fn memory_of_a_peer_is_opened_by_its_handle() {
    let machine = Machine::new("h100-80gb:2,l4-24gb:1");
    let (mut maker, mut importer) = (machine.client(), machine.client());
    maker.start();
    maker.ok(&[
        "cuMemAlloc_v2 &a 1048576",
        "cuMemsetD8_v2 $a 8 1048576",
        "cuIpcGetMemHandle &h $a",
    ]);
    let handle: [u8; 64] = maker.bytes("h")[..64].try_into().expect("64 bytes");
    importer.set("h", handle);
    importer.ok(&["cuInit 0", "cuCtxCreate_v2 &far 0 2"]);
    let open = "cuIpcOpenMemHandle_v2 &p 1 0 0 0 0 %h";
    assert_eq!(importer.call(open), PEER_ACCESS_UNSUPPORTED);
    importer.ok(&[
        "cuCtxCreate_v2 &near 0 1",
        open,
        "cuMemcpyDtoH_v2 &byte $p 1",
    ]);
    assert_eq!(importer.bytes("byte")[0], 8);
    importer.ok(&["cuPointerGetAttribute &ordinal 9 $p"]);
    assert_eq!(importer.small_value("ordinal"), 0, "where the memory is");
}

#[test]
fn an_attached_context_takes_as_many_detachments() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    client.ok(&[
        "cuInit 0",
        "cuCtxCreate_v2 &c 0 0",
        "cuCtxAttach &same 0",
        "cuMemAlloc_v2 &a 512",
    ]);
    assert_eq!(client.value("same"), client.value("c"));
    client.ok(&["cuCtxDetach $c", "cuMemsetD8_v2 $a 1 512", "cuCtxDetach $c"]);
    assert_eq!(client.call("cuCtxDetach $c"), INVALID_CONTEXT);
    assert_eq!(client.call("cuCtxAttach &same 0"), INVALID_CONTEXT);
    assert_eq!(client.call("cuCtxAttach 0 0"), INVALID_VALUE);
}

#[test]
fn pinned_memory_is_the_devices_on_an_integrated_gpu() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.with_config("integrated = true").client();
    client.start();
    let free = client.memory().0;
    client.ok(&[
        "cuDeviceGetAttribute &integrated 18 0",
        "cuMemHostAlloc &p 8388608 0",
    ]);
    assert_eq!(client.value("integrated"), 1);
    assert_eq!(free - client.memory().0, 8 * MIB);
    client.ok(&["cuMemFreeHost $p"]);
    assert_eq!(client.memory().0, free);
}
