//! Capacity refusals: why no empty node could serve a request, and the nearest request that it could.

use crate::explain::reason::indices;
use crate::explain::suggest::{
    largest_memory, memory_of, mig_gpus, placeable_profiles, shared_gpus, smaller_requests,
};
use crate::model::gpu::{GRANULE, Gpu, Mode};
use crate::model::isolation::Isolation;
use crate::model::request::{Amount, Request};
use crate::placement::can_ever_place;
use crate::placement::fit::{Fraction, RequestShape, UnmetConstraint, size};
use crate::placement::occupancy::NodeUsage;
use crate::units::Bytes;

/// Checks that these GPUs, without any job or unmanaged process, can serve the request.
///
/// # Errors
/// [`NeverFits`], with the nearest request that can.
pub fn can_ever_fit(gpus: &[Gpu], request: &Request) -> Result<(), NeverFits> {
    let node = NodeUsage::empty(gpus);
    let absent: Vec<u32> = {
        let there = |index: &u32| gpus.iter().any(|gpu| gpu.index == *index);
        request
            .on
            .iter()
            .copied()
            .filter(|index| !there(index))
            .collect()
    };
    if absent.is_empty() {
        return if can_ever_place(&node, request) {
            Ok(())
        } else {
            Err(never_fits(&node, request))
        };
    }
    let there: Vec<u32> = node.gpus.iter().map(|usage| usage.gpu.index).collect();
    let there = match there[..] {
        [] => "there are none".to_owned(),
        _ => format!("there are {}", indices(&there)),
    };
    let message = format!("there is no GPU {} here: {there}", indices(&absent));
    let on = request
        .on
        .iter()
        .copied()
        .filter(|index| !absent.contains(index))
        .collect();
    let nearest = Request {
        on,
        ..request.clone()
    };
    Err(NeverFits {
        message,
        without: None,
        waits_for_service: false,
        nearest: Some(nearest).filter(|request| can_ever_fit(gpus, request).is_ok()),
    })
}

/// Explains why empty GPUs cannot serve the request, and which request they can.
pub(super) fn never_fits(empty: &NodeUsage<'_>, request: &Request) -> NeverFits {
    if let Some(context) = smallest_context(empty, request) {
        return below_context(empty, request, context);
    }
    let free = Request {
        isolation: Isolation::Any,
        ..request.clone()
    };
    let kept = smaller_requests(empty, request);
    let mut nearest = kept.into_iter().chain([free]);
    let nearest = nearest.find(|request| can_ever_place(empty, request));
    NeverFits {
        message: message(empty, request),
        waits_for_service: out_of_service(empty, request).is_some(),
        without: Some(request.isolation).filter(|isolation| {
            let kept = |nearest: &Request| nearest.isolation == *isolation;
            nearest.as_ref().is_some_and(|nearest| !kept(nearest))
        }),
        nearest,
    }
}

/// The smallest context overhead of a GPU, if the overhead is the only unmet constraint there.
fn smallest_context(empty: &NodeUsage<'_>, request: &Request) -> Option<Bytes> {
    let unmet = empty
        .gpus
        .iter()
        .filter_map(|usage| size(usage, request).err());
    let context = |unmet: Vec<UnmetConstraint>| match unmet[..] {
        [UnmetConstraint::Context { context, .. }] => Some(context),
        _ => None,
    };
    unmet.filter_map(context).min()
}

/// The refusal of a part that is smaller than the context overhead.
fn below_context(empty: &NodeUsage<'_>, request: &Request, context: Bytes) -> NeverFits {
    // The overhead and some room for data, as a round figure.
    let enough = context
        .saturating_add(Bytes::new(1))
        .round_up(Bytes::mib(256));
    let sizes = [enough, context.round_up(GRANULE)];
    let amounts = sizes
        .into_iter()
        .flat_map(|memory| with_memory(empty, request, memory));
    let mut nearest = amounts.map(|amount| request.with_amount(amount));
    NeverFits {
        message: format!(
            "{} requested, but a CUDA context alone takes {} of it here",
            request.amount.describe(),
            context.human()
        ),
        nearest: nearest.find(|request| can_ever_place(empty, request)),
        without: None,
        waits_for_service: false,
    }
}

/// Amounts of the same kind that have this much memory on some GPU, the smallest first.
fn with_memory(empty: &NodeUsage<'_>, request: &Request, memory: Bytes) -> Vec<Amount> {
    let shares = || {
        let shares = shared_gpus(empty, request).filter_map(|usage| usage.gpu.share_of(memory));
        let mut shares: Vec<_> = shares.collect();
        shares.sort_unstable();
        shares.dedup();
        shares
    };
    match request.amount {
        Amount::Shares { count, .. } => shares()
            .into_iter()
            .map(|share| Amount::Shares { count, share })
            .collect(),
        Amount::Share(_) => shares().into_iter().map(Amount::Share).collect(),
        _ => vec![Amount::Memory(memory)],
    }
}

/// `4 whole GPUs requested, but only 3 GPUs here are managed`.
fn message(empty: &NodeUsage<'_>, request: &Request) -> String {
    let (none, some) = match request.on[..] {
        [] => ("no GPU here is".to_owned(), "here"),
        [one] => (format!("GPU {one} is not"), "requested"),
        _ => (
            format!("none of GPUs {} is", indices(&request.on)),
            "requested",
        ),
    };
    let asked_for = || {
        let usages = empty.gpus.iter();
        usages.filter(|usage| request.allows(usage.gpu.index))
    };
    let managed = asked_for()
        .filter(|usage| usage.gpu.mode != Mode::Unmanaged)
        .count();
    let only = |count: usize, mode: &str| match count {
        1 => format!("only 1 GPU {some} is {mode}"),
        _ => format!("only {count} GPUs {some} are {mode}"),
    };
    let in_mode = |mode: Mode| asked_for().filter(|usage| usage.gpu.mode == mode).count();
    let (parts, instances) = (
        shared_gpus(empty, request).count(),
        mig_gpus(empty, request).count(),
    );
    let cut = if instances == 0 {
        "shared"
    } else {
        "in MIG mode"
    };
    let cause = match RequestShape::of(request.amount) {
        _ if managed == 0 => format!("{none} managed"),
        RequestShape::Whole { .. } if in_mode(Mode::Mig) == managed => {
            format!("{none} available as a whole: all are in MIG mode")
        }
        RequestShape::Whole { .. } if in_mode(Mode::Mig) > 0 => {
            only(managed - in_mode(Mode::Mig), "available as a whole")
        }
        RequestShape::Whole { .. } => only(managed, "managed"),
        RequestShape::Parts {
            part: Fraction::Profile(_),
            ..
        } if in_mode(Mode::Mig) == 0 => format!("{none} in MIG mode"),
        RequestShape::Parts { .. } if parts + instances == 0 => match request.isolation {
            Isolation::Any => format!("{none} shared: all are exclusive"),
            Isolation::Cooperative => format!("{none} shared, which cooperative isolation needs"),
            Isolation::Driver => {
                format!("{none} in MIG mode or limited by the driver, which driver isolation needs")
            }
            wish => format!("{none} in MIG mode, which {wish} isolation needs"),
        },
        RequestShape::Parts {
            part: Fraction::Profile(_),
            ..
        } => profiles(empty, request),
        RequestShape::Parts {
            part: Fraction::Memory(_),
            ..
        } => most_memory(empty, request, some),
        RequestShape::Parts { count, .. }
            if usize::try_from(count).is_ok_and(|count| count <= parts.max(instances)) =>
        {
            "that is less than 2 MiB of memory".to_owned()
        }
        RequestShape::Parts { .. } if parts > 0 && instances > 0 => format!(
            "a job gets either shared GPUs or MIG instances, and {some} {parts} are shared and {instances} in MIG mode"
        ),
        RequestShape::Parts { .. } => only(parts + instances, cut),
    };
    let with = match request.isolation {
        Isolation::Any => String::new(),
        wish => format!(" with {wish} isolation"),
    };
    let what = request.amount.describe();
    if let Some(out) = out_of_service(empty, request) {
        return format!("{what}{with} requested, but {out}");
    }
    let away = asked_for().filter(|usage| usage.gpu.away);
    match away.map(|usage| usage.gpu.index).collect::<Vec<_>>()[..] {
        [] => format!("{what}{with} requested, but {cause}"),
        [one] => format!("{what}{with} requested, but GPU {one} does not respond"),
        ref some => format!(
            "{what}{with} requested, but GPUs {} do not respond",
            indices(some)
        ),
    }
}

/// `GPU 0 is out of service since …, and 2 more are`: the requested GPUs that are, if there are any.
pub(super) fn out_of_service(node: &NodeUsage<'_>, request: &Request) -> Option<String> {
    let asked_for = node.gpus.iter().map(|usage| usage.gpu);
    let mut out = asked_for
        .filter(|gpu| request.allows(gpu.index) && !gpu.away)
        .filter_map(|gpu| Some((gpu.index, gpu.out_of_service.as_ref()?)));
    let (index, why) = out.next()?;
    Some(match out.count() {
        0 => format!("GPU {index} is {why}"),
        1 => format!("GPU {index} is {why}, and another one is too"),
        more => format!("GPU {index} is {why}, and {more} more are too"),
    })
}

/// The profiles that the GPUs have.
fn profiles(empty: &NodeUsage<'_>, request: &Request) -> String {
    let there = mig_gpus(empty, request).flat_map(placeable_profiles);
    let mut there: Vec<_> = there
        .map(|profile| (profile.memory, profile.name))
        .collect();
    there.sort_unstable();
    there.dedup();
    let there: Vec<String> = there.iter().map(|(_, name)| name.to_string()).collect();
    if there.is_empty() {
        "the profiles of the GPUs are unknown".to_owned()
    } else {
        format!("the profiles here are {}", there.join(", "))
    }
}

/// The most memory that one GPU gives, shared or as an instance, in figures that differ from the request's.
fn most_memory(empty: &NodeUsage<'_>, request: &Request, some: &str) -> String {
    let part = shared_gpus(empty, request)
        .map(|usage| largest_memory(usage.gpu, usage.free()))
        .max();
    let instances = mig_gpus(empty, request).flat_map(placeable_profiles);
    let instance = instances.max_by_key(|profile| memory_of(profile, request));
    let words = |most: Bytes| match request.amount {
        Amount::Memory(needs) => most.human_beside(needs)[0].clone(),
        _ => most.human(),
    };
    match (part, instance) {
        (part, Some(largest)) if part.is_none_or(|part| part < memory_of(largest, request)) => {
            format!(
                "the largest MIG profile {some}, {}, has {}",
                largest.name,
                words(largest.memory)
            )
        }
        (Some(part), _) => format!("the largest shared GPU {some} has {}", words(part)),
        (None, _) => "the profiles of the GPUs in MIG mode are unknown".to_owned(),
    }
}

/// No state of these GPUs can serve the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct NeverFits {
    pub message: String,
    /// The nearest request that fits.
    pub nearest: Option<Request>,
    /// The isolation that the nearest request drops.
    pub without: Option<Isolation>,
    /// GPUs that it asks for are out of service.
    pub waits_for_service: bool,
}

impl NeverFits {
    /// The request to make instead: `the nearest request that fits is -g 1`.
    pub fn hint(&self) -> String {
        let Some(Request { amount, on, .. }) =
            self.nearest.as_ref().filter(|_| !self.waits_for_service)
        else {
            return "divvy gpus".to_owned();
        };
        let on = match on[..] {
            [] => String::new(),
            _ => format!(" on GPU {}", indices(on)),
        };
        let without = match self.without {
            None => String::new(),
            Some(isolation) => format!(", without --isolation {isolation}"),
        };
        format!(
            "the nearest request that fits is {}{on}{without}",
            amount.flag()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(usable: Bytes, amount: &str) -> (String, String) {
        let gpu = Gpu {
            unmanaged: usable, // Ignored: processes end.
            ..Gpu::sample(0, usable)
        };
        let amount = Amount::from_memory_flag(amount)
            .or_else(|_| Amount::from_gpu_flag(amount))
            .unwrap();
        let never = can_ever_fit(&[gpu], &amount.into()).unwrap_err();
        (never.to_string(), never.hint())
    }

    #[test]
    fn memory_is_granted_in_steps_so_the_last_odd_mebibyte_cannot_be_had() {
        let (message, hint) = refusal(Bytes::mib(4095), "4095M");
        assert_eq!(
            message,
            "4095 MiB on one GPU requested, but the largest shared GPU here has 4094 MiB"
        );
        assert_eq!(
            hint,
            "the nearest request that fits is --gpu-memory 4094MiB"
        );
    }

    #[test]
    fn a_share_that_rounds_down_to_nothing_cannot_be_had() {
        let (message, hint) = refusal(Bytes::gib(1), "0.001");
        assert_eq!(
            message,
            "0.001 of a GPU requested, but that is less than 2 MiB of memory"
        );
        assert_eq!(hint, "the nearest request that fits is -g 1");
    }

    /// The message and hint for an amount on GPUs with so much memory and so large a context, in MiB; `None` where it
    /// fits.
    fn beside_contexts(gpus: &[(u64, u64)], amount: Amount) -> Option<(String, String)> {
        let gpu = |(index, (total, context)): (u8, &(u64, u64))| Gpu {
            context: Bytes::mib(*context),
            ..Gpu::sample(index, Bytes::mib(*total))
        };
        let gpus: Vec<Gpu> = (0..).zip(gpus).map(gpu).collect();
        let never = can_ever_fit(&gpus, &amount.into()).err()?;
        if let Some(nearest) = &never.nearest {
            assert!(can_ever_fit(&gpus, nearest).is_ok(), "{nearest:?}");
        }
        Some((never.to_string(), never.hint()))
    }

    #[test]
    fn a_part_below_a_context_is_refused_with_the_size_that_works() {
        let memory = |text| Amount::from_memory_flag(text).unwrap();
        let share = |text| Amount::from_gpu_flag(text).unwrap();
        let card = [(80_000, 415)];
        let refused = |amount| beside_contexts(&card, amount).unwrap();
        let (message, hint) = refused(memory("1M"));
        assert_eq!(
            message,
            "1 MiB on one GPU requested, but a CUDA context alone takes 415.0 MiB of it here"
        );
        assert_eq!(hint, "the nearest request that fits is --gpu-memory 512MiB");
        let hint = |amount| refused(amount).1;
        assert_eq!(
            hint(memory("412M")),
            "the nearest request that fits is --gpu-memory 512MiB"
        );
        assert_eq!(
            hint(share("0.001")),
            "the nearest request that fits is -g 0.007"
        );
        assert_eq!(
            beside_contexts(&card, memory("415M")),
            None,
            "granted in steps of 2 MiB"
        );
        assert_eq!(beside_contexts(&card, share("0.006")), None, "480 MiB");
        assert_eq!(
            beside_contexts(&[(80_000, 0)], memory("1M")),
            None,
            "not measured"
        );
        let two = share("2x0.001");
        let both = beside_contexts(&[(80_000, 415), (80_000, 415)], two).unwrap();
        assert_eq!(both.1, "the nearest request that fits is -g 2x0.007");
    }

    #[test]
    fn a_part_is_refused_only_where_no_model_has_room_for_a_context() {
        let share = |text| Amount::from_gpu_flag(text).unwrap();
        let mixed = [(16_000, 300), (80_000, 400)];
        assert_eq!(
            beside_contexts(&mixed, share("0.01")),
            None,
            "800 MiB of the larger one"
        );
        assert_eq!(
            beside_contexts(&mixed, Amount::from_memory_flag("310M").unwrap()),
            None,
            "enough on the smaller one"
        );
        let (message, hint) = beside_contexts(&mixed, share("0.001")).unwrap();
        assert!(message.contains("takes 300.0 MiB"), "{message}");
        assert_eq!(hint, "the nearest request that fits is -g 0.007");
        // Nothing but the card itself has room for it.
        let small = beside_contexts(&[(256, 250)], share("0.5")).unwrap();
        assert_eq!(small.1, "the nearest request that fits is -g 1");
    }

    #[test]
    fn a_node_without_gpus_says_so() {
        let never = can_ever_fit(&[], &Amount::ONE_GPU.into()).unwrap_err();
        assert_eq!(
            never.to_string(),
            "1 whole GPU requested, but no GPU here is managed"
        );
        assert_eq!(never.nearest, None);
    }
}
