//! MIG instances of ours in the journal, and the GPU modes that administrators requested.

use std::collections::BTreeMap;
use std::error::Error;

use divvy_core::mig::Placement;
use divvy_core::mig::recover::InstanceState;
use divvy_core::{Bytes, GpuUuid, JobId};
use rusqlite::types::Type;
use rusqlite::{Row, params};

use super::{Store, StoreError, rows, sql};
use crate::model::gpu_mode::RequestedMode;
use crate::model::mig_instance::{InstanceInfo, ManagedInstance, MigSlot};

/// Columns in the order of [`read`]; the first three are the key.
const COLUMNS: &str = "gpu_uuid, profile, start, name, stage, generation, boot, job, user, gi, ci, uuid, baseline, since, reason";

impl Store {
    /// Stores an instance as it is now.
    pub fn save_mig(&self, instance: &ManagedInstance) -> Result<(), StoreError> {
        let save = || -> rusqlite::Result<usize> {
            let made = instance.info.as_ref();
            self.db
                .prepare_cached(&format!(
                    "INSERT INTO mig_instance ({COLUMNS}) \
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15) \
                     ON CONFLICT (gpu_uuid, profile, start) DO UPDATE SET name = excluded.name, stage = excluded.stage, \
                     generation = excluded.generation, boot = excluded.boot, job = excluded.job, user = excluded.user, \
                     gi = excluded.gi, ci = excluded.ci, uuid = excluded.uuid, baseline = excluded.baseline, \
                     since = excluded.since, reason = excluded.reason"
                ))?
                .execute(params![
                    instance.slot.gpu.as_str(),
                    instance.slot.placement.profile,
                    instance.slot.placement.start,
                    instance.profile.to_string(),
                    instance.state.name(),
                    rows::figure(instance.generation),
                    instance.boot,
                    instance.job.map(|job| job.0),
                    instance.last_user,
                    made.map(|made| made.id),
                    made.map(|made| made.compute_id),
                    made.map(|made| made.uuid.as_str()),
                    made.map(|made| rows::figure(made.baseline.get())),
                    instance.since.as_microsecond(),
                    instance.reason,
                ])
        };
        save().map(drop).map_err(sql("store a MIG instance"))
    }

    /// Stores that there is none in this slot any more.
    pub fn forget_mig(&self, slot: &MigSlot) -> Result<(), StoreError> {
        let forget = || -> rusqlite::Result<usize> {
            self.db
                .prepare_cached(
                    "DELETE FROM mig_instance WHERE gpu_uuid = ?1 AND profile = ?2 AND start = ?3",
                )?
                .execute(params![
                    slot.gpu.as_str(),
                    slot.placement.profile,
                    slot.placement.start
                ])
        };
        forget().map(drop).map_err(sql("delete a MIG instance"))
    }

    /// Every instance, by slot.
    pub fn migs(&self) -> Result<BTreeMap<MigSlot, ManagedInstance>, StoreError> {
        let all = || -> rusqlite::Result<BTreeMap<MigSlot, ManagedInstance>> {
            let mut query = self
                .db
                .prepare(&format!("SELECT {COLUMNS} FROM mig_instance"))?;
            let rows = query.query_map([], |row| {
                let instance = read(row)?;
                Ok((instance.slot.clone(), instance))
            })?;
            rows.collect()
        };
        all().map_err(sql("read the MIG instances"))
    }

    /// The modes that administrators gave GPUs.
    pub fn modes(&self) -> Result<BTreeMap<GpuUuid, RequestedMode>, StoreError> {
        let all = || -> rusqlite::Result<BTreeMap<GpuUuid, RequestedMode>> {
            let mut query = self
                .db
                .prepare("SELECT gpu_uuid, mode, pending FROM gpu_mode")?;
            let rows = query.query_map([], |row| {
                let wanted = RequestedMode {
                    mode: parsed(row, 1)?,
                    is_pending: row.get(2)?,
                };
                Ok((parsed(row, 0)?, wanted))
            })?;
            rows.collect()
        };
        all().map_err(sql("read the modes of GPUs"))
    }

    /// Stores the requested mode of a GPU; `None`: the driver's own mode.
    pub fn set_mode(&self, gpu: &GpuUuid, wanted: Option<RequestedMode>) -> Result<(), StoreError> {
        let set = || {
            match wanted {
            Some(RequestedMode { mode, is_pending: pending }) => self
                .db
                .prepare_cached(
                    "INSERT INTO gpu_mode (gpu_uuid, mode, pending) VALUES (?1, ?2, ?3) \
                     ON CONFLICT (gpu_uuid) DO UPDATE SET mode = excluded.mode, pending = excluded.pending",
                )?
                .execute(params![gpu.as_str(), mode.name(), pending]),
            None => self
                .db
                .prepare_cached("DELETE FROM gpu_mode WHERE gpu_uuid = ?1")?
                .execute([gpu.as_str()]),
        }
        };
        set().map(drop).map_err(sql("store a GPU's mode"))
    }
}

fn read(row: &Row<'_>) -> rusqlite::Result<ManagedInstance> {
    let stage = row.get::<_, String>(4)?;
    let made = match row.get::<_, Option<u32>>(9)? {
        Some(id) => Some(InstanceInfo {
            id,
            compute_id: row.get(10)?,
            uuid: parsed(row, 11)?,
            baseline: Bytes::new(row.get(12)?),
        }),
        None => None,
    };
    Ok(ManagedInstance {
        slot: MigSlot {
            gpu: parsed(row, 0)?,
            placement: Placement {
                profile: row.get(1)?,
                start: row.get(2)?,
            },
        },
        profile: parsed(row, 3)?,
        state: InstanceState::ALL
            .into_iter()
            .find(|known| known.name() == stage)
            .ok_or_else(|| wrong(4, format!("unknown stage {stage:?}").into()))?,
        generation: row.get(5)?,
        boot: row.get(6)?,
        job: row.get::<_, Option<u64>>(7)?.map(JobId),
        last_user: row.get(8)?,
        info: made,
        since: rows::time(row, 13)?,
        reason: row.get(14)?,
    })
}

pub(super) fn parsed<T>(row: &Row<'_>, column: usize) -> rusqlite::Result<T>
where
    T: std::str::FromStr<Err: Error + Send + Sync + 'static>,
{
    let text: String = row.get(column)?;
    text.parse().map_err(|error| wrong(column, Box::new(error)))
}

fn wrong(column: usize, error: Box<dyn Error + Send + Sync>) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, error)
}

#[cfg(test)]
mod tests {
    use divvy_core::Mode;

    use super::*;

    fn instance(start: u8, made: bool) -> ManagedInstance {
        ManagedInstance {
            slot: MigSlot {
                gpu: GpuUuid::from_bytes([7; 16]),
                placement: Placement { profile: 19, start },
            },
            profile: "1g.5gb".parse().unwrap(),
            state: if made {
                InstanceState::Ready
            } else {
                InstanceState::Creating
            },
            generation: u64::from(start) + 1,
            boot: "b".into(),
            job: Some(JobId(3)),
            last_user: made.then(|| "me".to_owned()),
            info: made.then(|| InstanceInfo {
                id: 9,
                compute_id: 0,
                uuid: "MIG-c7384736-a75d-5afc-978f-d2f1294409fd".parse().unwrap(),
                baseline: Bytes::mib(3),
            }),
            since: "2026-01-02T03:04:05.678901Z".parse().unwrap(),
            reason: None,
        }
    }

    #[test]
    fn an_instance_is_read_back_as_it_was_at_every_stage() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        let store = Store::open(&path).unwrap();
        let mut all = BTreeMap::new();
        for instance in [instance(0, false), instance(1, true)] {
            store.save_mig(&instance).unwrap();
            all.insert(instance.slot.clone(), instance);
        }
        assert_eq!(Store::open(&path).unwrap().migs().unwrap(), all);
        for instance in all.values_mut() {
            instance.state = InstanceState::Quarantined;
            instance.reason = Some("pid 4 is in it".into());
            instance.job = None;
            store.save_mig(instance).unwrap();
        }
        assert_eq!(Store::open(&path).unwrap().migs().unwrap(), all);
        let gone = instance(0, true).slot;
        store.forget_mig(&gone).unwrap();
        all.remove(&gone);
        assert_eq!(store.migs().unwrap(), all);
    }

    #[test]
    fn storing_an_instance_never_takes_another_ones_place() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("state.db")).unwrap();
        let (first, second) = (instance(0, true), instance(1, true));
        store.save_mig(&first).unwrap();
        store.save_mig(&second).unwrap();
        let impostor = ManagedInstance {
            generation: first.generation,
            ..second.clone()
        };
        assert!(store.save_mig(&impostor).is_err());
        let both = [first, second].map(|one| (one.slot.clone(), one));
        assert_eq!(store.migs().unwrap(), BTreeMap::from(both));
    }

    #[test]
    fn a_gpu_has_the_mode_that_it_was_given_last() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("state.db")).unwrap();
        let gpu = GpuUuid::from_bytes([7; 16]);
        for mode in [Mode::Mig, Mode::Exclusive, Mode::Unmanaged, Mode::Shared] {
            for pending in [true, false] {
                let wanted = RequestedMode {
                    mode,
                    is_pending: pending,
                };
                store.set_mode(&gpu, Some(wanted)).unwrap();
                let all = BTreeMap::from([(gpu.clone(), wanted)]);
                assert_eq!(store.modes().unwrap(), all);
            }
        }
        store.set_mode(&gpu, None).unwrap();
        assert_eq!(store.modes().unwrap(), BTreeMap::new());
    }
}
