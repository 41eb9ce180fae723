//! Output for MIG: instances, plans, effects of a mode change, and the map of a GPU's memory slices.

use std::fmt::Write as _;

use divvy_api::v1::{
    Amount, GpuChanged, GpuMode, Job, Mig, MigInstance, MigPlanned, MigSlice, MigState,
};
use divvy_core::{Bytes, MigProfile};

use super::View;
use crate::table::{self, Column};
use crate::text;

/// One row an instance.
pub fn instances(instances: &[MigInstance], view: View) -> String {
    if instances.is_empty() {
        return String::new();
    }
    let mut columns = vec![
        Column::Right("GPU"),
        Column::Fixed("PROFILE"),
        Column::Fixed("SLOTS"),
        Column::Right("MEMORY"),
    ];
    if view.wide {
        columns.extend([Column::Fixed("UUID"), Column::Fixed("GPU-UUID")]);
    }
    columns.push(Column::Text("STATE"));
    let rows: Vec<Vec<String>> = instances
        .iter()
        .map(|instance| {
            let mut cells = vec![
                instance.gpu_index.to_string(),
                text::clean(&instance.profile),
                slots(instance.start, instance.memory_slices),
                text::memory(instance.memory_bytes),
            ];
            if view.wide {
                cells.push(text::clean(instance.uuid.as_deref().unwrap_or("–")));
                cells.push(text::clean(&instance.gpu_uuid));
            }
            cells.push(state(instance));
            cells
        })
        .collect();
    table::render(&columns, &rows, view.fit())
}

/// One row for each instance that was asked for.
pub fn planned(planned: &[MigPlanned], view: View) -> String {
    let mut columns = vec![
        Column::Fixed("PROFILE"),
        Column::Right("GPU"),
        Column::Fixed("SLOTS"),
        Column::Right("MEMORY"),
    ];
    if view.wide {
        columns.push(Column::Fixed("GPU-UUID"));
    }
    columns.push(Column::Text("HOW"));
    let rows: Vec<Vec<String>> = planned
        .iter()
        .map(|one| {
            let mut cells = vec![
                text::clean(&one.profile),
                one.gpu_index.to_string(),
                slots(one.start, one.memory_slices),
                text::memory(one.memory_bytes),
            ];
            if view.wide {
                cells.push(text::clean(&one.gpu_uuid));
            }
            cells.push(match (one.reuses, one.removes.as_slice()) {
                (true, _) => "reuses the idle instance".to_owned(),
                (false, []) => "new".to_owned(),
                (false, idle) => {
                    format!("new, after removing idle {}", text::clean(&idle.join(", ")))
                }
            });
            cells
        })
        .collect();
    table::render(&columns, &rows, view.fit())
}

/// Effects of a mode change, as lines.
pub fn changed(changed: &GpuChanged) -> String {
    let GpuChanged {
        gpu_index, from, ..
    } = changed;
    let (from, to) = (mode(*from), mode(changed.mode));
    let mut lines = match (changed.blockers.is_empty(), changed.dry_run, from == to) {
        (_, _, true) => format!("GPU {gpu_index} is already {to}\n"),
        (false, _, _) => format!("GPU {gpu_index} stays {from}; it cannot change to {to} yet\n"),
        (true, true, _) => format!("GPU {gpu_index} would change from {from} to {to}\n"),
        (true, false, _) => format!("GPU {gpu_index} changed from {from} to {to}\n"),
    };
    for blocker in &changed.blockers {
        let _ = writeln!(lines, "  blocker  {}", text::clean(blocker));
    }
    for step in &changed.steps {
        let _ = writeln!(lines, "  step     {}", text::clean(step));
    }
    if let Some(left) = &changed.remaining_steps {
        let _ = writeln!(lines, "  to do    {}", text::clean(left));
    }
    lines
}

fn mode(mode: GpuMode) -> &'static str {
    match mode {
        GpuMode::Shared => "shared",
        GpuMode::Mig => "mig",
        GpuMode::Exclusive => "exclusive",
        GpuMode::Unmanaged => "unmanaged",
    }
}

/// `4-7`.
fn slots(start: u8, slices: u8) -> String {
    match slices {
        0 | 1 => start.to_string(),
        _ => format!("{start}-{}", start.saturating_add(slices - 1)),
    }
}

/// `#12`, `idle`.
fn state(instance: &MigInstance) -> String {
    let word = match instance.state {
        MigState::InUse => "in use",
        MigState::Idle => "idle",
        MigState::Unmanaged => "unmanaged",
        MigState::Quarantined => "quarantined",
        MigState::Destroying => "destroying",
        MigState::Creating => "creating",
    };
    match &instance.job {
        Some(job) => format!("#{}", text::clean(job)),
        None => word.to_owned(),
    }
}

/// The GPU's memory slices in order: `[1g@0 #12][··][3g@4 idle]`, a dot for each that nothing lies on.
pub fn slot_map(mig: &Mig) -> String {
    let mut instances: Vec<&MigInstance> = mig.instances.iter().collect();
    instances.sort_by_key(|instance| instance.start);
    let (mut map, mut next) = (String::new(), 0);
    let gap = |map: &mut String, from: u8, to: u8| {
        if from < to {
            let _ = write!(map, "[{}]", "·".repeat(usize::from(to - from)));
        }
    };
    for instance in instances {
        gap(&mut map, next, instance.start);
        let (name, start) = (short(&instance.profile, mig), instance.start);
        let _ = write!(map, "[{name}@{start} {}]", state(instance));
        next = next.max(start.saturating_add(instance.memory_slices));
    }
    gap(&mut map, next, mig.memory_slices);
    map
}

/// `3g` for `3g.20gb`: the name up to its memory, where no smaller profile is called so too.
fn short(name: &str, mig: &Mig) -> String {
    let head = |name: &str| name.split_once('.').map(|(head, _)| head.to_owned());
    let suffixed = name.contains(['+', '-']);
    let size = |name: &str| {
        let named = |profile: &&divvy_api::v1::MigProfile| profile.name == name;
        mig.profiles
            .iter()
            .find(named)
            .map(|profile| profile.memory_slices)
    };
    let smaller = mig
        .profiles
        .iter()
        .any(|other| head(&other.name) == head(name) && Some(other.memory_slices) < size(name));
    match head(name) {
        Some(head) if !suffixed && !smaller => text::clean(&head),
        _ => text::clean(name),
    }
}

/// Free capacity for a new job: `up to 3g.20gb`.
pub fn room(mig: &Mig) -> String {
    let with_room = mig.profiles.iter().filter(|profile| profile.available > 0);
    // Profiles with an attribute are only for requests that name them.
    let plain = |name: &str| !name.contains(['+', '-']);
    match with_room.max_by_key(|profile| (plain(&profile.name), profile.memory_bytes)) {
        Some(largest) => format!("up to {}", text::clean(&largest.name)),
        None => "–".to_owned(),
    }
}

/// `1g.10gb at memory slices 0-1, MIG-…`: the instance that a slice is.
pub fn instance(instance: &MigSlice) -> String {
    let slices = if instance.memory_slices == 1 {
        "slice"
    } else {
        "slices"
    };
    let place = slots(instance.start, instance.memory_slices);
    let uuid = match &instance.uuid {
        Some(uuid) => text::clean(uuid),
        None => "not created yet".to_owned(),
    };
    format!(
        "{} at memory {slices} {place} ({uuid})",
        text::clean(&instance.profile)
    )
}

/// `10.0 GiB requested, 1g.10gb has 9.6 GiB`: the memory of an instance, if it differs from the request.
pub fn asked_and_got(job: &Job) -> String {
    let Some(instance) = job.slices.first().and_then(|slice| slice.mig.as_ref()) else {
        return String::new();
    };
    let (profile, has) = (
        text::clean(&instance.profile),
        Bytes::new(instance.memory_bytes),
    );
    match &job.request {
        Amount::Memory { bytes } if Bytes::new(*bytes) != has => {
            let [asked, has] = Bytes::new(*bytes).human_beside(has);
            format!("{asked} requested, {profile} has {has}")
        }
        Amount::Mig { profile: name } => {
            let nominal = name.parse::<MigProfile>().map(MigProfile::nominal);
            match nominal {
                Ok(nominal) if nominal != has => format!("{profile} has {}", has.human()),
                _ => String::new(),
            }
        }
        _ => format!("{profile} with {}", has.human()),
    }
}
