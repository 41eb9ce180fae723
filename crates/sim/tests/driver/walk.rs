//! Random walks: whatever a program does with memory, the GPU's account is what the calls add up to.

use crate::machine::{Client, MIB, Machine};
use divvy_driver::sys::cuda::*;

/// Numbers that depend on the seed alone (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27) % limit
    }
}

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

fn take(client: &mut Client, numbers: &mut Numbers, name: String, free: u64) -> Option<Held> {
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
        let (mut numbers, mut held, mut free) = (Numbers(seed), Vec::new(), whole);
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
