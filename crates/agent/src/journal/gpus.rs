//! The table of known GPUs by UUID, and the renumbering of rows that name a GPU by its index.

use std::collections::BTreeSet;

use divvy_core::{Gpu, GpuUuid};
use jiff::Timestamp;
use rusqlite::{Connection, Row, params};

use super::migs::parsed;
use super::{Store, StoreError, rows, sql};
use crate::model::known_gpu::KnownGpu;
use crate::model::out_of_service::OutOfService;

/// Brings what is over to the present numbers. The label of an allocation that has ended stays what people knew it by.
const RENUMBER_PAST: &str = "
    UPDATE holding SET gpu_index = gpu.number
        FROM gpu WHERE gpu.uuid = gpu_uuid AND gpu_index <> gpu.number;
    UPDATE usage SET gpu_index = gpu.number FROM gpu WHERE gpu.uuid = gpu_uuid AND gpu_index <> gpu.number;
    UPDATE bypass SET gpu_index = gpu.number FROM gpu WHERE gpu.uuid = gpu_uuid AND gpu_index <> gpu.number;
";

/// Brings held allocations and jobs that have not ended to the present numbers. An offloaded job runs, holds nothing, and
/// is to have its GPUs again.
const RENUMBER: &str = "
    UPDATE holding SET gpu_index = gpu.number,
        label = 'gpu' || gpu.number || substr(label, length('gpu' || gpu_index) + 1)
        FROM gpu WHERE gpu.uuid = gpu_uuid AND gpu_index <> gpu.number
            AND (held = 1 OR job IN (SELECT id FROM job WHERE state NOT IN ('queued', 'ended')));
    UPDATE job SET gpus_on_uuid = (
        SELECT json_group_array(gpu.uuid) FROM json_each(job.gpus_on) asked JOIN gpu ON gpu.number = asked.value
    ) WHERE state <> 'ended' AND gpus_on <> '[]' AND gpus_on_uuid IS NULL
        AND NOT EXISTS (SELECT 1 FROM json_each(job.gpus_on) WHERE value NOT IN (SELECT number FROM gpu));
    UPDATE job SET gpus_on = numbers.present FROM (
        SELECT id, json_group_array(number) AS present FROM (
            SELECT job.id, gpu.number FROM job, json_each(job.gpus_on_uuid) asked JOIN gpu ON gpu.uuid = asked.value
            WHERE job.state <> 'ended' ORDER BY job.id, gpu.number
        ) GROUP BY id
    ) numbers WHERE job.id = numbers.id AND gpus_on <> numbers.present;
";

impl Store {
    /// Every known GPU, by number.
    pub fn known_gpus(&self) -> Result<Vec<KnownGpu>, StoreError> {
        known(&self.db).map_err(sql("read the known GPUs"))
    }

    /// The GPUs that jobs hold or ask for: the journal must know them.
    pub fn gpus_in_use(&self) -> Result<BTreeSet<GpuUuid>, StoreError> {
        let all = || -> rusqlite::Result<BTreeSet<GpuUuid>> {
            let mut query = self.db.prepare(
                "SELECT gpu_uuid FROM holding WHERE held = 1 OR \
                 job IN (SELECT id FROM job WHERE state NOT IN ('queued', 'ended')) UNION \
                 SELECT value FROM job, json_each(gpus_on_uuid) WHERE state <> 'ended'",
            )?;
            query.query_map([], uuid)?.collect()
        };
        all().map_err(sql("read the GPUs in use"))
    }

    /// Replaces the known GPUs. Held allocations and jobs that wait get the present numbers of their GPUs, and keep the
    /// GPUs.
    pub fn save_known_gpus(&self, gpus: &[KnownGpu]) -> Result<(), StoreError> {
        let save = || -> rusqlite::Result<()> {
            if known(&self.db)? == gpus {
                return self.db.execute_batch(RENUMBER);
            }
            self.db.execute("DELETE FROM gpu", [])?;
            let mut insert = self.db.prepare_cached(
                "INSERT INTO gpu (uuid, number, record, bus, served, listed, seen, out_of_service, accepted_fault) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            )?;
            for gpu in gpus {
                insert.execute(params![
                    gpu.uuid.as_str(),
                    gpu.number,
                    gpu.record.as_ref().map(rows::json).transpose()?,
                    gpu.bus,
                    gpu.is_served,
                    gpu.is_listed,
                    gpu.seen.as_microsecond(),
                    gpu.out.as_ref().map(rows::json).transpose()?,
                    gpu.accepted_fault,
                ])?;
            }
            self.db.execute_batch(RENUMBER)?;
            self.db.execute_batch(RENUMBER_PAST)
        };
        save().map_err(sql("store the known GPUs"))
    }

    /// Stores why a known GPU is out of service; `None` returns it to service.
    pub fn set_out_of_service(
        &self,
        gpu: &GpuUuid,
        out: Option<&OutOfService>,
    ) -> Result<(), StoreError> {
        let save = || -> rusqlite::Result<usize> {
            self.db
                .prepare_cached("UPDATE gpu SET out_of_service = ?2 WHERE uuid = ?1")?
                .execute(params![gpu.as_str(), out.map(rows::json).transpose()?])
        };
        save().map(drop).map_err(sql("store a GPU out of service"))
    }

    /// Stores the lasting fault that an administrator has accepted.
    pub fn accept_fault(&self, gpu: &GpuUuid, fault: &str) -> Result<(), StoreError> {
        let save = || -> rusqlite::Result<usize> {
            self.db
                .prepare_cached("UPDATE gpu SET accepted_fault = ?2 WHERE uuid = ?1")?
                .execute(params![gpu.as_str(), fault])
        };
        save().map(drop).map_err(sql("store an accepted fault"))
    }

    /// Stores what a known GPU is now.
    pub fn record_gpu(&self, gpu: &Gpu) -> Result<(), StoreError> {
        let save = || -> rusqlite::Result<usize> {
            self.db
                .prepare_cached("UPDATE gpu SET record = ?2 WHERE uuid = ?1")?
                .execute(params![gpu.uuid.as_str(), rows::json(gpu)?])
        };
        save().map(drop).map_err(sql("store a known GPU"))
    }
}

fn known(db: &Connection) -> rusqlite::Result<Vec<KnownGpu>> {
    let columns = "uuid, number, record, bus, served, listed, seen, out_of_service, accepted_fault";
    let mut query = db.prepare(&format!("SELECT {columns} FROM gpu ORDER BY number"))?;
    query.query_map([], read)?.collect()
}

fn read(row: &Row<'_>) -> rusqlite::Result<KnownGpu> {
    let record: Option<String> = row.get(2)?;
    let out: Option<String> = row.get(7)?;
    Ok(KnownGpu {
        uuid: uuid(row)?,
        number: row.get(1)?,
        // What a later version wrote otherwise counts as unknown.
        record: record.and_then(|text| serde_json::from_str(&text).ok()),
        bus: row.get(3)?,
        is_served: row.get(4)?,
        is_listed: row.get(5)?,
        seen: Timestamp::from_microsecond(row.get(6)?).unwrap_or(Timestamp::UNIX_EPOCH),
        out: out.and_then(|text| serde_json::from_str(&text).ok()),
        accepted_fault: row.get(8)?,
    })
}

fn uuid(row: &Row<'_>) -> rusqlite::Result<GpuUuid> {
    parsed(row, 0)
}

#[cfg(test)]
mod tests {
    use divvy_core::resize::memory::MemoryResidency;

    use super::*;
    use crate::journal::tests::{new, place};

    fn gpu(byte: u8, number: u32) -> KnownGpu {
        KnownGpu {
            uuid: GpuUuid::from_bytes([byte; 16]),
            number,
            record: None,
            bus: String::new(),
            is_served: true,
            is_listed: true,
            seen: Timestamp::UNIX_EPOCH,
            out: None,
            accepted_fault: None,
        }
    }

    fn open() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("state.db")).unwrap();
        (dir, store)
    }

    #[test]
    fn jobs_keep_the_gpus_that_they_hold_and_ask_for_when_these_swap_their_numbers() {
        let (_dir, store) = open();
        store.save_known_gpus(&[gpu(7, 0), gpu(8, 1)]).unwrap();
        let mut held = Vec::new();
        for (byte, index) in [(7, 0), (8, 1)] {
            let mut job = store.insert(&new(None)).unwrap();
            place(&mut job, &format!("gpu{index}.052a"));
            let grant = &mut job.allocations[0].grant;
            (grant.gpu, grant.index) = (GpuUuid::from_bytes([byte; 16]), index);
            store.save_allocations(&job).unwrap();
            store.save(&job).unwrap();
            held.push(job.id);
        }
        let mut asks = new(None);
        asks.spec.request.on = vec![0];
        let asks = store.insert(&asks).unwrap().id;
        let mut unknown = new(None);
        unknown.spec.request.on = vec![1, 9];
        let unknown = store.insert(&unknown).unwrap().id;
        let used: Vec<u8> = store
            .gpus_in_use()
            .unwrap()
            .iter()
            .map(|gpu| gpu.to_bytes()[0])
            .collect();
        assert_eq!(used, [7, 8]);

        // Its memory is in host memory, and it is to have its GPU again.
        let mut offloaded = store.job(held[0]).unwrap().unwrap();
        offloaded.run_state.aside.memory = MemoryResidency::Offloaded;
        store.close_usage_for_offload(&offloaded).unwrap();
        store.save_known_gpus(&[gpu(8, 0), gpu(7, 1)]).unwrap();
        let job = |id| store.job(id).unwrap().unwrap();
        let labels = held
            .iter()
            .map(|id| job(*id).allocations[0].grant.label.clone());
        assert_eq!(labels.collect::<Vec<_>>(), ["gpu1.052a", "gpu0.052a"]);
        assert_eq!(job(asks).spec.request.on, [1]);
        // A number that no GPU had stays what it was, so that the job does not start on any GPU.
        assert_eq!(job(unknown).spec.request.on, [1, 9]);
    }

    #[test]
    fn labels_are_unique_on_each_gpu_and_a_second_one_is_a_contradiction() {
        let (_dir, store) = open();
        let insert = |byte: u8| {
            let mut job = store.insert(&new(None)).unwrap();
            place(&mut job, "gpu0.052a");
            job.allocations[0].grant.gpu = GpuUuid::from_bytes([byte; 16]);
            store.save_allocations(&job)
        };
        insert(7).unwrap();
        insert(8).unwrap();
        assert!(insert(7).unwrap_err().is_constraint());
    }
}
