//! Interprocess handles of events. What an event that has one stands for is its entry in the state file
//! (see [`crate::engine::machine::ipc_event`]).

use crate::engine::machine::ipc_event::IpcEventId;
use crate::engine::machine::slots::QueuePosition;
use crate::engine::objects::Objects;
use crate::engine::objects::handles::Handle;
use crate::engine::objects::result::Done;
use crate::engine::objects::stream::{Event, EventState, Target};
use crate::engine::process::Process;
use divvy_driver::sys::cuda::{CU_IPC_HANDLE_SIZE, CUevent_flags, CUipcEventHandle, CUresult};

const SHAREABLE: u32 = CUevent_flags::INTERPROCESS.0 | CUevent_flags::DISABLE_TIMING.0;

/// What the 64 bytes are.
#[repr(C)]
#[derive(Clone, Copy)]
struct EventHandle {
    machine: [u8; 8],
    generation: u64,
    index: u64,
    _unused: [u64; 5],
}

const _: () = assert!(size_of::<EventHandle>() == CU_IPC_HANDLE_SIZE);

impl Process {
    pub fn export_event(&self, event: Handle<Event>) -> Done<CUipcEventHandle> {
        let mut objects = self.objects();
        let found = objects.events.get_mut(event);
        let found = found.ok_or(CUresult::INVALID_HANDLE)?;
        if found.flags & SHAREABLE != SHAREABLE {
            return Err(CUresult::INVALID_HANDLE);
        }
        let mark = match found.mark {
            Some(mark) => mark,
            None => {
                let locked = self.state().lock();
                let mark = locked
                    .allocate_ipc_event(self.slot)
                    .ok_or(CUresult::OUT_OF_MEMORY)?;
                if let EventState::Recorded(record) = &found.last {
                    locked.record_ipc_event(mark, record.awaited(self.slot));
                }
                found.mark = Some(mark);
                mark
            }
        };
        let handle = EventHandle {
            machine: self.machine_mark(),
            generation: mark.generation,
            index: u64::from(mark.index),
            _unused: [0; 5],
        };
        // SAFETY: both are 64 bytes without padding, and any bits are a value of either.
        Ok(unsafe { std::mem::transmute::<EventHandle, CUipcEventHandle>(handle) })
    }

    pub fn open_event(&self, handle: CUipcEventHandle) -> Done<Handle<Event>> {
        // SAFETY: as above.
        let handle = unsafe { std::mem::transmute::<CUipcEventHandle, EventHandle>(handle) };
        let mut objects = self.objects();
        let context = self.current(&objects)?.context;
        let mark = IpcEventId {
            index: u32::try_from(handle.index).map_err(|_| CUresult::INVALID_HANDLE)?,
            generation: handle.generation,
        };
        self.state().lock().reap();
        if handle.machine != self.machine_mark() || !self.state().has_ipc_event(mark) {
            return Err(CUresult::INVALID_HANDLE);
        }
        let is_it = |event: &Event| event.mark == Some(mark) && !event.imported;
        if !objects.events.find(is_it).is_empty() {
            return Err(CUresult::INVALID_CONTEXT);
        }
        Ok(objects.events.insert(Event {
            context,
            flags: SHAREABLE,
            last: EventState::Never,
            mark: Some(mark),
            imported: true,
        }))
    }

    /// An event is no more, and with it what other processes knew of it.
    pub fn end_event(&self, objects: &mut Objects, event: Handle<Event>) -> Done {
        let gone = objects.events.remove(event);
        let gone = gone.ok_or(CUresult::INVALID_HANDLE)?;
        if let Some(mark) = gone.mark.filter(|_| !gone.imported) {
            self.state().lock().free_ipc_event(mark);
        }
        Ok(())
    }

    /// Where an event that several processes know was recorded last; None for one that is known here alone, or was
    /// never recorded.
    pub fn marked(&self, event: Handle<Event>) -> Done<Option<QueuePosition>> {
        let objects = self.objects();
        let event = objects.events.get(event).ok_or(CUresult::INVALID_HANDLE)?;
        Ok(event
            .mark
            .and_then(|mark| self.state().ipc_event_position(mark)))
    }

    /// Makes what is issued to a GPU later wait for an event that another process recorded.
    pub fn wait_for_marked(&'static self, gpu: usize, target: Target, at: QueuePosition) -> Done {
        if at.slot == self.slot && at.gpu == gpu
            || self.state().queue(at.slot, at.gpu).is_done(at.ticket)
        {
            return Ok(());
        }
        let slot = self.slot;
        self.issue_host_function(gpu, target, move || self.state().wait_for(slot, at))
    }
}
