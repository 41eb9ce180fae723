//! The energy meter: from the driver's answers to readings of each GPU's energy.
//!
//! A GPU without a counter has the integral of its power in its place, which begins with the daemon.

use std::collections::BTreeMap;
use std::time::Duration;

use divvy_api::home::machine;
use divvy_core::GpuUuid;

use super::{ObservedGpu, Power};
use crate::host::clock::{boot_ns, now};
use crate::model::usage::energy::{EnergyReading, EnergySource, PowerIntegral};

/// A reading of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuEnergy {
    pub uuid: GpuUuid,
    pub index: u32,
    pub reading: EnergyReading,
}

/// The last readings of all GPUs.
#[derive(Debug, Default)]
pub struct EnergyMeter {
    last: BTreeMap<GpuUuid, GpuEnergy>,
    /// The kernel's id of this boot, once it was needed: the driver's counters begin with it or later.
    boot: String,
    /// Of GPUs without a counter, each with the name of its count.
    integrals: BTreeMap<GpuUuid, (String, PowerIntegral)>,
}

impl EnergyMeter {
    /// Takes the driver's answers, by index. Of a GPU that did not answer, the last reading stays.
    pub fn read(&mut self, gpus: &[ObservedGpu], answers: &BTreeMap<u32, Power>) {
        if self.boot.is_empty() {
            self.boot = machine::boot();
        }
        let boot = &self.boot;
        let up = Duration::from_nanos(boot_ns());
        for gpu in gpus {
            let Some(power) = answers.get(&gpu.index) else {
                continue;
            };
            let (millijoules, source, count) = match (power.millijoules, power.milliwatts) {
                (Some(millijoules), _) => (millijoules, EnergySource::Counter, boot.clone()),
                (None, Some(milliwatts)) if power.has_no_counter => {
                    let (count, integral) = (self.integrals.entry(gpu.uuid.clone()))
                        .or_insert_with(|| {
                            let count = format!("{boot}/{}", up.as_nanos());
                            (count, PowerIntegral::new(up, milliwatts))
                        });
                    integral.add(up, milliwatts);
                    (integral.millijoules(), EnergySource::Power, count.clone())
                }
                _ => continue,
            };
            let reading = EnergyReading {
                at: now().as_microsecond(),
                millijoules,
                source,
                count,
            };
            let (uuid, index) = (gpu.uuid.clone(), gpu.index);
            self.last.insert(
                uuid.clone(),
                GpuEnergy {
                    uuid,
                    index,
                    reading,
                },
            );
        }
    }

    pub fn last(&self) -> Vec<GpuEnergy> {
        self.last.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: u32) -> ObservedGpu {
        let uuid = GpuUuid::from_bytes([u8::try_from(index).unwrap(); 16]);
        ObservedGpu::idle(uuid, index)
    }

    #[test]
    fn a_gpu_has_readings_of_its_counter_or_of_its_power_and_an_error_gives_none() {
        let mut meter = EnergyMeter::default();
        let gpus = [gpu(0), gpu(1), gpu(2), gpu(3)];
        let power = |milliwatts, millijoules, has_no_counter| Power {
            milliwatts,
            millijoules,
            has_no_counter,
        };
        let answers = BTreeMap::from([
            (0, power(Some(9), Some(70), false)),
            (1, power(Some(9), None, true)),
            // The call for the counter failed: the power must not stand in for it.
            (2, power(Some(9), None, false)),
        ]);
        meter.read(&gpus, &answers);
        let readings = meter.last();
        let sources: Vec<_> = readings
            .iter()
            .map(|one| (one.index, one.reading.source))
            .collect();
        assert_eq!(
            sources,
            [(0, EnergySource::Counter), (1, EnergySource::Power)]
        );
        assert_eq!(readings[0].reading.millijoules, 70);
        assert_eq!(readings[1].reading.millijoules, 0);
        assert_ne!(readings[0].reading.count, readings[1].reading.count);
        // Without an answer the last reading stays, and is no new one.
        meter.read(&gpus, &BTreeMap::new());
        assert_eq!(meter.last(), readings);
        meter.read(&gpus, &answers);
        let again = meter.last();
        assert_eq!(again[1].reading.count, readings[1].reading.count);
    }
}
