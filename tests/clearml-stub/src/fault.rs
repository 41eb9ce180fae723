//! What is to go wrong with which call.

use std::time::Duration;

use tokio::sync::watch;

/// When in a call's life something happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// Nothing of it has been done.
    Before,
    /// All of it has been done, and the caller knows nothing of it.
    After,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    Answer {
        code: u16,
        message: String,
    },
    Drop,
    Wait(Duration),
    Hold {
        reached: watch::Sender<bool>,
        released: watch::Receiver<bool>,
    },
}

/// Something that goes wrong with calls to an endpoint; with the next one unless [`Fault::times`] says otherwise.
#[derive(Clone, Debug)]
pub struct Fault {
    pub(crate) endpoint: String,
    pub(crate) when: When,
    pub(crate) what: What,
    pub(crate) left: usize,
    /// Matching calls that pass before it happens.
    skip: usize,
    /// Only calls whose body mentions this.
    about: Option<String>,
    /// Only calls that may change something.
    changes: bool,
}

impl Fault {
    fn new(endpoint: &str, when: When, what: What) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            when,
            what,
            left: 1,
            skip: 0,
            about: None,
            changes: false,
        }
    }

    /// An HTTP status instead of an answer: 429, 502, 503 (maintenance), 509; nothing is done. The endpoint `*` stands for all.
    #[must_use]
    pub fn answer(endpoint: &str, code: u16) -> Self {
        let message = format!("injected {code}");
        Self::new(endpoint, When::Before, What::Answer { code, message })
    }

    /// The connection ends before anything is done.
    #[must_use]
    pub fn drop_before(endpoint: &str) -> Self {
        Self::new(endpoint, When::Before, What::Drop)
    }

    /// The connection ends when all is done: the caller cannot know it.
    #[must_use]
    pub fn drop_after(endpoint: &str) -> Self {
        Self::new(endpoint, When::After, What::Drop)
    }

    /// The answer comes later.
    #[must_use]
    pub fn slow(endpoint: &str, by: Duration) -> Self {
        Self::new(endpoint, When::After, What::Wait(by))
    }

    /// How many calls it happens to.
    #[must_use]
    pub fn times(self, times: usize) -> Self {
        Self {
            left: times,
            ..self
        }
    }

    /// How many calls pass before it happens.
    #[must_use]
    pub fn skip(self, skip: usize) -> Self {
        Self { skip, ..self }
    }

    /// Happens only to calls whose body mentions `text`, a task's id say.
    #[must_use]
    pub fn about(self, text: &str) -> Self {
        Self {
            about: Some(text.to_owned()),
            ..self
        }
    }

    /// Happens only to calls that may change something.
    #[must_use]
    pub fn changes(self) -> Self {
        Self {
            changes: true,
            ..self
        }
    }

    /// Holds a call before anything of it is done.
    #[must_use]
    pub fn hold_before(endpoint: &str) -> (Self, Hold) {
        Self::hold(endpoint, When::Before)
    }

    /// Holds the answer to a call when all of it has been done.
    #[must_use]
    pub fn hold_after(endpoint: &str) -> (Self, Hold) {
        Self::hold(endpoint, When::After)
    }

    fn matches(&self, endpoint: &str, body: &[u8], when: When) -> bool {
        let action = endpoint.split_once('.').map_or("", |(_, action)| action);
        let only_reads = action != "get_next_task" && action.starts_with("get_");
        let only_reads = only_reads || action == "peek_task" || action == "login";
        let mentions = |text: &String| {
            let mut windows = body.windows(text.len());
            windows.any(|window| window == text.as_bytes())
        };
        self.when == when
            && (self.endpoint == "*" || self.endpoint == endpoint)
            && !(self.changes && only_reads)
            && self.about.as_ref().is_none_or(mentions)
    }

    fn hold(endpoint: &str, when: When) -> (Self, Hold) {
        let (reached, watched) = watch::channel(false);
        let (release, released) = watch::channel(false);
        let fault = Self::new(endpoint, when, What::Hold { reached, released });
        (
            fault,
            Hold {
                reached: watched,
                release,
            },
        )
    }
}

/// A call that waits. It goes on when this is released or dropped.
#[derive(Debug)]
pub struct Hold {
    reached: watch::Receiver<bool>,
    release: watch::Sender<bool>,
}

impl Hold {
    /// Whether the call has come.
    #[must_use]
    pub fn is_reached(&self) -> bool {
        *self.reached.borrow()
    }

    /// Lets it go on.
    pub fn release(self) {
        self.release.send_replace(true);
    }
}

/// The next fault of a call, one fewer of it left.
pub(crate) fn due(
    faults: &mut Vec<Fault>,
    endpoint: &str,
    body: &[u8],
    when: When,
) -> Option<What> {
    let mut what = None;
    for fault in faults
        .iter_mut()
        .filter(|fault| fault.matches(endpoint, body, when))
    {
        if fault.skip > 0 {
            fault.skip -= 1;
        } else if what.is_none() {
            fault.left -= 1;
            what = Some(fault.what.clone());
        }
    }
    faults.retain(|fault| fault.left > 0);
    what
}
