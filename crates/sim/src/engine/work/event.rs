//! Events: recording, querying and waiting for them, and the time between two.

use crate::engine::objects::context::Current;
use crate::engine::objects::handles::Handle;
use crate::engine::objects::result::Done;
use crate::engine::objects::stream::{Event, EventRecord, EventState, Target};
use crate::engine::process::Process;
use crate::engine::time::Work;
use divvy_driver::sys::cuda::CUresult;

impl Process {
    pub fn create_event(&self, flags: u32) -> Done<Handle<Event>> {
        let mut objects = self.objects();
        let Current { context, .. } = self.current(&objects)?;
        Ok(objects.events.insert(Event {
            context,
            flags,
            last: EventState::Never,
            mark: None,
            imported: false,
        }))
    }

    pub fn issue_record(&self, event: Handle<Event>, target: Target, gpu: usize) -> Done {
        self.objects()
            .events
            .get(event)
            .ok_or(CUresult::INVALID_HANDLE)?;
        let (_, mark) = self.issue_marked(gpu, target, Work::Delay(0), true);
        let mut objects = self.objects();
        if let (Some(event), Some(mark)) = (objects.events.get_mut(event), mark) {
            let record = EventRecord { gpu, mark };
            if let Some(mark) = event.mark {
                let at = record.awaited(self.slot);
                self.state().lock().record_ipc_event(mark, at);
            }
            event.last = EventState::Recorded(record);
        }
        Ok(())
    }

    /// The point an event was last recorded at; None for one that never was.
    fn record(&self, event: Handle<Event>) -> Done<Option<EventRecord>> {
        let objects = self.objects();
        let event = objects.events.get(event).ok_or(CUresult::INVALID_HANDLE)?;
        match &event.last {
            EventState::Never => Ok(None),
            EventState::Recorded(record) => Ok(Some(record.clone())),
            EventState::Captured(..) => Err(CUresult::CAPTURED_EVENT),
        }
    }

    pub fn query_event(&self, event: Handle<Event>) -> Done {
        self.check_event(event)?;
        if let Some(at) = self.marked(event)? {
            return self.is_done_at(at);
        }
        self.record(event)?.map_or(Ok(()), |record| {
            self.is_done(record.gpu, record.mark.ticket)
        })
    }

    pub fn synchronize_event(&self, event: Handle<Event>) -> Done {
        self.check_event(event)?;
        if let Some(at) = self.marked(event)?.filter(|at| at.slot != self.slot) {
            self.state().wait_for(self.slot, at);
            return self.check_gpu(at.gpu);
        }
        self.record(event)?.map_or(Ok(()), |record| {
            self.wait_for(record.gpu, record.mark.ticket)
        })
    }

    /// Milliseconds of simulated time between two events.
    pub fn elapsed(&self, start: Handle<Event>, end: Handle<Event>) -> Done<f32> {
        let time = |event| -> Done<u64> {
            let timeless = self
                .objects()
                .events
                .get(event)
                .ok_or(CUresult::INVALID_HANDLE)?
                .flags
                & 2
                != 0;
            let record = self
                .record(event)?
                .filter(|_| !timeless)
                .ok_or(CUresult::INVALID_HANDLE)?;
            self.is_done(record.gpu, record.mark.ticket)?;
            record
                .mark
                .passed(self.state().queue(self.slot, record.gpu))
                .ok_or(CUresult::NOT_READY)
        };
        let (start, end) = (time(start)?, time(end)?);
        Ok((end as f64 - start as f64) as f32 / 1e6)
    }
}
