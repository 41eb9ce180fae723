//! MIG instances of the machine's GPUs: their profiles, memory, UUIDs and names; the capability files that follow them.

use crate::engine::machine::state::{Locked, State};
use crate::engine::mig::identity::{grouped, mig_uuid};
use crate::engine::mig::{MigInstanceId, capabilities};
use crate::model::mig::{ComputeProfile, GpuProfile};

impl State {
    /// The profile of a GPU instance on this GPU, if it is one.
    pub fn gpu_profile(&self, gpu: usize, id: u32) -> Option<&GpuProfile> {
        self.mig_table(gpu)?.profile(id)
    }

    /// The profile that a compute instance has.
    pub fn compute_profile(&self, gpu: usize, place: MigInstanceId) -> Option<ComputeProfile> {
        let mig = &self.gpus()[gpu].mig;
        let within = self.gpu_profile(gpu, mig.gpu_instance(place.gpu_instance)?.profile)?;
        let wanted = mig.compute_instance(place)?.profile;
        let all = self.mig_table(gpu)?.compute_profiles(within);
        all.into_iter().find(|profile| profile.id == wanted)
    }

    /// Bytes of a GPU instance: what its profile says and what the configuration adds.
    pub fn mig_memory(&self, gpu: usize, gpu_instance: u32) -> u64 {
        let instance = self.gpus()[gpu].mig.gpu_instance(gpu_instance);
        let profile = instance.and_then(|instance| self.gpu_profile(gpu, instance.profile));
        profile.map_or(0, |profile| profile.memory() + self.mig_extra_memory())
    }

    pub fn mig_uuid(&self, gpu: usize, place: MigInstanceId) -> Option<[u8; 16]> {
        let instance = self.gpus()[gpu].mig.compute_instance(place)?;
        let uuid = self.gpus()[gpu].uuid();
        Some(mig_uuid(uuid, place.gpu_instance, instance.start))
    }

    /// `MIG-` and the UUID of a MIG device in groups.
    pub fn mig_uuid_text(&self, gpu: usize, place: MigInstanceId) -> Option<String> {
        let uuid = self.mig_uuid(gpu, place)?;
        Some(format!("MIG-{}", grouped(&uuid)))
    }

    /// What a MIG device is called: its board and its profile, "NVIDIA B200 MIG 3g.90gb" (seen in published outputs).
    pub fn mig_name(&self, gpu: usize, place: MigInstanceId) -> Option<String> {
        let profile = self.compute_profile(gpu, place)?;
        Some(format!("{} MIG {}", self.model(gpu).name, profile.name))
    }

    /// The MIG device of this name: `MIG-<uuid>`, or `MIG-GPU-<uuid of the GPU>/gi/ci` as drivers before 470 wrote it.
    pub fn find_mig_device(&self, text: &str) -> Option<(usize, MigInstanceId)> {
        let text = text.to_ascii_lowercase();
        let name = text.strip_prefix("mig-")?;
        let devices = (0..self.gpu_count()).flat_map(|gpu| {
            let instances = self.gpus()[gpu].mig.compute_instances();
            instances.map(move |instance| (gpu, instance.place))
        });
        let is = |gpu: usize, place: MigInstanceId| match name.strip_prefix("gpu-") {
            Some(rest) => {
                let uuid = self.gpus()[gpu].uuid_text().to_ascii_lowercase();
                let (of, in_it) = (place.gpu_instance, place.compute_instance);
                format!("gpu-{rest}") == format!("{uuid}/{of}/{in_it}")
            }
            None => self
                .mig_uuid_text(gpu, place)
                .is_some_and(|uuid| uuid[4..] == *name),
        };
        devices.into_iter().find(|(gpu, place)| is(*gpu, *place))
    }

    /// Makes the capability files of a new machine.
    pub fn keep_capabilities(&self) {
        if capabilities::root().is_some() {
            self.lock().publish_capabilities();
        }
    }
}

impl Locked<'_> {
    /// Has the capability files say what instances there are.
    pub fn publish_capabilities(&self) {
        let gpus: Vec<_> = self.gpus().iter().map(|gpu| &gpu.mig).collect();
        capabilities::follow(&gpus, !self.has_no_modprobe());
    }
}
