//! Replicas: the rows of one job as its folder keeps them, so that a journal that was lost or is older than the world can be completed.
//!
//! A replica holds columns by name, as they lie in the tables: a later schema fills in what an earlier replica lacks. The command and the
//! environment stay out, because the spec in the job's record has both.

use divvy_core::JobId;
use rusqlite::types::{Value as Sql, ValueRef};
use rusqlite::{Connection, params_from_iter};
use serde_json::Value;

use super::rows::json;
use super::{Store, StoreError, sql};
use crate::host::error::error_chain;
use crate::job_dir::LaunchSpec;
use crate::job_dir::replica::{Replica, Row};
use crate::model::job::Job;

/// Columns of a job that stay out of its replica. They are not read either: an environment may have 2 MiB.
const LEFT_OUT: [&str; 2] = ["command", "env"];

impl Store {
    /// The rows of a job, for its folder.
    pub fn replica(&self, job: JobId) -> Result<Replica, StoreError> {
        let read = || -> rusqlite::Result<Replica> {
            let mut rows = self.rows("SELECT * FROM job WHERE id = ?1", job)?;
            Ok(Replica {
                seq: self.last_event()?,
                job: rows.pop().unwrap_or_default(),
                holdings: self.rows("SELECT * FROM holding WHERE job = ?1", job)?,
                instances: self.rows("SELECT * FROM mig_instance WHERE job = ?1", job)?,
            })
        };
        read().map_err(sql("read a job for its job record"))
    }

    /// The number of the journal's last event, whether or not it is kept.
    pub fn last_seq(&self) -> Result<i64, StoreError> {
        self.last_event().map_err(sql("read the last event"))
    }

    fn last_event(&self) -> rusqlite::Result<i64> {
        let query = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'event'";
        self.db
            .prepare_cached(query)?
            .query_row([], |row| row.get(0))
    }

    /// Numbers the events to come after this one, so that the journal is newer than the replicas that it has taken over, and a client
    /// that follows events misses none.
    pub fn number_events_after(&self, seq: i64) -> Result<(), StoreError> {
        let raise = || -> rusqlite::Result<()> {
            if self.last_event()? < seq {
                self.db
                    .execute("DELETE FROM sqlite_sequence WHERE name = 'event'", [])?;
                self.db
                    .execute("INSERT INTO sqlite_sequence VALUES ('event', ?1)", [seq])?;
            }
            Ok(())
        };
        raise().map_err(sql("set the number of the next event"))
    }

    fn rows(&self, query: &str, job: JobId) -> rusqlite::Result<Vec<Row>> {
        let mut query = self.db.prepare_cached(query)?;
        let columns: Vec<String> = query.column_names().map(str::to_owned).collect();
        let read = |row: &rusqlite::Row<'_>| {
            let value =
                |(at, column): (usize, &String)| Ok((column.clone(), plain(row.get_ref(at)?)));
            let kept = columns.iter().enumerate();
            let kept = kept.filter(|(_, column)| !LEFT_OUT.contains(&column.as_str()));
            kept.map(value).collect()
        };
        query.query_map([job.0], read)?.collect()
    }

    /// Puts a job into the journal as its folder has it, in place of what the journal says of it. `None`, and no change, where the
    /// replica contradicts the journal: another job holds one of its labels, the rows make no job, or `fits` refuses it.
    pub fn restore_job(
        &self,
        replica: &Replica,
        spec: &LaunchSpec,
        fits: impl Fn(&Job) -> bool,
    ) -> Result<Option<Job>, StoreError> {
        let Some(id) = replica.id() else {
            return Ok(None);
        };
        let savepoint = |what: &str| {
            let text = format!("{what} restore_job");
            let done = self.db.execute_batch(&text);
            done.map_err(sql("restore a job"))
        };
        savepoint("SAVEPOINT")?;
        let restored = self
            .put_back(id, replica, spec)
            .map_err(sql("restore a job"))
            .and_then(|()| self.job(id));
        match restored {
            Ok(Some(job)) if !job.state.grants().is_empty() && fits(&job) => {
                savepoint("RELEASE")?;
                Ok(Some(job))
            }
            other => {
                savepoint("ROLLBACK TO")?;
                savepoint("RELEASE")?;
                let error = other.err().map(|error| error_chain(&error));
                tracing::warn!(job = %id, error, "cannot restore a job from its job record");
                Ok(None)
            }
        }
    }

    fn put_back(&self, id: JobId, replica: &Replica, spec: &LaunchSpec) -> rusqlite::Result<()> {
        let mut job = replica.job.clone();
        let secrets = job.get("secrets").and_then(Value::as_str).unwrap_or("[]");
        let secrets: Vec<String> = serde_json::from_str(secrets).unwrap_or_default();
        let env = spec.env.iter().filter(|(name, _)| !secrets.contains(name));
        let env: std::collections::BTreeMap<_, _> = env.collect();
        job.insert("env".to_owned(), json(&env)?.into());
        job.insert("command".to_owned(), json(&spec.command)?.into());
        self.insert_row("job", &job, "ON CONFLICT (id) DO UPDATE SET")?;
        self.db
            .execute("DELETE FROM holding WHERE job = ?1", [id.0])?;
        for holding in &replica.holdings {
            self.insert_row("holding", holding, "")?;
        }
        for instance in &replica.instances {
            self.insert_row(
                "mig_instance",
                instance,
                "ON CONFLICT (gpu_uuid, profile, start) DO UPDATE SET",
            )?;
        }
        Ok(())
    }

    /// Inserts a row, less the columns that the table does not have. `instead` names the conflict that makes it an update.
    fn insert_row(&self, table: &str, row: &Row, instead: &str) -> rusqlite::Result<()> {
        let known = columns(&self.db, table)?;
        let row: Vec<(&String, &Value)> = row
            .iter()
            .filter(|(name, _)| known.contains(name))
            .collect();
        let list = |form: &dyn Fn(&str) -> String| {
            let forms: Vec<String> = row.iter().map(|(name, _)| form(name)).collect();
            forms.join(", ")
        };
        let names = list(&|name| name.to_owned());
        let places = list(&|_| "?".to_owned());
        let update = match instead {
            "" => String::new(),
            instead => format!(
                "{instead} {}",
                list(&|name| format!("{name} = excluded.{name}"))
            ),
        };
        let text = format!("INSERT INTO {table} ({names}) VALUES ({places}) {update}");
        let values = row.iter().map(|(_, value)| stored(value));
        self.db
            .prepare_cached(&text)?
            .execute(params_from_iter(values))
            .map(drop)
    }
}

fn columns(db: &Connection, table: &str) -> rusqlite::Result<Vec<String>> {
    let mut query = db.prepare_cached("SELECT name FROM pragma_table_info(?1)")?;
    query.query_map([table], |row| row.get(0))?.collect()
}

/// A value of a table; these tables are `STRICT` and hold whole numbers and texts alone.
fn plain(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Integer(number) => number.into(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned().into(),
        ValueRef::Null | ValueRef::Real(_) | ValueRef::Blob(_) => Value::Null,
    }
}

fn stored(value: &Value) -> Sql {
    match value {
        Value::Null => Sql::Null,
        Value::Number(number) => number.as_i64().map_or(Sql::Null, Sql::Integer),
        Value::String(text) => Sql::Text(text.clone()),
        other => Sql::Text(other.to_string()),
    }
}
