//! Appending work to the queues of this process; waits for room in a full queue.

use crate::engine::objects::stream::{Target, TimePoint};
use crate::engine::process::Process;
use crate::engine::time::{DEPTH, Work};
use std::sync::{Arc, PoisonError};

impl Process {
    /// Appends work and gives its ticket; waits for room in a full queue.
    pub fn issue(&self, gpu: usize, target: Target, work: Work) -> u64 {
        self.issue_marked(gpu, target, work, false).0
    }

    pub fn issue_marked(
        &self,
        gpu: usize,
        target: Target,
        work: Work,
        marked: bool,
    ) -> (u64, Option<Arc<TimePoint>>) {
        if matches!(work, Work::Meet { .. }) {
            self.state().expect_meetings();
        }
        let queue = self.state().queue(self.slot, gpu);
        let mut issue = self.issue[gpu]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let ticket = loop {
            while issue
                .marks
                .front()
                .is_some_and(|mark| mark.passed(queue).is_some())
            {
                issue.marks.pop_front();
            }
            if let Some(ticket) = queue.push(self.state().now(), work) {
                break ticket;
            }
            if self.state().gpu(gpu).health.is_lost() {
                break queue.newest();
            }
            self.state()
                .wait(self.slot, gpu, queue.newest() + 1 - DEPTH);
        };
        if work == Work::Gate {
            issue.host_function = Some(ticket);
        }
        let mark = marked.then(|| Arc::new(TimePoint::new(ticket)));
        issue.marks.extend(mark.clone());
        drop(issue);
        if let Target::Own(stream) = target
            && let Some(stream) = self.objects().streams.get_mut(stream)
        {
            stream.last = ticket;
        }
        (ticket, mark)
    }

    /// Before the CPU touches memory for a call: host functions issued earlier must have returned.
    pub fn after_host_functions(&self, gpu: usize) {
        let pending = self.issue[gpu]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .host_function
            .take();
        if let Some(ticket) = pending {
            self.state().wait(self.slot, gpu, ticket);
        }
    }
}
