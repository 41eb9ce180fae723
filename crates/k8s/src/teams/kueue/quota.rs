//! Quotas in GPUs, and the memory that they stand for in Kueue.

use divvy_core::units::{Bytes, gpus};

/// Thousandths of the most GPUs that a quota, limit or weight may have: 100,000 GPUs. More than any cluster has, and
/// sums of thousands of such quotas fit 64 bits.
pub const MOST: u64 = 100_000_000;

/// Returns the memory of so many thousandths of a GPU, rounded down to whole MiB as a fraction's claim is.
pub fn memory(thousandths: u64, gpu: Bytes) -> Bytes {
    let mib = u128::from(thousandths) * u128::from(gpu.get() >> 20) / 1000;
    Bytes::mib(u64::try_from(mib).unwrap_or(u64::MAX >> 20))
}

/// Returns the thousandths of a GPU that this memory is, rounded to the nearest: claims are rounded down to MiB, so eight
/// eighths of a GPU are some MiB less than one.
pub fn thousandths(memory: Bytes, gpu: Bytes) -> u64 {
    let gpu = u128::from(gpu.get().max(1));
    let rounded = (u128::from(memory.get()) * 1000 + gpu / 2) / gpu;
    u64::try_from(rounded).unwrap_or(u64::MAX)
}

/// Returns the words for so many thousandths: `0.5 GPUs`, `1 GPU`.
pub fn words(thousandths: u64) -> String {
    let noun = if thousandths == 1000 { "GPU" } else { "GPUs" };
    format!("{} {noun}", gpus(thousandths))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn eighths_of_an_odd_gpu_add_up_to_one() {
        let gpu = Bytes::mib(81_050);
        assert_eq!(memory(250, gpu), Bytes::mib(20_262));
        let all = Bytes::new(memory(125, gpu).get() * 8);
        assert!(all < gpu);
        assert_eq!(thousandths(all, gpu), 1000);
        assert_eq!(words(1000), "1 GPU");
        assert_eq!(words(2500), "2.5 GPUs");
    }

    proptest! {
        #[test]
        fn a_quota_reads_back_as_it_was_written(quota in 0..=MOST, mib in 2048_u64..=1 << 20) {
            let gpu = Bytes::mib(mib);
            prop_assert_eq!(thousandths(memory(quota, gpu), gpu), quota);
        }
    }
}
