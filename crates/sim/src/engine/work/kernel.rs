//! Kernels: how long a launch takes, and for the few kernels that the simulator knows, what it does.
//!
//! Every kernel is a no-op with a duration unless [`KNOWN`] lists its name. The duration comes, in this order, from
//! DIVVY_SIM_CONFIG, from the name (`sim_busy_us_250` occupies the GPU for 250 µs, `sim_idle_ms_5` passes 5 ms without
//! occupying it, `sim_rendezvous_2_7` occupies it until two queues run one with key 7), or from the number of threads.

use crate::config::Config;
use crate::engine::objects::Objects;
use crate::engine::objects::kernel::{Geometry, Reader};
use crate::engine::objects::result::Done;
use crate::engine::process::Process;
use crate::engine::time::Work;
use crate::model::Model;
use divvy_driver::sys::cuda::CUresult;

/// Blocks of so many threads and so many bytes of shared memory that fit one multiprocessor; registers are never the
/// limit.
pub fn blocks_at_once(model: &Model, threads: u32, shared: usize) -> u32 {
    let warps = threads.div_ceil(32).max(1);
    let by_threads = model.threads_per_multiprocessor as u32 / (warps * 32);
    let by_shared = (model.shared_per_multiprocessor_kib as usize * 1024) / (shared + 1024);
    let limit = by_threads.min(model.blocks_per_multiprocessor as u32);
    limit.min(u32::try_from(by_shared).unwrap_or(u32::MAX))
}

/// Duration of a kernel with neither a configured nor a named one: 2 µs and 1 µs for each time the threads fill the
/// GPU. Invented.
const LAUNCH_NS: u64 = 2_000;

/// As above: about the shortest kernel, so that a test sees the size of a launch.
const WAVE_NS: u64 = 1_000;

pub fn duration(config: &Config, model: &Model, name: &str, geometry: &Geometry) -> Work {
    if let Some(ns) = config.kernel_ns(name) {
        return Work::Busy(ns);
    }
    let named = named_duration(name).or_else(|| named_meeting(name));
    named.unwrap_or_else(|| {
        let at_once = (model.multiprocessors * model.threads_per_multiprocessor) as u64;
        Work::Busy(
            LAUNCH_NS.saturating_add(geometry.threads().div_ceil(at_once).saturating_mul(WAVE_NS)),
        )
    })
}

/// The duration in a name such as `sim_busy_us_250`, anywhere in it so that C++ mangling does not matter.
pub fn named_duration(name: &str) -> Option<Work> {
    let (kind, rest) = [("sim_busy_", true), ("sim_idle_", false)]
        .into_iter()
        .find_map(|(mark, busy)| Some((busy, name.split_once(mark)?.1)))?;
    let (unit, rest) = rest.split_once('_')?;
    let factor = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        _ => return None,
    };
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .map_or(rest, |end| &rest[..end]);
    let ns = digits.parse::<u64>().ok()?.saturating_mul(factor);
    Some(if kind {
        Work::Busy(ns)
    } else {
        Work::Delay(ns)
    })
}

/// The meeting in a name such as `sim_rendezvous_2` (two parties, key 0) or `sim_rendezvous_4_17` (four, key 17),
/// anywhere in it.
pub fn named_meeting(name: &str) -> Option<Work> {
    let (_, rest) = name.split_once("sim_rendezvous_")?;
    let leading = |text: &str| {
        let end = text.find(|c: char| !c.is_ascii_digit());
        end.unwrap_or(text.len())
    };
    let (parties, rest) = rest.split_at(leading(rest));
    let key = rest.strip_prefix('_').map(|key| &key[..leading(key)]);
    Some(Work::Meet {
        parties: parties.parse().ok().filter(|parties| *parties > 0)?,
        key: key.and_then(|key| key.parse().ok()).unwrap_or(0),
    })
}

type Effect = unsafe fn(&Process, &Objects, &Geometry, &mut Reader) -> Done;

/// Kernels that are carried out on the CPU, with the bytes of each parameter. Their names are a contract: the same
/// kernels in PTX do the same on a real GPU.
const KNOWN: &[(&str, Effect, &[usize])] = &[
    ("sim_fill_u32", fill_u32, &[8, 4, 4]),
    ("sim_vector_add_f32", vector_add_f32, &[8, 8, 8, 4]),
];

fn known(name: &str) -> Option<&'static (&'static str, Effect, &'static [usize])> {
    KNOWN.iter().find(|(known, ..)| *known == name)
}

pub fn effect(name: &str) -> Option<Effect> {
    known(name).map(|(_, effect, _)| *effect)
}

/// Where the parameters of a known kernel lie, as `(offset, bytes)`, each at its natural alignment.
pub fn layout(name: &str) -> Option<Vec<(usize, usize)>> {
    let (.., sizes) = known(name)?;
    let mut end = 0usize;
    let places = sizes.iter().map(|size| {
        let offset = end.next_multiple_of(*size);
        end = offset + size;
        (offset, *size)
    });
    Some(places.collect())
}

/// What a wild access does to its context.
const WILD: CUresult = CUresult::ILLEGAL_ADDRESS;

/// `sim_fill_u32(u32 *out, u32 value, u32 count)`
unsafe fn fill_u32(
    process: &Process,
    objects: &Objects,
    geometry: &Geometry,
    parameters: &mut Reader,
) -> Done {
    // SAFETY: the kernel's declaration above.
    let (out, value, count) = unsafe {
        (
            parameters.next::<u64>()?,
            parameters.next::<u32>()?,
            parameters.next::<u32>()?,
        )
    };
    let count = u64::from(count).min(geometry.threads());
    process
        .check_range(objects, out, count * 4)
        .map_err(|_| WILD)?;
    // SAFETY: the range was just found to be device memory, which has addresses of ours.
    unsafe { std::slice::from_raw_parts_mut(out as *mut u32, count as usize) }.fill(value);
    Ok(())
}

/// `sim_vector_add_f32(const float *a, const float *b, float *sum, u32 count)`
unsafe fn vector_add_f32(
    process: &Process,
    objects: &Objects,
    geometry: &Geometry,
    parameters: &mut Reader,
) -> Done {
    // SAFETY: the kernel's declaration above.
    let (a, b, sum, count) = unsafe {
        (
            parameters.next::<u64>()?,
            parameters.next::<u64>()?,
            parameters.next::<u64>()?,
            parameters.next::<u32>()?,
        )
    };
    let count = u64::from(count).min(geometry.threads());
    for array in [a, b, sum] {
        process
            .check_range(objects, array, count * 4)
            .map_err(|_| WILD)?;
    }
    for at in 0..count as usize {
        // SAFETY: all three ranges were just found to be device memory; raw accesses, since they may overlap.
        unsafe {
            *(sum as *mut f32).add(at) = *(a as *const f32).add(at) + *(b as *const f32).add(at)
        };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::objects::kernel::*;

    #[test]
    fn names_carry_durations_mangled_or_not() {
        assert_eq!(named_duration("sim_busy_us_250"), Some(Work::Busy(250_000)));
        assert_eq!(
            named_duration("_Z13sim_idle_ms_5v"),
            Some(Work::Delay(5_000_000))
        );
        for unnamed in ["sim_busy_us_", "sim_busy_h_1", "busy_us_1", "sim_busy_us"] {
            assert_eq!(named_duration(unnamed), None, "{unnamed}");
        }
    }

    #[test]
    fn names_carry_meetings_with_and_without_a_key() {
        let meeting = |parties, key| Some(Work::Meet { key, parties });
        assert_eq!(named_meeting("sim_rendezvous_2"), meeting(2, 0));
        assert_eq!(named_meeting("_Z19sim_rendezvous_4_17v"), meeting(4, 17));
        assert_eq!(named_meeting("sim_rendezvous_2_pv"), meeting(2, 0));
        for unnamed in ["sim_rendezvous_", "sim_rendezvous_0", "sim_rendezvous_x"] {
            assert_eq!(named_meeting(unnamed), None, "{unnamed}");
        }
    }

    #[test]
    fn geometry_limits_are_those_of_the_hardware() {
        let valid = |grid, block| Geometry { grid, block }.is_valid();
        assert!(valid([1, 1, 1], [1024, 1, 1]) && valid([0x7fff_ffff, 65535, 65535], [16, 16, 4]));
        assert!(
            !valid([0, 1, 1], [1, 1, 1])
                && !valid([1, 1, 1], [1025, 1, 1])
                && !valid([1, 65536, 1], [1, 1, 1])
                && !valid([1, 1, 1], [32, 32, 2])
        );
    }

    #[test]
    fn parameters_in_a_buffer_lie_at_their_natural_alignment() {
        let mut buffer = [0u8; 16];
        buffer[..4].copy_from_slice(&7u32.to_ne_bytes());
        buffer[8..].copy_from_slice(&9u64.to_ne_bytes());
        let mut reader = Reader::new(Parameters::Buffer(buffer.as_ptr(), buffer.len()));
        // SAFETY: the buffer was laid out as u32, u64.
        unsafe {
            assert_eq!((reader.next::<u32>(), reader.next::<u64>()), (Ok(7), Ok(9)));
            assert_eq!(reader.next::<u32>(), Err(CUresult::INVALID_VALUE));
        }
    }
}
