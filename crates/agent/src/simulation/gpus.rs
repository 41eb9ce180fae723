//! The simulated driver of a machine: which process holds which memory. All other records are checked against it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use divvy_core::{Bytes, GpuUuid};
use divvy_driver::sys::nvml::nvmlReturn_t;

use super::driver::SimulatedGpu;
use super::kernel::Kind;
use super::{World, clock, with};
use crate::gpu::health::DriverHealth;
use crate::gpu::mig::driver::Gpu;
use crate::gpu::source::{GpuDriver, MigReader};
use crate::gpu::{
    FaultyGpu, GpuOccupancy, GpuProcess, Observation, ObservedGpu, Power, SourceError,
};
use crate::model::usage::meter::{ReportedUtilisation, UtilisationSample};

/// Of every GPU.
pub const TOTAL: Bytes = Bytes::gib(80);
const RESERVED: Bytes = Bytes::gib(1);

/// What a context takes.
pub const CONTEXT: Bytes = Bytes::mib(300);

/// How often there are new samples of what was done (nvml.h, `nvmlUtilization_t`).
const SAMPLE: Duration = Duration::from_secs(1);

/// How a GPU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Well,
    /// Its calls fail, for a while.
    Ill,
    /// It has fallen off the bus.
    Lost,
    /// It is not listed any more.
    Absent,
}

pub fn uuid(gpu: usize) -> GpuUuid {
    GpuUuid::from_bytes([u8::try_from(gpu + 1).unwrap_or(u8::MAX); 16])
}

pub fn usable() -> u64 {
    TOTAL.saturating_sub(RESERVED).get()
}

pub fn index(gpu: &GpuUuid) -> usize {
    usize::from(gpu.to_bytes()[0]).saturating_sub(1)
}

/// The driver of this thread's simulation, in NVML's place.
pub struct SimulatedDriver;

impl GpuDriver for SimulatedDriver {
    fn version(&self) -> Result<String, SourceError> {
        Ok("simulated".to_owned())
    }

    fn gpu(&self, gpu: &GpuUuid) -> Result<Box<dyn Gpu + '_>, SourceError> {
        Ok(Box::new(SimulatedGpu(index(gpu))))
    }

    fn observe(
        &self,
        mig: MigReader<'_>,
        _asleep: &BTreeSet<u32>,
    ) -> Result<Observation, SourceError> {
        let mut observation = observe_all()?;
        for gpu in &mut observation.gpus {
            gpu.mig = mig(&SimulatedGpu(index(&gpu.uuid)), &gpu.uuid, gpu.total)?;
        }
        Ok(observation)
    }

    fn occupancy(&self) -> Result<Vec<GpuOccupancy>, SourceError> {
        let observation = observe_all()?;
        let occupied = observation.gpus.into_iter().map(|gpu| GpuOccupancy {
            uuid: gpu.uuid,
            index: gpu.index,
            free: gpu
                .total
                .saturating_sub(gpu.reserved)
                .saturating_sub(gpu.used),
            processes: gpu.processes,
        });
        Ok(occupied.collect())
    }

    /// Each draws its own constant power since the boot.
    fn power(&self, _asleep: &BTreeSet<u32>) -> BTreeMap<u32, Power> {
        let up = clock::boot().map_or(0, |boot| boot.as_millis());
        let power = |gpu: usize| {
            let watts = 61 + u32::try_from(gpu).unwrap_or(0);
            Power {
                milliwatts: Some(watts * 1000),
                millijoules: u64::try_from(up * u128::from(watts)).ok(),
                has_no_counter: false,
            }
        };
        with(|world| {
            let there = world.order.iter().map(|gpu| (*gpu, world.gpus[*gpu]));
            let there = there.filter(|(_, health)| *health != Health::Absent);
            let well = (0..)
                .zip(there)
                .filter(|(_, (_, health))| *health == Health::Well);
            let told = well.filter(|_| !world.driver_is_ill);
            told.map(|(index, (gpu, _))| (index, power(gpu))).collect()
        })
        .unwrap_or_default()
    }
}

fn observe_all() -> Result<Observation, SourceError> {
    with(|world| {
        if world.driver_is_ill {
            return Err(SourceError::Driver(divvy_driver::Error::Nvml {
                function: "nvmlDeviceGetCount_v2",
                device: None,
                code: nvmlReturn_t::UNKNOWN,
                text: "simulated".to_owned(),
            }));
        }
        let mut observation = Observation::default();
        let there = world.order.clone().into_iter();
        let there = there.map(|gpu| (gpu, world.gpus[gpu]));
        let there: Vec<_> = there
            .filter(|(_, health)| *health != Health::Absent)
            .collect();
        for (index, (gpu, health)) in (0..).zip(there) {
            match health {
                Health::Well => {
                    world.known.insert(gpu);
                    let observed = world.observed(gpu, index);
                    observation.gpus.push(observed);
                }
                Health::Ill | Health::Lost => observation.troubles.push(FaultyGpu {
                    index,
                    uuid: world.known.contains(&gpu).then(|| uuid(gpu)),
                    is_lost: health == Health::Lost,
                    message: "simulated".to_owned(),
                }),
                Health::Absent => {}
            }
        }
        Ok(observation)
    })
    .expect("only a simulation asks")
}

impl World {
    fn observed(&mut self, gpu: usize, index: u32) -> ObservedGpu {
        let worked = self.samples(gpu);
        let holders = self.holders(gpu);
        self.listed.extend(holders.keys());
        let is_divided = self.divided[gpu].mode.current;
        let process = |(pid, used): (&u32, &u64)| GpuProcess {
            pid: *pid,
            used: Some(Bytes::new(*used)),
        };
        ObservedGpu {
            uuid: uuid(gpu),
            index,
            model: "simulated".to_owned(),
            bus: format!("00000000:{:02X}:00.0", gpu + 1),
            total: TOTAL,
            reserved: RESERVED,
            used: Bytes::new(holders.values().sum()),
            utilization_percent: Some(0),
            temperature_celsius: None,
            // The instance lists its own processes.
            processes: match is_divided {
                true => Vec::new(),
                false => holders.iter().map(process).collect(),
            },
            mig: None,
            health: DriverHealth::default(),
            asleep: false,
            utilization: worked,
        }
    }

    /// What was done since the samples were asked for last, which is not more often than they are made.
    fn samples(&mut self, gpu: usize) -> Option<UtilisationSample> {
        let now = clock::boot()?;
        let before = self.sampled.get(&gpu).copied();
        let passed = before.map(|before| now.saturating_sub(before));
        if passed.is_some_and(|passed| passed < SAMPLE) {
            return None;
        }
        self.sampled.insert(gpu, now);
        let (before, passed) = (before?, passed?);
        let mut work = BTreeMap::new();
        for (pid, proc) in &self.processes {
            if let Kind::Program(program) = &proc.kind
                && program.held.contains_key(&gpu)
                && program.worked.is_some_and(|at| at >= before)
            {
                work.insert(*pid, 50);
            }
        }
        Some(UtilisationSample {
            micros: u64::try_from(passed.as_micros()).unwrap_or(u64::MAX),
            utilisation: ReportedUtilisation::PerProcess(work),
        })
    }

    /// The bytes of a GPU that each process holds.
    pub fn holders(&self, gpu: usize) -> BTreeMap<u32, u64> {
        let mut holders = BTreeMap::new();
        for (pid, proc) in &self.processes {
            let held = match &proc.kind {
                Kind::Program(program) => program.held.get(&gpu).copied(),
                Kind::Stranger { gpu: on, bytes } => (*on == gpu && *bytes > 0).then_some(*bytes),
                Kind::Daemon | Kind::Engine | Kind::Supervisor(_) => None,
            };
            if let Some(held) = held {
                holders.insert(*pid, held);
            }
        }
        holders
    }

    /// Bytes of a GPU that no process holds.
    pub fn left(&self, gpu: usize) -> u64 {
        usable().saturating_sub(self.holders(gpu).values().sum())
    }

    /// Bytes of a GPU that unmanaged processes hold.
    pub fn foreign(&self, gpu: usize) -> u64 {
        let foreign = |proc: &super::kernel::Proc| match proc.kind {
            Kind::Stranger { gpu: on, bytes } if on == gpu => bytes,
            _ => 0,
        };
        self.processes.values().map(foreign).sum()
    }
}
