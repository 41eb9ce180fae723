//! The GPU, the limit and the surroundings of the acts, and the comparisons that they share.

use divvy_driver::load::Lookup;
use divvy_driver::nvml::{Memory, Nvml};
use divvy_driver::probe::{self, Info, Session, Taken, Way};

use super::beside::Surroundings;
use super::step::{Amount, Seen, Trouble, judged};

pub const MIB: u64 = 1 << 20;
/// Sizes are multiples of this, the granularity of the driver (inferred).
pub const PIECE: u64 = 2 * MIB;
/// By so much a figure may differ from the sum of the calls: code that the driver loads, and memory that the daemon adds when
/// it has seen it.
pub const SLACK: u64 = 64 * MIB;

/// The GPU in its slice, as the acts use it.
pub struct Stage {
    pub limit: u64,
    pub around: Surroundings,
    pub session: Session,
    pub nvml: Result<Nvml, divvy_driver::Error>,
}

impl Stage {
    pub fn set(limit: u64, around: Surroundings) -> Result<Self, Trouble> {
        let session = Session::open(None, Lookup::Handle, 0)?;
        Ok(Self {
            limit: limit_of(&session, limit)?,
            around,
            session,
            nvml: Nvml::load(None),
        })
    }

    pub fn info(&self) -> Result<Info, Trouble> {
        Ok(self.session.info()?)
    }

    /// The GPU's memory as NVML reports it.
    pub fn nvml_memory(&self) -> Result<Memory, Trouble> {
        let nvml = self.nvml.as_ref().map_err(Clone::clone)?;
        let device = nvml.device_by_uuid(self.session.uuid()?)?;
        Ok(device.memory()?)
    }

    /// An amount in bytes. Where it is beyond twice the limit, the program sees more than its slice, and is not let have it.
    pub fn bytes(&self, amount: Amount) -> Result<u64, Trouble> {
        let info = self.info()?;
        let part = |of: u64, part: u64| (u128::from(of) * u128::from(part) / 1000) as u64;
        let bytes = match amount {
            Amount::Bytes(bytes) => bytes,
            Amount::OfTotal(thousandths) => part(info.total, thousandths),
            Amount::OfFree(thousandths) => part(info.free, thousandths),
            Amount::FreeWithout(small, large) => {
                let reserve = if info.free < 2 << 30 { small } else { large };
                info.free.saturating_sub(reserve)
            }
        };
        if bytes > self.limit.saturating_mul(2).saturating_add(SLACK) {
            return Err(Trouble::Failed(format!(
                "the program would ask for {bytes} bytes, as it sees {} of {} free; the limit is {}",
                info.free, info.total, self.limit
            )));
        }
        Ok((bytes / PIECE * PIECE).max(PIECE))
    }

    /// Takes memory in the way of that name.
    pub fn take(&self, way: &str, bytes: u64) -> Result<Taken<'_>, Trouble> {
        Ok(known(way)?.take(&self.session, bytes)?)
    }

    /// The same where a refusal is an answer: `None` when memory was refused.
    pub fn try_take(&self, way: &str, bytes: u64) -> Result<Option<Taken<'_>>, Trouble> {
        match known(way)?.take(&self.session, bytes) {
            Ok(taken) => Ok(Some(taken)),
            Err(error) if error.is_out_of_memory() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

pub fn known(way: &str) -> Result<&'static Way, Trouble> {
    probe::way(way).ok_or_else(|| Trouble::Failed(format!("unknown way to allocate {way}")))
}

/// The limit of this slice: that of the flag, or the memory of a MIG instance, which is no smaller.
pub fn limit_of(session: &Session, limit: u64) -> Result<u64, Trouble> {
    let device = std::env::var("NVIDIA_VISIBLE_DEVICES").unwrap_or_default();
    if device.starts_with("MIG-") {
        Ok(session.info()?.total)
    } else {
        Ok(limit)
    }
}

/// Whether two figures are equal but for what the driver does by itself.
pub fn near(one: u64, other: u64) -> bool {
    one.abs_diff(other) <= SLACK
}

/// Memory that was counted while it was held, and that is free again.
pub fn counted(bytes: u64, before: u64, held: u64, after: u64) -> Seen {
    let fell = before.saturating_sub(held);
    let right = near(fell, bytes) && near(after, before);
    judged(
        right,
        format!(
            "{bytes} bytes taken, free fell by {fell}; afterwards {}",
            difference(before, after)
        ),
    )
}

/// `free as before`, or by how much free memory differs from what it was.
pub fn difference(before: u64, after: u64) -> String {
    match after.abs_diff(before) {
        0 => "free as before".to_owned(),
        less if after < before => format!("{less} bytes less free"),
        more => format!("{more} bytes more free"),
    }
}
