//! Random walks: whatever a program does with memory, the GPU's account is what the calls add up to; whatever it does
//! with graphs, nothing is lost.

use crate::graph::tagged;
use crate::launch::load;
use crate::machine::{Client, MIB, Machine};
use divvy_driver::sys::cuda::*;
use divvy_testkit::Rng;

/// What the walker has, by the variable it keeps it in.
enum Held {
    Linear {
        name: String,
        bytes: u64,
    },
    Physical {
        name: String,
        bytes: u64,
        mapped: bool,
    },
}

fn charged(size: u64) -> u64 {
    size.next_multiple_of(if size >= MIB { 2 * MIB } else { 512 })
}

fn take(client: &mut Client, numbers: &mut Rng, name: String, free: u64) -> Option<Held> {
    // Now and then more than there is.
    let limit = [100_000, 40 * MIB, free + free / 4][numbers.below(3) as usize];
    let size = 1 + numbers.below(limit + 1);
    if numbers.below(3) > 0 {
        let expected = if charged(size) <= free { 0 } else { 2 };
        let order = format!("cuMemAlloc_v2 &{name} {size}");
        assert_eq!(client.call(&order), expected, "{order} with {free} free");
        let bytes = charged(size);
        return (expected == 0).then_some(Held::Linear { name, bytes });
    }
    let bytes = size.next_multiple_of(2 * MIB);
    let expected = if bytes <= free { 0 } else { 2 };
    let order = format!("cuMemCreate &{name} {bytes} &properties 0");
    assert_eq!(client.call(&order), expected, "{order} with {free} free");
    if expected != 0 {
        return None;
    }
    let mapped = numbers.below(2) == 0;
    if mapped {
        client.ok(&[
            &format!("cuMemAddressReserve &at_{name} {bytes} 0 0 0"),
            &format!("cuMemMap $at_{name} {bytes} 0 ${name} 0"),
        ]);
    }
    Some(Held::Physical {
        name,
        bytes,
        mapped,
    })
}

/// Gives something back; the bytes that were freed.
fn give(client: &mut Client, held: Held) -> u64 {
    match held {
        Held::Linear { name, bytes } => {
            client.ok(&[&format!("cuMemFree_v2 ${name}")]);
            bytes
        }
        Held::Physical {
            name,
            bytes,
            mapped,
        } => {
            client.ok(&[&format!("cuMemRelease ${name}")]);
            if mapped {
                client.ok(&[
                    &format!("cuMemUnmap $at_{name} {bytes}"),
                    &format!("cuMemAddressFree $at_{name} {bytes}"),
                ]);
            }
            bytes
        }
    }
}

#[test]
fn the_account_is_what_the_calls_add_up_to() {
    for seed in 1..=4 {
        let machine = Machine::new("l4-24gb:1");
        let mut client = machine.client();
        client.start();
        let location = CUmemLocation {
            type_: CUmemLocationType::DEVICE,
            id: 0,
        };
        let type_ = CUmemAllocationType::PINNED;
        client.set(
            "properties",
            CUmemAllocationProp {
                type_,
                location,
                ..Default::default()
            },
        );
        let (whole, _) = client.memory();
        let (mut numbers, mut held, mut free) = (Rng::new(seed), Vec::new(), whole);
        for step in 0..300 {
            if numbers.below(5) < 3 {
                let taken = take(&mut client, &mut numbers, format!("v{step}"), free);
                if let Some(Held::Linear { bytes, .. } | Held::Physical { bytes, .. }) = &taken {
                    free -= bytes;
                }
                held.extend(taken);
            } else if !held.is_empty() {
                let which = numbers.below(held.len() as u64) as usize;
                free += give(&mut client, held.swap_remove(which));
            }
            assert_eq!(client.memory().0, free, "seed {seed}, step {step}");
        }
        for one in held {
            give(&mut client, one);
        }
        assert_eq!(client.memory().0, whole, "seed {seed}");
    }
}

/// Calls on graphs and captures. A `$` takes one of a few variables of that kind, set or not, and an `&` overwrites
/// one.
const GRAPH_CALLS: &[&str] = &[
    "cuGraphCreate &graph 0",
    "cuGraphDestroy $graph",
    "cuGraphClone &graph $graph",
    "cuGraphAddEmptyNode &node $graph 0 0",
    "cuGraphAddEmptyNode &node $graph &node 1",
    "cuGraphAddKernelNode_v2 &node $graph &node 1 &kernel",
    "cuGraphAddHostNode &node $graph &node 1 &host",
    "cuGraphAddChildGraphNode &node $graph 0 0 $graph",
    "cuGraphAddMemAllocNode &node $graph 0 0 &parameters",
    "cuGraphAddMemAllocNode &node $graph &node 1 &parameters",
    "cuGraphAddMemFreeNode &node $graph &node 1 $address",
    "cuGraphAddEventRecordNode &node $graph &node 1 $event",
    "cuGraphAddDependencies $graph &node &node 1",
    "cuGraphRemoveDependencies $graph &node &node 1",
    "cuGraphDestroyNode $node",
    "cuGraphNodeGetType $node &kind",
    "cuGraphInstantiateWithFlags &exec $graph 0",
    "cuGraphInstantiateWithFlags &exec $graph 1",
    "cuGraphExecDestroy $exec",
    "cuGraphExecUpdate_v2 $exec $graph &info",
    "cuGraphExecNodeSetParams $exec $node &any",
    "cuGraphNodeSetEnabled $exec $node 0",
    "cuGraphUpload $exec $stream",
    "cuGraphLaunch $exec $stream",
    "cuGraphLaunch $exec $stream",
    "cuStreamBeginCapture_v2 $stream 2",
    "cuStreamBeginCaptureToGraph $stream $graph 0 0 0 2",
    "cuStreamEndCapture $stream &graph",
    "cuStreamEndCapture $stream &graph",
    "cuStreamGetCaptureInfo_v2 $stream &kind 0 &graph 0 0",
    "cuStreamUpdateCaptureDependencies $stream &node 1 1",
    "cuLaunchKernel $busy 1 1 1 1 1 1 0 $stream 0 0",
    "cuMemAllocAsync &address 3000000 $stream",
    "cuMemAllocAsync &address 70000 $stream",
    "cuMemFreeAsync $address $stream",
    "cuMemFree_v2 $address",
    "cuEventRecord $event $stream",
    "cuStreamWaitEvent $stream $event 0",
    "cuEventQuery $event",
    "cuStreamSynchronize $stream",
    "cuStreamDestroy_v2 $stream",
    "cuStreamCreate &stream 1",
    "cuDeviceGraphMemTrim 0",
];

/// Kinds of which there are several variables.
const SEVERAL: [&str; 6] = ["graph", "node", "exec", "stream", "event", "address"];
const EACH: u64 = 5;

/// The call with a variable in each place; now and then one of another kind.
fn order(call: &str, numbers: &mut Rng) -> String {
    let words = call.split(' ').map(|word| {
        let Some(kind) = SEVERAL.into_iter().find(|kind| word[1..] == **kind) else {
            return word.to_owned();
        };
        let kind = match numbers.below(30) {
            0 => SEVERAL[numbers.below(6) as usize],
            _ => kind,
        };
        format!("{}{kind}{}", &word[..1], numbers.below(EACH))
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn whatever_is_done_with_graphs_memory_comes_back_in_the_end() {
    for seed in 1..=4 {
        let machine = Machine::new("a100-40gb:1");
        let mut client = machine.with_virtual_clock().client();
        client.start();
        load(&mut client, &machine);
        client.ok(&[
            "cuModuleGetFunction &busy $module \"sim_busy_us_250\"",
            "address &function abs",
        ]);
        let host = [client.value("function"), 1];
        client.set("host", host);
        let kernel = CUDA_KERNEL_NODE_PARAMS {
            func: std::ptr::without_provenance_mut(client.value("busy") as usize),
            gridDimX: 1,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 1,
            blockDimY: 1,
            blockDimZ: 1,
            ..CUDA_KERNEL_NODE_PARAMS::default()
        };
        client.set("kernel", kernel);
        tagged(&mut client, "any", CUgraphNodeType::KERNEL, "kernel");
        let location = CUmemLocation {
            type_: CUmemLocationType::DEVICE,
            id: 0,
        };
        let parameters = CUDA_MEM_ALLOC_NODE_PARAMS {
            poolProps: CUmemPoolProps {
                allocType: CUmemAllocationType::PINNED,
                location,
                ..CUmemPoolProps::default()
            },
            bytesize: 5_000_000,
            ..CUDA_MEM_ALLOC_NODE_PARAMS::default()
        };
        client.set("parameters", parameters);
        for at in 0..EACH {
            client.ok(&[
                &format!("cuStreamCreate &stream{at} {}", at % 2),
                &format!("cuEventCreate &event{at} 0"),
            ]);
        }
        let whole = client.memory().0;
        let mut numbers = Rng::new(seed);
        let mut seen = Vec::new();
        let mut succeeded = 0;
        for _ in 0..3000 {
            let call = GRAPH_CALLS[numbers.below(GRAPH_CALLS.len() as u64) as usize];
            let order = order(call, &mut numbers);
            let answer = client.call(&order);
            assert!(
                answer != 999 && answer != 2,
                "seed {seed}: {order}: {answer}"
            );
            if answer != 0 {
                continue;
            }
            succeeded += 1;
            if call.contains("MemAllocNode") {
                let bytes = client.bytes("parameters")[112..120].to_vec();
                let address = u64::from_ne_bytes(bytes.try_into().expect("eight"));
                client.set(&format!("address{}", numbers.below(EACH)), address);
                seen.push(address);
            }
            for word in order.split(' ').filter(|word| word.starts_with('&')) {
                seen.push(client.value(&word[1..]));
            }
        }
        assert!(
            succeeded > 200,
            "seed {seed}: {succeeded} calls did something"
        );
        // Ends what is left, taking everything that was ever answered for everything it could be.
        seen.extend((0..EACH).map(|at| client.value(&format!("stream{at}"))));
        seen.sort_unstable();
        seen.dedup();
        for end in ["cuStreamEndCapture", "cuGraphExecDestroy", "cuMemFree_v2"] {
            let rest = if end == "cuStreamEndCapture" {
                " &graph0"
            } else {
                ""
            };
            for one in seen.iter().filter(|one| **one > 2) {
                client.call(&format!("{end} {one}{rest}"));
            }
            client.ok(&["cuCtxSynchronize"]);
        }
        client.ok(&["cuDeviceGraphMemTrim 0"]);
        assert_eq!(client.memory().0, whole, "seed {seed}");
    }
}
