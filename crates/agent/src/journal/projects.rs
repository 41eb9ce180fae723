//! Projects in the journal, as the administrator defined them.

use std::collections::BTreeSet;

use divvy_core::project::{Limit, Quota};
use divvy_core::{Bytes, Gpus, Project};
use rusqlite::types::Type;
use rusqlite::{Row, params};

use super::{Store, StoreError, rows, sql};

impl Store {
    /// Every project, by name.
    pub fn projects(&self) -> Result<Vec<Project>, StoreError> {
        let read = || -> rusqlite::Result<Vec<Project>> {
            let mut query = self.db.prepare_cached(
                "SELECT name, quota, quota_memory, weight, most, most_memory, priority, min_runtime, members \
                 FROM project ORDER BY name",
            )?;
            query.query_map([], project)?.collect()
        };
        read().map_err(sql("read projects"))
    }

    /// Names that jobs have as their project, so many at most.
    pub fn labels(&self, most: usize) -> Result<BTreeSet<String>, StoreError> {
        let read = || -> rusqlite::Result<BTreeSet<String>> {
            let mut query = self
                .db
                .prepare("SELECT DISTINCT project FROM job WHERE project IS NOT NULL LIMIT ?1")?;
            query.query_map([most], |row| row.get(0))?.collect()
        };
        read().map_err(sql("read the names of projects"))
    }

    /// Stores a project in place of the one of its name.
    pub fn set_project(&self, project: &Project) -> Result<(), StoreError> {
        let store = || -> rusqlite::Result<usize> {
            let mut insert = self.db.prepare_cached(
                "INSERT INTO project (name, quota, quota_memory, weight, most, most_memory, priority, min_runtime, \
                 members) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) \
                 ON CONFLICT (name) DO UPDATE SET quota = excluded.quota, quota_memory = excluded.quota_memory, \
                 weight = excluded.weight, most = excluded.most, most_memory = excluded.most_memory, \
                 priority = excluded.priority, min_runtime = excluded.min_runtime, members = excluded.members",
            )?;
            let gpus = |gpus: Gpus| rows::figure(gpus.thousandths());
            let memory = |memory: Bytes| rows::figure(memory.get());
            insert.execute(params![
                project.name.as_str(),
                gpus(project.quota.gpus),
                project.quota.memory.map(memory),
                project.weight,
                project.limit.gpus.map(gpus),
                project.limit.memory.map(memory),
                project.priority,
                rows::figure(project.min_runtime_s),
                rows::json(&project.members)?,
            ])
        };
        store().map(drop).map_err(sql("store a project"))
    }

    pub fn remove_project(&self, name: &str) -> Result<(), StoreError> {
        let remove = self
            .db
            .execute("DELETE FROM project WHERE name = ?1", [name]);
        remove.map(drop).map_err(sql("remove a project"))
    }
}

fn project(row: &Row<'_>) -> rusqlite::Result<Project> {
    let wrong = |column, error: Box<dyn std::error::Error + Send + Sync>| {
        rusqlite::Error::FromSqlConversionFailure(column, Type::Text, error)
    };
    let gpus = |column| -> rusqlite::Result<Option<Gpus>> {
        Ok(row
            .get::<_, Option<u64>>(column)?
            .map(Gpus::from_thousandths))
    };
    let memory = |column| -> rusqlite::Result<Option<Bytes>> {
        Ok(row.get::<_, Option<u64>>(column)?.map(Bytes::new))
    };
    let name: String = row.get(0)?;
    let members: String = row.get(8)?;
    Ok(Project {
        name: name.parse().map_err(|error| wrong(0, Box::new(error)))?,
        quota: Quota {
            gpus: gpus(1)?.unwrap_or_default(),
            memory: memory(2)?,
        },
        weight: row.get(3)?,
        limit: Limit {
            gpus: gpus(4)?,
            memory: memory(5)?,
        },
        priority: row.get(6)?,
        min_runtime_s: row.get(7)?,
        members: serde_json::from_str(&members).map_err(|error| wrong(8, Box::new(error)))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn projects_come_back_as_they_were_stored() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::open(&root.path().join("db")).unwrap();
        let full = Project {
            quota: Quota {
                gpus: "2.5".parse().unwrap(),
                memory: Some(Bytes::gib(200)),
            },
            weight: Some(3),
            limit: Limit {
                gpus: Some(Gpus::whole(4)),
                memory: None,
            },
            priority: -1,
            min_runtime_s: 600,
            members: vec!["ana".into(), "@vision".into()],
            ..Project::new("vision".parse().unwrap())
        };
        let plain = Project::new("a \"quoted\" one".parse().unwrap());
        for project in [&full, &plain] {
            store.set_project(project).unwrap();
        }
        assert_eq!(store.projects().unwrap(), [plain.clone(), full.clone()]);

        let changed = Project {
            weight: None,
            ..full
        };
        store.set_project(&changed).unwrap();
        store.remove_project(plain.name.as_str()).unwrap();
        store.remove_project("never there").unwrap();
        assert_eq!(store.projects().unwrap(), [changed]);
    }
}
