//! Limits of contexts and the memory behind them.

use crate::machine::{MIB, Machine};

const STACK_SIZE: u32 = 0;
const MALLOC_HEAP_SIZE: u32 = 2;
const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const UNSUPPORTED_LIMIT: u32 = 215;

/// Threads that an L4 can hold at one time.
const THREADS: u64 = 58 * 1536;

#[test]
fn a_larger_stack_or_heap_takes_memory_and_a_smaller_one_gives_it_back() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    client.start();
    let free = client.memory().0;
    client.ok(&[&format!("cuCtxSetLimit {STACK_SIZE} 9216")]);
    let stacks = (8192 * THREADS).next_multiple_of(2 * MIB);
    assert_eq!(free - client.memory().0, stacks);
    client.ok(&[
        &format!("cuCtxSetLimit {MALLOC_HEAP_SIZE} 1073741824"),
        &format!("cuCtxGetLimit &heap {MALLOC_HEAP_SIZE}"),
        &format!("cuCtxGetLimit &stack {STACK_SIZE}"),
    ]);
    assert_eq!(
        (client.value("heap"), client.value("stack")),
        (1024 * MIB, 9216)
    );
    assert_eq!(free - client.memory().0, stacks + 1016 * MIB);
    client.ok(&[&format!("cuCtxSetLimit {STACK_SIZE} 512")]);
    assert_eq!(free - client.memory().0, 1016 * MIB);
    client.ok(&["cuDevicePrimaryCtxReset_v2 0"]);
    client.start();
    assert_eq!(client.memory().0, free);
    client.ok(&[&format!("cuCtxGetLimit &heap {MALLOC_HEAP_SIZE}")]);
    assert_eq!(client.value("heap"), 8 * MIB);
}

#[test]
fn a_limit_that_does_not_fit_is_refused_and_nothing_changes() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    client.start();
    let free = client.memory().0;
    client.ok(&["cuMemAlloc_v2 &a 17179869184"]);
    let heap = format!("cuCtxSetLimit {MALLOC_HEAP_SIZE}");
    for bytes in [8u64 << 30, u64::MAX] {
        assert_eq!(client.call(&format!("{heap} {bytes}")), OUT_OF_MEMORY);
    }
    assert_eq!(
        client.call(&format!("cuCtxSetLimit {STACK_SIZE} 524288")),
        OUT_OF_MEMORY
    );
    assert_eq!(
        client.call(&format!("cuCtxSetLimit {STACK_SIZE} 524289")),
        INVALID_VALUE
    );
    client.ok(&[&format!("cuCtxGetLimit &heap {MALLOC_HEAP_SIZE}")]);
    assert_eq!(client.value("heap"), 8 * MIB);
    assert_eq!(free - client.memory().0, 16 << 30);
}

#[test]
fn limits_that_there_are_not_are_unsupported() {
    let machine = Machine::new("h100-80gb:1");
    let mut client = machine.client();
    client.start();
    for limit in [3, 7, 8, 10, 99] {
        assert_eq!(
            client.call(&format!("cuCtxSetLimit {limit} 1")),
            UNSUPPORTED_LIMIT
        );
        assert_eq!(
            client.call(&format!("cuCtxGetLimit &value {limit}")),
            UNSUPPORTED_LIMIT
        );
    }
    assert_eq!(client.call("cuCtxGetLimit 0 0"), INVALID_VALUE);
    client.ok(&["cuCtxSetCurrent 0"]);
    assert_eq!(client.call("cuCtxSetLimit 0 1024"), 201);
}
