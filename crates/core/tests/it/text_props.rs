//! Text out is text in, and no text whatever does harm.

use std::num::NonZeroU32;

use divvy_core::{Amount, Bytes, GpuUuid, JobId, QueueName, QueueSpec, Share, parse_gpus};
use proptest::prelude::*;

fn share() -> impl Strategy<Value = Share> {
    (1..=1000_u16).prop_map(|thousandths| Share::from_thousandths(thousandths).expect("a share"))
}

fn part() -> impl Strategy<Value = Share> {
    share().prop_filter("all of a GPU is read as a whole one", |share| {
        *share != Share::FULL
    })
}

fn count() -> impl Strategy<Value = NonZeroU32> {
    (1..=u32::MAX).prop_map(|count| NonZeroU32::new(count).expect("above zero"))
}

fn bytes() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        any::<u64>(),
        (0..5000_u64, 0..44_u32).prop_map(|(count, shift)| count << shift)
    ]
    .prop_map(Bytes::new)
}

proptest! {
    #[test]
    fn bytes_round_trip(bytes in bytes()) {
        prop_assert_eq!(bytes.to_string().parse(), Ok(bytes));
    }

    #[test]
    fn shares_round_trip(share in share()) {
        prop_assert_eq!(share.to_string().parse(), Ok(share));
    }

    #[test]
    fn amounts_round_trip(amount in prop_oneof![
        part().prop_map(Amount::Share),
        count().prop_map(Amount::Whole),
        (count(), 1..1000_u32).prop_filter_map("grows", |(min, more)| {
            min.checked_add(more).map(|max| Amount::Range { min, max })
        }),
        (count(), part()).prop_map(|(count, share)| Amount::Shares { count, share }),
    ]) {
        prop_assert_eq!(Amount::from_gpu_flag(&amount.to_string()), Ok(amount));
    }

    #[test]
    fn memory_amounts_round_trip(bytes in bytes()) {
        prop_assume!(bytes != Bytes::ZERO);
        let amount = Amount::Memory(bytes);
        prop_assert_eq!(Amount::from_memory_flag(&amount.to_string()), Ok(amount));
    }

    #[test]
    fn ids_round_trip(bytes in any::<[u8; 16]>(), job in any::<u64>(), name in "\\PC{0,20}") {
        let uuid = GpuUuid::from_bytes(bytes);
        prop_assert_eq!(uuid.to_bytes(), bytes);
        prop_assert_eq!(uuid.as_str().parse(), Ok(uuid));
        prop_assert_eq!(format!("#{job}").parse(), Ok(JobId(job)));
        if let Ok(queue) = name.parse::<QueueName>() {
            let spec: QueueSpec = format!("{queue}=1").parse().expect("a queue");
            prop_assert_eq!(spec.name.as_str(), name);
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,12}|[-0-9.xkKmMgGiIbB=,: ]{0,12}") {
        let _ = text.parse::<Bytes>();
        let _ = text.parse::<GpuUuid>();
        let _ = text.parse::<QueueSpec>();
        let _ = Amount::from_memory_flag(&text);
        let _ = parse_gpus(&[&text]);
        if let Ok(amount) = Amount::from_gpu_flag(&text) {
            prop_assert_eq!(Amount::from_gpu_flag(&amount.to_string()), Ok(amount));
        }
        if let Err(error) = text.parse::<Share>() {
            prop_assert!(error.to_string().lines().count() <= 1 || text.contains('\n'));
        }
    }
}
