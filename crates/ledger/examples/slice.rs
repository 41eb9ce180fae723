//! A slice's account: the agent makes it, a process of the job reserves and commits, the agent changes the limit.

use divvy_ledger::{Control, GpuSpec, Slice, SliceSpec};

pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    // The agent:
    let gpus = vec![GpuSpec {
        limit: 4 << 30,
        ..GpuSpec::default()
    }];
    let spec = SliceSpec {
        gpus,
        ..SliceSpec::default()
    };
    let control = Control::create(folder, &spec)?;
    // A process of the job:
    let slot = Slice::open(folder)?.join()?;
    let hold = slot.reserve(0, 3 << 30)?;
    // The driver has given the memory. A hold that is dropped instead returns its bytes.
    hold.commit();
    assert!(slot.reserve(0, 2 << 30).is_err());
    // The agent again:
    control.set_limit(0, 5 << 30);
    assert_eq!(slot.usage(0).free, 2 << 30);
    Ok(())
}
