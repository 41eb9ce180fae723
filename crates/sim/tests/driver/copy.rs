//! Copies of boxes and in batches, between contexts and in streams of all kinds.

use crate::machine::{Client, Machine};
use divvy_driver::sys::cuda::*;

const INVALID_VALUE: u32 = 1;

fn ready(client: &mut Client) {
    client.start();
    client.set::<[u8; 256]>("source", std::array::from_fn(|at| at as u8));
    client.ok(&[
        "cuMemAlloc_v2 &a 256",
        "cuMemAlloc_v2 &b 256",
        "cuMemcpyHtoD_v2 $a &source 256",
        "cuMemsetD8_v2 $b 255 256",
        "cuStreamCreate &s 1",
    ]);
}

/// A box of 3 bytes, 2 rows and 2 layers from (1, 1, 1) in rows of 8 and layers of 4, to the beginning of rows of 4 and
/// layers of 2.
fn part(client: &mut Client) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        srcXInBytes: 1,
        srcY: 1,
        srcZ: 1,
        srcMemoryType: CUmemorytype::DEVICE,
        srcDevice: client.value("a"),
        srcPitch: 8,
        srcHeight: 4,
        dstMemoryType: CUmemorytype::DEVICE,
        dstDevice: client.value("b"),
        dstPitch: 4,
        dstHeight: 2,
        WidthInBytes: 3,
        Height: 2,
        Depth: 2,
        ..CUDA_MEMCPY3D::default()
    }
}

const ARRIVED: [u8; 15] = [
    41, 42, 43, 255, 49, 50, 51, 255, 73, 74, 75, 255, 81, 82, 83,
];

fn arrived(client: &mut Client) -> Vec<u8> {
    client.ok(&["cuMemcpyDtoH_v2 &seen $b 256", "cuMemsetD8_v2 $b 255 256"]);
    client.bytes("seen")[..15].to_vec()
}

#[test]
fn a_box_arrives_with_its_pitches_and_heights() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client);
    let copy = part(&mut client);
    client.set("copy", copy);
    for order in ["cuMemcpy3D_v2 &copy", "cuMemcpy3DAsync_v2 &copy $s"] {
        client.ok(&[order]);
        assert_eq!(arrived(&mut client), ARRIVED, "{order}");
    }
    let between_contexts = CUDA_MEMCPY3D_PEER {
        srcXInBytes: 1,
        srcY: 1,
        srcZ: 1,
        srcMemoryType: CUmemorytype::UNIFIED,
        srcDevice: copy.srcDevice,
        srcContext: std::ptr::without_provenance_mut(client.value("context") as usize),
        srcPitch: 8,
        srcHeight: 4,
        dstMemoryType: CUmemorytype::UNIFIED,
        dstDevice: copy.dstDevice,
        dstContext: std::ptr::without_provenance_mut(client.value("context") as usize),
        dstPitch: 4,
        dstHeight: 2,
        WidthInBytes: 3,
        Height: 2,
        Depth: 2,
        ..CUDA_MEMCPY3D_PEER::default()
    };
    client.set("peer", between_contexts);
    for order in ["cuMemcpy3DPeer &peer", "cuMemcpy3DPeerAsync &peer $s"] {
        client.ok(&[order]);
        assert_eq!(arrived(&mut client), ARRIVED, "{order}");
    }
    client.ok(&["cuMemcpyPeer $b $context $a $context 15"]);
    assert_eq!(arrived(&mut client)[14], 14);
    assert_eq!(client.call("cuMemcpyPeer $b 12345 $a $context 15"), 201);
}

#[test]
fn a_box_that_does_not_fit_is_refused() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client);
    let good = part(&mut client);
    let bad = [
        CUDA_MEMCPY3D {
            srcPitch: 2,
            ..good
        },
        CUDA_MEMCPY3D {
            dstHeight: 1,
            ..good
        },
        CUDA_MEMCPY3D { Depth: 9, ..good },
        CUDA_MEMCPY3D { srcLOD: 1, ..good },
        CUDA_MEMCPY3D {
            srcZ: usize::MAX,
            ..good
        },
        CUDA_MEMCPY3D {
            dstDevice: 4096,
            ..good
        },
        CUDA_MEMCPY3D {
            dstMemoryType: CUmemorytype(9),
            ..good
        },
    ];
    for copy in bad {
        client.set("copy", copy);
        assert_eq!(
            client.call("cuMemcpy3D_v2 &copy"),
            INVALID_VALUE,
            "{copy:?}"
        );
    }
    assert_eq!(client.call("cuMemcpy3D_v2 0"), INVALID_VALUE);
    assert_eq!(arrived(&mut client), [255; 15], "nothing was moved");
    client.set("copy", CUDA_MEMCPY3D { Height: 0, ..good });
    client.ok(&["cuMemcpy3D_v2 &copy"]);
}

#[test]
fn a_batch_copies_all_or_nothing() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client);
    let (a, b) = (client.value("a"), client.value("b"));
    client.set("to", [b, b + 100, b + 200]);
    let host = client.address("source");
    client.set("from", [a + 1, a + 2, host]);
    client.set("sizes", [4u64, 4, 4]);
    client.set("firsts", [0u64, 2]);
    let attributes = CUmemcpyAttributes {
        srcAccessOrder: CUmemcpySrcAccessOrder::STREAM,
        ..CUmemcpyAttributes::default()
    };
    client.set("attributes", [attributes; 2]);
    client.ok(&["cuMemcpyBatchAsync_v2 &to &from &sizes 3 &attributes &firsts 2 $s"]);
    client.ok(&["cuMemcpyDtoH_v2 &seen $b 256"]);
    let seen = client.bytes("seen");
    assert_eq!(
        [&seen[..5], &seen[100..105]],
        [&[1, 2, 3, 4, 255], &[2, 3, 4, 5, 255]]
    );
    assert_eq!(seen[200..205], [0, 1, 2, 3, 255]);

    client.ok(&["cuMemsetD8_v2 $b 255 256"]);
    for order in [
        "cuMemcpyBatchAsync_v2 &to &from &sizes 3 &attributes &firsts 2 0",
        "cuMemcpyBatchAsync_v2 &to &from &sizes 0 &attributes &firsts 1 $s",
        "cuMemcpyBatchAsync_v2 &to &from &sizes 3 &attributes &firsts 0 $s",
        "cuMemcpyBatchAsync_v2 &to &from &sizes 2 &attributes &firsts 2 $s",
        "cuMemcpyBatchAsync_v2 &to 0 &sizes 3 &attributes &firsts 2 $s",
    ] {
        assert_eq!(client.call(order), INVALID_VALUE, "{order}");
    }
    client.set("to", [b, b + 100, b + 1000]);
    client.set("failed", 7u64);
    assert_eq!(
        client.call("cuMemcpyBatchAsync &to &from &sizes 3 &attributes &firsts 2 &failed $s"),
        INVALID_VALUE
    );
    assert_eq!(client.value("failed"), u64::MAX);
    client.set("attributes", [CUmemcpyAttributes::default(); 2]);
    assert_eq!(
        client.call("cuMemcpyWithAttributesAsync $b $a 4 &attributes $s"),
        INVALID_VALUE,
        "no order of access"
    );
    assert_eq!(arrived(&mut client), [255; 15]);
}

#[test]
fn boxes_in_a_batch_are_packed_unless_they_say_otherwise() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client);
    let pointer = |ptr: u64, row: u64, layer: u64| CUmemcpy3DOperand {
        type_: CUmemcpy3DOperandType::POINTER,
        op: [ptr, row, layer, 0],
    };
    let good = CUDA_MEMCPY3D_BATCH_OP {
        src: pointer(client.value("a") + 41, 8, 4),
        dst: pointer(client.value("b"), 0, 0),
        extent: CUextent3D {
            width: 3,
            height: 2,
            depth: 2,
        },
        srcAccessOrder: CUmemcpySrcAccessOrder::ANY,
        flags: 0,
    };
    client.set("copy", good);
    for order in [
        "cuMemcpy3DBatchAsync_v2 1 &copy 0 $s",
        "cuMemcpy3DBatchAsync 1 &copy &failed 0 $s",
        "cuMemcpy3DWithAttributesAsync &copy 0 $s",
        "cuMemcpy3DBatchAsync_v2_ptsz 1 &copy 0 0",
    ] {
        client.ok(&[order]);
        let seen = arrived(&mut client);
        assert_eq!(
            seen[..13],
            [41, 42, 43, 49, 50, 51, 73, 74, 75, 81, 82, 83, 255],
            "{order}"
        );
    }
    let bad = [
        CUDA_MEMCPY3D_BATCH_OP {
            extent: CUextent3D::default(),
            ..good
        },
        CUDA_MEMCPY3D_BATCH_OP {
            src: pointer(1, 2, 0),
            ..good
        },
        CUDA_MEMCPY3D_BATCH_OP {
            dst: CUmemcpy3DOperand::default(),
            ..good
        },
    ];
    for copy in bad {
        client.set("copy", copy);
        let order = "cuMemcpy3DBatchAsync_v2 1 &copy 0 $s";
        assert_eq!(client.call(order), INVALID_VALUE, "{copy:?}");
    }
    client.set("copy", good);
    assert_eq!(
        client.call("cuMemcpy3DBatchAsync_v2 1 &copy 1 $s"),
        INVALID_VALUE
    );
    assert_eq!(
        client.call("cuMemcpy3DBatchAsync_v2 1 &copy 0 0"),
        INVALID_VALUE
    );
}

#[test]
fn a_captured_batch_is_nodes_side_by_side() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client);
    let (a, b) = (client.value("a"), client.value("b"));
    client.set("to", [b, b + 100]);
    client.set("from", [a + 1, a + 2]);
    client.set("sizes", [4u64, 4]);
    client.set("firsts", 0u64);
    let attributes = CUmemcpyAttributes {
        srcAccessOrder: CUmemcpySrcAccessOrder::STREAM,
        ..CUmemcpyAttributes::default()
    };
    client.set("attributes", attributes);
    client.ok(&[
        "cuStreamBeginCapture_v2 $s 0",
        "cuMemcpyBatchAsync_v2 &to &from &sizes 2 &attributes &firsts 1 $s",
        "cuMemcpyDtoHAsync_v2 &seen $b 256 $s",
        "cuStreamEndCapture $s &graph",
        "cuGraphGetNodes $graph 0 &count",
        "cuGraphInstantiateWithFlags &exec $graph 0",
        "cuGraphLaunch $exec $s",
        "cuStreamSynchronize $s",
    ]);
    assert_eq!(client.value("count"), 3);
    let seen = client.bytes("seen");
    assert_eq!(
        [&seen[..5], &seen[100..105]],
        [&[1, 2, 3, 4, 255], &[2, 3, 4, 5, 255]]
    );
}
